//! A disk that fails in the middle: each transaction happened or not, and the next one works.

use super::*;
use crate::scope::Mode::Physical;

/// A storage that registers, and its token.
const NEW: Uuid = Uuid::from_u128(7);

/// What a transaction changes, as one text.
fn state(bench: &Bench) -> String {
    state_of(&bench.database(), bench.storage)
}

fn state_of(database: &Arc<Database>, storage: Uuid) -> String {
    let ledger = LocalLedger::new(database.clone());
    let file = StorageFile::open(database.clone()).unwrap();
    let requests: Vec<_> = ledger
        .requests()
        .unwrap()
        .into_iter()
        .map(|r| (r.generation, r.scope, r.state, r.acked, r.retired, r.last_error, r.failed_attempts))
        .collect();
    format!(
        "{requests:?} {:?} {:?} {:?} {:?} {:?}",
        ledger.poll(storage),
        ledger.poll(NEW),
        ledger.highest(),
        file.applied(),
        file.known_tokens().len()
    )
}

/// A transaction that may be repeated until it is answered.
type Transaction = fn(&Bench) -> Result<()>;

const TRANSACTIONS: [(&str, Transaction); 6] = [
    ("submit", |bench| bench.ledger().submit(&tenant("b"), Physical, Some("id")).map(drop)),
    ("ack", |bench| bench.ledger().ack(bench.storage, &tenant("a"), Generation(1))),
    ("marker", |bench| StorageFile::open(bench.database())?.mark(&tenant("a"), Generation(1))),
    ("forget", |bench| bench.ledger().forget(bench.storage)),
    ("note", |bench| bench.ledger().note_failure(Generation(1), "why")),
    ("register", |bench| bench.ledger().register(NEW, &[NEW], NEW)),
];

/// A ledger with one request that its storage has yet to apply.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.ledger().register(bench.storage, &[], Uuid::new_v4()).unwrap();
    bench.ledger().submit(&tenant("a"), Physical, None).unwrap();
    bench
}

#[test]
fn a_commit_that_fails_anywhere_has_happened_or_not() {
    for (name, transaction) in TRANSACTIONS {
        for (errno, failures) in [(libc::ENOSPC, 1), (libc::EIO, 1), (libc::EIO, 1000)] {
            let swept = (0..).take_while(|n| failed_at(name, transaction, *n, failures, errno)).count();
            assert!(swept >= 4, "{name}: a two-phase commit has more than {swept} calls");
        }
    }
}

/// Lets the call after `calls` fail, and what follows it; answers whether there was such a call.
fn failed_at(name: &str, transaction: Transaction, calls: usize, failures: usize, errno: i32) -> bool {
    let at = format!("{name}, call {calls}, {failures} times errno {errno}");
    let bench = bench();
    let before = state(&bench);
    let faults = bench.database().faults.clone();
    faults.plan(calls, failures, errno);
    let done = transaction(&bench);
    // Where everything fails from this call on, this is the file that a crash at this call leaves.
    let crashed = bench.dir.path().join("crashed.redb");
    std::fs::copy(bench.path(), &crashed).unwrap();
    if !faults.end() {
        done.expect(&at);
        return false;
    }
    let restarted = state_of(&open(&crashed, bench.storage).unwrap(), bench.storage);
    if let Err(e) = &done {
        assert_eq!(e.errno(), errno, "{at}: {e}");
    }
    let between = state(&bench);
    transaction(&bench).unwrap_or_else(|e| panic!("{at}: the next try: {e}"));
    // Once more changes nothing, except that a failure is counted as often as it is told.
    let after = state(&bench);
    if name == "note" {
        assert!(after.contains("Some(\"why\")"), "{at}");
        assert!(between == before || between.contains("Some(\"why\"), 1)"), "{at}: {between}");
    } else {
        assert!(between == before || between == after, "{at}: half of it happened: {between}");
        assert!(
            restarted == before || restarted == after,
            "{at}: half of it outlived the crash: {restarted}"
        );
    }
    assert!(done.is_err() || between != before, "{at}: it was answered, and has not happened");
    true
}

#[test]
fn a_dead_disk_answers_its_error_and_heals_by_itself() {
    let bench = bench();
    let before = state(&bench);
    let faults = bench.database().faults.clone();
    faults.plan(0, 100_000, libc::ENOSPC);
    for _ in 0..3 {
        let full = bench.ledger().submit(&tenant("b"), Physical, None).unwrap_err();
        assert_eq!((full.kind(), full.errno()), (Kind::NoSpace, libc::ENOSPC), "{full}");
    }
    faults.end();
    assert_eq!(state(&bench), before);
    assert_eq!(generation_of(bench.ledger().submit(&tenant("b"), Physical, None)), Generation(2));
}

#[test]
fn while_the_file_is_opened_again_nobody_finds_it_in_use() {
    let bench = bench();
    let database = bench.database();
    let fails = || {
        let passing = || Error::os("a passing error", io::Error::from_raw_os_error(libc::EIO));
        assert_eq!(database.write::<()>(|_| Err(passing())).unwrap_err().errno(), libc::EIO);
    };
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| (0..200).for_each(|_| fails()));
            threads.spawn(|| (0..200).for_each(|_| drop(bench.ledger().poll(bench.storage).unwrap())));
        }
    });
}

#[test]
fn a_file_that_is_damaged_under_its_process_is_refused_from_then_on() {
    let bench = bench();
    let faults = bench.database().faults.clone();
    faults.plan(0, 1, libc::EIO);
    bench.ledger().submit(&tenant("b"), Physical, None).unwrap_err();
    faults.end();
    let whole = std::fs::read(bench.path()).unwrap();
    std::fs::write(bench.path(), vec![0; whole.len()]).unwrap();
    for _ in 0..2 {
        assert_eq!(kind(bench.ledger().poll(bench.storage)), Kind::Corrupt);
        assert_eq!(kind(bench.ledger().submit(&tenant("b"), Physical, None)), Kind::Corrupt);
    }
    std::fs::write(bench.path(), whole).unwrap();
    assert_eq!(bench.ledger().poll(bench.storage).unwrap(), [entry(&tenant("a"), 1, Physical)]);
}

#[cfg(feature = "failpoints")]
#[test]
fn named_steps_fail_before_and_after_the_commit() {
    let after = [("submit", "ledger.submitted"), ("ack", "ledger.acked"), ("marker", "ledger.marked")];
    for (name, transaction) in TRANSACTIONS {
        let bench = bench();
        let unchanged = state(&bench);
        let before = format!("ledger.{name}");
        for (word, errno) in [("return", libc::EIO), ("return(enospc)", libc::ENOSPC)] {
            fail::cfg(&before, word).unwrap();
            assert_eq!(transaction(&bench).unwrap_err().errno(), errno, "{before}");
            fail::remove(&before);
            assert_eq!(state(&bench), unchanged, "{before}: nothing has happened");
        }
        if let Some((_, lost)) = after.iter().find(|(of, _)| *of == name) {
            fail::cfg(*lost, "return").unwrap();
            transaction(&bench).unwrap_err();
            fail::remove(*lost);
            let happened = state(&bench);
            assert_ne!(happened, unchanged, "{lost}: only the answer was lost");
            transaction(&bench).unwrap();
            assert_eq!(state(&bench), happened, "{lost}: repeating it changes nothing");
        } else {
            transaction(&bench).unwrap();
        }
    }
}
