//! Whose a storage key is here: Mooncake's tenants have names that fencefs does not allow, and a person may give them
//! others.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::error::{Error, Kind, Result};
use crate::format::legacy::{StorageKey, Unowned};
use crate::key::{DEFAULT_TENANT, Key, Tenant};

/// A word `OLD=NEW`: keys of Mooncake's tenant OLD, any bytes, are of the tenant NEW here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantRule {
    old: Box<[u8]>,
    new: Tenant,
}

impl TenantRule {
    /// Parses the word. The last `=` counts: a name of fencefs has none.
    pub fn parse(word: &OsStr) -> Result<TenantRule> {
        let bytes = word.as_bytes();
        let Some(at) = bytes.iter().rposition(|b| *b == b'=') else {
            return Err(Error::new(
                Kind::Invalid,
                format!("\"{}\" is not OLD=NEW, the name of a tenant there and here", bytes.escape_ascii()),
            ));
        };
        Ok(TenantRule { old: bytes[..at].into(), new: Tenant::new(&bytes[at + 1..])? })
    }
}

impl TryFrom<OsString> for TenantRule {
    type Error = Error;

    fn try_from(word: OsString) -> Result<TenantRule> {
        TenantRule::parse(&word)
    }
}

/// The names of tenants there and here. A name without a rule is the same in both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantMap(BTreeMap<Box<[u8]>, Tenant>);

impl TenantMap {
    /// A map of these rules; two for one name are [`Kind::Invalid`].
    pub fn new(rules: impl IntoIterator<Item = TenantRule>) -> Result<TenantMap> {
        let mut map = BTreeMap::new();
        for TenantRule { old, new } in rules {
            if let Some(before) = map.get(&old)
                && *before != new
            {
                return Err(Error::new(
                    Kind::Invalid,
                    format!("tenant \"{}\" cannot be both {before} and {new}", old.escape_ascii()),
                ));
            }
            map.insert(old, new);
        }
        Ok(TenantMap(map))
    }

    /// Whose key it is, or why it can be nobody's.
    pub fn owner(&self, storage_key: &StorageKey) -> Result<(Tenant, Key), Unowned> {
        let (name, key) = storage_key.parts();
        let Some(tenant) = self.0.get(name) else { return storage_key.owner() };
        let key = Key::new(key).map_err(|_| Unowned::KeyTooLong { bytes: key.len() })?;
        Ok((tenant.clone(), key))
    }

    /// Every storage key that is this key of this tenant, the one that counts most first: the tenant's own name before
    /// others, and with a tenant before without one, as older versions wrote it.
    pub fn spellings(&self, tenant: &Tenant, key: &Key) -> Vec<StorageKey> {
        let own = Some(tenant.as_str().as_bytes()).filter(|name| !self.0.contains_key(*name));
        let others = self.0.iter().filter(|(_, new)| *new == tenant).map(|(old, _)| &**old);
        let of_name = |name: &[u8]| {
            let scoped = StorageKey::new([name, &[0], key.as_bytes()].concat());
            let bare = Some(Tenant::default_tenant()).filter(|_| name == DEFAULT_TENANT.as_bytes());
            [scoped, bare.and_then(|default| StorageKey::bare(&default, key))]
        };
        own.into_iter().chain(others).flat_map(of_name).flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(words: &[&str]) -> Result<TenantMap> {
        TenantMap::new(words.iter().map(|word| TenantRule::parse(OsStr::new(word)).unwrap()))
    }

    fn storage_key(bytes: &[u8]) -> StorageKey {
        StorageKey::new(bytes).unwrap()
    }

    #[test]
    fn names_are_given_others_and_the_rest_stays() {
        let map = map(&["team:1=team-1", "a=b=c", "=nameless"]).unwrap();
        for (bytes, tenant) in
            [(&b"team:1\0k"[..], "team-1"), (b"a=b\0k", "c"), (b"\0k", "nameless"), (b"x\0k", "x")]
        {
            let (found, key) = map.owner(&storage_key(bytes)).unwrap();
            assert_eq!((found.as_str(), key.as_bytes()), (tenant, &b"k"[..]));
        }
        assert!(map.owner(&storage_key(b"team:2\0k")).is_err());
        let long = [b"team:1\0".to_vec(), vec![b'k'; 3073]].concat();
        assert_eq!(map.owner(&storage_key(&long)), Err(Unowned::KeyTooLong { bytes: 3073 }));
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for word in ["a", "", "a=", "a=.b", "a=b c"] {
            let refused = TenantRule::parse(OsStr::new(word)).unwrap_err();
            assert_eq!(refused.kind(), Kind::Invalid, "{word}");
        }
        assert_eq!(map(&["a=b", "a=c"]).unwrap_err().to_string(), "tenant \"a\" cannot be both b and c");
        assert!(map(&["a=b", "a=b", "c=b"]).is_ok());
    }

    #[test]
    fn every_spelling_leads_to_its_owner() {
        let map = map(&["team:1=a", "old=a", "default=main", "b=c"]).unwrap();
        let spelled = |tenant: &str, key: &[u8]| -> Vec<Vec<u8>> {
            let owner = (Tenant::new(tenant.as_bytes()).unwrap(), Key::new(key).unwrap());
            let spellings = map.spellings(&owner.0, &owner.1);
            assert!(spellings.iter().all(|s| map.owner(s) == Ok(owner.clone())));
            spellings.iter().map(|s| s.as_bytes().to_vec()).collect()
        };
        assert_eq!(spelled("a", b"k"), [&b"a\0k"[..], b"old\0k", b"team:1\0k"]);
        assert_eq!(spelled("main", b"k"), [&b"main\0k"[..], b"default\0k", b"k"]);
        assert_eq!(spelled("main", b""), [&b"main\0"[..], b"default\0"]);
        assert!(spelled("b", b"k").is_empty() && spelled("default", b"k").is_empty());
    }
}
