//! A removal: everything that a scope held below a generation goes, and nothing else.
//!
//! Steps, in order, each a fail point of this name; `hide` and `epoch` for each tenant, `trash` for each directory,
//! `delete` for each record:
//!
//! | step | what | afterwards |
//! |---|---|---|
//! | `removal.fence` | close the fences of the scope | no new mutation; what was admitted and not committed is stale |
//! | `removal.drain` | wait for the leases in progress | every commit of an older epoch has happened |
//! | `removal.hide` | names leave the index, kernels forget, values being written are given up | ENOENT, whatever the disk does |
//! | `removal.trash` | rename the epoch directories into `.trash` (on a full disk: delete them where they are) | no older path exists to commit to |
//! | `removal.delete` | delete what is in the trash, record by record | (a logical removal leaves this for later) |
//! | `removal.verify` | look again: trash, staging, names | physically and internally empty |
//! | `removal.sync` | syncfs | stays deleted when power is lost |
//! | `removal.epoch` | make the new epoch's directories | there is a place for what comes next |
//! | `ledger.marker` | the applied marker | this generation is never applied again |
//! | `removal.counters` | usage of the scope is zero | |
//!
//! `removal.legacy` comes for each file of the scope in an attached directory, before `removal.delete`, whatever the mode.
//! Some have more: `removal.trashed` when the last rename is done, `removal.staged` before a staged value is unlinked,
//! `removal.stranger` before one is set aside, `removal.epoch.sync` before a new directory is made durable.
//!
//! Then the agent acknowledges, and `removal.open` opens the fences under the new epoch. Any step may fail: the scope
//! stays closed, what it counted stays counted, and the whole may be repeated from the start.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use super::index::{Index, NodeId};
use super::tenants::Home;
use super::{Event, Store};
use crate::config::limits;
use crate::error::{Error, Kind, Result};
use crate::format::layout;
use crate::key::{Epoch, Tenant};
use crate::ledger::Pending;
use crate::os::{Dir, EntryType, Timespec};
use crate::scope::{Generation, Mode, Scope};

/// What to remove: a request that this storage has not applied.
pub type Removal = Pending;

/// A scope that is closed.
#[derive(Debug, Clone)]
pub struct ScopeState {
    /// The generation that it is being removed for.
    pub generation: Generation,
    /// Why the last attempt failed.
    pub failed: Option<String>,
    deleted: Arc<AtomicU64>,
}

impl ScopeState {
    /// Records deleted so far.
    pub fn deleted_records(&self) -> u64 {
        self.deleted.load(Ordering::Relaxed)
    }
}

/// The scopes that are closed: pending since the start, being removed, or not yet acknowledged.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    closed: BTreeMap<Scope, ScopeState>,
    /// The last that were opened, for who asks what was removed.
    opened: VecDeque<(Scope, ScopeState)>,
}

impl Scopes {
    pub(super) fn new(pending: &[Pending]) -> Scopes {
        let mut scopes = Scopes::default();
        for p in pending {
            scopes.close(&p.scope, p.generation);
        }
        scopes
    }

    fn close(&mut self, scope: &Scope, generation: Generation) -> &mut ScopeState {
        let fresh = || ScopeState { generation, failed: None, deleted: Arc::default() };
        let state = self.closed.entry(scope.clone()).or_insert_with(fresh);
        state.generation = state.generation.max(generation);
        state
    }

    /// The epoch that a closed tenant will have when it opens.
    pub(super) fn epoch_of(&self, tenant: &Tenant) -> Option<Epoch> {
        self.of(tenant).map(|s| s.generation.into()).max()
    }

    pub(super) fn of(&self, tenant: &Tenant) -> impl Iterator<Item = &ScopeState> {
        self.closed.iter().filter(move |(scope, _)| scope.includes_tenant(tenant)).map(|(_, state)| state)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &ScopeState> {
        self.closed.values()
    }
}

impl Store {
    /// One attempt at a removal, up to the counters. May be repeated, also after a restart.
    ///
    /// # Errors
    /// Whatever the disk says, with the path; the scope stays closed and counted. [`Kind::Busy`] when the store is
    /// being closed.
    pub fn remove(&self, removal: &Removal) -> Result<()> {
        self.attempt(removal).map_err(|e| self.with_advice(e))
    }

    /// What a person can do about a disk that permits no deletion: root is refused by an attribute of the file or of its
    /// directory alone.
    fn with_advice(&self, e: Error) -> Error {
        if e.errno() != libc::EPERM {
            return e;
        }
        let advice = format!(
            "in the store {}; lsattr -a shows whether it or its directory is immutable or append-only, chattr -i -a takes \
             that away; it is tried again by itself, at once by fencefs retry",
            self.root.path.display()
        );
        Error::new(e.kind(), format!("{e} ({advice})"))
    }

    fn attempt(&self, removal: &Removal) -> Result<()> {
        let Removal { scope, generation, mode } = removal;
        step!("removal.fence");
        let (homes, deleted) = self.close_scope(scope, *generation);
        step!("removal.drain");
        homes.iter().for_each(|home| home.fence.drain());
        self.hide_scope(&homes, *generation)?;
        self.trash_scope(scope, *generation, &deleted)?;
        self.clear_attached(scope, &deleted)?;
        if *mode == Mode::Physical {
            for trashed in self.trash_of(scope, *generation)? {
                self.delete_trashed(&trashed, &deleted)?;
            }
            *self.proven.lock() = Arc::default();
        }
        step!("removal.verify");
        self.verify_removed(removal)?;
        self.verify_attached(scope)?;
        step!("removal.sync");
        rustix::fs::syncfs(&self.data).map_err(|e| Error::os("cannot sync the store after a removal", e))?;
        self.sync_attached()?;
        match self.new_epochs(&homes, *generation) {
            Err(e) if e.is_full_disk() => {
                // What a logical removal leaves for later serves now.
                for home in &homes {
                    let top = self.ensure_top(home)?;
                    self.turn_trashed(&top, &home.tenant, (*generation).into(), &deleted)?;
                }
                self.new_epochs(&homes, *generation)?;
            }
            done => done?,
        }
        self.root.storage.mark(scope, *generation)?;
        step!("removal.counters");
        let mut index = self.index.lock();
        for home in &homes {
            match mode {
                Mode::Physical => index.forget_hidden(home.number),
                Mode::Logical => index.discard_hidden(home.number),
            }
        }
        drop(index);
        self.settle_trash();
        self.wake_keeper();
        Ok(())
    }

    /// Closes a scope's fences towards `generation`. Tenants that are made meanwhile are born closed.
    fn close_scope(&self, scope: &Scope, generation: Generation) -> (Vec<Arc<Home>>, Arc<AtomicU64>) {
        let _names = self.tenant_changes.lock();
        let deleted = {
            let mut scopes = self.scopes.lock();
            let state = scopes.close(scope, generation);
            state.failed = None;
            Arc::clone(&state.deleted)
        };
        let homes: Vec<_> = self.homes_in(scope);
        homes.iter().for_each(|home| home.fence.close(generation.into()));
        (homes, deleted)
    }

    pub(super) fn homes_in(&self, scope: &Scope) -> Vec<Arc<Home>> {
        let index = self.index.lock();
        let homes = index.tenants.iter().filter(|t| t.live && scope.includes_tenant(&t.home.tenant));
        homes.map(|t| Arc::clone(&t.home)).collect()
    }

    /// Renames every older epoch directory of the scope into the trash, whether the index knows its tenant or not.
    fn trash_scope(&self, scope: &Scope, generation: Generation, deleted: &AtomicU64) -> Result<()> {
        for entry in self.tenants_dir.entries()? {
            let Ok(tenant) = Tenant::new(&entry.name) else { continue };
            if entry.kind != EntryType::Dir || !scope.includes_tenant(&tenant) {
                continue;
            }
            let named = |e: Error| e.context(format!("{}/{}/{tenant}", layout::DATA, layout::TENANTS));
            let Some(top) = self.tenants_dir.open_dir_if_any(&entry.name).map_err(named)? else { continue };
            for entry in top.entries().map_err(named)? {
                match layout::parse_epoch(&entry.name).filter(|_| entry.kind == EntryType::Dir) {
                    Some(epoch) if epoch < generation.into() => {
                        self.take_epoch(&top, &tenant, epoch, generation, deleted)?;
                    }
                    Some(_) => {}
                    None => self.keep_beside_epochs(&top, &tenant, &entry.name)?,
                }
            }
        }
        step!("removal.trashed");
        Ok(())
    }

    fn keep_beside_epochs(&self, top: &Dir, tenant: &Tenant, name: &[u8]) -> Result<()> {
        let at = format!("{}/{}/{tenant}", layout::DATA, layout::TENANTS);
        self.keep_stranger(tenant, top, name, &at, "it is no epoch directory")
    }

    /// Hides what the scope's tenants held: nobody finds any of it any more, nor believes in it. Before the disk is
    /// touched, whose errors would otherwise leave in sight what the caller was promised is gone.
    fn hide_scope(&self, homes: &[Arc<Home>], generation: Generation) -> Result<()> {
        let is_older = |home: &&Arc<Home>| home.epoch < generation.into();
        let mut forgetting = Vec::new();
        for home in homes {
            step!("removal.hide");
            if is_older(&home) {
                forgetting.push((home, self.hide(home)));
            }
        }
        for (home, forgotten) in forgetting {
            // Ends when the other end is dropped. Whoever is too slow finds out when it asks: nothing opens any more.
            if forgotten.recv_timeout(limits::FORGET_WAIT) == Err(mpsc::RecvTimeoutError::Timeout) {
                log::warn!("the kernel is slow to forget the removed keys of tenant {}", home.tenant);
            }
        }
        homes.iter().filter(is_older).try_for_each(|home| self.give_up_staged(home))
    }

    /// Takes every key of a tenant, spelled by a path or not, out of the index, and has whoever caches them forget them,
    /// which is done when the receiver hangs up.
    fn hide(&self, home: &Home) -> mpsc::Receiver<()> {
        let (directory, unspelled) = {
            let index = self.index.lock();
            let tenant = &index.tenants[home.number as usize];
            (tenant.node, tenant.unspelled)
        };
        let mut known = Vec::new();
        let mut below = vec![directory, unspelled];
        while let Some(&dir) = below.last() {
            // In pieces, so that others get at the index and at the processor.
            let mut index = self.index.lock();
            let children = index.children(dir, limits::HIDDEN_AT_ONCE);
            if children.is_empty() {
                below.pop();
                if dir != directory && dir != unspelled {
                    hide_one(&mut index, dir, &mut known);
                }
                continue;
            }
            for child in children {
                if index.dir(child).is_ok_and(|d| !d.children.is_empty()) {
                    below.push(child);
                } else {
                    hide_one(&mut index, child, &mut known);
                }
            }
            parking_lot::MutexGuard::unlock_fair(index);
            std::thread::yield_now();
        }
        let (forgotten, wait) = mpsc::channel();
        let name = home.tenant.as_str().as_bytes().into();
        self.tell(Event::Emptied { directory, name, known, forgotten });
        wait
    }

    /// Looks again, at the disk and in memory.
    fn verify_removed(&self, removal: &Removal) -> Result<()> {
        let left =
            |what: String| Err(Error::new(Kind::NotEmpty, format!("{what} is left after the removal")));
        let Removal { scope, generation, mode } = removal;
        if *mode == Mode::Physical
            && let Some(trashed) = self.trash_of(scope, *generation)?.first()
        {
            return left(trashed.shown());
        }
        for home in self.homes_in(scope) {
            for entry in home.top.entries()? {
                if layout::parse_epoch(&entry.name).is_none_or(|e| e < (*generation).into()) {
                    return left(format!("data/t/{}/{}", home.tenant, entry.name.escape_ascii()));
                }
            }
            if home.epoch < (*generation).into() {
                if !self.index.lock().is_empty(home.number) {
                    return left(format!("a name of tenant {}", home.tenant));
                }
                if let Some(name) = self.staged_below(&home)? {
                    return left(format!("data/{}/{name}", layout::STAGING));
                }
            }
        }
        Ok(())
    }

    fn new_epochs(&self, homes: &[Arc<Home>], generation: Generation) -> Result<()> {
        homes.iter().try_for_each(|home| self.new_epoch(home, generation))
    }

    /// Makes a tenant's new epoch directory and has the index use it. The fence is closed still.
    fn new_epoch(&self, home: &Home, generation: Generation) -> Result<()> {
        step!("removal.epoch");
        let epoch = Epoch::from(generation);
        if home.epoch >= epoch {
            return Ok(());
        }
        let shown = format!("{}/{}/{}/{epoch}", layout::DATA, layout::TENANTS, home.tenant);
        let top = self.ensure_top(home).map_err(|e| e.context(&shown))?;
        let dir = top.ensure_dir(epoch.to_string(), 0o700).map_err(|e| {
            let advice = if e.is_full_disk() { " (the disk is full: make some room on it)" } else { "" };
            e.context(format!("{shown}{advice}"))
        })?;
        step!("removal.epoch.sync");
        top.sync().map_err(|e| e.context(&shown))?;
        let next = Home {
            tenant: home.tenant.clone(),
            number: home.number,
            epoch,
            top,
            dir,
            fence: Arc::clone(&home.fence),
            durable_shards: Default::default(),
        };
        self.index.lock().tenants[home.number as usize].home = Arc::new(next);
        Ok(())
    }

    /// The removal is acknowledged: the scope is ready under its new epoch, unless a later removal holds it.
    pub fn open_scope(&self, scope: &Scope, generation: Generation) -> Result<()> {
        step!("removal.open");
        let trash = self.list_trash()?;
        let _names = self.tenant_changes.lock();
        let mut scopes = self.scopes.lock();
        // A global removal is done with what earlier requests of its tenants were about.
        let opens =
            |other: &Scope, state: &ScopeState| scope.includes(other) && state.generation <= generation;
        let Scopes { closed, opened } = &mut *scopes;
        closed.retain(|other, state| {
            let over = opens(other, state);
            if over {
                opened.push_front((other.clone(), state.clone()));
            }
            !over
        });
        opened.truncate(limits::ENDED_REMOVALS);
        for home in self.homes_in(scope) {
            if scopes.epoch_of(&home.tenant).is_none() {
                // Once more: an attempt that failed between the marker and its counters did not come to it.
                let mut index = self.index.lock();
                match trash.iter().any(|t| t.tenant == home.tenant) {
                    // A logical removal's: counted until it is deleted.
                    true => index.discard_hidden(home.number),
                    false => index.forget_hidden(home.number),
                }
                drop(index);
                home.fence.open(home.epoch);
            }
        }
        drop(scopes);
        self.tell(Event::Opened);
        Ok(())
    }

    /// Shows in the status that an attempt failed. One that did not get as far as the fence leaves the scope closed too:
    /// it is not ready until the removal is.
    pub fn note_removal_failed(&self, scope: &Scope, generation: Generation, error: &Error) {
        self.close_scope(scope, generation);
        if let Some(state) = self.scopes.lock().closed.get_mut(scope) {
            state.failed = Some(error.to_string());
        }
        self.counters.removal_failures.fetch_add(1, Ordering::Relaxed);
        self.note_error(format!("removal of {scope}: {error}"));
    }

    /// The scopes that are closed.
    pub fn closed_scopes(&self) -> Vec<(Scope, ScopeState)> {
        self.scopes.lock().closed.iter().map(|(scope, state)| (scope.clone(), state.clone())).collect()
    }

    /// The state of a scope that is closed.
    pub fn scope_state(&self, scope: &Scope) -> Option<ScopeState> {
        self.scopes.lock().closed.get(scope).cloned()
    }

    /// Records that the removal of a scope for this generation has deleted, while it is closed or was not long ago.
    pub fn removed_records(&self, scope: &Scope, generation: Generation) -> u64 {
        let scopes = self.scopes.lock();
        let all = scopes.closed.iter().chain(scopes.opened.iter().map(|(scope, state)| (scope, state)));
        let mut covering =
            all.filter(|(other, state)| other.includes(scope) && state.generation >= generation);
        covering.next().map_or(0, |(_, state)| state.deleted_records())
    }

    /// Deletes what logical removals, and the crashes of others, left in the trash; whether something was there.
    /// What belongs to a scope that is closed is left to its removal.
    pub fn collect_trash(&self) -> Result<bool> {
        let mut trash = self.list_trash()?;
        trash.retain(|t| self.scopes.lock().epoch_of(&t.tenant).is_none());
        for trashed in &trash {
            self.delete_trashed(trashed, &AtomicU64::new(0)).map_err(|e| self.with_advice(e))?;
        }
        self.settle_trash();
        Ok(!trash.is_empty())
    }

    /// Stops counting what the trash held, once it holds nothing.
    fn settle_trash(&self) {
        if self.list_trash().is_ok_and(|trash| trash.is_empty()) {
            self.index.lock().forget_trash();
            self.drop_empty_generations();
        }
    }

    /// Has long work end where it is: the store is about to be closed.
    pub fn stop_removals(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether long work is to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

/// A node that lost its name meanwhile needs no hiding.
fn hide_one(index: &mut Index, id: NodeId, known: &mut Vec<NodeId>) {
    if index.linked(id).is_ok_and(|n| n.refs > 0) {
        known.push(id);
    }
    if let Err(e) = index.hide(id, Timespec::now()) {
        log::debug!("already gone: {e}");
    }
}
