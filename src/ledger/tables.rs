//! The tables of a ledger's file.

use redb::{ReadTransaction, ReadableTable, TableDefinition, WriteTransaction};
use uuid::Uuid;

use super::applied::Applied;
use super::failure::corrupt;
use super::row;
use super::rules::Member;
use crate::error::Result;
use crate::key::Tenant;
use crate::scope::{Generation, Scope};

/// `format`, and `storage`: whose ledger this is.
pub(super) const IDENTITY: TableDefinition<&str, &str> = TableDefinition::new("identity");
/// The storage's tokens, oldest first.
pub(super) const TOKENS: TableDefinition<u64, u128> = TableDefinition::new("tokens");
/// The storage's markers: scope, highest generation applied.
pub(super) const APPLIED: TableDefinition<&str, u64> = TableDefinition::new("applied");

/// The highest generation given.
pub(super) const SEQUENCE: TableDefinition<(), u64> = TableDefinition::new("sequence");
/// Every storage that ever registered.
pub(super) const STORAGES: TableDefinition<u128, &str> = TableDefinition::new("storages");
/// Scope, highest generations requested: physical, logical.
pub(super) const FLOORS: TableDefinition<&str, (u64, u64)> = TableDefinition::new("floors");
/// Storage and scope, highest generation acknowledged.
pub(super) const WATERMARKS: TableDefinition<(u128, &str), u64> = TableDefinition::new("watermarks");
/// Requests that are not complete. Never dropped.
pub(super) const WAITING: TableDefinition<u64, &str> = TableDefinition::new("waiting");
/// Requests that are; the oldest are dropped.
pub(super) const COMPLETE: TableDefinition<u64, &str> = TableDefinition::new("complete");
/// What is left of dropped requests that had an id.
pub(super) const PAST: TableDefinition<u64, &str> = TableDefinition::new("past");
/// Id, generation of the request that was made with it.
pub(super) const IDS: TableDefinition<&str, u64> = TableDefinition::new("ids");

/// The format that this build writes.
const FORMAT: &str = "1";

/// The key of the global scope: no tenant has this name.
pub(super) const GLOBAL: &str = "*";
/// Above every key of a scope.
const BEYOND: &str = "\x7f";

/// The key of a scope.
pub(super) fn scope_key(scope: &Scope) -> &str {
    scope.tenant().map_or(GLOBAL, Tenant::as_str)
}

/// The scope of a key.
pub(super) fn to_scope(key: &str) -> Result<Scope> {
    match key {
        GLOBAL => Ok(Scope::Global),
        name => Tenant::new(name.as_bytes()).map(Scope::Tenant).map_err(|e| corrupt(e.to_string())),
    }
}

/// Writes every table of a new file.
pub(super) fn found(tx: &WriteTransaction, storage: Uuid) -> Result<()> {
    let mut identity = tx.open_table(IDENTITY)?;
    identity.insert("format", FORMAT)?;
    identity.insert("storage", storage.to_string().as_str())?;
    tx.open_table(SEQUENCE)?.insert((), 0)?;
    tx.open_table(TOKENS)?;
    tx.open_table(APPLIED)?;
    tx.open_table(STORAGES)?;
    tx.open_table(FLOORS)?;
    tx.open_table(WATERMARKS)?;
    tx.open_table(WAITING)?;
    tx.open_table(COMPLETE)?;
    tx.open_table(PAST)?;
    tx.open_table(IDS)?;
    Ok(())
}

/// Reads every entry of every table, so that nothing unreadable is met later.
pub(super) fn check(tx: &ReadTransaction, storage: Uuid) -> Result<()> {
    check_identity(tx, storage)?;
    for entry in tx.open_table(TOKENS)?.iter()? {
        entry?;
    }
    applied(&tx.open_table(APPLIED)?)?;
    let highest = sequence(&tx.open_table(SEQUENCE)?)?;
    for entry in tx.open_table(STORAGES)?.iter()? {
        row::from_text::<Member>(entry?.1.value())?;
    }
    for entry in tx.open_table(FLOORS)?.iter()? {
        let (scope, floor) = entry?;
        let (physical, logical) = floor.value();
        if physical.max(logical) > highest.0 {
            return Err(corrupt(format!("{} was requested beyond {highest}", to_scope(scope.value())?)));
        }
    }
    for entry in tx.open_table(WATERMARKS)?.iter()? {
        to_scope(entry?.0.value().1)?;
    }
    for table in [WAITING, COMPLETE, PAST] {
        for entry in tx.open_table(table)?.iter()? {
            let (generation, text) = entry?;
            row::to_request(generation.value(), text.value())?;
        }
    }
    for entry in tx.open_table(IDS)?.iter()? {
        entry?;
    }
    Ok(())
}

fn check_identity(tx: &ReadTransaction, storage: Uuid) -> Result<()> {
    let identity = tx.open_table(IDENTITY)?;
    let text = |name: &str| -> Result<String> {
        let entry = identity.get(name)?.ok_or_else(|| corrupt(format!("it has no {name}")))?;
        Ok(entry.value().to_owned())
    };
    let (format, owner) = (text("format")?, text("storage")?);
    if format != FORMAT {
        return Err(corrupt(format!("it has format {format}, of a newer fencefs; this one knows {FORMAT}")));
    }
    if owner != storage.to_string() {
        return Err(corrupt(format!("it belongs to storage {owner}, not to {storage}")));
    }
    Ok(())
}

/// The highest generation given.
pub(super) fn sequence(table: &impl ReadableTable<(), u64>) -> Result<Generation> {
    let entry = table.get(())?.ok_or_else(|| corrupt("it has no sequence"))?;
    Ok(Generation(entry.value()))
}

/// The storage's markers.
pub(super) fn applied(table: &impl ReadableTable<&'static str, u64>) -> Result<Applied> {
    let mut applied = Applied::default();
    for entry in table.iter()? {
        let (scope, generation) = entry?;
        applied.advance(&to_scope(scope.value())?, Generation(generation.value()));
    }
    Ok(applied)
}

/// All watermarks of a storage.
pub(super) fn watermarks(
    table: &impl ReadableTable<(u128, &'static str), u64>,
    storage: Uuid,
) -> Result<Applied> {
    let storage = storage.as_u128();
    let mut marks = Applied::default();
    for entry in table.range((storage, "")..(storage, BEYOND))? {
        let (key, generation) = entry?;
        marks.advance(&to_scope(key.value().1)?, Generation(generation.value()));
    }
    Ok(marks)
}

/// What is known of a storage.
pub(super) fn member(
    table: &impl ReadableTable<u128, &'static str>,
    storage: Uuid,
) -> Result<Option<Member>> {
    table.get(storage.as_u128())?.map(|text| row::from_text(text.value())).transpose()
}
