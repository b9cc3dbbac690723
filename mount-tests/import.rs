//! `fencefs import`: what the released Mooncake wrote is read through a mount, whatever the import met on its way.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{BINARY, Builder, Mount, Output, can_mount, each, fencefs, python3, run, wait_until};

fn args(store: &Path, from: &Path, options: &[&str]) -> Vec<OsString> {
    let fixed = [OsStr::new("import"), store.as_os_str(), OsStr::new("--from"), from.as_os_str()];
    fixed.into_iter().chain(options.iter().map(OsStr::new)).map(OsStr::to_owned).collect()
}

#[track_caller]
fn import(store: &Path, from: &Path, options: &[&str]) -> Output {
    fencefs(args(store, from, options))
}

/// Exit code and JSON object.
#[track_caller]
fn import_json(store: &Path, from: &Path, options: &[&str]) -> (i32, Value) {
    let output = import(store, from, &[options, &["--json"]].concat());
    assert_eq!(output.stdout.trim_end().lines().count(), 1, "{output:?}");
    (output.status.code().unwrap(), serde_json::from_str(&output.stdout).unwrap())
}

#[track_caller]
fn number(object: &Value, name: &str) -> u64 {
    object[name].as_u64().unwrap_or_else(|| panic!("no {name} in {object}"))
}

/// The directories that the released program wrote.
fn fixtures() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("mount-tests/fixtures/mooncake-real.tar.gz");
    run(Command::new("tar").arg("xzf").arg(packed).arg("-C").arg(dir.path())).ok();
    let inside = dir.path().join("mooncake-real");
    (dir, inside)
}

/// Makes a directory with `count` records of each tenant, by Mooncake's own rules, in a language of its own.
fn written(tenants: &[&str], count: usize, bytes: usize) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let script = r#"
import os, sys
M = (1 << 64) - 1
def murmur(data):
    mul, h = 0xc6a4a7935bd1e995, 0xc70f6907 ^ (len(data) * 0xc6a4a7935bd1e995 & M)
    mix = lambda v: v ^ (v >> 47)
    whole = len(data) & ~7
    for i in range(0, whole, 8):
        k = int.from_bytes(data[i:i + 8], 'little')
        h = ((h ^ (mix(k * mul & M) * mul & M)) * mul) & M
    if len(data) & 7:
        h = ((h ^ int.from_bytes(data[whole:], 'little')) * mul) & M
    return mix(mix(h) * mul & M)
def varint(n):
    out = b''
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])
top, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for tenant in sys.argv[4:]:
    for n in range(count):
        key = f'{tenant}\0dir{n % 7}/k{n}'.encode()
        value = (f'{tenant} {n} '.encode() * (size // 4 + 1))[:size]
        h = murmur(key)
        name = bytes(95 if b in b'/\\:*?"<>|\0' else b for b in key)
        at = os.path.join(top.encode(), b'file_per_key_dir', bytes([97 + h % 16]), bytes([97 + h // 16 % 16]))
        os.makedirs(at, exist_ok=True)
        with open(os.path.join(at, name), 'wb') as f:
            f.write(b'\n' + varint(len(key)) + key + b'\x12' + varint(len(value)) + value)
"#;
    let mut python = Command::new(python3());
    python.args(["-c", script]).arg(dir.path()).args([count.to_string(), bytes.to_string()]).args(tenants);
    run(&mut python).ok();
    dir
}

/// Reads all of that through the mount.
#[track_caller]
fn assert_written(m: &Mount, tenants: &[&str], count: usize, bytes: usize) {
    for tenant in tenants {
        for n in 0..count {
            let path = m.mnt.join(tenant).join(format!("dir{}/k{n}", n % 7));
            let unit = format!("{tenant} {n} ");
            let expected = unit.repeat(bytes / 4 + 1).into_bytes()[..bytes].to_vec();
            assert!(fs::read(&path).unwrap() == expected, "{}", path.display());
        }
    }
}

/// Everything below a directory: path, length, mode and times.
fn state(dir: &Path) -> Vec<(PathBuf, u64, u32, [i64; 6])> {
    let (mut dirs, mut found) = (vec![dir.to_owned()], Vec::new());
    while let Some(next) = dirs.pop() {
        let m = fs::symlink_metadata(&next).unwrap();
        let times = [m.atime(), m.atime_nsec(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()];
        found.push((next.clone(), m.len(), m.mode(), times));
        if m.is_dir() {
            dirs.extend(fs::read_dir(next).unwrap().map(|e| e.unwrap().path()));
        }
    }
    found.sort();
    found
}

const READ_ALL: &str = r#"
import hashlib, json, os, sys, urllib.parse
seen = 0
for v in json.load(open(os.environ['V'])):
    name = urllib.parse.quote_from_bytes(v['key'].encode(), safe='')
    name = {'': '%', '.': '%2E', '..': '%2E%2E'}.get(name, name)
    at = os.path.join(os.environ['R'], v['tenant'], '.fencefs/by-key', name)
    if not v['written']:
        assert not os.path.exists(at), v
        continue
    value = open(at, 'rb').read()
    assert len(value) == v['value_len'] and hashlib.sha256(value).hexdigest() == v['value_sha256'], v
    seen += 1
assert seen == 26, seen
"#;

#[track_caller]
fn assert_the_26(m: &Mount) {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("mount-tests/fixtures/path_vectors.json");
    let mut python = Command::new(python3());
    run(python.args(["-c", READ_ALL]).env("V", vectors).env("R", &m.mnt)).ok();
}

/// What is mounted inside the directory may be anybody's: it is named, not read, and the import is not complete.
#[test]
fn what_is_mounted_inside_the_directory_is_named_and_not_read() {
    if !can_mount() {
        return;
    }
    let from = written(&["a"], 200, 100);
    let level = fs::read_dir(from.path().join("file_per_key_dir")).unwrap().next().unwrap().unwrap().path();
    let below: usize =
        fs::read_dir(&level).unwrap().map(|lower| fs::read_dir(lower.unwrap().path()).unwrap().count()).sum();
    run(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&level)).ok();
    fs::write(level.join("a"), b"of another filesystem").unwrap();
    let root = tempfile::tempdir().unwrap();
    let store = root.path().join("store");
    let (code, object) = import_json(&store, from.path(), &[]);
    run(Command::new("umount").arg(&level)).ok();
    assert_eq!((code, object["complete"].as_bool()), (1, Some(false)), "{object}");
    assert_eq!(number(&object, "imported"), (200 - below) as u64);
    let findings = object["findings"].as_array().unwrap();
    let at = level.file_name().unwrap().to_str().unwrap();
    assert_eq!(findings.len(), 1, "{object}");
    assert_eq!((&findings[0]["path"], &findings[0]["kind"]), (&at.into(), &"mount".into()), "{object}");
    let (code, object) = import_json(&store, from.path(), &[]);
    assert_eq!((code, number(&object, "imported")), (0, below as u64), "{object}");
    assert_eq!(number(&object, "already_there"), (200 - below) as u64);
}

#[test]
fn what_the_released_program_wrote_is_served_and_cleared_by_tenant() {
    let (_dir, real) = fixtures();
    each(|m| {
        m.umount();
        let before = state(&real);
        let (code, object) = import_json(&m.store, &real.join("default-tenant"), &[]);
        assert_eq!((code, number(&object, "imported"), number(&object, "already_there")), (0, 26, 0));
        assert_eq!((object["complete"].as_bool(), number(&object, "rejected")), (Some(true), 0), "{object}");
        for (name, count) in [("two-tenants", 4), ("collision", 1)] {
            let said = import(&m.store, &real.join(name), &[]).ok();
            assert!(said.starts_with(&format!("{count} imported (")), "{said}");
        }
        let (code, object) = import_json(&m.store, &real.join("default-tenant/file_per_key_dir"), &[]);
        assert_eq!((code, number(&object, "imported"), number(&object, "already_there")), (0, 0, 26));
        // The listings of `state` may have moved times of access themselves: what counts is that nothing else did.
        let plain = |s: Vec<(PathBuf, u64, u32, [i64; 6])>| -> Vec<_> {
            s.into_iter().map(|(p, l, m, t)| (p, l, m, t[2..].to_vec())).collect()
        };
        assert_eq!(plain(state(&real)), plain(before));
        m.mount();
        assert_the_26(m);
        m.shell(
            "[ $(cat $R/tenantA/shared/key) = from-A ]; [ $(cat $R/tenantB/shared/key) = from-B ]
             [ $(cat $R/default/c__:___) = VALUE-1 ]; [ ! -e $R/default/c::::/_ ]",
        )
        .ok();
        let clear =
            [OsStr::new("remove-all"), m.mnt.as_os_str(), OsStr::new("--tenant"), OsStr::new("tenantA")];
        fencefs(clear).ok();
        m.shell("[ $(cat $R/tenantB/shared/key)$(cat $R/tenantB/only-b) = from-BB-data ]; [ -z \"$(ls $R/tenantA)\" ]").ok();
        m.umount();
        // What was cleared is not there any more, and comes back only because somebody imports it again.
        let (_, object) = import_json(&m.store, &real.join("two-tenants"), &[]);
        assert_eq!((number(&object, "imported"), number(&object, "already_there")), (2, 2));
        m.mount();
        m.shell("[ $(cat $R/tenantA/only-a) = A-data ]").ok();
        assert_the_26(m);
    });
}

#[test]
fn a_store_is_made_where_there_is_none() {
    let dir = written(&["default", "other"], 30, 5000);
    let place = tempfile::tempdir().unwrap();
    let store = place.path().join("new/store");
    let (code, object) = import_json(&store, dir.path(), &["--checksum", "on", "--size", "1GiB"]);
    assert_eq!((code, number(&object, "imported"), number(&object, "imported_bytes")), (0, 60, 300_000));
    let checked = fencefs([OsStr::new("fsck"), store.as_os_str(), OsStr::new("--verify-data")]).ok();
    assert!(checked.contains("60 contents verified, 0 without a checksum"), "{checked}");
    assert_eq!(fs::metadata(&store).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn refusals_touch_nothing() {
    if !can_mount() {
        return;
    }
    let dir = written(&["default"], 3, 100);
    let mut m = Builder::new().mount();
    let (code, message) = import(&m.store, dir.path(), &[]).failed();
    assert_eq!((code, message.trim_end().lines().count()), (1, 1), "{message}");
    assert!(message.contains("unmount it first"), "{message}");
    for inside in [&m.mnt, &m.keys(), &m.key("new")] {
        let (code, message) = import(inside, dir.path(), &[]).failed();
        assert!(code == 1 && message.contains("give the store itself"), "{message}");
    }
    assert_eq!(fs::read_dir(m.keys()).unwrap().count(), 0);
    m.umount();
    let place = tempfile::tempdir().unwrap();
    let (store, none) = (place.path().join("store"), place.path().join("none"));
    for (from, options) in [
        (none.as_path(), &[][..]),
        (place.path(), &[]),
        (dir.path(), &["--fsdir", "other"]),
        (dir.path(), &["--fsdir", "../x"]),
        (Path::new("/etc/passwd"), &[]),
    ] {
        let (code, message) = import(&store, from, options).failed();
        assert_eq!((code, message.trim_end().lines().count()), (1, 1), "{message}");
        assert!(message.starts_with("fencefs: "), "{message}");
        assert!(!store.exists());
    }
    for inside in
        [dir.path().to_owned(), dir.path().join("file_per_key_dir/a"), dir.path().join("file_per_key_dir")]
    {
        let (code, message) = import(&inside, dir.path(), &[]).failed();
        assert!(code == 1 && message.contains("one inside the other"), "{message}");
        assert!(!inside.join("FENCEFS").exists());
    }
    let (code, message) = import(&store, dir.path(), &["--size", "4KiB"]).failed();
    assert!(code == 1 && message.contains("nothing is evicted for an import"), "{message}");
    assert_eq!(number(&import_json(&store, dir.path(), &[]).1, "imported"), 3);
}

#[test]
fn everything_that_is_no_record_is_told() {
    let dir = written(&["default", "team:1"], 4, 1000);
    let top = dir.path().join("file_per_key_dir");
    let any = fs::read_dir(&top).unwrap().next().unwrap().unwrap().path();
    fs::create_dir_all(top.join("a/b/deep/er")).unwrap();
    fs::write(top.join("a/b/deep/er/stranger"), "x").unwrap();
    fs::create_dir_all(top.join(".staging")).unwrap();
    std::os::unix::fs::symlink(any, top.join("a/b/link")).unwrap();
    run(Command::new("mkfifo").arg(top.join("a/b/fifo"))).ok();
    fs::write(top.join("a/b/default_corrupt"), "garbage").unwrap();
    fs::write(top.join("a/b/default_elsewhere"), b"\x0a\x05a\0key\x12\x01x").unwrap();
    let place = tempfile::tempdir().unwrap();
    let store = place.path().join("store");
    let (code, object) = import_json(&store, dir.path(), &[]);
    assert_eq!((code, number(&object, "imported"), object["complete"].as_bool()), (1, 4, Some(false)));
    let findings = object["findings"].as_array().unwrap();
    assert_eq!((number(&object, "rejected"), number(&object, "left")), (findings.len() as u64, 4));
    let kind_of = |path: &str| {
        let found: Vec<_> = findings.iter().filter(|f| f["path"] == path).collect();
        assert_eq!(found.len(), 1, "{path} in {object}");
        found[0]["kind"].as_str().unwrap().to_owned()
    };
    for (path, kind) in [
        ("a/b/deep", "stranger"),
        (".staging", "staging"),
        ("a/b/link", "symlink"),
        ("a/b/fifo", "special"),
        ("a/b/default_corrupt", "malformed"),
        ("a/b/default_elsewhere", "misplaced"),
    ] {
        assert_eq!(kind_of(path), kind);
    }
    assert_eq!(findings.iter().filter(|f| f["kind"] == "tenant").count(), 4);
    assert_eq!(findings.len(), 10, "{object}");
    let (code, object) = import_json(&store, dir.path(), &["--map-tenant", "team:1=team-1"]);
    assert_eq!((code, number(&object, "imported"), number(&object, "already_there")), (0, 4, 4), "{object}");
    assert_eq!((number(&object, "rejected"), object["complete"].as_bool()), (6, Some(true)));
}

#[test]
fn a_conflict_is_kept_and_told_until_it_is_settled() {
    each(|m| {
        let dir = written(&["default"], 3, 1000);
        m.shell("mkdir $M/dir1; echo ours > $M/dir1/k1").ok();
        m.umount();
        let output = import(&m.store, dir.path(), &[]);
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.contains("differs: ") && output.stdout.contains("--replace"), "{output:?}");
        let (code, object) = import_json(&m.store, dir.path(), &[]);
        assert_eq!((code, number(&object, "differing"), number(&object, "already_there")), (1, 1, 2));
        assert_eq!(object["findings"][0]["key"], "dir1/k1");
        m.mount();
        m.shell("[ $(cat $M/dir1/k1) = ours ]").ok();
        m.umount();
        let (code, object) = import_json(&m.store, dir.path(), &["--replace"]);
        assert_eq!((code, number(&object, "imported"), number(&object, "replaced")), (0, 1, 1));
        m.mount();
        assert_written(m, &["default"], 3, 1000);
    });
}

/// Killed at whatever moment, again and again: no start is refused, nothing is half there, and the last run completes.
#[test]
fn an_import_that_is_killed_again_and_again_ends_complete() {
    if !can_mount() {
        return;
    }
    let tenants = ["default", "tenantA", "tenantB"];
    let dir = written(&tenants, 300, 20_000);
    let mut m = Builder::new().mount();
    m.umount();
    let mut killed = 0;
    for round in 0_u32..12 {
        let mut child = Command::new(BINARY)
            .args(args(&m.store, dir.path(), &[]))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let ended = wait_until(Duration::from_millis(u64::from(7 + 5 * round * round)), || {
            child.try_wait().unwrap().is_some()
        });
        killed += u32::from(!ended);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    eprintln!("{killed} of 12 were killed");
    let (code, object) = import_json(&m.store, dir.path(), &[]);
    let (imported, there) = (number(&object, "imported"), number(&object, "already_there"));
    assert_eq!((code, imported + there), (0, 900), "{object}");
    let (code, object) = import_json(&m.store, dir.path(), &[]);
    assert_eq!((code, number(&object, "already_there")), (0, 900), "{object}");
    assert_eq!(fencefs([OsStr::new("fsck"), m.store.as_os_str()]).ok().lines().count(), 1);
    m.mount();
    assert_written(&m, &tenants, 300, 20_000);
}

#[cfg(feature = "failpoints")]
#[test]
fn an_import_that_is_killed_at_a_step_ends_complete() {
    if !can_mount() {
        return;
    }
    let tenants = ["default", "tenantA"];
    let dir = written(&tenants, 40, 3000);
    for step in [
        "legacy.locate=5*off->return(kill)",
        "import.plan=20*off->return(kill)",
        "import.tenant=return(kill)",
        "import.copy=3*off->return(kill)",
        "import.copied=30*off->return(kill)",
        "publish.metadata=9*off->return(kill)",
        "publish.rename=9*off->return(kill)",
        "publish.renamed=9*off->return(kill)",
        "import.sync=return(kill)",
    ] {
        let mut m = Builder::new().mount();
        m.umount();
        let mut command = Command::new(BINARY);
        let killed = run(command.args(args(&m.store, dir.path(), &[])).env("FAILPOINTS", step));
        assert_eq!((killed.status.code(), killed.stdout.as_str()), (None, ""), "{step}");
        // A mount takes what there is as it is.
        m.mount();
        for (record, _) in m.records() {
            assert_eq!(fs::metadata(&record).unwrap().len(), 3000, "{step}");
        }
        assert_eq!(m.status_number("quarantined"), 0, "{step}");
        m.umount();
        let (code, object) = import_json(&m.store, dir.path(), &[]);
        let (imported, there) = (number(&object, "imported"), number(&object, "already_there"));
        assert_eq!((code, imported + there), (0, 80), "{step}: {object}");
        m.mount();
        assert_written(&m, &tenants, 40, 3000);
    }
}

#[cfg(feature = "failpoints")]
#[test]
fn a_pending_removal_is_done_first_or_told() {
    if !can_mount() {
        return;
    }
    let dir = written(&["default", "tenantA"], 5, 1000);
    let mut m = Builder::new().env("FAILPOINTS", "removal.delete=return").mount();
    m.shell("mkdir $R/tenantA; echo old > $R/tenantA/old").ok();
    let remove = [
        OsStr::new("remove-all"),
        m.mnt.as_os_str(),
        OsStr::new("--tenant"),
        OsStr::new("tenantA"),
        OsStr::new("--no-wait"),
    ];
    fencefs(remove).ok();
    assert!(wait_until(Duration::from_secs(20), || m.status()["state"] == "failed"));
    m.umount();
    m.unset_env("FAILPOINTS");
    let mut command = Command::new(BINARY);
    let refused =
        run(command.args(args(&m.store, dir.path(), &[])).env("FAILPOINTS", "removal.delete=return"));
    let (code, message) = refused.failed();
    assert!(code == 1 && message.contains("tenantA") && message.contains("still being removed"), "{message}");
    let (code, object) = import_json(&m.store, dir.path(), &[]);
    assert_eq!((code, number(&object, "imported")), (0, 10), "{object}");
    m.mount();
    assert_written(&m, &["default", "tenantA"], 5, 1000);
    m.shell("[ ! -e $R/tenantA/old ]").ok();
}

#[test]
fn any_bytes_of_a_directory_are_told_in_ascii() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("file_per_key_dir");
    fs::create_dir_all(&top).unwrap();
    fs::write(top.join(OsStr::from_bytes(b"new\nline\xff")), "x").unwrap();
    let place = tempfile::tempdir().unwrap();
    let said = import(&place.path().join("store"), dir.path(), &[]).ok();
    assert_eq!(said.lines().next(), Some("stranger: new\\nline\\xff: no layout has this path"), "{said}");
}
