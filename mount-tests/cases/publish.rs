//! Cases on how a value becomes visible.

use crate::cases::{PATIENCE, QUOTA, case, case_with, df_used, python, settle, shell};
use crate::harness::wait_until;
use crate::removals::is_empty_dir;

/// Writers that write the final name in place: nobody meets the half of a value.
#[test]
fn u017_a_writer_in_place_is_not_met_half_way() {
    case(|m| {
        let (mut writer, mut reader) = (m.peer(), m.peer());
        for (round, old) in ["None", "1000000"].into_iter().enumerate() {
            writer.run("f = open(M + '/p.bin', 'wb', buffering=0); f.write(bytes(500000))");
            let seen = "os.path.exists(M + '/p.bin') and os.path.getsize(M + '/p.bin') or None";
            assert_eq!(reader.run(seen).to_string(), old.replace("None", "null"), "round {round}");
            assert_eq!(reader.run("'p.bin' in os.listdir(M)"), round == 1);
            writer.run("f.write(bytes(500000)); f.close()");
            assert_eq!(reader.int("len(read(M + '/p.bin'))"), 1_000_000);
        }
    });
}

/// As numpy's tofile does: a duplicate is written and closed first. And an allocation ahead, as it does for large arrays.
#[test]
fn u019_a_duplicate_is_closed_first() {
    case(|m| {
        let mut a = m.peer();
        a.run(
            "p = M + '/d.tmp'; fd = os.open(p, os.O_CREAT | os.O_WRONLY); d = os.dup(fd); os.write(d, b'1' * 4096)
os.close(d); os.write(fd, b'2' * 4096); os.close(fd); os.replace(p, p[:-4])",
        );
        assert_eq!(a.run("read(M + '/d') == b'1' * 4096 + b'2' * 4096"), true);
        shell(m, ": > $M/fk; fallocate -n -l 32M $M/fk; [ $(stat -c %s $M/fk) = 0 ]").ok();
    });
}

/// As safetensors does, and writers in C++: renamed while the descriptor is open.
#[test]
fn u020_renamed_while_it_is_open() {
    case(|m| {
        let mut a = m.peer();
        let mut b = m.peer();
        a.run(
            "fd = os.open(M + '/.tmpAb', os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600); os.ftruncate(fd, 1000000)
os.pwrite(fd, b'h' * 88, 0); os.pwrite(fd, b'b' * 999912, 88); os.rename(M + '/.tmpAb', M + '/x.safetensors')
value = b'h' * 88 + b'b' * 999912",
        );
        for close in ["None", "os.close(fd)", "None"] {
            a.run(close);
            assert_eq!(a.run("read(M + '/x.safetensors') == value"), true, "{close}");
            assert_eq!(b.run("read(M + '/x.safetensors') == b'h' * 88 + b'b' * 999912"), true, "{close}");
            assert_eq!(b.run("os.listdir(M)").to_string(), "[\"x.safetensors\"]");
        }
        let publications = m.status()["keys"].clone();
        assert_eq!(publications, 1);
        // What replaced it meanwhile is not replaced by a late close, and a name that was taken away stays away.
        a.run("fd = os.open(M + '/.t', os.O_RDWR | os.O_CREAT); os.write(fd, b'late'); os.rename(M + '/.t', M + '/x.safetensors')");
        b.run("write(M + '/.u', b'newer'); os.rename(M + '/.u', M + '/x.safetensors')");
        a.run("os.close(fd)");
        assert_eq!(b.text("read(M + '/x.safetensors')"), "newer");
        a.run("fd = os.open(M + '/.t', os.O_RDWR | os.O_CREAT); os.write(fd, b'late'); os.rename(M + '/.t', M + '/x.safetensors')");
        b.run("os.unlink(M + '/x.safetensors')");
        a.run("os.write(fd, b'r'); os.close(fd)");
        assert_eq!(b.error("os.stat(M + '/x.safetensors')"), "ENOENT");
        m.remount();
        assert!(is_empty_dir(&m.keys()));
    });
}

/// Four writers with one temporary name: whoever loses the race gets ENOENT, and nothing else.
#[test]
fn u022_parallel_renames_of_one_temporary_name() {
    case(|m| {
        shell(
            m,
            "for j in 1 2 3 4; do
                 (for i in $(seq 60); do echo $j-$i > $M/s.tmp && mv $M/s.tmp $M/s.data || true; done) 2>> $W/err &
             done; wait
             ! grep -v 'No such file or directory' $W/err; grep -Ex '[1-4]-[0-9]+' $M/s.data; [ \"$(ls -A $M)\" = s.data ]",
        )
        .ok();
        // Without the pauses that a process a step makes.
        let mut peers: Vec<_> = (0..4).map(|_| m.peer()).collect();
        for (j, peer) in peers.iter_mut().enumerate() {
            peer.begin(&format!(
                "seen = set()
for i in range(300):
    try: write(M + '/s.tmp', b'{j}-' + b'%04d' % i * 5000); os.rename(M + '/s.tmp', M + '/s.data')
    except OSError as e: seen.add(errno.errorcode[e.errno])"
            ));
        }
        for peer in &mut peers {
            let answer = peer.finish();
            assert!(answer.get("ok").is_some(), "{answer}");
            let seen = peer.run("sorted(seen)").to_string();
            assert!(["[]", "[\"ENOENT\"]"].contains(&seen.as_str()), "{seen}");
        }
        python(m, "d = read(M + '/s.data'); assert len(d) == 20002 and d[2:] == d[2:6] * 5000, d[:20]\nassert os.listdir(M) == ['s.data']").ok();
        settle(m);
        assert_eq!((&m.status()["state"], &m.status()["last_error"]), (&"ready".into(), &().into()));
    });
}

/// A program that is killed between its temporary file and the rename leaves a key like any other, which eviction takes; one
/// that is killed before its close leaves nothing.
#[test]
fn u023_temporary_files_of_the_killed() {
    case_with(
        |b| b.evict("lru"),
        |m| {
            let (mut before, mut after) = (m.peer(), m.peer());
            before.run(
                "fd = os.open(M + '/a.bin_122.tmp', os.O_CREAT | os.O_WRONLY); os.write(fd, bytes(8000000))",
            );
            after.run("fd = os.open(M + '/b.bin_123.tmp', os.O_CREAT | os.O_WRONLY); os.write(fd, bytes(8000000)); os.close(fd)");
            before.kill();
            after.kill();
            settle(m);
            assert!(!m.key("a.bin_122.tmp").exists() && m.key("b.bin_123.tmp").exists());
            m.settle_blocks();
            assert!((8_000_000..8_200_000).contains(&df_used(m)), "{}", df_used(m));
            for crash in [false, true] {
                if crash {
                    m.crash()
                } else {
                    m.remount()
                }
                assert!(m.key("b.bin_123.tmp").exists() && is_empty_dir(&m.store.join("data/.staging")));
                assert!((8_000_000..8_200_000).contains(&df_used(m)), "{}", df_used(m));
            }
            // The daemon dies under a writer: nothing of that is left, on the disk neither.
            let mut during = m.peer();
            during.run("fd = os.open(M + '/c.tmp', os.O_CREAT | os.O_WRONLY); os.write(fd, bytes(8000000))");
            m.crash();
            assert!(is_empty_dir(&m.store.join("data/.staging")) && !m.key("c.tmp").exists());
            shell(m, "for i in $(seq 60); do head -c 1M /dev/zero > $M/k$i; done; [ ! -e $M/b.bin_123.tmp ]; [ -e $M/k1 ]").ok();
        },
    );
}

#[test]
fn u025_renames_within_across_and_over() {
    case(|m| {
        shell(
            m,
            "mkdir -p $M/tmpd/deep
             echo one > $M/tmpd/ra; mv $M/tmpd/ra $M/ra; [ $(cat $M/ra) = one ]
             echo two > $M/.ra; mv -f $M/.ra $M/ra; [ $(cat $M/ra) = two ]
             mv $M/ra $M/tmpd/rb; [ $(cat $M/tmpd/rb) = two ]; [ ! -e $M/ra ]
             echo three > $M/tmpd/deep/t; mv -f $M/tmpd/deep/t $M/tmpd/rb; [ $(cat $M/tmpd/rb) = three ]
             cd $M; echo four > tmpd/x; mv tmpd/x ./y; [ $(cat y) = four ]",
        )
        .ok();
        python(
            m,
            "write(M + '/tmpd/p', b'5'); os.replace(M + '/tmpd/p', M + '/y'); assert read(M + '/y') == b'5'",
        )
        .ok();
    });
}

/// One writer by temporary file and rename, four readers: a whole generation each time, and always one.
#[test]
fn u026_a_replacement_is_atomic_for_readers() {
    case(|m| {
        python(
            m,
            "p, torn, missing, reads, done = M + '/r', [], [], [0] * 4, threading.Event()
def put(c): write(p + '.tmp', bytes([c]) * 1000000); os.replace(p + '.tmp', p)
put(65)
def readers(n):
    while not done.is_set():
        try: d = read(p)
        except FileNotFoundError: missing.append(n); continue
        reads[n] += 1
        if len(d) != 1000000 or d.count(d[:1]) != len(d): torn.append(len(d))
threads = [threading.Thread(target=readers, args=(n,)) for n in range(4)]
for t in threads: t.start()
end, puts = time.monotonic() + 3, 0
while time.monotonic() < end or min(reads) < 10: put(65 + puts % 26); puts += 1
done.set()
for t in threads: t.join()
assert not torn and not missing, (torn[:5], len(missing), reads, puts)
assert puts > 10 and read(p) == bytes([65 + (puts - 1) % 26]) * 1000000",
        )
        .ok();
    });
}

#[test]
fn u028_closing_one_of_several_descriptors() {
    case(|m| {
        shell(
            m,
            "echo x > $M/a1; exec 5< $M/a1; (cat <&5 > $W/out); [ $(cat $W/out) = x ]
             (exec 5<&-); exec 6< $M/a1; exec 5<&-; [ $(cat <&6) = x ]; exec 6<&-
             echo longer > $M/a1; [ $(cat $M/a1) = longer ]",
        )
        .ok();
        let mut a = m.peer();
        a.run(
            "fd = os.open(M + '/a1', os.O_RDONLY); os.close(os.dup(fd))
if os.fork() == 0: os._exit(0)
os.wait()",
        );
        assert_eq!(a.text("os.read(fd, 3)"), "lon");
        m.shell("echo new > $M/a1; [ $(cat $M/a1) = new ]").ok();
        assert_eq!(a.text("os.read(fd, 10)"), "ger\n", "who has the old value open keeps it");
        // A writer's duplicate and its child, too.
        a.run("w = os.open(M + '/w', os.O_CREAT | os.O_WRONLY); os.write(w, b'1'); os.close(os.dup(w)); os.write(w, b'2')");
        a.run("\nif os.fork() == 0: os._exit(0)\nos.wait(); os.write(w, b'3'); os.close(w)");
        assert_eq!(a.text("read(M + '/w')"), "123");
    });
}

/// Opened for reading and writing by those who only read; written without O_TRUNC by those who replace.
#[test]
fn u029_an_open_for_both_that_only_reads_costs_nothing() {
    case(|m| {
        shell(m, "head -c 65536 /dev/urandom > $M/rw; sync -f $M/rw").ok();
        let look = || {
            shell(m, "stat -c '%y %i %s' $M/rw; df -B1 --output=used $M; getfattr --only-values -n user.fencefs.digest $M/rw").ok()
        };
        let before = look();
        let mut a = m.peer();
        a.run("fd = os.open(M + '/rw', os.O_RDWR); os.pread(fd, 4096, 0)");
        assert_eq!(m.status_number("staged_bytes"), 0, "no copy is made");
        a.run("os.close(fd)");
        a.run("fd = os.open(M + '/rw', os.O_RDWR | os.O_CREAT); os.pread(fd, 65536, 0); os.close(fd)");
        assert_eq!(look(), before);
        // An in-place write without O_TRUNC is that of any file: docs/semantics.md, "Writing".
        a.run("old = read(M + '/rw'); fd = os.open(M + '/rw', os.O_RDWR | os.O_CREAT); os.pwrite(fd, b'new', 100); os.close(fd)");
        assert_eq!(a.run("read(M + '/rw') == old[:100] + b'new' + old[103:]"), true);
        a.run("fd = os.open(M + '/fresh', os.O_RDWR | os.O_CREAT); os.pwrite(fd, bytes(1 << 20), 0); os.close(fd)");
        assert_eq!(a.int("os.stat(M + '/fresh').st_size"), 1 << 20);
        assert!(wait_until(PATIENCE, || m.status_number("staged_bytes") == 0) && df_used(m) < QUOTA);
    });
}
