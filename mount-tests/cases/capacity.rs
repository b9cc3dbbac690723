//! Cases on how much the store holds and what it says of that.

use crate::cases::{PATIENCE, QUOTA, case, case_with, df_used, python, record_bytes, settle, shell};
use crate::harness::{Mount, fencefs, wait_until};

/// A server that only ever writes.
#[test]
fn u001_a_writer_never_fills_the_volume() {
    case(|m| {
        python(
            m,
            "def on_disk():
    total = 0
    for top, dirs, files in os.walk(S + '/data'):
        for f in files:
            try: total += os.lstat(top + '/' + f).st_blocks * 512
            except FileNotFoundError: pass
    return total
n = 3 * (Q >> 20)
for i in range(1, n + 1):
    write(M + '/.t%d' % i, os.urandom(1 << 20))
    os.rename(M + '/.t%d' % i, M + '/f%d.bin' % i)
    # Nobody writes just now, so the published values are all there is.
    assert df() <= Q, (i, df())
    if i % 16 == 0: assert on_disk() <= Q, (i, on_disk())
left = sorted(int(name[1:-4]) for name in os.listdir(M))
assert left[-1] == n and len(left) > n // 4, left
assert 1 not in left, left",
        )
        .ok();
        // With the processes that a shell makes of it; the ledger and the order are all that stands beside the values.
        shell(
            m,
            "for i in $(seq 1000 1100); do head -c 1M /dev/urandom > $M/.t$i && mv $M/.t$i $M/f$i.bin; done
             [ -e $M/f1100.bin ]; [ $(find $S -type f -printf '%b\\n' | awk '{n += $1} END {print n * 512}') -le $((Q + 8388608)) ]",
        )
        .ok();
        assert_eq!(m.status_number("staged_bytes"), 0);
    });
}

/// The order of use outlasts a restart, and so do the counts.
#[test]
fn u002_recency_survives_a_restart() {
    for policy in ["lru", "mq-chain"] {
        case_with(
            |b| b.evict(policy),
            |m| {
                shell(
                    m,
                    "for i in $(seq 20); do head -c $((Q / 25)) /dev/zero > $M/k$i; done; cat $M/k1 > $W/out",
                )
                .ok();
                m.settle_blocks();
                let before = (m.status_number("used_bytes"), m.status_number("keys"), df_used(m));
                m.remount();
                assert_eq!((m.status_number("used_bytes"), m.status_number("keys"), df_used(m)), before);
                shell(
                    m,
                    "for i in $(seq 21 28); do head -c $((Q / 25)) /dev/zero > $M/k$i; done
                     [ -e $M/k1 ]; [ ! -e $M/k2 ]; [ -e $M/k28 ]",
                )
                .ok();
            },
        );
    }
}

/// Whoever deletes, by whatever way: the budget has it back.
#[test]
fn u004_deletions_give_the_budget_back() {
    case(|m| {
        let before = (df_used(m), m.status_number("used_bytes"));
        python(
            m,
            "value = bytes(1 << 20)
for n in range(300):
    write(M + '/x', value); os.unlink(M + '/x')
for n in range(100):
    write(M + '/x', value); write(M + '/y', value); os.rename(M + '/x', M + '/y')
    write(M + '/y', value); os.truncate(M + '/y', 0); os.unlink(M + '/y')
os.mkdir(M + '/d')
for n in range(40): write(M + '/d/%d' % n, value)
shutil.rmtree(M + '/d')",
        )
        .ok();
        settle(m);
        assert_eq!((df_used(m), m.status_number("used_bytes")), before);
        assert_eq!(m.status_number("evicted_keys"), 0, "there was always room");
        shell(m, "head -c $((Q * 8 / 10)) /dev/zero > $M/big; [ $(stat -c %s $M/big) = $((Q * 8 / 10)) ]")
            .ok();
    });
}

/// The same through bind mounts in mount namespaces of their own, as containers have them.
#[test]
fn u005_the_quota_holds_through_bind_mounts() {
    case(|m| {
        let container = "mkdir -p $W/$1; mount --bind $M $W/$1
             for i in $(seq 30); do head -c $((Q / 10)) /dev/zero > $W/$1/$1.$i; done; umount $W/$1";
        shell(
            m,
            &format!(
                "export Q
                 unshare -m bash -euc '{container}' bash one & first=$!
                 unshare -m bash -euc '{container}' bash two; wait $first
                 [ -e $M/one.30 ] || [ -e $M/two.30 ]; [ $(ls $M | wc -l) -ge 7 ]"
            ),
        )
        .ok();
        settle(m);
        assert!(record_bytes(m) <= QUOTA && m.status_number("used_bytes") <= QUOTA, "{}", m.status());
    });
}

/// The length and the first and last byte of a key, all of which must be one byte.
fn whole(m: &Mount, key: &str) -> (usize, u8) {
    let value = std::fs::read(m.key(key)).unwrap();
    assert!(value.iter().all(|b| *b == value[0]), "{key} is a mix");
    (value.len(), value[0])
}

/// A replacement that cannot fit beside the old value fails before it touches that. What is asked for by `mv` of a
/// temporary file is another thing: the temporary file is a key, and its publication may evict any other, the target too.
/// docs/semantics.md, "Capacity" in "Where another behaviour was asked for".
#[test]
fn u007_a_replacement_is_all_or_nothing() {
    case(|m| {
        let (six, nine) = (QUOTA as usize / 10 * 6, QUOTA as usize / 10 * 9);
        shell(m, "head -c $((Q / 10 * 6)) /dev/zero | tr '\\0' o > $M/v").ok();
        let (_, text) = shell(m, "head -c $((Q / 10 * 9)) /dev/zero | tr '\\0' n > $M/v").failed();
        assert!(text.contains("No space left on device"), "{text}");
        assert_eq!(whole(m, "v"), (six, b'o'), "the old value, all of it");
        assert_eq!(m.status_number("evicted_keys"), 0);
        // A target that is not to go does not go: then the temporary file is refused.
        fencefs(["pin".into(), m.key("v")]).ok();
        let (_, text) = shell(m, "head -c $((Q / 10 * 9)) /dev/zero > $M/.n").failed();
        assert!(text.contains("No space left on device"), "{text}");
        assert_eq!(whole(m, "v"), (six, b'o'));
        fencefs(["unpin".into(), m.key("v")]).ok();
        shell(m, "head -c $((Q / 10 * 9)) /dev/zero | tr '\\0' n > $M/.n; mv $M/.n $M/v").ok();
        assert_eq!(whole(m, "v"), (nine, b'n'));
        // What fits beside the old value replaces it.
        shell(
            m,
            "rm $M/v; head -c 20M /dev/zero | tr '\\0' o > $M/v; head -c 30M /dev/zero | tr '\\0' n > $M/v",
        )
        .ok();
        assert_eq!(whole(m, "v"), (30 << 20, b'n'));
        settle(m);
    });
}

#[test]
fn u008_beyond_the_quota_is_no_space_and_costs_nobody() {
    case(|m| {
        shell(m, "for i in $(seq 20); do head -c 1M /dev/urandom > $M/keep$i; done; cat $M/keep* > $W/kept")
            .ok();
        shell(m, "mkdir $TA; $BIN quota $R --tenant a 4MiB").ok();
        for (target, blocks, says) in [
            ("$M/huge", "$((Q / 1048576 + 8))", "No space left on device"),
            ("$TA/huge", "12", "Disk quota exceeded"),
        ] {
            let (_, text) = shell(m, &format!("dd if=/dev/zero of={target} bs=1M count={blocks}")).failed();
            assert!(text.contains(says) && !text.contains("Input/output error"), "{text}");
            assert!(shell(m, &format!("ls -l {target}")).failed().1.contains("No such file"));
        }
        settle(m);
        assert_eq!(m.status_number("evicted_keys"), 0, "{}", m.status());
        shell(m, "cat $M/keep* | cmp - $W/kept").ok();
    });
}

/// By default 97 and 95 percent, as the contract says; who runs tools that look for 85 sets the watermarks below.
#[test]
fn u010_background_eviction_keeps_below_its_watermark() {
    for (marks, most) in [(None, 97), (Some(["--high-watermark=80", "--low-watermark=70"]), 80)] {
        case_with(
            |b| marks.iter().flatten().fold(b, |b, mark| b.arg(mark)),
            |m| {
                shell(m, "for i in $(seq 40); do head -c $((Q / 20)) /dev/zero > $M/w$i; done").ok();
                let used = || m.status_number("used_bytes");
                assert!(wait_until(PATIENCE, || used() * 100 <= QUOTA * most), "{}", m.status());
                assert!(used() * 100 >= QUOTA * (most - 20), "no more than it must: {}", m.status());
                m.settle_blocks();
                let s = rustix::fs::statvfs(m.keys()).unwrap();
                assert_eq!(s.f_blocks * s.f_frsize, QUOTA);
                assert_eq!(
                    (s.f_bavail * s.f_frsize, s.f_bfree),
                    (QUOTA - used().div_ceil(4096) * 4096, s.f_bavail)
                );
                let percent = shell(m, "df --output=pcent $M | tail -1 | tr -dc 0-9").ok();
                assert!(percent.trim().parse::<u64>().unwrap() <= most, "{percent}");
            },
        );
    }
}
