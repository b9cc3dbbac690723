//! Names below the store's root. The only place that spells a path of the managed data.

use crate::key::{Digest, Epoch, Tenant};

/// The format file (JSON).
pub const SUPERBLOCK: &str = "FENCEFS";
/// Held with flock by the one daemon of the store; its text is that daemon's pid.
pub const LOCK: &str = "lock";
/// Eviction order at the last clean stop: a hint, never evidence that a key exists.
pub const ORDER: &str = "order";
/// The index at the last clean stop: believed once, with its mark on the data.
pub const CHECKPOINT: &str = "checkpoint";
/// While a legacy directory is attached: its path. Removals that are pending then are about it too.
pub const ATTACHED: &str = "attached";
/// Storage identity, removal requests, applied markers: outside the managed data.
pub const LEDGER: &str = "ledger.redb";
/// The managed root. Whatever stands beside it is not touched.
pub const DATA: &str = "data";
/// Below [`DATA`]: values being written.
pub const STAGING: &str = ".staging";
/// Below [`DATA`]: scopes that a removal has fenced off.
pub const TRASH: &str = ".trash";
/// Below [`DATA`]: records that failed validation.
pub const QUARANTINE: &str = ".quarantine";
/// Below [`DATA`]: the tenants.
pub const TENANTS: &str = "t";

/// Name of a digest's shard below its epoch directory: `hh/hh`.
pub fn shard(digest: Digest) -> String {
    let hex = digest.to_string();
    format!("{}/{}", &hex[0..2], &hex[2..4])
}

/// The two levels of a shard, apart.
pub fn shard_levels(digest: Digest) -> (String, String) {
    let hex = digest.to_string();
    (hex[0..2].to_owned(), hex[2..4].to_owned())
}

/// Whether a directory name is one level of a shard: two lowercase hex digits.
pub fn is_shard_level(name: &[u8]) -> bool {
    name.len() == 2 && name.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The canonical path of a record, relative to the store.
pub fn canonical_path(tenant: &Tenant, epoch: Epoch, digest: Digest) -> String {
    format!("{DATA}/{TENANTS}/{tenant}/{epoch}/{}/{digest}", shard(digest))
}

/// Parses the name of an epoch directory: decimal without leading zeros.
pub fn parse_epoch(name: &[u8]) -> Option<Epoch> {
    let text = std::str::from_utf8(name).ok()?;
    let epoch = text.parse::<u64>().ok()?;
    (epoch.to_string() == text).then_some(Epoch(epoch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::RecordKind;

    #[test]
    fn canonical_paths_follow_the_contract() {
        let tenant = Tenant::default_tenant();
        let digest = Digest::of(&tenant, b"a/b", RecordKind::File);
        assert_eq!(
            canonical_path(&tenant, Epoch(3), digest),
            "data/t/default/3/64/c7/64c719bce58a6a9d621f9888577b399c"
        );
    }

    #[test]
    fn epoch_names_have_one_spelling() {
        assert_eq!(parse_epoch(b"0"), Some(Epoch(0)));
        assert_eq!(parse_epoch(b"18446744073709551615"), Some(Epoch(u64::MAX)));
        for bad in [&b""[..], b"00", b"01", b"+1", b"-1", b"1a", b"18446744073709551616"] {
            assert_eq!(parse_epoch(bad), None);
        }
    }
}
