//! Every named step of a removal: failing while the process lives, crashing, and stalling while others go on.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use fail::FailScenario;

use super::removal::{fill, global, of, of_tenant, open_pending, status_of};
use super::*;
use crate::ledger::Pending;
use crate::os::RenameHow;

/// The steps of [`Store::remove`], in order.
const STEPS: [&str; 11] = [
    "removal.fence",
    "removal.drain",
    "removal.hide",
    "removal.trash",
    "removal.trashed",
    "removal.delete",
    "removal.verify",
    "removal.sync",
    "removal.epoch",
    "ledger.marker",
    "removal.counters",
];

struct Rig {
    bench: Bench,
    _scenario: FailScenario<'static>,
}

fn rig() -> Rig {
    let bench = Bench::new(StoreSettings::default());
    let scenario = FailScenario::setup();
    fill(&bench, "a");
    fill(&bench, "b");
    Rig { bench, _scenario: scenario }
}

fn removals() -> [Pending; 2] {
    [of_tenant("a", 1), global(1)]
}

/// What must hold once a removal went through, however long it took.
#[track_caller]
fn assert_removed(store: &Arc<Store>, removal: &Pending, what: &str) {
    store.open_scope(&removal.scope, removal.generation).unwrap();
    let b_goes = removal.scope.includes_tenant(&tenant("b"));
    assert_eq!(of(store, "a"), [b""; 0], "{what}");
    assert_eq!(status_of(store, "a"), (1, "ready", 0, 0), "{what}");
    assert_eq!(of(store, "b").len(), if b_goes { 0 } else { 6 }, "{what}");
    assert_eq!(names_in(&store.path().join("data/.trash")), [""; 0], "{what}");
    assert_eq!(names_in(&store.path().join("data/t/a")), ["1"], "{what}");
    assert_sound(store);
    put_in(store, store.tenant_node(&tenant("a")).unwrap(), b"new", b"value").expect(what);
    assert_sound(store);
}

#[test]
fn a_failed_step_leaves_the_scope_closed_and_counted_and_can_be_repeated() {
    for removal in removals() {
        for step in STEPS {
            let rig = rig();
            let store = &rig.bench;
            let (a, b) = (status_of(store, "a"), status_of(store, "b"));
            fail::cfg(step, "return").unwrap();
            let e = store.remove(&removal).expect_err(step);
            assert!(e.to_string().contains(step), "{step}: {e}");
            store.note_removal_failed(&removal.scope, removal.generation, &e);
            let applied = store.storage().applied().covers(&removal.scope, removal.generation);
            assert_eq!(applied, step == "removal.counters", "{step}");
            // No false zero: what was counted is counted until all of it is gone for good.
            let now = status_of(store, "a");
            assert_eq!((now.2, now.3), (a.2, a.3), "{step}");
            assert_eq!(now.1, "failed", "{step}");
            if !["removal.fence", "removal.drain", "removal.hide"].contains(&step) {
                assert_eq!(of(store, "a"), [b""; 0], "{step}: a removed key is in sight");
            }
            if ["removal.trash", "removal.trashed", "removal.delete"].contains(&step) {
                let on_disk = disk_bytes(store.path()) + bytes_below(&store.path().join("data/.trash"));
                assert_eq!(store.usage(None).0, on_disk, "{step}");
            }
            let dir = store.tenant_node(&tenant("a")).unwrap();
            assert_eq!(put_in(store, dir, b"k", b"v").unwrap_err().kind(), Kind::Busy, "{step}");
            assert_eq!(store.check(), [""; 0], "{step}");
            if removal == of_tenant("a", 1) {
                assert_eq!(status_of(store, "b"), b, "{step}");
            }
            fail::remove(step);
            store.remove(&removal).expect(step);
            assert_removed(store, &removal, step);
        }
    }
}

/// A copy of the store's directory as it is at a step: what was visible survives the crash.
fn crashed_at(rig: &Rig, step: &'static str, times_before: usize, removal: &Pending) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (rig.bench.root(), dir.path().join("store"));
    let (seen, copied) = (std::sync::atomic::AtomicUsize::new(0), AtomicBool::new(false));
    let copy = move || {
        if seen.fetch_add(1, Ordering::SeqCst) == times_before && !copied.swap(true, Ordering::SeqCst) {
            let done =
                Command::new("cp").arg("-a").arg("--sparse=never").args([&from, &to]).output().unwrap();
            // Another thread of the removal may go on deleting meanwhile; nothing else is missing.
            let said = String::from_utf8_lossy(&done.stderr);
            let only_deleted = said.lines().all(|line| line.contains("/data/.trash/"));
            assert!(done.status.success() || step == "removal.delete" && only_deleted, "{said}");
        }
    };
    fail::cfg_callback(step, copy).unwrap();
    rig.bench.remove(removal).unwrap();
    fail::remove(step);
    dir
}

#[test]
fn a_crash_at_any_step_is_followed_by_the_same_removal() {
    for removal in removals() {
        for (step, times_before) in STEPS.into_iter().map(|s| (s, 0)).chain([("removal.delete", 3)]) {
            let rig = rig();
            let dir = crashed_at(&rig, step, times_before, &removal);
            let store = open_pending(&dir.path().join("store"), std::slice::from_ref(&removal));
            assert_eq!(of(&store, "a"), [b""; 0], "{step}: nothing of a pending scope is recovered");
            assert_eq!(status_of(&store, "a").1, "removing", "{step}");
            // Where the marker is there, the agent does not even ask for this.
            store.remove(&removal).expect(step);
            assert_removed(&store, &removal, step);
        }
    }
}

/// The same between the marker and the counters of a logical one: what is in the trash is counted until it is deleted.
#[test]
fn a_logical_removal_that_fails_at_its_counters_goes_on_counting_the_trash() {
    let rig = rig();
    let store = &rig.bench;
    let removal = Pending { mode: crate::scope::Mode::Logical, ..of_tenant("a", 1) };
    fail::cfg("removal.counters", "return").unwrap();
    store.remove(&removal).unwrap_err();
    fail::remove("removal.counters");
    assert!(store.storage().applied().covers(&removal.scope, removal.generation));
    // The agent has only the acknowledgement left to make.
    store.open_scope(&removal.scope, removal.generation).unwrap();
    assert_eq!(status_of(store, "a"), (1, "ready", 0, 0));
    let in_trash = bytes_below(&store.path().join("data/.trash"));
    assert!(in_trash > 0);
    assert_eq!(store.usage(None).0, disk_bytes(store.path()) + in_trash);
    assert_eq!(store.check(), [""; 0]);
    store.collect_trash().unwrap();
    assert_sound(store);
}

/// A disk without a free block has no room for the trash: what a removal takes is deleted where it is.
#[test]
fn a_removal_needs_no_room_for_the_trash() {
    let logical = Pending { mode: crate::scope::Mode::Logical, ..of_tenant("a", 1) };
    for removal in removals().into_iter().chain([logical]) {
        let rig = rig();
        let store = &rig.bench;
        let stranger = store.path().join("data/t/a/0/notes");
        if removal.scope == global(1).scope {
            std::fs::write(&stranger, "mine").unwrap();
        }
        fail::cfg("removal.trash", "return(enospc)").unwrap();
        store.remove(&removal).unwrap();
        fail::remove("removal.trash");
        assert_removed(store, &removal, &format!("{removal:?}"));
        let kept = usize::from(removal.scope == global(1).scope);
        assert_eq!(names_in(&store.path().join("data/.quarantine")).len(), kept);
    }
}

/// A logical removal leaves its trash for later, unless the disk has no block for the directory that comes next.
#[test]
fn a_logical_removal_deletes_at_once_what_the_next_epoch_needs() {
    let rig = rig();
    let store = &rig.bench;
    let removal = Pending { mode: crate::scope::Mode::Logical, ..of_tenant("a", 1) };
    fail::cfg("removal.epoch", "1*return(enospc)->off").unwrap();
    store.remove(&removal).unwrap();
    assert_removed(store, &removal, "logical");
}

/// Another error of the trash is none of a full disk: nothing is deleted out of turn.
#[test]
fn only_a_full_disk_has_records_deleted_where_they_are() {
    let rig = rig();
    let store = &rig.bench;
    fail::cfg("removal.trash", "return").unwrap();
    store.remove(&of_tenant("a", 1)).unwrap_err();
    assert_eq!(names_in(&store.path().join("data/t/a")), ["0"]);
    assert_ne!(names_in(&store.path().join("data/t/a/0")), [""; 0]);
}

/// An attempt that gets nowhere leaves no directory of its generation behind.
#[test]
fn failed_attempts_leave_no_empty_directories() {
    let rig = rig();
    let store = &rig.bench;
    let trash = store.path().join("data/.trash");
    std::fs::create_dir(trash.join("1")).unwrap();
    fail::cfg("removal.trash", "return").unwrap();
    for generation in 2..5 {
        store.remove(&of_tenant("a", generation)).unwrap_err();
    }
    fail::remove("removal.trash");
    store.remove(&of_tenant("a", 5)).unwrap();
    assert_eq!(names_in(&trash), [""; 0]);
}

/// Some records could not be deleted: nothing is acknowledged, zeroed or forgotten.
#[test]
fn a_partial_deletion_is_counted_in_full_and_repeated() {
    let rig = rig();
    let before = status_of(&rig.bench, "a");
    fail::cfg("removal.delete", "2*off->1*return->off").unwrap();
    rig.bench.remove(&of_tenant("a", 1)).unwrap_err();
    assert!(!names_in(&rig.bench.root().join("data/.trash")).is_empty());
    let now = status_of(&rig.bench, "a");
    assert_eq!((now.2, now.3), (before.2, before.3));
    assert!(!rig.bench.storage().applied().covers(&of_tenant("a", 1).scope, of_tenant("a", 1).generation));
    rig.bench.remove(&of_tenant("a", 1)).unwrap();
    assert_removed(&rig.bench, &of_tenant("a", 1), "after a partial deletion");
}

/// The disk itself refuses one record; the error names it.
#[test]
fn a_record_that_cannot_be_deleted_is_named() {
    let rig = rig();
    put(&rig.bench, b"stubborn", b"v").unwrap();
    if !rig.bench.set_immutable(b"stubborn", true) {
        return;
    }
    let removal = Pending { scope: crate::scope::Scope::Tenant(tenant("default")), ..of_tenant("a", 1) };
    let e = rig.bench.remove(&removal).unwrap_err();
    let name = rig.bench.record(b"stubborn").file_name().unwrap().to_string_lossy().into_owned();
    let at = e.to_string();
    assert!(at.contains("data/.trash/1/default@0.") && at.contains(&name), "{at}");
    let root = rig.bench.root().display().to_string();
    for advice in [root.as_str(), "lsattr", "chattr -i", "fencefs retry"] {
        assert!(at.contains(advice), "{at}");
    }
    assert_eq!(e.errno(), libc::EPERM);
    let trashed = find(&rig.bench.root().join("data/.trash"), &name);
    assert!(Command::new("chattr").arg("-i").arg(trashed).status().unwrap().success());
    rig.bench.remove(&removal).unwrap();
    assert_eq!(names_in(&rig.bench.root().join("data/.trash")), [""; 0]);
}

fn find(dir: &Path, name: &str) -> PathBuf {
    let found = Command::new("find").arg(dir).args(["-name", name]).output().unwrap();
    PathBuf::from(String::from_utf8(found.stdout).unwrap().trim())
}

/// Stalls whoever comes to a step, until it is told to go on.
struct Stall {
    step: &'static str,
    came: mpsc::Receiver<()>,
    go_on: mpsc::Sender<()>,
}

impl Stall {
    fn at(step: &'static str) -> Stall {
        let (tell, came) = mpsc::channel();
        let (go_on, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let stall = move || {
            if tell.send(()).is_ok() {
                // The end of the test lets everybody go.
                wait.lock().recv().unwrap_or_default();
            }
        };
        fail::cfg_callback(step, stall).unwrap();
        Stall { step, came, go_on }
    }

    fn release(self) {
        fail::remove(self.step);
        drop(self.came);
        drop(self.go_on);
    }
}

/// A write that holds its lease finishes first, and its value goes with the rest.
#[test]
fn a_commit_in_progress_finishes_before_anything_is_deleted() {
    let rig = rig();
    let store = Arc::clone(&rig.bench);
    let a = store.tenant_node(&tenant("a")).unwrap();
    let publishing = Stall::at("publish.rename");
    let writer = std::thread::spawn({
        let store = Arc::clone(&store);
        move || put_in(&store, a, b"in progress", b"v").map(drop)
    });
    publishing.came.recv().unwrap();
    let trashed = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&trashed);
    fail::cfg_callback("removal.trash", move || seen.store(true, Ordering::SeqCst)).unwrap();
    let remover = std::thread::spawn({
        let store = Arc::clone(&store);
        move || store.remove(&of_tenant("a", 1))
    });
    // The fence closes at once; the removal goes no further while the lease is held.
    while stage(&store, a, b"later", b"v").is_ok() {
        std::thread::yield_now();
    }
    assert!(!trashed.load(Ordering::SeqCst), "trashed below a commit in progress");
    publishing.release();
    writer.join().unwrap().unwrap();
    remover.join().unwrap().unwrap();
    assert!(trashed.load(Ordering::SeqCst));
    assert_removed(&store, &of_tenant("a", 1), "after a commit in progress");
}

/// While one tenant's records are being deleted, the others write, read, rename, evict and recount.
#[test]
fn other_tenants_go_on_during_a_removal() {
    for step in
        ["removal.drain", "removal.trash", "removal.hide", "removal.delete", "removal.verify", "removal.sync"]
    {
        let rig = rig();
        let store = Arc::clone(&rig.bench);
        let b = store.tenant_node(&tenant("b")).unwrap();
        let stall = Stall::at(step);
        let remover = std::thread::spawn({
            let store = Arc::clone(&store);
            move || store.remove(&of_tenant("a", 1))
        });
        stall.came.recv().unwrap();
        put_in(&store, b, b"new", &[3; 9000]).expect(step);
        store.rename((b, b"new"), (b, b"renamed"), RenameHow::Replace).expect(step);
        let id = store.child(b, b"renamed").unwrap();
        assert_eq!(read(&store, id).unwrap(), [3; 9000], "{step}");
        store.unlink(b, b"link").expect(step);
        store.truncate(id, 10).expect(step);
        assert!(store.evict(id, crate::store::room::Reason::Command).expect(step), "{step}");
        assert_eq!(status_of(&store, "b").1, "ready", "{step}");
        let a = store.tenant_node(&tenant("a")).unwrap();
        assert_eq!(put_in(&store, a, b"k", b"v").unwrap_err().kind(), Kind::Busy, "{step}");
        assert_eq!(store.check(), [""; 0], "{step}");
        stall.release();
        remover.join().unwrap().unwrap();
        store.open_scope(&of_tenant("a", 1).scope, of_tenant("a", 1).generation).unwrap();
        assert_sound(&store);
    }
}

/// The quota fills up while another tenant's removal hangs: what must go goes, from those that are open.
#[test]
fn eviction_goes_on_during_another_tenants_stalled_removal() {
    let mut settings = StoreSettings::default();
    settings.quota.size_bytes = Some(1 << 20);
    let bench = Bench::new(settings);
    let _scenario = FailScenario::setup();
    let store = Arc::clone(&bench);
    fill(&store, "a");
    let b = store.make_tenant(b"b", 0o755, 0, 0).unwrap();
    let a_before = status_of(&store, "a");
    let stall = Stall::at("removal.delete");
    let remover = std::thread::spawn({
        let store = Arc::clone(&store);
        move || store.remove(&of_tenant("a", 1))
    });
    stall.came.recv().unwrap();
    for n in 0..40_u8 {
        put_in(&store, b, &[b'k', n], &[n; 65536]).unwrap();
    }
    assert!(store.counters.evicted_keys() >= 20, "{}", store.counters.evicted_keys());
    assert_eq!(read(&store, store.child(b, &[b'k', 39]).unwrap()).unwrap(), [39; 65536]);
    let a = status_of(&store, "a");
    assert_eq!((a.1, a.2, a.3), ("removing", a_before.2, a_before.3), "eviction took what is being removed");
    assert_eq!(store.check(), [""; 0]);
    stall.release();
    remover.join().unwrap().unwrap();
    store.open_scope(&of_tenant("a", 1).scope, of_tenant("a", 1).generation).unwrap();
    assert_sound(&store);
}

/// A store that is being closed does not wait for a long deletion; the next start goes on with it.
#[test]
fn a_removal_ends_where_it_is_when_the_store_closes() {
    let mut rig = rig();
    let stall = Stall::at("removal.delete");
    let remover = std::thread::spawn({
        let store = Arc::clone(&rig.bench);
        move || store.remove(&of_tenant("a", 1)).map_err(|e| e.kind())
    });
    stall.came.recv().unwrap();
    rig.bench.stop_removals();
    stall.release();
    assert_eq!(remover.join().unwrap(), Err(Kind::Busy));
    rig.bench.drop_store();
    let store = open_pending(&rig.bench.root(), &[of_tenant("a", 1)]);
    store.remove(&of_tenant("a", 1)).unwrap();
    assert_removed(&store, &of_tenant("a", 1), "after a stop");
}

/// What is left, and how it comes to be there.
type Left = (&'static str, fn(&Path));

/// What is found when the removal looks again makes the attempt fail, whatever deletion said.
#[test]
fn what_is_left_when_a_removal_looks_again_is_no_success() {
    let left: [Left; 4] = [
        ("data/.trash/1/a@0.99", |root| {
            std::fs::create_dir_all(root.join("data/.trash/1/a@0.99")).unwrap();
        }),
        ("data/t/a/0", |root| std::fs::create_dir(root.join("data/t/a/0")).unwrap()),
        ("data/t/a/late", |root| std::fs::write(root.join("data/t/a/late"), "x").unwrap()),
        ("data/t/b/0", |root| std::fs::create_dir(root.join("data/t/b/0")).unwrap()),
    ];
    for (what, plant) in left {
        let rig = rig();
        let store = &rig.bench;
        let removal = if what.contains("/b/") { global(1) } else { of_tenant("a", 1) };
        let before = status_of(store, "a");
        let root = rig.bench.root();
        fail::cfg_callback("removal.verify", move || plant(&root)).unwrap();
        let e = store.remove(&removal).expect_err(what);
        fail::remove("removal.verify");
        assert_eq!(e.kind(), Kind::NotEmpty, "{what}: {e}");
        assert!(e.to_string().contains(what), "{what}: {e}");
        assert!(!store.storage().applied().covers(&removal.scope, removal.generation), "{what}");
        let now = status_of(store, "a");
        assert_eq!((now.1, now.2, now.3), ("removing", before.2, before.3), "{what}");
        store.remove(&removal).expect(what);
        assert_removed(store, &removal, what);
    }
}

/// The same of a value that was being written.
#[test]
fn a_staged_value_that_is_left_is_no_success() {
    let rig = rig();
    let store = &rig.bench;
    let removal = of_tenant("a", 1);
    let staged = stage(store, store.tenant_node(&tenant("a")).unwrap(), b"begun", b"before").unwrap();
    let staging = rig.bench.root().join("data/.staging");
    let name = names_in(&staging).pop().unwrap();
    let again = staging.join(&name);
    fail::cfg_callback("removal.verify", move || std::fs::write(&again, "left").unwrap()).unwrap();
    let e = store.remove(&removal).unwrap_err();
    fail::remove("removal.verify");
    assert_eq!(e.kind(), Kind::NotEmpty, "{e}");
    assert!(e.to_string().contains(&format!("data/.staging/{name}")), "{e}");
    assert!(!store.storage().applied().covers(&removal.scope, removal.generation));
    store.remove(&removal).unwrap();
    assert_removed(store, &removal, "with a staged value");
    drop(staged);
}
