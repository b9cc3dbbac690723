//! The ledger of a store that has no coordinator beside it.

/// A ledger in the store's own `ledger.redb`.
#[derive(Debug)]
pub struct LocalLedger {}
