//! Which key goes when room is needed.
//!
//! A policy orders slots of the index and proposes the coldest. It never frees anything: the caller says which
//! slots may go (pinned, open and fenced keys may not), deletes the key, and then removes the slot.
//! Pure values without I/O; the index lock guards them.

use crate::config::PolicyName;

mod fifo;
mod kept;
mod lru;

/// One entry: a slot number of the index. Slots are dense and reused after [`Policy::remove`].
pub type Slot = u32;

/// An order of slots from the coldest to the hottest.
pub trait Policy: Send {
    /// Admits a new key, which also counts as a touch. Inserting a known slot is a touch.
    fn insert(&mut self, slot: Slot);

    /// The key was opened or republished. Unknown slots are ignored.
    fn touch(&mut self, slot: Slot);

    /// Forgets a slot; its number may come back as another key. Unknown slots are ignored.
    fn remove(&mut self, slot: Slot);

    /// The coldest slot for which `evictable` holds; it stays until it is removed. Asks about no slot behind
    /// the one it returns, so the cost is one step for each colder slot that was refused.
    fn victim(&self, evictable: &mut dyn FnMut(Slot) -> bool) -> Option<Slot>;

    /// All slots, coldest first: inserting them in this order into an empty policy restores it.
    fn order(&self) -> Vec<Slot>;

    /// How many slots there are.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An empty policy of this name.
pub fn new(name: PolicyName) -> Box<dyn Policy> {
    match name {
        PolicyName::Fifo => Box::<fifo::Fifo>::default(),
        PolicyName::Lru => Box::<lru::Lru>::default(),
    }
}

/// One that keeps the same order and gives nothing away.
pub fn keeping_all(name: PolicyName) -> Box<dyn Policy> {
    Box::new(kept::Kept(new(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [PolicyName; 2] = [PolicyName::Fifo, PolicyName::Lru];
    const A: Slot = 0;
    const B: Slot = 1;
    const C: Slot = 2;

    fn any(policy: &dyn Policy) -> Option<Slot> {
        policy.victim(&mut |_| true)
    }

    fn filled(name: PolicyName, slots: &[Slot]) -> Box<dyn Policy> {
        let mut policy = new(name);
        slots.iter().for_each(|s| policy.insert(*s));
        policy
    }

    /// A full cache of three: put A, put B, get B, put C, get A; what goes when D comes.
    #[test]
    fn each_policy_evicts_its_own_victim() {
        for (name, victim, order) in [(PolicyName::Fifo, A, [A, B, C]), (PolicyName::Lru, B, [B, C, A])] {
            let mut policy = new(name);
            policy.insert(A);
            policy.insert(B);
            policy.touch(B);
            policy.insert(C);
            policy.touch(A);
            assert_eq!(policy.order(), order, "{name:?}");
            assert_eq!(any(&*policy), Some(victim), "{name:?}");
            assert_eq!(policy.len(), 3, "a victim stays until it is removed");
        }
    }

    #[test]
    fn one_that_keeps_all_has_the_order_and_no_victim() {
        let mut kept = keeping_all(PolicyName::Lru);
        [A, B, C].into_iter().for_each(|s| kept.insert(s));
        kept.touch(A);
        kept.remove(B);
        assert_eq!((kept.order(), kept.len()), (vec![C, A], 2));
        assert_eq!(any(&*kept), None);
    }

    #[test]
    fn inserting_a_known_slot_is_a_touch() {
        let mut fifo = filled(PolicyName::Fifo, &[A, B]);
        fifo.insert(A);
        assert_eq!(fifo.order(), [A, B]);
        let mut lru = filled(PolicyName::Lru, &[A, B]);
        lru.insert(A);
        assert_eq!(lru.order(), [B, A]);
        assert_eq!((fifo.len(), lru.len()), (2, 2));
    }

    #[test]
    fn refused_slots_are_skipped_and_hotter_ones_not_asked() {
        for name in BOTH {
            let policy = filled(name, &[A, B, C]);
            let mut asked = Vec::new();
            let victim = policy.victim(&mut |s| {
                asked.push(s);
                s == B
            });
            assert_eq!(victim, Some(B), "{name:?}");
            assert_eq!(asked, [A, B], "{name:?}");
            assert_eq!(policy.victim(&mut |_| false), None, "{name:?}");
            assert_eq!(policy.order(), [A, B, C], "{name:?}: asking changes nothing");
        }
    }

    #[test]
    fn removed_and_unknown_slots_leave_no_trace() {
        for name in BOTH {
            for gone in [A, B, C] {
                let mut policy = filled(name, &[A, B, C]);
                policy.remove(gone);
                policy.remove(gone);
                policy.touch(gone);
                policy.remove(900);
                policy.touch(900);
                let left: Vec<Slot> = [A, B, C].into_iter().filter(|s| *s != gone).collect();
                assert_eq!(policy.order(), left, "{name:?}");
                assert_eq!(policy.len(), 2, "{name:?}");
            }
        }
    }

    #[test]
    fn a_reused_slot_is_a_new_key() {
        for name in BOTH {
            let mut policy = filled(name, &[A, B]);
            policy.remove(A);
            policy.insert(A);
            assert_eq!(policy.order(), [B, A], "{name:?}");
        }
    }

    #[test]
    fn an_empty_policy_has_no_victim() {
        for name in BOTH {
            let mut policy = new(name);
            assert_eq!(any(&*policy), None);
            policy.insert(7);
            policy.remove(7);
            assert_eq!((any(&*policy), policy.is_empty()), (None, true), "{name:?}");
            assert!(policy.order().is_empty(), "{name:?}");
        }
    }

    #[test]
    fn order_restores_a_policy() {
        for name in BOTH {
            let mut policy = filled(name, &[5, 3, 9, 1]);
            policy.touch(3);
            let restored = filled(name, &policy.order());
            assert_eq!(restored.order(), policy.order(), "{name:?}");
        }
    }

    /// Any sequence agrees with a plain list that is searched from end to end.
    #[test]
    fn policies_agree_with_a_list() {
        for name in BOTH {
            let mut policy = new(name);
            let mut model: Vec<Slot> = Vec::new();
            let mut random = 0x9e37_79b9_7f4a_7c15_u64;
            for step in 0..4000 {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let slot = (random >> 40) as Slot % 24;
                let known = model.iter().position(|s| *s == slot);
                match (random >> 33) % 3 {
                    0 => policy.insert(slot),
                    1 => policy.touch(slot),
                    _ => policy.remove(slot),
                }
                match ((random >> 33) % 3, known, name) {
                    (0, None, _) => model.push(slot),
                    (0 | 1, Some(at), PolicyName::Lru) => {
                        model.remove(at);
                        model.push(slot);
                    }
                    (0, Some(_), PolicyName::Fifo) | (1, _, _) => {}
                    (_, Some(at), _) => drop(model.remove(at)),
                    (_, None, _) => {}
                }
                assert_eq!(policy.order(), model, "{name:?} at step {step}");
                assert_eq!(policy.len(), model.len(), "{name:?} at step {step}");
                let odd = policy.victim(&mut |s| s % 2 == 1);
                assert_eq!(odd, model.iter().copied().find(|s| s % 2 == 1), "{name:?} at step {step}");
            }
        }
    }
}
