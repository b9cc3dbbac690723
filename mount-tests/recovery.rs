//! What a restart finds: everything published, nothing half-written, the same counts.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Signal, kill_process};

use crate::harness::{Builder, Mount, can_mount, each, each_with, is_alive, python3, wait_until};

/// After recovery staging is empty and the count of use is the sum of the records' blocks.
#[track_caller]
fn assert_recovered(m: &Mount) {
    let status = m.status();
    assert_eq!(status["state"], "ready", "{status}");
    let staging = m.store.join("data/.staging");
    let left: Vec<_> = fs::read_dir(&staging).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
    let records: u64 = m.records().iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(status["used_bytes"], records, "{status}");
}

#[test]
fn a_clean_restart_keeps_everything() {
    each(|m| {
        m.shell(
            "mkdir -p $M/d $R/other; for i in $(seq 50); do head -c $((i * 1000)) /dev/urandom > $M/d/k$i; done
             cp $M/d/k7 $R/other/k; ln -s d/k1 $M/l; : > $M/empty; cp -a $M $W/copy",
        )
        .ok();
        m.settle_blocks();
        let before = m.status();
        m.remount();
        assert_recovered(m);
        let after = m.status();
        for same in ["storage_id", "used_bytes", "keys", "quota_bytes", "tenants"] {
            assert_eq!(before[same], after[same], "{same}");
        }
        m.shell("diff -r --no-dereference $W/copy $M; cmp $M/d/k7 $R/other/k").ok();
    });
}

#[test]
fn an_unclean_stop_loses_nothing_published() {
    each(|m| {
        m.shell("mkdir $M/d; for i in $(seq 50); do head -c $((i * 1000)) /dev/urandom > $M/d/k$i; done; cp -a $M $W/copy").ok();
        let mut a = m.peer();
        a.run("fd = os.open(M + '/half', os.O_CREAT | os.O_WRONLY); os.write(fd, b'h' * 1000000)");
        a.run("g = os.open(M + '/d/k1', os.O_WRONLY | os.O_TRUNC); os.write(g, b'h' * 1000000)");
        let before = m.status_number("keys");
        m.crash();
        assert_recovered(m);
        assert_eq!(m.status_number("keys"), before);
        m.shell("diff -r $W/copy $M").ok();
    });
}

#[test]
fn a_dead_mount_is_cleared_by_umount_too() {
    each(|m| {
        m.shell("echo x > $M/k").ok();
        m.kill();
        assert!(fs::read(m.key("k")).is_err());
        crate::harness::fencefs(["umount".as_ref(), m.mnt.as_os_str()]).ok();
        assert!(!m.is_mounted());
        m.mount();
        m.shell("[ $(cat $M/k) = x ]").ok();
    });
}

#[test]
fn signals_unmount_cleanly_with_files_open() {
    each(|m| {
        for (round, signal) in [Signal::TERM, Signal::INT].into_iter().enumerate() {
            let mut a = m.peer();
            a.run(&format!("write(M + '/k{round}', b'x'); r = open(M + '/k{round}', 'rb')"));
            a.run(
                "w = os.open(M + '/half', os.O_CREAT | os.O_WRONLY); os.write(w, b'h' * 100000); os.chdir(M)",
            );
            kill_process(m.pid(), signal).unwrap();
            m.wait_for_exit();
            assert!(!m.is_mounted(), "{signal:?}");
            drop(a);
            m.mount();
            assert_recovered(m);
            m.shell(&format!("[ $(cat $M/k{round}) = x ]; [ ! -e $M/half ]")).ok();
        }
    });
}

/// A writer that keeps whole values of known keys, and writes down each before it is tried.
const LOAD: &str = "
import hashlib, os, random, sys
m, log, seed = os.environ['M'], open(os.environ['W'] + '/log', 'a'), int(sys.argv[1])
rng = random.Random(seed)
def note(*words): log.write(' '.join(words) + '\\n'); log.flush()
n = 0
try:
    while True:
        n += 1
        key = 'key-%02d' % rng.randrange(24)
        body = b'%d-%d.' % (seed, n) * rng.randrange(1, 20000)
        kind = rng.randrange(4)
        if kind == 0:
            other = 'key-%02d' % rng.randrange(24)
            note('move', key, other)
            try: os.rename(m + '/' + key, m + '/' + other)
            except FileNotFoundError: pass
        elif kind == 1:
            try: os.unlink(m + '/' + key)
            except FileNotFoundError: pass
        else:
            note('put', key, hashlib.sha256(body).hexdigest())
            name = m + '/' + (key if kind == 2 else '.tmp-%d' % n)
            fd = os.open(name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
            view = memoryview(body)
            while view: view = view[os.write(fd, view[:65536]):]
            os.close(fd)
            if kind == 3: os.rename(name, m + '/' + key)
        if n == 5: open(os.environ['W'] + '/started', 'w').close()
except OSError as e:
    print(n, e)
";

/// Every key holds a value that was really written for it, or for a key that was renamed to it.
const CHECK: &str = "
import hashlib, os
m, w = os.environ['M'], os.environ['W']
values, every = {}, set()
for line in open(w + '/log'):
    kind, key, other = line.split()
    if kind == 'put': values.setdefault(key, set()).add(other); every.add(other)
    else: values.setdefault(other, set()).update(values.get(key, ()))
found = 0
for name in os.listdir(m):
    digest = hashlib.sha256(open(m + '/' + name, 'rb').read()).hexdigest()
    known = every if name.startswith('.tmp-') else values.get(name, ())
    assert digest in known, (name, os.stat(m + '/' + name))
    found += 1
print(found)
";

#[test]
fn killed_at_random_moments_under_load() {
    let rounds: u32 =
        std::env::var("FENCEFS_TEST_ROUNDS").map_or(8, |n| n.parse().expect("FENCEFS_TEST_ROUNDS"));
    each(|m| {
        for round in 0..rounds {
            let started = m.scratch.join("started");
            let mut load = std::process::Command::new(python3())
                .args(["-c", LOAD, &round.to_string()])
                .env("M", m.keys())
                .env("W", &m.scratch)
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            assert!(wait_until(Duration::from_secs(30), || started.exists()), "round {round}");
            // The moment is random by intent: it differs by round and by what the machine is doing.
            let moment = Duration::from_millis(u64::from(round) * 37 % 400);
            wait_until(moment, || false);
            m.kill();
            let ended = wait_until(Duration::from_secs(30), || load.try_wait().unwrap().is_some());
            if !ended {
                load.kill().unwrap();
                load.wait().unwrap();
            }
            assert!(ended, "round {round}: the writer hangs on a dead mount");
            fs::remove_file(started).unwrap();
            m.mount();
            assert_recovered(m);
            m.python(CHECK).ok();
            m.shell("rm -f $M/.tmp-*").ok();
        }
    });
}

#[test]
fn usage_and_order_after_a_crash() {
    each_with(
        |b| b.size("32MiB").evict("fifo"),
        |m| {
            m.shell("for i in $(seq -w 20); do head -c 1M /dev/zero > $M/k$i; done").ok();
            m.crash();
            assert_recovered(m);
            m.shell("for i in $(seq -w 21 40); do head -c 1M /dev/zero > $M/k$i; done").ok();
            m.shell("[ ! -e $M/k01 ]; [ ! -e $M/k02 ]; [ -e $M/k40 ]; [ -e $M/k20 ]").ok();
        },
    );
}

#[test]
#[cfg(feature = "failpoints")]
fn killed_at_every_step_of_a_stop_and_of_a_start() {
    each(|m| {
        m.shell("mkdir -p $M/d; for i in $(seq 20); do echo $i > $M/d/k$i; done; cp -a $M $W/copy").ok();
        for step in ["checkpoint.begin", "checkpoint.write", "checkpoint.mark", "checkpoint.marked"] {
            m.umount();
            m.set_env("FAILPOINTS", &format!("{step}=return(kill)"));
            m.mount();
            assert!(!m.store.join("checkpoint").exists(), "believed once");
            m.shell(&format!("echo {step} | tee $M/last > $W/copy/last; rm -f $M/d/k1 $W/copy/d/k1")).ok();
            // The daemon dies in there.
            m.umount();
            m.unset_env("FAILPOINTS");
            m.mount();
            assert_recovered(m);
            m.shell("diff -r $W/copy $M").ok();
        }
        for step in ["checkpoint.unmark", "checkpoint.unmarked"] {
            m.umount();
            m.set_env("FAILPOINTS", &format!("{step}=return(kill)"));
            m.try_mount().failed();
            m.unset_env("FAILPOINTS");
            m.mount();
            assert_recovered(m);
            m.shell("diff -r $W/copy $M").ok();
        }
    });
}

#[test]
fn a_second_mount_names_the_holder() {
    if !can_mount() {
        return;
    }
    let m = Builder::new().mount();
    let second = m.scratch.join("second");
    fs::create_dir(&second).unwrap();
    let args = ["mount".as_ref(), m.store.as_os_str(), second.as_os_str()];
    let result = crate::harness::fencefs(args);
    let wrongly = mounted_at(&second);
    if wrongly {
        rustix::mount::unmount(&second, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
    let (code, text) = result.failed();
    assert_eq!((code, wrongly), (1, false));
    assert!(text.contains(&m.pid().as_raw_nonzero().to_string()), "{text}");
    assert!(is_alive(m.pid()));
    m.shell("echo x > $M/k; [ $(cat $M/k) = x ]").ok();
}

fn mounted_at(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

#[test]
fn settings_may_change_between_mounts() {
    each_with(
        |b| b.size("32MiB").evict("fifo"),
        |m| {
            m.shell("for i in $(seq -w 25); do head -c 1M /dev/zero > $M/k$i; done").ok();
            m.umount();
            m.set_arg("--size", "16MiB");
            m.set_arg("--evict", "lru");
            m.set_arg("--durability", "fsync");
            m.mount();
            assert_eq!(
                (m.status_number("quota_bytes"), m.status()["evict"].as_str()),
                (16 << 20, Some("lru"))
            );
            assert!(wait_until(Duration::from_secs(20), || m.status_number("used_bytes") <= 16 << 20));
            m.shell("[ -e $M/k25 ]; echo x > $M/after; [ $(cat $M/after) = x ]").ok();
            m.crash();
            assert_recovered(m);
            m.shell("[ $(cat $M/after) = x ]").ok();
        },
    );
}

/// A daemon that is killed while a thread of it waits in the kernel for a directory that a program holds, which waits
/// for the daemon: the guard ends both waits.
#[test]
#[cfg(feature = "failpoints")]
fn a_daemon_killed_in_the_kernels_arms_holds_nobody() {
    // The fence closes, and stays closed: first hiding fails, until a program waits at it, later the deletion.
    let steps = "removal.hide=7*return->off;removal.delete=return";
    each_with(
        |b: Builder| b.env("FAILPOINTS", steps).arg("--fence-wait=10min"),
        |m| {
            m.shell("echo value > $M/k; cat $M/k").ok();
            let mut creator = m.peer();
            // Held open, so that it is still known when the tenant's own entry has been forgotten.
            creator.run("fd = os.open(M + '/k', os.O_RDONLY)");
            m.control("remove-all tenant=default").0.unwrap();
            // Before that its fence may be open still, and the creation would not wait.
            assert!(wait_until(Duration::from_secs(30), || m.status()["state"] == "failed"), "hiding fails");
            // Keeps the directory locked in the kernel, which the notice that `k` is gone then waits for.
            creator.begin("os.open(M + '/new', os.O_CREAT | os.O_WRONLY)");
            let daemon = m.pid();
            let is_stuck = || {
                let threads = fs::read_dir(format!("/proc/{}/task", daemon.as_raw_nonzero())).unwrap();
                threads.filter_map(Result::ok).any(|thread| {
                    let stack = fs::read_to_string(thread.path().join("stack")).unwrap_or_default();
                    stack.contains("fuse_reverse_inval_entry")
                })
            };
            assert!(wait_until(Duration::from_secs(30), is_stuck), "nothing waits in the kernel");
            kill_process(daemon, Signal::KILL).unwrap();
            let answer = creator.finish();
            assert!(["ENOTCONN", "ECONNABORTED"].contains(&answer["errno"].as_str().unwrap()), "{answer}");
            m.wait_for_exit();
            m.unset_env("FAILPOINTS");
            m.mount();
            assert!(!m.key("k").exists(), "the removal was finished at the next start");
        },
    );
}
