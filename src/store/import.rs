//! Copying the values of a Mooncake directory into a store.
//!
//! Steps: judge every entry of the directory; see whether what is missing fits; make tenants and directories; copy each
//! value through the store's own staging and publication; make all of it durable, once. The directory is only read,
//! nothing is evicted, and what the store has of a key is compared byte by byte before it counts as there. So whatever
//! ends an import, the next one does the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::fill::implied_dir;
use super::index::{Index, NodeId, Usage};
use super::legacy::{Entry, Found, Layout, Tree, Why, copy_span};
use super::walkers::Walkers;
use super::writer::Owner;
use super::{Store, jobs};
use crate::config::limits;
use crate::error::{Error, Kind, Result};
use crate::format::legacy::{Span, StorageKey};
use crate::key::{Key, RecordKind, Tenant};
use crate::os::{self, Attr, SetTime, Timespec};

/// What the smallest record allocates, as far as room is foreseen.
const BLOCK_BYTES: u64 = 4096;

/// What to do besides copying.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// A key that has another content in the store gets the directory's.
    pub replace: bool,
}

/// Why an entry of the directory was not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// It is no record that counts.
    Rejected(Why),
    /// The store has another content for its key, which was kept.
    Differs,
    /// It changed, or went away, while it was read.
    Changed,
}

impl What {
    /// A word for it, as listings spell it.
    pub fn as_str(&self) -> &'static str {
        match self {
            What::Rejected(why) => why.as_str(),
            What::Differs => "differs",
            What::Changed => "changed",
        }
    }

    /// Whether the directory holds a whole value that the store does not, or may do so.
    pub fn leaves_a_value(&self) -> bool {
        matches!(self, What::Rejected(Why::Unowned(_) | Why::Mount) | What::Differs | What::Changed)
    }
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            What::Rejected(why) => why.fmt(f),
            What::Differs => f.write_str("the store has another content for its key, and keeps it"),
            What::Changed => f.write_str("it changed while it was read"),
        }
    }
}

/// An entry that was not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its path below the fsdir.
    pub path: Box<[u8]>,
    /// Whose value it is.
    pub owner: Option<(Tenant, Key)>,
    /// Why.
    pub what: What,
}

/// What an import did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Values that were copied.
    pub imported: u64,
    /// Their bytes.
    pub imported_bytes: u64,
    /// Those of them that took the place of another content.
    pub replaced: u64,
    /// Values that were there already, byte by byte.
    pub already_there: u64,
    /// Entries that were not copied, by path.
    pub findings: Vec<Finding>,
}

impl Summary {
    /// Findings of a key that has another content in the store.
    pub fn differing(&self) -> usize {
        self.findings.iter().filter(|f| f.what == What::Differs).count()
    }
}

/// Told of a phase, how far it is, and how far it goes where that is known.
pub type Progress<'a> = &'a mut dyn FnMut(&str, u64, Option<u64>);

/// Copies what counts in `tree` into `store`, durably.
///
/// # Errors
/// [`Kind::NoSpace`], [`Kind::TenantQuota`] where it does not fit beside what is there; [`Kind::Busy`] while a tenant of
/// it is being removed; what the disk says, with the path. What was copied by then stays.
pub fn import(store: &Arc<Store>, tree: &Tree, options: Options, progress: Progress<'_>) -> Result<Summary> {
    let import = Import { store, tree, options, findings: Mutex::default(), counts: Counts::default() };
    let rows = import.plan(progress)?;
    import.see_that_it_fits(&rows)?;
    let done = import.make_tenants(&rows).and_then(|()| import.copy_all(&rows, progress));
    if let Err(e) = done {
        // Directories may be there without what was to be in them: the next start looks at the disk.
        store.doubted.store(true, Ordering::Relaxed);
        let copied = import.counts.imported.load(Ordering::Relaxed);
        return Err(e.context(format!("the import ended after {copied} values (run it again to go on)")));
    }
    step!("import.sync");
    store.sync_names()?;
    Ok(import.summary())
}

/// A record of the directory, as small as it gets: all of them are known before the first is copied.
struct Row {
    storage_key: StorageKey,
    layout: Layout,
    bytes: u64,
    mtime: Timespec,
}

#[derive(Default)]
struct Counts {
    imported: AtomicU64,
    imported_bytes: AtomicU64,
    replaced: AtomicU64,
    already_there: AtomicU64,
}

struct Import<'a> {
    store: &'a Arc<Store>,
    tree: &'a Tree,
    options: Options,
    findings: Mutex<Vec<Finding>>,
    counts: Counts,
}

impl Import<'_> {
    /// Every record that counts, oldest first: in the order in which they would be evicted.
    fn plan(&self, progress: Progress<'_>) -> Result<Vec<Row>> {
        let rows = Mutex::new(Vec::new());
        let visit = |entry| {
            step!("import.plan");
            match entry {
                Entry::Record(Found { storage_key, layout, value, attr, .. }) => {
                    rows.lock().push(Row { storage_key, layout, bytes: value.bytes, mtime: attr.mtime });
                }
                Entry::Rejected(rejected) => {
                    let what = What::Rejected(rejected.why);
                    self.findings.lock().push(Finding { path: rejected.path, owner: None, what });
                }
            }
            Ok(())
        };
        let count = &mut |count| progress("entries", count, None);
        self.tree.walk(&self.walkers(), &visit, count)?;
        let mut rows = rows.into_inner();
        rows.sort_unstable_by(|a, b| (a.mtime, &a.storage_key).cmp(&(b.mtime, &b.storage_key)));
        Ok(rows)
    }

    fn owner(&self, row: &Row) -> Result<(Tenant, Key)> {
        let owner = self.tree.tenants().owner(&row.storage_key);
        owner.map_err(|why| Error::new(Kind::Invalid, why.to_string()))
    }

    /// The value that the store has of a key. A directory of that path is none.
    fn standing(&self, tenant: &Tenant, key: &Key) -> Result<Option<NodeId>> {
        match self.store.find_key(tenant, key) {
            Ok(found) => Ok(found.filter(|id| !self.store.is_directory(*id))),
            Err(e) if e.kind() == Kind::UnknownTenant => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Refuses, before anything is copied, what can not fit without an eviction.
    fn see_that_it_fits(&self, rows: &[Row]) -> Result<()> {
        let (mut all, mut tenants) = (Usage::default(), BTreeMap::<Tenant, Usage>::new());
        for row in rows {
            let (tenant, key) = self.owner(row)?;
            if self.standing(&tenant, &key)?.is_none() {
                for usage in [&mut all, tenants.entry(tenant).or_default()] {
                    usage.bytes += allocated(row.bytes);
                    usage.keys += 1;
                }
            }
        }
        self.store.fits_beside_all(None, all).map_err(no_room)?;
        for (tenant, usage) in tenants {
            if let Ok(home) = self.store.home(&tenant) {
                self.store.fits_beside_all(Some(&home), usage).map_err(no_room)?;
            }
        }
        Ok(())
    }

    /// Makes the tenants that are missing. Who may enter the directory may enter theirs.
    fn make_tenants(&self, rows: &[Row]) -> Result<()> {
        let attr = self.tree.fsdir().attr()?;
        let Owner { mode, uid, gid } = self.store.owner_here(&attr);
        let mut seen = BTreeSet::new();
        for row in rows {
            let (tenant, _) = self.owner(row)?;
            if seen.insert(tenant.clone()) && self.store.home(&tenant).is_err() {
                step!("import.tenant");
                let made = self.store.make_tenant(tenant.as_str().as_bytes(), mode, uid, gid);
                made.map_err(|e| e.context(format!("cannot make the tenant {tenant}")))?;
            }
        }
        Ok(())
    }

    fn walkers(&self) -> Walkers<'_> {
        Walkers::alone(limits::IMPORT_THREADS, &self.store.stopping)
    }

    fn copy_all(&self, rows: &[Row], progress: Progress<'_>) -> Result<()> {
        // All directories come before any value: of a key that is also a directory it is the value that no path spells,
        // as after any start.
        for row in rows {
            let (tenant, key) = self.owner(row)?;
            if self.standing(&tenant, &key)?.is_none() {
                self.imply_directories(&tenant, &key)?;
            }
        }
        let chunks: Vec<&[Row]> = rows.chunks(limits::IMPORTED_AT_ONCE).collect();
        let copy = |chunk: &&[Row], told: &jobs::Teller<'_, ()>| {
            for row in *chunk {
                if told.is_over() {
                    return Ok(());
                }
                self.bring(row).map_err(|e| e.context(format!("cannot import {}", self.shown(row))))?;
                told.found(1);
            }
            Ok(())
        };
        let total = rows.len() as u64;
        jobs::run(&self.walkers(), &chunks, copy, &mut |n| progress("keys", n, Some(total))).map(drop)
    }

    fn imply_directories(&self, tenant: &Tenant, key: &Key) -> Result<()> {
        let home = self.store.home(tenant)?;
        if !imply(&mut self.store.index.lock(), home.number, key)? {
            // A value stands where its directory would: after a start from the disk it is the other way round.
            self.store.doubted.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies one value, unless it is there.
    fn bring(&self, row: &Row) -> Result<()> {
        let (tenant, key) = self.owner(row)?;
        let Some((file, found)) = self.tree.open_record(row.layout, &row.storage_key)? else {
            return self.tell(row, What::Changed);
        };
        let mut standing = None;
        if let Some(id) = self.standing(&tenant, &key)? {
            standing = self.open_standing(id)?;
        }
        if let Some(there) = &standing {
            step!("import.compare");
            if there.kind == RecordKind::File && same(&file, found.value, &there.file)? {
                self.counts.already_there.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            if !self.options.replace {
                return self.tell(row, What::Differs);
            }
        }
        let home = self.store.home(&tenant)?;
        let more = Usage { bytes: allocated(found.value.bytes), keys: u64::from(standing.is_none()) };
        self.store.fits_beside_all(Some(&home), more).map_err(no_room)?;
        let (parent, name) = self.store.place_of_key(&tenant, &key)?;
        let mut staged =
            self.store.stage(parent, &name, RecordKind::File, self.store.owner_here(&found.attr))?;
        staged.pinned = standing.as_ref().is_some_and(|there| there.pinned);
        step!("import.copy");
        let whole = copy_span(&file, found.value, staged.file(), staged.passing().map(|p| &**p))?;
        if !whole || !is_as_it_was(&os::stat(&file)?, &found.attr) {
            return self.tell(row, What::Changed);
        }
        os::set_times(&**staged.file(), SetTime::At(found.attr.atime), SetTime::At(found.attr.mtime))?;
        self.store.publish(&mut staged, false)?;
        step!("import.copied");
        self.counts.imported.fetch_add(1, Ordering::Relaxed);
        self.counts.imported_bytes.fetch_add(found.value.bytes, Ordering::Relaxed);
        self.counts.replaced.fetch_add(u64::from(standing.is_some()), Ordering::Relaxed);
        Ok(())
    }

    /// Opens the value that the store has, without a touch; `None` when its record is gone, or none.
    fn open_standing(&self, id: NodeId) -> Result<Option<Standing>> {
        self.store.verify_first(id)?;
        let Some((home, place, _key)) = self.store.lock_place(id) else { return Ok(None) };
        let opened = self.store.open_or_forget(&home, &place, id, false)?;
        let pinned = self.store.index.lock().linked(id).is_ok_and(|node| node.pinned);
        Ok(opened.map(|(file, _)| Standing { file, kind: place.kind, pinned }))
    }

    fn path(&self, row: &Row) -> Vec<u8> {
        row.layout.path(&row.storage_key).unwrap_or_default()
    }

    fn shown(&self, row: &Row) -> String {
        self.tree.shown(&self.path(row))
    }

    fn tell(&self, row: &Row, what: What) -> Result<()> {
        let (path, owner) = (self.path(row).into(), Some(self.owner(row)?));
        self.findings.lock().push(Finding { path, owner, what });
        Ok(())
    }

    fn summary(self) -> Summary {
        let Counts { imported, imported_bytes, replaced, already_there } = self.counts;
        let mut findings = self.findings.into_inner();
        findings.sort_by(|a, b| a.path.cmp(&b.path));
        Summary {
            imported: imported.into_inner(),
            imported_bytes: imported_bytes.into_inner(),
            replaced: replaced.into_inner(),
            already_there: already_there.into_inner(),
            findings,
        }
    }
}

/// What the store has of a key.
struct Standing {
    file: File,
    kind: RecordKind,
    pinned: bool,
}

/// At least what a value of this length allocates.
fn allocated(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES)
}

fn no_room(e: Error) -> Error {
    e.context("nothing is evicted for an import; make room, or give the store a larger quota (--size)")
}

/// Makes the directories that a key's path implies; false where a value stands in the way.
fn imply(index: &mut Index, number: u32, key: &Key) -> Result<bool> {
    let Some(path) = key.path() else { return Ok(true) };
    let (mut at, mut parts) = (index.tenants[number as usize].node, path.peekable());
    while let Some(part) = parts.next()
        && parts.peek().is_some()
    {
        at = match index.entry(at.slot(), part) {
            None => implied_dir(index, at, part)?,
            Some(id) if index.dir(id).is_ok() => id,
            Some(_) => return Ok(false),
        };
    }
    Ok(true)
}

/// Whether nobody has changed a file since.
fn is_as_it_was(now: &Attr, then: &Attr) -> bool {
    (now.size_bytes, now.mtime, now.ctime) == (then.size_bytes, then.mtime, then.ctime)
}

/// Whether a stretch of one file is all that another one holds.
fn same(from: &File, span: Span, there: &File) -> Result<bool> {
    if os::stat(there)?.size_bytes != span.bytes {
        return Ok(false);
    }
    let buffer_bytes = span.bytes.min(limits::SUM_BUFFER_BYTES as u64) as usize;
    let (mut a, mut b, mut done) = (vec![0; buffer_bytes], vec![0; buffer_bytes], 0);
    while done < span.bytes {
        let n = (span.bytes - done).min(buffer_bytes as u64) as usize;
        let read = |file: &File, buffer: &mut [u8], at: u64| match file.read_exact_at(buffer, at) {
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
            done => done.map(|()| true).map_err(|e| Error::os("cannot compare", e)),
        };
        let whole = read(from, &mut a[..n], span.offset + done)? && read(there, &mut b[..n], done)?;
        if !whole || a[..n] != b[..n] {
            return Ok(false);
        }
        done += n as u64;
    }
    Ok(true)
}
