//! Reading a Mooncake file-per-key directory: every entry is a validated record, or is rejected with a reason.
//!
//! Nothing here writes. All that is opened is below the one directory, through no link and into no other filesystem.
//! A record counts for the key inside it, and only where that key belongs; of two records of one key the canonical one
//! counts, whatever order they are met in. What cannot be read ends the walk, with its path: an entry is never left out
//! unseen.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};
use crate::format::layout;
use crate::format::legacy::{self, Malformed, Place, STAGING, Span, StorageKey, Unowned};
use crate::key::{Key, Tenant};
use crate::os::{self, Attr, Dir, DirEntry, EntryType};
use crate::store::jobs::{self, Teller};
use crate::store::object::is_obstacle;
use crate::store::walkers::Walkers;

use super::tenant_map::TenantMap;

/// How records are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layout {
    /// By digest, as Mooncake's RFC proposes. Counts before the other.
    Canonical,
    /// By sanitised storage key.
    Legacy,
}

impl Layout {
    /// Where a storage key's record stands below the fsdir; `None` where no file can have the name.
    pub fn path(self, storage_key: &StorageKey) -> Option<Vec<u8>> {
        let bytes = storage_key.as_bytes();
        match self {
            Layout::Canonical => Some(legacy::canonical_path(bytes).into_bytes()),
            Layout::Legacy => legacy::fits(bytes).then(|| legacy::path(bytes)),
        }
    }
}

/// A sound record of a key.
#[derive(Debug, Clone)]
pub struct Found {
    /// Where it stands: with the storage key, its path.
    pub layout: Layout,
    /// The key inside.
    pub storage_key: StorageKey,
    /// Whose it is here.
    pub tenant: Tenant,
    /// The key here.
    pub key: Key,
    /// Where the value is in the file.
    pub value: Span,
    /// The file's attributes.
    pub attr: Attr,
}

/// Why an entry is no record that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// A symbolic link.
    Symlink,
    /// A device, socket or FIFO.
    Special,
    /// A directory that neither layout has. Nothing below it was looked at.
    Directory,
    /// A file whose path neither layout has.
    Stranger,
    /// Something that is mounted there. Nothing in it was looked at.
    Mount,
    /// Values that Mooncake was writing. Nothing in it was looked at.
    Staging,
    /// A file that is no record.
    Malformed(Malformed),
    /// A record whose key belongs elsewhere.
    Misplaced(StorageKey),
    /// A record whose key is nobody's here.
    Unowned(Unowned),
    /// A record of a key that has another one which counts before this.
    Shadow {
        /// Path of that one below the fsdir.
        by: Box<[u8]>,
    },
}

impl Why {
    /// A word for it, as listings spell it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Why::Symlink => "symlink",
            Why::Special => "special",
            Why::Directory | Why::Stranger => "stranger",
            Why::Mount => "mount",
            Why::Staging => "staging",
            Why::Malformed(_) => "malformed",
            Why::Misplaced(_) => "misplaced",
            Why::Unowned(Unowned::Tenant { .. }) => "tenant",
            Why::Unowned(Unowned::KeyTooLong { .. }) => "key-too-long",
            Why::Shadow { .. } => "shadow",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Symlink => f.write_str("it is a symbolic link"),
            Why::Special => f.write_str("it is a device, socket or FIFO"),
            Why::Directory => f.write_str("no layout has this directory; nothing below it is read"),
            Why::Stranger => f.write_str("no layout has this path"),
            Why::Mount => f.write_str(
                "something else is mounted here; nothing in it is read (umount it, copy what values it holds into the directory, and \
                 do this again)",
            ),
            Why::Staging => f.write_str("values that were never published are in it"),
            Why::Malformed(why) => write!(f, "it is no whole record: {why}"),
            Why::Misplaced(key) => write!(f, "its key {key:?} belongs elsewhere"),
            Why::Unowned(why) => write!(f, "{why}"),
            Why::Shadow { by } => write!(f, "{} is of the same key and counts before it", by.escape_ascii()),
        }
    }
}

/// An entry that is no record that counts. It is left where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// Its path below the fsdir.
    pub path: Box<[u8]>,
    /// Why.
    pub why: Why,
}

/// What a walk meets.
#[derive(Debug)]
pub enum Entry {
    /// A sound record, the only one of its key.
    Record(Found),
    /// Anything else.
    Rejected(Rejected),
}

/// A Mooncake file-per-key directory, opened to be read.
#[derive(Debug)]
pub struct Tree {
    fsdir: Dir,
    path: PathBuf,
    tenants: TenantMap,
}

type Visit<'a> = &'a (dyn Fn(Entry) -> Result<()> + Sync);

impl Tree {
    /// Opens the directory `fsdir` of Mooncake's storage directory `dir`, or `dir` itself where it has that name and
    /// holds no such directory.
    pub fn open(dir: &Path, fsdir: &Path, tenants: TenantMap) -> Result<Tree> {
        let resolved = dir.canonicalize();
        let path = resolved.map_err(|e| Error::os(format!("cannot resolve {}", dir.display()), e))?;
        let above = Dir::open_unmarked(&path)?;
        if let Some(inside) = fsdir.to_str().filter(|name| !name.is_empty() && !fsdir.is_absolute()) {
            let shown = path.join(fsdir);
            let sentence = || format!("cannot use {} (give it alone, by its own path)", shown.display());
            match above.read_dir(inside) {
                Ok(Some(fsdir)) => return Ok(Tree { fsdir, path: shown, tenants }),
                Ok(None) if path.ends_with(fsdir) => return Ok(Tree { fsdir: above, path, tenants }),
                Ok(None) => {}
                Err(e) => return Err(e.context(sentence())),
            }
        }
        Err(Error::new(
            Kind::NotFound,
            format!(
                "{} is no file-per-key directory of Mooncake: no directory {} is in it; give the directory that \
                 Mooncake stores in, and its fsdir where that has another name",
                dir.display(),
                fsdir.display()
            ),
        ))
    }

    /// Where the fsdir is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The fsdir.
    pub fn fsdir(&self) -> &Dir {
        &self.fsdir
    }

    /// Whose keys are whose.
    pub fn tenants(&self) -> &TenantMap {
        &self.tenants
    }

    /// A path below the fsdir, for people.
    pub fn shown(&self, at: &[u8]) -> String {
        format!("{}/{}", self.path.display(), at.escape_ascii())
    }

    /// Shows every entry to `visit`, from several threads, in no order. An error of `visit` ends the walk as one of the
    /// disk does. `progress` is called with the number of entries so far.
    pub(in crate::store) fn walk(
        &self,
        walkers: &Walkers<'_>,
        visit: Visit<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let list = || self.fsdir.read_dir(".")?.map_or(Ok(Vec::new()), |dir| dir.entries_once());
        let entries = list().map_err(|e| e.context(self.path.display()))?;
        let walk = Walk { tree: self, visit, canonical: entries.iter().any(|e| is_level(e, true)) };
        let (levels, others): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|e| is_level(e, true) || is_level(e, false));
        for entry in others {
            walk.reject(&self.fsdir, &[], &entry)?;
        }
        jobs::run(walkers, &levels, |level, told| walk.upper(level, told), progress).map(drop)
    }

    /// Opens the record of a storage key; `None` where there is none, or what is there is no record of it.
    pub fn open_record(&self, layout: Layout, storage_key: &StorageKey) -> Result<Option<(File, Found)>> {
        let Some(path) = layout.path(storage_key) else { return Ok(None) };
        let opened = match self.fsdir.read_file(&path) {
            Ok(opened) => opened,
            Err(e) if is_obstacle(&e) => None,
            Err(e) => return Err(e.context(self.path.display())),
        };
        let Some(file) = opened else { return Ok(None) };
        match self.judge(&file, &path).map_err(|e| e.context(self.shown(&path)))? {
            Ok(found) if found.storage_key == *storage_key => Ok(Some((file, found))),
            _ => Ok(None),
        }
    }

    /// The record at a path below the fsdir; `None` where there is none.
    pub fn record_at(&self, path: &[u8]) -> Result<Option<Found>> {
        let opened = match self.fsdir.read_file(path) {
            Ok(opened) => opened,
            Err(e) if is_obstacle(&e) => None,
            Err(e) => return Err(e.context(self.shown(path))),
        };
        let Some(file) = opened else { return Ok(None) };
        self.judge(&file, path).map(std::result::Result::ok).map_err(|e| e.context(self.shown(path)))
    }

    /// The record that counts of a key.
    pub fn find(&self, tenant: &Tenant, key: &Key) -> Result<Option<(File, Found)>> {
        for storage_key in self.tenants.spellings(tenant, key) {
            for layout in [Layout::Canonical, Layout::Legacy] {
                if let Some(found) = self.open_record(layout, &storage_key)? {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }

    /// Whether an open file is the record of its path.
    fn judge(&self, file: &File, path: &[u8]) -> Result<Result<Found, Why>> {
        let attr = os::stat(file)?;
        if !attr.is_file() {
            return Ok(Err(if attr.is_dir() { Why::Directory } else { Why::Special }));
        }
        let Some(place) = Place::parse(path) else { return Ok(Err(Why::Stranger)) };
        step!("legacy.locate");
        let located = legacy::locate(file).map_err(|e: io::Error| Error::os("cannot read", e))?;
        let record = match located {
            Ok(record) => record,
            Err(why) => return Ok(Err(Why::Malformed(why))),
        };
        if !place.binds(record.storage_key.as_bytes()) {
            return Ok(Err(Why::Misplaced(record.storage_key)));
        }
        let layout = match place {
            Place::Canonical(_) => Layout::Canonical,
            Place::Legacy(_) => Layout::Legacy,
        };
        Ok(match self.tenants.owner(&record.storage_key) {
            Ok((tenant, key)) => {
                let legacy::Record { storage_key, value } = record;
                Ok(Found { layout, storage_key, tenant, key, value, attr })
            }
            Err(why) => Err(Why::Unowned(why)),
        })
    }
}

/// Whether a directory is the upper level of a layout.
fn is_level(entry: &DirEntry, canonical: bool) -> bool {
    entry.kind == EntryType::Dir
        && if canonical {
            layout::is_shard_level(&entry.name)
        } else {
            matches!(entry.name[..], [b'a'..=b'p'])
        }
}

struct Walk<'a> {
    tree: &'a Tree,
    visit: Visit<'a>,
    /// There may be records in the canonical layout.
    canonical: bool,
}

impl Walk<'_> {
    /// Looks at one directory of the upper level, with all below it.
    fn upper(&self, level: &DirEntry, told: &Teller<'_, ()>) -> Result<()> {
        let canonical = layout::is_shard_level(&level.name);
        let Some((dir, entries)) = self.list(&self.tree.fsdir, &[], &level.name)? else { return Ok(()) };
        for entry in entries {
            if told.is_over() {
                return Ok(());
            }
            if is_level(&entry, canonical) {
                self.lower(&dir, &level.name, &entry.name, told)?;
            } else {
                self.reject(&dir, &level.name, &entry)?;
                told.found(1);
            }
        }
        Ok(())
    }

    fn lower(&self, upper: &Dir, at: &[u8], name: &[u8], told: &Teller<'_, ()>) -> Result<()> {
        let Some((dir, entries)) = self.list(upper, at, name)? else { return Ok(()) };
        let at = below(at, name);
        for entry in &entries {
            if told.is_over() {
                return Ok(());
            }
            if entry.kind == EntryType::File {
                let path = below(&at, &entry.name);
                self.file(&dir, &entry.name, &path).map_err(|e| e.context(self.tree.shown(&path)))?;
            } else {
                self.reject(&dir, &at, entry)?;
            }
        }
        told.found(entries.len() as u64);
        Ok(())
    }

    /// Opens a directory and lists it; `None` where it vanished, or cannot be entered.
    fn list(&self, above: &Dir, at: &[u8], name: &[u8]) -> Result<Option<(Dir, Vec<DirEntry>)>> {
        let path = below(at, name);
        let list = || -> Result<Option<(Dir, Vec<DirEntry>)>> {
            step!("legacy.list");
            let Some(dir) = above.read_dir(name)? else { return Ok(None) };
            let entries = dir.entries_once()?;
            Ok(Some((dir, entries)))
        };
        match list() {
            Err(e) if is_obstacle(&e) => self.tell(&path, obstacle(&e)).map(|()| None),
            done => done.map_err(|e| e.context(self.tree.shown(&path))),
        }
    }

    /// A regular file where a record may be.
    fn file(&self, dir: &Dir, name: &[u8], path: &[u8]) -> Result<()> {
        step!("legacy.open");
        let file = match dir.read_file(name) {
            Ok(Some(file)) => file,
            Ok(None) => return Ok(()),
            Err(e) if is_obstacle(&e) => return self.tell(path, obstacle(&e)),
            Err(e) => return Err(e),
        };
        match self.tree.judge(&file, path)? {
            Ok(found) => match self.counts_before(&found)? {
                None => (self.visit)(Entry::Record(found)),
                Some(by) => self.tell(path, Why::Shadow { by: by.into() }),
            },
            Err(why) => self.tell(path, why),
        }
    }

    /// The path of another record of the same key that counts before this one.
    fn counts_before(&self, found: &Found) -> Result<Option<Vec<u8>>> {
        for storage_key in self.tree.tenants.spellings(&found.tenant, &found.key) {
            for layout in [Layout::Canonical, Layout::Legacy] {
                if storage_key == found.storage_key && layout == found.layout {
                    return Ok(None);
                }
                let may_be = layout == Layout::Legacy || self.canonical;
                if may_be && self.tree.open_record(layout, &storage_key)?.is_some() {
                    return Ok(layout.path(&storage_key));
                }
            }
        }
        Ok(None)
    }

    /// Something that is no level of a layout and no file in one.
    fn reject(&self, dir: &Dir, at: &[u8], entry: &DirEntry) -> Result<()> {
        let path = below(at, &entry.name);
        let why = match entry.kind {
            EntryType::File => Why::Stranger,
            EntryType::Dir if at.is_empty() && entry.name == STAGING.as_bytes() => Why::Staging,
            EntryType::Dir => Why::Directory,
            EntryType::Other => match dir.stat(&entry.name).map_err(|e| e.context(self.tree.shown(&path)))? {
                Some(attr) if attr.mode & libc::S_IFMT == libc::S_IFLNK => Why::Symlink,
                Some(_) => Why::Special,
                None => return Ok(()),
            },
        };
        self.tell(&path, why)
    }

    fn tell(&self, path: &[u8], why: Why) -> Result<()> {
        (self.visit)(Entry::Rejected(Rejected { path: path.into(), why }))
    }
}

/// What stood where the listing had said that something else does.
fn obstacle(e: &Error) -> Why {
    match e.errno() {
        libc::ELOOP => Why::Symlink,
        libc::EXDEV => Why::Mount,
        libc::ENXIO => Why::Special,
        libc::EISDIR => Why::Directory,
        _ => Why::Stranger,
    }
}

fn below(at: &[u8], name: &[u8]) -> Vec<u8> {
    if at.is_empty() { name.to_vec() } else { [at, b"/", name].concat() }
}
