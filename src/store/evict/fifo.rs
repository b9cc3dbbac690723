//! First published, first out.
//!
//! A doubly linked list whose links live in a vector indexed by slot: eight bytes a slot, every operation in
//! constant time. Opening a key never moves it; a new value of a key is admitted anew.

use super::{Policy, Slot};

/// Ends the list.
const NIL: Slot = Slot::MAX;
/// In `next`: the slot is not in the list.
const ABSENT: Slot = Slot::MAX - 1;

#[derive(Clone, Copy)]
struct Link {
    prev: Slot,
    next: Slot,
}

const UNLINKED: Link = Link { prev: NIL, next: ABSENT };

/// Slots in the order in which they came.
pub(super) struct Fifo {
    // INVARIANT: following `next` from `head` meets the `len` present slots once each and ends at `tail`;
    // `prev` is its mirror. Every other link is `UNLINKED`.
    links: Vec<Link>,
    head: Slot,
    tail: Slot,
    len: usize,
}

impl Default for Fifo {
    fn default() -> Self {
        Fifo { links: Vec::new(), head: NIL, tail: NIL, len: 0 }
    }
}

impl Fifo {
    /// The link of a slot that is in the list.
    fn link(&self, slot: Slot) -> Option<Link> {
        self.links.get(slot as usize).copied().filter(|l| l.next != ABSENT)
    }

    pub(super) fn holds(&self, slot: Slot) -> bool {
        self.link(slot).is_some()
    }

    fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        let mut at = self.head;
        std::iter::from_fn(move || {
            let slot = at;
            at = self.link(slot)?.next;
            Some(slot)
        })
    }
}

impl Policy for Fifo {
    fn insert(&mut self, slot: Slot) {
        assert!(slot < ABSENT, "the index hands out slots below {ABSENT}");
        if self.link(slot).is_some() {
            return;
        }
        let at = slot as usize;
        if at >= self.links.len() {
            self.links.resize(at + 1, UNLINKED);
        }
        self.links[at] = Link { prev: self.tail, next: NIL };
        match self.tail {
            NIL => self.head = slot,
            tail => self.links[tail as usize].next = slot,
        }
        self.tail = slot;
        self.len += 1;
    }

    fn touch(&mut self, _slot: Slot) {}

    fn remove(&mut self, slot: Slot) {
        let Some(Link { prev, next }) = self.link(slot) else { return };
        match prev {
            NIL => self.head = next,
            prev => self.links[prev as usize].next = next,
        }
        match next {
            NIL => self.tail = prev,
            next => self.links[next as usize].prev = prev,
        }
        self.links[slot as usize] = UNLINKED;
        self.len -= 1;
    }

    fn victim(&self, evictable: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        self.iter().find(|s| evictable(*s))
    }

    fn order(&self) -> Vec<Slot> {
        let mut order = Vec::with_capacity(self.len);
        order.extend(self.iter());
        order
    }

    fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mirror image and the count, which `order` alone does not show.
    fn check(fifo: &Fifo) {
        let mut backward = Vec::new();
        let mut at = fifo.tail;
        while let Some(link) = fifo.link(at) {
            backward.push(at);
            at = link.prev;
        }
        backward.reverse();
        assert_eq!(backward, fifo.order());
        assert_eq!(backward.len(), fifo.len);
        let present = fifo.links.iter().filter(|l| l.next != ABSENT).count();
        assert_eq!(present, fifo.len);
    }

    #[test]
    fn both_directions_agree_whatever_goes_first() {
        for removals in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut fifo = Fifo::default();
            for slot in [2, 0, 1] {
                fifo.insert(slot);
                check(&fifo);
            }
            for slot in removals {
                fifo.remove(slot);
                check(&fifo);
            }
            assert_eq!((fifo.head, fifo.tail, fifo.len), (NIL, NIL, 0));
        }
    }

    #[test]
    fn the_sentinels_are_unknown_slots() {
        let mut fifo = Fifo::default();
        fifo.insert(0);
        fifo.remove(NIL);
        fifo.remove(ABSENT);
        assert_eq!(fifo.order(), [0]);
    }
}
