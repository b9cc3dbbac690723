//! The guard of a mount: a process beside the daemon that aborts the mount's connection when the daemon dies.
//!
//! A daemon that is killed should end its mount by itself: the kernel aborts a connection that nobody serves. But a
//! thread of it may stand in the kernel at that moment, waiting to have a directory's entry forgotten, for a lock that
//! some program holds which waits for the daemon; neither can go on, and no signal ends either of them. The guard is
//! told of the death of the daemon's main thread by the kernel and ends the wait from outside. It can do nothing else:
//! all it holds is the file that aborts this one connection, which does nothing once the connection is gone.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use clap::Args;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::mountinfo;
use crate::error::{Error, Result};

/// Where the kernel's list of FUSE connections usually is.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Abort a mount when its daemon dies (started by `mount`)
#[derive(Debug, Args)]
pub(super) struct GuardArgs {
    /// The daemon
    #[arg(long)]
    daemon: i32,
    /// Its mount, for people who look at the list of processes
    #[arg(value_name = "MOUNTPOINT")]
    _mountpoint: std::path::PathBuf,
}

/// Starts the guard of a live mount. To be called by the main thread, whose death it waits for. A mount that cannot
/// have a guard is a mount all the same.
pub(super) fn start(mountpoint: &Path) {
    if let Err(e) = try_start(mountpoint) {
        log::info!("no guard for this mount: programs may hang when the daemon is killed ({e})");
    }
}

fn try_start(mountpoint: &Path) -> Result<()> {
    let mounts = mountinfo::read()?;
    let Some(mount) = mountinfo::topmost(&mounts, mountpoint) else { return Ok(()) };
    let abort = abort_file(mount.device.1)?;
    let program = std::env::current_exe().map_err(|e| Error::os("cannot find this program", e))?;
    let spawned = Command::new(program)
        .arg("guard")
        .arg(format!("--daemon={}", std::process::id()))
        .arg("--")
        .arg(mountpoint)
        .stdin(Stdio::from(abort))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    spawned.map(drop).map_err(|e| Error::os("cannot start it", e))
}

/// The file that aborts a connection: from the mount that is there, or from one that only this process sees.
fn abort_file(connection: u32) -> Result<File> {
    let name = format!("{connection}/abort");
    if let Ok(file) = OpenOptions::new().write(true).open(Path::new(CONNECTIONS).join(&name)) {
        return Ok(file);
    }
    let listed = || {
        let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(context.as_fd())?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let root = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        rustix::fs::openat(root, name.as_str(), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
    };
    listed().map(File::from).map_err(|e| Error::os("cannot reach the kernel's list of FUSE connections", e))
}

/// Waits for the daemon's death and aborts its connection. Whatever tells both of them to stop is the daemon's affair.
pub(super) fn run(args: &GuardArgs) -> Result<ExitCode> {
    let mut signals = Signals::new([SIGUSR1, SIGTERM, SIGINT, SIGHUP])
        .map_err(|e| Error::os("cannot install signal handlers", e))?;
    set_parent_process_death_signal(Some(Signal::USR1))
        .map_err(|e| Error::os("cannot ask for the daemon's death", e))?;
    std::env::set_current_dir("/").map_err(|e| Error::os("cannot change to the root directory", e))?;
    let orphaned = || getppid().is_none_or(|p| p.as_raw_nonzero().get() != args.daemon);
    if !orphaned() {
        signals.forever().find(|signal| *signal == SIGUSR1);
    }
    let abort =
        rustix::io::dup(std::io::stdin()).map_err(|e| Error::os("cannot use what to abort with", e))?;
    // Not there any more: the mount ended before its daemon did.
    if let Err(e) = File::from(abort).write_all(b"1") {
        log::debug!("nothing to abort: {e}");
    }
    Ok(ExitCode::SUCCESS)
}
