//! What a start makes of what it finds.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::sync::atomic::Ordering;

use super::*;
use crate::format::record::{Record, XATTR};
use crate::os::{self, XattrMode};

fn fifo(path: &Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
}

/// A store that holds `good`, and `bad` to be spoiled.
fn spoiled(spoil: impl FnOnce(&Bench, &Path)) -> Bench {
    let mut bench = Bench::new(StoreSettings::default());
    put(&bench, b"good", b"good").unwrap();
    put(&bench, b"bad", b"bad").unwrap();
    bench.drop_store();
    spoil(&bench, &bench.record(b"bad"));
    bench.open();
    bench
}

/// Only `good` is served; how many records were quarantined, which a second start does not count again.
#[track_caller]
fn only_good(mut bench: Bench, quarantined: u64) {
    for expected in [quarantined, 0] {
        assert_eq!(names(&bench), ["good"]);
        assert_eq!(get(&bench, b"good").unwrap(), b"good");
        assert_eq!(get(&bench, b"bad"), None);
        assert_eq!(bench.counters.quarantined.load(Ordering::Relaxed), expected);
        assert_eq!(names_in(&bench.root().join("data/.quarantine")).len() as u64, quarantined);
        assert_eq!(bench.check(), [""; 0]);
        bench.reopen();
    }
    // The key can be written again.
    put(&bench, b"bad", b"again").unwrap();
    assert_eq!(get(&bench, b"bad").unwrap(), b"again");
}

fn rewrite(path: &Path, change: impl FnOnce(&mut Record)) {
    let file = File::options().write(true).open(path).unwrap();
    let mut record = Record::decode(&os::xattr_get(&file, XATTR, 4096).unwrap().unwrap()).unwrap();
    change(&mut record);
    os::xattr_set(&file, XATTR, &record.encode().unwrap(), XattrMode::Set).unwrap();
}

#[test]
fn staging_is_emptied() {
    let bench = spoiled(|bench, bad| {
        fs::write(bench.root().join("data/.staging/left.1"), "half a value").unwrap();
        fs::remove_file(bad).unwrap();
    });
    bench.sound();
    only_good(bench, 0);
}

#[test]
fn a_record_of_another_length_is_quarantined() {
    only_good(spoiled(|_, bad| fs::write(bad, "ba").unwrap()), 1);
}

#[test]
fn a_record_without_metadata_is_quarantined() {
    let strip = |_: &Bench, bad: &Path| assert!(os::xattr_remove(File::open(bad).unwrap(), XATTR).unwrap());
    only_good(spoiled(strip), 1);
}

#[test]
fn a_record_with_more_metadata_than_any_is_quarantined() {
    let swell = |_: &Bench, bad: &Path| {
        os::xattr_set(File::open(bad).unwrap(), XATTR, &[1; 4000], XattrMode::Set).unwrap();
    };
    only_good(spoiled(swell), 1);
}

#[test]
fn a_record_of_a_foreign_tenant_is_quarantined() {
    only_good(spoiled(|_, bad| rewrite(bad, |r| r.tenant = tenant("other"))), 1);
}

#[test]
fn a_record_of_another_key_is_quarantined() {
    only_good(spoiled(|_, bad| rewrite(bad, |r| r.key = key(b"good"))), 1);
}

/// Each byte of the metadata that says whose record it is.
#[test]
fn a_flipped_byte_of_the_identity_is_quarantined() {
    let packed = |path: &Path| os::xattr_get(File::open(path).unwrap(), XATTR, 4096).unwrap().unwrap();
    // Version, kind, length of the tenant, then length, tenant, NUL and key.
    let length = {
        let bench = Bench::new(StoreSettings::default());
        put(&bench, b"bad", b"bad").unwrap();
        packed(&bench.record(b"bad")).len()
    };
    for at in [0, 2, 3].into_iter().chain(20..length) {
        let bench = spoiled(|_, bad| {
            let mut bytes = packed(bad);
            bytes[at] ^= 0x20;
            os::xattr_set(File::open(bad).unwrap(), XATTR, &bytes, XattrMode::Set).unwrap();
        });
        only_good(bench, 1);
    }
}

#[test]
fn a_record_in_the_wrong_shard_is_a_stranger() {
    let bench = spoiled(|bench, bad| {
        let elsewhere = bench.record(b"good").parent().unwrap().join(bad.file_name().unwrap());
        fs::rename(bad, elsewhere).unwrap();
    });
    only_good(bench, 0);
}

#[test]
fn a_record_that_is_spoiled_while_the_store_is_open_is_a_miss() {
    type Spoil = fn(&Path);
    let spoils: [(Spoil, u64); 5] = [
        (|bad| fs::write(bad, "ba").unwrap(), 1),
        (|bad| fs::remove_file(bad).unwrap(), 0),
        (
            |bad| {
                fs::rename(bad, bad.with_extension("away"))
                    .and_then(|()| symlink("/etc/passwd", bad))
                    .unwrap()
            },
            0,
        ),
        (|bad| fs::remove_file(bad).map(|()| fifo(bad)).unwrap(), 0),
        (|bad| fs::remove_file(bad).and_then(|()| fs::create_dir(bad)).unwrap(), 0),
    ];
    for (n, (spoil, quarantined)) in spoils.into_iter().enumerate() {
        for look in [false, true] {
            let bench = Bench::new(StoreSettings::default());
            put(&bench, b"good", b"good").unwrap();
            let bad = put(&bench, b"bad", b"bad").unwrap();
            spoil(&bench.record(b"bad"));
            if look {
                // A bare look may be content with a file; it never fails.
                bench.attr(bad).unwrap();
            }
            assert_eq!(get(&bench, b"bad"), None, "case {n}");
            assert_eq!(get(&bench, b"good").unwrap(), b"good");
            assert_eq!(bench.counters.quarantined.load(Ordering::Relaxed), quarantined, "case {n}");
            assert_eq!(bench.check(), [""; 0]);
        }
    }
}

/// A stranger of every kind at every level: left, not followed, not served, never waited for.
#[test]
fn strangers_are_left_at_every_level() {
    let mut bench = Bench::new(StoreSettings::default());
    put(&bench, b"good", b"good").unwrap();
    bench.drop_store();
    let (root, outside) = (bench.root(), bench.dir.path().join("outside"));
    fs::create_dir_all(outside.join("ab/cd")).unwrap();
    fs::copy(bench.record(b"good"), outside.join("ab/cd/record")).unwrap();
    let mut planted = Vec::new();
    let shard = bench.record(b"good").parent().unwrap().to_owned();
    let levels = [
        root.clone(),
        root.join("data"),
        root.join("data/.staging"),
        root.join("data/.quarantine"),
        root.join("data/t"),
        root.join("data/t/default"),
        root.join("data/t/default/0"),
        shard.parent().unwrap().to_owned(),
        shard,
    ];
    for dir in &levels {
        // Names that a reader could take for its own: a tenant, an epoch, a level of a shard, a record.
        for name in ["tenant", "7", "ab", &"0".repeat(32)] {
            let path = dir.join(name);
            symlink(&outside, &path).unwrap();
            planted.push(path);
        }
        let pipe = dir.join("pipe");
        fifo(&pipe);
        planted.push(pipe);
        if !dir.ends_with(".staging") {
            let note = dir.join("note.txt");
            fs::write(&note, "mine").unwrap();
            planted.push(note);
        }
    }
    for _ in 0..2 {
        bench.open();
        assert_eq!(tree(&bench).len(), 1);
        assert_eq!(get(&bench, b"good").unwrap(), b"good");
        assert_eq!((bench.check(), bench.usage(None).1), (vec![], 1));
        assert_eq!(bench.counters.quarantined.load(Ordering::Relaxed), 0);
        assert_eq!(bench.remove_tenant(b"default").unwrap_err().kind(), Kind::NotPermitted);
        bench.drop_store();
        for path in &planted {
            assert!(path.symlink_metadata().is_ok(), "{} is gone", path.display());
        }
        assert_eq!(fs::read(outside.join("ab/cd/record")).unwrap(), b"good");
    }
}

#[test]
fn a_tenant_with_a_stranger_is_not_removed_and_still_takes_values() {
    let bench = Bench::new(StoreSettings::default());
    let node = bench.make_tenant(b"t", 0o755, 0, 0).unwrap();
    let note = bench.root().join("data/t/t/note.txt");
    fs::write(&note, "mine").unwrap();
    assert_eq!(bench.remove_tenant(b"t").unwrap_err().kind(), Kind::NotEmpty);
    let id = put_in(&bench, node, b"k", b"v").unwrap();
    assert_eq!(read(&bench, id).unwrap(), b"v");
    bench.unlink(node, b"k").unwrap();
    fs::remove_file(note).unwrap();
    bench.remove_tenant(b"t").unwrap();
    assert!(!bench.root().join("data/t/t").exists());
    bench.sound();
}

#[test]
fn a_value_that_was_being_edited_takes_its_length_from_the_file() {
    let mut bench = Bench::new(StoreSettings::default());
    let id = put(&bench, b"k", b"0123").unwrap();
    let (file, _) = bench.begin_edit(id).unwrap().unwrap();
    file.write_all_at(b"grown", 10_000).unwrap();
    bench.drop_store();
    for _ in 0..2 {
        bench.open();
        assert_eq!(get(&bench, b"k").unwrap().len(), 10_005);
        bench.sound();
        bench.drop_store();
    }
    // Settled by the first start: a change behind the store's back is found out again.
    file.set_len(5).unwrap();
    bench.open();
    assert_eq!(get(&bench, b"k"), None);
    assert_eq!(bench.counters.quarantined.load(Ordering::Relaxed), 1);
}
