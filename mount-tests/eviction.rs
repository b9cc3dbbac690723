//! Which key goes, and what its readers and the next look-up see.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::harness::{Builder, Mount, each_with, fencefs, run, wait_until};

fn fill(m: &Mount, first: u32, last: u32) {
    m.shell(&format!("for i in $(seq -f %03.0f {first} {last}); do head -c 1M /dev/zero > $M/k$i; done"))
        .ok();
}

fn present(m: &Mount, number: u32) -> bool {
    m.key(format!("k{number:03}")).exists()
}

/// The keys that are there, in the order of their numbers.
fn numbers(m: &Mount) -> Vec<u32> {
    let names = fs::read_dir(m.keys()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<u32> =
        names.filter_map(|n| n.strip_prefix('k').and_then(|n| n.parse().ok())).collect();
    found.sort_unstable();
    found
}

fn small(policy: &'static str) -> impl Fn(Builder) -> Builder {
    move |builder| builder.size("32MiB").evict(policy)
}

#[test]
fn first_in_first_out() {
    each_with(small("fifo"), |m| {
        for block in 0..10 {
            fill(m, block * 10 + 1, block * 10 + 10);
            m.shell("[ ! -e $M/k001 ] || cat $M/k001 > $W/out").ok();
            assert!(m.status_number("used_bytes") <= 32 << 20, "{}", m.status());
        }
        let left = numbers(m);
        assert!(left.len() >= 25 && left.len() <= 32, "{left:?}");
        assert_eq!(left, (101 - left.len() as u32..=100).collect::<Vec<_>>());
        assert!(m.status_number("evicted_keys") >= 68);
    });
}

#[test]
fn least_recently_used() {
    each_with(small("lru"), |m| {
        fill(m, 1, 20);
        for next in 21..=70 {
            m.shell("cat $M/k001 > $W/out").ok();
            fill(m, next, next);
        }
        assert!(present(m, 1) && present(m, 70) && !present(m, 2));
        // A touch of the access time counts as a use.
        let oldest = numbers(m)[1];
        m.shell(&format!("touch -a $M/k{oldest:03}")).ok();
        fill(m, 71, 85);
        assert!(present(m, oldest), "{oldest}: {:?}", numbers(m));
    });
}

/// A full store of three: put A, put B, get B, put C, get A, put D. And a run of three by one thread, then another's key.
#[test]
fn a_store_of_three_keys_evicts_by_the_rules() {
    for (policy, of_singles, of_run) in [
        ("fifo", "a", "x0"),
        ("lru", "b", "x0"),
        ("mq", "c", "x0"),
        ("lru-chain", "b", "x2"),
        ("mq-chain", "c", "x2"),
    ] {
        let three = |b: Builder| b.evict(policy).arg("--max-keys=3").arg("--high-watermark=100");
        each_with(three, |m| {
            // Each in a process of its own, so that nobody uses two keys in a row.
            for (name, puts) in
                [("a", true), ("b", true), ("b", false), ("c", true), ("a", false), ("d", true)]
            {
                let work = if puts {
                    format!("write(M + '/{name}', b'1')")
                } else {
                    format!("open(M + '/{name}').read()")
                };
                m.peer().run(&work);
            }
            for name in ["a", "b", "c", "d"] {
                assert_eq!(m.key(name).exists(), name != of_singles, "{policy}: {name}");
            }
            m.shell("rm $M/*").ok();
            m.peer().run(
                "for n in range(3):\n  write(M + '/.tmp', b'value'); os.rename(M + '/.tmp', M + '/x%d' % n)",
            );
            m.peer().run("write(M + '/y0', b'value')");
            for name in ["x0", "x1", "x2", "y0"] {
                assert_eq!(m.key(name).exists(), name != of_run, "{policy}: {name}");
            }
        });
    }
}

/// The order that was written while the store was in use is that of the next start, after a kill as well.
#[test]
fn a_killed_daemon_leaves_the_order_that_it_wrote_last() {
    for policy in ["lru", "mq-chain"] {
        each_with(
            |b| small(policy)(b).arg("--order-interval=0"),
            |m| {
                fill(m, 1, 20);
                m.shell("cat $M/k001 > $W/out").ok();
                let order = m.store.join("order");
                let last = || fs::read(&order).unwrap_or_default();
                // The key that was used last, and most often, is the last of it.
                let name = m.record_of("k001").file_name().unwrap().to_str().unwrap().to_owned();
                let digest = u128::from_str_radix(&name, 16).unwrap().to_le_bytes();
                let is_last = || last().rchunks(17).next().is_some_and(|line| line[..16] == digest);
                assert!(wait_until(Duration::from_secs(20), is_last), "{policy}: {} bytes", last().len());
                m.crash();
                fill(m, 21, 45);
                assert!(present(m, 1), "{policy}: {:?}", numbers(m));
            },
        );
    }
}

#[test]
fn the_order_survives_a_remount() {
    for policy in ["fifo", "lru", "lru-chain", "mq", "mq-chain"] {
        each_with(small(policy), |m| {
            fill(m, 1, 20);
            m.shell("cat $M/k001 > $W/out").ok();
            let used = m.status_number("used_bytes");
            m.remount();
            assert_eq!(m.status_number("used_bytes"), used);
            fill(m, 21, 45);
            assert_eq!(present(m, 1), policy != "fifo", "{policy}: {:?}", numbers(m));
            assert!(!present(m, 2), "{policy}: {:?}", numbers(m));
        });
    }
}

#[test]
fn a_reader_of_an_evicted_key_finishes() {
    each_with(small("fifo"), |m| {
        m.shell("head -c 4M /dev/urandom > $W/v; cat $W/v > $M/victim").ok();
        let (mut a, mut b) = (m.peer(), m.peer());
        a.run("fd = os.open(M + '/victim', os.O_RDONLY); x = mmap.mmap(fd, 0, prot=mmap.PROT_READ); os.read(fd, 100)");
        b.run("os.stat(M + '/victim')");
        fill(m, 1, 60);
        // Gone at once, also through a cached directory entry, and for both kinds of look-up.
        assert_eq!(b.error("os.stat(M + '/victim')"), "ENOENT");
        assert_eq!(b.error("os.open(M + '/victim', os.O_RDONLY)"), "ENOENT");
        assert_eq!(b.run("'victim' in os.listdir(M)"), false);
        assert_eq!(a.run("os.pread(fd, 5 << 20, 0) == read(W + '/v')"), true);
        assert_eq!(a.run("x[:] == read(W + '/v')"), true);
        a.run("x.close(); os.close(fd)");
        m.shell("echo again > $M/victim; [ $(cat $M/victim) = again ]").ok();
    });
}

#[test]
fn evict_on_command_is_seen_at_once() {
    each_with(small("fifo"), |m| {
        fill(m, 1, 20);
        let mut b = m.peer();
        b.run("[os.stat(M + '/k%03d' % i) for i in range(1, 21)] and None");
        let (result, reply) = m.control("evict to=25");
        assert_eq!(result, Ok(()), "{reply}");
        assert!(
            wait_until(Duration::from_secs(20), || m.status_number("used_bytes") <= 8 << 20),
            "{}",
            m.status()
        );
        let left = numbers(m);
        let seen = b.run("[i for i in range(1, 21) if os.path.exists(M + '/k%03d' % i)]");
        assert_eq!(seen, serde_json::json!(left));
        assert!(left.contains(&20) && !left.contains(&1), "{left:?}");
        assert_eq!(m.control("evict to=0").0, Ok(()));
        assert!(wait_until(Duration::from_secs(20), || numbers(m).is_empty()));
    });
}

#[test]
fn a_pinned_key_stays() {
    each_with(small("fifo"), |m| {
        fill(m, 1, 3);
        fencefs(["pin".as_ref(), m.key("k001").as_os_str()]).ok();
        fill(m, 4, 60);
        assert!(present(m, 1) && !present(m, 2));
        m.remount();
        fill(m, 61, 120);
        assert!(present(m, 1));
        fencefs(["unpin".as_ref(), m.key("k001").as_os_str()]).ok();
        fill(m, 121, 180);
        assert!(!present(m, 1));
    });
}

#[test]
fn everything_pinned_is_no_room() {
    each_with(small("fifo"), |m| {
        fill(m, 1, 28);
        m.shell("for f in $M/k*; do setfattr -n user.fencefs.pin -v 1 $f; done").ok();
        let (_, text) = m.shell("head -c 8M /dev/zero > $M/more").failed();
        assert!(text.contains("No space left on device"), "{text}");
        assert_eq!(numbers(m).len(), 28);
        m.shell("[ ! -e $M/more ]").ok();
    });
}

/// Makes a file undeletable; undone when dropped. `None` where the filesystem cannot.
pub(crate) struct Immutable(std::path::PathBuf);

impl Immutable {
    pub(crate) fn new(path: std::path::PathBuf) -> Option<Immutable> {
        let done = run(Command::new("chattr").arg("+i").arg(&path));
        done.status.success().then_some(Immutable(path))
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        run(Command::new("chattr").arg("-i").arg(&self.0));
    }
}

#[test]
fn a_victim_that_cannot_be_deleted_does_not_stop_eviction() {
    each_with(small("fifo"), |m| {
        fill(m, 1, 5);
        let Some(stuck) = Immutable::new(m.record_of("k001")) else {
            eprintln!("skipped: no immutable files here");
            return;
        };
        for block in 0..12 {
            fill(m, block * 5 + 6, block * 5 + 10);
        }
        assert!(!present(m, 2) && present(m, 65), "{:?}", numbers(m));
        assert!(m.status_number("used_bytes") <= 32 << 20);
        // What is still on the disk is still counted; eviction may be at work for a moment longer.
        let on_disk = || m.records().iter().map(|(_, bytes)| bytes).sum::<u64>();
        let counted = || {
            m.settle_blocks();
            m.status_number("used_bytes") == on_disk()
        };
        assert!(
            wait_until(Duration::from_secs(30), counted),
            "{} on disk, {}",
            on_disk(),
            m.status_number("used_bytes")
        );
        drop(stuck);
        fill(m, 66, 130);
        assert!(!present(m, 1), "{:?}", numbers(m));
    });
}

#[test]
fn values_are_never_served_for_another_key() {
    each_with(small("lru"), |m| {
        let mut peers: Vec<_> = (0..4).map(|_| m.peer()).collect();
        for (seed, peer) in peers.iter_mut().enumerate() {
            peer.begin(&format!(
                "import random
rng = random.Random({seed}); hits = 0
for n in range(300):
    key = 'key-%04d' % rng.randrange(120)
    value = hashlib.sha256(key.encode()).digest() * 16384
    try:
        found = read(M + '/' + key); hits += 1
        assert found == value, (key, len(found))
    except FileNotFoundError:
        t = M + '/.t{seed}'
        write(t, value); os.rename(t, M + '/' + key)"
            ));
        }
        for peer in &mut peers {
            let answer = peer.finish();
            assert!(answer.get("ok").is_some(), "{answer}");
            assert!(peer.int("hits") > 0);
        }
        assert!(m.status_number("evicted_keys") > 0);
        assert!(m.status_number("used_bytes") <= 32 << 20);
    });
}

#[test]
fn directories_outlast_the_eviction_of_their_keys() {
    each_with(small("fifo"), |m| {
        m.shell("mkdir -p $M/12/34; echo x > $M/12/34/k").ok();
        fill(m, 1, 60);
        m.shell("[ ! -e $M/12/34/k ]; echo y > $M/12/34/new; [ $(cat $M/12/34/new) = y ]").ok();
        m.remount();
        m.shell("[ -d $M/12/34 ]; echo z > $M/12/34/new2").ok();
    });
}
