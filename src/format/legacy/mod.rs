//! Mooncake's file-per-key directory, byte for byte: where a record stands, what its file holds, whose it is.
//!
//! Released masters and clients have written these paths and bytes, so nothing here ever changes. Two keys can share
//! a legacy path: whose record a file holds is known only from the *storage key* inside it. Nothing here opens,
//! renames or removes; a damaged record is a value ([`Malformed`]), only a failing read is an error.

mod encode;
mod place;
mod record;
mod storage_key;
#[cfg(test)]
mod tests;
mod wire;

pub use encode::{head, write};
pub use place::{FSDIR, MAX_NAME_BYTES, Place, STAGING, canonical_path, fits, path};
pub use record::{Malformed, Record, Span, locate, locate_bytes};
pub use storage_key::{MAX_STORAGE_KEY_BYTES, StorageKey, TenantFault, Unowned};
