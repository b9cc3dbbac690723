//! What searches of a list have stepped over, so that the next one need not.
//!
//! A search for a victim of one tenant passes the colder keys of all others, and any search passes pinned keys: without
//! memory that is every key of the store for each eviction. So a search leaves a *gap* behind: from this slot to that one
//! nothing is of its scope. The next search of the scope goes from one end of the gap to the other, and lengthens it.
//!
//! INVARIANT: a slot of a gap is passed by every search of its scope until it moves. What comes into a list comes to an
//! end of it or behind a slot of its own tenant that is not pinned ([`super::Order`]), so never into a gap of its own scope;
//! and whoever unpins a key has the gaps forgotten.

use hashbrown::HashMap;

use super::{Scope, Slot};
use crate::config::limits;

/// Neighbours in a list, from the coldest to the hottest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    pub(super) cold: Slot,
    pub(super) hot: Slot,
    /// How many they are, or were: what has left from between the ends is not known.
    slots: usize,
}

impl Gap {
    /// A gap with one more slot at its hot end; a first one where there is none.
    pub(super) fn with(gap: Option<Gap>, slot: Slot) -> Gap {
        Gap::joined(gap, Gap { cold: slot, hot: slot, slots: 1 })
    }

    /// Two gaps side by side.
    pub(super) fn joined(gap: Option<Gap>, hotter: Gap) -> Gap {
        match gap {
            Some(gap) => Gap { cold: gap.cold, hot: hotter.hot, slots: gap.slots + hotter.slots },
            None => hotter,
        }
    }

    pub(super) fn longer(a: Option<Gap>, b: Option<Gap>) -> Option<Gap> {
        if b.map_or(0, |gap| gap.slots) > a.map_or(0, |gap| gap.slots) { b } else { a }
    }
}

/// The gaps of one list, one for each scope.
#[derive(Debug, Clone, Default)]
pub(super) struct Gaps {
    by_scope: HashMap<Scope, Gap>,
    /// How many gaps end at a slot, on either side.
    ends: HashMap<Slot, usize>,
}

impl Gaps {
    pub(super) fn of(&self, scope: Scope) -> Option<Gap> {
        self.by_scope.get(&scope).copied()
    }

    /// Takes the place of what was known of a scope. One that is stepped through as soon as looked up is not worth it.
    pub(super) fn note(&mut self, scope: Scope, gap: Gap) {
        if self.of(scope) != Some(gap) && gap.slots >= limits::GAP_SLOTS {
            self.forget(scope);
            self.by_scope.insert(scope, gap);
            self.count(&gap);
        }
    }

    pub(super) fn forget(&mut self, scope: Scope) {
        if let Some(gap) = self.by_scope.remove(&scope) {
            self.discount(gap.cold);
            self.discount(gap.hot);
        }
    }

    fn count(&mut self, gap: &Gap) {
        *self.ends.entry(gap.cold).or_default() += 1;
        *self.ends.entry(gap.hot).or_default() += 1;
    }

    fn discount(&mut self, slot: Slot) {
        if let Some(n) = self.ends.get_mut(&slot) {
            *n -= 1;
            if *n == 0 {
                self.ends.remove(&slot);
            }
        }
    }

    /// A slot leaves the list, and these are its neighbours: a gap that ends there is shorter by it.
    pub(super) fn leave(&mut self, slot: Slot, colder: Slot, hotter: Slot) {
        if self.ends.remove(&slot).is_none() {
            return;
        }
        self.by_scope.retain(|_, gap| gap.cold != slot || gap.hot != slot);
        for gap in self.by_scope.values_mut() {
            let end = if gap.cold == slot {
                gap.cold = hotter;
                hotter
            } else if gap.hot == slot {
                gap.hot = colder;
                colder
            } else {
                continue;
            };
            gap.slots -= 1;
            *self.ends.entry(end).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(slots: std::ops::Range<Slot>) -> Gap {
        slots.fold(None, |gap, slot| Some(Gap::with(gap, slot))).unwrap()
    }

    #[test]
    fn a_gap_shrinks_from_both_ends_and_leaves_nothing() {
        let mut gaps = Gaps::default();
        gaps.note(Some(1), gap(0..15));
        assert_eq!((gaps.of(Some(1)), gaps.ends.len()), (None, 0), "too short to be noted");
        for scope in [None, Some(1)] {
            gaps.note(scope, gap(0..20));
        }
        gaps.note(None, gap(0..25));
        for slot in 0..5 {
            gaps.leave(slot, Slot::MAX, slot + 1);
        }
        for slot in (7..20).rev() {
            gaps.leave(slot, slot - 1, slot + 1);
        }
        assert_eq!(gaps.of(None).map(|gap| (gap.cold, gap.hot)), Some((5, 24)));
        let shorter = gaps.of(Some(1)).unwrap();
        assert_eq!((shorter.cold, shorter.hot, shorter.slots), (5, 6, 2));
        gaps.leave(5, 4, 6);
        gaps.leave(6, 4, 20);
        assert_eq!(gaps.of(Some(1)), None);
        gaps.forget(None);
        assert!(gaps.by_scope.is_empty() && gaps.ends.is_empty());
    }
}
