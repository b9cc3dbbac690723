//! The status object, metrics and requests, as the virtual files, the control file and the command line show them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};

use super::exposition::Metrics;
use super::removals::Removals;
use crate::error::Result;
use crate::key::Tenant;
use crate::ledger::{Pending, Request, State, StorageStatus};
use crate::scope::Scope;

/// What only the mount knows.
#[derive(Debug, Clone, Copy)]
pub struct MountFacts {
    /// Whether the kernel moves the bytes.
    pub passthrough: bool,
    /// Allocated bytes of what is open and has lost its name.
    pub unlinked_bytes: u64,
}

/// The status object; for a tenant's own control directory, of that tenant alone.
pub fn status(removals: &Removals, facts: MountFacts, tenant: Option<&Tenant>) -> Map<String, Value> {
    let store = removals.store();
    let mut of_store = store.status();
    let mut object = Map::new();
    object.insert("name".into(), json!("fencefs"));
    object.insert("version".into(), json!(env!("CARGO_PKG_VERSION")));
    if let Some(tenant) = tenant {
        of_store.tenants.retain(|t| t.name == tenant.as_str());
        let (bytes, keys, quota) = store.usage(Some(tenant));
        (of_store.used_bytes, of_store.keys, of_store.quota_bytes) = (bytes, keys, quota);
        // What it counts is of all tenants.
        of_store.attached = None;
    }
    if let Ok(Value::Object(fields)) = serde_json::to_value(&of_store) {
        object.extend(fields);
    }
    object.insert("coordinator".into(), json!(removals.coordinator()));
    object.insert("passthrough".into(), json!(facts.passthrough));
    object.insert("unlinked_bytes".into(), json!(facts.unlinked_bytes));
    // Where the ledger does not answer, the store's own number stays: the epochs say how far it was.
    if let Some(generation) = removals.highest() {
        object.insert("generation".into(), json!(generation));
    }
    object.insert("pending_requests".into(), json!(removals.pending_count()));
    object
}

/// A removal request, as replies and listings show it.
pub fn request(request: &Request) -> Map<String, Value> {
    let mut object = of_scope(&request.scope);
    for (name, value) in [
        ("generation", json!(request.generation)),
        ("mode", json!(request.mode)),
        ("id", json!(request.id)),
        ("state", json!(request.state)),
        ("targets", json!(request.targets)),
        ("acked", json!(request.acked)),
        ("retired", json!(request.retired)),
        ("waits_for", request.awaited().iter().map(|id| json!({ "storage": id })).collect()),
        ("last_error", json!(request.last_error)),
        ("failed_attempts", json!(request.failed_attempts)),
        ("submitted_ms", json!(request.submitted_ms)),
        ("completed_ms", json!(request.completed_ms)),
    ] {
        object.insert(name.into(), value);
    }
    object
}

/// Requests with whom they wait for: which host that is, and when it was last heard of.
///
/// # Errors
/// What asking the ledger says.
pub fn named(removals: &Removals, requests: &[Request]) -> Result<Vec<Map<String, Value>>> {
    let mut objects: Vec<_> = requests.iter().map(request).collect();
    if removals.is_shared() && requests.iter().any(|r| r.state != State::Complete) {
        let storages: BTreeMap<String, StorageStatus> =
            removals.storages()?.into_iter().map(|s| (s.storage.to_string(), s)).collect();
        let waits = objects.iter_mut().filter_map(|object| object.get_mut("waits_for")?.as_array_mut());
        for awaited in waits.flatten().filter_map(Value::as_object_mut) {
            let known = awaited.get("storage").and_then(Value::as_str).and_then(|id| storages.get(id));
            if let Some(known) = known {
                awaited.insert("host".into(), json!(known.host));
                awaited.insert("state".into(), json!(known.presence.as_str()));
                awaited.insert("last_contact_ms".into(), json!(known.last_contact_ms));
            }
        }
    }
    Ok(objects)
}

/// A storage of a fleet.
pub fn storage(storage: &StorageStatus) -> Map<String, Value> {
    let tenants: Map<String, Value> =
        storage.acked.tenants.iter().map(|(tenant, g)| (tenant.to_string(), json!(g))).collect();
    let mut object = Map::new();
    for (name, value) in [
        ("storage", json!(storage.storage)),
        ("host", json!(storage.host)),
        ("state", json!(storage.presence.as_str())),
        ("registered_ms", json!(storage.registered_ms)),
        ("last_contact_ms", json!(storage.last_contact_ms)),
        ("applied", json!({ "global": storage.acked.global, "tenants": tenants })),
    ] {
        object.insert(name.into(), value);
    }
    object
}

/// What a storage has yet to apply.
pub fn pending(pending: &Pending) -> Map<String, Value> {
    let mut object = of_scope(&pending.scope);
    object.insert("generation".into(), json!(pending.generation));
    object.insert("mode".into(), json!(pending.mode));
    object
}

fn of_scope(scope: &Scope) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("scope".into(), json!(scope.word()));
    object.insert("tenant".into(), json!(scope.tenant().map(Tenant::as_str)));
    object
}

/// The metrics, in the Prometheus text format.
pub fn metrics(removals: &Removals, facts: MountFacts) -> String {
    let (status, counters) = (removals.store().status(), &removals.store().counters);
    let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let mut m = Metrics::new();
    m.gauge("fencefs_quota_bytes", "Quota of the store.", status.quota_bytes);
    m.gauge("fencefs_used_bytes", "Allocated bytes of all records.", status.used_bytes);
    m.gauge(
        "fencefs_staged_bytes",
        "Allocated bytes of values being written, in place too, that are not used bytes.",
        status.staged_bytes,
    );
    let help = "Allocated bytes of what is open and has lost its name.";
    m.gauge("fencefs_unlinked_bytes", help, facts.unlinked_bytes);
    m.gauge("fencefs_pinned_bytes", "Bytes out of the reach of eviction.", status.pinned_bytes);
    m.gauge("fencefs_keys", "Keys in the store.", status.keys);
    m.gauge("fencefs_passthrough", "Whether the kernel moves the bytes.", facts.passthrough);
    m.counter("fencefs_hits_total", "Values opened.", load(&counters.hits));
    m.counter("fencefs_misses_total", "Look-ups of keys that do not exist.", load(&counters.misses));
    m.counter("fencefs_publications_total", "Values published.", load(&counters.publications));
    m.counter("fencefs_renames_total", "Renames.", load(&counters.renames));
    let mut evictions = m.counters("fencefs_evictions_total", "Keys evicted, by reason.");
    for (reason, n) in counters.evictions_by_reason() {
        evictions.sample(&[("reason", reason)], n);
    }
    for (name, help, counter) in [
        (
            "fencefs_evictions_inline_total",
            "Evictions that an operation waited for.",
            &counters.evictions_inline,
        ),
        ("fencefs_abandoned_total", "Values being written that were given up.", &counters.abandoned),
        ("fencefs_published_bytes_total", "Allocated bytes of published values.", &counters.published_bytes),
        ("fencefs_read_bytes_total", "Bytes read through the daemon.", &counters.read_bytes),
        ("fencefs_written_bytes_total", "Bytes written through the daemon.", &counters.written_bytes),
        ("fencefs_evicted_bytes_total", "Allocated bytes of evicted values.", &counters.evicted_bytes),
        ("fencefs_eviction_errors_total", "Victims that could not be removed.", &counters.eviction_errors),
        ("fencefs_quarantined_total", "Records that failed validation.", &counters.quarantined),
        ("fencefs_removed_records_total", "Records that removals deleted.", &counters.removed_records),
        ("fencefs_removal_failures_total", "Attempts at a removal that failed.", &counters.removal_failures),
    ] {
        m.counter(name, help, load(counter));
    }
    if let Some(attached) = &status.attached {
        for (name, help, value) in [
            ("fencefs_attached_records", "Values served from the legacy directory.", attached.records),
            ("fencefs_attached_bytes", "Allocated bytes of their files.", attached.bytes),
            ("fencefs_attached_rejected", "Entries there that are left alone.", attached.rejected),
            ("fencefs_attached_shadows", "Keys with files behind the one that counts.", attached.shadows),
            ("fencefs_attached_shadow_bytes", "Allocated bytes of these.", attached.shadow_bytes),
        ] {
            m.gauge(name, help, value);
        }
        let help = "Legacy values copied into records of the store.";
        m.counter("fencefs_attached_migrated_total", help, attached.migrated);
        let help = "Legacy files that could not be unlinked behind a newer record.";
        m.counter("fencefs_attached_retire_errors_total", help, attached.failed_retirements);
    }
    // Left out where the ledger cannot be asked: no number is better than a wrong one.
    if let Some(generation) = removals.highest() {
        m.gauge("fencefs_generation", "Generation of the newest removal request.", generation.0);
    }
    if removals.is_shared() {
        let help = "Whether the coordinator answered when it was last asked.";
        m.gauge("fencefs_coordinator_up", help, u64::from(removals.highest().is_some()));
    }
    if let Ok(counts) = removals.counts() {
        let mut family = m.gauges("fencefs_removal_requests", "Removal requests that are kept, by state.");
        for (state, n) in counts {
            family.sample(&[("state", state.as_str())], n);
        }
    }
    let tenants = &status.tenants;
    let mut family = m.gauges("fencefs_tenant_used_bytes", "Allocated bytes, by tenant.");
    tenants.iter().for_each(|t| _ = family.sample(&[("tenant", &t.name)], t.bytes));
    let mut family = m.gauges("fencefs_tenant_quota_bytes", "Quota of a tenant of its own; 0 is none.");
    tenants.iter().for_each(|t| _ = family.sample(&[("tenant", &t.name)], t.quota_bytes.unwrap_or(0)));
    let mut family =
        m.gauges("fencefs_tenant_reserve_bytes", "What others' pressure leaves a tenant; 0 is none.");
    tenants.iter().for_each(|t| _ = family.sample(&[("tenant", &t.name)], t.reserve_bytes.unwrap_or(0)));
    let mut family = m.gauges(
        "fencefs_tenant_ttl_seconds",
        "How long a tenant's keys live after their last change; 0 is for ever.",
    );
    tenants.iter().for_each(|t| _ = family.sample(&[("tenant", &t.name)], t.ttl_seconds.unwrap_or(0)));
    let mut family = m.gauges("fencefs_tenant_keys", "Keys, by tenant.");
    tenants.iter().for_each(|t| _ = family.sample(&[("tenant", &t.name)], t.keys));
    let mut family = m.gauges("fencefs_tenant_epoch", "Epoch of new writes, by tenant.");
    tenants.iter().for_each(|t| _ = family.sample(&[("tenant", &t.name)], t.epoch));
    let mut family = m.gauges("fencefs_tenant_ready", "Whether a tenant takes writes: no removal holds it.");
    tenants.iter().for_each(|t| _ = family.sample(&[("tenant", &t.name)], t.state == "ready"));
    m.finish()
}
