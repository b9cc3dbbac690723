//! What a check finds, by path; what a repair leaves.

use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::*;
use crate::config::Checksum;
use crate::format::record::{self, Record};
use crate::ledger::{Ledger, LocalLedger};
use crate::os;
use crate::scope::{Mode, Scope};
use crate::store::fsck::{Finding, Options, Report, Summary, What, check};

#[derive(Default)]
struct Heard(Mutex<Vec<Finding>>);

impl Report for Heard {
    fn found(&self, finding: Finding) {
        self.0.lock().push(finding);
    }

    fn progress(&self, _: &str, _: u64) {}
}

const LOOK: Options = Options { repair: false, verify_data: false };
const REPAIR: Options = Options { repair: true, verify_data: false };

/// A store with values in two tenants, closed. Its lock is free.
fn store(checksum: Checksum) -> Bench {
    let mut bench = Bench::new(StoreSettings { checksum, ..StoreSettings::default() });
    bench.make_dir(ROOT, b"other", OWNER).unwrap();
    let other = bench.tenant_node(&tenant("other")).unwrap();
    put_in(&bench, other, b"k", b"other's").unwrap();
    let dir = default_dir(&bench);
    for name in [&b"a"[..], b"b", b"c"] {
        put(&bench, name, b"0123456789").unwrap();
    }
    bench.make_symlink(dir, b"link", b"to", OWNER).unwrap();
    bench.make_dir(dir, b"d", OWNER).unwrap();
    bench.rename((dir, b"c"), (dir, b"renamed"), os::RenameHow::Replace).unwrap();
    bench.unlink(dir, b"b").unwrap();
    bench.close().unwrap();
    bench.drop_store();
    bench
}

fn checked(bench: &Bench, options: Options) -> (Summary, Vec<Finding>) {
    let heard = Heard::default();
    let summary = check(&bench.root(), options, &heard).unwrap();
    let mut found = heard.0.into_inner();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    (summary, found)
}

#[track_caller]
fn is_clean(bench: &Bench) -> Summary {
    let (summary, found) = checked(bench, Options { repair: false, verify_data: true });
    assert_eq!(found, []);
    assert_eq!((summary.errors, summary.warnings), (0, 0));
    summary
}

fn shown(bench: &Bench, path: &Path) -> String {
    path.strip_prefix(bench.root()).unwrap().to_str().unwrap().to_owned()
}

/// Looks, repairs and looks again: the error is found, repaired and gone; and a mount is content.
#[track_caller]
fn found_and_repaired(bench: &mut Bench, what: What, path: &str, key: Option<&[u8]>) {
    let (summary, found) = checked(bench, Options { verify_data: true, ..LOOK });
    assert_eq!((summary.errors, summary.repaired, found.len()), (1, 0, 1), "{found:?}");
    let one = &found[0];
    assert_eq!((one.what, one.path.as_str()), (what, path), "{found:?}");
    assert_eq!(one.key.as_ref().map(|k| k.as_bytes()), key);
    let (summary, found) = checked(bench, Options { verify_data: true, ..REPAIR });
    assert_eq!((summary.errors, summary.left()), (1, 0), "{found:?}");
    assert!(found[0].repaired && found[0].path == path);
    let (summary, found) = checked(bench, Options { verify_data: true, ..REPAIR });
    assert_eq!(summary.errors, 0, "{found:?}");
    bench.open();
    bench.sound();
    assert_eq!(get(bench, b"renamed").unwrap(), b"0123456789");
    bench.close().unwrap();
    bench.drop_store();
}

fn xattr(path: &Path, change: impl FnOnce(&mut Record)) {
    let file = std::fs::File::open(path).unwrap();
    let packed = os::xattr_get(&file, record::XATTR, 4096).unwrap().unwrap();
    let mut record = Record::decode(&packed).unwrap();
    change(&mut record);
    os::xattr_set(&file, record::XATTR, &record.encode().unwrap(), os::XattrMode::Set).unwrap();
}

#[test]
fn a_store_after_real_use_is_clean_and_stays_as_it_is() {
    for checksum in [Checksum::Off, Checksum::On] {
        let bench = store(checksum);
        let ledger = std::fs::read(bench.root().join("ledger.redb")).unwrap();
        let summary = is_clean(&bench);
        let verified = if checksum == Checksum::On { 4 } else { 0 };
        assert_eq!((summary.records, summary.verified, summary.unverifiable), (5, verified, 4 - verified));
        assert_eq!(std::fs::read(bench.root().join("ledger.redb")).unwrap(), ledger);
    }
}

#[test]
fn records_that_fail_validation() {
    let mut bench = store(Checksum::Off);
    let a = bench.record(b"a");
    let path = shown(&bench, &a);
    std::fs::File::options().write(true).open(&a).unwrap().set_len(3).unwrap();
    found_and_repaired(&mut bench, What::Record, &path, Some(b"a"));
    let kept = names_in(&bench.root().join("data/.quarantine"));
    assert!(kept.len() == 1 && kept[0].starts_with("default."), "{kept:?}");
    // What was set aside is listed with its key, and is no error.
    let (summary, found) = checked(&bench, LOOK);
    assert_eq!((summary.errors, summary.warnings), (0, 1));
    assert_eq!(found[0].path, format!("data/.quarantine/{}", kept[0]));
    assert_eq!((found[0].what, found[0].key.as_ref().unwrap().as_bytes()), (What::Quarantined, &b"a"[..]));
}

#[test]
fn each_way_a_record_can_be_wrong() {
    type Spoil = fn(&Bench, &Path);
    let ways: [(Spoil, Option<&[u8]>); 6] = [
        (|_, p| assert!(os::xattr_remove(std::fs::File::open(p).unwrap(), record::XATTR).unwrap()), None),
        (
            |_, p| {
                let file = std::fs::File::open(p).unwrap();
                os::xattr_set(&file, record::XATTR, b"nonsense", os::XattrMode::Set).unwrap();
            },
            None,
        ),
        (|_, p| xattr(p, |r| r.tenant = tenant("other")), Some(b"a")),
        (|_, p| xattr(p, |r| r.epoch = Epoch(7)), Some(b"a")),
        (|_, p| xattr(p, |r| r.payload_bytes = 99), Some(b"a")),
        (|_, p| xattr(p, |r| r.key = key(b"swapped")), Some(b"swapped")),
    ];
    for (spoil, known) in ways {
        let mut bench = store(Checksum::Off);
        let a = bench.record(b"a");
        spoil(&bench, &a);
        let path = shown(&bench, &a);
        let (summary, found) = checked(&bench, LOOK);
        assert_eq!((summary.errors, found.len()), (1, 1), "{found:?}");
        assert_eq!((found[0].what, &found[0].path), (What::Record, &path));
        assert_eq!(found[0].key.as_ref().map(|k| k.as_bytes()), known);
        assert_eq!(checked(&bench, REPAIR).0.left(), 0);
        assert_eq!(checked(&bench, LOOK).0.errors, 0);
        bench.open();
        assert_eq!(get(&bench, b"a"), None);
    }
}

#[test]
fn a_content_that_does_not_have_its_checksum() {
    let mut bench = store(Checksum::On);
    let a = bench.record(b"a");
    std::fs::File::options().write(true).open(&a).unwrap().write_all_at(b"x", 4).unwrap();
    assert_eq!(checked(&bench, LOOK).0.errors, 0, "contents are not read unless asked");
    let path = shown(&bench, &a);
    found_and_repaired(&mut bench, What::Content, &path, Some(b"a"));
}

#[test]
fn leftovers_of_a_crash() {
    let mut bench = store(Checksum::On);
    std::fs::write(bench.root().join("data/.staging/0.1"), b"half").unwrap();
    found_and_repaired(&mut bench, What::Staging, "data/.staging/0.1", None);
    let a = bench.record(b"a");
    xattr(&a, |r| (r.editing, r.checksum, r.payload_bytes) = (true, None, 3));
    let path = shown(&bench, &a);
    found_and_repaired(&mut bench, What::Unsettled, &path, Some(b"a"));
    bench.open();
    assert_eq!(get(&bench, b"a").unwrap(), b"0123456789");
}

/// A logical removal leaves its trash; a record in it that is not the tenant's is kept.
#[test]
fn what_removals_left() {
    let mut bench = store(Checksum::Off);
    let root = bench.root();
    let taken = root.join("data/.trash/3/other@0.1");
    std::fs::create_dir_all(root.join("data/.trash/3")).unwrap();
    let from = root.join("data/t/other/0");
    let copied = std::process::Command::new("cp").args(["-a"]).arg(&from).arg(&taken).status().unwrap();
    assert!(copied.success());
    std::fs::write(taken.join("mine"), b"mine").unwrap();
    std::fs::write(root.join("data/.trash/mine"), b"mine").unwrap();
    let (summary, found) = checked(&bench, REPAIR);
    assert_eq!((summary.errors, summary.left(), summary.warnings), (1, 0, 1), "{found:?}");
    assert_eq!((found[0].what, found[0].path.as_str()), (What::Trash, "data/.trash/3/other@0.1"));
    assert_eq!(found[0].tenant, Some(tenant("other")));
    assert_eq!(names_in(&root.join("data/.trash")), ["mine"]);
    let kept = names_in(&root.join("data/.quarantine"));
    assert!(kept.len() == 1 && kept[0].starts_with("other.stranger."), "{kept:?}");
    bench.open();
    let other = bench.find_key(&tenant("other"), &key(b"k")).unwrap().unwrap();
    assert_eq!(read(&bench, other).unwrap(), b"other's");
}

#[test]
fn epochs_are_judged_by_the_ledger() {
    let bench = store(Checksum::Off);
    let root = bench.root();
    std::fs::create_dir(root.join("data/t/other/9")).unwrap();
    let (summary, found) = checked(&bench, REPAIR);
    assert_eq!((summary.errors, summary.repaired), (1, 0));
    assert_eq!((found[0].what, found[0].path.as_str()), (What::Ledger, "data/t/other/9"));
    // A removal that is pending takes epoch 0 itself.
    let scope = Scope::Tenant(tenant("other"));
    std::fs::remove_dir(root.join("data/t/other/9")).unwrap();
    let marked = {
        let held = StoreRoot::lock(&root).unwrap();
        let ledger = LocalLedger::new(Arc::clone(held.ledger()));
        held.storage().register_with(&ledger).unwrap();
        ledger.submit(&scope, Mode::Physical, None).unwrap().request.generation
    };
    let (summary, found) = checked(&bench, REPAIR);
    assert_eq!((summary.errors, summary.warnings), (0, 1), "{found:?}");
    assert_eq!((found[0].what, found[0].path.as_str()), (What::Pending, "data/t/other/0"));
    assert!(root.join("data/t/other/0").exists());
    // Once it is applied and acknowledged, what is below is garbage.
    {
        let held = StoreRoot::lock(&root).unwrap();
        held.storage().mark(&scope, marked).unwrap();
        LocalLedger::new(Arc::clone(held.ledger())).ack(held.storage_id(), &scope, marked).unwrap();
    }
    let (summary, found) = checked(&bench, LOOK);
    assert_eq!(summary.errors, 1, "{found:?}");
    assert_eq!((found[0].what, found[0].path.as_str()), (What::Epoch, "data/t/other/0"));
    assert_eq!(checked(&bench, REPAIR).0.left(), 0);
    assert!(!root.join("data/t/other/0").exists());
    assert_eq!(names_in(&root.join("data/.trash")), [""; 0]);
    assert_eq!(is_clean(&bench).records, 4);
}

#[test]
fn strangers_are_told_and_left() {
    let bench = store(Checksum::Off);
    let root = bench.root();
    let shard = bench.record(b"a").parent().unwrap().to_owned();
    let a = bench.record(b"a").file_name().unwrap().to_str().unwrap().to_owned();
    let planted = [
        (root.join("data/mine"), What::Stranger),
        (root.join("data/t/.mine"), What::Stranger),
        (root.join("data/t/default/mine"), What::Stranger),
        (root.join("data/t/default/0/mine"), What::Stranger),
        (shard.join("mine"), What::Stranger),
        (shard.parent().unwrap().join("mine"), What::Stranger),
    ];
    for (path, _) in &planted {
        std::fs::write(path, b"mine").unwrap();
    }
    let linked = shard.join("0".repeat(32));
    symlink("/etc/passwd", &linked).unwrap();
    let fifo = shard.join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let misplaced = root.join("data/t/default/0/zz");
    std::fs::create_dir(&misplaced).unwrap();
    let wrong_shard = root.join("data/t/other/0").join("00").join("00").join(&a);
    std::fs::create_dir_all(wrong_shard.parent().unwrap()).unwrap();
    std::fs::copy(bench.record(b"a"), &wrong_shard).unwrap();
    std::fs::create_dir(root.join("data/.staging/dir")).unwrap();
    let mut expected: Vec<(String, What)> = planted.iter().map(|(p, w)| (shown(&bench, p), *w)).collect();
    expected.extend([
        (shown(&bench, &linked), What::Symlink),
        (shown(&bench, &fifo), What::Special),
        (shown(&bench, &misplaced), What::Stranger),
        (shown(&bench, &wrong_shard), What::Stranger),
        ("data/.staging/dir".to_owned(), What::Stranger),
    ]);
    expected.sort();
    for options in [LOOK, REPAIR, LOOK] {
        let (summary, found) = checked(&bench, options);
        assert_eq!((summary.errors, summary.warnings), (0, expected.len() as u64));
        let found: Vec<_> = found.into_iter().map(|f| (f.path, f.what)).collect();
        assert_eq!(found, expected);
    }
    for (path, _) in &planted {
        assert_eq!(std::fs::read(path).unwrap(), b"mine");
    }
}

#[test]
fn a_key_that_is_a_value_and_a_directory() {
    let bench = store(Checksum::Off);
    let d = record_path(&bench.root(), "default", b"d", RecordKind::File);
    std::fs::create_dir_all(d.parent().unwrap()).unwrap();
    std::fs::copy(bench.record(b"a"), &d).unwrap();
    let packed = Record {
        kind: RecordKind::File,
        editing: false,
        pinned: false,
        epoch: Epoch(0),
        payload_bytes: 10,
        checksum: None,
        tenant: tenant("default"),
        key: key(b"d"),
        origin: None,
    };
    let file = std::fs::File::open(&d).unwrap();
    os::xattr_set(&file, record::XATTR, &packed.encode().unwrap(), os::XattrMode::Set).unwrap();
    let (summary, found) = checked(&bench, REPAIR);
    assert_eq!((summary.errors, summary.warnings), (0, 1), "{found:?}");
    assert_eq!((found[0].what, found[0].key.clone()), (What::Duplicate, Some(key(b"d"))));
}

#[test]
fn empty_shards_are_pruned_by_a_repair_only() {
    let bench = store(Checksum::Off);
    let shard = bench.root().join("data/t/default/0/00/00");
    std::fs::create_dir_all(&shard).unwrap();
    is_clean(&bench);
    assert!(shard.exists());
    assert_eq!(checked(&bench, REPAIR).0.errors, 0);
    assert!(!shard.parent().unwrap().exists());
    assert!(bench.record(b"a").exists());
}

#[test]
fn format_file_and_ledger_are_never_made_anew() {
    let bench = store(Checksum::Off);
    let root = bench.root();
    let (superblock, ledger) = (root.join("FENCEFS"), root.join("ledger.redb"));
    let (good, whole) = (std::fs::read(&superblock).unwrap(), std::fs::read(&ledger).unwrap());
    std::fs::write(&superblock, b"{").unwrap();
    let (summary, found) = checked(&bench, REPAIR);
    assert_eq!((summary.left(), found[0].what, found[0].path.as_str()), (1, What::Superblock, "FENCEFS"));
    assert_eq!(std::fs::read(&superblock).unwrap(), b"{");
    std::fs::write(&superblock, &good).unwrap();
    // Damaged, emptied, gone; meanwhile nothing else is repaired either.
    let left = root.join("data/.staging/0.1");
    std::fs::write(&left, b"half").unwrap();
    let mut torn = whole.clone();
    torn[4096..12288].fill(0x5a);
    for damage in [Some(torn), Some(Vec::new()), None] {
        match &damage {
            Some(bytes) => std::fs::write(&ledger, bytes).unwrap(),
            None => std::fs::remove_file(&ledger).unwrap(),
        }
        let (summary, found) = checked(&bench, REPAIR);
        assert_eq!((summary.errors, summary.repaired, summary.records), (2, 0, 5), "{found:?}");
        assert_eq!((found[1].what, found[1].path.as_str()), (What::Ledger, "ledger.redb"));
        assert_eq!(std::fs::read(&ledger).ok(), damage);
        assert!(left.exists());
    }
    std::fs::write(&ledger, whole).unwrap();
    assert_eq!(checked(&bench, REPAIR).0.left(), 0);
    is_clean(&bench);
}

#[test]
fn what_is_no_store_or_is_in_use_is_refused_untouched() {
    let bench = Bench::new(StoreSettings::default());
    let refused = |root: &Path| check(root, REPAIR, &Heard::default()).unwrap_err();
    let e = refused(&bench.root());
    assert_eq!(e.kind(), Kind::Locked, "{e}");
    assert!(e.to_string().contains(&std::process::id().to_string()), "{e}");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("mine"), b"mine").unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let e = refused(dir.path());
    assert!(e.to_string().contains("not a store"), "{e}");
    assert_eq!(names_in(dir.path()), ["mine"]);
    assert_eq!(refused(&dir.path().join("missing")).kind(), Kind::NotFound);
    assert!(!dir.path().join("missing").exists());
    assert_eq!(refused(&dir.path().join("mine")).kind(), Kind::NotDirectory);
}

#[test]
fn a_full_quarantine_leaves_records_where_they_are() {
    let bench = store(Checksum::Off);
    let quarantine = bench.root().join("data/.quarantine");
    for n in 0..crate::config::limits::QUARANTINED_RECORDS {
        std::fs::write(quarantine.join(format!("default.{n}")), b"").unwrap();
    }
    let a = bench.record(b"a");
    xattr(&a, |r| r.payload_bytes = 99);
    let (summary, found) = checked(&bench, REPAIR);
    assert_eq!((summary.errors, summary.repaired), (1, 0));
    let one = found.iter().find(|f| f.what == What::Record).unwrap();
    assert!(one.why.contains("full"), "{one:?}");
    assert!(a.exists());
}

#[test]
fn a_repair_sends_the_next_start_to_the_disk() {
    let mut bench = store(Checksum::Off);
    for (options, scanned) in [(LOOK, 0), (REPAIR, 5)] {
        checked(&bench, options);
        bench.open();
        assert_eq!(bench.counters.scanned.load(Ordering::Relaxed), scanned, "{options:?}");
        bench.sound();
        bench.close().unwrap();
        bench.drop_store();
    }
}
