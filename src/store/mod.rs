//! The store engine.

use std::path::Path;
use std::sync::Arc;

use crate::config::StoreSettings;
use crate::error::Result;

pub mod evict;

/// An open store.
pub struct Store {}

impl Store {
    /// Opens (creates, locks, recovers) the store at `root`. `progress` is called with a phase and a count.
    pub fn open(
        _root: &Path,
        _settings: &StoreSettings,
        _progress: &mut dyn FnMut(&str, u64),
    ) -> Result<Arc<Store>> {
        todo!()
    }

    /// Writes the checkpoint that a clean stop leaves. Called once, after the last mount is gone.
    pub fn close(&self) -> Result<()> {
        todo!()
    }
}
