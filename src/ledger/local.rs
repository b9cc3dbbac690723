//! The ledger of a store that has no coordinator beside it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use redb::{ReadableTable, ReadableTableMetadata, Table, WriteTransaction};
use uuid::Uuid;

use super::applied::Applied;
use super::database::{Database, Outcome};
use super::failure::corrupt;
use super::fleet::Standing;
use super::request::{Request, RequestName, State, Submitted};
use super::rules::{self, Floor, Member};
use super::{Ledger, Token, row, tables};
use crate::config::limits;
use crate::error::{Error, Kind, Result};
use crate::scope::{Generation, Mode, Scope};

/// A ledger in the store's own `ledger.redb`.
#[derive(Debug)]
pub struct LocalLedger {
    database: Arc<Database>,
    kept: Kept,
}

/// How much history stays.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    /// Complete requests.
    pub(super) requests: u64,
    /// Older ones whose id still answers.
    pub(super) ids: u64,
}

impl LocalLedger {
    /// The ledger in this file.
    pub fn new(database: Arc<Database>) -> LocalLedger {
        let kept = Kept { requests: limits::KEPT_REQUESTS, ids: limits::KEPT_REQUEST_IDS };
        LocalLedger::keeping(database, kept)
    }

    pub(super) fn keeping(database: Arc<Database>, kept: Kept) -> LocalLedger {
        LocalLedger { database, kept }
    }
}

impl Ledger for LocalLedger {
    fn coordinator(&self) -> String {
        "local".to_owned()
    }

    fn raise(&self, least: Generation) -> Result<()> {
        self.database.write(|tx| {
            let mut sequence = tx.open_table(tables::SEQUENCE)?;
            if tables::sequence(&sequence)? >= least {
                return Ok(Outcome::Unchanged(()));
            }
            sequence.insert((), least.0)?;
            Ok(Outcome::Changed(()))
        })
    }

    fn register(&self, storage: Uuid, known: &[Token], next: Token) -> Result<()> {
        self.database.write(|tx| {
            let mut storages = tx.open_table(tables::STORAGES)?;
            let before = tables::member(&storages, storage)?;
            if before.is_none() {
                // It holds nothing that is older than it: as if it had acknowledged all there was.
                let highest = tables::sequence(&tx.open_table(tables::SEQUENCE)?)?;
                let key = (storage.as_u128(), tables::GLOBAL);
                tx.open_table(tables::WATERMARKS)?.insert(key, highest.0)?;
            }
            let member = Member::registered(before, known, next)?;
            storages.insert(storage.as_u128(), row::to_text(&member).as_str())?;
            step!("ledger.register");
            Ok(Outcome::Changed(()))
        })
    }

    fn submit(&self, scope: &Scope, mode: Mode, id: Option<&str>) -> Result<Submitted> {
        rules::check_id(id)?;
        let submitted = self.database.write(|tx| {
            if let Some(id) = id {
                let tables =
                    [tables::WAITING, tables::COMPLETE, tables::PAST].map(|table| tx.open_table(table));
                if let Some(request) = by_id(&tx.open_table(tables::IDS)?, tables, id)? {
                    return Ok(Outcome::Unchanged(rules::answered(request, scope, mode)?));
                }
            }
            let mut sequence = tx.open_table(tables::SEQUENCE)?;
            let generation = Generation(tables::sequence(&sequence)?.0 + 1);
            sequence.insert((), generation.0)?;
            raise_floor(tx, scope, mode, generation)?;
            if let Some(id) = id {
                tx.open_table(tables::IDS)?.insert(id, generation.0)?;
            }
            let (scope, id) = (scope.clone(), id.map(ToOwned::to_owned));
            let request = Request::made(generation, scope, mode, id, targets(tx)?, now_ms());
            Requests::of(tx)?.put(&request)?;
            drop_oldest(tx, self.kept)?;
            step!("ledger.submit");
            Ok(Outcome::Changed(Submitted { request, fresh: true }))
        })?;
        step!("ledger.submitted");
        Ok(submitted)
    }

    fn standing(&self, storage: Uuid) -> Result<Standing> {
        self.database.read(|tx| {
            Member::live(tables::member(&tx.open_table(tables::STORAGES)?, storage)?, storage)?;
            let mut floors = Vec::new();
            for entry in tx.open_table(tables::FLOORS)?.iter()? {
                let (scope, floor) = entry?;
                floors.push((tables::to_scope(scope.value())?, to_floor(floor.value())));
            }
            let acked = tables::watermarks(&tx.open_table(tables::WATERMARKS)?, storage)?;
            let highest = tables::sequence(&tx.open_table(tables::SEQUENCE)?)?;
            let pending = rules::pending(&floors, &acked);
            Ok(Standing { highest, acked, pending, ..Standing::default() })
        })
    }

    fn ack(&self, storage: Uuid, scope: &Scope, generation: Generation) -> Result<()> {
        self.database.write(|tx| {
            Member::live(tables::member(&tx.open_table(tables::STORAGES)?, storage)?, storage)?;
            let highest = tables::sequence(&tx.open_table(tables::SEQUENCE)?)?;
            let mut watermarks = tx.open_table(tables::WATERMARKS)?;
            let marks = marks_for(&watermarks, storage, scope)?;
            let mut requests = Requests::of(tx)?;
            let kept = requests.get(generation)?;
            if !rules::advances(scope, generation, highest, kept.as_ref(), &marks)? {
                return Ok(Outcome::Unchanged(()));
            }
            watermarks.insert((storage.as_u128(), tables::scope_key(scope)), generation.0)?;
            // What the mark of before covers was acknowledged then.
            let after = marks.of(scope).max(marks.global);
            for mut request in requests.waiting_between(after, generation)? {
                if scope.includes(&request.scope) && request.waits_for(storage) {
                    request.acknowledge(storage, now_ms());
                    requests.put(&request)?;
                }
            }
            step!("ledger.ack");
            Ok(Outcome::Changed(()))
        })?;
        step!("ledger.acked");
        Ok(())
    }

    fn note_failure(&self, generation: Generation, error: &str) -> Result<()> {
        self.database.write(|tx| {
            let highest = tables::sequence(&tx.open_table(tables::SEQUENCE)?)?;
            let mut requests = Requests::of(tx)?;
            match requests.get(generation)? {
                Some(mut request) if request.state != State::Complete => {
                    request.fail(error);
                    requests.put(&request)?;
                }
                None if generation > highest || generation == Generation(0) => {
                    return Err(no_such(generation));
                }
                _ => return Ok(Outcome::Unchanged(())),
            }
            step!("ledger.note");
            Ok(Outcome::Changed(()))
        })
    }

    fn request(&self, name: &RequestName) -> Result<Request> {
        self.database.read(|tx| match name {
            RequestName::Id(id) => {
                let tables =
                    [tables::WAITING, tables::COMPLETE, tables::PAST].map(|table| tx.open_table(table));
                by_id(&tx.open_table(tables::IDS)?, tables, id)?.ok_or_else(|| {
                    Error::new(Kind::NotFound, format!("no request is known by the id {id:?}"))
                })
            }
            RequestName::Generation(generation) => {
                for table in [tables::WAITING, tables::COMPLETE] {
                    if let Some(request) = get(&tx.open_table(table)?, *generation)? {
                        return Ok(request);
                    }
                }
                let highest = tables::sequence(&tx.open_table(tables::SEQUENCE)?)?;
                Err(if *generation > highest || *generation == Generation(0) {
                    no_such(*generation)
                } else {
                    let sentence = format!("request {generation} was complete and is no longer kept");
                    Error::new(Kind::NotFound, sentence)
                })
            }
        })
    }

    fn requests(&self) -> Result<Vec<Request>> {
        self.database.read(|tx| {
            let mut found = Vec::new();
            for table in [tables::WAITING, tables::COMPLETE] {
                for entry in tx.open_table(table)?.iter()? {
                    let (generation, text) = entry?;
                    found.push(row::to_request(generation.value(), text.value())?);
                }
            }
            found.sort_by_key(|request| request.generation);
            Ok(found)
        })
    }

    fn unfinished(&self) -> Result<BTreeMap<Generation, Scope>> {
        self.database.read(|tx| {
            let mut found = BTreeMap::new();
            for entry in tx.open_table(tables::WAITING)?.iter()? {
                let (generation, text) = entry?;
                let request = row::to_request(generation.value(), text.value())?;
                found.insert(request.generation, request.scope);
            }
            Ok(found)
        })
    }

    fn highest(&self) -> Result<Generation> {
        self.database.read(|tx| tables::sequence(&tx.open_table(tables::SEQUENCE)?))
    }

    fn forget(&self, storage: Uuid) -> Result<()> {
        self.database.write(|tx| {
            let mut storages = tx.open_table(tables::STORAGES)?;
            let member = Member::known(tables::member(&storages, storage)?, storage)?;
            if member.retired {
                return Ok(Outcome::Unchanged(()));
            }
            let retired = row::to_text(&Member { retired: true, ..member });
            storages.insert(storage.as_u128(), retired.as_str())?;
            let mut requests = Requests::of(tx)?;
            for mut request in requests.waiting_between(Generation(0), Generation(u64::MAX))? {
                if request.waits_for(storage) {
                    request.retire(storage, now_ms());
                    requests.put(&request)?;
                }
            }
            step!("ledger.forget");
            Ok(Outcome::Changed(()))
        })
    }
}

/// The two tables of requests that are kept whole. A request is in the one that its state says.
struct Requests<'tx> {
    waiting: Table<'tx, u64, &'static str>,
    complete: Table<'tx, u64, &'static str>,
}

impl<'tx> Requests<'tx> {
    fn of(tx: &'tx WriteTransaction) -> Result<Self> {
        Ok(Requests { waiting: tx.open_table(tables::WAITING)?, complete: tx.open_table(tables::COMPLETE)? })
    }

    fn get(&self, generation: Generation) -> Result<Option<Request>> {
        match get(&self.waiting, generation)? {
            None => get(&self.complete, generation),
            found => Ok(found),
        }
    }

    fn put(&mut self, request: &Request) -> Result<()> {
        let (generation, text) = (request.generation.0, row::of_request(request));
        if request.state == State::Complete {
            self.waiting.remove(generation)?;
            self.complete.insert(generation, text.as_str())?;
        } else {
            self.waiting.insert(generation, text.as_str())?;
        }
        Ok(())
    }

    /// The requests above one generation, up to another, that are not complete.
    fn waiting_between(&self, above: Generation, last: Generation) -> Result<Vec<Request>> {
        let mut found = Vec::new();
        for entry in self.waiting.range(above.0.saturating_add(1)..=last.0)? {
            let (generation, text) = entry?;
            found.push(row::to_request(generation.value(), text.value())?);
        }
        Ok(found)
    }
}

fn get(table: &impl ReadableTable<u64, &'static str>, generation: Generation) -> Result<Option<Request>> {
    table.get(generation.0)?.map(|text| row::to_request(generation.0, text.value())).transpose()
}

/// The request that was made with an id: whole, or what is left of it.
fn by_id<T: ReadableTable<u64, &'static str>>(
    ids: &impl ReadableTable<&'static str, u64>,
    tables: [Result<T, redb::TableError>; 3],
    id: &str,
) -> Result<Option<Request>> {
    let Some(generation) = ids.get(id)?.map(|entry| Generation(entry.value())) else { return Ok(None) };
    for table in tables {
        if let Some(request) = get(&table?, generation)? {
            return Ok(Some(request));
        }
    }
    Err(corrupt(format!("the id {id:?} stands for request {generation}, which is not there")))
}

pub(super) fn no_such(generation: Generation) -> Error {
    Error::new(Kind::NotFound, format!("generation {generation} was never given"))
}

pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn to_floor((physical, logical): (u64, u64)) -> Floor {
    Floor { physical: Generation(physical), logical: Generation(logical) }
}

pub(super) fn raise_floor(
    tx: &WriteTransaction,
    scope: &Scope,
    mode: Mode,
    generation: Generation,
) -> Result<()> {
    let mut floors = tx.open_table(tables::FLOORS)?;
    let key = tables::scope_key(scope);
    let mut floor = floors.get(key)?.map(|entry| to_floor(entry.value())).unwrap_or_default();
    floor.raise(mode, generation);
    floors.insert(key, (floor.physical.0, floor.logical.0))?;
    Ok(())
}

/// Every storage that is registered and not retired.
fn targets(tx: &WriteTransaction) -> Result<Vec<Uuid>> {
    let mut targets = Vec::new();
    for entry in tx.open_table(tables::STORAGES)?.iter()? {
        let (storage, text) = entry?;
        if !row::from_text::<Member>(text.value())?.retired {
            targets.push(Uuid::from_u128(storage.value()));
        }
    }
    Ok(targets)
}

/// The watermarks that decide over one scope: its own and the global one.
fn marks_for(
    watermarks: &impl ReadableTable<(u128, &'static str), u64>,
    storage: Uuid,
    scope: &Scope,
) -> Result<Applied> {
    let mut marks = Applied::default();
    for scope in [&Scope::Global, scope] {
        if let Some(generation) = watermarks.get((storage.as_u128(), tables::scope_key(scope)))? {
            marks.advance(scope, Generation(generation.value()));
        }
    }
    Ok(marks)
}

/// Drops the oldest complete requests, then the oldest ids: a few of each, so that no submission pays for all.
fn drop_oldest(tx: &WriteTransaction, kept: Kept) -> Result<()> {
    let mut complete = tx.open_table(tables::COMPLETE)?;
    let mut past = tx.open_table(tables::PAST)?;
    let mut ids = tx.open_table(tables::IDS)?;
    for _ in 0..limits::DROPPED_AT_ONCE {
        let Some(request) = pop_beyond(&mut complete, kept.requests)? else { break };
        if request.id.is_some() {
            past.insert(request.generation.0, row::of_request(&request.reduced()).as_str())?;
        }
    }
    for _ in 0..limits::DROPPED_AT_ONCE {
        let Some(request) = pop_beyond(&mut past, kept.ids)? else { break };
        if let Some(id) = request.id {
            ids.remove(id.as_str())?;
        }
    }
    Ok(())
}

/// Takes the oldest request of a table that holds more than it should.
fn pop_beyond(table: &mut Table<u64, &'static str>, most: u64) -> Result<Option<Request>> {
    if table.len()? <= most {
        return Ok(None);
    }
    let oldest = table.pop_first()?;
    oldest.map(|(generation, text)| row::to_request(generation.value(), text.value())).transpose()
}
