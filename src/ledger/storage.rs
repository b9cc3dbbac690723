//! What a storage keeps of itself: identity, token, applied markers.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard, RwLock};
use redb::ReadableTable;
use uuid::Uuid;

use super::applied::Applied;
use super::asked::{self, Asked};
use super::database::{Database, Outcome};
use super::tables;
use super::{Ledger, Token};
use crate::config::limits;
use crate::error::Result;
use crate::key::{Epoch, Tenant};
use crate::scope::{Generation, Scope};

/// The storage's own part of `ledger.redb`.
#[derive(Debug)]
pub struct StorageFile {
    database: Arc<Database>,
    /// What is durable, and nothing else.
    applied: RwLock<Arc<Applied>>,
    tokens: Mutex<Tokens>,
    /// What is noted durably of what a coordinator asked for.
    asked: Mutex<Asked>,
}

/// Every token that the ledger may have, oldest first. More than one where answers were lost.
#[derive(Debug)]
struct Tokens {
    known: Vec<Token>,
    /// Whether the last one was made by this process, which may then offer it again.
    own: bool,
}

impl StorageFile {
    /// Reads what the storage knows of itself.
    pub fn open(database: Arc<Database>) -> Result<StorageFile> {
        let (applied, known, asked) = database.read(|tx| {
            let mut known = Vec::new();
            for entry in tx.open_table(tables::TOKENS)?.iter()? {
                known.push(Uuid::from_u128(entry?.1.value()));
            }
            Ok((tables::applied(&tx.open_table(tables::APPLIED)?)?, known, asked::read(tx)?))
        })?;
        let tokens = Mutex::new(Tokens { known, own: false });
        Ok(StorageFile {
            database,
            applied: RwLock::new(Arc::new(applied)),
            tokens,
            asked: Mutex::new(asked),
        })
    }

    /// The storage's identity: for good.
    pub fn identity(&self) -> Uuid {
        self.database.storage()
    }

    pub(super) fn database(&self) -> &Arc<Database> {
        &self.database
    }

    pub(super) fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock()
    }

    /// What has been applied, durably.
    pub fn applied(&self) -> Arc<Applied> {
        self.applied.read().clone()
    }

    /// The epoch of a tenant.
    pub fn epoch_of(&self, tenant: &Tenant) -> Epoch {
        self.applied.read().epoch_of(tenant)
    }

    /// Whether a request has been applied.
    pub fn covers(&self, scope: &Scope, generation: Generation) -> bool {
        self.applied.read().covers(scope, generation)
    }

    /// Notes an applied request: durable first, then visible. Never goes back.
    pub fn mark(&self, scope: &Scope, generation: Generation) -> Result<()> {
        self.database.write(|tx| {
            let mut applied = tx.open_table(tables::APPLIED)?;
            let key = tables::scope_key(scope);
            let before = applied.get(key)?.map_or(0, |entry| entry.value());
            if before >= generation.0 {
                return Ok(Outcome::Unchanged(()));
            }
            applied.insert(key, generation.0)?;
            step!("ledger.marker");
            Ok(Outcome::Changed(()))
        })?;
        step!("ledger.marked");
        Arc::make_mut(&mut *self.applied.write()).advance(scope, generation);
        Ok(())
    }

    /// Tells a ledger of this storage, with a token that it never had before.
    ///
    /// # Errors
    /// What [`Ledger::register`] says, and the disk.
    pub fn register_with(&self, ledger: &dyn Ledger) -> Result<()> {
        let next = self.prepare()?;
        let known = self.known_tokens();
        ledger.register(self.identity(), &known, next)?;
        self.registered(next)
    }

    /// The tokens of which the ledger has one, if it knows this storage.
    pub fn known_tokens(&self) -> Vec<Token> {
        self.tokens.lock().known.clone()
    }

    /// The token of the next registration, on disk before the ledger is told: whatever becomes of the answer, the
    /// storage can prove itself. A start without an answer leaves its token beside the next one, because the ledger
    /// may have it; reusing it instead would make a copy of the disk from that time as good as this one.
    pub fn prepare(&self) -> Result<Token> {
        let mut tokens = self.tokens.lock();
        let full = tokens.known.len() >= limits::OPEN_TOKENS;
        if let Some(last) = tokens.known.last()
            && (tokens.own || full)
        {
            return Ok(*last);
        }
        let next = Uuid::new_v4();
        let known: Vec<Token> = tokens.known.iter().copied().chain([next]).collect();
        self.write_tokens(&known)?;
        *tokens = Tokens { known, own: true };
        Ok(next)
    }

    /// The ledger has the token: the ones before it are worth nothing from now on.
    pub fn registered(&self, token: Token) -> Result<()> {
        let mut tokens = self.tokens.lock();
        self.write_tokens(&[token])?;
        // Not to be offered a second time: the next registration is to find out a copy that has this one.
        *tokens = Tokens { known: vec![token], own: false };
        Ok(())
    }

    fn write_tokens(&self, known: &[Token]) -> Result<()> {
        self.database.write(|tx| {
            let mut tokens = tx.open_table(tables::TOKENS)?;
            tokens.retain(|_, _| false)?;
            for (n, token) in known.iter().enumerate() {
                tokens.insert(n as u64, token.as_u128())?;
            }
            Ok(Outcome::Changed(()))
        })
    }
}
