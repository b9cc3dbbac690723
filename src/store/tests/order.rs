//! The eviction order: what makes a use, and what outlasts a stop.

use std::time::Duration;

use super::*;
use crate::config::{PolicyName, Quota};
use crate::os::RenameHow;
use crate::store::Opener;

const ONE: Option<Opener> = Some(Opener(1));

fn of_policy(policy: PolicyName) -> StoreSettings {
    StoreSettings { policy, ..StoreSettings::default() }
}

fn with_three_keys(policy: PolicyName) -> Bench {
    let quota = Quota { size_bytes: None, max_keys: Some(3), high_percent: 100, low_percent: 100 };
    Bench::new(StoreSettings { quota, ..of_policy(policy) })
}

fn put_by(bench: &Bench, name: &[u8], value: &[u8], opener: Option<Opener>) {
    let mut staged = stage(bench, default_dir(bench), name, value).unwrap();
    staged.opener = opener;
    bench.publish(&mut staged, false).unwrap();
}

/// A temporary file first, as many clients do.
fn put_renamed(bench: &Bench, name: &[u8], value: &[u8]) {
    put_by(bench, b".tmp", value, ONE);
    let dir = default_dir(bench);
    bench.rename_by((dir, b".tmp"), (dir, name), RenameHow::Replace, ONE).unwrap();
}

/// The keys and their heats, coldest first.
fn order(bench: &Bench) -> Vec<(String, u8)> {
    let index = bench.index.lock();
    let name = |slot| String::from_utf8(index.at(slot).name.to_vec()).unwrap();
    index.order.all().into_iter().map(|(slot, heat)| (name(slot), heat.byte())).collect()
}

/// Keys that were used differently often, by nobody whose runs are followed.
fn used(policy: PolicyName) -> Bench {
    let bench = Bench::new(of_policy(policy));
    for name in [b"a", b"b", b"c", b"d"] {
        put(&bench, name, b"value").unwrap();
    }
    for name in [b"a", b"b", b"a"] {
        get(&bench, name).unwrap();
    }
    bench
}

#[test]
fn the_order_survives_a_clean_stop_and_a_walk() {
    for (_, policy) in PolicyName::NAMES {
        let mut bench = used(policy);
        let before = order(&bench);
        bench.close_and_reopen();
        assert_eq!(order(&bench), before, "{policy:?}, by the checkpoint");
        bench.close_and_reopen();
        // The same from the file `order`, by a walk.
        bench.write_order().unwrap();
        bench.reopen();
        assert_eq!(order(&bench), before, "{policy:?}, by the file");
        bench.sound();
    }
}

/// A daemon that is killed leaves the order of the last write; what came after it is newer, by its time.
#[test]
fn an_unclean_stop_leaves_the_order_that_was_written_last() {
    for policy in [PolicyName::Lru, PolicyName::MqChain] {
        let mut settings = of_policy(policy);
        let bench = used(policy);
        drop(bench);
        settings.order_interval = Duration::ZERO;
        let mut bench = Bench::new(settings);
        for name in [b"a", b"b", b"c"] {
            put(&bench, name, b"value").unwrap();
        }
        get(&bench, b"a").unwrap();
        let before = order(&bench);
        bench.save_order_when_due();
        // The keeper may have written it as well, before or after this use.
        bench.settle_order();
        bench.write_order().unwrap();
        bench.reopen();
        assert_eq!(order(&bench), before, "{policy:?}");
    }
}

/// The file of an earlier version has digests alone.
#[test]
fn an_order_of_the_first_version_is_read() {
    let mut bench = used(PolicyName::Lru);
    let expected = order(&bench);
    bench.write_order().unwrap();
    let path = bench.root().join(layout::ORDER);
    let bytes = std::fs::read(&path).unwrap();
    let mut first = b"FENCEFS-ORDER-1\n".to_vec();
    bytes[16..].chunks(17).for_each(|line| first.extend_from_slice(&line[..16]));
    std::fs::write(&path, first).unwrap();
    bench.reopen();
    assert_eq!(order(&bench), expected);
}

/// A full store of three: put A, put B, get B, put C, get A, put D.
#[test]
fn each_policy_evicts_its_own_victim() {
    for (policy, gone) in
        [(PolicyName::Fifo, "a"), (PolicyName::Lru, "b"), (PolicyName::Mq, "c"), (PolicyName::MqChain, "c")]
    {
        let bench = with_three_keys(policy);
        put(&bench, b"a", b"1").unwrap();
        put(&bench, b"b", b"1").unwrap();
        get(&bench, b"b").unwrap();
        put(&bench, b"c", b"1").unwrap();
        get(&bench, b"a").unwrap();
        put(&bench, b"d", b"1").unwrap();
        let left: Vec<_> = ["a", "b", "c", "d"].into_iter().filter(|n| *n != gone).collect();
        assert_eq!(names(&bench), left, "{policy:?}");
        bench.sound();
    }
}

/// Published through temporary files, a run of two and the name of a third: its end goes first.
#[test]
fn a_renamed_file_takes_its_place_in_the_run() {
    let bench = Bench::new(of_policy(PolicyName::MqChain));
    for name in [b"x0", b"x1", b"x2"] {
        put_renamed(&bench, name, b"value");
    }
    let names: Vec<_> = order(&bench).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["x2", "x1", "x0"]);
    // A short tail of the run after it goes before all.
    put_renamed(&bench, b"x3", b"v");
    assert_eq!(order(&bench)[0].0, "x3");
    bench.sound();
}

/// A rewrite is one more use of the key, whatever slot its value is in.
#[test]
fn a_replaced_value_leaves_its_frequency_to_the_next() {
    let bench = Bench::new(of_policy(PolicyName::Mq));
    for expected in 1..=3 {
        put_renamed(&bench, b"k", b"value");
        let [(_, heat)] = order(&bench)[..] else { panic!("one key") };
        assert_eq!(heat & 31, expected);
    }
    let id = bench.child(default_dir(&bench), b"k").unwrap();
    bench.unlink(default_dir(&bench), b"k").unwrap();
    assert!(bench.index.lock().linked(id).is_err());
    put_renamed(&bench, b"k", b"value");
    assert_eq!(order(&bench)[0].1 & 31, 1, "what its user deleted is forgotten");
}

#[test]
fn an_evicted_key_comes_back_with_its_frequency() {
    let bench = Bench::new(of_policy(PolicyName::MqChain));
    put(&bench, b"k", b"value").unwrap();
    get(&bench, b"k").unwrap();
    bench.evict_to_percent(0);
    assert_eq!(names(&bench), [""; 0]);
    put(&bench, b"k", b"value").unwrap();
    assert_eq!(order(&bench)[0].1 & 31, 3);
}
