//! Records as text: JSON with a name for every field.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::failure::corrupt;
use super::request::{Request, State};
use crate::error::{Error, Result};
use crate::scope::{Generation, Mode, Scope};

/// A request as it is kept, apart from the number that it is kept under.
#[derive(Debug, Serialize, Deserialize)]
struct RequestRow {
    scope: String,
    tenant: Option<String>,
    mode: Mode,
    id: Option<String>,
    targets: Vec<Uuid>,
    acked: Vec<Uuid>,
    retired: Vec<Uuid>,
    state: State,
    last_error: Option<String>,
    failed_attempts: u64,
    submitted_ms: u64,
    completed_ms: Option<u64>,
}

/// The text of a request.
pub(super) fn of_request(request: &Request) -> String {
    let request = request.clone();
    to_text(&RequestRow {
        scope: request.scope.word().to_owned(),
        tenant: request.scope.tenant().map(ToString::to_string),
        mode: request.mode,
        id: request.id,
        targets: request.targets,
        acked: request.acked,
        retired: request.retired,
        state: request.state,
        last_error: request.last_error,
        failed_attempts: request.failed_attempts,
        submitted_ms: request.submitted_ms,
        completed_ms: request.completed_ms,
    })
}

/// The request of a text.
pub(super) fn to_request(generation: u64, text: &str) -> Result<Request> {
    let row: RequestRow = from_text(text)?;
    let scope = Scope::from_words(&row.scope, row.tenant.as_deref())
        .ok_or_else(|| corrupt(format!("request {generation} has no scope that is one: {text}")))?;
    Ok(Request {
        generation: Generation(generation),
        scope,
        mode: row.mode,
        id: row.id,
        targets: row.targets,
        acked: row.acked,
        retired: row.retired,
        state: row.state,
        last_error: row.last_error,
        failed_attempts: row.failed_attempts,
        submitted_ms: row.submitted_ms,
        completed_ms: row.completed_ms,
    })
}

/// Any value of plain fields as text.
pub(super) fn to_text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain fields have a text")
}

/// The value of a text.
pub(super) fn from_text<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text)
        .map_err(|e| -> Error { corrupt(format!("a record is not readable ({e}): {text}")) })
}
