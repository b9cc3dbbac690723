//! Removals as the control file asks for them, and as they stand: the ledger's word with what this storage knows of
//! itself on top.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use uuid::Uuid;

use super::agent::Agent;
use crate::config::{Coordinator, EtcdSettings, StoreSettings, limits};
use crate::error::{Error, Kind, Result};
use crate::ledger::{
    EtcdLedger, Ledger, LocalLedger, Pending, Request, RequestName, State, StorageStatus, Submitted,
};
use crate::scope::{Generation, Mode, Scope};
use crate::store::{Store, StoreRoot};

/// An open store and its removals.
#[derive(Debug)]
pub struct Removals {
    store: Arc<Store>,
    ledger: Arc<dyn Ledger>,
    agent: Arc<Agent>,
}

impl Removals {
    /// Opens (creates, locks, recovers) the store at `root`, and begins to carry out what is pending. `progress` is
    /// called with a phase and a count.
    pub fn open(
        root: &Path,
        settings: &StoreSettings,
        coordinator: &Coordinator,
        progress: &mut dyn FnMut(&str, u64),
    ) -> Result<Arc<Removals>> {
        let root = StoreRoot::lock(root)?;
        let ledger: Arc<dyn Ledger> = match coordinator {
            Coordinator::Local => Arc::new(LocalLedger::new(Arc::clone(root.ledger()))),
            Coordinator::Etcd(settings) => Arc::new(EtcdLedger::new(settings)?),
        };
        reached(&*ledger, progress, || root.storage().take_part(&*ledger))?;
        // What is pending is closed before anybody sees the mount: without this answer there is none.
        let standing = reached(&*ledger, progress, || ledger.standing(root.storage_id()))?;
        root.storage().require_no_loss(&*ledger, &standing)?;
        root.storage().note_asked(&standing)?;
        let store = Store::open(root, settings, &standing.pending, progress)?;
        let agent = Agent::start(Arc::clone(&store), Arc::clone(&ledger))?;
        Ok(Arc::new(Removals { store, ledger, agent }))
    }

    /// Ends what is under way where it is, and leaves the checkpoint of a clean stop. Called once, after the last
    /// mount is gone.
    pub fn close(&self) -> Result<()> {
        self.agent.stop();
        self.ledger.leave(self.store.storage().identity());
        self.store.close()
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// What the status calls the coordinator.
    pub fn coordinator(&self) -> String {
        self.ledger.coordinator()
    }

    /// The highest generation requested. Of a coordinator as last heard, since a status does not wait for one; absent while
    /// it does not answer.
    pub fn highest(&self) -> Option<Generation> {
        if self.is_shared() { self.agent.heard() } else { self.ledger.highest().ok() }
    }

    /// Whether others have to do with the ledger.
    pub fn is_shared(&self) -> bool {
        self.ledger.poll_every().is_some()
    }

    /// Every storage that takes part; nobody where the ledger is the store's own.
    pub fn storages(&self) -> Result<Vec<StorageStatus>> {
        self.ledger.storages()
    }

    /// Requests that are not complete.
    pub fn pending_count(&self) -> usize {
        self.agent.open_count()
    }

    /// Asks for a removal. Durable when it returns; does not wait for the removal.
    ///
    /// # Errors
    /// [`Kind::UnknownTenant`]; [`Kind::UnprovenOwnership`] where a physical removal of a tenant would meet what is not
    /// proven to be its own: then nothing has changed, the ledger included.
    pub fn submit(&self, scope: &Scope, mode: Mode, id: Option<&str>) -> Result<Submitted> {
        let known = id.and_then(|id| self.ledger.request(&RequestName::Id(id.to_owned())).ok());
        let is_known = known.is_some_and(|known| (&known.scope, known.mode) == (scope, mode));
        if let Some(tenant) = scope.tenant()
            && !is_known
        {
            self.store.home(tenant)?;
            if mode == Mode::Physical {
                self.store.prove_ownership(scope)?;
            }
        }
        self.agent.require_no_loss()?;
        let submitted = self.ledger.submit(scope, mode, id);
        if submitted.is_err() {
            self.agent.look_for_changes();
        }
        let Submitted { request, fresh } = submitted?;
        if fresh {
            self.agent.take_on(&request);
        }
        Ok(Submitted { request: self.as_of_now(request), fresh })
    }

    /// A request, in its state of now.
    pub fn request(&self, name: &RequestName) -> Result<Request> {
        self.ledger.request(name).map(|r| self.as_of_now(r))
    }

    /// Every request that is kept, in its state of now, oldest first.
    pub fn requests(&self) -> Result<Vec<Request>> {
        Ok(self.ledger.requests()?.into_iter().map(|r| self.as_of_now(r)).collect())
    }

    /// How many requests there are in each state, without asking a coordinator: of its complete ones nothing is said.
    pub fn counts(&self) -> Result<BTreeMap<State, u64>> {
        let mut counts = BTreeMap::new();
        if self.is_shared() {
            let states = [State::Pending, State::Removing, State::Applied, State::Failed];
            counts.extend(states.map(|state| (state, 0)));
            for (generation, scope) in self.agent.open_requests() {
                *counts.entry(self.state_here(&scope, generation).0).or_default() += 1;
            }
        } else {
            let states = [State::Pending, State::Removing, State::Applied, State::Complete, State::Failed];
            counts.extend(states.map(|state| (state, 0)));
            for request in self.requests()? {
                *counts.entry(request.state).or_default() += 1;
            }
        }
        Ok(counts)
    }

    /// Records that this storage's removal for a request has deleted so far.
    pub fn deleted_records(&self, request: &Request) -> u64 {
        self.store().removed_records(&request.scope, request.generation)
    }

    /// The generations whose attempts end from now on: acknowledged, or failed. Each end is told once, after
    /// [`Removals::request`] shows it.
    pub fn outcomes(&self) -> mpsc::Receiver<Generation> {
        self.agent.outcomes()
    }

    /// Waits until every scope is open: what was pending at the start has been applied. `progress` is called with the
    /// records deleted so far.
    ///
    /// # Errors
    /// [`Kind::Busy`] once an attempt has failed.
    pub fn wait_until_open(&self, progress: &mut dyn FnMut(&str, u64)) -> Result<()> {
        let outcomes = self.outcomes();
        loop {
            // An attempt of an earlier start says nothing of this one.
            let state = self.store.status().state;
            if state == "ready" {
                return Ok(());
            }
            if state == "failed"
                && let Some(failed) = self.requests()?.into_iter().find(|r| r.state == State::Failed)
            {
                let why = failed.last_error.unwrap_or_default();
                return Err(Error::new(
                    Kind::Busy,
                    format!(
                        "{} is still being removed (generation {}): {why}",
                        failed.scope, failed.generation
                    ),
                ));
            }
            progress("removed records", self.store.counters.removed_records.load(Ordering::Relaxed));
            // An end is told a moment before its scope opens.
            if let Err(mpsc::RecvTimeoutError::Disconnected) = outcomes.recv_timeout(limits::STAGED_POLL) {
                return Err(Error::new(Kind::Busy, "the store is being closed"));
            }
        }
    }

    /// Attempts failed removals again, at once: one, or all.
    pub fn retry(&self, generation: Option<Generation>) -> Result<()> {
        let request = generation.map(|g| self.ledger.request(&RequestName::Generation(g))).transpose()?;
        self.agent.retry(request.as_ref().map(|r| &r.scope));
        Ok(())
    }

    /// What a storage has not acknowledged.
    pub fn poll(&self, storage: Uuid) -> Result<Vec<Pending>> {
        self.ledger.poll(storage)
    }

    /// Acknowledges for a storage. For this one only what it has applied.
    pub fn ack(&self, storage: Uuid, scope: &Scope, generation: Generation) -> Result<()> {
        let own = self.store.storage();
        if storage == own.identity() && !own.applied().covers(scope, generation) {
            return Err(Error::new(
                Kind::Invalid,
                format!(
                    "this storage has not applied generation {generation} of {scope}, and cannot acknowledge it"
                ),
            ));
        }
        let done = self.ledger.ack(storage, scope, generation);
        // Also after an error: perhaps only the answer was lost.
        self.agent.look_for_changes();
        done
    }

    /// Retires a storage identity for good; not the one that is open here.
    pub fn forget(&self, storage: Uuid) -> Result<()> {
        if storage == self.store.storage().identity() {
            return Err(Error::new(
                Kind::Invalid,
                format!("storage {storage} is the one that is mounted here; it cannot be forgotten"),
            ));
        }
        let done = self.ledger.forget(storage);
        self.agent.look_for_changes();
        done
    }

    /// The ledger keeps what all agree on; what this storage is doing is known here.
    fn as_of_now(&self, mut request: Request) -> Request {
        if request.state == State::Complete {
            return request;
        }
        match self.state_here(&request.scope, request.generation) {
            (State::Pending, _) => {}
            (State::Failed, why) => (request.state, request.last_error) = (State::Failed, why),
            (state, _) => request.state = state,
        }
        request
    }

    /// How far this storage is with a request that is not complete, and why its last attempt failed.
    fn state_here(&self, scope: &Scope, generation: Generation) -> (State, Option<String>) {
        let is_running = self.agent.is_running(scope, generation);
        if !is_running
            && let Some(state) = self.agent.covering(scope, generation)
            && state.failed.is_some()
        {
            // What was applied may have failed to be acknowledged.
            (State::Failed, state.failed)
        } else if self.store.storage().applied().covers(scope, generation) {
            (State::Applied, None)
        } else if is_running {
            (State::Removing, None)
        } else {
            (State::Pending, None)
        }
    }
}

/// What a coordinator answers, asked until it does: a host may start before the cluster has its quorum.
fn reached<T>(
    ledger: &dyn Ledger,
    progress: &mut dyn FnMut(&str, u64),
    ask: impl Fn() -> Result<T>,
) -> Result<T> {
    let began = Instant::now();
    loop {
        let why = match ask() {
            Err(e) if e.kind() == Kind::Unreachable => e,
            other => return other,
        };
        log::warn!("not mounted yet, the coordinator does not answer: {why}");
        let waited = began.elapsed().as_secs();
        progress(&format!("seconds of waiting for the coordinator {} ({why})", ledger.coordinator()), waited);
        std::thread::sleep(limits::LEDGER_RETRY);
    }
}

/// Has the ledger of a fleet count as it is, though it went backwards: the generation that it was at, and the one that it
/// goes on after.
pub fn bump_at(settings: &EtcdSettings) -> Result<(Generation, Generation)> {
    EtcdLedger::new(settings)?.bump()
}

/// Retires a storage identity at the ledger of a store that is not mounted; not the store's own.
pub fn forget_at(root: &Path, storage: Uuid) -> Result<()> {
    let root = StoreRoot::lock(root)?;
    if let Some(coordinator) = root.storage().coordinator()? {
        return Err(Error::new(
            Kind::Invalid,
            format!(
                "this store takes part in the ledger {coordinator}: forget it at a mount that does as well"
            ),
        ));
    }
    if storage == root.storage_id() {
        return Err(Error::new(
            Kind::Invalid,
            format!("storage {storage} is this store itself; it cannot be forgotten in its own ledger"),
        ));
    }
    LocalLedger::new(Arc::clone(root.ledger())).forget(storage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Tenant;
    use crate::ledger::tests::etcd_server::EtcdServer;
    use std::time::Duration;

    fn open(store: &Path, coordinator: &Coordinator) -> Arc<Removals> {
        Removals::open(store, &StoreSettings::default(), coordinator, &mut |_, _| {}).unwrap()
    }

    fn wait_until(condition: impl Fn() -> bool) -> bool {
        let end = Instant::now() + Duration::from_secs(60);
        while !condition() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
        condition()
    }

    /// Acknowledged here, a request is open until its other target has acknowledged it.
    #[test]
    fn a_request_of_two_targets_is_pending_until_both_have_acknowledged_it() {
        let dir = tempfile::tempdir().unwrap();
        let removals = open(&dir.path().join("store"), &Coordinator::Local);
        let other = Uuid::new_v4();
        removals.ledger.register(other, &[], Uuid::new_v4()).unwrap();
        let scope = Scope::Tenant(Tenant::default_tenant());
        let outcomes = removals.outcomes();
        let made = removals.submit(&scope, Mode::Physical, None).unwrap().request;
        assert_eq!(outcomes.recv_timeout(Duration::from_secs(60)), Ok(made.generation));
        assert!(wait_until(|| removals.store().closed_scopes().is_empty()));
        assert_eq!(removals.pending_count(), 1);
        removals.ack(other, &scope, made.generation).unwrap();
        assert!(wait_until(|| removals.pending_count() == 0));
        let now = removals.request(&RequestName::Generation(made.generation)).unwrap();
        assert_eq!(now.state, State::Complete);
        removals.close().unwrap();
    }

    /// Two hosts and one etcd: a request made at one is carried out by both, and complete when both have acknowledged it.
    #[test]
    fn two_stores_at_one_coordinator_carry_out_what_either_was_asked() {
        let Some(server) = EtcdServer::shared() else { return };
        let dir = tempfile::tempdir().unwrap();
        let coordinator = Coordinator::Etcd(server.settings());
        let [one, two] = ["one", "two"].map(|name| open(&dir.path().join(name), &coordinator));
        let scope = Scope::Tenant(Tenant::default_tenant());
        let made = one.submit(&scope, Mode::Physical, Some("both")).unwrap().request;
        let name = RequestName::Id("both".into());
        assert!(wait_until(|| two.request(&name).unwrap().state == State::Complete));
        let request = one.request(&name).unwrap();
        let storages = [&one, &two].map(|r| r.store().storage().identity());
        assert!(storages.iter().all(|id| request.acked.contains(id)), "{request:?}");
        for removals in [&one, &two] {
            assert!(removals.store().storage().covers(&scope, made.generation));
            assert!(wait_until(|| removals.pending_count() == 0));
        }
        // One that is away holds up the next, which is complete when it is back.
        two.close().unwrap();
        drop(two);
        let made = one.submit(&Scope::Global, Mode::Physical, None).unwrap().request;
        assert!(wait_until(|| one.store().storage().covers(&Scope::Global, made.generation)));
        let name = RequestName::Generation(made.generation);
        assert!(wait_until(|| one.request(&name).unwrap().acked == [storages[0]]));
        assert_ne!(one.request(&name).unwrap().state, State::Complete);
        let two = open(&dir.path().join("two"), &coordinator);
        assert!(wait_until(|| one.request(&name).unwrap().state == State::Complete));
        assert!(wait_until(|| one.pending_count() == 0));
        for removals in [one, two] {
            removals.close().unwrap();
        }
    }

    /// A daemon whose coordinator is gone serves, refuses what it cannot record, and goes on when it is back.
    #[test]
    fn without_its_coordinator_a_store_serves_and_refuses_requests() {
        let Some(mut server) = EtcdServer::start(&[]) else { return };
        let dir = tempfile::tempdir().unwrap();
        let coordinator = Coordinator::Etcd(server.settings());
        let store = dir.path().join("store");
        let removals = open(&store, &coordinator);
        server.stop();
        let scope = Scope::Tenant(Tenant::default_tenant());
        let e = removals.submit(&scope, Mode::Physical, Some("x")).unwrap_err();
        assert_eq!(e.kind(), Kind::Unreachable, "{e}");
        assert!(e.to_string().contains(&server.endpoint()), "{e}");
        assert_eq!(removals.store().status().state, "ready");
        server.start_again();
        let made = removals.submit(&scope, Mode::Physical, Some("x")).unwrap().request;
        assert_eq!(made.generation, Generation(1));
        let name = RequestName::Generation(made.generation);
        assert!(wait_until(|| removals.request(&name).unwrap().state == State::Complete));
        removals.close().unwrap();
        drop(removals);

        // A start waits for the first answer, and says for whom.
        server.stop();
        let said = std::sync::Mutex::new(Vec::new());
        let removals = std::thread::scope(|s| {
            let started = s.spawn(|| {
                let mut tell = |phase: &str, _| said.lock().unwrap().push(phase.to_owned());
                Removals::open(&store, &StoreSettings::default(), &coordinator, &mut tell).unwrap()
            });
            let is_waiting = || said.lock().unwrap().iter().any(|p| p.contains(&server.endpoint()));
            assert!(wait_until(is_waiting));
            assert!(!started.is_finished());
            server.start_again();
            started.join().unwrap()
        });
        assert_eq!(removals.request(&name).unwrap().state, State::Complete);
        removals.close().unwrap();
    }
}
