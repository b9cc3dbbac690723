//! What a storage has applied: the markers.

use std::collections::BTreeMap;

use crate::key::{Epoch, Tenant};
use crate::scope::{Generation, Scope};

/// The highest generation applied, globally and per tenant. Plain values; [`super::StorageFile`] keeps them on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// Highest global generation.
    pub global: Generation,
    /// Highest generation of each tenant's own requests.
    pub tenants: BTreeMap<Tenant, Generation>,
}

impl Applied {
    /// The highest generation that covers a tenant: its epoch.
    pub fn epoch_of(&self, tenant: &Tenant) -> Epoch {
        self.tenants.get(tenant).copied().unwrap_or_default().max(self.global).into()
    }

    /// The highest generation of exactly this scope.
    pub fn of(&self, scope: &Scope) -> Generation {
        match scope {
            Scope::Global => self.global,
            Scope::Tenant(tenant) => self.tenants.get(tenant).copied().unwrap_or_default(),
        }
    }

    /// Whether a request has been applied. A global request is covered by a global marker alone; one of a tenant
    /// also by a later global one.
    pub fn covers(&self, scope: &Scope, generation: Generation) -> bool {
        generation <= self.of(scope).max(self.global)
    }

    /// Notes an applied request. Never goes back.
    pub fn advance(&mut self, scope: &Scope, generation: Generation) {
        let marker = match scope {
            Scope::Global => &mut self.global,
            Scope::Tenant(tenant) => self.tenants.entry(tenant.clone()).or_default(),
        };
        *marker = generation.max(*marker);
    }
}
