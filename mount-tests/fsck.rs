//! `fencefs fsck` on stores that a mount has filled: exit codes, JSON, and a check that is stopped in the middle.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{BINARY, Builder, Output, can_mount, each_with, fencefs};

#[track_caller]
fn fsck(store: &Path, options: &[&str]) -> Output {
    fencefs([OsStr::new("fsck"), store.as_os_str()].into_iter().chain(options.iter().map(OsStr::new)))
}

/// Exit code and JSON object.
#[track_caller]
fn fsck_json(store: &Path, options: &[&str]) -> (i32, Value) {
    let output = fsck(store, &[options, &["--json"]].concat());
    assert_eq!(output.stderr, "");
    assert_eq!(output.stdout.trim_end().lines().count(), 1);
    (output.status.code().unwrap(), serde_json::from_str(&output.stdout).unwrap())
}

fn kinds(object: &Value) -> Vec<&str> {
    object["findings"].as_array().unwrap().iter().map(|f| f["kind"].as_str().unwrap()).collect()
}

#[test]
fn a_store_after_real_use_is_clean() {
    each_with(
        |b| b.arg("--checksum").arg("on").size("64MiB"),
        |m| {
            m.shell(
                "for i in $(seq 60); do head -c $((i * 1000)) /dev/urandom > $M/k$i; done
                 mkdir $M/d; for i in $(seq 20); do mv $M/k$i $M/d/m$i; done; rm $M/k3*; ln -s k40 $M/link
                 echo tail >> $M/k40; truncate -s 10 $M/k41; mkdir $R/other; cp $M/k5? $R/other
                 setfattr -n user.note -v x $M/k42",
            )
            .ok();
            fencefs(["remove-all".as_ref(), m.mnt.as_os_str(), "--tenant".as_ref(), "other".as_ref()]).ok();
            let (code, message) = fsck(&m.store, &["--repair"]).failed();
            assert_eq!((code, message.trim_end().lines().count()), (1, 1), "{message}");
            assert!(message.contains("unmount it first"), "{message}");
            m.umount();
            let (code, object) = fsck_json(&m.store, &["--verify-data"]);
            assert_eq!((code, kinds(&object).len()), (0, 0), "{object}");
            assert_eq!((object["clean"].as_bool(), object["left"].as_u64()), (Some(true), Some(0)));
            assert!(object["records"].as_u64().unwrap() > 40, "{object}");
            assert_eq!(object["unverifiable"].as_u64(), Some(0), "{object}");
            assert_eq!(fsck(&m.store, &["--repair"]).ok().lines().count(), 1);
            m.mount();
            m.shell(
                "[ $(ls $M/d | wc -l) = 20 ]; [ $(tail -c 5 $M/k40) = tail ]; [ $(readlink $M/link) = k40 ]",
            )
            .ok();
        },
    );
}

#[test]
fn found_repaired_and_gone() {
    each_with(
        |b| b.arg("--checksum").arg("on"),
        |m| {
            m.shell("for k in short content good; do head -c 100000 /dev/urandom > $M/$k; done").ok();
            let (short, content) = (m.record_of("short"), m.record_of("content"));
            let mut p = m.peer();
            p.run("fd = os.open(M + '/half', os.O_CREAT | os.O_WRONLY); os.write(fd, b'x' * 5000)");
            p.run("e = os.open(M + '/good', os.O_RDWR); os.pwrite(e, b'edit', 0)");
            m.kill();
            fs::File::options().write(true).open(&short).unwrap().set_len(5).unwrap();
            let file = fs::File::options().write(true).read(true).open(&content).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, 777).unwrap();
            file.write_all_at(&[byte[0] ^ 1], 777).unwrap();
            let (code, object) = fsck_json(&m.store, &["--verify-data"]);
            let mut found = kinds(&object);
            found.sort_unstable();
            assert_eq!((code, found), (1, vec!["content", "record", "staging", "unsettled"]), "{object}");
            let finding =
                object["findings"].as_array().unwrap().iter().find(|f| f["kind"] == "content").unwrap();
            assert_eq!(
                (finding["tenant"].as_str(), finding["key"].as_str()),
                (Some("default"), Some("content"))
            );
            assert_eq!(m.store.join(finding["path"].as_str().unwrap()), content);
            assert_eq!(
                (finding["severity"].as_str(), finding["repaired"].as_bool()),
                (Some("error"), Some(false))
            );
            assert!(finding["what"].as_str().unwrap().contains("checksum"));
            let (code, object) = fsck_json(&m.store, &["--verify-data", "--repair"]);
            assert_eq!((code, object["repaired"].as_u64(), object["left"].as_u64()), (4, Some(4), Some(0)));
            let (code, object) = fsck_json(&m.store, &["--verify-data", "--repair"]);
            assert_eq!((code, kinds(&object)), (0, vec!["quarantine"; 2]), "{object}");
            m.mount();
            m.shell(
                "[ ! -e $M/short ]; [ ! -e $M/content ]; [ ! -e $M/half ]; [ $(head -c 4 $M/good) = edit ]",
            )
            .ok();
            assert_eq!(m.status_number("quarantined"), 0);
        },
    );
}

#[test]
fn what_is_no_store_is_refused_untouched() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("lock"), b"mine").unwrap();
    let (code, text) = fsck(dir.path(), &["--repair"]).failed();
    assert_eq!((code, text.trim_end().lines().count()), (1, 1), "{text}");
    assert!(text.contains("not a store"), "{text}");
    assert_eq!(fs::read(dir.path().join("lock")).unwrap(), b"mine");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    let missing = dir.path().join("missing");
    assert_eq!(fsck(&missing, &[]).failed().0, 1);
    assert!(!missing.exists());
    assert_eq!(fencefs(["fsck"]).failed().0, 2);
    assert_eq!(fsck(&missing, &["--fix"]).failed().0, 2);
}

/// Killed at any moment of a repair, the next one finishes, and nothing that is sound is touched.
#[test]
fn a_repair_that_is_killed_is_finished_by_the_next() {
    if !can_mount() {
        return;
    }
    let mut m = Builder::new().mount();
    m.shell("for i in $(seq 300); do echo $i > $M/k$i; done").ok();
    let bad: Vec<_> = (1..=200).map(|i| m.record_of(format!("k{i}"))).collect();
    m.umount();
    for record in &bad {
        fs::File::options().write(true).open(record).unwrap().set_len(1000).unwrap();
    }
    for n in 0..300 {
        fs::write(m.store.join(format!("data/.staging/0.{n}")), b"half").unwrap();
    }
    let left = || fsck_json(&m.store, &[]).1["left"].as_u64().unwrap();
    let mut before = left();
    assert_eq!(before, 500);
    for round in 0..6 {
        let mut child = Command::new(BINARY)
            .args([OsStr::new("fsck"), m.store.as_os_str(), OsStr::new("--repair")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(4 + round * 3));
        child.kill().unwrap();
        child.wait().unwrap();
        let now = left();
        assert!(now <= before, "{now} errors after {before}");
        before = now;
    }
    let code = fsck(&m.store, &["--repair"]).status.code();
    assert_eq!(code, Some(if before == 0 { 0 } else { 4 }));
    let (code, object) = fsck_json(&m.store, &[]);
    assert_eq!((code, kinds(&object)), (0, vec!["quarantine"; 200]));
    m.mount();
    m.shell("[ $(ls $M | wc -l) = 100 ]; for i in $(seq 201 300); do [ $(cat $M/k$i) = $i ]; done").ok();
}

/// The same at each change that a repair makes.
#[cfg(feature = "failpoints")]
#[test]
fn a_repair_is_stopped_before_each_of_its_changes() {
    if !can_mount() {
        return;
    }
    let mut m = Builder::new().mount();
    m.shell("for i in $(seq 8); do echo $i > $M/k$i; done; echo good > $M/good").ok();
    let bad: Vec<_> = (1..=8).map(|i| m.record_of(format!("k{i}"))).collect();
    m.umount();
    for record in &bad {
        fs::File::options().write(true).open(record).unwrap().set_len(1000).unwrap();
    }
    fs::write(m.store.join("data/.staging/0.1"), b"half").unwrap();
    let (mut before, mut ended) = (9, false);
    for _ in 0..40 {
        let left = fsck_json(&m.store, &[]).1["left"].as_u64().unwrap();
        assert!(left <= before, "{left} errors after {before}");
        before = left;
        let mut command = Command::new(BINARY);
        command.args([OsStr::new("fsck"), m.store.as_os_str(), OsStr::new("--repair")]);
        // One change at most, then the end: another thread's change may be cut off.
        let output = crate::harness::run(command.env("FAILPOINTS", "fsck.repair=1*off->return(kill)"));
        ended = output.status.code().is_some();
        if ended {
            break;
        }
    }
    assert!(ended, "{before} errors are left");
    assert_eq!(fsck_json(&m.store, &[]).0, 0);
    m.mount();
    m.shell("[ $(ls $M) = good ]; [ $(cat $M/good) = good ]").ok();
}
