//! Checksums of contents: when a record has one, that it is the right one, and what a wrong one does.

use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use xxhash_rust::xxh3::xxh3_64;

use super::*;
use crate::config::Checksum;
use crate::format::record::{self, Record};
use crate::os;
use crate::store::content::{Summed, read_sum};

fn with_checksums() -> Bench {
    Bench::new(StoreSettings { checksum: Checksum::On, ..StoreSettings::default() })
}

fn record_at(path: &Path) -> Record {
    let file = std::fs::File::open(path).unwrap();
    Record::decode(&os::xattr_get(&file, record::XATTR, 4096).unwrap().unwrap()).unwrap()
}

/// The checksum in the record of a value of tenant `default`.
fn sum_of(bench: &Bench, key: &[u8]) -> Option<u64> {
    record_at(&bench.record(key)).checksum
}

/// Changes a byte of a record behind the store, leaving its length.
fn flip(path: &Path) {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 1).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 1).unwrap();
}

fn quarantined(bench: &Bench) -> u64 {
    bench.counters.quarantined.load(Ordering::Relaxed)
}

#[test]
fn a_value_is_published_with_its_checksum() {
    let bench = with_checksums();
    put(&bench, b"k", b"some value").unwrap();
    put(&bench, b"empty", b"").unwrap();
    assert_eq!(sum_of(&bench, b"k"), Some(xxh3_64(b"some value")));
    assert_eq!(sum_of(&bench, b"empty"), Some(xxh3_64(b"")));
    let dir = default_dir(&bench);
    bench.make_symlink(dir, b"link", b"to/there", OWNER).unwrap();
    let link = record_path(&bench.root(), "default", b"link", RecordKind::Symlink);
    assert_eq!(record_at(&link).checksum, Some(xxh3_64(b"to/there")));
    bench.make_dir(dir, b"d", OWNER).unwrap();
    let dir = record_path(&bench.root(), "default", b"d", RecordKind::Directory);
    assert_eq!(record_at(&dir).checksum, None);
    bench.sound();
}

#[test]
fn without_the_option_there_is_none() {
    let bench = Bench::new(StoreSettings::default());
    put(&bench, b"k", b"some value").unwrap();
    assert_eq!(sum_of(&bench, b"k"), None);
}

#[test]
fn what_was_said_to_have_passed_is_believed_only_when_it_is_all() {
    let bench = with_checksums();
    // All of it, in order.
    let mut staged = stage(&bench, default_dir(&bench), b"a", b"abcdef").unwrap();
    let passing = staged.passing().unwrap();
    passing.passed(0, b"abc");
    passing.passed(3, b"def");
    bench.publish(&mut staged, false).unwrap();
    assert_eq!(sum_of(&bench, b"a"), Some(xxh3_64(b"abcdef")));
    // A part: the rest was written by somebody else.
    let mut staged = stage(&bench, default_dir(&bench), b"b", b"abcdef").unwrap();
    staged.passing().unwrap().passed(0, b"abc");
    bench.publish(&mut staged, false).unwrap();
    assert_eq!(sum_of(&bench, b"b"), Some(xxh3_64(b"abcdef")));
    // Overwritten.
    let mut staged = stage(&bench, default_dir(&bench), b"c", b"abcdef").unwrap();
    for part in [&b"xxx"[..], b"abc"] {
        staged.passing().unwrap().passed(0, part);
    }
    staged.passing().unwrap().passed(3, b"def");
    bench.publish(&mut staged, false).unwrap();
    assert_eq!(sum_of(&bench, b"c"), Some(xxh3_64(b"abcdef")));
}

#[test]
fn a_value_whose_writer_goes_on_has_one_at_the_end() {
    let bench = with_checksums();
    let mut staged = stage(&bench, default_dir(&bench), b"k", b"first").unwrap();
    staged.passing().unwrap().passed(0, b"first");
    bench.publish(&mut staged, true).unwrap();
    assert_eq!((sum_of(&bench, b"k"), record_at(&bench.record(b"k")).editing), (None, true));
    (&**staged.file()).write_all(b" and more").unwrap();
    staged.passing().unwrap().passed(5, b" and more");
    bench.end_writing(&staged).unwrap();
    assert_eq!(sum_of(&bench, b"k"), Some(xxh3_64(b"first and more")));
    assert!(!record_at(&bench.record(b"k")).editing);
}

/// What passed at the creation says nothing once somebody else has edited the record.
#[test]
fn an_edit_between_publication_and_last_close_is_read_back() {
    let bench = with_checksums();
    let mut staged = stage(&bench, default_dir(&bench), b"k", b"first").unwrap();
    staged.passing().unwrap().passed(0, b"first");
    bench.publish(&mut staged, true).unwrap();
    let (other, _) = bench.begin_edit(staged.node()).unwrap().unwrap();
    other.write_all_at(b"FIRST", 0).unwrap();
    bench.end_edit(staged.node(), &other).unwrap();
    bench.end_writing(&staged).unwrap();
    assert_eq!(sum_of(&bench, b"k"), Some(xxh3_64(b"FIRST")));
}

#[test]
fn an_edit_takes_the_checksum_away_and_its_end_makes_a_new_one() {
    let mut bench = with_checksums();
    let id = put(&bench, b"k", b"0123456789").unwrap();
    let (file, _) = bench.begin_edit(id).unwrap().unwrap();
    assert_eq!(sum_of(&bench, b"k"), None);
    file.write_all_at(b"abc", 3).unwrap();
    let (second, _) = bench.begin_edit(id).unwrap().unwrap();
    bench.end_edit(id, &file).unwrap();
    assert_eq!(sum_of(&bench, b"k"), None);
    bench.end_edit(id, &second).unwrap();
    assert_eq!(sum_of(&bench, b"k"), Some(xxh3_64(b"012abc6789")));
    bench.truncate(id, 4).unwrap();
    assert_eq!(sum_of(&bench, b"k"), Some(xxh3_64(b"012a")));
    bench.truncate(id, 6).unwrap();
    assert_eq!(sum_of(&bench, b"k"), Some(xxh3_64(b"012a\0\0")));
    // Without the option what is edited has none any more, and what is not keeps its own.
    put(&bench, b"kept", b"kept").unwrap();
    bench.settings.checksum = Checksum::Off;
    bench.close_and_reopen();
    let id = bench.find_key(&Tenant::default_tenant(), &key(b"k")).unwrap().unwrap();
    bench.truncate(id, 2).unwrap();
    assert_eq!(sum_of(&bench, b"k"), None);
    assert_eq!(sum_of(&bench, b"kept"), Some(xxh3_64(b"kept")));
}

#[test]
fn a_checksum_that_was_made_before_another_edit_is_not_used() {
    let bench = with_checksums();
    let id = put(&bench, b"k", b"old").unwrap();
    let (file, _) = bench.begin_edit(id).unwrap().unwrap();
    let edits = bench.edits.of(id);
    let stale = Summed { value: read_sum(&file).unwrap().0, size_bytes: 3, edits };
    let (other, _) = bench.begin_edit(id).unwrap().unwrap();
    other.write_all_at(b"new", 0).unwrap();
    bench.end_edit(id, &other).unwrap();
    bench.end_edit_with(id, &file, Some(stale)).unwrap();
    assert_eq!(sum_of(&bench, b"k"), Some(xxh3_64(b"new")));
}

#[test]
fn a_value_that_may_change_unseen_has_none() {
    let bench = with_checksums();
    let id = put(&bench, b"k", b"mapped").unwrap();
    let (file, _) = bench.begin_edit(id).unwrap().unwrap();
    bench.note_unseen(id);
    bench.end_edit(id, &file).unwrap();
    assert_eq!(sum_of(&bench, b"k"), None);
    bench.truncate(id, 3).unwrap();
    assert_eq!(sum_of(&bench, b"k"), None);
    // What replaces it is another file.
    put(&bench, b"k", b"anew").unwrap();
    assert_eq!(sum_of(&bench, b"k"), Some(xxh3_64(b"anew")));
}

#[test]
fn a_rename_keeps_it() {
    let mut bench = with_checksums();
    put(&bench, b".tmp", b"value").unwrap();
    let dir = default_dir(&bench);
    bench.rename((dir, b".tmp"), (dir, b"k"), os::RenameHow::Replace).unwrap();
    assert_eq!(sum_of(&bench, b"k"), Some(xxh3_64(b"value")));
    bench.reopen();
    assert_eq!(get(&bench, b"k").unwrap(), b"value");
}

#[test]
fn the_first_open_after_an_unclean_stop_verifies() {
    let mut bench = with_checksums();
    for key in [&b"good"[..], b"bad", b"none"] {
        put(&bench, key, b"0123456789").unwrap();
    }
    let none = bench.find_key(&Tenant::default_tenant(), &key(b"none")).unwrap().unwrap();
    bench.note_unseen(none);
    bench.truncate(none, 9).unwrap();
    let bad = bench.record(b"bad");
    bench.drop_store();
    flip(&bad);
    bench.open();
    let good = bench.find_key(&Tenant::default_tenant(), &key(b"good")).unwrap().unwrap();
    assert!(bench.verifies_first(good));
    assert_eq!(get(&bench, b"bad"), None);
    assert_eq!(quarantined(&bench), 1);
    assert_eq!(names_in(&bench.root().join("data/.quarantine")).len(), 1);
    assert_eq!(get(&bench, b"good").unwrap(), b"0123456789");
    assert!(!bench.verifies_first(good));
    assert_eq!(get(&bench, b"none").unwrap(), b"012345678");
    assert_eq!(names(&bench), ["good", "none"]);
    bench.sound();
    // The key is free, and what is written now is known to be good.
    let id = put(&bench, b"bad", b"anew").unwrap();
    assert!(!bench.verifies_first(id));
}

#[test]
fn an_edit_does_not_begin_on_what_fails() {
    let mut bench = with_checksums();
    put(&bench, b"k", b"0123456789").unwrap();
    bench.drop_store();
    flip(&bench.record(b"k"));
    bench.open();
    let id = bench.find_key(&Tenant::default_tenant(), &key(b"k")).unwrap().unwrap();
    assert!(bench.begin_edit(id).unwrap().is_none());
    assert_eq!((get(&bench, b"k"), quarantined(&bench)), (None, 1));
}

/// A stop is clean when nothing is left to verify; until then each start verifies again.
#[test]
fn what_was_not_verified_is_remembered_over_clean_stops() {
    let mut bench = with_checksums();
    put(&bench, b"k", b"0123456789").unwrap();
    let id_of = |bench: &Bench| bench.find_key(&Tenant::default_tenant(), &key(b"k")).unwrap().unwrap();
    bench.close_and_reopen();
    assert!(!bench.verifies_first(id_of(&bench)), "after a clean stop");
    bench.reopen();
    bench.close_and_reopen();
    assert!(bench.verifies_first(id_of(&bench)), "nobody had looked at it");
    get(&bench, b"k").unwrap();
    bench.close_and_reopen();
    assert!(!bench.verifies_first(id_of(&bench)));
}

#[test]
fn an_edit_that_a_crash_cuts_leaves_none() {
    let mut bench = with_checksums();
    let id = put(&bench, b"k", b"0123456789").unwrap();
    let (file, _) = bench.begin_edit(id).unwrap().unwrap();
    file.write_all_at(b"abc", 0).unwrap();
    bench.reopen();
    assert_eq!(get(&bench, b"k").unwrap(), b"abc3456789");
    assert_eq!(sum_of(&bench, b"k"), None);
}
