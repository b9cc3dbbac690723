//! The ledger of a fleet: the transactions of the protocol, in etcd.
//!
//! `client` calls its JSON gateway, `wire` is the form of that, `keys` what is kept and how it is named, `rows` the
//! values. Every read is one linearizable transaction, and every write one that compares what it was derived from, so
//! each sees one state and changes that state or nothing.

mod acknowledgements;
mod client;
mod failure;
mod history;
mod keys;
mod members;
mod pace;
mod rows;
mod submissions;
#[cfg(test)]
mod tests;
mod transactions;
mod wire;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use uuid::Uuid;

use self::client::Client;
use self::keys::Keys;
use self::members::Session;
use self::rows::Members;
use self::wire::Int;
use super::fleet::{Standing, StorageStatus};
use super::local::Kept;
use super::request::{Request, RequestName, Submitted};
use super::{Ledger, Token};
use crate::config::{EtcdSettings, limits};
use crate::error::Result;
use crate::scope::{Generation, Mode, Scope};

/// A ledger below a prefix of etcd.
#[derive(Debug)]
pub struct EtcdLedger {
    client: Client,
    keys: Keys,
    name: String,
    kept: Kept,
    /// Which ledger it was when it was first read: a prefix that was emptied, or restored, is another.
    ledger_id: OnceLock<Uuid>,
    /// Those of the storages that registered through this.
    sessions: Mutex<BTreeMap<Uuid, Session>>,
    /// The members, as of a revision of `mver`.
    members: Mutex<Option<(Int, Arc<Members>)>>,
    host: String,
    /// How many take part, as last counted.
    size: AtomicUsize,
    /// What is complete could not be noted last time.
    unsettled: AtomicBool,
}

impl EtcdLedger {
    /// The ledger that these settings lead to. Nothing is asked of etcd yet.
    ///
    /// # Errors
    /// What reading the certificates says.
    pub fn new(settings: &EtcdSettings) -> Result<EtcdLedger> {
        let kept = Kept { requests: limits::KEPT_REQUESTS, ids: limits::KEPT_REQUEST_IDS };
        EtcdLedger::keeping(settings, kept)
    }

    pub(super) fn keeping(settings: &EtcdSettings, kept: Kept) -> Result<EtcdLedger> {
        Ok(EtcdLedger {
            client: Client::new(settings)?,
            keys: Keys::below(&settings.prefix),
            name: format!("etcd://{}/{}", settings.endpoints.join(","), settings.prefix),
            kept,
            ledger_id: OnceLock::new(),
            sessions: Mutex::default(),
            members: Mutex::default(),
            size: AtomicUsize::new(0),
            unsettled: AtomicBool::new(false),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        })
    }
}

impl Ledger for EtcdLedger {
    fn coordinator(&self) -> String {
        self.name.clone()
    }

    fn identity(&self) -> Result<Option<Uuid>> {
        self.begun().map(Some)
    }

    fn raise(&self, least: Generation) -> Result<()> {
        self.raise_to(least)
    }

    fn register(&self, storage: Uuid, known: &[Token], next: Token) -> Result<()> {
        self.join(storage, known, next)
    }

    fn submit(&self, scope: &Scope, mode: Mode, id: Option<&str>) -> Result<Submitted> {
        self.make(scope, mode, id)
    }

    fn bumped(&self) -> Result<Generation> {
        let [bump] = self.read([wire::Range::one(&self.keys.bump())])?;
        rows::bumped(&bump)
    }

    fn standing(&self, storage: Uuid) -> Result<Standing> {
        self.standing_of(storage)
    }

    fn is_request(&self, generation: Generation, mark: Uuid) -> Result<bool> {
        self.has_mark(generation, mark)
    }

    fn ack(&self, storage: Uuid, scope: &Scope, generation: Generation) -> Result<()> {
        self.acknowledge(storage, scope, generation)
    }

    fn note_failure(&self, generation: Generation, error: &str) -> Result<()> {
        self.failed(generation, error)
    }

    fn request(&self, name: &RequestName) -> Result<Request> {
        match name {
            RequestName::Id(id) => self.by_id(id),
            RequestName::Generation(generation) => self.by_generation(*generation),
        }
    }

    fn requests(&self) -> Result<Vec<Request>> {
        self.every_request()
    }

    fn unfinished(&self) -> Result<BTreeMap<Generation, Scope>> {
        self.open_requests()
    }

    fn poll_every(&self) -> Option<Duration> {
        Some(self.pace().poll)
    }

    fn watch(&self, heard: &dyn Fn()) -> Result<()> {
        self.watch_requests(heard)
    }

    fn storages(&self) -> Result<Vec<StorageStatus>> {
        self.every_storage()
    }

    fn leave(&self, storage: Uuid) {
        self.end_session(storage);
    }

    /// For a status, which does not wait for a cluster that is known to be silent.
    fn highest(&self) -> Result<Generation> {
        self.client.require_answering()?;
        let [seq] = self.read([wire::Range::one(&self.keys.seq())])?;
        rows::number(&seq)
    }

    fn forget(&self, storage: Uuid) -> Result<()> {
        self.retire(storage)
    }
}

#[cfg(any(test, feature = "fuzzing"))]
/// (fuzzing) The body of an answer, as each of those that it may be.
pub(super) fn fuzz(bytes: &[u8]) {
    use wire::{Authenticated, Found, Granted, Refusal, Renewed, TxnAnswer, Version};
    drop(serde_json::from_slice::<serde_json::Value>(bytes).map(|answer| Refusal::of(&answer)));
    drop(serde_json::from_slice::<Granted>(bytes));
    drop(serde_json::from_slice::<Renewed>(bytes));
    drop(serde_json::from_slice::<Authenticated>(bytes));
    drop(serde_json::from_slice::<Version>(bytes).map(|version| version.is_at_least((3, 4))));
    let transaction = serde_json::from_slice::<TxnAnswer>(bytes).map(|answer| answer.responses);
    let ranges = transaction.unwrap_or_default().into_iter().filter_map(|response| response.response_range);
    for found in ranges.chain(serde_json::from_slice::<Found>(bytes)) {
        drop(rows::number(&found));
        drop(rows::member(&found, &Found::default()));
        drop(rows::member(&Found::default(), &found));
        for entry in &found.kvs {
            drop(rows::to_floor(entry));
            drop(rows::record::<rows::RequestRow>(entry).map(|row| row.request(crate::scope::Generation(1))));
            drop(rows::record::<rows::DoneRow>(entry));
            drop(rows::record::<rows::FailRow>(entry));
        }
    }
}
