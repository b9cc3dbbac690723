//! A storage takes part in one ledger.

use super::etcd_server::EtcdServer;
use super::*;
use crate::config::EtcdSettings;

fn etcd(settings: &EtcdSettings) -> EtcdLedger {
    EtcdLedger::new(settings).unwrap()
}

fn storage(bench: &Bench) -> StorageFile {
    StorageFile::open(bench.database()).unwrap()
}

fn said<T: Debug>(result: Result<T>, kind: Kind) -> String {
    let e = result.unwrap_err();
    assert_eq!(e.kind(), kind, "{e}");
    e.to_string()
}

/// Markers of one ledger say nothing of another's generations: they would cover what was never removed.
#[test]
fn a_storage_takes_part_in_one_ledger_for_good() {
    let Some(server) = EtcdServer::shared() else { return };
    let (mut bench, settings) = (Bench::new(), server.settings());
    storage(&bench).take_part(&etcd(&settings)).unwrap();
    bench.reopen();
    let refused = said(storage(&bench).take_part(&bench.ledger()), Kind::Invalid);
    assert!(refused.contains("--coordinator etcd://"), "{refused}");
    let other = etcd(&server.settings());
    let refused = said(storage(&bench).take_part(&other), Kind::Stale);
    assert!(refused.contains("another than"), "{refused}");
    storage(&bench).take_part(&etcd(&settings)).unwrap();
}

/// It joins after all that it has applied, so that no marker covers what is yet to be asked for.
#[test]
fn a_storage_with_a_past_joins_after_it() {
    let Some(server) = EtcdServer::shared() else { return };
    let (bench, ledger) = (Bench::new(), etcd(&server.settings()));
    let (file, own) = (storage(&bench), bench.ledger());
    file.take_part(&own).unwrap();
    for _ in 0..5 {
        own.submit(&tenant("a"), Mode::Physical, None).unwrap();
    }
    let refused = said(file.take_part(&ledger), Kind::Invalid);
    assert!(refused.contains("--coordinator local"), "{refused}");
    file.mark(&tenant("a"), Generation(5)).unwrap();
    own.ack(file.identity(), &tenant("a"), Generation(5)).unwrap();
    file.take_part(&ledger).unwrap();
    assert_eq!(ledger.poll(file.identity()).unwrap(), []);
    let made = generation_of(ledger.submit(&tenant("a"), Mode::Physical, None));
    assert_eq!(made, Generation(6));
    assert_eq!(ledger.poll(file.identity()).unwrap(), [entry(&tenant("a"), 6, Mode::Physical)]);
}

/// A ledger from an older backup does not know of what this storage was asked for, and would number others the same.
#[test]
fn a_ledger_that_went_backwards_is_refused() {
    let Some(server) = EtcdServer::shared() else { return };
    let (bench, settings) = (Bench::new(), server.settings());
    let ledger = etcd(&settings);
    let file = storage(&bench);
    file.take_part(&ledger).unwrap();
    let older = ledger.dump_for_a_test();
    ledger.submit(&tenant("a"), Mode::Physical, None).unwrap();
    file.note_asked(&ledger.poll(file.identity()).unwrap()).unwrap();
    ledger.restore_for_a_test(&older);
    let refused = said(storage(&bench).take_part(&etcd(&settings)), Kind::Stale);
    assert!(refused.contains("went backwards") && refused.contains("restored"), "{refused}");
    assert_eq!(etcd(&settings).highest().unwrap(), Generation(0), "nothing was changed there");
}

/// As does one from before the storage joined, whatever its numbers.
#[test]
fn a_ledger_that_forgot_a_storage_is_refused() {
    let Some(server) = EtcdServer::shared() else { return };
    let (bench, settings) = (Bench::new(), server.settings());
    let ledger = etcd(&settings);
    ledger.submit(&tenant("a"), Mode::Physical, None).unwrap();
    let older = ledger.dump_for_a_test();
    storage(&bench).take_part(&ledger).unwrap();
    ledger.restore_for_a_test(&older);
    let refused = said(storage(&bench).take_part(&etcd(&settings)), Kind::Stale);
    assert!(refused.contains("does not know this store"), "{refused}");
}

/// Known on disk before it is begun: a start compares the directories that a removal made with it.
#[test]
fn what_is_asked_is_noted_in_the_storage() {
    let Some(server) = EtcdServer::shared() else { return };
    let (bench, ledger) = (Bench::new(), etcd(&server.settings()));
    let file = storage(&bench);
    file.take_part(&ledger).unwrap();
    ledger.raise(Generation(11)).unwrap();
    ledger.submit(&tenant("a"), Mode::Physical, None).unwrap();
    file.note_asked(&ledger.poll(file.identity()).unwrap()).unwrap();
    let known = look(&bench.path(), bench.storage, &File::open(bench.path()).unwrap()).unwrap();
    assert_eq!(known.removed.of(&tenant("a")), Generation(12));
    assert!(known.registered);
    assert_eq!(file.applied().of(&tenant("a")), Generation(0), "it is not applied by that");
}
