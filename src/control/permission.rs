//! Who may ask for a removal.

use crate::error::{Error, Kind, Result};
use crate::key::Tenant;
use crate::scope::Scope;
use crate::store::Store;

/// Write permission of others, in a mode.
const WRITE: u32 = 0o2;

/// Whether a user may remove everything in `scope`: root and the daemon's user anything, others what is in a tenant whose
/// directory they may write. Supplementary groups cannot be known.
pub fn may_remove(store: &Store, (uid, gid): (u32, u32), scope: &Scope) -> Result<()> {
    if uid == 0 || uid == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let refused = || Error::new(Kind::AccessDenied, format!("user {uid} may not remove {scope}"));
    let tenant = scope.tenant().ok_or_else(refused)?;
    let directory = store.tenant_node(tenant).map_err(|_| unknown(tenant))?;
    let attr = store.attr(directory)?.ok_or_else(|| unknown(tenant))?.attr;
    if may_write((attr.mode, attr.uid, attr.gid), (uid, gid)) { Ok(()) } else { Err(refused()) }
}

fn unknown(tenant: &Tenant) -> Error {
    Error::new(Kind::UnknownTenant, format!("there is no tenant {tenant}"))
}

/// Whether a mode and its owners let a user write, as the kernel judges: the first class that fits decides.
fn may_write((mode, owner, group): (u32, u32, u32), (uid, gid): (u32, u32)) -> bool {
    let shift = if uid == owner {
        6
    } else if gid == group {
        3
    } else {
        0
    };
    mode & WRITE << shift != 0
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
