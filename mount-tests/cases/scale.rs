//! Cases on many keys.

use std::fs;

use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::process::Pid;

use crate::cases::{PATIENCE, case, python, shell};
use crate::harness::{Mount, wait_until};

/// Makes empty keys in the directory of plain keys.
#[track_caller]
fn make_keys(m: &Mount, format: &str, count: u32) {
    python(
        m,
        &format!("for i in range({count}): os.close(os.open(M + '/{format}' % i, os.O_CREAT | os.O_RDONLY))"),
    )
    .ok();
}

/// One directory of the mount is many of the store: what a filesystem can keep in one is no limit.
#[test]
fn u053_one_flat_directory_is_no_flat_directory_below() {
    case(|m| {
        make_keys(m, "%064x_model_0_1.bin", 3000);
        let mut largest = 0;
        let mut todo = vec![m.store.clone()];
        while let Some(dir) = todo.pop() {
            let entries: Vec<_> = fs::read_dir(&dir).unwrap().map(Result::unwrap).collect();
            largest = largest.max(entries.len());
            todo.extend(entries.into_iter().filter(|e| e.file_type().unwrap().is_dir()).map(|e| e.path()));
        }
        // Two levels of 256: the fullest has some 300 records when there are 7.5 million.
        assert!(largest <= 256, "{largest}");
        assert_eq!(fs::read_dir(m.keys()).unwrap().count(), 3000);
        assert_eq!(m.status_number("keys"), 3000);
    });
}

/// Nanoseconds of processor time that a process has had, its threads together.
fn busy(pid: Pid) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).unwrap();
    let of = |path: std::path::PathBuf| -> Option<u64> {
        fs::read_to_string(path.join("schedstat")).ok()?.split(' ').next()?.parse().ok()
    };
    tasks.filter_map(|task| of(task.ok()?.path())).sum()
}

/// The first entry costs the daemon next to nothing, whatever the directory holds, and no entry needs a stat.
#[test]
fn u055_a_listing_streams() {
    case(|m| {
        make_keys(m, "l%06d", 4000);
        let open =
            || Dir::new(rustix::fs::open(m.keys(), OFlags::DIRECTORY, Mode::empty()).unwrap()).unwrap();
        let before = busy(m.pid());
        let mut dir = open();
        let first = dir.next().unwrap().unwrap();
        let of_first = busy(m.pid()) - before;
        drop(dir);
        let before = busy(m.pid());
        let mut listed = 0;
        for entry in open() {
            let entry = entry.unwrap();
            let is_key = entry.file_name().to_bytes().starts_with(b"l");
            assert_eq!(entry.file_type(), if is_key { FileType::RegularFile } else { FileType::Directory });
            listed += u32::from(is_key);
        }
        let of_all = busy(m.pid()) - before;
        assert_eq!(listed, 4000);
        assert!(of_first < of_all / 2, "the first entry took {of_first} ns, all of them {of_all}: {first:?}");
        shell(m, "[ $(ls -U $M | head -1 | wc -l) = 1 ]; [ $(ls -U $M | wc -l) = 4000 ]").ok();
    });
}

/// A walk while keys come and are evicted ends, and meets no error but that a file is gone.
#[test]
fn u056_a_walk_under_churn() {
    case(|m| {
        let mut churn = m.peer();
        // Until it is told to stop.
        churn.begin(
            "import itertools
for n in itertools.count():
    if os.path.exists(W + '/stop'): break
    write(M + '/churn%d' % n, bytes(1000000))",
        );
        assert!(wait_until(PATIENCE, || m.status_number("evicted_keys") > 20));
        let walked = shell(
            m,
            "for i in 1 2 3 4 5; do find $M -type f -printf '%f %s %b\\n' 2>> $W/errors || true; done > $W/seen
             ! grep -v 'No such file or directory' $W/errors
             [ $(sort -u $W/seen | wc -l) -gt 40 ]; ! awk '$2 != 1000000 || $3 == 0' $W/seen | grep .",
        );
        fs::write(m.scratch.join("stop"), b"").unwrap();
        assert!(churn.finish().get("ok").is_some());
        walked.ok();
    });
}

/// Clients that remember which directories they made never make them again.
#[test]
fn u058_directories_stay_until_they_are_removed() {
    case(|m| {
        shell(
            m,
            "mkdir -p $M/12/34; echo old > $M/12/34/old; for i in $(seq 60); do head -c $((Q / 20)) /dev/zero > $M/fill$i; done",
        )
        .ok();
        assert_eq!(m.control("evict to=0").0, Ok(()));
        shell(
            m,
            "[ ! -e $M/12/34/old ]; echo x > $M/12/34/new; [ $(cat $M/12/34/new) = x ]; rm $M/12/34/new",
        )
        .ok();
        m.remount();
        shell(m, "echo y > $M/12/34/new2; [ $(cat $M/12/34/new2) = y ]; rm $M/12/34/new2").ok();
        m.crash();
        shell(m, "echo z > $M/12/34/new3; rm $M/12/34/new3; rmdir $M/12/34; [ ! -e $M/12/34 ]").ok();
    });
}

fn resident_bytes(pid: Pid) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// What a key costs of memory is bounded, a walk adds nothing that stays, and keys that go give theirs back.
#[test]
fn u059_memory_follows_the_number_of_keys() {
    case(|m| {
        const KEYS: u32 = 5000;
        make_keys(m, "%064x", 500);
        let base = resident_bytes(m.pid());
        python(
            m,
            &format!(
                "for i in range(500, {KEYS}): os.close(os.open(M + '/%064x' % i, os.O_CREAT | os.O_RDONLY))"
            ),
        )
        .ok();
        let forget = "find $R | wc -l; echo 2 > /proc/sys/vm/drop_caches";
        shell(m, forget).ok();
        let with_keys = resident_bytes(m.pid());
        for _ in 0..3 {
            shell(m, forget).ok();
        }
        let walked = resident_bytes(m.pid());
        shell(m, "find $M -type f -delete; echo 2 > /proc/sys/vm/drop_caches").ok();
        let near = base + (4 << 20);
        let given_back = wait_until(PATIENCE, || resident_bytes(m.pid()) <= near);
        // What the daemon keeps of a key is some 200 bytes; a walk has a few megabytes in flight.
        assert!(
            with_keys - base < u64::from(KEYS) * 600 + (4 << 20),
            "{} a key",
            (with_keys - base) / u64::from(KEYS)
        );
        assert!(walked < with_keys + (4 << 20), "{with_keys} before more walks, {walked} after them");
        assert!(given_back, "{base} before, {} after all keys went", resident_bytes(m.pid()));
    });
}

/// Ten thousand descriptors of one key and a thousand of others, also where the daemon began with few allowed.
#[test]
fn u061_many_files_are_open_at_once() {
    case(|m| {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
        if limit < 12_000 {
            eprintln!("skipped: {limit} open files are all that is allowed here");
            return;
        }
        shell(
            m,
            "ulimit -n 12000; python3 -c '
import os
m = os.environ[\"M\"]
open(m + \"/one\", \"w\").write(\"x\")
f = [os.open(m + \"/one\", os.O_RDONLY) for _ in range(10000)]
assert all(os.pread(fd, 1, 0) == b\"x\" for fd in f[::100])
for fd in f: os.close(fd)
f = [os.open(m + \"/%d\" % n, os.O_CREAT | os.O_RDWR) for n in range(1500)]
for fd in f: os.write(fd, b\"y\")
for fd in f: os.close(fd)
f = [os.open(m + \"/%d\" % n, os.O_RDONLY) for n in range(1500)]
assert all(os.read(fd, 2) == b\"y\" for fd in f)
'",
        )
        .ok();
    });
    // The daemon is allowed few by whoever starts it, and for good: what is refused says why, and goes on afterwards.
    case(|m| {
        m.umount();
        shell(m, "ulimit -n 256; $BIN mount $S $R --size $Q").ok();
        let seen = python(
            m,
            "f, seen = [], set()
for n in range(600):
    try:
        f.append(os.open(M + '/k%d' % n, os.O_CREAT | os.O_RDWR)); os.write(f[-1], b'v')
    except OSError as e: seen.add(errno.errorcode[e.errno])
for fd in f: os.close(fd)
assert len(f) > 100 and seen <= {'EMFILE', 'ENFILE'}, (len(f), seen)
write(M + '/after', b'v'); assert read(M + '/after') == b'v' and read(M + '/k0') == b'v'",
        );
        shell(m, "$BIN umount $R").ok();
        seen.ok();
        m.mount();
    });
}
