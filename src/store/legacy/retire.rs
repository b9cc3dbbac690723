//! Retiring: files of the attached directory whose key has a record that counts before them, or is removed, are
//! unlinked, each validated just before.
//!
//! A record of the store is visible before its shadow goes, and a shadow goes before its record does: whatever is cut
//! short, an older value never comes back. A shadow that cannot be unlinked goes on being counted; a rewrite, an
//! eviction, a removal or the next start tries again.

use std::sync::atomic::Ordering;

use super::attach::Attached;
use super::tree::{Found, Layout};
use crate::error::Result;
use crate::key::{Key, Tenant};
use crate::store::Store;
use crate::store::index::NodeId;
use crate::store::object::Place;
use crate::store::tenants::Home;

/// A node whose copies a transaction exchanges: eviction leaves it alone until this is dropped.
pub(in crate::store) struct Transaction<'a> {
    store: &'a Store,
    node: Option<NodeId>,
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if let Some(node) = self.node {
            self.store.index.lock().end_transaction(node);
        }
    }
}

impl Store {
    /// Protects what a transaction is about to replace. Without an attached directory there is nothing that two
    /// copies could come of.
    pub(in crate::store) fn transaction(&self, node: Option<NodeId>) -> Transaction<'_> {
        let node = node.filter(|_| self.attached.is_some());
        if let Some(node) = node {
            self.index.lock().begin_transaction(node);
        }
        Transaction { store: self, node }
    }

    /// Unlinks one file that was found, if it is still that one.
    pub(super) fn unlink_found(&self, attached: &Attached, found: &Found) -> Result<bool> {
        let path = || attached.tree.shown(&found.layout.path(&found.storage_key).unwrap_or_default());
        self.unlink_walked(attached, found).map_err(|e| e.context(path()))
    }

    /// The same for a walk, which says itself of which file an error is.
    pub(super) fn unlink_walked(&self, attached: &Attached, found: &Found) -> Result<bool> {
        let Some(path) = found.layout.path(&found.storage_key) else { return Ok(false) };
        let at = path.iter().rposition(|b| *b == b'/').unwrap_or(0);
        step!("retire.unlink");
        let Some(dir) = attached.tree.fsdir().open_dir_if_any(&path[..at])? else { return Ok(false) };
        let name = &path[at + 1..];
        // Something else by now: it is judged anew, when somebody asks for it.
        if dir.stat(name)?.is_none_or(|a| (a.dev, a.ino) != (found.attr.dev, found.attr.ino)) {
            return Ok(false);
        }
        let gone = dir.unlink(name)?;
        step!("retire.unlinked");
        if self.durable() {
            dir.sync()?;
        }
        Ok(gone)
    }

    /// Unlinks every file of a key in the attached directory, in both layouts and each spelling of the key.
    pub(super) fn unlink_attached(&self, tenant: &Tenant, key: &Key) -> Result<()> {
        let Some(attached) = &self.attached else { return Ok(()) };
        // What counts least goes first: what is cut short brings no older value up.
        for storage_key in attached.tree.tenants().spellings(tenant, key).iter().rev() {
            for layout in [Layout::Legacy, Layout::Canonical] {
                if let Some((_, found)) = attached.tree.open_record(layout, storage_key)? {
                    self.unlink_found(attached, &found)?;
                }
            }
        }
        Ok(())
    }

    /// Retires what stands behind the record of a key, if anything does. The record counts whatever comes of it: a
    /// failure is told, and tried again later.
    pub(in crate::store) fn retire(&self, home: &Home, key: &Key) {
        if let Err(e) = self.retire_first(home, key) {
            if let Some(attached) = &self.attached {
                attached.failed_retirements.fetch_add(1, Ordering::Relaxed);
            }
            log::warn!("the older copy of {key} of tenant {} stays for now: {e}", home.tenant);
            self.note_error(format!("an older copy stays for now: {e}"));
        }
    }

    /// The same, of a record that is about to lose its name: it keeps it when this fails.
    pub(in crate::store) fn retire_first(&self, home: &Home, key: &Key) -> Result<()> {
        if self.attached.is_none() || !self.index.lock().has_shadow(home.number, key) {
            return Ok(());
        }
        step!("retire.begin");
        self.unlink_attached(&home.tenant, key)?;
        self.index.lock().forget_shadow(home.number, key);
        Ok(())
    }

    /// Removes whatever holds a linked value whose name is locked: the shadow first, then the record.
    pub(in crate::store) fn delete_copies(&self, id: NodeId, home: &Home, place: &Place) -> Result<()> {
        self.retire_first(home, &place.key)?;
        if self.is_attached(id) {
            self.unlink_attached(&home.tenant, &place.key)
        } else {
            self.delete_record(home, place)
        }
    }
}
