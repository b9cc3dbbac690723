//! The guard of a mount: a process beside the daemon that aborts the mount's connection when the daemon dies.
//!
//! A daemon that is killed should end its mount by itself: the kernel aborts a connection that nobody serves. But a
//! thread of it may stand in the kernel at that moment, waiting to have a directory's entry forgotten, for a lock that
//! some program holds which waits for the daemon; neither can go on, and no signal ends either of them. The guard is
//! told of the death of the daemon's main thread by the kernel and ends the wait from outside. It can do nothing else:
//! all it holds is the file that aborts this one connection, which does nothing once the connection is gone.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, set_parent_process_death_signal};
use rustix::time::Timespec;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::{mountinfo, notify};
use crate::error::{Error, Result};

/// Where the kernel's list of FUSE connections usually is.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// How long a daemon whose mount can be taken over may take to be gone, with all of its threads.
const GRACE: Duration = Duration::from_secs(2);

/// Abort a mount when its daemon dies (started by `mount`)
#[derive(Debug, Args)]
pub(super) struct GuardArgs {
    /// The daemon
    #[arg(long)]
    daemon: i32,
    /// Abort only if the daemon is not gone so long after it died: another one may take its mount over
    #[arg(long, value_name = "MILLISECONDS")]
    grace: Option<u64>,
    /// Its mount, for people who look at the list of processes
    #[arg(value_name = "MOUNTPOINT")]
    _mountpoint: std::path::PathBuf,
}

/// Starts the guard of a live mount. To be called by the main thread, whose death it waits for. A mount that cannot
/// have a guard is a mount all the same.
pub(super) fn start(mountpoint: &Path) {
    let started = mountinfo::read().and_then(|mounts| match mountinfo::topmost(&mounts, mountpoint) {
        Some(mount) => try_start(mountpoint, mount.device.1, None),
        None => Ok(()),
    });
    tell(started);
}

/// The same for the mount of a connection that another daemon may take over.
pub(super) fn start_patient(mountpoint: &Path, connection: u32) {
    tell(try_start(mountpoint, connection, Some(GRACE)));
}

fn tell(started: Result<()>) {
    if let Err(e) = started {
        log::info!("no guard for this mount: programs may hang when the daemon is killed ({e})");
    }
}

fn try_start(mountpoint: &Path, connection: u32, grace: Option<Duration>) -> Result<()> {
    let abort = abort_file(connection)?;
    let program = std::env::current_exe().map_err(|e| Error::os("cannot find this program", e))?;
    let spawned = Command::new(program)
        .arg("guard")
        .arg(format!("--daemon={}", std::process::id()))
        .args(grace.map(|grace| format!("--grace={}", grace.as_millis())))
        .arg("--")
        .arg(mountpoint)
        .env_remove(notify::SOCKET)
        .env_remove(notify::WATCHDOG)
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

/// Whether all of a process has ended, also its threads, before the time is over.
fn is_gone_within(process: &OwnedFd, time: Duration) -> bool {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let limit = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match rustix::event::poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(ready) => return ready > 0,
            Err(_) => return false,
        }
    }
}

/// Waits for the daemon's death and aborts its connection. Whatever tells both of them to stop is the daemon's affair.
pub(super) fn run(args: &GuardArgs) -> Result<ExitCode> {
    let mut signals = Signals::new([SIGUSR1, SIGTERM, SIGINT, SIGHUP])
        .map_err(|e| Error::os("cannot install signal handlers", e))?;
    set_parent_process_death_signal(Some(Signal::USR1))
        .map_err(|e| Error::os("cannot ask for the daemon's death", e))?;
    std::env::set_current_dir("/").map_err(|e| Error::os("cannot change to the root directory", e))?;
    // Before it can die: its number may be another's later.
    let daemon = args.grace.and_then(|_| pidfd_open(Pid::from_raw(args.daemon)?, PidfdFlags::empty()).ok());
    let orphaned = || getppid().is_none_or(|p| p.as_raw_nonzero().get() != args.daemon);
    if !orphaned() {
        signals.forever().find(|signal| *signal == SIGUSR1);
    }
    if let Some(grace) = args.grace
        && daemon.is_none_or(|daemon| is_gone_within(&daemon, Duration::from_millis(grace)))
    {
        return Ok(ExitCode::SUCCESS);
    }
    let abort =
        rustix::io::dup(std::io::stdin()).map_err(|e| Error::os("cannot use what to abort with", e))?;
    // Not there any more: the mount ended before its daemon did.
    if let Err(e) = File::from(abort).write_all(b"1") {
        log::debug!("nothing to abort: {e}");
    }
    Ok(ExitCode::SUCCESS)
}
