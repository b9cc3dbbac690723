//! Tenants, keys, digests and epochs: values that can only be made valid.
//!
//! The *storage key* of a key is `tenant NUL key`; its XXH3-128 names the record on disk. Nothing below the
//! edge checks these again.

use std::fmt;
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::{AtomicBool, Ordering};

use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::error::{Error, Kind, Result};

/// Longest key, in bytes: what one ext4 xattr block holds beside the rest of a record's metadata.
pub const MAX_KEY_BYTES: usize = 3072;
/// Longest tenant name, in bytes.
pub const MAX_TENANT_BYTES: usize = 64;
/// The one reserved name, at the root of the mount and of each tenant.
pub const RESERVED: &[u8] = b".fencefs";
/// The tenant that always exists.
pub const DEFAULT_TENANT: &str = "default";

/// A tenant name: 1 to 64 of `A-Z a-z 0-9 . _ -`, not beginning with `.`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(Arc<str>);

impl Tenant {
    /// Parses a tenant name; anything outside the alphabet is [`Kind::Invalid`].
    pub fn new(name: &[u8]) -> Result<Self> {
        let bytes_ok = name.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if name.is_empty() || name.len() > MAX_TENANT_BYTES || name[0] == b'.' || !bytes_ok {
            return Err(Error::new(
                Kind::Invalid,
                format!(
                    "tenant name {:?} is not 1-64 of A-Z a-z 0-9 . _ - (not beginning with a dot)",
                    String::from_utf8_lossy(&name[..name.len().min(80)])
                ),
            ));
        }
        let text = std::str::from_utf8(name).expect("the alphabet is ASCII");
        Ok(Tenant(Arc::from(text)))
    }

    /// The tenant that always exists.
    pub fn default_tenant() -> Self {
        Tenant(Arc::from(DEFAULT_TENANT))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// A key: any bytes, at most [`MAX_KEY_BYTES`]. The mount makes keys from paths, imports from storage keys.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Box<[u8]>);

impl Key {
    /// A key of these bytes; longer than [`MAX_KEY_BYTES`] is [`Kind::NameTooLong`].
    pub fn new(bytes: impl Into<Box<[u8]>>) -> Result<Self> {
        let bytes = bytes.into();
        if bytes.len() > MAX_KEY_BYTES {
            return Err(Error::new(
                Kind::NameTooLong,
                format!("a key of {} bytes is longer than {MAX_KEY_BYTES}", bytes.len()),
            ));
        }
        Ok(Key(bytes))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The components of the path that spells this key, or `None` where no path can: an empty, `.` or `..`
    /// component, a slash first or last, a NUL, the reserved name as the first component.
    pub fn path(&self) -> Option<impl Iterator<Item = &[u8]>> {
        let ok = !self.0.contains(&0)
            && self.0.split(|b| *b == b'/').next() != Some(RESERVED)
            && self.0.split(|b| *b == b'/').all(|c| !c.is_empty() && c != b"." && c != b"..");
        ok.then(|| self.0.split(|b| *b == b'/'))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// What a record holds; part of what its digest covers, so a directory and a value of one path never meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// A value.
    File,
    /// A symbolic link; the payload is its target.
    Symlink,
    /// A directory that was made with mkdir; no payload.
    Directory,
}

impl RecordKind {
    /// Directories hash with a seed of their own: the path `a` as a directory and as a value are two records.
    fn seed(self) -> u64 {
        match self {
            RecordKind::File | RecordKind::Symlink => 0,
            RecordKind::Directory => 1,
        }
    }
}

/// XXH3-128 of a storage key: the name of its record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(u128);

impl Digest {
    /// The digest of `tenant NUL key`.
    pub fn of(tenant: &Tenant, key: &[u8], kind: RecordKind) -> Self {
        #[cfg(test)]
        if COLLIDE.load(Ordering::Relaxed) && key.starts_with(b"collide") {
            return Digest(0xC0111DE);
        }
        let mut buf = Vec::with_capacity(tenant.as_str().len() + 1 + key.len());
        buf.extend_from_slice(tenant.as_str().as_bytes());
        buf.push(0);
        buf.extend_from_slice(key);
        Digest(xxh3_128_with_seed(&buf, kind.seed()))
    }

    /// The low 64 bits: for lock striping, never for identity.
    pub fn low(self) -> u64 {
        self.0 as u64
    }

    /// The digest as a number.
    pub fn to_u128(self) -> u128 {
        self.0
    }

    /// The digest of this number.
    pub fn from_u128(n: u128) -> Self {
        Digest(n)
    }

    /// Parses 32 lowercase hex digits.
    pub fn parse(name: &[u8]) -> Option<Self> {
        if name.len() != 32 || !name.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        u128::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok().map(Digest)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Test seam: while set, every key that begins with `collide` has one digest.
#[cfg(test)]
pub(crate) static COLLIDE: AtomicBool = AtomicBool::new(false);

/// The generation that last emptied a tenant; 0 until a removal raises it. A tenant's records live below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_names() {
        for ok in ["default", "a", "A-b_c.9", &"x".repeat(64)] {
            assert_eq!(Tenant::new(ok.as_bytes()).unwrap().as_str(), ok);
        }
        for bad in ["", ".", "..", ".a", "a/b", "a b", "\u{e9}", "a\0", &"x".repeat(65)] {
            assert_eq!(Tenant::new(bad.as_bytes()).unwrap_err().kind(), Kind::Invalid, "{bad:?}");
        }
    }

    #[test]
    fn digests_follow_the_contract() {
        let d = |t: &str, k: &[u8]| {
            Digest::of(&Tenant::new(t.as_bytes()).unwrap(), k, RecordKind::File).to_string()
        };
        assert_eq!(d("default", b"a/b"), "64c719bce58a6a9d621f9888577b399c");
        assert_eq!(d("default", b"plain"), "88abb8e557ac7f78c024ab5a2cd12e70");
        assert_eq!(d("default", b"with space"), "0192133c95c40725f01d3c95ea4d962f");
        assert_eq!(d("tenantA", b"shared/key"), "723917e8153914d8386c6de1a9d62d78");
        assert_eq!(d("tenantB", b"shared/key"), "ed199858de6777948eda9c848922f9f0");
    }

    #[test]
    fn digest_names_parse_back() {
        let d = Digest::from_u128(0x00ff);
        assert_eq!(Digest::parse(d.to_string().as_bytes()), Some(d));
        assert_eq!(Digest::parse(b"00FF"), None);
        assert_eq!(Digest::parse(&[b'F'; 32]), None);
        assert_eq!(Digest::parse(&[b'+'; 32]), None);
    }

    #[test]
    fn paths_spell_keys() {
        let spelled = |k: &[u8]| Key::new(k).unwrap().path().map(|p| p.count());
        assert_eq!(spelled(b"a/b/c"), Some(3));
        assert_eq!(spelled(b"a/.fencefs"), Some(2));
        assert_eq!(spelled(b".fencefsx"), Some(1));
        for bad in [&b""[..], b"/a", b"a/", b"a//b", b".", b"a/..", b"a\0b", b".fencefs", b".fencefs/status"]
        {
            assert_eq!(spelled(bad), None, "{bad:?}");
        }
        assert_eq!(Key::new(vec![b'k'; MAX_KEY_BYTES + 1]).unwrap_err().kind(), Kind::NameTooLong);
    }
}
