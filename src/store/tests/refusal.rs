//! Stores that are not opened, and stay as they are.

use std::fs;
use std::process::Command;

use super::*;
use crate::error::Error;

fn refused(root: &Path) -> Error {
    open_store(root, &StoreSettings::default()).expect_err("the store must not open")
}

#[test]
fn a_second_open_names_the_holder() {
    let bench = Bench::new(StoreSettings::default());
    let e = refused(&bench.root());
    assert_eq!(e.kind(), Kind::Locked);
    assert!(e.to_string().contains(&format!("pid {}", std::process::id())), "{e}");
}

#[test]
fn a_newer_format_is_refused_and_untouched() {
    let mut bench = Bench::new(StoreSettings::default());
    bench.drop_store();
    let path = bench.root().join("FENCEFS");
    let newer = fs::read_to_string(&path).unwrap().replace("\"format\": 1", "\"format\": 2");
    fs::write(&path, &newer).unwrap();
    let e = (0..1_000_000).map(|_| refused(&bench.root())).find(|e| e.kind() != Kind::Locked).unwrap();
    assert_eq!(e.kind(), Kind::Unsupported);
    assert_eq!(fs::read_to_string(&path).unwrap(), newer);
}

#[test]
fn a_data_directory_without_a_format_file_is_refused_and_untouched() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("data")).unwrap();
    fs::write(dir.path().join("lock"), "mine").unwrap();
    assert_eq!(refused(dir.path()).kind(), Kind::Corrupt);
    assert_eq!(names_in(dir.path()), ["data", "lock"]);
    assert_eq!(fs::read_to_string(dir.path().join("lock")).unwrap(), "mine");
    assert_eq!(names_in(&dir.path().join("data")), [""; 0]);
}

/// Arguments in the wrong order, or a directory of something else: nothing is made in it.
#[test]
fn a_directory_with_something_in_it_is_no_new_store() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("lost+found")).unwrap();
    fs::write(dir.path().join("thesis.txt"), "mine").unwrap();
    let e = refused(dir.path());
    assert_eq!(e.kind(), Kind::NotEmpty);
    assert!(e.to_string().contains("thesis.txt"), "{e}");
    assert_eq!(names_in(dir.path()), ["lost+found", "thesis.txt"]);
    // A new filesystem is one, and what a first start has begun.
    fs::remove_file(dir.path().join("thesis.txt")).unwrap();
    fs::write(dir.path().join("FENCEFS.new"), "{").unwrap();
    fs::write(dir.path().join("lock"), "123\n").unwrap();
    open_store(dir.path(), &StoreSettings::default()).unwrap();
}

/// Its filesystem may not be mounted: an empty one in its place would be a store that lost everything and says nothing.
#[test]
fn data_that_is_missing_is_not_made_anew() {
    let mut bench = Bench::new(StoreSettings::default());
    let ledger = crate::ledger::LocalLedger::new(Arc::clone(bench.store.as_ref().unwrap().root.ledger()));
    bench.storage().register_with(&ledger).unwrap();
    drop(ledger);
    bench.drop_store();
    let (data, aside) = (bench.root().join("data"), bench.dir.path().join("aside"));
    fs::rename(&data, &aside).unwrap();
    let before = fs::read(bench.root().join("ledger.redb")).unwrap();
    let e = open_when_free(&bench.root(), &bench.settings).unwrap_err();
    assert_eq!(e.kind(), Kind::Corrupt, "{e}");
    assert!(e.to_string().contains("no data"), "{e}");
    assert!(!data.exists());
    assert!(fs::read(bench.root().join("ledger.redb")).unwrap() == before);
    fs::rename(&aside, &data).unwrap();
    bench.open();
}

#[test]
fn a_link_in_place_of_a_managed_directory_is_not_followed() {
    for name in ["data", "data/.staging", "data/.quarantine", "data/t", "data/t/default/0"] {
        let mut bench = Bench::new(StoreSettings::default());
        bench.drop_store();
        let (path, aside) = (bench.root().join(name), bench.dir.path().join("aside"));
        fs::rename(&path, &aside).unwrap();
        fs::write(aside.join("precious"), "x").unwrap();
        std::os::unix::fs::symlink(&aside, &path).unwrap();
        let e = open_when_free(&bench.root(), &bench.settings).expect_err(name);
        assert_eq!(e.kind(), Kind::NotDirectory, "{name}: {e}");
        assert_eq!(fs::read_to_string(aside.join("precious")).unwrap(), "x", "{name}");
    }
}

#[test]
fn a_filesystem_without_user_attributes_is_refused_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let mount = |program: &str, args: &[&str]| {
        let done = Command::new(program).args(args).arg(dir.path()).output();
        done.is_ok_and(|o| o.status.success())
    };
    if !mount("mount", &["-t", "ramfs", "none"]) {
        eprintln!("skipped: mounting a ramfs needs root");
        return;
    }
    let e = open_store(&dir.path().join("store"), &StoreSettings::default()).map(drop);
    assert!(mount("umount", &[]));
    let e = e.unwrap_err();
    assert_eq!(e.kind(), Kind::Unsupported);
    assert!(e.to_string().contains("no user extended attributes"), "{e}");
}
