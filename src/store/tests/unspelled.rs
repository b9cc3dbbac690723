//! Keys that no path spells, as an import leaves them on the disk, and as they are made by key.

use super::*;
use crate::format::record::{Record, XATTR};
use crate::ledger::Pending;
use crate::os::{self, RenameHow, XattrMode};
use crate::scope::{Generation, Mode, Scope};

/// Every kind of key that no path spells.
const UNSPELLABLE: [&[u8]; 14] = [
    b"",
    b"/",
    b".",
    b"..",
    b"a//b",
    b"a/./b",
    b"../up",
    b"a/..",
    b"/first",
    b"last/",
    b"nul\0byte",
    b"\0",
    b".fencefs",
    b".fencefs/status",
];

/// Puts a record into a store that is not open, as another program would.
fn craft(bench: &Bench, key_bytes: &[u8], value: &[u8], kind: RecordKind, pinned: bool) {
    let path = record_path(&bench.root(), "default", key_bytes, kind);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, value).unwrap();
    let record = Record {
        kind,
        editing: false,
        pinned,
        epoch: Epoch(0),
        payload_bytes: value.len() as u64,
        checksum: None,
        tenant: Tenant::default_tenant(),
        key: key(key_bytes),
        origin: None,
    };
    let file = std::fs::File::open(&path).unwrap();
    os::xattr_set(&file, XATTR, &record.encode().unwrap(), XattrMode::Set).unwrap();
}

/// A store that was given these values while it was closed.
fn imported(settings: StoreSettings, keys: &[&[u8]]) -> Bench {
    let mut bench = Bench::new(settings);
    bench.drop_store();
    for k in keys {
        craft(&bench, k, &value_of(k), RecordKind::File, false);
    }
    bench.open();
    bench
}

fn value_of(key_bytes: &[u8]) -> Vec<u8> {
    [b"value of ", key_bytes].concat()
}

/// The keys of tenant `default` that no path spells, in order.
fn unspelled(store: &Store) -> Vec<Vec<u8>> {
    let dir = store.unspelled(&Tenant::default_tenant()).unwrap();
    let mut found: Vec<_> = store.list(dir, 0, usize::MAX).unwrap().iter().map(|e| e.name.to_vec()).collect();
    found.sort();
    found
}

fn sorted(keys: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut keys: Vec<_> = keys.iter().map(|k| k.to_vec()).collect();
    keys.sort();
    keys
}

fn place(store: &Store, key_bytes: &[u8]) -> (NodeId, Box<[u8]>) {
    store.place_of_key(&Tenant::default_tenant(), &key(key_bytes)).unwrap()
}

/// Publishes a value by its key.
fn put_key(store: &Arc<Store>, key_bytes: &[u8], value: &[u8]) -> NodeId {
    let (dir, name) = place(store, key_bytes);
    put_in(store, dir, &name, value).unwrap()
}

#[test]
fn what_an_import_left_is_served_and_counted() {
    let mut bench = imported(StoreSettings::default(), &UNSPELLABLE);
    for _ in 0..2 {
        assert_eq!(unspelled(&bench), sorted(&UNSPELLABLE));
        for k in UNSPELLABLE {
            assert_eq!(get(&bench, k).unwrap(), value_of(k), "{:?}", key(k));
            let id = bench.find_key(&Tenant::default_tenant(), &key(k)).unwrap().unwrap();
            let it = bench.identity(id).unwrap();
            assert_eq!((it.key.as_bytes(), it.digest), (k, Digest::of(&it.tenant, k, RecordKind::File)));
            assert_eq!(bench.attr(id).unwrap().unwrap().attr.size_bytes, value_of(k).len() as u64);
        }
        assert_eq!(bench.usage(None).1, UNSPELLABLE.len() as u64);
        assert_eq!(names(&bench), [""; 0], "none of them is an entry of the tenant's directory");
        bench.sound();
        bench.close_and_reopen();
    }
    assert_eq!(bench.counters.quarantined.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn a_value_that_is_also_a_directory_is_unspelled_whatever_came_first() {
    for order in [[&b"a"[..], b"a/b", b"a/b/c"], [b"a/b/c", b"a/b", b"a"], [b"a/b", b"a/b/c", b"a"]] {
        let bench = imported(StoreSettings::default(), &order);
        assert_eq!(unspelled(&bench), sorted(&[b"a", b"a/b"]));
        assert_eq!(names(&bench), ["a"]);
        for k in order {
            assert_eq!(get(&bench, k).unwrap(), value_of(k));
        }
        bench.sound();
    }
}

#[test]
fn a_value_beside_a_recorded_directory_of_its_name_is_unspelled() {
    let mut bench = Bench::new(StoreSettings::default());
    bench.make_dir(default_dir(&bench), b"d", OWNER).unwrap();
    bench.close().unwrap();
    bench.drop_store();
    craft(&bench, b"d", b"value", RecordKind::File, false);
    bench.open();
    assert_eq!((unspelled(&bench), names(&bench)), (sorted(&[b"d"]), vec!["d".to_owned()]));
    assert_eq!(get(&bench, b"d").unwrap(), b"value");
    bench.sound();
}

#[test]
fn they_are_made_replaced_and_unlinked_by_key() {
    let mut bench = Bench::new(StoreSettings::default());
    for k in UNSPELLABLE {
        let first = put_key(&bench, k, b"old");
        assert_eq!(bench.attr(first).unwrap().unwrap().links, 1);
        put_key(&bench, k, &value_of(k));
        assert_eq!(get(&bench, k).unwrap(), value_of(k));
    }
    bench.sound();
    bench.close_and_reopen();
    for k in UNSPELLABLE {
        assert_eq!(get(&bench, k).unwrap(), value_of(k));
        let (dir, name) = place(&bench, k);
        bench.unlink(dir, &name).unwrap();
        assert_eq!(get(&bench, k), None);
        assert_eq!(bench.unlink(dir, &name).unwrap_err().kind(), Kind::NotFound);
    }
    assert_eq!(bench.usage(None), (0, 0, bench.usage(None).2));
    assert!(records(&bench.root()).is_empty());
    bench.sound();
}

#[test]
fn a_key_that_a_path_spells_is_one_node_by_either_name() {
    let bench = Bench::new(StoreSettings::default());
    let dir = bench.make_dir(default_dir(&bench), b"d", OWNER).unwrap();
    assert_eq!(place(&bench, b"d/k"), (dir, Box::from(&b"k"[..])));
    let id = put_key(&bench, b"d/k", b"v");
    assert_eq!(bench.child(dir, b"k"), Some(id));
    let missing = bench.place_of_key(&Tenant::default_tenant(), &key(b"nowhere/k")).unwrap_err();
    assert_eq!(missing.kind(), Kind::NotFound);
    // Below a value, and beside a directory: no path can spell these.
    put_key(&bench, b"d/k/deeper", b"1");
    put_key(&bench, b"d", b"2");
    assert_eq!(unspelled(&bench), sorted(&[b"d", b"d/k/deeper"]));
    bench.sound();
}

#[test]
fn a_key_whose_obstacle_goes_is_found_by_its_path_and_has_one_node() {
    let mut bench = imported(StoreSettings::default(), &[b"a", b"a/b"]);
    let top = default_dir(&bench);
    let dir = bench.child(top, b"a").unwrap();
    assert!(bench.is_directory(dir));
    bench.unlink(dir, b"b").unwrap();
    bench.remove_dir(top, b"a").unwrap();
    let old = bench.child(top, b"a").unwrap();
    assert!(!bench.is_directory(old) && !bench.stands_in(old, top));
    assert_eq!(read(&bench, old).unwrap(), b"value of a");
    assert_eq!(bench.make_dir(top, b"a", OWNER).unwrap_err().kind(), Kind::Exists);
    bench.sound();
    // A value that is made at the path is the key's new value, and the old one is gone.
    bench.retain(old).unwrap();
    let events = bench.subscribe();
    put(&bench, b"a", b"new").unwrap();
    assert_eq!(
        (read(&bench, old), read(&bench, bench.successor(old).unwrap())),
        (None, Some(b"new".to_vec()))
    );
    let Ok(super::super::Event::Gone { node, .. }) = events.try_recv() else { panic!("no event") };
    assert_eq!(node, old);
    bench.release(old, 1);
    assert_eq!((get(&bench, b"a").unwrap(), unspelled(&bench).len()), (b"new".to_vec(), 0));
    bench.sound();
    bench.close_and_reopen();
    assert_eq!((get(&bench, b"a").unwrap(), names(&bench)), (b"new".to_vec(), vec!["a".to_owned()]));
}

#[test]
fn one_that_is_begun_beside_a_directory_and_ends_without_it_replaces_what_came_to_its_path() {
    let bench = Bench::new(StoreSettings::default());
    let top = default_dir(&bench);
    bench.make_dir(top, b"a", OWNER).unwrap();
    let (dir, name) = place(&bench, b"a");
    let mut staged = stage(&bench, dir, &name, b"by key").unwrap();
    bench.remove_dir(top, b"a").unwrap();
    put(&bench, b"a", b"by path").unwrap();
    bench.publish(&mut staged, false).unwrap();
    drop(staged);
    assert_eq!(get(&bench, b"a").unwrap(), b"by key");
    assert_eq!((names(&bench).len(), unspelled(&bench).len()), (0, 1));
    assert_eq!(bench.usage(None).1, 1);
    bench.sound();
}

#[test]
fn unlinked_and_renamed_by_its_path_once_that_is_free() {
    let bench = imported(StoreSettings::default(), &[b"a", b"a/b", b"c", b"c/d"]);
    let top = default_dir(&bench);
    for (dir, below) in [(b"a", b"b"), (b"c", b"d")] {
        let id = bench.child(top, dir).unwrap();
        bench.unlink(id, below).unwrap();
        bench.remove_dir(top, dir).unwrap();
    }
    bench.unlink(top, b"a").unwrap();
    assert_eq!(get(&bench, b"a"), None);
    let taken = bench.rename((top, b"c"), (top, b"c"), RenameHow::NoReplace).unwrap_err();
    assert_eq!(taken.kind(), Kind::Exists);
    bench.rename((top, b"c"), (top, b"e"), RenameHow::Replace).unwrap();
    assert_eq!((get(&bench, b"c"), get(&bench, b"e").unwrap()), (None, b"value of c".to_vec()));
    assert_eq!((names(&bench), unspelled(&bench).len()), (vec!["e".to_owned()], 0));
    bench.sound();
}

#[test]
fn they_move_to_a_path_and_back_and_change_places() {
    let mut bench = imported(StoreSettings::default(), &[b"x//y", b"plain"]);
    let (top, hidden) = (default_dir(&bench), bench.unspelled(&Tenant::default_tenant()).unwrap());
    bench.rename((hidden, b"x//y"), (top, b"plain"), RenameHow::Exchange).unwrap();
    assert_eq!(get(&bench, b"plain").unwrap(), b"value of x//y");
    assert_eq!(get(&bench, b"x//y").unwrap(), b"value of plain");
    bench.sound();
    bench.rename((hidden, b"x//y"), (top, b"saved"), RenameHow::Replace).unwrap();
    bench.rename((top, b"plain"), (hidden, b"/p"), RenameHow::Replace).unwrap();
    bench.rename((hidden, b"/p"), (hidden, b"p/"), RenameHow::Replace).unwrap();
    for _ in 0..2 {
        assert_eq!((names(&bench), unspelled(&bench)), (vec!["saved".to_owned()], sorted(&[b"p/"])));
        assert_eq!(get(&bench, b"saved").unwrap(), b"value of plain");
        assert_eq!(get(&bench, b"p/").unwrap(), b"value of x//y");
        bench.sound();
        bench.close_and_reopen();
    }
}

#[test]
fn pins_and_eviction_reach_them() {
    let mut bench = imported(StoreSettings::default(), &[b"a//1", b"a//2"]);
    bench.drop_store();
    craft(&bench, b"a//pinned", b"stays", RecordKind::File, true);
    bench.open();
    let find = |k: &[u8]| bench.find_key(&Tenant::default_tenant(), &key(k)).unwrap();
    assert!(bench.is_pinned(find(b"a//pinned").unwrap()));
    bench.set_pinned(find(b"a//1").unwrap(), true).unwrap();
    let events = bench.subscribe();
    bench.evict_to_percent(0);
    assert_eq!(unspelled(&bench), sorted(&[b"a//1", b"a//pinned"]));
    let Ok(super::super::Event::Gone { name, .. }) = events.try_recv() else { panic!("no event") };
    assert_eq!(&*name, b"a//2");
    bench.set_pinned(find(b"a//1").unwrap(), false).unwrap();
    bench.evict_to_percent(0);
    assert_eq!(unspelled(&bench), sorted(&[b"a//pinned"]));
    bench.sound();
}

#[test]
fn a_record_that_fails_is_quarantined_and_a_miss() {
    let bench = imported(StoreSettings::default(), &[b"a//b"]);
    std::fs::write(bench.record(b"a//b"), b"something else").unwrap();
    assert_eq!(get(&bench, b"a//b"), None);
    assert_eq!((unspelled(&bench).len(), bench.usage(None).1), (0, 0));
    assert_eq!(names_in(&bench.root().join("data/.quarantine")).len(), 1);
    bench.sound();
}

#[test]
fn the_eviction_order_outlasts_a_clean_stop() {
    let mut bench = imported(StoreSettings::default(), &[b"/1", b"/2", b"/3"]);
    assert_eq!(get(&bench, b"/1").unwrap(), b"value of /1");
    bench.close_and_reopen();
    assert_eq!(bench.counters.scanned.load(std::sync::atomic::Ordering::Relaxed), 0, "as the stop left them");
    assert_eq!(unspelled(&bench), sorted(&[b"/1", b"/2", b"/3"]));
    let index = bench.index.lock();
    let order: Vec<_> =
        index.order.all().into_iter().map(|(slot, _)| slot).map(|s| index.key_of(s).unwrap()).collect();
    assert_eq!(order.len(), 3);
    drop(index);
    bench.sound();
}

#[test]
fn a_tenant_that_holds_one_is_not_empty() {
    let bench = Bench::new(StoreSettings::default());
    let nodes = bench.index.lock().node_count();
    bench.make_tenant(b"t", 0o755, 0, 0).unwrap();
    let dir = bench.unspelled(&tenant("t")).unwrap();
    put_in(&bench, dir, b"a//b", b"v").unwrap();
    assert_eq!(bench.remove_tenant(b"t").unwrap_err().kind(), Kind::NotEmpty);
    bench.unlink(dir, b"a//b").unwrap();
    bench.remove_tenant(b"t").unwrap();
    assert_eq!(bench.index.lock().node_count(), nodes, "nodes leak");
    assert!(bench.stage(dir, b"late//r", RecordKind::File, OWNER).is_err());
    bench.sound();
}

#[test]
fn a_removal_takes_them_all() {
    let mut keys = UNSPELLABLE.to_vec();
    keys.extend([&b"a"[..], b"a/b", b"plain"]);
    for (scope, mode) in [
        (Scope::Tenant(Tenant::default_tenant()), Mode::Physical),
        (Scope::Tenant(Tenant::default_tenant()), Mode::Logical),
        (Scope::Global, Mode::Physical),
    ] {
        let mut bench = imported(StoreSettings::default(), &keys);
        let (dir, name) = place(&bench, b"late//r");
        let mut begun = stage(&bench, dir, &name, b"too late").unwrap();
        let id = bench.find_key(&Tenant::default_tenant(), &key(b"a//b")).unwrap().unwrap();
        bench.retain(id).unwrap();
        let removal = Pending { scope: scope.clone(), generation: Generation(1), mode };
        bench.remove(&removal).unwrap();
        bench.open_scope(&scope, Generation(1)).unwrap();
        assert!(bench.publish(&mut begun, false).is_err());
        drop(begun);
        assert_eq!(bench.attr(id).unwrap().map(|_| ()), None);
        bench.release(id, 1);
        for k in &keys {
            assert_eq!(get(&bench, k), None);
        }
        assert_eq!((unspelled(&bench).len(), names(&bench).len(), bench.usage(None).1), (0, 0, 0));
        put_key(&bench, b"a//b", b"new epoch");
        bench.reopen();
        assert_eq!((get(&bench, b"a//b").unwrap(), bench.usage(None).1), (b"new epoch".to_vec(), 1));
        assert_eq!(bench.check(), [""; 0]);
    }
}

#[test]
fn a_directory_that_no_path_spells_stays_out_of_the_tree() {
    let mut bench = Bench::new(StoreSettings::default());
    bench.drop_store();
    craft(&bench, b"d//e", b"", RecordKind::Directory, false);
    bench.open();
    assert_eq!((unspelled(&bench).len(), names(&bench).len()), (0, 0));
    assert_eq!(bench.check(), [""; 0]);
}
