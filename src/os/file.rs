//! What can be done with an open file or directory.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime};

use rustix::fs::{Gid, Mode, SeekFrom, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// How long a file that lacks blocks is waited for: in ever longer pauses, from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_micros(10);
const LAST_PAUSE: Duration = Duration::from_millis(20);
/// The magic number of ext2, ext3 and ext4.
const EXT4: u64 = 0xEF53;

/// A moment: seconds since the epoch (may be negative) and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timespec {
    /// Seconds.
    pub sec: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nsec: u32,
}

impl Timespec {
    /// The present.
    pub fn now() -> Self {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Timespec { sec: t.tv_sec, nsec: t.tv_nsec as u32 }
    }

    /// As the standard library's type.
    pub fn to_system_time(self) -> SystemTime {
        let nanos = Duration::from_nanos(u64::from(self.nsec));
        if self.sec >= 0 {
            SystemTime::UNIX_EPOCH + Duration::from_secs(self.sec as u64) + nanos
        } else {
            SystemTime::UNIX_EPOCH - Duration::from_secs(self.sec.unsigned_abs()) + nanos
        }
    }

    /// From the standard library's type.
    pub fn from_system_time(t: SystemTime) -> Self {
        match t.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(d) => Timespec { sec: d.as_secs() as i64, nsec: d.subsec_nanos() },
            Err(e) => {
                let d = e.duration();
                let (sec, nsec) = (-(d.as_secs() as i64), d.subsec_nanos());
                if nsec == 0 {
                    Timespec { sec, nsec }
                } else {
                    Timespec { sec: sec - 1, nsec: 1_000_000_000 - nsec }
                }
            }
        }
    }
}

/// What stat(2) says.
#[derive(Debug, Clone, Copy, Default)]
pub struct Attr {
    /// File type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Payload length in bytes.
    pub size_bytes: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timespec,
    /// Last change of content.
    pub mtime: Timespec,
    /// Last change of anything.
    pub ctime: Timespec,
    /// Device of the filesystem.
    pub dev: u64,
    /// Inode number on the backing filesystem.
    pub ino: u64,
}

impl Attr {
    /// Whether this is a regular file.
    pub fn is_file(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }

    /// Whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }

    /// Allocated bytes.
    pub fn allocated_bytes(&self) -> u64 {
        self.blocks * 512
    }
}

impl From<rustix::fs::Stat> for Attr {
    fn from(st: rustix::fs::Stat) -> Self {
        Attr {
            mode: st.st_mode,
            uid: st.st_uid,
            gid: st.st_gid,
            size_bytes: st.st_size as u64,
            blocks: st.st_blocks as u64,
            atime: Timespec { sec: st.st_atime, nsec: st.st_atime_nsec as u32 },
            mtime: Timespec { sec: st.st_mtime, nsec: st.st_mtime_nsec as u32 },
            ctime: Timespec { sec: st.st_ctime, nsec: st.st_ctime_nsec as u32 },
            dev: st.st_dev,
            ino: st.st_ino,
        }
    }
}

/// Space of a filesystem.
#[derive(Debug, Clone, Copy)]
pub struct FsSpace {
    /// Size.
    pub total_bytes: u64,
    /// What an ordinary user may still allocate.
    pub available_bytes: u64,
    /// Inodes in all; 0 where the filesystem makes them as needed.
    pub total_inodes: u64,
    /// Inodes left.
    pub available_inodes: u64,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// Leave it.
    Keep,
    /// The present, by the backing filesystem's clock.
    Now,
    /// This one.
    At(Timespec),
}

/// Attributes of an open file, asked once: it may be told to have fewer blocks than a moment before and after.
pub fn stat_unsettled(fd: impl AsFd) -> Result<Attr> {
    rustix::fs::fstat(fd).map(Attr::from).map_err(|e| Error::os("cannot stat an open file", e))
}

/// Attributes of an open file.
pub fn stat(fd: impl AsFd) -> Result<Attr> {
    let ask = || stat_unsettled(&fd);
    let mut attr = ask()?;
    let mut pause = FIRST_PAUSE;
    while pause < LAST_PAUSE && lacks_blocks(&fd, &attr) {
        std::thread::sleep(pause);
        pause *= 2;
        attr = ask()?;
    }
    Ok(attr)
}

/// Whether blocks of a file are being given their places on the disk at this moment: on ext4 they are neither reserved
/// nor allocated then, and a file of a megabyte may be said to have none. Elsewhere, and where a file has holes, it may
/// well have fewer blocks than its length needs.
fn lacks_blocks(fd: impl AsFd, attr: &Attr) -> bool {
    attr.is_file()
        && attr.size_bytes > 4096
        && attr.allocated_bytes() < attr.size_bytes
        && rustix::fs::fstatfs(&fd).is_ok_and(|fs| fs.f_type as u64 == EXT4)
        && has_no_hole(&fd, attr.size_bytes).unwrap_or(false)
}

fn has_no_hole(fd: impl AsFd, size_bytes: u64) -> rustix::io::Result<bool> {
    let before = rustix::fs::tell(&fd)?;
    let hole = rustix::fs::seek(&fd, SeekFrom::Hole(0));
    rustix::fs::seek(&fd, SeekFrom::Start(before))?;
    Ok(hole? >= size_bytes)
}

/// Sets permission bits.
pub fn chmod(fd: impl AsFd, mode: u32) -> Result<()> {
    rustix::fs::fchmod(fd, Mode::from_raw_mode(mode & 0o7777)).map_err(|e| Error::os("cannot change mode", e))
}

/// Sets owner and group; `None` leaves one as it is.
pub fn chown(fd: impl AsFd, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    rustix::fs::fchown(fd, uid.map(Uid::from_raw), gid.map(Gid::from_raw))
        .map_err(|e| Error::os("cannot change owner", e))
}

/// Sets access and modification times.
pub fn set_times(fd: impl AsFd, atime: SetTime, mtime: SetTime) -> Result<()> {
    let spec = |t: SetTime| match t {
        SetTime::Keep => rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        SetTime::Now => rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        SetTime::At(t) => rustix::fs::Timespec { tv_sec: t.sec, tv_nsec: i64::from(t.nsec) },
    };
    let times = Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
    rustix::fs::futimens(fd, &times).map_err(|e| Error::os("cannot set times", e))
}

/// Sets the length.
pub fn truncate(fd: impl AsFd, size_bytes: u64) -> Result<()> {
    rustix::fs::ftruncate(fd, size_bytes).map_err(|e| Error::os("cannot truncate", e))
}

/// fallocate(2) with raw mode bits.
pub fn fallocate(fd: impl AsFd, mode: i32, offset: u64, length: u64) -> Result<()> {
    let flags = rustix::fs::FallocateFlags::from_bits_retain(mode as u32);
    rustix::fs::fallocate(fd, flags, offset, length).map_err(|e| Error::os("cannot allocate", e))
}

/// Which boundary a seek looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hole {
    /// SEEK_HOLE.
    Hole,
    /// SEEK_DATA.
    Data,
}

/// The next hole or data at or after `offset`; ENXIO past the end.
pub fn seek_hole(fd: impl AsFd, what: Hole, offset: u64) -> Result<u64> {
    let from = match what {
        Hole::Hole => SeekFrom::Hole(offset),
        Hole::Data => SeekFrom::Data(offset),
    };
    rustix::fs::seek(fd, from).map_err(|e| Error::os("cannot seek", e))
}

/// Copies up to `length` bytes inside the kernel; the number copied.
pub fn copy_range(from: &File, from_offset: u64, to: &File, to_offset: u64, length: usize) -> Result<usize> {
    let (mut a, mut b) = (from_offset, to_offset);
    rustix::fs::copy_file_range(from, Some(&mut a), to, Some(&mut b), length)
        .map_err(|e| Error::os("cannot copy a range", e))
}

/// Makes content and metadata durable.
pub fn sync_file(fd: impl AsFd) -> Result<()> {
    rustix::fs::fsync(fd).map_err(|e| Error::os("cannot sync", e))
}

/// Makes content durable.
pub fn sync_data(fd: impl AsFd) -> Result<()> {
    rustix::fs::fdatasync(fd).map_err(|e| Error::os("cannot sync", e))
}

/// A file in memory, without a name anywhere.
pub fn memory_file(called: &str) -> Result<File> {
    rustix::fs::memfd_create(called, rustix::fs::MemfdFlags::CLOEXEC)
        .map(File::from)
        .map_err(|e| Error::os("cannot make a file in memory", e))
}

/// Takes an exclusive flock without waiting; whether it was free.
pub fn lock_exclusive(fd: impl AsFd) -> Result<bool> {
    match rustix::fs::flock(fd, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(Error::os("cannot lock", e)),
    }
}

/// What setting an attribute does with one that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrMode {
    /// Creates or replaces.
    Set,
    /// Fails when it exists.
    Create,
    /// Fails when it does not.
    Replace,
}

/// Reads an extended attribute; `None` when it is not set.
pub fn xattr_get(fd: impl AsFd, name: &str, max_bytes: usize) -> Result<Option<Vec<u8>>> {
    let mut buf = Vec::with_capacity(max_bytes);
    match rustix::fs::fgetxattr(fd, name, rustix::buffer::spare_capacity(&mut buf)) {
        Ok(_) => Ok(Some(buf)),
        Err(Errno::NODATA) => Ok(None),
        Err(e) => Err(Error::os(format!("cannot read attribute {name}"), e)),
    }
}

/// Sets an extended attribute.
pub fn xattr_set(fd: impl AsFd, name: &str, value: &[u8], mode: XattrMode) -> Result<()> {
    let flags = match mode {
        XattrMode::Set => XattrFlags::empty(),
        XattrMode::Create => XattrFlags::CREATE,
        XattrMode::Replace => XattrFlags::REPLACE,
    };
    rustix::fs::fsetxattr(fd, name, value, flags)
        .map_err(|e| Error::os(format!("cannot set attribute {name}"), e))
}

/// Allocated bytes of a file that has no name any more; 0 of one that has.
pub fn unlinked_bytes(fd: impl AsFd) -> u64 {
    rustix::fs::fstat(fd).ok().filter(|s| s.st_nlink == 0).map_or(0, |s| s.st_blocks.unsigned_abs() * 512)
}

/// The names of all extended attributes.
pub fn xattr_list(fd: impl AsFd) -> Result<Vec<String>> {
    let mut buf = Vec::with_capacity(64 * 1024);
    rustix::fs::flistxattr(fd, rustix::buffer::spare_capacity(&mut buf))
        .map_err(|e| Error::os("cannot list attributes", e))?;
    Ok(buf
        .split(|b| *b == 0)
        .filter(|n| !n.is_empty())
        .map(|n| String::from_utf8_lossy(n).into_owned())
        .collect())
}

/// Removes an extended attribute; whether it was set.
pub fn xattr_remove(fd: impl AsFd, name: &str) -> Result<bool> {
    match rustix::fs::fremovexattr(fd, name) {
        Ok(()) => Ok(true),
        Err(Errno::NODATA) => Ok(false),
        Err(e) => Err(Error::os(format!("cannot remove attribute {name}"), e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_epoch_round_trip() {
        for t in [
            Timespec { sec: -157_766_400, nsec: 0 },
            Timespec { sec: -2, nsec: 5 },
            Timespec { sec: 7, nsec: 999_999_999 },
        ] {
            assert_eq!(Timespec::from_system_time(t.to_system_time()), t);
        }
    }

    /// Looked at without a pause while the filesystem writes it out, on whichever directory tests have.
    #[test]
    fn a_file_has_its_blocks_while_it_is_written_out() {
        use std::os::unix::fs::FileExt;
        const BYTES: usize = 1 << 20;
        for _ in 0..100 {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&[1; BYTES], 0).unwrap();
            rustix::fs::seek(&file, SeekFrom::Start(5)).unwrap();
            std::thread::scope(|threads| {
                let writing = threads.spawn(|| file.sync_data().unwrap());
                while !writing.is_finished() {
                    let blocks = stat(&file).unwrap().blocks;
                    assert_eq!(rustix::fs::tell(&file).unwrap(), 5);
                    assert!(blocks * 512 >= BYTES as u64, "{blocks} blocks");
                }
            });
        }
    }
}
