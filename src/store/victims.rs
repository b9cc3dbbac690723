//! Which key the index gives up next, and what a reserve keeps from the others' pressure.
//!
//! A tenant that has no more than its reserve gives up nothing for anybody else. A key that is met in the eviction order
//! while that holds is *set aside*: it leaves the order for a queue of its tenant's. So a search steps over each
//! such key once, not once an eviction, however many cold keys a reserve protects; one search sets a bounded number
//! aside under the lock. What was set aside was colder than all that stayed in the order, so once its tenant has more
//! than its reserve, these keys go first. A key that is used goes back into the order.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::evict::Slot;
use super::index::{Index, Node, NodeId, Source, TenantEntry};
use crate::config::limits;

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

/// Keys that were set aside. INVARIANT: each is in the queue of its tenant once with its own stamp, and not in the
/// policy; an entry with another stamp is stale, and no queue has more stale entries than twice its others.
#[derive(Debug, Default)]
pub(super) struct Aside {
    stamps: HashMap<Slot, u32>,
    queues: HashMap<u32, Queue>,
    next_stamp: u32,
    /// Whether the policy moves a key that is used.
    pub(super) uses_move: bool,
}

#[derive(Debug, Default)]
struct Queue {
    coldest_first: VecDeque<(Slot, u32)>,
    live: usize,
}

impl Aside {
    fn put(&mut self, tenant: u32, slot: Slot) {
        self.next_stamp = self.next_stamp.wrapping_add(1);
        self.stamps.insert(slot, self.next_stamp);
        let queue = self.queues.entry(tenant).or_default();
        queue.coldest_first.push_back((slot, self.next_stamp));
        queue.live += 1;
    }

    fn holds(&self, slot: Slot) -> bool {
        self.stamps.contains_key(&slot)
    }

    /// Takes a key out; whether it was there.
    fn take(&mut self, tenant: u32, slot: Slot) -> bool {
        if self.stamps.remove(&slot).is_none() {
            return false;
        }
        if let Some(queue) = self.queues.get_mut(&tenant) {
            queue.live -= 1;
            if queue.live == 0 {
                self.queues.remove(&tenant);
            } else if queue.coldest_first.len() > 3 * queue.live {
                let stamps = &self.stamps;
                queue.coldest_first.retain(|(slot, stamp)| stamps.get(slot) == Some(stamp));
            }
        }
        true
    }

    /// Of one tenant, coldest first.
    fn of(&self, tenant: u32) -> impl Iterator<Item = Slot> + '_ {
        let entries = self.queues.get(&tenant).into_iter().flat_map(|q| &q.coldest_first);
        entries.filter(|(slot, stamp)| self.stamps.get(slot) == Some(stamp)).map(|(slot, _)| *slot)
    }

    fn len(&self) -> usize {
        self.stamps.len()
    }
}

impl TenantEntry {
    /// What nobody else's pressure can take of it.
    pub(super) fn held_bytes(&self) -> u64 {
        self.pinned_bytes.max(self.reserve_bytes.min(self.charged_bytes()))
    }
}

impl Index {
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

    /// A linked value enters the eviction order, or is used there.
    pub(super) fn admit(&mut self, slot: Slot) {
        self.aside.take(self.at(slot).tenant, slot);
        self.policy.insert(slot);
    }

    /// Counts a use in the eviction order.
    pub(super) fn used(&mut self, slot: Slot) {
        if !self.aside.holds(slot) {
            self.policy.touch(slot);
        } else if self.aside.uses_move {
            self.admit(slot);
        }
    }

    /// Takes a value out of the eviction order.
    pub(super) fn leave_order(&mut self, slot: Slot) {
        if !self.aside.take(self.at(slot).tenant, slot) {
            self.policy.remove(slot);
        }
    }

    /// All values, coldest first: what was set aside came before the rest.
    pub(super) fn order(&self) -> Vec<Slot> {
        let mut order: Vec<Slot> = self.tenants.iter().flat_map(|t| self.aside.of(t.home.number)).collect();
        order.extend(self.policy.order());
        order
    }

    /// How many values have a place in the eviction order.
    pub(super) fn ordered(&self) -> usize {
        self.policy.len() + self.aside.len()
    }

    /// The coldest value that may go, of one tenant or of all, other than `protect` and `skip`. Of all, a tenant keeps
    /// its reserve.
    pub fn victim_of(&mut self, tenant: Option<u32>, protect: Option<NodeId>, skip: &[NodeId]) -> Search {
        let asked = |_: &Index, node: &Node, id| {
            tenant.is_none_or(|t| node.tenant == t) && Some(id) != protect && !skip.contains(&id)
        };
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
        let may_go = |index: &Index, slot| {
            let (id, node) = (index.id_of(slot), index.at(slot));
            !node.pinned
                && node.writers == 0
                && asked(index, node, id)
                && !index.is_closed(node.tenant)
                && !index.in_transaction(id)
        };
        if let Some(slot) = self.set_aside_before(tenant, &may_go) {
            return Search::Found(self.id_of(slot));
        }
        let mut reserved = Vec::new();
        let found = self.policy.victim(&mut |slot| {
            if !may_go(self, slot) {
                return false;
            }
            if tenant.is_some() || !self.is_reserved(slot) {
                return true;
            }
            reserved.push(slot);
            reserved.len() == limits::SET_ASIDE_AT_ONCE
        });
        let is_bound = reserved.len() == limits::SET_ASIDE_AT_ONCE;
        for slot in reserved {
            self.policy.remove(slot);
            self.aside.put(self.nodes[slot as usize].tenant, slot);
        }
        match found {
            _ if is_bound => Search::Again,
            Some(slot) => Search::Found(self.id_of(slot)),
            None => Search::Nothing,
        }
    }

    /// One that was set aside and may go now: of the tenant that asks, or of one with more than its reserve.
    fn set_aside_before(&self, tenant: Option<u32>, may_go: &dyn Fn(&Index, Slot) -> bool) -> Option<Slot> {
        if let Some(number) = tenant {
            return self.aside.of(number).find(|slot| may_go(self, *slot));
        }
        let with_surplus = |t: &&TenantEntry| t.charged_bytes() >= t.reserve_bytes;
        self.tenants
            .iter()
            .filter(|t| self.aside.queues.contains_key(&t.home.number))
            .filter(with_surplus)
            .find_map(|t| {
                // Where the coldest are larger than what there is above the reserve, no more than these are asked.
                let coldest = self.aside.of(t.home.number).take(limits::ASKED_OF_ASIDE);
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
    fn is_closed(&self, number: u32) -> bool {
        self.tenants.get(number as usize).is_some_and(|t| t.home.fence.closed_towards().is_some())
    }
}
