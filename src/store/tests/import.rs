//! Imports: what the released program wrote arrives whole, once, beside what is there.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::legacy_tree::{Written, fixtures};
use super::*;
use crate::config::{Checksum, Quota};
use crate::format::legacy::{FSDIR, StorageKey};
use crate::format::record::{Record, XATTR};
use crate::ledger::Pending;
use crate::os;
use crate::scope::{Generation, Mode, Scope};
use crate::store::import::{Options, Summary, import};
use crate::store::legacy::{Layout, TenantMap, Tree};

fn settings() -> StoreSettings {
    StoreSettings { evicts: false, ..StoreSettings::default() }
}

fn quota(size_bytes: Option<u64>, max_keys: Option<u64>) -> StoreSettings {
    StoreSettings { quota: Quota::new(size_bytes, max_keys, None, None).unwrap(), ..settings() }
}

fn import_from(store: &Arc<Store>, dir: &Path, replace: bool) -> Result<Summary> {
    let tree = Tree::open(dir, Path::new(FSDIR), TenantMap::default())?;
    import(store, &tree, Options { replace }, &mut |_, _, _| {})
}

/// Imports where every entry must arrive or be there; how many of each.
#[track_caller]
fn import_all(store: &Arc<Store>, dir: &Path) -> (u64, u64) {
    let summary = import_from(store, dir, false).unwrap();
    assert_eq!(summary.findings, []);
    (summary.imported, summary.already_there)
}

fn words(summary: &Summary) -> Vec<(String, &'static str)> {
    let word = |f: &crate::store::import::Finding| (f.path.escape_ascii().to_string(), f.what.as_str());
    summary.findings.iter().map(word).collect()
}

fn value_of(store: &Store, name: &str, key_bytes: &[u8]) -> Option<Vec<u8>> {
    store.find_key(&tenant(name), &key(key_bytes)).unwrap().and_then(|id| read(store, id))
}

fn sha256(bytes: &[u8]) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), bytes).unwrap();
    let out = Command::new("sha256sum").arg(file.path()).output().unwrap();
    String::from_utf8(out.stdout).unwrap()[..64].to_owned()
}

/// The 26 values of the fixtures are what the released program was given.
#[track_caller]
fn assert_the_26(store: &Store) {
    let vectors = include_str!("../../../mount-tests/fixtures/path_vectors.json");
    for vector in serde_json::from_str::<Vec<serde_json::Value>>(vectors).unwrap() {
        let name = vector["key"].as_str().unwrap();
        let value = value_of(store, "default", name.as_bytes());
        assert_eq!(value.is_some(), vector["written"].as_bool().unwrap(), "{name:?}");
        if let Some(value) = value {
            assert_eq!(sha256(&value), vector["value_sha256"].as_str().unwrap(), "{name:?}");
        }
    }
    assert_eq!(store.usage(None).1, 26);
}

#[test]
fn what_the_released_program_wrote_arrives_and_is_there() {
    let unpacked = fixtures();
    let dir = unpacked.path().join("mooncake-real/default-tenant");
    let mut bench = Bench::new(settings());
    assert_eq!(import_all(&bench, &dir), (26, 0));
    assert_the_26(&bench);
    bench.sound();
    assert_eq!(import_all(&bench, &dir), (0, 26));
    bench.close_and_reopen();
    assert_the_26(&bench);
    assert_eq!(bench.counters.scanned.load(std::sync::atomic::Ordering::Relaxed), 0);
    let served = tree(&bench);
    bench.reopen();
    assert_eq!(tree(&bench), served, "the disk says otherwise than the checkpoint");
    assert_eq!(import_all(&bench, &dir), (0, 26));
    bench.sound();
}

#[test]
fn tenants_come_with_their_keys_and_keys_that_share_a_path_do_not_mix() {
    let unpacked = fixtures();
    let dir = |name: &str| unpacked.path().join("mooncake-real").join(name);
    let top = dir("two-tenants").join(FSDIR);
    fs::set_permissions(&top, fs::Permissions::from_mode(0o2750)).unwrap();
    let bench = Bench::new(settings());
    assert_eq!(import_all(&bench, &dir("two-tenants")), (4, 0));
    assert_eq!(import_all(&bench, &dir("collision")), (1, 0));
    for (name, key_bytes, value) in [
        ("tenantA", &b"shared/key"[..], &b"from-A"[..]),
        ("tenantA", b"only-a", b"A-data"),
        ("tenantB", b"shared/key", b"from-B"),
        ("tenantB", b"only-b", b"B-data"),
        ("default", b"c__:___", b"VALUE-1"),
    ] {
        assert_eq!(value_of(&bench, name, key_bytes).unwrap(), value);
    }
    assert_eq!(value_of(&bench, "default", b"c::::/_"), None);
    let (made, there) =
        (fs::metadata(bench.root().join("data/t/tenantA")).unwrap(), fs::metadata(top).unwrap());
    assert_eq!((made.mode() & 0o7777, made.uid(), made.gid()), (0o750, there.uid(), there.gid()));
    bench.sound();
}

#[test]
fn mode_and_times_stay_and_the_directory_is_as_before() {
    let dir = Written::new();
    let path = dir.record(Layout::Legacy, b"default\0k", b"value");
    let file = fs::File::options().write(true).open(dir.at(&path)).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 7);
    file.set_times(fs::FileTimes::new().set_accessed(old).set_modified(old)).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o4640)).unwrap();
    let state = || {
        let m = fs::metadata(dir.at(&path)).unwrap();
        (m.atime(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec(), m.mode(), m.len())
    };
    let before = state();
    let bench = Bench::new(settings());
    assert_eq!(import_all(&bench, dir.path()), (1, 0));
    assert_eq!(import_all(&bench, dir.path()), (0, 1));
    assert_eq!(state(), before);
    let m = fs::metadata(bench.record(b"k")).unwrap();
    assert_eq!((m.mtime(), m.mtime_nsec(), m.mode() & 0o7777), (1_000_000_000, 7, 0o640));
}

#[test]
fn a_key_with_another_content_is_kept_until_replaced() {
    let dir = Written::new();
    let paths = [&b"shorter"[..], b"other", b"link", b"same"]
        .map(|k| dir.record(Layout::Legacy, &[b"default\0", k].concat(), b"theirs"));
    let bench = Bench::new(settings());
    put(&bench, b"shorter", b"our").unwrap();
    let pinned = put(&bench, b"other", b"ours!!").unwrap();
    bench.set_pinned(pinned, true).unwrap();
    put(&bench, b"same", b"theirs").unwrap();
    bench.make_symlink(default_dir(&bench), b"link", b"theirs", OWNER).unwrap();
    let summary = import_from(&bench, dir.path(), false).unwrap();
    assert_eq!((summary.imported, summary.already_there, summary.differing()), (0, 1, 3));
    let mut expected: Vec<_> = paths[..3].iter().map(|p| p.escape_ascii().to_string()).collect();
    expected.sort();
    assert_eq!(words(&summary), expected.into_iter().map(|p| (p, "differs")).collect::<Vec<_>>());
    assert!(summary.findings.iter().all(|f| f.what.leaves_a_value() && f.owner.is_some()));
    assert_eq!(get(&bench, b"other").unwrap(), b"ours!!");
    let summary = import_from(&bench, dir.path(), true).unwrap();
    assert_eq!((summary.imported, summary.replaced, summary.already_there), (3, 3, 1));
    assert_eq!(summary.findings, []);
    for k in [&b"shorter"[..], b"other", b"link", b"same"] {
        assert_eq!(get(&bench, k).unwrap(), b"theirs");
    }
    let id = bench.find_key(&tenant("default"), &key(b"other")).unwrap().unwrap();
    assert!(bench.is_pinned(id));
    bench.sound();
}

#[test]
fn nothing_is_evicted_and_what_cannot_fit_is_refused_at_once() {
    let dir = Written::new();
    for n in 0..20 {
        dir.record(Layout::Legacy, format!("default\0new{n}").as_bytes(), &[n; 4096]);
    }
    for (settings, kind) in
        [(quota(Some(80 << 10), None), Kind::NoSpace), (quota(None, Some(15)), Kind::NoSpace)]
    {
        let bench = Bench::new(settings);
        put(&bench, b"ours", &[1; 4096]).unwrap();
        let refused = import_from(&bench, dir.path(), false).unwrap_err();
        assert_eq!(refused.kind(), kind);
        assert!(refused.to_string().contains("nothing is evicted"), "{refused}");
        assert_eq!((names(&bench), bench.counters.evicted_keys()), (vec!["ours".to_owned()], 0));
        bench.sound();
    }
    let bench = Bench::new(settings());
    bench.set_tenant_quota(&tenant("default"), Some(40 << 10)).unwrap();
    assert_eq!(import_from(&bench, dir.path(), false).unwrap_err().kind(), Kind::TenantQuota);
    bench.set_tenant_quota(&tenant("default"), None).unwrap();
    assert_eq!(import_all(&bench, dir.path()), (20, 0));
    bench.sound();
}

#[test]
fn a_store_that_is_over_its_quota_loses_nothing_to_an_import() {
    let dir = Written::new();
    dir.record(Layout::Legacy, b"default\0new", &[1; 4096]);
    let mut bench = Bench::new(settings());
    for n in 0..20 {
        put(&bench, format!("ours{n}").as_bytes(), &[n; 4096]).unwrap();
    }
    bench.close().unwrap();
    bench.settings = quota(Some(40 << 10), None);
    bench.reopen();
    assert_eq!(import_from(&bench, dir.path(), false).unwrap_err().kind(), Kind::NoSpace);
    bench.evict_to_percent(10);
    assert_eq!((bench.usage(None).1, bench.counters.evicted_keys()), (20, 0));
    bench.sound();
}

/// Records allocate more than their values where their metadata takes a block: then the import ends on its way.
#[test]
fn an_import_that_runs_out_of_room_keeps_what_it_has() {
    let dir = Written::new();
    for n in 0..20 {
        let storage_key = [format!("default\0{n:02}").into_bytes(), vec![b'k'; 300]].concat();
        dir.record(Layout::Canonical, &storage_key, &[n; 4096]);
    }
    let mut bench = Bench::new(quota(Some(90 << 10), None));
    let ended = import_from(&bench, dir.path(), false);
    let Err(ended) = ended else {
        eprintln!("skipped: metadata takes no block here");
        return;
    };
    assert_eq!(ended.kind(), Kind::NoSpace);
    assert!(ended.to_string().contains("run it again"), "{ended}");
    bench.sound();
    let kept = bench.usage(None).1;
    assert!((1..20).contains(&kept) && bench.counters.evicted_keys() == 0);
    bench.close().unwrap();
    bench.settings = settings();
    bench.reopen();
    assert_eq!(bench.counters.scanned.load(std::sync::atomic::Ordering::Relaxed), kept);
    assert_eq!(import_all(&bench, dir.path()), (20 - kept, kept));
    bench.sound();
}

#[test]
fn keys_that_no_path_spells_arrive() {
    let dir = Written::new();
    let keys: [&[u8]; 11] = [
        b"",
        b".",
        b"..",
        b"a//b",
        b"../up",
        b"/first",
        b"last/",
        b"nul\0byte",
        b".fencefs/x",
        b"both",
        b"both/below",
    ];
    for k in keys {
        dir.record(Layout::Canonical, &[b"default\0", k].concat(), k);
    }
    let mut bench = Bench::new(settings());
    put(&bench, b"value", b"ours").unwrap();
    dir.record(Layout::Legacy, b"default\0value/below", b"theirs");
    assert_eq!(import_all(&bench, dir.path()), (12, 0));
    for again in 0..2 {
        for k in keys {
            assert_eq!(value_of(&bench, "default", k).as_deref(), Some(k), "{again}");
        }
        assert_eq!(get(&bench, b"value/below").unwrap(), b"theirs");
        bench.sound();
        bench.close_and_reopen();
    }
    // What stood in the way of a directory does not after a start that looks at the disk.
    let unspelled = bench.unspelled(&tenant("default")).unwrap();
    let listed = bench.list(unspelled, 0, usize::MAX).unwrap();
    assert!(listed.iter().any(|e| *e.name == *b"value") && listed.iter().any(|e| *e.name == *b"both"));
    assert_eq!(import_all(&bench, dir.path()), (0, 12));
}

#[test]
fn checksums_are_kept_where_the_store_keeps_them() {
    let dir = Written::new();
    let value = vec![7; 600_000];
    dir.record(Layout::Legacy, b"default\0k", &value);
    dir.record(Layout::Legacy, b"default\0empty", b"");
    let bench = Bench::new(StoreSettings { checksum: Checksum::On, ..settings() });
    assert_eq!(import_all(&bench, dir.path()), (2, 0));
    for (k, value) in [(&b"k"[..], &value[..]), (b"empty", b"")] {
        let packed = os::xattr_get(fs::File::open(bench.record(k)).unwrap(), XATTR, 4000).unwrap().unwrap();
        let sum = xxhash_rust::xxh3::xxh3_64(value);
        assert_eq!(Record::decode(&packed).unwrap().checksum, Some(sum));
        assert_eq!(get(&bench, k).unwrap(), value);
    }
}

#[test]
fn a_tenant_that_is_being_removed_takes_nothing() {
    let dir = Written::new();
    dir.record(Layout::Legacy, b"default\0k", b"value");
    let mut bench = Bench::new(settings());
    bench.drop_store();
    let pending =
        Pending { scope: Scope::Tenant(tenant("default")), generation: Generation(3), mode: Mode::Physical };
    let store =
        Store::open(StoreRoot::lock(&bench.root()).unwrap(), &bench.settings, &[pending], &mut |_, _| {})
            .unwrap();
    assert_eq!(import_from(&store, dir.path(), false).unwrap_err().kind(), Kind::Busy);
    bench.store = Some(store);
    bench.sound();
}

#[test]
fn what_is_no_record_is_told_and_the_rest_arrives() {
    let dir = Written::new();
    let good = dir.record(Layout::Legacy, b"default\0good", b"value");
    dir.record(Layout::Canonical, b"default\0good", b"newer");
    dir.put(b"a/b/stranger:", b"x");
    dir.put(b".staging/x", b"x");
    let short = Layout::Legacy.path(&StorageKey::new(&b"default\0short"[..]).unwrap()).unwrap();
    dir.put(&short, &super::legacy_tree::record(b"default\0short", &[7; 300])[..200]);
    let foreign = dir.record(Layout::Legacy, b"team:1\0k", b"value");
    let bench = Bench::new(settings());
    let summary = import_from(&bench, dir.path(), false).unwrap();
    assert_eq!((summary.imported, summary.imported_bytes), (1, 5));
    assert_eq!(get(&bench, b"good").unwrap(), b"newer");
    let shown = |path: &[u8]| path.escape_ascii().to_string();
    let mut expected = vec![
        (shown(b".staging"), "staging"),
        (shown(b"a/b/stranger:"), "stranger"),
        (shown(&good), "shadow"),
        (shown(&short), "malformed"),
        (shown(&foreign), "tenant"),
    ];
    expected.sort();
    assert_eq!(words(&summary), expected);
    let left: Vec<_> = summary.findings.iter().filter(|f| f.what.leaves_a_value()).collect();
    assert!(matches!(&left[..], [f] if f.path[..] == foreign[..]), "{left:?}");
    assert!(names_in(&bench.root().join("data/t")) == ["default"]);
}

#[cfg(feature = "failpoints")]
mod steps {
    use fail::FailScenario;

    use super::*;
    use crate::store::import::What;

    /// The steps that an import of the rig comes to.
    const STEPS: &[&str] = &[
        "legacy.list",
        "legacy.open",
        "legacy.locate",
        "import.plan",
        "import.tenant",
        "import.compare",
        "import.copy",
        "import.copied",
        "import.sync",
        "stage.create",
        "publish.metadata",
        "publish.rename",
        "publish.renamed",
    ];

    /// Values of two tenants, some there already and one with another content.
    struct Rig {
        dir: Written,
        bench: Bench,
        _scenario: FailScenario<'static>,
    }

    impl Rig {
        fn new() -> Rig {
            let bench = Bench::new(settings());
            let scenario = FailScenario::setup();
            let dir = Written::new();
            for n in 0..12 {
                let name = if n % 2 == 0 { "default" } else { "tenantA" };
                dir.record(Layout::Legacy, format!("{name}\0dir{}/k{n}", n % 3).as_bytes(), &[n; 5000]);
            }
            put(&bench, b"ours", b"ours").unwrap();
            bench.make_dir(default_dir(&bench), b"dir0", OWNER).unwrap();
            let dir0 = bench.find_key(&tenant("default"), &key(b"dir0")).unwrap().unwrap();
            put_in(&bench, dir0, b"k0", &[0; 5000]).unwrap();
            put_in(&bench, dir0, b"k6", &[99; 5000]).unwrap();
            Rig { dir, bench, _scenario: scenario }
        }

        /// Whatever an import came to, the next one does the rest.
        #[track_caller]
        fn completes(&self, store: &Arc<Store>, step: &str) {
            let summary = import_from(store, self.dir.path(), false).expect(step);
            assert_eq!(summary.imported + summary.already_there, 11, "{step}");
            assert_eq!(words(&summary).iter().map(|(_, word)| *word).collect::<Vec<_>>(), ["differs"]);
            for n in 0..12 {
                let name = if n % 2 == 0 { "default" } else { "tenantA" };
                let value = value_of(store, name, format!("dir{}/k{n}", n % 3).as_bytes()).expect(step);
                assert_eq!(value, [if n == 6 { 99 } else { n }; 5000], "{step}");
            }
            assert_eq!(value_of(store, "default", b"ours").unwrap(), b"ours");
            assert_eq!(store.usage(None).1, 13, "{step}");
            assert_sound(store);
        }
    }

    #[test]
    fn an_import_that_fails_at_any_step_is_completed_by_the_next() {
        for step in STEPS {
            for skipped in [0, 3] {
                let mut rig = Rig::new();
                fail::cfg(*step, &format!("{skipped}*off->return")).unwrap();
                let failed = import_from(&rig.bench, rig.dir.path(), false);
                fail::remove(*step);
                if skipped == 0 {
                    assert_eq!(failed.expect_err(step).errno(), libc::EIO, "{step}");
                }
                rig.bench.sound();
                rig.bench.close_and_reopen();
                rig.completes(&rig.bench, step);
            }
        }
    }

    #[test]
    fn an_import_that_is_killed_at_any_step_is_completed_by_the_next() {
        for step in STEPS {
            let rig = Rig::new();
            let dir = tempfile::tempdir().unwrap();
            let (from, to) = (rig.bench.root(), dir.path().join("store"));
            let copied = std::sync::Once::new();
            let copy = move || {
                copied.call_once(|| {
                    let done = Command::new("cp").arg("-a").args([&from, &to]).status();
                    assert!(done.unwrap().success());
                });
            };
            fail::cfg_callback(*step, copy).unwrap();
            import_from(&rig.bench, rig.dir.path(), false).expect(step);
            fail::remove(*step);
            let store = open_when_free(&dir.path().join("store"), &rig.bench.settings).expect(step);
            rig.completes(&store, step);
        }
    }

    #[test]
    fn a_record_that_changes_meanwhile_is_told() {
        let rig = Rig::new();
        let path = Layout::Legacy.path(&StorageKey::new(&b"tenantA\0dir1/k1"[..]).unwrap()).unwrap();
        let file = rig.dir.at(&path);
        let change = move || {
            let changed = super::super::legacy_tree::record(b"tenantA\0dir1/k1", &[77; 5000]);
            fs::write(&file, changed).unwrap();
        };
        fail::cfg_callback("import.copy", change).unwrap();
        let summary = import_from(&rig.bench, rig.dir.path(), false).unwrap();
        fail::remove("import.copy");
        let changed: Vec<_> = summary.findings.iter().filter(|f| f.what == What::Changed).collect();
        assert!(
            matches!(&changed[..], [f] if f.path[..] == path[..] && f.what.leaves_a_value()),
            "{changed:?}"
        );
        assert_eq!(value_of(&rig.bench, "tenantA", b"dir1/k1"), None);
        rig.bench.sound();
    }
}
