//! The keeper: the thread that evicts between the watermarks, brings tenants back under their quotas, keeps space free on
//! the disk and deletes keys whose time is over. What is being written is the watch's, next door.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Store;
use super::room::Reason;
use super::rounds::start_thread;
use super::victims::Search;
use crate::config::limits;
use crate::error::Result;

impl Store {
    /// Has the keeper look now.
    pub(super) fn wake_keeper(&self) {
        self.keeper.wake();
    }

    /// Starts the keeper. It ends with the store.
    pub(super) fn start_keeper(self: &Arc<Self>) -> Result<()> {
        let (store, bell, watch) = (Arc::downgrade(self), Arc::clone(&self.keeper), Arc::clone(&self.watch));
        let run = move || {
            // Until a key's time is over.
            let mut next = Duration::ZERO;
            loop {
                let most = if watch.is_looking() { limits::STAGED_POLL } else { limits::IDLE_POLL };
                if !bell.wait(most.min(next)) {
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
