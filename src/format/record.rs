//! A record's metadata: one packed extended attribute, `user.fencefs`. The file itself is the payload alone.
//!
//! Little-endian, in order: version u8, flags u8, kind u8, tenant length u8, epoch u64, payload length u64,
//! checksum u64 (only with that flag), key length u16, tenant, NUL, key, and, with that flag, the origin.
//!
//! The *origin* is the key that the record had before its last rename. A rename writes the new attribute first and
//! moves the file second; whichever of the two keys hashes to the file's name is the key of the record, so a crash
//! between the two steps loses neither.

use crate::error::{Error, Kind, Result};
use crate::key::{Digest, Epoch, Key, RecordKind, Tenant};

/// Name of the attribute.
pub const XATTR: &str = "user.fencefs";
/// Most bytes of it: what an ext4 xattr block leaves for a value.
pub const MAX_XATTR_BYTES: usize = 3900;
/// Version written.
pub const VERSION: u8 = 1;

const EDITING: u8 = 1;
const PINNED: u8 = 2;
const CHECKSUM: u8 = 4;
const ORIGIN: u8 = 8;
const KNOWN_FLAGS: u8 = EDITING | PINNED | CHECKSUM | ORIGIN;
const HEAD_BYTES: usize = 4 + 8 + 8;

/// What the attribute says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// What the payload is.
    pub kind: RecordKind,
    /// Opened for editing in place: length and checksum are settled at the last writer's close; until then the
    /// file's own length counts.
    pub editing: bool,
    /// Kept out of eviction's reach.
    pub pinned: bool,
    /// The epoch under which it was published.
    pub epoch: Epoch,
    /// Payload length at publication or at the last settling.
    pub payload_bytes: u64,
    /// XXH3-64 of the payload.
    pub checksum: Option<u64>,
    /// Owner of the key.
    pub tenant: Tenant,
    /// The key.
    pub key: Key,
    /// The key before the last rename.
    pub origin: Option<Key>,
}

impl Record {
    /// Packs the attribute. Longer than [`MAX_XATTR_BYTES`] is [`Kind::NameTooLong`].
    pub fn encode(&self) -> Result<Vec<u8>> {
        let (tenant, key) = (self.tenant.as_str().as_bytes(), self.key.as_bytes());
        let origin = self.origin.as_ref().map_or(&[][..], |k| k.as_bytes());
        let mut out = Vec::with_capacity(HEAD_BYTES + 11 + tenant.len() + key.len() + origin.len());
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        out.push(VERSION);
        out.push(
            flag(self.editing, EDITING)
                | flag(self.pinned, PINNED)
                | flag(self.checksum.is_some(), CHECKSUM)
                | flag(self.origin.is_some(), ORIGIN),
        );
        out.push(match self.kind {
            RecordKind::File => 0,
            RecordKind::Symlink => 1,
            RecordKind::Directory => 2,
        });
        out.push(tenant.len() as u8);
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.payload_bytes.to_le_bytes());
        if let Some(sum) = self.checksum {
            out.extend_from_slice(&sum.to_le_bytes());
        }
        out.extend_from_slice(&(key.len() as u16).to_le_bytes());
        out.extend_from_slice(tenant);
        out.push(0);
        out.extend_from_slice(key);
        out.extend_from_slice(origin);
        if out.len() > MAX_XATTR_BYTES {
            return Err(Error::new(Kind::NameTooLong, "the two keys of this rename do not fit one record"));
        }
        Ok(out)
    }

    /// Unpacks an attribute; anything else than what [`Record::encode`] writes is [`Kind::Corrupt`].
    pub fn decode(bytes: &[u8]) -> Result<Record> {
        let bad = |what: &'static str| Error::new(Kind::Corrupt, what);
        let mut rest = bytes;
        let mut take = |n: usize| -> Result<&[u8]> {
            let (head, tail) = rest.split_at_checked(n).ok_or_else(|| bad("record metadata is cut short"))?;
            rest = tail;
            Ok(head)
        };
        let head: [u8; 4] = take(4)?.try_into().expect("four bytes");
        if head[0] != VERSION {
            return Err(bad("record metadata is of an unknown version"));
        }
        let flags = head[1];
        if flags & !KNOWN_FLAGS != 0 {
            return Err(bad("record metadata has unknown flags"));
        }
        let kind = match head[2] {
            0 => RecordKind::File,
            1 => RecordKind::Symlink,
            2 => RecordKind::Directory,
            _ => return Err(bad("record metadata is of an unknown kind")),
        };
        let mut u64_field =
            || -> Result<u64> { Ok(u64::from_le_bytes(take(8)?.try_into().expect("eight bytes"))) };
        let epoch = Epoch(u64_field()?);
        let payload_bytes = u64_field()?;
        let checksum = if flags & CHECKSUM != 0 { Some(u64_field()?) } else { None };
        let key_bytes = u16::from_le_bytes(take(2)?.try_into().expect("two bytes")) as usize;
        let tenant =
            Tenant::new(take(head[3] as usize)?).map_err(|_| bad("record metadata has no valid tenant"))?;
        if take(1)? != [0] {
            return Err(bad("record metadata lacks the NUL after its tenant"));
        }
        let key = Key::new(take(key_bytes)?).map_err(|_| bad("record metadata has no valid key"))?;
        let origin = if flags & ORIGIN != 0 {
            Some(Key::new(rest).map_err(|_| bad("record metadata has no valid origin"))?)
        } else if rest.is_empty() {
            None
        } else {
            return Err(bad("record metadata has bytes left over"));
        };
        Ok(Record {
            kind,
            editing: flags & EDITING != 0,
            pinned: flags & PINNED != 0,
            epoch,
            payload_bytes,
            checksum,
            tenant,
            key,
            origin,
        })
    }

    /// The key of this record where its file is named `name`; `None` when neither of its keys hashes to it.
    pub fn key_at(&self, name: Digest) -> Option<&Key> {
        let hashes = |key: &Key| Digest::of(&self.tenant, key.as_bytes(), self.kind) == name;
        if hashes(&self.key) { Some(&self.key) } else { self.origin.as_ref().filter(|k| hashes(k)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Record {
        Record {
            kind: RecordKind::File,
            editing: false,
            pinned: true,
            epoch: Epoch(7),
            payload_bytes: 12345,
            checksum: Some(9),
            tenant: Tenant::default_tenant(),
            key: Key::new(&b"a/\xff\0b"[..]).unwrap(),
            origin: Some(Key::new(&b".tmp"[..]).unwrap()),
        }
    }

    #[test]
    fn round_trip() {
        for editing in [false, true] {
            for origin in [None, Some(Key::new(&b"x"[..]).unwrap())] {
                for checksum in [None, Some(u64::MAX)] {
                    for kind in [RecordKind::File, RecordKind::Symlink, RecordKind::Directory] {
                        let r = Record { editing, origin: origin.clone(), checksum, kind, ..sample() };
                        assert_eq!(Record::decode(&r.encode().unwrap()).unwrap(), r);
                    }
                }
            }
        }
    }

    #[test]
    fn every_cut_and_every_flipped_head_is_refused_or_differs() {
        let r = Record { origin: None, ..sample() };
        let bytes = r.encode().unwrap();
        for n in 0..bytes.len() {
            assert_eq!(Record::decode(&bytes[..n]).unwrap_err().kind(), Kind::Corrupt);
        }
        for i in 0..bytes.len() {
            let mut b = bytes.clone();
            b[i] ^= 0x80;
            assert!(Record::decode(&b).map_or(true, |other| other != r), "byte {i}");
        }
    }

    #[test]
    fn a_short_key_stays_inside_a_small_inode() {
        let r = Record { checksum: None, origin: None, key: Key::new(vec![b'k'; 28]).unwrap(), ..sample() };
        assert!(r.encode().unwrap().len() <= 60);
    }

    #[test]
    fn a_rename_that_did_not_happen_keeps_the_old_key() {
        let r = sample();
        let at = |k: &[u8]| r.key_at(Digest::of(&r.tenant, k, r.kind)).map(|k| k.as_bytes().to_vec());
        assert_eq!(at(b"a/\xff\0b").unwrap(), b"a/\xff\0b");
        assert_eq!(at(b".tmp").unwrap(), b".tmp");
        assert_eq!(at(b"other"), None);
    }
}
