//! The rules of the protocol, apart from where a ledger keeps its numbers.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::applied::Applied;
use super::request::{Pending, Request, State};
use super::{Submitted, Token};
use crate::config::limits;
use crate::error::{Error, Kind, Result};
use crate::scope::{Generation, Mode, Scope};

/// What a ledger knows of a storage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Member {
    pub(super) token: Token,
    pub(super) retired: bool,
}

impl Member {
    /// The entry of a storage that registers, offering the tokens it knows and its next one.
    pub(super) fn registered(before: Option<Member>, known: &[Token], next: Token) -> Result<Member> {
        match before {
            Some(member) if member.retired => Err(Error::new(
                Kind::Stale,
                "this storage identity was retired for good: start with an empty store",
            )),
            Some(member) if !known.contains(&member.token) => Err(Error::new(
                Kind::Stale,
                "this storage is a copy, or an older state, of the one that registered last: use that one, or \
                 start with an empty store",
            )),
            _ => Ok(Member { token: next, retired: false }),
        }
    }

    /// Refuses what may not take part.
    pub(super) fn live(member: Option<Member>, storage: Uuid) -> Result<Member> {
        let member = Member::known(member, storage)?;
        if member.retired {
            return Err(Error::new(Kind::Stale, format!("storage {storage} was retired for good")));
        }
        Ok(member)
    }

    /// Refuses what never registered.
    pub(super) fn known(member: Option<Member>, storage: Uuid) -> Result<Member> {
        member.ok_or_else(|| Error::new(Kind::NotFound, format!("storage {storage} never registered")))
    }
}

/// The highest generations requested of one scope, apart by mode: a logical request must not hide that an earlier
/// one of the scope has still to free its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Floor {
    pub(super) physical: Generation,
    pub(super) logical: Generation,
}

impl Floor {
    /// Notes a request.
    pub(super) fn raise(&mut self, mode: Mode, generation: Generation) {
        match mode {
            Mode::Physical => self.physical = generation.max(self.physical),
            Mode::Logical => self.logical = generation.max(self.logical),
        }
    }

    /// The highest generation of either mode.
    pub(super) fn highest(self) -> Generation {
        self.physical.max(self.logical)
    }
}

/// The floors that a storage's watermarks do not dominate, in order of generation.
///
/// A tenant's floor below a pending global one is left in: applying both in order loses nothing, and the tenant may
/// succeed where another holds up the global request. Acknowledging a global request acknowledges every earlier one
/// of every tenant, so it is physical as soon as any physical floor is pending: else a logical global request would
/// report a tenant's bytes as gone.
pub(super) fn pending(floors: &[(Scope, Floor)], marks: &Applied) -> Vec<Pending> {
    let open = |scope: &Scope, generation| !marks.covers(scope, generation);
    let any_physical = floors.iter().any(|(scope, floor)| open(scope, floor.physical));
    let mut found: Vec<Pending> = floors
        .iter()
        .filter(|(scope, floor)| open(scope, floor.highest()))
        .map(|(scope, floor)| {
            let physical = open(scope, floor.physical) || (*scope == Scope::Global && any_physical);
            let mode = if physical { Mode::Physical } else { Mode::Logical };
            Pending { scope: scope.clone(), generation: floor.highest(), mode }
        })
        .collect();
    found.sort_by_key(|p| p.generation);
    found
}

/// Whether an acknowledgement advances a watermark, or is refused. `kept` is the request of that generation, where
/// its record is kept still: it is only dropped when every storage that could acknowledge it has.
pub(super) fn advances(
    scope: &Scope,
    generation: Generation,
    highest: Generation,
    kept: Option<&Request>,
    marks: &Applied,
) -> Result<bool> {
    if generation == Generation(0) || generation > highest {
        return Err(Error::new(Kind::NotFound, format!("generation {generation} was never given")));
    }
    let covered = marks.covers(scope, generation);
    if kept.map_or(!covered, |request| request.scope != *scope) {
        let of = kept.map_or_else(|| "another scope".to_owned(), |request| request.scope.to_string());
        return Err(Error::new(Kind::Invalid, format!("generation {generation} is of {of}, not of {scope}")));
    }
    if generation < marks.of(scope) {
        return Err(Error::new(
            Kind::StaleGeneration,
            format!(
                "generation {generation} of {scope} is older than {}, acknowledged before",
                marks.of(scope)
            ),
        ));
    }
    Ok(!covered)
}

/// A request as it is made, of these targets; complete at once where there are none.
pub(super) fn of_targets(request: Request, targets: Vec<Uuid>, now_ms: u64) -> Request {
    let mut request = Request { targets, ..request };
    request.settle(now_ms);
    request
}

/// Refuses ids that cannot be kept.
pub(super) fn check_id(id: Option<&str>) -> Result<()> {
    if id.is_some_and(|id| id.contains(is_unseen)) {
        return Err(Error::new(
            Kind::Invalid,
            "an id has no blanks, control characters or marks that change how text is shown",
        ));
    }
    match id.map(str::len) {
        None | Some(1..=limits::REQUEST_ID_BYTES) => Ok(()),
        Some(length) => Err(Error::new(
            Kind::Invalid,
            format!("an id of {length} bytes is not 1 to {} bytes long", limits::REQUEST_ID_BYTES),
        )),
    }
}

/// Blanks, control characters, and what is not seen itself but changes how others are shown: two ids that look alike
/// would be two requests, and a listing could be made to say anything.
fn is_unseen(c: char) -> bool {
    let marks = ['\u{ad}', '\u{61c}', '\u{180e}', '\u{feff}'];
    c.is_whitespace()
        || c.is_control()
        || marks.contains(&c)
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The answer to a submission whose id has been used.
pub(super) fn answered(request: Request, scope: &Scope, mode: Mode) -> Result<Submitted> {
    if request.scope != *scope || request.mode != mode {
        return Err(Error::new(
            Kind::Invalid,
            format!(
                "this id was used for generation {}: {} of {}; a request never changes, take another id",
                request.generation,
                request.mode.word(),
                request.scope
            ),
        ));
    }
    Ok(Submitted { request, fresh: false })
}

impl Request {
    /// A request of these targets; complete at once where there are none.
    pub(super) fn made(
        generation: Generation,
        scope: Scope,
        mode: Mode,
        id: Option<String>,
        targets: Vec<Uuid>,
        now_ms: u64,
    ) -> Request {
        let mut request = Request {
            generation,
            scope,
            mode,
            id,
            targets,
            acked: Vec::new(),
            retired: Vec::new(),
            state: State::Pending,
            last_error: None,
            failed_attempts: 0,
            submitted_ms: now_ms,
            completed_ms: None,
        };
        request.settle(now_ms);
        request
    }

    /// A target has applied it.
    pub(super) fn acknowledge(&mut self, storage: Uuid, now_ms: u64) {
        if self.waits_for(storage) {
            self.acked.push(storage);
            self.settle(now_ms);
        }
    }

    /// A target never will.
    pub(super) fn retire(&mut self, storage: Uuid, now_ms: u64) {
        if self.waits_for(storage) {
            self.retired.push(storage);
            self.settle(now_ms);
        }
    }

    /// An attempt failed.
    pub(super) fn fail(&mut self, error: &str) {
        self.state = State::Failed;
        self.last_error = Some(error.to_owned());
        self.failed_attempts += 1;
    }

    /// What stays of it beside its id: enough to answer a submission that is repeated.
    pub(super) fn reduced(self) -> Request {
        Request { targets: Vec::new(), acked: Vec::new(), retired: Vec::new(), ..self }
    }

    /// The targets that have yet to apply it; nobody once it is complete.
    pub fn awaited(&self) -> Vec<Uuid> {
        let open = self.targets.iter().filter(|_| self.state != State::Complete);
        open.copied().filter(|target| self.waits_for(*target)).collect()
    }

    /// Whether a storage has yet to apply it.
    pub(super) fn waits_for(&self, storage: Uuid) -> bool {
        self.targets.contains(&storage) && !self.acked.contains(&storage) && !self.retired.contains(&storage)
    }

    fn settle(&mut self, now_ms: u64) {
        if !self.targets.iter().any(|target| self.waits_for(*target)) {
            self.state = State::Complete;
            self.last_error = None;
            self.completed_ms = Some(now_ms);
        }
    }
}
