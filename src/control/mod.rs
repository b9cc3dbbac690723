//! The control file's language: lines in, JSON replies out.

pub mod command;
pub mod reply;
pub mod scope;
