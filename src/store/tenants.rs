//! Tenants: a directory each, with the owner and mode that keep others out, and the epoch directory that holds its
//! records. A tenant's settings are attributes of its directory, so they live and go with it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

use super::Store;
use super::fence::Fence;
use super::index::{DirAttr, Directory, NodeId, ROOT};
use super::tenant_limits::TenantLimits;
use crate::error::{Error, Kind, Result};
use crate::format::layout;
use crate::key::{DEFAULT_TENANT, Epoch, RecordKind, Tenant};
use crate::os::{self, Attr, Dir, EntryType, Timespec};
use crate::scope::Generation;

/// A tenant's place on disk under one epoch. A removal makes a new one; whoever holds an old one is stale.
#[derive(Debug)]
pub struct Home {
    /// The tenant.
    pub tenant: Tenant,
    /// Its number in the index.
    pub number: u32,
    /// The epoch of `dir`.
    pub epoch: Epoch,
    /// `data/t/<tenant>`.
    pub top: Dir,
    /// `data/t/<tenant>/<epoch>`.
    pub dir: Dir,
    /// Admission to mutations.
    pub fence: Arc<Fence>,
    /// Shards whose directories are known to be durable.
    pub durable_shards: Mutex<HashSet<u16>>,
}

pub(super) fn older_than_the_data(path: &str, known: Epoch) -> Error {
    Error::new(
        Kind::Corrupt,
        format!(
            "{path} is of a removal that {} does not know (it knows {known}): the file is older than the data; \
             restore the newest one",
            layout::LEDGER
        ),
    )
}

pub(super) fn dir_attr(a: &Attr) -> DirAttr {
    DirAttr { mode: a.mode & 0o7777, uid: a.uid, gid: a.gid, atime: a.atime, mtime: a.mtime, ctime: a.ctime }
}

impl Store {
    /// Takes over the tenants that are on disk, and makes `default`. Names that are no tenants are left alone.
    pub(super) fn load_tenants(&self) -> Result<()> {
        for entry in self.tenants_dir.entries()? {
            let shown = entry.name.escape_ascii().to_string();
            match Tenant::new(&entry.name) {
                Ok(tenant) if entry.kind == EntryType::Dir => drop(self.adopt_tenant(&tenant)?),
                _ => log::warn!("data/t/{shown} is not a tenant directory; it is left where it is"),
            }
        }
        let default = Tenant::default_tenant();
        if self.index.lock().child(ROOT, DEFAULT_TENANT.as_bytes()).is_none() {
            self.tenants_dir.ensure_dir(DEFAULT_TENANT, 0o755)?;
            self.adopt_tenant(&default)?;
        }
        Ok(())
    }

    fn adopt_tenant(&self, tenant: &Tenant) -> Result<NodeId> {
        let top = self.tenants_dir.open_dir(tenant.as_str())?;
        let (epoch, is_pending) = self.known_epoch(tenant);
        self.judge_epochs(tenant, &top, epoch, is_pending)?;
        let dir = match top.ensure_dir(epoch.to_string(), 0o700) {
            Err(e) if is_pending && e.is_full_disk() => {
                self.delete_older_epochs(&top, tenant, epoch)?;
                top.ensure_dir(epoch.to_string(), 0o700).map_err(|e| e.context(format!("data/t/{tenant}")))?
            }
            made => made.map_err(|e| e.context(format!("data/t/{tenant}")))?,
        };
        if self.durable() {
            top.sync()?;
            self.tenants_dir.sync()?;
        }
        let attr = dir_attr(&top.attr()?);
        let limits = TenantLimits::read(&top, tenant)?;
        if limits.ttl_seconds.is_some() {
            self.ttls.note_tenant();
        }
        let mut index = self.index.lock();
        let number = index.tenants.len() as u32;
        let home = Arc::new(Home {
            tenant: tenant.clone(),
            number,
            epoch,
            top,
            dir,
            fence: Fence::new(epoch),
            durable_shards: Mutex::default(),
        });
        if is_pending {
            home.fence.close(epoch);
        }
        let name = tenant.as_str().as_bytes();
        let node =
            index.add_pending(ROOT, name, number, RecordKind::Directory, Some(Directory::new(attr, true)));
        let unspelled = index.add_unspelled(number, attr)?;
        index.tenants.push(super::index::TenantEntry {
            home,
            node,
            unspelled,
            usage: Default::default(),
            hidden: Default::default(),
            pinned_bytes: 0,
            quota_bytes: limits.quota_bytes,
            ttl_seconds: limits.ttl_seconds,
            reserve_bytes: limits.reserve_bytes.unwrap_or(0),
            reserved_bytes: 0,
            live: true,
        });
        index.link(node, 0, Timespec::now())?;
        if let Ok(dir) = index.dir_mut(node) {
            dir.attr = attr;
        }
        Ok(node)
    }

    /// The epoch of the latest removal of a tenant that is applied or pending, and whether one is pending.
    fn known_epoch(&self, tenant: &Tenant) -> (Epoch, bool) {
        let (applied, pending) =
            (self.root.storage.applied().epoch_of(tenant), self.scopes.lock().epoch_of(tenant));
        (pending.unwrap_or(applied).max(applied), pending.is_some())
    }

    /// Begins at the start with what a pending removal will do, as the disk has no block for the directory that comes
    /// next: a full disk must not keep a store from the removal that would free it.
    fn delete_older_epochs(&self, top: &Dir, tenant: &Tenant, epoch: Epoch) -> Result<()> {
        log::info!("the disk is full: what is to be removed of tenant {tenant} is deleted before the mount");
        let older = top.entries()?.into_iter().filter(|e| e.kind == EntryType::Dir);
        let mut older = older.filter_map(|e| layout::parse_epoch(&e.name)).filter(|found| *found < epoch);
        older.try_for_each(|found| self.turn_epoch(top, tenant, found, epoch, &AtomicU64::new(0)))?;
        self.turn_trashed(top, tenant, epoch, &AtomicU64::new(0))
    }

    /// What to think of the epoch directories beside the one that counts. Older ones are garbage: a removal that is
    /// pending takes them, one that was applied has left them.
    fn judge_epochs(&self, tenant: &Tenant, top: &Dir, epoch: Epoch, is_pending: bool) -> Result<()> {
        for entry in top.entries()? {
            let Some(found) = layout::parse_epoch(&entry.name).filter(|_| entry.kind == EntryType::Dir)
            else {
                continue;
            };
            if found > epoch {
                return Err(older_than_the_data(&format!("data/t/{tenant}/{found}"), epoch));
            }
            if found < epoch && !is_pending {
                log::info!("data/t/{tenant}/{found} is below the applied generation {epoch} and is deleted");
                self.take_epoch(top, tenant, found, Generation(epoch.0), &AtomicU64::new(0))?;
            }
        }
        Ok(())
    }

    /// Makes a tenant, with its directory's mode and owner.
    pub fn make_tenant(&self, name: &[u8], mode: u32, uid: u32, gid: u32) -> Result<NodeId> {
        let tenant = Tenant::new(name)?;
        let _names = self.tenant_changes.lock();
        if self.index.lock().child(ROOT, name).is_some() {
            return Err(Error::new(Kind::Exists, format!("tenant {tenant} exists")));
        }
        let top = self.tenants_dir.ensure_dir(name, mode)?;
        os::chmod(&top, mode)?;
        self.own(&top, uid, gid)?;
        drop(top);
        self.adopt_tenant(&tenant)
    }

    /// The directory of a tenant. Where somebody took it away it is made again, as it was, durably: a removal must not
    /// wait for what nobody will bring back.
    pub(super) fn ensure_top(&self, home: &Home) -> Result<Dir> {
        if let Some(top) = self.tenants_dir.open_dir_if_any(home.tenant.as_str())? {
            return Ok(top);
        }
        let (attr, limits) = {
            let index = self.index.lock();
            let tenant = &index.tenants[home.number as usize];
            (index.dir(tenant.node)?.attr, TenantLimits::of(tenant))
        };
        log::warn!("the directory of tenant {} was missing and is made again, empty", home.tenant);
        let top = self.tenants_dir.ensure_dir(home.tenant.as_str(), attr.mode)?;
        self.own(&top, attr.uid, attr.gid)?;
        os::chmod(&top, attr.mode)?;
        limits.write(&top, &TenantLimits::default())?;
        self.tenants_dir.sync()?;
        Ok(top)
    }

    /// Removes an empty tenant.
    pub fn remove_tenant(&self, name: &[u8]) -> Result<()> {
        if name == DEFAULT_TENANT.as_bytes() {
            return Err(Error::new(Kind::NotPermitted, "the tenant `default` always exists"));
        }
        let _names = self.tenant_changes.lock();
        let (node, home) = {
            let index = self.index.lock();
            let node = index.child(ROOT, name).ok_or_else(|| Error::new(Kind::NotFound, "no such tenant"))?;
            let home = Arc::clone(&index.tenant_of(node)?.home);
            if !index.is_empty(home.number) {
                return Err(Error::new(Kind::NotEmpty, "the tenant holds keys"));
            }
            (node, home)
        };
        home.fence.hold()?;
        let emptied = self.index.lock().is_empty(home.number);
        let result = match emptied {
            true => self.drop_tenant_dirs(&home).and_then(|()| {
                let mut index = self.index.lock();
                index.tenants[home.number as usize].live = false;
                index.drop_unspelled(home.number);
                index.unlink(node, Timespec::now())
            }),
            false => Err(Error::new(Kind::NotEmpty, "the tenant holds keys")),
        };
        match &result {
            // A writer that was admitted before finds its epoch gone, not merely closed.
            Ok(()) => home.fence.open(Epoch(u64::MAX)),
            Err(_) => home.fence.unhold(),
        }
        result
    }

    /// Refuses a tenant directory that holds anything but empty shards: strangers are not ours to remove.
    fn require_no_strangers(home: &Home) -> Result<()> {
        let stranger = |name: &[u8]| {
            let name = name.escape_ascii();
            Err(Error::new(
                Kind::NotEmpty,
                format!("data/t/{} holds {name}, which is no record", home.tenant),
            ))
        };
        for epoch in home.top.entries()? {
            if epoch.kind != EntryType::Dir || layout::parse_epoch(&epoch.name).is_none() {
                return stranger(&epoch.name);
            }
            let dir = home.top.open_dir(&epoch.name)?;
            for upper in dir.entries()? {
                if upper.kind != EntryType::Dir || !layout::is_shard_level(&upper.name) {
                    return stranger(&upper.name);
                }
                let upper_dir = dir.open_dir(&upper.name)?;
                for lower in upper_dir.entries()? {
                    if lower.kind != EntryType::Dir || !layout::is_shard_level(&lower.name) {
                        return stranger(&lower.name);
                    }
                    if let Some(entry) = upper_dir.open_dir(&lower.name)?.entries()?.first() {
                        return stranger(&entry.name);
                    }
                }
            }
        }
        Ok(())
    }

    fn drop_tenant_dirs(&self, home: &Home) -> Result<()> {
        Self::require_no_strangers(home)?;
        for epoch in home.top.entries()?.into_iter().filter(|e| layout::parse_epoch(&e.name).is_some()) {
            let dir = home.top.open_dir(&epoch.name)?;
            for level in dir.entries()?.into_iter().filter(|e| layout::is_shard_level(&e.name)) {
                let upper = dir.open_dir(&level.name)?;
                for lower in upper.entries()?.into_iter().filter(|e| layout::is_shard_level(&e.name)) {
                    upper.rmdir(&lower.name)?;
                }
                dir.rmdir(&level.name)?;
            }
            home.top.rmdir(&epoch.name)?;
        }
        self.tenants_dir.rmdir(home.tenant.as_str()).map(drop)
    }

    /// The home of a tenant by name.
    pub fn home(&self, tenant: &Tenant) -> Result<Arc<Home>> {
        let index = self.index.lock();
        let node = index.child(ROOT, tenant.as_str().as_bytes());
        let node =
            node.ok_or_else(|| Error::new(Kind::UnknownTenant, format!("there is no tenant {tenant}")))?;
        Ok(Arc::clone(&index.tenant_of(node)?.home))
    }

    /// The home, as of now, of the tenant that a node is of.
    pub fn home_of(&self, id: NodeId) -> Result<Arc<Home>> {
        let index = self.index.lock();
        Ok(Arc::clone(&index.tenant_of(id)?.home))
    }

    /// The directory node of a tenant.
    pub fn tenant_node(&self, tenant: &Tenant) -> Result<NodeId> {
        let home = self.home(tenant)?;
        Ok(self.index.lock().tenants[home.number as usize].node)
    }

    /// The tenant whose directory is the node in this slot.
    pub fn tenant_in_slot(&self, slot: u32) -> Result<Tenant> {
        let index = self.index.lock();
        let entry = index.tenants.iter().find(|t| t.live && t.node.slot() == slot);
        entry
            .map(|t| t.home.tenant.clone())
            .ok_or_else(|| Error::new(Kind::NotFound, "no such tenant any more"))
    }

    /// The directory node of the tenant in this slot.
    pub fn node_in_slot(&self, slot: u32) -> Result<NodeId> {
        self.tenant_in_slot(slot).and_then(|t| self.tenant_node(&t))
    }

    /// Gives a file or directory to `uid` and `gid`, where it is not theirs already.
    pub(super) fn own(&self, fd: impl std::os::fd::AsFd, uid: u32, gid: u32) -> Result<()> {
        if (uid, gid) == (self.daemon_uid, self.daemon_gid) {
            Ok(())
        } else {
            os::chown(fd, Some(uid), Some(gid))
        }
    }
}
