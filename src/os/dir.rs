//! A directory descriptor and what can be done below it.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, RenameFlags, ResolveFlags};
use rustix::io::Errno;

use super::file::{Attr, FsSpace};
use crate::error::{Error, Result};

/// An open directory. All access to the store goes through one of these.
#[derive(Debug)]
pub struct Dir(OwnedFd);

/// What a directory entry is, as the listing says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryType {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link, device, socket or FIFO.
    Other,
}

/// A name in a directory.
#[derive(Debug)]
pub struct DirEntry {
    /// The bytes of the name.
    pub name: Vec<u8>,
    /// What stands there.
    pub kind: EntryType,
    /// Number of its inode.
    pub inode: u64,
}

/// What a rename does with a name that is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameHow {
    /// Replaces it, atomically.
    Replace,
    /// Fails.
    NoReplace,
    /// Exchanges the two.
    Exchange,
}

const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn shown(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

/// Opens with O_NOATIME where that is allowed: to the owner and to root.
fn unmarked(
    flags: OFlags,
    open: impl Fn(OFlags) -> rustix::io::Result<OwnedFd>,
) -> rustix::io::Result<OwnedFd> {
    match open(flags | OFlags::NOATIME) {
        Err(Errno::PERM) => open(flags),
        done => done,
    }
}

impl Dir {
    /// Opens the root of a store by its path; the path itself may hold links, what is below may not.
    pub fn open_root(path: &Path) -> Result<Dir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty())
            .map(Dir)
            .map_err(|e| Error::os(format!("cannot open directory {}", path.display()), e))
    }

    /// Opens a directory below this one.
    pub fn open_dir(&self, name: impl AsRef<[u8]>) -> Result<Dir> {
        self.open_dir_if_any(name.as_ref())?.ok_or_else(|| {
            Error::os(format!("cannot open directory {}", shown(name.as_ref())), rustix::io::Errno::NOENT)
        })
    }

    /// Opens a directory below this one; `None` when there is none.
    pub fn open_dir_if_any(&self, name: impl AsRef<[u8]>) -> Result<Option<Dir>> {
        let name = name.as_ref();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat2(&self.0, OsStr::from_bytes(name), flags, Mode::empty(), BENEATH) {
            Ok(fd) => Ok(Some(Dir(fd))),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(e) => Err(Error::os(format!("cannot open directory {}", shown(name)), e)),
        }
    }

    /// Opens a directory below this one, making it when it is missing.
    pub fn ensure_dir(&self, name: impl AsRef<[u8]>, mode: u32) -> Result<Dir> {
        let name = name.as_ref();
        if let Some(dir) = self.open_dir_if_any(name)? {
            return Ok(dir);
        }
        match rustix::fs::mkdirat(&self.0, OsStr::from_bytes(name), Mode::from_raw_mode(mode)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => self.open_dir(name),
            Err(e) => Err(Error::os(format!("cannot make directory {}", shown(name)), e)),
        }
    }

    /// Opens a regular file below this directory for reading and, with `write`, for writing; `None` when there is
    /// none. Never blocks on a FIFO that somebody put there.
    pub fn open_file(&self, name: impl AsRef<[u8]>, write: bool) -> Result<Option<File>> {
        let name = name.as_ref();
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        match rustix::fs::openat2(&self.0, OsStr::from_bytes(name), flags, Mode::empty(), BENEATH) {
            Ok(fd) => Ok(Some(File::from(fd))),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(e) => Err(Error::os(format!("cannot open {}", shown(name)), e)),
        }
    }

    /// Opens a directory by its path to read in it without leaving a trace: where the owner allows it, no time of
    /// access moves. What is opened with [`Dir::read_dir`] and [`Dir::read_file`] below it is read so as well.
    pub fn open_unmarked(path: &Path) -> Result<Dir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        unmarked(flags, |flags| rustix::fs::open(path, flags, Mode::empty()))
            .map(Dir)
            .map_err(|e| Error::os(format!("cannot open directory {}", path.display()), e))
    }

    /// As [`Dir::open_dir_if_any`], leaving no trace of having read in it.
    pub fn read_dir(&self, name: impl AsRef<[u8]>) -> Result<Option<Dir>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(self.read_below(name.as_ref(), flags)?.map(Dir))
    }

    /// As [`Dir::open_file`] for reading, leaving no trace of having read it.
    pub fn read_file(&self, name: impl AsRef<[u8]>) -> Result<Option<File>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(self.read_below(name.as_ref(), flags)?.map(File::from))
    }

    fn read_below(&self, name: &[u8], flags: OFlags) -> Result<Option<OwnedFd>> {
        let open =
            |flags| rustix::fs::openat2(&self.0, OsStr::from_bytes(name), flags, Mode::empty(), BENEATH);
        match unmarked(flags, open) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(Error::os(format!("cannot open {}", shown(name)), e)),
        }
    }

    /// Makes a new file, open for reading and writing; a name that is taken is [`crate::Kind::Exists`].
    pub fn create_file(&self, name: impl AsRef<[u8]>, mode: u32) -> Result<File> {
        let name = name.as_ref();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat2(
            &self.0,
            OsStr::from_bytes(name),
            flags,
            Mode::from_raw_mode(mode & 0o7777),
            BENEATH,
        )
        .map(File::from)
        .map_err(|e| Error::os(format!("cannot create {}", shown(name)), e))
    }

    /// Removes a file; whether there was one.
    pub fn unlink(&self, name: impl AsRef<[u8]>) -> Result<bool> {
        self.remove(name.as_ref(), AtFlags::empty())
    }

    /// Removes an empty directory; whether there was one.
    pub fn rmdir(&self, name: impl AsRef<[u8]>) -> Result<bool> {
        self.remove(name.as_ref(), AtFlags::REMOVEDIR)
    }

    fn remove(&self, name: &[u8], flags: AtFlags) -> Result<bool> {
        match rustix::fs::unlinkat(&self.0, OsStr::from_bytes(name), flags) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(e) => Err(Error::os(format!("cannot remove {}", shown(name)), e)),
        }
    }

    /// Renames `name` of this directory to `to_name` of `to`.
    pub fn rename(
        &self,
        name: impl AsRef<[u8]>,
        to: &Dir,
        to_name: impl AsRef<[u8]>,
        how: RenameHow,
    ) -> Result<()> {
        let flags = match how {
            RenameHow::Replace => RenameFlags::empty(),
            RenameHow::NoReplace => RenameFlags::NOREPLACE,
            RenameHow::Exchange => RenameFlags::EXCHANGE,
        };
        let (name, to_name) = (name.as_ref(), to_name.as_ref());
        rustix::fs::renameat_with(&self.0, OsStr::from_bytes(name), &to.0, OsStr::from_bytes(to_name), flags)
            .map_err(|e| Error::os(format!("cannot rename {} to {}", shown(name), shown(to_name)), e))
    }

    /// The attributes of a name, without following a link; `None` when there is none.
    pub fn stat(&self, name: impl AsRef<[u8]>) -> Result<Option<Attr>> {
        let name = name.as_ref();
        match rustix::fs::statat(&self.0, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(st) => Ok(Some(Attr::from(st))),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(e) => Err(Error::os(format!("cannot stat {}", shown(name)), e)),
        }
    }

    /// All names but `.` and `..`.
    pub fn entries(&self) -> Result<Vec<DirEntry>> {
        let again = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.0, c".", again, Mode::empty()) {
            Ok(fd) => self.list(fd),
            // Removed since it was opened: whoever did found nothing in it.
            Err(Errno::NOENT) => Ok(Vec::new()),
            Err(e) => Err(Error::os("cannot list directory", e)),
        }
    }

    /// All names but `.` and `..`, by this descriptor's own position: for a directory that is opened to be listed once.
    pub fn entries_once(&self) -> Result<Vec<DirEntry>> {
        self.list(&self.0)
    }

    fn list(&self, fd: impl AsFd) -> Result<Vec<DirEntry>> {
        let mut buf = Vec::with_capacity(32 * 1024);
        let mut iter = RawDir::new(fd, buf.spare_capacity_mut());
        let mut out = Vec::new();
        while let Some(entry) = iter.next() {
            let entry = match entry {
                Err(Errno::NOENT) => break,
                entry => entry.map_err(|e| Error::os("cannot list directory", e))?,
            };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::RegularFile => EntryType::File,
                FileType::Directory => EntryType::Dir,
                FileType::Unknown => self.entry_type(name)?,
                _ => EntryType::Other,
            };
            out.push(DirEntry { name: name.to_vec(), kind, inode: entry.ino() });
        }
        Ok(out)
    }

    fn entry_type(&self, name: &[u8]) -> Result<EntryType> {
        Ok(match self.stat(name)? {
            Some(a) if a.is_file() => EntryType::File,
            Some(a) if a.is_dir() => EntryType::Dir,
            _ => EntryType::Other,
        })
    }

    /// The directory's own attributes.
    pub fn attr(&self) -> Result<Attr> {
        super::stat(self)
    }

    /// Makes the directory's entries durable.
    pub fn sync(&self) -> Result<()> {
        rustix::fs::fsync(&self.0).map_err(|e| Error::os("cannot sync directory", e))
    }

    /// Space of the filesystem that holds this directory.
    pub fn space(&self) -> Result<FsSpace> {
        let st = rustix::fs::fstatvfs(&self.0)
            .map_err(|e| Error::os("cannot read the free space of the store", e))?;
        Ok(FsSpace {
            total_bytes: st.f_blocks * st.f_frsize,
            available_bytes: st.f_bavail * st.f_frsize,
            total_inodes: st.f_files,
            available_inodes: st.f_favail,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_was_removed_lists_nothing() {
        let above = tempfile::tempdir().unwrap();
        let root = Dir::open_root(above.path()).unwrap();
        let gone = root.ensure_dir("d", 0o700).unwrap();
        let once = root.open_dir("d").unwrap();
        assert!(root.rmdir("d").unwrap());
        assert!(gone.entries().unwrap().is_empty());
        assert!(once.entries_once().unwrap().is_empty());
    }
}
