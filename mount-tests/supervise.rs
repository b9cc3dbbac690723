//! `--supervise`: a daemon dies, or hands its mount on, and programs go on.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{BINARY, Builder, Mount, can_mount, each_with, fencefs, is_alive, wait_until};

const PATIENCE: Duration = Duration::from_secs(30);

fn supervised(body: impl Fn(&mut Mount)) {
    each_with(|builder: Builder| builder.arg("--supervise"), body);
}

/// Whether a process is gone with all of its threads: until then one of them may take a request, which fails.
fn is_gone(pid: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()));
    !is_alive(pid) && threads.map_or(0, Iterator::count) <= 1
}

/// Kills the daemon while who supervises it is stopped, so that nobody takes over yet.
#[track_caller]
fn kill_and_hold(m: &Mount) {
    let daemon = m.supervised();
    kill_process(m.pid(), Signal::STOP).unwrap();
    kill_process(daemon, Signal::KILL).unwrap();
    assert!(wait_until(PATIENCE, || is_gone(daemon)), "a killed daemon ends");
}

/// Lets another daemon take over.
fn go_on(m: &Mount) {
    kill_process(m.pid(), Signal::CONT).unwrap();
}

#[track_caller]
fn kill(m: &Mount) {
    let daemon = m.supervised();
    kill_process(daemon, Signal::KILL).unwrap();
    // What it had taken, or takes while it dies, fails.
    assert!(wait_until(PATIENCE, || is_gone(daemon)), "a killed daemon ends");
}

/// Has the daemon hand its mount on, and waits until another one has it.
#[track_caller]
fn hand_on(m: &Mount) {
    let before = m.supervised();
    kill_process(m.pid(), Signal::USR1).unwrap();
    assert!(wait_until(PATIENCE, || !is_alive(before)), "the daemon did not let go");
    assert_ne!(m.supervised(), before);
}

#[test]
fn programs_wait_for_the_next_daemon_and_the_mount_stays() {
    supervised(|m| {
        m.shell("mkdir $M/d; echo one > $M/d/k; echo two > $M/l").ok();
        let device = fs::metadata(&m.mnt).unwrap().dev();
        let [mut a, mut b] = [m.peer(), m.peer()];
        kill_and_hold(m);
        a.begin("read(M + '/d/k')");
        b.begin("write(M + '/new', b'x'); read(M + '/new')");
        go_on(m);
        assert_eq!(a.finish()["ok"], "one\n");
        assert!(b.finish().get("errno").is_none());
        m.shell("[ $(cat $M/new) = x ] && [ $(cat $M/l) = two ] && [ $(ls $M | wc -l) = 3 ]").ok();
        assert_eq!(fs::metadata(&m.mnt).unwrap().dev(), device, "the same mount");
        assert_eq!(m.status()["state"], "ready");
        m.umount();
        m.mount();
        m.shell("[ $(cat $M/d/k) = one ]").ok();
    });
}

#[test]
fn what_the_kernel_reads_by_itself_is_read_on() {
    supervised(|m| {
        m.shell("head -c 300000 /dev/urandom > $W/v; cp $W/v $M/v").ok();
        let mut a = m.peer();
        a.run("v = read(W + '/v'); f = os.open(M + '/v', os.O_RDONLY); os.pread(f, 10, 0)");
        a.run("mm = mmap.mmap(f, 300000, prot=mmap.PROT_READ); mm[:10]");
        let passthrough = m.status()["passthrough"] == true;
        kill_and_hold(m);
        if passthrough {
            // Also while there is no daemon at all.
            assert_eq!(a.run("os.pread(f, 300000, 0) == v"), true);
            assert_eq!(a.run("mm[:] == v"), true);
        }
        go_on(m);
        a.run("assert read(M + '/v') == v");
        if passthrough {
            assert_eq!(a.run("os.pread(f, 300000, 0) == v"), true);
        } else {
            // The pages that the kernel has are its own; what it asks for is refused.
            assert_eq!(a.error("os.pread(f, 10, 200000)"), "ESTALE");
        }
        a.run("os.close(f)");
    });
}

#[test]
fn what_was_not_published_is_not_and_its_writer_is_told() {
    supervised(|m| {
        m.shell("echo old > $M/k").ok();
        let mut a = m.peer();
        a.run("w = os.open(M + '/new', os.O_CREAT | os.O_WRONLY); os.write(w, b'half')");
        a.run("r = os.open(M + '/k', os.O_WRONLY | os.O_TRUNC); os.write(r, b'half')");
        a.run("os.mkdir(M + '/d'); os.chdir(M + '/d')");
        kill(m);
        assert_eq!(a.error("os.close(w)"), "ESTALE");
        assert_eq!(a.error("os.close(r)"), "ESTALE");
        m.shell("[ $(cat $M/k) = old ] && [ ! -e $M/new ]").ok();
        // A directory that a process works in is entered again.
        assert_eq!(a.error("write('x', b'x')"), "ESTALE");
        a.run("os.chdir(M + '/d'); write('x', b'x')");
        m.shell("[ $(cat $M/d/x) = x ]").ok();
        assert_eq!(m.status_number("staged_bytes"), 0);
    });
}

#[test]
fn nothing_that_the_kernel_remembered_is_believed() {
    supervised(|m| {
        m.shell("for k in kept gone; do echo $k > $M/$k; cat $M/$k; done; ls -l $M; ! cat $M/missing").ok();
        let mut a = m.peer();
        a.run("os.stat(M + '/gone'); os.listdir(M); os.path.exists(M + '/missing')");
        let gone = m.record_of("gone");
        kill_and_hold(m);
        fs::remove_file(gone).unwrap();
        go_on(m);
        // Until there is a daemon, the kernel says what it last knew.
        assert_eq!(m.status_number("keys"), 1);
        assert_eq!(a.error("os.stat(M + '/gone')"), "ENOENT");
        assert_eq!(a.run("os.listdir(M)"), serde_json::json!(["kept"]));
    });
}

#[test]
fn an_old_control_descriptor_commands_nothing() {
    supervised(|m| {
        // The second tenant may get the first one's number in the next daemon.
        m.shell("mkdir $R/a $R/b; echo x > $R/a/k; echo x > $R/b/k; rm -r $R/a/k; rmdir $R/a").ok();
        let mut a = m.peer();
        a.run("c = os.open(R + '/b/.fencefs/control', os.O_RDWR)");
        a.run("g = os.open(R + '/.fencefs/control', os.O_RDWR)");
        kill(m);
        m.status();
        for fd in ["c", "g"] {
            assert_eq!(a.error(&format!("os.write({fd}, b'evict to=1')")), "ESTALE");
            let ask = format!("fcntl.ioctl({fd}, 0xC120FC01, b'\\x01\\0\\0\\0' + bytes(284))");
            assert!(["ENOTTY", "ESTALE"].contains(&a.error(&ask).as_str()));
        }
        assert_eq!(m.status_number("generation"), 0);
        m.shell("[ $(cat $R/b/k) = x ]").ok();
    });
}

#[test]
fn a_mount_is_handed_on_while_programs_go_on() {
    supervised(|m| {
        m.shell("head -c 300000 /dev/urandom > $W/v; cp $W/v $M/v").ok();
        let [mut a, mut b, mut reader] = [m.peer(), m.peer(), m.peer()];
        reader.run("v = read(W + '/v'); f = os.open(M + '/v', os.O_RDONLY)");
        reader.run("os.mkdir(M + '/desk'); os.chdir(M + '/desk'); l = os.open('.', os.O_RDONLY)");
        for (name, peer) in [("a", &mut a), ("b", &mut b)] {
            peer.run(&format!("os.mkdir(M + '/{name}')"));
            // Until it is told to end, each step whole and checked.
            peer.begin(&format!(
                "n = 0\nwhile not os.path.exists(W + '/enough') or n < 50:\n p = M + '/{name}/%d' % (n % 40)\n write(p, b'%d' \
                 % n * 50000)\n assert read(p) == b'%d' % n * 50000\n assert '%d' % (n % 40) in os.listdir(M + '/{name}')\n \
                 if n % 7 == 0: os.unlink(p)\n os.makedirs(M + '/{name}/d%d/e' % n); os.rmdir(M + '/{name}/d%d/e' % n); os.rmdir(M + '/{name}/d%d' % n)\n n += 1"
            ));
        }
        for _ in 0..4 {
            hand_on(m);
        }
        fs::write(m.scratch.join("enough"), "").unwrap();
        for peer in [&mut a, &mut b] {
            let answer = peer.finish();
            assert!(answer.get("ok").is_some(), "{answer}");
        }
        if m.status()["passthrough"] == true {
            assert_eq!(reader.run("os.pread(f, 300000, 0) == v and os.fstat(f).st_size == 300000"), true);
        }
        // Who works in a directory goes on in it.
        reader.run("write('x', b'x'); assert read(M + '/desk/x') == b'x' and os.listdir(l) == ['x']");
        reader.run("os.rename('x', 'y'); assert os.getcwd() == M + '/desk' and os.listdir('.') == ['y']");
        m.shell("rm $M/desk/y; [ -z \"$(ls $M/desk)\" ]").ok();
        assert_eq!(reader.run("os.listdir('.')"), serde_json::json!([]));
        m.settle_blocks();
        let records: u64 = m.records().iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(m.status_number("used_bytes"), records);
    });
}

#[test]
fn a_hand_over_waits_for_who_writes() {
    supervised(|m| {
        let before = m.supervised();
        let [mut a, mut b] = [m.peer(), m.peer()];
        a.run("w = os.open(M + '/k', os.O_CREAT | os.O_WRONLY); os.write(w, b'half')");
        kill_process(m.pid(), Signal::USR1).unwrap();
        // Whoever opens meanwhile is served, sooner or later, by whichever daemon.
        b.run("write(M + '/other', b'x'); read(M + '/other')");
        a.run("os.write(w, b'whole'); os.close(w)");
        assert!(wait_until(PATIENCE, || !is_alive(before)), "the daemon did not let go");
        m.shell("[ $(cat $M/k) = halfwhole ] && [ $(cat $M/other) = x ]").ok();
    });
}

#[test]
fn a_bind_mount_of_it_outlives_the_daemon() {
    supervised(|m| {
        m.shell("echo x > $M/k; mkdir $W/bind").ok();
        let bind = m.scratch.join("bind");
        mount_bind(m.keys(), &bind).unwrap();
        kill(m);
        let seen = fs::read(bind.join("k"));
        // A name that was looked up through it is entered anew.
        let written = fs::write(bind.join("new"), "y");
        unmount(&bind, UnmountFlags::DETACH).unwrap();
        // The root of the bind mount is an inode of the dead daemon's.
        assert_eq!(seen.unwrap_err().raw_os_error(), Some(libc::ESTALE));
        assert_eq!(written.unwrap_err().raw_os_error(), Some(libc::ESTALE));
        mount_bind(&m.mnt, &bind).unwrap();
        kill(m);
        let seen = fs::read(bind.join("default/k"));
        unmount(&bind, UnmountFlags::DETACH).unwrap();
        assert_eq!(seen.unwrap(), b"x\n");
    });
}

#[test]
fn an_aborted_mount_is_made_anew_in_its_place() {
    supervised(|m| {
        m.shell("echo x > $M/k").ok();
        let connection = rustix::fs::minor(fs::metadata(&m.mnt).unwrap().dev());
        let abort = format!("/sys/fs/fuse/connections/{connection}/abort");
        if !fs::exists(&abort).unwrap() {
            eprintln!("skipped: the kernel's list of connections is not mounted");
            return;
        }
        let mut a = m.peer();
        // Until it answers again nothing is to be seen there but the dead mount: not the directory below.
        a.begin(
            "seen = set()\nwhile True:\n try:\n  if os.path.exists(R + '/default/k'): break\n  os.stat(R); seen.add(tuple(os.listdir(R)))\n \
             except OSError as e: seen.add(errno.errorcode[e.errno])",
        );
        fs::write(&abort, "1").unwrap();
        assert!(a.finish().get("ok").is_some());
        let seen = a.text("repr(sorted(map(str, seen)))");
        assert!(!seen.contains("()"), "the empty directory below the mount was seen: {seen}");
        assert!(wait_until(PATIENCE, || fs::read(m.key("k")).is_ok_and(|text| text == b"x\n")));
        m.umount();
        assert!(!m.is_mounted(), "nothing is left below");
        m.mount();
    });
}

#[test]
fn a_daemon_that_keeps_dying_is_given_up() {
    supervised(|m| {
        m.shell("echo x > $M/k").ok();
        let supervisor = m.pid();
        for _ in 0..5 {
            kill(m);
        }
        assert!(wait_until(PATIENCE, || !is_alive(supervisor)), "it goes on for ever");
        let error = fs::read(m.key("k")).unwrap_err();
        assert_eq!(
            error.raw_os_error(),
            Some(libc::ENOTCONN),
            "nobody hangs, nobody sees the directory below"
        );
        m.mount();
        m.shell("[ $(cat $M/k) = x ]").ok();
    });
}

#[test]
fn it_ends_when_it_is_unmounted_or_told_to() {
    supervised(|m| {
        for end in ["umount", "TERM", "umount", "INT"] {
            let (supervisor, daemon) = (m.pid(), m.supervised());
            match end {
                "umount" => fencefs(["umount".as_ref(), m.mnt.as_os_str()]).ok(),
                "TERM" => kill_process(supervisor, Signal::TERM).map(|()| String::new()).unwrap(),
                _ => kill_process(supervisor, Signal::INT).map(|()| String::new()).unwrap(),
            };
            m.wait_for_exit();
            assert!(!m.is_mounted() && !is_alive(daemon), "{end}");
            m.mount();
        }
    });
}

/// What waits in the kernel for a lock whose holder waits for the daemon ends as well: the mount is then made anew.
#[test]
#[cfg(feature = "failpoints")]
fn a_daemon_killed_in_the_kernels_arms_is_replaced() {
    let steps = "removal.hide=7*return->off;removal.delete=return";
    each_with(
        |b: Builder| b.env("FAILPOINTS", steps).arg("--fence-wait=10min").arg("--supervise"),
        |m| {
            m.shell("echo value > $M/k; cat $M/k").ok();
            let mut creator = m.peer();
            creator.run("fd = os.open(M + '/k', os.O_RDONLY)");
            m.control("remove-all tenant=default").0.unwrap();
            assert!(wait_until(PATIENCE, || m.status()["state"] == "failed"), "hiding fails");
            creator.begin("os.open(M + '/new', os.O_CREAT | os.O_WRONLY)");
            let daemon = m.supervised();
            let is_stuck = || {
                let threads = fs::read_dir(format!("/proc/{}/task", daemon.as_raw_nonzero())).unwrap();
                threads.filter_map(Result::ok).any(|thread| {
                    let stack = fs::read_to_string(thread.path().join("stack")).unwrap_or_default();
                    stack.contains("fuse_reverse_inval_entry")
                })
            };
            assert!(wait_until(PATIENCE, is_stuck), "nothing waits in the kernel");
            kill_process(daemon, Signal::KILL).unwrap();
            let answer = creator.finish();
            assert!(["ENOTCONN", "ECONNABORTED"].contains(&answer["errno"].as_str().unwrap()), "{answer}");
            assert!(wait_until(PATIENCE, || fs::exists(m.mnt.join(".fencefs/status")).unwrap_or(false)));
            assert!(!m.key("k").exists(), "what is being removed is not seen again");
        },
    );
}

/// A service manager's end of the socket.
struct Manager(UnixDatagram);

impl Manager {
    #[track_caller]
    fn next(&self) -> String {
        let mut bytes = [0; 4096];
        let length = self.0.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    /// The next message with this line. What comes before it is progress.
    #[track_caller]
    fn wait_for(&self, line: &str) -> String {
        loop {
            let message = self.next();
            if message.lines().any(|l| l == line) {
                return message;
            }
        }
    }
}

#[test]
fn a_service_manager_is_told_when_the_mount_answers() {
    if !can_mount() {
        return;
    }
    for supervised in [&["--supervise"][..], &[]] {
        let root = tempfile::tempdir().unwrap();
        let [store, mnt, socket] = ["store", "mnt", "notify"].map(|name| root.path().join(name));
        fs::create_dir(&mnt).unwrap();
        let manager = Manager(UnixDatagram::bind(&socket).unwrap());
        manager.0.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut service = Command::new(BINARY)
            .args(["mount".as_ref(), "-f".as_ref(), store.as_os_str(), mnt.as_os_str()])
            .args(supervised)
            .env("NOTIFY_SOCKET", &socket)
            .env("WATCHDOG_USEC", "200000")
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let ready = manager.wait_for("READY=1");
        assert!(ready.contains(&format!("STATUS=Serving {}", mnt.display())), "{ready}");
        fs::write(mnt.join("default/k"), "x").expect("the mount answers when it says so");
        let inherits = |pid: Pid| {
            let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap();
            environment.split(|b| *b == 0).any(|v| v.starts_with(b"NOTIFY_SOCKET="))
        };
        let daemon = crate::harness::processes_of(&store);
        let children: Vec<_> = daemon.iter().filter(|pid| **pid != Pid::from_child(&service)).collect();
        assert_eq!(children.len(), supervised.len());
        assert!(!children.iter().any(|pid| inherits(**pid)), "only the main process speaks");
        if let [daemon] = children[..] {
            assert_eq!(manager.wait_for("WATCHDOG=1"), "WATCHDOG=1", "it says that it is well");
            kill_process(*daemon, Signal::KILL).unwrap();
            manager.wait_for("READY=1");
            assert_eq!(fs::read(mnt.join("default/k")).unwrap(), b"x");
        }
        kill_process(Pid::from_child(&service), Signal::TERM).unwrap();
        manager.wait_for("STOPPING=1");
        assert!(service.wait().unwrap().success());
        let mounts = fs::read("/proc/self/mountinfo").unwrap();
        let left = mounts.windows(mnt.as_os_str().len()).any(|w| w == mnt.as_os_str().as_bytes());
        assert!(!left, "{} is still mounted", mnt.display());
    }
}

#[test]
fn it_is_an_option_of_fstab_too_and_root_s() {
    if !can_mount() {
        return;
    }
    let mut m = Builder::new().arg("-o").arg("supervise,ro,noexec").mount();
    let line = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = line.lines().find(|l| l.contains(m.mnt.to_str().unwrap())).unwrap();
    assert!(line.contains("ro,nosuid,nodev,noexec") && line.contains("fuse.fencefs"), "{line}");
    assert_eq!(fs::write(m.key("k"), "x").unwrap_err().raw_os_error(), Some(libc::EROFS));
    m.supervised();
    m.umount();
}
