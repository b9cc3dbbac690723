//! A tenant's reserve: what others' pressure leaves it.

use super::room::{KIB, VALUE, of_size, with_limits};
use super::*;
use crate::config::{PolicyName, limits};

const VALUE_BYTES: u64 = VALUE.len() as u64;

/// A tenant `t` with this reserve and these keys, one value each.
fn reserving(bench: &Bench, bytes: u64, names: &[&[u8]]) -> NodeId {
    let node = bench.make_tenant(b"t", 0o755, 0, 0).unwrap();
    bench.set_tenant_reserve(&tenant("t"), Some(bytes)).unwrap();
    for name in names {
        put_in(bench, node, name, &VALUE).unwrap();
    }
    node
}

fn names_of(store: &Store, node: NodeId) -> Vec<String> {
    let listed = store.list(node, 0, usize::MAX).unwrap();
    listed.iter().map(|e| String::from_utf8_lossy(e.name).into_owned()).collect()
}

#[test]
fn others_never_take_a_tenant_below_its_reserve() {
    for policy in [PolicyName::Fifo, PolicyName::Lru] {
        let bench = with_limits(256, None, policy);
        let t = reserving(&bench, 2 * VALUE_BYTES, &[b"x", b"y", b"z"]);
        // The coldest three are t's: what it has above its reserve goes, the rest stays, whatever comes.
        for n in 0..20 {
            put(&bench, format!("k{n:02}").as_bytes(), &VALUE).unwrap();
        }
        assert_eq!(names_of(&bench, t), ["y", "z"], "{policy:?}");
        assert_eq!(names(&bench), ["k18", "k19"], "{policy:?}");
        bench.evict_to_percent(0);
        assert_eq!((names_of(&bench, t).len(), names(&bench).len()), (2, 0), "{policy:?}");
        bench.sound();
        // Without it they are as others are.
        bench.set_tenant_reserve(&tenant("t"), None).unwrap();
        bench.evict_to_percent(0);
        assert_eq!(names_of(&bench, t), [""; 0], "{policy:?}");
        bench.sound();
    }
}

#[test]
fn what_cannot_fit_beside_reserves_evicts_nothing() {
    let bench = of_size(256);
    let t = reserving(&bench, 2 * VALUE_BYTES, &[b"x", b"y"]);
    put(&bench, b"a", &VALUE).unwrap();
    assert_eq!(put(&bench, b"large", &[1; 160 * 1024]).unwrap_err().kind(), Kind::NoSpace);
    assert_eq!((names_of(&bench, t).len(), names(&bench)), (2, vec!["a".to_owned()]));
    assert_eq!(bench.counters.evicted_keys(), 0);
    // What does fit beside them takes what is nobody's.
    put(&bench, b"fits", &[1; 120 * 1024]).unwrap();
    assert_eq!((names_of(&bench, t).len(), names(&bench)), (2, vec!["fits".to_owned()]));
    bench.sound();
}

#[test]
fn a_tenants_own_values_take_from_others_first_and_then_from_its_own() {
    let bench = of_size(256);
    let t = reserving(&bench, 4 * VALUE_BYTES, &[b"x"]);
    put(&bench, b"a", &VALUE).unwrap();
    for name in [b"y", b"z"] {
        put_in(&bench, t, name, &VALUE).unwrap();
    }
    // Its reserve is not reached: room comes from `a`, although `x` is colder.
    put_in(&bench, t, b"w", &VALUE).unwrap();
    assert_eq!(
        (names_of(&bench, t), names(&bench)),
        (["x", "y", "z", "w"].map(str::to_owned).to_vec(), vec![])
    );
    // Everything is its own now: its coldest goes.
    put_in(&bench, t, b"v", &VALUE).unwrap();
    assert_eq!(names_of(&bench, t), ["y", "z", "w", "v"]);
    // The others find no room, and nothing goes for them.
    assert_eq!(put(&bench, b"b", &VALUE).unwrap_err().kind(), Kind::NoSpace);
    assert_eq!(names_of(&bench, t), ["y", "z", "w", "v"]);
    bench.sound();
}

#[test]
fn reserves_that_cannot_be_kept_are_refused() {
    let mut bench = of_size(256);
    for name in [b"t", b"u"] {
        bench.make_tenant(name, 0o755, 0, 0).unwrap();
    }
    let (t, u) = (tenant("t"), tenant("u"));
    bench.set_tenant_reserve(&t, Some(200 * KIB)).unwrap();
    let refused = |result: Result<()>, says: &str| {
        let e = result.unwrap_err();
        assert_eq!(e.kind(), Kind::Invalid);
        assert!(e.to_string().contains(says), "{e}");
    };
    refused(bench.set_tenant_reserve(&u, Some(57 * KIB)), "more than the 262144 bytes of the store's quota");
    refused(bench.set_tenant_reserve(&u, Some(u64::MAX)), "store's quota");
    refused(bench.set_quota_bytes(199 * KIB), "store's quota");
    refused(bench.set_tenant_quota(&t, Some(100 * KIB)), "more than the quota of tenant t");
    assert_eq!((bench.quota_bytes(), bench.tenant_limits(&u).unwrap()), (256 * KIB, Default::default()));
    bench.set_tenant_quota(&t, Some(200 * KIB)).unwrap();
    refused(bench.set_tenant_reserve(&t, Some(201 * KIB)), "more than the quota of tenant t");
    // At once they are judged by what results.
    bench
        .change_tenant_limits(&t, |l| (l.quota_bytes, l.reserve_bytes) = (Some(100 * KIB), Some(50 * KIB)))
        .unwrap();
    bench.set_quota_bytes(199 * KIB).unwrap();
    bench.set_quota_bytes(256 * KIB).unwrap();
    // They last, and a start with less is refused.
    bench.close_and_reopen();
    let limits = bench.tenant_limits(&t).unwrap();
    assert_eq!((limits.quota_bytes, limits.reserve_bytes), (Some(100 * KIB), Some(50 * KIB)));
    bench.close().unwrap();
    bench.drop_store();
    let mut less = bench.settings.clone();
    less.quota.size_bytes = Some(49 * KIB);
    let refusal = open_when_free(&bench.root(), &less).expect_err("the reserves do not fit");
    assert!(refusal.to_string().contains("store's quota"), "{refusal}");
    // What a tenant reserved goes with it.
    bench.open();
    bench.remove_tenant(b"t").unwrap();
    bench.set_tenant_reserve(&u, Some(256 * KIB)).unwrap();
}

/// A search steps over a key that a reserve protects once, whatever number of them there is, and a bounded number of
/// them at once; none of them loses its place among its tenant's.
#[test]
fn protected_keys_are_stepped_over_once() {
    const COLD: usize = limits::SET_ASIDE_AT_ONCE + 200;
    let mut bench = of_size(COLD as u64 * 4 + 256);
    let t = reserving(&bench, COLD as u64 * 4 * KIB, &[]);
    for n in 0..COLD {
        put_in(&bench, t, format!("{n:04}").as_bytes(), &[1; 4096]).unwrap();
    }
    assert_eq!(
        bench.usage(Some(&tenant("t"))).0,
        COLD as u64 * 4 * KIB,
        "blocks of 4 KiB are what this counts in"
    );
    let in_order = |bench: &Bench| {
        let index = bench.index.lock();
        index.order.len() - index.order.set_aside_len()
    };
    assert_eq!(in_order(&bench), COLD);
    assert_eq!(bench.index.lock().victim_of(None, None, &[]), crate::store::victims::Search::Again);
    assert_eq!(in_order(&bench), COLD - limits::SET_ASIDE_AT_ONCE);
    for n in 0..8 {
        put(&bench, &[b'a' + n], &VALUE).unwrap();
    }
    assert_eq!((in_order(&bench), names(&bench).len()), (4, 4));
    bench.sound();
    // One that is used is in the order again; of the others the coldest goes once there is more than the reserve.
    let first = bench.child(t, b"0000").unwrap();
    bench.touch(first, None);
    assert_eq!(in_order(&bench), 5);
    put_in(&bench, t, b"new", &[1; 4096]).unwrap();
    put(&bench, b"z", &VALUE).unwrap();
    assert!(bench.child(t, b"0000").is_some() && bench.child(t, b"0001").is_none());
    assert_eq!(names_of(&bench, t).len(), COLD);
    // The order of all of them lasts.
    bench.close_and_reopen();
    let t = bench.tenant_node(&tenant("t")).unwrap();
    bench.set_tenant_reserve(&tenant("t"), None).unwrap();
    bench.evict_to_percent(99);
    assert!(bench.child(t, b"0000").is_some() && bench.child(t, b"0002").is_none());
    bench.sound();
}
