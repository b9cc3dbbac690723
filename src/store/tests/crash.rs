//! Every named step, failing while the process lives and crashing.
//!
//! A crash is a copy of the store's directory at the moment of the step: what was visible survives. The step itself
//! makes the copy, so nothing that unwinds after it can tidy up.

use std::process::Command;
use std::sync::atomic::Ordering;

use fail::FailScenario;

use super::*;
use crate::config::Durability;
use crate::os::RenameHow;

const OLD: &[u8] = b"the old value";
const NEW: &[u8] = &[9; 10_000];

/// The steps of a publication that come before its commit point.
const STAGE: &[&str] = &["stage.create"];
const PUBLISH: &[&str] = &["publish.metadata", "publish.sync", "publish.rename"];
const RENAME: &[&str] = &["rename.metadata", "rename.move"];

/// A store with every step off, and fail points of its own.
struct Rig {
    bench: Bench,
    _scenario: FailScenario<'static>,
}

impl Rig {
    /// `k` and `target` hold values; the metadata of `long` takes a block more once it has two keys.
    fn new() -> Rig {
        let settings = StoreSettings { durability: Durability::Fsync, ..StoreSettings::default() };
        let bench = Bench::new(settings);
        let scenario = FailScenario::setup();
        put(&bench, b"k", OLD).unwrap();
        put(&bench, b"target", b"what stood at the target").unwrap();
        put(&bench, &long(), OLD).unwrap();
        Rig { bench, _scenario: scenario }
    }

    /// Runs `operation` with an error at `step`; it must fail.
    fn failing(&self, step: &str, operation: &dyn Fn(&Arc<Store>) -> Result<()>) {
        fail::cfg(step, "return").unwrap();
        let done = operation(&self.bench);
        fail::remove(step);
        let e = done.expect_err(step);
        assert!(e.to_string().contains(step), "{step}: {e}");
    }

    /// Runs `operation` and opens what the disk held when it came to `step`.
    fn crashed(&self, step: &str, operation: &dyn Fn(&Arc<Store>) -> Result<()>) -> (TempDir, Arc<Store>) {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (self.bench.root(), dir.path().join("store"));
        let copy = move || {
            let done = Command::new("cp").arg("-a").arg("--sparse=never").args([&from, &to]).status();
            assert!(done.unwrap().success());
        };
        fail::cfg_callback(step, copy).unwrap();
        operation(&self.bench).unwrap();
        fail::remove(step);
        let store = open_when_free(&dir.path().join("store"), &self.bench.settings).expect(step);
        assert_eq!(store.counters.quarantined.load(Ordering::Relaxed), 0, "{step}");
        assert_sound(&store);
        (dir, store)
    }
}

fn long() -> Vec<u8> {
    vec![b'L'; 150]
}

fn replace(store: &Arc<Store>) -> Result<()> {
    put(store, b"k", NEW).map(drop)
}

fn create(store: &Arc<Store>) -> Result<()> {
    put(store, b"new", NEW).map(drop)
}

fn make_dir(store: &Arc<Store>) -> Result<()> {
    store.make_dir(default_dir(store), b"dir", OWNER).map(drop)
}

fn unlink(store: &Arc<Store>) -> Result<()> {
    store.unlink(default_dir(store), b"k")
}

fn rename_over(store: &Arc<Store>) -> Result<()> {
    let dir = default_dir(store);
    store.rename((dir, &long()), (dir, b"target"), RenameHow::Replace).map(drop)
}

fn rename_to_new(store: &Arc<Store>) -> Result<()> {
    let dir = default_dir(store);
    store.rename((dir, &long()), (dir, &[b'M'; 150]), RenameHow::Replace).map(drop)
}

#[test]
fn a_failed_step_before_the_commit_changes_nothing() {
    type Operation = fn(&Arc<Store>) -> Result<()>;
    let cases: &[(&[&str], &[Operation])] = &[
        (STAGE, &[replace, create, make_dir]),
        (PUBLISH, &[replace, create, make_dir]),
        (RENAME, &[rename_over, rename_to_new]),
        (&["unlink.record"], &[unlink]),
    ];
    for (steps, operations) in cases {
        for step in *steps {
            for operation in *operations {
                let mut rig = Rig::new();
                let before = (tree(&rig.bench), rig.bench.index.lock().node_count());
                rig.failing(step, operation);
                assert_eq!(before.0, tree(&rig.bench), "{step}");
                assert_eq!(before.1, rig.bench.index.lock().node_count(), "{step}: nodes leak");
                rig.bench.sound();
                rig.bench.reopen();
                assert_eq!(before.0, tree(&rig.bench), "{step}: after a restart");
                rig.bench.sound();
                // And it goes through once the disk is well again.
                operation(&rig.bench).unwrap();
                rig.bench.sound();
            }
        }
    }
}

/// Behind the commit point an error says that the change may not be durable; it has been made.
#[test]
fn a_failed_step_after_the_commit_leaves_index_and_disk_agreed() {
    let mut rig = Rig::new();
    rig.failing("publish.renamed", &replace);
    assert_eq!(get(&rig.bench, b"k").unwrap(), NEW);
    rig.bench.sound();
    rig.failing("rename.moved", &rename_over);
    assert_eq!((get(&rig.bench, &long()), get(&rig.bench, b"target").unwrap()), (None, OLD.to_vec()));
    rig.bench.sound();
    let before = tree(&rig.bench);
    rig.bench.reopen();
    assert_eq!(tree(&rig.bench), before);
    rig.bench.sound();
}

#[test]
fn a_crash_leaves_the_old_value_or_the_new_one() {
    for step in [STAGE, PUBLISH].concat() {
        let (_dir, store) = Rig::new().crashed(step, &replace);
        assert_eq!(get(&store, b"k").unwrap(), OLD, "{step}");
        let (_dir, store) = Rig::new().crashed(step, &create);
        assert_eq!(get(&store, b"new"), None, "{step}");
    }
    let (_dir, store) = Rig::new().crashed("publish.renamed", &replace);
    assert_eq!(get(&store, b"k").unwrap(), NEW);
    let (_dir, store) = Rig::new().crashed("unlink.record", &unlink);
    assert_eq!(get(&store, b"k").unwrap(), OLD);
}

#[test]
fn a_crash_in_a_rename_keeps_the_value_under_one_name() {
    let target = |store: &Arc<Store>| get(store, b"target").unwrap();
    for step in RENAME {
        let (_dir, store) = Rig::new().crashed(step, &rename_over);
        assert_eq!(get(&store, &long()).unwrap(), OLD, "{step}");
        assert_eq!(target(&store), b"what stood at the target", "{step}");
        let (_dir, store) = Rig::new().crashed(step, &rename_to_new);
        assert_eq!((get(&store, &long()).unwrap(), get(&store, &[b'M'; 150])), (OLD.to_vec(), None));
    }
    let (_dir, store) = Rig::new().crashed("rename.moved", &rename_over);
    assert_eq!((get(&store, &long()), target(&store)), (None, OLD.to_vec()));
}

/// A step of an earlier, failed rename stays in the metadata; a later one starts from the name the file has.
#[test]
fn a_rename_after_a_failed_one_finds_the_value() {
    let mut rig = Rig::new();
    rig.failing("rename.move", &rename_over);
    rig.failing("rename.move", &rename_to_new);
    rig.bench.reopen();
    rename_over(&rig.bench).unwrap();
    assert_eq!(get(&rig.bench, b"target").unwrap(), OLD);
    rig.bench.sound();
}

#[test]
fn a_victim_that_fails_is_kept_and_the_next_one_goes() {
    let mut rig = Rig::new();
    let before = tree(&rig.bench);
    fail::cfg("evict.record", "return").unwrap();
    rig.bench.evict_to_percent(0);
    assert_eq!(tree(&rig.bench), before);
    rig.bench.sound();
    assert_eq!(rig.bench.counters.eviction_errors.load(Ordering::Relaxed), 3);
    fail::cfg("evict.record", "1*return->off").unwrap();
    rig.bench.evict_to_percent(0);
    fail::remove("evict.record");
    assert_eq!((tree(&rig.bench).len(), rig.bench.counters.evicted_keys()), (1, 2));
    rig.bench.sound();
    rig.bench.reopen();
    rig.bench.sound();
    let evict = |store: &Arc<Store>| {
        store.evict_to_percent(0);
        Ok(())
    };
    let left = tree(&rig.bench);
    let (_dir, store) = rig.crashed("evict.record", &evict);
    assert_eq!(tree(&store), left);
}
