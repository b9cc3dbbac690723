//! (tests) The directories that the released program wrote, and its paths, for good. `scripts/mooncake-roundtrip` runs
//! the ignored tests over directories that the program has just written, or is about to read.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::format::legacy::{FSDIR, Place, StorageKey};
use crate::format::legacy::{canonical_path, fits, locate, locate_bytes, path, write};

/// Where the fixtures are; what is in them says the README there.
fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("mount-tests/fixtures")
}

fn unpack() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut tar = Command::new("tar");
    tar.arg("xzf").arg(fixtures().join("mooncake-real.tar.gz")).arg("-C").arg(dir.path());
    assert!(tar.status().unwrap().success());
    dir
}

/// Every file below `dir`: path relative to it, content.
fn files(dir: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let (mut dirs, mut found) = (vec![dir.to_owned()], BTreeMap::new());
    while let Some(next) = dirs.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let entry = entry.unwrap().path();
            if entry.is_dir() {
                dirs.push(entry);
            } else {
                let name = entry.strip_prefix(dir).unwrap().as_os_str().as_bytes().to_vec();
                found.insert(name, fs::read(entry).unwrap());
            }
        }
    }
    found
}

/// One directory of the fixtures.
fn fsdir(unpacked: &TempDir, name: &str) -> PathBuf {
    unpacked.path().join("mooncake-real").join(name).join(FSDIR)
}

/// The records below an fsdir: storage key, value. Each is read from its file and from memory, stands where its key
/// belongs, and is written again to the same bytes.
fn records(fsdir: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut found = BTreeMap::new();
    for (at, bytes) in files(fsdir) {
        let record = locate_bytes(&bytes).unwrap();
        let file = fs::File::open(fsdir.join(OsStr::from_bytes(&at))).unwrap();
        assert_eq!(locate(&file).unwrap().as_ref(), Ok(&record));
        let key = record.storage_key.as_bytes();
        assert!(Place::parse(&at).unwrap().binds(key), "{}", at.escape_ascii());
        assert_eq!(path(key), at);
        assert_eq!(record.value.offset + record.value.bytes, bytes.len() as u64);
        let value = &bytes[record.value.offset as usize..];
        let mut again = Vec::new();
        write(&mut again, &record.storage_key, &mut &value[..], record.value.bytes).unwrap();
        assert!(again == bytes, "{} is written otherwise", at.escape_ascii());
        assert_eq!(found.insert(key.to_vec(), value.to_vec()), None);
    }
    found
}

fn vectors() -> Vec<Value> {
    let text = fs::read_to_string(fixtures().join("path_vectors.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap().as_array().unwrap().clone()
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

/// SHA-256 by the coreutils: no dependency for the sake of one test.
fn sha256(dir: &Path, bytes: &[u8]) -> String {
    let file = dir.join("value");
    fs::write(&file, bytes).unwrap();
    let out = Command::new("sha256sum").arg(file).output().unwrap();
    String::from_utf8(out.stdout).unwrap()[..64].to_owned()
}

#[test]
fn the_26_records_of_the_default_tenant() {
    let unpacked = unpack();
    let mut found = records(&fsdir(&unpacked, "default-tenant"));
    assert_eq!(found.len(), 26);
    for vector in vectors() {
        let key = unhex(vector["storage_key_hex"].as_str().unwrap());
        let value = found.remove(&key);
        assert_eq!(value.is_some(), vector["written"].as_bool().unwrap(), "{}", key.escape_ascii());
        if let Some(value) = value {
            assert_eq!(value.len() as u64, vector["value_len"].as_u64().unwrap());
            assert_eq!(sha256(unpacked.path(), &value), vector["value_sha256"].as_str().unwrap());
        }
        let (tenant, plain) = StorageKey::new(key).unwrap().owner().unwrap();
        assert_eq!(tenant.as_str(), vector["tenant"].as_str().unwrap());
        assert_eq!(plain.as_bytes(), vector["key"].as_str().unwrap().as_bytes());
    }
    assert_eq!(found, BTreeMap::new());
}

#[test]
fn the_4_records_of_two_tenants() {
    let unpacked = unpack();
    let found = records(&fsdir(&unpacked, "two-tenants"));
    let expected = [
        (&b"tenantA\0only-a"[..], &b"A-data"[..]),
        (b"tenantA\0shared/key", b"from-A"),
        (b"tenantB\0only-b", b"B-data"),
        (b"tenantB\0shared/key", b"from-B"),
    ];
    assert_eq!(found, expected.map(|(k, v)| (k.to_vec(), v.to_vec())).into());
    let owners = found.keys().map(|k| StorageKey::new(&k[..]).unwrap().owner().unwrap().0.to_string());
    assert_eq!(owners.collect::<Vec<_>>(), ["tenantA", "tenantA", "tenantB", "tenantB"]);
}

#[test]
fn the_collision_holds_the_second_key_alone() {
    let unpacked = unpack();
    let found = records(&fsdir(&unpacked, "collision"));
    assert_eq!(found, [(b"default\0c__:___".to_vec(), b"VALUE-1".to_vec())].into());
    assert_eq!(path(b"default\0c::::/_"), path(b"default\0c__:___"));
    assert!(!found.contains_key(&b"default\0c::::/_"[..]));
}

#[test]
fn the_28_paths() {
    let vectors = vectors();
    assert_eq!(vectors.len(), 28);
    for vector in vectors {
        let key = unhex(vector["storage_key_hex"].as_str().unwrap());
        let legacy = String::from_utf8(path(&key)).unwrap();
        assert_eq!(legacy, vector["legacy_path"].as_str().unwrap());
        assert_eq!(canonical_path(&key), vector["canonical_path"].as_str().unwrap());
        assert_eq!(fits(&key), vector["written"].as_bool().unwrap(), "{legacy}");
    }
}

/// What `scripts/mooncake-roundtrip` gives the codec: a directory, and the values by their storage keys.
fn round_trip() -> (PathBuf, BTreeMap<Vec<u8>, Vec<u8>>) {
    let given = |name| PathBuf::from(env::var_os(name).expect("set by scripts/mooncake-roundtrip"));
    let manifest = fs::read(given("FENCEFS_ROUNDTRIP_MANIFEST")).unwrap();
    let entries = serde_json::from_slice::<Value>(&manifest).unwrap();
    let text = |entry: &Value, name: &str| entry[name].as_str().unwrap().to_owned();
    let values = entries.as_array().unwrap().iter().map(|entry| {
        let key = format!("{}\0{}", text(entry, "tenant"), text(entry, "key"));
        (key.into_bytes(), unhex(&text(entry, "value_hex")))
    });
    (given("FENCEFS_ROUNDTRIP_DIR").join(FSDIR), values.collect())
}

#[test]
#[ignore = "needs a directory that Mooncake has written: scripts/mooncake-roundtrip"]
fn mooncake_wrote_what_is_read() {
    let (fsdir, values) = round_trip();
    assert!(records(&fsdir) == values, "other records than were put");
}

#[test]
#[ignore = "needs a directory that Mooncake will read: scripts/mooncake-roundtrip"]
fn what_is_written_for_mooncake() {
    let (fsdir, values) = round_trip();
    for (key, value) in values {
        let file = fsdir.join(OsStr::from_bytes(&path(&key)));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let mut file = fs::File::create_new(file).unwrap();
        write(&mut file, &StorageKey::new(key).unwrap(), &mut &value[..], value.len() as u64).unwrap();
    }
}
