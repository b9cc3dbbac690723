//! Room: the quota, reservations and eviction. Who evicts in the background is the keeper, next door.
//!
//! INVARIANT: used + reserved bytes never pass the quota through a publication; a replacement reserves its whole size
//! while the old value still counts. Where they are past it already, since the quota was cut, a publication frees twice
//! what it adds, and the rest is the keeper's: nobody waits for all of it. Values being written are staged outside that sum: nothing is evicted for a value
//! before its writer closes it.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Store;
use super::index::{Index, Node, NodeId, TenantEntry, Usage};
use super::tenants::Home;
use super::victims::Search;
use crate::config::limits;
use crate::error::{Error, Kind, Result};
use crate::os::{self, FsSpace};

/// Why a key was evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Over the store's quota.
    Quota,
    /// Over the tenant's quota.
    TenantQuota,
    /// The backing filesystem runs out of space.
    FreeSpace,
    /// Somebody asked.
    Command,
    /// Its time to live is over.
    Expired,
    /// It was edited in place until no quota could hold it.
    Overgrown,
}

impl Reason {
    /// The words for them, in order.
    pub const WORDS: [&'static str; 6] =
        ["quota", "tenant_quota", "free_space", "command", "expired", "overgrown"];
}

/// What a publication adds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needs {
    /// Allocated bytes.
    pub(super) bytes: u64,
    /// A key, rather than a directory.
    pub(super) key: bool,
}

/// What a publication leaves at most: the quotas, or less than there was where that is more.
struct Most {
    bytes: u64,
    keys: u64,
    tenant_bytes: u64,
}

/// Bytes promised to one publication; given back on drop, when the index counts them.
pub(super) struct Reservation<'a> {
    store: &'a Store,
    tenant: u32,
    bytes: u64,
    keys: u64,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut index = self.store.index.lock();
        index.reserved_bytes -= self.bytes;
        index.reserved_keys -= self.keys;
        index.tenants[self.tenant as usize].reserved_bytes -= self.bytes;
    }
}

impl Store {
    /// The store's quota in bytes.
    pub fn quota_bytes(&self) -> u64 {
        self.quota.load(Ordering::Relaxed)
    }

    /// Sets the store's quota until it is opened again.
    pub fn set_quota_bytes(&self, bytes: u64) -> Result<()> {
        let _reserves = self.tenant_changes.lock();
        self.check_reserves(bytes)?;
        self.quota.store(bytes, Ordering::Relaxed);
        self.wake_keeper();
        Ok(())
    }

    /// Refuses a quota of the store that is less than what its tenants have reserved.
    pub(super) fn check_reserves(&self, quota_bytes: u64) -> Result<()> {
        self.fits_reserves(quota_bytes, self.index.lock().reserves_but(None))
    }

    /// Refuses reserves that the store's quota cannot keep.
    pub(super) fn fits_reserves(&self, quota_bytes: u64, reserved: u64) -> Result<()> {
        if reserved <= quota_bytes {
            return Ok(());
        }
        Err(Error::new(
            Kind::Invalid,
            format!(
                "the reserves of all tenants would add up to {reserved} bytes, more than the {quota_bytes} bytes of the \
                 store's quota; reserve less, or give the store more"
            ),
        ))
    }

    /// Most allocated bytes that one value can have: what eviction can free.
    pub fn largest_value_bytes(&self) -> u64 {
        self.quota_bytes().saturating_sub(self.index.lock().pinned_bytes)
    }

    pub(super) fn percent_of_quota(&self, percent: u8) -> u64 {
        (u128::from(self.quota_bytes()) * u128::from(percent) / 100) as u64
    }

    pub(super) fn no_space(&self, why: &str) -> Error {
        Error::new(
            Kind::NoSpace,
            format!("{why} ({} of {} bytes used)", self.index.lock().usage.bytes, self.quota_bytes()),
        )
    }

    /// Whether background eviction has work.
    pub(super) fn over_high(&self, index: &Index) -> bool {
        self.over_watermark(index)
            || index.tenants.iter().any(|t| t.live && t.quota_bytes.is_some_and(|q| t.charged_bytes() > q))
    }

    /// Whether the store as a whole has more than its high watermark allows.
    pub(super) fn over_watermark(&self, index: &Index) -> bool {
        let keys_over = self.settings.quota.max_keys.is_some_and(|max| {
            index.charged().keys
                > (u128::from(max) * u128::from(self.settings.quota.high_percent) / 100) as u64
        });
        index.charged().bytes > self.percent_of_quota(self.settings.quota.high_percent) || keys_over
    }

    /// Whether publishing `bytes` more would have to evict first.
    pub fn must_evict_for(&self, bytes: u64) -> bool {
        let index = self.index.lock();
        let keys_full = self.settings.quota.max_keys.is_some_and(|max| index.charged().keys >= max);
        index.charged().bytes + index.reserved_bytes + bytes > self.quota_bytes() || keys_full
    }

    /// Promises `bytes` to a publication that will replace `old`, evicting what it must. Fails before anything is
    /// touched when even then it could not fit.
    pub(super) fn reserve(&self, home: &Home, needs: Needs, old: Option<NodeId>) -> Result<Reservation<'_>> {
        let (quota, bytes) = (self.quota_bytes(), needs.bytes);
        let adds_key = needs.key && old.is_none();
        let most = {
            let index = self.index.lock();
            let old_bytes =
                old.and_then(|id| index.linked(id).ok()).filter(|n| !n.pinned).map_or(0, |n| n.blocks * 512);
            if bytes + index.held_from(home.number) + old_bytes > quota {
                drop(index);
                return Err(
                    self.no_space("the value cannot be made to fit beside what is pinned or reserved")
                );
            }
            let tenant = &index.tenants[home.number as usize];
            if let Some(limit) = tenant.quota_bytes
                && bytes + tenant.pinned_bytes + old_bytes > limit
            {
                return Err(Error::new(
                    Kind::TenantQuota,
                    format!("the value cannot be made to fit the {limit} bytes of tenant {}", home.tenant),
                ));
            }
            self.most_beside(&index, tenant, bytes)
        };
        let mut stuck = Vec::new();
        loop {
            let (victim, reason) = {
                let mut index = self.index.lock();
                let tenant = &index.tenants[home.number as usize];
                let tenant_over = tenant.promised_bytes() + bytes > most.tenant_bytes;
                let keys_full = adds_key && index.charged().keys + index.reserved_keys >= most.keys;
                let over = index.charged().bytes + index.reserved_bytes + bytes > most.bytes || keys_full;
                if !over && !tenant_over {
                    let keys = u64::from(adds_key);
                    index.reserved_bytes += bytes;
                    index.reserved_keys += keys;
                    index.tenants[home.number as usize].reserved_bytes += bytes;
                    return Ok(Reservation { store: self, tenant: home.number, bytes, keys });
                }
                let only = tenant_over.then_some(home.number);
                let reason = if tenant_over { Reason::TenantQuota } else { Reason::Quota };
                let mut victim = index.victim_of(only, old, &stuck);
                if victim == Search::Nothing && !tenant_over {
                    // For its own sake a tenant goes below its reserve.
                    victim = index.victim_of(Some(home.number), old, &stuck);
                }
                (victim, reason)
            };
            let victim = match victim {
                Search::Found(victim) if stuck.len() < limits::STUCK_VICTIMS => victim,
                Search::Again => continue,
                _ => {
                    return Err(match reason {
                        Reason::TenantQuota => Error::new(
                            Kind::TenantQuota,
                            format!("nothing of tenant {} can be evicted for the value", home.tenant),
                        ),
                        _ => self.no_space("nothing can be evicted for the value"),
                    });
                }
            };
            match self.evict(victim, reason) {
                Ok(went) => self.count_inline(u64::from(went)),
                Err(e) => {
                    log::warn!("cannot evict: {e}");
                    stuck.push(victim);
                }
            }
        }
    }

    /// What there may be beside a publication, or with it.
    fn most_beside(&self, index: &Index, tenant: &TenantEntry, bytes: u64) -> Most {
        let most = |limit: Option<u64>, now: u64, more: u64| {
            limit.map_or(u64::MAX, |limit| limit.max(now.saturating_sub(more)))
        };
        let charged = index.charged();
        Most {
            bytes: most(Some(self.quota_bytes()), charged.bytes + index.reserved_bytes, bytes),
            keys: most(self.settings.quota.max_keys, charged.keys + index.reserved_keys, 1),
            tenant_bytes: most(tenant.quota_bytes, tenant.promised_bytes(), bytes),
        }
    }

    /// Counts evictions that somebody's operation waits for.
    fn count_inline(&self, n: u64) {
        self.counters.evictions_inline.fetch_add(n, Ordering::Relaxed);
    }

    /// Whether the store, and a tenant of it, can hold this much more without an eviction, now or at the keeper's next
    /// look.
    pub(super) fn fits_beside_all(&self, home: Option<&Home>, more: Usage) -> Result<()> {
        let percent = self.settings.quota.high_percent;
        let index = self.index.lock();
        let (used, high) = (index.charged().bytes + index.reserved_bytes, self.percent_of_quota(percent));
        if used + more.bytes > high {
            return Err(Error::new(
                Kind::NoSpace,
                format!(
                    "{} bytes more do not fit: {used} bytes are used, and eviction begins at {high}, {percent} % of the quota",
                    more.bytes
                ),
            ));
        }
        let keys = index.charged().keys + index.reserved_keys;
        if let Some(max) = self.settings.quota.max_keys
            && keys + more.keys > (u128::from(max) * u128::from(percent) / 100) as u64
        {
            return Err(Error::new(
                Kind::NoSpace,
                format!(
                    "{} keys more do not fit: there are {keys}, and eviction begins at {percent} % of {max}",
                    more.keys
                ),
            ));
        }
        if let Some(home) = home
            && let tenant = &index.tenants[home.number as usize]
            && let Some(quota) = tenant.quota_bytes
            && tenant.promised_bytes() + more.bytes > quota
        {
            return Err(Error::new(
                Kind::TenantQuota,
                format!(
                    "{} bytes more of tenant {} do not fit: it uses {} of the {quota} bytes of its quota",
                    more.bytes,
                    home.tenant,
                    tenant.charged_bytes()
                ),
            ));
        }
        drop(index);
        let space = self.data.space()?;
        let floor = free_floor(&space);
        if space.available_bytes < floor.saturating_add(more.bytes) {
            return Err(Error::new(
                Kind::NoSpace,
                format!(
                    "{} bytes more do not fit: the store's filesystem has {} bytes free, and eviction keeps {floor} free",
                    more.bytes, space.available_bytes
                ),
            ));
        }
        Ok(())
    }

    /// Room for `bytes` that are about to be allocated in one value.
    pub fn room_for_allocation(&self, bytes: u64) -> Result<()> {
        if bytes > self.largest_value_bytes() {
            Err(self.no_space("the value is larger than the quota"))
        } else {
            Ok(())
        }
    }

    /// Room for a value that is edited in place to end at `end`; where there is none it is lost, as what is evicted.
    pub fn room_to_edit(&self, id: NodeId, file: &File, end: u64) -> Result<()> {
        self.keeps_edit(id)?;
        let attr = os::stat(file)?;
        let grown = attr.allocated_bytes().saturating_add(end.saturating_sub(attr.size_bytes));
        // What it is pinned with is its own.
        let largest = if self.is_pinned(id) { self.quota_bytes() } else { self.largest_value_bytes() };
        if end <= attr.size_bytes || grown <= largest {
            return Ok(());
        }
        self.doom_edit(id);
        self.keeps_edit(id)?;
        Err(self.no_space("the value has outgrown the quota"))
    }

    /// What the close of a value that was edited in place is told: [`Kind::NoSpace`] or [`Kind::TenantQuota`] where it has
    /// outgrown a quota, and is gone now or at its last close.
    pub fn closes_edit(&self, id: NodeId, file: &File) -> Result<()> {
        self.keeps_edit(id)?;
        self.overgrown(id, os::stat(file)?.blocks)
    }

    /// [`Kind::NoSpace`] where a value that is edited in place has outgrown the quota: then it is gone.
    pub fn keeps_edit(&self, id: NodeId) -> Result<()> {
        if self.is_edit_lost(id) {
            self.evict_edited(id);
            return Err(self.no_space("the value has outgrown the quota in place and is evicted"));
        }
        Ok(())
    }

    /// Evicts one value; whether it went. A value that changed meanwhile is left, which is no error.
    pub(super) fn evict(&self, id: NodeId, reason: Reason) -> Result<bool> {
        let evicted = self.evict_unless_changed(id, reason);
        match &evicted {
            Ok(Some(bytes)) => {
                let by = &self.counters.evictions[reason as usize];
                by.fetch_add(1, Ordering::Relaxed);
                self.counters.evicted_bytes.fetch_add(*bytes, Ordering::Relaxed);
            }
            Ok(None) => {}
            Err(e) => {
                self.counters.eviction_errors.fetch_add(1, Ordering::Relaxed);
                *self.last_error.lock() = Some(format!("cannot evict: {e}"));
            }
        }
        evicted.map(|bytes| bytes.is_some())
    }

    fn evict_unless_changed(&self, id: NodeId, reason: Reason) -> Result<Option<u64>> {
        let Ok((home, _)) = self.place_of(id) else { return Ok(None) };
        let _lease = home.fence.enter(home.epoch)?;
        let Some((_, place, _key)) = self.lock_place(id) else { return Ok(None) };
        if reason == Reason::Expired && !self.is_over_by_record(&home, &place, id)? {
            return Ok(None);
        }
        let evictable = {
            let index = self.index.lock();
            // What has outgrown every quota has no writer or pin that keeps it.
            let free = |n: &Node| reason == Reason::Overgrown || !n.pinned && !index.is_in_use(id);
            index.linked(id).is_ok_and(free) && !index.in_transaction(id)
        };
        if !evictable {
            return Ok(None);
        }
        step!("evict.record");
        if let Err(e) = self.delete_copies(id, &home, &place) {
            // Under the lock of its key: it is linked.
            self.index.lock().order.postpone(id.slot());
            return Err(Error::new(e.kind(), format!("{} of tenant {}: {e}", place.key, home.tenant)));
        }
        let (parent, name, bytes) = {
            let mut index = self.index.lock();
            let node = index.linked(id)?;
            let (parent, name, bytes) = (node.parent, node.name.clone(), node.blocks * 512);
            let parent = index.id_of(parent);
            index.unlink_for_later(id, os::Timespec::now())?;
            (parent, name, bytes)
        };
        self.tell_gone(parent, &name, id);
        Ok(Some(bytes))
    }

    /// Does something that the backing filesystem may refuse for want of space or inodes; evicts and tries again.
    /// Never under a key lock: an eviction takes one of its own.
    pub(super) fn with_room<T>(&self, mut run: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 0..limits::ROOM_TRIES {
            match run() {
                Err(e) if e.kind() == Kind::NoSpace && self.make_room() => {}
                done => return done,
            }
        }
        run()
    }

    /// Gives inodes and blocks back to the backing filesystem; whether any were.
    fn make_room(&self) -> bool {
        let evicted = self.evict_some(limits::EVICTED_FOR_ROOM);
        self.count_inline(evicted);
        self.prune_shards() > 0 || evicted > 0
    }

    /// Removes the shard directories that are empty, of all tenants; how many.
    fn prune_shards(&self) -> usize {
        let homes: Vec<_> =
            self.index.lock().tenants.iter().filter(|t| t.live).map(|t| Arc::clone(&t.home)).collect();
        let removed = |dir: &os::Dir, name: &[u8]| usize::from(dir.rmdir(name).is_ok_and(|there| there));
        let mut pruned = 0;
        for home in homes {
            for upper in home.dir.entries().unwrap_or_default() {
                let Ok(Some(dir)) = home.dir.open_dir_if_any(&upper.name) else { continue };
                for lower in dir.entries().unwrap_or_default() {
                    pruned += removed(&dir, &lower.name);
                }
                pruned += removed(&home.dir, &upper.name);
            }
            home.durable_shards.lock().clear();
        }
        pruned
    }

    /// Evicts up to `n` keys for the backing filesystem's sake; how many went.
    pub(super) fn evict_some(&self, n: usize) -> u64 {
        let keys = self.index.lock().charged().keys;
        self.evict_down_to(u64::MAX, Some(keys.saturating_sub(n as u64)), Reason::FreeSpace)
    }

    /// Whether the backing filesystem has no room left: a writer may have missed a write without the daemon's knowing.
    pub(super) fn disk_is_full(&self) -> bool {
        self.data.space().is_ok_and(|s| s.available_bytes < limits::FULL_DISK_BYTES)
    }

    /// [`Kind::TenantQuota`] or [`Kind::NoSpace`] where a published value has more than its tenant or the store may hold.
    fn overgrown(&self, id: NodeId, blocks: u64) -> Result<()> {
        let of_tenant = {
            let index = self.index.lock();
            let unpinned = index.linked(id).is_ok_and(|n| !n.pinned);
            index.tenant_of(id).ok().filter(|_| unpinned).map(|t| (t.quota_bytes, Arc::clone(&t.home)))
        };
        match of_tenant {
            Some((Some(quota), home)) if blocks * 512 > quota => Err(Error::new(
                Kind::TenantQuota,
                format!("the value has outgrown the {quota} bytes of tenant {}", home.tenant),
            )),
            _ if blocks * 512 > self.quota_bytes() => Err(self.no_space("the value has outgrown the quota")),
            _ => Ok(()),
        }
    }

    /// Evicts a value that has grown in place past what its tenant or the store may hold, before that counts: nobody
    /// else pays for it. A pin holds it against its tenant's quota, not against the store's. Whether it went.
    pub(super) fn evict_overgrown(&self, id: NodeId, blocks: u64) -> bool {
        if self.overgrown(id, blocks).is_ok() {
            return false;
        }
        log::warn!("a value of {} bytes grew in place past its quota and is evicted", blocks * 512);
        self.evict(id, Reason::Overgrown).is_ok_and(|went| went)
    }

    /// Evicts until at most `target_bytes` are used (and at most `target_keys` keys exist); how many went.
    pub(super) fn evict_down_to(&self, target_bytes: u64, target_keys: Option<u64>, reason: Reason) -> u64 {
        let (mut stuck, mut evicted) = (Vec::new(), 0);
        while stuck.len() < limits::STUCK_VICTIMS {
            let victim = {
                let mut index = self.index.lock();
                let keys_over = target_keys.is_some_and(|max| index.charged().keys > max);
                let used = index.charged().bytes + index.reserved_bytes;
                if used <= target_bytes && !keys_over {
                    return evicted;
                }
                match reason {
                    Reason::FreeSpace => index.victim_for_space(&stuck),
                    _ => index.victim_of(None, None, &stuck),
                }
            };
            let victim = match victim {
                Search::Found(victim) => victim,
                Search::Again => continue,
                Search::Nothing => return evicted,
            };
            match self.evict(victim, reason) {
                Ok(went) => evicted += u64::from(went),
                Err(e) => {
                    log::warn!("cannot evict: {e}");
                    stuck.push(victim);
                }
            }
        }
        evicted
    }

    /// Evicts until `percent` of the quota is used: the control file's `evict`.
    pub fn evict_to_percent(&self, percent: u8) {
        self.evict_down_to(self.percent_of_quota(percent), None, Reason::Command);
    }

    /// Evicts until the floor of free space, and `bytes` more, are free; how many keys went.
    pub(super) fn evict_to_free(&self, space: &FsSpace, bytes: u64) -> u64 {
        self.evict_until_free(space, free_floor(space).saturating_add(bytes))
    }

    fn evict_until_free(&self, space: &FsSpace, free_bytes: u64) -> u64 {
        if space.available_bytes >= free_bytes {
            return 0;
        }
        let used = self.index.lock().charged().bytes;
        self.evict_down_to(used.saturating_sub(free_bytes - space.available_bytes), None, Reason::FreeSpace)
    }

    /// Before a publication: what was written must have found room, and the next value of this size must find it too.
    pub(super) fn keep_free(&self, bytes: u64) -> Result<()> {
        let space = self.data.space()?;
        if space.available_bytes < limits::FULL_DISK_BYTES {
            // The writer may have met ENOSPC in the kernel and closed all the same.
            self.wake_keeper();
            return Err(self.no_space("the backing filesystem is full, and the value may lack its end"));
        }
        let floor = free_floor(&space).saturating_add(bytes);
        if space.available_bytes < floor {
            // Where much is missing the keeper frees the rest.
            self.wake_keeper();
            let least = limits::FULL_DISK_BYTES.saturating_add(bytes);
            let most = space.available_bytes.saturating_add(bytes.saturating_mul(2)).max(least);
            self.count_inline(self.evict_until_free(&space, floor.min(most)));
        }
        Ok(())
    }
}

/// Bytes of the backing filesystem that eviction keeps free.
fn free_floor(space: &FsSpace) -> u64 {
    (space.total_bytes / 20).min(limits::FREE_FLOOR_BYTES)
}
