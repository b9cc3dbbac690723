//! How a storage stands with a ledger, and what a ledger that several share knows of each. Plain values.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::applied::Applied;
use super::request::Pending;
use crate::scope::Generation;

/// How one storage stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    /// The highest generation given.
    pub highest: Generation,
    /// What it has acknowledged.
    pub acked: Applied,
    /// What it has not, in order of generation, one entry a scope.
    pub pending: Vec<Pending>,
    /// What tells these requests from others that have the same generations in another past of the ledger.
    pub marks: BTreeMap<Generation, Uuid>,
}

/// A storage as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageStatus {
    /// Its identity.
    pub storage: Uuid,
    /// The host that it was registered from.
    pub host: String,
    /// Whether its daemon is there.
    pub presence: Presence,
    /// When it was registered last: milliseconds since 1970.
    pub registered_ms: u64,
    /// When its daemon was last known to be there.
    pub last_contact_ms: u64,
    /// What it has acknowledged.
    pub acked: Applied,
}

/// Whether anything can be expected of a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Its daemon runs.
    Present,
    /// It does not, or cannot be heard. What waits for it goes on waiting.
    Absent,
    /// It was forgotten: nothing waits for it.
    Retired,
}

impl Presence {
    /// As listings spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Presence::Present => "present",
            Presence::Absent => "absent",
            Presence::Retired => "retired",
        }
    }
}
