//! A start that fails: nothing of it is served, the file is named, and the next one does it all again. A start or a
//! stop that is killed: the next one believes only what is so.

use std::fs::{self, File};
use std::process::Command;
use std::sync::atomic::Ordering;

use fail::FailScenario;

use super::*;
use crate::format::record::XATTR;
use crate::os;

/// Something to do for every step of a start.
struct Rig {
    bench: Bench,
    /// What is served once all is well.
    sound: BTreeMap<(String, Vec<u8>), Content>,
    _scenario: FailScenario<'static>,
}

impl Rig {
    fn new() -> Rig {
        let bench = Bench::new(StoreSettings::default());
        let scenario = FailScenario::setup();
        for n in 0..20 {
            put(&bench, format!("dir{n}/k").replace('/', "-").as_bytes(), &[n; 3000]).unwrap();
        }
        bench.make_dir(default_dir(&bench), b"dir", OWNER).unwrap();
        let sound = tree(&bench);
        Rig { bench, sound, _scenario: scenario }
    }

    /// A store that was killed: half a value in staging, a record that is none, one that was being edited, shards that
    /// are empty.
    fn killed() -> Rig {
        let mut rig = Rig::new();
        put(&rig.bench, b"bad", b"bad").unwrap();
        let edited = rig.bench.find_key(&tenant("default"), &key(b"dir3-k")).unwrap().unwrap();
        rig.bench.begin_edit(edited).unwrap().unwrap();
        rig.bench.drop_store();
        let root = rig.bench.root();
        fs::write(root.join("data/.staging/half.1"), "half").unwrap();
        assert!(os::xattr_remove(File::open(rig.bench.record(b"bad")).unwrap(), XATTR).unwrap());
        let epoch = root.join("data/t/default/0");
        let free = (0..256).map(|n| format!("{n:02x}")).find(|n| !epoch.join(n).exists()).unwrap();
        fs::create_dir_all(epoch.join(free).join("00")).unwrap();
        rig
    }

    fn open(&mut self) -> Result<()> {
        self.bench.store = Some(open_when_free(&self.bench.root(), &self.bench.settings)?);
        Ok(())
    }

    #[track_caller]
    fn is_whole(&self, step: &str) {
        assert_eq!(tree(&self.bench), self.sound, "{step}");
        self.bench.sound();
        let kept = names_in(&self.bench.root().join("data/.quarantine")).len();
        assert!(kept <= 1, "{step}: {kept} records in quarantine");
    }
}

#[test]
fn a_start_that_fails_names_the_file_and_can_be_repeated() {
    let steps: [(&str, &str); 8] = [
        ("recover.staging", "data/.staging/half.1"),
        ("recover.list", "data/t/default/0/"),
        ("recover.open", "data/t/default/0/"),
        ("recover.judge", "data/t/default/0/"),
        ("recover.quarantine", "data/t/default/0/"),
        ("recover.settle", "data/t/default/0/"),
        ("recover.prune", "data/t/default/0/"),
        ("recover.commit", ""),
    ];
    for (step, path) in steps {
        // At its first time, and in the middle.
        for action in ["return", "1*off->return", "1*return->off"] {
            let mut rig = Rig::killed();
            fail::cfg(step, action).unwrap();
            for again in 0..2 {
                match rig.open() {
                    Err(e) => {
                        let text = e.to_string();
                        assert!(text.contains(step) && text.contains(path), "{step}: {text}");
                    }
                    // A step that comes once has passed.
                    Ok(()) => assert!(action != "return" || again > 0, "{step} passes"),
                }
                rig.bench.drop_store();
            }
            fail::remove(step);
            rig.open().unwrap();
            rig.is_whole(step);
            rig.bench.reopen();
            assert_eq!(rig.bench.counters.quarantined.load(Ordering::Relaxed), 0, "{step}: counted twice");
            rig.is_whole(step);
        }
    }
}

#[test]
fn progress_only_grows() {
    let mut rig = Rig::killed();
    let mut told = Vec::new();
    let root = StoreRoot::lock(&rig.bench.root()).unwrap();
    let store = Store::open(root, &rig.bench.settings, &[], &mut |phase, n| {
        assert_eq!(phase, "records");
        told.push(n);
    });
    rig.bench.store = Some(store.unwrap());
    assert!(told.is_sorted() && told.last() == Some(&21), "{told:?}");
    rig.is_whole("progress");
}

/// What the disk held when an operation came to `step`, opened: whether a checkpoint told what it holds.
fn at_step(rig: &mut Rig, step: &str, operation: impl FnOnce(&mut Rig)) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (rig.bench.root(), dir.path().join("store"));
    let once = std::sync::Once::new();
    // The other thread of a walk may prune what is being copied, which cp reports; no sound record moves.
    let copy = move || {
        once.call_once(|| {
            let done = Command::new("cp").arg("-a").arg("--sparse=never").args([&from, &to]).output();
            assert!(done.unwrap().status.code().is_some());
        });
    };
    fail::cfg_callback(step, copy).unwrap();
    operation(rig);
    fail::remove(step);
    let store = open_when_free(&dir.path().join("store"), &rig.bench.settings).expect(step);
    assert_eq!(tree(&store), rig.sound, "{step}");
    assert_sound(&store);
    store.counters.scanned.load(Ordering::Relaxed) == 0
}

#[test]
fn a_kill_at_any_step_of_a_stop_or_a_start_is_believed_for_what_it_is() {
    let close = |rig: &mut Rig| rig.bench.close().unwrap();
    for (step, believed) in [
        ("checkpoint.begin", false),
        ("checkpoint.write", false),
        ("checkpoint.mark", false),
        ("checkpoint.marked", true),
    ] {
        assert_eq!(at_step(&mut Rig::new(), step, close), believed, "{step}");
    }
    for (step, believed) in [("checkpoint.unmark", true), ("checkpoint.unmarked", false)] {
        let mut rig = Rig::new();
        rig.bench.close().unwrap();
        rig.bench.drop_store();
        assert_eq!(at_step(&mut rig, step, |rig| rig.open().unwrap()), believed, "{step}");
        // A start that went on from there has no mark, whatever it did since.
        put(&rig.bench, b"since", b"since").unwrap();
        rig.sound = tree(&rig.bench);
        rig.bench.reopen();
        rig.is_whole(step);
    }
    for step in ["recover.staging", "recover.quarantine", "recover.settle", "recover.prune", "recover.commit"]
    {
        assert!(!at_step(&mut Rig::killed(), step, |rig| rig.open().unwrap()), "{step}");
    }
}

#[test]
fn a_stop_that_fails_leaves_nothing_to_believe() {
    for step in ["checkpoint.begin", "checkpoint.write", "checkpoint.mark"] {
        let mut rig = Rig::new();
        fail::cfg(step, "return").unwrap();
        assert!(rig.bench.close().unwrap_err().to_string().contains(step));
        fail::remove(step);
        rig.bench.reopen();
        assert_eq!(rig.bench.counters.scanned.load(Ordering::Relaxed), 21, "{step}");
        rig.is_whole(step);
    }
}

/// A mark that cannot be taken away would outlive what it vouches for: the store stays shut.
#[test]
fn a_start_that_cannot_take_the_mark_away_is_refused() {
    for step in ["checkpoint.unmark", "checkpoint.unmarked"] {
        let mut rig = Rig::new();
        rig.bench.close().unwrap();
        rig.bench.drop_store();
        fail::cfg(step, "return").unwrap();
        assert!(rig.open().unwrap_err().to_string().contains(step));
        fail::remove(step);
        rig.open().unwrap();
        rig.is_whole(step);
    }
}
