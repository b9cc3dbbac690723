//! (tests) The transitions: every step of the protocol, every step of those who write meanwhile, and everything that
//! may go wrong.

use super::mistakes::Mistake;
use super::system::*;
use super::{Action, Protocol};
use crate::scope::Mode;

/// A physical removal. `removal.open` waits for the answer to `ledger.ack`.
const PHYSICAL: [Step; 12] = [
    Step::Fence,
    Step::Drain,
    Step::Hide,
    Step::Trash,
    Step::Delete,
    Step::Verify,
    Step::Sync,
    Step::Epoch,
    Step::Marker,
    Step::Counters,
    Step::Ack,
    Step::Open,
];

/// A logical one leaves the records in the trash, promises nothing about the disk, and stays counted.
const LOGICAL: [Step; 10] = [
    Step::Fence,
    Step::Drain,
    Step::Hide,
    Step::Trash,
    Step::Verify,
    Step::Epoch,
    Step::Marker,
    Step::Counters,
    Step::Ack,
    Step::Open,
];

impl Protocol {
    /// The steps of a removal, in order.
    pub(super) fn plan(&self, mode: Mode) -> Vec<Step> {
        let mut plan = match mode {
            Mode::Physical => PHYSICAL.to_vec(),
            Mode::Logical => LOGICAL.to_vec(),
        };
        let mut shift = |step: Step, before: Step| {
            plan.retain(|s| *s != step);
            let at = plan.iter().position(|s| *s == before).unwrap_or(plan.len());
            plan.insert(at, step);
        };
        match self.mistake {
            Some(Mistake::AckBeforeMarker) => shift(Step::Ack, Step::Epoch),
            Some(Mistake::MarkerBeforeDelete) => shift(Step::Marker, Step::Delete),
            Some(Mistake::OpenBeforeAck) => shift(Step::Open, Step::Ack),
            Some(Mistake::TrashBeforeHide) => shift(Step::Trash, Step::Hide),
            Some(Mistake::NoSync) => plan.retain(|s| *s != Step::Sync),
            Some(Mistake::NoDrain) => plan.retain(|s| *s != Step::Drain),
            _ => {}
        }
        plan
    }

    /// `ledger.poll`: what a storage has not acknowledged, one entry a scope. It changes nothing.
    pub(super) fn poll(&self, ledger: &Ledger, storage: usize) -> Vec<Pending> {
        let acked = &ledger.watermarks[storage];
        let open = |scope: &Scope| {
            let floor = ledger.floors.of(*scope);
            floor > 0 && !acked.covers(*scope, floor)
        };
        let entry = |scope: Scope| {
            let generation = ledger.floors.of(scope);
            // An acknowledgement of this entry acknowledges each of these.
            let mut covered = ledger.requests.iter().filter(|r| match self.mistake {
                Some(Mistake::ModeOfTheFloor) => r.scope == scope && r.generation == generation,
                Some(Mistake::ModeOfOneScope) => r.scope == scope && !acked.covers(r.scope, r.generation),
                _ => {
                    scope.includes(r.scope)
                        && r.generation <= generation
                        && !acked.covers(r.scope, r.generation)
                }
            });
            let physical = covered.any(|r| r.mode == Mode::Physical);
            Pending { scope, generation, mode: if physical { Mode::Physical } else { Mode::Logical } }
        };
        Scope::ALL.into_iter().filter(open).map(entry).collect()
    }

    /// `ledger.submit`: the same id again is the same request.
    fn submit(&self, s: &mut System, caller: usize) {
        let known = s.ledger.requests.iter().any(|r| r.caller == caller);
        if known && !self.is(Mistake::RepeatIsNew) {
            return;
        }
        let (scope, mode) = self.callers[caller];
        let generation = match self.mistake {
            Some(Mistake::CountersPerScope) => s.ledger.floors.of(scope) + 1,
            _ => s.ledger.requests.len() as Number + 1,
        };
        let mut doomed = [false; VALUES];
        for (value, doomed) in doomed.iter_mut().enumerate() {
            *doomed = scope.has(self.owners[value]) && s.daemon.names[value].is_some();
        }
        s.ledger.requests.push(Request { caller, scope, mode, generation, doomed, reported: None });
        s.ledger.floors.advance(scope, generation);
    }

    /// `ledger.ack`: only forward. Covers every earlier request that the scope includes.
    fn acknowledge(&self, s: &mut System, what: Pending) {
        let acked = s.ledger.watermarks[0];
        for r in &mut s.ledger.requests {
            let covered = what.scope.includes(r.scope) && r.generation <= what.generation;
            if covered && !acked.covers(r.scope, r.generation) {
                r.reported = Some(what.mode);
            }
        }
        s.ledger.sent.advance(what.scope, what.generation);
        s.ledger.watermarks[0].advance(what.scope, what.generation);
        if self.is(Mistake::AckTooFar) && what.scope == Scope::Global {
            s.ledger.watermarks[0].tenants = s.ledger.floors.tenants;
        }
    }

    /// The agent takes an entry of the poll. Where the marker covers it, only what follows the marker is left.
    fn take(&self, s: &mut System, what: Pending) {
        if self.is(Mistake::DestructivePoll) {
            s.ledger.floors.set(what.scope, 0);
        }
        let plan = self.plan(what.mode);
        let resumed = plan.iter().position(|step| *step == Step::Counters).unwrap_or(0);
        let at = if s.marker.covers(what.scope, what.generation) { resumed } else { 0 };
        s.daemon.work = Some(Work { what, at });
    }

    /// What a removal removes from.
    fn reach(&self, what: Pending) -> Scope {
        if self.is(Mistake::GlobalInstead) { Scope::Global } else { what.scope }
    }

    /// The tenants that a removal advances: those of its scope that no later one has gone beyond.
    fn affected(&self, s: &System, what: Pending) -> Vec<usize> {
        let reach = self.reach(what);
        let behind = |t: &usize| reach.has(*t) && s.daemon.fences[*t].epoch < what.generation;
        (0..TENANTS).filter(behind).collect()
    }

    /// What is there to delete: a record of the scope in the trash, below the generation.
    fn trashed(&self, s: &System, what: Pending) -> Option<usize> {
        let trash = |place| match place {
            Place::Live => false,
            Place::Trash(of) => !self.is(Mistake::OwnTrashAlone) || of == what.generation,
        };
        (0..VALUES).find(|&value| {
            let owner = self.owners[value];
            let below = |r: Record| r.dir < what.generation && s.disk.dir(owner, r.dir).is_some_and(trash);
            self.reach(what).has(owner) && s.disk.records[value].is_some_and(below)
        })
    }

    /// The same, in `.staging`.
    fn staged(&self, s: &System, what: Pending) -> Option<usize> {
        (0..WRITERS).filter(|_| !self.is(Mistake::StagedStays)).find(|&w| {
            let below = s.writers[w].staged().is_some_and(|epoch| epoch < what.generation);
            self.reach(what).has(self.owners[TENANTS + w]) && below
        })
    }

    /// `removal.verify`: whether the scope is empty below the generation, on disk and in memory.
    fn is_empty(&self, s: &System, what: Pending) -> bool {
        let live = s.disk.first_dir(what.scope, what.generation, |place| place == Place::Live);
        let named = (0..VALUES).any(|value| {
            what.scope.has(self.owners[value]) && s.daemon.names[value].is_some_and(|e| e < what.generation)
        });
        let kept = what.mode == Mode::Physical
            && !self.is(Mistake::NoVerify)
            && (self.trashed(s, what).is_some() || self.staged(s, what).is_some());
        live.is_none() && !named && !kept
    }

    /// The agent's next step succeeds. `None` where it has to wait.
    fn advance(&self, s: &mut System) -> Option<()> {
        let work = s.daemon.work?;
        let (what, plan) = (work.what, self.plan(work.what.mode));
        let mut done = true;
        match plan[work.at] {
            Step::Fence => {
                for tenant in self.affected(s, what) {
                    s.daemon.fences[tenant].close(what.generation);
                    s.seen.fenced_for[tenant] = s.seen.fenced_for[tenant].max(what.generation);
                }
            }
            Step::Drain => {
                let affected = self.affected(s, what);
                let leased =
                    |w: usize| s.writers[w].has_lease() && affected.contains(&self.owners[TENANTS + w]);
                if (0..WRITERS).any(leased) {
                    return None;
                }
            }
            Step::Hide => {
                for value in 0..VALUES {
                    let gone = self.affected(s, what).contains(&self.owners[value]);
                    s.daemon.names[value].take_if(|epoch| gone && *epoch < what.generation);
                }
            }
            Step::Trash => {
                let live = |place| place == Place::Live;
                if let Some((tenant, epoch)) = s.disk.first_dir(self.reach(what), what.generation, live) {
                    s.disk.dirs[tenant][usize::from(epoch)] = Some(Place::Trash(what.generation));
                    done = false;
                }
            }
            Step::Delete => done = self.delete_one(s, what),
            Step::Verify if !self.is_empty(s, what) => {
                s.daemon.work = None;
                return Some(());
            }
            Step::Verify => {}
            Step::Sync => s.synced = s.disk,
            Step::Epoch => {
                for tenant in self.affected(s, what) {
                    s.disk.make_dir(tenant, what.generation);
                }
            }
            Step::Marker => s.marker.advance(what.scope, what.generation),
            Step::Counters => {
                for tenant in self.affected(s, what) {
                    let left =
                        if what.mode == Mode::Physical { 0 } else { s.disk.count(&self.owners, tenant) };
                    s.daemon.usage[tenant] = Some(left);
                }
            }
            Step::Ack => self.acknowledge(s, what),
            Step::Open => self.open(s, what),
        }
        s.daemon.work = match (done, work.at + 1 < plan.len()) {
            (false, _) => Some(work),
            (true, true) => Some(Work { at: work.at + 1, ..work }),
            (true, false) => None,
        };
        Some(())
    }

    /// `removal.delete`: one record, or one staged value; at last the emptied directories. Whether that was all.
    fn delete_one(&self, s: &mut System, what: Pending) -> bool {
        if let Some(value) = self.trashed(s, what) {
            let owner = self.owners[value];
            s.disk.records[value] = None;
            // Left by a logical removal of a tenant that has gone beyond this one, and is open: counted until now.
            if !self.affected(s, what).contains(&owner) {
                s.daemon.usage[owner] = s.daemon.usage[owner].map(|n| n.saturating_sub(1));
            }
            return false;
        }
        if let Some(w) = self.staged(s, what) {
            s.writers[w] = Writer::Done;
            return false;
        }
        let trash = |place| place != Place::Live;
        while let Some((tenant, epoch)) = s.disk.first_dir(self.reach(what), what.generation, trash) {
            let holds =
                |v: usize| self.owners[v] == tenant && s.disk.records[v].is_some_and(|r| r.dir == epoch);
            if (0..VALUES).any(holds) {
                break;
            }
            s.disk.dirs[tenant][usize::from(epoch)] = None;
        }
        true
    }

    /// `removal.open`: under the new epoch, unless a later removal has closed the fence.
    fn open(&self, s: &mut System, what: Pending) {
        for tenant in (0..TENANTS).filter(|t| self.reach(what).has(*t)) {
            let fence = &mut s.daemon.fences[tenant];
            fence.epoch = fence.epoch.max(what.generation);
            // Not by the fence's epoch: after a start that is the marker's, which the ledger may not know yet.
            let acked = if self.is(Mistake::OpensByEpoch) { fence.epoch } else { what.generation };
            if self.is(Mistake::OpensForAll) || fence.closed_towards <= Some(acked) {
                fence.closed_towards = None;
                if s.daemon.usage[tenant].is_none() {
                    self.scan(s, tenant);
                }
            }
        }
    }

    /// Makes a tenant's epoch directory where it is missing, and takes over what is in it.
    fn scan(&self, s: &mut System, tenant: usize) {
        let epoch = s.daemon.fences[tenant].epoch;
        s.disk.make_dir(tenant, epoch);
        for value in (0..VALUES).filter(|v| self.owners[*v] == tenant) {
            let here = |r: &Record| r.dir == epoch || self.is(Mistake::Revives);
            s.daemon.names[value] = s.disk.records[value].filter(here).map(|r| r.epoch);
        }
        s.daemon.usage[tenant] = Some(s.disk.count(&self.owners, tenant));
    }

    /// The agent's step fails, before it has done anything; the attempt ends, the fence stays closed.
    fn fail(&self, s: &mut System) -> Option<()> {
        let work = s.daemon.work?;
        let plan = self.plan(work.what.mode);
        let marked = plan.iter().position(|step| *step == Step::Marker)?;
        if work.at > marked || matches!(plan[work.at], Step::Fence | Step::Drain | Step::Hide) {
            return None;
        }
        s.luck.failures -= 1;
        if self.is(Mistake::NoVerify) && plan[work.at] == Step::Delete {
            s.daemon.work = Some(Work { at: work.at + 1, ..work });
            return Some(());
        }
        if self.is(Mistake::CountersOnFailure) {
            for tenant in self.affected(s, work.what) {
                s.daemon.usage[tenant] = Some(0);
            }
        }
        s.daemon.work = None;
        Some(())
    }

    /// A writer's next step.
    fn write(&self, s: &mut System, w: usize) -> Option<()> {
        let (value, owner) = (TENANTS + w, self.owners[TENANTS + w]);
        let fence = s.daemon.fences[owner];
        s.writers[w] = match s.writers[w] {
            Writer::Idle if self.conditional[w] => Writer::Told(fence.epoch),
            Writer::Idle if fence.is_open() => Writer::Staged { told: fence.epoch, admitted: fence.epoch },
            Writer::Told(told) if fence.is_open() => Writer::Staged { told, admitted: fence.epoch },
            Writer::Idle | Writer::Told(_) | Writer::Done => return None,
            Writer::Staged { told, admitted } => {
                let current = told == fence.epoch || self.is(Mistake::NoEpochCheck);
                if current && fence.is_open() { Writer::Leased { told, admitted } } else { Writer::Done }
            }
            // Through the descriptor of the epoch directory that it was admitted to, wherever that is now.
            Writer::Leased { told, admitted } => {
                let dir = if self.is(Mistake::NoEpochCheck) { fence.epoch } else { admitted };
                if s.disk.dir(owner, dir).is_some() {
                    s.disk.records[value] = Some(Record { dir, epoch: told });
                    Writer::Committed { told }
                } else {
                    Writer::Done
                }
            }
            Writer::Committed { told } => {
                s.daemon.names[value] = Some(told);
                s.daemon.usage[owner] = s.daemon.usage[owner].map(|n| n + 1);
                Writer::Done
            }
        };
        Some(())
    }

    /// Eviction of a value with a name, or the late deletion of one that a logical removal left in the trash.
    fn discard(&self, s: &mut System, value: usize) {
        let owner = self.owners[value];
        s.disk.records[value] = None;
        s.daemon.names[value] = None;
        s.daemon.usage[owner] = s.daemon.usage[owner].map(|n| n.saturating_sub(1));
    }

    fn is_collectable(&self, s: &System, value: usize) -> bool {
        let owner = self.owners[value];
        let in_trash = |r: Record| matches!(s.disk.dir(owner, r.dir), Some(Place::Trash(_)));
        let idle = s.daemon.work.is_none() && s.daemon.fences[owner].is_open();
        idle && s.disk.records[value].is_some_and(in_trash)
    }

    fn crash(&self, s: &mut System, power: bool) {
        s.luck.crashes -= 1;
        s.daemon = Daemon::default();
        s.seen = Seen { wronged: s.seen.wronged, ..Seen::default() };
        for writer in &mut s.writers {
            // Work that was given out is still out there; what was staged is lost with its process.
            if !matches!(writer, Writer::Idle | Writer::Told(_)) {
                *writer = Writer::Done;
            }
        }
        if power {
            s.disk = s.synced;
        }
    }

    /// The next step of a start: learn what is pending, clean up, take over what is left.
    fn recover(&self, s: &mut System) {
        match s.daemon.phase {
            Phase::Down => {
                let pending = self.poll(&s.ledger, 0);
                for tenant in 0..TENANTS {
                    let acked = s.ledger.watermarks[0].epoch_of(tenant);
                    let of_tenant = pending.iter().filter(|p| p.scope.has(tenant)).map(|p| p.generation);
                    let towards = of_tenant.filter(|g| *g > acked).max();
                    s.seen.pending_at_start[tenant] = towards.unwrap_or(0);
                    s.seen.fenced_for[tenant] = towards.unwrap_or(0);
                    let scanned_anyway = self.is(Mistake::ScansPending);
                    s.daemon.fences[tenant] = Fence {
                        epoch: s.marker.epoch_of(tenant),
                        closed_towards: towards.filter(|_| !scanned_anyway),
                    };
                }
                s.daemon.phase = Phase::Polled;
            }
            Phase::Polled => {
                let trash = |place| place != Place::Live;
                while let Some(dir) = s.disk.first_dir(Scope::Global, EPOCHS as Number, trash) {
                    s.disk.remove_dir(&self.owners, dir);
                }
                for tenant in (0..TENANTS).filter(|_| !self.is(Mistake::Revives)) {
                    let below = s.marker.epoch_of(tenant);
                    let garbage = |disk: &Disk| disk.first_dir(Scope::Tenant(tenant), below, |_| true);
                    while let Some(dir) = garbage(&s.disk).filter(|_| !self.is(Mistake::EpochFromNames)) {
                        s.disk.remove_dir(&self.owners, dir);
                    }
                }
                s.daemon.phase = Phase::Cleaned;
            }
            Phase::Cleaned => {
                for tenant in 0..TENANTS {
                    if self.is(Mistake::EpochFromNames) {
                        let highest =
                            (0..EPOCHS as Number).rev().find(|epoch| s.disk.dir(tenant, *epoch).is_some());
                        s.daemon.fences[tenant].epoch = highest.unwrap_or(0);
                    }
                    if s.daemon.fences[tenant].is_open() {
                        self.scan(s, tenant);
                    } else if self.is(Mistake::UncountedIsZero) {
                        s.daemon.usage[tenant] = Some(0);
                    }
                }
                s.daemon.phase = Phase::Up;
            }
            Phase::Up => {}
        }
    }

    /// Everything that may happen next.
    pub(super) fn possible(&self, s: &System, actions: &mut Vec<Action>) {
        for (caller, state) in s.callers.iter().enumerate().filter(|(_, c)| **c != Caller::Answered) {
            actions.push(Action::Submit { caller, answered: true });
            if *state == Caller::New && self.lost_answers {
                actions.push(Action::Submit { caller, answered: false });
            }
        }
        if self.peer {
            actions.extend(self.poll(&s.ledger, 1).into_iter().map(Action::PeerAcks));
        }
        if s.daemon.phase != Phase::Down && s.luck.crashes > 0 {
            actions.push(Action::Crash);
            if s.disk != s.synced {
                actions.push(Action::PowerLoss);
            }
        }
        if s.daemon.phase != Phase::Up {
            actions.push(Action::Recover(s.daemon.phase));
            return;
        }
        match s.daemon.work {
            None => actions.extend(self.poll(&s.ledger, 0).into_iter().map(Action::Poll)),
            Some(work) => {
                let step = self.plan(work.what.mode)[work.at];
                actions.push(Action::Step(step));
                if s.luck.failures > 0 {
                    actions.push(Action::Fails(step));
                }
                if step == Step::Marker && s.luck.failures > 0 {
                    actions.push(Action::MarkerUncertain);
                }
                if step == Step::Ack && self.lost_answers {
                    actions.push(Action::AckUnanswered);
                }
            }
        }
        actions.extend((0..WRITERS).filter(|w| self.writes[*w]).map(Action::Write));
        for value in 0..VALUES {
            let open = s.daemon.fences[self.owners[value]].is_open();
            if s.daemon.names[value].is_some() && open && s.luck.evictions > 0 {
                actions.push(Action::Evict(value));
            }
            if self.is_collectable(s, value) {
                actions.push(Action::Collect(value));
            }
        }
    }

    /// What follows from an action; `None` where it cannot happen.
    pub(super) fn after(&self, before: &System, action: Action) -> Option<System> {
        let mut s = before.clone();
        match action {
            Action::Submit { caller, answered } => {
                self.submit(&mut s, caller);
                s.callers[caller] = if answered { Caller::Answered } else { Caller::Unanswered };
            }
            Action::PeerAcks(what) => s.ledger.watermarks[1].advance(what.scope, what.generation),
            Action::Poll(what) => self.take(&mut s, what),
            Action::Step(_) => self.advance(&mut s)?,
            Action::Fails(_) => self.fail(&mut s)?,
            Action::MarkerUncertain => {
                self.advance(&mut s)?;
                s.luck.failures -= 1;
                s.daemon.work = None;
            }
            Action::AckUnanswered => self.acknowledge(&mut s, before.daemon.work?.what),
            Action::Write(w) => self.write(&mut s, w)?,
            Action::Evict(value) => {
                s.luck.evictions -= 1;
                self.discard(&mut s, value);
            }
            Action::Collect(value) => self.discard(&mut s, value),
            Action::Crash => self.crash(&mut s, false),
            Action::PowerLoss => self.crash(&mut s, true),
            Action::Recover(_) => self.recover(&mut s),
        }
        if s.luck.crashes == 0 || !self.power_loss {
            s.synced = s.disk;
        }
        s.seen.wronged |= self.wronged(before, &s, action);
        Some(s)
    }

    /// Whether a value went, from the disk or from sight, that nobody asked to go.
    fn wronged(&self, before: &System, after: &System, action: Action) -> bool {
        let asked = |value: usize, epoch: Number| {
            let covers = |r: &Request| r.scope.has(self.owners[value]) && r.generation > epoch;
            action == Action::Evict(value) || after.ledger.requests.iter().any(covers)
        };
        (0..VALUES).any(|value| {
            let unsynced = action == Action::PowerLoss && before.synced.records[value].is_none();
            let record =
                before.disk.records[value].filter(|_| after.disk.records[value].is_none() && !unsynced);
            let dead = after.daemon.phase == Phase::Down;
            let name = before.daemon.names[value].filter(|_| after.daemon.names[value].is_none() && !dead);
            record.is_some_and(|r| !asked(value, r.epoch)) || name.is_some_and(|epoch| !asked(value, epoch))
        })
    }
}
