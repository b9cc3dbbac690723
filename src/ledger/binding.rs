//! Which ledger a storage takes part in. One, for good: generations of another are other numbers, and a marker of this
//! one would cover them, so that a removal would be acknowledged that never was.

use redb::{ReadTransaction, TableDefinition, TableError};
use uuid::Uuid;

use super::asked::went_backwards;
use super::database::Outcome;
use super::failure::corrupt;
use super::local::LocalLedger;
use super::rules::Member;
use super::storage::StorageFile;
use super::{Ledger, asked, row, tables};
use crate::error::{Error, Kind, Result};
use crate::scope::Generation;

/// `ledger`, `name`, `registered`, `bumped`: absent where the storage keeps its requests itself.
const COORDINATOR: TableDefinition<&str, &str> = TableDefinition::new("coordinator");

/// The ledger elsewhere that a storage takes part in.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Binding {
    ledger: Uuid,
    name: String,
    registered: bool,
    /// Up to which generation an operator had vouched for it when the storage last registered.
    bumped: Generation,
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
    let bumped = text("bumped")?.and_then(|text| text.parse().ok()).map(Generation).unwrap_or_default();
    Ok(Some(Binding { ledger, name, registered: text("registered")?.is_some(), bumped }))
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
                let bumped = ledger.bumped()?;
                // Its numbers are above all that this storage knows: nothing of its past covers what comes.
                let is_vouched_for = bumped > bound.bumped && bumped >= self.highest_known()?;
                if !is_vouched_for {
                    self.refuse_an_older(ledger, bound.registered)?;
                }
                self.register_with(ledger)?;
                self.bind(ledger, bound.ledger, Some(bumped))
            }
            (Some(id), None) => {
                self.refuse_open_requests()?;
                ledger.raise(self.highest_known()?)?;
                // First: from here on its own ledger is not used any more, whatever becomes of the rest.
                self.bind(ledger, id, None)?;
                let bumped = ledger.bumped()?;
                self.register_with(ledger)?;
                self.bind(ledger, id, Some(bumped))
            }
        }
    }

    /// Whether this storage takes part in a ledger elsewhere.
    pub(super) fn is_bound(&self) -> Result<bool> {
        Ok(self.database().read(binding)?.is_some())
    }

    /// The ledger elsewhere that this storage takes part in, as messages call it.
    pub fn coordinator(&self) -> Result<Option<String>> {
        Ok(self.database().read(binding)?.map(|bound| bound.name))
    }

    /// Notes the ledger, and, once it is registered there, up to where an operator has vouched for it.
    fn bind(&self, ledger: &dyn Ledger, id: Uuid, registered: Option<Generation>) -> Result<()> {
        let is_bumped = self.database().write(|tx| {
            let mut is_bumped = false;
            let mut table = tx.open_table(COORDINATOR)?;
            table.insert("ledger", id.to_string().as_str())?;
            table.insert("name", ledger.coordinator().as_str())?;
            if let Some(bumped) = registered {
                table.insert("registered", "")?;
                let text = bumped.to_string();
                let before = table.insert("bumped", text.as_str())?.map(|before| before.value().to_owned());
                is_bumped = before.is_some_and(|before| before != text);
                if is_bumped {
                    asked::forget(tx)?;
                }
            }
            // A storage that took part once had its data: a start without it is refused.
            let mut storages = tx.open_table(tables::STORAGES)?;
            if tables::member(&storages, self.identity())?.is_none() {
                let member = Member { token: Uuid::nil(), retired: false };
                storages.insert(self.identity().as_u128(), row::to_text(&member).as_str())?;
            }
            Ok(Outcome::Changed(is_bumped))
        })?;
        if is_bumped {
            self.asked().clear();
        }
        Ok(())
    }

    /// A ledger that lost what this storage has seen of it would give the same generations again, for other requests.
    fn refuse_an_older(&self, ledger: &dyn Ledger, registered: bool) -> Result<()> {
        let standing = match ledger.standing(self.identity()) {
            Err(e) if e.kind() == Kind::NotFound && registered => {
                return Err(went_backwards(ledger, "it does not know this store any more"));
            }
            // Not registered yet, or not to be: registering says so.
            Err(e) if matches!(e.kind(), Kind::NotFound | Kind::Stale) => return Ok(()),
            standing => standing?,
        };
        self.require_no_loss(ledger, &standing)?;
        let known = self.highest_known()?;
        if standing.highest < known {
            let what =
                format!("it has given {} generations, and this store knows of {known}", standing.highest);
            return Err(went_backwards(ledger, &what));
        }
        Ok(())
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
