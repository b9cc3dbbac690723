//! The file `ledger.redb`: opened once a store, shared by the ledger and the storage's own markers.

/// An open ledger file.
#[derive(Debug)]
pub struct Database {}
