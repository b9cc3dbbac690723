//! The storage key: how Mooncake spells a tenant and its key as one string, and whose it is.
//!
//! `tenant NUL key`; what stands before the *first* NUL is the tenant, so keys may hold NULs. Without a NUL the whole
//! is a key of tenant `default`, as clients wrote before there were tenants: that tenant's keys have two spellings,
//! with a path and a digest each.

use std::fmt;

use crate::key::{DEFAULT_TENANT, Key, MAX_KEY_BYTES, MAX_TENANT_BYTES, Tenant};

/// Longest storage key that is read, in bytes: a key of [`MAX_KEY_BYTES`] under a tenant name of 255 bytes, so that
/// names which fencefs does not allow can still be told, or mapped to others.
pub const MAX_STORAGE_KEY_BYTES: usize = 255 + 1 + MAX_KEY_BYTES;

/// A storage key: 1 to [`MAX_STORAGE_KEY_BYTES`] bytes of any kind.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorageKey(Box<[u8]>);

impl StorageKey {
    /// A storage key of these bytes; `None` when there are none, or more than [`MAX_STORAGE_KEY_BYTES`].
    pub fn new(bytes: impl Into<Box<[u8]>>) -> Option<Self> {
        let bytes = bytes.into();
        (1..=MAX_STORAGE_KEY_BYTES).contains(&bytes.len()).then_some(StorageKey(bytes))
    }

    /// The spelling that Mooncake writes: `tenant NUL key`.
    pub fn scoped(tenant: &Tenant, key: &Key) -> Self {
        StorageKey([tenant.as_str().as_bytes(), &[0], key.as_bytes()].concat().into())
    }

    /// The spelling without a tenant, that Mooncake wrote before it had them. Only keys of `default` have it, and of
    /// those neither the empty one nor one with a NUL.
    pub fn bare(tenant: &Tenant, key: &Key) -> Option<Self> {
        let bytes = key.as_bytes();
        let spelled = tenant.as_str() == DEFAULT_TENANT && !bytes.contains(&0);
        if spelled { StorageKey::new(bytes) } else { None }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The tenant's name and the key, as they stand there; neither is checked.
    pub fn parts(&self) -> (&[u8], &[u8]) {
        match self.0.iter().position(|b| *b == 0) {
            Some(nul) => (&self.0[..nul], &self.0[nul + 1..]),
            None => (DEFAULT_TENANT.as_bytes(), &self.0),
        }
    }

    /// Whose key it is, in fencefs's terms, or why it can be nobody's.
    pub fn owner(&self) -> Result<(Tenant, Key), Unowned> {
        let (name, key) = self.parts();
        let tenant = Tenant::new(name)
            .map_err(|_| Unowned::Tenant { name: name.into(), fault: TenantFault::of(name) })?;
        let key = Key::new(key).map_err(|_| Unowned::KeyTooLong { bytes: key.len() })?;
        Ok((tenant, key))
    }
}

impl fmt::Debug for StorageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// Why a storage key is no key of fencefs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unowned {
    /// The tenant's name is not allowed here. The record is whole: under another name it could be served.
    Tenant {
        /// The name as it stands in the storage key.
        name: Box<[u8]>,
        /// What is wrong with it.
        fault: TenantFault,
    },
    /// The key alone is longer than [`MAX_KEY_BYTES`].
    KeyTooLong {
        /// Its length.
        bytes: usize,
    },
}

impl fmt::Display for Unowned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unowned::Tenant { name, fault } => {
                write!(f, "tenant name \"{}\" {fault}", name.escape_ascii())
            }
            Unowned::KeyTooLong { bytes } => {
                write!(f, "a key of {bytes} bytes is longer than {MAX_KEY_BYTES}")
            }
        }
    }
}

/// What is wrong with a tenant's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TenantFault {
    /// It is empty: the storage key begins with NUL. Mooncake never writes this; it reads it as `default`.
    Empty,
    /// It has more than [`MAX_TENANT_BYTES`].
    TooLong,
    /// It begins with a dot.
    LeadingDot,
    /// It has a byte that is none of `A-Z a-z 0-9 . _ -`.
    Alphabet,
}

impl TenantFault {
    fn of(name: &[u8]) -> Self {
        match name.first() {
            None => TenantFault::Empty,
            Some(_) if name.len() > MAX_TENANT_BYTES => TenantFault::TooLong,
            Some(b'.') => TenantFault::LeadingDot,
            Some(_) => TenantFault::Alphabet,
        }
    }
}

impl fmt::Display for TenantFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TenantFault::Empty => f.write_str("is empty"),
            TenantFault::TooLong => write!(f, "is longer than {MAX_TENANT_BYTES} bytes"),
            TenantFault::LeadingDot => f.write_str("begins with a dot"),
            TenantFault::Alphabet => f.write_str("has other characters than A-Z a-z 0-9 . _ -"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(bytes: &[u8]) -> Result<(String, Vec<u8>), Unowned> {
        let owner = StorageKey::new(bytes).unwrap().owner();
        owner.map(|(tenant, key)| (tenant.to_string(), key.as_bytes().to_vec()))
    }

    #[test]
    fn the_first_nul_ends_the_tenant() {
        for (bytes, tenant, key) in [
            (&b"default\0a/b"[..], "default", &b"a/b"[..]),
            (b"a/b", "default", b"a/b"),
            (b"default", "default", b"default"),
            (b"tenantA\0shared/key", "tenantA", b"shared/key"),
            (b"t\0part1\0part2", "t", b"part1\0part2"),
            (b"t\0", "t", b""),
            (b"t\0\0", "t", b"\0"),
        ] {
            assert_eq!(owner(bytes), Ok((tenant.to_owned(), key.to_vec())));
        }
    }

    #[test]
    fn names_that_are_not_allowed_are_told_with_their_reason() {
        let long = [&[b'x'; 65][..], b"\0k"].concat();
        for (bytes, name, fault) in [
            (&b"\0k"[..], &b""[..], TenantFault::Empty),
            (&long, &[b'x'; 65], TenantFault::TooLong),
            (b"..\0k", b"..", TenantFault::LeadingDot),
            (b".\0k", b".", TenantFault::LeadingDot),
            (b"a/b\0k", b"a/b", TenantFault::Alphabet),
            (b"team:1\0k", b"team:1", TenantFault::Alphabet),
            (b"\xc3\xa9\0k", b"\xc3\xa9", TenantFault::Alphabet),
        ] {
            assert_eq!(owner(bytes), Err(Unowned::Tenant { name: name.into(), fault }));
        }
        let told = owner(b"team:1\n\0k").unwrap_err().to_string();
        assert_eq!(told, "tenant name \"team:1\\n\" has other characters than A-Z a-z 0-9 . _ -");
    }

    #[test]
    fn lengths_end_where_keys_and_names_do() {
        let key = |n: usize| [b"t\0".to_vec(), vec![b'k'; n]].concat();
        assert!(owner(&key(MAX_KEY_BYTES)).is_ok());
        assert_eq!(owner(&key(MAX_KEY_BYTES + 1)), Err(Unowned::KeyTooLong { bytes: MAX_KEY_BYTES + 1 }));
        assert!(StorageKey::new(vec![b'k'; MAX_STORAGE_KEY_BYTES]).is_some());
        assert!(StorageKey::new(vec![b'k'; MAX_STORAGE_KEY_BYTES + 1]).is_none());
        assert!(StorageKey::new(&b""[..]).is_none());
    }

    #[test]
    fn both_spellings_lead_back() {
        let keys = [&b"a/b"[..], b"", b"\0", b"x\0y", b"default", &[b'k'; MAX_KEY_BYTES]];
        for name in ["default", "tenantA"] {
            for bytes in keys {
                let (tenant, key) = (Tenant::new(name.as_bytes()).unwrap(), Key::new(bytes).unwrap());
                let scoped = StorageKey::scoped(&tenant, &key);
                assert_eq!(scoped.owner(), Ok((tenant.clone(), key.clone())));
                let bare = StorageKey::bare(&tenant, &key);
                assert_eq!(bare.is_some(), name == "default" && !bytes.is_empty() && !bytes.contains(&0));
                if let Some(bare) = bare {
                    assert_ne!(bare, scoped);
                    assert_eq!(bare.owner(), Ok((tenant, key)));
                }
            }
        }
    }
}
