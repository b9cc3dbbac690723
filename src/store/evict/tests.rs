//! Each policy against its rules.

use super::*;
use crate::random::Random;

const ALL: [PolicyName; 5] =
    [PolicyName::Fifo, PolicyName::Lru, PolicyName::LruChain, PolicyName::Mq, PolicyName::MqChain];
const CHAINED: [PolicyName; 2] = [PolicyName::LruChain, PolicyName::MqChain];
const MULTI: [PolicyName; 2] = [PolicyName::Mq, PolicyName::MqChain];
const A: Slot = 0;
const B: Slot = 1;
const C: Slot = 2;
const D: Slot = 3;

fn policy(name: PolicyName) -> Box<dyn Policy> {
    new(name, EvictOptions::default())
}

/// A key whose hash is known by its slot.
fn key(slot: Slot) -> u64 {
    (u64::from(slot) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn plain(slot: Slot) -> Admission {
    Admission { key: key(slot), ..Admission::default() }
}

fn put(policy: &mut dyn Policy, slot: Slot) {
    policy.insert(slot, plain(slot));
}

fn any(policy: &dyn Policy) -> Option<Slot> {
    policy.victim(None, &mut |_| Verdict::Goes).slot
}

fn order(policy: &dyn Policy) -> Vec<Slot> {
    policy.order_later()().into_iter().map(|(slot, _)| slot).collect()
}

fn filled(name: PolicyName, slots: &[Slot]) -> Box<dyn Policy> {
    let mut policy = policy(name);
    slots.iter().for_each(|s| put(&mut *policy, *s));
    policy
}

/// A full cache of three: put A, put B, get B, put C, get A; what goes when D comes.
#[test]
fn each_policy_evicts_its_own_victim() {
    for (name, victim) in [
        (PolicyName::Fifo, A),
        (PolicyName::Lru, B),
        (PolicyName::LruChain, B),
        (PolicyName::Mq, C),
        (PolicyName::MqChain, C),
    ] {
        let mut policy = filled(name, &[A, B]);
        policy.touch(B, None);
        put(&mut *policy, C);
        policy.touch(A, None);
        assert_eq!(any(&*policy), Some(victim), "{name:?}");
        assert_eq!(policy.len(), 3, "a victim stays until it is removed");
    }
}

/// One run X0 X1 X2 fills a cache of three; what goes when Y0 comes.
#[test]
fn a_run_goes_from_its_end_where_there_are_chains() {
    for (name, victim) in [
        (PolicyName::Fifo, A),
        (PolicyName::Lru, A),
        (PolicyName::LruChain, C),
        (PolicyName::Mq, A),
        (PolicyName::MqChain, C),
    ] {
        let mut policy = policy(name);
        for (slot, after) in [(A, None), (B, Some(A)), (C, Some(B))] {
            policy.insert(slot, Admission { after, ..plain(slot) });
        }
        assert_eq!(any(&*policy), Some(victim), "{name:?}");
        policy.evicted(victim, key(victim));
        put(&mut *policy, D);
        assert_ne!(any(&*policy), Some(D), "{name:?}: the root goes before a newer run");
    }
}

/// The run is read again: all of it moves up, and its end is still colder than its root.
#[test]
fn a_run_that_is_read_again_keeps_its_shape() {
    for name in CHAINED {
        let mut policy = policy(name);
        for (slot, after) in [(A, None), (B, Some(A)), (C, Some(B))] {
            policy.insert(slot, Admission { after, ..plain(slot) });
        }
        put(&mut *policy, D);
        for (slot, after) in [(A, None), (B, Some(A)), (C, Some(B))] {
            policy.touch(slot, after);
        }
        assert_eq!(order(&*policy), [D, C, B, A], "{name:?}");
    }
}

/// A key that was used often, evicted, and comes back is what it was and one more; one that was removed is new.
#[test]
fn an_evicted_key_comes_back_with_its_frequency() {
    for name in MULTI {
        for (evicted, expected) in [(true, 4), (false, 1)] {
            let mut policy = filled(name, &[A, B, C]);
            policy.touch(A, None);
            policy.touch(A, None);
            if evicted {
                policy.evicted(A, key(A));
            } else {
                policy.remove(A);
            }
            // Another slot: it is the key that counts.
            policy.insert(9, plain(A));
            let heat = policy.order_later()().into_iter().find(|(s, _)| *s == 9).unwrap().1;
            assert_eq!(heat.frequency(), expected, "{name:?}, evicted: {evicted}");
            policy.evicted(9, key(A));
            policy.insert(9, plain(D));
            let heat = policy.order_later()().into_iter().find(|(s, _)| *s == 9).unwrap().1;
            assert_eq!(heat.frequency(), 1, "{name:?}: another key in the same slot");
        }
    }
}

/// Of three keys the last six evictions are remembered.
#[test]
fn ghosts_are_twice_as_many_as_keys() {
    for name in MULTI {
        let mut policy = filled(name, &[0, 1, 2]);
        for slot in 3..10 {
            policy.touch(slot - 3, None);
            policy.evicted(slot - 3, key(slot - 3));
            put(&mut *policy, slot);
        }
        // 0 to 6 were evicted, each with a frequency of 2; 0 is forgotten.
        for (gone, expected) in [(0, 1), (1, 3), (6, 3)] {
            policy.insert(20 + gone, plain(gone));
            let heat = policy.order_later()().into_iter().find(|(s, _)| *s == 20 + gone).unwrap().1;
            assert_eq!(heat.frequency(), expected, "{name:?}: {gone}");
        }
    }
}

#[test]
fn a_short_tail_goes_first() {
    for name in ALL {
        let mut policy = filled(name, &[A, B]);
        policy.insert(C, Admission { after: Some(B), short: true, ..plain(C) });
        assert_eq!(any(&*policy) == Some(C), CHAINED.contains(&name), "{name:?}");
    }
}

/// What is not touched for a lifetime, half as many touches as there are keys, moves down.
#[test]
fn popularity_ends_with_its_lifetime() {
    for name in MULTI {
        let mut policy = filled(name, &[0, 1, 2, 3, 4, 5, 6, 7]);
        policy.touch(0, None);
        let queue = |policy: &dyn Policy| {
            policy.order_later()().into_iter().find(|(s, _)| *s == 0).unwrap().1.queue()
        };
        for touches in 1..=3 {
            policy.touch(7, None);
            assert_eq!(queue(&*policy), 1, "{name:?} after {touches} touches");
        }
        policy.touch(7, None);
        assert_eq!(queue(&*policy), 0, "{name:?}");
        assert_eq!(order(&*policy), [1, 2, 3, 4, 5, 6, 0, 7], "{name:?}: to the hot end of the queue below");
    }
}

/// What may not go (a pinned key) is passed over, and nobody behind the victim is asked.
#[test]
fn refused_slots_are_skipped_and_hotter_ones_not_asked() {
    for name in ALL {
        let policy = filled(name, &[A, B, C]);
        let mut asked = Vec::new();
        let victim = policy.victim(None, &mut |s| {
            asked.push(s);
            if s == B { Verdict::Goes } else { Verdict::Stays }
        });
        assert_eq!((victim.slot, asked), (Some(B), vec![A, B]), "{name:?}");
        assert_eq!(policy.victim(None, &mut |_| Verdict::Stays).slot, None, "{name:?}");
        assert_eq!(order(&*policy), [A, B, C], "{name:?}: asking changes nothing");
    }
}

#[test]
fn one_that_keeps_all_has_the_order_and_no_victim() {
    let mut kept = keeping_all(PolicyName::Lru, EvictOptions::default());
    [A, B, C].into_iter().for_each(|s| put(&mut *kept, s));
    kept.touch(A, None);
    kept.remove(B);
    assert_eq!((order(&*kept), kept.len()), (vec![C, A], 2));
    assert_eq!(any(&*kept), None);
}

#[test]
fn removed_and_unknown_slots_leave_no_trace() {
    for name in ALL {
        for gone in [A, B, C] {
            let mut policy = filled(name, &[A, B, C]);
            policy.remove(gone);
            policy.remove(gone);
            policy.touch(gone, Some(A));
            policy.remove(900);
            policy.touch(900, None);
            let left: Vec<Slot> = [A, B, C].into_iter().filter(|s| *s != gone).collect();
            assert_eq!((order(&*policy), policy.len()), (left, 2), "{name:?}");
        }
    }
}

#[test]
fn a_reused_slot_is_a_new_key() {
    for name in ALL {
        let mut policy = filled(name, &[A, B]);
        policy.remove(A);
        put(&mut *policy, A);
        assert_eq!(order(&*policy), [B, A], "{name:?}");
    }
}

#[test]
fn order_restores_a_policy() {
    for name in ALL {
        let mut policy = filled(name, &[5, 3, 9, 1, 7, 2]);
        for slot in [3, 3, 3, 9, 5, 3, 1] {
            policy.touch(slot, None);
        }
        let told = policy.order_later()();
        let mut restored = super::new(name, EvictOptions::default());
        told.iter().for_each(|(slot, heat)| restored.restore(*slot, Heat::from_byte(heat.byte())));
        assert_eq!(restored.order_later()(), told, "{name:?}");
    }
}

/// A policy as its rules say it, searched from end to end.
struct Model {
    name: PolicyName,
    /// Queue, frequency, the touch of the last placing; each queue from its cold end.
    queues: Vec<Vec<(Slot, u8, u32)>>,
    ghosts: Vec<(u64, u8)>,
    touches: u32,
}

impl Model {
    fn len(&self) -> usize {
        self.queues.iter().map(Vec::len).sum()
    }

    fn take(&mut self, slot: Slot) -> Option<u8> {
        let found =
            self.queues.iter_mut().find_map(|q| q.iter().position(|k| k.0 == slot).map(|at| q.remove(at)));
        found.map(|k| k.1)
    }

    fn place(&mut self, slot: Slot, frequency: u8, after: Option<Slot>) {
        let queue = if self.queues.len() == 1 { 0 } else { (frequency.ilog2() as usize).min(3) };
        let queue = &mut self.queues[queue];
        let chained = after.filter(|_| CHAINED.contains(&self.name));
        let at = queue.iter().position(|k| Some(k.0) == chained).unwrap_or(queue.len());
        queue.insert(at, (slot, frequency, self.touches));
    }

    fn tick(&mut self) {
        self.touches += 1;
        let lifetime = self.len() as u32 / 2;
        for queue in 1..self.queues.len() {
            if self.queues[queue].first().is_some_and(|k| self.touches - k.2 > lifetime) {
                let (slot, frequency, _) = self.queues[queue].remove(0);
                self.queues[queue - 1].push((slot, frequency, self.touches));
            }
        }
    }

    fn insert(&mut self, slot: Slot, admission: Admission) {
        let was = self.take(slot);
        let ghost = self.ghosts.iter().rposition(|g| g.0 == admission.key).map(|at| self.ghosts[at].1);
        self.ghosts.iter_mut().filter(|g| g.0 == admission.key).for_each(|g| g.1 = 0);
        if self.ghosts.last().is_some_and(|g| g.0 == admission.key) {
            self.ghosts.pop();
        }
        let frequency = was.unwrap_or(1).max(ghost.filter(|f| *f > 0).map_or(1, |f| f + 1)).min(31);
        if admission.short && CHAINED.contains(&self.name) {
            self.queues[0].insert(0, (slot, frequency, self.touches));
        } else {
            self.place(slot, frequency, admission.after);
        }
        if was.is_none() {
            self.tick();
        }
    }

    fn touch(&mut self, slot: Slot, after: Option<Slot>) {
        if let Some(frequency) = self.take(slot) {
            self.place(slot, (frequency + 1).min(31), after);
            self.tick();
        }
    }

    fn evicted(&mut self, slot: Slot, key: u64) {
        let resident = self.len();
        if let Some(frequency) = self.take(slot) {
            while self.ghosts.len() >= (2 * resident).max(1) {
                self.ghosts.remove(0);
            }
            self.ghosts.push((key, frequency));
        }
    }
}

/// Any sequence agrees, step by step, with the rules written down plainly.
#[test]
fn policies_agree_with_a_list() {
    for name in [PolicyName::Lru, PolicyName::LruChain, PolicyName::Mq, PolicyName::MqChain] {
        let queues = if MULTI.contains(&name) { 4 } else { 1 };
        let mut model = Model { name, queues: vec![Vec::new(); queues], ghosts: Vec::new(), touches: 0 };
        let (mut policy, mut random) = (policy(name), Random(7));
        for step in 0..20_000 {
            let slot = random.below(24) as Slot;
            let after = Some(random.below(24) as Slot).filter(|a| *a != slot);
            match random.below(8) {
                0 | 1 => {
                    let admission = Admission { after, short: random.below(8) == 0, ..plain(slot) };
                    policy.insert(slot, admission);
                    model.insert(slot, admission);
                }
                2 => {
                    policy.remove(slot);
                    model.take(slot);
                }
                3 => {
                    policy.evicted(slot, key(slot));
                    model.evicted(slot, key(slot));
                }
                _ => {
                    policy.touch(slot, after);
                    model.touch(slot, after);
                }
            }
            let expected: Vec<Slot> = model.queues.iter().flatten().map(|k| k.0).collect();
            assert_eq!(order(&*policy), expected, "{name:?} at step {step}");
            assert_eq!(policy.len(), expected.len(), "{name:?} at step {step}");
        }
    }
}

/// The victim of a tenant, where a slot is the tenant's that it is told to be, and how many slots were asked about.
fn victim_of(
    policy: &mut dyn Policy,
    scope: Scope,
    judge: &dyn Fn(Slot) -> Verdict,
) -> (Option<Slot>, usize) {
    let mut asked = 0;
    let found = policy.victim(scope, &mut |slot| {
        asked += 1;
        judge(slot)
    });
    policy.note_passed(scope, found.passed);
    (found.slot, asked)
}

/// However many colder keys others have, a tenant's evictions step over each of them once.
#[test]
fn a_search_passes_what_is_not_its_own_once() {
    const OTHERS: Slot = 1000;
    let own = |slot| if slot >= OTHERS { Verdict::Goes } else { Verdict::Passed };
    for name in ALL {
        let mut policy = filled(name, &(0..OTHERS + 20).collect::<Vec<_>>());
        let mut steps = Vec::new();
        for expected in OTHERS..OTHERS + 10 {
            let (victim, asked) = victim_of(&mut *policy, Some(1), &own);
            assert_eq!(victim, Some(expected), "{name:?}");
            policy.evicted(expected, key(expected));
            steps.push(asked);
        }
        assert_eq!(steps, [vec![OTHERS as usize + 1], vec![1; 9]].concat(), "{name:?}");
        // Others' keys may go at either end of what was passed, and come back behind it.
        for slot in [0, 1, OTHERS - 1, 500] {
            policy.remove(slot);
            put(&mut *policy, slot);
        }
        assert_eq!(victim_of(&mut *policy, Some(1), &own), (Some(OTHERS + 10), 1), "{name:?}");
        // A search of all has a memory of its own.
        assert_eq!(victim_of(&mut *policy, None, &|_| Verdict::Goes), (Some(2), 1), "{name:?}");
        if CHAINED.contains(&name) {
            // A tail goes to the cold end, before all that was passed.
            for (slot, expected) in [(OTHERS + 500, (Some(OTHERS + 500), 1)), (0, (Some(OTHERS + 10), 2))] {
                policy.insert(slot, Admission { short: true, ..plain(slot) });
                assert_eq!(victim_of(&mut *policy, Some(1), &own), expected, "{name:?}");
                policy.remove(slot);
            }
        }
        // One that has nothing that may go learns so at once.
        let none = |_| Verdict::Passed;
        victim_of(&mut *policy, Some(2), &none);
        assert_eq!(victim_of(&mut *policy, Some(2), &none), (None, 0), "{name:?}");
    }
}

/// What is remembered of searches changes no victim, whatever moves, goes, comes, is pinned and unpinned.
#[test]
fn searches_agree_with_a_list() {
    const SLOTS: usize = 200;
    let tenant_of = |slot: Slot| slot % 3;
    for name in ALL {
        let (mut policy, mut random) = (policy(name), Random(11));
        let mut pinned = [false; SLOTS];
        let mut saved = 0;
        for step in 0..30_000 {
            let slot = random.below(SLOTS) as Slot;
            // Long rows of one tenant, and of pinned keys.
            let slot = if step % 1000 < 500 { slot } else { slot - slot % 3 };
            let leads = |a: &Slot| *a != slot && tenant_of(*a) == tenant_of(slot) && !pinned[*a as usize];
            let after = Some(random.below(SLOTS) as Slot).filter(leads);
            match random.below(12) {
                0..=3 => policy.insert(slot, Admission { after, short: random.below(8) == 0, ..plain(slot) }),
                4 => policy.remove(slot),
                5 => policy.evicted(slot, key(slot)),
                6 if random.below(4) == 0 => pinned[slot as usize] = true,
                7 if random.below(8) == 0 => {
                    pinned[slot as usize] = false;
                    policy.forget_passed(Some(tenant_of(slot)));
                    policy.forget_passed(None);
                }
                _ => policy.touch(slot, after),
            }
            let scope = Some(random.below(4) as u32).filter(|tenant| *tenant < 3);
            let busy = random.below(SLOTS) as Slot;
            let judge = |slot: Slot| match slot {
                _ if pinned[slot as usize] || scope.is_some_and(|t| t != tenant_of(slot)) => Verdict::Passed,
                _ if slot % 7 == busy % 7 => Verdict::Stays,
                _ => Verdict::Goes,
            };
            let listed = order(&*policy);
            let at = listed.iter().position(|slot| judge(*slot) == Verdict::Goes);
            let (victim, asked) = victim_of(&mut *policy, scope, &judge);
            assert_eq!(victim, at.map(|at| listed[at]), "{name:?} at step {step}");
            saved += at.map_or(listed.len(), |at| at + 1) - asked;
        }
        assert!(saved > 1000, "{name:?}: {saved}");
    }
}
