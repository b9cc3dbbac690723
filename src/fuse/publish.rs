//! Close-to-open: when a value that is being written becomes the value of its key.
//!
//! It is published when the process that opened it closes it (FLUSH from that process, if it holds anything: a shell
//! redirect sends an empty one before its first write), when it is renamed, else at the last close (RELEASE). A
//! writer that is ended by a signal publishes nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Fs;
use super::opens::Writing;
use super::work::{Job, Notice};
use crate::config::{Durability, limits};
use crate::error::{Error, Kind, Result};
use crate::os::{self, process};
use crate::store::NodeId;

/// A name whose cached entry the kernel must forget before a close returns.
pub(super) type Stale = Option<(NodeId, Box<[u8]>)>;

impl Fs {
    /// What a FLUSH by thread `tid` does to a value being written.
    pub(super) fn flush_writing(&self, writing: &Arc<Writing>, tid: u32) -> Result<Stale> {
        if !writing.is_unsettled() {
            let staged = writing.staged.lock();
            if staged.is_doomed() && !staged.is_published() {
                return Err(Error::new(Kind::NoSpace, "the value was emptied: it had outgrown the quota"));
            }
            drop(staged);
            // What was written since the publication went in place, and a close makes it as durable.
            if self.store.settings().durability == Durability::Fsync {
                os::sync_file(&*writing.file)?;
            }
            return Ok(None);
        }
        if !writing.opened_by(tid) {
            return Ok(None);
        }
        if let process::Fate::Killed { signal, program } = process::fate(tid)
            && !writing.ends_well(signal, &program)
        {
            self.give_up(writing);
            return Ok(None);
        }
        if writing.is_empty() && !writing.staged.lock().is_doomed() {
            writing.note_empty_flush(tid);
            return Ok(None);
        }
        self.publish(writing, true)
    }

    /// What the last close of a value being written does.
    pub(super) fn finish_writing(&self, writing: &Arc<Writing>) -> Result<Stale> {
        if writing.is_unsettled() {
            return self.publish(writing, false);
        }
        let staged = writing.staged.lock();
        if staged.is_published() { self.store.end_writing(&staged).map(|()| None) } else { Ok(None) }
    }

    /// Publishes a value. Whatever goes wrong is the close's error, and the value is given up; but for a fence that is
    /// held for a moment, which leaves all as it was.
    pub(super) fn publish(&self, writing: &Arc<Writing>, still_open: bool) -> Result<Stale> {
        let (parent, name) = writing.place.lock().clone();
        let published = {
            let mut staged = writing.staged.lock();
            if !staged.is_staged() {
                return Ok(None);
            }
            self.store.publish(&mut staged, still_open)
        };
        let replaced = match published {
            Ok(replaced) => replaced,
            // Nothing has happened: it may be tried again.
            Err(e) if e.kind() == Kind::Busy => return Err(e),
            Err(e) => {
                self.give_up(writing);
                return Err(e);
            }
        };
        self.opens.settle(writing);
        self.listing_changed(parent);
        // The kernel may hold the entry as the replaced inode, or as absent while nobody was creating it.
        let created_here = self.opens.node(writing.node).is_some() && !writing.by_key.load(Ordering::Relaxed);
        Ok((replaced.is_some() || !created_here).then_some((parent, name)))
    }

    /// Gives a value up: nothing of it appears.
    pub(super) fn give_up(&self, writing: &Arc<Writing>) {
        let mut staged = writing.staged.lock();
        if staged.is_staged() {
            self.store.counters.abandoned.fetch_add(1, Ordering::Relaxed);
        }
        staged.discard();
        drop(staged);
        self.opens.settle(writing);
    }

    /// Whether publishing this value may take long: then it happens beside the event loop.
    pub(super) fn publishes_slowly(&self, writing: &Writing) -> bool {
        if self.store.settings().durability == Durability::Fsync {
            return true;
        }
        if !writing.is_unsettled() && !self.store.keeps_checksums() {
            return false;
        }
        let attr = os::stat(&*writing.file).unwrap_or_default();
        if self.is_summed_slowly(attr.size_bytes) && !writing.has_passed(attr.size_bytes) {
            return true;
        }
        writing.is_unsettled() && self.store.must_evict_for(attr.allocated_bytes())
    }

    /// Whether reading a value of this length for its checksum would hold others up.
    pub(super) fn is_summed_slowly(&self, size_bytes: u64) -> bool {
        self.store.keeps_checksums() && size_bytes > limits::SUMMED_INLINE_BYTES
    }

    /// Runs `then` once the kernel has forgotten a stale entry; at once where there is none.
    pub(super) fn after_forgetting(self: &Arc<Self>, stale: Stale, then: Job) {
        let Some((parent, name)) = stale else { return then() };
        self.stale.lock().push((parent, name.clone()));
        let (fs, entry) = (Arc::clone(self), (parent, name.clone()));
        let then = Box::new(move || {
            let mut stale = fs.stale.lock();
            if let Some(at) = stale.iter().position(|s| *s == entry) {
                stale.swap_remove(at);
            }
            drop(stale);
            then();
        });
        self.notice(Notice::Entry { parent: self.ino(parent), name, then: Some(then) });
    }

    /// Whether the kernel may still take an entry for what it was.
    pub(super) fn is_stale(&self, parent: NodeId, name: &[u8]) -> bool {
        self.stale.lock().iter().any(|(p, n)| *p == parent && **n == *name)
    }
}
