//! The bytes on disk: where each file stands, what a record's attribute holds, the format file. Pure.

pub mod checkpoint;
pub mod layout;
pub mod legacy;
pub mod percent;
pub mod record;
pub mod superblock;
