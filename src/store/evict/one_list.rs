//! The policies of one list. `lru`: least recently opened or published, first out; `lru-chain`: the same, but the keys of
//! one run from its end; `fifo`: first published, first out, so that nothing moves a key but a new value.

use super::list::{At, Ends, Entries};
use super::{Admission, Found, Heat, Later, Passed, Policy, Scope, Slot, Verdict};

/// Slots in the order in which they came, or of their last touch; with chains those of a run in the opposite order.
#[derive(Default, Clone)]
pub(super) struct OneList {
    entries: Entries<()>,
    ends: Ends,
    moves: bool,
    chain: bool,
}

impl OneList {
    pub(super) fn fifo() -> OneList {
        OneList::default()
    }

    pub(super) fn lru(chain: bool) -> OneList {
        OneList { moves: true, chain, ..OneList::default() }
    }

    fn place(&mut self, slot: Slot, after: Option<Slot>) {
        if !self.moves && self.entries.get(slot).is_some() {
            return;
        }
        self.entries.unlink(&mut self.ends, slot);
        let after = after.filter(|a| self.chain && self.entries.get(*a).is_some());
        self.entries.link(&mut self.ends, slot, (), after.map_or(At::HotEnd, At::Behind));
    }
}

impl Policy for OneList {
    fn insert(&mut self, slot: Slot, admission: Admission) {
        if admission.short && self.chain {
            self.entries.unlink(&mut self.ends, slot);
            self.entries.link(&mut self.ends, slot, (), At::ColdEnd);
        } else {
            self.place(slot, admission.after);
        }
    }

    fn restore(&mut self, slot: Slot, _: Heat) {
        self.place(slot, None);
    }

    fn touch(&mut self, slot: Slot, after: Option<Slot>) {
        if self.entries.get(slot).is_some() {
            self.place(slot, after);
        }
    }

    fn moves(&self) -> bool {
        self.moves
    }

    fn heat(&self, slot: Slot) -> Option<Heat> {
        self.entries.get(slot).map(|()| Heat::default())
    }

    fn remove(&mut self, slot: Slot) {
        self.entries.unlink(&mut self.ends, slot);
    }

    fn victim(&self, scope: Scope, ask: &mut dyn FnMut(Slot) -> Verdict) -> Found {
        let (slot, gap) = self.entries.search(&self.ends, scope, ask);
        Found { slot, passed: gap.into_iter().map(|gap| (0, gap)).collect() }
    }

    fn note_passed(&mut self, scope: Scope, passed: Passed) {
        passed.into_iter().for_each(|(_, gap)| self.ends.note(scope, gap));
    }

    fn forget_passed(&mut self, scope: Scope) {
        self.ends.forget_gap(scope);
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
