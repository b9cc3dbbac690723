//! What a removal covers, how it removes, and its number.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::key::{Epoch, Tenant};

/// Number of a removal request. Global and tenant requests are numbered in one sequence, so a global request dominates
/// every tenant request below it; zero is before the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A tenant's epoch is the highest generation applied to it.
impl From<Generation> for Epoch {
    fn from(generation: Generation) -> Self {
        Epoch(generation.0)
    }
}

/// What a removal covers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Every tenant.
    Global,
    /// One tenant.
    Tenant(Tenant),
}

impl Scope {
    /// The word of the control language: `global` or `tenant`.
    pub fn word(&self) -> &'static str {
        match self {
            Scope::Global => "global",
            Scope::Tenant(_) => "tenant",
        }
    }

    /// The scope of these words; `None` where they name none.
    pub fn from_words(word: &str, tenant: Option<&str>) -> Option<Scope> {
        match (word, tenant) {
            ("global", None) => Some(Scope::Global),
            ("tenant", Some(name)) => Tenant::new(name.as_bytes()).ok().map(Scope::Tenant),
            _ => None,
        }
    }

    /// Whether everything in `other` is in this scope.
    pub fn includes(&self, other: &Scope) -> bool {
        *self == Scope::Global || self == other
    }

    /// Whether a tenant is in this scope.
    pub fn includes_tenant(&self, tenant: &Tenant) -> bool {
        self.tenant().is_none_or(|own| own == tenant)
    }

    /// The tenant, where it is one.
    pub fn tenant(&self) -> Option<&Tenant> {
        match self {
            Scope::Global => None,
            Scope::Tenant(tenant) => Some(tenant),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Global => f.write_str("global"),
            Scope::Tenant(tenant) => write!(f, "tenant {tenant}"),
        }
    }
}

/// How a removal removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The bytes are gone before the removal is acknowledged.
    #[default]
    Physical,
    /// The keys are; their bytes may follow.
    Logical,
}

impl Mode {
    /// The word of the control language: `physical` or `logical`.
    pub fn word(self) -> &'static str {
        match self {
            Mode::Physical => "physical",
            Mode::Logical => "logical",
        }
    }
}
