//! The trash: epoch directories that a removal has taken from their tenants, as `.trash/<generation>/<tenant>@<epoch>.<n>`.
//! What is in it is nobody's any more; it is deleted record by record, each proven to be the tenant's. Strangers in it
//! are kept in `.quarantine`.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Store;
use super::index::Usage;
use super::proof::{EpochDir, Proven, Visitor};
use super::tenants::Home;
use crate::config::limits;
use crate::error::{Error, Kind, Result};
use crate::format::layout;
use crate::key::{Digest, Epoch, RecordKind, Tenant};
use crate::os::{self, Dir, DirEntry, EntryType, RenameHow};
use crate::scope::{Generation, Scope};

/// An epoch directory in the trash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trashed {
    /// The removal that took it.
    pub(super) generation: Generation,
    pub(super) tenant: Tenant,
    pub(super) epoch: Epoch,
    pub(super) name: String,
}

impl Trashed {
    fn parse(generation: Generation, name: &[u8]) -> Option<Trashed> {
        let name = std::str::from_utf8(name).ok()?;
        let (tenant, rest) = name.split_once('@')?;
        let (epoch, serial) = rest.split_once('.')?;
        serial.parse::<u64>().ok()?;
        Some(Trashed {
            generation,
            tenant: Tenant::new(tenant.as_bytes()).ok()?,
            epoch: layout::parse_epoch(epoch.as_bytes())?,
            name: name.to_owned(),
        })
    }

    /// Its path below the store.
    pub(super) fn shown(&self) -> String {
        format!("{}/{}/{}/{}", layout::DATA, layout::TRASH, self.generation, self.name)
    }
}

/// All that is in the trash; `stranger` is told what else is there.
pub(super) fn list(trash: &Dir, stranger: &mut dyn FnMut(String)) -> Result<Vec<Trashed>> {
    let shown = format!("{}/{}", layout::DATA, layout::TRASH);
    let mut found = Vec::new();
    for entry in trash.entries()? {
        let generation = layout::parse_epoch(&entry.name).filter(|_| entry.kind == EntryType::Dir);
        let Some(generation) = generation.map(|e| Generation(e.0)) else {
            stranger(format!("{shown}/{}", entry.name.escape_ascii()));
            continue;
        };
        let Some(dir) = trash.open_dir_if_any(&entry.name)? else { continue };
        for entry in dir.entries()? {
            match Trashed::parse(generation, &entry.name) {
                Some(trashed) if entry.kind == EntryType::Dir => found.push(trashed),
                _ => stranger(format!("{shown}/{generation}/{}", entry.name.escape_ascii())),
            }
        }
    }
    Ok(found)
}

/// Renames the emptied directory `dir`, which is `name` of `above`, to an epoch's; where that is there, removes it.
fn turn((above, name): (&Dir, &str), dir: &Dir, top: &Dir, next: Epoch) -> Result<()> {
    if !dir.entries()?.is_empty() {
        return Err(Error::new(Kind::NotEmpty, "something came into it during its removal"));
    }
    match above.rename(name, top, next.to_string(), RenameHow::NoReplace) {
        Err(e) if e.kind() == Kind::Exists => above.rmdir(name).map(drop),
        done => done,
    }
}

/// Deletes what is proven, keeps what is not.
struct Delete<'a> {
    store: &'a Store,
    tenant: &'a Tenant,
    proven: Arc<Proven>,
    deleted: &'a AtomicU64,
}

impl Delete<'_> {
    fn unlink(&self, shard: &Dir, name: &[u8]) -> Result<()> {
        step!("removal.delete");
        if shard.unlink(name)? {
            self.deleted.fetch_add(1, Ordering::Relaxed);
            self.store.counters.removed_records.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Visitor for Delete<'_> {
    fn named(&self, shard: &Dir, digest: Digest, entry: &DirEntry) -> Result<bool> {
        let proven = self.proven.includes(self.tenant, digest, entry.inode);
        if proven {
            self.unlink(shard, &entry.name)?;
        }
        Ok(proven)
    }

    fn record(&self, shard: &Dir, entry: &DirEntry, _: &File, _: RecordKind) -> Result<()> {
        self.unlink(shard, &entry.name)
    }

    fn stranger(&self, dir: &Dir, name: &[u8], at: &str, why: &str) -> Result<()> {
        self.store.keep_stranger(self.tenant, dir, name, at, why)
    }

    fn walked(&self, above: &Dir, name: &[u8]) -> Result<()> {
        above.rmdir(name).map(drop)
    }
}

/// Counts what is proven: it occupies the disk until it is deleted.
#[derive(Default)]
struct Count {
    bytes: AtomicU64,
    keys: AtomicU64,
}

impl Visitor for Count {
    fn record(&self, _: &Dir, _: &DirEntry, file: &File, kind: RecordKind) -> Result<()> {
        self.bytes.fetch_add(os::stat(file)?.blocks * 512, Ordering::Relaxed);
        self.keys.fetch_add(u64::from(kind != RecordKind::Directory), Ordering::Relaxed);
        Ok(())
    }

    fn stranger(&self, _: &Dir, _: &[u8], _: &str, _: &str) -> Result<()> {
        Ok(())
    }

    fn walked(&self, _: &Dir, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

impl Store {
    /// Counts what removals have yet to delete, those that are pending at the start and logical ones. None of it gets a
    /// name again.
    pub(super) fn count_removed(&self) -> Result<()> {
        let homes: Vec<Arc<Home>> = self.index.lock().tenants.iter().map(|t| Arc::clone(&t.home)).collect();
        let mut trash = self.list_trash()?;
        for home in homes.into_iter().filter(|home| home.fence.closed_towards().is_some()) {
            let count = Count::default();
            for entry in home.top.entries()? {
                if layout::parse_epoch(&entry.name).is_some_and(|epoch| epoch < home.epoch)
                    && let Some(dir) = home.top.open_dir_if_any(&entry.name)?
                {
                    let shown = home.tenant.as_str();
                    EpochDir { dir: &dir, tenant: &home.tenant, shown }.walk(&self.walkers(), &count)?;
                }
            }
            let is_its = |t: &mut Trashed| t.tenant == home.tenant && t.epoch < home.epoch;
            trash.extract_if(.., is_its).try_for_each(|trashed| self.count_trashed(&trashed, &count))?;
            let hidden = Usage { bytes: count.bytes.into_inner(), keys: count.keys.into_inner() };
            self.index.lock().count_hidden(home.number, hidden);
        }
        let count = Count::default();
        trash.iter().try_for_each(|trashed| self.count_trashed(trashed, &count))?;
        self.index.lock().count_trash(count.bytes.into_inner());
        Ok(())
    }

    fn count_trashed(&self, trashed: &Trashed, count: &Count) -> Result<()> {
        let Some((_, dir)) = self.open_trashed(trashed)? else { return Ok(()) };
        let shown = trashed.shown();
        EpochDir { dir: &dir, tenant: &trashed.tenant, shown: &shown }.walk(&self.walkers(), count)
    }

    /// An epoch directory of the trash behind the directory that it is in; `None` where somebody has emptied it.
    fn open_trashed(&self, trashed: &Trashed) -> Result<Option<(Dir, Dir)>> {
        let Some(above) = self.trash.open_dir_if_any(trashed.generation.to_string())? else {
            return Ok(None);
        };
        Ok(above.open_dir_if_any(&trashed.name)?.map(|dir| (above, dir)))
    }

    /// Takes an epoch directory from a tenant. Afterwards no path leads to it.
    ///
    /// The trash may need a block for its directory, and a removal is what people ask for when there is none: then the
    /// records are deleted where they stand, which needs nothing. Their scope is closed, drained and hidden as it is.
    pub(super) fn take_epoch(
        &self,
        top: &Dir,
        tenant: &Tenant,
        epoch: Epoch,
        generation: Generation,
        deleted: &AtomicU64,
    ) -> Result<()> {
        if !self.disk_is_full() {
            match self.move_to_trash(top, tenant, epoch, generation) {
                Err(e) if e.is_full_disk() => log::info!("the trash has no room: {e}"),
                done => return done,
            }
        }
        self.turn_epoch(top, tenant, epoch, generation.into(), deleted)
    }

    /// Deletes what is in an epoch directory of a closed tenant and makes it the one of the next epoch, for which a full
    /// disk may have no block: not even the one that this directory would give back.
    pub(super) fn turn_epoch(
        &self,
        top: &Dir,
        tenant: &Tenant,
        epoch: Epoch,
        next: Epoch,
        deleted: &AtomicU64,
    ) -> Result<()> {
        let shown = format!("{}/{}/{tenant}/{epoch}", layout::DATA, layout::TENANTS);
        let Some(dir) = top.open_dir_if_any(epoch.to_string())? else { return Ok(()) };
        log::info!("{shown} is deleted where it is: the disk is full");
        self.delete_within(&dir, tenant, &shown, deleted)?;
        turn((top, &epoch.to_string()), &dir, top, next).map_err(|e| e.context(&shown))
    }

    /// The same with what a closed tenant has in the trash, from before the disk was full.
    pub(super) fn turn_trashed(
        &self,
        top: &Dir,
        tenant: &Tenant,
        next: Epoch,
        deleted: &AtomicU64,
    ) -> Result<()> {
        let mut trash = self.list_trash()?;
        trash.retain(|t| t.tenant == *tenant && t.epoch < next);
        for trashed in trash {
            let Some((above, dir)) = self.open_trashed(&trashed)? else { continue };
            let shown = trashed.shown();
            self.delete_within(&dir, tenant, &shown, deleted)?;
            turn((&above, &trashed.name), &dir, top, next).map_err(|e| e.context(&shown))?;
        }
        self.drop_empty_generations();
        Ok(())
    }

    fn move_to_trash(&self, top: &Dir, tenant: &Tenant, epoch: Epoch, generation: Generation) -> Result<()> {
        step!("removal.trash");
        let name = format!("{tenant}@{epoch}.{}", self.next_serial());
        let moved = || {
            let into = self.trash.ensure_dir(generation.to_string(), 0o700)?;
            top.rename(epoch.to_string(), &into, &name, RenameHow::NoReplace)
        };
        let done = match moved() {
            // Somebody who emptied the generation's directory removed it meanwhile.
            Err(e) if e.kind() == Kind::NotFound => moved(),
            done => done,
        };
        done.map_err(|e| {
            // Not left behind empty by an attempt that got no further.
            drop(self.trash.rmdir(generation.to_string()));
            let busy = if e.errno() == libc::EBUSY { " (something is mounted there: umount it)" } else { "" };
            e.context(format!("{}/{}/{tenant}/{epoch}{busy}", layout::DATA, layout::TENANTS))
        })
    }

    /// What is in the trash of a scope and older than `generation`.
    pub(super) fn trash_of(&self, scope: &Scope, generation: Generation) -> Result<Vec<Trashed>> {
        let mut trash = self.list_trash()?;
        trash.retain(|t| scope.includes_tenant(&t.tenant) && t.epoch < generation.into());
        Ok(trash)
    }

    pub(super) fn list_trash(&self) -> Result<Vec<Trashed>> {
        list(&self.trash, &mut |path| log::warn!("{path} is no removal's; it is left where it is"))
    }

    /// Deletes one epoch directory of the trash, and its generation's where that is the last. May be repeated.
    pub(super) fn delete_trashed(&self, trashed: &Trashed, deleted: &AtomicU64) -> Result<()> {
        let Some((above, dir)) = self.open_trashed(trashed)? else { return Ok(()) };
        let shown = trashed.shown();
        self.delete_within(&dir, &trashed.tenant, &shown, deleted)?;
        above.rmdir(&trashed.name).map_err(|e| e.context(&shown))?;
        // Another tenant's directory, or a stranger, may be there still.
        match self.trash.rmdir(trashed.generation.to_string()) {
            Err(e) if e.kind() != Kind::NotEmpty => Err(e),
            _ => Ok(()),
        }
    }

    /// Deletes what is proven in an epoch directory, wherever it stands, and sets strangers aside.
    fn delete_within(&self, dir: &Dir, tenant: &Tenant, shown: &str, deleted: &AtomicU64) -> Result<()> {
        let proven = Arc::clone(&self.proven.lock());
        let delete = Delete { store: self, tenant, proven, deleted };
        EpochDir { dir, tenant, shown }.walk(&self.walkers(), &delete)
    }

    /// Directories of generations that attempts have left behind without anything in them.
    pub(super) fn drop_empty_generations(&self) {
        for entry in self.trash.entries().unwrap_or_default() {
            if layout::parse_epoch(&entry.name).is_some() {
                // One that is not empty stays.
                drop(self.trash.rmdir(&entry.name));
            }
        }
    }

    /// Keeps something aside that stands in a removal's way and is nobody's record.
    pub(super) fn keep_stranger(
        &self,
        tenant: &Tenant,
        dir: &Dir,
        name: &[u8],
        at: &str,
        why: &str,
    ) -> Result<()> {
        let path = format!("{at}/{}", name.escape_ascii());
        if self.quarantine_dir.entries()?.len() >= limits::QUARANTINED_RECORDS {
            return Err(Error::new(
                Kind::NotEmpty,
                format!(
                    "{path} is no record of tenant {tenant} ({why}), and data/.quarantine is full: empty it"
                ),
            ));
        }
        step!("removal.stranger");
        let kept = format!("{tenant}.stranger.{}", self.next_serial());
        match dir.rename(name, &self.quarantine_dir, &kept, RenameHow::NoReplace) {
            Err(e) if e.kind() == Kind::NotFound => return Ok(()),
            done => done.map_err(|e| e.context(&path))?,
        }
        log::warn!(
            "{path} is no record of tenant {tenant} ({why}); moved to data/{}/{kept}",
            layout::QUARANTINE
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_the_trash_have_one_spelling() {
        let trashed = Trashed::parse(Generation(7), b"a.b@3.12").unwrap();
        assert_eq!((trashed.tenant.as_str(), trashed.epoch), ("a.b", Epoch(3)));
        assert_eq!(trashed.shown(), "data/.trash/7/a.b@3.12");
        for bad in ["a", "a@3", "@3.1", "a@.1", "a@03.1", "a@3.x", ".a@3.1", "a@3.1.2"] {
            assert_eq!(Trashed::parse(Generation(7), bad.as_bytes()), None, "{bad}");
        }
    }
}
