//! Migration: before anything of an attached value changes, it is copied into a record of the store.
//!
//! | step | what | when it fails, or the process dies |
//! |---|---|---|
//! | `migrate.stage` | copy value, owner, mode, times and attributes into staging | the legacy file counts; staging is emptied |
//! | `migrate.reserve` | reserve the whole size beside the old one | the same: without room the change fails |
//! | `migrate.rename` | rename into the shard, under the key's lock | the same |
//! | `migrate.renamed` | the record is what the index serves; both copies are counted | the record counts |
//! | `retire.unlink` | unlink the validated legacy file | the record counts; the file stays counted, and is retried |
//! | `retire.unlinked` | it is not counted any more | the record counts |
//!
//! The key keeps its place in the eviction order, and neither copy is evicted meanwhile.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::attach::Attached;
use super::copy::copy_span;
use super::tree::Found;
use crate::error::{Error, Kind, Result};
use crate::format::record::{self, Record};
use crate::key::RecordKind;
use crate::os::{self, SetTime, XattrMode};
use crate::store::Store;
use crate::store::content;
use crate::store::index::NodeId;
use crate::store::object::Place;
use crate::store::room::Needs;
use crate::store::tenants::Home;

/// How often a migration that was overtaken begins anew.
const TRIES: u32 = 16;

impl Store {
    /// Gives an attached value a record of its own. Nothing to do for one that has it, or is gone.
    pub fn migrate(&self, id: NodeId) -> Result<()> {
        for _ in 0..TRIES {
            let Some(attached) = self.attached.as_ref().filter(|_| self.is_attached(id)) else {
                return Ok(());
            };
            if self.migrate_once(attached, id)? {
                return Ok(());
            }
        }
        Err(Error::new(Kind::Busy, "the legacy record changes faster than it can be copied"))
    }

    /// One attempt; false where somebody was faster.
    fn migrate_once(&self, attached: &Attached, id: NodeId) -> Result<bool> {
        let Ok((home, place)) = self.place_of(id) else { return Ok(true) };
        let _lease = home.fence.enter(home.epoch)?;
        let _transaction = self.transaction(Some(id));
        let Some((source, found)) = attached.tree.find(&home.tenant, &place.key)? else {
            // Whoever opens it next finds out that it is gone.
            return Ok(true);
        };
        let name = format!("{}.{}", place.digest, self.next_serial());
        step!("migrate.stage");
        let staged = self.with_room(|| self.staging.create_file(&name, 0o600))?;
        let done = self.migrate_staged(attached, (&source, &found), (&staged, &name), (id, &home, &place));
        if !matches!(done, Ok(true)) {
            // After the rename it has that name no more.
            self.staging.unlink(&name)?;
        }
        done
    }

    fn migrate_staged(
        &self,
        attached: &Attached,
        (source, found): (&File, &Found),
        (staged, name): (&File, &str),
        (id, home, place): (NodeId, &Arc<Home>, &Place),
    ) -> Result<bool> {
        let passing = content::passing(self);
        let copy = || {
            // Not the first attempt, maybe.
            os::truncate(staged, 0)?;
            if let Some(passing) = &passing {
                passing.cut(0);
            }
            copy_span(source, found.value, staged, passing.as_deref())
        };
        if !self.with_room(copy)? {
            return Err(Error::new(Kind::Corrupt, "the legacy record was cut while it was copied"));
        }
        let record = Record {
            kind: RecordKind::File,
            editing: false,
            pinned: false,
            epoch: home.epoch,
            payload_bytes: found.value.bytes,
            checksum: passing.and_then(|p| p.sum(found.value.bytes)),
            tenant: home.tenant.clone(),
            key: place.key.clone(),
            origin: None,
        };
        self.with_room(|| self.write_record(staged, &record))?;
        copy_attributes(source, found, staged)?;
        let shard = self.with_room(|| self.ensure_shard(home, place.digest))?;
        step!("migrate.reserve");
        let needs = Needs { bytes: os::stat(staged)?.allocated_bytes(), key: false };
        self.keep_free(needs.bytes)?;
        let _reservation = self.reserve(home, needs, Some(id))?;
        if self.durable() {
            os::sync_file(staged)?;
        }
        let Some((_, now, _key)) = self.lock_place(id) else { return Ok(false) };
        let unchanged = self.is_attached(id) && now.digest == place.digest && {
            let again = attached.tree.find(&home.tenant, &place.key)?;
            again.is_some_and(|(_, again)| is_same(&again, found))
        };
        if !unchanged {
            return Ok(false);
        }
        step!("migrate.rename");
        self.put_in_place(&self.staging, name, (home, place, &shard), false)?;
        let blocks = os::stat(staged)?.blocks;
        {
            let mut index = self.index.lock();
            index.leave_shadow(id)?;
            index.set_blocks(id, blocks)?;
        }
        attached.migrated.fetch_add(1, Ordering::Relaxed);
        step!("migrate.renamed");
        if self.durable() {
            // The older copy goes when this one can outlast a loss of power.
            shard.sync()?;
        }
        self.retire(home, &place.key);
        Ok(true)
    }
}

fn is_same(a: &Found, b: &Found) -> bool {
    let of = |f: &Found| (f.attr.dev, f.attr.ino, f.attr.size_bytes, f.attr.mtime, f.value);
    of(a) == of(b)
}

fn copy_attributes(source: &File, found: &Found, staged: &File) -> Result<()> {
    for name in os::xattr_list(source)?.iter().filter(|n| n.starts_with("user.") && *n != record::XATTR) {
        if let Some(value) = os::xattr_get(source, name, 64 * 1024)? {
            os::xattr_set(staged, name, &value, XattrMode::Set)?;
        }
    }
    let attr = &found.attr;
    os::chown(staged, Some(attr.uid), Some(attr.gid))?;
    os::chmod(staged, attr.mode)?;
    os::set_times(staged, SetTime::At(attr.atime), SetTime::At(attr.mtime))
}
