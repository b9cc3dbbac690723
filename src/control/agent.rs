//! The agent: what is pending at the ledger is applied to the store, acknowledged, and the scope opened again.
//!
//! One thread looks at the ledger whenever something may have changed and starts an attempt a scope; attempts run on
//! threads of their own, so that one tenant's long or failing removal holds up no other. A global removal runs alone.
//! A failed attempt is repeated with growing pauses until it succeeds.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak, mpsc};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::config::limits;
use crate::error::{Error, Result};
use crate::ledger::{Ledger, Pending, Request, Standing};
use crate::scope::{Generation, Mode, Scope};
use crate::store::Store;
use crate::store::remove::ScopeState;

#[derive(Debug)]
pub(super) struct Agent {
    store: Arc<Store>,
    ledger: Arc<dyn Ledger>,
    work: Mutex<Work>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Work {
    woken: bool,
    stop: bool,
    ended: bool,
    /// Attempts under way.
    running: BTreeMap<Scope, Generation>,
    /// Failed attempts in a row, and when the next one is due.
    failed: BTreeMap<Scope, Pause>,
    /// Requests that are not complete.
    open: BTreeMap<Generation, Scope>,
    /// The ledger may know others, or that one is complete.
    uncounted: bool,
    /// The highest generation, as a ledger that answers said last.
    heard: Option<Generation>,
    /// How often `open` was changed: what the ledger said before the last change does not count.
    changes: u64,
    /// The trash may hold what no removal waits for.
    garbage: bool,
    collecting: bool,
    collect_after: Option<Pause>,
    listeners: Vec<mpsc::Sender<Generation>>,
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    failures: u32,
    until: Instant,
}

impl Pause {
    fn after(last: Option<Pause>) -> Pause {
        let failures = last.map_or(0, |p| p.failures) + 1;
        let pause = limits::FIRST_RETRY * 2_u32.saturating_pow(failures - 1);
        Pause { failures, until: Instant::now() + pause.min(limits::LAST_RETRY) }
    }

    fn is_over(this: Option<&Pause>, now: Instant) -> bool {
        this.is_none_or(|p| p.until <= now)
    }
}

impl Work {
    /// What can be attempted now. A global removal waits for those under way, and everything else waits for it: what
    /// is older it takes along, what is newer comes after it.
    fn startable(&self, pending: &[Pending], now: Instant) -> Vec<Pending> {
        let is_due = |p: &&Pending| Pause::is_over(self.failed.get(&p.scope), now);
        if let Some(global) = pending.iter().find(|p| p.scope == Scope::Global) {
            return Some(global)
                .filter(is_due)
                .filter(|_| self.running.is_empty())
                .cloned()
                .into_iter()
                .collect();
        }
        if self.running.contains_key(&Scope::Global) {
            return Vec::new();
        }
        let idle = limits::REMOVALS_AT_ONCE.saturating_sub(self.running.len());
        let due = pending.iter().filter(|p| !self.running.contains_key(&p.scope)).filter(is_due);
        due.take(idle).cloned().collect()
    }

    /// When the next pause ends of those that were not over when last looked at. What was due then and could not start
    /// waits for an attempt, whose end is told.
    fn next_due(&self, looked: Instant) -> Option<Instant> {
        let pauses = self.failed.values().chain(&self.collect_after).map(|p| p.until);
        pauses.filter(|until| *until > looked).min()
    }

    /// Open requests that a removal settles, one way or the other.
    fn settled_by(&self, scope: &Scope, generation: Generation) -> Vec<Generation> {
        let covered = self.open.range(..=generation).filter(|(_, of)| scope.includes(of));
        covered.map(|(generation, _)| *generation).collect()
    }

    fn recount(&mut self, open: BTreeMap<Generation, Scope>) {
        let before = std::mem::replace(&mut self.open, open);
        let settled: Vec<_> = before.into_keys().filter(|g| !self.open.contains_key(g)).collect();
        self.uncounted = false;
        self.tell(&settled);
    }

    fn take_on(&mut self, request: &Request) {
        self.open.insert(request.generation, request.scope.clone());
        self.changes += 1;
    }

    fn tell(&mut self, generations: &[Generation]) {
        for generation in generations {
            self.listeners.retain(|listener| listener.send(*generation).is_ok());
        }
    }
}

impl Agent {
    pub(super) fn start(store: Arc<Store>, ledger: Arc<dyn Ledger>) -> Result<Arc<Agent>> {
        let heard = ledger.poll_every().and_then(|_| ledger.highest().ok());
        let open = ledger.unfinished()?;
        let work = Work { woken: true, garbage: true, open, heard, ..Work::default() };
        let agent = Arc::new(Agent { store, ledger, work: Mutex::new(work), changed: Condvar::new() });
        let running = Arc::clone(&agent);
        spawn("fencefs-removals", move || running.run())?;
        if agent.ledger.poll_every().is_some() {
            let (agent, ledger) = (Arc::downgrade(&agent), Arc::clone(&agent.ledger));
            spawn("fencefs-heard", move || watch(&agent, &*ledger))?;
        }
        Ok(agent)
    }

    /// Ends attempts where they are, and waits for that.
    pub(super) fn stop(&self) {
        self.store.stop_removals();
        let mut work = self.work.lock();
        work.stop = true;
        self.changed.notify_all();
        while !work.ended {
            self.changed.wait(&mut work);
        }
    }

    /// Has the agent look at the ledger.
    pub(super) fn wake(&self) {
        self.work.lock().woken = true;
        self.changed.notify_all();
    }

    /// A request was made. It may be settled by now: then nobody comes back to it but the next count.
    pub(super) fn take_on(&self, request: &Request) {
        let open = self.ledger.unfinished();
        let is_complete = open.as_ref().is_ok_and(|open| !open.contains_key(&request.generation));
        if let Err(e) = open {
            log::warn!("cannot look at request {} again: {e}", request.generation);
        }
        let mut work = self.work.lock();
        work.heard = work.heard.map(|heard| heard.max(request.generation));
        if !is_complete {
            work.take_on(request);
            work.uncounted = true;
        }
        work.woken = true;
        self.changed.notify_all();
    }

    /// What the ledger says may have changed by another way than an attempt: a submission failed, perhaps only to be
    /// answered; another storage acknowledged, or was retired.
    pub(super) fn look_for_changes(&self) {
        let mut work = self.work.lock();
        (work.uncounted, work.woken) = (true, true);
        self.changed.notify_all();
    }

    /// Ends the pauses of a scope and of those that include it, or of all.
    pub(super) fn retry(&self, scope: Option<&Scope>) {
        let mut work = self.work.lock();
        work.failed.retain(|failed, _| scope.is_some_and(|scope| !failed.includes(scope)));
        work.collect_after = None;
        work.woken = true;
        self.changed.notify_all();
    }

    pub(super) fn outcomes(&self) -> mpsc::Receiver<Generation> {
        let (sender, receiver) = mpsc::channel();
        self.work.lock().listeners.push(sender);
        receiver
    }

    pub(super) fn open_count(&self) -> usize {
        self.work.lock().open.len()
    }

    pub(super) fn open_requests(&self) -> BTreeMap<Generation, Scope> {
        self.work.lock().open.clone()
    }

    /// Whether an attempt is under way that a request is part of.
    pub(super) fn is_running(&self, scope: &Scope, generation: Generation) -> bool {
        self.work.lock().running.iter().any(|(of, g)| of.includes(scope) && *g >= generation)
    }

    /// The closed scope whose removal a request is part of.
    pub(super) fn covering(&self, scope: &Scope, generation: Generation) -> Option<ScopeState> {
        [&Scope::Global, scope]
            .into_iter()
            .filter_map(|s| self.store.scope_state(s))
            .find(|s| s.generation >= generation)
    }

    fn run(self: &Arc<Self>) {
        let mut looked = Instant::now();
        loop {
            {
                let mut work = self.work.lock();
                while !work.woken && !work.stop {
                    // What others do wakes nobody here.
                    let polled = self.ledger.poll_every().map(|pause| looked + pause);
                    match work.next_due(looked).into_iter().chain(polled).min() {
                        None => self.changed.wait(&mut work),
                        Some(due) => {
                            if self.changed.wait_until(&mut work, due).timed_out() {
                                break;
                            }
                        }
                    }
                }
                // It was an interval that ended, or it may just as well have been.
                work.uncounted |= self.ledger.poll_every().is_some() && !work.open.is_empty();
                work.woken = false;
                if work.stop {
                    while !work.running.is_empty() || work.collecting {
                        self.changed.wait(&mut work);
                    }
                    work.ended = true;
                    self.changed.notify_all();
                    return;
                }
            }
            looked = Instant::now();
            if let Err(e) = self.look(looked) {
                self.work.lock().heard = None;
                log::warn!("cannot look for pending removals: {e}");
                self.store.note_error(format!("cannot look for pending removals: {e}"));
                let mut work = self.work.lock();
                let pause = self.ledger.poll_every().unwrap_or_default().max(limits::LEDGER_RETRY);
                let again = Instant::now() + pause;
                while !work.stop && !self.changed.wait_until(&mut work, again).timed_out() {}
                work.woken = true;
            }
        }
    }

    /// How this storage stands, at a ledger that has what this storage was asked for.
    pub(super) fn require_no_loss(&self) -> Result<Standing> {
        let storage = self.store.storage();
        let standing = self.ledger.standing(storage.identity())?;
        storage.require_no_loss(&*self.ledger, &standing)?;
        Ok(standing)
    }

    pub(super) fn heard(&self) -> Option<Generation> {
        self.work.lock().heard
    }

    /// Starts what is due.
    fn look(self: &Arc<Self>, now: Instant) -> Result<()> {
        let standing = self.require_no_loss()?;
        self.store.storage().note_asked(&standing)?;
        let pending = standing.pending;
        self.open_acknowledged(&pending);
        self.recount()?;
        let mut work = self.work.lock();
        work.heard = Some(standing.highest);
        for removal in work.startable(&pending, now) {
            work.running.insert(removal.scope.clone(), removal.generation);
            let agent = Arc::clone(self);
            let Pending { scope, generation, .. } = removal.clone();
            if let Err(e) = spawn("fencefs-removal", move || agent.attempt(&removal)) {
                work.running.remove(&scope);
                drop(work);
                self.store.note_removal_failed(&scope, generation, &e);
                return Err(e);
            }
        }
        if work.garbage && !work.collecting && Pause::is_over(work.collect_after.as_ref(), now) {
            (work.collecting, work.garbage) = (true, false);
            let agent = Arc::clone(self);
            if let Err(e) = spawn("fencefs-trash", move || agent.collect()) {
                (work.collecting, work.garbage) = (false, true);
                return Err(e);
            }
        }
        Ok(())
    }

    /// Counts what is open. Not under the lock, since a coordinator may be slow to answer; so the answer counts only if
    /// nothing was changed meanwhile.
    fn recount(&self) -> Result<()> {
        let before = Some(self.work.lock()).filter(|work| work.uncounted).map(|work| work.changes);
        let Some(before) = before else { return Ok(()) };
        let open = self.ledger.unfinished()?;
        let mut work = self.work.lock();
        if work.changes == before {
            work.recount(open);
        } else {
            work.woken = true;
        }
        Ok(())
    }

    /// Scopes that are closed though the ledger has their acknowledgement: its answer was lost, or opening failed.
    fn open_acknowledged(&self, pending: &[Pending]) {
        for (scope, state) in self.store.closed_scopes() {
            let is_pending = pending.iter().any(|p| p.scope == scope || p.scope == Scope::Global);
            let is_running = !self.work.lock().running.is_empty();
            if !is_pending && !is_running && self.store.storage().applied().covers(&scope, state.generation) {
                let done = self.store.open_scope(&scope, state.generation);
                self.settle(&scope, state.generation, done);
            }
        }
    }

    fn attempt(&self, removal: &Pending) {
        let done = self.apply(removal);
        self.work.lock().garbage |= removal.mode == Mode::Logical;
        self.settle(&removal.scope, removal.generation, done);
        self.wake();
    }

    /// Applied before a restart, a removal needs no more than its acknowledgement.
    fn apply(&self, removal: &Pending) -> Result<()> {
        let Pending { scope, generation, .. } = removal;
        let storage = self.store.storage();
        if !storage.applied().covers(scope, *generation) {
            self.store.remove(removal)?;
            // That took its time: it may be another ledger by now, with another request of the same generation.
            self.require_no_loss()?;
        }
        if let Err(e) = self.ledger.ack(storage.identity(), scope, *generation) {
            // Perhaps only the answer was lost: what is no longer pending was recorded.
            let pending = self.ledger.poll(storage.identity())?;
            if pending.iter().any(|p| p.scope == *scope && p.generation >= *generation) {
                return Err(e);
            }
        }
        self.store.open_scope(scope, *generation)
    }

    /// Notes how an attempt ended, which makes room for the next, and tells who waits for it.
    fn settle(&self, scope: &Scope, generation: Generation, done: Result<()>) {
        match &done {
            Ok(()) => log::info!("removed {scope} up to generation {generation}"),
            // It goes on at the next start.
            Err(_) if self.store.is_stopping() => {
                self.work.lock().running.remove(scope);
                return;
            }
            Err(e) => {
                log::error!("removal {generation} of {scope} failed and will be tried again: {e}");
                self.store.note_removal_failed(scope, generation, e);
                if let Err(e) = self.ledger.note_failure(generation, &e.to_string()) {
                    log::warn!("cannot note the failure of removal {generation}: {e}");
                }
            }
        }
        let settled = self.work.lock().settled_by(scope, generation);
        // With several targets, another's acknowledgement may be missing.
        let open = self.ledger.unfinished();
        let is_complete = |g: &Generation| open.as_ref().is_ok_and(|open| !open.contains_key(g));
        let complete: Vec<_> = settled.iter().copied().filter(|g| done.is_ok() && is_complete(g)).collect();
        let mut work = self.work.lock();
        work.running.remove(scope);
        work.changes += 1;
        work.uncounted |= done.is_ok() && complete.len() < settled.len();
        match done {
            Ok(()) => {
                work.failed.retain(|failed, _| !scope.includes(failed));
                work.open.retain(|g, _| !complete.contains(g));
            }
            Err(_) => {
                let pause = Pause::after(work.failed.get(scope).copied());
                work.failed.insert(scope.clone(), pause);
            }
        }
        work.tell(&settled);
    }

    fn collect(&self) {
        let collected = self.store.collect_trash();
        let mut work = self.work.lock();
        work.collecting = false;
        match collected {
            Ok(_) => work.collect_after = None,
            Err(_) if self.store.is_stopping() => {}
            Err(e) => {
                log::warn!("what was removed logically cannot be deleted yet: {e}");
                self.store.note_error(format!("cannot empty the trash: {e}"));
                work.collect_after = Some(Pause::after(work.collect_after));
                work.garbage = true;
            }
        }
        work.woken = true;
        self.changed.notify_all();
    }
}

/// Has the agent look whenever the ledger says that there is something. It does not wait for that: it looks by itself,
/// too. Nobody waits for this thread either, which may hang on a coordinator that says nothing.
fn watch(agent: &Weak<Agent>, ledger: &dyn Ledger) {
    let is_over = || agent.upgrade().is_none_or(|agent| agent.work.lock().stop);
    let heard = || {
        if let Some(agent) = agent.upgrade() {
            agent.wake();
        }
    };
    while !is_over() {
        if let Err(e) = ledger.watch(&heard) {
            log::debug!("nobody tells of requests: {e}");
            std::thread::sleep(limits::LEDGER_RETRY);
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(run);
    spawned.map(drop).map_err(|e| Error::os(format!("cannot start the thread {name}"), e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Tenant;
    use std::time::Duration;

    fn pending(tenant: &str) -> Pending {
        let scope = Scope::Tenant(Tenant::new(tenant.as_bytes()).unwrap());
        Pending { scope, generation: Generation(1), mode: Mode::Physical }
    }

    #[test]
    fn a_failed_removal_waits_longer_each_time_and_holds_up_no_other() {
        let (a, b) = (pending("a"), pending("b"));
        let mut work = Work::default();
        let mut pauses = Vec::new();
        for _ in 0..3 {
            let pause = Pause::after(work.failed.get(&a.scope).copied());
            pauses.push(pause.until - Instant::now());
            work.failed.insert(a.scope.clone(), pause);
        }
        assert!(pauses.is_sorted(), "{pauses:?}");
        assert!(pauses[2] > limits::FIRST_RETRY * 3, "{pauses:?}");
        let now = Instant::now();
        assert_eq!(work.startable(&[a.clone(), b.clone()], now), std::slice::from_ref(&b));
        assert_eq!(work.next_due(now), Some(work.failed[&a.scope].until));
        let later = now + Duration::from_secs(60);
        assert_eq!(work.startable(&[a.clone(), b], later).first(), Some(&a));
    }

    #[test]
    fn an_attempt_under_way_is_neither_repeated_nor_looked_for() {
        let a = pending("a");
        let mut work = Work::default();
        work.failed.insert(a.scope.clone(), Pause { failures: 1, until: Instant::now() });
        let looked = Instant::now();
        let alone = std::slice::from_ref(&a);
        assert_eq!(work.startable(alone, looked), alone);
        work.running.insert(a.scope.clone(), a.generation);
        assert_eq!(work.startable(&[a], looked), []);
        assert_eq!(work.next_due(looked), None, "the agent sleeps until the attempt ends");
    }

    #[test]
    fn a_global_removal_is_alone() {
        let (a, b) = (pending("a"), pending("b"));
        let all = Pending { scope: Scope::Global, generation: Generation(2), mode: Mode::Physical };
        let mut work = Work::default();
        let now = Instant::now();
        work.running.insert(a.scope.clone(), a.generation);
        assert_eq!(work.startable(&[all.clone(), b.clone()], now), []);
        work.running.clear();
        assert_eq!(work.startable(&[b.clone(), all.clone()], now), [all]);
        work.running.insert(Scope::Global, Generation(2));
        assert_eq!(work.startable(&[b], now), []);
    }
}
