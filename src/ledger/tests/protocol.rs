//! Every rule of the protocol, one by one, of every ledger.

use super::conformance::{each, each_keeping};
use super::*;
use crate::config::limits;
use crate::scope::Mode::{Logical, Physical};

fn by_number(generation: u64) -> RequestName {
    RequestName::Generation(Generation(generation))
}

#[test]
fn one_sequence_numbers_every_scope() {
    each(|bench| {
        let ledger = bench.ledger();
        assert_eq!(ledger.highest().unwrap(), Generation(0));
        for (n, scope) in [tenant("a"), Scope::Global, tenant("b"), tenant("a")].iter().enumerate() {
            assert_eq!(generation_of(ledger.submit(scope, Physical, None)), Generation(n as u64 + 1));
        }
        assert_eq!(ledger.highest().unwrap(), Generation(4));
        let scopes: Vec<Scope> = ledger.requests().unwrap().into_iter().map(|r| r.scope).collect();
        assert_eq!(scopes, [tenant("a"), Scope::Global, tenant("b"), tenant("a")]);
    });
}

#[test]
fn an_id_names_one_request_for_ever() {
    each(|bench| {
        let (ledger, storage) = (bench.ledger(), bench.member());
        let first = ledger.submit(&tenant("a"), Logical, Some("x")).unwrap();
        assert!(first.fresh);
        let again = ledger.submit(&tenant("a"), Logical, Some("x")).unwrap();
        assert_eq!((again.fresh, &again.request), (false, &first.request));
        ledger.ack(storage, &tenant("a"), Generation(1)).unwrap();
        let done = ledger.submit(&tenant("a"), Logical, Some("x")).unwrap();
        assert_eq!((done.fresh, done.request.generation), (false, Generation(1)));
        assert_eq!(done.request.state, State::Complete);
        for (scope, mode) in [(tenant("b"), Logical), (Scope::Global, Logical), (tenant("a"), Physical)] {
            assert_eq!(kind(ledger.submit(&scope, mode, Some("x"))), Kind::Invalid);
        }
        assert_eq!(ledger.highest().unwrap(), Generation(1));
        assert_eq!(ledger.poll(storage).unwrap(), []);
    });
}

#[test]
fn ids_are_bounded() {
    each(|bench| {
        let ledger = bench.ledger();
        let longest = "i".repeat(limits::REQUEST_ID_BYTES);
        assert!(ledger.submit(&Scope::Global, Physical, Some(&longest)).unwrap().fresh);
        for id in [String::new(), longest + "i"] {
            assert_eq!(kind(ledger.submit(&Scope::Global, Physical, Some(&id))), Kind::Invalid);
        }
    });
}

#[test]
fn without_a_target_a_request_is_complete_at_once() {
    each(|bench| {
        let ledger = bench.ledger();
        let request = ledger.submit(&Scope::Global, Physical, None).unwrap().request;
        assert_eq!((request.state, request.targets), (State::Complete, vec![]));
        assert!(request.completed_ms.is_some());
        let storage = bench.member();
        ledger.forget(storage).unwrap();
        assert_eq!(ledger.submit(&Scope::Global, Physical, None).unwrap().request.state, State::Complete);
    });
}

#[test]
fn polling_changes_nothing() {
    each(|bench| {
        let (ledger, storage) = (bench.ledger(), bench.member());
        for scope in [tenant("a"), tenant("b"), tenant("a")] {
            ledger.submit(&scope, Physical, None).unwrap();
        }
        let pending = [entry(&tenant("b"), 2, Physical), entry(&tenant("a"), 3, Physical)];
        for _ in 0..3 {
            assert_eq!(ledger.poll(storage).unwrap(), pending);
        }
        assert!(ledger.requests().unwrap().iter().all(|r| r.state == State::Pending));
    });
}

#[test]
fn a_request_is_complete_when_every_target_has_acknowledged_it() {
    each(|bench| {
        let (ledger, one, two) = (bench.ledger(), bench.member(), bench.member());
        let before = ledger.submit(&tenant("a"), Physical, None).unwrap().request;
        assert!(before.targets.contains(&one) && before.targets.contains(&two));
        ledger.ack(one, &tenant("a"), Generation(1)).unwrap();
        let half = ledger.request(&by_number(1)).unwrap();
        assert_eq!((half.state, half.acked), (State::Pending, vec![one]));
        assert_eq!(ledger.poll(one).unwrap(), []);
        assert_eq!(ledger.poll(two).unwrap(), [entry(&tenant("a"), 1, Physical)]);
        ledger.ack(two, &tenant("a"), Generation(1)).unwrap();
        let mut whole = ledger.request(&by_number(1)).unwrap();
        let mut both = [one, two];
        whole.acked.sort();
        both.sort();
        assert_eq!((whole.state, whole.acked), (State::Complete, both.to_vec()));
        assert!(whole.completed_ms >= Some(whole.submitted_ms));
    });
}

#[test]
fn a_global_acknowledgement_covers_every_earlier_request_and_no_later_one() {
    each(|bench| {
        let (ledger, storage) = (bench.ledger(), bench.member());
        for scope in [tenant("a"), Scope::Global, tenant("b"), Scope::Global, tenant("a")] {
            ledger.submit(&scope, Physical, None).unwrap();
        }
        ledger.ack(storage, &Scope::Global, Generation(4)).unwrap();
        let states: Vec<State> = ledger.requests().unwrap().iter().map(|r| r.state).collect();
        assert_eq!(states[..4], [State::Complete; 4]);
        assert_eq!(states[4], State::Pending);
        assert_eq!(ledger.poll(storage).unwrap(), [entry(&tenant("a"), 5, Physical)]);
    });
}

#[test]
fn a_tenants_acknowledgement_covers_that_tenant_alone() {
    each(|bench| {
        let (ledger, storage) = (bench.ledger(), bench.member());
        for scope in [tenant("a"), Scope::Global, tenant("b"), tenant("a"), tenant("a")] {
            ledger.submit(&scope, Physical, None).unwrap();
        }
        ledger.ack(storage, &tenant("a"), Generation(4)).unwrap();
        let complete: Vec<bool> =
            ledger.requests().unwrap().iter().map(|r| r.state == State::Complete).collect();
        assert_eq!(complete, [true, false, false, true, false]);
        let pending = [
            entry(&Scope::Global, 2, Physical),
            entry(&tenant("b"), 3, Physical),
            entry(&tenant("a"), 5, Physical),
        ];
        assert_eq!(ledger.poll(storage).unwrap(), pending);
        ledger.ack(storage, &Scope::Global, Generation(2)).unwrap();
        assert_eq!(ledger.poll(storage).unwrap(), pending[1..]);
    });
}

/// Two ids that look alike would be two requests, and a listing could be made to say anything.
#[test]
fn ids_show_what_they_are() {
    each(|bench| {
        let ledger = bench.ledger();
        for bad in [
            "a b",
            "a\u{7}",
            "a\u{9b}",
            "\u{202e}a",
            "a\u{200b}",
            "a\u{2066}b",
            "\u{feff}a",
            "a\u{ad}",
            "a\u{2028}",
            "",
        ] {
            assert_eq!(kind(ledger.submit(&tenant("a"), Physical, Some(bad))), Kind::Invalid, "{bad:?}");
        }
        for good in ["x=1", "\u{e4}\u{4e2d}", "a-b_c.d/e:f"] {
            ledger.submit(&tenant("a"), Physical, Some(good)).unwrap();
        }
    });
}

#[test]
fn acknowledgements_only_go_forward() {
    each(|bench| {
        let (ledger, storage) = (bench.ledger(), bench.member());
        for scope in [tenant("a"), tenant("a"), tenant("b"), Scope::Global] {
            ledger.submit(&scope, Physical, None).unwrap();
        }
        let stranger = Uuid::new_v4();
        assert_eq!(kind(ledger.ack(stranger, &tenant("a"), Generation(1))), Kind::NotFound);
        for never in [0, 5] {
            assert_eq!(kind(ledger.ack(storage, &tenant("a"), Generation(never))), Kind::NotFound);
        }
        for (scope, generation) in
            [(tenant("b"), 1), (Scope::Global, 1), (tenant("a"), 4), (Scope::Global, 3)]
        {
            assert_eq!(kind(ledger.ack(storage, &scope, Generation(generation))), Kind::Invalid);
        }
        assert_eq!(ledger.poll(storage).unwrap().len(), 3, "a refused acknowledgement changes nothing");
        ledger.ack(storage, &tenant("a"), Generation(2)).unwrap();
        ledger.ack(storage, &tenant("a"), Generation(2)).unwrap();
        assert_eq!(kind(ledger.ack(storage, &tenant("a"), Generation(1))), Kind::StaleGeneration);
        ledger.ack(storage, &Scope::Global, Generation(4)).unwrap();
        // Covered by the global one: so it is, and nothing changes.
        ledger.ack(storage, &tenant("b"), Generation(3)).unwrap();
        assert_eq!(ledger.poll(storage).unwrap(), []);
    });
}

#[test]
fn what_is_pending_is_physical_if_anything_behind_it_is() {
    each(|bench| {
        let (ledger, storage) = (bench.ledger(), bench.member());
        ledger.submit(&tenant("a"), Physical, None).unwrap();
        ledger.submit(&tenant("a"), Logical, None).unwrap();
        ledger.submit(&tenant("b"), Logical, None).unwrap();
        assert_eq!(
            ledger.poll(storage).unwrap(),
            [entry(&tenant("a"), 2, Physical), entry(&tenant("b"), 3, Logical)]
        );
        // Its acknowledgement would report the physical removal of `a` as done.
        ledger.submit(&Scope::Global, Logical, None).unwrap();
        assert_eq!(ledger.poll(storage).unwrap()[2], entry(&Scope::Global, 4, Physical));
        ledger.ack(storage, &tenant("a"), Generation(2)).unwrap();
        assert_eq!(
            ledger.poll(storage).unwrap(),
            [entry(&tenant("b"), 3, Logical), entry(&Scope::Global, 4, Logical)]
        );
    });
}

#[test]
fn a_failure_is_kept_until_the_request_is_complete() {
    each(|bench| {
        let (ledger, storage) = (bench.ledger(), bench.member());
        ledger.submit(&tenant("a"), Physical, None).unwrap();
        ledger.note_failure(Generation(1), "t/a/0: Input/output error").unwrap();
        ledger.note_failure(Generation(1), "t/a/0/ab: Input/output error").unwrap();
        let failed = ledger.request(&by_number(1)).unwrap();
        assert_eq!((failed.state, failed.failed_attempts), (State::Failed, 2));
        assert!(failed.last_error.is_some_and(|e| e.ends_with("t/a/0/ab: Input/output error")));
        assert!(failed.acked.is_empty());
        assert_eq!(ledger.poll(storage).unwrap(), [entry(&tenant("a"), 1, Physical)]);
        ledger.ack(storage, &tenant("a"), Generation(1)).unwrap();
        ledger.note_failure(Generation(1), "too late").unwrap();
        let done = ledger.request(&by_number(1)).unwrap();
        assert_eq!((done.state, done.last_error, done.failed_attempts), (State::Complete, None, 2));
        assert_eq!(kind(ledger.note_failure(Generation(2), "of nothing")), Kind::NotFound);
    });
}

#[test]
fn a_retired_storage_holds_up_nothing_and_is_refused() {
    each(|bench| {
        let (ledger, gone, stays) = (bench.ledger(), bench.member(), bench.member());
        ledger.submit(&tenant("a"), Physical, None).unwrap();
        ledger.submit(&tenant("b"), Physical, None).unwrap();
        ledger.ack(stays, &tenant("a"), Generation(1)).unwrap();
        assert_eq!(kind(ledger.forget(Uuid::new_v4())), Kind::NotFound);
        ledger.forget(gone).unwrap();
        ledger.forget(gone).unwrap();
        let (first, second) =
            (ledger.request(&by_number(1)).unwrap(), ledger.request(&by_number(2)).unwrap());
        assert_eq!((first.state, first.retired), (State::Complete, vec![gone]));
        assert_eq!((second.state, second.retired), (State::Pending, vec![gone]));
        assert_eq!(kind(ledger.poll(gone)), Kind::Stale);
        assert_eq!(kind(ledger.ack(gone, &tenant("b"), Generation(2))), Kind::Stale);
        assert_eq!(kind(ledger.register(gone, &[], Uuid::new_v4())), Kind::Stale);
        assert_eq!(ledger.submit(&Scope::Global, Physical, None).unwrap().request.targets, [stays]);
        assert_eq!(kind(ledger.poll(Uuid::new_v4())), Kind::NotFound);
    });
}

#[test]
fn a_new_storage_owes_nothing_that_is_older_than_itself() {
    each(|bench| {
        let (ledger, old) = (bench.ledger(), bench.member());
        ledger.submit(&tenant("a"), Physical, None).unwrap();
        ledger.submit(&Scope::Global, Physical, None).unwrap();
        let new = bench.member();
        assert_eq!(ledger.poll(new).unwrap(), []);
        assert_eq!(ledger.request(&by_number(2)).unwrap().targets, [old]);
        ledger.submit(&tenant("a"), Physical, None).unwrap();
        assert_eq!(ledger.poll(new).unwrap(), [entry(&tenant("a"), 3, Physical)]);
        assert_eq!(ledger.poll(old).unwrap().len(), 2);
    });
}

#[test]
fn dropped_records_lose_no_removal_and_their_ids_still_answer() {
    each_keeping(Kept { requests: 3, ids: 4 }, |bench| {
        let (ledger, prompt, late) = (bench.ledger(), bench.member(), bench.member());
        ledger.submit(&tenant("waits"), Physical, Some("waits")).unwrap();
        ledger.forget(late).unwrap();
        let late = bench.member();
        ledger.submit(&tenant("late"), Physical, None).unwrap();
        for n in 3..=20 {
            let scope = tenant("a");
            let generation = generation_of(ledger.submit(&scope, Physical, Some(&format!("id{n}"))));
            assert_eq!(generation, Generation(n));
            ledger.ack(prompt, &scope, generation).unwrap();
            ledger.ack(late, &scope, generation).unwrap();
        }
        // 18 were complete; the last was after the last submission.
        let kept: Vec<u64> = ledger.requests().unwrap().iter().map(|r| r.generation.0).collect();
        assert_eq!(kept, [1, 2, 17, 18, 19, 20]);
        assert_eq!(
            ledger.poll(prompt).unwrap(),
            [entry(&tenant("waits"), 1, Physical), entry(&tenant("late"), 2, Physical)]
        );
        assert_eq!(ledger.poll(late).unwrap(), [entry(&tenant("late"), 2, Physical)]);

        let dropped = ledger.request(&by_number(10)).unwrap_err();
        assert_eq!(dropped.kind(), Kind::NotFound);
        assert!(dropped.to_string().contains("complete and is no longer kept"), "{dropped}");
        let again = ledger.submit(&tenant("a"), Physical, Some("id14")).unwrap();
        assert_eq!((again.fresh, again.request.generation), (false, Generation(14)));
        assert_eq!(again.request.state, State::Complete);
        assert_eq!(ledger.request(&RequestName::Id("id14".into())).unwrap(), again.request);
        assert_eq!(kind(ledger.submit(&tenant("b"), Physical, Some("id14"))), Kind::Invalid);
        assert!(!ledger.submit(&tenant("waits"), Physical, Some("waits")).unwrap().fresh);
        // Older than the ids that are kept.
        assert_eq!(kind(ledger.request(&RequestName::Id("id12".into()))), Kind::NotFound);

        ledger.ack(prompt, &tenant("a"), Generation(20)).unwrap();
        assert_eq!(kind(ledger.ack(prompt, &tenant("a"), Generation(10))), Kind::StaleGeneration);
        assert_eq!(kind(ledger.ack(prompt, &Scope::Global, Generation(10))), Kind::Invalid);
        assert_eq!(ledger.poll(prompt).unwrap().len(), 2);
    });
}

#[test]
fn everything_survives_a_restart() {
    each(|bench| {
        let storage = bench.member();
        let ledger = bench.ledger();
        ledger.submit(&tenant("a"), Logical, Some("first")).unwrap();
        ledger.submit(&Scope::Global, Physical, None).unwrap();
        ledger.ack(storage, &tenant("a"), Generation(1)).unwrap();
        ledger.note_failure(Generation(2), "no such luck").unwrap();
        let (requests, pending) = (ledger.requests().unwrap(), ledger.poll(storage).unwrap());
        drop(ledger);
        bench.reopen();
        let ledger = bench.ledger();
        assert_eq!(ledger.requests().unwrap(), requests);
        assert_eq!(ledger.poll(storage).unwrap(), pending);
        assert_eq!(ledger.highest().unwrap(), Generation(2));
        assert_eq!(generation_of(ledger.submit(&tenant("a"), Logical, Some("first"))), Generation(1));
    });
}

#[test]
fn no_generation_is_given_below_what_a_storage_brings_along() {
    each(|bench| {
        let (ledger, storage) = (bench.ledger(), bench.member());
        ledger.submit(&tenant("a"), Physical, None).unwrap();
        ledger.raise(Generation(40)).unwrap();
        ledger.raise(Generation(7)).unwrap();
        assert_eq!(ledger.highest().unwrap(), Generation(40));
        assert_eq!(generation_of(ledger.submit(&tenant("b"), Physical, None)), Generation(41));
        assert_eq!(
            ledger.poll(storage).unwrap(),
            [entry(&tenant("a"), 1, Physical), entry(&tenant("b"), 41, Physical)]
        );
    });
}

#[test]
fn what_is_unfinished_is_what_is_not_complete() {
    each(|bench| {
        let (ledger, one, two) = (bench.ledger(), bench.member(), bench.member());
        assert!(ledger.unfinished().unwrap().is_empty());
        for scope in [tenant("a"), Scope::Global, tenant("b")] {
            ledger.submit(&scope, Physical, None).unwrap();
        }
        ledger.ack(one, &Scope::Global, Generation(2)).unwrap();
        ledger.ack(two, &tenant("a"), Generation(1)).unwrap();
        let open = [(Generation(2), Scope::Global), (Generation(3), tenant("b"))];
        assert_eq!(ledger.unfinished().unwrap(), open.into());
        ledger.forget(two).unwrap();
        assert_eq!(ledger.unfinished().unwrap(), [(Generation(3), tenant("b"))].into());
    });
}
