//! Searches for a victim: what they cost, and that what they remember hides no key.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::room::{KIB, VALUE, with_limits};
use super::*;
use crate::config::{EvictOptions, PolicyName, limits};
use crate::store::Opener;
use crate::store::evict::{self, Admission, Found, Heat, Later, Order, Passed, Policy, Scope, Slot, Verdict};

/// A policy that counts what its searches ask about.
struct Counting {
    policy: Box<dyn Policy>,
    asked: Arc<AtomicUsize>,
}

impl Policy for Counting {
    fn insert(&mut self, slot: Slot, admission: Admission) {
        self.policy.insert(slot, admission);
    }

    fn restore(&mut self, slot: Slot, heat: Heat) {
        self.policy.restore(slot, heat);
    }

    fn touch(&mut self, slot: Slot, after: Option<Slot>) {
        self.policy.touch(slot, after);
    }

    fn heat(&self, slot: Slot) -> Option<Heat> {
        self.policy.heat(slot)
    }

    fn remove(&mut self, slot: Slot) {
        self.policy.remove(slot);
    }

    fn victim(&self, scope: Scope, ask: &mut dyn FnMut(Slot) -> Verdict) -> Found {
        self.policy.victim(scope, &mut |slot| {
            self.asked.fetch_add(1, Ordering::Relaxed);
            ask(slot)
        })
    }

    fn note_passed(&mut self, scope: Scope, passed: Passed) {
        self.policy.note_passed(scope, passed);
    }

    fn forget_passed(&mut self, scope: Scope) {
        self.policy.forget_passed(scope);
    }

    fn order_later(&self) -> Later {
        self.policy.order_later()
    }

    fn reserve(&mut self, slots: usize) {
        self.policy.reserve(slots);
    }

    fn len(&self) -> usize {
        self.policy.len()
    }
}

/// A store without background eviction, and how many keys its searches have asked about.
fn counting(kib: u64, name: PolicyName) -> (Bench, Arc<AtomicUsize>) {
    let (bench, asked) = (with_limits(kib, None, name), Arc::new(AtomicUsize::new(0)));
    let policy = evict::new(name, EvictOptions::default());
    bench.index.lock().order = Order::new(Box::new(Counting { policy, asked: Arc::clone(&asked) }));
    (bench, asked)
}

fn put_by(bench: &Bench, name: &[u8], opener: Option<Opener>) {
    let mut staged = stage(bench, default_dir(bench), name, b"value").unwrap();
    staged.opener = opener;
    bench.publish(&mut staged, false).unwrap();
}

#[test]
fn a_tenant_at_its_quota_steps_over_the_keys_of_others_once() {
    for (_, name) in PolicyName::NAMES {
        let (bench, asked) = counting(4096, name);
        for n in 0..500 {
            put(&bench, format!("other{n}").as_bytes(), b"x").unwrap();
        }
        let t = bench.make_tenant(b"t", 0o755, 0, 0).unwrap();
        bench.set_tenant_quota(&tenant("t"), Some(128 * KIB)).unwrap();
        for n in 0..40 {
            put_in(&bench, t, format!("own{n}").as_bytes(), &VALUE).unwrap();
        }
        assert_eq!(bench.counters.evicted_keys(), 38);
        // The keeper may have looked as well: 38 victims, and the others' keys.
        let asked = asked.load(Ordering::Relaxed);
        assert!(asked < 2 * (500 + 38), "{name:?}: {asked}");
        bench.sound();
    }
}

#[test]
fn pinned_keys_are_stepped_over_once() {
    let (bench, asked) = counting(4096, PolicyName::MqChain);
    for n in 0..200 {
        let id = put(&bench, format!("pinned{n}").as_bytes(), b"x").unwrap();
        bench.set_pinned(id, true).unwrap();
    }
    for n in 0..50 {
        put(&bench, format!("{n}").as_bytes(), b"x").unwrap();
    }
    bench.evict_to_percent(0);
    assert_eq!((names(&bench).len(), bench.counters.evicted_keys()), (200, 50));
    assert_eq!(asked.load(Ordering::Relaxed), 200 + 50);
    let id = bench.child(default_dir(&bench), b"pinned77").unwrap();
    bench.set_pinned(id, false).unwrap();
    bench.evict_to_percent(0);
    assert_eq!((names(&bench).len(), bench.child(default_dir(&bench), b"pinned77")), (199, None));
    bench.sound();
}

/// With chains a key goes behind the one before it in its run: not where no search looks.
#[test]
fn a_key_that_follows_a_pinned_one_can_be_evicted() {
    for (_, name) in PolicyName::NAMES {
        let bench = with_limits(4096, None, name);
        let one = Some(Opener(1));
        // A run of so few keys ends after eight: the last one is in the middle of it.
        let pinned = 2 * limits::GAP_SLOTS - 3;
        for n in 0..pinned {
            let key = format!("pinned{n:02}");
            put_by(&bench, key.as_bytes(), one);
            bench.set_pinned(bench.child(default_dir(&bench), key.as_bytes()).unwrap(), true).unwrap();
        }
        bench.evict_to_percent(0);
        put_by(&bench, b"next", one);
        bench.evict_to_percent(0);
        assert_eq!(bench.child(default_dir(&bench), b"next"), None, "{name:?}");
        assert_eq!(names(&bench).len(), pinned, "{name:?}");
        bench.sound();
    }
}

/// However many victims cannot be deleted, they do not stand before those that can for ever.
#[test]
fn victims_that_cannot_be_deleted_wait_for_their_next_turn() {
    for policy in [PolicyName::Fifo, PolicyName::MqChain] {
        let bench = with_limits(2048, None, policy);
        let kept: Vec<String> = (0..limits::STUCK_VICTIMS + 10).map(|n| format!("kept{n}")).collect();
        for name in &kept {
            put(&bench, name.as_bytes(), b"x").unwrap();
        }
        let immutable = kept.iter().all(|name| bench.set_immutable(name.as_bytes(), true));
        let mut filled = Vec::new();
        while bench.usage(None).0 + 2 * VALUE.len() as u64 <= 2048 * KIB {
            filled.push(put(&bench, format!("v{}", filled.len()).as_bytes(), &VALUE));
        }
        // The first that needs room may give up; whoever comes after it finds room.
        for name in [b"first", b"other"] {
            put(&bench, name, &VALUE).ok();
        }
        let published: Vec<_> = (0..20).map(|n| put(&bench, format!("w{n}").as_bytes(), &VALUE)).collect();
        let errors = bench.counters.eviction_errors.load(Ordering::Relaxed);
        let inline = bench.counters.evictions_inline.load(Ordering::Relaxed);
        let all_kept = kept.iter().all(|name| bench.child(default_dir(&bench), name.as_bytes()).is_some());
        let mortal = kept.iter().all(|name| bench.set_immutable(name.as_bytes(), false));
        if !immutable || !mortal {
            return;
        }
        for put in filled.into_iter().chain(published) {
            put.unwrap();
        }
        assert!(all_kept && errors > 0);
        assert!(errors <= 2 * kept.len() as u64, "{policy:?}: {errors}");
        assert!(inline <= bench.counters.evicted_keys(), "{policy:?}: {inline} evictions were waited for");
        bench.sound();
    }
}
