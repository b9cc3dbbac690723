//! The control file's language: lines in, JSON replies out. It knows the store, and nothing of FUSE.

pub mod command;
pub mod execute;
#[cfg(test)]
mod model;
pub mod removals;
pub mod reply;
pub mod report;
