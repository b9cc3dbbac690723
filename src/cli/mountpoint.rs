//! Where a mount may go: paths made canonical, wrong pairs refused, the remains of a crashed daemon cleared away.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::mountinfo::{self, MountEntry};
use super::patience::{ANSWER_WAIT, within};
use crate::error::{Error, Kind, Result};

/// Most dead mounts that are cleared off one directory: more than anybody stacks.
const MAX_DEAD_MOUNTS: usize = 64;

/// A store and a mountpoint that can be joined.
#[derive(Debug)]
pub(super) struct Place {
    /// The store, absolute; it may not exist yet.
    pub(super) store: PathBuf,
    /// The mountpoint: absolute, an existing directory.
    pub(super) mountpoint: PathBuf,
    /// The device of the directory that the mount will cover.
    pub(super) covered_device: u64,
}

impl Place {
    /// One that was checked by another process, which gives both paths as they are here.
    pub(super) fn given(store: &Path, mountpoint: &Path) -> Self {
        Place { store: store.to_owned(), mountpoint: mountpoint.to_owned(), covered_device: 0 }
    }
}

/// Checks that `store` can be mounted at `mountpoint`; detaches a dead fencefs mount there first.
pub(super) fn prepare(store: &Path, mountpoint: &Path) -> Result<Place> {
    let what = format!("cannot mount at {}", mountpoint.display());
    let place = resolve(mountpoint)?;
    clear_dead(&place)?;
    let meta = match fs::metadata(&place) {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(Error::new(Kind::NotFound, format!("{what}: no such directory (make it first)")));
        }
        Err(e) => return Err(Error::os(what, e)),
    };
    if !meta.is_dir() {
        return Err(Error::new(Kind::NotDirectory, format!("{what}: it is not a directory")));
    }
    let mountpoint = place;
    let store = resolve_new(store)?;
    let mounts = mountinfo::read()?;
    if let Some(mount) = mountinfo::topmost(&mounts, &mountpoint).filter(|m| m.is_fencefs()) {
        let why = if mount.source == store {
            format!("{} is mounted there already", store.display())
        } else {
            format!("the store {} is mounted there (unmount it first)", mount.source.display())
        };
        return Err(Error::new(Kind::Exists, format!("{what}: {why}")));
    }
    refuse_nesting(&what, &store, &mountpoint)?;
    Ok(Place { store, mountpoint, covered_device: meta.dev() })
}

fn refuse_nesting(what: &str, store: &Path, mountpoint: &Path) -> Result<()> {
    let why = if store == mountpoint {
        "the mountpoint is the store itself (use another directory)"
    } else if mountpoint.starts_with(store) {
        "the mountpoint is inside the store (use a directory outside it)"
    } else if store.starts_with(mountpoint) {
        "the store is inside the mountpoint, which would hide it (use a directory outside it)"
    } else {
        return Ok(());
    };
    Err(Error::new(Kind::Invalid, format!("{what}: {why}")))
}

/// The canonical path of a mountpoint. What is mounted there is not asked: it may be dead.
pub(super) fn resolve(mountpoint: &Path) -> Result<PathBuf> {
    let failed = |e| Error::os(format!("cannot find {}", mountpoint.display()), e);
    if let Ok(path) = fs::canonicalize(mountpoint) {
        return Ok(path);
    }
    let absolute = std::path::absolute(mountpoint).map_err(failed)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => Ok(fs::canonicalize(parent).map_err(failed)?.join(name)),
        _ => Ok(absolute),
    }
}

/// The canonical path of something that need not exist: its nearest existing ancestor, then what is missing.
pub(super) fn resolve_new(path: &Path) -> Result<PathBuf> {
    let failed = |e| Error::os(format!("cannot find the store {}", path.display()), e);
    let absolute = std::path::absolute(path).map_err(failed)?;
    for ancestor in absolute.ancestors() {
        match fs::canonicalize(ancestor) {
            Ok(found) => {
                let missing = absolute.strip_prefix(ancestor).expect("an ancestor is a prefix");
                if missing.components().any(|c| c == std::path::Component::ParentDir) {
                    return Err(failed(io::Error::from(io::ErrorKind::NotFound)));
                }
                // No trailing slash where nothing is missing: this path is compared.
                return Ok(if missing.as_os_str().is_empty() { found } else { found.join(missing) });
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed(e)),
        }
    }
    Ok(absolute)
}

/// Whether the mount at `mountpoint` lost its daemon. Asks past the kernel's cache, which outlives a daemon.
///
/// # Errors
/// [`Kind::NoAnswer`] where the daemon lives and does not answer.
pub(super) fn is_dead(mountpoint: &Path) -> Result<bool> {
    let at = mountpoint.to_owned();
    within(ANSWER_WAIT, mountpoint, move || {
        let answer = rustix::fs::statx(CWD, &at, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
        Ok(matches!(answer, Err(Errno::NOTCONN | Errno::CONNABORTED)))
    })
}

/// Detaches what crashed daemons left at `mountpoint`; a dead mount of another type is refused.
fn clear_dead(mountpoint: &Path) -> Result<()> {
    for _ in 0..MAX_DEAD_MOUNTS {
        if !is_dead(mountpoint)? {
            return Ok(());
        }
        let mounts = mountinfo::read()?;
        match mountinfo::topmost(&mounts, mountpoint) {
            Some(mount) if mount.is_fencefs() => unmount(mountpoint, true)?,
            Some(mount) => return Err(dead_stranger(mountpoint, mount)),
            None => return Ok(()),
        }
    }
    Err(Error::new(Kind::Busy, format!("{}: dead mounts keep coming back", mountpoint.display())))
}

fn dead_stranger(mountpoint: &Path, mount: &MountEntry) -> Error {
    let sentence = format!(
        "cannot mount at {}: a dead mount of type {} is there (unmount it first)",
        mountpoint.display(),
        mount.fstype
    );
    Error::new(Kind::Busy, sentence)
}

/// Unmounts `mountpoint`, at once and with files open if `lazy`. Users other than root go through fusermount3.
pub(super) fn unmount(mountpoint: &Path, lazy: bool) -> Result<()> {
    let what = || format!("cannot unmount {}", mountpoint.display());
    let detach = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(mountpoint, detach | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(Error::new(Kind::Busy, format!("{}: busy", what()))),
        Err(Errno::PERM) => fusermount(mountpoint, lazy),
        Err(e) => Err(Error::os(what(), e)),
    }
}

fn fusermount(mountpoint: &Path, lazy: bool) -> Result<()> {
    let what = format!("cannot unmount {}", mountpoint.display());
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(mountpoint).stdin(Stdio::null());
    let output =
        command.output().map_err(|e| Error::os(format!("{what}: only root can without fusermount3"), e))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let kind = if said.contains("busy") { Kind::Busy } else { Kind::NotPermitted };
    Err(Error::new(kind, format!("{what}: {said}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_is_refused_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let (store, mountpoint) = (root.join("store"), root.join("m"));
        fs::create_dir_all(store.join("inside")).unwrap();
        fs::create_dir(&mountpoint).unwrap();
        let refusal = |s: &Path, m: &Path| prepare(s, m).unwrap_err().to_string();
        assert!(refusal(&store, &store).contains("itself"));
        assert!(refusal(&store, &store.join("inside")).contains("inside the store"));
        assert!(refusal(&mountpoint.join("new/store"), &mountpoint).contains("store is inside"));
        assert!(refusal(&store, &root.join("missing")).contains("no such directory (make it first)"));
        assert!(refusal(&store, &root.join("missing/deep")).contains("cannot find"));
        fs::write(root.join("file"), "").unwrap();
        assert!(refusal(&store, &root.join("file")).contains("not a directory"));
        assert_eq!(prepare(&root.join("new"), &mountpoint).unwrap().store, root.join("new"));
        assert_eq!(prepare(&root.join("m2"), &mountpoint).unwrap().mountpoint, mountpoint);
    }

    #[test]
    fn links_cannot_hide_nesting() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir(root.join("store")).unwrap();
        fs::create_dir(root.join("store/m")).unwrap();
        std::os::unix::fs::symlink("store/m", root.join("link")).unwrap();
        assert!(prepare(&root.join("store"), &root.join("link")).is_err());
        assert_eq!(resolve_new(&root.join("link/a/b")).unwrap(), root.join("store/m/a/b"));
        assert!(resolve_new(&root.join("none/../store")).is_err());
    }
}
