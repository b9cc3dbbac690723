//! The order of another policy, without victims: for work that may not evict.

use super::{Policy, Slot};

/// Keeps what the other one has.
pub(super) struct Kept(pub(super) Box<dyn Policy>);

impl Policy for Kept {
    fn insert(&mut self, slot: Slot) {
        self.0.insert(slot);
    }

    fn touch(&mut self, slot: Slot) {
        self.0.touch(slot);
    }

    fn remove(&mut self, slot: Slot) {
        self.0.remove(slot);
    }

    fn victim(&self, _: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        None
    }

    fn order(&self) -> Vec<Slot> {
        self.0.order()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
