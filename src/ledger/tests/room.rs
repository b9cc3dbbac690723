//! The file owns the blocks of its next growth: what fills the disk meanwhile does not get them.

use std::os::unix::fs::MetadataExt;

use redb::StorageBackend;

use super::super::backend::Backend;
use super::*;

/// Bytes of the file's length, and of what it owns.
fn length_and_room(path: &Path) -> (u64, u64) {
    let found = std::fs::metadata(path).unwrap();
    (found.len(), found.blocks() * 512)
}

/// Whether files can own more than they hold, where the tests are.
fn can_reserve(dir: &Path) -> bool {
    let file = File::create(dir.join("probe")).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, 4096).is_ok()
}

#[test]
fn a_ledger_has_room_for_its_next_growth() {
    let mut bench = bench_of_requests(0);
    if !can_reserve(bench.dir.path()) {
        return;
    }
    for requests in [0, 300] {
        for n in 0..requests {
            bench.ledger().submit(&Scope::Global, Mode::Physical, Some(&format!("id-{n}"))).unwrap();
        }
        let (length, room) = length_and_room(&bench.path());
        assert!(room >= 2 * length, "after {requests} requests {length} bytes have room for {room}");
        // A backup knows nothing of the room. The start that follows makes it.
        let copy = bench.dir.path().join("copy");
        std::fs::write(&copy, std::fs::read(bench.path()).unwrap()).unwrap();
        bench.database = None;
        std::fs::rename(&copy, bench.path()).unwrap();
        bench.reopen();
        let (length, room) = length_and_room(&bench.path());
        assert!(room >= 2 * length, "a copy of {length} bytes has room for {room}");
    }
}

fn bench_of_requests(kept: u64) -> Bench {
    Bench::keeping(Kept { requests: kept, ids: 1000 })
}

#[test]
fn growing_and_shrinking_keep_room() {
    let dir = tempfile::tempdir().unwrap();
    if !can_reserve(dir.path()) {
        return;
    }
    let path = dir.path().join("file");
    let backend = Backend::new(
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap(),
    );
    for length in [64 << 10, 256 << 10, 128 << 10] {
        backend.set_len(length).unwrap();
        let (found, room) = length_and_room(&path);
        assert_eq!(found, length);
        assert!(room >= 2 * length, "{length} bytes have room for {room}");
    }
}
