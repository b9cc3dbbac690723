//! Carrying a command out.

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::command::{Command, QuotaValue, Request as Named, TtlValue};
use super::permission::{self, Asker};
use super::removals::Removals;
use super::report::{self, MountFacts};
use crate::error::{Error, Kind, Result};
use crate::key::Tenant;
use crate::ledger::{Request, RequestName};
use crate::scope::Generation;
use crate::store::Store;

/// Does what a command says; the fields of the reply.
pub fn execute(
    removals: &Removals,
    facts: MountFacts,
    asker: &Asker,
    command: &Command,
) -> Result<Map<String, Value>> {
    let store = removals.store();
    match command {
        Command::Status => Ok(report::status(removals, facts, asker.tenant.as_ref())),
        Command::Tenants => {
            let status = report::status(removals, facts, asker.tenant.as_ref());
            Ok(status.into_iter().filter(|(name, _)| name == "tenants").collect())
        }
        Command::Epoch { tenant } => {
            asker.tenant(Some(tenant))?;
            let epoch = store.home(tenant)?.fence.epoch();
            Ok(fields([("tenant", json!(tenant.as_str())), ("epoch", json!(epoch.0))]))
        }
        Command::Quota { tenant, bytes, reserve, ttl } => {
            quota(store, asker, tenant.as_ref(), *bytes, (*reserve, *ttl))
        }
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
        Command::RemoveAll { scope, mode, id } => {
            permission::may_remove(store, asker, scope)?;
            removals.submit(scope, *mode, id.as_deref()).map(|s| report::request(&s.request))
        }
        Command::Query { request } => query(removals, asker, request),
        Command::Retry { generation } => retry(removals, asker, *generation),
        Command::Requests => {
            let mut requests = removals.requests()?;
            requests.retain(|r| asker.may_see(&r.scope));
            let named = report::named(removals, &requests)?.into_iter().map(Value::Object);
            Ok(fields([("requests", named.collect())]))
        }
        Command::Poll { storage } => {
            let mut pending = removals.poll(storage_id(storage)?)?;
            pending.retain(|p| asker.may_see(&p.scope));
            Ok(fields([
                ("storage", json!(storage)),
                ("pending", pending.iter().map(report::pending).collect()),
            ]))
        }
        Command::Ack { storage, generation, scope } => {
            asker.must_administer()?;
            removals.ack(storage_id(storage)?, scope, Generation(*generation))?;
            removals.request(&RequestName::Generation(Generation(*generation))).map(|r| report::request(&r))
        }
        Command::Forget { storage } => {
            asker.must_administer()?;
            removals.forget(storage_id(storage)?)?;
            Ok(fields([("storage", json!(storage))]))
        }
    }
}

/// The request that a command names, where it may be seen through this control file.
fn visible(removals: &Removals, asker: &Asker, name: &RequestName) -> Result<Request> {
    let request = removals.request(name)?;
    if asker.may_see(&request.scope) {
        Ok(request)
    } else {
        Err(Error::new(Kind::NotFound, "there is no such request of this tenant"))
    }
}

fn query(removals: &Removals, asker: &Asker, named: &Named) -> Result<Map<String, Value>> {
    let name = match named {
        Named::Generation(number) => RequestName::Generation(Generation(*number)),
        Named::Id(id) => RequestName::Id(id.clone()),
    };
    let request = visible(removals, asker, &name)?;
    let mut reply = report::named(removals, std::slice::from_ref(&request))?.remove(0);
    reply.insert("deleted_records".into(), json!(removals.deleted_records(&request)));
    Ok(reply)
}

fn retry(removals: &Removals, asker: &Asker, generation: Option<u64>) -> Result<Map<String, Value>> {
    let Some(generation) = generation.map(Generation) else {
        asker.must_administer()?;
        removals.retry(None)?;
        return Ok(Map::new());
    };
    let name = RequestName::Generation(generation);
    permission::may_remove(removals.store(), asker, &visible(removals, asker, &name)?.scope)?;
    removals.retry(Some(generation))?;
    removals.request(&name).map(|r| report::request(&r))
}

fn storage_id(text: &str) -> Result<Uuid> {
    Uuid::parse_str(text).map_err(|_| {
        let why =
            format!("storage={text} is no storage identity: that is a UUID, as `storage_id` of the status");
        Error::new(Kind::Invalid, why)
    })
}

fn quota(
    store: &Store,
    asker: &Asker,
    named: Option<&Tenant>,
    bytes: Option<QuotaValue>,
    (reserve, ttl): (Option<QuotaValue>, Option<TtlValue>),
) -> Result<Map<String, Value>> {
    let tenant = asker.tenant(named)?;
    let changes = bytes.is_some() || reserve.is_some() || ttl.is_some();
    if changes {
        asker.must_administer()?;
    }
    match tenant {
        Some(tenant) if changes => {
            store.change_tenant_limits(tenant, |limits| {
                limits.quota_bytes = bytes.map_or(limits.quota_bytes, QuotaValue::bytes);
                limits.reserve_bytes = reserve.map_or(limits.reserve_bytes, QuotaValue::bytes);
                limits.ttl_seconds = ttl.map_or(limits.ttl_seconds, TtlValue::seconds);
            })?;
        }
        Some(_) => {}
        None if reserve.is_some() => {
            return Err(Error::new(Kind::Invalid, "a reserve is a tenant's; give tenant=NAME"));
        }
        None if ttl.is_some() => {
            let sentence = "a time to live is a tenant's, or a key's (user.fencefs.ttl); give tenant=NAME";
            return Err(Error::new(Kind::Invalid, sentence));
        }
        None => match bytes {
            Some(QuotaValue::Bytes(0)) => {
                return Err(Error::new(Kind::Invalid, "a quota of 0 would evict every key; use evict to=0"));
            }
            Some(QuotaValue::Bytes(n)) => store.set_quota_bytes(n)?,
            Some(QuotaValue::None) => {
                return Err(Error::new(Kind::Invalid, "the store always has a quota; give bytes=SIZE"));
            }
            None => {}
        },
    }
    let (used, keys, bound) = store.usage(tenant);
    let (own, reserve, ttl) = match tenant {
        Some(tenant) => {
            let limits = store.tenant_limits(tenant)?;
            (json!(limits.quota_bytes), json!(limits.reserve_bytes), json!(limits.ttl_seconds))
        }
        None => (json!(bound), Value::Null, Value::Null),
    };
    Ok(fields([
        ("tenant", tenant.map_or(Value::Null, |t| json!(t.as_str()))),
        ("quota_bytes", own),
        ("reserve_bytes", reserve),
        ("ttl_seconds", ttl),
        ("used_bytes", json!(used)),
        ("keys", json!(keys)),
    ]))
}

fn fields<const N: usize>(pairs: [(&str, Value); N]) -> Map<String, Value> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
