//! A Mooncake directory that is attached: what is served, what a change of a key does to its copies, what is counted,
//! what a removal takes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::{fs, io::Seek};

use super::legacy_tree::{Written, fixtures, record};
use super::removal::{global, of, of_tenant, status_of};
use super::*;
use crate::config::{AttachLegacy, Durability, PolicyName, Quota};
use crate::format::legacy::{self, FSDIR};
use crate::os::{RenameHow, SetTime};
use crate::scope::{Mode, Scope};
use crate::store::SetAttr;
use crate::store::legacy::{AttachedStatus, Layout};

/// Settings that attach a directory.
pub(super) fn attaching(dir: &Path, map: &[&str]) -> StoreSettings {
    let tenants = map.iter().map(OsString::from).collect();
    let attach = AttachLegacy { dir: dir.to_owned(), fsdir: FSDIR.into(), tenants };
    StoreSettings { attach: Some(attach), ..StoreSettings::default() }
}

pub(super) fn status(store: &Arc<Store>) -> AttachedStatus {
    store.status().attached.unwrap()
}

/// Regular files below a directory, with their allocated bytes.
pub(super) fn files(dir: &Path) -> Vec<(PathBuf, u64)> {
    let (mut dirs, mut found) = (vec![dir.to_owned()], Vec::new());
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().map(|e| e.unwrap()) {
            let meta = entry.metadata().unwrap();
            if meta.is_dir() {
                dirs.push(entry.path());
            } else if meta.is_file() {
                found.push((entry.path(), meta.blocks() * 512));
            }
        }
    }
    found.sort();
    found
}

/// Sums agree with one another, and usage with the record files and the `legacy` ones.
#[track_caller]
pub(super) fn sound_with(store: &Store, legacy: &[(PathBuf, u64)]) {
    assert_eq!(store.check(), [""; 0]);
    let outside: u64 = legacy.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(store.usage(None).0, disk_bytes(store.path()) + outside, "usage differs from the files");
    assert_eq!(names_in(&store.path().join("data/.staging")), [""; 0]);
}

/// Two tenants, three keys, an entry that is none.
pub(super) fn written() -> Written {
    let dir = Written::new();
    dir.record(Layout::Legacy, b"a\0one", b"first");
    dir.record(Layout::Legacy, b"a\0sub/two", &[7; 10_000]);
    dir.record(Layout::Canonical, b"b\0one", b"of b");
    dir
}

pub(super) fn id_of(store: &Store, name: &str, k: &[u8]) -> NodeId {
    store.find_key(&tenant(name), &key(k)).unwrap().unwrap()
}

pub(super) fn get_of(store: &Store, name: &str, k: &[u8]) -> Option<Vec<u8>> {
    let id = store.find_key(&tenant(name), &key(k)).ok()??;
    read(store, id)
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |b: u8| (b as char).to_digit(16).unwrap() as u8;
    text.as_bytes().chunks(2).map(|p| digit(p[0]) << 4 | digit(p[1])).collect()
}

#[test]
fn what_the_real_program_wrote_is_served_in_place() {
    let dir = fixtures();
    let at = dir.path().join("mooncake-real/default-tenant");
    let before = files(&at.join(FSDIR));
    let bench = Bench::new(attaching(&at, &[]));
    let vectors = include_str!("../../../mount-tests/fixtures/path_vectors.json");
    let vectors: serde_json::Value = serde_json::from_str(vectors).unwrap();
    let mut served = 0;
    for vector in vectors.as_array().unwrap() {
        let storage_key = unhex(vector["storage_key_hex"].as_str().unwrap());
        let nul = storage_key.iter().position(|b| *b == 0).unwrap();
        let value = get_of(&bench, "default", &storage_key[nul + 1..]);
        if vector["written"].as_bool().unwrap() {
            assert_eq!(value.unwrap().len() as u64, vector["value_len"].as_u64().unwrap());
            served += 1;
        } else {
            assert_eq!(value, None);
        }
    }
    assert_eq!((served, status(&bench).records, bench.usage(None).1), (26, 26, 26));
    sound_with(&bench, &before);
    assert_eq!(files(&at.join(FSDIR)), before, "reading leaves everything as it was");
}

#[test]
fn two_keys_of_one_path_are_two_keys() {
    let dir = fixtures();
    let bench = Bench::new(attaching(&dir.path().join("mooncake-real/collision"), &[]));
    assert_eq!(get(&bench, b"c__:___").unwrap(), b"VALUE-1");
    assert_eq!(get(&bench, b"c::::/_"), None, "the file is of another key");
    // A rewrite of the one that is absent retires nothing of the other.
    let dir = bench.place_of_key(&tenant("default"), &key(b"c::::"));
    assert!(dir.is_ok());
    let sub = bench.make_dir(default_dir(&bench), b"c::::", OWNER).unwrap();
    put_in(&bench, sub, b"_", b"VALUE-0").unwrap();
    assert_eq!(get(&bench, b"c__:___").unwrap(), b"VALUE-1");
    assert_eq!(get(&bench, b"c::::/_").unwrap(), b"VALUE-0");
    assert_eq!(status(&bench).records, 1);
}

#[test]
fn a_replacement_retires_the_legacy_file() {
    for durability in [Durability::Rename, Durability::Fsync] {
        let dir = written();
        let mut bench = Bench::new(StoreSettings { durability, ..attaching(dir.path(), &[]) });
        let at = bench.tenant_node(&tenant("a")).unwrap();
        let old = id_of(&bench, "a", b"one");
        put_in(&bench, at, b"one", b"second").unwrap();
        assert!(!dir.at(&Layout::Legacy.path(&storage_key(b"a\0one")).unwrap()).exists());
        assert_eq!(get_of(&bench, "a", b"one").unwrap(), b"second");
        assert_ne!(id_of(&bench, "a", b"one"), old);
        let status_now = status(&bench);
        assert_eq!((status_now.records, status_now.shadows, status_now.migrated), (2, 0, 0));
        sound_with(&bench, &files(dir.path()));
        bench.reopen();
        assert_eq!(get_of(&bench, "a", b"one").unwrap(), b"second");
        assert_eq!(status(&bench).records, 2);
        sound_with(&bench, &files(dir.path()));
    }
}

fn storage_key(bytes: &[u8]) -> legacy::StorageKey {
    legacy::StorageKey::new(bytes).unwrap()
}

/// Every change of a key that is not a replacement copies it up first.
#[test]
fn changes_in_place_copy_the_value_up_first() {
    type Change = fn(&Arc<Store>, NodeId);
    let changes: [(&str, Change, &[u8]); 6] = [
        (
            "append",
            |s, id| {
                let (mut file, _) = s.begin_edit(id).unwrap().unwrap();
                file.seek(std::io::SeekFrom::End(0)).unwrap();
                file.write_all(b"+").unwrap();
                s.end_edit(id, &file).unwrap();
            },
            b"first+",
        ),
        ("truncate", |s, id| s.truncate(id, 2).unwrap(), b"fi"),
        ("mode", |s, id| s.set_attr(id, &mode(0o600)).unwrap(), b"first"),
        ("pin", |s, id| s.set_pinned(id, true).unwrap(), b"first"),
        ("migrate", |s, id| s.migrate(id).unwrap(), b"first"),
        ("twice", |s, id| [(); 2].iter().for_each(|()| s.migrate(id).unwrap()), b"first"),
    ];
    for (what, change, expected) in changes {
        let dir = written();
        let path = dir.at(&Layout::Legacy.path(&storage_key(b"a\0one")).unwrap());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let mut bench = Bench::new(attaching(dir.path(), &[]));
        let id = id_of(&bench, "a", b"one");
        let before = bench.attr(id).unwrap().unwrap().attr;
        assert_eq!(before.size_bytes, 5);
        change(&bench, id);
        assert_eq!(id_of(&bench, "a", b"one"), id, "{what}: it is the same node");
        assert!(!path.exists(), "{what}: the legacy file is retired");
        let after = bench.attr(id).unwrap().unwrap().attr;
        assert_eq!(after.mode & 0o777, if what == "mode" { 0o600 } else { 0o640 }, "{what}");
        if expected == b"first" {
            assert_eq!((after.mtime, after.uid), (before.mtime, before.uid), "{what}");
        }
        let now = status(&bench);
        assert_eq!((now.records, now.migrated, now.shadows), (2, 1, 0), "{what}");
        for _ in 0..2 {
            assert_eq!(get_of(&bench, "a", b"one").unwrap(), expected, "{what}");
            sound_with(&bench, &files(dir.path()));
            bench.reopen();
        }
        assert_eq!(bench.is_pinned(id_of(&bench, "a", b"one")), what == "pin");
    }
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), uid: None, gid: None, atime: SetTime::Keep, mtime: SetTime::Keep }
}

#[test]
fn renames_move_records_and_retire_both_names() {
    for how in [RenameHow::Replace, RenameHow::NoReplace, RenameHow::Exchange] {
        let dir = written();
        dir.record(Layout::Legacy, b"a\0three", b"third");
        let mut bench = Bench::new(attaching(dir.path(), &[]));
        let at = bench.tenant_node(&tenant("a")).unwrap();
        let target: &[u8] = if how == RenameHow::NoReplace { b"new" } else { b"three" };
        bench.rename((at, b"one"), (at, target), how).unwrap();
        for _ in 0..2 {
            assert_eq!(get_of(&bench, "a", target).unwrap(), b"first");
            let old = get_of(&bench, "a", b"one");
            assert_eq!(old.is_some(), how == RenameHow::Exchange, "{how:?}");
            if how == RenameHow::NoReplace {
                assert_eq!(get_of(&bench, "a", b"three").unwrap(), b"third");
            }
            sound_with(&bench, &files(dir.path()));
            bench.reopen();
        }
    }
}

#[test]
fn unlinking_takes_every_copy() {
    let dir = written();
    // Both layouts, and the spelling without a tenant.
    for (layout, k) in [
        (Layout::Canonical, &b"default\0k"[..]),
        (Layout::Legacy, b"default\0k"),
        (Layout::Canonical, b"k"),
        (Layout::Legacy, b"k"),
    ] {
        dir.record(layout, k, b"value of k");
    }
    let mut bench = Bench::new(attaching(dir.path(), &[]));
    assert_eq!(bench.usage(Some(&tenant("default"))).1, 1, "counted once");
    bench.unlink(default_dir(&bench), b"k").unwrap();
    assert_eq!(files(dir.path()).len(), 3);
    sound_with(&bench, &files(dir.path()));
    bench.reopen();
    assert_eq!(get(&bench, b"k"), None);
}

/// Canonical and legacy records of one key are one, whatever order they are met in, and the canonical one counts.
#[test]
fn duplicates_count_once_in_either_order() {
    // The two levels of one precede those of the other, and the reverse.
    for (n, storage) in [&b"default\0x"[..], b"default\0y", b"default\0z1", b"q\0x"].into_iter().enumerate() {
        for canonical_first in [true, false] {
            let dir = Written::new();
            let mut layouts = [(Layout::Canonical, &b"new"[..]), (Layout::Legacy, b"old")];
            if !canonical_first {
                layouts.reverse();
            }
            for (layout, value) in layouts {
                dir.record(layout, storage, value);
            }
            let bench = Bench::new(attaching(dir.path(), &[]));
            let (name, k) = if n == 3 { ("q", &b"x"[..]) } else { ("default", &storage[8..]) };
            assert_eq!(get_of(&bench, name, k).unwrap(), b"new");
            assert_eq!((bench.usage(None).1, status(&bench).records, status(&bench).shadows), (1, 1, 0));
            assert_eq!(files(dir.path()).len(), 1, "the legacy copy was retired");
            sound_with(&bench, &files(dir.path()));
        }
    }
}

#[test]
fn an_older_spelling_stays_behind_its_key_and_is_counted() {
    let dir = Written::new();
    dir.record(Layout::Legacy, b"default\0k", b"new");
    dir.record(Layout::Legacy, b"k", &[1; 9000]);
    let mut bench = Bench::new(attaching(dir.path(), &[]));
    let now = status(&bench);
    assert_eq!((now.records, now.shadows, bench.usage(None).1), (1, 1, 1));
    sound_with(&bench, &files(dir.path()));
    assert_eq!(get(&bench, b"k").unwrap(), b"new");
    put(&bench, b"k", b"newer").unwrap();
    assert!(files(dir.path()).is_empty());
    assert_eq!(status(&bench).shadows, 0);
    sound_with(&bench, &[]);
    bench.reopen();
    assert_eq!(get(&bench, b"k").unwrap(), b"newer");
}

/// A record of the store counts before any file of the directory, from the start.
#[test]
fn a_start_retires_what_has_a_record() {
    let dir = written();
    let mut bench = Bench::new(StoreSettings::default());
    let a = bench.make_tenant(b"a", 0o755, 0, 0).unwrap();
    put_in(&bench, a, b"one", b"newer").unwrap();
    bench.make_symlink(a, b"link", b"one", OWNER).unwrap();
    dir.record(Layout::Legacy, b"a\0link", b"older than the link");
    bench.settings = attaching(dir.path(), &[]);
    bench.close_and_reopen();
    assert_eq!(get_of(&bench, "a", b"one").unwrap(), b"newer");
    assert_eq!(files(dir.path()).len(), 2);
    sound_with(&bench, &files(dir.path()));
    assert_eq!(of(&bench, "a"), [&b"link"[..], b"one", b"sub", b"sub/two"]);
}

#[test]
fn odd_entries_are_left_alone_and_counted() {
    let dir = written();
    dir.put(b"a/b/default_x", b"no record");
    dir.put(b"a/b/c/d", b"deeper than any");
    dir.put(b".staging/half", b"half");
    dir.record(Layout::Legacy, b"team:1\0k", b"of a tenant with an odd name");
    fs::write(dir.at(b"stray"), b"").unwrap();
    symlink("/etc/passwd", dir.at(b"a/b/default_link")).unwrap();
    // A record at the path of another key.
    dir.put(&Layout::Legacy.path(&storage_key(b"a\0other")).unwrap(), &record(b"a\0another", b"v"));
    let before = files(dir.path());
    let bench = Bench::new(attaching(dir.path(), &[]));
    assert_eq!((status(&bench).records, status(&bench).rejected), (3, 7));
    assert_eq!(files(dir.path()), before);
    assert_eq!(get_of(&bench, "a", b"other"), None);
    assert_eq!(get_of(&bench, "a", b"another"), None);
    let refused = bench.prove_ownership(&Scope::Tenant(tenant("a"))).unwrap_err();
    assert_eq!(refused.kind(), Kind::UnprovenOwnership);
    assert!(refused.to_string().contains(FSDIR), "{refused}");
    assert_eq!(files(dir.path()), before);
}

#[test]
fn a_name_that_is_no_tenant_is_mapped_or_left_alone() {
    let dir = written();
    dir.record(Layout::Legacy, b"team:1\0k", b"mapped");
    let mut bench = Bench::new(attaching(dir.path(), &[]));
    assert_eq!((status(&bench).records, status(&bench).rejected), (3, 1));
    let refused = bench.prove_ownership(&Scope::Tenant(tenant("a"))).unwrap_err();
    assert_eq!(refused.kind(), Kind::UnprovenOwnership);
    bench.settings = attaching(dir.path(), &["team:1=team-1"]);
    bench.reopen();
    assert_eq!(get_of(&bench, "team-1", b"k").unwrap(), b"mapped");
    assert_eq!(status(&bench).rejected, 0);
    bench.prove_ownership(&Scope::Tenant(tenant("a"))).unwrap();
    // The copy is the mapped tenant's, and so is its retirement.
    bench.migrate(id_of(&bench, "team-1", b"k")).unwrap();
    assert_eq!(files(dir.path()).len(), 3);
    sound_with(&bench, &files(dir.path()));
}

/// A removal from its first step to the opening of the scope.
#[track_caller]
fn remove(store: &Arc<Store>, removal: &Pending) {
    store.prove_ownership(&removal.scope).unwrap();
    store.remove(removal).unwrap();
    store.open_scope(&removal.scope, removal.generation).unwrap();
}

#[test]
fn a_tenants_removal_takes_its_legacy_files_and_no_others() {
    for mode in [Mode::Physical, Mode::Logical] {
        let dir = fixtures();
        let at = dir.path().join("mooncake-real/two-tenants");
        let mut bench = Bench::new(attaching(&at, &[]));
        assert_eq!(get_of(&bench, "tenantA", b"shared/key").unwrap(), b"from-A");
        let a_node = bench.tenant_node(&tenant("tenantA")).unwrap();
        put_in(&bench, a_node, b"mine", b"record").unwrap();
        let b = status_of(&bench, "tenantB");
        remove(&bench, &Pending { mode, ..of_tenant("tenantA", 1) });
        for generation in 1..3 {
            assert_eq!(of(&bench, "tenantA"), [b""; 0]);
            assert_eq!(status_of(&bench, "tenantA"), (generation.min(1), "ready", 0, 0));
            assert_eq!(status_of(&bench, "tenantB"), b);
            assert_eq!(get_of(&bench, "tenantB", b"shared/key").unwrap(), b"from-B");
            assert_eq!(get_of(&bench, "tenantB", b"only-b").unwrap(), b"B-data");
            assert_eq!(files(&at).len(), 2);
            assert_eq!(bench.check(), [""; 0]);
            bench.collect_trash().unwrap();
            sound_with(&bench, &files(&at));
            bench.reopen();
        }
        // A write after it is a record, and stays.
        let a_node = bench.tenant_node(&tenant("tenantA")).unwrap();
        put_in(&bench, a_node, b"only-a", b"again").unwrap();
        bench.reopen();
        assert_eq!(get_of(&bench, "tenantA", b"only-a").unwrap(), b"again");
    }
}

#[test]
fn a_global_removal_takes_every_tenants_legacy_files_and_leaves_the_rest() {
    let dir = written();
    dir.put(b"a/b/default_x", b"no record");
    dir.record(Layout::Legacy, b"team:1\0k", b"nobody's here");
    let mut bench = Bench::new(attaching(dir.path(), &[]));
    remove(&bench, &global(1));
    assert_eq!(files(dir.path()).len(), 2);
    assert_eq!((bench.usage(None).0, bench.usage(None).1), (0, 0));
    bench.reopen();
    assert_eq!((of(&bench, "a"), of(&bench, "b")), (vec![], vec![]));
    sound_with(&bench, &[]);
}

/// Files that a pending removal has not deleted yet get no name at the next start, and it finds them.
#[test]
fn a_pending_removal_is_not_recovered_and_takes_the_files_afterwards() {
    let dir = written();
    let mut bench = Bench::new(attaching(dir.path(), &[]));
    let bytes = status_of(&bench, "a").3;
    let removal = of_tenant("a", 1);
    bench.drop_store();
    let store = open_pending(&bench.root(), &bench.settings, std::slice::from_ref(&removal)).unwrap();
    assert_eq!(of(&store, "a"), [b""; 0]);
    assert_eq!((status_of(&store, "a").1, status_of(&store, "a").2), ("removing", 2));
    assert_eq!(status_of(&store, "a").3, bytes);
    sound_with(&store, &files(dir.path()));
    store.remove(&removal).unwrap();
    store.open_scope(&removal.scope, removal.generation).unwrap();
    assert_eq!(files(dir.path()).len(), 1);
    assert_eq!(get_of(&store, "b", b"one").unwrap(), b"of b");
    sound_with(&store, &files(dir.path()));
}

/// While a removal is pending, it is about the directory that was attached when it was asked for.
#[test]
fn a_pending_removal_holds_the_directory_that_it_is_about() {
    let (dir, other) = (written(), written());
    let mut bench = Bench::new(attaching(dir.path(), &[]));
    let removal = of_tenant("a", 1);
    bench.drop_store();
    let open_as = |root: &Path, attach: Option<&Path>, map: &[&str]| {
        let attached = attach.map(|dir| attaching(dir, map));
        open_pending(root, &attached.unwrap_or_default(), std::slice::from_ref(&removal))
    };
    let open = |root: &Path, attach: Option<&Path>| open_as(root, attach, &[]);
    // Under other names the files would be others'.
    for (wrong, map) in [(None, &[][..]), (Some(other.path()), &[]), (Some(dir.path()), &["a=b", "c=b"])] {
        let refused = open_as(&bench.root(), wrong, map).unwrap_err();
        assert_eq!(refused.kind(), Kind::Busy);
        assert!(refused.to_string().contains(&dir.path().display().to_string()), "{refused}");
    }
    assert_eq!(files(other.path()).len(), 3);
    drop(open(&bench.root(), Some(dir.path())).unwrap());
    // And none that was not attached then is attached meanwhile.
    let bare = bench.dir.path().join("bare");
    drop(open_store(&bare, &StoreSettings::default()).unwrap());
    let refused = open(&bare, Some(other.path())).unwrap_err();
    assert!(refused.to_string().contains("mount without it"), "{refused}");
    assert_eq!(files(other.path()).len(), 3);
}

#[test]
fn one_daemon_has_the_directory_and_nothing_is_nested() {
    let dir = written();
    let bench = Bench::new(attaching(dir.path(), &[]));
    let second = tempfile::tempdir().unwrap();
    let refused = open_store(&second.path().join("store"), &bench.settings).unwrap_err();
    assert_eq!(refused.kind(), Kind::Locked);
    assert!(refused.to_string().contains("another daemon"), "{refused}");
    let inside = dir.path().join(FSDIR).join("store");
    let refused = open_store(&inside, &attaching(dir.path(), &[])).unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid, "{refused}");
    let root = second.path().join("store");
    fs::create_dir_all(root.join("mooncake").join(FSDIR)).unwrap();
    let refused = open_store(&root, &attaching(&root.join("mooncake"), &[])).unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid, "{refused}");
    let missing = open_store(&second.path().join("other"), &attaching(second.path(), &[])).unwrap_err();
    assert_eq!(missing.kind(), Kind::NotFound, "{missing}");
}

/// The configured fsdir is opened, not what has a name like it.
#[test]
fn exactly_the_configured_fsdir_is_attached() {
    let dir = tempfile::tempdir().unwrap();
    for (fsdir, value) in [("one", b"1"), ("one2", b"2")] {
        let path = dir.path().join(fsdir).join(OsStr::from_bytes(&legacy::path(b"default\0k")));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, record(b"default\0k", value)).unwrap();
    }
    for (fsdir, value) in [("one", b"1"), ("one2", b"2")] {
        let attach = AttachLegacy { dir: dir.path().into(), fsdir: fsdir.into(), tenants: Vec::new() };
        let bench = Bench::new(StoreSettings { attach: Some(attach), ..StoreSettings::default() });
        assert_eq!(get(&bench, b"k").unwrap(), value);
        assert_eq!(status(&bench).records, 1);
    }
}

fn quota(bytes: u64) -> Quota {
    Quota { size_bytes: Some(bytes), max_keys: None, high_percent: 100, low_percent: 100 }
}

/// Both copies count while both are there; without room for that nothing is touched.
#[test]
fn a_tight_quota_rolls_a_migration_back() {
    let dir = Written::new();
    dir.record(Layout::Legacy, b"default\0big", &[1; 40_000]);
    let before = files(dir.path());
    let settings = StoreSettings { quota: quota(64 << 10), ..attaching(dir.path(), &[]) };
    let bench = Bench::new(settings);
    let id = id_of(&bench, "default", b"big");
    assert_eq!(bench.begin_edit(id).unwrap_err().kind(), Kind::NoSpace);
    assert_eq!(bench.set_attr(id, &mode(0o600)).unwrap_err().kind(), Kind::NoSpace);
    assert_eq!(put(&bench, b"big", &[2; 40_000]).unwrap_err().kind(), Kind::NoSpace);
    assert_eq!(files(dir.path()), before);
    assert_eq!(get(&bench, b"big").unwrap(), [1; 40_000]);
    sound_with(&bench, &before);
    bench.set_quota_bytes(256 << 10).unwrap();
    bench.truncate(id, 5).unwrap();
    assert_eq!(get(&bench, b"big").unwrap(), [1; 5]);
    sound_with(&bench, &[]);
}

/// Legacy values are evicted like others, in their order, and a migration keeps a key's place in it.
#[test]
fn eviction_takes_legacy_values_in_order() {
    for migrated in [false, true] {
        let dir = Written::new();
        for n in 0..4 {
            dir.record(Layout::Legacy, format!("default\0k{n}").as_bytes(), &[n; 12_000]);
        }
        let settings =
            StoreSettings { quota: quota(1 << 20), policy: PolicyName::Fifo, ..attaching(dir.path(), &[]) };
        let bench = Bench::new(settings);
        let order: Vec<Vec<u8>> = {
            let index = bench.index.lock();
            index.order.all().iter().map(|(s, _)| index.at(*s).name.to_vec()).collect()
        };
        if migrated {
            for name in &order {
                bench.migrate(id_of(&bench, "default", name)).unwrap();
            }
            assert!(files(dir.path()).is_empty());
        }
        let (used, _, _) = bench.usage(None);
        bench.evict_down_to(used - 1, None, crate::store::room::Reason::Command);
        assert_eq!(get(&bench, &order[0]), None, "first in, first out");
        assert!(order[1..].iter().all(|name| get(&bench, name).is_some()));
        sound_with(&bench, &files(dir.path()));
        let left = files(dir.path()).len();
        assert_eq!(left, if migrated { 0 } else { 3 });
    }
}

#[test]
fn nothing_of_a_running_transaction_is_evicted() {
    let dir = written();
    let bench = Bench::new(attaching(dir.path(), &[]));
    let id = id_of(&bench, "a", b"one");
    let running = bench.transaction(Some(id));
    bench.evict_to_percent(1);
    bench.evict_down_to(0, None, crate::store::room::Reason::Command);
    assert_eq!(get_of(&bench, "a", b"one").unwrap(), b"first");
    assert_eq!(bench.usage(None).1, 1);
    drop(running);
    bench.evict_down_to(0, None, crate::store::room::Reason::Command);
    assert_eq!(bench.usage(None).1, 0);
    assert!(files(dir.path()).is_empty());
}

#[test]
fn a_file_that_vanishes_or_changes_is_a_miss() {
    let dir = written();
    let bench = Bench::new(attaching(dir.path(), &[]));
    let one = dir.at(&Layout::Legacy.path(&storage_key(b"a\0one")).unwrap());
    fs::write(&one, record(b"a\0another", b"v")).unwrap();
    assert_eq!(get_of(&bench, "a", b"one"), None);
    fs::remove_file(dir.at(&Layout::Legacy.path(&storage_key(b"a\0sub/two")).unwrap())).unwrap();
    assert_eq!(get_of(&bench, "a", b"sub/two"), None);
    assert!(one.exists(), "what is no record of the key is left alone");
    assert_eq!(bench.check(), [""; 0]);
    assert_eq!(status(&bench).records, 1);
}

/// A stop leaves no checkpoint, and without the directory nothing of it is served.
#[test]
fn no_checkpoint_tells_of_an_attached_directory() {
    let dir = written();
    let mut bench = Bench::new(attaching(dir.path(), &[]));
    bench.migrate(id_of(&bench, "a", b"one")).unwrap();
    bench.close().unwrap();
    assert!(!bench.root().join("checkpoint").exists());
    bench.settings = StoreSettings::default();
    bench.reopen();
    assert_eq!(of(&bench, "a"), [b"one"]);
    bench.sound();
    bench.settings = attaching(dir.path(), &[]);
    bench.close_and_reopen();
    assert_eq!(of(&bench, "a"), [&b"one"[..], b"sub", b"sub/two"]);
    sound_with(&bench, &files(dir.path()));
}
