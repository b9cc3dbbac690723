//! What a removal covers, and how it removes.

use std::fmt;

use crate::key::Tenant;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
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
