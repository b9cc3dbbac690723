//! The order of a store's keys: a policy, and the runs that say which keys go together.

use super::runs::{Runs, Step, Use};
use super::{Admission, Heat, Later, Policy, Slot};
use crate::store::node::NodeId;

/// The eviction order of every linked value and symlink.
pub struct Order {
    policy: Box<dyn Policy>,
    runs: Runs,
    uses: u64,
}

impl Order {
    /// An empty order of a policy.
    pub fn new(policy: Box<dyn Policy>) -> Order {
        Order { policy, runs: Runs::default(), uses: 0 }
    }

    /// Where a use places its key. A node that a run ended with counts while `is_there` says so: its slot may have another
    /// key by now.
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
        self.policy.insert(id.slot(), Admission { key, after, short });
    }

    /// A key is as a start found it.
    pub fn restored(&mut self, slot: Slot, heat: Heat) {
        self.policy.restore(slot, heat);
    }

    /// A key is gone for good.
    pub fn removed(&mut self, slot: Slot) {
        self.policy.remove(slot);
    }

    /// A key was evicted, or its value replaced: what is known of its use is kept for its next value.
    pub fn evicted(&mut self, slot: Slot, key: u64) {
        self.policy.evicted(slot, key);
    }

    /// Whether the hash of a key is of any use to the policy.
    pub fn needs_keys(&self) -> bool {
        self.policy.remembers()
    }

    /// The coldest slot for which `evictable` holds.
    pub fn victim(&self, evictable: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        self.policy.victim(evictable)
    }

    /// All slots, coldest first, as they are now.
    pub fn all(&self) -> Vec<(Slot, Heat)> {
        self.all_later()()
    }

    /// The same, to be walked through when nobody waits for it.
    pub fn all_later(&self) -> Later {
        self.policy.order_later()
    }

    /// Makes room for so many slots more, in one piece.
    pub fn reserve(&mut self, slots: usize) {
        self.policy.reserve(slots);
    }

    /// How many slots there are.
    pub fn len(&self) -> usize {
        self.policy.len()
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
