//! What the store tells the mount: entries that are gone or live for a shorter time than was said, tenants that were
//! emptied, fences that opened.
//!
//! The thread that listens waits for no lock that a request may hold which waits for a fence itself; such
//! notifications go to a thread of their own.

use std::collections::HashSet;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use fuser::{INodeNo, Notifier};

use super::Fs;
use super::work::{Notice, forget_entry, thread};
use crate::error::Result;
use crate::store::{Event, NodeId, ROOT};

/// How long a removal waits for entries whose directories are locked in the kernel. What is left then is refused by its
/// attributes.
const ENTRIES_WAIT: Duration = Duration::from_millis(20);

/// How long no node is let go of until a removal takes the rest for held.
const FORGETS_WAIT: Duration = Duration::from_millis(2);

/// Starts the thread that hands the store's events to the kernel.
pub(super) fn start(fs: &Arc<Fs>, notifier: Notifier) -> Result<()> {
    let events = fs.store.subscribe();
    let fs = Arc::downgrade(fs);
    thread("fencefs-events", move || {
        while let Ok(event) = events.recv() {
            let Some(fs) = fs.upgrade() else { return };
            match event {
                Event::Gone { parent, name, node } => {
                    stall!("events.gone");
                    fs.listing_changed(parent);
                    fs.forget_attributes(node);
                    fs.notice_later(Notice::Entry { parent: fs.ino(parent), name, then: None });
                }
                Event::Emptied { directory, name, known, forgotten } => {
                    fs.forget_removed(&notifier, directory, &name, known);
                    drop(forgotten);
                }
                Event::Ages { parent, name, node } => {
                    fs.forget_attributes(node);
                    fs.notice_later(Notice::Entry { parent: fs.ino(parent), name, then: None });
                }
                Event::Opened => fs.fences.change(),
            }
        }
    })
}

impl Fs {
    /// Has the kernel forget everything below a tenant's directory.
    ///
    /// Forgetting the tenant's entry drops all that nobody holds. A file that is open and a directory that a process
    /// works in stay in the kernel's tree: without attributes, so that it asks, and is told that there is nothing.
    fn forget_removed(&self, notifier: &Notifier, directory: NodeId, name: &[u8], known: Vec<NodeId>) {
        self.drop_notes(&known);
        self.listed.lock().remove(&directory);
        self.forget_attributes(directory);
        if self.top == ROOT {
            // Nothing that waits for a fence holds the lock of the root directory.
            forget_entry(notifier, INodeNo(ROOT.0), name);
        }
        let held = self.still_held(known);
        for id in &held {
            self.forget_attributes(*id);
        }
        self.forget_entries(&held);
    }

    /// Waits while the kernel lets go of nodes: most go with the entry above them, and nobody need be told of those.
    fn still_held(&self, mut known: Vec<NodeId>) -> Vec<NodeId> {
        let mut before = usize::MAX;
        while !known.is_empty() && known.len() < before {
            before = known.len();
            std::thread::sleep(FORGETS_WAIT);
            known.retain(|id| self.store.exists(*id));
        }
        known
    }

    /// Then the entries themselves, which also ends look-ups that were answered before. Each takes the lock of a
    /// directory that somebody may hold who waits for this very removal.
    fn forget_entries(&self, known: &[NodeId]) {
        let (tell, told) = mpsc::channel::<()>();
        for (parent, name) in known.iter().filter_map(|id| self.store.last_place(*id).ok()) {
            if self.store.child(parent, &name).is_none() {
                let tell = tell.clone();
                let then = Some(Box::new(move || drop(tell)) as super::work::Job);
                self.notice_later(Notice::Entry { parent: self.ino(parent), name, then });
            }
        }
        drop(tell);
        if told.recv_timeout(ENTRIES_WAIT) == Err(mpsc::RecvTimeoutError::Timeout) {
            log::debug!("a directory of a removed tenant is locked: its entries are forgotten later");
        }
    }

    /// Drops what the mount noted about nodes that are no more.
    fn drop_notes(&self, gone: &[NodeId]) {
        let gone: HashSet<NodeId> = gone.iter().copied().collect();
        self.uncached.lock().nodes.retain(|id| !gone.contains(id));
        self.listed.lock().retain(|id| !gone.contains(id));
        self.stale.lock().retain(|(parent, _)| !gone.contains(parent));
    }
}
