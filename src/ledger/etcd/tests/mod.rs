//! Of the ways to etcd, and of what only a ledger that several share can meet.

mod client;
mod shared;
