//! `--checksum on`: each record has the XXH3-64 of its content however it was written, and one whose content is
//! another is never served after a crash.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::harness::{Builder, Mount, each_with, wait_until};

fn summed(builder: Builder) -> Builder {
    builder.arg("--checksum").arg("on")
}

/// Flags and checksum of a record, as docs/format.md says.
fn metadata(record: &Path) -> (u8, Option<u64>) {
    let mut bytes = vec![0; 4096];
    let length = rustix::fs::getxattr(record, "user.fencefs", &mut bytes[..]).unwrap();
    let sum = bytes[..length].get(20..28).map(|b| u64::from_le_bytes(b.try_into().unwrap()));
    (bytes[1], sum.filter(|_| bytes[1] & 4 != 0))
}

/// The key's record is settled, and has the checksum of its content.
#[track_caller]
fn has_its_sum(m: &Mount, key: &str) {
    let record = m.record_of(key);
    wait_until(Duration::from_secs(10), || metadata(&record).0 & 1 == 0);
    let content = fs::read(&record).unwrap();
    assert_eq!(metadata(&record), (metadata(&record).0 & !1, Some(xxh3_64(&content))), "{key}");
}

fn flip(record: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(record).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn however_a_value_is_written_its_checksum_is_right() {
    each_with(summed, |m| {
        let mut p = m.peer();
        p.run("big = os.urandom(3 << 20)");
        let ways = [
            ("small", "write(M + '/small', b'0123456789')"),
            ("big", "write(M + '/big', big)"),
            ("empty", "write(M + '/empty', b'')"),
            (
                "overwritten",
                "fd = os.open(M + '/overwritten', os.O_CREAT | os.O_RDWR); os.write(fd, big); os.pwrite(fd, b'new', 5); os.close(fd)",
            ),
            (
                "backwards",
                "fd = os.open(M + '/backwards', os.O_CREAT | os.O_RDWR); os.pwrite(fd, big, 1 << 20); os.pwrite(fd, big[:1 << 20], 0); os.close(fd)",
            ),
            (
                "cut",
                "fd = os.open(M + '/cut', os.O_CREAT | os.O_RDWR); os.write(fd, big); os.ftruncate(fd, 1000); os.close(fd)",
            ),
            (
                "grown",
                "fd = os.open(M + '/grown', os.O_CREAT | os.O_RDWR); os.write(fd, b'x'); os.ftruncate(fd, 100000); os.close(fd)",
            ),
            (
                "restarted",
                "fd = os.open(M + '/restarted', os.O_CREAT | os.O_RDWR); os.write(fd, big); os.ftruncate(fd, 0); os.pwrite(fd, b'again', 0); os.close(fd)",
            ),
            (
                "allocated",
                "fd = os.open(M + '/allocated', os.O_CREAT | os.O_RDWR); os.write(fd, b'x'); os.posix_fallocate(fd, 0, 70000); os.close(fd)",
            ),
            (
                "copied",
                "a = os.open(M + '/big', os.O_RDONLY); fd = os.open(M + '/copied', os.O_CREAT | os.O_RDWR); os.write(fd, b'x'); os.copy_file_range(a, fd, 500000, 7, 1); os.close(fd); os.close(a)",
            ),
            (
                "replaced",
                "write(M + '/replaced', big); write(M + '/replaced', b'short'); write(M + '/replaced', big[:77777])",
            ),
            ("renamed", "write(M + '/.t', big); os.rename(M + '/.t', M + '/renamed')"),
            (
                "renamed-open",
                "f = open(M + '/.u', 'wb'); f.write(big); f.flush(); os.rename(M + '/.u', M + '/renamed-open'); f.write(b'tail'); f.close()",
            ),
            (
                "appended",
                "write(M + '/appended', b'one'); f = open(M + '/appended', 'ab'); f.write(b'two'); f.close(); f = open(M + '/appended', 'ab'); f.write(big); f.close()",
            ),
            (
                "edited",
                "write(M + '/edited', big); fd = os.open(M + '/edited', os.O_RDWR); os.pwrite(fd, b'edit', 12345); os.close(fd)",
            ),
            ("truncated", "write(M + '/truncated', big); os.truncate(M + '/truncated', 99)"),
            (
                "twice",
                "fd = os.open(M + '/twice', os.O_CREAT | os.O_WRONLY); os.write(fd, b'a'); os.close(os.dup(fd)); os.write(fd, b'b'); os.close(fd)",
            ),
        ];
        for (_, how) in ways {
            p.run(how);
        }
        for (key, how) in ways {
            has_its_sum(m, key);
            assert!(!how.is_empty() && fs::read(m.key(key)).unwrap() == fs::read(m.record_of(key)).unwrap());
        }
        m.shell("ln -s to/there $M/link").ok();
        m.remount();
        for (key, _) in ways {
            has_its_sum(m, key);
        }
        let link =
            m.records().into_iter().map(|(path, _)| path).find(|p| fs::read(p).unwrap() == b"to/there");
        assert_eq!(metadata(&link.unwrap()).1, Some(xxh3_64(b"to/there")));
    });
}

/// A map outlives the descriptor: what is written through it comes before the checksum, or there is none.
#[test]
fn what_is_written_through_a_map_is_in_the_checksum() {
    each_with(summed, |m| {
        let mut a = m.peer();
        a.run("fd = os.open(M + '/new', os.O_CREAT | os.O_RDWR); os.ftruncate(fd, 1 << 20); x = mmap.mmap(fd, 1 << 20); os.close(fd)");
        a.run("x[4096:] = b'd' * ((1 << 20) - 4096); x[0:4] = b'head'; x.close()");
        has_its_sum(m, "new");
        a.run("write(M + '/old', b'h' * 100000); fd = os.open(M + '/old', os.O_RDWR); x = mmap.mmap(fd, 100000); os.close(fd)");
        a.run("x[50000:50004] = b'late'; x.flush(); x[0:4] = b'more'; x.close()");
        has_its_sum(m, "old");
        // Somebody reads it meanwhile, so the kernel may pass the writer through as well.
        let mut b = m.peer();
        a.run("write(M + '/read', b'h' * 100000)");
        m.remount();
        b.run("held = os.open(M + '/read', os.O_RDONLY)");
        a.run(
            "fd = os.open(M + '/read', os.O_RDWR); x = mmap.mmap(fd, 100000); os.close(fd); x[0:4] = b'late'",
        );
        b.run("os.close(held)");
        a.run("x[9:13] = b'more'; x.flush(); x.close()");
        let record = m.record_of("read");
        wait_until(Duration::from_secs(10), || metadata(&record).0 & 1 == 0);
        let right = xxh3_64(&fs::read(&record).unwrap());
        assert!(metadata(&record).1.is_none_or(|sum| sum == right), "a wrong checksum");
        assert_eq!(b.text("read(M + '/read')[0:13]"), "latehhhhhmore");
        m.crash();
        assert_eq!(m.peer().text("read(M + '/read')[0:13]"), "latehhhhhmore");
        assert_eq!(m.status_number("quarantined"), 0);
    });
}

#[test]
fn a_wrong_byte_is_never_served_after_a_crash() {
    each_with(summed, |m| {
        let mut p = m.peer();
        p.run("big = os.urandom(2 << 20)");
        for key in ["good", "read", "edited", "truncated", "replaced", "both"] {
            p.run(&format!("write(M + '/{key}', big)"));
            has_its_sum(m, key);
        }
        let good = fs::read(m.record_of("good")).unwrap();
        let bad: Vec<_> = ["read", "edited", "truncated", "both"].map(|key| m.record_of(key)).into();
        m.kill();
        for record in &bad {
            flip(record, 1_234_567);
        }
        m.mount();
        let mut p = m.peer();
        assert_eq!(p.error("read(M + '/read')"), "ENOENT");
        assert_eq!(p.error("os.open(M + '/edited', os.O_RDWR)"), "ENOENT");
        assert_eq!(p.error("os.truncate(M + '/truncated', 5)"), "ENOENT");
        assert_eq!(p.error("os.open(M + '/both', os.O_RDONLY)"), "ENOENT");
        assert_eq!(m.status_number("quarantined"), 4);
        assert_eq!(fs::read_dir(m.store.join("data/.quarantine")).unwrap().count(), 4);
        assert_eq!(fs::read(m.key("good")).unwrap(), good);
        p.run("write(M + '/replaced', b'new'); write(M + '/read', b'again')");
        assert_eq!(p.text("read(M + '/read') + read(M + '/replaced')"), "againnew");
        m.remount();
        assert_eq!(fs::read(m.key("good")).unwrap(), good);
        assert_eq!(m.status_number("quarantined"), 0);
    });
}

/// Killed while it writes and edits: whatever is served afterwards is whole.
#[test]
fn a_crash_in_the_middle_leaves_nothing_wrong() {
    each_with(summed, |m| {
        let mut a = m.peer();
        a.run("write(M + '/k', b'a' * 1000); fd = os.open(M + '/k', os.O_RDWR); os.pwrite(fd, b'b' * 1000, 1000); os.fsync(fd)");
        a.run("g = os.open(M + '/half', os.O_CREAT | os.O_WRONLY); os.write(g, b'x' * 5000)");
        m.crash();
        let mut b = m.peer();
        assert_eq!(b.run("read(M + '/k') == b'a' * 1000 + b'b' * 1000"), true);
        assert_eq!(b.error("os.stat(M + '/half')"), "ENOENT");
        assert_eq!(m.status_number("quarantined"), 0);
        assert_eq!(metadata(&m.record_of("k")).1, None);
    });
}

#[test]
fn a_mount_without_the_option_leaves_no_wrong_checksum() {
    each_with(summed, |m| {
        m.shell("head -c 100000 /dev/urandom > $M/edited; cp $M/edited $M/kept").ok();
        has_its_sum(m, "edited");
        has_its_sum(m, "kept");
        m.umount();
        m.set_arg("--checksum", "off");
        m.mount();
        m.shell("echo tail >> $M/edited; truncate -s 50 $M/edited; echo other > $M/new").ok();
        let edited = m.record_of("edited");
        assert_eq!((metadata(&edited).1, metadata(&m.record_of("new")).1), (None, None));
        has_its_sum(m, "kept");
        m.crash();
        m.shell("cmp -n 50 $M/edited $M/kept").ok();
        assert_eq!(m.status_number("quarantined"), 0);
    });
}

/// A value with a checksum is written through the daemon, and whoever reads it while its writer's map is there is not
/// passed through either: it counts as a reader that an overwriter must not cut short.
#[test]
fn a_reader_beside_the_writers_map_keeps_its_value_when_it_is_overwritten() {
    each_with(summed, |m| {
        let (mut a, mut reader, mut writer) = (m.peer(), m.peer(), m.peer());
        a.run("fd = os.open(M + '/k', os.O_CREAT | os.O_RDWR); os.write(fd, b'o' * 100000)");
        a.run("x = mmap.mmap(fd, 100000, prot=mmap.PROT_READ); os.close(fd)");
        reader.run("fd = os.open(M + '/k', os.O_RDONLY)");
        writer.begin("for n in range(500): write(M + '/k', b'n' * 1000)");
        reader.run("whole = [os.pread(fd, 100000, 0) == b'o' * 100000 for n in range(2000)]");
        assert_eq!(reader.int("whole.count(False)"), 0);
        assert!(writer.finish().get("ok").is_some());
        assert_eq!(writer.text("read(M + '/k')"), "n".repeat(1000));
        a.run("x.close()");
        assert_eq!(writer.text("read(M + '/k')"), "n".repeat(1000));
    });
}
