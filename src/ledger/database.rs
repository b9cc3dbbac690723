//! The file `ledger.redb`: opened once a store, shared by the ledger and the storage's own markers.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use redb::{Builder, Durability, ReadTransaction, ReadableDatabase, WriteTransaction};
use uuid::Uuid;

use super::backend::Backend;
use super::failure::{caught, corrupt};
use super::tables;
use crate::config::limits;
use crate::error::{Error, Kind, Result};

/// An open ledger file.
///
/// INVARIANT: it is one file for as long as the process lives. What is recorded in a file that has lost its name is lost
/// at the next start, and another file of that name may be an older one; so nothing is answered as recorded unless the
/// name still leads to the file that was opened first.
///
/// After an error of the disk redb refuses everything until the file is opened anew; that happens by itself at the
/// next use, so a disk that has space again, or a passing error, needs no restart.
pub struct Database {
    path: PathBuf,
    storage: Uuid,
    source: Box<dyn Fn() -> Result<File> + Send + Sync>,
    /// Device and inode of the file that was opened first.
    file: OnceLock<(u64, u64)>,
    /// Absent after an error, until the next use.
    open: RwLock<Option<redb::Database>>,
    #[cfg(test)]
    pub(super) faults: Arc<super::tests::Faults>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database")
            .field("path", &self.path)
            .field("storage", &self.storage)
            .finish_non_exhaustive()
    }
}

/// What a transaction that writes has come to.
pub(super) enum Outcome<T> {
    /// Something to commit.
    Changed(T),
    /// All of it was so before.
    Unchanged(T),
}

impl Database {
    /// Writes a new ledger, without requests, into an empty file, durably.
    ///
    /// # Errors
    /// [`Kind::Exists`] where the file is not empty; the disk's errors.
    pub fn initialise(file: File, storage: Uuid) -> Result<()> {
        let length = file.metadata().map_err(|e| Error::os("cannot look at the new ledger", e))?.len();
        if length > 0 {
            return Err(Error::new(Kind::Exists, "a ledger is only made in an empty file"));
        }
        let database = builder().create_with_backend(Backend::new(file))?;
        let tx = begin(&database)?;
        tables::found(&tx, storage)?;
        tx.commit()?;
        Ok(database.close()?)
    }

    /// Opens the ledger of `storage`. `source` opens the existing file for reading and writing, now and after every
    /// error of the disk; `path` is what messages call it.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] where the file is not, or not wholly, the ledger of this storage; [`Kind::Locked`] where it
    /// is open already; what `source` and the disk say.
    pub fn open(
        path: &Path,
        storage: Uuid,
        source: impl Fn() -> Result<File> + Send + Sync + 'static,
    ) -> Result<Arc<Database>> {
        let database = Database {
            path: path.to_owned(),
            storage,
            source: Box::new(source),
            file: OnceLock::new(),
            open: RwLock::new(None),
            #[cfg(test)]
            faults: Arc::default(),
        };
        database.with(|_| Ok(()), Ok)?;
        Ok(Arc::new(database))
    }

    /// The identity of the storage whose ledger this is.
    pub fn storage(&self) -> Uuid {
        self.storage
    }

    /// Runs `work` over the state of this moment.
    pub(super) fn read<T>(&self, work: impl FnOnce(&ReadTransaction) -> Result<T>) -> Result<T> {
        self.with(|database| database.begin_read().map_err(Into::into), |tx| work(&tx))
    }

    /// Runs `work` and commits what it changed, durably, in two phases; nothing of it where it fails. An error of
    /// the commit itself leaves open whether it happened.
    pub(super) fn write<T>(&self, work: impl FnOnce(&WriteTransaction) -> Result<Outcome<T>>) -> Result<T> {
        self.require_in_place()?;
        let value = self.with(begin, |tx| match work(&tx)? {
            Outcome::Changed(value) => {
                tx.commit()?;
                Ok(value)
            }
            Outcome::Unchanged(value) => {
                tx.abort()?;
                Ok(value)
            }
        })?;
        // Again: it may have lost its name meanwhile, and an answer is a promise.
        self.require_in_place()?;
        Ok(value)
    }

    /// Whether the name leads to the file that was opened first. An open file that it does not lead to stays open: it may
    /// be all that is left of what was recorded.
    fn require_in_place(&self) -> Result<()> {
        let opened = self.file.get().copied();
        match (self.source)().and_then(|file| identity_of(&file)) {
            Ok(named) if opened.is_none_or(|opened| opened == named) => Ok(()),
            Ok(_) => Err(self.replaced("another file has its name")),
            Err(e) if matches!(e.kind(), Kind::NotFound | Kind::Corrupt) => Err(self.replaced("it is gone")),
            Err(e) => Err(e),
        }
    }

    fn replaced(&self, what: &str) -> Error {
        corrupt(format!(
            "the ledger {} was taken away under the running daemon ({what}): no removal is recorded or acknowledged any \
             more; put that very file back, or unmount, restore the newest copy of it and mount again",
            self.path.display()
        ))
    }

    /// Begins a transaction and runs `work` in it. Where it cannot begin for an error that another one met before, it
    /// begins in the file that is opened anew.
    fn with<X, T>(
        &self,
        begin: impl Fn(&redb::Database) -> Result<X>,
        work: impl FnOnce(X) -> Result<T>,
    ) -> Result<T> {
        let mut work = Some(work);
        let mut done = self.attempt(&begin, &mut work);
        if work.is_some() && done.as_ref().is_err_and(|e| matches!(e.kind(), Kind::Io(_))) {
            done = self.attempt(&begin, &mut work);
        }
        done
    }

    fn attempt<X, T>(
        &self,
        begin: impl Fn(&redb::Database) -> Result<X>,
        work: &mut Option<impl FnOnce(X) -> Result<T>>,
    ) -> Result<T> {
        let done = {
            let database = self.opened()?;
            caught(|| {
                let tx = begin(&database)?;
                let work = work.take().expect("is taken by the one attempt that gets here");
                work(tx)
            })
        };
        done.map_err(|e| {
            if matches!(e.kind(), Kind::Io(_) | Kind::NoSpace | Kind::Corrupt) {
                self.discard();
            }
            match e.kind() {
                Kind::Corrupt => self.damaged(&e),
                _ if e.is_full_disk() => self.out_of_room(e),
                _ => e,
            }
        })
    }

    fn opened(&self) -> Result<MappedRwLockReadGuard<'_, redb::Database>> {
        let mut guard = self.open.read();
        if guard.is_none() {
            drop(guard);
            let mut slot = self.open.write();
            if slot.is_none() {
                if self.file.get().is_some() {
                    self.require_in_place()?;
                }
                let damaged = |e: Error| if e.kind() == Kind::Corrupt { self.damaged(&e) } else { e };
                *slot = Some(caught(|| self.open_file()).map_err(damaged)?);
            }
            guard = RwLockWriteGuard::downgrade(slot);
        }
        Ok(RwLockReadGuard::map(guard, |slot| slot.as_ref().expect("opened above")))
    }

    fn open_file(&self) -> Result<redb::Database> {
        let file = (self.source)()?;
        let identity = identity_of(&file)?;
        // redb would begin a new ledger in an empty file, and forget every removal.
        if file.metadata().map_err(|e| Error::os("cannot look at the ledger", e))?.len() == 0 {
            return Err(corrupt("it is empty"));
        }
        #[allow(unused_mut)]
        let mut backend = Backend::new(file);
        #[cfg(test)]
        {
            backend.faults = self.faults.clone();
        }
        let database = builder().create_with_backend(backend)?;
        tables::check(&database.begin_read()?, self.storage)?;
        self.file.get_or_init(|| identity);
        Ok(database)
    }

    fn discard(&self) {
        // Closed under the lock: whoever opens the file again would find it in use.
        let mut slot = self.open.write();
        let closed = caught(|| {
            drop(slot.take());
            Ok(())
        });
        drop(slot);
        if let Err(e) = closed {
            log::warn!("closing the ledger {} after an error: {e}", self.path.display());
        }
    }

    fn out_of_room(&self, e: Error) -> Error {
        e.context(format!(
            "the ledger {} needs more room than its disk has (make some on that filesystem, by deleting what is not the \
             store's or by evict in the control file, and ask again)",
            self.path.display()
        ))
    }

    fn damaged(&self, what: &Error) -> Error {
        damaged(&self.path, what)
    }
}

pub(super) fn damaged(path: &Path, what: &Error) -> Error {
    corrupt(format!(
        "the ledger {} is damaged or not this store's: {what}; restore the file from a backup of this same store, and \
         do not delete it: it holds which removals were asked for and applied",
        path.display()
    ))
}

fn identity_of(file: &File) -> Result<(u64, u64)> {
    let found = file.metadata().map_err(|e| Error::os("cannot look at the ledger", e))?;
    Ok((found.dev(), found.ino()))
}

pub(super) fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(limits::LEDGER_CACHE_BYTES).set_check_integrity_on_open(true);
    builder
}

fn begin(database: &redb::Database) -> Result<WriteTransaction> {
    let mut tx = database.begin_write()?;
    tx.set_two_phase_commit(true);
    tx.set_durability(Durability::Immediate)?;
    Ok(tx)
}
