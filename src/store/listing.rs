//! Listings: some entries of a directory at a time, in the order of their cookies.

use super::Store;
use super::index::NodeId;
use crate::error::Result;
use crate::key::RecordKind;

/// One entry of a listing.
#[derive(Debug, Clone, Copy)]
pub struct ListEntry<'a> {
    /// Where the listing goes on behind this entry.
    pub cookie: u64,
    /// The node.
    pub node: NodeId,
    /// What it is.
    pub kind: RecordKind,
    /// The name.
    pub name: &'a [u8],
    /// Its time is over: nobody finds it any more.
    pub expired: bool,
}

/// Entries in a row, as they were at one moment. Their names stand in one buffer: a listing is made of hundreds of
/// thousands, and to allocate each took longer than all the rest.
#[derive(Debug, Default)]
pub struct Listing {
    pub(super) rows: Vec<Row>,
    names: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Row {
    cookie: u64,
    pub(super) node: NodeId,
    pub(super) kind: RecordKind,
    /// Where its name ends in the buffer; it begins where the one before ends.
    name_end: usize,
    pub(super) expired: bool,
}

impl Listing {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The entries in order.
    pub fn iter(&self) -> impl Iterator<Item = ListEntry<'_>> {
        let begins = std::iter::once(0).chain(self.rows.iter().map(|row| row.name_end));
        self.rows.iter().zip(begins).map(|(row, begin)| ListEntry {
            cookie: row.cookie,
            node: row.node,
            kind: row.kind,
            name: &self.names[begin..row.name_end],
            expired: row.expired,
        })
    }
}

impl Store {
    /// Up to `max` entries behind `cookie`.
    pub fn list(&self, dir: NodeId, cookie: u64, max: usize) -> Result<Listing> {
        let mut listing = Listing::default();
        {
            let index = self.index.lock();
            for (cookie, slot) in index.dir(dir)?.children.behind(cookie).take(max) {
                let node = index.at(slot);
                listing.names.extend_from_slice(&node.name);
                listing.rows.push(Row {
                    cookie,
                    node: index.id_of(slot),
                    kind: node.kind,
                    name_end: listing.names.len(),
                    expired: false,
                });
            }
        }
        self.mark_expired(&mut listing.rows);
        Ok(listing)
    }
}
