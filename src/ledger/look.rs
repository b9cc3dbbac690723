//! What a ledger's file says of what was removed, read without changing a byte of it: opening it to write changes some,
//! and a start that is refused is to change none.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use redb::backends::InMemoryBackend;
use redb::{ReadableDatabase, ReadableTable, ReadableTableMetadata, StorageBackend};
use uuid::Uuid;

use super::applied::Applied;
use super::database::{builder, damaged};
use super::failure::{caught, corrupt};
use super::newest::{HEADER_BYTES, follow_newest};
use super::tables;
use crate::error::{Error, Kind, Result};
use crate::scope::Generation;

/// What was removed, and whether the storage has ever been opened.
#[derive(Debug)]
pub struct Known {
    /// The highest generation of each scope that was applied or asked for.
    pub removed: Applied,
    /// Whether the storage took part before: then it had its data.
    pub registered: bool,
}

/// Looks at a copy in memory of the ledger of `storage`. `path` is what messages call it.
///
/// # Errors
/// [`Kind::Corrupt`] where the file is not, or not wholly, the ledger of this storage.
pub fn look(path: &Path, storage: Uuid, file: &File) -> Result<Known> {
    let seen = caught(|| {
        let length = file.metadata().map_err(|e| Error::os("cannot look at the ledger", e))?.len();
        if length < HEADER_BYTES as u64 {
            return Err(corrupt("it is empty"));
        }
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, 0).map_err(|e| Error::os("cannot read the ledger", e))?;
        follow_newest(&mut bytes);
        let copy = InMemoryBackend::new();
        let copied = copy.set_len(length).and_then(|()| copy.write(0, &bytes));
        copied.map_err(|e| corrupt(format!("it cannot be copied: {e}")))?;
        drop(bytes);
        let database = builder().create_with_backend(copy)?;
        known(&database, storage)
    });
    seen.map_err(|e| if e.kind() == Kind::Corrupt { damaged(path, &e) } else { e })
}

fn known(database: &redb::Database, storage: Uuid) -> Result<Known> {
    let tx = database.begin_read()?;
    tables::check(&tx, storage)?;
    let mut removed = tables::applied(&tx.open_table(tables::APPLIED)?)?;
    for entry in tx.open_table(tables::FLOORS)?.iter()? {
        let (scope, floor) = entry?;
        let (physical, logical) = floor.value();
        removed.advance(&tables::to_scope(scope.value())?, Generation(physical.max(logical)));
    }
    Ok(Known { removed, registered: !tx.open_table(tables::STORAGES)?.is_empty()? })
}
