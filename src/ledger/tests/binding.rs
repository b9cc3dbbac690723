//! A storage takes part in one ledger.

use super::etcd_server::EtcdServer;
use super::*;
use crate::config::{EtcdSettings, limits};

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
    file.note_asked(&ledger.standing(file.identity()).unwrap()).unwrap();
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
    file.note_asked(&ledger.standing(file.identity()).unwrap()).unwrap();
    let known = look(&bench.path(), bench.storage, &File::open(bench.path()).unwrap()).unwrap();
    assert_eq!(known.removed.of(&tenant("a")), Generation(12));
    assert!(known.registered);
    assert_eq!(file.applied().of(&tenant("a")), Generation(0), "it is not applied by that");
}

/// Others have given the lost generations again, to other requests: a number alone would not tell.
#[test]
fn a_ledger_that_went_backwards_and_on_again_is_refused() {
    let Some(server) = EtcdServer::shared() else { return };
    let (bench, settings) = (Bench::new(), server.settings());
    let ledger = etcd(&settings);
    let file = storage(&bench);
    file.take_part(&ledger).unwrap();
    let older = ledger.dump_for_a_test();
    ledger.submit(&tenant("a"), Mode::Physical, None).unwrap();
    file.note_asked(&ledger.standing(file.identity()).unwrap()).unwrap();
    file.mark(&tenant("a"), Generation(1)).unwrap();
    for (again, scope) in [(1, tenant("b")), (1, tenant("a")), (2, tenant("a"))] {
        ledger.restore_for_a_test(&older);
        let other = etcd(&settings);
        for _ in 0..again {
            other.submit(&scope, Mode::Physical, None).unwrap();
        }
        // The daemon that runs, before it acknowledges what it has not done, and the next one at its start.
        let standing = ledger.standing(file.identity()).unwrap();
        let refused = said(file.require_no_loss(&ledger, &standing), Kind::Stale);
        assert!(refused.contains("went backwards"), "{refused}");
        said(storage(&bench).take_part(&etcd(&settings)), Kind::Stale);
    }
}

/// What this storage has acknowledged there is newer than the loss, whatever was dropped since.
#[test]
fn a_ledger_that_has_the_acknowledgement_has_lost_nothing() {
    let Some(server) = EtcdServer::shared() else { return };
    let (bench, settings) = (Bench::new(), server.settings());
    let ledger = etcd(&settings);
    let file = storage(&bench);
    file.take_part(&ledger).unwrap();
    for n in 1..=3 {
        ledger.submit(&tenant("a"), Mode::Physical, None).unwrap();
        let standing = ledger.standing(file.identity()).unwrap();
        file.require_no_loss(&ledger, &standing).unwrap();
        file.note_asked(&standing).unwrap();
        // One more is asked for before the first is acknowledged.
        ledger.submit(&tenant("a"), Mode::Physical, None).unwrap();
        file.require_no_loss(&ledger, &ledger.standing(file.identity()).unwrap()).unwrap();
        file.mark(&tenant("a"), Generation(2 * n)).unwrap();
        ledger.ack(file.identity(), &tenant("a"), Generation(2 * n)).unwrap();
        file.require_no_loss(&ledger, &ledger.standing(file.identity()).unwrap()).unwrap();
    }
    storage(&bench).take_part(&etcd(&settings)).unwrap();
}

/// An operator's word has every storage go on, each once, above all that was lost; a copy gains nothing by it.
#[test]
fn a_bump_has_storages_accept_a_ledger_that_went_backwards() {
    let Some(server) = EtcdServer::shared() else { return };
    let (one, late, settings) = (Bench::new(), Bench::new(), server.settings());
    let ledger = etcd(&settings);
    storage(&one).take_part(&ledger).unwrap();
    let older = ledger.dump_for_a_test();
    // Since then it was started again, was asked and has removed; another has joined.
    let ledger = etcd(&settings);
    storage(&one).take_part(&ledger).unwrap();
    storage(&late).take_part(&ledger).unwrap();
    let (mut copied, file) = (Bench::new(), storage(&one));
    copied.database = None;
    std::fs::copy(one.path(), copied.path()).unwrap();
    ledger.submit(&tenant("a"), Mode::Physical, None).unwrap();
    file.note_asked(&ledger.standing(file.identity()).unwrap()).unwrap();
    file.mark(&tenant("a"), Generation(1)).unwrap();
    ledger.restore_for_a_test(&older);

    said(storage(&one).take_part(&etcd(&settings)), Kind::Stale);
    let refused = said(storage(&late).take_part(&etcd(&settings)), Kind::Stale);
    assert!(refused.contains("does not know this store"), "{refused}");
    let (from, to) = etcd(&settings).bump().unwrap();
    assert_eq!((from, to.0), (Generation(0), limits::BUMP_GENERATIONS));

    for bench in [&one, &late] {
        let (file, ledger) = (storage(bench), etcd(&settings));
        file.take_part(&ledger).unwrap();
        let standing = ledger.standing(file.identity()).unwrap();
        file.require_no_loss(&ledger, &standing).unwrap();
        assert_eq!((standing.highest, standing.pending.len()), (to, 0));
    }
    let made = generation_of(etcd(&settings).submit(&tenant("a"), Mode::Physical, None));
    assert_eq!(made, Generation(to.0 + 1));
    for bench in [&one, &late] {
        let polled = etcd(&settings).poll(bench.storage).unwrap();
        assert_eq!(polled, [entry(&tenant("a"), made.0, Mode::Physical)], "what is marked covers none of it");
    }
    let copy = StorageFile::open(open(&copied.path(), one.storage).unwrap()).unwrap();
    let refused = said(copy.take_part(&etcd(&settings)), Kind::Stale);
    assert!(refused.contains("is a copy"), "{refused}");
    // And goes backwards once more: the word was about the first time.
    let ledger = etcd(&settings);
    ledger.restore_for_a_test(&older);
    said(storage(&one).take_part(&etcd(&settings)), Kind::Stale);
}

/// Everybody is listed: who is there, who was heard of when, who was forgotten, and how far each is.
#[test]
fn the_fleet_is_listed() {
    let Some(server) = EtcdServer::shared() else { return };
    let settings = server.settings();
    let [there, away, gone] = std::array::from_fn(|_| (Uuid::new_v4(), etcd(&settings)));
    for (storage, ledger) in [&there, &away, &gone] {
        ledger.register(*storage, &[], Uuid::new_v4()).unwrap();
    }
    there.1.submit(&tenant("a"), Mode::Physical, None).unwrap();
    away.1.ack(away.0, &tenant("a"), Generation(1)).unwrap();
    away.1.leave(away.0);
    there.1.forget(gone.0).unwrap();
    let found = there.1.storages().unwrap();
    let of = |storage: Uuid| found.iter().find(|found| found.storage == storage).unwrap();
    assert_eq!(found.len(), 3);
    assert_eq!(of(there.0).presence, Presence::Present);
    assert_eq!(of(away.0).presence, Presence::Absent);
    assert_eq!(of(gone.0).presence, Presence::Retired);
    assert_eq!(of(there.0).acked.of(&tenant("a")), Generation(0));
    assert_eq!(of(away.0).acked.of(&tenant("a")), Generation(1));
    for status in &found {
        assert!(!status.host.is_empty() && status.last_contact_ms >= status.registered_ms, "{status:?}");
        assert!(status.registered_ms > 1_600_000_000_000, "{status:?}");
    }
    let request = there.1.request(&RequestName::Generation(Generation(1))).unwrap();
    assert_eq!((request.awaited(), request.retired), (vec![there.0], vec![gone.0]));
}
