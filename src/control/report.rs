//! The status object and requests, as the virtual files, the control file and the command line show them.

use serde_json::{Map, Value, json};

use super::removals::Removals;
use crate::key::Tenant;
use crate::ledger::{Pending, Request};
use crate::scope::Scope;

/// What only the mount knows.
#[derive(Debug, Clone, Copy)]
pub struct MountFacts {
    /// Whether the kernel moves the bytes.
    pub passthrough: bool,
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
    }
    if let Ok(Value::Object(fields)) = serde_json::to_value(&of_store) {
        object.extend(fields);
    }
    object.insert("coordinator".into(), json!(removals.coordinator()));
    object.insert("passthrough".into(), json!(facts.passthrough));
    // Where the ledger cannot be asked, the epochs say how far it was.
    if let Ok(generation) = removals.highest() {
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
        ("last_error", json!(request.last_error)),
        ("failed_attempts", json!(request.failed_attempts)),
        ("submitted_ms", json!(request.submitted_ms)),
        ("completed_ms", json!(request.completed_ms)),
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
