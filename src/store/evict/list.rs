//! Doubly linked lists of slots, whose links live in one vector indexed by slot: every operation in constant time.
//!
//! A policy keeps one or more lists over the same vector; a slot is in one of them or in none. What a policy knows of a
//! slot stands beside its links, so that a touch finds both in one place.

use super::gaps::{Gap, Gaps};
use super::{Scope, Slot, Verdict};

/// Ends a list.
const NIL: Slot = Slot::MAX;
/// In `hotter`: the slot is in no list.
const ABSENT: Slot = Slot::MAX - 1;

/// The two ends of a list, and what searches passed between them.
#[derive(Debug, Clone)]
pub(super) struct Ends {
    cold: Slot,
    hot: Slot,
    gaps: Gaps,
}

impl Default for Ends {
    fn default() -> Self {
        Ends { cold: NIL, hot: NIL, gaps: Gaps::default() }
    }
}

impl Ends {
    /// The coldest slot.
    pub(super) fn coldest(&self) -> Option<Slot> {
        Some(self.cold).filter(|s| *s != NIL)
    }

    /// What a search of this scope passed.
    pub(super) fn note(&mut self, scope: Scope, gap: Gap) {
        self.gaps.note(scope, gap);
    }

    /// The next search of this scope asks about every slot.
    pub(super) fn forget_gap(&mut self, scope: Scope) {
        self.gaps.forget(scope);
    }
}

/// Where a slot enters a list.
#[derive(Debug, Clone, Copy)]
pub(super) enum At {
    /// It goes last.
    HotEnd,
    /// It goes first.
    ColdEnd,
    /// It goes just before this slot of the same list.
    Behind(Slot),
}

#[derive(Clone, Copy)]
struct Entry<T> {
    colder: Slot,
    hotter: Slot,
    value: T,
}

/// The links of all slots, and a value for each that is in a list.
#[derive(Clone)]
pub(super) struct Entries<T> {
    // INVARIANT: following `hotter` from the cold end of each list meets slots once each and ends at its hot end;
    // `colder` is its mirror; the lists have `len` slots together, and every other entry is `ABSENT`.
    entries: Vec<Entry<T>>,
    len: usize,
}

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Entries { entries: Vec::new(), len: 0 }
    }
}

impl<T: Copy + Default> Entries<T> {
    /// How many slots are in lists.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Makes room for the slots below this one, in one piece.
    pub(super) fn reserve(&mut self, slots: usize) {
        self.entries.reserve(slots.saturating_sub(self.entries.len()));
    }

    fn entry(&self, slot: Slot) -> Option<&Entry<T>> {
        self.entries.get(slot as usize).filter(|e| e.hotter != ABSENT)
    }

    /// What is known of a slot that is in a list.
    pub(super) fn get(&self, slot: Slot) -> Option<T> {
        self.entry(slot).map(|e| e.value)
    }

    /// Puts a slot that is in no list into one.
    pub(super) fn link(&mut self, ends: &mut Ends, slot: Slot, value: T, at: At) {
        assert!(slot < ABSENT, "the index hands out slots below {ABSENT}");
        debug_assert!(self.entry(slot).is_none(), "a slot is in one list at most");
        let index = slot as usize;
        if index >= self.entries.len() {
            let absent = Entry { colder: NIL, hotter: ABSENT, value: T::default() };
            self.entries.resize(index + 1, absent);
        }
        let (colder, hotter) = match at {
            At::HotEnd => (ends.hot, NIL),
            At::ColdEnd => (NIL, ends.cold),
            At::Behind(hotter) => (self.entries[hotter as usize].colder, hotter),
        };
        self.entries[index] = Entry { colder, hotter, value };
        match colder {
            NIL => ends.cold = slot,
            colder => self.entries[colder as usize].hotter = slot,
        }
        match hotter {
            NIL => ends.hot = slot,
            hotter => self.entries[hotter as usize].colder = slot,
        }
        self.len += 1;
    }

    /// Takes a slot out of the list that it is in.
    pub(super) fn unlink(&mut self, ends: &mut Ends, slot: Slot) {
        let Some(&Entry { colder, hotter, .. }) = self.entry(slot) else { return };
        match colder {
            NIL => ends.cold = hotter,
            colder => self.entries[colder as usize].hotter = hotter,
        }
        match hotter {
            NIL => ends.hot = colder,
            hotter => self.entries[hotter as usize].colder = colder,
        }
        ends.gaps.leave(slot, colder, hotter);
        self.entries[slot as usize].hotter = ABSENT;
        self.len -= 1;
    }

    /// The coldest slot of a list that may go, and the longest row of slots that were passed. Asks about none of a gap that
    /// was noted.
    pub(super) fn search(
        &self,
        ends: &Ends,
        scope: Scope,
        ask: &mut dyn FnMut(Slot) -> Verdict,
    ) -> (Option<Slot>, Option<Gap>) {
        let known = ends.gaps.of(scope);
        let (mut longest, mut passed) = (None, None);
        let mut at = ends.cold;
        while let Some(entry) = self.entry(at) {
            let mut next = entry.hotter;
            if let Some(gap) = known.filter(|gap| gap.cold == at) {
                passed = Some(Gap::joined(passed, gap));
                next = self.entry(gap.hot).map_or(NIL, |hot| hot.hotter);
            } else {
                match ask(at) {
                    Verdict::Goes => return (Some(at), Gap::longer(longest, passed)),
                    Verdict::Passed => passed = Some(Gap::with(passed, at)),
                    Verdict::Stays => longest = Gap::longer(longest, passed.take()),
                }
            }
            at = next;
        }
        (None, Gap::longer(longest, passed))
    }

    /// A list from its cold end.
    pub(super) fn iter(&self, ends: &Ends) -> impl Iterator<Item = Slot> + '_ {
        let mut at = ends.cold;
        std::iter::from_fn(move || {
            let slot = at;
            at = self.entry(slot)?.hotter;
            Some(slot)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both directions of the only list, which must agree.
    fn order(entries: &Entries<()>, ends: &Ends) -> Vec<Slot> {
        let mut backward = Vec::new();
        let mut at = ends.hot;
        while let Some(entry) = entries.entry(at) {
            backward.push(at);
            at = entry.colder;
        }
        backward.reverse();
        assert_eq!(backward, entries.iter(ends).collect::<Vec<_>>());
        assert_eq!(backward.len(), entries.len());
        assert_eq!(entries.entries.iter().filter(|e| e.hotter != ABSENT).count(), entries.len());
        backward
    }

    #[test]
    fn a_slot_enters_where_it_is_told() {
        let (mut entries, mut ends) = (Entries::default(), Ends::default());
        for (slot, at, expected) in [
            (2, At::HotEnd, &[2][..]),
            (0, At::HotEnd, &[2, 0]),
            (5, At::ColdEnd, &[5, 2, 0]),
            (1, At::Behind(0), &[5, 2, 1, 0]),
            (3, At::Behind(5), &[3, 5, 2, 1, 0]),
        ] {
            entries.link(&mut ends, slot, (), at);
            assert_eq!(order(&entries, &ends), expected);
        }
    }

    #[test]
    fn both_directions_agree_whatever_goes_first() {
        for removals in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let (mut entries, mut ends) = (Entries::default(), Ends::default());
            for slot in [2, 0, 1] {
                entries.link(&mut ends, slot, (), At::HotEnd);
            }
            let mut left = vec![2, 0, 1];
            for slot in removals {
                entries.unlink(&mut ends, slot);
                left.retain(|s| *s != slot);
                assert_eq!(order(&entries, &ends), left);
            }
            assert_eq!((ends.cold, ends.hot), (NIL, NIL));
        }
    }

    #[test]
    fn the_sentinels_are_unknown_slots() {
        let (mut entries, mut ends) = (Entries::default(), Ends::default());
        entries.link(&mut ends, 0, (), At::HotEnd);
        entries.unlink(&mut ends, NIL);
        entries.unlink(&mut ends, ABSENT);
        assert_eq!(order(&entries, &ends), [0]);
    }
}
