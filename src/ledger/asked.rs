//! What a coordinator asked of a storage, kept by the storage: durable before any of it is begun.
//!
//! A coordinator can be restored from a backup, and then gives generations again that it gave before. A marker of the
//! first time would cover a request of the second, and a removal be acknowledged that never was. So a storage knows of
//! each scope which request it was asked for last, by more than its number; and a ledger is only believed that has either
//! this storage's own acknowledgement of that request, or the request itself.

use std::collections::BTreeMap;

use redb::{ReadTransaction, ReadableTable, TableDefinition, TableError, WriteTransaction};
use uuid::Uuid;

use super::database::Outcome;
use super::fleet::Standing;
use super::local::raise_floor;
use super::storage::StorageFile;
use super::{Ledger, tables};
use crate::error::{Error, Kind, Result};
use crate::scope::{Generation, Scope};

/// Scope, the request that was asked for last: its generation and its mark. Only of a coordinator's.
const ASKED: TableDefinition<&str, (u64, u128)> = TableDefinition::new("asked");

/// Of each scope the request that was asked for last.
pub(super) type Asked = BTreeMap<Scope, (Generation, Uuid)>;

pub(super) fn read(tx: &ReadTransaction) -> Result<Asked> {
    let table = match tx.open_table(ASKED) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(Asked::new()),
        opened => opened?,
    };
    let mut asked = Asked::new();
    for entry in table.iter()? {
        let (scope, request) = entry?;
        let (generation, mark) = request.value();
        asked.insert(tables::to_scope(scope.value())?, (Generation(generation), Uuid::from_u128(mark)));
    }
    Ok(asked)
}

/// An operator has vouched for the ledger as it is.
pub(super) fn forget(tx: &WriteTransaction) -> Result<()> {
    Ok(tx.open_table(ASKED)?.retain(|_, _| false)?)
}

impl StorageFile {
    /// Notes what a coordinator asks for, before any of it is begun. Of the storage's own ledger there is nothing to note.
    pub fn note_asked(&self, standing: &Standing) -> Result<()> {
        let mut now = Asked::new();
        for pending in &standing.pending {
            let mark = standing.marks.get(&pending.generation).copied().unwrap_or_default();
            now.insert(pending.scope.clone(), (pending.generation, mark));
        }
        let is_known =
            |(scope, request): (&Scope, &(Generation, Uuid))| self.asked().get(scope) == Some(request);
        if now.iter().all(is_known) || !self.is_bound()? {
            return Ok(());
        }
        self.database().write(|tx| {
            let mut sequence = tx.open_table(tables::SEQUENCE)?;
            let highest = now.values().map(|(generation, _)| *generation).max().unwrap_or_default();
            if tables::sequence(&sequence)? < highest {
                sequence.insert((), highest.0)?;
            }
            for asked in &standing.pending {
                raise_floor(tx, &asked.scope, asked.mode, asked.generation)?;
            }
            let mut table = tx.open_table(ASKED)?;
            for (scope, (generation, mark)) in &now {
                table.insert(tables::scope_key(scope), (generation.0, mark.as_u128()))?;
            }
            step!("ledger.asked");
            Ok(Outcome::Changed(()))
        })?;
        self.asked().extend(now);
        Ok(())
    }

    /// What a coordinator asked for last, of each scope; `None` of a storage that keeps its requests itself.
    pub fn asked_elsewhere(&self) -> Result<Option<Vec<(Scope, Generation)>>> {
        let asked =
            self.asked().iter().map(|(scope, (generation, _))| (scope.clone(), *generation)).collect();
        Ok(self.is_bound()?.then_some(asked))
    }

    /// Refuses a ledger that does not have what this storage was asked for.
    ///
    /// # Errors
    /// [`Kind::Stale`] for one that went backwards; what asking it says.
    pub fn require_no_loss(&self, ledger: &dyn Ledger, standing: &Standing) -> Result<()> {
        let asked = self.asked().clone();
        for (scope, (generation, mark)) in asked {
            if standing.acked.covers(&scope, generation) {
                continue;
            }
            let is_there = match standing.marks.get(&generation) {
                Some(found) => *found == mark,
                None => generation <= standing.highest && ledger.is_request(generation, mark)?,
            };
            if !is_there {
                let what = format!(
                    "it has given {} generations, and not the request {generation} for {scope} that this store was \
                     asked for",
                    standing.highest
                );
                return Err(went_backwards(ledger, &what));
            }
        }
        Ok(())
    }
}

/// A ledger that lost what this storage has seen of it.
pub(super) fn went_backwards(ledger: &dyn Ledger, what: &str) -> Error {
    Error::new(
        Kind::Stale,
        format!(
            "the ledger at {} went backwards: {what}; it was restored from a backup that is older than what it has lost. \
             Restore a newer one; or, if there is none, say that it counts as it is (fencefs bump), start this daemon \
             again, and ask again for the removals since",
            ledger.coordinator()
        ),
    )
}
