//! Least recently opened or published, first out: the same list, in which a touch moves to the end.

use super::fifo::Fifo;
use super::{Policy, Slot};

/// Slots in the order of their last touch.
#[derive(Default)]
pub(super) struct Lru(Fifo);

impl Policy for Lru {
    fn insert(&mut self, slot: Slot) {
        self.0.remove(slot);
        self.0.insert(slot);
    }

    fn touch(&mut self, slot: Slot) {
        if self.0.holds(slot) {
            self.insert(slot);
        }
    }

    fn remove(&mut self, slot: Slot) {
        self.0.remove(slot);
    }

    fn victim(&self, evictable: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        self.0.victim(evictable)
    }

    fn order(&self) -> Vec<Slot> {
        self.0.order()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
