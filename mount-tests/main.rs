//! Tests against the real binary and a real mount: what a user sees, nothing of the inside.
//!
//! Each test makes its own store and mount below the temporary directory and removes both. Where mounting is not
//! possible (no /dev/fuse, not root) a test says so and returns. `FENCEFS_TEST_PASSTHROUGH` (`on`, `off`, `both`)
//! picks how values travel; `FENCEFS_TEST_ROUNDS` sets how often the crash test kills the daemon.
#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected must fail where it stands")]

mod cli;
mod eviction;
mod fence;
mod full_disk;
mod harness;
mod inplace;
mod locks;
mod names;
mod peer;
mod posix;
mod publish;
mod quota;
mod recovery;
mod store_dir;
mod unpublished;
mod xattrs;
