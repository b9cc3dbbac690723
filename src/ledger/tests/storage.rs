//! What a storage keeps of itself, and how copies of it are found out.

use super::*;
use crate::config::limits;
use crate::key::Epoch;

/// A storage with a file of its own, whose ledger is elsewhere.
struct Disk {
    _dir: TempDir,
    path: PathBuf,
    identity: Uuid,
}

impl Disk {
    fn new() -> Disk {
        let (dir, identity) = (tempfile::tempdir().unwrap(), Uuid::new_v4());
        let path = dir.path().join("ledger.redb");
        found(&path, identity);
        Disk { _dir: dir, path, identity }
    }

    fn start(&self) -> StorageFile {
        StorageFile::open(open(&self.path, self.identity).unwrap()).unwrap()
    }

    fn copy(&self) -> Disk {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.redb");
        std::fs::copy(&self.path, &path).unwrap();
        Disk { _dir: dir, path, identity: self.identity }
    }
}

#[test]
fn markers_are_durable_and_never_go_back() {
    let disk = Disk::new();
    let (a, b) = (tenant("a"), tenant("b"));
    let name = |scope: &Scope| scope.tenant().unwrap().clone();
    {
        let file = disk.start();
        assert_eq!(*file.applied(), Applied::default());
        file.mark(&a, Generation(3)).unwrap();
        file.mark(&Scope::Global, Generation(5)).unwrap();
        file.mark(&b, Generation(7)).unwrap();
        file.mark(&b, Generation(6)).unwrap();
    }
    let file = disk.start();
    assert_eq!(file.identity(), disk.identity);
    assert_eq!(file.applied().global, Generation(5));
    assert_eq!(file.applied().of(&a), Generation(3));
    assert_eq!(file.applied().of(&b), Generation(7));
    assert_eq!((file.epoch_of(&name(&a)), file.epoch_of(&name(&b))), (Epoch(5), Epoch(7)));
    assert!(file.covers(&a, Generation(5)) && !file.covers(&a, Generation(6)));
    assert!(file.covers(&Scope::Global, Generation(5)) && !file.covers(&Scope::Global, Generation(6)));
}

#[test]
fn tokens_roll_at_every_start() {
    let (bench, disk) = (Bench::new(), Disk::new());
    let ledger = bench.ledger();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let file = disk.start();
        file.register_with(&ledger).unwrap();
        assert_eq!(file.known_tokens().len(), 1);
        assert!(!seen.contains(&file.known_tokens()[0]));
        seen.extend(file.known_tokens());
        file.register_with(&ledger).unwrap();
        assert!(!seen.contains(&file.known_tokens()[0]), "also within one start");
        seen.extend(file.known_tokens());
    }
}

#[test]
fn a_copied_disk_is_found_out() {
    let (bench, disk) = (Bench::new(), Disk::new());
    let ledger = bench.ledger();
    disk.start().register_with(&ledger).unwrap();
    let copy = disk.copy();
    disk.start().register_with(&ledger).unwrap();
    assert_eq!(kind(copy.start().register_with(&ledger)), Kind::Stale);
    disk.start().register_with(&ledger).unwrap();
    // The copy that comes first is the storage: then the other one is found out.
    let copy = disk.copy();
    copy.start().register_with(&ledger).unwrap();
    assert_eq!(kind(disk.start().register_with(&ledger)), Kind::Stale);
    copy.start().register_with(&ledger).unwrap();
}

#[test]
fn a_lost_answer_locks_no_storage_out() {
    let (bench, disk) = (Bench::new(), Disk::new());
    let ledger = bench.ledger();
    for happened in [true, false, true, true, false, false] {
        let file = disk.start();
        let next = file.prepare().unwrap();
        if happened {
            ledger.register(file.identity(), &file.known_tokens(), next).unwrap();
        }
    }
    let copy = disk.copy();
    let file = disk.start();
    assert!(file.known_tokens().len() > 1);
    file.register_with(&ledger).unwrap();
    assert_eq!(file.known_tokens().len(), 1);
    assert_eq!(kind(copy.start().register_with(&ledger)), Kind::Stale);
}

#[test]
fn tokens_without_an_answer_are_bounded() {
    let disk = Disk::new();
    for _ in 0..limits::OPEN_TOKENS + 2 {
        let file = disk.start();
        let next = file.prepare().unwrap();
        assert_eq!(file.prepare().unwrap(), next, "one start offers one token until it has an answer");
    }
    assert_eq!(disk.start().known_tokens().len(), limits::OPEN_TOKENS);
}

/// What is recorded in a file that has no name any more is forgotten by the next start, and another file of its name may
/// be an older one: neither is answered as recorded. The very file put back, all is as it was.
#[test]
fn a_file_that_was_taken_away_takes_no_more_records() {
    for copied in [false, true] {
        let bench = Bench::new();
        let ledger = bench.ledger();
        ledger.register(bench.storage, &[], Uuid::new_v4()).unwrap();
        ledger.submit(&tenant("a"), Mode::Physical, Some("kept")).unwrap();
        let file = StorageFile::open(bench.database()).unwrap();
        let (path, aside) = (bench.path(), bench.dir.path().join("aside"));
        std::fs::rename(&path, &aside).unwrap();
        if copied {
            std::fs::copy(&aside, &path).unwrap();
        }
        let refusals = [
            ledger.submit(&tenant("b"), Mode::Physical, None).map(drop),
            // The same id again is an answer too.
            ledger.submit(&tenant("a"), Mode::Physical, Some("kept")).map(drop),
            file.mark(&tenant("a"), Generation(1)),
            ledger.ack(bench.storage, &tenant("a"), Generation(1)),
        ];
        for refused in refusals {
            let e = refused.unwrap_err();
            assert_eq!(e.kind(), Kind::Corrupt, "{e}");
            let said = e.to_string();
            assert!(said.contains(path.to_str().unwrap()) && said.contains("taken away"), "{said}");
        }
        assert!(!file.covers(&tenant("a"), Generation(1)));
        if copied {
            let untouched = std::fs::read(&path).unwrap();
            assert!(ledger.submit(&tenant("b"), Mode::Physical, None).is_err());
            assert_eq!(std::fs::read(&path).unwrap(), untouched, "the copy was written to");
        }
        std::fs::rename(&aside, &path).unwrap();
        assert_eq!(generation_of(ledger.submit(&tenant("b"), Mode::Physical, None)), Generation(2));
        file.mark(&tenant("a"), Generation(1)).unwrap();
        ledger.ack(bench.storage, &tenant("a"), Generation(1)).unwrap();
    }
}

/// Nor is another file taken for it when it is opened anew after an error of the disk.
#[test]
fn a_file_is_not_exchanged_by_an_error_of_the_disk() {
    let bench = Bench::new();
    let ledger = bench.ledger();
    ledger.register(bench.storage, &[], Uuid::new_v4()).unwrap();
    let (path, aside) = (bench.path(), bench.dir.path().join("aside"));
    std::fs::copy(&path, &aside).unwrap();
    bench.database().faults.plan(0, 1, libc::EIO);
    ledger.submit(&tenant("a"), Mode::Physical, None).unwrap_err();
    std::fs::rename(&aside, &path).unwrap();
    let e = ledger.poll(bench.storage).unwrap_err();
    assert!(e.to_string().contains("taken away"), "{e}");
}

/// It goes while a commit is under way: that one may have been recorded, and is not answered as such.
#[cfg(feature = "failpoints")]
#[test]
fn a_file_that_goes_during_a_commit_makes_no_answer() {
    let bench = Bench::new();
    let ledger = bench.ledger();
    ledger.register(bench.storage, &[], Uuid::new_v4()).unwrap();
    let (path, aside) = (bench.path(), bench.dir.path().join("aside"));
    let from = path.clone();
    let to = aside.clone();
    fail::cfg_callback("ledger.submit", move || std::fs::rename(&from, &to).unwrap()).unwrap();
    let e = ledger.submit(&tenant("a"), Mode::Physical, Some("r")).unwrap_err();
    assert!(e.to_string().contains("taken away"), "{e}");
    fail::remove("ledger.submit");
    std::fs::rename(&aside, &path).unwrap();
    let again = ledger.submit(&tenant("a"), Mode::Physical, Some("r")).unwrap();
    assert_eq!((again.fresh, again.request.generation), (false, Generation(1)));
}
