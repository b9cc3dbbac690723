//! One suite for every ledger: what asserts a rule of the protocol is run against each.

use std::sync::Arc;

use super::etcd_server::EtcdServer;
use super::*;
use crate::config::EtcdSettings;

/// A ledger of some kind, and whoever may take part.
pub(super) trait Conforming {
    fn ledger(&self) -> Arc<dyn Ledger>;

    /// Whoever held the ledger dies; another takes it up.
    fn reopen(&mut self);

    /// A storage that takes part.
    fn member(&self) -> Uuid {
        let storage = Uuid::new_v4();
        self.ledger().register(storage, &[], Uuid::new_v4()).unwrap();
        storage
    }
}

impl Conforming for Bench {
    fn ledger(&self) -> Arc<dyn Ledger> {
        Arc::new(Bench::ledger(self))
    }

    fn reopen(&mut self) {
        Bench::reopen(self);
    }
}

/// A prefix of its own in an etcd that others use as well.
pub(super) struct EtcdBench {
    settings: EtcdSettings,
    kept: Kept,
    ledger: Arc<EtcdLedger>,
    #[cfg(feature = "failpoints")]
    _steps: fail::FailScenario<'static>,
}

impl EtcdBench {
    pub(super) fn keeping(server: &EtcdServer, kept: Kept) -> EtcdBench {
        let settings = server.settings();
        let ledger = Arc::new(EtcdLedger::keeping(&settings, kept).unwrap());
        EtcdBench {
            settings,
            kept,
            ledger,
            #[cfg(feature = "failpoints")]
            _steps: fail::FailScenario::setup(),
        }
    }
}

impl Conforming for EtcdBench {
    fn ledger(&self) -> Arc<dyn Ledger> {
        Arc::clone(&self.ledger) as Arc<dyn Ledger>
    }

    fn reopen(&mut self) {
        self.ledger = Arc::new(EtcdLedger::keeping(&self.settings, self.kept).unwrap());
    }
}

/// Runs a test against each kind of ledger, by turns.
pub(super) fn each(test: impl Fn(&mut dyn Conforming)) {
    each_keeping(Kept { requests: 1000, ids: 1000 }, test);
}

pub(super) fn each_keeping(kept: Kept, test: impl Fn(&mut dyn Conforming)) {
    println!("of the store's own ledger:");
    test(&mut Bench::keeping(kept));
    if let Some(server) = EtcdServer::shared() {
        println!("of the ledger in etcd:");
        test(&mut EtcdBench::keeping(server, kept));
    }
}
