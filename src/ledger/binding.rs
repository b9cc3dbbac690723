//! Which ledger a storage takes part in. One, for good: generations of another are other numbers, and a marker of this
//! one would cover them, so that a removal would be acknowledged that never was.
//!
//! What the storage's own ledger keeps of requests, its file keeps of a coordinator's too, before any is begun: a start
//! compares the directories that removals make with what was asked for, without asking anybody.

use redb::{ReadTransaction, TableDefinition, TableError};
use uuid::Uuid;

use super::database::Outcome;
use super::failure::corrupt;
use super::local::{LocalLedger, raise_floor};
use super::request::Pending;
use super::rules::Member;
use super::storage::StorageFile;
use super::{Ledger, row, tables};
use crate::error::{Error, Kind, Result};
use crate::scope::Generation;

/// `ledger`, `name`, `registered`: absent where the storage keeps its requests itself.
const COORDINATOR: TableDefinition<&str, &str> = TableDefinition::new("coordinator");

/// The ledger elsewhere that a storage takes part in.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Binding {
    ledger: Uuid,
    name: String,
    registered: bool,
}

fn binding(tx: &ReadTransaction) -> Result<Option<Binding>> {
    let table = match tx.open_table(COORDINATOR) {
        // Of a store from before there were coordinators, or of one that never had one.
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        opened => opened?,
    };
    let text = |name: &str| -> Result<Option<String>> { Ok(table.get(name)?.map(|e| e.value().to_owned())) };
    let Some(ledger) = text("ledger")? else { return Ok(None) };
    let ledger = Uuid::parse_str(&ledger).map_err(|_| corrupt(format!("its coordinator is {ledger:?}")))?;
    let name = text("name")?.unwrap_or_default();
    Ok(Some(Binding { ledger, name, registered: text("registered")?.is_some() }))
}

impl StorageFile {
    /// Takes part in a ledger: the one that it took part in before, or its first. A storage with a past joins after all
    /// that it has applied.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for another ledger than before, and while its own has removals to carry out; [`Kind::Stale`] for
    /// a ledger that is older than what this storage knows of it; what [`Ledger::register`] says.
    pub fn take_part(&self, ledger: &dyn Ledger) -> Result<()> {
        let database = self.database();
        let bound = database.read(binding)?;
        match (ledger.identity()?, bound) {
            (None, None) => self.register_with(ledger),
            (None, Some(bound)) => Err(Error::new(
                Kind::Invalid,
                format!(
                    "this store takes part in the ledger {}: mount it with --coordinator {0}, or begin with an empty \
                     store",
                    bound.name
                ),
            )),
            (Some(id), Some(bound)) if bound.ledger != id => Err(Error::new(
                Kind::Stale,
                format!(
                    "the ledger at {} is another than the one that this store takes part in (that of {}, {}): it was \
                     emptied, or this is another fleet; use the right one, or begin with an empty store",
                    ledger.coordinator(),
                    bound.name,
                    bound.ledger
                ),
            )),
            (Some(_), Some(bound)) => {
                self.refuse_an_older(ledger, bound.registered)?;
                self.register_with(ledger)?;
                self.bind(ledger, bound.ledger, true)
            }
            (Some(id), None) => {
                self.refuse_open_requests()?;
                ledger.raise(self.highest_known()?)?;
                // First: from here on its own ledger is not used any more, whatever becomes of the rest.
                self.bind(ledger, id, false)?;
                self.register_with(ledger)?;
                self.bind(ledger, id, true)
            }
        }
    }

    /// Notes what a coordinator asks for, before any of it is begun. Of the storage's own ledger there is nothing to note.
    pub fn note_asked(&self, pending: &[Pending]) -> Result<()> {
        let is_known = |p: &Pending| self.asked().iter().any(|known| known == p);
        if pending.iter().all(is_known) || self.database().read(binding)?.is_none() {
            return Ok(());
        }
        self.database().write(|tx| {
            let mut sequence = tx.open_table(tables::SEQUENCE)?;
            let highest = pending.iter().map(|p| p.generation).max().unwrap_or_default();
            if tables::sequence(&sequence)? < highest {
                sequence.insert((), highest.0)?;
            }
            for asked in pending {
                raise_floor(tx, &asked.scope, asked.mode, asked.generation)?;
            }
            step!("ledger.asked");
            Ok(Outcome::Changed(()))
        })?;
        *self.asked() = pending.to_vec();
        Ok(())
    }

    fn bind(&self, ledger: &dyn Ledger, id: Uuid, registered: bool) -> Result<()> {
        self.database().write(|tx| {
            let mut table = tx.open_table(COORDINATOR)?;
            table.insert("ledger", id.to_string().as_str())?;
            table.insert("name", ledger.coordinator().as_str())?;
            if registered {
                table.insert("registered", "")?;
            }
            // A storage that took part once had its data: a start without it is refused.
            let mut storages = tx.open_table(tables::STORAGES)?;
            if tables::member(&storages, self.identity())?.is_none() {
                let member = Member { token: Uuid::nil(), retired: false };
                storages.insert(self.identity().as_u128(), row::to_text(&member).as_str())?;
            }
            Ok(Outcome::Changed(()))
        })
    }

    /// A ledger that lost what this storage has seen of it would give the same generations again, for other requests.
    fn refuse_an_older(&self, ledger: &dyn Ledger, registered: bool) -> Result<()> {
        let (known, found) = (self.highest_known()?, ledger.highest()?);
        let forgotten = match ledger.poll(self.identity()) {
            Err(e) if e.kind() == Kind::NotFound => registered,
            _ => false,
        };
        if found >= known && !forgotten {
            return Ok(());
        }
        let what = if forgotten {
            "does not know this store any more".to_owned()
        } else {
            format!("has given {found} generations, and this store knows of {known}")
        };
        Err(Error::new(
            Kind::Stale,
            format!(
                "the ledger at {} went backwards: it {what}; it was restored from a backup that is older than the \
                 removals since, which it would lose",
                ledger.coordinator()
            ),
        ))
    }

    fn refuse_open_requests(&self) -> Result<()> {
        let own = LocalLedger::new(self.database().clone());
        match own.poll(self.identity()) {
            Err(e) if e.kind() == Kind::NotFound => Ok(()),
            Err(e) => Err(e),
            Ok(pending) if pending.is_empty() => Ok(()),
            Ok(pending) => Err(Error::new(
                Kind::Invalid,
                format!(
                    "this store has {} removals of its own to carry out first: mount it once with --coordinator local",
                    pending.len()
                ),
            )),
        }
    }

    /// The highest generation that this storage has applied, or knows to have been asked for.
    fn highest_known(&self) -> Result<Generation> {
        let own = LocalLedger::new(self.database().clone()).highest()?;
        let applied = self.applied();
        Ok(applied.tenants.values().copied().fold(applied.global.max(own), Generation::max))
    }
}
