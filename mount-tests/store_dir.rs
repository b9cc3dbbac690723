//! The store's own directory: what stands there that is not ours, what was damaged, what cannot be a store.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::harness::{Builder, can_mount, each, fencefs, run};

#[test]
fn strangers_survive_and_symlinks_are_not_followed() {
    if !can_mount() {
        return;
    }
    let mut m = Builder::new().mount();
    m.shell("echo x > $M/k; echo y > $M/k2; echo secret > $W/outside; mkdir $W/outdir; echo s > $W/outdir/f")
        .ok();
    let record = m.record_of("k");
    let shard = record.parent().unwrap().to_owned();
    let used = m.status_number("used_bytes");
    m.umount();
    fs::write(m.store.join("beside"), b"b").unwrap();
    fs::create_dir(m.store.join("besidedir")).unwrap();
    fs::write(m.store.join("besidedir/f"), b"b").unwrap();
    fs::write(m.store.join("data/inside"), b"i").unwrap();
    fs::write(shard.join("notes.txt"), b"n").unwrap();
    symlink(m.scratch.join("outside"), shard.join("0123456789abcdef0123456789abcdef")).unwrap();
    symlink(m.scratch.join("outdir"), m.store.join("data/t/default/0/zz")).unwrap();
    symlink(m.scratch.join("outdir"), m.store.join("data/t/linked")).unwrap();
    symlink(m.scratch.join("outdir"), m.store.join("data/.staging/planted")).unwrap();
    for _ in 0..2 {
        m.mount();
        m.shell("[ $(cat $M/k) = x ]; [ \"$(ls -A $M)\" = $'k\\nk2' ]; [ \"$(ls -A $R)\" = default ]").ok();
        assert_eq!(m.status_number("used_bytes"), used);
        assert_eq!(m.control("evict to=0").0, Ok(()));
        m.shell("echo x > $M/k; echo y > $M/k2").ok();
        m.umount();
    }
    assert_eq!(fs::read(m.store.join("beside")).unwrap(), b"b");
    assert_eq!(fs::read(m.store.join("besidedir/f")).unwrap(), b"b");
    assert_eq!(fs::read(m.store.join("data/inside")).unwrap(), b"i");
    assert_eq!(fs::read(shard.join("notes.txt")).unwrap(), b"n");
    m.shell("[ $(cat $W/outside) = secret ]; [ $(cat $W/outdir/f) = s ]").ok();
}

#[test]
fn a_record_under_a_wrong_name_is_a_miss() {
    if !can_mount() {
        return;
    }
    // Whether the start looks at every record, or learns from each that is opened.
    for looks in [true, false] {
        let mut m = Builder::new().mount();
        m.shell("echo one > $M/a; echo two > $M/b; echo three > $M/c").ok();
        let (a, b, c) = (m.record_of("a"), m.record_of("b"), m.record_of("c"));
        m.umount();
        // b's record stands where a's belongs; c has lost what makes it a record.
        fs::remove_file(&a).unwrap();
        fs::rename(&b, &a).unwrap();
        run(Command::new("setfattr").args(["-x", "user.fencefs"]).arg(&c)).ok();
        if looks {
            fs::remove_file(m.store.join("checkpoint")).unwrap();
        }
        m.mount();
        if !looks {
            m.shell("for k in a b c; do ! cat $M/$k; done 2> /dev/null").ok();
        }
        m.shell("for k in a b c; do [ ! -e $M/$k ]; done; [ -z \"$(ls -A $M)\" ]").ok();
        assert_eq!(m.status_number("used_bytes"), 0);
        m.shell("for k in a b c; do echo new-$k > $M/$k; [ $(cat $M/$k) = new-$k ]; done").ok();
    }
}

#[test]
fn a_record_swapped_while_mounted_is_never_served() {
    if !can_mount() {
        return;
    }
    let m = Builder::new().mount();
    m.shell("echo one > $M/a; echo two > $M/b").ok();
    let (a, b) = (m.record_of("a"), m.record_of("b"));
    fs::copy(&a, m.scratch.join("old")).unwrap();
    fs::rename(&b, &a).unwrap();
    let mut peer = m.peer();
    assert_eq!(peer.error("read(M + '/a')"), "ENOENT");
    assert_eq!(peer.error("read(M + '/b')"), "ENOENT");
    m.shell("echo again > $M/a; [ $(cat $M/a) = again ]").ok();
}

#[test]
fn a_newer_format_is_refused_and_not_rewritten() {
    if !can_mount() {
        return;
    }
    let mut m = Builder::new().mount();
    m.umount();
    let file = m.store.join("FENCEFS");
    let text = fs::read_to_string(&file).unwrap();
    let mut format: serde_json::Value = serde_json::from_str(&text).expect("the format file is JSON");
    let version =
        format.as_object_mut().unwrap().iter_mut().find(|(_, v)| v.as_u64() == Some(1)).expect("version 1");
    *version.1 = 99.into();
    let newer = format.to_string();
    fs::write(&file, &newer).unwrap();
    let (code, message) = m.try_mount().failed();
    assert_eq!((code, message.trim_end().lines().count()), (1, 1), "{message}");
    assert!(message.contains("99"), "{message}");
    assert_eq!(fs::read_to_string(&file).unwrap(), newer);
    assert!(!m.is_mounted());
    fs::write(&file, text).unwrap();
    m.mount();
}

#[test]
fn a_directory_with_other_things_is_no_store() {
    if !can_mount() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let (store, mnt) = (root.path().join("store"), root.path().join("mnt"));
    fs::create_dir(&mnt).unwrap();
    fs::write(&store, b"a file").unwrap();
    let (code, text) = fencefs(["mount".as_ref(), store.as_os_str(), mnt.as_os_str()]).failed();
    assert_eq!((code, text.trim_end().lines().count()), (1, 1), "{text}");
    assert!(text.contains(store.to_str().unwrap()), "{text}");
    assert_eq!(fs::read(&store).unwrap(), b"a file");
}

/// ramfs keeps no user attributes.
#[test]
fn a_filesystem_without_user_attributes_is_refused() {
    if !can_mount() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let (base, mnt) = (root.path().join("ramfs"), root.path().join("mnt"));
    fs::create_dir(&base).unwrap();
    fs::create_dir(&mnt).unwrap();
    if !run(Command::new("mount").args(["-t", "ramfs", "ramfs"]).arg(&base)).status.success() {
        eprintln!("skipped: no ramfs here");
        return;
    }
    let result = fencefs(["mount".as_ref(), base.join("store").as_os_str(), mnt.as_os_str()]);
    run(Command::new("umount").args(["-l"]).arg(&mnt));
    run(Command::new("umount").args(["-l"]).arg(&base)).ok();
    let (code, text) = result.failed();
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("attributes") || text.contains("xattr"), "{text}");
}

#[test]
fn a_directory_with_files_of_our_names_is_refused() {
    if !can_mount() {
        return;
    }
    let mut m = Builder::new().mount();
    m.umount();
    fs::remove_dir_all(&m.store).unwrap();
    fs::create_dir(&m.store).unwrap();
    fs::write(m.store.join("lock"), "mine").unwrap();
    fs::write(m.store.join("order"), "mine").unwrap();
    let (status, text) = m.try_mount().failed();
    assert!(status == 1 && text.contains("not a store"), "{status} {text}");
    assert_eq!(fs::read(m.store.join("lock")).unwrap(), b"mine");
    assert_eq!(fs::read(m.store.join("order")).unwrap(), b"mine");
}

#[test]
fn a_directory_in_the_place_of_a_record_gives_way() {
    each(|m| {
        m.shell("echo one > $M/k").ok();
        let record = m.record_of("k");
        fs::remove_file(&record).unwrap();
        fs::create_dir(&record).unwrap();
        m.shell("echo two > $M/k; [ $(cat $M/k) = two ]").ok();
        m.remount();
        m.shell("[ $(cat $M/k) = two ]; [ $(ls $S/data/.quarantine | wc -l) = 1 ]").ok();
    });
}

#[test]
fn empty_shards_go_at_the_next_walk() {
    each(|m| {
        m.shell("for i in $(seq 40); do echo $i > $M/k$i; done; rm $M/k*").ok();
        m.crash();
        m.shell(
            "[ $(find $S/data/t/default/0 -mindepth 1 | wc -l) = 0 ]; echo x > $M/k; [ $(cat $M/k) = x ]",
        )
        .ok();
    });
}

/// The daemon's umask is nobody's: a store that is made, and what leads to it, have modes of their own.
#[test]
fn a_new_store_is_its_daemons_alone() {
    if !can_mount() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let (store, mnt) = (root.path().join("deep/er/store"), root.path().join("mnt"));
    fs::create_dir(&mnt).unwrap();
    fencefs([OsStr::new("mount"), store.as_os_str(), mnt.as_os_str()]).ok();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let modes = [mode(&root.path().join("deep")), mode(&root.path().join("deep/er")), mode(&store)];
    fencefs([OsStr::new("umount"), mnt.as_os_str()]).ok();
    assert_eq!(modes, [0o755, 0o755, 0o700]);
}
