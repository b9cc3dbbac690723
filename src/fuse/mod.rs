//! The mount.

use std::path::Path;
use std::sync::Arc;

use crate::config::MountSettings;
use crate::error::Result;
use crate::store::Store;

pub mod acl;
pub mod metrics;

/// A live mount.
pub struct Mount {}

impl Mount {
    /// Mounts `store` at `mountpoint`; live when this returns.
    pub fn new(_store: Arc<Store>, _mountpoint: &Path, _settings: &MountSettings) -> Result<Mount> {
        todo!()
    }

    /// Serves until the mount is gone (unmounted by anyone, or aborted).
    pub fn run(self) -> Result<()> {
        todo!()
    }
}

/// Detaches the mount at `mountpoint`, also with files open (umount2 MNT_DETACH); `run` then returns.
pub fn detach(_mountpoint: &Path) -> Result<()> {
    todo!()
}
