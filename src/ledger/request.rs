//! A request and what becomes of it. Plain values.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::scope::{Generation, Mode, Scope};

/// What has become of a request. `Removing` and `Applied` are what the storage at hand knows of itself; a ledger
/// keeps the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Not begun, or waiting for its next attempt.
    Pending,
    /// An attempt is under way.
    Removing,
    /// Done here; not acknowledged yet, or not by every target.
    Applied,
    /// Acknowledged by every target that was not retired.
    Complete,
    /// The last attempt failed; it will be tried again.
    Failed,
}

impl State {
    /// As listings and metrics spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Removing => "removing",
            State::Applied => "applied",
            State::Complete => "complete",
            State::Failed => "failed",
        }
    }
}

/// A removal request. Its scope, mode and generation never change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its number.
    pub generation: Generation,
    /// What goes.
    pub scope: Scope,
    /// How.
    pub mode: Mode,
    /// The name that its caller gave it.
    pub id: Option<String>,
    /// The storages that must apply it.
    pub targets: Vec<Uuid>,
    /// Those of them that did.
    pub acked: Vec<Uuid>,
    /// Those of them that never will: retired by an operator.
    pub retired: Vec<Uuid>,
    /// What has become of it.
    pub state: State,
    /// Why the last attempt failed, until one succeeds.
    pub last_error: Option<String>,
    /// Attempts that failed.
    pub failed_attempts: u64,
    /// When it was made: milliseconds since 1970.
    pub submitted_ms: u64,
    /// When it was complete.
    pub completed_ms: Option<u64>,
}

/// Names a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestName {
    /// By its generation.
    Generation(Generation),
    /// By the id that its caller gave.
    Id(String),
}

/// What a storage has yet to apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// What goes.
    pub scope: Scope,
    /// The highest generation requested of this scope.
    pub generation: Generation,
    /// Physical, if any request of this scope that is not acknowledged is.
    pub mode: Mode,
}

/// The answer to a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitted {
    /// The request.
    pub request: Request,
    /// Whether it was made just now.
    pub fresh: bool,
}
