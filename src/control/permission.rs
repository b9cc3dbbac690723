//! Who may ask for what. At the root of the mount a command is judged by its user, in a tenant's directory also by
//! whose control file it is.

use crate::error::{Error, Kind, Result};
use crate::key::Tenant;
use crate::scope::Scope;
use crate::store::Store;

/// Who asks, and through which control file.
#[derive(Debug, Clone)]
pub struct Asker {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The user that the daemon runs as, who may do everything.
    pub daemon_uid: u32,
    /// The tenant whose control file it is; `None` for the one at the root of the mount.
    pub tenant: Option<Tenant>,
}

impl Asker {
    fn is_administrator(&self) -> bool {
        self.uid == 0 || self.uid == self.daemon_uid
    }

    /// Refuses everybody but root and the daemon's own user.
    pub fn must_administer(&self) -> Result<()> {
        if self.is_administrator() {
            Ok(())
        } else {
            Err(denied(format!("user {} may not administer this store", self.uid)))
        }
    }

    /// The tenant that a command means: the one named, which must be the control file's own where that is one.
    pub fn tenant<'a>(&'a self, named: Option<&'a Tenant>) -> Result<Option<&'a Tenant>> {
        match (&self.tenant, named) {
            (Some(own), Some(named)) if own != named => {
                Err(denied(format!("this control file is of tenant {own} alone")))
            }
            (Some(own), _) => Ok(Some(own)),
            (None, named) => Ok(named),
        }
    }

    /// Whether a request is any of this control file's business.
    pub fn may_see(&self, scope: &Scope) -> bool {
        self.tenant.as_ref().is_none_or(|own| scope.includes_tenant(own))
    }
}

/// Whether a scope may be removed by whoever asks: a tenant by those who may write its directory, everything by those
/// who administer the store.
pub fn may_remove(store: &Store, asker: &Asker, scope: &Scope) -> Result<()> {
    let Some(tenant) = scope.tenant() else {
        if let Some(own) = &asker.tenant {
            return Err(denied(format!("this control file is of tenant {own} alone")));
        }
        return asker.must_administer();
    };
    asker.tenant(Some(tenant))?;
    if asker.is_administrator() {
        return Ok(());
    }
    let directory = store.attr(store.tenant_node(tenant)?)?;
    let attr = directory
        .ok_or_else(|| Error::new(Kind::UnknownTenant, format!("there is no tenant {tenant}")))?
        .attr;
    if may_write((attr.mode, attr.uid, attr.gid), (asker.uid, asker.gid)) {
        Ok(())
    } else {
        Err(denied(format!(
            "user {} may not write the directory of tenant {tenant}, and so not clear it",
            asker.uid
        )))
    }
}

fn denied(why: String) -> Error {
    Error::new(Kind::AccessDenied, why)
}

/// Whether a mode and its owners let a user write, as the kernel judges: the first class that fits decides. Other
/// groups of the user are not known here.
fn may_write((mode, owner, group): (u32, u32, u32), (uid, gid): (u32, u32)) -> bool {
    let bit = match (uid, gid) {
        (uid, _) if uid == owner => 0o200,
        (_, gid) if gid == group => 0o020,
        _ => 0o002,
    };
    mode & bit != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_class_that_fits_decides() {
        let of = |mode| (mode, 1000, 50);
        assert!(may_write(of(0o700), (1000, 1)));
        assert!(!may_write(of(0o077), (1000, 50)), "the owner is not of the group");
        assert!(may_write(of(0o770), (7, 50)));
        assert!(!may_write(of(0o707), (7, 50)), "the group is not the others");
        assert!(may_write(of(0o702), (7, 7)));
        assert!(!may_write(of(0o755), (7, 7)));
    }
}
