//! Carrying a command out.

use serde_json::{Map, Value, json};

use super::command::{Command, QuotaValue};
use super::report::{self, MountFacts};
use crate::error::{Error, Kind, Result};
use crate::key::Tenant;
use crate::store::Store;

/// Who asks, and through which control file.
#[derive(Debug, Clone)]
pub struct Asker {
    /// User.
    pub uid: u32,
    /// The user that the daemon runs as, who may do everything.
    pub daemon_uid: u32,
    /// The tenant whose control file it is; `None` for the one at the root of the mount.
    pub tenant: Option<Tenant>,
}

impl Asker {
    fn must_administer(&self) -> Result<()> {
        if self.uid == 0 || self.uid == self.daemon_uid {
            Ok(())
        } else {
            Err(Error::new(
                Kind::AccessDenied,
                format!("user {} may not change this store's settings", self.uid),
            ))
        }
    }

    /// The tenant that a command means: the one named, which must be the control file's own where that is one.
    fn tenant<'a>(&'a self, named: Option<&'a Tenant>) -> Result<Option<&'a Tenant>> {
        match (&self.tenant, named) {
            (Some(own), Some(named)) if own != named => {
                Err(Error::new(Kind::AccessDenied, format!("this control file is of tenant {own} alone")))
            }
            (Some(own), _) => Ok(Some(own)),
            (None, named) => Ok(named),
        }
    }
}

/// Does what a command says; the fields of the reply.
pub fn execute(
    store: &Store,
    facts: MountFacts,
    asker: &Asker,
    command: &Command,
) -> Result<Map<String, Value>> {
    match command {
        Command::Status => Ok(report::status(store, facts, asker.tenant.as_ref())),
        Command::Tenants => {
            let status = report::status(store, facts, asker.tenant.as_ref());
            Ok(status.into_iter().filter(|(name, _)| name == "tenants").collect())
        }
        Command::Epoch { tenant } => {
            asker.tenant(Some(tenant))?;
            let epoch = store.home(tenant)?.fence.epoch();
            Ok(fields([("tenant", json!(tenant.as_str())), ("epoch", json!(epoch.0))]))
        }
        Command::Quota { tenant, bytes } => quota(store, asker, tenant.as_ref(), *bytes),
        Command::Evict { to_percent } => {
            asker.must_administer()?;
            if asker.tenant.is_some() {
                return Err(Error::new(
                    Kind::NotPermitted,
                    "eviction is of the whole store; ask at the root of the mount",
                ));
            }
            store.evict_to_percent(*to_percent);
            let (used, keys, quota) = store.usage(None);
            Ok(fields([("used_bytes", json!(used)), ("keys", json!(keys)), ("quota_bytes", json!(quota))]))
        }
        Command::RemoveAll { .. }
        | Command::Query { .. }
        | Command::Retry { .. }
        | Command::Requests
        | Command::Poll { .. }
        | Command::Ack { .. }
        | Command::Forget { .. } => {
            Err(Error::new(Kind::Unsupported, "this version does not carry out acknowledged removals yet"))
        }
    }
}

fn quota(
    store: &Store,
    asker: &Asker,
    named: Option<&Tenant>,
    bytes: Option<QuotaValue>,
) -> Result<Map<String, Value>> {
    let tenant = asker.tenant(named)?;
    if let Some(value) = bytes {
        asker.must_administer()?;
        match (tenant, value) {
            (Some(tenant), QuotaValue::Bytes(n)) => store.set_tenant_quota(tenant, Some(n))?,
            (Some(tenant), QuotaValue::None) => store.set_tenant_quota(tenant, None)?,
            (None, QuotaValue::Bytes(0)) => {
                return Err(Error::new(Kind::Invalid, "a quota of 0 would empty the store; use evict to=0"));
            }
            (None, QuotaValue::Bytes(n)) => store.set_quota_bytes(n),
            (None, QuotaValue::None) => {
                return Err(Error::new(Kind::Invalid, "the store always has a quota; give bytes=SIZE"));
            }
        }
    }
    let (used, keys, bound) = store.usage(tenant);
    let own = match tenant {
        Some(tenant) => store.tenant_quota(tenant)?.map_or(Value::Null, |n| json!(n)),
        None => json!(bound),
    };
    Ok(fields([
        ("tenant", tenant.map_or(Value::Null, |t| json!(t.as_str()))),
        ("quota_bytes", own),
        ("used_bytes", json!(used)),
        ("keys", json!(keys)),
    ]))
}

fn fields<const N: usize>(pairs: [(&str, Value); N]) -> Map<String, Value> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
