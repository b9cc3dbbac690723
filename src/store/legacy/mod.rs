//! Mooncake's file-per-key directories: what stands in one, whose it is here, and one that is attached: served in
//! place, copied into records of the store as its keys are rewritten, and cleared with its tenants.

mod attach;
mod clear;
mod copy;
mod migrate;
mod retire;
mod serve;
mod shadows;
mod tenant_map;
pub mod tree;

pub use attach::AttachedStatus;
pub(super) use attach::{Attached, attach};
pub(super) use copy::copy_span;
pub use serve::Value;
pub(super) use shadows::Outside;
pub use tenant_map::{TenantMap, TenantRule};
pub use tree::{Entry, Found, Layout, Rejected, Tree, Why};
