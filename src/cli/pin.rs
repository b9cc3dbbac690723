//! `fencefs pin` and `unpin`: keep keys out of eviction's reach.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use rustix::fs::{XattrFlags, major, minor};

use super::complain;
use super::mountinfo::{self, MountEntry};
use super::patience::{ANSWER_WAIT, within};
use crate::error::{Error, Kind, Result};

/// Keep keys out of eviction's reach, until they are unpinned
#[derive(Debug, Args)]
pub(super) struct PinArgs {
    /// Files in a fencefs mount
    #[arg(value_name = "FILE", required = true)]
    pub(super) files: Vec<PathBuf>,
}

/// Let eviction take keys again
#[derive(Debug, Args)]
pub(super) struct UnpinArgs {
    /// Files in a fencefs mount
    #[arg(value_name = "FILE", required = true)]
    pub(super) files: Vec<PathBuf>,
}

/// Pins or unpins every file; one that fails does not stop the others.
pub(super) fn run(files: &[PathBuf], pinned: bool) -> Result<ExitCode> {
    let mounts = Arc::new(mountinfo::read()?);
    let mut code = ExitCode::SUCCESS;
    for file in files {
        let (at, mounts) = (file.clone(), Arc::clone(&mounts));
        if let Err(e) = within(ANSWER_WAIT, file, move || set(&mounts, &at, pinned)) {
            complain(&e.to_string());
            code = ExitCode::from(e.exit_status());
        }
    }
    Ok(code)
}

fn set(mounts: &[MountEntry], file: &Path, pinned: bool) -> Result<()> {
    let what = || format!("cannot {} {}", if pinned { "pin" } else { "unpin" }, file.display());
    let device = fs::metadata(file).map_err(|e| Error::os(what(), e))?.dev();
    // Another filesystem would take the attribute and do nothing about it.
    let ours = mounts.iter().any(|m| m.is_fencefs() && m.device == (major(device), minor(device)));
    if !ours {
        return Err(Error::new(Kind::Unsupported, format!("{}: it is not on a fencefs mount", what())));
    }
    let value: &[u8] = if pinned { b"1" } else { b"0" };
    rustix::fs::setxattr(file, "user.fencefs.pin", value, XattrFlags::empty())
        .map_err(|e| Error::os(what(), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_elsewhere_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let e = set(&mountinfo::read().unwrap(), file.path(), true).unwrap_err();
        assert!(e.to_string().ends_with("it is not on a fencefs mount"), "{e}");
        let e = set(&[], Path::new("/no/such/file"), false).unwrap_err();
        assert!(e.to_string().starts_with("cannot unpin /no/such/file: "), "{e}");
    }
}
