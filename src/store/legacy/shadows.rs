//! The index's part of an attached directory: which values are served from there, and what goes on occupying the disk
//! behind a record of the store that counts before it.
//!
//! INVARIANT: `served` is the sum over the nodes with [`Source::Attached`]; every shadow is counted in the usage of its
//! tenant and of the store ([`Index::check`] recomputes both), so a key that has two copies costs its quota both.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::key::Key;
use crate::store::index::{Index, NodeId, Usage};
use crate::store::node::Source;

/// What the index knows of an attached directory.
#[derive(Debug, Default)]
pub(in crate::store) struct Outside {
    /// What is served from it.
    pub(in crate::store) served: Usage,
    /// Allocated bytes of files whose key has a value that counts before them, by tenant and key.
    shadows: BTreeMap<(u32, Key), u64>,
    /// Nodes whose copies a transaction is about to exchange: out of eviction's reach.
    transactions: Vec<NodeId>,
    /// It is on another filesystem than the store: what goes there makes no room here.
    pub(in crate::store) elsewhere: bool,
}

impl Outside {
    /// Allocated bytes of all shadows, and how many keys have any.
    pub(in crate::store) fn shadows(&self) -> Usage {
        Usage { bytes: self.shadows.values().sum(), keys: self.shadows.len() as u64 }
    }

    /// The same of one tenant, bytes alone.
    pub(in crate::store) fn shadow_bytes(&self, number: u32) -> u64 {
        self.shadows.iter().filter(|((of, _), _)| *of == number).map(|(_, bytes)| bytes).sum()
    }
}

impl Index {
    /// Whether a linked value is served from the attached directory.
    pub(in crate::store) fn is_attached(&self, id: NodeId) -> bool {
        self.linked(id).is_ok_and(|n| n.content.source == Source::Attached)
    }

    /// A value that was just linked is served from the attached directory.
    pub(in crate::store) fn mark_attached(&mut self, id: NodeId) -> Result<()> {
        let bytes = self.linked(id)?.blocks * 512;
        if !self.is_attached(id) {
            self.get_mut(id)?.content.source = Source::Attached;
            self.outside.served.bytes += bytes;
            self.outside.served.keys += 1;
        }
        Ok(())
    }

    /// A linked value is not served from the attached directory any more; whether it was.
    pub(in crate::store) fn unmark_attached(&mut self, id: NodeId) -> Result<bool> {
        let bytes = self.linked(id)?.blocks * 512;
        let was = self.is_attached(id);
        if was {
            self.get_mut(id)?.content.source = Source::Record;
            self.outside.served.bytes -= bytes;
            self.outside.served.keys -= 1;
        }
        Ok(was)
    }

    /// A record takes the place of an attached value, whose files go on being counted until they are retired. Whether
    /// there is anything to retire.
    pub(in crate::store) fn leave_shadow(&mut self, id: NodeId) -> Result<bool> {
        if !self.unmark_attached(id)? {
            return Ok(false);
        }
        let node = self.linked(id)?;
        let (number, bytes) = (node.tenant, node.blocks * 512);
        let key = self.key_of(id.slot())?;
        self.add_shadow(number, key, bytes);
        Ok(true)
    }

    fn count_outside(&mut self, number: u32, add: u64, take: u64) {
        self.usage.bytes = self.usage.bytes + add - take;
        if let Some(tenant) = self.tenants.get_mut(number as usize) {
            tenant.usage.bytes = tenant.usage.bytes + add - take;
        }
    }

    /// Counts files behind the value of a key.
    pub(in crate::store) fn add_shadow(&mut self, number: u32, key: Key, bytes: u64) {
        *self.outside.shadows.entry((number, key)).or_default() += bytes;
        self.count_outside(number, bytes, 0);
    }

    /// The files behind the value of a key are gone.
    pub(in crate::store) fn forget_shadow(&mut self, number: u32, key: &Key) {
        if let Some(bytes) = self.outside.shadows.remove(&(number, key.clone())) {
            self.count_outside(number, 0, bytes);
        }
    }

    /// Whether files are known behind the value of a key.
    pub(in crate::store) fn has_shadow(&self, number: u32, key: &Key) -> bool {
        !self.outside.shadows.is_empty() && self.outside.shadows.contains_key(&(number, key.clone()))
    }

    /// A removal takes what stands behind a tenant's values: it is counted with what has no name.
    pub(in crate::store) fn hide_shadows(&mut self, number: u32) {
        let bytes = self.outside.shadow_bytes(number);
        self.outside.shadows.retain(|(of, _), _| *of != number);
        self.count_outside(number, 0, bytes);
        self.count_hidden(number, Usage { bytes, keys: 0 });
    }

    /// The copies of a node's key are about to be exchanged.
    pub(in crate::store) fn begin_transaction(&mut self, id: NodeId) {
        self.outside.transactions.push(id);
    }

    /// One such transaction ended.
    pub(in crate::store) fn end_transaction(&mut self, id: NodeId) {
        if let Some(at) = self.outside.transactions.iter().position(|t| *t == id) {
            self.outside.transactions.swap_remove(at);
        }
    }

    /// Whether a transaction is under way with a node's copies.
    pub(in crate::store) fn in_transaction(&self, id: NodeId) -> bool {
        self.outside.transactions.contains(&id)
    }
}
