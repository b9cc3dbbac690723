//! Ledger tests: a ledger file in a temporary directory.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tempfile::TempDir;
use uuid::Uuid;

use super::local::Kept;
use super::*;
use crate::error::{Error, Kind};
use crate::key::Tenant;

mod binding;
mod conformance;
mod damage;
pub(crate) mod etcd_server;
mod faults;
mod model;
mod protocol;
mod room;
mod storage;

/// What the coming calls that change a file are to meet.
#[derive(Debug, Default)]
pub(super) struct Faults(Mutex<Plan>);

#[derive(Debug, Default)]
struct Plan {
    /// Calls that succeed before the first that fails.
    calls: usize,
    failures: usize,
    errno: i32,
    met: bool,
}

impl Faults {
    pub(super) fn check(&self) -> io::Result<()> {
        let mut plan = self.0.lock();
        if plan.failures == 0 {
            return Ok(());
        }
        if plan.calls > 0 {
            plan.calls -= 1;
            return Ok(());
        }
        plan.failures -= 1;
        plan.met = true;
        Err(io::Error::from_raw_os_error(plan.errno))
    }

    fn plan(&self, calls: usize, failures: usize, errno: i32) {
        *self.0.lock() = Plan { calls, failures, errno, met: false };
    }

    /// Ends the plan; answers whether it had come to a failure.
    fn end(&self) -> bool {
        std::mem::take(&mut *self.0.lock()).met
    }
}

/// A ledger in a directory of its own. Fail points are of the whole process, so one bench at a time has them.
struct Bench {
    dir: TempDir,
    storage: Uuid,
    database: Option<Arc<Database>>,
    kept: Kept,
    #[cfg(feature = "failpoints")]
    _steps: fail::FailScenario<'static>,
}

impl Bench {
    fn new() -> Bench {
        Bench::keeping(Kept { requests: 1000, ids: 1000 })
    }

    fn keeping(kept: Kept) -> Bench {
        let mut bench = Bench {
            dir: tempfile::tempdir().unwrap(),
            storage: Uuid::new_v4(),
            database: None,
            kept,
            #[cfg(feature = "failpoints")]
            _steps: fail::FailScenario::setup(),
        };
        found(&bench.path(), bench.storage);
        bench.reopen();
        bench
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("ledger.redb")
    }

    fn reopen(&mut self) {
        self.database = None;
        self.database = Some(open(&self.path(), self.storage).unwrap());
    }

    fn database(&self) -> Arc<Database> {
        self.database.clone().unwrap()
    }

    fn ledger(&self) -> LocalLedger {
        LocalLedger::keeping(self.database(), self.kept)
    }

    /// A storage that takes part.
    fn member(&self) -> Uuid {
        let storage = Uuid::new_v4();
        self.ledger().register(storage, &[], Uuid::new_v4()).unwrap();
        storage
    }
}

fn found(path: &Path, storage: Uuid) {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
    Database::initialise(file, storage).unwrap();
}

fn open(path: &Path, storage: Uuid) -> Result<Arc<Database>> {
    let at = path.to_owned();
    Database::open(path, storage, move || -> Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(&at)
            .map_err(|e| Error::os("cannot open the ledger", e))
    })
}

fn tenant(name: &str) -> Scope {
    Scope::Tenant(Tenant::new(name.as_bytes()).unwrap())
}

fn generation_of(submitted: Result<Submitted>) -> Generation {
    submitted.unwrap().request.generation
}

fn kind<T: Debug>(result: Result<T>) -> Kind {
    result.unwrap_err().kind()
}

fn entry(scope: &Scope, generation: u64, mode: Mode) -> Pending {
    Pending { scope: scope.clone(), generation: Generation(generation), mode }
}
