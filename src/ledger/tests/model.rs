//! Seeded runs of everything against a ledger that is a list, of every ledger.

use std::collections::BTreeSet;

use super::conformance::{Conforming, each_keeping};
use super::*;

/// A request, and who has yet to apply it. Nothing is derived, nothing dropped.
struct Made {
    scope: Scope,
    mode: Mode,
    id: Option<String>,
    targets: Vec<Uuid>,
    acked: Vec<Uuid>,
    retired: Vec<Uuid>,
}

impl Made {
    fn waits_for(&self, storage: Uuid) -> bool {
        self.targets.contains(&storage) && !self.acked.contains(&storage) && !self.retired.contains(&storage)
    }

    fn complete(&self) -> bool {
        self.targets.iter().all(|t| !self.waits_for(*t))
    }
}

#[derive(Default)]
struct List {
    made: Vec<Made>,
    live: Vec<Uuid>,
    retired: Vec<Uuid>,
}

impl List {
    /// One entry a scope: the newest request of it, physical where any that is acknowledged with it is.
    fn pending(&self, storage: Uuid) -> BTreeSet<(u64, Scope, Mode2)> {
        let open: Vec<(u64, &Made)> =
            (1..).zip(&self.made).filter(|(_, made)| made.waits_for(storage)).collect();
        let any_physical = open.iter().any(|(_, made)| made.mode == Mode::Physical);
        let scopes: BTreeSet<&Scope> = open.iter().map(|(_, made)| &made.scope).collect();
        let newest = |scope: &Scope| {
            let of: Vec<&(u64, &Made)> = open.iter().filter(|(_, made)| made.scope == *scope).collect();
            let physical = of.iter().any(|(_, made)| made.mode == Mode::Physical);
            let physical = physical || (*scope == Scope::Global && any_physical);
            (of.last().unwrap().0, scope.clone(), physical)
        };
        scopes.into_iter().map(newest).collect()
    }

    fn ack(&mut self, storage: Uuid, scope: &Scope, generation: u64) {
        for (_, made) in (1..=generation).zip(&mut self.made) {
            if (*scope == Scope::Global || made.scope == *scope) && made.waits_for(storage) {
                made.acked.push(storage);
            }
        }
    }
}

/// Whether it is physical: what orders in a set.
type Mode2 = bool;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        if of.is_empty() { None } else { Some(of[self.roll(of.len())].clone()) }
    }
}

#[test]
fn a_ledger_does_what_a_list_would() {
    for seed in 1..=6 {
        each_keeping(Kept { requests: 5, ids: 1000 }, |bench| run(bench, seed));
    }
}

fn run(bench: &mut dyn Conforming, seed: u64) {
    println!("seed {seed}");
    let (mut dice, mut list) = (Dice(seed), List::default());
    for _ in 0..150 {
        step(bench, &mut dice, &mut list);
        compare(&*bench.ledger(), &list, seed);
    }
}

fn step(bench: &mut dyn Conforming, dice: &mut Dice, list: &mut List) {
    let scopes = [Scope::Global, tenant("a"), tenant("b"), tenant("c")];
    match dice.roll(20) {
        0 if list.live.len() < 4 => list.live.push(bench.member()),
        1 if list.live.len() > 2 => {
            let gone = list.live.remove(dice.roll(list.live.len()));
            bench.ledger().forget(gone).unwrap();
            for made in list.made.iter_mut().filter(|made| made.waits_for(gone)) {
                made.retired.push(gone);
            }
            list.retired.push(gone);
        }
        2 => bench.reopen(),
        3..=8 => submit(&*bench.ledger(), dice, list, &scopes),
        9 => {
            let Some(storage) = dice.pick(&list.live) else { return };
            // Any number of any scope: refused, or covered, or as good as one that was polled.
            let (scope, generation) = (dice.pick(&scopes).unwrap(), dice.roll(list.made.len() + 2) as u64);
            let done = bench.ledger().ack(storage, &scope, Generation(generation));
            let right =
                generation > 0 && list.made.get(generation as usize - 1).is_some_and(|m| m.scope == scope);
            if done.is_ok() && right {
                list.ack(storage, &scope, generation);
            }
        }
        _ => {
            let Some(storage) = dice.pick(&list.live) else { return };
            let Some(next) = dice.pick(&bench.ledger().poll(storage).unwrap()) else { return };
            bench.ledger().ack(storage, &next.scope, next.generation).unwrap();
            list.ack(storage, &next.scope, next.generation.0);
        }
    }
}

fn submit(ledger: &dyn Ledger, dice: &mut Dice, list: &mut List, scopes: &[Scope]) {
    let scope = dice.pick(scopes).unwrap();
    let mode = if dice.roll(3) == 0 { Mode::Logical } else { Mode::Physical };
    let id = (dice.roll(2) == 0).then(|| format!("id{}", dice.roll(40)));
    let done = ledger.submit(&scope, mode, id.as_deref());
    let used = id.as_ref().and_then(|id| list.made.iter().position(|made| made.id.as_ref() == Some(id)));
    match used {
        Some(n) if list.made[n].scope == scope && list.made[n].mode == mode => {
            let done = done.unwrap();
            assert_eq!((done.fresh, done.request.generation.0), (false, n as u64 + 1));
            assert_eq!(done.request.state == State::Complete, list.made[n].complete());
        }
        Some(_) => assert_eq!(kind(done), Kind::Invalid),
        None => {
            let done = done.unwrap();
            assert_eq!((done.fresh, done.request.generation.0), (true, list.made.len() as u64 + 1));
            let targets = list.live.clone();
            list.made.push(Made { scope, mode, id, targets, acked: vec![], retired: vec![] });
        }
    }
}

fn compare(ledger: &dyn Ledger, list: &List, seed: u64) {
    assert_eq!(ledger.highest().unwrap().0, list.made.len() as u64, "seed {seed}");
    for storage in &list.live {
        let polled = ledger.poll(*storage).unwrap();
        assert!(polled.is_sorted_by_key(|p| p.generation), "seed {seed}");
        let polled: BTreeSet<(u64, Scope, Mode2)> =
            polled.into_iter().map(|p| (p.generation.0, p.scope, p.mode == Mode::Physical)).collect();
        let owed = list.pending(*storage);
        let numbers = |set: &BTreeSet<(u64, Scope, Mode2)>| -> Vec<(u64, Scope)> {
            set.iter().map(|(generation, scope, _)| (*generation, scope.clone())).collect()
        };
        assert_eq!(numbers(&polled), numbers(&owed), "seed {seed}");
        for ((_, scope, polled), (_, _, owed)) in polled.iter().zip(&owed) {
            assert!(polled >= owed, "seed {seed}: {scope} must be physical");
        }
    }
    let kept = ledger.requests().unwrap();
    for (generation, made) in (1..).zip(&list.made) {
        match kept.iter().find(|r| r.generation.0 == generation) {
            Some(request) => {
                assert_eq!(request.state == State::Complete, made.complete(), "seed {seed}: {generation}");
                assert_eq!((&request.scope, request.mode), (&made.scope, made.mode));
                let sorted = |of: &[Uuid]| of.iter().copied().collect::<BTreeSet<_>>();
                assert_eq!(sorted(&request.acked), sorted(&made.acked), "seed {seed}: {generation}");
                assert_eq!(sorted(&request.retired), sorted(&made.retired), "seed {seed}: {generation}");
            }
            None => assert!(made.complete(), "seed {seed}: {generation} was dropped"),
        }
    }
}
