//! The FUSE device beyond read and write: descriptors of one connection, and what one of them still holds.
//!
//! INVARIANT: each function here makes one ioctl or dup3 on descriptors that it borrows, with numbers of the kernel's
//! interface (`linux/fuse.h`), and reads or writes no memory of the caller but the one integer that it passes.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use crate::error::{Error, Result};

/// Where the kernel is talked to.
pub const DEVICE: &str = "/dev/fuse";

/// `_IOR(229, 0, uint32_t)`.
const CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;
/// `_IOW(229, 2, uint32_t)`.
const BACKING_CLOSE: libc::Ioctl = 0x4004_e502;

/// The device, open and of no connection yet.
pub fn open_device() -> Result<OwnedFd> {
    let opened = OpenOptions::new().read(true).write(true).open(DEVICE);
    opened.map(OwnedFd::from).map_err(|e| Error::os(format!("cannot open {DEVICE}"), e))
}

/// One more descriptor of a connection. What is read through it and not answered fails when it is closed, and the
/// connection lives for as long as one of them does.
pub fn clone_connection(of: BorrowedFd<'_>) -> Result<OwnedFd> {
    let device = open_device()?;
    ioctl(device.as_fd(), CLONE, of.as_raw_fd() as u32)
        .map_err(|e| Error::os("cannot take one more descriptor of the FUSE connection", e))?;
    Ok(device)
}

/// Takes back what the kernel was given as the backing of an inode. Files that are open keep it.
pub fn close_backing(connection: BorrowedFd<'_>, id: u32) -> std::io::Result<()> {
    ioctl(connection, BACKING_CLOSE, id)
}

/// The number of a descriptor that somebody else owns for as long as this process lives.
#[derive(Debug, Clone, Copy)]
pub struct Number(RawFd);

impl Number {
    /// The number of a descriptor.
    pub fn of(owned: BorrowedFd<'_>) -> Self {
        Number(owned.as_raw_fd())
    }

    /// Makes it a descriptor of `file` from now on, in place of what it was, for whoever holds it.
    #[expect(unsafe_code, reason = "what owns the number is out of reach, and goes on owning it")]
    pub fn becomes(self, file: BorrowedFd<'_>) -> Result<()> {
        // SAFETY: dup3 touches no memory. The number stays open throughout, and its owner its owner.
        let done = unsafe { libc::dup3(file.as_raw_fd(), self.0, libc::O_CLOEXEC) };
        if done < 0 {
            return Err(Error::os("cannot replace a descriptor", std::io::Error::last_os_error()));
        }
        Ok(())
    }
}

/// An ioctl that reads one integer.
#[expect(unsafe_code, reason = "rustix has these ioctls only as declarations that are no safer")]
fn ioctl(device: BorrowedFd<'_>, request: libc::Ioctl, value: u32) -> std::io::Result<()> {
    // SAFETY: both requests read four bytes at the address, which is that of a live u32, and write nothing.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), request, &raw const value) };
    if done < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    #[test]
    fn a_number_becomes_another_file_under_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("a"), "old").unwrap();
        std::fs::write(path("b"), "new").unwrap();
        let mut owner = File::open(path("a")).unwrap();
        Number::of(owner.as_fd()).becomes(File::open(path("b")).unwrap().as_fd()).unwrap();
        let mut text = String::new();
        owner.read_to_string(&mut text).unwrap();
        assert_eq!(text, "new");
        assert!(rustix::io::fcntl_getfd(&owner).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn what_is_no_connection_is_refused() {
        let null = File::open("/dev/null").unwrap();
        assert!(close_backing(null.as_fd(), 1).is_err());
        if std::path::Path::new(DEVICE).exists() {
            assert!(clone_connection(null.as_fd()).is_err());
        }
    }
}
