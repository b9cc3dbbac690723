//! The keeper: the thread that evicts between the watermarks, brings tenants back under their quotas, keeps space free on
//! the disk and deletes keys whose time is over. Beside it the watch, which looks at the values being written.
//!
//! A value that can never fit is emptied, and so is the largest while all of them together pass the quota: staged bytes
//! end at the quota plus what is written between two looks. Where the kernel writes, nothing stops a
//! writer before its close: the same goes for what it writes after that. The nearer the bytes are to the quota, the more
//! often the watch looks; what it empties it does not wait for.

use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Store;
use super::fate::Fate;
use super::room::Reason;
use super::tenants::Home;
use super::victims::Search;
use crate::config::limits;
use crate::error::{Error, Result};
use crate::os;

/// A value being written, as the keeper sees it.
pub(super) struct Watched {
    home: Arc<Home>,
    file: Weak<File>,
    fate: Weak<Fate>,
}

/// What wakes the keeper, and what it watches.
#[derive(Default)]
pub(super) struct Keeper {
    staged: Mutex<HashMap<String, Watched>>,
    /// Values are being written, or were lately: both look often, and need not be woken for one more.
    looking: AtomicBool,
    /// They have come near the quota: the next look is soon.
    near: AtomicBool,
    evict: Bell,
    look: Bell,
}

/// What a thread waits at between its rounds.
#[derive(Default)]
struct Bell {
    rung: Mutex<Rung>,
    waiting: Condvar,
}

#[derive(Default)]
struct Rung {
    again: bool,
    stop: bool,
}

impl Bell {
    fn wake(&self) {
        self.rung.lock().again = true;
        self.waiting.notify_one();
    }

    fn stop(&self) {
        self.rung.lock().stop = true;
        self.waiting.notify_one();
    }

    /// Until somebody wakes, or so long; whether to go on.
    fn wait(&self, most: Duration) -> bool {
        let mut rung = self.rung.lock();
        if !rung.again && !rung.stop {
            self.waiting.wait_for(&mut rung, most);
        }
        rung.again = false;
        !rung.stop
    }
}

fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(run);
    spawned.map(drop).map_err(|e| Error::os(format!("cannot start the thread {name}"), e))
}

impl Keeper {
    /// Whether nothing is being written, so that whoever begins wakes the watch; else it goes on looking.
    pub(super) fn may_rest(&self) -> bool {
        stall!("watch.rest");
        self.looking.store(false, Ordering::SeqCst);
        // Who came before this woke nobody: asked after it, or the watch would sleep beside a writer at full speed.
        let rests = self.staged.lock().is_empty();
        if !rests {
            self.looking.store(true, Ordering::SeqCst);
        }
        rests
    }
}

impl Store {
    /// Has the keeper look now.
    pub(super) fn wake_keeper(&self) {
        self.keeper.evict.wake();
    }

    pub(super) fn watch_staged(&self, home: &Arc<Home>, name: &str, file: &Arc<File>, fate: &Arc<Fate>) {
        let (home, file, fate) = (Arc::clone(home), Arc::downgrade(file), Arc::downgrade(fate));
        let watched = Watched { home, file, fate };
        let mut staged = self.keeper.staged.lock();
        staged.insert(name.to_owned(), watched);
        drop(staged);
        if !self.keeper.looking.swap(true, Ordering::SeqCst) {
            self.keeper.look.wake();
            self.keeper.evict.wake();
        }
    }

    pub(super) fn forget_staged(&self, name: &str) {
        self.keeper.staged.lock().remove(name);
    }

    /// Names in staging of values that were admitted under a home's epoch.
    fn staged_under(&self, home: &Home) -> Vec<String> {
        let staged = self.keeper.staged.lock();
        let of_home = |w: &Watched| (w.home.number, w.home.epoch) == (home.number, home.epoch);
        staged.iter().filter(|(_, w)| of_home(w)).map(|(name, _)| name.clone()).collect()
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

    /// Starts the keeper and the watch. They end with the store.
    pub(super) fn start_keeper(self: &Arc<Self>) -> Result<()> {
        self.start_watch()?;
        let (store, keeper) = (Arc::downgrade(self), Arc::clone(&self.keeper));
        let run = move || {
            // Until a key's time is over.
            let mut next = Duration::ZERO;
            loop {
                let looking = keeper.looking.load(Ordering::Acquire);
                let most = if looking { limits::STAGED_POLL } else { limits::IDLE_POLL };
                if !keeper.evict.wait(most.min(next)) {
                    return;
                }
                let Some(store) = store.upgrade() else { return };
                next = store.keep_time();
                store.keep();
                store.save_order_when_due();
            }
        };
        start_thread("fencefs-keeper", run)
    }

    /// A thread of its own, since a round of evictions may take long, and a look that comes late is a fuller disk.
    fn start_watch(self: &Arc<Self>) -> Result<()> {
        let (store, keeper) = (Arc::downgrade(self), Arc::clone(&self.keeper));
        let run = move || {
            os::process::stand_back(limits::WATCH_NICE);
            let (mut idle_looks, mut looking) = (0, false);
            loop {
                let asked = !looking && keeper.looking.load(Ordering::Acquire);
                let staging = !keeper.staged.lock().is_empty();
                idle_looks = if staging || asked { 0 } else { idle_looks + 1 };
                looking = idle_looks < limits::IDLE_LOOKS || !keeper.may_rest();
                let wait = match keeper.near.load(Ordering::Relaxed) {
                    true => limits::STAGED_POLL_NEAR,
                    false if looking => limits::STAGED_POLL,
                    false => limits::IDLE_POLL,
                };
                if !keeper.look.wait(wait) {
                    return;
                }
                let Some(store) = store.upgrade() else { return };
                store.count_staged();
            }
        };
        start_thread("fencefs-watch", run)
    }

    pub(super) fn stop_keeper(&self) {
        self.keeper.evict.stop();
        self.keeper.look.stop();
    }

    /// One round: watermarks, tenant quotas, free space.
    pub(super) fn keep(&self) {
        let quota = &self.settings.quota;
        self.evict_tenants_over_quota();
        if self.over_watermark(&self.index.lock()) {
            let target = self.percent_of_quota(quota.low_percent);
            let keys = quota.max_keys.map(|m| (u128::from(m) * u128::from(quota.low_percent) / 100) as u64);
            self.evict_down_to(target, keys, Reason::Quota);
        }
        self.defend_free_space();
    }

    fn evict_tenants_over_quota(&self) {
        let mut stuck = Vec::new();
        while stuck.len() < limits::STUCK_VICTIMS {
            let victim = {
                let mut index = self.index.lock();
                let over = |t: &&super::index::TenantEntry| {
                    t.live && t.quota_bytes.is_some_and(|q| t.charged_bytes() > q)
                };
                let numbers: Vec<u32> = index.tenants.iter().filter(over).map(|t| t.home.number).collect();
                // One whose keys are all pinned does not hide another.
                numbers.into_iter().find_map(|n| match index.victim_of(Some(n), None, &stuck) {
                    Search::Found(victim) => Some(victim),
                    Search::Again | Search::Nothing => None,
                })
            };
            let Some(victim) = victim else { return };
            if self.evict(victim, Reason::TenantQuota).is_err() {
                stuck.push(victim);
            }
        }
    }

    /// Looks at the values being written: what they occupy, and which can never be published.
    pub(super) fn count_staged(&self) {
        let largest = self.largest_value_bytes();
        self.keeper.staged.lock().retain(|_, w| w.file.strong_count() > 0 && w.fate.strong_count() > 0);
        let files: Vec<_> =
            self.keeper.staged.lock().values().map(|w| (w.file.upgrade(), w.fate.upgrade())).collect();
        let full = !files.is_empty() && self.disk_is_full();
        let (quota, watched) = (self.quota_bytes(), files.len());
        let (mut sizes, mut emptied) = (Vec::new(), 0);
        let mut empty = |file: &Arc<File>, fate: &Arc<Fate>| {
            emptied += 1;
            Fate::empty(fate, file, emptied <= limits::EMPTIED_AT_ONCE);
        };
        for (file, fate) in files.into_iter().filter_map(|(file, fate)| file.zip(fate)) {
            let Ok(attr) = os::stat_unsettled(&*file) else { continue };
            if attr.allocated_bytes() > largest || full || fate.is_being_emptied() {
                empty(&file, &fate);
            } else {
                sizes.push((attr.allocated_bytes(), file, fate));
            }
        }
        // Those that are lost already go first, and the largest of them.
        sizes.sort_by_key(|(bytes, _, fate)| (fate.is_doomed(), *bytes));
        let mut sum: u64 = sizes.iter().map(|(bytes, ..)| bytes).sum();
        let lost =
            |last: Option<&(u64, Arc<File>, Arc<Fate>)>| last.is_some_and(|(_, _, fate)| fate.is_doomed());
        let near = sum > 0 && sum.saturating_add(limits::STAGED_RUSH_BYTES) > quota;
        while (sum > quota || sum > quota / 2 && lost(sizes.last()))
            && let Some((bytes, file, fate)) = sizes.pop()
        {
            empty(&file, &fate);
            sum -= bytes;
        }
        let near = (near || emptied > 0) && watched <= limits::WATCHED_CLOSELY;
        self.keeper.near.store(near, Ordering::Relaxed);
        self.staged_bytes.store(sum, Ordering::Relaxed);
    }

    /// Keeps space and inodes free on the backing filesystem; values being written may yet grow by what they hold.
    fn defend_free_space(&self) {
        let Ok(space) = self.data.space() else { return };
        self.evict_to_free(&space, self.staged_bytes.load(Ordering::Relaxed));
        let floor_inodes = (space.total_inodes / 50).min(limits::FREE_FLOOR_INODES);
        if space.available_inodes < floor_inodes {
            self.evict_some((floor_inodes - space.available_inodes) as usize);
        }
    }
}
