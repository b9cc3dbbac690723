//! Validated settings and the limits of everything.

use std::time::Duration;

/// Whole-store quota and where background eviction starts and stops.
#[derive(Debug, Clone)]
pub struct Quota {
    /// Allocated bytes; `None` is 90 % of the backing filesystem.
    pub size_bytes: Option<u64>,
    /// Most keys (files and symlinks); `None` is no limit.
    pub max_keys: Option<u64>,
    /// Percent of the quota above which background eviction starts.
    pub high_percent: u8,
    /// Percent of the quota at which background eviction stops.
    pub low_percent: u8,
}

/// What a close promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Namespace order: a reader sees the old value or the new one, also after the daemon died.
    Rename,
    /// Also after power was lost.
    Fsync,
}

/// Which key goes when room is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyName {
    /// First published, first out.
    Fifo,
    /// Least recently opened or published, first out.
    Lru,
}

/// Whether the kernel moves the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passthrough {
    /// Where the kernel and privileges allow it.
    Auto,
    /// Or fail the mount.
    On,
    /// The daemon copies.
    Off,
}

/// Settings of a store, shared by every way of opening it.
#[derive(Debug, Clone)]
pub struct StoreSettings {
    /// Quota and watermarks.
    pub quota: Quota,
    /// Eviction policy.
    pub policy: PolicyName,
    /// What a publication promises.
    pub durability: Durability,
    /// How long a mutation waits for a scope that is being removed.
    pub fence_wait: Duration,
}

impl Default for StoreSettings {
    fn default() -> Self {
        StoreSettings {
            quota: Quota { size_bytes: None, max_keys: None, high_percent: 97, low_percent: 95 },
            policy: PolicyName::Lru,
            durability: Durability::Rename,
            fence_wait: Duration::from_secs(1),
        }
    }
}

/// Settings of a mount.
#[derive(Debug, Clone)]
pub struct MountSettings {
    /// A view: this tenant's keys at the root of the mount.
    pub tenant: Option<crate::key::Tenant>,
    /// Whether other users than the mounting one may enter; permissions are enforced either way.
    pub allow_other: bool,
    /// Kernel passthrough.
    pub passthrough: Passthrough,
    /// Overrides every file's owner.
    pub uid: Option<u32>,
    /// Overrides every file's group.
    pub gid: Option<u32>,
    /// Overrides every file's permission bits.
    pub file_mode: Option<u32>,
    /// Overrides every directory's permission bits.
    pub dir_mode: Option<u32>,
    /// Mount read-only, noexec and the like: options handed to the kernel as they are.
    pub kernel_options: Vec<String>,
}

impl Default for MountSettings {
    fn default() -> Self {
        MountSettings {
            tenant: None,
            allow_other: false,
            passthrough: Passthrough::Auto,
            uid: None,
            gid: None,
            file_mode: None,
            dir_mode: None,
            kernel_options: Vec::new(),
        }
    }
}

/// Bounds of every queue, list and wait.
pub mod limits {
    use std::time::Duration;

    /// Records kept in quarantine; the next one is removed instead.
    pub const QUARANTINED_RECORDS: usize = 1000;
    /// How often the bytes of values being written are looked at, while there are any.
    pub const STAGED_POLL: Duration = Duration::from_millis(20);
    /// How often free space is looked at otherwise.
    pub const IDLE_POLL: Duration = Duration::from_secs(1);
    /// Free space of the backing filesystem that eviction defends: this, or 2 % of it where that is less.
    pub const FREE_FLOOR_BYTES: u64 = 1 << 30;
    /// Victims in a row that could not be removed, after which one round of eviction gives up.
    pub const STUCK_VICTIMS: usize = 64;
    /// How long a look-up waits for a value whose last close is on its way.
    pub const SETTLE_WAIT: Duration = Duration::from_millis(100);
}

impl PolicyName {
    /// The name on the command line and in the status.
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyName::Fifo => "fifo",
            PolicyName::Lru => "lru",
        }
    }
}
