//! The store engine: records, index, quota, eviction, fence and recovery. It knows nothing of FUSE.
//!
//! Lock order: a tenant's fence (lease), then the key locks (two in ascending order), then the index, then the
//! keeper's. The index lock is never held over I/O.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

use parking_lot::{Mutex, MutexGuard};

use crate::config::{Durability, StoreSettings};
use crate::error::{Error, Result};
use crate::format::layout;
use crate::ledger::{Pending, StorageFile};
use crate::os::{self, Dir};
use object::Place;

mod checkpoint;
pub mod children;
pub mod content;
mod deadlines;
pub mod edit;
pub mod evict;
mod fate;
pub mod fence;
mod fill;
pub mod fsck;
mod hidden;
pub mod import;
pub mod index;
mod jobs;
mod keeper;
mod known;
pub mod legacy;
mod listing;
pub mod names;
pub mod node;
pub mod object;
mod order_file;
pub mod proof;
pub mod remove;
pub mod room;
mod root;
mod rounds;
mod scan;
pub mod status;
pub mod tenant_limits;
pub mod tenants;
#[cfg(test)]
mod tests;
mod trash;
pub mod ttl;
pub mod unspelled;
mod uses;
pub mod victims;
mod walkers;
mod watch;
pub mod writer;

pub use content::Passing;
pub use edit::SetAttr;
pub use evict::Opener;
pub use index::{NOWHERE, NodeId, ROOT};
pub use known::{KnownDirectory, Names};
pub use listing::{ListEntry, Listing};
pub use names::NodeAttr;
pub use remove::Removal;
pub use root::StoreRoot;
pub use writer::{Owner, Staged};

/// On the data directory, once any record has an ACL.
const ACLS_XATTR: &str = "user.fencefs.acls";

/// Something that happened below whoever caches the namespace, and that it did not ask for.
#[derive(Debug)]
pub enum Event {
    /// The entry `name` of `parent` is gone (evicted, or its record vanished).
    Gone {
        /// The directory.
        parent: NodeId,
        /// The entry.
        name: Box<[u8]>,
        /// The node that it was.
        node: NodeId,
    },
    /// A removal took everything below a tenant's directory. It goes on when `forgotten` is dropped: by then nobody may
    /// believe any more that one of the nodes exists.
    Emptied {
        /// The tenant's directory, which stays.
        directory: NodeId,
        /// Its name in the root.
        name: Box<[u8]>,
        /// The nodes below it that somebody still refers to.
        known: Vec<NodeId>,
        /// Dropped when all is forgotten.
        forgotten: mpsc::Sender<()>,
    },
    /// A key lives for a shorter time than was said: whoever remembers it asks again.
    Ages {
        /// The directory.
        parent: NodeId,
        /// The entry.
        name: Box<[u8]>,
        /// The node that it is.
        node: NodeId,
    },
    /// A fence opened: whoever was refused with [`crate::Kind::Busy`] may come back.
    Opened,
}

/// Locks by key: whoever moves, opens or removes a record holds its lock, so that a name and a file agree. A value and
/// a directory of one name have one lock: only one of them can be there.
struct KeyLocks([Mutex<()>; 256]);

impl KeyLocks {
    fn stripe(place: &Place) -> usize {
        place.name.low() as usize % 256
    }

    fn lock(&self, place: &Place) -> MutexGuard<'_, ()> {
        self.0[Self::stripe(place)].lock()
    }

    fn lock_two(&self, a: &Place, b: &Place) -> (MutexGuard<'_, ()>, Option<MutexGuard<'_, ()>>) {
        let (low, high) = (Self::stripe(a).min(Self::stripe(b)), Self::stripe(a).max(Self::stripe(b)));
        let first = self.0[low].lock();
        (first, (high != low).then(|| self.0[high].lock()))
    }
}

/// An open store.
pub struct Store {
    root: StoreRoot,
    data: Dir,
    staging: Dir,
    trash: Dir,
    quarantine_dir: Dir,
    tenants_dir: Dir,
    settings: StoreSettings,
    daemon_uid: u32,
    daemon_gid: u32,
    quota: AtomicU64,
    staged_bytes: AtomicU64,
    serial: AtomicU64,
    /// Some record has an ACL.
    acls: AtomicBool,
    index: Mutex<index::Index>,
    keys: KeyLocks,
    edits: content::Edits,
    ttls: ttl::Ttls,
    /// A legacy directory that is served beside the store's own records.
    attached: Option<legacy::Attached>,
    /// The last daemon left the store without a clean stop.
    unclean: bool,
    tenant_changes: Mutex<()>,
    /// The scopes that are being removed.
    scopes: Mutex<remove::Scopes>,
    /// What the last proof of ownership has looked into.
    proven: Mutex<Arc<proof::Proven>>,
    /// The store is being closed: long work ends where it is.
    stopping: AtomicBool,
    /// Something failed between the disk and the index: the next start looks at the disk.
    doubted: AtomicBool,
    /// What wakes the keeper.
    keeper: Arc<rounds::Bell>,
    watch: Arc<watch::Watch>,
    order_saved: Mutex<order_file::Saved>,
    events: Mutex<Option<mpsc::Sender<Event>>>,
    /// What went wrong last beside an operation, for the status.
    last_error: Mutex<Option<String>>,
    /// Counters since the store was opened.
    pub counters: status::Counters,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({})", self.root.path.display())
    }
}

impl Store {
    /// Recovers a store. The scopes that are `pending` stay closed and unscanned until [`Store::open_scope`].
    /// `progress` is called with a phase and a count.
    pub fn open(
        root: StoreRoot,
        settings: &StoreSettings,
        pending: &[Pending],
        progress: &mut dyn FnMut(&str, u64),
    ) -> Result<Arc<Store>> {
        let attached = legacy::attach(&root, settings.attach.as_ref(), pending)?;
        let data = root.data()?;
        let stop = checkpoint::take_mark(&data)?;
        let tenants_dir = data.ensure_dir(layout::TENANTS, 0o755)?;
        let space = data.space()?;
        let quota = settings.quota.size_bytes.unwrap_or(space.total_bytes / 10 * 9);
        let root_attr = tenants::dir_attr(&tenants_dir.attr()?);
        let now = os::Timespec::now();
        let serial = (now.sec as u64).wrapping_mul(1_000_000_000).wrapping_add(u64::from(now.nsec));
        let acls = os::xattr_get(&data, ACLS_XATTR, 8)?.is_some();
        let ttls = ttl::Ttls::of(&data)?;
        let unclean = content::note_open(&data)?;
        let policy = if settings.evicts { evict::new } else { evict::keeping_all };
        let order = evict::Order::new(policy(settings.policy, settings.evict));
        let store = Arc::new(Store {
            staging: data.ensure_dir(layout::STAGING, 0o700)?,
            trash: data.ensure_dir(layout::TRASH, 0o700)?,
            quarantine_dir: data.ensure_dir(layout::QUARANTINE, 0o700)?,
            tenants_dir,
            data,
            root,
            settings: settings.clone(),
            daemon_uid: rustix::process::geteuid().as_raw(),
            daemon_gid: rustix::process::getegid().as_raw(),
            quota: AtomicU64::new(quota),
            staged_bytes: AtomicU64::new(0),
            // From the clock, so that names from before a restart are not used again.
            serial: AtomicU64::new(serial),
            acls: AtomicBool::new(acls),
            index: Mutex::new(index::Index::new(order, root_attr)),
            keys: KeyLocks(std::array::from_fn(|_| Mutex::new(()))),
            edits: content::Edits::new(),
            ttls,
            attached,
            unclean,
            tenant_changes: Mutex::new(()),
            scopes: Mutex::new(remove::Scopes::new(pending)),
            proven: Mutex::default(),
            stopping: AtomicBool::new(false),
            doubted: AtomicBool::new(false),
            keeper: Arc::default(),
            watch: Arc::default(),
            order_saved: order_file::Saved::now(),
            events: Mutex::new(None),
            last_error: Mutex::new(None),
            counters: status::Counters::default(),
        });
        store.load_tenants()?;
        store.check_reserves(quota)?;
        store.recover(stop, progress)?;
        store.ttls.start_round();
        // A wrong sum is no reason to keep the store shut.
        if let Err(e) = store.count_removed() {
            store.note_error(format!("cannot count what removals have yet to delete: {e}"));
        }
        store.start_watch()?;
        store.start_keeper()?;
        store.wake_keeper();
        Ok(store)
    }

    /// Ends every mutation and writes what a clean stop leaves. Called once, after the last mount is gone.
    pub fn close(&self) -> Result<()> {
        self.stop_keeper();
        self.settle_order();
        self.write_stop()?;
        self.note_clean()
    }

    /// Ends the threads that go their rounds.
    fn stop_keeper(&self) {
        self.keeper.stop();
        self.watch.stop();
    }

    /// Where the store is.
    pub fn path(&self) -> &Path {
        &self.root.path
    }

    /// What the storage keeps of itself.
    pub fn storage(&self) -> &Arc<StorageFile> {
        &self.root.storage
    }

    /// How it was opened.
    pub fn settings(&self) -> &StoreSettings {
        &self.settings
    }

    /// The events from now on, for the one that caches the namespace.
    pub fn subscribe(&self) -> mpsc::Receiver<Event> {
        let (sender, receiver) = mpsc::channel();
        *self.events.lock() = Some(sender);
        receiver
    }

    /// A file of the store's filesystem without a name, to try things with.
    pub fn probe_file(&self) -> Result<std::fs::File> {
        let name = format!("probe.{}", self.next_serial());
        let file = self.staging.create_file(&name, 0o600)?;
        self.staging.unlink(&name)?;
        Ok(file)
    }

    /// Makes every name durable: fsync of a directory.
    pub fn sync_names(&self) -> Result<()> {
        rustix::fs::syncfs(&self.data).map_err(|e| Error::os("cannot sync the store", e))
    }

    fn tell_gone(&self, parent: NodeId, name: &[u8], node: NodeId) {
        self.tell(Event::Gone { parent, name: name.into(), node });
    }

    fn tell(&self, event: Event) {
        if let Some(listener) = &*self.events.lock()
            && listener.send(event).is_err()
        {
            log::debug!("nobody caches the namespace any more");
        }
    }

    fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    fn durable(&self) -> bool {
        self.settings.durability == Durability::Fsync
    }

    /// Replaces a small file at the root of the store, durably.
    fn replace_root_file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        root::write_root_file(&self.root.dir, name, bytes)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.stop_keeper();
    }
}
