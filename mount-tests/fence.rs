//! What a removal means to those who use the mount meanwhile: mutations wait, old handles are refused, readers finish,
//! and the kernel forgets.
//!
//! A removal that must not end is one whose trash holds a file that cannot be unlinked: it fails, stays pending, and its
//! fence stays closed until the file is let go.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::IFlags;
use serde_json::Value;

use crate::harness::{Builder, Mount, can_mount, each, each_with, wait_until};

const PATIENCE: Duration = Duration::from_secs(30);

/// A control file that is open for both, with the lines that were read from it.
struct Control {
    file: File,
    unread: Vec<u8>,
}

impl Control {
    fn open(path: &Path) -> Control {
        Control { file: OpenOptions::new().read(true).write(true).open(path).unwrap(), unread: Vec::new() }
    }

    #[track_caller]
    fn write(&mut self, line: &str) {
        self.file.write_all(line.as_bytes()).unwrap();
    }

    /// The next line, waiting for it.
    #[track_caller]
    fn line(&mut self) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.unread.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=at).collect();
                return serde_json::from_slice(&line).unwrap();
            }
            let mut bytes = [0; 4096];
            match self.file.read(&mut bytes) {
                Ok(0) => panic!("the stream has ended"),
                Ok(n) => self.unread.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => panic!("{e}"),
            }
            assert!(Instant::now() < end, "no line came");
        }
    }
}

fn control(m: &Mount) -> Control {
    Control::open(&m.mnt.join(".fencefs/control"))
}

/// Removes the default tenant and waits for the end; the generation.
#[track_caller]
fn remove_default(m: &Mount) -> u64 {
    let mut control = control(m);
    control.write("remove-all tenant=default\n");
    let first = control.line();
    assert_eq!((&first["ok"], &first["tenant"]), (&true.into(), &"default".into()));
    let second = control.line();
    assert_eq!((&second["ok"], &second["state"]), (&true.into(), &"complete".into()), "{second}");
    assert_eq!(first["generation"], second["generation"]);
    second["generation"].as_u64().unwrap()
}

/// A record that no removal can delete, as long as this lives.
struct Stuck(File);

impl Stuck {
    /// The record of a plain key; `None` where the filesystem cannot do it.
    fn key(m: &Mount, name: &str) -> Option<Stuck> {
        fs::write(m.key(name), b"stuck").unwrap();
        let record = File::open(m.record_of(name)).unwrap();
        match rustix::fs::ioctl_setflags(&record, IFlags::IMMUTABLE) {
            Ok(()) => Some(Stuck(record)),
            Err(e) => {
                eprintln!("skipped: no immutable files here ({e})");
                None
            }
        }
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        if let Err(e) = rustix::fs::ioctl_setflags(&self.0, IFlags::empty()) {
            eprintln!("cannot let a record go: {e}");
        }
    }
}

/// Asks for a removal that fails for now, and waits until it has.
#[track_caller]
fn remove_in_vain(m: &Mount, tenant: &str) -> Control {
    let mut control = control(m);
    control.write(&format!("remove-all tenant={tenant}\n"));
    assert_eq!(control.line()["ok"], true);
    let failed = control.line();
    assert_eq!((&failed["ok"], &failed["state"]), (&false.into(), &"failed".into()), "{failed}");
    assert_eq!((&failed["tenant"], &failed["scope"]), (&tenant.into(), &"tenant".into()), "{failed}");
    assert!(failed["message"].as_str().is_some_and(|why| !why.is_empty()), "{failed}");
    control
}

fn errno(result: std::io::Result<impl Sized>) -> i32 {
    result.err().and_then(|e| e.raw_os_error()).unwrap_or(0)
}

#[test]
fn mutations_of_a_closed_scope_wait_and_then_are_busy() {
    each_with(
        |b| b.arg("--fence-wait").arg("300ms"),
        |m| {
            fs::create_dir(m.mnt.join("other")).unwrap();
            fs::create_dir(m.key("dir")).unwrap();
            let Some(stuck) = Stuck::key(m, "stuck") else { return };
            let _control = remove_in_vain(m, "default");
            let mut peer = m.peer();
            for step in [
                "open(M + '/new', 'w')",
                "os.open(M + '/new', os.O_CREAT | os.O_RDONLY, 0o600)",
                "os.mkdir(M + '/newdir')",
                "os.symlink('x', M + '/link')",
                "os.mknod(M + '/node', 0o600 | stat.S_IFREG)",
            ] {
                let begun = Instant::now();
                assert_eq!(peer.error(step), "EBUSY", "{step}");
                assert!(begun.elapsed() >= Duration::from_millis(300), "{step}: {:?}", begun.elapsed());
            }
            // Other scopes go on.
            fs::write(m.mnt.join("other/k"), b"v").unwrap();
            assert_eq!(fs::read(m.mnt.join("other/k")).unwrap(), b"v");
            // The root directory is never locked for that long.
            fs::create_dir(m.mnt.join("third")).unwrap();
            drop(stuck);
            assert!(wait_until(PATIENCE, || fs::write(m.key("new"), b"v").is_ok()));
            assert_eq!(fs::read_dir(m.keys()).unwrap().count(), 1);
        },
    );
}

#[test]
fn what_waits_goes_on_when_the_fence_opens() {
    each_with(
        |b| b.arg("--fence-wait").arg("60s"),
        |m| {
            fs::create_dir(m.mnt.join("other")).unwrap();
            fs::create_dir(m.key("dir")).unwrap();
            let Some(stuck) = Stuck::key(m, "stuck") else { return };
            let mut control = remove_in_vain(m, "default");
            let mut peers: Vec<_> = (0..12).map(|_| m.peer()).collect();
            for (n, peer) in peers.iter_mut().enumerate() {
                peer.begin(&format!("write(M + '/new{n}', b'{n}')"));
            }
            // More requests wait than the daemon has threads, and others do not notice.
            let begun = Instant::now();
            for n in 0..50 {
                fs::write(m.mnt.join(format!("other/{n}")), b"v").unwrap();
            }
            assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
            drop(stuck);
            control.write("retry\n");
            for peer in &mut peers {
                let answer = peer.finish();
                assert!(answer.get("ok").is_some(), "{answer}");
            }
            assert!(begun.elapsed() < Duration::from_secs(50), "they waited for the fence, not for the end");
            for n in 0..peers.len() {
                assert_eq!(fs::read_to_string(m.key(format!("new{n}"))).unwrap(), n.to_string());
            }
        },
    );
}

#[test]
fn old_handles_are_stale_and_publish_nothing() {
    each(|m| {
        fs::write(m.key("edited"), b"old").unwrap();
        fs::write(m.key("replaced"), b"old").unwrap();
        let mut peer = m.peer();
        peer.run("created = os.open(M + '/created', os.O_CREAT | os.O_RDWR, 0o600); os.write(created, b'x')");
        peer.run("edited = os.open(M + '/edited', os.O_RDWR); os.write(edited, b'n')");
        peer.run("replaced = os.open(M + '/replaced', os.O_WRONLY | os.O_TRUNC); os.write(replaced, b'x')");
        peer.run("empty = os.open(M + '/empty', os.O_CREAT | os.O_WRONLY, 0o600)");
        remove_default(m);
        assert_eq!(peer.error("os.write(replaced, b'y')"), "ESTALE");
        for fd in ["created", "edited", "replaced", "empty"] {
            assert_eq!(peer.error(&format!("os.ftruncate({fd}, 1)")), "ESTALE", "{fd}");
            assert_eq!(peer.error(&format!("os.fsync({fd})")), "ESTALE", "{fd}");
            assert_eq!(peer.error(&format!("os.posix_fallocate({fd}, 0, 10)")), "ESTALE", "{fd}");
        }
        // A new value of the same name has nothing to do with the cancelled one.
        fs::write(m.key("created"), b"new").unwrap();
        for fd in ["created", "edited", "replaced", "empty"] {
            assert_eq!(peer.error(&format!("os.close({fd})")), "ESTALE", "{fd}");
        }
        assert_eq!(fs::read(m.key("created")).unwrap(), b"new");
        assert_eq!(fs::read_dir(m.keys()).unwrap().count(), 1);
        m.remount();
        assert_eq!(fs::read(m.key("created")).unwrap(), b"new");
        assert_eq!(fs::read_dir(m.keys()).unwrap().count(), 1);
    });
}

#[test]
fn an_unpublished_value_is_not_renamed_over_the_boundary() {
    each(|m| {
        let mut peer = m.peer();
        peer.run("f = open(M + '/tmp', 'wb', buffering=0); f.write(b'x')");
        remove_default(m);
        let refused = peer.error("os.rename(M + '/tmp', M + '/final')");
        assert!(refused == "ESTALE" || refused == "ENOENT", "{refused}");
        assert_eq!(peer.error("f.close()"), "ESTALE");
        assert_eq!(fs::read_dir(m.keys()).unwrap().count(), 0);
    });
}

#[test]
fn readers_of_removed_keys_finish() {
    each(|m| {
        let value = vec![7; 300_000];
        fs::create_dir(m.key("d")).unwrap();
        for name in ["k", "d/k"] {
            fs::write(m.key(name), &value).unwrap();
        }
        let mut peer = m.peer();
        for (name, path) in [("a", "k"), ("b", "d/k")] {
            peer.run(&format!("{name} = open(M + '/{path}', 'rb'); {name}m = mmap.mmap({name}.fileno(), 0, prot=mmap.PROT_READ)"));
        }
        remove_default(m);
        for name in ["a", "b"] {
            assert_eq!(peer.int(&format!("len({name}.read())")), 300_000);
            assert_eq!(peer.int(&format!("sum({name}m[::1000])")), 7 * 300);
            assert_eq!(peer.int(&format!("os.fstat({name}.fileno()).st_size")), 300_000);
            peer.run(&format!("{name}m.close(); {name}.close()"));
        }
    });
}

#[test]
fn a_removed_key_is_gone_at_once_whoever_holds_what() {
    each(|m| {
        fs::create_dir_all(m.key("a/b")).unwrap();
        let files = ["k", "a/k", "a/b/k", "a/b/open", "open"];
        for name in files {
            fs::write(m.key(name), b"v").unwrap();
        }
        let (before, mut inside, mut holder) = (fs::metadata(m.keys()).unwrap(), m.peer(), m.peer());
        inside.run("os.chdir(M + '/a/b'); os.listdir('.'), os.stat('k'), read('k')");
        holder
            .run("held = [open(M + p) for p in ('/open', '/a/b/open')]; os.listdir(M), os.listdir(M + '/a')");
        for name in files {
            fs::metadata(m.key(name)).unwrap();
        }
        remove_default(m);
        for name in files.into_iter().chain(["a", "a/b"]) {
            let path = m.key(name);
            assert_eq!(errno(fs::metadata(&path)), libc::ENOENT, "stat {name}");
            assert_eq!(errno(File::open(&path)), libc::ENOENT, "open {name}");
            let access = rustix::fs::access(&path, rustix::fs::Access::EXISTS);
            assert_eq!(access, Err(rustix::io::Errno::NOENT), "access {name}");
        }
        assert_eq!(fs::read_dir(m.keys()).unwrap().count(), 0);
        for step in [
            "open('k')",
            "os.stat('k')",
            "os.stat('.')",
            "os.stat('../k')",
            "os.listdir('.')",
            "open('new', 'w')",
            "os.mkdir('new')",
            "os.symlink('x', 'new')",
            "open(M + '/a/new', 'w')",
        ] {
            assert_eq!(inside.error(step), "ENOENT", "{step}");
        }
        let after = fs::metadata(m.keys()).unwrap();
        assert_eq!(
            (after.ino(), after.uid(), after.gid(), after.mode()),
            (before.ino(), before.uid(), before.gid(), before.mode())
        );
        // The same names can be used again, also where somebody works in the old ones.
        fs::create_dir_all(m.key("a/b")).unwrap();
        fs::write(m.key("a/b/k"), b"new").unwrap();
        assert_eq!(inside.error("open('k')"), "ENOENT");
        assert_eq!(inside.text("read(M + '/a/b/k')"), "new");
        fs::write(m.key("open"), b"new").unwrap();
        assert_eq!(fs::read(m.key("open")).unwrap(), b"new");
        assert_eq!(holder.text("held[0].read()"), "v");
    });
}

#[test]
fn a_view_of_one_tenant_forgets_as_well() {
    each_with(
        |b| b.tenant("t"),
        |m| {
            fs::create_dir(m.key("a")).unwrap();
            for name in ["k", "a/k"] {
                fs::write(m.key(name), b"v").unwrap();
                fs::metadata(m.key(name)).unwrap();
            }
            let mut inside = m.peer();
            inside.run("os.chdir(M + '/a'); held = open('k')");
            let mut control = control(m);
            control.write("remove-all tenant=t\n");
            control.line();
            assert_eq!(control.line()["state"], "complete");
            for name in ["k", "a/k", "a"] {
                assert_eq!(errno(fs::metadata(m.key(name))), libc::ENOENT, "{name}");
            }
            assert_eq!(inside.error("open('new', 'w')"), "ENOENT");
            fs::write(m.key("k"), b"new").unwrap();
            assert_eq!(fs::read(m.key("k")).unwrap(), b"new");
        },
    );
}

#[test]
fn a_write_under_a_told_epoch_ends_with_it() {
    each(|m| {
        let epoch = |m: &Mount| m.control("epoch tenant=default").1["epoch"].as_u64().unwrap();
        let told = epoch(m);
        let mut peer = m.peer();
        let open = |peer: &mut crate::peer::Peer, name: &str, epoch: u64| {
            peer.run(&format!("f = open(M + '/{name}', 'wb', buffering=0)"));
            peer.run(&format!("os.setxattr(f.fileno(), 'user.fencefs.epoch', b'{epoch}'); f.write(b'x')"));
        };
        open(&mut peer, "in-time", told);
        peer.run("f.close()");
        assert_eq!(fs::read(m.key("in-time")).unwrap(), b"x");
        let generation = remove_default(m);
        assert_eq!(epoch(m), generation);
        open(&mut peer, "late", told);
        assert_eq!(peer.error("f.close()"), "ESTALE");
        assert!(!m.key("late").exists());
        open(&mut peer, "again", generation);
        // By its path it is the same value, for whoever writes it.
        peer.run(&format!("os.setxattr(M + '/again', 'user.fencefs.epoch', b'{told}')"));
        assert_eq!(peer.error("f.close()"), "ESTALE");
        open(&mut peer, "again", generation);
        peer.run("f.close()");
        // An edit in place is refused before it begins.
        peer.run("f = open(M + '/again', 'r+b', buffering=0)");
        peer.run(&format!("os.setxattr(f.fileno(), 'user.fencefs.epoch', b'{generation}')"));
        let late = format!("os.setxattr(f.fileno(), 'user.fencefs.epoch', b'{told}')");
        assert_eq!(peer.error(&late), "ESTALE");
        peer.run("f.close()");
    });
}

/// Rounds of a removal, without blocking and with poll.
const POLLING: &str = r#"
import select
def rounds(path, n):
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLOUT)
    reads = select.poll()
    reads.register(fd, select.POLLIN)
    for at in range(n):
        write(f'{M}/k{at}', b'v')
        os.write(fd, b'remove-all tenant=default\n')
        assert poll.poll(0) == [(fd, select.POLLIN | select.POLLOUT)]
        text = b''
        while text.count(b'\n') < 2:
            try: text += os.read(fd, 4096)
            except BlockingIOError: assert reads.poll(30000) == [(fd, select.POLLIN)], text
        line = json.loads(text.splitlines()[1])
        assert line['ok'] and line['state'] == 'complete', text
        assert os.read(fd, 64) == b''
        assert poll.poll(0) == [(fd, select.POLLOUT)]
    os.close(fd)
"#;

#[test]
fn a_control_stream_tells_how_a_removal_ended() {
    each(|m| {
        let Some(stuck) = Stuck::key(m, "stuck") else { return };
        let mut control = remove_in_vain(m, "default");
        // Nothing more is to come for this stream: end of file, as for one that asked nothing long.
        assert_eq!(control.file.read(&mut [0; 64]).unwrap(), 0);
        drop(stuck);
        control.write("remove-all tenant=default\n");
        assert_eq!(control.line()["ok"], true);
        while control.line()["state"] != "complete" {
            control.write("remove-all tenant=default\n");
            assert_eq!(control.line()["ok"], true);
        }
        let mut peer = m.peer();
        peer.run(POLLING);
        peer.run("rounds(R + '/.fencefs/control', 20)");
        // Another open of this user has both lines as well; it never blocks.
        let latest = fs::read_to_string(m.mnt.join(".fencefs/control")).unwrap();
        assert_eq!(latest.lines().count(), 2, "{latest}");
        m.shell("echo 'remove-all tenant=default' > $R/.fencefs/control").ok();
    });
}

#[test]
fn requests_are_listed_where_they_reach() {
    each(|m| {
        fs::create_dir(m.mnt.join("other")).unwrap();
        let generation = remove_default(m);
        let read = |path: &str| -> Vec<Value> {
            let text = fs::read_to_string(m.mnt.join(path)).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        let rows = read(".fencefs/requests");
        let newest = rows.last().unwrap();
        assert_eq!((&newest["generation"], &newest["state"]), (&generation.into(), &"complete".into()));
        assert_eq!((&newest["scope"], &newest["tenant"]), (&"tenant".into(), &"default".into()));
        assert_eq!(read("default/.fencefs/requests").len(), rows.len());
        assert!(read("other/.fencefs/requests").is_empty());
        let mut control = control(m);
        control.write("remove-all scope=global\n");
        assert!(control.line()["tenant"].is_null());
        assert_eq!(control.line()["scope"], "global");
        assert_eq!(read("other/.fencefs/requests").len(), 1);
        assert_eq!(read(".fencefs/requests").len(), rows.len() + 1);
    });
}

/// What a C program would do, in python.
const IOCTL: &str = r#"
import fcntl, struct
def call(path, number, version=1, scope=1, flags=0, tenant=b'', generation=0, reserved=0):
    argument = struct.pack('=IIII256sQQ', version, scope, flags, 0, tenant, generation, reserved)
    fd = os.open(path, os.O_RDONLY)
    try: answer = fcntl.ioctl(fd, 0xc120fc00 | number, argument)
    finally: os.close(fd)
    return struct.unpack('=IIII256sQQ', answer)
def end(path, generation, **scope):
    import time
    state = 0
    while state not in (3, 4):
        state = call(path, 2, generation=generation, **scope)[3]
        time.sleep(0.01)
    return state
C, T = R + '/.fencefs/control', R + '/a/.fencefs/control'
"#;

#[test]
fn programs_ask_by_ioctl() {
    each(|m| {
        for tenant in ["a", "b"] {
            fs::create_dir(m.mnt.join(tenant)).unwrap();
            fs::write(m.mnt.join(tenant).join("k"), b"v").unwrap();
        }
        let mut peer = m.peer();
        peer.run(IOCTL);
        let generation = peer.int("call(C, 1, tenant=b'a')[5]");
        assert!(generation > 0);
        assert_eq!(peer.int(&format!("end(C, {generation}, tenant=b'a')")), 3);
        assert!(!m.mnt.join("a/k").exists() && m.mnt.join("b/k").exists());
        assert_eq!(peer.error(&format!("call(C, 2, tenant=b'b', generation={generation})")), "EINVAL");
        assert_eq!(peer.error("call(C, 2, tenant=b'a', generation=999999)"), "ENOENT");
        assert_eq!(peer.error("call(T, 1, tenant=b'b')"), "EACCES");
        assert_eq!(peer.error("call(T, 1, scope=0)"), "EACCES");
        assert_eq!(peer.error("call(C, 1, version=2, tenant=b'a')"), "EINVAL");
        assert_eq!(peer.error("call(C, 1, scope=0, flags=1)"), "EINVAL");
        assert_eq!(peer.error("call(C, 3, tenant=b'a')"), "ENOTTY");
        assert_eq!(peer.error("call(R + '/b/k', 1, tenant=b'a')"), "ENOTTY");
        assert_eq!(peer.error("call(R + '/.fencefs/status', 1, tenant=b'a')"), "ENOTTY");
        assert!(peer.int("call(T, 1, tenant=b'a')[5]") > generation);
        let global = peer.int("call(C, 1, scope=0)[5]");
        assert_eq!(peer.int(&format!("end(C, {global}, scope=0)")), 3);
        assert!(!m.mnt.join("b/k").exists());
    });
}

#[test]
fn who_cannot_write_a_tenant_cannot_clear_it() {
    if !can_mount() {
        return;
    }
    let m = &Builder::new().arg("--allow-other").mount();
    for (tenant, mode, uid) in [("own", 0o755, 4242), ("all", 0o777, 0), ("none", 0o755, 0)] {
        let path = m.mnt.join(tenant);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(&path, Some(uid), Some(uid)).unwrap();
        fs::write(path.join("k"), b"v").unwrap();
    }
    // The test's directory is root's alone: the user goes in through a descriptor.
    let mut peer = m.peer();
    peer.run(IOCTL);
    peer.run(
        "os.chdir(R); R = '.'; os.setgroups([]); os.setgid(4242); os.setuid(4242); C = '.fencefs/control'",
    );
    for tenant in ["own", "all"] {
        let generation = peer.int(&format!("call(C, 1, tenant=b'{tenant}')[5]"));
        assert_eq!(peer.int(&format!("end(C, {generation}, tenant=b'{tenant}')")), 3);
        assert!(!m.mnt.join(tenant).join("k").exists());
        peer.run(&format!("write(C, b'remove-all tenant={tenant}')"));
    }
    assert_eq!(peer.error("call(C, 1, tenant=b'none')"), "EACCES");
    assert_eq!(peer.error("call(C, 1, scope=0)"), "EACCES");
    assert_eq!(peer.error("write(C, b'remove-all tenant=none')"), "EACCES");
    assert_eq!(peer.error("write(C, b'remove-all scope=global')"), "EACCES");
    assert!(m.mnt.join("none/k").exists());
    assert_eq!(fs::read(m.mnt.join(OsStr::new("none/k"))).unwrap(), b"v");
}
