//! Uses of keys: what the eviction order is told of them.
//!
//! A use is an open, a publication, a rename to a key's name, or an access time that somebody sets. Reads are the
//! kernel's, and nobody hears of them.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Store;
use super::evict::{Opener, Order, Slot, Use};
use super::index::{Index, Node, NodeId, State};
use crate::error::Result;
use crate::key::Digest;
use crate::os::Timespec;

impl Index {
    /// Links a pending node under its parent and name; what stood there becomes an orphan and is returned.
    /// The parent must be a linked directory.
    pub fn link(&mut self, id: NodeId, blocks: u64, now: Timespec) -> Result<Option<NodeId>> {
        let replaced = self.join(id, blocks, now)?;
        self.published(id, None, None);
        Ok(replaced)
    }

    /// Takes the name of a key away that is evicted or replaced: the eviction order remembers how it was used.
    pub fn unlink_for_later(&mut self, id: NodeId, now: Timespec) -> Result<()> {
        if self.linked(id)?.dir.is_none() {
            let key = self.key_hash(id.slot());
            self.order.evicted(id.slot(), key);
        }
        self.unlink(id, now)
    }

    /// The eviction order, and whether a node is linked still and may have one of this tenant behind it, for it to ask: a
    /// search passes pinned keys and those of other tenants, with what is between them.
    fn order_and_links(&mut self, tenant: u32) -> (&mut Order, impl Fn(NodeId) -> bool + use<'_>) {
        let nodes = &self.nodes;
        let is_linked =
            |node: &Node, id: NodeId| node.state == State::Linked && node.generation == id.generation();
        let leads = move |node: &Node, id| is_linked(node, id) && node.tenant == tenant && !node.pinned;
        (&mut self.order, move |id| nodes.get(id.slot() as usize).is_some_and(|node| leads(node, id)))
    }

    fn by(&self, id: NodeId, opener: Option<Opener>) -> Option<Use> {
        let directory = self.at(id.slot()).parent;
        opener.map(|opener| Use { opener, directory, at: Instant::now() })
    }

    /// A hash of the key of a node, the same whenever the key comes back; 0 where nobody asks for it, or it has none.
    pub(super) fn key_hash(&self, slot: Slot) -> u64 {
        if !self.order.needs_keys() {
            return 0;
        }
        let node = self.at(slot);
        let (Some(tenant), Ok(key)) = (self.tenants.get(node.tenant as usize), self.key_of(slot)) else {
            return 0;
        };
        Digest::of(&tenant.home.tenant, key.as_bytes(), node.kind).low()
    }

    /// A linked value was opened, or marked as used.
    pub fn opened(&mut self, id: NodeId, opener: Option<Opener>, size_bytes: Option<u64>) {
        let by = self.by(id, opener);
        let (order, is_linked) = self.order_and_links(self.at(id.slot()).tenant);
        order.opened(id, by, size_bytes, is_linked);
    }

    /// A linked value was published, or has got the name that it has now.
    pub fn published(&mut self, id: NodeId, opener: Option<Opener>, size_bytes: Option<u64>) {
        if self.linked(id).is_ok_and(|node| node.dir.is_none()) {
            let (by, key) = (self.by(id, opener), self.key_hash(id.slot()));
            let (order, is_linked) = self.order_and_links(self.at(id.slot()).tenant);
            order.published(id, key, by, size_bytes, is_linked);
        }
    }
}

impl Store {
    /// Counts a use of a linked value.
    pub fn touch(&self, id: NodeId, opener: Option<Opener>) {
        let mut index = self.index.lock();
        if index.linked(id).is_ok_and(|n| n.dir.is_none()) {
            index.opened(id, opener, None);
            self.counters.hits.fetch_add(1, Ordering::Relaxed);
        }
    }
}
