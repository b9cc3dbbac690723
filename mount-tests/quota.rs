//! The quota: what fits, what is refused and with which errno, and that the counts agree.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Builder, Mount, can_mount, each, each_with, fencefs, wait_until};

const MIB: u64 = 1 << 20;

fn small(builder: Builder) -> Builder {
    builder.size("32MiB")
}

/// Use as df, status and the records themselves tell it.
#[track_caller]
fn assert_counts_agree(m: &Mount) {
    m.settle_blocks();
    let records: u64 = m.records().iter().map(|(_, bytes)| bytes).sum();
    let status = m.status();
    assert_eq!(status["used_bytes"], records, "{status}");
    assert_eq!(status["staged_bytes"], 0);
    let s = rustix::fs::statvfs(&m.mnt).unwrap();
    assert_eq!((s.f_blocks - s.f_bfree) * s.f_frsize / 4096, records.div_ceil(4096));
    let tenants = status["tenants"].as_array().unwrap();
    let sum: u64 = tenants.iter().map(|t| t["bytes"].as_u64().unwrap()).sum();
    assert_eq!(sum, records, "{status}");
}

#[test]
fn a_value_larger_than_the_quota_is_refused_and_evicts_nothing() {
    each_with(small, |m| {
        m.shell("for i in 1 2 3; do head -c 1M /dev/urandom > $M/keep$i; done").ok();
        let mut a = m.peer();
        a.run("fd = os.open(M + '/huge', os.O_CREAT | os.O_WRONLY)");
        let errno = a.error("for i in range(48): os.write(fd, b'h' * (1 << 20))\nos.close(fd)");
        assert_eq!(errno, "ENOSPC");
        a.outcome("os.close(fd)");
        assert_eq!(a.error("os.stat(M + '/huge')"), "ENOENT");
        let (_, text) = m.shell("head -c 48M /dev/zero > $M/huge2 || { cat /dev/null; false; }").failed();
        assert!(text.contains("No space left on device"), "{text}");
        m.shell("[ \"$(ls $M | tr '\\n' ' ')\" = 'keep1 keep2 keep3 ' ]").ok();
        assert!(wait_until(Duration::from_secs(10), || m.status_number("staged_bytes") == 0));
        assert_eq!(m.status_number("evicted_keys"), 0);
        assert_counts_agree(m);
    });
}

#[test]
fn a_replacement_without_room_leaves_the_old_value() {
    each_with(small, |m| {
        m.shell("head -c 12M /dev/urandom > $W/old; cat $W/old > $M/v").ok();
        m.shell("head -c 40M /dev/urandom > $M/v").failed();
        m.shell("cmp $W/old $M/v").ok();
        let (status, _) = m.shell("head -c 40M /dev/urandom > $M/.n; mv $M/.n $M/v").failed();
        assert_ne!(status, 0);
        m.shell("cmp $W/old $M/v; [ \"$(ls -A $M)\" = v ]").ok();
        // What fits replaces.
        m.shell("head -c 14M /dev/urandom > $W/new; cat $W/new > $M/v; cmp $W/new $M/v").ok();
        assert!(wait_until(Duration::from_secs(10), || m.status_number("staged_bytes") == 0));
        assert_counts_agree(m);
    });
}

#[test]
fn an_allocation_beyond_the_quota_is_refused() {
    each_with(small, |m| {
        let (_, text) = m.shell("fallocate -l 64M $M/fb").failed();
        assert!(text.contains("No space left") || text.contains("not supported"), "{text}");
        m.shell("fallocate -l 1M $M/fa; [ $(stat -c %s $M/fa) = 1048576 ]").ok();
    });
}

#[test]
fn counts_agree_after_all_kinds_of_work() {
    each(|m| {
        assert_counts_agree(m);
        m.shell(
            "head -c 100000 /dev/urandom > $M/a; head -c 5000 /dev/urandom > $M/b; : > $M/empty
             ln -s a $M/link; mkdir $M/d; echo x > $M/d/x; mv $M/b $M/d/b; head -c 70000 /dev/zero > $M/a
             echo more >> $M/d/x; truncate -s 200000 $M/a; head -c 300000 /dev/urandom >> $M/a; rm $M/empty
             mkdir $R/other; head -c 50000 /dev/zero > $R/other/k; cp $M/a $M/c; mv $M/c $M/a",
        )
        .ok();
        assert!(wait_until(Duration::from_secs(10), || m.status_number("staged_bytes") == 0));
        assert_counts_agree(m);
        m.remount();
        assert_counts_agree(m);
        m.shell("rm -r $M/a $M/link $M/d $R/other/k").ok();
        assert_counts_agree(m);
        for _ in 0..50 {
            m.shell("head -c 1M /dev/zero > $M/x; rm $M/x").ok();
        }
        assert_counts_agree(m);
        assert_eq!(m.status_number("used_bytes"), 0);
    });
}

#[test]
fn staged_bytes_are_seen_and_given_back() {
    each_with(small, |m| {
        let mut a = m.peer();
        a.run("fd = os.open(M + '/k', os.O_CREAT | os.O_WRONLY); os.write(fd, b's' * (4 << 20))");
        assert!(
            wait_until(Duration::from_secs(10), || m.status_number("staged_bytes") >= 4 * MIB),
            "staged bytes are polled: {}",
            m.status()
        );
        a.run("os.close(fd)");
        assert!(wait_until(Duration::from_secs(10), || m.status_number("staged_bytes") == 0));
        assert_counts_agree(m);
    });
}

#[test]
fn the_number_of_keys_is_bounded() {
    each_with(
        |b| b.arg("--max-keys").arg("50").evict("fifo"),
        |m| {
            m.shell("for i in $(seq -w 120); do echo $i > $M/k$i; done; [ $(cat $M/k120) = 120 ]; [ ! -e $M/k001 ]").ok();
            assert!(fs::read_dir(m.keys()).unwrap().count() <= 50);
            assert!(m.status_number("keys") <= 50);
        },
    );
}

#[test]
fn a_quota_can_be_changed_while_mounted() {
    each_with(small, |m| {
        m.shell("for i in $(seq 20); do head -c 1M /dev/zero > $M/k$i; done").ok();
        let (result, reply) = m.control("quota bytes=8MiB");
        assert_eq!((result, &reply["ok"]), (Ok(()), &Value::Bool(true)), "{reply}");
        assert_eq!(m.status_number("quota_bytes"), 8 * MIB);
        assert!(
            wait_until(Duration::from_secs(20), || m.status_number("used_bytes") <= 8 * MIB),
            "{}",
            m.status()
        );
        m.shell("[ -e $M/k20 ]").ok();
        let (result, reply) = m.control("quota bytes=64MiB");
        assert_eq!(result, Ok(()), "{reply}");
        // In pieces: the filesystem may allocate a block for the map of a large file later than the file.
        m.shell("for i in $(seq 40); do head -c 1M /dev/zero > $M/big$i; done; [ -e $M/big1 ]").ok();
        assert_counts_agree(m);
    });
}

#[test]
fn a_tenant_quota_is_edquot() {
    each_with(small, |m| {
        fs::create_dir(m.mnt.join("blue")).unwrap();
        let (result, reply) = m.control("quota tenant=blue bytes=4MiB");
        assert_eq!(result, Ok(()), "{reply}");
        m.shell("head -c 2M /dev/zero > $R/blue/k").ok();
        let (_, text) = m.shell("head -c 8M /dev/zero > $R/blue/big").failed();
        assert!(text.contains("Disk quota exceeded"), "{text}");
        m.shell("[ ! -e $R/blue/big ]; [ $(stat -c %s $R/blue/k) = 2097152 ]; head -c 8M /dev/zero > $M/big")
            .ok();
        m.remount();
        let status = m.status();
        let blue = status["tenants"].as_array().unwrap().iter().find(|t| t["name"] == "blue").unwrap();
        assert_eq!(blue["quota_bytes"], 4 * MIB);
    });
}

#[test]
fn control_answers() {
    if !can_mount() {
        return;
    }
    let m = Builder::new().mount();
    let (result, reply) = m.control("status");
    assert_eq!((result, &reply["ok"]), (Ok(()), &Value::Bool(true)), "{reply}");
    for line in ["tenants", "epoch tenant=default"] {
        let (result, reply) = m.control(line);
        assert_eq!((result, &reply["ok"]), (Ok(()), &Value::Bool(true)), "{line}: {reply}");
    }
    assert_eq!(m.control("epoch tenant=default").1["epoch"], 0);
    for line in ["nonsense", "quota bytes=lots", "evict to=101", "evict", "quota bytes=1 tenant=.bad"] {
        let (result, reply) = m.control(line);
        assert_eq!(result, Err(libc::EINVAL), "{line}: {reply}");
        assert_eq!(
            (&reply["ok"], &reply["error"]),
            (&Value::Bool(false), &Value::from("EINVAL")),
            "{line}: {reply}"
        );
        assert!(reply["message"].as_str().is_some_and(|text| !text.is_empty()), "{line}: {reply}");
    }
    // A shell needs two opens: the second reads the reply to this user's latest command.
    m.shell(
        "echo 'epoch tenant=default' > $R/.fencefs/control; cat $R/.fencefs/control | grep -q '\"epoch\":0'",
    )
    .ok();
}

/// What an append outgrew goes, nobody else pays, and the writer is told at its close at the latest.
#[test]
fn a_value_that_outgrows_its_quota_in_place_goes_first() {
    each_with(small, |m| {
        m.shell(
            "for i in 1 2 3; do head -c 1M /dev/urandom > $M/keep$i; done
             mkdir $R/tb; echo 'quota tenant=tb bytes=4MiB' > $R/.fencefs/control
             echo s > $R/tb/log; echo s > $M/log",
        )
        .ok();
        let append = "fd = os.open(P, os.O_WRONLY | os.O_APPEND)
block, told = bytes(1 << 20), []
try:
    for n in range(N): os.write(fd, block)
except OSError as e: told.append(e.errno)
try: os.close(fd)
except OSError as e: told.append(e.errno)
assert told and set(told) == {E}, told";
        let mut peer = m.peer();
        peer.run(&format!("P, N, E = '{}', 8, {}\n{append}", m.mnt.join("tb/log").display(), libc::EDQUOT));
        peer.run(&format!("P, N, E = M + '/log', 48, {}\n{append}", libc::ENOSPC));
        assert!(
            wait_until(Duration::from_secs(10), || !m.key("log").exists() && !m.mnt.join("tb/log").exists())
        );
        m.shell("[ \"$(ls $M | tr '\\n' ' ')\" = 'keep1 keep2 keep3 ' ]").ok();
        assert_counts_agree(m);
    });
}

#[test]
fn a_refused_allocation_publishes_no_key() {
    each_with(small, |m| {
        m.shell("fallocate -l 64M $M/fb").failed();
        assert!(wait_until(Duration::from_secs(10), || m.status_number("staged_bytes") == 0));
        m.shell("[ ! -e $M/fb ]; [ -z \"$(ls -A $M)\" ]").ok();
    });
}

fn tenant_status(m: &Mount, name: &str) -> Value {
    let status = m.status();
    status["tenants"].as_array().unwrap().iter().find(|t| t["name"] == name).unwrap().clone()
}

/// By the command: it holds against others, lasts, is shown, and what cannot be kept is refused with a sentence.
#[test]
fn a_reserve_is_kept_from_others() {
    each_with(small, |m| {
        let mnt = m.mnt.clone();
        let quota = |args: &[&str]| fencefs(["quota", mnt.to_str().unwrap()].iter().chain(args));
        fs::create_dir(m.mnt.join("blue")).unwrap();
        let shown = quota(&["--tenant", "blue", "16MiB", "--reserve", "8MiB"]).ok();
        assert_eq!(shown, "tenant blue: quota 16 MiB, 8 MiB reserved, 0 B used\n");
        m.shell("for i in $(seq 10); do head -c 1M /dev/zero > $R/blue/k$i; done").ok();
        m.shell("for i in $(seq 60); do head -c 1M /dev/zero > $M/k$i; done").ok();
        let blue = tenant_status(m, "blue");
        assert_eq!(blue["reserve_bytes"], 8 * MIB);
        assert!(blue["bytes"].as_u64().unwrap() >= 8 * MIB && blue["keys"].as_u64().unwrap() < 10, "{blue}");
        m.shell("[ -e $R/blue/k10 ]; [ ! -e $R/blue/k1 ]; [ -e $M/k60 ]").ok();
        // What would fit only in its place. From here on background eviction has nothing to do.
        assert_eq!(m.control("evict to=90").0, Ok(()));
        let evicted = m.status_number("evicted_keys");
        let (_, text) = m.shell("head -c 26M /dev/zero > $M/large").failed();
        assert!(text.contains("No space left on device"), "{text}");
        assert_eq!(m.status_number("evicted_keys"), evicted);
        for (args, says) in [
            (&["--tenant", "blue", "--reserve", "17MiB"][..], "more than the quota of tenant blue"),
            (&["--tenant", "default", "--reserve", "25MiB"], "store's quota"),
            (&["7MiB"], "store's quota"),
        ] {
            let (code, text) = quota(args).failed();
            assert!(code == 1 && text.contains(says), "{args:?}: {text}");
        }
        assert!(wait_until(Duration::from_secs(10), || m.status_number("staged_bytes") == 0));
        assert_counts_agree(m);
        m.remount();
        assert_eq!(tenant_status(m, "blue")["reserve_bytes"], 8 * MIB);
        assert_eq!(m.control("evict to=0").0, Ok(()));
        assert_eq!(tenant_status(m, "default")["keys"], 0);
        assert!(tenant_status(m, "blue")["bytes"].as_u64().unwrap() >= 8 * MIB);
        let metrics = fs::read_to_string(m.mnt.join(".fencefs/metrics")).unwrap();
        assert!(metrics.contains("fencefs_tenant_reserve_bytes{tenant=\"blue\"} 8388608\n"), "{metrics}");
        assert_counts_agree(m);
        quota(&["--tenant", "blue", "--reserve", "none"]).ok();
        assert_eq!(m.control("evict to=0").0, Ok(()));
        assert_eq!(m.status_number("keys"), 0);
        assert_counts_agree(m);
    });
}

#[test]
fn a_view_shows_its_tenants_quota_and_use() {
    each_with(
        |b| small(b).tenant("blue"),
        |m| {
            let df = |m: &Mount| {
                let s = rustix::fs::statvfs(&m.mnt).unwrap();
                assert_eq!(s.f_bfree, s.f_bavail);
                (s.f_blocks * s.f_frsize, (s.f_blocks - s.f_bfree) * s.f_frsize)
            };
            assert_eq!(df(m), (32 * MIB, 0), "without a quota of its own the store's is what there is");
            assert_eq!(m.control("quota bytes=8MiB reserve=4MiB").0, Ok(()));
            assert_eq!(df(m), (8 * MIB, 0));
            m.shell("head -c 2M /dev/zero > $M/k").ok();
            m.write_out();
            let used = m.status_number("used_bytes");
            assert!((2 * MIB..3 * MIB).contains(&used), "{used}");
            assert_eq!(df(m), (8 * MIB, used.div_ceil(4096) * 4096));
        },
    );
}

/// What the daemon can know: hits and misses always, the bytes that it moves itself, why keys went.
#[test]
fn counters_tell_what_happened() {
    each_with(
        |b| small(b).evict("fifo"),
        |m| {
            m.shell("for i in $(seq 40); do head -c 1M /dev/zero > $M/k$i; done; cat $M/k40 > $W/out").ok();
            m.shell("for i in 1 2 3; do ! cat $M/absent$i 2> /dev/null; done").ok();
            assert_eq!(m.control("evict to=50").0, Ok(()));
            assert!(wait_until(Duration::from_secs(10), || m.status_number("staged_bytes") == 0));
            let status = m.status();
            let (reasons, total) = (&status["evictions"], status["evicted_keys"].as_u64().unwrap());
            let sum: u64 = reasons.as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
            assert_eq!(sum, total, "{status}");
            assert!(
                reasons["quota"].as_u64() >= Some(8) && reasons["command"].as_u64() >= Some(10),
                "{status}"
            );
            assert_eq!(
                (&reasons["tenant_quota"], &reasons["free_space"]),
                (&0.into(), &0.into()),
                "{status}"
            );
            assert!(status["hits"].as_u64() >= Some(1) && status["misses"].as_u64() >= Some(3), "{status}");
            let metrics = fs::read_to_string(m.mnt.join(".fencefs/metrics")).unwrap();
            let number = |name: &str| -> u64 {
                let line = metrics.lines().find(|l| l.starts_with(&format!("{name} ")));
                line.and_then(|l| l.rsplit(' ').next()?.parse().ok())
                    .unwrap_or_else(|| panic!("{name}: {metrics}"))
            };
            assert!(number("fencefs_published_bytes_total") >= 40 * MIB);
            // With passthrough the kernel moves them unseen.
            let moved = (number("fencefs_written_bytes_total"), number("fencefs_read_bytes_total"));
            match status["passthrough"].as_bool() {
                Some(true) => assert_eq!(moved, (0, 0)),
                _ => assert!(moved.0 == 40 * MIB && moved.1 >= MIB, "{moved:?}"),
            }
            assert_counts_agree(m);
        },
    );
}
