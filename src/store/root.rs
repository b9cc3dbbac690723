//! The root of a store before it is opened: locked, of a known format, with its identity and its ledger.
//!
//! INVARIANT: the format file comes first, then the ledger, then the managed data; so where data is, a ledger was, and
//! one that is missing or damaged is never made anew: it says what was removed. Nor is data, once a storage has been
//! opened. A start that is refused for either has changed nothing but the lock file.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Kind, Result};
use crate::format::layout;
use crate::format::superblock::Superblock;
use crate::key::{Epoch, Tenant};
use crate::ledger::{self, Applied, Database, Ledger, LocalLedger, StorageFile};
use crate::os::{self, Dir, EntryType, RenameHow, XattrMode};
use crate::scope::{Generation, Scope};

use super::tenants::older_than_the_data;
use super::trash;

/// A store that this process holds, and has not recovered yet.
#[derive(Debug)]
pub struct StoreRoot {
    pub(super) dir: Dir,
    pub(super) path: PathBuf,
    pub(super) storage: Arc<StorageFile>,
    ledger: Arc<Database>,
    /// XXH3-64 of the format file.
    pub(super) superblock_sum: u64,
    /// Holds the flock for as long as the store is open. Given back last: who gets it finds the ledger free too.
    pub(super) _lock: std::fs::File,
}

impl StoreRoot {
    /// Creates or takes over the store at `root`. Nothing of its data is touched.
    ///
    /// # Errors
    /// [`Kind::Locked`] where another process holds it; [`Kind::Corrupt`] where a part of it is missing, damaged, or older
    /// than another.
    pub fn lock(root: &Path) -> Result<StoreRoot> {
        StoreRoot::lock_if(root, refuse_removals_of_nobody)
    }

    /// The same of a store with removals that its ledger does not know of.
    #[cfg(test)]
    pub(super) fn lock_unjudged(root: &Path) -> Result<StoreRoot> {
        StoreRoot::lock_if(root, |_, _| Ok(()))
    }

    fn lock_if(root: &Path, judge: fn(&Dir, &Applied) -> Result<()>) -> Result<StoreRoot> {
        make_root(root).map_err(|e| Error::os(format!("cannot create the store {}", root.display()), e))?;
        let path = root
            .canonicalize()
            .map_err(|e| Error::os(format!("cannot resolve the store {}", root.display()), e))?;
        let dir = Dir::open_root(&path)?;
        refuse_what_is_no_store(&dir, &path)?;
        let lock = take_lock(&dir, &path)?;
        let text = open_superblock(&dir, &path)?;
        let superblock = Superblock::decode(&text)?;
        judge_ledger(&dir, &path, superblock.storage_id, judge)?;
        let ledger = open_ledger(&dir, &path, superblock.storage_id)?;
        let storage = Arc::new(StorageFile::open(Arc::clone(&ledger))?);
        let superblock_sum = xxh3_64(text.as_bytes());
        Ok(StoreRoot { dir, path, storage, ledger, superblock_sum, _lock: lock })
    }

    /// The identity of the store.
    pub fn storage_id(&self) -> Uuid {
        self.storage.identity()
    }

    /// What the storage keeps of itself.
    pub fn storage(&self) -> &Arc<StorageFile> {
        &self.storage
    }

    /// The store's ledger file.
    pub fn ledger(&self) -> &Arc<Database> {
        &self.ledger
    }

    /// The managed root, made where a first start got no further than the ledger.
    pub(super) fn data(&self) -> Result<Dir> {
        let data = self.dir.ensure_dir(layout::DATA, 0o700)?;
        require_xattrs(&data, &self.path)?;
        Ok(data)
    }
}

/// Compares ledger and data, before either is opened to be changed.
fn judge_ledger(
    root: &Dir,
    path: &Path,
    storage_id: Uuid,
    judge: fn(&Dir, &Applied) -> Result<()>,
) -> Result<()> {
    let Some(file) = root.open_file(layout::LEDGER, false)? else { return Ok(()) };
    let known = ledger::look(&path.join(layout::LEDGER), storage_id, &file)?;
    match root.open_dir_if_any(layout::DATA)? {
        Some(data) => judge(&data, &known.removed),
        None if known.registered => Err(Error::new(
            Kind::Corrupt,
            format!(
                "{} has a {} and no {}: put that directory back (is its filesystem mounted?), or begin a new store elsewhere",
                path.display(),
                layout::LEDGER,
                layout::DATA
            ),
        )),
        None => Ok(()),
    }
}

/// What was removed is known: the names of epoch directories, and of the trash, are of removals that the ledger has
/// applied or was asked for. One that is of neither was forgotten, together with what it still has to delete.
fn refuse_removals_of_nobody(data: &Dir, removed: &Applied) -> Result<()> {
    if let Some(trash) = data.open_dir_if_any(layout::TRASH)? {
        for trashed in trash::list(&trash, &mut |_| {})? {
            let known = removed.epoch_of(&trashed.tenant);
            if known < trashed.generation.into() {
                return Err(older_than_the_data(&trashed.shown(), known));
            }
        }
    }
    let Some(tenants) = data.open_dir_if_any(layout::TENANTS)? else { return Ok(()) };
    for entry in tenants.entries()?.into_iter().filter(|e| e.kind == EntryType::Dir) {
        let Ok(tenant) = Tenant::new(&entry.name) else { continue };
        let Some(top) = tenants.open_dir_if_any(&entry.name)? else { continue };
        let known = removed.epoch_of(&tenant);
        let epochs = top.entries_once()?.into_iter().filter(|e| e.kind == EntryType::Dir);
        if let Some(found) = epochs.filter_map(|e| layout::parse_epoch(&e.name)).find(|e| *e > known) {
            let path = format!("{}/{}/{tenant}/{found}", layout::DATA, layout::TENANTS);
            return Err(older_than_the_data(&path, known));
        }
    }
    Ok(())
}

/// A store that this process holds only to look at it: nothing is made where something is missing.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) dir: Dir,
    path: PathBuf,
    _lock: std::fs::File,
}

/// What the ledger says of removals.
#[derive(Debug, Default)]
pub(super) struct Ledgered {
    pub(super) applied: Applied,
    /// What was asked for and is not applied.
    pending: Vec<(Scope, Generation)>,
}

impl Ledgered {
    /// The epoch that a tenant will have once what is pending is applied.
    pub(super) fn pending_of(&self, tenant: &Tenant) -> Option<Epoch> {
        let its = self.pending.iter().filter(|(scope, _)| scope.includes_tenant(tenant));
        its.map(|(_, generation)| (*generation).into()).max()
    }
}

impl Held {
    /// Takes the store at `root`; a directory that is none is left as it is.
    pub(super) fn take(root: &Path) -> Result<Held> {
        let dir = Dir::open_root(root)?;
        let path = root
            .canonicalize()
            .map_err(|e| Error::os(format!("cannot resolve the store {}", root.display()), e))?;
        if dir.stat(layout::SUPERBLOCK)?.is_none() {
            return Err(Error::new(
                Kind::Corrupt,
                format!(
                    "{} has no {} file: it is not a store, or its format file was lost",
                    path.display(),
                    layout::SUPERBLOCK
                ),
            ));
        }
        let lock = take_lock(&dir, &path)?;
        Ok(Held { dir, path, _lock: lock })
    }

    pub(super) fn superblock(&self) -> Result<Superblock> {
        Superblock::decode(&open_superblock(&self.dir, &self.path)?)
    }

    /// Reads the ledger from a copy of its file, since opening it may write.
    pub(super) fn read_ledger(&self, storage_id: Uuid) -> Result<Ledgered> {
        if self.dir.stat(layout::LEDGER)?.is_none() {
            return if self.dir.stat(layout::DATA)?.is_some() {
                Err(without_ledger(&self.path))
            } else {
                Ok(Ledgered::default())
            };
        }
        let file = self.dir.open_file(layout::LEDGER, false)?;
        let mut file = file.ok_or_else(|| Error::new(Kind::Corrupt, "the ledger is gone"))?;
        let mut copy = os::memory_file("fencefs-ledger")?;
        std::io::copy(&mut file, &mut copy).map_err(|e| Error::os("cannot read the ledger", e))?;
        let again = move || copy.try_clone().map_err(|e| Error::os("cannot open the copy of the ledger", e));
        let database = Database::open(&self.path.join(layout::LEDGER), storage_id, again)?;
        let storage = StorageFile::open(Arc::clone(&database))?;
        let asked = match storage.asked_elsewhere()? {
            Some(asked) => asked,
            None => match LocalLedger::new(database).poll(storage_id) {
                // It never registered, so it was never asked to remove anything.
                Err(e) if e.kind() == Kind::NotFound => Vec::new(),
                polled => polled?.into_iter().map(|p| (p.scope, p.generation)).collect(),
            },
        };
        let applied = Applied::clone(&storage.applied());
        let pending = asked.into_iter().filter(|(scope, generation)| !applied.covers(scope, *generation));
        Ok(Ledgered { pending: pending.collect(), applied })
    }
}

fn without_ledger(path: &Path) -> Error {
    Error::new(
        Kind::Corrupt,
        format!(
            "{} has data and no {}: what was removed is not known any more; restore that file from a backup of this \
             store, or begin a new store",
            path.display(),
            layout::LEDGER
        ),
    )
}

fn open_ledger(root: &Dir, path: &Path, storage_id: Uuid) -> Result<Arc<Database>> {
    if root.stat(layout::LEDGER)?.is_none() {
        if root.stat(layout::DATA)?.is_some() {
            return Err(without_ledger(path));
        }
        let temporary = format!("{}.new", layout::LEDGER);
        root.unlink(&temporary)?;
        Database::initialise(root.create_file(&temporary, 0o600)?, storage_id)?;
        root.rename(&temporary, root, layout::LEDGER, RenameHow::NoReplace)?;
        root.ensure_dir(layout::DATA, 0o700)?;
        root.sync()?;
    }
    let (beside, shown) = (Dir::open_root(path)?, path.join(layout::LEDGER));
    Database::open(&path.join(layout::LEDGER), storage_id, move || {
        let gone = || Error::new(Kind::Corrupt, format!("{} is gone", shown.display()));
        beside.open_file(layout::LEDGER, true)?.ok_or_else(gone)
    })
}

pub(super) fn write_root_file(root: &Dir, name: &str, bytes: &[u8]) -> Result<()> {
    let temporary = format!("{name}.new");
    root.unlink(&temporary)?;
    let file = root.create_file(&temporary, 0o600)?;
    let written = std::io::Write::write_all(&mut &file, bytes)
        .map_err(|e| Error::os(format!("cannot write {name}"), e))
        .and_then(|()| os::sync_file(&file));
    if let Err(e) = written {
        // A full disk: what could not be written is in nobody's way.
        root.unlink(&temporary)?;
        return Err(e);
    }
    root.rename(&temporary, root, name, RenameHow::Replace)?;
    root.sync()
}

fn take_lock(root: &Dir, path: &Path) -> Result<std::fs::File> {
    let file = match root.open_file(layout::LOCK, true)? {
        Some(file) => file,
        None => match root.create_file(layout::LOCK, 0o600) {
            Ok(file) => file,
            Err(e) if e.kind() == Kind::Exists => root.open_file(layout::LOCK, true)?.ok_or(e)?,
            Err(e) => return Err(e),
        },
    };
    if !os::lock_exclusive(&file)? {
        let mut holder = String::new();
        std::io::Read::read_to_string(&mut &file, &mut holder)
            .map_err(|e| Error::os("cannot read the lock file", e))?;
        return Err(Error::new(
            Kind::Locked,
            format!("cannot open store {}: held by pid {} (unmount it first)", path.display(), holder.trim()),
        ));
    }
    // Over what is there, and not emptied before: on a full disk its block would be somebody else's by then.
    let text = format!("{}\n", std::process::id());
    let padded = format!("{text:\n<20}");
    file.write_all_at(padded.as_bytes(), 0).map_err(|e| Error::os("cannot write the lock file", e))?;
    os::truncate(&file, text.len() as u64)?;
    Ok(file)
}

/// The directory of a new store is its daemon's alone: everybody else comes through the mount. One that is there keeps
/// its mode. The daemon's umask says nothing, so modes are spelled out.
fn make_root(root: &Path) -> std::io::Result<()> {
    if let Some(above) = root.parent().filter(|p| !p.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o755).create(above)?;
    }
    match DirBuilder::new().mode(0o700).create(root) {
        Err(_) if root.is_dir() => Ok(()),
        done => done,
    }
}

/// Before anything there is touched, the lock file included.
fn refuse_what_is_no_store(root: &Dir, path: &Path) -> Result<()> {
    if root.stat(layout::SUPERBLOCK)?.is_some() {
        return Ok(());
    }
    for name in [layout::DATA, layout::LEDGER, layout::ORDER, layout::CHECKPOINT, layout::LOCK] {
        if root.stat(name)?.is_none() || (name == layout::LOCK && is_our_lock(root)?) {
            continue;
        }
        return Err(Error::new(
            Kind::Corrupt,
            format!(
                "{} has a {name} but no {} file: it is not a store, or its format file was lost",
                path.display(),
                layout::SUPERBLOCK
            ),
        ));
    }
    // What a first start that went no further has left, and what a new filesystem has.
    let begun = format!("{}.new", layout::SUPERBLOCK);
    let harmless = |name: &[u8]| [layout::LOCK, &begun, "lost+found"].iter().any(|n| n.as_bytes() == name);
    if let Some(other) = root.entries()?.iter().find(|entry| !harmless(&entry.name)) {
        return Err(Error::new(
            Kind::NotEmpty,
            format!(
                "{} is no store, and not empty (there is {}): a new store begins in a directory of its own, which is made \
                 where it is missing",
                path.display(),
                other.name.escape_ascii()
            ),
        ));
    }
    Ok(())
}

/// Whether the lock file is one that a daemon wrote, perhaps in a start that went no further.
fn is_our_lock(root: &Dir) -> Result<bool> {
    let Some(file) = root.open_file(layout::LOCK, false)? else { return Ok(false) };
    let mut text = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(&file, 64), &mut text)
        .map_err(|e| Error::os("cannot read the lock file", e))?;
    Ok(text.trim_ascii().iter().all(u8::is_ascii_digit))
}

/// The text of the format file, made where it is missing.
fn open_superblock(root: &Dir, path: &Path) -> Result<String> {
    if let Some(file) = root.open_file(layout::SUPERBLOCK, false)? {
        let mut text = String::new();
        std::io::Read::read_to_string(&mut &file, &mut text)
            .map_err(|e| Error::os(format!("cannot read {}/{}", path.display(), layout::SUPERBLOCK), e))?;
        return Ok(text);
    }
    refuse_what_is_no_store(root, path)?;
    let text = Superblock::new().encode();
    write_root_file(root, layout::SUPERBLOCK, text.as_bytes())?;
    Ok(text)
}

fn require_xattrs(data: &Dir, path: &Path) -> Result<()> {
    os::xattr_set(data, "user.fencefs.probe", b"1", XattrMode::Set).map_err(|e| match e.kind() {
        Kind::Unsupported | Kind::Io(libc::EPERM) => Error::new(
            Kind::Unsupported,
            format!(
                "the filesystem of {} has no user extended attributes; put the store on ext4, XFS, btrfs or tmpfs (Linux 6.6)",
                path.display()
            ),
        ),
        _ => e,
    })?;
    os::xattr_remove(data, "user.fencefs.probe").map(drop)
}
