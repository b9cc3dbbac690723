//! A removal's part of the attached directory: exactly the files whose embedded key is of the scope.
//!
//! The files carry no epoch and cannot be renamed into the store's trash, so a removal of either mode unlinks them
//! before its marker. Nothing writes there meanwhile, and what a crash leaves, the same removal finds at the next start.

use std::sync::atomic::{AtomicU64, Ordering};

use super::attach::Attached;
use super::tree::{Entry, Found, Rejected, Why};
use crate::error::{Error, Kind, Result};
use crate::key::Tenant;
use crate::scope::Scope;
use crate::store::Store;

impl Attached {
    /// The record of an entry that is one, whether it counts or stands behind another.
    fn record_of(&self, entry: Entry) -> Result<Option<Found>> {
        match entry {
            Entry::Record(found) => Ok(Some(found)),
            Entry::Rejected(Rejected { path, why: Why::Shadow { .. } }) => self.tree.record_at(&path),
            Entry::Rejected(_) => Ok(None),
        }
    }
}

impl Store {
    /// Proves of every entry whose it is: nothing of a tenant is removed while something may be its own unseen.
    pub(in crate::store) fn prove_attached(&self, tenant: &Tenant) -> Result<()> {
        let Some(attached) = &self.attached else { return Ok(()) };
        let visit = |entry| match entry {
            Entry::Record(_) | Entry::Rejected(Rejected { why: Why::Shadow { .. }, .. }) => Ok(()),
            Entry::Rejected(Rejected { path, why }) => Err(Error::new(
                Kind::UnprovenOwnership,
                format!(
                    "{} may belong to tenant {tenant} ({why}); nothing was removed: take it away, or give its \
                         tenant a name with --map-tenant, or hide the tenant's keys instead: --logical, in the control \
                         file mode=logical",
                    attached.tree.shown(&path)
                ),
            )),
        };
        attached.tree.walk(&self.walkers(), &visit, &mut |_| {})
    }

    /// Unlinks what the scope has in the attached directory. May be repeated.
    pub(in crate::store) fn clear_attached(&self, scope: &Scope, deleted: &AtomicU64) -> Result<()> {
        let Some(attached) = &self.attached else { return Ok(()) };
        for home in self.homes_in(scope) {
            self.index.lock().hide_shadows(home.number);
        }
        let visit = |entry| {
            let found = attached.record_of(entry)?.filter(|f| scope.includes_tenant(&f.tenant));
            let Some(found) = found else { return Ok(()) };
            step!("removal.legacy");
            if self.unlink_walked(attached, &found)? {
                deleted.fetch_add(1, Ordering::Relaxed);
                self.counters.removed_records.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        attached.tree.walk(&self.walkers(), &visit, &mut |_| {})
    }

    /// Looks again, at every file.
    pub(in crate::store) fn verify_attached(&self, scope: &Scope) -> Result<()> {
        let Some(attached) = &self.attached else { return Ok(()) };
        let visit = |entry| match attached.record_of(entry)?.filter(|f| scope.includes_tenant(&f.tenant)) {
            Some(found) => {
                let path = found.layout.path(&found.storage_key).unwrap_or_default();
                let path = attached.tree.shown(&path);
                Err(Error::new(Kind::NotEmpty, format!("{path} is left after the removal")))
            }
            None => Ok(()),
        };
        attached.tree.walk(&self.walkers(), &visit, &mut |_| {})
    }

    /// Makes what was unlinked in the attached directory stay so when power is lost.
    pub(in crate::store) fn sync_attached(&self) -> Result<()> {
        let Some(attached) = &self.attached else { return Ok(()) };
        rustix::fs::syncfs(attached.tree.fsdir())
            .map_err(|e| Error::os(format!("cannot sync {}", attached.tree.path().display()), e))
    }
}
