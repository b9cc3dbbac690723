//! Input and output on an open file, where the kernel does not do it by itself: read, write, sync, allocate, seek, copy.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fuser::{Errno, FileHandle, ReplyData, ReplyEmpty, ReplyLseek, ReplyWrite};

use super::Fs;
use super::files::answer_empty;
use super::opens::{Handle, OpenNode, Writing};
use super::requests::errno;
use crate::config::limits;
use crate::error::{Error, Kind, Result};
use crate::format::legacy::Span;
use crate::os::{self, Attr};

impl Fs {
    pub(super) fn handle(&self, fh: FileHandle) -> Result<Arc<Handle>> {
        self.opens.handle(fh.0).ok_or_else(|| self.opens.missing(fh.0))
    }

    /// The record that the value of an open inode was copied into since it was opened, if it was attached then.
    fn moved<'a>(&self, open: &'a OpenNode) -> Result<Option<&'a Arc<File>>> {
        let Some(moved) = open.moved.get() else {
            if open.attached().is_none()
                || self.store.is_attached(open.node)
                || !self.store.is_named(open.node)
            {
                return Ok(None);
            }
            // Whoever has the old file open sees what is edited now, as in any file.
            let Some(value) = self.store.open_value(open.node, None)?.filter(|v| v.span.is_none()) else {
                return Ok(None);
            };
            return Ok(Some(open.moved.get_or_init(|| Arc::new(value.file))));
        };
        Ok(Some(moved))
    }

    /// What a handle reads, and where in it the value is.
    fn content(&self, handle: &Handle) -> Result<(Arc<File>, Option<Span>)> {
        let reads_inode = handle.writing.is_none() && handle.edits.is_none();
        let Some((file, span)) = handle.open.attached().filter(|_| reads_inode) else {
            return Ok((Arc::clone(&handle.file), None));
        };
        Ok(match self.moved(&handle.open)? {
            Some(moved) => (Arc::clone(moved), None),
            None => (Arc::clone(file), Some(span)),
        })
    }

    /// Attributes of what an open inode holds.
    pub(super) fn content_attr(&self, open: &OpenNode) -> Result<Attr> {
        let Some((file, span)) = open.attached() else { return os::stat(&*open.file) };
        match self.moved(open)? {
            Some(moved) => os::stat(&**moved),
            None => Ok(Attr { size_bytes: span.bytes, ..os::stat(&**file)? }),
        }
    }

    /// READ, where the kernel does not read by itself.
    pub(super) fn read(&self, fh: FileHandle, offset: u64, size: u32, reply: ReplyData) {
        let read = self.handle(fh).and_then(|handle| {
            let (file, span) = self.content(&handle)?;
            let (offset, length) = within(span, offset, u64::from(size));
            let mut buf = vec![0; length as usize];
            let mut filled = 0;
            while filled < buf.len() {
                let n = file.read_at(&mut buf[filled..], offset + filled as u64);
                match n.map_err(|e| Error::os("cannot read a value", e))? {
                    0 => break,
                    n => filled += n,
                }
            }
            buf.truncate(filled);
            self.store.counters.read_bytes.fetch_add(filled as u64, Ordering::Relaxed);
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
            self.room_to_write(&handle, at, data.len() as u64)?;
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
            self.store.counters.written_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
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

    /// Refuses what can never be published, or kept. A value that missed a write is not whole, whatever its writer does
    /// next.
    fn room_to_write(&self, handle: &Handle, at: u64, bytes: u64) -> Result<()> {
        match (handle.edited(), &handle.writing) {
            (Some(id), _) => self.store.room_to_edit(id, &handle.file, at.saturating_add(bytes)),
            (None, Some(writing)) => self.room_to_stage(writing, bytes),
            (None, None) => Ok(()),
        }
    }

    fn room_to_stage(&self, writing: &Writing, bytes: u64) -> Result<()> {
        // Whoever holds the lock is publishing it, and judges that itself.
        if writing.staged.try_lock().is_some_and(|staged| staged.is_doomed()) {
            return Err(Error::new(Kind::NoSpace, "the value is larger than the quota, or missed a write"));
        }
        let allocated = os::stat(&*writing.file)?.allocated_bytes();
        self.store.room_for_allocation(allocated + bytes).inspect_err(|_| writing.staged.lock().doom())
    }

    /// A replacing handle went on writing after its publication: the inode that has the value now is another.
    fn changed_behind(&self, handle: &Handle) {
        if let Some(writing) = &handle.writing {
            let ino = self.ino(writing.node);
            self.notice(super::work::Notice::Inode { ino });
        }
    }

    /// Whether what a handle writes is kept: [`Kind::Stale`] where a removal took it, [`Kind::NoSpace`] where it was
    /// published and has outgrown the quota since.
    fn keeps(&self, handle: &Handle) -> Result<()> {
        handle.admitted()?;
        handle.edited().map_or(Ok(()), |id| self.store.keeps_edit(id))
    }

    /// FSYNC.
    pub(super) fn fsync(&self, fh: FileHandle, data_only: bool, reply: ReplyEmpty) {
        match self.handle(fh).and_then(|handle| self.keeps(&handle).map(|()| handle)) {
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
        let sought = self.handle(fh).and_then(|handle| match self.content(&handle)? {
            (file, None) => os::seek_hole(&*file, what, offset),
            // All data, whatever the file around it.
            (_, Some(span)) if offset < span.bytes => {
                Ok(if what == os::Hole::Data { offset } else { span.bytes })
            }
            _ => Err(Error::new(Kind::Io(libc::ENXIO), "past the end of the value")),
        });
        match sought {
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
            let (file, span) = self.content(&a)?;
            let (at, length) = within(span, from.1, length.min(1 << 30));
            let there = os::stat(&*file)?.size_bytes.saturating_sub(at).min(length);
            self.room_to_write(&b, to.1, there)?;
            Ok((file, at, length, b))
        });
        match files {
            Ok((file, at, length, b)) => self.pool.run(move || {
                if let Some(writing) = &b.writing {
                    writing.changes();
                }
                match copy_between(&file, at, &b.file, to.1, length as usize) {
                    Ok(n) => reply.written(n as u32),
                    Err(e) => reply.error(errno(&e)),
                }
            }),
            Err(e) => reply.error(errno(&e)),
        }
    }
}

/// A stretch of a value, by where it is in the file that holds it: never beyond the value.
fn within(span: Option<Span>, offset: u64, length: u64) -> (u64, u64) {
    match span {
        None => (offset, length),
        Some(span) => {
            let from = offset.min(span.bytes);
            (span.offset + from, length.min(span.bytes - from))
        }
    }
}

/// Copies up to `length` bytes; a legacy directory may be on another filesystem, where the kernel does not.
fn copy_between(from: &File, from_offset: u64, to: &File, to_offset: u64, length: usize) -> Result<usize> {
    if length == 0 {
        return Ok(0);
    }
    match os::copy_range(from, from_offset, to, to_offset, length) {
        Err(e) if e.kind() == Kind::CrossTenant || e.errno() == libc::EXDEV => {
            let mut buf = vec![0; length.min(limits::SUM_BUFFER_BYTES)];
            let n = from.read_at(&mut buf, from_offset).map_err(|e| Error::os("cannot read a value", e))?;
            to.write_all_at(&buf[..n], to_offset).map_err(|e| Error::os("cannot write a value", e))?;
            Ok(n)
        }
        done => done,
    }
}
