//! The system calls that the store makes, each below one directory descriptor.
//!
//! Every path is resolved with openat2 (beneath the directory, no symbolic links, no other mount), so a link that
//! somebody plants in the store leads nowhere. Nothing here knows what a record is.

pub mod device;
mod dir;
mod file;
pub mod process;

pub use dir::{Dir, DirEntry, EntryType, RenameHow};
pub use file::{
    Attr, FsSpace, Hole, SetTime, Timespec, XattrMode, chmod, chown, copy_range, fallocate, lock_exclusive,
    memory_file, seek_hole, set_times, stat, stat_unsettled, sync_data, sync_file, truncate, unlinked_bytes,
    xattr_get, xattr_list, xattr_remove, xattr_set,
};
