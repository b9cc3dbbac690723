//! Two keys of one digest. The seam is global; every key here begins with `collide`, and no other test's does.

use std::sync::atomic::Ordering;

use super::*;
use crate::key::COLLIDE;
use crate::os::RenameHow;

const A: &[u8] = b"collide-a";
const B: &[u8] = b"collide-b";

/// A store whose keys collide for as long as it lives.
struct Colliding(Bench);

impl Colliding {
    fn new() -> Self {
        let bench = Bench::new(StoreSettings::default());
        COLLIDE.store(true, Ordering::Relaxed);
        Colliding(bench)
    }
}

impl Drop for Colliding {
    fn drop(&mut self) {
        COLLIDE.store(false, Ordering::Relaxed);
    }
}

/// Both published: only the second exists.
fn shadowed() -> Colliding {
    let it = Colliding::new();
    put(&it.0, A, &[b'a'; 9000]).unwrap();
    put(&it.0, B, b"b").unwrap();
    it
}

#[track_caller]
fn only_b(it: &Colliding) {
    assert_eq!(get(&it.0, A), None);
    assert_eq!(get(&it.0, B).unwrap(), b"b");
    it.0.sound();
}

#[test]
fn the_second_of_two_colliding_keys_is_served_and_the_first_is_a_miss() {
    let it = shadowed();
    assert_eq!(names(&it.0), ["collide-b"]);
    only_b(&it);
}

#[test]
fn the_first_is_gone_for_whoever_holds_its_node() {
    let it = Colliding::new();
    let a = put(&it.0, A, b"a").unwrap();
    it.0.retain(a).unwrap();
    let events = it.0.subscribe();
    put(&it.0, B, b"b").unwrap();
    let Ok(super::super::Event::Gone { node, name, .. }) = events.try_recv() else { panic!("no event") };
    assert_eq!((node, &*name), (a, A));
    assert_eq!(read(&it.0, a), None);
    assert!(it.0.attr(a).unwrap().is_none());
    assert!(it.0.begin_edit(a).unwrap().is_none());
    assert!(it.0.set_pinned(a, true).is_err());
    it.0.release(a, 1);
    only_b(&it);
}

#[test]
fn removing_the_shadowed_key_leaves_the_other() {
    let it = shadowed();
    let dir = default_dir(&it.0);
    assert_eq!(it.0.unlink(dir, A).unwrap_err().kind(), Kind::NotFound);
    assert!(it.0.rename((dir, A), (dir, b"elsewhere"), RenameHow::Replace).is_err());
    only_b(&it);
}

#[test]
fn evicting_takes_one_of_two_colliding_keys_once() {
    let it = shadowed();
    it.0.evict_to_percent(0);
    assert_eq!((get(&it.0, B), it.0.counters.evicted_keys()), (None, 1));
    it.0.sound();
}

#[test]
fn a_colliding_rename_displaces_and_a_rename_between_the_two_keeps_the_value() {
    let it = Colliding::new();
    let dir = default_dir(&it.0);
    put(&it.0, A, b"a").unwrap();
    put(&it.0, b"plain", b"b").unwrap();
    it.0.rename((dir, b"plain"), (dir, B), RenameHow::Replace).unwrap();
    only_b(&it);
    it.0.rename((dir, B), (dir, A), RenameHow::Replace).unwrap();
    assert_eq!((get(&it.0, A), get(&it.0, B)), (Some(b"b".to_vec()), None));
    it.0.sound();
}

#[test]
fn long_colliding_keys_survive_a_rename_by_copy() {
    let it = Colliding::new();
    let dir = default_dir(&it.0);
    let long = |last: u8| [A, &[b'L'; 2400], &[last]].concat();
    put(&it.0, &long(b'1'), b"value").unwrap();
    it.0.rename((dir, &long(b'1')), (dir, &long(b'2')), RenameHow::Replace).unwrap();
    assert_eq!(get(&it.0, &long(b'2')).unwrap(), b"value");
    assert_eq!(get(&it.0, &long(b'1')), None);
    it.0.sound();
}

#[test]
fn accounting_is_right_after_a_restart() {
    let mut it = shadowed();
    it.0.close_and_reopen();
    assert_eq!(names(&it.0), ["collide-b"]);
    only_b(&it);
    assert_eq!(it.0.counters.quarantined.load(Ordering::Relaxed), 0);
}
