//! The order of a store's keys: a policy, what was set aside from it, and the runs that say which keys go together.

use super::aside::Aside;
use super::runs::{Runs, Step, Use};
use super::{Admission, Found, Heat, Later, Passed, Policy, Scope, Slot, Verdict};
use crate::store::node::NodeId;

/// The eviction order of every linked value and symlink.
pub struct Order {
    policy: Box<dyn Policy>,
    /// Colder than all that the policy has.
    aside: Aside,
    runs: Runs,
    uses: u64,
}

impl Order {
    /// An empty order of a policy.
    pub fn new(policy: Box<dyn Policy>) -> Order {
        Order { policy, aside: Aside::default(), runs: Runs::default(), uses: 0 }
    }

    /// Where a use places its key. A node that a run ended with counts while `is_there` says so: its slot may have another
    /// key by now, or it may be one that searches for this key's tenant pass.
    fn step(&mut self, step: Option<Step>, is_there: impl Fn(NodeId) -> bool) -> (Option<Slot>, bool) {
        self.uses += 1;
        let Some(step) = step else { return (None, false) };
        let placing = self.runs.step(&step, self.policy.len());
        let after = placing.after.filter(|id| is_there(*id)).map(NodeId::slot);
        (after.filter(|slot| *slot != step.id.slot()), placing.short)
    }

    /// A key was opened, or marked as used.
    pub fn opened(
        &mut self,
        id: NodeId,
        by: Option<Use>,
        size_bytes: Option<u64>,
        is_there: impl Fn(NodeId) -> bool,
    ) {
        let step = by.map(|by| Step { by, id, size_bytes, publishes: false });
        let (after, _) = self.step(step, is_there);
        if self.policy.moves() {
            self.take_back(id.slot());
        }
        self.policy.touch(id.slot(), after);
    }

    /// A value was published, or got the name that `key` is a hash of.
    pub fn published(
        &mut self,
        id: NodeId,
        key: u64,
        by: Option<Use>,
        size_bytes: Option<u64>,
        is_there: impl Fn(NodeId) -> bool,
    ) {
        let step = by.map(|by| Step { by, id, size_bytes, publishes: true });
        let (after, short) = self.step(step, is_there);
        self.take_back(id.slot());
        self.policy.insert(id.slot(), Admission { key, after, short });
    }

    /// A key is as a start found it.
    pub fn restored(&mut self, slot: Slot, heat: Heat) {
        self.policy.restore(slot, heat);
    }

    /// A key is gone for good.
    pub fn removed(&mut self, slot: Slot) {
        if self.aside.take(slot).is_none() {
            self.policy.remove(slot);
        }
    }

    /// A key was evicted, or its value replaced: what is known of its use is kept for its next value.
    pub fn evicted(&mut self, slot: Slot, key: u64) {
        self.take_back(slot);
        self.policy.evicted(slot, key);
    }

    /// Whether the hash of a key is of any use to the policy.
    pub fn needs_keys(&self) -> bool {
        self.policy.remembers()
    }

    /// Sets a key of a tenant aside: [`Order::victim`] does not ask about it until it is used.
    pub fn set_aside(&mut self, slot: Slot, tenant: u32) {
        if let Some(heat) = self.policy.heat(slot) {
            self.policy.remove(slot);
            self.aside.put(tenant, slot, heat);
        }
    }

    fn take_back(&mut self, slot: Slot) {
        if let Some(heat) = self.aside.take(slot) {
            self.policy.restore(slot, heat);
        }
    }

    /// What was set aside of a tenant, coldest first.
    pub fn set_aside_of(&self, tenant: u32) -> impl Iterator<Item = Slot> + '_ {
        self.aside.of(tenant)
    }

    /// How many slots were set aside.
    pub fn set_aside_len(&self) -> usize {
        self.aside.len()
    }

    /// The coldest slot of a scope that goes, of those that were not set aside.
    pub fn victim(&self, scope: Scope, ask: &mut dyn FnMut(Slot) -> Verdict) -> Found {
        self.policy.victim(scope, ask)
    }

    /// Has the next searches of a scope step over what this one passed. Nothing has changed since.
    pub fn note_passed(&mut self, scope: Scope, passed: Passed) {
        self.policy.note_passed(scope, passed);
    }

    /// A key of a tenant may go that could not.
    pub fn unpinned(&mut self, tenant: u32) {
        self.policy.forget_passed(Some(tenant));
        self.policy.forget_passed(None);
    }

    /// A key that could not be deleted goes to the hot end: it is tried again when its turn has come again, and is not
    /// in the way of every eviction until then.
    pub fn postpone(&mut self, slot: Slot) {
        if let Some(heat) = self.aside.take(slot).or_else(|| self.policy.heat(slot)) {
            // By way of a removal: not every policy moves what it has.
            self.policy.remove(slot);
            self.policy.restore(slot, heat);
        }
    }

    /// All slots, coldest first, as they are now.
    pub fn all(&self) -> Vec<(Slot, Heat)> {
        self.all_later()()
    }

    /// The same, to be walked through when nobody waits for it.
    pub fn all_later(&self) -> Later {
        let (mut all, rest) = (self.aside.all(), self.policy.order_later());
        Box::new(move || {
            all.extend(rest());
            all
        })
    }

    /// Makes room for the slots below this one, in one piece.
    pub fn reserve(&mut self, slots: usize) {
        self.policy.reserve(slots);
    }

    /// How many slots there are.
    pub fn len(&self) -> usize {
        self.policy.len() + self.aside.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Uses so far.
    pub fn uses(&self) -> u64 {
        self.uses
    }
}
