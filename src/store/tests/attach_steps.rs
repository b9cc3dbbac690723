//! Every named step of a migration, a replacement and a removal of attached values: failing while the process lives, and
//! as a crash leaves it. A start that fails.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use fail::FailScenario;

use super::attach::{attaching, files, get_of, id_of, sound_with, status, written};
use super::legacy_tree::Written;
use super::removal::{global, of, of_tenant};
use super::*;
use crate::config::Durability;
use crate::format::legacy::StorageKey;
use crate::store::legacy::Layout;

struct Rig {
    bench: Bench,
    dir: Written,
    _scenario: FailScenario<'static>,
}

fn rig(durability: Durability) -> Rig {
    let dir = written();
    let bench = Bench::new(StoreSettings { durability, ..attaching(dir.path(), &[]) });
    Rig { bench, dir, _scenario: FailScenario::setup() }
}

const DURABILITIES: [Durability; 2] = [Durability::Rename, Durability::Fsync];
/// Before the record is visible.
const BEFORE: [&str; 3] = ["migrate.stage", "migrate.reserve", "migrate.rename"];
/// While the record counts and the legacy file is there.
const BETWEEN: [&str; 3] = ["migrate.renamed", "retire.begin", "retire.unlink"];

fn append(store: &Store, value: &[u8]) -> Result<()> {
    let id = id_of(store, "a", b"one");
    let (file, attr) = store.begin_edit(id)?.unwrap();
    std::os::unix::fs::FileExt::write_all_at(&*file, value, attr.size_bytes).unwrap();
    store.end_edit(id, &file)
}

/// Before the rename a failure leaves the legacy file the only copy, and nothing in staging.
#[test]
fn a_failure_before_the_rename_leaves_the_legacy_record() {
    for durability in DURABILITIES {
        for step in BEFORE {
            let mut rig = rig(durability);
            let before = files(rig.dir.path());
            fail::cfg(step, "return").unwrap();
            let e = append(&rig.bench, b"+").expect_err(step);
            assert!(e.to_string().contains(step), "{step}: {e}");
            assert_eq!(files(rig.dir.path()), before, "{step}");
            assert_eq!(get_of(&rig.bench, "a", b"one").unwrap(), b"first", "{step}");
            assert_eq!((status(&rig.bench).records, status(&rig.bench).shadows), (3, 0), "{step}");
            sound_with(&rig.bench, &before);
            fail::remove(step);
            append(&rig.bench, b"+").expect(step);
            rig.bench.reopen();
            assert_eq!(get_of(&rig.bench, "a", b"one").unwrap(), b"first+", "{step}");
            sound_with(&rig.bench, &files(rig.dir.path()));
        }
    }
}

/// After the rename the record counts; the file that cannot be unlinked is counted too, until a rewrite, an eviction, an
/// unlink or the next start gets rid of it.
#[test]
fn a_legacy_file_that_stays_is_counted_and_retried() {
    type Retry = fn(&mut Rig) -> Option<&'static [u8]>;
    let retries: [(&str, Retry); 5] = [
        ("start", |r| {
            r.bench.reopen();
            Some(b"first+")
        }),
        ("rewrite", |r| {
            let at = r.bench.tenant_node(&tenant("a")).unwrap();
            put_in(&r.bench, at, b"one", b"third").unwrap();
            Some(b"third")
        }),
        ("unlink", |r| {
            let at = r.bench.tenant_node(&tenant("a")).unwrap();
            r.bench.unlink(at, b"one").unwrap();
            None
        }),
        ("rename", |r| {
            let at = r.bench.tenant_node(&tenant("a")).unwrap();
            r.bench.rename((at, b"one"), (at, b"elsewhere"), crate::os::RenameHow::Replace).unwrap();
            assert_eq!(get_of(&r.bench, "a", b"elsewhere").unwrap(), b"first+");
            None
        }),
        ("eviction", |r| {
            r.bench.evict_down_to(0, None, crate::store::room::Reason::Command);
            assert_eq!(r.bench.usage(None), (0, 0, r.bench.quota_bytes()));
            None
        }),
    ];
    for step in BETWEEN {
        for (what, retry) in retries {
            let mut rig = rig(Durability::Rename);
            let before = files(rig.dir.path());
            fail::cfg(step, "return").unwrap();
            let edited = append(&rig.bench, b"+");
            if step == "migrate.renamed" {
                edited.unwrap_err();
                append(&rig.bench, b"+").unwrap();
            } else {
                edited.expect("the record counts, whatever becomes of the file");
                assert_eq!(status(&rig.bench).failed_retirements, 1);
                assert!(rig.bench.status().last_error.unwrap().contains(step));
            }
            assert_eq!(files(rig.dir.path()), before, "{step}");
            assert_eq!(get_of(&rig.bench, "a", b"one").unwrap(), b"first+", "{step}");
            assert_eq!((status(&rig.bench).records, status(&rig.bench).shadows), (2, 1), "{step}");
            sound_with(&rig.bench, &before);
            if step == "retire.unlink" {
                // Nothing may lose its name while an older value would come back under it.
                let at = rig.bench.tenant_node(&tenant("a")).unwrap();
                rig.bench.unlink(at, b"one").unwrap_err();
                rig.bench
                    .evict(id_of(&rig.bench, "a", b"one"), crate::store::room::Reason::Command)
                    .unwrap_err();
                assert_eq!(get_of(&rig.bench, "a", b"one").unwrap(), b"first+");
            }
            fail::remove(step);
            let expected = retry(&mut rig);
            for _ in 0..2 {
                assert_eq!(get_of(&rig.bench, "a", b"one").as_deref(), expected, "{step}, {what}");
                assert_eq!(status(&rig.bench).shadows, 0, "{step}, {what}");
                let left = files(rig.dir.path());
                assert!(left.len() < before.len());
                sound_with(&rig.bench, &left);
                rig.bench.reopen();
            }
        }
    }
}

/// A replacement that fails before its rename leaves the legacy file, and after it the new value.
#[test]
fn a_replacement_that_fails_leaves_the_old_value_or_the_new_one() {
    let steps = [
        ("publish.metadata", b"first".as_slice()),
        ("publish.rename", b"first"),
        ("publish.renamed", b"second"),
        ("retire.unlink", b"second"),
    ];
    for (step, expected) in steps {
        let mut rig = rig(Durability::Rename);
        let before = files(rig.dir.path());
        fail::cfg(step, "return").unwrap();
        let at = rig.bench.tenant_node(&tenant("a")).unwrap();
        assert_eq!(put_in(&rig.bench, at, b"one", b"second").is_ok(), step == "retire.unlink", "{step}");
        assert_eq!(get_of(&rig.bench, "a", b"one").unwrap(), expected, "{step}");
        assert_eq!(files(rig.dir.path()), before, "{step}");
        sound_with(&rig.bench, &before);
        fail::remove(step);
        for _ in 0..2 {
            rig.bench.reopen();
            assert_eq!(get_of(&rig.bench, "a", b"one").unwrap(), expected, "{step}");
            sound_with(&rig.bench, &files(rig.dir.path()));
        }
        assert_eq!(files(rig.dir.path()).len(), if expected == b"first" { 3 } else { 2 }, "{step}");
    }
}

/// Store and directory as they are at a step: what was visible survives the crash.
fn crashed_at(rig: &Rig, step: &'static str, run: impl FnOnce(&Store)) -> TempDir {
    crashed_after(rig, step, 0, run)
}

fn crashed_after(rig: &Rig, step: &'static str, times_before: usize, run: impl FnOnce(&Store)) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (store, legacy, to) = (rig.bench.root(), rig.dir.path().to_owned(), dir.path().to_owned());
    let seen = AtomicUsize::new(0);
    let copy = move || {
        if seen.fetch_add(1, Ordering::SeqCst) != times_before {
            return;
        }
        for (from, name) in [(&store, "store"), (&legacy, "legacy")] {
            let done = Command::new("cp").arg("-a").args([from, &to.join(name)]).output().unwrap();
            let said = String::from_utf8_lossy(&done.stderr);
            // Another thread of a removal may go on meanwhile.
            let deleted = |line: &str| line.contains("/data/.trash/") || line.contains("No such file");
            assert!(done.status.success() || said.lines().all(deleted), "{said}");
        }
    };
    fail::cfg_callback(step, copy).unwrap();
    run(&rig.bench);
    fail::remove(step);
    assert!(dir.path().join("store").exists(), "{step} was not met");
    // The note is about where the directory was.
    fs::write(
        dir.path().join("store/attached"),
        dir.path().join("legacy/file_per_key_dir").as_os_str().as_encoded_bytes(),
    )
    .unwrap();
    dir
}

fn open_crashed(dir: &TempDir, pending: &[Pending]) -> Arc<Store> {
    open_pending(&dir.path().join("store"), &attaching(&dir.path().join("legacy"), &[]), pending).unwrap()
}

#[test]
fn a_crash_at_any_step_of_a_migration_leaves_one_value_and_no_rest() {
    for step in BEFORE.into_iter().chain(BETWEEN).chain(["retire.unlinked"]) {
        for durability in DURABILITIES {
            let rig = rig(durability);
            let dir = crashed_at(&rig, step, |store| {
                store.migrate(id_of(store, "a", b"one")).unwrap();
            });
            let moved = !BEFORE.contains(&step);
            let store = open_crashed(&dir, &[]);
            assert_eq!(get_of(&store, "a", b"one").unwrap(), b"first", "{step}");
            let now = status(&store);
            assert_eq!((now.records, now.shadows), (if moved { 2 } else { 3 }, 0), "{step}");
            let left = files(&dir.path().join("legacy"));
            assert_eq!(left.len(), if moved { 2 } else { 3 }, "{step}: no copy is left behind another");
            sound_with(&store, &left);
            assert_eq!(of(&store, "a"), [&b"one"[..], b"sub", b"sub/two"]);
        }
    }
}

/// Eviction of everything, in the middle of a transaction, leaves the pair of that transaction.
#[test]
fn eviction_leaves_the_pair_of_a_running_transaction() {
    let replace: fn(&Arc<Store>) = |s| {
        let at = s.tenant_node(&tenant("a")).unwrap();
        put_in(s, at, b"one", b"second").unwrap();
    };
    let migrate: fn(&Arc<Store>) = |s| s.migrate(id_of(s, "a", b"one")).unwrap();
    for (step, run) in [("publish.sync", replace), ("migrate.reserve", migrate)] {
        let rig = rig(Durability::Fsync);
        let path = Layout::Legacy.path(&StorageKey::new(&b"a\0one"[..]).unwrap()).unwrap();
        let (store, path, met) = (Arc::clone(&rig.bench), rig.dir.at(&path), Arc::new(AtomicUsize::new(0)));
        let evict = {
            let met = Arc::clone(&met);
            move || {
                store.evict_down_to(0, None, crate::store::room::Reason::Command);
                met.store(1 + usize::from(path.exists()), Ordering::SeqCst);
            }
        };
        fail::cfg_callback(step, evict).unwrap();
        run(&rig.bench);
        fail::remove(step);
        assert_eq!(met.load(Ordering::SeqCst), 2, "{step}: the legacy file was evicted");
        assert_eq!(rig.bench.usage(None).1, 1, "{step}: everything else went");
        assert!(get_of(&rig.bench, "a", b"one").is_some(), "{step}");
        sound_with(&rig.bench, &files(rig.dir.path()));
    }
}

/// Of several files of a key the one that counts goes last: what is cut short brings no older value up.
#[test]
fn a_crash_in_an_unlink_brings_no_older_copy_up() {
    let remove: fn(&Store) = |s| s.unlink(default_dir(s), b"k").unwrap();
    let evict: fn(&Store) = |s| {
        s.evict(id_of(s, "default", b"k"), crate::store::room::Reason::Command).unwrap();
    };
    let replace_and_evict: fn(&Store) = |s| {
        fail::cfg("retire.begin", "return").unwrap();
        s.migrate(id_of(s, "default", b"k")).unwrap();
        fail::remove("retire.begin");
        s.evict(id_of(s, "default", b"k"), crate::store::room::Reason::Command).unwrap();
    };
    for (what, run) in [("unlink", remove), ("evict", evict), ("replace and evict", replace_and_evict)] {
        for times_before in 0..2 {
            let dir = Written::new();
            dir.record(Layout::Legacy, b"default\0k", b"newer");
            dir.record(Layout::Legacy, b"k", b"older");
            let bench = Bench::new(attaching(dir.path(), &[]));
            let rig = Rig { bench, dir, _scenario: FailScenario::setup() };
            let crashed = crashed_after(&rig, "retire.unlinked", times_before, run);
            let store = open_crashed(&crashed, &[]);
            let found = get_of(&store, "default", b"k");
            assert_ne!(found.as_deref(), Some(&b"older"[..]), "{what}, after {times_before}");
            sound_with(&store, &files(&crashed.path().join("legacy")));
            drop(store);
            assert_eq!(get_of(&rig.bench, "default", b"k"), None);
            assert!(files(rig.dir.path()).is_empty());
        }
    }
}

/// A removal in whose middle the process ends is finished by the next, and what it had still to take has no name.
#[test]
fn a_crash_in_a_removal_brings_no_legacy_value_back() {
    let steps = [
        "removal.hide",
        "removal.legacy",
        "retire.unlinked",
        "removal.verify",
        "removal.sync",
        "removal.counters",
    ];
    for removal in [of_tenant("a", 1), global(1)] {
        for step in steps {
            let rig = rig(Durability::Rename);
            let dir = crashed_at(&rig, step, |store| store.remove(&removal).unwrap());
            let store = open_crashed(&dir, std::slice::from_ref(&removal));
            assert_eq!(of(&store, "a"), [b""; 0], "{step}");
            store.remove(&removal).unwrap();
            store.open_scope(&removal.scope, removal.generation).unwrap();
            let left = files(&dir.path().join("legacy"));
            assert_eq!(left.len(), usize::from(removal == of_tenant("a", 1)), "{step}");
            sound_with(&store, &left);
            drop(store);
            let store = open_crashed(&dir, &[]);
            assert_eq!(of(&store, "a"), [b""; 0], "{step}");
            let b = get_of(&store, "b", b"one");
            assert_eq!(b.is_some(), removal != global(1), "{step}");
        }
    }
}

/// A step of a removal that fails leaves the scope closed and counted, and can be repeated.
#[test]
fn a_removal_that_cannot_unlink_a_legacy_file_acknowledges_nothing() {
    for step in ["removal.legacy", "retire.unlink", "legacy.open", "legacy.list", "legacy.locate"] {
        let rig = rig(Durability::Rename);
        let (removal, counted) = (of_tenant("a", 1), super::removal::status_of(&rig.bench, "a"));
        fail::cfg(step, "return").unwrap();
        let e = rig.bench.remove(&removal).expect_err(step);
        assert!(e.to_string().contains(step) && e.to_string().contains("file_per_key_dir"), "{step}: {e}");
        rig.bench.note_removal_failed(&removal.scope, removal.generation, &e);
        let now = super::removal::status_of(&rig.bench, "a");
        assert_eq!((now.1, now.2, now.3), ("failed", counted.2, counted.3), "{step}");
        assert!(!rig.bench.storage().applied().covers(&removal.scope, removal.generation));
        fail::remove(step);
        assert_eq!(of(&rig.bench, "a"), [b""; 0]);
        rig.bench.remove(&removal).unwrap();
        rig.bench.open_scope(&removal.scope, removal.generation).unwrap();
        assert_eq!(files(rig.dir.path()).len(), 1);
        sound_with(&rig.bench, &files(rig.dir.path()));
    }
}

/// Whatever of a start fails, nothing is served, the file is named, and the next start does it all again.
#[test]
fn a_start_that_fails_anywhere_in_the_directory_can_be_repeated_in_full() {
    let steps = [
        "attach.note",
        "legacy.list",
        "legacy.open",
        "legacy.locate",
        "attach.record",
        "attach.retire",
        "retire.unlink",
        "recover.commit",
    ];
    for step in steps {
        for action in ["return", "1*off->return"] {
            let dir = written();
            let mut bench = Bench::new(StoreSettings::default());
            let scenario = FailScenario::setup();
            let a = bench.make_tenant(b"a", 0o755, 0, 0).unwrap();
            for name in [&b"one"[..], b"more"] {
                dir.record(Layout::Legacy, &[b"a\0", name].concat(), b"older");
                put_in(&bench, a, name, b"newer").unwrap();
            }
            bench.close().unwrap();
            bench.drop_store();
            let settings = attaching(dir.path(), &[]);
            fail::cfg(step, action).unwrap();
            for _ in 0..2 {
                match open_when_free(&bench.root(), &settings) {
                    Err(e) => assert!(e.to_string().contains(step), "{step}: {e}"),
                    // A step that comes once has passed.
                    Ok(_) => assert_ne!(action, "return", "{step}"),
                }
            }
            fail::remove(step);
            bench.settings = settings;
            bench.open();
            assert_eq!(get_of(&bench, "a", b"one").unwrap(), b"newer", "{step}");
            assert_eq!(get_of(&bench, "a", b"more").unwrap(), b"newer", "{step}");
            assert_eq!(get_of(&bench, "a", b"sub/two").unwrap(), [7; 10_000], "{step}");
            let left = files(dir.path());
            assert_eq!((status(&bench).records, left.len()), (2, 2), "{step}");
            sound_with(&bench, &left);
            drop(scenario);
        }
    }
}

/// Without durable names a loss of power could take both copies; so the record is made durable before the file goes.
#[test]
fn a_durable_migration_syncs_the_record_before_the_file_goes() {
    let rig = rig(Durability::Fsync);
    let dir = crashed_at(&rig, "retire.begin", |store| store.migrate(id_of(store, "a", b"one")).unwrap());
    assert_eq!(files(&dir.path().join("legacy")).len(), 3, "the file is there until the record is durable");
    assert_eq!(records(&dir.path().join("store")).len(), 1);
}
