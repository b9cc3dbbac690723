//! Files that are not what was written: either exactly the right contents, or a refusal that says what to do.

use super::*;
use crate::key::Epoch;
use crate::scope::Mode::{Logical, Physical};

/// All that a file holds.
#[derive(Debug, PartialEq)]
struct Contents {
    requests: Vec<Request>,
    pending: Vec<Pending>,
    applied: Applied,
    tokens: Vec<Token>,
    highest: Generation,
}

fn contents(database: &Arc<Database>, member: Uuid) -> Result<Contents> {
    let ledger = LocalLedger::new(database.clone());
    let file = StorageFile::open(database.clone())?;
    Ok(Contents {
        requests: ledger.requests()?,
        pending: ledger.poll(member)?,
        applied: (*file.applied()).clone(),
        tokens: file.known_tokens(),
        highest: ledger.highest()?,
    })
}

/// The bytes of a file in the middle of its life and after it was closed, and what it holds.
struct Sample {
    storage: Uuid,
    member: Uuid,
    contents: Contents,
    alive: Vec<u8>,
    closed: Vec<u8>,
}

fn sample(bench: &mut Bench) -> Sample {
    let (ledger, storage) = (bench.ledger(), bench.storage);
    let file = StorageFile::open(bench.database()).unwrap();
    file.register_with(&ledger).unwrap();
    let member = bench.member();
    for n in 1..=12 {
        ledger.submit(&tenant(&format!("t{}", n % 5)), Physical, Some(&format!("id{n}"))).unwrap();
    }
    ledger.ack(storage, &tenant("t1"), Generation(11)).unwrap();
    file.mark(&tenant("t1"), Generation(11)).unwrap();
    ledger.ack(member, &tenant("t1"), Generation(11)).unwrap();
    ledger.note_failure(Generation(12), "it would not go").unwrap();
    // The commit before this one is what a mistaken repair would bring back.
    ledger.submit(&Scope::Global, Logical, None).unwrap();
    let contents = contents(&bench.database(), member).unwrap();
    assert_eq!(contents.pending.last(), Some(&entry(&Scope::Global, 13, Physical)));
    let alive = std::fs::read(bench.path()).unwrap();
    drop((ledger, file));
    bench.reopen();
    bench.database = None;
    Sample { storage, member, contents, alive, closed: std::fs::read(bench.path()).unwrap() }
}

impl Sample {
    /// Opens these bytes; what opens must be right, and go on.
    fn try_open(&self, bench: &Bench, bytes: &[u8], how: &str) -> Result<()> {
        let path = bench.dir.path().join("tried.redb");
        std::fs::write(&path, bytes).unwrap();
        let opened = open(&path, self.storage).and_then(|database| {
            assert_eq!(contents(&database, self.member)?, self.contents, "{how}");
            let ledger = LocalLedger::new(database.clone());
            assert_eq!(
                generation_of(ledger.submit(&tenant("later"), Physical, None)),
                Generation(14),
                "{how}"
            );
            Ok(())
        });
        if let Err(e) = &opened {
            assert_eq!(e.kind(), Kind::Corrupt, "{how}: {e}");
            let sentence = e.to_string();
            assert!(sentence.contains("tried.redb") && sentence.contains("restore"), "{how}: {e}");
        }
        opened
    }
}

#[test]
fn whole_files_open() {
    let mut bench = Bench::new();
    let sample = sample(&mut bench);
    sample.try_open(&bench, &sample.alive, "as it was when its process ended").unwrap();
    sample.try_open(&bench, &sample.closed, "as it was closed").unwrap();
}

#[test]
fn flipped_bits_bring_no_older_state_back() {
    let mut bench = Bench::new();
    let sample = sample(&mut bench);
    let (mut right, mut refused) = (0, 0);
    for (bytes, stride) in [(&sample.alive, 1), (&sample.closed, 7)] {
        // The header byte by byte, its flags bit by bit, the rest here and there.
        let header = (0..320).step_by(stride).map(|at| (at, 0x01));
        let flags = (0..8).map(|bit| (9, 1 << bit));
        let rest = (320..bytes.len()).step_by(1499).map(|at| (at, 0x10));
        for (at, mask) in header.chain(flags).chain(rest) {
            let mut bytes = bytes.clone();
            bytes[at] ^= mask;
            match sample.try_open(&bench, &bytes, &format!("byte {at} changed by {mask:#x}")) {
                Ok(()) => right += 1,
                Err(_) => refused += 1,
            }
        }
    }
    println!("{right} opened, {refused} were refused");
    assert!(right > 0 && refused > 0);
}

#[test]
fn truncated_files_are_refused() {
    let mut bench = Bench::new();
    let sample = sample(&mut bench);
    for bytes in [&sample.alive, &sample.closed] {
        let lengths = [0, 1, 8, 9, 100, 319, 320, 4095, 4096, 8192, bytes.len() / 2, bytes.len() - 1];
        let pages = (0..bytes.len()).step_by(4096);
        for length in lengths.into_iter().chain(pages) {
            let cut = sample.try_open(&bench, &bytes[..length], &format!("{length} bytes"));
            assert!(length > 4096 || cut.is_err(), "{length} bytes cannot hold it");
        }
        for more in [1, 4096, 1 << 20] {
            let longer = [bytes.as_slice(), &vec![0; more]].concat();
            drop(sample.try_open(&bench, &longer, &format!("{more} bytes more")));
        }
    }
}

#[test]
fn pages_that_are_gone_are_refused_or_were_free() {
    let mut bench = Bench::new();
    let sample = sample(&mut bench);
    for filling in [0x00, 0xff, 0x5a] {
        for at in (0..sample.alive.len()).step_by(4096) {
            let mut bytes = sample.alive.clone();
            let end = bytes.len().min(at + 4096);
            bytes[at..end].fill(filling);
            let tried = sample.try_open(&bench, &bytes, &format!("page at {at} is all {filling:#x}"));
            assert!(at > 0 || tried.is_err());
        }
    }
}

#[test]
fn what_is_no_ledger_is_refused() {
    let mut bench = Bench::new();
    let sample = sample(&mut bench);
    let zeroes = vec![0; sample.alive.len()];
    let garbage: Vec<u8> = (0..100_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for bytes in [&b""[..], b"not a ledger\n", &zeroes, &garbage] {
        sample.try_open(&bench, bytes, "no ledger").unwrap_err();
    }
    // What was refused is left as it was.
    assert_eq!(std::fs::read(bench.dir.path().join("tried.redb")).unwrap(), garbage);
}

#[test]
fn the_ledger_of_another_store_is_refused() {
    let bench = Bench::new();
    let other = Uuid::new_v4();
    let path = bench.dir.path().join("other.redb");
    found(&path, other);
    let refused = open(&path, bench.storage).unwrap_err();
    assert_eq!(refused.kind(), Kind::Corrupt);
    assert!(refused.to_string().contains(&format!("belongs to storage {other}")), "{refused}");
}

#[test]
fn a_newer_format_is_refused() {
    let bench = Bench::new();
    let path = bench.dir.path().join("newer.redb");
    found(&path, bench.storage);
    let raw = redb::Database::open(&path).unwrap();
    let tx = raw.begin_write().unwrap();
    tx.open_table(tables::IDENTITY).unwrap().insert("format", "2").unwrap();
    tx.commit().unwrap();
    drop(raw);
    let refused = open(&path, bench.storage).unwrap_err();
    assert_eq!(refused.kind(), Kind::Corrupt);
    assert!(refused.to_string().contains("format 2, of a newer fencefs"), "{refused}");
}

#[test]
fn another_database_is_refused() {
    let bench = Bench::new();
    let path = bench.dir.path().join("foreign.redb");
    redb::Database::create(&path).unwrap();
    assert_eq!(kind(open(&path, bench.storage)), Kind::Corrupt);
}

#[test]
fn a_ledger_is_made_in_an_empty_file_alone_and_opened_once() {
    let bench = Bench::new();
    let file = || OpenOptions::new().read(true).write(true).open(bench.path()).unwrap();
    assert_eq!(kind(Database::initialise(file(), bench.storage)), Kind::Exists);
    assert_eq!(kind(open(&bench.path(), bench.storage)), Kind::Locked);
    assert_eq!(bench.ledger().highest().unwrap(), Generation(0));
}

#[test]
fn a_file_that_is_gone_is_said_to_be() {
    let bench = Bench::new();
    assert_eq!(kind(open(&bench.dir.path().join("absent"), bench.storage)), Kind::NotFound);
    assert_eq!(StorageFile::open(bench.database()).unwrap().epoch_of(&Tenant::default_tenant()), Epoch(0));
}
