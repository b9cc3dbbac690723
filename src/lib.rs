//! fencefs: a filesystem for KV-cache tiers over a managed store.
//!
//! Layers; a module imports only from those below it (`tidy` keeps this):
//!
//! | layer | modules | idea |
//! |---|---|---|
//! | 5 | `cli` | commands for people; the only layer that prints |
//! | 4 | `fuse` | the mount: close-to-open over the store, virtual files |
//! | 3 | `control` | the control file's language: lines in, JSON replies out |
//! | 2 | `store` | the engine: records, index, quota, eviction, fence, recovery |
//! | 1 | `os`, `format` | confined system calls; the bytes on disk |
//! | 0 | `key`, `error`, `config` | values that can only be made valid |
//!
//! ARCHITECTURE.md has the data flow and the invariants.

pub mod cli;
pub mod config;
pub mod control;
pub mod error;
pub mod format;
pub mod fuse;
pub mod key;
pub mod os;
pub mod store;
#[cfg(test)]
mod tidy;

pub use error::{Error, Kind, Result};
