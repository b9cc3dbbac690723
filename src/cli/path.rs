//! `fencefs path`: where a key's record is, or would be. Touches nothing.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::{mount_args, print};
use crate::error::{Error, Result};
use crate::format::legacy;
use crate::key::{Digest, Epoch, Key, RecordKind, Tenant};

/// Show the digest of a key, its canonical path in the store, and its legacy (Mooncake) path; touches nothing
#[derive(Debug, Args)]
pub(super) struct PathArgs {
    /// Directory that holds the store; it need not exist
    #[arg(value_name = "STORE")]
    store: PathBuf,
    /// The tenant that the key belongs to
    #[arg(long, value_name = "NAME", value_parser = mount_args::tenant)]
    tenant: Tenant,
    /// The key: any bytes
    #[arg(value_name = "KEY")]
    key: OsString,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Shows the paths of a key.
pub(super) fn run(args: &PathArgs) -> Result<ExitCode> {
    let key = Key::new(args.key.clone().into_vec())?;
    let places = Places::of(&args.tenant, &key, epoch(&args.store, &args.tenant)?);
    print(if args.json { places.json(&args.tenant, &key) } else { places.human() })?;
    Ok(ExitCode::SUCCESS)
}

struct Places {
    digest: Digest,
    epoch: Epoch,
    canonical: String,
    legacy: Vec<u8>,
    legacy_fits: bool,
}

impl Places {
    fn of(tenant: &Tenant, key: &Key, epoch: Epoch) -> Self {
        let digest = Digest::of(tenant, key.as_bytes(), RecordKind::File);
        let hex = digest.to_string();
        let storage_key = [tenant.as_str().as_bytes(), &[0], key.as_bytes()].concat();
        Places {
            digest,
            epoch,
            canonical: format!("data/t/{tenant}/{epoch}/{}/{}/{hex}", &hex[..2], &hex[2..4]),
            legacy: legacy::path(&storage_key),
            legacy_fits: legacy::fits(&storage_key),
        }
    }

    fn human(&self) -> String {
        let note = if self.legacy_fits { "" } else { "  (too long: no file can have this name)" };
        let legacy = printable(&self.legacy);
        format!(
            "digest     {}\nepoch      {}\ncanonical  {}\nlegacy     {legacy}{note}\n",
            self.digest, self.epoch, self.canonical
        )
    }

    fn json(&self, tenant: &Tenant, key: &Key) -> String {
        let object = json!({
            "tenant": tenant.as_str(),
            "key": String::from_utf8_lossy(key.as_bytes()),
            "key_hex": hex(key.as_bytes()),
            "digest": self.digest.to_string(),
            "epoch": self.epoch.0,
            "canonical_path": self.canonical,
            "legacy_path": String::from_utf8_lossy(&self.legacy),
            "legacy_path_hex": hex(&self.legacy),
            "legacy_fits": self.legacy_fits,
        });
        format!("{object}\n")
    }
}

/// The tenant's epoch: the highest number among its directories; 0 where there is none.
fn epoch(store: &Path, tenant: &Tenant) -> Result<Epoch> {
    let dir = store.join("data/t").join(tenant.as_str());
    let failed = |e| Error::os(format!("cannot read {}", dir.display()), e);
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Epoch(0));
        }
        Err(e) => return Err(failed(e)),
    };
    let mut highest = 0;
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let canonical =
            name.to_str().and_then(|name| name.parse::<u64>().ok().filter(|n| n.to_string() == name));
        highest = highest.max(canonical.unwrap_or(0));
    }
    Ok(Epoch(highest))
}

/// Text for a terminal: what is not UTF-8, and control characters, as `\xNN`.
fn printable(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() {
                out.extend(c.to_string().bytes().map(|b| format!("\\x{b:02x}")));
            } else {
                out.push(c);
            }
        }
        out.extend(chunk.invalid().iter().map(|b| format!("\\x{b:02x}")));
    }
    out
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(tenant: &str, key: &[u8], epoch: u64) -> Places {
        Places::of(&Tenant::new(tenant.as_bytes()).unwrap(), &Key::new(key).unwrap(), Epoch(epoch))
    }

    #[test]
    fn paths_of_known_keys() {
        let p = places("default", b"a/b", 0);
        assert_eq!(p.canonical, "data/t/default/0/64/c7/64c719bce58a6a9d621f9888577b399c");
        assert_eq!(p.legacy, b"j/p/default_a_b");
        let p = places(
            "default",
            "unicode-\u{43a}\u{43b}\u{44e}\u{447}-\u{65e5}\u{672c}\u{8a9e}-\u{1f980}".as_bytes(),
            7,
        );
        assert_eq!(p.canonical, "data/t/default/7/2b/2e/2b2e3678f6ce446b5c0d5c50d099cc63");
        assert!(p.legacy.starts_with(b"h/g/default_unicode-"));
        assert!(!places("default", &[b'k'; 248], 0).legacy_fits);
    }

    /// What the released program stored for these keys; what is printed here must stay so for good.
    #[test]
    fn paths_are_those_that_mooncake_stored() {
        let vectors = include_str!("../../mount-tests/fixtures/path_vectors.json");
        let vectors: Vec<serde_json::Value> = serde_json::from_str(vectors).unwrap();
        assert_eq!(vectors.len(), 28);
        for vector in vectors {
            let text = |name: &str| vector[name].as_str().unwrap().to_owned();
            let (tenant, key) = (text("tenant"), text("key"));
            let places = places(&tenant, key.as_bytes(), 3);
            let tenant = Tenant::new(tenant.as_bytes()).unwrap();
            let json = places.json(&tenant, &Key::new(key.as_bytes()).unwrap());
            let printed: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(printed["legacy_path"], vector["legacy_path"]);
            assert_eq!(printed["legacy_path_hex"], hex(text("legacy_path").as_bytes()));
            assert_eq!(printed["legacy_fits"], vector["written"]);
            let canonical = format!("data/t/{tenant}/3/{}", text("canonical_path"));
            assert_eq!(printed["canonical_path"], canonical);
        }
    }

    #[test]
    fn the_highest_epoch_counts() {
        let dir = tempfile::tempdir().unwrap();
        let tenant = Tenant::new(b"a").unwrap();
        assert_eq!(epoch(dir.path(), &tenant).unwrap(), Epoch(0));
        for name in ["0", "9", "10", "011", "x", "-3", "+99"] {
            fs::create_dir_all(dir.path().join("data/t/a").join(name)).unwrap();
        }
        assert_eq!(epoch(dir.path(), &tenant).unwrap(), Epoch(10));
    }

    #[test]
    fn any_bytes_can_be_shown() {
        assert_eq!(printable("a\n\u{e9}".as_bytes()), "a\\x0a\u{e9}");
        assert_eq!(printable(b"\xff/"), "\\xff/");
        let p = places("default", b"\xff", 0);
        let tenant = Tenant::default_tenant();
        let object: serde_json::Value =
            serde_json::from_str(&p.json(&tenant, &Key::new(&b"\xff"[..]).unwrap())).unwrap();
        assert_eq!(object["key_hex"], "ff");
    }
}
