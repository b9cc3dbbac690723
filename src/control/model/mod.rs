//! (tests) The removal protocol as a model: read it as the specification. [`stateright`] visits every state that a
//! bounded number of requests, writers, crashes, failures and lost answers can lead to, and checks each invariant in
//! each. `mistakes` plants the errors that the protocol exists to prevent and expects each to be caught.
//!
//! # Steps
//!
//! | step | who | what |
//! |---|---|---|
//! | `ledger.submit` | caller | durable, a generation of the one sequence; the answer may get lost, the same id again is the same request |
//! | `ledger.poll` | agent | what this storage has not acknowledged, one entry a scope; changes nothing. The agent takes any of the entries: a failed removal waits for its next attempt and others go on |
//! | `removal.fence` | agent | closes the fences of the tenants that are behind the generation, towards it |
//! | `removal.drain` | agent | waits until no lease is in progress there |
//! | `removal.hide` | agent | names leave the index; counters stay |
//! | `removal.trash` | agent | renames the epoch directories below the generation into `.trash/<generation>`, one at a time |
//! | `removal.delete` | agent | deletes one record, or one staged value, at a time: of the scope and below the generation, in the trash of whichever generation |
//! | `removal.verify` | agent | the scope is empty below the generation: live, trash, staging, names. Else the attempt fails |
//! | `removal.sync` | agent | what was deleted and renamed stays so |
//! | `removal.epoch` | agent | makes the new epoch directories |
//! | `removal.marker` | agent | the applied marker is durable; an error may mean that it is |
//! | `removal.counters` | agent | the scope's usage is zero |
//! | `ledger.ack` | agent | forward only; covers every earlier request that the scope includes; the answer may get lost |
//! | `removal.open` | agent | after that answer: the fence opens under the new epoch, unless closed towards a generation that is not acknowledged |
//! | `stage.create` | writer | a file in `.staging`, admitted while the fence is open; the epoch may have been told earlier, with the work |
//! | `publish.commit` | writer | three parts, as others may run between them: a lease (refused when closed, or the told epoch has passed), the rename into the directory it was admitted to, the name |
//!
//! A logical removal leaves out `removal.delete`, `removal.sync` and what `removal.verify` says of bytes; usage stays
//! until the trash is deleted, at leisure or at the next start. A request is done physically if anything physical
//! would be acknowledged with it, of any scope that its own includes.
//!
//! A crash takes memory and staging; a power loss may also undo every rename, creation and deletion since the last
//! `removal.sync`. A start polls (pending tenants stay closed and are neither scanned nor counted), empties staging
//! and trash, deletes epoch directories below the marker, and scans the others under the *marker's* epoch. A pending
//! request that the marker covers needs nothing but what follows the marker.
//!
//! # Invariants
//!
//! | name | of the RFC |
//! |---|---|
//! | an acknowledged removal left nothing | "Successful ACK means the exact requested scope is physically and internally empty"; for ever after |
//! | no other tenant lost a value | "A tenant request never deletes ... data belonging to another tenant" |
//! | nothing stale is published | "Old-generation writes and completions cannot commit after the clear boundary" |
//! | no ack before the marker; no marker before empty | "Cleanup failure never advances the applied marker, sends an ACK" |
//! | counters never lie | "... resets counters" |
//! | a failed attempt leaves nothing in sight | "Failed cleanup remains visible and retryable": the failure does, not the values |
//! | a request is never lost; an id is one request | "The master retains each request until every targeted stable storage identity ACKs"; "Polling is non-destructive and idempotent" |
//! | no ready before the ack | "`ScanMeta` and offload are blocked for a pending scope until cleanup is committed and acknowledged" |
//! | a global request dominates what is earlier, and nothing later | "a global clear fences all scopes and dominates earlier tenant requests" |
//! | logical is never reported physical | "do not report physical cleanup as completed" |
//!
//! Besides, every path ends with every request complete, and a value can be published after a removal.

mod invariants;
mod mistakes;
mod steps;
mod system;

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model, Property};

use self::mistakes::Mistake;
use self::system::*;
use crate::scope::Mode;

/// The protocol, with a bounded number of those who use it and of what goes wrong.
#[derive(Debug, Clone)]
struct Protocol {
    /// Who asks for removals, each once, in any order.
    callers: Vec<(Scope, Mode)>,
    /// The tenant of each value.
    owners: [usize; VALUES],
    /// Which writers there are.
    writes: [bool; WRITERS],
    /// Whether a writer is told its epoch first, with its work, and creates its file later.
    conditional: [bool; WRITERS],
    luck: Luck,
    /// Whether a crash may undo what was not synced: all of it, or nothing.
    power_loss: bool,
    /// Whether answers to `ledger.submit` and `ledger.ack` get lost.
    lost_answers: bool,
    /// Whether a second storage is a target.
    peer: bool,
    mistake: Option<Mistake>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    /// `ledger.submit`
    Submit {
        caller: usize,
        answered: bool,
    },
    /// The other storage applies and acknowledges something.
    PeerAcks(Pending),
    /// `ledger.poll`, and what the agent takes from it.
    Poll(Pending),
    /// The agent's next step succeeds.
    Step(Step),
    /// It fails before it has done anything.
    Fails(Step),
    /// `removal.marker` fails, and is durable all the same.
    MarkerUncertain,
    /// `ledger.ack` is recorded, and the answer is lost.
    AckUnanswered,
    /// A writer's next step.
    Write(usize),
    Evict(usize),
    /// Late deletion of what a logical removal left.
    Collect(usize),
    Crash,
    PowerLoss,
    /// The next step of a start.
    Recover(Phase),
}

impl Protocol {
    fn new(callers: &[(Scope, Mode)]) -> Protocol {
        Protocol {
            callers: callers.to_vec(),
            owners: [0, 1, 0, 1],
            writes: [false; WRITERS],
            conditional: [false; WRITERS],
            luck: Luck::default(),
            power_loss: false,
            lost_answers: false,
            peer: false,
            mistake: None,
        }
    }

    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }
}

impl Model for Protocol {
    type State = System;
    type Action = Action;

    fn init_states(&self) -> Vec<System> {
        let mut daemon = Daemon { phase: Phase::Up, usage: [Some(1); TENANTS], ..Daemon::default() };
        daemon.names[..TENANTS].fill(Some(0));
        vec![System {
            callers: vec![Caller::New; self.callers.len()],
            ledger: Ledger::default(),
            marker: Marks::default(),
            disk: Disk::fresh(),
            synced: Disk::fresh(),
            daemon,
            writers: Default::default(),
            luck: self.luck,
            seen: Seen::default(),
        }]
    }

    fn actions(&self, s: &System, actions: &mut Vec<Action>) {
        self.possible(s, actions);
    }

    fn next_state(&self, s: &System, action: Action) -> Option<System> {
        self.after(s, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        self.all_properties()
    }
}

/// A path as the steps of the protocol.
fn shown(actions: Vec<Action>) -> String {
    let line = |action: Action| match action {
        Action::Step(step) => step.name().to_owned(),
        Action::Fails(step) => format!("{} fails", step.name()),
        other => format!("{other:?}"),
    };
    actions.into_iter().map(|action| format!("\n  {}", line(action))).collect()
}

/// Checks every state there is. They are at least `least`, or the model has lost its subject.
fn holds(protocol: Protocol, least: usize) {
    let properties = protocol.all_properties();
    let checker = protocol.checker().spawn_bfs().join();
    let states = checker.unique_state_count();
    let mut found = checker.discoveries();
    for property in properties {
        match (property.expectation.discovery_is_failure(), found.remove(property.name)) {
            (true, Some(path)) => panic!("violated: {}{}", property.name, shown(path.into_actions())),
            (false, None) => panic!("impossible: {}", property.name),
            _ => {}
        }
    }
    println!("{states} states");
    assert!(states >= least, "only {states} states");
}

/// Checks that a mistake violates an invariant.
fn breaks(mut protocol: Protocol, mistake: Mistake, invariant: &'static str) {
    protocol.mistake = Some(mistake);
    let until = HasDiscoveries::AllOf(BTreeSet::from([invariant]));
    let checker = protocol.checker().finish_when(until).spawn_bfs().join();
    let states = checker.unique_state_count();
    let Some(path) = checker.discovery(invariant) else {
        panic!("{mistake:?} got through {states} states without violating: {invariant}");
    };
    println!("{states} states; {mistake:?} violates: {invariant}{}", shown(path.into_actions()));
}

const A: Scope = Scope::Tenant(0);
const B: Scope = Scope::Tenant(1);
const PHYSICAL: Mode = Mode::Physical;
const LOGICAL: Mode = Mode::Logical;

fn one_tenant() -> Protocol {
    let luck = Luck { crashes: 1, failures: 1, evictions: 1 };
    let writers =
        Protocol { writes: [true, true], conditional: [true, false], ..Protocol::new(&[(A, PHYSICAL)]) };
    Protocol { luck, ..writers }
}

fn tenant_and_global() -> Protocol {
    let luck = Luck { crashes: 1, ..Luck::default() };
    let callers = [(A, PHYSICAL), (Scope::Global, PHYSICAL)];
    Protocol { writes: [true, false], luck, power_loss: true, ..Protocol::new(&callers) }
}

fn writers_and_failure() -> Protocol {
    let luck = Luck { failures: 1, ..Luck::default() };
    let callers = [(A, PHYSICAL), (Scope::Global, PHYSICAL)];
    Protocol { writes: [true, true], conditional: [true, false], luck, ..Protocol::new(&callers) }
}

fn two_tenants() -> Protocol {
    let luck = Luck { crashes: 1, failures: 0, evictions: 1 };
    let callers = [(A, PHYSICAL), (B, PHYSICAL)];
    Protocol {
        writes: [true, false],
        conditional: [true; 2],
        luck,
        power_loss: true,
        ..Protocol::new(&callers)
    }
}

fn logical_tenant_and_global() -> Protocol {
    let callers = [(A, LOGICAL), (Scope::Global, PHYSICAL)];
    Protocol { callers: callers.to_vec(), ..tenant_and_global() }
}

fn tenant_and_logical_global() -> Protocol {
    let callers = [(A, PHYSICAL), (Scope::Global, LOGICAL)];
    let luck = Luck { crashes: 1, failures: 1, evictions: 0 };
    Protocol { callers: callers.to_vec(), luck, ..tenant_and_global() }
}

fn tenant_both_ways() -> Protocol {
    let luck = Luck { crashes: 1, failures: 1, evictions: 0 };
    Protocol { luck, power_loss: true, ..Protocol::new(&[(A, PHYSICAL), (A, LOGICAL)]) }
}

fn three_removals() -> Protocol {
    let luck = Luck { crashes: 1, ..Luck::default() };
    Protocol {
        luck,
        power_loss: true,
        ..Protocol::new(&[(A, PHYSICAL), (B, PHYSICAL), (Scope::Global, PHYSICAL)])
    }
}

fn tenant_both_ways_and_global() -> Protocol {
    let luck = Luck { crashes: 1, ..Luck::default() };
    Protocol { luck, ..Protocol::new(&[(A, PHYSICAL), (A, LOGICAL), (Scope::Global, PHYSICAL)]) }
}

fn two_crashes_and_lost_answers() -> Protocol {
    let luck = Luck { crashes: 2, ..Luck::default() };
    let callers = [(A, PHYSICAL), (Scope::Global, PHYSICAL)];
    Protocol { luck, power_loss: true, lost_answers: true, ..Protocol::new(&callers) }
}

fn two_storages() -> Protocol {
    let luck = Luck { crashes: 1, ..Luck::default() };
    Protocol { peer: true, luck, ..two_crashes_and_lost_answers() }
}

#[test]
fn one_tenant_holds() {
    holds(one_tenant(), 5_000);
}

#[test]
fn tenant_and_global_hold() {
    holds(tenant_and_global(), 10_000);
}

#[test]
fn writers_and_a_failure_hold() {
    holds(writers_and_failure(), 40_000);
}

#[test]
fn two_tenants_hold() {
    holds(two_tenants(), 50_000);
}

#[test]
fn a_logical_tenant_and_a_physical_global_hold() {
    holds(logical_tenant_and_global(), 10_000);
}

#[test]
fn a_physical_tenant_and_a_logical_global_hold() {
    holds(tenant_and_logical_global(), 50_000);
}

#[test]
fn one_tenant_both_ways_holds() {
    holds(tenant_both_ways(), 1_000);
}

#[test]
fn three_removals_hold() {
    holds(three_removals(), 40_000);
}

#[test]
fn a_tenant_both_ways_and_a_global_hold() {
    holds(tenant_both_ways_and_global(), 10_000);
}

#[test]
fn two_crashes_and_lost_answers_hold() {
    holds(two_crashes_and_lost_answers(), 30_000);
}

#[test]
fn two_storages_hold() {
    holds(two_storages(), 30_000);
}
