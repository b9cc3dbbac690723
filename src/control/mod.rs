//! The control file's language: lines in, JSON replies out. It knows the store, and nothing of FUSE.

mod agent;
pub mod command;
pub mod execute;
mod exposition;
#[cfg(test)]
mod model;
pub mod permission;
pub mod removals;
pub mod reply;
pub mod report;
pub mod scrape;
