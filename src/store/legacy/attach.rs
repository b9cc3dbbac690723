//! Attaching a Mooncake directory: taken exclusively, noted in the store, and walked at every start.
//!
//! What it holds is another source of recovery, behind the store's own records: a key that has a record there is not
//! served from here, and its file is retired before anything of the directory counts. Whatever fails ends the start,
//! with the path, and the next one does it all again.
//!
//! Nothing in the directory says which removals its files have lived through. So the store notes that it is attached,
//! and while a removal is pending that directory, no other and not none, is attached.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::Serialize;

use super::tenant_map::{TenantMap, TenantRule};
use super::tree::{Entry, Found, Layout, Rejected, Tree, Why};
use crate::config::AttachLegacy;
use crate::error::{Error, Kind, Result};
use crate::format::layout;
use crate::key::{Digest, Key, RecordKind, Tenant};
use crate::ledger::Pending;
use crate::os;
use crate::store::Store;
use crate::store::fill::{Batch, Seen};
use crate::store::index::Usage;
use crate::store::object::{Found as InStore, Place};
use crate::store::order_file::Turn;
use crate::store::root::{self, StoreRoot};
use crate::store::tenants::Home;
use crate::store::writer::Owner;

/// Rejected entries that a start names in the log, one a line.
const TOLD_REJECTED: u64 = 100;

/// A Mooncake directory that is served in place.
#[derive(Debug)]
pub(in crate::store) struct Attached {
    /// The directory. Its descriptor holds the flock.
    pub(super) tree: Tree,
    /// Entries that are no records that count, nor stand behind one.
    pub(super) rejected: AtomicU64,
    /// Files that should have been retired and are still there.
    pub(super) failed_retirements: AtomicU64,
    /// Values that were copied into records.
    pub(super) migrated: AtomicU64,
}

/// What the status says of an attached directory.
#[derive(Debug, Serialize)]
pub struct AttachedStatus {
    /// Where its records are.
    pub path: String,
    /// Values that are served from it.
    pub records: u64,
    /// What their files occupy.
    pub bytes: u64,
    /// Entries that are no records, or nobody's here: left alone, never served.
    pub rejected: u64,
    /// Keys that have files behind the record that counts.
    pub shadows: u64,
    /// What these occupy.
    pub shadow_bytes: u64,
    /// Values that were copied into records of the store since it was opened.
    pub migrated: u64,
    /// Failed attempts to unlink a file whose key has a newer record.
    pub failed_retirements: u64,
}

impl Attached {
    fn open(settings: &AttachLegacy, store: &Path) -> Result<Attached> {
        let rules =
            settings.tenants.iter().map(|word| TenantRule::parse(word)).collect::<Result<Vec<_>>>()?;
        let cannot = |e: Error| e.context(format!("cannot attach {}", settings.dir.display()));
        let tree = Tree::open(&settings.dir, &settings.fsdir, TenantMap::new(rules)?).map_err(cannot)?;
        let path = tree.path();
        let nested = if path.starts_with(store) {
            Some("it is inside the store")
        } else if store.starts_with(path) {
            Some("the store is inside it")
        } else {
            None
        };
        if let Some(why) = nested {
            return Err(cannot(Error::new(Kind::Invalid, format!("{why} (move one of the two)"))));
        }
        if !os::lock_exclusive(tree.fsdir()).map_err(cannot)? {
            return Err(Error::new(
                Kind::Locked,
                format!("cannot attach {}: another daemon has it (unmount that first)", path.display()),
            ));
        }
        Ok(Attached {
            tree,
            rejected: AtomicU64::new(0),
            failed_retirements: AtomicU64::new(0),
            migrated: AtomicU64::new(0),
        })
    }
}

/// Attaches what the settings name, if anything, and notes it in the store.
///
/// # Errors
/// [`Kind::Busy`] where removals are pending that are about another directory than this one.
pub(in crate::store) fn attach(
    root: &StoreRoot,
    settings: Option<&AttachLegacy>,
    pending: &[Pending],
) -> Result<Option<Attached>> {
    let attached = settings.map(|s| Attached::open(s, &root.path)).transpose()?;
    let noted = read_note(root)?;
    let note = attached.as_ref().zip(settings).map(|(a, s)| note_of(a.tree.path(), &s.tenants));
    if noted == note {
        return Ok(attached);
    }
    if !pending.is_empty() {
        let what = match &noted {
            Some(noted) => format!(
                "removals are pending that cover a legacy directory too: mount with it as before, {}, until they are \
                 complete",
                shown(noted)
            ),
            None => "removals are pending that are not about the legacy directory: mount without it until they are \
                     complete, then attach it"
                .to_owned(),
        };
        return Err(Error::new(Kind::Busy, what));
    }
    step!("attach.note");
    match note {
        Some(note) => root::write_root_file(&root.dir, layout::ATTACHED, &note)?,
        None => {
            root.dir.unlink(layout::ATTACHED)?;
            root.dir.sync()?;
        }
    }
    Ok(attached)
}

/// The path, and behind a NUL each the names of tenants there and here, in order: they say whose the files are.
fn note_of(path: &Path, tenants: &[OsString]) -> Vec<u8> {
    let mut words: Vec<&[u8]> = tenants.iter().map(|word| word.as_bytes()).collect();
    words.sort_unstable();
    words.dedup();
    words.insert(0, path.as_os_str().as_bytes());
    words.join(&0)
}

/// What a note says, as options.
fn shown(note: &[u8]) -> String {
    let mut words = note.split(|b| *b == 0).map(|word| word.escape_ascii());
    let path = words.next().map(|path| format!("--attach-legacy {path}")).unwrap_or_default();
    words.fold(path, |all, word| format!("{all} --map-tenant {word}"))
}

fn read_note(root: &StoreRoot) -> Result<Option<Vec<u8>>> {
    let Some(mut file) = root.dir.open_file(layout::ATTACHED, false)? else { return Ok(None) };
    let mut path = Vec::new();
    std::io::Read::read_to_end(&mut file, &mut path)
        .map_err(|e| Error::os(format!("cannot read {}", layout::ATTACHED), e))?;
    Ok(Some(path))
}

/// What a walk of the attached directory found, before anything of it counts.
#[derive(Default)]
pub(in crate::store) struct Scanned {
    batches: BTreeMap<Tenant, Batch>,
    /// Of tenants that are being removed: it gets no name.
    hidden: BTreeMap<u32, Usage>,
    /// Keys that have a record in the store.
    stale: BTreeSet<(Tenant, Key)>,
    /// Records behind another one of the directory.
    doubles: Vec<Found>,
}

impl Scanned {
    /// The source's part of the commit, and what is left to be counted after it.
    pub(in crate::store) fn take_batches(&mut self) -> Vec<Batch> {
        let mut batches: Vec<Batch> = std::mem::take(&mut self.batches).into_values().collect();
        batches.iter_mut().for_each(Batch::finish);
        batches
    }
}

struct Scan<'a> {
    store: &'a Store,
    attached: &'a Attached,
    turn: &'a (dyn Fn(Digest) -> Turn + Sync),
    found: Mutex<Scanned>,
}

impl Store {
    /// Whether a legacy directory is attached.
    pub fn has_attached(&self) -> bool {
        self.attached.is_some()
    }

    /// Walks the attached directory, behind the store's own walk, and retires what has a newer record.
    pub(in crate::store) fn scan_attached(
        &self,
        turn: &(dyn Fn(Digest) -> Turn + Sync),
        progress: &mut dyn FnMut(&str, u64),
    ) -> Result<Scanned> {
        let Some(attached) = &self.attached else { return Ok(Scanned::default()) };
        let scan = Scan { store: self, attached, turn, found: Mutex::default() };
        let count = &mut |n| progress("legacy records", n);
        attached.tree.walk(&self.walkers_at_start(), &|entry| scan.meet(entry), count)?;
        let mut found = scan.found.into_inner();
        for (tenant, key) in std::mem::take(&mut found.stale) {
            step!("attach.retire");
            self.unlink_attached(&tenant, &key)?;
        }
        self.retire_doubles(attached, &mut found)?;
        let rejected = attached.rejected.load(Ordering::Relaxed);
        if rejected > 0 {
            let at = attached.tree.path().display();
            log::warn!("{rejected} entries below {at} are no records, or nobody's here; they are left alone");
        }
        Ok(found)
    }

    /// Of two files of one storage key the canonical one counts, and the other is retired. What an older spelling of
    /// the key left is another record to Mooncake: it stays, counted, for as long as its key does.
    fn retire_doubles(&self, attached: &Attached, found: &mut Scanned) -> Result<()> {
        for double in std::mem::take(&mut found.doubles) {
            let canonical = double.layout == Layout::Legacy
                && attached.tree.open_record(Layout::Canonical, &double.storage_key)?.is_some();
            if canonical {
                step!("attach.retire");
                self.unlink_found(attached, &double)?;
            } else if attached.tree.open_record(double.layout, &double.storage_key)?.is_some() {
                found.doubles.push(double);
            }
        }
        Ok(())
    }

    /// Counts what the commit of the walk has given no node.
    pub(in crate::store) fn count_scanned(&self, found: Scanned) -> Result<()> {
        let Some(attached) = &self.attached else { return Ok(()) };
        for (number, usage) in found.hidden {
            self.index.lock().count_hidden(number, usage);
        }
        for double in found.doubles {
            let home = self.home(&double.tenant)?;
            let (bytes, mut index) = (double.attr.blocks * 512, self.index.lock());
            if home.fence.closed_towards().is_some() {
                index.count_hidden(home.number, Usage { bytes, keys: 0 });
            } else {
                index.add_shadow(home.number, double.key, bytes);
            }
        }
        let (inside, outside) = (self.data.attr()?.dev, attached.tree.fsdir().attr()?.dev);
        self.index.lock().outside.elsewhere = inside != outside;
        Ok(())
    }

    /// The home of a tenant that a legacy record names, made where it is missing: whoever may enter the directory may
    /// enter what it holds here.
    fn home_or_new(&self, attached: &Attached, tenant: &Tenant) -> Result<Arc<Home>> {
        match self.home(tenant) {
            Err(e) if e.kind() == Kind::UnknownTenant => {}
            known => return known,
        }
        let attr = attached.tree.fsdir().attr()?;
        let Owner { mode, uid, gid } = self.owner_here(&attr);
        match self.make_tenant(tenant.as_str().as_bytes(), mode, uid, gid) {
            // Another thread met one of its records.
            Err(e) if e.kind() == Kind::Exists => {}
            made => drop(made?),
        }
        self.home(tenant)
    }

    /// Whether the store has a sound record of a value.
    fn has_value(&self, home: &Home, key: &Key) -> Result<bool> {
        for kind in [RecordKind::File, RecordKind::Symlink] {
            let place = Place::new(home, key.clone(), kind);
            if matches!(self.open_record(home, &place, false)?, InStore::Record(..)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What the status says of the attached directory.
    pub(in crate::store) fn attached_status(&self) -> Option<AttachedStatus> {
        let attached = self.attached.as_ref()?;
        let index = self.index.lock();
        let (served, shadows) = (index.outside.served, index.outside.shadows());
        Some(AttachedStatus {
            path: attached.tree.path().display().to_string(),
            records: served.keys,
            bytes: served.bytes,
            rejected: attached.rejected.load(Ordering::Relaxed),
            shadows: shadows.keys,
            shadow_bytes: shadows.bytes,
            migrated: attached.migrated.load(Ordering::Relaxed),
            failed_retirements: attached.failed_retirements.load(Ordering::Relaxed),
        })
    }
}

impl Scan<'_> {
    fn meet(&self, entry: Entry) -> Result<()> {
        match entry {
            Entry::Record(found) => self.record(&found),
            Entry::Rejected(Rejected { path, why: Why::Shadow { .. } }) => {
                let double = self.attached.tree.record_at(&path)?;
                self.found.lock().doubles.extend(double);
                Ok(())
            }
            Entry::Rejected(Rejected { path, why }) => {
                if self.attached.rejected.fetch_add(1, Ordering::Relaxed) < TOLD_REJECTED {
                    log::warn!("{} is left alone: {why}", self.attached.tree.shown(&path));
                }
                Ok(())
            }
        }
    }

    fn record(&self, found: &Found) -> Result<()> {
        step!("attach.record");
        let home = self.store.home_or_new(self.attached, &found.tenant)?;
        if home.fence.closed_towards().is_some() {
            let mut scanned = self.found.lock();
            let hidden = scanned.hidden.entry(home.number).or_default();
            *hidden = Usage { bytes: hidden.bytes + found.attr.blocks * 512, keys: hidden.keys + 1 };
            return Ok(());
        }
        if self.store.has_value(&home, &found.key)? {
            self.found.lock().stale.insert((found.tenant.clone(), found.key.clone()));
            return Ok(());
        }
        let digest = Digest::of(&home.tenant, found.key.as_bytes(), RecordKind::File);
        let seen = Seen {
            key: &found.key,
            kind: RecordKind::File,
            pinned: false,
            unverified: false,
            attached: true,
            attr: &found.attr,
            turn: (self.turn)(digest),
        };
        let mut scanned = self.found.lock();
        let batch = scanned.batches.entry(found.tenant.clone()).or_insert_with(|| Batch::new(&home));
        batch.push(&seen)
    }
}
