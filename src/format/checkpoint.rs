//! The file `checkpoint`: what the index held at a clean stop, so that the next start need not walk the records.
//!
//! Little-endian. Head: magic, storage identity, XXH3-64 of the format file, XXH3-64 of the applied generations, the
//! mark of the stop, number of tenants u32, number of entries u64. Then the tenants, then the entries: directories
//! after the one that they are in, values coldest first. Last the XXH3-64 of everything before.
//!
//! [`Checkpoint::decode`] accepts what [`Writer`] writes and nothing else.

use std::ops::Range;

use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Kind, Result};
use crate::key::{Epoch, RecordKind, Tenant};

const MAGIC: &[u8; 16] = b"FENCEFS-CHECK-2\n";
const PINNED: u8 = 1;
const RECORDED: u8 = 2;
const SUM_BYTES: usize = 8;

/// What a checkpoint was made of, and under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The store.
    pub storage_id: Uuid,
    /// XXH3-64 of the format file.
    pub superblock: u64,
    /// XXH3-64 of the generations that had been applied.
    pub applied: u64,
    /// The stop that it was made at: random, and on the data as well.
    pub stop: u128,
}

/// A tenant and what it held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantPart {
    /// Its name.
    pub tenant: Tenant,
    /// Its epoch.
    pub epoch: Epoch,
    /// Names in its epoch directory.
    pub shards: u32,
    /// Values and symlinks.
    pub keys: u64,
    /// Allocated bytes.
    pub bytes: u64,
}

/// Seconds since 1970 and nanoseconds.
pub type Moment = (i64, u32);

/// What only a directory has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryPart {
    /// Whether a record keeps it.
    pub recorded: bool,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access, last change of the entries, last change of anything.
    pub times: [Moment; 3],
}

/// A directory, value or symlink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The directory that it is in: the tenants count from 0, then their directories of keys that no path spells, then
    /// the directories among the entries, in their order.
    pub parent: u32,
    /// Its name there.
    pub name: &'a [u8],
    /// What it is.
    pub kind: RecordKind,
    /// Out of eviction's reach.
    pub pinned: bool,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// How a value was used, as the eviction order has it; 0 of a directory.
    pub heat: u8,
    /// Present for a directory.
    pub directory: Option<DirectoryPart>,
}

/// Makes the bytes of a checkpoint.
#[derive(Debug)]
pub struct Writer {
    bytes: Vec<u8>,
    entries: u64,
    entries_at: usize,
}

impl Writer {
    /// A checkpoint without entries.
    pub fn new(head: &Head, tenants: &[TenantPart]) -> Writer {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(head.storage_id.as_bytes());
        bytes.extend_from_slice(&head.superblock.to_le_bytes());
        bytes.extend_from_slice(&head.applied.to_le_bytes());
        bytes.extend_from_slice(&head.stop.to_le_bytes());
        bytes.extend_from_slice(&(tenants.len() as u32).to_le_bytes());
        let entries_at = bytes.len();
        bytes.extend_from_slice(&0_u64.to_le_bytes());
        for t in tenants {
            bytes.push(t.tenant.as_str().len() as u8);
            bytes.extend_from_slice(t.tenant.as_str().as_bytes());
            bytes.extend_from_slice(&t.epoch.0.to_le_bytes());
            bytes.extend_from_slice(&t.shards.to_le_bytes());
            bytes.extend_from_slice(&t.keys.to_le_bytes());
            bytes.extend_from_slice(&t.bytes.to_le_bytes());
        }
        Writer { bytes, entries: 0, entries_at }
    }

    /// The next entry.
    pub fn entry(&mut self, entry: &Entry<'_>) {
        let out = &mut self.bytes;
        let recorded = entry.directory.is_some_and(|d| d.recorded);
        out.extend_from_slice(&entry.parent.to_le_bytes());
        out.push(match entry.kind {
            RecordKind::File => 0,
            RecordKind::Symlink => 1,
            RecordKind::Directory => 2,
        });
        out.push(if entry.pinned { PINNED } else { 0 } | if recorded { RECORDED } else { 0 });
        out.extend_from_slice(&(entry.name.len() as u16).to_le_bytes());
        out.extend_from_slice(&entry.blocks.to_le_bytes());
        if entry.directory.is_none() {
            out.push(entry.heat);
        }
        if let Some(d) = &entry.directory {
            for n in [d.mode, d.uid, d.gid] {
                out.extend_from_slice(&n.to_le_bytes());
            }
            for (sec, nsec) in d.times {
                out.extend_from_slice(&sec.to_le_bytes());
                out.extend_from_slice(&nsec.to_le_bytes());
            }
        }
        out.extend_from_slice(entry.name);
        self.entries += 1;
    }

    /// The file.
    pub fn seal(mut self) -> Vec<u8> {
        self.bytes[self.entries_at..self.entries_at + 8].copy_from_slice(&self.entries.to_le_bytes());
        let sum = xxh3_64(&self.bytes);
        self.bytes.extend_from_slice(&sum.to_le_bytes());
        self.bytes
    }
}

/// A whole and sound checkpoint.
#[derive(Debug)]
pub struct Checkpoint<'a> {
    /// What it was made of, and under.
    pub head: Head,
    /// The tenants.
    pub tenants: Vec<TenantPart>,
    /// How many entries there are.
    pub entries: u64,
    rest: &'a [u8],
}

fn bad(what: &'static str) -> Error {
    Error::new(Kind::Corrupt, what)
}

fn take<'a>(rest: &mut &'a [u8], n: usize) -> Result<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(n).ok_or_else(|| bad("it is cut short"))?;
    *rest = tail;
    Ok(head)
}

fn array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N]> {
    take(rest, N)?.try_into().map_err(|_| bad("it is cut short"))
}

fn u32_of(rest: &mut &[u8]) -> Result<u32> {
    array(rest).map(u32::from_le_bytes)
}

fn u64_of(rest: &mut &[u8]) -> Result<u64> {
    array(rest).map(u64::from_le_bytes)
}

fn tenant_of(rest: &mut &[u8]) -> Result<TenantPart> {
    let [length] = array(rest)?;
    let tenant = Tenant::new(take(rest, length.into())?).map_err(|_| bad("it names no valid tenant"))?;
    let (epoch, shards) = (Epoch(u64_of(rest)?), u32_of(rest)?);
    Ok(TenantPart { tenant, epoch, shards, keys: u64_of(rest)?, bytes: u64_of(rest)? })
}

fn directory_of(rest: &mut &[u8], recorded: bool) -> Result<DirectoryPart> {
    let [mode, uid, gid] = [u32_of(rest)?, u32_of(rest)?, u32_of(rest)?];
    let mut times = [(0, 0); 3];
    for time in &mut times {
        *time = (array(rest).map(i64::from_le_bytes)?, u32_of(rest)?);
        if time.1 >= 1_000_000_000 {
            return Err(bad("a time in it is none"));
        }
    }
    if mode & !0o7777 != 0 {
        return Err(bad("a mode in it is none"));
    }
    Ok(DirectoryPart { recorded, mode, uid, gid, times })
}

/// What the entries' directories are numbered by, as far as they have come.
#[derive(Debug, Clone)]
struct Directories {
    /// Those whose names are whole keys: behind the tenants, as many.
    unspelled: Range<u32>,
    count: u32,
}

impl Directories {
    fn of(tenants: &[TenantPart]) -> Directories {
        let n = tenants.len() as u32;
        Directories { unspelled: n..n.saturating_mul(2), count: n.saturating_mul(2) }
    }
}

fn entry_of<'a>(rest: &mut &'a [u8], directories: &mut Directories) -> Result<Entry<'a>> {
    let parent = u32_of(rest)?;
    if parent >= directories.count {
        return Err(bad("an entry of it is in no directory"));
    }
    let [kind, flags] = array(rest)?;
    let kind = match kind {
        0 => RecordKind::File,
        1 => RecordKind::Symlink,
        2 => RecordKind::Directory,
        _ => return Err(bad("an entry of it is of an unknown kind")),
    };
    let is_dir = kind == RecordKind::Directory;
    if flags & !(PINNED | RECORDED) != 0 || (flags & RECORDED != 0 && !is_dir) {
        return Err(bad("an entry of it has unknown flags"));
    }
    let length = array(rest).map(u16::from_le_bytes)?;
    let blocks = u64_of(rest)?;
    let (directory, heat) = if is_dir {
        (Some(directory_of(rest, flags & RECORDED != 0)?), 0)
    } else {
        let [heat] = array(rest)?;
        (None, heat)
    };
    let name = take(rest, length.into())?;
    let is_whole_key = directories.unspelled.contains(&parent) && !is_dir;
    let is_no_name = matches!(name, b"" | b"." | b"..") || name.iter().any(|b| matches!(b, 0 | b'/'));
    if is_no_name && !is_whole_key {
        return Err(bad("an entry of it has a name that is none"));
    }
    if blocks > u64::MAX / 512 / (1 << 20) {
        return Err(bad("an entry of it is larger than any file"));
    }
    if is_dir {
        let count = directories.count.checked_add(1);
        directories.count = count.ok_or_else(|| bad("it has too many directories"))?;
    }
    Ok(Entry { parent, name, kind, pinned: flags & PINNED != 0, blocks, heat, directory })
}

impl<'a> Checkpoint<'a> {
    /// Reads the file, to its last byte. Anything else than what [`Writer::seal`] made is [`Kind::Corrupt`].
    pub fn decode(bytes: &'a [u8]) -> Result<Checkpoint<'a>> {
        let body = bytes.len().checked_sub(SUM_BYTES).ok_or_else(|| bad("it is cut short"))?;
        let (body, mut sum) = bytes.split_at(body);
        if u64_of(&mut sum)? != xxh3_64(body) {
            return Err(bad("its checksum is wrong"));
        }
        let mut rest = body;
        if take(&mut rest, MAGIC.len())? != MAGIC {
            return Err(bad("it is of an unknown version"));
        }
        let head = Head {
            storage_id: Uuid::from_bytes(array(&mut rest)?),
            superblock: u64_of(&mut rest)?,
            applied: u64_of(&mut rest)?,
            stop: u128::from_le_bytes(array(&mut rest)?),
        };
        let tenants = u32_of(&mut rest)?;
        let entries = u64_of(&mut rest)?;
        let tenants: Vec<_> = (0..tenants).map(|_| tenant_of(&mut rest)).collect::<Result<_>>()?;
        let found = Checkpoint { head, tenants, entries, rest };
        let mut directories = Directories::of(&found.tenants);
        for _ in 0..entries {
            entry_of(&mut rest, &mut directories)?;
        }
        if rest.is_empty() { Ok(found) } else { Err(bad("it has bytes left over")) }
    }

    /// The entries, in their order.
    pub fn entries(&self) -> impl Iterator<Item = Result<Entry<'a>>> + use<'a> {
        let (mut rest, mut directories) = (self.rest, Directories::of(&self.tenants));
        (0..self.entries).map(move |_| entry_of(&mut rest, &mut directories))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Head, Vec<TenantPart>, Vec<Entry<'static>>) {
        let head = Head { storage_id: Uuid::new_v4(), superblock: 1, applied: 2, stop: 3 };
        let part = |name: &[u8], keys| TenantPart {
            tenant: Tenant::new(name).unwrap(),
            epoch: Epoch(keys),
            shards: 7,
            keys,
            bytes: keys * 512,
        };
        let times = [(-5, 999_999_999), (0, 0), (1 << 40, 1)];
        let dir = DirectoryPart { recorded: true, mode: 0o4755, uid: 1, gid: 2, times };
        let value = Entry {
            parent: 2,
            name: b"v\xff",
            kind: RecordKind::File,
            pinned: true,
            blocks: 8,
            heat: 0x23,
            directory: None,
        };
        let entries = vec![
            Entry {
                parent: 1,
                name: b"d",
                kind: RecordKind::Directory,
                heat: 0,
                directory: Some(dir),
                ..value
            },
            value,
            Entry { parent: 0, name: b"l", kind: RecordKind::Symlink, pinned: false, ..value },
        ];
        (head, vec![part(b"default", 1), part(b"other", 1)], entries)
    }

    fn sealed(head: &Head, tenants: &[TenantPart], entries: &[Entry<'_>]) -> Vec<u8> {
        let mut writer = Writer::new(head, tenants);
        entries.iter().for_each(|e| writer.entry(e));
        writer.seal()
    }

    #[test]
    fn round_trip() {
        let (head, tenants, entries) = sample();
        let bytes = sealed(&head, &tenants, &entries);
        let read = Checkpoint::decode(&bytes).unwrap();
        let found: Vec<_> = read.entries().map(|e| e.unwrap()).collect();
        assert_eq!((read.head, read.tenants, found), (head, tenants, entries));
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_refused() {
        let (head, tenants, entries) = sample();
        let bytes = sealed(&head, &tenants, &entries);
        for n in 0..bytes.len() {
            assert_eq!(Checkpoint::decode(&bytes[..n]).unwrap_err().kind(), Kind::Corrupt, "cut to {n}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Checkpoint::decode(&other).unwrap_err().kind(), Kind::Corrupt, "bit {bit}");
        }
    }

    /// A file that is wrong in itself although its checksum is right: never a panic, never accepted unless it is whole.
    #[test]
    fn what_a_checksum_does_not_tell_is_checked() {
        let (head, tenants, entries) = sample();
        let bytes = sealed(&head, &tenants, &entries);
        let resealed = |mut body: Vec<u8>| {
            let sum = xxh3_64(&body);
            body.extend_from_slice(&sum.to_le_bytes());
            body
        };
        let body = &bytes[..bytes.len() - SUM_BYTES];
        for n in 0..body.len() {
            assert!(Checkpoint::decode(&resealed(body[..n].to_vec())).is_err(), "cut to {n}");
        }
        for extra in 1..80 {
            assert!(Checkpoint::decode(&resealed([body, &vec![0; extra]].concat())).is_err(), "{extra} more");
        }
        for at in 0..body.len() {
            for value in [0, 1, 0x2f, 0x7f, 0xff] {
                let mut other = body.to_vec();
                other[at] = value;
                if let Ok(read) = Checkpoint::decode(&resealed(other)) {
                    assert!(read.entries().all(|e| e.is_ok()));
                }
            }
        }
        let bad_parent = Entry { parent: 2 * tenants.len() as u32, ..entries[0] };
        assert!(Checkpoint::decode(&sealed(&head, &tenants, &[bad_parent])).is_err());
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
            let nameless = Entry { name, ..entries[2] };
            assert!(Checkpoint::decode(&sealed(&head, &tenants, &[nameless])).is_err(), "{name:?}");
            let parent = tenants.len() as u32;
            let value = Entry { name, parent, kind: RecordKind::File, directory: None, ..entries[2] };
            assert!(Checkpoint::decode(&sealed(&head, &tenants, &[value])).is_ok(), "the whole key {name:?}");
        }
    }
}
