//! The bytes on disk.

pub mod percent;
