//! Proof of ownership: a path belongs to a tenant when it is a record below that tenant's directory, named by the
//! digest of the key that it embeds, and embeds that tenant. Nothing else is ever deleted by a removal.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::Store;
use super::object::is_obstacle;
use super::walkers::{Walker, Walkers};
use crate::config::limits;
use crate::error::{Error, Kind, Result};
use crate::format::{layout, record, record::Record};
use crate::key::{Digest, RecordKind, Tenant};
use crate::os::{self, Dir, DirEntry, EntryType};
use crate::scope::Scope;

/// What is done with what a walk meets. Called from several threads.
pub(super) trait Visitor: Sync {
    /// A regular file with the name of a record here, before anybody has looked into it. Whether it is dealt with.
    fn named(&self, _shard: &Dir, _digest: Digest, _entry: &DirEntry) -> Result<bool> {
        Ok(false)
    }
    /// A record that is proven to be the tenant's.
    fn record(&self, shard: &Dir, entry: &DirEntry, file: &File, kind: RecordKind) -> Result<()>;
    /// Anything else; `at` says where for people, `why` what is wrong with it.
    fn stranger(&self, dir: &Dir, name: &[u8], at: &str, why: &str) -> Result<()>;
    /// A shard level whose entries have all been visited.
    fn walked(&self, above: &Dir, name: &[u8]) -> Result<()>;
}

/// An epoch directory of a tenant, wherever it stands.
pub(super) struct EpochDir<'a> {
    pub(super) dir: &'a Dir,
    pub(super) tenant: &'a Tenant,
    /// Its path below the store, for people.
    pub(super) shown: &'a str,
}

impl EpochDir<'_> {
    /// Walks the directory. What fails does not keep the others from being visited; the first error is returned. Ends
    /// early, with [`Kind::Busy`], once the walkers are told to stop.
    pub(super) fn walk(&self, walkers: &Walkers<'_>, visitor: &impl Visitor) -> Result<()> {
        let uppers = self.dir.entries_once()?;
        let next = AtomicUsize::new(0);
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        walkers.run(|walker| {
            loop {
                walker.make_way(|| next.load(Ordering::Relaxed) >= uppers.len());
                let Some(entry) = uppers.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                if let Err(e) = self.upper(entry, walker, visitor) {
                    failed.lock().get_or_insert(e);
                }
            }
        });
        failed.into_inner().map_or(Ok(()), Err)
    }

    fn upper(&self, entry: &DirEntry, walker: &Walker<'_>, visitor: &impl Visitor) -> Result<()> {
        let name = entry.name.as_slice();
        if entry.kind != EntryType::Dir || !layout::is_shard_level(name) {
            return visitor.stranger(self.dir, name, self.shown, "it is no shard directory");
        }
        let Some(upper) = self.open_level(self.dir, name, self.shown)? else { return Ok(()) };
        let at = format!("{}/{}", self.shown, name.escape_ascii());
        let mut failed = None;
        for entry in upper.entries_once()? {
            walker.go_on()?;
            let done = if entry.kind == EntryType::Dir && layout::is_shard_level(&entry.name) {
                self.lower(&upper, [name, &entry.name], &at, walker, visitor)
            } else {
                visitor.stranger(&upper, &entry.name, &at, "it is no shard directory")
            };
            failed = failed.or(done.err());
        }
        match failed {
            None => visitor.walked(self.dir, name),
            Some(e) => Err(e),
        }
    }

    fn lower(
        &self,
        upper: &Dir,
        shard: [&[u8]; 2],
        at: &str,
        walker: &Walker<'_>,
        visitor: &impl Visitor,
    ) -> Result<()> {
        let Some(dir) = self.open_level(upper, shard[1], at)? else { return Ok(()) };
        let at = format!("{at}/{}", shard[1].escape_ascii());
        let shard_name = &at[at.len() - 5..];
        let mut failed = None;
        for entry in dir.entries_once()? {
            walker.go_on()?;
            let named = |e: Error| e.context(format!("{at}/{}", entry.name.escape_ascii()));
            let done = match self.judge(&dir, &entry, shard_name, visitor) {
                Ok(Verdict::Proven(file, kind)) => visitor.record(&dir, &entry, &file, kind).map_err(named),
                // Says where by itself.
                Ok(Verdict::Stranger(why)) => visitor.stranger(&dir, &entry.name, &at, why),
                Ok(Verdict::Done) => Ok(()),
                Err(e) => Err(named(e)),
            };
            failed = failed.or(done.err());
        }
        match failed {
            None => visitor.walked(upper, shard[1]),
            Some(e) => Err(e),
        }
    }

    /// Opens a level; `None` when it vanished (an empty shard was pruned). Another mount there is an error.
    fn open_level(&self, above: &Dir, name: &[u8], at: &str) -> Result<Option<Dir>> {
        above.open_dir_if_any(name).map_err(|e| e.context(format!("{at}/{}", name.escape_ascii())))
    }

    fn judge(&self, dir: &Dir, entry: &DirEntry, shard: &str, visitor: &impl Visitor) -> Result<Verdict> {
        let name = entry.name.as_slice();
        let Some(digest) = Digest::parse(name).filter(|d| layout::shard(*d) == shard) else {
            return Ok(Verdict::Stranger("its name is no record's here"));
        };
        if entry.kind != EntryType::File {
            return Ok(Verdict::Stranger("it is not a regular file"));
        }
        if visitor.named(dir, digest, entry)? {
            return Ok(Verdict::Done);
        }
        let file = match dir.open_file(name, false) {
            Ok(Some(file)) => file,
            Ok(None) => return Ok(Verdict::Done),
            Err(e) if is_obstacle(&e) => return Ok(Verdict::Stranger("it is not a regular file")),
            Err(e) => return Err(e),
        };
        let packed = match os::xattr_get(&file, record::XATTR, record::MAX_XATTR_BYTES + 64) {
            Ok(Some(packed)) => packed,
            Ok(None) => return Ok(Verdict::Stranger("it has no record metadata")),
            Err(e) if e.kind() == Kind::Range => {
                return Ok(Verdict::Stranger("its record metadata is longer than any"));
            }
            Err(e) => return Err(e),
        };
        Ok(match Record::decode(&packed) {
            Err(_) => Verdict::Stranger("its record metadata cannot be read"),
            Ok(record) if record.tenant != *self.tenant => Verdict::Stranger("it belongs to another tenant"),
            Ok(record) if record.key_at(digest).is_none() => {
                Verdict::Stranger("its key does not belong to its name")
            }
            Ok(record) => Verdict::Proven(file, record.kind),
        })
    }
}

enum Verdict {
    Proven(File, RecordKind),
    Stranger(&'static str),
    Done,
}

/// Refuses the first stranger, and remembers what it has looked into.
struct MustBeProven<'a> {
    tenant: &'a Tenant,
    proven: Mutex<Vec<(u128, u64)>>,
}

impl Visitor for MustBeProven<'_> {
    fn record(&self, _: &Dir, entry: &DirEntry, _: &File, _: RecordKind) -> Result<()> {
        let mut proven = self.proven.lock();
        if proven.len() < limits::PROVEN_RECORDS
            && let Some(digest) = Digest::parse(&entry.name)
        {
            proven.push((digest.to_u128(), entry.inode));
        }
        Ok(())
    }

    fn stranger(&self, _: &Dir, name: &[u8], at: &str, why: &str) -> Result<()> {
        Err(unproven(self.tenant, &format!("{at}/{}", name.escape_ascii()), why))
    }

    fn walked(&self, _: &Dir, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// The records that the last proof of a tenant has looked into: file by file, so that their removal need not look again.
#[derive(Debug, Default)]
pub(super) struct Proven {
    tenant: Option<Tenant>,
    /// Digest and inode, sorted.
    records: Vec<(u128, u64)>,
}

impl Proven {
    /// Whether that very file was looked into.
    pub(super) fn includes(&self, tenant: &Tenant, digest: Digest, inode: u64) -> bool {
        self.tenant.as_ref() == Some(tenant) && self.records.binary_search(&(digest.to_u128(), inode)).is_ok()
    }
}

fn unproven(tenant: &Tenant, path: &str, why: &str) -> Error {
    Error::new(
        Kind::UnprovenOwnership,
        format!(
            "{path} is not proven to belong to tenant {tenant} ({why}); nothing was removed: take it out of the store \
             (what is mounted there: umount) and try again, or hide the tenant's keys instead: --logical, in the control \
             file mode=logical"
        ),
    )
}

impl Store {
    /// Proves that everything below a tenant's directory is that tenant's, or says what is not. A global scope needs
    /// no such proof: it never takes what is not a record either.
    ///
    /// # Errors
    /// [`Kind::UnprovenOwnership`], with the path; [`Kind::UnknownTenant`].
    pub fn prove_ownership(&self, scope: &Scope) -> Result<()> {
        let Some(tenant) = scope.tenant() else { return Ok(()) };
        self.home(tenant)?;
        let shown = format!("{}/{}/{tenant}", layout::DATA, layout::TENANTS);
        // Somebody took it away: nothing is in it.
        let Some(top) = self.tenants_dir.open_dir_if_any(tenant.as_str())? else { return Ok(()) };
        let proof = MustBeProven { tenant, proven: Mutex::default() };
        for entry in top.entries()? {
            let at = format!("{shown}/{}", entry.name.escape_ascii());
            if entry.kind != EntryType::Dir || layout::parse_epoch(&entry.name).is_none() {
                return Err(unproven(tenant, &at, "it is no epoch directory"));
            }
            let dir = match top.open_dir_if_any(&entry.name) {
                Ok(Some(dir)) => dir,
                Ok(None) => continue,
                Err(e) if is_obstacle(&e) => return Err(unproven(tenant, &at, "it is another filesystem")),
                Err(e) => return Err(e),
            };
            let epoch = EpochDir { dir: &dir, tenant, shown: &at };
            // It reads only, and gives the processor away: no reason to make way by more than that.
            match epoch.walk(&self.walkers().undisturbed(), &proof) {
                Err(e) if is_obstacle(&e) => return Err(unproven(tenant, &at, &e.to_string())),
                done => done?,
            }
        }
        let mut records = proof.proven.into_inner();
        records.sort_unstable();
        *self.proven.lock() = Arc::new(Proven { tenant: Some(tenant.clone()), records });
        self.prove_attached(tenant)
    }
}
