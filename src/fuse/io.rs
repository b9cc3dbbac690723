//! Input and output on an open file, where the kernel does not do it by itself: read, write, sync, allocate, seek, copy.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use fuser::{Errno, FileHandle, ReplyData, ReplyEmpty, ReplyLseek, ReplyWrite};

use super::Fs;
use super::files::answer_empty;
use super::opens::{Handle, Writing};
use super::requests::errno;
use crate::error::{Error, Kind, Result};
use crate::os;

impl Fs {
    pub(super) fn handle(&self, fh: FileHandle) -> Result<Arc<Handle>> {
        self.opens.handle(fh.0).ok_or_else(|| Error::new(Kind::Io(libc::EBADF), "no such open file"))
    }

    /// READ, where the kernel does not read by itself.
    pub(super) fn read(&self, fh: FileHandle, offset: u64, size: u32, reply: ReplyData) {
        let read = self.handle(fh).and_then(|handle| {
            let mut buf = vec![0; size as usize];
            let mut filled = 0;
            while filled < buf.len() {
                let n = handle.file.read_at(&mut buf[filled..], offset + filled as u64);
                match n.map_err(|e| Error::os("cannot read a value", e))? {
                    0 => break,
                    n => filled += n,
                }
            }
            buf.truncate(filled);
            Ok(buf)
        });
        match read {
            Ok(data) => reply.data(&data),
            Err(e) => reply.error(errno(&e)),
        }
    }

    /// WRITE, where the kernel does not write by itself.
    pub(super) fn write(&self, fh: FileHandle, offset: u64, data: &[u8], reply: ReplyWrite) {
        let written = self.handle(fh).and_then(|handle| {
            handle.admitted()?;
            let at =
                if handle.appends && handle.replaces { os::stat(&*handle.file)?.size_bytes } else { offset };
            if let Some(writing) = handle.writing.as_ref().filter(|w| w.is_unsettled()) {
                self.room_to_write(writing, data.len() as u64)?;
            }
            if let Some(writing) = &handle.writing {
                writing.passes(at, data);
            }
            let written =
                handle.file.write_all_at(data, at).map_err(|e| Error::os("cannot write a value", e));
            if let (Err(_), Some(writing)) = (&written, &handle.writing) {
                writing.changes();
                writing.staged.lock().doom();
            }
            written?;
            if handle.replaces && handle.writing.as_ref().is_some_and(|w| !w.is_unsettled()) {
                self.changed_behind(&handle);
            }
            Ok(data.len() as u32)
        });
        match written {
            Ok(n) => reply.written(n),
            Err(e) => reply.error(errno(&e)),
        }
    }

    /// Refuses what can never be published. A value that missed a write is not whole, whatever its writer does next.
    fn room_to_write(&self, writing: &Writing, bytes: u64) -> Result<()> {
        let allocated = os::stat(&*writing.file)?.allocated_bytes();
        self.store.room_for_allocation(allocated + bytes).inspect_err(|_| writing.staged.lock().doom())
    }

    /// A replacing handle went on writing after its publication: the inode that has the value now is another.
    fn changed_behind(&self, handle: &Handle) {
        if let Some(writing) = &handle.writing {
            let ino = self.ino(writing.staged.lock().node());
            self.notice(super::work::Notice::Inode { ino });
        }
    }

    /// FSYNC.
    pub(super) fn fsync(&self, fh: FileHandle, data_only: bool, reply: ReplyEmpty) {
        match self.handle(fh).and_then(|handle| handle.admitted().map(|()| handle)) {
            Ok(handle) => self.pool.run(move || {
                let file = &*handle.file;
                answer_empty(reply, if data_only { os::sync_data(file) } else { os::sync_file(file) });
            }),
            Err(e) => reply.error(errno(&e)),
        }
    }

    /// FALLOCATE: space beyond the quota is refused at once.
    pub(super) fn fallocate(&self, fh: FileHandle, offset: u64, length: u64, mode: i32, reply: ReplyEmpty) {
        let done = self.handle(fh).and_then(|handle| {
            handle.admitted()?;
            if mode & libc::FALLOC_FL_PUNCH_HOLE == 0 {
                let room = self.store.room_for_allocation(offset.saturating_add(length));
                if let (Err(_), Some(writing)) = (&room, &handle.writing) {
                    writing.staged.lock().doom();
                }
                room?;
            }
            if let Some(writing) = &handle.writing {
                writing.changes();
            }
            os::fallocate(&*handle.file, mode, offset, length)
        });
        answer_empty(reply, done);
    }

    /// LSEEK for holes and data.
    pub(super) fn lseek(&self, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let what = match whence {
            libc::SEEK_HOLE => os::Hole::Hole,
            libc::SEEK_DATA => os::Hole::Data,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        match self.handle(fh).and_then(|h| os::seek_hole(&*h.file, what, offset)) {
            Ok(at) => reply.offset(at as i64),
            Err(e) => reply.error(errno(&e)),
        }
    }

    /// COPY_FILE_RANGE between two open files of the mount.
    pub(super) fn copy_range(
        self: &Arc<Self>,
        from: (FileHandle, u64),
        to: (FileHandle, u64),
        length: u64,
        reply: ReplyWrite,
    ) {
        let files = self.handle(from.0).and_then(|a| {
            let b = self.handle(to.0)?;
            b.admitted()?;
            Ok((a, b))
        });
        match files {
            Ok((a, b)) => self.pool.run(move || {
                let length = length.min(1 << 30) as usize;
                if let Some(writing) = &b.writing {
                    writing.changes();
                }
                match os::copy_range(&a.file, from.1, &b.file, to.1, length) {
                    Ok(n) => reply.written(n as u32),
                    Err(e) => reply.error(errno(&e)),
                }
            }),
            Err(e) => reply.error(errno(&e)),
        }
    }
}
