//! The other ways to ask for a removal: ioctl, the command line, a mount of one tenant.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Mount, each, each_with, fencefs, wait_until};
use crate::peer::Peer;
use crate::removals::{
    Bystander, Control, OTHER, OWNER, PATIENCE, Stuck, assert_counters_equal_the_disk, assert_empty, epoch,
    generation, query, remove, requests, two_tenants, wait_complete,
};

/// `struct fencefs_remove_all` and its two ioctls, as a program without any of our headers makes them.
const IOCTL: &str = "import struct, time
LAYOUT = '=IIII256sQQ'
assert struct.calcsize(LAYOUT) == 288
REMOVE_ALL, QUERY = (3 << 30 | 288 << 16 | 0xFC << 8 | n for n in (1, 2))
def call(fd, what, scope, tenant, generation=0, version=1, flags=0):
    data = bytearray(struct.pack(LAYOUT, version, scope, flags, 77, tenant, generation, 0))
    fcntl.ioctl(fd, what, data)
    return struct.unpack(LAYOUT, bytes(data))
def control(dir): return os.open(dir + '/.fencefs/control', os.O_RDWR)
def finish(fd, scope, tenant, generation):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if call(fd, QUERY, scope, tenant, generation)[3] == 3: return 3
        time.sleep(0.005)
    return call(fd, QUERY, scope, tenant, generation)[3]";

/// A peer that can call.
fn caller(m: &Mount) -> Peer {
    let mut peer = m.peer();
    peer.run(IOCTL);
    peer
}

/// INTERFACE: ioctl on the control file.
#[test]
fn ioctl_submits_and_queries() {
    each(|m| {
        two_tenants(m);
        let b = Bystander::look(m);
        let mut a = caller(m);
        a.run("fd = control(R)");
        let first = a.int("call(fd, REMOVE_ALL, 1, b'a')[5]");
        assert_eq!(first, 1);
        assert_eq!(a.int(&format!("finish(fd, 1, b'a', {first})")), 3);
        assert_empty(m, "a");
        b.assert_untouched(m);
        // A name that fills its field up to the NUL is one of 255 bytes: longer than any tenant's.
        for bad in [
            "call(fd, REMOVE_ALL, 1, b'a', version=2)",
            "call(fd, REMOVE_ALL, 1, b'a', version=0)",
            "call(fd, REMOVE_ALL, 2, b'a')",
            "call(fd, REMOVE_ALL, 1, b'a', flags=2)",
            "call(fd, REMOVE_ALL, 1, b'')",
            "call(fd, REMOVE_ALL, 1, b'x' * 255)",
            "call(fd, REMOVE_ALL, 1, b'a' * 256)",
            "call(fd, REMOVE_ALL, 1, b'../b')",
            "call(fd, REMOVE_ALL, 0, b'a')",
            "call(fd, REMOVE_ALL, 0, b'', flags=1)",
            "call(fd, QUERY, 1, b'a', 1, version=2)",
        ] {
            assert_eq!(a.error(bad), "EINVAL", "{bad}");
        }
        assert_eq!(a.error("call(fd, REMOVE_ALL, 1, b'nosuch')"), "ENOENT");
        assert_eq!(a.error("call(fd, QUERY, 1, b'a', 99)"), "ENOENT");
        let unknown = a.error("fcntl.ioctl(fd, 3 << 30 | 288 << 16 | 0xFC << 8 | 9, bytearray(288))");
        assert!(["ENOTTY", "EINVAL"].contains(&unknown.as_str()), "{unknown}");
        b.assert_untouched(m);
        assert_eq!(m.status_number("generation"), 1);
        // The global scope, and the logical mode.
        let global = a.int("call(fd, REMOVE_ALL, 0, b'')[5]");
        assert_eq!(a.int(&format!("finish(fd, 0, b'', {global})")), 3);
        assert_empty(m, "b");
        m.shell("echo x > $R/a/k1").ok();
        let logical = a.int("call(fd, REMOVE_ALL, 1, b'a', flags=1)[5]");
        assert_eq!(a.int(&format!("finish(fd, 1, b'a', {logical})")), 3);
        assert!(first < global && global < logical);
        assert_eq!(query(m, &format!("generation={logical}"))["mode"], "logical");
        assert!(wait_until(PATIENCE, || crate::removals::is_empty_dir(&m.store.join("data/.trash"))));
        assert_empty(m, "a");
        assert_counters_equal_the_disk(m);
    });
}

/// The same rules of who may ask for what.
#[test]
fn ioctl_knows_the_control_files_of_tenants_and_their_owners() {
    each(|m| {
        two_tenants(m);
        let (mut root, mut owner, mut other) = (caller(m), caller(m), caller(m));
        root.run("fd = control(R + '/a')");
        for refused in ["call(fd, REMOVE_ALL, 1, b'b')", "call(fd, REMOVE_ALL, 0, b'')"] {
            let errno = root.error(refused);
            assert!(["EACCES", "EPERM"].contains(&errno.as_str()), "{refused}: {errno}");
        }
        for (peer, uid) in [(&mut owner, OWNER), (&mut other, OTHER)] {
            peer.run(&format!("os.setgroups([]); os.setgid({uid}); os.setuid({uid}); fd = control(R)"));
            assert_eq!(peer.error("call(fd, REMOVE_ALL, 0, b'')"), "EACCES");
        }
        assert_eq!(other.error("call(fd, REMOVE_ALL, 1, b'a')"), "EACCES");
        assert_eq!(other.error("call(control(R + '/a'), REMOVE_ALL, 1, b'a')"), "EACCES");
        m.shell("for t in a b; do diff -r --no-dereference $W/copy-$t $R/$t; done").ok();
        for fd in ["fd", "control(R + '/a')"] {
            owner.run(&format!("f = {fd}; g = call(f, REMOVE_ALL, 1, b'a')[5]"));
            assert_eq!(owner.int("finish(f, 1, b'a', g)"), 3);
            assert_empty(m, "a");
        }
        m.shell("diff -r --no-dereference $W/copy-b $R/b").ok();
    });
}

/// The command line: exit status, JSON, both scopes.
#[test]
fn the_command_removes_waits_and_reports() {
    each(|m| {
        two_tenants(m);
        let b = Bystander::look(m);
        let mnt = m.mnt.to_str().unwrap().to_owned();
        let json = |args: &[&str]| -> Value {
            let text = fencefs(["remove-all", &mnt].iter().chain(args)).ok();
            serde_json::from_str(text.lines().last().unwrap_or_else(|| panic!("no reply: {args:?}"))).unwrap()
        };
        fencefs(["remove-all", &mnt, "--tenant", "a"]).ok();
        assert_empty(m, "a");
        b.assert_untouched(m);
        m.shell("echo x > $R/a/k1").ok();
        let done = json(&["--tenant", "a", "--json"]);
        assert_eq!((&done["state"], &done["tenant"]), (&"complete".into(), &"a".into()), "{done}");
        assert_eq!(generation(&done), epoch(m, "a"));
        assert_empty(m, "a");
        let logical = json(&["--tenant", "a", "--logical", "--json", "--timeout", "20s"]);
        assert_eq!((&logical["state"], &logical["mode"]), (&"complete".into(), &"logical".into()));
        let later = json(&["--tenant", "a", "--no-wait", "--json"]);
        wait_complete(m, &format!("generation={}", generation(&later)));
        b.assert_untouched(m);
        let global = json(&["--global", "--json"]);
        assert_eq!(global["scope"], "global");
        assert_empty(m, "b");
        let listed = fencefs(["requests", &mnt, "--json"]).ok();
        let listed: Vec<Value> = match serde_json::from_str(&listed) {
            Ok(Value::Array(all)) => all,
            Ok(object) if object["requests"].is_array() => object["requests"].as_array().unwrap().clone(),
            _ => listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
        };
        assert_eq!(listed.len(), 5, "{listed:?}");
        assert_eq!(listed.last().map(generation), Some(generation(&global)));
        assert!(fencefs(["requests", &mnt]).ok().contains("complete"));
        // What means nothing is 2, what is refused is 1.
        for usage in [
            &[][..],
            &["--tenant", "a", "--global"],
            &["--global", "--logical"],
            &["--tenant", ".a"],
            &["--tenant", "a", "--timeout", "soon"],
        ] {
            assert_eq!(fencefs(["remove-all", &mnt].iter().chain(usage)).failed().0, 2, "{usage:?}");
        }
        let (code, text) = fencefs(["remove-all", &mnt, "--tenant", "nosuch"]).failed();
        assert_eq!((code, text.trim_end().lines().count()), (1, 1), "{text}");
        assert!(text.contains("nosuch"), "{text}");
        assert_eq!(fencefs(["remove-all", m.scratch.to_str().unwrap(), "--global"]).failed().0, 1);
        assert_eq!(fencefs(["requests", m.scratch.to_str().unwrap()]).failed().0, 1);
        let zero = "00000000-0000-4000-8000-000000000001";
        assert_eq!(fencefs(["forget", &mnt, "--storage", zero]).failed().0, 1);
        assert_counters_equal_the_disk(m);
    });
}

/// A removal that fails, or is not done in time, is no success; the request stays.
#[test]
fn the_command_fails_while_the_removal_does() {
    each(|m| {
        two_tenants(m);
        let mnt = m.mnt.to_str().unwrap().to_owned();
        let Some(mut stuck) = Stuck::new(m, "a/k7") else { return };
        let begun = Instant::now();
        let (code, text) = fencefs(["remove-all", &mnt, "--tenant", "a", "--timeout", "2s"]).failed();
        assert_eq!(code, 1, "{text}");
        assert!(begun.elapsed() >= Duration::from_secs(2), "a failed attempt is not the end: {text}");
        assert!(text.contains("an attempt failed and will be repeated: data/"), "{text}");
        for advice in
            ["lsattr", "chattr -i", "request 1 is durable, and not complete after 2s", "fencefs retry"]
        {
            assert!(text.contains(advice), "{advice}: {text}");
        }
        let listed = requests(m);
        assert_eq!(listed.len(), 1);
        assert_ne!(listed[0]["state"], "complete");
        stuck.release();
        assert!(fencefs(["retry", &mnt]).ok().contains("attempted again now"));
        wait_complete(m, &format!("generation={}", generation(&listed[0])));
        assert_empty(m, "a");
        let said = fencefs(["retry", &mnt, "--generation", "1"]).ok();
        assert_eq!(said, "generation 1, tenant a: complete\n");
        let json: Value = serde_json::from_str(&fencefs(["retry", &mnt, "--json"]).ok()).unwrap();
        assert_eq!(json["ok"], true);
        let (code, text) = fencefs(["retry", &mnt, "--generation", "9"]).failed();
        assert!(code == 1 && text.contains("generation 9 was never given"), "{text}");
    });
}

/// Issue 8: in a view of one tenant there is nothing else to clear.
#[test]
fn a_view_clears_its_tenant_alone() {
    each_with(
        |b| b.arg("--fence-wait").arg("1s"),
        |m| {
            two_tenants(m);
            m.umount();
            m.set_arg("--tenant", "a");
            m.mount();
            m.shell("[ $(stat -c %s $R/k12) = 36000 ]").ok();
            for line in ["remove-all scope=global", "remove-all tenant=b"] {
                let (errno, reply) = Control::open(m).refused(line);
                assert!([libc::EACCES, libc::EPERM].contains(&errno), "{line}: {reply}");
            }
            let mut peer = m.peer();
            peer.run("os.stat(R + '/k1'); os.stat(R + '/deep/er/k1')");
            let done = Control::open(m).remove("tenant=a");
            assert_eq!(peer.error("os.stat(R + '/k1')"), "ENOENT");
            assert_eq!(peer.error("os.stat(R + '/deep/er/k1')"), "ENOENT");
            m.shell("[ -z \"$(ls -A $R)\" ]; echo new > $R/k1").ok();
            let mnt = m.mnt.to_str().unwrap().to_owned();
            fencefs(["remove-all", &mnt, "--tenant", "a"]).ok();
            m.shell("[ -z \"$(ls -A $R)\" ]; echo new > $R/k1").ok();
            assert_eq!(fencefs(["remove-all", &mnt, "--global"]).failed().0, 1);
            m.umount();
            m.unset_arg("--tenant");
            m.mount();
            m.shell("[ $(cat $R/a/k1) = new ]; diff -r --no-dereference $W/copy-b $R/b").ok();
            assert!(epoch(m, "a") > generation(&done));
            assert_eq!(epoch(m, "b"), 0);
            assert!(remove(m, "tenant=a") > generation(&done));
            assert_counters_equal_the_disk(m);
        },
    );
}
