//! First published, first out: opening a key never moves it; a new value of a key is admitted anew.

use super::list::{At, Ends, Entries};
use super::{Admission, Heat, Later, Policy, Slot};

/// Slots in the order in which they came.
#[derive(Default, Clone)]
pub(super) struct Fifo {
    entries: Entries<()>,
    ends: Ends,
}

impl Policy for Fifo {
    fn insert(&mut self, slot: Slot, _: Admission) {
        if self.entries.get(slot).is_none() {
            self.entries.link(&mut self.ends, slot, (), At::HotEnd);
        }
    }

    fn restore(&mut self, slot: Slot, _: Heat) {
        self.insert(slot, Admission::default());
    }

    fn moves(&self) -> bool {
        false
    }

    fn heat(&self, slot: Slot) -> Option<Heat> {
        self.entries.get(slot).map(|()| Heat::default())
    }

    fn touch(&mut self, _: Slot, _: Option<Slot>) {}

    fn remove(&mut self, slot: Slot) {
        self.entries.unlink(&mut self.ends, slot);
    }

    fn victim(&self, evictable: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        self.entries.iter(&self.ends).find(|s| evictable(*s))
    }

    fn order_later(&self) -> Later {
        let copy = self.clone();
        Box::new(move || copy.entries.iter(&copy.ends).map(|s| (s, Heat::default())).collect())
    }

    fn reserve(&mut self, slots: usize) {
        self.entries.reserve(slots);
    }

    fn len(&self) -> usize {
        self.entries.len()
    }
}
