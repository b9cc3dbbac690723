//! The bytes on disk.

pub mod legacy;
