//! What exists: the tree of tenants, directories and keys, who holds it, and what it occupies. A plain value without
//! I/O; the store guards it with one short lock.
//!
//! A node is *linked* when its parent lists it, *pending* while its value is being written, an *orphan* when its name
//! is gone but somebody still refers to it. References are counted for whoever hands out node numbers (the mount).

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::deadlines::Deadlines;
use super::evict::{Order, Slot};
use super::legacy::Outside;
use super::node::ROOT_SLOT;
pub use super::node::{
    Content, DirAttr, Directory, FIRST_COOKIE, NOWHERE, Node, NodeId, ROOT, Source, State,
};
use super::tenants::Home;
use crate::error::{Error, Kind, Result};
use crate::key::{Key, MAX_KEY_BYTES, RecordKind};
use crate::os::Timespec;

/// What a tenant, or the store, holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Allocated bytes of all records.
    pub bytes: u64,
    /// Values and symlinks.
    pub keys: u64,
}

/// A tenant as the index knows it.
#[derive(Debug)]
pub struct TenantEntry {
    /// Name, epoch and directory.
    pub home: Arc<Home>,
    /// Its directory node.
    pub node: NodeId,
    /// The directory of its keys that no path spells.
    pub unspelled: NodeId,
    /// What it holds.
    pub usage: Usage,
    /// What of that has no name any more: a removal took it and has not finished.
    pub hidden: Usage,
    /// Bytes of it that eviction may not take.
    pub pinned_bytes: u64,
    /// Its quota.
    pub quota_bytes: Option<u64>,
    /// How long its keys live after the last change; none is for ever.
    pub ttl_seconds: Option<u64>,
    /// What other tenants' pressure leaves it; 0 is none.
    pub reserve_bytes: u64,
    /// Bytes promised to publications under way.
    pub reserved_bytes: u64,
    /// False once removed by rmdir.
    pub live: bool,
}

impl TenantEntry {
    /// What its quota is asked for.
    pub fn charged_bytes(&self) -> u64 {
        self.usage.bytes - self.hidden.bytes
    }

    /// The same, with what publications under way will add.
    pub(super) fn promised_bytes(&self) -> u64 {
        self.charged_bytes() + self.reserved_bytes
    }
}

/// The index. INVARIANT: `usage` is the sum over tenants, and each tenant's the sum over its linked nodes and what is
/// hidden ([`Index::check`] recomputes both).
pub struct Index {
    pub(super) nodes: Vec<Node>,
    free: Vec<Slot>,
    names: HashTable<Slot>,
    hasher: DefaultHashBuilder,
    /// Tenants in order of creation; a number is never reused.
    pub tenants: Vec<TenantEntry>,
    /// What the store holds.
    pub usage: Usage,
    /// What of that removals have taken and not finished.
    pub hidden: Usage,
    /// What of that is no tenant's any more: logical removals are done with it, and it is not deleted yet.
    pub trash_bytes: u64,
    /// Bytes promised to publications under way.
    pub reserved_bytes: u64,
    /// Keys promised to publications under way.
    pub reserved_keys: u64,
    /// Bytes that eviction may not take.
    pub pinned_bytes: u64,
    /// Eviction order of every linked value and symlink.
    pub order: Order,
    /// The keys that live for a time only.
    pub(super) deadlines: Deadlines,
    /// What an attached directory holds of all that.
    pub(super) outside: Outside,
    /// Empty values that are open, by how many inodes.
    pub(super) held: HashMap<NodeId, u32>,
}

fn gone() -> Error {
    Error::new(Kind::NotFound, "no such key any more")
}

impl Index {
    /// An index with nothing but the root directory.
    pub fn new(order: Order, root: DirAttr) -> Self {
        let node = |state, dir| Node {
            generation: 0,
            parent: ROOT_SLOT,
            parent_generation: 0,
            tenant: u32::MAX,
            refs: 1,
            writers: 0,
            state,
            kind: RecordKind::Directory,
            pinned: false,
            content: Content::default(),
            blocks: 0,
            cookie: 0,
            name: Box::default(),
            dir,
        };
        Index {
            // Slot 0 stays unused, so that no node has number 0.
            nodes: vec![
                node(State::Free, None),
                node(State::Linked, Some(Box::new(Directory::new(root, true)))),
            ],
            free: Vec::new(),
            names: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            tenants: Vec::new(),
            usage: Usage::default(),
            hidden: Usage::default(),
            trash_bytes: 0,
            reserved_bytes: 0,
            reserved_keys: 0,
            pinned_bytes: 0,
            order,
            deadlines: Deadlines::default(),
            outside: Outside::default(),
            held: HashMap::new(),
        }
    }

    /// Makes room for so many nodes more, in one piece.
    pub fn reserve(&mut self, nodes: usize) {
        self.nodes.reserve(nodes);
        self.order.reserve(self.nodes.capacity());
        let (slots, hasher) = (&self.nodes, &self.hasher);
        self.names.reserve(nodes, |&s| {
            let n = &slots[s as usize];
            hasher.hash_one((n.parent, &*n.name))
        });
    }

    /// The node of this number, in whatever state.
    pub fn get(&self, id: NodeId) -> Result<&Node> {
        let node = self.nodes.get(id.slot() as usize).ok_or_else(gone)?;
        if node.state == State::Free || node.generation != id.generation() { Err(gone()) } else { Ok(node) }
    }

    /// The node of this number, in whatever state.
    pub fn get_mut(&mut self, id: NodeId) -> Result<&mut Node> {
        self.get(id)?;
        Ok(&mut self.nodes[id.slot() as usize])
    }

    /// The node of this number if its name is still there.
    pub fn linked(&self, id: NodeId) -> Result<&Node> {
        let node = self.get(id)?;
        if node.state == State::Linked { Ok(node) } else { Err(gone()) }
    }

    /// The directory of a node; of an orphan or a pending node it may be gone by now.
    pub fn parent_of(&self, node: &Node) -> NodeId {
        NodeId::new(node.parent, node.parent_generation)
    }

    /// The node in a slot that is known to be in use.
    pub fn at(&self, slot: Slot) -> &Node {
        &self.nodes[slot as usize]
    }

    /// The full number of the node in a slot.
    pub fn id_of(&self, slot: Slot) -> NodeId {
        NodeId::new(slot, self.nodes[slot as usize].generation)
    }

    /// The directory part of a linked directory.
    pub fn dir(&self, id: NodeId) -> Result<&Directory> {
        self.linked(id)?.dir.as_deref().ok_or_else(|| Error::new(Kind::NotDirectory, "not a directory"))
    }

    /// The directory part of a linked directory.
    pub fn dir_mut(&mut self, id: NodeId) -> Result<&mut Directory> {
        self.linked(id)?;
        let dir = self.nodes[id.slot() as usize].dir.as_deref_mut();
        dir.ok_or_else(|| Error::new(Kind::NotDirectory, "not a directory"))
    }

    fn hash(&self, parent: Slot, name: &[u8]) -> u64 {
        self.hasher.hash_one((parent, name))
    }

    /// The node of the key that the entry `name` of a directory spells, wherever it stands.
    pub fn child(&self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        self.entry(parent.slot(), name).or_else(|| self.elsewhere(parent, name))
    }

    /// The entry `name` of a directory itself.
    pub(super) fn entry(&self, slot: Slot, name: &[u8]) -> Option<NodeId> {
        let found = self.names.find(self.hash(slot, name), |&s| {
            let n = &self.nodes[s as usize];
            n.parent == slot && *n.name == *name
        });
        found.map(|&s| self.id_of(s))
    }

    /// The key that the path to this node spells: the components below its tenant.
    pub fn key_of(&self, slot: Slot) -> Result<Key> {
        let mut parts = Vec::with_capacity(8);
        let (mut at, mut bytes) = (slot, 0);
        while self.nodes[at as usize].parent != ROOT_SLOT {
            let name = &self.nodes[at as usize].name;
            bytes += name.len() + 1;
            parts.push(at);
            at = self.nodes[at as usize].parent;
        }
        let mut key = Vec::with_capacity(bytes);
        for &part in parts.iter().rev() {
            if !key.is_empty() {
                key.push(b'/');
            }
            key.extend_from_slice(&self.nodes[part as usize].name);
        }
        Key::new(key)
    }

    /// Length of the key of a new entry `name` of `parent`, in bytes.
    pub fn key_bytes(&self, parent: Slot, name: &[u8]) -> usize {
        let (mut at, mut bytes) = (parent, name.len());
        while at != ROOT_SLOT && self.nodes[at as usize].parent != ROOT_SLOT {
            bytes += self.nodes[at as usize].name.len() + 1;
            at = self.nodes[at as usize].parent;
        }
        bytes
    }

    /// Whether this is the directory of a tenant.
    pub fn is_tenant_dir(&self, slot: Slot) -> bool {
        self.tenants.get(self.at(slot).tenant as usize).is_some_and(|t| t.node.slot() == slot)
    }

    /// The tenant that a node belongs to; an error for the root.
    pub fn tenant_of(&self, id: NodeId) -> Result<&TenantEntry> {
        let node = self.get(id)?;
        self.tenants.get(node.tenant as usize).ok_or_else(|| {
            Error::new(Kind::NotPermitted, "only tenant directories stand at the root of the mount")
        })
    }

    /// Adds a node that is not linked yet, and that nobody refers to.
    pub fn add_pending(
        &mut self,
        parent: NodeId,
        name: &[u8],
        tenant: u32,
        kind: RecordKind,
        dir: Option<Directory>,
    ) -> NodeId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Node {
                generation: 0,
                parent: 0,
                parent_generation: 0,
                tenant: 0,
                refs: 0,
                writers: 0,
                state: State::Free,
                kind,
                pinned: false,
                content: Content::default(),
                blocks: 0,
                cookie: 0,
                name: Box::default(),
                dir: None,
            });
            (self.nodes.len() - 1) as Slot
        });
        let node = &mut self.nodes[slot as usize];
        *node = Node {
            generation: node.generation,
            parent: parent.slot(),
            parent_generation: parent.generation(),
            tenant,
            refs: 0,
            writers: 0,
            state: State::Pending,
            kind,
            pinned: false,
            content: Content::default(),
            blocks: 0,
            cookie: 0,
            name: name.into(),
            dir: dir.map(Box::new),
        };
        NodeId::new(slot, node.generation)
    }

    /// What [`Index::link`] does, without a word to the eviction order.
    pub(super) fn join(&mut self, id: NodeId, blocks: u64, now: Timespec) -> Result<Option<NodeId>> {
        let node = self.get(id)?;
        let parent = self.parent_of(node);
        self.dir(parent)?;
        let slot = id.slot();
        let is_dir = self.nodes[slot as usize].dir.is_some();
        let name = &self.nodes[slot as usize].name;
        // A directory and a value of one key are two records.
        let replaced = if is_dir { self.entry(parent.slot(), name) } else { self.child(parent, name) };
        if let Some(old) = replaced {
            self.leave_shadow(old)?;
            self.unlink_for_later(old, now)?;
        }
        let dir = self.dir_mut(parent)?;
        let cookie = dir.next_cookie;
        dir.next_cookie += 1;
        dir.children.push(cookie, slot);
        dir.subdirs += u32::from(is_dir);
        (dir.attr.mtime, dir.attr.ctime, dir.dirty) = (now, now, true);
        let node = &mut self.nodes[slot as usize];
        (node.cookie, node.state) = (cookie, State::Linked);
        let hash = self.hash(parent.slot(), &self.nodes[slot as usize].name);
        let (nodes, hasher) = (&self.nodes, &self.hasher);
        self.names.insert_unique(hash, slot, |&s| {
            let n = &nodes[s as usize];
            hasher.hash_one((n.parent, &*n.name))
        });
        self.set_blocks(id, blocks)?;
        if !is_dir {
            self.count_keys(slot, 1);
        }
        Ok(replaced)
    }

    /// Takes a linked node's name away. It lives on as an orphan while anyone refers to it.
    pub fn unlink(&mut self, id: NodeId, now: Timespec) -> Result<()> {
        self.unmark_attached(id)?;
        let slot = id.slot();
        self.set_blocks(id, 0)?;
        self.count_pinned(id, false)?;
        let is_dir = self.nodes[slot as usize].dir.is_some();
        if !is_dir {
            self.count_keys(slot, -1);
            self.order.removed(slot);
            self.deadlines.forget(id);
        }
        self.detach(id, now)?;
        self.nodes[slot as usize].state = State::Orphan;
        self.drop_if_unused(slot);
        Ok(())
    }

    /// Up to `max` entries of a directory; none where it is gone.
    pub fn children(&self, dir: NodeId, max: usize) -> Vec<NodeId> {
        let children = self.dir(dir).map(|d| d.children.slots().take(max).map(|s| self.id_of(s)).collect());
        children.unwrap_or_default()
    }

    /// Removes a linked node from its parent's list and the table of names.
    fn detach(&mut self, id: NodeId, now: Timespec) -> Result<()> {
        let slot = id.slot();
        let (parent, cookie) = (self.nodes[slot as usize].parent, self.nodes[slot as usize].cookie);
        let is_dir = self.nodes[slot as usize].dir.is_some();
        let hash = self.hash(parent, &self.nodes[slot as usize].name);
        if let Ok(entry) = self.names.find_entry(hash, |&s| s == slot) {
            entry.remove();
        }
        let dir = self.dir_mut(self.id_of(parent))?;
        dir.children.remove(cookie);
        dir.subdirs -= u32::from(is_dir);
        (dir.attr.mtime, dir.attr.ctime, dir.dirty) = (now, now, true);
        Ok(())
    }

    /// Moves a linked node to another parent and name; what stood there becomes an orphan and is returned.
    pub fn relink(
        &mut self,
        id: NodeId,
        parent: NodeId,
        name: &[u8],
        now: Timespec,
    ) -> Result<Option<NodeId>> {
        self.linked(id)?;
        self.dir(parent)?;
        let slot = id.slot();
        let (blocks, pinned) = (self.nodes[slot as usize].blocks, self.nodes[slot as usize].pinned);
        let is_dir = self.nodes[slot as usize].dir.is_some();
        self.set_blocks(id, 0)?;
        if !is_dir {
            self.count_keys(slot, -1);
        }
        self.detach(id, now)?;
        let node = &mut self.nodes[slot as usize];
        (node.parent, node.parent_generation) = (parent.slot(), parent.generation());
        (node.name, node.state) = (name.into(), State::Pending);
        let replaced = self.join(id, blocks, now)?;
        self.set_pinned(id, pinned)?;
        Ok(replaced)
    }

    /// Links a copy of a linked node under another parent and name; what stood there becomes an orphan.
    pub fn link_copy(
        &mut self,
        id: NodeId,
        parent: NodeId,
        name: &[u8],
        blocks: u64,
        now: Timespec,
    ) -> Result<()> {
        let node = self.linked(id)?;
        let (tenant, kind, pinned) = (node.tenant, node.kind, node.pinned);
        let dir = node.dir.as_ref().map(|d| Directory::new(d.attr, d.recorded));
        let life = self.deadlines.of(id);
        let copy = self.add_pending(parent, name, tenant, kind, dir);
        self.link(copy, blocks, now)?;
        self.set_pinned(copy, pinned)?;
        self.inherit_life(life, copy);
        Ok(())
    }

    /// Puts a new node in the place of a linked value; the old one becomes an orphan.
    pub fn rehome(&mut self, id: NodeId, now: Timespec) -> Result<NodeId> {
        let attached = self.unmark_attached(id)?;
        let node = self.linked(id)?;
        let (parent, name, tenant) = (self.parent_of(node), node.name.clone(), node.tenant);
        let (kind, blocks, pinned, content) = (node.kind, node.blocks, node.pinned, node.content);
        let life = self.deadlines.of(id);
        let fresh = self.add_pending(parent, &name, tenant, kind, None);
        self.link(fresh, blocks, now)?;
        self.get_mut(fresh)?.content = content;
        if attached {
            self.mark_attached(fresh)?;
        }
        self.set_pinned(fresh, pinned)?;
        self.inherit_life(life, fresh);
        Ok(fresh)
    }

    /// Exchanges the places of two linked nodes.
    pub fn exchange(&mut self, a: NodeId, b: NodeId, now: Timespec) -> Result<()> {
        let place = |node: &Node| (node.parent, node.name.clone());
        let (a_place, b_place) = (place(self.linked(a)?), place(self.linked(b)?));
        // `a` waits under a name of its own parent's that is too long to be any key.
        let parking = vec![b'/'; MAX_KEY_BYTES + 1];
        self.relink(a, self.id_of(a_place.0), &parking, now)?;
        self.relink(b, self.id_of(a_place.0), &a_place.1, now)?;
        self.relink(a, self.id_of(b_place.0), &b_place.1, now)?;
        Ok(())
    }

    /// Gives a pending node another place to be linked at; one that is linked by now stays where it is.
    pub fn retarget(&mut self, id: NodeId, parent: NodeId, name: &[u8]) -> Result<()> {
        let node = self.get_mut(id)?;
        if node.state == State::Pending {
            (node.parent, node.parent_generation) = (parent.slot(), parent.generation());
            node.name = name.into();
        }
        Ok(())
    }

    /// Gives a pending node up: it will never be linked.
    pub fn abandon(&mut self, id: NodeId) {
        if let Ok(node) = self.get_mut(id)
            && node.state == State::Pending
        {
            node.state = State::Orphan;
            self.drop_if_unused(id.slot());
        }
    }

    /// Counts one more reference.
    pub fn retain(&mut self, id: NodeId) -> Result<()> {
        let node = self.get_mut(id)?;
        node.refs = node.refs.saturating_add(1);
        Ok(())
    }

    /// Gives references back.
    pub fn release(&mut self, id: NodeId, n: u64) {
        if let Ok(node) = self.get_mut(id) {
            node.refs = node.refs.saturating_sub(u32::try_from(n).unwrap_or(u32::MAX));
            self.drop_if_unused(id.slot());
        }
    }

    fn drop_if_unused(&mut self, slot: Slot) {
        let node = &mut self.nodes[slot as usize];
        if node.state == State::Orphan && node.refs == 0 && node.writers == 0 {
            node.state = State::Free;
            node.generation = NodeId::after(node.generation);
            node.name = Box::default();
            node.dir = None;
            self.free.push(slot);
        }
    }

    /// Counts a handle that may change the content in place, or one fewer; how many there are.
    pub fn add_writers(&mut self, id: NodeId, n: i32) -> Result<u32> {
        let node = self.get_mut(id)?;
        node.writers = node.writers.saturating_add_signed(n);
        let left = node.writers;
        self.drop_if_unused(id.slot());
        Ok(left)
    }

    /// Sets what usage counts for a linked node.
    pub fn set_blocks(&mut self, id: NodeId, blocks: u64) -> Result<()> {
        let node = self.linked(id)?;
        let (old, new, tenant, pinned) = (node.blocks * 512, blocks * 512, node.tenant as usize, node.pinned);
        if self.is_attached(id) {
            self.outside.served.bytes = self.outside.served.bytes - old + new;
        }
        self.nodes[id.slot() as usize].blocks = blocks;
        self.usage.bytes = self.usage.bytes - old + new;
        if pinned {
            self.pinned_bytes = self.pinned_bytes - old + new;
        }
        if let Some(t) = self.tenants.get_mut(tenant) {
            t.usage.bytes = t.usage.bytes - old + new;
            if pinned {
                t.pinned_bytes = t.pinned_bytes - old + new;
            }
        }
        Ok(())
    }

    fn count_keys(&mut self, slot: Slot, n: i64) {
        let tenant = self.nodes[slot as usize].tenant as usize;
        self.usage.keys = self.usage.keys.saturating_add_signed(n);
        if let Some(t) = self.tenants.get_mut(tenant) {
            t.usage.keys = t.usage.keys.saturating_add_signed(n);
        }
    }

    /// Nodes in use, for status and tests.
    pub fn node_count(&self) -> usize {
        self.nodes.iter().filter(|n| n.state != State::Free).count()
    }

    /// All linked nodes below the root.
    pub fn linked_slots(&self) -> impl Iterator<Item = Slot> + '_ {
        (2..self.nodes.len() as Slot).filter(|&s| self.nodes[s as usize].state == State::Linked)
    }

    /// Recomputes every sum; what differs, as sentences.
    pub fn check(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut sums: Vec<Usage> = self.tenants.iter().map(|t| t.hidden).collect();
        for (number, sum) in (0..).zip(&mut sums) {
            sum.bytes += self.outside.shadow_bytes(number);
        }
        let (mut pinned, mut served) = (0, Usage::default());
        for slot in self.linked_slots() {
            let node = self.at(slot);
            if let Some(sum) = sums.get_mut(node.tenant as usize) {
                sum.bytes += node.blocks * 512;
                sum.keys += u64::from(node.dir.is_none());
            }
            pinned += if node.pinned { node.blocks * 512 } else { 0 };
            if node.content.source == Source::Attached {
                served = Usage { bytes: served.bytes + node.blocks * 512, keys: served.keys + 1 };
            }
            if self.is_unspelled(slot) {
                continue;
            }
            if self.entry(node.parent, &node.name) != Some(self.id_of(slot)) {
                found.push(format!("node {slot} is not found by its name"));
            }
            if node.dir.is_none() && self.elsewhere(self.parent_of(node), &node.name).is_some() {
                found.push(format!("the key of node {slot} has two nodes"));
            }
        }
        for (sum, tenant) in sums.iter().zip(&self.tenants) {
            if *sum != tenant.usage {
                found
                    .push(format!("tenant {} holds {sum:?}, counted {:?}", tenant.home.tenant, tenant.usage));
            }
        }
        let of_tenants: u64 = sums.iter().map(|s| s.bytes).sum();
        let keys = sums.iter().map(|s| s.keys).sum();
        let total = Usage { bytes: of_tenants + self.trash_bytes, keys };
        if total != self.usage {
            found.push(format!("the store holds {total:?}, counted {:?}", self.usage));
        }
        let of_tenants: u64 = self.tenants.iter().map(|t| t.pinned_bytes).sum();
        if pinned != self.pinned_bytes || pinned != of_tenants {
            found.push(format!("{pinned} bytes are pinned, counted {}", self.pinned_bytes));
        }
        if served != self.outside.served {
            found
                .push(format!("the attached directory serves {served:?}, counted {:?}", self.outside.served));
        }
        found.extend(self.deadlines.check(|id| self.linked(id).is_ok_and(|n| n.dir.is_none() && !n.pinned)));
        let named = self.charged().keys;
        if self.order.len() as u64 != named {
            found.push(format!("{} keys in eviction order, {named} have names", self.order.len()));
        }
        found
    }
}
