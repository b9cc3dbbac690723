//! Mooncake's file-per-key directories: what stands in one, and whose it is here.

mod tenant_map;
pub mod tree;

pub use tenant_map::{TenantMap, TenantRule};
pub use tree::{Entry, Found, Layout, Rejected, Tree, Why};
