//! What a storage keeps of itself: identity, token, applied markers.

/// The storage's own part of `ledger.redb`.
#[derive(Debug)]
pub struct StorageFile {}
