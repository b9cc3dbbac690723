//! The commands: exit codes, what they print, and that a shell can use them.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use serde_json::Value;

use crate::harness::{BINARY, Builder, can_mount, each_with, fencefs, run};

#[test]
fn help_and_usage() {
    let help = fencefs(["--help"]).ok();
    for command in ["mount", "umount", "status", "quota", "pin", "unpin", "path", "retry"] {
        assert!(help.contains(command), "{command}");
        assert!(!fencefs([command, "--help"]).ok().is_empty());
    }
    assert!(fencefs(["--version"]).ok().starts_with("fencefs "));
    for usage in
        [&["nonsense"][..], &["mount"], &["mount", "--no-such-option", "a", "b"], &["status"], &["path", "s"]]
    {
        assert_eq!(fencefs(usage).failed().0, 2, "{usage:?}");
    }
    for usage in
        [&["--size", "lots"][..], &["--passthrough", "maybe"], &["--evict", "nosuch"], &["--tenant", ".x"]]
    {
        let (code, text) =
            fencefs(["mount", "/nonexistent/store", "/nonexistent/mnt"].iter().chain(usage)).failed();
        assert_eq!(code, 2, "{usage:?}: {text}");
        assert!(!text.is_empty());
    }
}

#[test]
fn failures_are_one_line_and_exit_1() {
    let root = tempfile::tempdir().unwrap();
    let (store, missing) = (root.path().join("store"), root.path().join("missing"));
    let mount = fencefs(["mount".as_ref(), store.as_os_str(), missing.as_os_str()]);
    let umount = fencefs(["umount".as_ref(), root.path().as_os_str()]);
    let status = fencefs(["status".as_ref(), root.path().as_os_str()]);
    for output in [mount, umount, status] {
        let (code, text) = output.failed();
        assert_eq!((code, text.trim_end().lines().count()), (1, 1), "{text}");
        assert!(text.starts_with("fencefs: "), "{text}");
    }
}

#[test]
fn metrics_are_served_by_http() {
    // Given back at once: another process would have to ask for a port just then.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    };
    each_with(
        |b| b.arg("--coordinator").arg("local").arg("--metrics-listen").arg(address.to_string()),
        |m| {
            m.shell("echo v > $M/k; cat $M/k").ok();
            let text = ask().unwrap();
            assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
            let (_, page) = text.split_once("\r\n\r\n").unwrap();
            let names = |text: &str| -> Vec<String> {
                text.lines().filter(|l| l.starts_with("# TYPE ")).map(str::to_owned).collect()
            };
            assert_eq!(names(page), names(&fs::read_to_string(m.mnt.join(".fencefs/metrics")).unwrap()));
            assert!(page.contains("\nfencefs_keys 1\n"), "{page}");
            let (store, other) = (m.store.with_extension("other"), m.mnt.with_extension("other"));
            fs::create_dir(&other).unwrap();
            let args = ["--metrics-listen", &address.to_string()].map(ToOwned::to_owned);
            let paths = [&store, &other].map(|p| p.to_string_lossy().into_owned());
            let (code, text) = fencefs(["mount".to_owned()].into_iter().chain(paths).chain(args)).failed();
            assert!(code == 1 && text.contains("another process has that port"), "{text}");
            assert!(!store.exists(), "nothing was made: {text}");
        },
    );
    assert!(ask().is_err(), "the port is given back");
}

#[test]
fn path_tells_where_a_key_lives() {
    let root = tempfile::tempdir().unwrap();
    let store = root.path().join("never-made");
    let args = ["path", store.to_str().unwrap(), "--tenant", "default", "a/b"];
    let text = fencefs(args).ok();
    assert!(text.contains("64c719bce58a6a9d621f9888577b399c"), "{text}");
    let json: Value = serde_json::from_str(&fencefs(args.into_iter().chain(["--json"])).ok()).unwrap();
    assert_eq!(json["digest"], "64c719bce58a6a9d621f9888577b399c");
    assert!(json.to_string().contains("64/c7/64c719bce58a6a9d621f9888577b399c"), "{json}");
    assert!(!store.exists(), "path touches nothing");
}

#[test]
fn status_quota_and_pin() {
    if !can_mount() {
        return;
    }
    let m = Builder::new().size("64MiB").mount();
    let mnt = m.mnt.to_str().unwrap();
    m.shell("echo x > $M/k").ok();
    let status: Value = serde_json::from_str(&fencefs(["status", mnt, "--json"]).ok()).unwrap();
    let names = [
        "name",
        "version",
        "storage_id",
        "state",
        "coordinator",
        "passthrough",
        "quota_bytes",
        "used_bytes",
        "keys",
        "evict",
        "evicted_keys",
        "staged_bytes",
        "generation",
        "tenants",
        "pending_requests",
        "last_error",
    ];
    for name in names {
        assert!(status.get(name).is_some(), "{name}: {status}");
    }
    assert_eq!((&status["state"], &status["quota_bytes"]), (&Value::from("ready"), &Value::from(64 << 20)));
    let default = &status["tenants"][0];
    assert_eq!(
        (&default["name"], &default["epoch"], &default["keys"]),
        (&"default".into(), &0.into(), &1.into())
    );
    assert!(!fencefs(["status", mnt]).ok().is_empty());

    fencefs(["quota", mnt, "32MiB"]).ok();
    assert_eq!(m.status_number("quota_bytes"), 32 << 20);
    fencefs(["quota", mnt, "100MB"]).ok();
    assert_eq!(m.status_number("quota_bytes"), 100_000_000);
    let quota: Value = serde_json::from_str(&fencefs(["quota", mnt, "--json"]).ok()).unwrap();
    assert!(quota.to_string().contains("100000000"), "{quota}");
    fencefs(["quota", mnt, "--tenant", "default", "10MiB"]).ok();
    assert_eq!(m.status()["tenants"][0]["quota_bytes"], 10 << 20);
    fencefs(["quota", mnt, "--tenant", "default", "none"]).ok();
    assert_eq!(m.status()["tenants"][0]["quota_bytes"], Value::Null);
    assert_eq!(fencefs(["quota", mnt, "lots"]).failed().0, 2);

    assert_eq!(fencefs(["pin".into(), m.key("missing")]).failed().0, 1);
    assert_eq!(fencefs(["pin".as_ref(), m.scratch.as_os_str()]).failed().0, 1);
    fencefs(["pin".into(), m.key("k"), m.key("k")]).ok();
    fencefs(["unpin".into(), m.key("k")]).ok();
}

/// A script that captures the output of `mount` goes on: the daemon does not hold the pipe.
#[test]
fn mount_lets_go_of_its_callers_pipes() {
    if !can_mount() {
        return;
    }
    let mut m = Builder::new().mount();
    m.umount();
    let script = format!(
        "out=$(timeout 30 {BINARY} mount $S $R 2>&1); [ -z \"$out\" ]; echo x > $M/k; {BINARY} umount $R"
    );
    m.shell(&script).ok();
    assert!(!m.is_mounted());
}

#[test]
fn unmounted_and_mounted_again_at_once() {
    if !can_mount() {
        return;
    }
    let m = Builder::new().mount();
    m.shell(&format!(
        "for i in 1 2 3; do {BINARY} umount $R; {BINARY} mount $S $R; echo $i > $M/k$i; done; [ -e $M/k1 ]"
    ))
    .ok();
}

#[test]
fn foreground_and_options_by_o() {
    if !can_mount() {
        return;
    }
    let mut m = Builder::new().mount();
    m.umount();
    let mut child = Command::new(BINARY)
        .args(["mount".as_ref(), m.store.as_os_str(), m.mnt.as_os_str()])
        .args(["-f", "-o", "size=48MiB,evict=fifo,noexec"])
        .spawn()
        .unwrap();
    let live =
        crate::harness::wait_until(std::time::Duration::from_secs(30), || m.mnt.join("default").is_dir());
    let status = live.then(|| m.status());
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let ended = fencefs(["umount".as_ref(), m.mnt.as_os_str()]).status.success()
        && crate::harness::wait_until(std::time::Duration::from_secs(30), || {
            child.try_wait().unwrap().is_some()
        });
    if !ended {
        child.kill().unwrap();
    }
    let code = child.wait().unwrap();
    assert!(ended && code.success(), "{code:?}");
    let status = status.expect("mounted");
    assert_eq!((&status["quota_bytes"], &status["evict"]), (&Value::from(48 << 20), &Value::from("fifo")));
    let line = table.lines().find(|l| l.split(' ').nth(4) == m.mnt.to_str()).expect("in the table");
    assert!(line.contains("nosuid") && line.contains("nodev") && line.contains("noexec"), "{line}");
    assert!(line.contains("fuse.fencefs"), "{line}");
}

#[test]
fn the_size_defaults_to_most_of_the_disk() {
    if !can_mount() {
        return;
    }
    let m = Builder::new().mount();
    let disk = rustix::fs::statvfs(&m.store).unwrap();
    let expected = disk.f_blocks * disk.f_frsize / 10 * 9;
    assert!(m.status_number("quota_bytes").abs_diff(expected) < expected / 50, "{}", m.status());
    run(Command::new("df").arg(&m.mnt)).ok();
}
