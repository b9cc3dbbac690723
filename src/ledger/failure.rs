//! redb's errors as this crate's.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Error, Kind, Result};

/// A ledger that does not hold what it must.
pub(super) fn corrupt(what: impl Into<String>) -> Error {
    Error::new(Kind::Corrupt, what.into())
}

fn of(error: redb::Error) -> Error {
    match error {
        redb::Error::Io(e) if e.raw_os_error().is_some() => Error::os("cannot use the ledger's file", e),
        redb::Error::PreviousIo | redb::Error::DatabaseClosed | redb::Error::TransactionPoisoned => {
            Error::os(
                "the ledger's file failed a moment ago, and is opened again for the next use",
                io::Error::from_raw_os_error(libc::EIO),
            )
        }
        redb::Error::DatabaseAlreadyOpen | redb::Error::LockProtocolMismatch => {
            Error::new(Kind::Locked, "the ledger's file is in use by another process")
        }
        // Also ends that came too early and magic numbers that are none: errors of io without an errno.
        other => corrupt(other.to_string()),
    }
}

macro_rules! from_redb {
    ($($error:ident),*) => {$(
        impl From<redb::$error> for Error {
            fn from(error: redb::$error) -> Self {
                of(error.into())
            }
        }
    )*};
}

from_redb!(StorageError, TableError, TransactionError, CommitError, DatabaseError, SetDurabilityError);

/// Runs `work`; where redb panics on what it reads, that is damage like any other.
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(corrupt(said(&*panic))))
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it cannot be read").to_owned()
}
