//! Reading Mooncake's directories: what is a record that counts, and what is told of everything else.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tempfile::TempDir;

use super::{key, tenant};
use crate::error::{Error, Kind, Result};
use crate::format::legacy::{self, FSDIR, StorageKey};
use crate::store::legacy::{Entry, Found, Layout, TenantMap, TenantRule, Tree, Why};
use crate::store::walkers::Walkers;

/// The fixtures, unpacked.
pub(super) fn fixtures() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("mount-tests/fixtures/mooncake-real.tar.gz");
    let unpacked = Command::new("tar").arg("xzf").arg(packed).arg("-C").arg(dir.path()).status();
    assert!(unpacked.unwrap().success());
    dir
}

/// A directory that a Mooncake might have written.
pub(super) struct Written(TempDir);

impl Written {
    pub(super) fn new() -> Written {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(FSDIR)).unwrap();
        Written(dir)
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn at(&self, path: &[u8]) -> PathBuf {
        self.0.path().join(FSDIR).join(OsStr::from_bytes(path))
    }

    /// Puts bytes below the fsdir.
    pub(super) fn put(&self, path: &[u8], bytes: &[u8]) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), bytes).unwrap();
    }

    /// Puts a record where it belongs; its path.
    pub(super) fn record(&self, layout: Layout, storage_key: &[u8], value: &[u8]) -> Vec<u8> {
        let path = layout.path(&StorageKey::new(storage_key).unwrap()).unwrap();
        self.put(&path, &record(storage_key, value));
        path
    }

    fn tree(&self) -> Tree {
        Tree::open(self.path(), Path::new(FSDIR), TenantMap::default()).unwrap()
    }
}

/// The bytes of a record.
pub(super) fn record(storage_key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let storage_key = StorageKey::new(storage_key).unwrap();
    legacy::write(&mut bytes, &storage_key, &mut &value[..], value.len() as u64).unwrap();
    bytes
}

struct Walked {
    records: BTreeMap<(String, Vec<u8>), Found>,
    rejected: BTreeMap<Vec<u8>, Why>,
    counted: u64,
}

fn walk(tree: &Tree) -> Result<Walked> {
    let seen = Mutex::new((BTreeMap::new(), BTreeMap::new()));
    let mut counted = 0;
    let visit = |entry| {
        let mut seen = seen.lock();
        match entry {
            Entry::Record(found) => {
                let owner = (found.tenant.to_string(), found.key.as_bytes().to_vec());
                assert!(seen.0.insert(owner, found).is_none(), "a key was met twice");
            }
            Entry::Rejected(rejected) => {
                assert!(seen.1.insert(rejected.path.to_vec(), rejected.why).is_none());
            }
        }
        Ok(())
    };
    tree.walk(&Walkers::alone(2, &AtomicBool::new(false)), &visit, &mut |n| counted = n)?;
    let (records, rejected) = seen.into_inner();
    Ok(Walked { records, rejected, counted })
}

/// Reads the value of a record where the walk has found it.
fn value(tree: &Tree, found: &Found) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let (file, again) = tree.open_record(found.layout, &found.storage_key).unwrap().unwrap();
    assert_eq!((again.value, again.attr.ino), (found.value, found.attr.ino));
    let mut value = vec![0; found.value.bytes as usize];
    file.read_exact_at(&mut value, found.value.offset).unwrap();
    value
}

#[test]
fn the_directories_of_the_released_program() {
    let _global = super::GLOBAL.lock();
    let unpacked = fixtures();
    for (name, records) in [("default-tenant", 26), ("two-tenants", 4), ("collision", 1)] {
        let dir = unpacked.path().join("mooncake-real").join(name);
        let tree = Tree::open(&dir, Path::new(FSDIR), TenantMap::default()).unwrap();
        let walked = walk(&tree).unwrap();
        assert_eq!((walked.records.len(), walked.rejected.len()), (records, 0), "{name}");
        assert_eq!(walked.counted, records as u64);
        for found in walked.records.values() {
            assert_eq!(found.layout, Layout::Legacy);
            assert_eq!(value(&tree, found).len() as u64, found.value.bytes);
            let (_, again) = tree.find(&found.tenant, &found.key).unwrap().unwrap();
            assert_eq!(again.storage_key, found.storage_key);
        }
        if name == "two-tenants" {
            for (name, bytes) in [("tenantA", b"from-A"), ("tenantB", b"from-B")] {
                assert_eq!(value(&tree, &walked.records[&(name.into(), b"shared/key".to_vec())]), bytes);
            }
        }
        if name == "collision" {
            let found = &walked.records[&("default".into(), b"c__:___".to_vec())];
            assert_eq!(value(&tree, found), b"VALUE-1");
            assert!(tree.find(&tenant("default"), &key(b"c::::/_")).unwrap().is_none());
        }
    }
}

#[test]
fn everything_else_is_told_with_its_reason() {
    let _global = super::GLOBAL.lock();
    let dir = Written::new();
    dir.record(Layout::Legacy, b"default\0good", b"value");
    dir.put(b"loose", b"x");
    dir.put(b".staging/a/b", b"x");
    dir.put(b"zz/b/c", b"x");
    dir.put(b"a/loose", b"x");
    dir.put(b"a/bb/c", b"x");
    dir.put(b"a/b/c/d/e", b"x");
    dir.put(b"64/c7/not-a-digest", b"x");
    dir.put(b"64/c7/64c819bce58a6a9d621f9888577b399c", b"x");
    dir.put(b"a/b/a:b", b"x");
    let place = |key: &[u8]| legacy::path(key);
    dir.put(&place(b"default\0empty"), b"");
    dir.put(&place(b"default\0foreign"), b"not a record");
    dir.put(&place(b"default\0short"), &record(b"default\0short", &[7; 300])[..200]);
    dir.put(&place(b"default\0keyless"), b"\x12\x05hello");
    dir.put(&place(b"default\0elsewhere"), &record(b"default\0other", b"value"));
    let canonical = legacy::canonical_path(b"default\0elsewhere").into_bytes();
    dir.put(&canonical, &record(b"default\0other", b"value"));
    dir.record(Layout::Legacy, b"team:1\0k", b"value");
    dir.record(Layout::Canonical, &[b"default\0".to_vec(), vec![b'k'; 3073]].concat(), b"value");
    let link = place(b"default\0link");
    dir.put(&link, b"x");
    fs::remove_file(dir.at(&link)).unwrap();
    symlink(dir.at(&place(b"default\0good")), dir.at(&link)).unwrap();
    symlink(dir.path(), dir.at(b"b")).unwrap();
    symlink("/nowhere", dir.at(b"c7")).unwrap();
    let made = Command::new("mkfifo").arg(dir.at(b"a/b/fifo")).arg(dir.at(b"fifo")).status().unwrap();
    assert!(made.success());
    let walked = walk(&dir.tree()).unwrap();
    assert_eq!(walked.records.keys().collect::<Vec<_>>(), [&("default".into(), b"good".to_vec())]);
    let words: BTreeMap<String, &str> =
        walked.rejected.iter().map(|(path, why)| (path.escape_ascii().to_string(), why.as_str())).collect();
    let long = legacy::canonical_path(&[b"default\0".to_vec(), vec![b'k'; 3073]].concat());
    let mut expected: BTreeMap<String, &str> = [
        ("loose", "stranger"),
        (".staging", "staging"),
        ("zz", "stranger"),
        ("a/loose", "stranger"),
        ("a/bb", "stranger"),
        ("a/b/c", "stranger"),
        ("64/c7/not-a-digest", "stranger"),
        ("64/c7/64c819bce58a6a9d621f9888577b399c", "stranger"),
        ("a/b/a:b", "stranger"),
        ("b", "symlink"),
        ("c7", "symlink"),
        ("fifo", "special"),
        ("a/b/fifo", "special"),
        (&*long, "key-too-long"),
    ]
    .map(|(path, word)| (path.to_owned(), word))
    .into();
    for (name, word) in [
        ("empty", "malformed"),
        ("foreign", "malformed"),
        ("short", "malformed"),
        ("keyless", "malformed"),
        ("elsewhere", "misplaced"),
        ("link", "symlink"),
    ] {
        let at = place(format!("default\0{name}").as_bytes());
        expected.insert(at.escape_ascii().to_string(), word);
    }
    expected.insert(String::from_utf8(canonical).unwrap(), "misplaced");
    expected.insert(String::from_utf8(place(b"team:1\0k")).unwrap(), "tenant");
    assert_eq!(words, expected);
    for why in walked.rejected.values() {
        assert!(why.to_string().is_ascii() && why.to_string().len() > 10);
    }
}

#[test]
fn of_two_records_of_a_key_one_counts() {
    let _global = super::GLOBAL.lock();
    let dir = Written::new();
    let legacy = dir.record(Layout::Legacy, b"default\0both", b"old");
    let canonical = dir.record(Layout::Canonical, b"default\0both", b"new");
    // A canonical file that is no record of the key hides nothing.
    dir.record(Layout::Legacy, b"default\0sound", b"value");
    let broken = legacy::canonical_path(b"default\0sound").into_bytes();
    dir.put(&broken, &record(b"default\0sound", &[1; 300])[..100]);
    // Written without a tenant by an old version, then again by one that has them.
    let bare = dir.record(Layout::Canonical, b"bare", b"old");
    let scoped = dir.record(Layout::Legacy, b"default\0bare", b"new");
    dir.record(Layout::Legacy, b"alone", b"value");
    let tree = dir.tree();
    let walked = walk(&tree).unwrap();
    let values: Vec<(&[u8], Vec<u8>)> =
        walked.records.iter().map(|((_, key), found)| (&key[..], value(&tree, found))).collect();
    let expected: [(&[u8], &[u8]); 4] =
        [(b"alone", b"value"), (b"bare", b"new"), (b"both", b"new"), (b"sound", b"value")];
    assert_eq!(values, expected.map(|(k, v)| (k, v.to_vec())));
    assert_eq!(walked.rejected.len(), 3);
    assert_eq!(walked.rejected[&legacy], Why::Shadow { by: canonical.into() });
    assert_eq!(walked.rejected[&bare], Why::Shadow { by: scoped.into() });
    assert_eq!(walked.rejected[&broken].as_str(), "malformed");
    for found in walked.records.values() {
        let (_, again) = tree.find(&found.tenant, &found.key).unwrap().unwrap();
        assert_eq!((again.layout, again.storage_key), (found.layout, found.storage_key.clone()));
    }
}

#[test]
fn tenants_may_have_other_names_here() {
    let _global = super::GLOBAL.lock();
    let dir = Written::new();
    dir.record(Layout::Legacy, b"team:1\0k", b"mapped");
    dir.record(Layout::Legacy, b"team:1\0both", b"hidden");
    dir.record(Layout::Legacy, b"team-1\0both", b"own");
    let rule = TenantRule::parse(OsStr::new("team:1=team-1")).unwrap();
    let map = TenantMap::new([rule]).unwrap();
    let tree = Tree::open(dir.path(), Path::new(FSDIR), map).unwrap();
    let walked = walk(&tree).unwrap();
    let values: Vec<Vec<u8>> = walked.records.values().map(|found| value(&tree, found)).collect();
    assert_eq!(values, [&b"own"[..], b"mapped"]);
    assert!(walked.records.keys().all(|(tenant, _)| tenant == "team-1"));
    assert_eq!(walked.rejected.values().map(Why::as_str).collect::<Vec<_>>(), ["shadow"]);
}

#[test]
fn the_directory_is_found_or_refused_with_a_sentence() {
    let _global = super::GLOBAL.lock();
    let dir = Written::new();
    dir.record(Layout::Legacy, b"default\0k", b"value");
    let open = |at: &Path, fsdir: &str| Tree::open(at, Path::new(fsdir), TenantMap::default());
    assert_eq!(walk(&open(&dir.at(b""), FSDIR).unwrap()).unwrap().records.len(), 1);
    fs::create_dir(dir.path().join("other")).unwrap();
    assert_eq!(walk(&open(dir.path(), "other").unwrap()).unwrap().records.len(), 0);
    symlink(dir.path().join(FSDIR), dir.path().join("link")).unwrap();
    fs::write(dir.path().join("file"), b"").unwrap();
    let outside = dir.at(b"").display().to_string();
    for fsdir in ["none", "", "..", "link", "file", &outside] {
        let refused = open(dir.path(), fsdir).unwrap_err().to_string();
        assert!(refused.contains(&dir.path().display().to_string()), "{refused}");
    }
    assert_eq!(open(&dir.path().join("none"), FSDIR).unwrap_err().kind(), Kind::NotFound);
    // A link above is the person's own.
    let above = tempfile::tempdir().unwrap();
    symlink(dir.path(), above.path().join("link")).unwrap();
    assert_eq!(walk(&open(&above.path().join("link"), FSDIR).unwrap()).unwrap().records.len(), 1);
}

#[test]
fn an_error_of_the_visitor_ends_the_walk() {
    let _global = super::GLOBAL.lock();
    let dir = Written::new();
    for n in 0..50 {
        dir.record(Layout::Legacy, format!("default\0{n}").as_bytes(), b"value");
    }
    let visit = |_| Err(Error::new(Kind::NoSpace, "enough"));
    assert_eq!(
        dir.tree().walk(&Walkers::alone(2, &AtomicBool::new(false)), &visit, &mut |_| {}).unwrap_err().kind(),
        Kind::NoSpace
    );
}

#[test]
fn reading_leaves_no_trace() {
    let _global = super::GLOBAL.lock();
    let dir = Written::new();
    let path = dir.record(Layout::Legacy, b"default\0k", b"value");
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let places = [dir.at(&path), dir.at(&path[..3]), dir.at(&path[..1]), dir.at(b"")];
    for place in &places {
        let times = fs::FileTimes::new().set_accessed(old).set_modified(old);
        File::open(place).unwrap().set_times(times).unwrap();
    }
    let stat = |place: &PathBuf| {
        let m = fs::metadata(place).unwrap();
        (m.atime(), m.mtime(), m.ctime(), m.ctime_nsec(), m.len())
    };
    let before: Vec<_> = places.iter().map(stat).collect();
    let tree = dir.tree();
    assert_eq!(value(&tree, walk(&tree).unwrap().records.values().next().unwrap()), b"value");
    assert_eq!(places.iter().map(stat).collect::<Vec<_>>(), before);
}

#[cfg(feature = "failpoints")]
#[test]
fn what_cannot_be_read_ends_the_walk_with_its_path() {
    let _global = super::GLOBAL.lock();
    let dir = Written::new();
    let path = dir.record(Layout::Legacy, b"default\0k", b"value");
    for (step, at) in [("legacy.list", &path[..1]), ("legacy.open", &path[..]), ("legacy.locate", &path)] {
        fail::cfg(step, "return").unwrap();
        let failed = walk(&dir.tree()).map(|walked| walked.counted).unwrap_err();
        fail::remove(step);
        assert_eq!(failed.errno(), libc::EIO);
        assert!(failed.to_string().starts_with(&dir.at(at).display().to_string()), "{failed}");
    }
    assert_eq!(walk(&dir.tree()).unwrap().records.len(), 1);
}
