//! Which key the index gives up next, and what a reserve keeps from the others' pressure.
//!
//! A tenant that has no more than its reserve gives up nothing for anybody else. A key that is met in the eviction order
//! while that holds is *set aside*: it leaves the order for a queue of its tenant's. So a search steps over each
//! such key once, not once an eviction, however many cold keys a reserve protects; one search sets a bounded number
//! aside under the lock. What was set aside was colder than all that stayed in the order, so once its tenant has more
//! than its reserve, these keys go first. A key that is used goes back into the order.

use super::evict::{Slot, Verdict};
use super::index::{Index, Node, NodeId, Source, TenantEntry};
use crate::config::limits;
use crate::error::Result;

/// What a search for a victim found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Search {
    /// This one may go.
    Found(NodeId),
    /// There were many to step over: ask again, after others had the lock.
    Again,
    /// None may go.
    Nothing,
}

impl TenantEntry {
    /// What nobody else's pressure can take of it.
    pub(super) fn held_bytes(&self) -> u64 {
        self.pinned_bytes.max(self.reserve_bytes.min(self.charged_bytes()))
    }
}

impl Index {
    /// Keeps a linked value that is open where it is; `false` where it is not linked.
    pub(super) fn hold(&mut self, id: NodeId) -> bool {
        let linked = self.linked(id).is_ok();
        if linked {
            *self.held.entry(id).or_default() += 1;
        }
        linked
    }

    /// It is open no more.
    pub(super) fn let_go(&mut self, id: NodeId) {
        if let Some(holders) = self.held.get_mut(&id) {
            *holders -= 1;
            if *holders == 0 {
                self.held.remove(&id);
            }
        }
    }

    /// Whether somebody may change it in place, or holds it: then neither eviction nor time takes it.
    pub(super) fn is_in_use(&self, id: NodeId) -> bool {
        self.get(id).is_ok_and(|node| node.writers > 0)
            || (!self.held.is_empty() && self.held.contains_key(&id))
    }

    /// Pins or unpins a linked node.
    pub fn set_pinned(&mut self, id: NodeId, pinned: bool) -> Result<()> {
        let node = self.linked(id)?;
        if node.pinned && !pinned {
            self.order.unpinned(node.tenant);
        }
        self.count_pinned(id, pinned)
    }

    /// What is pinned counts.
    pub(super) fn count_pinned(&mut self, id: NodeId, pinned: bool) -> Result<()> {
        let node = self.linked(id)?;
        let count = |on: bool| if on { node.blocks * 512 } else { 0 };
        let (old, new, tenant) = (count(node.pinned), count(pinned), node.tenant as usize);
        self.pinned_bytes = self.pinned_bytes - old + new;
        if let Some(t) = self.tenants.get_mut(tenant) {
            t.pinned_bytes = t.pinned_bytes - old + new;
        }
        self.nodes[id.slot() as usize].pinned = pinned;
        Ok(())
    }

    /// Bytes that no eviction on behalf of this tenant can free.
    pub(super) fn held_from(&self, number: u32) -> u64 {
        let held = |t: &TenantEntry| if t.home.number == number { t.pinned_bytes } else { t.held_bytes() };
        self.tenants.iter().map(held).sum()
    }

    /// What all tenants but one have reserved.
    pub(super) fn reserves_but(&self, number: Option<u32>) -> u64 {
        let others = self.tenants.iter().filter(|t| t.live && Some(t.home.number) != number);
        others.fold(0, |sum, t| sum.saturating_add(t.reserve_bytes))
    }

    /// The coldest value that may go, of one tenant or of all, other than `protect` and `skip`. Of all, a tenant keeps
    /// its reserve.
    pub fn victim_of(&mut self, tenant: Option<u32>, protect: Option<NodeId>, skip: &[NodeId]) -> Search {
        let asked = |_: &Index, _: &Node, id| Some(id) != protect && !skip.contains(&id);
        self.victim(tenant, &asked)
    }

    /// The same, of what occupies the store's own filesystem.
    pub(super) fn victim_for_space(&mut self, skip: &[NodeId]) -> Search {
        let asked = |index: &Index, node: &Node, id| {
            let elsewhere = index.outside.elsewhere && node.content.source == Source::Attached;
            !elsewhere && !skip.contains(&id)
        };
        self.victim(None, &asked)
    }

    fn victim(&mut self, tenant: Option<u32>, asked: &dyn Fn(&Index, &Node, NodeId) -> bool) -> Search {
        let judge = |index: &Index, slot| {
            let (id, node) = (index.id_of(slot), index.at(slot));
            if node.pinned || tenant.is_some_and(|t| node.tenant != t) {
                return Verdict::Passed;
            }
            let goes = !index.is_in_use(id)
                && asked(index, node, id)
                && !index.is_closed(node.tenant)
                && !index.in_transaction(id);
            if goes { Verdict::Goes } else { Verdict::Stays }
        };
        let may_go = |index: &Index, slot| judge(index, slot) == Verdict::Goes;
        if let Some(slot) = self.set_aside_before(tenant, &may_go) {
            return Search::Found(self.id_of(slot));
        }
        let mut reserved = Vec::new();
        let found = self.order.victim(tenant, &mut |slot| match judge(self, slot) {
            Verdict::Goes if tenant.is_none() && self.is_reserved(slot) => {
                reserved.push(slot);
                if reserved.len() == limits::SET_ASIDE_AT_ONCE { Verdict::Goes } else { Verdict::Stays }
            }
            verdict => verdict,
        });
        self.order.note_passed(tenant, found.passed);
        let is_bound = reserved.len() == limits::SET_ASIDE_AT_ONCE;
        for slot in reserved {
            let tenant = self.nodes[slot as usize].tenant;
            self.order.set_aside(slot, tenant);
        }
        match found.slot {
            _ if is_bound => Search::Again,
            Some(slot) => Search::Found(self.id_of(slot)),
            None => Search::Nothing,
        }
    }

    /// One that was set aside and may go now: of the tenant that asks, or of one with more than its reserve.
    fn set_aside_before(&self, tenant: Option<u32>, may_go: &dyn Fn(&Index, Slot) -> bool) -> Option<Slot> {
        if let Some(number) = tenant {
            return self.order.set_aside_of(number).find(|slot| may_go(self, *slot));
        }
        if self.order.set_aside_len() == 0 {
            return None;
        }
        let with_surplus = |t: &&TenantEntry| t.charged_bytes() >= t.reserve_bytes;
        self.tenants.iter().filter(with_surplus).find_map(|t| {
            // Where the coldest are larger than what there is above the reserve, no more than these are asked.
            let coldest = self.order.set_aside_of(t.home.number).take(limits::ASKED_OF_ASIDE);
            coldest.into_iter().find(|slot| may_go(self, *slot) && !self.is_reserved(*slot))
        })
    }

    /// Whether its tenant would have less than its reserve without it.
    fn is_reserved(&self, slot: Slot) -> bool {
        let node = self.at(slot);
        let tenant = self.tenants.get(node.tenant as usize);
        tenant.is_some_and(|t| t.charged_bytes().saturating_sub(node.blocks * 512) < t.reserve_bytes)
    }

    /// Whether a tenant is being removed.
    pub(super) fn is_closed(&self, number: u32) -> bool {
        self.tenants.get(number as usize).is_some_and(|t| t.home.fence.closed_towards().is_some())
    }
}
