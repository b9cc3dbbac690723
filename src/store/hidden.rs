//! What removals have taken and not finished: it has no name any more, and goes on being counted.

use super::index::{Index, NodeId, Usage};
use crate::error::Result;
use crate::os::Timespec;

impl Index {
    /// Takes a linked node's name away and goes on counting what it occupies, until [`Index::forget_hidden`].
    pub fn hide(&mut self, id: NodeId, now: Timespec) -> Result<()> {
        let node = self.linked(id)?;
        let number = node.tenant as usize;
        let hidden = Usage { bytes: node.blocks * 512, keys: u64::from(node.dir.is_none()) };
        self.unlink(id, now)?;
        self.count_hidden(number as u32, hidden);
        Ok(())
    }

    /// Counts what has no name and occupies the disk, until [`Index::forget_hidden`].
    pub fn count_hidden(&mut self, number: u32, hidden: Usage) {
        let Some(tenant) = self.tenants.get_mut(number as usize) else { return };
        for usage in [&mut self.usage, &mut self.hidden, &mut tenant.usage, &mut tenant.hidden] {
            *usage = Usage { bytes: usage.bytes + hidden.bytes, keys: usage.keys + hidden.keys };
        }
    }

    /// What a tenant's removal took is gone for good.
    pub fn forget_hidden(&mut self, number: u32) {
        let Some(tenant) = self.tenants.get_mut(number as usize) else { return };
        let hidden = std::mem::take(&mut tenant.hidden);
        for usage in [&mut self.usage, &mut self.hidden, &mut tenant.usage] {
            *usage = Usage { bytes: usage.bytes - hidden.bytes, keys: usage.keys - hidden.keys };
        }
    }

    /// A logical removal is done with what it took: no tenant is charged for it, and it occupies the disk until
    /// [`Index::forget_trash`].
    pub fn discard_hidden(&mut self, number: u32) {
        let bytes = self.tenants.get(number as usize).map_or(0, |t| t.hidden.bytes);
        self.forget_hidden(number);
        self.count_trash(bytes);
    }

    /// Counts what is in the trash and no pending removal's.
    pub fn count_trash(&mut self, bytes: u64) {
        self.trash_bytes += bytes;
        self.usage.bytes += bytes;
        self.hidden.bytes += bytes;
    }

    /// The trash is empty.
    pub fn forget_trash(&mut self) {
        let bytes = std::mem::take(&mut self.trash_bytes);
        self.usage.bytes -= bytes;
        self.hidden.bytes -= bytes;
    }

    /// What the quota is asked for: hidden values are about to go, and nobody else makes room for them.
    pub fn charged(&self) -> Usage {
        Usage { bytes: self.usage.bytes - self.hidden.bytes, keys: self.usage.keys - self.hidden.keys }
    }
}
