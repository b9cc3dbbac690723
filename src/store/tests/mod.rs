//! Engine tests: a store in a temporary directory of a real filesystem, no mount.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tempfile::TempDir;

use super::legacy::Value;
use super::{NodeId, Owner, ROOT, Staged, Store, StoreRoot};
use crate::config::StoreSettings;
use crate::error::{Kind, Result};
use crate::format::layout;
use crate::key::{Digest, Epoch, Key, RecordKind, Tenant};
use crate::ledger::Pending;
use crate::random::Random;

mod attach;
#[cfg(feature = "failpoints")]
mod attach_steps;
mod checkpoint;
mod checksum;
mod collision;
#[cfg(feature = "failpoints")]
mod crash;
mod fsck;
#[cfg(feature = "failpoints")]
mod gate;
mod import;
mod legacy_tree;
mod model;
mod order;
mod races;
mod recovery;
mod refusal;
mod removal;
#[cfg(feature = "failpoints")]
mod removal_steps;
mod renames;
mod reserve;
mod room;
mod ttl;
mod unspelled;
mod victims;

/// Fail points and the collision seam are global to the process: whoever sets one, or runs into one, holds this.
static GLOBAL: Mutex<()> = Mutex::new(());

pub(super) const OWNER: Owner = Owner { mode: 0o644, uid: 0, gid: 0 };

/// An open store in a directory of its own.
struct Bench {
    dir: TempDir,
    settings: StoreSettings,
    store: Option<Arc<Store>>,
    _global: MutexGuard<'static, ()>,
}

impl std::ops::Deref for Bench {
    type Target = Arc<Store>;

    fn deref(&self) -> &Arc<Store> {
        self.store.as_ref().expect("the store is open")
    }
}

impl Bench {
    fn new(settings: StoreSettings) -> Bench {
        let global = GLOBAL.lock();
        let dir = tempfile::tempdir().unwrap();
        let mut bench = Bench { dir, settings, store: None, _global: global };
        bench.open();
        bench
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn open(&mut self) {
        self.store = Some(open_store(&self.root(), &self.settings).unwrap());
    }

    /// Ends without the checkpoint of a clean stop. The lock is free afterwards: the store's own threads may hold it for
    /// a moment longer than its owner.
    fn drop_store(&mut self) {
        self.store = None;
        if let Ok(lock) = std::fs::File::open(self.root().join("lock")) {
            while !crate::os::lock_exclusive(&lock).unwrap() {
                std::thread::yield_now();
            }
        }
    }

    fn reopen(&mut self) {
        self.drop_store();
        self.open();
    }

    fn close_and_reopen(&mut self) {
        self.close().unwrap();
        self.reopen();
    }

    /// Where the record of a value of tenant `default` stands.
    fn record(&self, key: &[u8]) -> PathBuf {
        record_path(&self.root(), "default", key, RecordKind::File)
    }

    /// Makes a record one that cannot be removed; false where that cannot be done.
    fn set_immutable(&self, key: &[u8], on: bool) -> bool {
        let flag = if on { "+i" } else { "-i" };
        let done = std::process::Command::new("chattr").arg(flag).arg(self.record(key)).output();
        let done = done.is_ok_and(|o| o.status.success());
        if !done {
            eprintln!("skipped: chattr {flag} needs root and a filesystem that knows it");
        }
        done
    }

    /// Sums agree with one another and with the disk, and nothing is left in staging.
    #[track_caller]
    fn sound(&self) {
        assert_sound(self);
    }
}

#[track_caller]
fn assert_sound(store: &Store) {
    assert_eq!(store.check(), [""; 0]);
    assert_eq!(store.usage(None).0, disk_bytes(store.path()), "usage differs from the record files");
    assert_eq!(names_in(&store.path().join("data/.staging")), [""; 0]);
}

fn open_when_free(root: &Path, settings: &StoreSettings) -> Result<Arc<Store>> {
    for _ in 0..1_000_000 {
        match open_store(root, settings) {
            Err(e) if e.kind() == Kind::Locked => std::thread::yield_now(),
            other => return other,
        }
    }
    open_store(root, settings)
}

fn open_store(root: &Path, settings: &StoreSettings) -> Result<Arc<Store>> {
    Store::open(StoreRoot::lock(root)?, settings, &[], &mut |_, _| {})
}

/// The same with removals that are pending.
fn open_pending(root: &Path, settings: &StoreSettings, pending: &[Pending]) -> Result<Arc<Store>> {
    loop {
        match StoreRoot::lock_unjudged(root) {
            Err(e) if e.kind() == Kind::Locked => std::thread::yield_now(),
            locked => return Store::open(locked?, settings, pending, &mut |_, _| {}),
        }
    }
}

fn tenant(name: &str) -> Tenant {
    Tenant::new(name.as_bytes()).unwrap()
}

fn key(bytes: &[u8]) -> Key {
    Key::new(bytes).unwrap()
}

fn record_path(root: &Path, tenant_name: &str, key: &[u8], kind: RecordKind) -> PathBuf {
    let tenant = tenant(tenant_name);
    root.join(layout::canonical_path(&tenant, Epoch(0), Digest::of(&tenant, key, kind)))
}

fn default_dir(store: &Store) -> NodeId {
    store.tenant_node(&Tenant::default_tenant()).unwrap()
}

/// Stages a value below a directory.
fn stage(store: &Arc<Store>, parent: NodeId, name: &[u8], value: &[u8]) -> Result<Staged> {
    let staged = store.stage(parent, name, RecordKind::File, OWNER)?;
    (&**staged.file()).write_all(value).unwrap();
    Ok(staged)
}

/// Publishes a value below a directory.
fn put_in(store: &Arc<Store>, parent: NodeId, name: &[u8], value: &[u8]) -> Result<NodeId> {
    let mut staged = stage(store, parent, name, value)?;
    store.publish(&mut staged, false)?;
    Ok(staged.node())
}

/// Publishes a value in tenant `default`.
fn put(store: &Arc<Store>, name: &[u8], value: &[u8]) -> Result<NodeId> {
    put_in(store, default_dir(store), name, value)
}

fn read(store: &Store, id: NodeId) -> Option<Vec<u8>> {
    let Value { mut file, span, .. } = store.open_value(id, None).unwrap()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    Some(match span {
        Some(span) => bytes[span.offset as usize..][..span.bytes as usize].to_vec(),
        None => bytes,
    })
}

/// The value of a key of tenant `default`; `None` is a miss.
fn get(store: &Store, name: &[u8]) -> Option<Vec<u8>> {
    store.find_key(&Tenant::default_tenant(), &key(name)).unwrap().and_then(|id| read(store, id))
}

/// Names of the values of tenant `default` itself, in the order of the directory.
fn names(store: &Store) -> Vec<String> {
    let listed = store.list(default_dir(store), 0, usize::MAX).unwrap();
    listed.iter().map(|e| String::from_utf8_lossy(e.name).into_owned()).collect()
}

/// What one path of the tree holds.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Content {
    Dir,
    Link(Vec<u8>),
    Value { bytes: Vec<u8>, pinned: bool },
}

/// Everything that the store serves, by tenant and path.
fn tree(store: &Store) -> BTreeMap<(String, Vec<u8>), Content> {
    let mut found = BTreeMap::new();
    for entry in store.list(ROOT, 0, usize::MAX).unwrap().iter() {
        let name = String::from_utf8_lossy(entry.name).into_owned();
        descend(store, &name, entry.node, b"", &mut found);
    }
    found
}

fn descend(
    store: &Store,
    tenant: &str,
    dir: NodeId,
    at: &[u8],
    found: &mut BTreeMap<(String, Vec<u8>), Content>,
) {
    for entry in store.list(dir, 0, usize::MAX).unwrap().iter() {
        let path = if at.is_empty() { entry.name.to_vec() } else { [at, b"/", entry.name].concat() };
        let content = match entry.kind {
            RecordKind::Directory => {
                descend(store, tenant, entry.node, &path, found);
                Content::Dir
            }
            RecordKind::Symlink => Content::Link(store.read_link(entry.node).unwrap()),
            RecordKind::File => match read(store, entry.node) {
                Some(bytes) => Content::Value { bytes, pinned: store.is_pinned(entry.node) },
                None => continue,
            },
        };
        found.insert((tenant.to_owned(), path), content);
    }
}

/// Allocated bytes of every record file below the store.
fn disk_bytes(root: &Path) -> u64 {
    bytes_below(&root.join("data/t"))
}

/// Of the records below `data/t` or `data/.trash`.
fn bytes_below(top: &Path) -> u64 {
    // The keeper may delete one meanwhile.
    records_below(top).iter().filter_map(|p| p.symlink_metadata().ok()).map(|m| m.blocks() * 512).sum()
}

fn records(root: &Path) -> Vec<PathBuf> {
    records_below(&root.join("data/t"))
}

/// Every regular file in a shard: `<tenant>/<epoch>/hh/hh/<file>`, in the trash `<generation>/<tenant@epoch>/...`.
fn records_below(top: &Path) -> Vec<PathBuf> {
    let mut level = vec![top.to_owned()];
    for depth in 0..5 {
        let mut next = Vec::new();
        for dir in level {
            for entry in std::fs::read_dir(dir).unwrap().map(|e| e.unwrap()) {
                let kind = entry.file_type().unwrap();
                if if depth < 4 { kind.is_dir() } else { kind.is_file() } {
                    next.push(entry.path());
                }
            }
        }
        level = next;
    }
    level
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

impl Random {
    fn bytes(&mut self, n: usize) -> Vec<u8> {
        let start = self.next();
        (0..n as u64).map(|i| (start.wrapping_add(i * i) >> 3) as u8).collect()
    }
}
