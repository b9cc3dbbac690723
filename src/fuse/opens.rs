//! What is open: one [`OpenNode`] an inode that the kernel has open, one [`Handle`] an open file, one [`Writing`] a
//! value on its way to publication.
//!
//! INVARIANT: all simultaneous opens of an inode carry the one backing id of its `OpenNode` (the kernel answers EIO
//! otherwise); it lives until the last RELEASE.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fuser::BackingId;
use parking_lot::{Condvar, Mutex};
use rustix::process::{Resource, getrlimit};

use super::handover::of_an_earlier_daemon;
use super::numbers::Incarnation;
use crate::config::limits;
use crate::error::{Error, Kind, Result};
use crate::format::legacy::Span;
use crate::os::{self, process};
use crate::store::tenants::Home;
use crate::store::{NodeId, Passing, Staged};

/// [`crate::Kind::Stale`] once a removal cancels what was admitted to a home.
fn admitted(home: &Home) -> Result<()> {
    home.fence.admits(home.epoch)
}

/// Refuses an open that would take one of the daemon's last descriptors: those are for the closes of what is open, which
/// have no other moment.
pub(super) fn spare_descriptors(file: &File) -> Result<()> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let spare = limits::SPARE_DESCRIPTORS.min(limit / 4);
    if u64::try_from(file.as_raw_fd()).is_ok_and(|fd| fd < limit - spare) {
        return Ok(());
    }
    Err(Error::os(format!("the daemon may have {limit} files open, and has"), rustix::io::Errno::MFILE))
}

/// A value being written, shared by every handle that writes it.
#[derive(Debug)]
pub(super) struct Writing {
    /// The value. Locked through a publication.
    pub(super) staged: Mutex<Staged>,
    /// Its open file, within reach also during a publication.
    pub(super) file: Arc<File>,
    /// The node that it becomes.
    pub(super) node: NodeId,
    /// Its checksum in the making, where it is to have one.
    passing: Option<Arc<Passing>>,
    /// What it was admitted to.
    pub(super) home: Arc<Home>,
    /// Where it will be published (a rename moves it).
    pub(super) place: Mutex<(NodeId, Box<[u8]>)>,
    /// Processes that opened it: they see it before it is published.
    openers: Mutex<Vec<u32>>,
    /// Handles that may still write.
    pub(super) handles: AtomicU32,
    /// Neither published nor given up yet.
    pub(super) unsettled: AtomicBool,
    /// An opener closed it while it was empty: the last close may be on its way.
    pub(super) flushed_empty: AtomicBool,
    /// The program that did so: a shell that sets up a redirection, if another program runs there later.
    redirected_by: Mutex<Option<String>>,
    /// It was created for reading and writing, as lock files are.
    read_write: bool,
    /// It was created below `by-key`: the kernel does not know of the entry that it becomes.
    pub(super) by_key: AtomicBool,
}

impl Writing {
    pub(super) fn new(staged: Staged, parent: NodeId, name: &[u8], opener: u32, flags: i32) -> Arc<Self> {
        Arc::new(Writing {
            file: Arc::clone(staged.file()),
            node: staged.node(),
            passing: staged.passing().cloned(),
            home: Arc::clone(staged.home()),
            staged: Mutex::new(staged),
            place: Mutex::new((parent, name.into())),
            openers: Mutex::new(vec![process::of_thread(opener)]),
            handles: AtomicU32::new(1),
            unsettled: AtomicBool::new(true),
            flushed_empty: AtomicBool::new(false),
            redirected_by: Mutex::new(None),
            read_write: flags & libc::O_ACCMODE == libc::O_RDWR,
            by_key: AtomicBool::new(false),
        })
    }

    /// Whether a thread's process has opened this value.
    pub(super) fn opened_by(&self, tid: u32) -> bool {
        self.openers.lock().iter().any(|&opener| process::same_process(opener, tid))
    }

    /// Whether a thread sees this value before it is published: those of the processes that opened it, and, of a
    /// lock file (read-write, still empty), those of their children.
    pub(super) fn seen_by(&self, tid: u32) -> bool {
        let is_lock_file = || self.read_write && self.is_empty();
        let inherits = || self.openers.lock().iter().any(|&opener| process::descends_from(tid, opener));
        self.opened_by(tid) || (is_lock_file() && inherits())
    }

    pub(super) fn is_empty(&self) -> bool {
        os::stat(&*self.file).is_ok_and(|a| a.size_bytes == 0)
    }

    /// An opener closed the value while it was empty.
    pub(super) fn note_empty_flush(&self, tid: u32) {
        if !self.flushed_empty.swap(true, Ordering::AcqRel) {
            *self.redirected_by.lock() = process::program(tid);
        }
    }

    /// Whether an end by this signal ends the value as it was meant to: a command whose output a shell redirects here
    /// and that is told to end (tail -f, a logger) has no other way. A program that opened the value by itself has.
    pub(super) fn ends_well(&self, signal: i32, program: &str) -> bool {
        let polite = matches!(signal, libc::SIGTERM | libc::SIGINT | libc::SIGHUP);
        polite && self.redirected_by.lock().as_deref().is_some_and(|shell| shell != program)
    }

    pub(super) fn join(&self, tid: u32) {
        let process = process::of_thread(tid);
        let mut openers = self.openers.lock();
        if !openers.contains(&process) {
            openers.push(process);
        }
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// These bytes are about to be written.
    pub(super) fn passes(&self, offset: u64, bytes: &[u8]) {
        if let Some(passing) = &self.passing {
            passing.passed(offset, bytes);
        }
    }

    /// Whether the checksum of a value of this length is known without reading it back.
    pub(super) fn has_passed(&self, size_bytes: u64) -> bool {
        self.passing.as_ref().is_some_and(|p| p.sum(size_bytes).is_some())
    }

    /// The file changes otherwise than by a write that came whole.
    pub(super) fn changes(&self) {
        if let Some(passing) = &self.passing {
            passing.changed();
        }
    }

    /// Sets the length.
    pub(super) fn truncate(&self, size_bytes: u64) -> Result<()> {
        if let Some(passing) = &self.passing {
            passing.cut(size_bytes);
        }
        os::truncate(&*self.file, size_bytes)
    }

    pub(super) fn is_unsettled(&self) -> bool {
        self.unsettled.load(Ordering::Acquire)
    }
}

/// An inode that is open.
#[derive(Debug)]
pub(super) struct OpenNode {
    pub(super) node: NodeId,
    /// The home that it was in when it was opened.
    home: Arc<Home>,
    /// What the kernel's inode is backed by: the record, or the staged value that created the inode.
    pub(super) file: Arc<File>,
    /// Where in `file` the value is, where that is not all of it: then the kernel never reads it by itself.
    pub(super) span: Option<Span>,
    /// The record that the value was copied into since.
    pub(super) moved: OnceLock<Arc<File>>,
    pub(super) backing: Option<BackingId>,
    /// The value that created this inode, if it was created while open.
    pub(super) writing: Option<Arc<Writing>>,
    opens: AtomicU32,
    /// Handles that edit in place.
    pub(super) edits: AtomicU32,
    /// Handles that the kernel caches.
    pub(super) cached: AtomicU32,
    /// Its value was empty when it was opened, and is kept from eviction.
    pub(super) held: AtomicBool,
}

impl OpenNode {
    pub(super) fn new(
        node: NodeId,
        home: Arc<Home>,
        (file, span): (Arc<File>, Option<Span>),
        backing: Option<BackingId>,
        writing: Option<Arc<Writing>>,
    ) -> Arc<Self> {
        Arc::new(OpenNode {
            node,
            home,
            file,
            span,
            moved: OnceLock::new(),
            backing,
            writing,
            opens: AtomicU32::new(0),
            edits: AtomicU32::new(0),
            cached: AtomicU32::new(0),
            held: AtomicBool::new(false),
        })
    }

    /// The value that created this inode, while it is neither published nor given up.
    pub(super) fn unsettled(&self) -> Option<&Arc<Writing>> {
        self.writing.as_ref().filter(|w| w.is_unsettled())
    }

    /// The home that it was in when it was opened.
    pub(super) fn home(&self) -> &Arc<Home> {
        &self.home
    }

    /// Where the value was when it was opened, if not in a record of the store.
    pub(super) fn attached(&self) -> Option<(&Arc<File>, Span)> {
        self.span.map(|span| (&self.file, span))
    }

    /// Whether a removal took it, or is about to.
    pub(super) fn is_cancelled(&self) -> bool {
        admitted(&self.home).is_err()
    }

    /// Whether its attributes may change without a request.
    pub(super) fn is_written(&self) -> bool {
        self.edits.load(Ordering::Relaxed) > 0
            || self.writing.as_ref().is_some_and(|w| w.handles.load(Ordering::Relaxed) > 0)
    }
}

/// An open file.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) open: Arc<OpenNode>,
    /// What this handle reads and writes.
    pub(super) file: Arc<File>,
    /// The value that it writes.
    pub(super) writing: Option<Arc<Writing>>,
    /// It replaces the value of the inode that it was opened on.
    pub(super) replaces: bool,
    /// The node that it edits in place: its inode's own, or the one that replaced it.
    pub(super) edits: Option<NodeId>,
    /// Writes go to the end.
    pub(super) appends: bool,
    /// The kernel reads it through its cache, by the inode's length.
    pub(super) cached: bool,
}

impl Handle {
    /// The node whose published value it may change in place.
    pub(super) fn edited(&self) -> Option<NodeId> {
        // Settled, so nobody holds the lock for long; what was given up is no key's value.
        let is_published =
            |w: &Writing| !w.is_unsettled() && w.staged.try_lock().is_some_and(|s| s.is_published());
        self.edits.or_else(|| self.writing.as_ref().filter(|w| is_published(w)).map(|w| w.node))
    }

    /// [`crate::Kind::Stale`] where the handle may write and a removal cancels what was admitted when it was opened. Readers go
    /// on undisturbed.
    pub(super) fn admitted(&self) -> Result<()> {
        match (&self.writing, self.edits) {
            (Some(writing), _) => admitted(&writing.home),
            (None, Some(_)) => admitted(&self.open.home),
            (None, None) => Ok(()),
        }
    }
}

pub(super) type Place = (NodeId, Box<[u8]>);

#[derive(Default)]
struct Tables {
    nodes: HashMap<NodeId, Arc<OpenNode>>,
    creating: HashMap<Place, Vec<Arc<OpenNode>>>,
    replacing: HashMap<NodeId, Vec<Arc<Writing>>>,
    handles: HashMap<u64, Arc<Handle>>,
    next_handle: u64,
}

/// The tables of everything open.
#[derive(Default)]
pub(super) struct Opens {
    tables: Mutex<Tables>,
    settled: Condvar,
    incarnation: Incarnation,
}

impl Opens {
    pub(super) fn new(incarnation: Incarnation) -> Self {
        Opens { incarnation, ..Opens::default() }
    }

    /// Why there is no handle of this number.
    pub(super) fn missing(&self, number: u64) -> Error {
        match self.incarnation.unmark(number) {
            Some(_) => Error::new(Kind::Io(libc::EBADF), "no such open file"),
            None => of_an_earlier_daemon(),
        }
    }

    /// The open inode of a node.
    pub(super) fn node(&self, id: NodeId) -> Option<Arc<OpenNode>> {
        self.tables.lock().nodes.get(&id).cloned()
    }

    /// Counts one more open of `fresh`'s node, through the entry that is there or else through `fresh`.
    pub(super) fn enter(&self, fresh: Arc<OpenNode>) -> Arc<OpenNode> {
        let mut tables = self.tables.lock();
        let open = tables.nodes.entry(fresh.node).or_insert(fresh);
        open.opens.fetch_add(1, Ordering::Relaxed);
        Arc::clone(open)
    }

    /// Counts one more open of a node that is open already.
    pub(super) fn enter_if_open(&self, id: NodeId) -> Option<Arc<OpenNode>> {
        let tables = self.tables.lock();
        let open = tables.nodes.get(&id)?;
        open.opens.fetch_add(1, Ordering::Relaxed);
        Some(Arc::clone(open))
    }

    /// One open fewer; the last one lets the backing file go. Whether it was the last.
    pub(super) fn leave(&self, open: &Arc<OpenNode>) -> bool {
        let mut tables = self.tables.lock();
        let last = open.opens.fetch_sub(1, Ordering::Relaxed) == 1;
        if last {
            tables.nodes.remove(&open.node);
            drop(tables);
            self.settled.notify_all();
        }
        last
    }

    /// Allocated bytes of what is open and has lost its name: the disk has them back at the last close.
    pub(super) fn unlinked_bytes(&self) -> u64 {
        let tables = self.tables.lock();
        let read = tables.nodes.values().map(|open| &open.file);
        let written = tables.handles.values().filter_map(|handle| Some(&handle.writing.as_ref()?.file));
        let mut files: Vec<_> = read.chain(written).map(Arc::clone).collect();
        drop(tables);
        files.sort_by_key(Arc::as_ptr);
        files.dedup_by(|a, b| Arc::ptr_eq(a, b));
        files.iter().map(|file| os::unlinked_bytes(&**file)).sum()
    }

    fn wait_while(&self, wait: Duration, busy: impl Fn(&Tables) -> bool) {
        let deadline = Instant::now() + wait;
        let mut tables = self.tables.lock();
        while busy(&tables) {
            if self.settled.wait_until(&mut tables, deadline).timed_out() {
                return;
            }
        }
    }

    pub(super) fn add_handle(&self, handle: Handle) -> u64 {
        let mut tables = self.tables.lock();
        tables.next_handle += 1;
        let number = self.incarnation.mark(tables.next_handle);
        tables.handles.insert(number, Arc::new(handle));
        number
    }

    pub(super) fn handle(&self, number: u64) -> Option<Arc<Handle>> {
        self.tables.lock().handles.get(&number).cloned()
    }

    pub(super) fn take_handle(&self, number: u64) -> Option<Arc<Handle>> {
        self.tables.lock().handles.remove(&number)
    }

    /// Registers an inode whose value is being created under a name.
    pub(super) fn add_creating(&self, place: Place, open: &Arc<OpenNode>) {
        self.tables.lock().creating.entry(place).or_default().push(Arc::clone(open));
    }

    /// Inodes being created under a name. What a removal cancelled is not among them: nobody may join it.
    pub(super) fn creating(&self, parent: NodeId, name: &[u8]) -> Vec<Arc<OpenNode>> {
        let mut creating = self.all_creating(parent, name);
        creating.retain(|open| !open.is_cancelled());
        creating
    }

    /// The same, with what a removal cancelled.
    pub(super) fn all_creating(&self, parent: NodeId, name: &[u8]) -> Vec<Arc<OpenNode>> {
        let tables = self.tables.lock();
        if tables.creating.is_empty() {
            return Vec::new();
        }
        tables.creating.get(&(parent, name.into())).cloned().unwrap_or_default()
    }

    /// Registers a value that will replace a node's.
    pub(super) fn add_replacing(&self, id: NodeId, writing: &Arc<Writing>) {
        self.tables.lock().replacing.entry(id).or_default().push(Arc::clone(writing));
    }

    /// Values that will replace a node's.
    pub(super) fn replacing(&self, id: NodeId) -> Vec<Arc<Writing>> {
        let tables = self.tables.lock();
        if tables.replacing.is_empty() {
            return Vec::new();
        }
        tables.replacing.get(&id).cloned().unwrap_or_default()
    }

    /// A value is published or given up: it is no longer on its way, and whoever waits for that goes on.
    pub(super) fn settle(&self, writing: &Arc<Writing>) {
        writing.unsettled.store(false, Ordering::Release);
        let mut tables = self.tables.lock();
        tables.creating.retain(|_, opens| {
            opens.retain(|o| !o.writing.as_ref().is_some_and(|w| Arc::ptr_eq(w, writing)));
            !opens.is_empty()
        });
        tables.replacing.retain(|_, writings| {
            writings.retain(|w| !Arc::ptr_eq(w, writing));
            !writings.is_empty()
        });
        drop(tables);
        self.settled.notify_all();
    }

    /// Moves a value that is being created to another name.
    pub(super) fn move_creating(&self, open: &Arc<OpenNode>, from: &Place, to: Place) {
        let mut tables = self.tables.lock();
        if let Some(opens) = tables.creating.get_mut(from) {
            opens.retain(|o| !Arc::ptr_eq(o, open));
            if opens.is_empty() {
                tables.creating.remove(from);
            }
        }
        tables.creating.entry(to).or_default().push(Arc::clone(open));
    }

    /// Waits until nothing is being created under a name any more, at most `wait`.
    pub(super) fn wait_settled(&self, parent: NodeId, name: &[u8], wait: Duration) {
        let place = (parent, Box::from(name));
        self.wait_while(wait, |tables| tables.creating.contains_key(&place));
    }

    /// Waits until nothing replaces a node any more, at most `wait`.
    pub(super) fn wait_replaced(&self, id: NodeId, wait: Duration) {
        self.wait_while(wait, |tables| tables.replacing.contains_key(&id));
    }

    /// The nodes that are open.
    pub(super) fn nodes(&self) -> Vec<NodeId> {
        self.tables.lock().nodes.keys().copied().collect()
    }

    /// Whether anything is open but for reading by the kernel itself: it would fail if the daemon were not there any more.
    pub(super) fn need_the_daemon(&self) -> bool {
        let tables = self.tables.lock();
        let needs = |h: &Arc<Handle>| h.edits.is_some() || h.writing.is_some() || h.open.backing.is_none();
        tables.handles.values().any(needs)
    }

    /// Gives up everything that is still being written: the mount is going away.
    pub(super) fn discard_all(&self) {
        let handles: Vec<_> = self.tables.lock().handles.drain().map(|(_, h)| h).collect();
        for writing in handles.iter().filter_map(|h| h.writing.as_ref()) {
            writing.staged.lock().discard();
        }
    }
}
