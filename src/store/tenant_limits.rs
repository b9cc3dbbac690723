//! What a tenant may hold at most, what it keeps at least, and for how long: its quota, its reserve and its time to live,
//! attributes of its directory.

use super::Store;
use super::index::TenantEntry;
use crate::error::{Error, Kind, Result};
use crate::key::Tenant;
use crate::os::{self, Dir, XattrMode};

const QUOTA_XATTR: &str = "user.fencefs.quota";
const RESERVE_XATTR: &str = "user.fencefs.reserve";
const TTL_XATTR: &str = "user.fencefs.ttl";

/// The limits of one tenant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantLimits {
    /// It holds no more than this.
    pub quota_bytes: Option<u64>,
    /// Others' pressure leaves it this much.
    pub reserve_bytes: Option<u64>,
    /// Its keys live for so long after their last change.
    pub ttl_seconds: Option<u64>,
}

impl TenantLimits {
    pub(super) fn of(tenant: &TenantEntry) -> TenantLimits {
        let reserve_bytes = (tenant.reserve_bytes > 0).then_some(tenant.reserve_bytes);
        TenantLimits { quota_bytes: tenant.quota_bytes, reserve_bytes, ttl_seconds: tenant.ttl_seconds }
    }

    /// What the directory of a tenant says.
    pub(super) fn read(top: &Dir, tenant: &Tenant) -> Result<TenantLimits> {
        Ok(TenantLimits {
            quota_bytes: read(top, tenant, QUOTA_XATTR, "quota")?,
            reserve_bytes: read(top, tenant, RESERVE_XATTR, "reserve")?,
            ttl_seconds: read(top, tenant, TTL_XATTR, "time to live")?,
        })
    }

    /// Writes what differs from `old`. Whatever was written before a crash fits: never a reserve above the quota.
    pub(super) fn write(&self, top: &Dir, old: &TenantLimits) -> Result<()> {
        write(top, TTL_XATTR, self.ttl_seconds, old.ttl_seconds)?;
        let quota = || write(top, QUOTA_XATTR, self.quota_bytes, old.quota_bytes);
        let reserve = || write(top, RESERVE_XATTR, self.reserve_bytes, old.reserve_bytes);
        if self.reserve_bytes > old.reserve_bytes {
            quota().and_then(|()| reserve())
        } else {
            reserve().and_then(|()| quota())
        }
    }
}

fn write(top: &Dir, name: &str, number: Option<u64>, old: Option<u64>) -> Result<()> {
    match number {
        _ if number == old => Ok(()),
        Some(n) => os::xattr_set(top, name, n.to_string().as_bytes(), XattrMode::Set),
        None => os::xattr_remove(top, name).map(drop),
    }
}

fn read(top: &Dir, tenant: &Tenant, name: &str, what: &str) -> Result<Option<u64>> {
    let Some(text) = os::xattr_get(top, name, 64)? else { return Ok(None) };
    let parsed = std::str::from_utf8(&text).ok().and_then(|t| t.parse().ok());
    if parsed.is_none() {
        log::warn!("the {what} of tenant {tenant} cannot be read and is taken as none; set it again");
    }
    Ok(parsed)
}

impl Store {
    /// A tenant's own limits.
    pub fn tenant_limits(&self, tenant: &Tenant) -> Result<TenantLimits> {
        let home = self.home(tenant)?;
        Ok(TenantLimits::of(&self.index.lock().tenants[home.number as usize]))
    }

    /// Sets a tenant's quota, durably; `None` takes it away.
    pub fn set_tenant_quota(&self, tenant: &Tenant, bytes: Option<u64>) -> Result<()> {
        self.change_tenant_limits(tenant, |limits| limits.quota_bytes = bytes)
    }

    /// Sets a tenant's reserve, durably; `None` takes it away.
    pub fn set_tenant_reserve(&self, tenant: &Tenant, bytes: Option<u64>) -> Result<()> {
        self.change_tenant_limits(tenant, |limits| limits.reserve_bytes = bytes)
    }

    /// Sets how long a tenant's keys live after their last change, durably; `None` is for ever.
    pub fn set_tenant_ttl(&self, tenant: &Tenant, seconds: Option<u64>) -> Result<()> {
        self.change_tenant_limits(tenant, |limits| limits.ttl_seconds = seconds)
    }

    /// Changes a tenant's limits, durably. Refused is what could not be kept: a reserve above the tenant's own quota, or
    /// above what the store's quota leaves beside the reserves of the others.
    pub fn change_tenant_limits(
        &self,
        tenant: &Tenant,
        change: impl FnOnce(&mut TenantLimits),
    ) -> Result<()> {
        let _reserves = self.tenant_changes.lock();
        let home = self.home(tenant)?;
        let (old, others) = {
            let index = self.index.lock();
            let old = TenantLimits::of(&index.tenants[home.number as usize]);
            (old, index.reserves_but(Some(home.number)))
        };
        let mut limits = old;
        change(&mut limits);
        limits.reserve_bytes = limits.reserve_bytes.filter(|n| *n > 0);
        limits.ttl_seconds = limits.ttl_seconds.filter(|n| *n > 0);
        if limits.quota_bytes == Some(0) && old.quota_bytes != Some(0) {
            let sentence = format!(
                "a quota of 0 would evict every key of tenant {tenant}; remove them with remove-all, or say none for no quota"
            );
            return Err(Error::new(Kind::Invalid, sentence));
        }
        if let (Some(quota), Some(reserve)) = (limits.quota_bytes, limits.reserve_bytes)
            && reserve > quota
        {
            return Err(Error::new(
                Kind::Invalid,
                format!(
                    "a reserve of {reserve} bytes is more than the quota of tenant {tenant}, {quota} bytes"
                ),
            ));
        }
        if limits.reserve_bytes > old.reserve_bytes {
            let reserved = others.saturating_add(limits.reserve_bytes.unwrap_or(0));
            self.fits_reserves(self.quota_bytes(), reserved)?;
        }
        limits.write(&home.top, &old)?;
        os::sync_file(&home.top)?;
        {
            let mut index = self.index.lock();
            let entry = &mut index.tenants[home.number as usize];
            entry.quota_bytes = limits.quota_bytes;
            entry.reserve_bytes = limits.reserve_bytes.unwrap_or(0);
            entry.ttl_seconds = limits.ttl_seconds;
        }
        if limits.ttl_seconds != old.ttl_seconds {
            self.ttls.note_tenant();
            self.ttls.start_round();
        }
        self.wake_keeper();
        Ok(())
    }
}
