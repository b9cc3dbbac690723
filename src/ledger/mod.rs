//! The removal protocol: what was asked for, who must do it, who has done it. It knows neither the store nor the mount.
//!
//! A *request* has an immutable scope and a *generation*, the next number of one sequence. *Targets* are the storage
//! identities that are registered when it is made; it is complete when each has acknowledged it or was retired. Per
//! scope the ledger keeps the *floor* (highest generation requested), per storage and scope the *watermark* (highest
//! acknowledged); a storage's pending requests are the floors that its watermarks do not dominate. Records are history
//! on top of these numbers, so dropping old ones can never lose a removal.

mod applied;
mod asked;
mod backend;
mod binding;
mod database;
mod etcd;
mod failure;
mod fleet;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod local;
mod look;
mod newest;
mod request;
mod row;
mod rules;
mod storage;
mod tables;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use uuid::Uuid;

pub use applied::Applied;
pub use database::Database;
pub use etcd::EtcdLedger;
pub use fleet::{Presence, Standing, StorageStatus};
pub use local::LocalLedger;
pub use look::{Known, look};
pub use request::{Pending, Request, RequestName, State, Submitted};
pub use storage::StorageFile;

use crate::error::Result;
use crate::scope::{Generation, Mode, Scope};

/// Proof that a storage is the one that was here last, and no copy or older state of it: it changes at each start.
pub type Token = Uuid;

/// The transactions of the protocol. Each is durable when it returns, or has not happened; an error may also mean
/// that it happened and the answer was lost, so each may be repeated.
pub trait Ledger: Send + Sync + Debug {
    /// What the status calls this coordinator.
    fn coordinator(&self) -> String;

    /// Which ledger it is; `None` of a storage's own.
    fn identity(&self) -> Result<Option<Uuid>> {
        Ok(None)
    }

    /// The generation up to which an operator has vouched for a ledger that went backwards; 0 where none did.
    fn bumped(&self) -> Result<Generation> {
        Ok(Generation(0))
    }

    /// Gives no generation any more that is not above `least`: for a storage that brings a past along.
    fn raise(&self, least: Generation) -> Result<()>;

    /// Announces a storage identity. A new one is made a target of what is requested from now on; a known one must
    /// present the token of its last registration among `known` (of which there are two when the last answer was
    /// lost), and has `next` from now on.
    ///
    /// # Errors
    /// [`crate::Kind::Stale`] for a retired identity, or one whose token is another's: a copy, or an older state, of the
    /// storage.
    fn register(&self, storage: Uuid, known: &[Token], next: Token) -> Result<()>;

    /// Makes a request, or finds the one that was made with the same `id`. Durable before it returns.
    ///
    /// # Errors
    /// [`crate::Kind::Invalid`] where `id` was used for another scope or mode.
    fn submit(&self, scope: &Scope, mode: Mode, id: Option<&str>) -> Result<Submitted>;

    /// How a storage stands, all of one moment. Changes nothing.
    ///
    /// # Errors
    /// [`crate::Kind::NotFound`] for an identity that never registered, [`crate::Kind::Stale`] for a retired one.
    fn standing(&self, storage: Uuid) -> Result<Standing>;

    /// What a storage has not acknowledged yet, in order of generation, one entry a scope.
    ///
    /// # Errors
    /// As [`Ledger::standing`].
    fn poll(&self, storage: Uuid) -> Result<Vec<Pending>> {
        Ok(self.standing(storage)?.pending)
    }

    /// Whether the request of a generation is the very one that had this mark when it was asked for.
    fn is_request(&self, _generation: Generation, _mark: Uuid) -> Result<bool> {
        Ok(true)
    }

    /// A storage has applied a request, and with it every earlier one that its scope includes. Only forward:
    /// repeating it changes nothing.
    ///
    /// # Errors
    /// [`crate::Kind::NotFound`] for an identity that never registered or a generation that was never given;
    /// [`crate::Kind::Stale`] for a retired identity; [`crate::Kind::Invalid`] where the generation is of another scope;
    /// [`crate::Kind::StaleGeneration`] where the storage acknowledged a higher generation of that scope already.
    fn ack(&self, storage: Uuid, scope: &Scope, generation: Generation) -> Result<()>;

    /// An attempt to apply a request failed: kept for people to see until an attempt succeeds. Changes nothing else.
    fn note_failure(&self, generation: Generation, error: &str) -> Result<()>;

    /// One request.
    ///
    /// # Errors
    /// [`crate::Kind::NotFound`] where there is none.
    fn request(&self, name: &RequestName) -> Result<Request>;

    /// Every request that is kept, oldest first.
    fn requests(&self) -> Result<Vec<Request>>;

    /// The requests that are not complete, by what else than their records says so: cheap, however long the history.
    fn unfinished(&self) -> Result<BTreeMap<Generation, Scope>>;

    /// How often to look for what others have changed, where others can.
    fn poll_every(&self) -> Option<Duration> {
        None
    }

    /// Tells, for a while, when there is something to look at. No more than a wake-up: what it says, or does not, is no
    /// answer.
    fn watch(&self, _heard: &dyn Fn()) -> Result<()> {
        Ok(())
    }

    /// Every storage that takes part or did, where several can.
    fn storages(&self) -> Result<Vec<StorageStatus>> {
        Ok(Vec::new())
    }

    /// The daemon of a storage stops, on purpose. Waits for nobody.
    fn leave(&self, _storage: Uuid) {}

    /// The highest generation given.
    fn highest(&self) -> Result<Generation>;

    /// Retires a storage identity for good: no request waits for it, and its acknowledgements are refused.
    ///
    /// # Errors
    /// [`crate::Kind::NotFound`] for an identity that never registered.
    fn forget(&self, storage: Uuid) -> Result<()>;
}
