//! The order of another policy, without victims: for work that may not evict.

use super::{Admission, Found, Heat, Later, Passed, Policy, Scope, Slot, Verdict};

/// Keeps what the other one has.
pub(super) struct Kept(pub(super) Box<dyn Policy>);

impl Policy for Kept {
    fn insert(&mut self, slot: Slot, admission: Admission) {
        self.0.insert(slot, admission);
    }

    fn restore(&mut self, slot: Slot, heat: Heat) {
        self.0.restore(slot, heat);
    }

    fn touch(&mut self, slot: Slot, after: Option<Slot>) {
        self.0.touch(slot, after);
    }

    fn remove(&mut self, slot: Slot) {
        self.0.remove(slot);
    }

    fn evicted(&mut self, slot: Slot, key: u64) {
        self.0.evicted(slot, key);
    }

    fn remembers(&self) -> bool {
        self.0.remembers()
    }

    fn moves(&self) -> bool {
        self.0.moves()
    }

    fn heat(&self, slot: Slot) -> Option<Heat> {
        self.0.heat(slot)
    }

    fn victim(&self, _: Scope, _: &mut dyn FnMut(Slot) -> Verdict) -> Found {
        Found::default()
    }

    fn note_passed(&mut self, _: Scope, _: Passed) {}

    fn forget_passed(&mut self, _: Scope) {}

    fn order_later(&self) -> Later {
        self.0.order_later()
    }

    fn reserve(&mut self, slots: usize) {
        self.0.reserve(slots);
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
