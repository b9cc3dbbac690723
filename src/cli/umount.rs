//! `fencefs umount`: unmount, say who is in the way, and wait until the daemon has let the store go.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::fs::FlockOperation;

use super::mountinfo::{self, MountEntry};
use super::{complain, holders, mountpoint};
use crate::error::{Error, Kind, Result};

/// How long the daemon may take to close its store.
const CLOSE_WAIT: Duration = Duration::from_secs(10);

/// Unmount, and return when the store is closed and can be mounted again
#[derive(Debug, Args)]
pub(super) struct UmountArgs {
    /// Where the filesystem is mounted
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
    /// Detach now although files are open; the daemon ends when the last is closed
    #[arg(short, long)]
    lazy: bool,
}

/// Unmounts.
pub(super) fn run(args: &UmountArgs) -> Result<ExitCode> {
    let place = mountpoint::resolve(&args.mountpoint)?;
    // A shell in the mount gives its directory to us: that must not be what keeps the mount busy.
    std::env::set_current_dir("/").map_err(|e| Error::os("cannot change to the root directory", e))?;
    let mounts = mountinfo::read()?;
    let mount = ours(&mounts, &place)?;
    if args.lazy {
        // Nobody is asked: this is the way out where the daemon does not answer.
        mountpoint::unmount(&place, true)?;
        return Ok(ExitCode::SUCCESS);
    }
    if mountpoint::is_dead(&place)? {
        mountpoint::unmount(&place, true)?;
    } else {
        match mountpoint::unmount(&place, false) {
            Err(e) if e.kind() == Kind::Busy => return Err(busy(&place, mount)),
            other => other?,
        }
    }
    // Another mount of the same filesystem, a bind mount for instance, keeps the daemon.
    let elsewhere = mountinfo::read()?.iter().any(|m| m.device == mount.device);
    if !elsewhere && !closed(&mount.source)? {
        complain(&format!(
            "{} is unmounted, but the daemon has not closed {} after {} seconds",
            place.display(),
            mount.source.display(),
            CLOSE_WAIT.as_secs()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// The mount at `place`, if it is one of ours.
fn ours<'a>(mounts: &'a [MountEntry], place: &Path) -> Result<&'a MountEntry> {
    let what = format!("cannot unmount {}", place.display());
    match mountinfo::topmost(mounts, place) {
        Some(mount) if mount.is_fencefs() => Ok(mount),
        Some(mount) => {
            let sentence = format!("{what}: the mount there is {}, not fencefs (use umount)", mount.fstype);
            Err(Error::new(Kind::Invalid, sentence))
        }
        None => Err(Error::new(Kind::NotFound, format!("{what}: nothing is mounted there"))),
    }
}

fn busy(place: &Path, mount: &MountEntry) -> Error {
    let mut holders = holders::of(mount.device);
    // What this process holds it inherited; whoever gave it is listed.
    holders.retain(|holder| holder.pid != std::process::id());
    let by = match holders {
        holders if holders.is_empty() => {
            "in use by a process or mount that cannot be seen from here (a bind mount of it, or one on top of it, is \
             taken away with umount)"
                .to_owned()
        }
        holders => format!("in use by {}", holders::describe(&holders)),
    };
    let at = place.display();
    let sentence = format!("cannot unmount {at}: {by} (end it, or detach now: fencefs umount --lazy {at})");
    Error::new(Kind::Busy, sentence)
}

/// Waits, bounded, until nobody holds the store's lock; true where that cannot be seen.
fn closed(store: &Path) -> Result<bool> {
    let Ok(lock) = File::open(store.join("lock")) else { return Ok(true) };
    let deadline = Instant::now() + CLOSE_WAIT;
    loop {
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() >= deadline => return Ok(false),
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(20)),
            Err(e) => return Err(Error::os(format!("cannot see whether {} is closed", store.display()), e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_mounts_are_unmounted() {
        let mounts = mountinfo::read().unwrap();
        assert!(ours(&mounts, Path::new("/proc")).unwrap_err().to_string().contains("not fencefs"));
        assert!(
            ours(&mounts, Path::new("/no/mount")).unwrap_err().to_string().contains("nothing is mounted")
        );
    }

    #[test]
    fn a_store_is_closed_when_its_lock_is_free() {
        let dir = tempfile::tempdir().unwrap();
        assert!(closed(dir.path()).unwrap());
        let lock = File::create(dir.path().join("lock")).unwrap();
        assert!(closed(dir.path()).unwrap());
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
        let path = dir.path().to_owned();
        let waiter = std::thread::spawn(move || closed(&path));
        drop(lock);
        assert!(waiter.join().unwrap().unwrap());
    }
}
