//! What the store says of itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::Store;
use super::index::ROOT;
use super::legacy::AttachedStatus;
use super::remove::ScopeState;
use super::room::Reason;

/// Counters since the store was opened.
#[derive(Debug, Default)]
pub struct Counters {
    /// Values opened.
    pub hits: AtomicU64,
    /// Look-ups of keys that do not exist.
    pub misses: AtomicU64,
    /// Values published.
    pub publications: AtomicU64,
    /// Values being written that were given up: their close failed, or their writer was killed.
    pub abandoned: AtomicU64,
    /// What they occupied when they were published.
    pub published_bytes: AtomicU64,
    /// Bytes that the daemon read for programs; the kernel's own reads are not seen.
    pub read_bytes: AtomicU64,
    /// Bytes that programs wrote through the daemon; the kernel's own writes are not seen.
    pub written_bytes: AtomicU64,
    /// Renames.
    pub renames: AtomicU64,
    /// Evictions by [`super::room::Reason`].
    pub evictions: [AtomicU64; Reason::WORDS.len()],
    /// Those of them that somebody's operation waited for.
    pub evictions_inline: AtomicU64,
    /// What evicted values occupied.
    pub evicted_bytes: AtomicU64,
    /// Victims that could not be removed.
    pub eviction_errors: AtomicU64,
    /// Records that failed validation.
    pub quarantined: AtomicU64,
    /// Records that the start walked over; none where the checkpoint told it.
    pub scanned: AtomicU64,
    /// Records that removals deleted, and trash that was emptied after them.
    pub removed_records: AtomicU64,
    /// Attempts at removals that failed.
    pub removal_failures: AtomicU64,
}

impl Counters {
    /// How often somebody has used the store, in whatever way.
    pub(super) fn uses(&self) -> u64 {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        of(&self.hits) + of(&self.misses) + of(&self.publications) + of(&self.renames)
    }

    /// Evictions, by the word for their reason.
    pub fn evictions_by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Reason::WORDS.into_iter().zip(self.evictions.each_ref().map(count))
    }

    /// Evictions for whatever reason.
    pub fn evicted_keys(&self) -> u64 {
        self.evictions.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }
}

/// A tenant's line of the status.
#[derive(Debug, Serialize)]
pub struct TenantStatus {
    /// Name.
    pub name: String,
    /// The epoch that a new write is admitted under.
    pub epoch: u64,
    /// `ready`, `removing` or `failed`.
    pub state: &'static str,
    /// Values and symlinks.
    pub keys: u64,
    /// Allocated bytes.
    pub bytes: u64,
    /// Quota, if any.
    pub quota_bytes: Option<u64>,
    /// What other tenants' pressure leaves it, if that is set.
    pub reserve_bytes: Option<u64>,
    /// How long its keys live after the last change, if that is set.
    pub ttl_seconds: Option<u64>,
}

/// The store's part of the status object.
#[derive(Debug, Serialize)]
pub struct StoreStatus {
    /// Identity of the store.
    pub storage_id: String,
    /// `ready`, `removing` or `failed`.
    pub state: &'static str,
    /// Quota.
    pub quota_bytes: u64,
    /// Allocated bytes of all records.
    pub used_bytes: u64,
    /// Values and symlinks.
    pub keys: u64,
    /// Policy.
    pub evict: &'static str,
    /// Keys evicted since the store was opened.
    pub evicted_keys: u64,
    /// Those of them that somebody's operation waited for.
    pub evictions_inline: u64,
    /// Keys evicted since the store was opened, by reason.
    pub evictions: BTreeMap<&'static str, u64>,
    /// Victims that could not be removed.
    pub eviction_errors: u64,
    /// Values opened since the store was opened.
    pub hits: u64,
    /// Look-ups of keys that did not exist.
    pub misses: u64,
    /// Allocated bytes of values being written.
    pub staged_bytes: u64,
    /// Bytes out of eviction's reach.
    pub pinned_bytes: u64,
    /// Records that failed validation since the store was opened.
    pub quarantined: u64,
    /// Highest generation.
    pub generation: u64,
    /// What went wrong last beside an operation.
    pub last_error: Option<String>,
    /// The legacy directory that is served beside the store's own records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attached: Option<AttachedStatus>,
    /// Tenants, by name.
    pub tenants: Vec<TenantStatus>,
}

/// The state that scopes which are closed add up to.
fn word<'a>(closed: impl Iterator<Item = &'a ScopeState>) -> &'static str {
    closed.fold(
        "ready",
        |word, scope| if scope.failed.is_some() || word == "failed" { "failed" } else { "removing" },
    )
}

impl Store {
    /// Shows in the status what went wrong beside an operation.
    pub fn note_error(&self, error: String) {
        *self.last_error.lock() = Some(error);
    }

    /// A snapshot of the store's state.
    pub fn status(self: &Arc<Self>) -> StoreStatus {
        self.look_at_written();
        let attached = self.attached_status();
        let scopes = self.scopes.lock();
        let index = self.index.lock();
        let mut tenants: Vec<TenantStatus> = index
            .tenants
            .iter()
            .filter(|t| t.live)
            .map(|t| TenantStatus {
                name: t.home.tenant.to_string(),
                epoch: t.home.fence.epoch().0,
                state: word(scopes.of(&t.home.tenant)),
                keys: t.usage.keys,
                bytes: t.usage.bytes,
                quota_bytes: t.quota_bytes,
                reserve_bytes: (t.reserve_bytes > 0).then_some(t.reserve_bytes),
                ttl_seconds: t.ttl_seconds,
            })
            .collect();
        tenants.sort_by(|a, b| a.name.cmp(&b.name));
        StoreStatus {
            storage_id: self.root.storage_id().to_string(),
            state: word(scopes.all()),
            quota_bytes: self.quota_bytes(),
            used_bytes: index.usage.bytes,
            keys: index.usage.keys,
            evict: self.settings.policy.as_str(),
            evicted_keys: self.counters.evicted_keys(),
            evictions_inline: self.counters.evictions_inline.load(Ordering::Relaxed),
            evictions: self.counters.evictions_by_reason().collect(),
            eviction_errors: self.counters.eviction_errors.load(Ordering::Relaxed),
            hits: self.counters.hits.load(Ordering::Relaxed),
            misses: self.counters.misses.load(Ordering::Relaxed),
            staged_bytes: self.staged_bytes.load(Ordering::Relaxed),
            pinned_bytes: index.pinned_bytes,
            quarantined: self.counters.quarantined.load(Ordering::Relaxed),
            generation: tenants.iter().map(|t| t.epoch).max().unwrap_or(0),
            last_error: self.last_error.lock().clone(),
            attached,
            tenants,
        }
    }

    /// Allocated bytes and keys of the whole store, or of one tenant, with the quota that bounds them.
    pub fn usage(&self, tenant: Option<&crate::key::Tenant>) -> (u64, u64, u64) {
        let index = self.index.lock();
        let quota = self.quota_bytes();
        let of_tenant = tenant
            .and_then(|t| index.child(ROOT, t.as_str().as_bytes()))
            .and_then(|node| index.tenant_of(node).ok())
            .map(|t| (t.usage.bytes, t.usage.keys, t.quota_bytes.unwrap_or(quota).min(quota)));
        of_tenant.unwrap_or((index.usage.bytes, index.usage.keys, quota))
    }

    /// Recomputes every sum of the index; what differs, as sentences.
    pub fn check(&self) -> Vec<String> {
        self.index.lock().check()
    }
}
