//! The keeper: the one thread that looks after room. It watches the values being written, evicts between the
//! watermarks, brings tenants back under their quotas and keeps space free on the disk.
//!
//! A value that can never fit is emptied, and so is the largest while all of them together pass the quota: staged bytes
//! end at the quota plus what is written between two looks. Where the kernel writes, nothing stops a
//! writer before its close: the same goes for what it writes after that. The nearer the bytes are to the quota, the more
//! often it looks.

use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};

use super::Store;
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
    doomed: Weak<AtomicBool>,
}

/// What wakes the keeper, and what it watches.
#[derive(Default)]
pub(super) struct Keeper {
    staged: Mutex<HashMap<String, Watched>>,
    /// Values are being written, or were lately: the keeper looks often, and need not be woken for one more.
    looking: AtomicBool,
    /// They have come near the quota: the next look is soon.
    near: AtomicBool,
    work: Mutex<Work>,
    woken: Condvar,
}

#[derive(Default)]
struct Work {
    pressed: bool,
    stop: bool,
}

impl Store {
    /// Has the keeper look now.
    pub(super) fn wake_keeper(&self) {
        self.keeper.work.lock().pressed = true;
        self.keeper.woken.notify_one();
    }

    pub(super) fn watch_staged(
        &self,
        home: &Arc<Home>,
        name: &str,
        file: &Arc<File>,
        doomed: &Arc<AtomicBool>,
    ) {
        let (home, file, doomed) = (Arc::clone(home), Arc::downgrade(file), Arc::downgrade(doomed));
        let watched = Watched { home, file, doomed };
        let mut staged = self.keeper.staged.lock();
        staged.insert(name.to_owned(), watched);
        drop(staged);
        if !self.keeper.looking.swap(true, Ordering::AcqRel) {
            self.wake_keeper();
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

    /// Starts the keeper. It ends with the store.
    pub(super) fn start_keeper(self: &Arc<Self>) -> Result<()> {
        let (store, keeper) = (Arc::downgrade(self), Arc::clone(&self.keeper));
        let run = move || {
            // A look that comes late is a fuller disk.
            os::process::stand_back(limits::KEEPER_NICE);
            let (mut idle_looks, mut looking) = (0, false);
            loop {
                let asked = !looking && keeper.looking.load(Ordering::Acquire);
                let staging = !keeper.staged.lock().is_empty();
                idle_looks = if staging || asked { 0 } else { idle_looks + 1 };
                looking = idle_looks < limits::IDLE_LOOKS;
                keeper.looking.store(looking, Ordering::Release);
                {
                    let mut work = keeper.work.lock();
                    if !work.pressed && !work.stop {
                        let wait = match keeper.near.load(Ordering::Relaxed) {
                            true => limits::STAGED_POLL_NEAR,
                            false if looking => limits::STAGED_POLL,
                            false => limits::IDLE_POLL,
                        };
                        keeper.woken.wait_for(&mut work, wait);
                    }
                    if work.stop {
                        return;
                    }
                    work.pressed = false;
                }
                let Some(store) = store.upgrade() else { return };
                store.keep();
            }
        };
        let spawned = std::thread::Builder::new().name("fencefs-keeper".into()).spawn(run);
        spawned.map(drop).map_err(|e| Error::os("cannot start the eviction thread", e))
    }

    pub(super) fn stop_keeper(&self) {
        self.keeper.work.lock().stop = true;
        self.keeper.woken.notify_one();
    }

    /// One look: staged bytes, watermarks, tenant quotas, free space.
    fn keep(&self) {
        self.count_staged();
        let quota = &self.settings.quota;
        if self.over_high(&self.index.lock()) {
            self.evict_tenants_over_quota();
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
                let number = index.tenants.iter().find(over).map(|t| t.home.number);
                number.map_or(Search::Nothing, |n| index.victim_of(Some(n), None, &stuck))
            };
            let Search::Found(victim) = victim else { return };
            if self.evict(victim, Reason::TenantQuota).is_err() {
                stuck.push(victim);
            }
        }
    }

    /// Looks at the values being written: what they occupy, and which can never be published.
    pub(super) fn count_staged(&self) {
        let largest = self.largest_value_bytes();
        let files: Vec<_> =
            self.keeper.staged.lock().values().map(|w| (w.file.upgrade(), w.doomed.upgrade())).collect();
        let mut sizes = Vec::new();
        let full = !files.is_empty() && self.disk_is_full();
        let (quota, watched, mut runs_away) = (self.quota_bytes(), files.len(), false);
        for (file, doomed) in files.into_iter().filter_map(|(f, d)| f.zip(d)) {
            let Ok(attr) = os::stat(&*file) else { continue };
            if attr.allocated_bytes() > largest || full {
                runs_away = true;
                doom(&file, &doomed);
            } else {
                sizes.push((attr.allocated_bytes(), file, doomed));
            }
        }
        // Those that are lost already go first, and the largest of them.
        sizes.sort_by_key(|(bytes, _, doomed)| (doomed.load(Ordering::Acquire), *bytes));
        let mut sum: u64 = sizes.iter().map(|(bytes, ..)| bytes).sum();
        let near = runs_away || sum > 0 && sum.saturating_add(limits::STAGED_RUSH_BYTES) > quota;
        self.keeper.near.store(near && watched <= limits::WATCHED_CLOSELY, Ordering::Relaxed);
        let lost = |last: Option<&(u64, Arc<File>, Arc<AtomicBool>)>| {
            last.is_some_and(|(_, _, doomed)| doomed.load(Ordering::Acquire))
        };
        while (sum > quota || sum > quota / 2 && lost(sizes.last()))
            && let Some((bytes, file, doomed)) = sizes.pop()
        {
            doom(&file, &doomed);
            sum -= bytes;
        }
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

/// A value that can never be published: its writer learns that at close, its bytes go now.
fn doom(file: &File, doomed: &AtomicBool) {
    doomed.store(true, Ordering::Release);
    if let Err(e) = os::truncate(file, 0) {
        log::warn!("cannot empty a value that can never be published: {e}");
    }
}
