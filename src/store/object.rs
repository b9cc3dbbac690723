//! One record's file: found by digest, believed only after validation, moved into place by rename.

use std::fs::File;
use std::sync::atomic::Ordering;

use super::Store;
use super::tenants::Home;
use crate::error::{Error, Kind, Result};
use crate::format::{layout, record, record::Record};
use crate::key::{Digest, Epoch, Key, RecordKind, Tenant};
use crate::os::{self, Attr, Dir, RenameHow, XattrMode};

/// Where a record of a home stands.
#[derive(Debug, Clone)]
pub struct Place {
    /// The key.
    pub key: Key,
    /// What is there.
    pub kind: RecordKind,
    /// The file's name.
    pub digest: Digest,
    /// The key's digest, whatever is there.
    pub name: Digest,
}

impl Place {
    /// The place of `key` in `home`.
    pub fn new(home: &Home, key: Key, kind: RecordKind) -> Self {
        let digest = Digest::of(&home.tenant, key.as_bytes(), kind);
        let name = match kind {
            RecordKind::Directory => Digest::of(&home.tenant, key.as_bytes(), RecordKind::File),
            RecordKind::File | RecordKind::Symlink => digest,
        };
        Place { key, kind, digest, name }
    }

    /// Path below the epoch directory.
    pub fn path(&self) -> String {
        format!("{}/{}", layout::shard(self.digest), self.digest)
    }
}

/// What stands at a place.
#[derive(Debug)]
pub enum Found {
    /// The record of this key.
    Record(File, Attr, Record),
    /// Nothing.
    Absent,
    /// A sound record of another key whose digest is the same: this key is absent.
    OtherKey,
    /// Something that is no record; the reason.
    Invalid(&'static str),
}

/// Judges an open file: is it the record that its name says.
pub fn judge(file: File, home: &Home, digest: Digest) -> Result<(Found, Option<Key>)> {
    Ok(match judge_file(&file, &home.tenant, home.epoch, digest)? {
        Ok((attr, record, key)) => (Found::Record(file, attr, record), Some(key)),
        Err(why) => (Found::Invalid(why), None),
    })
}

/// The same of a file below a tenant's epoch directory: attributes, metadata and key, or why it is no record.
pub(super) fn judge_file(
    file: &File,
    tenant: &Tenant,
    epoch: Epoch,
    digest: Digest,
) -> Result<Result<(Attr, Record, Key), &'static str>> {
    let attr = os::stat(file)?;
    if !attr.is_file() {
        return Ok(Err("it is not a regular file"));
    }
    let packed = match os::xattr_get(file, record::XATTR, record::MAX_XATTR_BYTES + 64) {
        Ok(Some(packed)) => packed,
        Ok(None) => return Ok(Err("it has no record metadata")),
        Err(e) if e.kind() == Kind::Range => return Ok(Err("its record metadata is longer than any")),
        Err(e) => return Err(e),
    };
    let Ok(rec) = Record::decode(&packed) else {
        return Ok(Err("its record metadata cannot be read"));
    };
    if rec.tenant != *tenant {
        return Ok(Err("it belongs to another tenant"));
    }
    if rec.epoch != epoch {
        return Ok(Err("it was published under another epoch"));
    }
    if !rec.editing && rec.payload_bytes != attr.size_bytes {
        return Ok(Err("its length is not what was published"));
    }
    let Some(key) = rec.key_at(digest).cloned() else {
        return Ok(Err("its key does not belong to its name"));
    };
    Ok(Ok((attr, rec, key)))
}

impl Store {
    /// Opens and validates the record at a place.
    pub(super) fn open_record(&self, home: &Home, place: &Place, write: bool) -> Result<Found> {
        let file = match home.dir.open_file(place.path(), write) {
            Ok(Some(file)) => file,
            Ok(None) => return Ok(Found::Absent),
            Err(e) if is_obstacle(&e) => return Ok(Found::Invalid("it is not a regular file")),
            Err(e) => return Err(e),
        };
        let (found, key) = judge(file, home, place.digest)?;
        match (&found, key) {
            (Found::Record(_, _, rec), Some(key)) if key != place.key || rec.kind != place.kind => {
                Ok(Found::OtherKey)
            }
            _ => Ok(found),
        }
    }

    /// The shard directory of a digest.
    pub(super) fn shard(&self, home: &Home, digest: Digest) -> Result<Option<Dir>> {
        home.dir.open_dir_if_any(layout::shard(digest))
    }

    /// The shard directory of a digest, made where it is missing.
    pub(super) fn ensure_shard(&self, home: &Home, digest: Digest) -> Result<Dir> {
        let number = (digest.to_u128() >> 112) as u16;
        if let Some(dir) = self.shard(home, digest)?
            && (!self.durable() || home.durable_shards.lock().contains(&number))
        {
            return Ok(dir);
        }
        let (upper, lower) = layout::shard_levels(digest);
        let upper_dir = home.dir.ensure_dir(upper, 0o700)?;
        let dir = upper_dir.ensure_dir(lower, 0o700)?;
        if self.durable() {
            home.dir.sync()?;
            upper_dir.sync()?;
            home.durable_shards.lock().insert(number);
        }
        Ok(dir)
    }

    /// Writes a record's metadata.
    pub(super) fn write_record(&self, file: &File, rec: &Record) -> Result<()> {
        let packed = rec.encode()?;
        os::xattr_set(file, record::XATTR, &packed, XattrMode::Set)
    }

    /// Renames a file to the place of a key. What stands there although the key is not `known` is a record of another
    /// key with the same digest, whose node then goes, or nothing that is served: either gives way.
    pub(super) fn put_in_place(
        &self,
        from: &Dir,
        name: &str,
        (home, place, shard): (&Home, &Place, &Dir),
        known: bool,
    ) -> Result<()> {
        let canonical = place.digest.to_string();
        if !known {
            match from.rename(name, shard, &canonical, RenameHow::NoReplace) {
                Err(e) if e.kind() == Kind::Exists => self.displace(home, place, shard)?,
                Err(e) if e.kind() == Kind::NotFound => {}
                done => return done,
            }
        }
        match from.rename(name, shard, &canonical, RenameHow::Replace) {
            // The shard was empty, and was pruned to make room: it is made again.
            Err(e) if e.kind() == Kind::NotFound => {
                from.rename(name, &self.ensure_shard(home, place.digest)?, canonical, RenameHow::Replace)
            }
            done => done,
        }
    }

    fn displace(&self, home: &Home, place: &Place, shard: &Dir) -> Result<()> {
        let canonical = place.digest.to_string();
        if shard.stat(&canonical)?.is_some_and(|a| a.is_dir()) {
            // No rename replaces a directory by a file. It is kept, like anything that stands in a record's place.
            let name = format!("{}.{canonical}.{}", home.tenant, self.next_serial());
            log::warn!("a directory stood in the place of {}; moved to .quarantine/{name}", place.key);
            return shard.rename(&canonical, &self.quarantine_dir, name, RenameHow::NoReplace);
        }
        let Ok(Some(file)) = home.dir.open_file(place.path(), false) else { return Ok(()) };
        if let (Found::Record(_, _, record), Some(key)) = judge(file, home, place.digest)?
            && key != place.key
            && let Some(id) = self.find_key(&home.tenant, &key)?
            && self.index.lock().linked(id).is_ok_and(|n| n.kind == record.kind)
        {
            log::warn!(
                "the keys {key} and {} of tenant {} have one digest; the first is a miss now",
                place.key,
                home.tenant
            );
            self.forget_linked(id);
        }
        Ok(())
    }

    /// Removes the record at a place; a record of another key is left, an invalid one is quarantined.
    pub(super) fn delete_record(&self, home: &Home, place: &Place) -> Result<()> {
        match self.open_record(home, place, false)? {
            Found::Record(..) => {
                if let Some(shard) = self.shard(home, place.digest)? {
                    shard.unlink(place.digest.to_string())?;
                    if self.durable() {
                        shard.sync()?;
                    }
                }
                Ok(())
            }
            Found::Invalid(why) => self.quarantine(home, place.digest, why),
            Found::Absent | Found::OtherKey => Ok(()),
        }
    }

    /// Keeps an invalid record aside for inspection: never served, never counted.
    pub(super) fn quarantine(&self, home: &Home, digest: Digest, why: &str) -> Result<()> {
        let path = layout::canonical_path(&home.tenant, home.epoch, digest);
        let Some(shard) = self.shard(home, digest)? else { return Ok(()) };
        let Some(attr) = shard.stat(digest.to_string())? else { return Ok(()) };
        if !attr.is_file() {
            log::warn!("{path} is not a regular file; it is left where it is and not served");
            return Ok(());
        }
        let kept = self.quarantine_dir.entries()?.len();
        if kept >= crate::config::limits::QUARANTINED_RECORDS {
            shard.unlink(digest.to_string())?;
            log::warn!("{path}: {why}; removed, since .quarantine already holds {kept} records");
        } else {
            let n = self.next_serial();
            let name = format!("{}.{digest}.{n}", home.tenant);
            shard.rename(digest.to_string(), &self.quarantine_dir, &name, RenameHow::Replace)?;
            log::warn!("{path}: {why}; moved to data/{}/{name}", layout::QUARANTINE);
        }
        self.counters.quarantined.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Whether opening met a link, a foreign mount or a special file where a record should be.
pub(super) fn is_obstacle(e: &Error) -> bool {
    matches!(e.errno(), libc::ELOOP | libc::EXDEV | libc::ENXIO | libc::EISDIR | libc::ENOTDIR)
}

/// The error of a key that is not there (any more).
pub(super) fn absent(key: &Key) -> Error {
    Error::new(Kind::NotFound, format!("no such key: {key}"))
}
