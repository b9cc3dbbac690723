//! Keys that no path spells: `a//b`, `../a`, the value `a` beside the value `a/b`. Imports bring them; `by-key` names
//! them.
//!
//! Each tenant has one more directory that no name leads to. Its entries are named by the whole key, so everything
//! that works on a node of a directory works on them. INVARIANT: a key has at most one node. A key whose directory or
//! value of the same path goes away keeps standing here until the next start, and is found by its path as well.

use super::Store;
use super::index::{DirAttr, Directory, Index, NodeId, ROOT, State};
use crate::error::{Error, Kind, Result};
use crate::key::{Key, RecordKind, Tenant};

impl Index {
    /// Makes the directory of a new tenant's keys that no path spells. With the root above it, the key of an entry is
    /// the entry's name.
    pub(super) fn add_unspelled(&mut self, number: u32, attr: DirAttr) -> Result<NodeId> {
        let dir = Directory::new(attr, false);
        let id = self.add_pending(ROOT, b"", number, RecordKind::Directory, Some(dir));
        self.get_mut(id)?.state = State::Linked;
        Ok(id)
    }

    /// Drops it with its tenant.
    pub(super) fn drop_unspelled(&mut self, number: u32) {
        let id = self.tenants[number as usize].unspelled;
        if let Ok(node) = self.get_mut(id) {
            node.state = State::Pending;
            self.abandon(id);
        }
    }

    /// Whether this is such a directory.
    pub(super) fn is_unspelled(&self, slot: super::evict::Slot) -> bool {
        let tenant = self.tenants.get(self.at(slot).tenant as usize);
        tenant.is_some_and(|t| t.unspelled == self.id_of(slot))
    }

    /// Whether a tenant has no key and no directory.
    pub(super) fn is_empty(&self, number: u32) -> bool {
        let tenant = &self.tenants[number as usize];
        [tenant.node, tenant.unspelled].iter().all(|id| self.dir(*id).is_ok_and(|d| d.children.is_empty()))
    }

    /// The node of the key that `name` in `parent` spells, when it is no entry there: it stands with those that no path
    /// spelled at the start, or, asked of those, where the path leads by now.
    pub(super) fn elsewhere(&self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        let number = self.linked(parent).ok()?.tenant;
        let unspelled = self.tenants.get(number as usize)?.unspelled;
        if parent == unspelled {
            let (at, name) = self.place_of_key(number, &Key::new(name).ok()?).ok()?;
            return if at == unspelled { None } else { self.entry(at.slot(), &name) };
        }
        if self.dir(unspelled).ok()?.children.is_empty() {
            return None;
        }
        let mut key = Vec::from(self.key_of(parent.slot()).ok()?.as_bytes());
        if !key.is_empty() {
            key.push(b'/');
        }
        key.extend_from_slice(name);
        self.entry(unspelled.slot(), &key)
    }

    /// Where the value of a key stands, or would: a directory, and the name there.
    pub(super) fn place_of_key(&self, number: u32, key: &Key) -> Result<(NodeId, Box<[u8]>)> {
        let tenant = &self.tenants[number as usize];
        let unspelled = (tenant.unspelled, Box::from(key.as_bytes()));
        if self.entry(tenant.unspelled.slot(), key.as_bytes()).is_some() {
            return Ok(unspelled);
        }
        let Some(path) = key.path() else { return Ok(unspelled) };
        let (mut at, mut parts) = (tenant.node, path.peekable());
        while let Some(part) = parts.next() {
            let (found, is_last) = (self.entry(at.slot(), part), parts.peek().is_none());
            match (found, found.is_some_and(|id| self.at(id.slot()).dir.is_some())) {
                (Some(id), true) if !is_last => at = id,
                (_, false) if is_last => return Ok((at, part.into())),
                (None, _) => {
                    return Err(Error::new(Kind::NotFound, format!("the directory of {key} is not there")));
                }
                // A directory where the value would be, or a value where its directory would be.
                _ => break,
            }
        }
        Ok(unspelled)
    }
}

impl Store {
    /// The node of a key: its value, or the directory of its path.
    pub fn find_key(&self, tenant: &Tenant, key: &Key) -> Result<Option<NodeId>> {
        let home = self.home(tenant)?;
        let index = self.index.lock();
        let entry = &index.tenants[home.number as usize];
        if let Some(id) = index.entry(entry.unspelled.slot(), key.as_bytes()) {
            return Ok(Some(id));
        }
        let Some(mut path) = key.path() else { return Ok(None) };
        Ok(path.try_fold(entry.node, |at, part| index.entry(at.slot(), part)))
    }

    /// Where the value of a key stands, or would: a directory, and the name there.
    pub fn place_of_key(&self, tenant: &Tenant, key: &Key) -> Result<(NodeId, Box<[u8]>)> {
        let home = self.home(tenant)?;
        self.index.lock().place_of_key(home.number, key)
    }

    /// The directory of a tenant's keys that no path spells.
    pub fn unspelled(&self, tenant: &Tenant) -> Result<NodeId> {
        let home = self.home(tenant)?;
        Ok(self.index.lock().tenants[home.number as usize].unspelled)
    }

    /// The directory whose owner and mode decide what may be done in this one: of the keys that no path spells, the
    /// tenant's.
    pub fn governing(&self, dir: NodeId) -> NodeId {
        let index = self.index.lock();
        let tenant = index.tenant_of(dir).ok().filter(|t| t.unspelled == dir);
        tenant.map_or(dir, |t| t.node)
    }

    /// A value that another one of its key replaced may have stood in another directory than `parent`: whoever caches
    /// it there is told.
    pub(super) fn tell_moved(&self, replaced: Option<NodeId>, parent: NodeId) {
        if let Some(old) = replaced
            && let Ok((at, name)) = self.last_place(old)
            && at != parent
        {
            self.tell_gone(at, &name, old);
        }
    }
}
