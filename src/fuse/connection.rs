//! A connection to the kernel that outlives the daemons that serve it: made, mounted and kept by who supervises them.
//!
//! Whoever keeps it reads nothing from it but its first message and answers nothing. A daemon serves it through a
//! descriptor of its own ([`super::handover`]); when that daemon dies, what it had taken fails, and what comes afterwards
//! waits in the kernel for the next one.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, unmount,
};

use super::handover::Handed;
use super::numbers::Incarnation;
use crate::config::MountSettings;
use crate::error::{Error, Kind, Result};
use crate::os::{device, memory_file};

/// The least that the kernel takes for a buffer is 8 KiB.
const FIRST_MESSAGE_BYTES: usize = 16 << 10;
/// `MOVE_MOUNT_BENEATH`, of Linux 6.5.
const BENEATH: MoveMountFlags = MoveMountFlags::from_bits_retain(0x200);
/// Options that are the kernel's of each filesystem, not of a mount of it.
const OF_THE_FILESYSTEM: [&str; 3] = ["ro", "sync", "dirsync"];

/// A connection, and the mount that is made of it.
#[derive(Debug)]
pub struct Connection {
    device: OwnedFd,
    /// Until it has a place in the tree.
    mount: Option<OwnedFd>,
    number: u32,
    first_message: Vec<u8>,
    answer: Option<Vec<u8>>,
    next: Option<Incarnation>,
    known: File,
}

impl Connection {
    /// Makes a connection whose mount nobody sees yet.
    ///
    /// # Errors
    /// [`Kind::NotPermitted`] for users other than root; what the kernel says.
    pub fn new(store: &Path, settings: &MountSettings) -> Result<Connection> {
        let device = device::open_device()?;
        let mount = detached(&device, store, settings).map_err(|e| match e {
            Errno::PERM => Error::new(
                Kind::NotPermitted,
                "cannot mount with --supervise: only root can (without it, fusermount3 mounts)",
            ),
            e => Error::os("cannot mount", e),
        })?;
        let number = number_of(&mount).map_err(|e| Error::os("cannot look at the new mount", e))?;
        let mut first_message = vec![0; FIRST_MESSAGE_BYTES];
        let length = rustix::io::read(&device, &mut first_message)
            .map_err(|e| Error::os("cannot read the kernel's first message", e))?;
        first_message.truncate(length);
        let next = Some(Incarnation::default());
        let known = memory_file("fencefs-known")?;
        Ok(Connection { device, mount: Some(mount), number, first_message, answer: None, next, known })
    }

    /// The number of its device: the minor one in mountinfo, and its directory in fusectl.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What the next daemon gets: this and [`Connection::device`]. `None`: no daemon can take it over any more.
    pub fn hand(&mut self) -> Option<Handed> {
        let incarnation = self.next.take()?;
        let is_first = incarnation == Incarnation::default();
        if !self.is_alive() || (self.answer.is_none() && !is_first) {
            return None;
        }
        self.next = incarnation.next();
        let (first_message, answer) = (self.first_message.clone(), self.answer.clone());
        let known = format!("/proc/{}/fd/{}", std::process::id(), self.known.as_raw_fd());
        Some(Handed { incarnation, connection: self.number, first_message, answer, known })
    }

    /// Notes what its first daemon answered the kernel, which every later one must stand by.
    pub fn note_answer(&mut self, answer: Vec<u8>) {
        self.answer = Some(answer);
    }

    /// The descriptor that each daemon is given to take its own from.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Whether neither the kernel nor an administrator has ended it.
    pub fn is_alive(&self) -> bool {
        let mut polled = [PollFd::new(&self.device, PollFlags::empty())];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut polled, Some(&now)).is_ok() && !polled[0].revents().contains(PollFlags::ERR)
    }

    /// Whether the mount has no place in the tree yet.
    pub fn is_unseen(&self) -> bool {
        self.mount.is_some()
    }

    /// Gives the mount its place, instead of the dead one that is there if `replaces`. Nobody sees the directory below
    /// meanwhile, where the kernel can exchange them (Linux 6.5).
    pub fn attach(&mut self, mountpoint: &Path, replaces: bool) -> Result<()> {
        let Some(mount) = self.mount.take() else { return Ok(()) };
        let place = |flags: MoveMountFlags| {
            let flags = flags | MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            move_mount(&mount, "", CWD, mountpoint, flags)
        };
        let detach = || unmount(mountpoint, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        let done = match replaces.then(|| place(BENEATH)) {
            Some(Ok(())) => {
                // From here it is seen, and must not be busy by us.
                drop(mount);
                detach()
            }
            Some(Err(_)) => detach().and_then(|()| place(MoveMountFlags::empty())),
            None => place(MoveMountFlags::empty()),
        };
        done.map_err(|e| Error::os(format!("cannot mount at {}", mountpoint.display()), e))
    }
}

/// A mount without a place.
fn detached(device: &OwnedFd, store: &Path, settings: &MountSettings) -> rustix::io::Result<OwnedFd> {
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let set = |key: &str, value: &str| fsconfig_set_string(context.as_fd(), key, value);
    fsconfig_set_string(context.as_fd(), "source", store)?;
    set("subtype", "fencefs")?;
    set("fd", &device.as_raw_fd().to_string())?;
    set("rootmode", "40000")?;
    set("user_id", &rustix::process::getuid().as_raw().to_string())?;
    set("group_id", &rustix::process::getgid().as_raw().to_string())?;
    fsconfig_set_flag(context.as_fd(), "default_permissions")?;
    if settings.allow_other {
        fsconfig_set_flag(context.as_fd(), "allow_other")?;
    }
    let has = |option: &str| settings.kernel_options.iter().any(|o| o == option);
    for option in OF_THE_FILESYSTEM.into_iter().filter(|option| has(option)) {
        fsconfig_set_flag(context.as_fd(), option)?;
    }
    fsconfig_create(context.as_fd())?;
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NODEV;
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !has("suid"));
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, has("noexec"));
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOATIME, has("noatime"));
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, has("ro"));
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Without asking the daemon, which there is none of.
fn number_of(mount: &OwnedFd) -> rustix::io::Result<u32> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(mount, "", flags, StatxFlags::TYPE).map(|stat| stat.stx_dev_minor)
}
