//! Cases on what goes and what is found in the store's directory.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::cases::{PATIENCE, case, case_with, df_used, python, shell};
use crate::eviction::Immutable;
use crate::harness::{Builder, Mount, wait_until};
use crate::removals::is_empty_dir;

fn fifo(builder: Builder) -> Builder {
    builder.evict("fifo")
}

/// Keys of 1 MiB until all that was there before has gone.
#[track_caller]
fn fill(m: &Mount) {
    python(m, "for i in range(70): write(M + '/fill%d' % i, bytes(1 << 20))").ok();
}

/// What the daemon still has open of files without a name.
fn unlinked_and_open(m: &Mount) -> usize {
    let fds = fs::read_dir(format!("/proc/{}/fd", m.pid().as_raw_nonzero())).unwrap();
    let names = fds.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
    names.filter(|to| to.starts_with(&m.store) && to.to_string_lossy().ends_with(" (deleted)")).count()
}

#[test]
fn u031_a_reader_keeps_what_eviction_takes() {
    case_with(fifo, |m| {
        let mut a = m.peer();
        a.run("v = os.urandom(4000000); write(M + '/er', v); fd = os.open(M + '/er', os.O_RDONLY); os.read(fd, 100)");
        a.run("x = mmap.mmap(fd, 0, prot=mmap.PROT_READ); private = mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)");
        fill(m);
        assert!(!m.key("er").exists() && !m.shell("ls $M").ok().contains("er\n"));
        assert_eq!(a.run("os.pread(fd, 1 << 23, 0) == v and x[:] == v and private[:] == v"), true);
        assert_eq!(
            m.status_number("unlinked_bytes"),
            4_001_792,
            "what is evicted and still read: {}",
            m.status()
        );
        assert!(
            fs::read_to_string(m.mnt.join(".fencefs/metrics"))
                .unwrap()
                .contains("\nfencefs_unlinked_bytes 4001792\n")
        );
        // The key may come back meanwhile, as another value.
        a.run("write(M + '/er', b'new')");
        assert_eq!(a.run("read(M + '/er') == b'new' and os.pread(fd, 1 << 23, 0) == v"), true);
        a.run("x.close(); private.close(); os.close(fd)");
        assert!(wait_until(PATIENCE, || unlinked_and_open(m) == 0), "the space is not given back");
        assert_eq!(m.status_number("unlinked_bytes"), 0);
    });
}

#[test]
fn u032_a_victim_that_cannot_go_stops_nothing() {
    case_with(fifo, |m| {
        shell(m, "head -c 1M /dev/zero > $M/stuck").ok();
        let Some(stuck) = Immutable::new(m.record_of("stuck")) else { return };
        shell(m, "for i in $(seq 60); do head -c $((Q / 20)) /dev/zero > $M/u$i; done; [ -e $M/u60 ]; [ ! -e $M/u1 ]").ok();
        let status = m.status();
        assert!(status["eviction_errors"].as_u64() > Some(0), "{status}");
        let told = status["last_error"].as_str().unwrap_or_default();
        let record = m.record_of("stuck");
        let name = record.file_name().unwrap().to_str().unwrap();
        assert!(told.contains("stuck") || told.contains(name), "names the object: {told}");
        drop(stuck);
        fill(m);
        assert!(!m.key("stuck").exists(), "it goes when it can");
    });
}

/// Files of one entry go independently; a half that is missing is a plain miss.
/// docs/semantics.md, "Capacity" in "Where another behaviour was asked for".
#[test]
fn u034_companion_files_go_independently() {
    case(|m| {
        python(
            m,
            "for i in range(10):
    write(M + '/p%d.safetensors' % i, bytes(1000000)); write(M + '/p%d.safetensors.metadata' % i, b'm')
for i in range(60): write(M + '/fill%d' % i, bytes(Q // 20))
gone = 0
for i in range(10):
    for name, value in [('/p%d.safetensors' % i, bytes(1000000)), ('/p%d.safetensors.metadata' % i, b'm')]:
        try: assert read(M + name) == value, name
        except OSError as e: assert e.errno == errno.ENOENT, e; gone += 1
assert gone >= 10, gone
# Written again, both halves are the new ones.
write(M + '/p1.safetensors', b'new'); write(M + '/p1.safetensors.metadata', b'n')
assert (read(M + '/p1.safetensors'), read(M + '/p1.safetensors.metadata')) == (b'new', b'n')",
        )
        .ok();
    });
}

/// Values that tell their key, by eight threads under eviction.
#[test]
fn u035_no_key_ever_has_anothers_bytes() {
    case_with(
        |b| b.arg("--size").arg("4MiB"),
        |m| {
            python(
                m,
                "def value(k): return hashlib.sha256(k.encode()).digest() * 4096
bad, hits = [], [0] * 8
def run(t):
    r = random.Random(t)
    for n in range(200):
        k = 'xk%d' % r.randrange(64); p = M + '/' + k
        try: write(p + '.%d.tmp' % t, value(k)); os.replace(p + '.%d.tmp' % t, p)
        except OSError as e:
            # Its temporary file may be evicted before it is renamed.
            if e.errno != errno.ENOENT: bad.append((k, 'put', e))
        k = 'xk%d' % r.randrange(64)
        try:
            if read(M + '/' + k) != value(k): bad.append((k, 'content'))
            hits[t] += 1
        except FileNotFoundError: pass
        except OSError as e: bad.append((k, 'get', e))
threads = [threading.Thread(target=run, args=(t,)) for t in range(8)]
for t in threads: t.start()
for t in threads: t.join()
assert not bad and sum(hits) > 0, (bad[:3], hits)",
            )
            .ok();
            assert!(
                m.status_number("evicted_keys") > 0 && m.status_number("quarantined") == 0,
                "{}",
                m.status()
            );
        },
    );
}

/// What is no record, in the store's own directories, when it is started.
#[test]
fn u037_malformed_files_end_no_scan() {
    for clean in [true, false] {
        case(|m| {
            shell(m, "for i in $(seq 50); do echo $i > $M/k$i; done; head -c 1M /dev/zero > $M/large").ok();
            let dirs: Vec<PathBuf> =
                ["k1", "k2", "k3"].map(|k| m.record_of(k).parent().unwrap().to_owned()).into();
            m.settle_blocks();
            let before = df_used(m);
            if clean {
                m.umount()
            } else {
                m.kill()
            }
            let file_name = |dir: &PathBuf, n: usize| {
                // A name that belongs into the shard, and so looks as much like a record as can be.
                let parts: Vec<_> = dir.iter().rev().take(2).map(|p| p.to_str().unwrap()).collect();
                format!("{}{}{:0>28x}", parts[1], parts[0], n)
            };
            let mut planted = Vec::new();
            for (n, dir) in dirs.iter().enumerate() {
                let (garbage, link) = (dir.join(file_name(dir, n)), dir.join(file_name(dir, n + 10)));
                fs::write(&garbage, [n as u8; 5000]).unwrap();
                symlink("/etc/passwd", &link).unwrap();
                fs::write(dir.join("stray"), b"mine").unwrap();
                planted.extend([garbage, link]);
            }
            fs::write(m.store.join("beside"), b"mine").unwrap();
            m.mount();
            assert_eq!(df_used(m), before, "garbage is not counted");
            shell(m, "for i in $(seq 50); do [ $(cat $M/k$i) = $i ]; done; [ $(ls -A $M | wc -l) = 51 ]")
                .ok();
            if clean {
                m.crash()
            } else {
                m.remount()
            }
            assert_eq!(df_used(m), before, "nor twice");
            m.crash();
            assert_eq!(df_used(m), before);
            let status = m.status();
            assert_eq!((&status["state"], &status["keys"]), (&"ready".into(), &51.into()), "{status}");
            shell(m, "! grep -rqs root: $M; [ $(ls -A $M | wc -l) = 51 ]; [ $(cat $S/beside) = mine ]").ok();
            assert!(fs::read_to_string("/etc/passwd").unwrap().contains("root:"));
            // Said by name, by the tool that looks.
            m.umount();
            let report = shell(m, "$BIN fsck $S --json").stdout;
            assert!(report.contains("\"symlink\"") && report.contains("stray"), "{report}");
            for path in &planted {
                let name = path.file_name().unwrap().to_str().unwrap();
                assert!(report.contains(name), "{name}: {report}");
            }
            shell(
                m,
                &format!(
                    "for d in {}; do [ $(cat $d/stray) = mine ]; done",
                    dirs.iter().map(|d| d.to_str().unwrap()).collect::<Vec<_>>().join(" ")
                ),
            )
            .ok();
            m.mount();
        });
    }
}

/// The daemon is killed under a writer, at moments that nobody chose.
#[test]
fn u038_a_crash_leaves_one_whole_copy() {
    case(|m| {
        for round in 1..=6 {
            let mut writer = m.peer();
            writer.begin(&format!(
                "import itertools
try:
    for n in itertools.count():
        write(M + '/.c', b'{round}-%06d-' % n * 200); os.rename(M + '/.c', M + '/c')
except OSError as e: last = errno.errorcode[e.errno]"
            ));
            let wanted = format!("{round}-0");
            assert!(wait_until(PATIENCE, || {
                fs::read_to_string(m.key("c")).is_ok_and(|c| c.starts_with(&wanted) && &c[3..] > "00003")
            }));
            m.crash();
            assert!(writer.finish().get("ok").is_some());
            assert!(["ENOTCONN", "ECONNABORTED"].contains(&writer.text("last").as_str()));
            let value = fs::read_to_string(m.key("c")).unwrap();
            assert_eq!((value.len(), value.matches(&value[..9]).count()), (1800, 200), "{value}");
            assert!(value.starts_with(&wanted));
            assert!(is_empty_dir(&m.store.join("data/.staging")));
            m.settle_blocks();
            assert_eq!(m.status_number("used_bytes"), crate::cases::record_bytes(m));
        }
        m.umount();
        shell(m, "$BIN fsck $S").ok();
        m.mount();
    });
}
