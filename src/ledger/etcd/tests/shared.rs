//! Several daemons at one ledger, with real processes of etcd.

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};

use uuid::Uuid;

use crate::config::limits;
use crate::error::Kind;
use crate::key::Tenant;
use crate::ledger::etcd::EtcdLedger;
use crate::ledger::tests::etcd_server::EtcdServer;
use crate::ledger::{Ledger, RequestName, State};
use crate::scope::{Generation, Mode, Scope};

fn tenant(name: &str) -> Scope {
    Scope::Tenant(Tenant::new(name.as_bytes()).unwrap())
}

/// So many daemons at one ledger of nobody else's.
fn daemons<const N: usize>(server: &EtcdServer) -> [EtcdLedger; N] {
    let settings = server.settings();
    std::array::from_fn(|_| EtcdLedger::new(&settings).unwrap())
}

fn join(ledger: &EtcdLedger) -> Uuid {
    let storage = Uuid::new_v4();
    ledger.register(storage, &[], Uuid::new_v4()).unwrap();
    storage
}

/// Generations are dense and unique however many submit at once, and an id is one request whoever used it.
#[test]
fn submissions_from_everywhere_make_one_sequence() {
    const DAEMONS: usize = 4;
    const EACH: u64 = 10;
    let Some(server) = EtcdServer::shared() else { return };
    let ledgers: [EtcdLedger; DAEMONS] = daemons(server);
    let start = Barrier::new(DAEMONS);
    let submit = |ledger: &EtcdLedger| -> Vec<(u64, bool, bool)> {
        start.wait();
        let mut made = Vec::new();
        for n in 0..EACH {
            let own = ledger.submit(&tenant("a"), Mode::Physical, None).unwrap();
            made.push((own.request.generation.0, own.fresh, false));
            let common = ledger.submit(&Scope::Global, Mode::Physical, Some(&format!("common{n}"))).unwrap();
            made.push((common.request.generation.0, common.fresh, true));
        }
        made
    };
    let made: Vec<(u64, bool, bool)> = std::thread::scope(|s| {
        let threads: Vec<_> = ledgers.iter().map(|ledger| s.spawn(move || submit(ledger))).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    let fresh: Vec<u64> = made.iter().filter(|(_, fresh, _)| *fresh).map(|(g, ..)| *g).collect();
    let all = DAEMONS as u64 * EACH + EACH;
    assert_eq!(fresh.len() as u64, all);
    assert_eq!(fresh.iter().copied().collect::<BTreeSet<_>>(), (1..=all).collect());
    let common: BTreeSet<u64> = made.iter().filter(|(.., common)| *common).map(|(g, ..)| *g).collect();
    assert_eq!(common.len() as u64, EACH, "an id is one request");
    assert_eq!(ledgers[0].highest().unwrap(), Generation(all));
}

/// Whoever of a daemon's threads begins a ledger, the others take it for theirs.
#[test]
fn a_ledger_is_begun_by_several_threads_at_once() {
    const THREADS: usize = 8;
    let Some(server) = EtcdServer::shared() else { return };
    for _ in 0..20 {
        let [ledger] = daemons(server);
        let start = Barrier::new(THREADS);
        std::thread::scope(|s| {
            for _ in 0..THREADS {
                s.spawn(|| {
                    start.wait();
                    join(&ledger);
                });
            }
        });
        assert_eq!(ledger.storages().unwrap().len(), THREADS);
    }
}

/// Of those who acknowledge at the same time one finds that the request is complete.
#[test]
fn the_last_acknowledgement_completes_whoever_it_was() {
    let Some(server) = EtcdServer::shared() else { return };
    for _ in 0..10 {
        let ledgers: [EtcdLedger; 3] = daemons(server);
        let storages = ledgers.each_ref().map(join);
        ledgers[0].submit(&tenant("a"), Mode::Physical, None).unwrap();
        let start = Barrier::new(3);
        std::thread::scope(|s| {
            for (ledger, storage) in ledgers.iter().zip(storages) {
                let start = &start;
                s.spawn(move || {
                    start.wait();
                    ledger.ack(storage, &tenant("a"), Generation(1)).unwrap();
                });
            }
        });
        let request = ledgers[1].request(&RequestName::Generation(Generation(1))).unwrap();
        assert_eq!(request.state, State::Complete);
        assert!(request.completed_ms.is_some(), "it was noted");
        assert!(ledgers[2].unfinished().unwrap().is_empty());
    }
}

/// Whoever registers while a request is made is its target or joined after it, never neither.
#[test]
fn joining_and_submitting_have_an_order() {
    let Some(server) = EtcdServer::shared() else { return };
    let [one, two] = daemons(server);
    join(&one);
    for n in 1..=10_u64 {
        let start = Barrier::new(2);
        let (made, new) = std::thread::scope(|s| {
            let made = s.spawn(|| {
                start.wait();
                one.submit(&tenant("a"), Mode::Physical, None).unwrap().request
            });
            start.wait();
            let new = join(&two);
            (made.join().unwrap(), new)
        });
        assert_eq!(made.generation, Generation(n));
        let owes = two.poll(new).unwrap().iter().any(|p| p.generation == made.generation);
        assert_eq!(made.targets.contains(&new), owes, "what was answered is what is asked of it");
        let again = one.request(&RequestName::Generation(made.generation)).unwrap();
        assert_eq!(again.targets, made.targets);
    }
}

/// A copy of a disk that registers takes the identity along: the first daemon cannot acknowledge for it any more.
#[test]
fn who_was_overtaken_by_a_copy_acknowledges_nothing() {
    let Some(server) = EtcdServer::shared() else { return };
    let [first, second] = daemons(server);
    let (storage, token, next) = (Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4());
    first.register(storage, &[], token).unwrap();
    first.submit(&Scope::Global, Mode::Physical, None).unwrap();
    second.register(storage, &[token], next).unwrap();
    for refused in [first.ack(storage, &Scope::Global, Generation(1)), first.poll(storage).map(drop)] {
        let e = refused.unwrap_err();
        assert_eq!(e.kind(), Kind::Stale);
        assert!(e.to_string().contains("elsewhere"), "{e}");
    }
    assert_eq!(first.register(storage, &[token], Uuid::new_v4()).unwrap_err().kind(), Kind::Stale);
    assert_eq!(second.poll(storage).unwrap().len(), 1, "nothing was acknowledged");
    second.ack(storage, &Scope::Global, Generation(1)).unwrap();
    let done = first.request(&RequestName::Generation(Generation(1))).unwrap();
    assert_eq!((done.state, done.acked), (State::Complete, vec![storage]));
}

/// etcd is killed and comes back from its disk: what was answered is there; meanwhile there is an error that says where.
#[test]
fn a_restart_of_etcd_loses_nothing() {
    let Some(mut server) = EtcdServer::start(&[]) else { return };
    let settings = server.settings();
    let ledger = Arc::new(EtcdLedger::new(&settings).unwrap());
    let storage = join(&ledger);
    ledger.submit(&tenant("a"), Mode::Physical, Some("first")).unwrap();
    ledger.submit(&tenant("b"), Mode::Logical, None).unwrap();
    ledger.ack(storage, &tenant("a"), Generation(1)).unwrap();
    let before = (ledger.requests().unwrap(), ledger.poll(storage).unwrap());
    server.stop();
    let e = ledger.submit(&Scope::Global, Mode::Physical, None).unwrap_err();
    assert_eq!(e.kind(), Kind::Unreachable);
    assert!(e.to_string().contains(&server.endpoint()), "{e}");
    // Known to be silent: a status does not wait for it.
    assert_eq!(ledger.highest().unwrap_err().kind(), Kind::Unreachable);
    server.start_again();
    assert_eq!((ledger.requests().unwrap(), ledger.poll(storage).unwrap()), before);
    let again = ledger.submit(&tenant("a"), Mode::Physical, Some("first")).unwrap();
    assert_eq!((again.fresh, again.request.generation), (false, Generation(1)));
    ledger.ack(storage, &tenant("b"), Generation(2)).unwrap();
    assert!(ledger.unfinished().unwrap().is_empty());
}

/// A ledger that was emptied under a daemon is not taken for the one that it knew.
#[test]
fn another_ledger_at_the_same_place_is_refused() {
    let Some(server) = EtcdServer::shared() else { return };
    let settings = server.settings();
    let (ledger, other) = (EtcdLedger::new(&settings).unwrap(), EtcdLedger::new(&settings).unwrap());
    let storage = join(&ledger);
    other.submit(&Scope::Global, Mode::Physical, None).unwrap();
    ledger.empty_for_a_test();
    for refused in [
        ledger.submit(&Scope::Global, Mode::Physical, None).map(drop),
        ledger.ack(storage, &Scope::Global, Generation(1)),
        other.poll(storage).map(drop),
    ] {
        let e = refused.unwrap_err();
        assert_eq!(e.kind(), Kind::Stale, "{e}");
        assert!(e.to_string().contains("emptied or restored"), "{e}");
    }
}

/// Whoever acknowledges last completes a request, in a fleet of more members than are asked about at once; and a poll does
/// where he died before he noted it.
#[test]
fn a_request_of_many_members_is_complete_with_the_last_of_them() {
    const MEMBERS: usize = 40;
    let Some(server) = EtcdServer::shared() else { return };
    let [ledger, poller] = daemons(server);
    let mut storages: Vec<Uuid> = (0..MEMBERS).map(|_| join(&ledger)).collect();
    let watching = join(&poller);
    let gone = storages.pop().unwrap();
    for n in 1..=2 {
        ledger.submit(&tenant("a"), Mode::Physical, None).unwrap();
        // In order, so that each round of those who ask meets others than the last.
        storages.sort_by_key(|id| id.as_u128() ^ n);
        for storage in storages.iter().chain([&watching]) {
            assert_eq!(ledger.unfinished().unwrap().len(), 1);
            ledger.ack(*storage, &tenant("a"), Generation(n as u64)).unwrap();
        }
        if n == 1 {
            assert_eq!(ledger.unfinished().unwrap().len(), 1, "one has not");
            ledger.forget(gone).unwrap();
        }
        assert!(ledger.unfinished().unwrap().is_empty());
    }
    ledger.submit(&tenant("a"), Mode::Physical, None).unwrap();
    for storage in storages.iter().chain([&watching]) {
        ledger.mark_for_a_test(*storage, &tenant("a"), Generation(3));
    }
    assert_eq!(ledger.unfinished().unwrap().len(), 1, "nobody noted it");
    // About one poll in as many as there are members looks.
    let is_noted = |_| {
        poller.poll(watching).unwrap();
        poller.unfinished().unwrap().is_empty()
    };
    assert!((0..100 * MEMBERS).any(is_noted));
}

/// A fleet of more members than one answer brings is read to its end.
#[test]
fn a_large_fleet_is_read_in_parts() {
    let Some(server) = EtcdServer::shared() else { return };
    let [ledger] = daemons(server);
    let storages: BTreeSet<Uuid> = (0..2 * limits::ETCD_PART).map(|_| Uuid::new_v4()).collect();
    std::thread::scope(|s| {
        let storages: Vec<&Uuid> = storages.iter().collect();
        for some in storages.chunks(storages.len() / 8) {
            let (ledger, some) = (&ledger, some.to_vec());
            s.spawn(move || {
                some.iter().for_each(|id| ledger.register(**id, &[], Uuid::new_v4()).unwrap());
            });
        }
    });
    let made = ledger.submit(&tenant("a"), Mode::Physical, None).unwrap().request;
    assert_eq!(made.targets.iter().copied().collect::<BTreeSet<_>>(), storages);
    let found = ledger.storages().unwrap();
    assert_eq!(found.iter().map(|found| found.storage).collect::<BTreeSet<_>>(), storages);
    let last = *storages.last().unwrap();
    ledger.ack(last, &tenant("a"), made.generation).unwrap();
    for request in [
        ledger.request(&RequestName::Generation(made.generation)).unwrap(),
        ledger.requests().unwrap().remove(0),
    ] {
        assert_eq!((request.state, request.acked.clone()), (State::Pending, vec![last]));
        assert_eq!(request.targets.len(), storages.len());
    }
}

/// A daemon is told of a request as it is made and when it is complete; what it does then is ask.
#[test]
fn requests_are_told_as_they_are_made() {
    let Some(server) = EtcdServer::shared() else { return };
    let [watching, other] = daemons(server);
    let storage = join(&watching);
    let (tell, told) = std::sync::mpsc::channel();
    // It listens for longer than this test, which does not wait for it.
    std::thread::spawn(move || {
        watching.watch(&|| {
            tell.send(()).ok();
        })
    });
    let next = || told.recv_timeout(std::time::Duration::from_secs(30)).expect("it is told");
    next();
    other.submit(&tenant("a"), Mode::Physical, None).unwrap();
    next();
    other.ack(storage, &tenant("a"), Generation(1)).unwrap();
    next();
    assert!(told.try_recv().is_err(), "and of nothing else");
}
