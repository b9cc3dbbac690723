//! Reservation, quota and eviction.

use std::sync::atomic::Ordering;

use super::*;
use crate::config::{PolicyName, Quota};

pub(super) const KIB: u64 = 1024;
pub(super) static VALUE: [u8; 64 * 1024] = [7; 64 * 1024];

/// A store of this quota, without background eviction below it.
pub(super) fn of_size(kib: u64) -> Bench {
    with_limits(kib, None, PolicyName::Lru)
}

pub(super) fn with_limits(kib: u64, max_keys: Option<u64>, policy: PolicyName) -> Bench {
    let quota = Quota { size_bytes: Some(kib * KIB), max_keys, high_percent: 100, low_percent: 100 };
    Bench::new(StoreSettings { quota, policy, ..StoreSettings::default() })
}

/// A store of 256 KiB that holds `a`, `b`, `c`, 64 KiB each, in this order.
fn three() -> Bench {
    let bench = of_size(256);
    for name in [b"a", b"b", b"c"] {
        put(&bench, name, &VALUE).unwrap();
    }
    bench
}

fn pin(bench: &Bench, name: &[u8]) {
    bench.set_pinned(bench.child(default_dir(bench), name).unwrap(), true).unwrap();
}

#[test]
fn a_value_larger_than_the_quota_fails_without_evicting() {
    let bench = three();
    assert_eq!(put(&bench, b"d", &[1; 300 * 1024]).unwrap_err().kind(), Kind::NoSpace);
    assert_eq!(put(&bench, b"a", &[1; 300 * 1024]).unwrap_err().kind(), Kind::NoSpace);
    assert_eq!((names(&bench).len(), bench.counters.evicted_keys()), (3, 0));
    bench.sound();
}

#[test]
fn what_is_pinned_counts_before_anything_is_evicted() {
    let bench = three();
    pin(&bench, b"a");
    pin(&bench, b"b");
    assert_eq!(put(&bench, b"d", &[1; 130 * 1024]).unwrap_err().kind(), Kind::NoSpace);
    assert_eq!(names(&bench), ["a", "b", "c"]);
    bench.sound();
}

#[test]
fn pinned_values_are_never_evicted() {
    let bench = three();
    pin(&bench, b"a");
    put(&bench, b"d", &VALUE).unwrap();
    put(&bench, b"e", &VALUE).unwrap();
    assert_eq!(names(&bench), ["a", "c", "d", "e"]);
    bench.evict_to_percent(0);
    assert_eq!(names(&bench), ["a"]);
    bench.sound();
}

/// The old value counts until the new one stands: a neighbour goes, not the target.
#[test]
fn a_replacement_reserves_its_whole_size_and_protects_its_target() {
    let bench = three();
    put(&bench, b"a", &[1; 128 * 1024]).unwrap();
    assert_eq!(names(&bench), ["c", "a"]);
    // Not even alone would both fit: the old value stays.
    assert_eq!(put(&bench, b"a", &[2; 160 * 1024]).unwrap_err().kind(), Kind::NoSpace);
    assert_eq!(get(&bench, b"a").unwrap(), [1; 128 * 1024]);
    assert_eq!(names(&bench), ["c", "a"]);
    bench.sound();
}

#[test]
fn publications_never_pass_the_quota_whatever_their_metadata_takes() {
    // The value alone would fit once more, with its metadata it does not.
    let bench = of_size(60);
    for n in 0..40_u32 {
        let name = [&[b'L'; 2500][..], &n.to_be_bytes().map(|b| b + b'0')].concat();
        put(&bench, &name, &[1; 4096]).unwrap();
        let (used, _, quota) = bench.usage(None);
        assert!(used <= quota, "{used} of {quota} after {n} values");
    }
    bench.sound();
}

#[test]
fn max_keys_evicts_for_a_new_key_and_not_for_a_replacement() {
    let bench = with_limits(4096, Some(3), PolicyName::Fifo);
    for name in [b"a", b"b", b"c", b"d"] {
        put(&bench, name, b"x").unwrap();
    }
    assert_eq!(names(&bench), ["b", "c", "d"]);
    put(&bench, b"d", b"y").unwrap();
    assert_eq!(names(&bench), ["b", "c", "d"]);
    bench.sound();
}

#[test]
fn a_tenant_quota_evicts_the_tenants_own_keys() {
    let bench = of_size(1024);
    put(&bench, b"a", &VALUE).unwrap();
    let node = bench.make_tenant(b"t", 0o755, 0, 0).unwrap();
    bench.set_tenant_quota(&tenant("t"), Some(128 * KIB)).unwrap();
    for name in [b"x", b"y", b"z"] {
        put_in(&bench, node, name, &VALUE).unwrap();
    }
    assert_eq!((bench.child(node, b"x"), names(&bench)), (None, vec!["a".to_owned()]));
    let large = put_in(&bench, node, b"large", &[1; 129 * 1024]).unwrap_err();
    assert_eq!(large.kind(), Kind::TenantQuota);
    // Nothing of the tenant may go any more.
    for name in [b"y", b"z"] {
        bench.set_pinned(bench.child(node, name).unwrap(), true).unwrap();
    }
    assert_eq!(put_in(&bench, node, b"w", &VALUE).unwrap_err().kind(), Kind::TenantQuota);
    assert_eq!((bench.usage(Some(&tenant("t"))).1, names(&bench)), (2, vec!["a".to_owned()]));
    bench.sound();
}

/// What can never fit beside the tenant's pinned values costs it nothing.
#[test]
fn a_tenant_keeps_its_keys_when_the_value_cannot_fit_anyway() {
    let bench = of_size(1024);
    let node = bench.make_tenant(b"t", 0o755, 0, 0).unwrap();
    bench.set_tenant_quota(&tenant("t"), Some(192 * KIB)).unwrap();
    put_in(&bench, node, b"pinned", &VALUE).unwrap();
    bench.set_pinned(bench.child(node, b"pinned").unwrap(), true).unwrap();
    put_in(&bench, node, b"cold", &VALUE).unwrap();
    assert_eq!(put_in(&bench, node, b"w", &[1; 160 * 1024]).unwrap_err().kind(), Kind::TenantQuota);
    assert!(bench.child(node, b"cold").is_some());
    bench.sound();
}

#[test]
fn values_that_are_being_edited_are_no_victims() {
    let bench = three();
    let a = bench.child(default_dir(&bench), b"a").unwrap();
    let (file, _) = bench.begin_edit(a).unwrap().unwrap();
    bench.evict_to_percent(0);
    assert_eq!(names(&bench), ["a"]);
    bench.end_edit(a, &file).unwrap();
    bench.evict_to_percent(0);
    assert_eq!(names(&bench), [""; 0]);
    bench.sound();
}

#[test]
fn readers_of_an_evicted_value_finish() {
    let bench = three();
    let a = bench.child(default_dir(&bench), b"a").unwrap();
    let mut file = bench.open_value(a, None).unwrap().unwrap().file;
    bench.evict_to_percent(0);
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!((bytes, get(&bench, b"a")), (VALUE.to_vec(), None));
}

/// chattr +i makes the coldest record one that cannot be removed.
#[test]
fn one_victim_that_cannot_be_removed_does_not_stop_eviction() {
    let bench = three();
    if !bench.set_immutable(b"a", true) {
        return;
    }
    put(&bench, b"d", &VALUE).unwrap();
    let published = put(&bench, b"e", &VALUE);
    let (left, errors) = (names(&bench), bench.counters.eviction_errors.load(Ordering::Relaxed));
    assert!(bench.set_immutable(b"a", false));
    published.unwrap();
    assert_eq!(left, ["a", "c", "d", "e"]);
    assert!(errors > 0);
    bench.sound();
}

/// Puts that leave the keeper its time never wait for an eviction; those that do not find room all the same.
#[test]
fn evictions_are_in_line_only_where_the_keeper_cannot_be_ahead() {
    let quota = Quota { size_bytes: Some(4096 * KIB), max_keys: None, high_percent: 97, low_percent: 95 };
    let bench = Bench::new(StoreSettings { quota, ..StoreSettings::default() });
    let inline = |bench: &Bench| bench.counters.evictions_inline.load(Ordering::Relaxed);
    let high = 4096 * KIB * 97 / 100;
    for n in 0..200_u32 {
        // 1.6 % of the quota: from the high mark it still fits.
        put(&bench, &n.to_be_bytes().map(|b| b + b'0'), &VALUE).unwrap();
        while bench.usage(None).0 > high {
            std::thread::yield_now();
        }
    }
    assert!(bench.counters.evicted_keys() >= 200 - 64);
    assert_eq!(inline(&bench), 0);
    // From the low mark to the quota there is less than one of these: whoever comes makes room for itself.
    let large = vec![1; 320 * 1024];
    for n in 0..8_u32 {
        put(&bench, &[b'L', n as u8 + b'0'], &large).unwrap();
    }
    assert!(inline(&bench) > 0);
    assert!(bench.usage(None).0 <= 4096 * KIB);
    // The keeper may be in the middle of one.
    while bench.usage(None).0 != disk_bytes(bench.path()) {
        std::thread::yield_now();
    }
    bench.sound();
}

/// A quota that was cut far is the keeper's to reach: a put frees twice what it adds, whatever there is above.
#[test]
fn a_put_does_not_wait_for_all_that_a_smaller_quota_asks_for() {
    let bench = of_size(16384);
    bench.stop_keeper();
    let node = bench.make_tenant(b"t", 0o755, 0, 0).unwrap();
    for n in 0..100_u8 {
        put_in(&bench, node, &[n], &VALUE).unwrap();
    }
    let one = bench.usage(None).0 / 100;
    let inline = || bench.counters.evictions_inline.load(Ordering::Relaxed);
    bench.set_tenant_quota(&tenant("t"), Some(20 * one)).unwrap();
    put_in(&bench, node, b"x", &VALUE).unwrap();
    assert_eq!((bench.usage(Some(&tenant("t"))).1, inline()), (99, 2));
    bench.set_quota_bytes(40 * one).unwrap();
    put(&bench, b"y", &VALUE).unwrap();
    assert_eq!((bench.usage(None).1, inline()), (98, 4));
    // A value beyond the quota still does not fit, and costs nobody anything.
    let large = vec![1; 21 * one as usize];
    assert_eq!(put_in(&bench, node, b"z", &large).unwrap_err().kind(), Kind::TenantQuota);
    assert_eq!((bench.usage(None).1, inline()), (98, 4));
    bench.keep();
    assert!(bench.usage(Some(&tenant("t"))).0 <= 20 * one && bench.usage(None).0 <= 40 * one);
    put_in(&bench, node, b"z", &VALUE).unwrap();
    assert!(bench.usage(Some(&tenant("t"))).0 <= 20 * one);
    bench.sound();
}

#[test]
fn a_quota_of_nothing_is_refused() {
    let bench = three();
    let refused = bench.set_tenant_quota(&tenant("default"), Some(0)).unwrap_err();
    assert_eq!((refused.kind(), names(&bench).len()), (Kind::Invalid, 3));
    assert_eq!(bench.tenant_limits(&tenant("default")).unwrap().quota_bytes, None);
}

/// Growth in place is nobody else's cost, until it has come to rest.
#[test]
fn an_edit_that_outgrows_the_quota_takes_only_its_own_key() {
    let bench = of_size(256);
    bench.stop_keeper();
    for name in [b"a", b"b"] {
        put(&bench, name, &VALUE).unwrap();
    }
    let (a, used) = (bench.child(default_dir(&bench), b"a").unwrap(), bench.usage(None).0);
    let (file, _) = bench.begin_edit(a).unwrap().unwrap();
    let (second, _) = bench.begin_edit(a).unwrap().unwrap();
    (&*file).write_all(&vec![1; 128 * 1024]).unwrap();
    bench.look_at_written();
    assert_eq!((names(&bench).len(), bench.usage(None).0), (2, used), "it fits, and grows");
    assert_eq!(bench.status().staged_bytes, 128 * KIB - used / 2);
    bench.keeps_edit(a).unwrap();
    (&*second).write_all(&vec![1; 320 * 1024]).unwrap();
    bench.look_at_written();
    assert_eq!(bench.keeps_edit(a).unwrap_err().kind(), Kind::NoSpace);
    assert_eq!(names(&bench), ["b"]);
    while crate::os::stat(&*file).unwrap().size_bytes > 0 {
        std::thread::yield_now();
    }
    bench.end_edit(a, &file).unwrap();
    assert_eq!(bench.keeps_edit(a).unwrap_err().kind(), Kind::NoSpace, "the other is not told yet");
    bench.end_edit(a, &second).unwrap();
    bench.keeps_edit(a).unwrap();
    assert!(bench.watch.may_rest(), "nobody edits it");
    assert_eq!(bench.counters.evictions_by_reason().find(|(of, _)| *of == "overgrown").unwrap().1, 1);
    bench.sound();
}

/// Below the high watermark one tenant's quota is nothing to the others.
#[test]
fn a_tenant_over_its_quota_costs_others_nothing() {
    let quota = Quota { size_bytes: Some(1024 * KIB), max_keys: None, high_percent: 90, low_percent: 10 };
    let bench = Bench::new(StoreSettings { quota, ..StoreSettings::default() });
    for name in [b"a", b"b", b"c", b"d"] {
        put(&bench, name, &VALUE).unwrap();
    }
    let node = bench.make_tenant(b"t", 0o755, 0, 0).unwrap();
    for name in [b"x", b"y", b"z"] {
        put_in(&bench, node, name, &VALUE).unwrap();
    }
    bench.set_tenant_quota(&tenant("t"), Some(64 * KIB)).unwrap();
    bench.keep();
    assert_eq!((names(&bench).len(), bench.usage(Some(&tenant("t"))).1), (4, 1));
    bench.sound();
}

/// A tenant that cannot come back under its quota, since all it has is pinned, is no excuse for another.
#[test]
fn the_keeper_brings_every_tenant_back_that_it_can() {
    let bench = of_size(1024);
    for name in [b"t", b"u"] {
        let node = bench.make_tenant(name, 0o755, 0, 0).unwrap();
        for key in [b"x", b"y"] {
            put_in(&bench, node, key, &VALUE).unwrap();
        }
    }
    let t = bench.tenant_node(&tenant("t")).unwrap();
    for key in [b"x", b"y"] {
        bench.set_pinned(bench.child(t, key).unwrap(), true).unwrap();
    }
    bench.set_tenant_quota(&tenant("t"), Some(64 * KIB)).unwrap();
    bench.set_tenant_quota(&tenant("u"), Some(64 * KIB)).unwrap();
    while bench.usage(Some(&tenant("u"))).1 > 1 {
        std::thread::yield_now();
    }
    assert_eq!(bench.usage(Some(&tenant("t"))).1, 2);
    while bench.usage(None).0 != disk_bytes(bench.path()) {
        std::thread::yield_now();
    }
    bench.sound();
}

/// The watch finds it too large between the publication's look at it and its rename: it is published whole.
#[cfg(feature = "failpoints")]
#[test]
fn a_value_on_its_way_into_place_is_not_emptied() {
    let bench = of_size(256);
    // They would look at the quota too.
    bench.stop_keeper();
    let _scenario = fail::FailScenario::setup();
    let (store, looks) = (Arc::downgrade(&bench), Arc::new(std::sync::atomic::AtomicUsize::new(0)));
    let counted = Arc::clone(&looks);
    let look = move || {
        let store = store.upgrade().unwrap();
        store.quota.store(KIB, Ordering::Relaxed);
        store.look_at_written();
        store.quota.store(256 * KIB, Ordering::Relaxed);
        counted.fetch_add(1, Ordering::Relaxed);
    };
    fail::cfg_callback("publish.rename", look.clone()).unwrap();
    put(&bench, b"a", &VALUE).unwrap();
    fail::remove("publish.rename");
    assert_eq!(get(&bench, b"a").unwrap(), VALUE);
    // Before its publication has begun it is lost, and that is told.
    let mut staged = stage(&bench, default_dir(&bench), b"b", &VALUE).unwrap();
    look();
    assert_eq!(bench.publish(&mut staged, false).unwrap_err().kind(), Kind::NoSpace);
    drop(staged);
    assert_eq!((looks.load(Ordering::Relaxed), names(&bench)), (2, vec!["a".to_owned()]));
    bench.sound();
}

/// One that its disk holds up for long, while others go on writing past the quota.
#[cfg(feature = "failpoints")]
#[test]
fn values_are_emptied_beside_each_other() {
    let bench = of_size(64);
    let _scenario = fail::FailScenario::setup();
    let (here, stalled) = std::sync::mpsc::channel();
    let (go_on, waits) = std::sync::mpsc::channel::<()>();
    let held_up = Mutex::new(Some((here, waits)));
    let stall = move || {
        let first = held_up.lock().take();
        if let Some((here, waits)) = first {
            here.send(()).unwrap();
            waits.recv().unwrap();
        }
    };
    fail::cfg_callback("staged.empty", stall).unwrap();
    let mut first = stage(&bench, default_dir(&bench), b"a", &[1; 128 * 1024]).unwrap();
    bench.look_at_written();
    stalled.recv().unwrap();
    let second = stage(&bench, default_dir(&bench), b"b", &[2; 128 * 1024]).unwrap();
    let size = |staged: &Staged| crate::os::stat(&**staged.file()).unwrap().size_bytes;
    while size(&second) > 0 {
        bench.look_at_written();
    }
    assert_eq!((size(&first), first.is_doomed()), (128 * KIB, true), "its disk is slow");
    assert_eq!(bench.publish(&mut first, false).unwrap_err().kind(), Kind::NoSpace);
    go_on.send(()).unwrap();
    while size(&first) > 0 {
        bench.look_at_written();
    }
}

/// A value that is begun at the very moment when the watch would rest, and believes it awake.
#[cfg(feature = "failpoints")]
#[test]
fn the_watch_does_not_rest_beside_a_writer() {
    let bench = of_size(64);
    let _scenario = fail::FailScenario::setup();
    assert!(bench.watch.may_rest(), "nothing is being written");
    let staged = Arc::new(Mutex::new(None));
    let (store, begun) = (Arc::clone(&*bench), Arc::clone(&staged));
    let dir = default_dir(&bench);
    let begin = move || {
        begun.lock().get_or_insert_with(|| stage(&store, dir, b"a", b"x").unwrap());
    };
    fail::cfg_callback("watch.rest", begin).unwrap();
    assert!(!bench.watch.may_rest());
    fail::remove("watch.rest");
    staged.lock().take();
    assert!(bench.watch.may_rest(), "it was given up");
}
