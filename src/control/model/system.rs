//! (tests) The state of the model: what the ledger holds, what is on disk, what the daemon has in memory, where each
//! writer is; and what is remembered only to judge it. Plain values, small and copied often.

use crate::scope::Mode;

pub(super) const TENANTS: usize = 2;
/// Values 0 and 1 are published in tenants 0 and 1 at the start; each writer then has one of its own.
pub(super) const VALUES: usize = 4;
pub(super) const WRITERS: usize = VALUES - TENANTS;
/// Epochs 0 to 3: as many requests as a configuration may have, and the beginning.
pub(super) const EPOCHS: usize = 4;
/// The storage that is modelled, and one that only acknowledges.
pub(super) const STORAGES: usize = 2;

/// A generation, or the epoch that it leads to.
pub(super) type Number = u8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Scope {
    Global,
    Tenant(usize),
}

impl Scope {
    pub(super) const ALL: [Scope; 1 + TENANTS] = [Scope::Global, Scope::Tenant(0), Scope::Tenant(1)];

    pub(super) fn includes(self, other: Scope) -> bool {
        self == Scope::Global || self == other
    }

    pub(super) fn has(self, tenant: usize) -> bool {
        self.includes(Scope::Tenant(tenant))
    }
}

/// A number for each scope: `ledger::Applied`, and the watermarks of one storage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Marks {
    pub(super) global: Number,
    pub(super) tenants: [Number; TENANTS],
}

impl Marks {
    pub(super) fn of(&self, scope: Scope) -> Number {
        match scope {
            Scope::Global => self.global,
            Scope::Tenant(tenant) => self.tenants[tenant],
        }
    }

    pub(super) fn set(&mut self, scope: Scope, number: Number) {
        match scope {
            Scope::Global => self.global = number,
            Scope::Tenant(tenant) => self.tenants[tenant] = number,
        }
    }

    pub(super) fn advance(&mut self, scope: Scope, number: Number) {
        self.set(scope, number.max(self.of(scope)));
    }

    pub(super) fn epoch_of(&self, tenant: usize) -> Number {
        self.tenants[tenant].max(self.global)
    }

    pub(super) fn covers(&self, scope: Scope, generation: Number) -> bool {
        generation <= self.of(scope).max(self.global)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Request {
    pub(super) caller: usize,
    pub(super) scope: Scope,
    pub(super) mode: Mode,
    pub(super) generation: Number,
    /// (judging) The values of the scope that were published when it was made: a caller expects these to go.
    pub(super) doomed: [bool; VALUES],
    /// (judging) How the removal was done that storage 0 acknowledged it with.
    pub(super) reported: Option<Mode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Pending {
    pub(super) scope: Scope,
    pub(super) generation: Number,
    pub(super) mode: Mode,
}

/// Durable at once, and elsewhere: no crash of the daemon takes anything from it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Ledger {
    pub(super) requests: Vec<Request>,
    /// Highest generation requested of each scope.
    pub(super) floors: Marks,
    /// Highest generation acknowledged, per storage.
    pub(super) watermarks: [Marks; STORAGES],
    /// (judging) What storage 0 sent acknowledgements of.
    pub(super) sent: Marks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// `t/<tenant>/<epoch>`
    Live,
    /// `.trash/<generation>/<tenant>/<epoch>`
    Trash(Number),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Record {
    /// The epoch directory that it is in, wherever that is now.
    pub(super) dir: Number,
    /// The epoch that its writer was told.
    pub(super) epoch: Number,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Disk {
    pub(super) dirs: [[Option<Place>; EPOCHS]; TENANTS],
    pub(super) records: [Option<Record>; VALUES],
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// The process is dead.
    #[default]
    Down,
    /// It knows what is pending.
    Polled,
    /// Staging, trash and garbage are gone.
    Cleaned,
    /// It serves.
    Up,
}

/// Where a write is. Its value has the number `TENANTS` + its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) enum Writer {
    #[default]
    Idle,
    /// Took its work, and the epoch that came with it, but has not created anything.
    Told(Number),
    /// `stage.create`: a file in `.staging`, admitted under one epoch on behalf of what was told.
    Staged { told: Number, admitted: Number },
    /// Holds a lease; the file is still in `.staging`.
    Leased { told: Number, admitted: Number },
    /// `publish.commit`: holds the lease; the record is in its directory, and no name leads to it yet.
    Committed { told: Number },
    /// Published, refused, or dead.
    Done,
}

impl Writer {
    /// The epoch of the file that it has in `.staging`.
    pub(super) fn staged(self) -> Option<Number> {
        match self {
            Writer::Staged { admitted, .. } | Writer::Leased { admitted, .. } => Some(admitted),
            _ => None,
        }
    }

    pub(super) fn has_lease(self) -> bool {
        matches!(self, Writer::Leased { .. } | Writer::Committed { .. })
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Fence {
    pub(super) epoch: Number,
    pub(super) closed_towards: Option<Number>,
}

impl Fence {
    pub(super) fn close(&mut self, next: Number) {
        self.closed_towards = self.closed_towards.max(Some(next));
    }

    pub(super) fn is_open(self) -> bool {
        self.closed_towards.is_none()
    }
}

/// The steps of a removal, in the order of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Fence,
    Drain,
    Hide,
    Trash,
    Delete,
    Verify,
    Sync,
    Epoch,
    Marker,
    Counters,
    Ack,
    Open,
}

impl Step {
    pub(super) fn name(self) -> &'static str {
        match self {
            Step::Fence => "removal.fence",
            Step::Drain => "removal.drain",
            Step::Hide => "removal.hide",
            Step::Trash => "removal.trash",
            Step::Delete => "removal.delete",
            Step::Verify => "removal.verify",
            Step::Sync => "removal.sync",
            Step::Epoch => "removal.epoch",
            Step::Marker => "removal.marker",
            Step::Counters => "removal.counters",
            Step::Ack => "ledger.ack",
            Step::Open => "removal.open",
        }
    }
}

/// The removal that the agent is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Work {
    pub(super) what: Pending,
    /// Index into the plan.
    pub(super) at: usize,
}

/// What a crash takes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Daemon {
    pub(super) phase: Phase,
    pub(super) fences: [Fence; TENANTS],
    /// Which values a name leads to, and the epoch of each.
    pub(super) names: [Option<Number>; VALUES],
    /// Counted records; `None` where nothing was counted since the start.
    pub(super) usage: [Option<u8>; TENANTS],
    pub(super) work: Option<Work>,
}

/// How much may still go wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Luck {
    pub(super) crashes: u8,
    pub(super) failures: u8,
    pub(super) evictions: u8,
}

/// A caller of `ledger.submit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Caller {
    New,
    /// Its request is durable, the answer was lost: it will repeat itself.
    Unanswered,
    Answered,
}

/// (judging) What the state alone does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    /// The generation that each tenant was fenced for since the start of the daemon.
    pub(super) fenced_for: [Number; TENANTS],
    /// The generation that each tenant had pending when the daemon started.
    pub(super) pending_at_start: [Number; TENANTS],
    /// A value went that no removal covers and nobody evicted.
    pub(super) wronged: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct System {
    pub(super) callers: Vec<Caller>,
    pub(super) ledger: Ledger,
    /// The storage's applied markers: durable at once, in the storage's own file.
    pub(super) marker: Marks,
    pub(super) disk: Disk,
    /// What a power loss falls back to.
    pub(super) synced: Disk,
    pub(super) daemon: Daemon,
    pub(super) writers: [Writer; WRITERS],
    pub(super) luck: Luck,
    pub(super) seen: Seen,
}

impl Disk {
    /// An epoch directory each, and a record in it.
    pub(super) fn fresh() -> Disk {
        let mut disk = Disk::default();
        for tenant in 0..TENANTS {
            disk.dirs[tenant][0] = Some(Place::Live);
            disk.records[tenant] = Some(Record { dir: 0, epoch: 0 });
        }
        disk
    }

    pub(super) fn dir(&self, tenant: usize, epoch: Number) -> Option<Place> {
        self.dirs[tenant][usize::from(epoch)]
    }

    pub(super) fn make_dir(&mut self, tenant: usize, epoch: Number) {
        self.dirs[tenant][usize::from(epoch)].get_or_insert(Place::Live);
    }

    /// The first epoch directory of the scope below a generation in a place of this kind.
    pub(super) fn first_dir(
        &self,
        scope: Scope,
        below: Number,
        at: impl Fn(Place) -> bool,
    ) -> Option<(usize, Number)> {
        (0..TENANTS).filter(|&tenant| scope.has(tenant)).find_map(|tenant| {
            let mut epochs = (0..below).map(|epoch| (tenant, epoch));
            epochs.find(|&(_, epoch)| self.dir(tenant, epoch).is_some_and(&at))
        })
    }

    /// Removes an epoch directory with all that is in it.
    pub(super) fn remove_dir(&mut self, owners: &[usize; VALUES], (tenant, epoch): (usize, Number)) {
        self.dirs[tenant][usize::from(epoch)] = None;
        for (record, &owner) in self.records.iter_mut().zip(owners) {
            if owner == tenant && record.is_some_and(|r| r.dir == epoch) {
                *record = None;
            }
        }
    }

    pub(super) fn count(&self, owners: &[usize; VALUES], tenant: usize) -> u8 {
        let of_tenant = self.records.iter().zip(owners).filter(|&(r, &owner)| owner == tenant && r.is_some());
        of_tenant.count() as u8
    }
}
