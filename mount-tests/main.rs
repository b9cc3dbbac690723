//! Tests against the real binary and a real mount: what a user sees, nothing of the inside.
//!
//! Each test makes its own store and mount below the temporary directory and removes both. Where mounting is not
//! possible (no /dev/fuse, not root) a test says so and returns. `FENCEFS_TEST_PASSTHROUGH` (`on`, `off`, `both`)
//! picks how values travel; `FENCEFS_TEST_CHECKSUM` (`on`) mounts all stores with checksums; `FENCEFS_TEST_ROUNDS` sets how often the crash test kills the daemon,
//! `FENCEFS_TEST_STORM_KILLS` how often the storm does, `FENCEFS_TEST_LEADER_KILLS` how often the leader of etcd is; `FENCEFS_TEST_SEED` repeats one storm. With the feature
//! `failpoints` the removal is stopped, stalled and made to fail at each of its steps.
#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected must fail where it stands")]

mod awake;
mod by_key;
mod cases;
mod checksum;
mod cli;
mod etcd;
mod eviction;
mod fence;
mod fleet;
#[cfg(feature = "failpoints")]
mod fleet_crash;
mod fleet_members;
mod fleet_partition;
mod fleet_security;
mod fleet_storm;
mod fsck;
mod full_disk;
mod harness;
mod import;
mod inplace;
mod legacy;
mod locks;
mod names;
mod operators;
mod peer;
mod posix;
mod publish;
mod quota;
mod recovery;
mod removal_control;
#[cfg(feature = "failpoints")]
mod removal_crash;
#[cfg(feature = "failpoints")]
mod removal_failure;
mod removal_full_disk;
mod removal_interfaces;
mod removal_restart;
mod removal_scope;
mod removal_strangers;
#[cfg(feature = "failpoints")]
mod removal_wait;
mod removal_writes;
mod removals;
mod runaway;
mod store_dir;
mod storm;
mod storm_check;
mod supervise;
mod ttl;
mod unanswered;
mod unpublished;
mod upgrade;
mod xattrs;
