//! The ledger's file as redb sees it.
//!
//! A removal is what people ask for when the disk is full. So the file owns blocks beyond its end, as much again as it
//! holds, which is what redb next grows it by: they are its own whatever else fills the disk, and nothing has to be
//! given up and won back. Nobody sees them but du; a copy of the file does without, until it is opened.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::ops::Bound;
use std::os::unix::fs::FileExt;
#[cfg(test)]
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::{BackendError, StorageBackend};
use rustix::fs::{Advice, FallocateFlags};
use rustix::io::Errno;

use super::newest::{HEADER_BYTES, follow_newest};
use crate::error::Result;

/// An open file. Its space is reserved before it grows, so that a commit on a full disk has room for what it writes.
#[derive(Debug)]
pub(super) struct Backend {
    file: File,
    /// Whether the room for the next growth could not be had, and is to be tried for again.
    is_short: AtomicBool,
    #[cfg(test)]
    pub(super) faults: Arc<super::tests::Faults>,
}

impl Backend {
    /// Takes the file; what a failed sync may have left in the page cache, and not on the disk, is not believed.
    pub(super) fn new(file: File) -> Self {
        if let Err(errno) = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed) {
            log::debug!("the page cache of the ledger's file stays: {errno}");
        }
        let backend = Backend {
            file,
            is_short: AtomicBool::new(true),
            #[cfg(test)]
            faults: Arc::default(),
        };
        backend.keep_room();
        backend
    }

    /// Has the next growth's blocks beyond the end of the file, if the disk has them now.
    fn keep_room(&self) {
        let is_short = match self.file.metadata().map(|found| found.len()) {
            // It is being made: how long it will be is not known yet.
            Ok(0) => false,
            // A filesystem that reserves nothing is not asked again.
            Ok(len) => self.reserve(len.saturating_mul(2)).is_err_and(|errno| errno != Errno::OPNOTSUPP),
            Err(_) => true,
        };
        if self.is_short.swap(is_short, Ordering::Relaxed) != is_short {
            log::debug!("room for the ledger's next growth is kept: {}", !is_short);
        }
    }

    /// Blocks up to `len`, which is not the file's length yet: what stops half-way leaves a length that redb knows.
    fn reserve(&self, len: u64) -> Result<(), Errno> {
        rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, len)
    }

    /// Where tests let one of the calls that change the file fail.
    fn changing(&self) -> io::Result<()> {
        #[cfg(test)]
        self.faults.check()?;
        changing().map_err(|e| io::Error::from_raw_os_error(e.errno()))
    }
}

/// The same by name, from outside the process.
fn changing() -> Result<()> {
    step!("ledger.disk");
    Ok(())
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)?;
        if offset == 0 && out.len() >= HEADER_BYTES {
            follow_newest(out);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.changing()?;
        if len > self.len()? {
            match self.reserve(len) {
                Ok(()) | Err(Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        self.file.set_len(len)?;
        // Shrinking gave away what was kept.
        self.keep_room();
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.changing()?;
        if self.is_short.load(Ordering::Relaxed) {
            self.keep_room();
        }
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.changing()?;
        self.file.write_all_at(data, offset)
    }

    /// One opening at a time; redb asks for the whole file when parts are not supported.
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        if !matches!(start, Bound::Unbounded | Bound::Included(0)) || end != Bound::Unbounded {
            return Err(BackendError::Unsupported);
        }
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Unsupported => {
                Err(BackendError::Unsupported)
            }
            Err(TryLockError::Error(e)) => Err(BackendError::Io(e)),
        }
    }

    fn unlock_range(&self, _start: Bound<u64>, _end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock().map_err(BackendError::Io)
    }

    fn close(&self) -> io::Result<()> {
        self.file.unlock()
    }
}
