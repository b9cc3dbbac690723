//! Time to live: whose it is, when it is over, what then is gone, and what brings the deadline back after a restart. But
//! for the last test the keeper's threads are stopped, and its turns are taken here.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::attach::{attaching, id_of, written};
use super::*;
use crate::config::limits;
use crate::os::{self, RenameHow, SetTime, Timespec};
use crate::store::room::Reason;
use crate::store::{SetAttr, ttl};

/// A store whose keeper does nothing by itself.
fn still() -> Bench {
    let bench = Bench::new(StoreSettings::default());
    bench.stop_keeper();
    bench
}

fn ttl_of_default(store: &Store, seconds: Option<u64>) {
    store.set_tenant_ttl(&Tenant::default_tenant(), seconds).unwrap();
}

/// Sets the last change of a value so many seconds back.
fn age(store: &Store, id: NodeId, seconds: i64) {
    let now = Timespec::now();
    let mtime = SetTime::At(Timespec { sec: now.sec - seconds, ..now });
    let set = SetAttr { mode: None, uid: None, gid: None, atime: SetTime::Keep, mtime };
    store.set_attr(id, &set).unwrap();
}

fn aged(store: &Arc<Store>, name: &[u8], seconds: i64) -> NodeId {
    let id = put(store, name, name).unwrap();
    age(store, id, seconds);
    id
}

/// Whether anybody finds a value: all ways of asking say the same.
#[track_caller]
fn lives(store: &Store, id: NodeId) -> bool {
    let has_attr = store.attr(id).unwrap().is_some();
    assert_eq!(store.open_value(id, None).unwrap().is_some(), has_attr, "open");
    let edit = store.begin_edit(id).unwrap();
    assert_eq!(edit.is_some(), has_attr, "open for writing");
    if let Some((file, _)) = edit {
        store.end_edit(id, &file).unwrap();
    }
    let listed = store.list(default_dir(store), 0, usize::MAX).unwrap();
    let is_listed = listed.iter().any(|e| e.node == id && !e.expired);
    assert_eq!(is_listed, has_attr, "listing");
    has_attr
}

/// Takes the keeper's turns until there is nothing to do; when it would be back.
fn keep(store: &Store) -> Duration {
    for _ in 0..1_000 {
        let next = store.keep_time();
        if next > Duration::ZERO {
            return next;
        }
    }
    panic!("the keeper finds no end");
}

fn expired(store: &Store) -> u64 {
    store.counters.evictions[Reason::Expired as usize].load(Ordering::Relaxed)
}

#[test]
fn a_tenants_keys_are_gone_after_its_time_and_then_deleted() {
    let bench = still();
    ttl_of_default(&bench, Some(100));
    let (old, young) = (aged(&bench, b"old", 101), aged(&bench, b"young", 40));
    let elsewhere = bench.make_tenant(b"t", 0o755, 0, 0).unwrap();
    let other = put_in(&bench, elsewhere, b"old", b"v").unwrap();
    age(&bench, other, 1_000_000);
    assert!(!lives(&bench, old) && lives(&bench, young));
    assert_eq!(names(&bench), ["old", "young"], "nothing was deleted yet");
    let left = bench.time_left(young).unwrap();
    assert!(left <= Duration::from_secs(60) && left > Duration::from_secs(50), "{left:?}");
    let next = keep(&bench);
    assert!(next <= left && next > Duration::from_secs(50), "the next turn is the next deadline: {next:?}");
    assert_eq!((names(&bench), expired(&bench)), (vec!["young".to_owned()], 1));
    assert_eq!((bench.counters.evicted_keys(), bench.status().evictions["expired"]), (1, 1));
    assert_eq!(bench.status().tenants[0].ttl_seconds, Some(100));
    assert_eq!(bench.status().tenants[1].ttl_seconds, None);
    assert!(bench.attr(other).unwrap().is_some(), "another tenant's keys live for ever");
    bench.sound();
}

#[test]
fn a_time_that_is_set_counts_at_once_for_keys_that_are_there() {
    let bench = still();
    let many = limits::AGED_AT_ONCE * 2 + 10;
    for n in 0..many {
        aged(&bench, format!("k{n}").as_bytes(), if n % 2 == 0 { 50 } else { 200 });
    }
    ttl_of_default(&bench, Some(100));
    let first = bench.child(default_dir(&bench), b"k1").unwrap();
    assert!(!lives(&bench, first));
    assert_eq!(bench.keep_time(), Duration::ZERO, "it goes over them in parts");
    keep(&bench);
    assert_eq!((names(&bench).len(), expired(&bench)), (many / 2, many as u64 / 2));
    // Shorter, longer, and none.
    let second = bench.child(default_dir(&bench), b"k2").unwrap();
    ttl_of_default(&bench, Some(40));
    assert!(bench.has_expired(second));
    ttl_of_default(&bench, Some(1000));
    assert!(!bench.has_expired(second) && lives(&bench, second));
    keep(&bench);
    assert_eq!(names(&bench).len(), many / 2);
    ttl_of_default(&bench, None);
    age(&bench, second, 1_000_000);
    assert!(lives(&bench, second));
    assert_eq!(keep(&bench), Duration::MAX, "nothing is kept of keys that live for ever");
    assert_eq!((names(&bench).len(), bench.index.lock().deadlines.next()), (many / 2, None));
    bench.sound();
}

#[test]
fn a_keys_own_time_wins_over_its_tenants() {
    let bench = still();
    let (long, short) = (aged(&bench, b"long", 200), aged(&bench, b"short", 20));
    assert!(!bench.set_ttl(long, Some(1000)).unwrap());
    assert!(!bench.set_ttl(short, Some(10)).unwrap(), "it had none before");
    ttl_of_default(&bench, Some(100));
    assert!(lives(&bench, long) && !lives(&bench, short));
    let own = |id| ttl::own_ttl(&bench.attribute_file(id).unwrap().unwrap()).unwrap();
    assert_eq!(own(long), Some(1000));
    keep(&bench);
    assert_eq!((names(&bench), expired(&bench)), (vec!["long".to_owned()], 1));
    assert!(bench.set_ttl(long, None).unwrap());
    assert_eq!(bench.attr(long).unwrap().map(|_| ()), None, "now it is its tenant's");
    keep(&bench);
    assert_eq!((names(&bench), expired(&bench)), (vec![], 2));
    let dir = bench.make_dir(default_dir(&bench), b"dir", OWNER).unwrap();
    assert_eq!(bench.set_ttl(dir, Some(1)).unwrap_err().kind(), Kind::IsDirectory);
    bench.sound();
}

#[test]
fn a_pinned_key_lives_until_it_is_unpinned() {
    let bench = still();
    ttl_of_default(&bench, Some(10));
    let id = put(&bench, b"k", b"v").unwrap();
    bench.set_pinned(id, true).unwrap();
    age(&bench, id, 100);
    assert!(lives(&bench, id));
    assert_eq!(keep(&bench), Duration::MAX);
    bench.sound();
    bench.set_pinned(id, false).unwrap();
    assert!(!lives(&bench, id));
    keep(&bench);
    assert_eq!((names(&bench), expired(&bench)), (vec![], 1));
    bench.sound();
}

#[test]
fn a_change_of_content_or_of_its_time_puts_the_deadline_off() {
    let bench = still();
    ttl_of_default(&bench, Some(100));
    let (touched, edited, cut) =
        (aged(&bench, b"touched", 99), aged(&bench, b"edited", 99), aged(&bench, b"cut", 99));
    age(&bench, touched, 0);
    let (file, _) = bench.begin_edit(edited).unwrap().unwrap();
    (&*file).write_all(b"new").unwrap();
    bench.end_edit(edited, &file).unwrap();
    bench.truncate(cut, 1).unwrap();
    for id in [touched, edited, cut] {
        assert!(bench.time_left(id).unwrap() > Duration::from_secs(90));
    }
    // An access is no change.
    let set = SetAttr { mode: Some(0o600), uid: None, gid: None, atime: SetTime::Now, mtime: SetTime::Keep };
    age(&bench, cut, 99);
    bench.set_attr(cut, &set).unwrap();
    bench.open_value(cut, None).unwrap().unwrap();
    assert!(bench.time_left(cut).unwrap() <= Duration::from_secs(1));
    bench.sound();
}

#[test]
fn whoever_writes_in_place_keeps_it_alive() {
    let bench = still();
    ttl_of_default(&bench, Some(10));
    let id = put(&bench, b"k", b"v").unwrap();
    let (file, _) = bench.begin_edit(id).unwrap().unwrap();
    age(&bench, id, 100);
    assert!(lives(&bench, id));
    let next = keep(&bench);
    assert!(next > Duration::from_secs(1), "it is not asked for all the time: {next:?}");
    assert_eq!((names(&bench), expired(&bench)), (vec!["k".to_owned()], 0));
    bench.end_edit(id, &file).unwrap();
    assert!(!lives(&bench, id));
    keep(&bench);
    assert_eq!(names(&bench), [""; 0]);
    bench.sound();
}

#[test]
fn what_is_over_gives_way_and_leaves_nothing_to_its_successor() {
    let bench = still();
    let id = aged(&bench, b"k", 100);
    bench.set_ttl(id, Some(10)).unwrap();
    let mut staged = stage(&bench, default_dir(&bench), b"k", b"new").unwrap();
    assert_eq!(bench.publish(&mut staged, false).unwrap(), Some(id));
    assert_eq!((get(&bench, b"k").unwrap(), bench.deadline(staged.node())), (b"new".to_vec(), None));
    assert_eq!((keep(&bench), expired(&bench)), (Duration::MAX, 0));
    // What is made under the name of one that is over does not meet it.
    bench.set_ttl(staged.node(), Some(10)).unwrap();
    age(&bench, staged.node(), 100);
    assert_eq!(bench.make_dir(default_dir(&bench), b"k", OWNER).unwrap_err().kind(), Kind::Exists);
    bench.give_way(default_dir(&bench), b"k").unwrap();
    bench.make_dir(default_dir(&bench), b"k", OWNER).unwrap();
    assert_eq!(expired(&bench), 1);
    // One that is set before the value is published.
    let mut staged = stage(&bench, default_dir(&bench), b"set", b"v").unwrap();
    bench.set_ttl_of(staged.file(), Some(50)).unwrap();
    bench.publish(&mut staged, false).unwrap();
    assert!(bench.time_left(staged.node()).unwrap() > Duration::from_secs(40));
    bench.unlink(default_dir(&bench), b"set").unwrap();
    assert_eq!(bench.index.lock().deadlines.next(), None);
    bench.sound();
}

#[test]
fn a_time_to_live_follows_its_key_to_another_name() {
    let bench = still();
    let dir = default_dir(&bench);
    let (a, b) = (aged(&bench, b"a", 20), put(&bench, b"b", b"b").unwrap());
    bench.set_ttl(a, Some(100)).unwrap();
    bench.rename((dir, b"a"), (dir, b"c"), RenameHow::Replace).unwrap();
    assert!(bench.time_left(a).unwrap() <= Duration::from_secs(80));
    bench.rename((dir, b"b"), (dir, b"c"), RenameHow::Exchange).unwrap();
    assert_eq!((bench.deadline(a).is_some(), bench.deadline(b)), (true, None));
    assert_eq!(names_of_id(&bench, a), "b");
    let fresh = bench.rehome(a).unwrap();
    assert_eq!((bench.deadline(a), bench.time_left(fresh).is_some()), (None, true));
    age(&bench, fresh, 200);
    keep(&bench);
    assert_eq!((names(&bench), expired(&bench)), (vec!["c".to_owned()], 1));
    bench.sound();
}

fn names_of_id(store: &Store, id: NodeId) -> String {
    String::from_utf8_lossy(&store.place(id).unwrap().1).into_owned()
}

/// By the checkpoint, which says nothing of it, and by a walk: keys that are over are not found, those that are not are
/// deleted when they are, and the limit is what it was.
#[test]
fn a_restart_finds_what_lives_for_a_time() {
    for clean in [true, false] {
        let mut bench = still();
        for (name, seconds) in [(&b"a"[..], 99), (b"b", 50), (b"own", 99), (b"for-ever", 99)] {
            aged(&bench, name, seconds);
        }
        let at = |bench: &Bench, name: &[u8]| bench.child(default_dir(bench), name).unwrap();
        bench.set_ttl(at(&bench, b"own"), Some(1000)).unwrap();
        let elsewhere = bench.make_tenant(b"t", 0o755, 0, 0).unwrap();
        let mortal = put_in(&bench, elsewhere, b"mortal", b"v").unwrap();
        bench.set_ttl(mortal, Some(30)).unwrap();
        bench.set_pinned(at(&bench, b"for-ever"), true).unwrap();
        ttl_of_default(&bench, Some(100));
        if clean {
            bench.close().unwrap();
        }
        // While it is stopped, time passes.
        for (tenant, name) in [("default", &b"a"[..]), ("default", b"for-ever"), ("t", b"mortal")] {
            let path = record_path(&bench.root(), tenant, name, RecordKind::File);
            let before = Timespec { sec: Timespec::now().sec - 500, nsec: 0 };
            let file = std::fs::File::open(path).unwrap();
            os::set_times(&file, SetTime::Keep, SetTime::At(before)).unwrap();
        }
        bench.reopen();
        bench.stop_keeper();
        assert_eq!(bench.counters.scanned.load(Ordering::Relaxed) == 0, clean);
        assert_eq!(bench.tenant_limits(&Tenant::default_tenant()).unwrap().ttl_seconds, Some(100));
        assert_eq!(get(&bench, b"a"), None, "clean {clean}");
        for name in [&b"b"[..], b"own", b"for-ever"] {
            assert!(lives(&bench, at(&bench, name)), "{}", name.escape_ascii());
        }
        keep(&bench);
        let t = bench.tenant_node(&tenant("t")).unwrap();
        assert_eq!(bench.child(t, b"mortal"), None);
        assert_eq!(names(&bench).len(), 3);
        let left = |name| bench.time_left(at(&bench, name)).map(|t| t.as_secs());
        assert!(left(b"b").is_some_and(|s| (40..=50).contains(&s)), "{:?}", left(b"b"));
        assert!(left(b"own").is_some_and(|s| (890..=901).contains(&s)), "{:?}", left(b"own"));
        assert_eq!(left(b"for-ever"), None);
        bench.sound();
    }
}

#[test]
fn attached_values_live_for_ever_until_they_are_the_stores() {
    let dir = written();
    let bench = Bench::new(attaching(dir.path(), &[]));
    bench.stop_keeper();
    let id = id_of(&bench, "a", b"one");
    bench.set_tenant_ttl(&tenant("a"), Some(10)).unwrap();
    for (path, _) in super::attach::files(dir.path()) {
        let before = Timespec { sec: Timespec::now().sec - 500, nsec: 0 };
        let file = std::fs::File::open(path).unwrap();
        os::set_times(&file, SetTime::Keep, SetTime::At(before)).unwrap();
    }
    keep(&bench);
    assert!(bench.is_attached(id) && bench.attr(id).unwrap().is_some() && read(&bench, id).is_some());
    assert_eq!((expired(&bench), bench.deadline(id)), (0, None));
    age(&bench, id, 20);
    assert!(!bench.is_attached(id) && bench.attr(id).unwrap().is_none());
    keep(&bench);
    assert_eq!(expired(&bench), 1);
    assert_eq!(bench.find_key(&tenant("a"), &key(b"one")).unwrap(), None);
    assert_eq!(bench.check(), [""; 0]);
}

/// The keeper itself: nobody asks for the key.
#[test]
fn the_keeper_deletes_a_key_when_its_time_is_over_and_not_before() {
    let bench = Bench::new(StoreSettings::default());
    let id = put(&bench, b"k", b"v").unwrap();
    bench.set_ttl(id, Some(1)).unwrap();
    let deadline = bench.deadline(id).unwrap();
    let gone_at = loop {
        let listed = names(&bench).len();
        let now = Timespec::now();
        if listed == 0 {
            break now;
        }
        assert!(now.sec - deadline.sec < 20, "it is there long after its deadline");
        std::thread::yield_now();
    };
    assert!(gone_at >= deadline, "gone at {gone_at:?}, before {deadline:?}");
    assert_eq!(expired(&bench), 1);
    bench.sound();
}
