//! Least recently opened or published, first out.

use lru::LruCache;

use super::{Policy, Slot};

/// Slots in the order of their last touch.
pub(super) struct Lru(LruCache<Slot, ()>);

impl Lru {
    /// Unbounded: the store's quota, not this list, says how many keys there are.
    pub(super) fn new() -> Self {
        Lru(LruCache::unbounded())
    }
}

impl Policy for Lru {
    fn insert(&mut self, slot: Slot) {
        self.0.put(slot, ());
    }

    fn touch(&mut self, slot: Slot) {
        self.0.promote(&slot);
    }

    fn remove(&mut self, slot: Slot) {
        self.0.pop(&slot);
    }

    fn victim(&self, evictable: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        self.0.iter().rev().map(|(slot, ())| *slot).find(|s| evictable(*s))
    }

    fn order(&self) -> Vec<Slot> {
        self.0.iter().rev().map(|(slot, ())| *slot).collect()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
