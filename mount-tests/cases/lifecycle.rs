//! Cases on daemons that die, hang or end, and on how a mount is made.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use crate::cases::{case, case_with, has, let_others_in, shell};
use crate::harness::{Mount, can_mount, fencefs, is_alive};
use crate::unanswered::Stopped;

/// Far more than any of these answers takes; a hang is longer.
const AT_ONCE: Duration = Duration::from_secs(20);

#[test]
fn u092_a_killed_daemon_is_a_miss_and_one_command_away() {
    case(|m| {
        let mut a = m.peer();
        a.run("write(M + '/k', b'keep'); fd = os.open(M + '/k', os.O_RDONLY); w = os.open(M + '/w', os.O_CREAT | os.O_WRONLY); os.write(w, b'x')");
        m.kill();
        let begun = Instant::now();
        for step in ["os.listdir(M)", "os.stat(M + '/k')", "read(M + '/k')", "write(M + '/new', b'')"] {
            assert_eq!(a.error(step), "ENOTCONN", "{step}");
        }
        assert_eq!(a.run("os.path.exists(M + '/k')"), false);
        assert!(
            ["ENOTCONN", "ECONNABORTED"].contains(&a.error("os.close(w)").as_str()),
            "a close that published nothing"
        );
        assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
        // The command that made it, and nothing before.
        m.mount();
        shell(m, "[ $(cat $M/k) = keep ]; [ ! -e $M/w ]; [ $(grep -c \" $R \" /proc/mounts) = 1 ]").ok();
        assert_eq!(a.text("read(M + '/k')"), "keep");
        assert_eq!(a.run("write(M + '/new', b'') or os.path.exists(M + '/new')"), true);
    });
}

#[test]
fn u094_whoever_waits_for_a_stopped_daemon_can_be_killed() {
    case(|m| {
        shell(m, "echo v > $M/k; ls $M > $W/out").ok();
        kill_process(m.pid(), Signal::STOP).unwrap();
        let stopped = Stopped(m.pid());
        // Each of its threads stops by itself; one that took a request before that would hold its caller in the kernel.
        std::thread::sleep(Duration::from_millis(500));
        for waits in ["ls $M/nosuch", "df $M", "stat -f $M", "head -c 1 $M/k2", "sh -c 'echo x > $M/new'"] {
            shell(m, &format!("set +e; timeout 1 {waits} > $W/out 2>&1; [ $? = 124 ]")).ok();
        }
        // mountinfo, what names what hangs, needs no answer of it; nor does the command that takes it away.
        shell(m, "grep -q \" $R \" /proc/self/mountinfo; timeout 20 findmnt $R").ok();
        drop(stopped);
        shell(
            m,
            "ls $M > $W/out; df $M > $W/out; [ $(cat $M/k) = v ]; echo x > $M/new; [ $(cat $M/new) = x ]",
        )
        .ok();
        assert_eq!(m.status()["state"], "ready");
    });
    // While much is evicted and a removal runs, neither stat nor df waits: in one thread each, all answered.
    case(|m| {
        shell(m, "mkdir $TA; for i in $(seq 2000); do echo $i; done | split -l 1 -a 3 - $TA/k").ok();
        let mut busy = m.peer();
        busy.begin("for n in range(150): write(M + '/f%d' % n, bytes(1 << 20))");
        let mut control = crate::removals::Control::open(m);
        control.ask("remove-all tenant=a");
        for _ in 0..200 {
            rustix::fs::statvfs(&m.mnt).unwrap();
            fs::metadata(m.keys()).unwrap();
        }
        assert!(busy.finish().get("ok").is_some());
        assert_eq!(control.line()["state"], "complete");
    });
}

/// The way out of a mount that hangs: docs/semantics.md, "When the daemon hangs".
#[test]
fn u095_a_wedged_mount_is_broken_by_an_abort() {
    case(|m| {
        shell(m, "echo keep > $M/k").ok();
        let mut a = m.peer();
        a.run("os.listdir(M)");
        kill_process(m.pid(), Signal::STOP).unwrap();
        let stopped = Stopped(m.pid());
        std::thread::sleep(Duration::from_millis(300));
        a.begin("os.stat(M + '/nosuch')");
        // By the number that mountinfo shows for the mount.
        shell(
            m,
            "n=$(awk -v at=$R '$5 == at { split($3, d, \":\"); print d[2] }' /proc/self/mountinfo)
             mountpoint -q /sys/fs/fuse/connections || mount -t fusectl none /sys/fs/fuse/connections
             echo 1 > /sys/fs/fuse/connections/$n/abort",
        )
        .ok();
        let ended = a.finish();
        assert!(
            ["ENOTCONN", "ECONNABORTED"].contains(&ended["errno"].as_str().unwrap_or_default()),
            "{ended}"
        );
        kill_process(m.pid(), Signal::KILL).unwrap();
        drop(stopped);
        m.wait_for_exit();
        m.mount();
        shell(m, "[ $(cat $M/k) = keep ]; ls $M; echo back > $M/back").ok();
    });
}

#[test]
fn u097_a_busy_mount_says_who_and_lets_go_lazily() {
    case(|m| {
        let mut a = m.peer();
        a.run("os.chdir(M)");
        let mnt = m.mnt.to_str().unwrap().to_owned();
        let (code, text) = fencefs(["umount", &mnt]).failed();
        let pid = a.int("os.getpid()");
        assert_eq!(code, 1);
        assert!(text.contains(&format!("{pid} (")) && text.contains("in use"), "{text}");
        assert!(m.is_mounted() && fs::write(m.key("k"), b"still").is_ok());
        let daemon = m.pid();
        fencefs(["umount", "--lazy", &mnt]).ok();
        assert!(!m.is_mounted());
        a.run("write('late', b'x')");
        assert!(is_alive(daemon), "somebody is in there");
        a.run("os.chdir('/')");
        m.wait_for_exit();
        m.mount();
        shell(m, "[ $(cat $M/late) = x ]; [ $(cat $M/k) = still ]").ok();
    });
}

/// By fstab, as mount(8) and systemd read it, in a namespace where the helper is installed.
#[test]
fn u098_by_fstab() {
    if !["findmnt", "unshare", "mount"].into_iter().all(has) {
        return;
    }
    case(|m| {
        m.umount();
        let prepared =
            "mkdir -p $W/sbin; for n in mount.fuse.fencefs mount.fencefs; do ln -sf $BIN $W/sbin/$n; done
             mount -t overlay overlay -o lowerdir=$W/sbin:/usr/sbin /usr/sbin";
        if !shell(m, &format!("export BIN; unshare -m bash -euc '{prepared}'")).status.success() {
            eprintln!("skipped: no overlay filesystem here");
            m.mount();
            return;
        }
        for kind in ["fuse.fencefs", "fencefs"] {
            let line = |options: &str| format!("echo \"$S $R {kind} {options} 0 0\" > $W/fstab");
            let generic = "rw,allow_other,size=1G,nofail,_netdev,nosuid,nodev,noatime,x-systemd.automount,comment=x,user,x-initrd.mount";
            let script = format!(
                "{prepared}
                 {}; mount -T $W/fstab $R
                 [ \"$(findmnt -no SOURCE,FSTYPE $R | tr -s \" \")\" = \"$S fuse.fencefs\" ]
                 findmnt -no OPTIONS $R | grep nosuid | grep nodev | grep noatime | grep -q allow_other
                 [ $(df -B1 --output=size $R | tail -1) = 1073741824 ]
                 mount -T $W/fstab -a; mount -T $W/fstab -a; [ $(grep -c \" $R \" /proc/mounts) = 1 ]
                 echo by-fstab > $R/default/k; umount $R; ! mountpoint -q $R
                 {}; if mount -T $W/fstab $R 2> $W/said; then exit 9; fi; cat $W/said; grep -q frobnicate $W/said; ! mountpoint -q $R
                 {}; mount -T $W/fstab -a; [ $(cat $R/default/k) = by-fstab ]; umount $R",
                line(generic),
                line("size=1G,frobnicate=1"),
                line("size=64M,ro"),
            );
            let script = script.replace('\'', "'\\''");
            shell(m, &format!("export BIN; unshare -m bash -euxc '{script}'")).ok();
        }
        m.mount();
        shell(m, "[ $(cat $M/k) = by-fstab ]").ok();
    });
}

/// What is written before the mount is there, or in a namespace that does not see it, goes nowhere.
#[test]
fn u100_an_immutable_mountpoint() {
    case(|m| {
        let mut a = m.peer();
        m.umount();
        fs::set_permissions(&m.mnt, fs::Permissions::from_mode(0o000)).unwrap();
        let Some(held) = crate::eviction::Immutable::new(m.mnt.clone()) else { return };
        assert_eq!(a.error("write(R + '/leak', b'x')"), "EPERM");
        assert_eq!(a.error("os.mkdir(R + '/default')"), "EPERM");
        // The mount covers it as any directory, and returns when it answers: what follows needs no wait of its own.
        m.mount();
        a.run("write(M + '/k', b'v')");
        shell(m, "unshare -m --propagation slave bash -euc 'umount $R; ! ls -A $R/default; [ -z \"$(ls -A $R)\" ]'; mountpoint -q $R; [ $(cat $M/k) = v ]").ok();
        // A container that was started before the mount sees it come and go, where mounts are propagated to it.
        shell(
            m,
            "$BIN umount $R
             mkdir $W/host; mount --bind $W/host $W/host; mount --make-rshared $W/host; mkdir $W/host/mnt
             trap 'umount -l $W/host' EXIT
             mkfifo $W/go $W/done
             timeout 30 unshare -m --propagation slave bash -euc 'read -r l < $W/go; [ $(cat $W/host/mnt/default/k) = v ]; umount $W/host/mnt; echo ok > $W/done' & container=$!
             $BIN mount $S $W/host/mnt --size $Q
             echo go > $W/go; read -r l < $W/done; wait $container
             mountpoint -q $W/host/mnt; [ $(cat $W/host/mnt/default/k) = v ]; $BIN umount $W/host/mnt",
        )
        .ok();
        drop(held);
        fs::set_permissions(&m.mnt, fs::Permissions::from_mode(0o755)).unwrap();
        m.mount();
    });
}

fn as_nobody(m: &Mount, command: &str) -> crate::harness::Output {
    shell(m, &format!("su -s /bin/sh nobody -c \"{command}\""))
}

#[test]
fn u101_who_may_see_the_mount() {
    if !can_mount() || !has("su") {
        return;
    }
    case_with(
        |b| b.arg("--no-allow-other"),
        |m| {
            let_others_in(m);
            let (_, text) = as_nobody(m, "ls $M").failed();
            assert!(text.contains("Permission denied"), "{text}");
        },
    );
    case_with(
        |b| b.arg("--allow-other"),
        |m| {
            let_others_in(m);
            shell(m, "echo x > $M/pub; chmod 600 $M/pub").ok();
            assert!(as_nobody(m, "cat $M/pub").failed().1.contains("Permission denied"));
            shell(m, "chmod 644 $M/pub").ok();
            assert_eq!(as_nobody(m, "cat $M/pub").ok(), "x\n");
            assert!(as_nobody(m, "echo y > $M/pub").failed().1.contains("Permission denied"));
            assert!(as_nobody(m, "ls -l $M").ok().contains("pub"));
            // A mount of somebody else's, for all: where root has not allowed that, what to do about it is said.
            if fs::read_to_string("/etc/fuse.conf")
                .unwrap_or_default()
                .lines()
                .any(|l| l.trim() == "user_allow_other")
            {
                return;
            }
            shell(m, "mkdir -m 777 $W/theirs; chmod 755 $W; cp $BIN $W/fencefs; chmod 755 $W/fencefs").ok();
            let mount = "mkdir -p $W/theirs/m; $W/fencefs mount $W/theirs/s $W/theirs/m --size 16MiB";
            let (_, text) = as_nobody(m, &format!("{mount} --allow-other")).failed();
            assert!(text.contains("user_allow_other") && text.contains("/etc/fuse.conf"), "{text}");
            if !has("fusermount3") {
                return;
            }
            // Without it, for oneself.
            let theirs = as_nobody(
                m,
                &format!(
                    "{mount} && echo mine > $W/theirs/m/default/k && cat $W/theirs/m/default/k && $W/fencefs umount $W/theirs/m"
                ),
            );
            if theirs.status.success() {
                assert_eq!(theirs.stdout, "mine\n");
            } else {
                eprintln!("a user who is not root cannot mount here: {}", theirs.stderr);
                assert!(
                    theirs.stderr.contains("/dev/fuse") || theirs.stderr.contains("fusermount"),
                    "{theirs:?}"
                );
            }
        },
    );
}
