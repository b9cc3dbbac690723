//! fencefs: a filesystem for KV-cache tiers over a managed store.
//!
//! Layers; a module imports only from those below it (`tidy` keeps this):
//!
//! | layer | modules | idea |
//! |---|---|---|
//! | 6 | `fuzz` | (tests) everything that takes bytes from outside |
//! | 5 | `cli` | commands for people; the only layer that prints |
//! | 4 | `fuse` | the mount: close-to-open over the store, virtual files |
//! | 3 | `control` | the control file's language, and the agent that carries removals out |
//! | 2 | `store` | the engine: records, index, quota, eviction, fence, removal, recovery |
//! | 1 | `os`, `format`, `ledger` | confined system calls; the bytes on disk; the removal protocol |
//! | 0 | `key`, `scope`, `error`, `config`, `step`, `random` | values that can only be made valid; named steps; choices of tests |
//!
//! ARCHITECTURE.md has the data flow and the invariants.

#[macro_use]
mod step;

pub mod cli;
pub mod config;
pub mod control;
pub mod error;
pub mod format;
pub mod fuse;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod key;
pub mod ledger;
pub mod os;
#[cfg(test)]
mod random;
pub mod scope;
pub mod store;
#[cfg(test)]
mod tidy;

pub use error::{Error, Kind, Result};
