//! The records that are kept in etcd, and the requests that they make together. Pure.
//!
//! Whom a request is for, and who has done it, is written nowhere: it follows from when each storage joined and left and
//! from what it acknowledged, which are one small key each. So a request costs the same in a fleet of ten thousand.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::keys;
use super::wire::{Entry, Found};
use crate::error::Result;
use crate::ledger::Token;
use crate::ledger::applied::Applied;
use crate::ledger::failure::corrupt;
use crate::ledger::request::{Request, State};
use crate::ledger::row;
use crate::ledger::rules::{Floor, Member};
use crate::scope::{Generation, Mode, Scope};

/// A member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StorageRow {
    pub(super) token: Token,
    /// The highest generation when it joined: it is a target of what came after.
    pub(super) first: Generation,
    pub(super) host: String,
    pub(super) registered_ms: u64,
    /// Up to where an operator had vouched for the ledger when it registered.
    #[serde(default)]
    pub(super) bumped: Generation,
}

/// One that was forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RetiredRow {
    pub(super) token: Token,
    pub(super) first: Generation,
    /// The highest generation when it left: it is a target of nothing after it.
    pub(super) last: Generation,
    pub(super) host: String,
    #[serde(default)]
    pub(super) registered_ms: u64,
    /// When its daemon was last known to run.
    #[serde(default)]
    pub(super) seen_ms: u64,
    pub(super) retired_ms: u64,
}

/// An operator's word that the ledger counts as it is, though it went backwards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BumpRow {
    /// The highest generation that it had.
    pub(super) from: Generation,
    /// The one that it goes on after.
    pub(super) to: Generation,
    pub(super) host: String,
    pub(super) bumped_ms: u64,
}

/// A member's running daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SessionRow {
    pub(super) token: Token,
    pub(super) host: String,
    pub(super) since_ms: u64,
}

/// A request as it was made, or what is left of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RequestRow {
    pub(super) scope: String,
    pub(super) tenant: Option<String>,
    pub(super) mode: Mode,
    pub(super) id: Option<String>,
    /// Tells the submission that made it from every other: an answer may be lost.
    pub(super) nonce: Uuid,
    pub(super) submitted_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) completed_ms: Option<u64>,
}

/// That a request is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DoneRow {
    pub(super) completed_ms: u64,
}

/// How a request failed so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FailRow {
    pub(super) attempts: u64,
    /// Where the last one did.
    #[serde(default)]
    pub(super) host: String,
    pub(super) error: String,
}

impl RequestRow {
    pub(super) fn new(scope: &Scope, mode: Mode, id: Option<&str>, nonce: Uuid, now_ms: u64) -> RequestRow {
        RequestRow {
            scope: scope.word().to_owned(),
            tenant: scope.tenant().map(ToString::to_string),
            mode,
            id: id.map(ToOwned::to_owned),
            nonce,
            submitted_ms: now_ms,
            completed_ms: None,
        }
    }

    pub(super) fn scope(&self) -> Result<Scope> {
        Scope::from_words(&self.scope, self.tenant.as_deref())
            .ok_or_else(|| corrupt(format!("a request's scope is none: {} {:?}", self.scope, self.tenant)))
    }

    /// The request without its targets: complete where it says so.
    pub(super) fn request(&self, generation: Generation) -> Result<Request> {
        Ok(Request {
            generation,
            scope: self.scope()?,
            mode: self.mode,
            id: self.id.clone(),
            targets: Vec::new(),
            acked: Vec::new(),
            retired: Vec::new(),
            state: if self.completed_ms.is_some() { State::Complete } else { State::Pending },
            last_error: None,
            failed_attempts: 0,
            submitted_ms: self.submitted_ms,
            completed_ms: self.completed_ms,
        })
    }
}

/// The value of a key as a record.
pub(super) fn record<T: serde::de::DeserializeOwned>(entry: &Entry) -> Result<T> {
    row::from_text(&text(entry)?)
}

fn text(entry: &Entry) -> Result<String> {
    String::from_utf8(entry.value.0.clone()).map_err(|_| corrupt(format!("{} is no text", shown(entry))))
}

fn shown(entry: &Entry) -> String {
    String::from_utf8_lossy(&entry.key.0).into_owned()
}

/// The number that a key holds; 0 where there is none.
pub(super) fn number(found: &Found) -> Result<Generation> {
    found.one().map_or(Ok(Generation(0)), |entry| {
        keys::to_number(&entry.value.0).ok_or_else(|| corrupt(format!("{} holds no number", shown(entry))))
    })
}

/// A time as it is kept.
pub(super) fn milliseconds(entry: &Entry) -> Result<u64> {
    text(entry)?.parse().map_err(|_| corrupt(format!("{} holds no time", shown(entry))))
}

/// Up to where an operator has vouched for the ledger.
pub(super) fn bumped(found: &Found) -> Result<Generation> {
    found.one().map_or(Ok(Generation(0)), |entry| Ok(record::<BumpRow>(entry)?.to))
}

/// Highest generations requested, and the mark of the highest, as they are kept.
pub(super) fn floor_text(floor: Floor, mark: Uuid) -> String {
    format!("{} {} {mark}", keys::number(floor.physical), keys::number(floor.logical))
}

pub(super) fn to_floor(entry: &Entry) -> Result<(Floor, Uuid)> {
    let text = text(entry)?;
    let mut parts = text.split(' ');
    let mut part = || parts.next();
    let floor = (|| {
        let physical = keys::to_number(part()?.as_bytes())?;
        let logical = keys::to_number(part()?.as_bytes())?;
        let mark = Uuid::parse_str(part()?).ok()?;
        part().is_none().then_some((Floor { physical, logical }, mark))
    })();
    floor.ok_or_else(|| corrupt(format!("{} holds no two numbers and a mark", shown(entry))))
}

/// What the rules know of a storage.
pub(super) fn member(storage: &Found, retired: &Found) -> Result<Option<Member>> {
    if let Some(entry) = retired.one() {
        let token = record::<RetiredRow>(entry)?.token;
        return Ok(Some(Member { token, retired: true }));
    }
    let Some(entry) = storage.one() else { return Ok(None) };
    Ok(Some(Member { token: record::<StorageRow>(entry)?.token, retired: false }))
}

/// When a storage joined, and left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stay {
    first: Generation,
    last: Option<Generation>,
}

/// Everybody who is, or was, a target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Members(BTreeMap<Uuid, Stay>);

impl Members {
    pub(super) fn of(
        storages: &Found,
        retired: &Found,
        name: impl Fn(&Entry) -> Result<Uuid>,
    ) -> Result<Members> {
        let mut members = BTreeMap::new();
        for entry in &storages.kvs {
            members.insert(name(entry)?, Stay { first: record::<StorageRow>(entry)?.first, last: None });
        }
        for entry in &retired.kvs {
            let RetiredRow { first, last, .. } = record(entry)?;
            members.insert(name(entry)?, Stay { first, last: Some(last) });
        }
        Ok(Members(members))
    }

    /// The targets of a generation, in order of their identity.
    pub(super) fn targets(&self, generation: Generation) -> Vec<Uuid> {
        let is_target =
            |stay: &Stay| stay.first < generation && stay.last.is_none_or(|last| generation <= last);
        self.0.iter().filter(|(_, stay)| is_target(stay)).map(|(id, _)| *id).collect()
    }

    pub(super) fn is_retired(&self, id: Uuid) -> bool {
        self.0.get(&id).is_none_or(|stay| stay.last.is_some())
    }
}

/// A request with what has become of it.
pub(super) fn assemble(
    generation: Generation,
    row: &RequestRow,
    done: Option<DoneRow>,
    failed: Option<FailRow>,
    members: &Members,
    marks: &BTreeMap<Uuid, Applied>,
) -> Result<Request> {
    let mut request = row.request(generation)?;
    let has_done = |id: &Uuid| marks.get(id).is_some_and(|marks| marks.covers(&request.scope, generation));
    request.targets = members.targets(generation);
    let (acked, others): (Vec<Uuid>, Vec<Uuid>) = request.targets.iter().partition(|id| has_done(id));
    let (retired, waited): (Vec<Uuid>, Vec<Uuid>) =
        others.into_iter().partition(|id| members.is_retired(*id));
    (request.acked, request.retired) = (acked, retired);
    let failed_attempts = failed.as_ref().map_or(0, |f| f.attempts);
    request.failed_attempts = failed_attempts;
    if done.is_some() || waited.is_empty() {
        request.state = State::Complete;
        request.completed_ms = done.map(|d| d.completed_ms);
    } else if let Some(failed) = failed {
        request.state = State::Failed;
        request.last_error = Some(match failed.host.as_str() {
            "" => failed.error,
            host => format!("at {host}: {}", failed.error),
        });
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::super::wire::{Bytes, Int};
    use super::*;
    use crate::error::Kind;

    fn stay(first: u64, last: Option<u64>) -> Stay {
        Stay { first: Generation(first), last: last.map(Generation) }
    }

    fn id(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    #[test]
    fn targets_are_those_who_were_there() {
        let members =
            Members([(id(1), stay(0, None)), (id(2), stay(3, None)), (id(3), stay(0, Some(3)))].into());
        assert_eq!(members.targets(Generation(1)), [id(1), id(3)]);
        assert_eq!(members.targets(Generation(3)), [id(1), id(3)]);
        assert_eq!(members.targets(Generation(4)), [id(1), id(2)]);
    }

    #[test]
    fn a_request_is_what_its_targets_have_done() {
        let members =
            Members([(id(1), stay(0, None)), (id(2), stay(0, None)), (id(3), stay(0, Some(9)))].into());
        let row = RequestRow::new(&Scope::Global, Mode::Physical, None, id(7), 5);
        let mark = |global| Applied { global: Generation(global), ..Applied::default() };
        let failed = || Some(FailRow { attempts: 2, host: "h".into(), error: "no".into() });
        let mut marks: BTreeMap<Uuid, Applied> = [(id(1), mark(4)), (id(2), mark(3))].into();
        let half = assemble(Generation(4), &row, None, failed(), &members, &marks).unwrap();
        assert_eq!((half.state, half.acked, half.retired), (State::Failed, vec![id(1)], vec![id(3)]));
        assert_eq!((half.last_error.as_deref(), half.failed_attempts), (Some("at h: no"), 2));
        marks.insert(id(2), mark(5));
        let whole = assemble(Generation(4), &row, None, failed(), &members, &marks).unwrap();
        assert_eq!((whole.state, whole.last_error, whole.failed_attempts), (State::Complete, None, 2));
    }

    #[test]
    fn values_that_are_none_are_refused() {
        let holding = |value: &[u8]| Found {
            kvs: vec![Entry {
                key: Bytes(b"k".to_vec()),
                value: Bytes(value.to_vec()),
                mod_revision: Int(1),
            }],
            count: Int(1),
        };
        for bad in [&b""[..], b"7", b"\xff", b"{}"] {
            let found = holding(bad);
            let entry = found.one().unwrap();
            assert_eq!(number(&found).unwrap_err().kind(), Kind::Corrupt);
            assert_eq!(to_floor(entry).unwrap_err().kind(), Kind::Corrupt);
            assert_eq!(record::<StorageRow>(entry).unwrap_err().kind(), Kind::Corrupt);
        }
        let floor = Floor { physical: Generation(3), logical: Generation(u64::MAX) };
        let kept = holding(floor_text(floor, id(7)).as_bytes());
        assert_eq!(to_floor(kept.one().unwrap()).unwrap(), (floor, id(7)));
    }
}
