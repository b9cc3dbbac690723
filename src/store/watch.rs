//! The watch: the thread that looks at the values being written, since where the kernel writes, nothing stops a writer
//! before its close.
//!
//! Values in staging count with what they occupy; values that are edited in place with what they have grown since usage
//! last counted them, or, when their key is gone, with all of it. One that can never fit is emptied, and so is the
//! largest while all of them together pass the quota: what is being written ends at the quota plus what is written between
//! two looks, and so does what a writer adds to a value that was given up. A published value is taken from its readers
//! first: the key is evicted. The nearer the bytes are to the quota, the more often the watch looks; what it empties it
//! does not wait for.

use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use super::Store;
use super::fate::Fate;
use super::index::NodeId;
use super::room::Reason;
use super::rounds::{Bell, start_thread};
use super::tenants::Home;
use crate::config::limits;
use crate::error::Result;
use crate::os;

/// A value in staging.
struct Staging {
    home: Arc<Home>,
    file: Weak<File>,
    fate: Weak<Fate>,
}

/// A value that is edited in place, until its last editor is gone.
struct Edited {
    file: Arc<File>,
    fate: Arc<Fate>,
    editors: u32,
    /// What it occupied at a look, and since when.
    seen: (u64, Instant),
}

#[derive(Default)]
struct Written {
    /// By name in staging.
    staged: HashMap<String, Staging>,
    edited: HashMap<NodeId, Edited>,
}

impl Written {
    fn is_empty(&self) -> bool {
        self.staged.is_empty() && self.edited.is_empty()
    }
}

/// What is watched, and what wakes the watch.
#[derive(Default)]
pub(super) struct Watch {
    written: Mutex<Written>,
    /// Values are being written, or were lately: the watch and the keeper look often, and need not be woken for one more.
    looking: AtomicBool,
    /// They have come near the quota: the next look is soon.
    near: AtomicBool,
    bell: Bell,
}

impl Watch {
    pub(super) fn is_looking(&self) -> bool {
        self.looking.load(Ordering::Acquire)
    }

    pub(super) fn stop(&self) {
        self.bell.stop();
    }

    /// Whether nothing is being written, so that whoever begins wakes the watch; else it goes on looking.
    pub(super) fn may_rest(&self) -> bool {
        stall!("watch.rest");
        self.looking.store(false, Ordering::SeqCst);
        // Who came before this woke nobody: asked after it, or the watch would sleep beside a writer at full speed.
        let rests = self.written.lock().is_empty();
        if !rests {
            self.looking.store(true, Ordering::SeqCst);
        }
        rests
    }

    fn edit(&self, id: NodeId, file: &Arc<File>) {
        let new =
            || Edited { file: Arc::clone(file), fate: Arc::default(), editors: 0, seen: (0, Instant::now()) };
        self.written.lock().edited.entry(id).or_insert_with(new).editors += 1;
    }
}

/// One value at one look.
struct Look {
    /// What it occupies beside what usage counts.
    bytes: u64,
    allocated_bytes: u64,
    file: Arc<File>,
    fate: Arc<Fate>,
    /// The node whose value is edited in place.
    edited: Option<NodeId>,
}

impl Store {
    pub(super) fn watch_staged(&self, home: &Arc<Home>, name: &str, file: &Arc<File>, fate: &Arc<Fate>) {
        let (home, file, fate) = (Arc::clone(home), Arc::downgrade(file), Arc::downgrade(fate));
        self.watch.written.lock().staged.insert(name.to_owned(), Staging { home, file, fate });
        self.wake_watch();
    }

    /// Nobody writes a value in staging any more.
    pub(super) fn forget_staged(&self, name: &str) {
        self.watch.written.lock().staged.remove(name);
    }

    /// One more may change the value of a node in place, until [`Store::forget_edited`].
    pub(super) fn watch_edited(&self, id: NodeId, file: &Arc<File>) {
        self.watch.edit(id, file);
        self.wake_watch();
    }

    pub(super) fn forget_edited(&self, id: NodeId) {
        let mut written = self.watch.written.lock();
        if let Some(edited) = written.edited.get_mut(&id) {
            edited.editors = edited.editors.saturating_sub(1);
            if edited.editors == 0 {
                written.edited.remove(&id);
            }
        }
    }

    /// Whether a value that is edited in place has outgrown the quota, and is lost.
    pub(super) fn is_edit_lost(&self, id: NodeId) -> bool {
        self.watch.written.lock().edited.get(&id).is_some_and(|e| e.fate.is_doomed())
    }

    /// The watch is to take a value away that is edited in place.
    pub(super) fn doom_edit(&self, id: NodeId) {
        if let Some(edited) = self.watch.written.lock().edited.get(&id) {
            edited.fate.doom();
        }
    }

    fn wake_watch(&self) {
        if !self.watch.looking.swap(true, Ordering::SeqCst) {
            self.watch.bell.wake();
            self.wake_keeper();
        }
    }

    /// Names in staging of values that were admitted under a home's epoch.
    fn staged_under(&self, home: &Home) -> Vec<String> {
        let written = self.watch.written.lock();
        let of_home = |w: &Staging| (w.home.number, w.home.epoch) == (home.number, home.epoch);
        written.staged.iter().filter(|(_, w)| of_home(w)).map(|(name, _)| name.clone()).collect()
    }

    /// Unlinks the values being written under an epoch that is over: they can never be published. Whoever writes them
    /// keeps the open file, and is watched as before.
    pub(super) fn give_up_staged(&self, home: &Home) -> Result<()> {
        self.staged_under(home).iter().try_for_each(|name| {
            step!("removal.staged");
            self.staging.unlink(name).map(drop)
        })
    }

    /// A value in staging that was admitted under a home's epoch, if one is left.
    pub(super) fn staged_below(&self, home: &Home) -> Result<Option<String>> {
        for name in self.staged_under(home) {
            if self.staging.stat(&name)?.is_some() {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Starts the watch: a thread of its own, since a round of evictions may take long, and a look that comes late is a
    /// fuller disk. It ends with the store.
    pub(super) fn start_watch(self: &Arc<Self>) -> Result<()> {
        let (store, watch) = (Arc::downgrade(self), Arc::clone(&self.watch));
        let run = move || {
            os::process::stand_back(limits::WATCH_NICE);
            let (mut idle_looks, mut looking) = (0, false);
            loop {
                let asked = !looking && watch.is_looking();
                let writing = !watch.written.lock().is_empty();
                idle_looks = if writing || asked { 0 } else { idle_looks + 1 };
                looking = idle_looks < limits::IDLE_LOOKS || !watch.may_rest();
                let wait = match watch.near.load(Ordering::Relaxed) {
                    true => limits::STAGED_POLL_NEAR,
                    false if looking => limits::STAGED_POLL,
                    false => limits::IDLE_POLL,
                };
                if !watch.bell.wait(wait) {
                    return;
                }
                let Some(store) = store.upgrade() else { return };
                store.look_at_written();
            }
        };
        start_thread("fencefs-watch", run)
    }

    /// Looks at the values being written: what they occupy, and which can never be kept.
    pub(super) fn look_at_written(self: &Arc<Self>) {
        let (mut looks, mut lost) = self.looks();
        let (quota, watched) = (self.quota_bytes(), looks.len() + lost.len());
        self.count_what_rests(&looks);
        // Those that are lost already go first, and the largest of them.
        looks.sort_by_key(|l| (l.fate.is_doomed(), l.bytes));
        let mut sum: u64 = looks.iter().map(|l| l.bytes).sum();
        let is_lost = |last: Option<&Look>| last.is_some_and(|l| l.fate.is_doomed());
        let near = sum > 0 && sum.saturating_add(limits::STAGED_RUSH_BYTES) > quota;
        while (sum > quota || sum > quota / 2 && is_lost(looks.last()))
            && let Some(look) = looks.pop()
        {
            sum -= look.bytes;
            lost.push(look);
        }
        for (n, look) in lost.iter().enumerate() {
            self.empty(look, n < limits::EMPTIED_AT_ONCE);
        }
        let near = (near || !lost.is_empty()) && watched <= limits::WATCHED_CLOSELY;
        self.watch.near.store(near, Ordering::Relaxed);
        self.staged_bytes.store(sum, Ordering::Relaxed);
    }

    /// What is being written, and of that what can never be kept.
    fn looks(&self) -> (Vec<Look>, Vec<Look>) {
        let (mut looks, quota, largest) = (Vec::new(), self.quota_bytes(), self.largest_value_bytes());
        {
            let written = self.watch.written.lock();
            let staged = written.staged.values().filter_map(|w| w.file.upgrade().zip(w.fate.upgrade()));
            let edited = written.edited.iter();
            looks.extend(staged.map(|(file, fate)| (file, fate, None)));
            looks.extend(edited.map(|(id, e)| (Arc::clone(&e.file), Arc::clone(&e.fate), Some(*id))));
        }
        let full = !looks.is_empty() && self.disk_is_full();
        let (mut kept, mut lost) = (Vec::new(), Vec::new());
        for (file, fate, edited) in looks {
            let Ok(attr) = os::stat_unsettled(&*file) else { continue };
            let allocated_bytes = attr.allocated_bytes();
            let counted = edited.and_then(|id| self.counted(id));
            let bytes = allocated_bytes.saturating_sub(counted.as_ref().map_or(0, |c| c.bytes));
            let pinned = counted.as_ref().filter(|c| c.pinned).map_or(0, |c| c.bytes);
            // What is edited in place was written by somebody who saw that the disk was full.
            let missed = full && (edited.is_none() || bytes >= limits::EDIT_ON_FULL_DISK_BYTES);
            let outgrown = allocated_bytes > largest.saturating_add(pinned).min(quota);
            let doomed = counted.is_some() && fate.is_doomed();
            let to =
                if missed || outgrown || doomed || fate.is_being_emptied() { &mut lost } else { &mut kept };
            to.push(Look { bytes, allocated_bytes, file, fate, edited });
        }
        (kept, lost)
    }

    /// What usage counts of a value, if it is still there.
    fn counted(&self, id: NodeId) -> Option<Counted> {
        let index = self.index.lock();
        index.linked(id).ok().map(|n| Counted { bytes: n.blocks * 512, pinned: n.pinned })
    }

    /// Growth in place that has come to rest counts as used, also while its editor stays: a database may for days. Growth
    /// that goes on does not, or a writer without end would have every other key evicted before it is stopped.
    fn count_what_rests(&self, looks: &[Look]) {
        let mut rested = Vec::new();
        {
            let mut written = self.watch.written.lock();
            for look in looks {
                let edited = look.edited.and_then(|id| Some((id, written.edited.get_mut(&id)?)));
                let Some((id, edited)) = edited else { continue };
                if edited.seen.0 != look.allocated_bytes {
                    edited.seen = (look.allocated_bytes, Instant::now());
                } else if look.bytes > 0 && edited.seen.1.elapsed() >= limits::EDIT_RESTS {
                    rested.push((id, look));
                }
            }
        }
        for (id, look) in rested {
            if let Err(e) = self.recount(id, &look.file) {
                log::debug!("a value that is edited in place is counted at its close: {e}");
            } else if self.over_high(&self.index.lock()) {
                self.wake_keeper();
            }
        }
    }

    fn empty(self: &Arc<Self>, look: &Look, beside: bool) {
        let (store, edited) = (Arc::downgrade(self), look.edited);
        let remove =
            move || edited.is_none_or(|id| store.upgrade().is_some_and(|store| store.evict_edited(id)));
        look.fate.empty(&look.file, beside, remove);
    }

    /// Evicts a value under its editors, if it is still there; whether it is gone.
    pub(super) fn evict_edited(&self, id: NodeId) -> bool {
        if self.index.lock().linked(id).is_err() {
            return true;
        }
        match self.evict(id, Reason::Overgrown) {
            Ok(true) => {
                log::warn!("a value that was edited in place has outgrown the quota and is evicted");
                true
            }
            // A removal, or whoever moves it, is faster; the next look finds out.
            Ok(false) => self.index.lock().linked(id).is_err(),
            Err(e) => {
                log::warn!("a value that has outgrown the quota in place cannot be evicted: {e}");
                false
            }
        }
    }
}

struct Counted {
    bytes: u64,
    pinned: bool,
}
