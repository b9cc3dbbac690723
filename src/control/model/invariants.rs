//! (tests) What must hold in every state, and what must be possible. The names are those of the table in the module's
//! head.

use stateright::Property;

use super::Protocol;
use super::system::*;
use crate::scope::Mode;

pub(super) const LEFT_NOTHING: &str = "an acknowledged removal left nothing";
pub(super) const NO_OTHER_VALUE: &str = "no other tenant lost a value";
pub(super) const NOTHING_STALE: &str = "nothing stale is published";
pub(super) const MARKER_FIRST: &str = "no ack before the marker";
pub(super) const EMPTY_FIRST: &str = "no marker before empty";
pub(super) const COUNTERS: &str = "counters never lie";
pub(super) const OUT_OF_SIGHT: &str = "a failed attempt leaves nothing in sight";
pub(super) const NEVER_LOST: &str = "a request is never lost";
pub(super) const ONE_REQUEST: &str = "an id is one request";
pub(super) const READY_LAST: &str = "no ready before the ack";
pub(super) const GLOBAL_DOMINATES: &str = "a global request dominates what is earlier, and nothing later";
pub(super) const LOGICAL_APART: &str = "logical is never reported physical";

type P = Property<Protocol>;

impl Protocol {
    pub(super) fn all_properties(&self) -> Vec<P> {
        let mut properties = vec![
            P::always(LEFT_NOTHING, |p, s| {
                s.ledger.requests.iter().all(|r| !acknowledged(s, r) || !p.left(s, r) && !p.left_doomed(s, r))
            }),
            P::always(NO_OTHER_VALUE, |_, s| !s.seen.wronged),
            P::always(NOTHING_STALE, Protocol::nothing_stale),
            P::always(MARKER_FIRST, |_, s| {
                Scope::ALL.iter().all(|&scope| s.marker.covers(scope, s.ledger.watermarks[0].of(scope)))
            }),
            P::always(EMPTY_FIRST, |p, s| {
                let marked = |r: &&Request| s.marker.covers(r.scope, r.generation);
                s.ledger.requests.iter().filter(marked).all(|r| !p.left(s, r))
            }),
            P::always(COUNTERS, Protocol::counters_are_true),
            P::always(OUT_OF_SIGHT, Protocol::failed_attempts_show_nothing),
            P::always(NEVER_LOST, Protocol::requests_are_kept),
            P::always(ONE_REQUEST, |_, s| {
                let of = |caller: usize| s.ledger.requests.iter().filter(|r| r.caller == caller).count();
                (0..s.callers.len()).all(|caller| of(caller) <= 1)
            }),
            P::always(READY_LAST, Protocol::ready_after_ack),
            P::always(GLOBAL_DOMINATES, Protocol::global_dominates),
            P::always(LOGICAL_APART, |_, s| {
                let as_logical = |r: &Request| r.reported == Some(Mode::Logical);
                s.ledger.requests.iter().all(|r| r.mode == Mode::Logical || !as_logical(r))
            }),
            // Every end of every path, whatever went wrong on the way.
            P::eventually("every request completes", |p, s| p.all_complete(s)),
            P::sometimes("every request can complete", |p, s| p.all_complete(s)),
        ];
        if self.writes.contains(&true) {
            properties.push(P::sometimes("a value can be published after a removal", |_, s| {
                s.daemon.names.iter().flatten().any(|epoch| *epoch > 0)
            }));
        }
        properties
    }

    /// Whether something of the scope of a request is there below its generation: of a physical one on disk (in epoch
    /// directories, trash or staging), of a logical one in sight.
    fn left(&self, s: &System, r: &Request) -> bool {
        (0..VALUES).filter(|&value| r.scope.has(self.owners[value])).any(|value| {
            let epoch = match r.mode {
                Mode::Physical => s.disk.records[value].map(|record| record.epoch),
                Mode::Logical => s.daemon.names[value],
            };
            let writer = value.checked_sub(TENANTS).filter(|_| r.mode == Mode::Physical);
            let staged = writer.and_then(|w| s.writers[w].staged());
            epoch.is_some_and(|e| e < r.generation) || staged.is_some_and(|e| e < r.generation)
        })
    }

    /// Whether something is there that was published when the request was made.
    fn left_doomed(&self, s: &System, r: &Request) -> bool {
        (0..VALUES).filter(|&value| r.doomed[value]).any(|value| match r.mode {
            Mode::Physical => s.disk.records[value].is_some(),
            Mode::Logical => s.daemon.names[value].is_some(),
        })
    }

    fn nothing_stale(&self, s: &System) -> bool {
        let current = |value: usize| s.marker.epoch_of(self.owners[value]);
        (0..VALUES).all(|value| s.daemon.names[value].is_none_or(|epoch| epoch >= current(value)))
    }

    /// Zero means that nothing is there; and when the tenant is ready, the number is what is there: in sight, or left
    /// in the trash by a logical removal.
    fn counters_are_true(&self, s: &System) -> bool {
        (0..TENANTS).all(|tenant| {
            let busy = |w: usize| s.writers[w].has_lease() && self.owners[TENANTS + w] == tenant;
            let Some(usage) = s.daemon.usage[tenant].filter(|_| !(0..WRITERS).any(busy)) else { return true };
            let there = s.disk.count(&self.owners, tenant);
            let value = |v: &usize| self.owners[*v] == tenant;
            let named = (0..VALUES).filter(value).filter(|v| s.daemon.names[*v].is_some());
            let in_trash = |v: &usize| {
                let dir = s.disk.records[*v].and_then(|r| s.disk.dir(tenant, r.dir));
                matches!(dir, Some(Place::Trash(_)))
            };
            let known = named.count() + (0..VALUES).filter(value).filter(in_trash).count();
            let ready = s.daemon.phase == Phase::Up && s.daemon.fences[tenant].is_open();
            (usage > 0 || there == 0) && (!ready || usage == there && usize::from(usage) == known)
        })
    }

    /// What is durable is pending for each target until it acknowledges that, or something that includes it.
    fn requests_are_kept(&self, s: &System) -> bool {
        self.targets().all(|storage| {
            let pending = self.poll(&s.ledger, storage);
            let kept = |r: &Request| {
                pending.iter().any(|p| p.scope.includes(r.scope) && p.generation >= r.generation)
            };
            let acked = &s.ledger.watermarks[storage];
            s.ledger.requests.iter().all(|r| acked.covers(r.scope, r.generation) || kept(r))
        })
    }

    /// From `removal.drain` on the disk may fail at any step: an attempt that it ends leaves no name of its scope.
    fn failed_attempts_show_nothing(&self, s: &System) -> bool {
        let moved = |value: usize| {
            let dir = s.disk.records[value].and_then(|r| s.disk.dir(self.owners[value], r.dir));
            matches!(dir, Some(Place::Trash(_)))
        };
        (0..VALUES).all(|value| s.daemon.names[value].is_none() || !moved(value))
    }

    /// Closed from the fence step, or the start, until the ack is recorded; and from a start until then, nothing of
    /// the scope is taken over.
    fn ready_after_ack(&self, s: &System) -> bool {
        (0..TENANTS).filter(|_| s.daemon.phase == Phase::Up).all(|tenant| {
            let acked = s.ledger.watermarks[0].epoch_of(tenant);
            let closed = !s.daemon.fences[tenant].is_open();
            let names =
                (0..VALUES).filter(|v| self.owners[*v] == tenant && s.daemon.names[*v].is_some()).count();
            (acked >= s.seen.fenced_for[tenant] || closed)
                && (acked >= s.seen.pending_at_start[tenant] || names == 0)
        })
    }

    fn global_dominates(&self, s: &System) -> bool {
        let pending = self.poll(&s.ledger, 0);
        let globals = s.ledger.requests.iter().filter(|r| r.scope == Scope::Global && acknowledged(s, r));
        let earlier = globals.clone().all(|r| {
            let lower = |p: &Pending| p.generation < r.generation;
            !pending.iter().any(lower) && !self.left(s, r) && !self.left_doomed(s, r)
        });
        // A later request of a tenant is covered by nothing but an acknowledgement of its own.
        let later = s.ledger.requests.iter().filter(|r| acknowledged(s, r));
        earlier && later.into_iter().all(|r| s.ledger.sent.covers(r.scope, r.generation))
    }

    fn all_complete(&self, s: &System) -> bool {
        let complete = |r: &Request| {
            self.targets().all(|storage| s.ledger.watermarks[storage].covers(r.scope, r.generation))
        };
        s.callers.iter().all(|c| *c == Caller::Answered) && s.ledger.requests.iter().all(complete)
    }

    fn targets(&self) -> std::ops::Range<usize> {
        0..if self.peer { STORAGES } else { 1 }
    }
}

/// Whether the storage has acknowledged a request.
fn acknowledged(s: &System, r: &Request) -> bool {
    s.ledger.watermarks[0].covers(r.scope, r.generation)
}
