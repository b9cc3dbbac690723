//! What a clean stop leaves for the next start, and when the start does not believe it.

use std::fs::{self, File};
use std::sync::atomic::Ordering;

use super::removal::{fill, of, of_tenant, status_of};
use super::*;
use crate::config::PolicyName;
use crate::format::checkpoint::{Checkpoint, Entry, Writer};
use crate::os::{self, SetTime, Timespec, XattrMode};
use crate::scope::{Generation, Scope};
use crate::store::SetAttr;

const MARK: &str = "user.fencefs.stopped";

/// Two tenants, implied directories, pins, a link, in an order of their own.
fn rich() -> Bench {
    let settings = StoreSettings { policy: PolicyName::Lru, ..StoreSettings::default() };
    let bench = Bench::new(settings);
    fill(&bench, "a");
    for name in ["one", "two", "three"] {
        put(&bench, name.as_bytes(), name.as_bytes()).unwrap();
    }
    get(&bench, b"one").unwrap();
    // Shared by a record that is gone, so that no record keeps the directory.
    let dir = bench.make_dir(default_dir(&bench), b"dir", OWNER).unwrap();
    put_in(&bench, dir, b"below", b"below").unwrap();
    let time = SetTime::At(Timespec { sec: -7, nsec: 5 });
    let set = SetAttr { mode: Some(0o751), uid: None, gid: None, atime: time, mtime: time };
    bench.set_attr(dir, &set).unwrap();
    bench
}

/// Everything that a start must bring back, beside the tree: order, attributes, sums.
fn state(store: &Store) -> (Vec<(String, Key)>, Vec<String>, u64, u64) {
    let index = store.index.lock();
    let named = |slot| {
        let tenant = index.tenant_of(index.id_of(slot)).unwrap().home.tenant.to_string();
        (tenant, index.key_of(slot).unwrap())
    };
    let order = index.order.all().into_iter().map(|(slot, _)| slot).map(named).collect();
    let mut dirs: Vec<String> = index
        .linked_slots()
        .filter(|s| !index.is_unspelled(*s))
        .filter_map(|s| {
            let (node, dir) = (index.at(s), index.at(s).dir.as_ref()?);
            let mode = (dir.attr.mode, dir.attr.uid, dir.attr.mtime, dir.recorded, dir.subdirs);
            Some(format!("{:?} {mode:?} {}", node.name.escape_ascii().to_string(), node.blocks))
        })
        .collect();
    dirs.sort();
    (order, dirs, index.usage.bytes, index.pinned_bytes)
}

fn scanned(store: &Store) -> u64 {
    store.counters.scanned.load(Ordering::Relaxed)
}

fn checkpoint(bench: &Bench) -> PathBuf {
    bench.root().join(layout::CHECKPOINT)
}

fn data(bench: &Bench) -> File {
    File::open(bench.root().join("data")).unwrap()
}

fn mark(bench: &Bench) -> Option<Vec<u8>> {
    os::xattr_get(data(bench), MARK, 64).unwrap()
}

/// What a clean stop left, to be put back.
struct Left(Vec<u8>, Vec<u8>);

impl Left {
    fn by(bench: &mut Bench) -> Left {
        bench.close().unwrap();
        bench.drop_store();
        Left(fs::read(checkpoint(bench)).unwrap(), mark(bench).unwrap())
    }

    fn put_back(&self, bench: &Bench, file: &[u8]) {
        fs::write(checkpoint(bench), file).unwrap();
        os::xattr_set(data(bench), MARK, &self.1, XattrMode::Set).unwrap();
    }
}

#[test]
fn a_clean_stop_is_believed_once() {
    let mut bench = rich();
    let (tree_before, before) = (tree(&bench), state(&bench));
    // Reading the tree touches its values.
    for round in 0..3 {
        bench.close_and_reopen();
        assert_eq!(state(&bench), before, "round {round}");
        assert_eq!(scanned(&bench), 0);
        assert!(!checkpoint(&bench).exists() && mark(&bench).is_none());
        bench.sound();
    }
    bench.reopen();
    assert_eq!(scanned(&bench), 11);
    assert_eq!(state(&bench), before, "the order is a hint that outlasts the checkpoint");
    assert_eq!(tree(&bench), tree_before);
    bench.sound();
}

#[test]
fn a_directory_that_no_record_keeps_is_restored() {
    let mut bench = Bench::new(StoreSettings::default());
    let dir = bench.make_dir(default_dir(&bench), b"dir", OWNER).unwrap();
    put_in(&bench, dir, b"k", b"v").unwrap();
    fs::remove_file(record_path(&bench.root(), "default", b"dir", RecordKind::Directory)).unwrap();
    bench.reopen();
    let before = (tree(&bench), state(&bench));
    bench.close_and_reopen();
    assert_eq!((tree(&bench), state(&bench)), before);
    assert_eq!(scanned(&bench), 0);
    bench.sound();
}

#[test]
fn an_older_checkpoint_that_is_copied_back_is_not_believed() {
    let mut bench = rich();
    let old = Left::by(&mut bench);
    bench.open();
    put(&bench, b"new", b"new").unwrap();
    bench.unlink(default_dir(&bench), b"one").unwrap();
    let after = tree(&bench);
    // After an unclean stop.
    bench.drop_store();
    fs::write(checkpoint(&bench), &old.0).unwrap();
    bench.open();
    assert!(scanned(&bench) > 0);
    assert_eq!(tree(&bench), after);
    // In the place of the one that a later clean stop left.
    Left::by(&mut bench);
    fs::write(checkpoint(&bench), &old.0).unwrap();
    bench.open();
    assert!(scanned(&bench) > 0);
    assert_eq!(tree(&bench), after);
    bench.sound();
}

#[test]
fn a_damaged_checkpoint_is_not_believed_at_any_byte() {
    let mut bench = Bench::new(StoreSettings::default());
    put(&bench, b"k", b"v").unwrap();
    let before = tree(&bench);
    let left = Left::by(&mut bench);
    left.put_back(&bench, &left.0);
    bench.open();
    assert_eq!(scanned(&bench), 0, "undamaged, it is believed");
    bench.drop_store();
    let mut damaged: Vec<Vec<u8>> = (0..left.0.len()).map(|n| left.0[..n].to_vec()).collect();
    for at in 0..left.0.len() {
        let mut other = left.0.clone();
        other[at] ^= 1 << (at % 8);
        damaged.push(other);
    }
    damaged.push([left.0.as_slice(), &[0]].concat());
    for (n, file) in damaged.iter().enumerate() {
        left.put_back(&bench, file);
        bench.open();
        assert_eq!((scanned(&bench), tree(&bench)), (1, before.clone()), "case {n}");
        bench.drop_store();
    }
}

/// The checksum is right, what it says is not: nothing of it stays behind.
#[test]
fn a_checkpoint_that_contradicts_itself_leaves_nothing_behind() {
    let mut bench = rich();
    let (tree_before, before) = (tree(&bench), state(&bench));
    bench.close_and_reopen();
    let before = (state(&bench).0.len() == before.0.len()).then(|| state(&bench)).unwrap();
    let left = Left::by(&mut bench);
    let found = Checkpoint::decode(&left.0).unwrap();
    let entries: Vec<Entry<'_>> = found.entries().map(|e| e.unwrap()).collect();
    let last = *entries.last().unwrap();
    let larger = Entry { blocks: last.blocks + 8, ..last };
    let (one_less, twice) = (&entries[..entries.len() - 1], [entries.clone(), vec![last]].concat());
    for (n, wrong) in [one_less.to_vec(), twice, [one_less, &[larger]].concat()].into_iter().enumerate() {
        let mut writer = Writer::new(&found.head, &found.tenants);
        wrong.iter().for_each(|e| writer.entry(e));
        left.put_back(&bench, &writer.seal());
        bench.open();
        assert_eq!(scanned(&bench), 11, "case {n}");
        assert_eq!(state(&bench), before, "case {n}");
        bench.sound();
        assert_eq!(tree(&bench), tree_before, "case {n}");
        bench.drop_store();
    }
}

#[test]
fn a_checkpoint_of_another_store_or_format_file_is_not_believed() {
    let mut bench = rich();
    let before = tree(&bench);
    let own = Left::by(&mut bench);
    let other = bench.dir.path().join("other");
    open_store(&other, &bench.settings).unwrap().close().unwrap();
    let file = fs::read(other.join(layout::CHECKPOINT)).unwrap();
    let theirs = os::xattr_get(File::open(other.join("data")).unwrap(), MARK, 64).unwrap().unwrap();
    Left(vec![], theirs).put_back(&bench, &file);
    bench.open();
    assert!(scanned(&bench) > 0);
    assert_eq!(tree(&bench), before);
    bench.drop_store();
    // The same store by its identity, yet of a format file that was written since.
    own.put_back(&bench, &own.0);
    let format = bench.root().join(layout::SUPERBLOCK);
    fs::write(&format, format!("{}\n", fs::read_to_string(&format).unwrap())).unwrap();
    bench.open();
    assert!(scanned(&bench) > 0);
    assert_eq!(tree(&bench), before);
}

#[test]
fn a_checkpoint_from_before_a_removal_is_not_believed() {
    // The tenant's own; one that is not there; all.
    let scopes = [Scope::Tenant(tenant("a")), Scope::Tenant(tenant("ghost")), Scope::Global];
    for scope in scopes {
        let mut bench = rich();
        let before = tree(&bench);
        bench.close().unwrap();
        bench.drop_store();
        let root = StoreRoot::lock(&bench.root()).unwrap();
        root.storage().mark(&scope, Generation(9)).unwrap();
        drop(root);
        bench.open();
        let removed = |t: &str| scope.includes_tenant(&tenant(t));
        let left: BTreeMap<_, _> = before.into_iter().filter(|((t, _), _)| !removed(t)).collect();
        assert_eq!(tree(&bench), left, "{scope}");
        assert_eq!(scanned(&bench), left.len() as u64, "{scope}");
        assert_eq!(bench.check(), [""; 0]);
    }
}

#[test]
fn a_pending_removal_neither_leaves_nor_believes_a_checkpoint() {
    let mut bench = rich();
    bench.close().unwrap();
    bench.drop_store();
    let pending = [of_tenant("a", 4)];
    let open = |bench: &Bench| {
        let root = StoreRoot::lock(&bench.root()).unwrap();
        Store::open(root, &bench.settings, &pending, &mut |_, _| {}).unwrap()
    };
    let store = open(&bench);
    assert_eq!((of(&store, "a").len(), scanned(&store)), (0, 5));
    assert_eq!(status_of(&store, "a").1, "removing");
    store.close().unwrap();
    assert!(!checkpoint(&bench).exists() && mark(&bench).is_none());
}

#[test]
fn a_value_that_is_being_edited_leaves_no_checkpoint() {
    let mut bench = rich();
    let id = bench.find_key(&tenant("default"), &key(b"one")).unwrap().unwrap();
    let (file, _) = bench.begin_edit(id).unwrap().unwrap();
    bench.close().unwrap();
    assert!(!checkpoint(&bench).exists() && mark(&bench).is_none());
    file.set_len(1).unwrap();
    bench.reopen();
    assert_eq!(get(&bench, b"one").unwrap(), b"o");
    bench.sound();
}

#[test]
fn nothing_changes_behind_a_checkpoint() {
    let mut bench = rich();
    let mut staged = stage(&bench, default_dir(&bench), b"late", b"late").unwrap();
    bench.close().unwrap();
    let refused = |e: crate::Error| assert_eq!(e.kind(), Kind::Busy);
    refused(bench.publish(&mut staged, false).unwrap_err());
    refused(put(&bench, b"new", b"new").unwrap_err());
    refused(bench.unlink(default_dir(&bench), b"one").unwrap_err());
    refused(bench.make_dir(default_dir(&bench), b"new", OWNER).unwrap_err());
    bench.evict_to_percent(0);
    drop(staged);
    let before = state(&bench);
    bench.reopen();
    assert_eq!((scanned(&bench), state(&bench)), (0, before));
    bench.sound();
}

#[test]
fn what_somebody_takes_from_a_stopped_store_is_a_miss() {
    let mut bench = rich();
    let left = Left::by(&mut bench);
    fs::remove_file(bench.record(b"one")).unwrap();
    fs::write(bench.record(b"two"), b"longer than it was").unwrap();
    bench.open();
    assert_eq!(scanned(&bench), 0);
    assert_eq!((get(&bench, b"one"), get(&bench, b"two")), (None, None));
    assert_eq!(get(&bench, b"three").unwrap(), b"three");
    bench.sound();
    bench.drop_store();
    // A whole shard, a tenant more, a tenant less: noticed, and everything is looked at.
    let epoch = bench.root().join("data/t/default/0");
    let take = |_: &Bench| fs::remove_dir_all(epoch.join(&names_in(&epoch)[0]));
    type Change<'a> = Box<dyn Fn(&Bench) -> std::io::Result<()> + 'a>;
    let changes: [Change<'_>; 3] = [
        Box::new(|bench| fs::create_dir(bench.root().join("data/t/more"))),
        Box::new(|bench| fs::remove_dir_all(bench.root().join("data/t/a"))),
        Box::new(take),
    ];
    for (n, change) in changes.iter().enumerate() {
        bench.open();
        bench.close().unwrap();
        bench.drop_store();
        change(&bench).unwrap();
        bench.open();
        let here = records(&bench.root()).len() as u64;
        assert_eq!(scanned(&bench), here, "case {n}");
        bench.sound();
        bench.drop_store();
    }
    // And the first one names a stop that is long past.
    fs::write(checkpoint(&bench), &left.0).unwrap();
    bench.open();
    bench.sound();
}
