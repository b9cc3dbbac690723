//! Writers without end on a small quota: what the disk holds at most, who survives, and what the writer is told.
//!
//! The store is on an image of its own, and a thread polls what that filesystem holds while they write. The bound, as
//! docs/semantics.md gives it: the quota for what is published, the quota once more for what is being written, and what
//! is written between two looks.

use crate::full_disk::{modes_of, on_disk};

const QUOTA: &str = "64MiB";

/// Runs a Python program with writers, and checks what they left: 32 keys that nobody wrote any more. `unbounded(path)`
/// writes far more than the quota and checks how its errors came, and so does `endless(fd)`; `many(functions)` runs each
/// in a process of its own.
fn run_away(program: &str) {
    run_away_and_evict(0, program);
}

/// The same, where so many keys are evicted: those that were published and written on.
fn run_away_and_evict(evicted: u32, program: &str) {
    modes_of(QUOTA, |m, mount| {
        let script = format!(
            "for i in $(seq 32); do head -c 1M /dev/urandom > $W/k; cat $W/k > $D/keep$i; done; cp $W/k $W/last
             python3 - $W/disk $D <<'PY'
import ctypes, errno, mmap, os, sys, threading
disk, D = sys.argv[1:]
Q = 64 << 20
LOOK = 512 << 20  # what is written between two looks, at gigabytes a second, by several, on a busy machine
stop, peak = threading.Event(), [0]
def held():
    s = os.statvfs(disk)
    return (s.f_blocks - s.f_bfree) * s.f_frsize
def sample():
    while not stop.is_set():
        peak[0] = max(peak[0], held())
        stop.wait(0.0005)
def unbounded(path):
    endless(os.open(path, os.O_WRONLY | os.O_CREAT))
def endless(fd, total=12 * Q):
    errors, block = [], b'r' * (1 << 20)
    try:
        for _ in range(total >> 20): os.write(fd, block)
    except OSError as e: errors.append(e.errno)
    try: os.close(fd)
    except OSError as e: errors.append(e.errno)
    assert errors and set(errors) == {{errno.ENOSPC}}, errors
def many(functions):
    children = []
    for function in functions:
        pid = os.fork()
        if pid == 0:
            try: function()
            except BaseException as e:
                print(repr(e), file=sys.stderr); os._exit(1)
            os._exit(0)
        children.append(pid)
    return [os.waitpid(pid, 0)[1] for pid in children]
# The sampler is of this process; whoever writes is another.
def measured(functions):
    before = held()
    sampler = threading.Thread(target=sample); sampler.start()
    ends = many(functions)
    stop.set(); sampler.join()
    assert peak[0] <= 2 * Q + LOOK, (peak[0] >> 20, before >> 20)
    return ends
{program}
PY
             [ \"$(ls $D | grep -vc keep || true)\" = 0 ]; [ $(ls $D | wc -l) = 32 ]; cmp $W/last $D/keep32
             [ $(used evicted_keys) = {evicted} ]
             for i in $(seq 100); do [ $(used staged_bytes) = 0 ] && break; sleep 0.1; done; [ $(used staged_bytes) = 0 ]
             [ $(used used_bytes) = $(find $S/data/t -type f -printf '%b\\n' | awk '{{s+=$1}} END {{print s*512}}') ]
             head -c 20M /dev/zero > $D/next; [ $(stat -c %s $D/next) = 20971520 ]"
        );
        on_disk(m, "1G", "", mount, &script);
    });
}

#[test]
fn one_writer_at_full_speed() {
    run_away("assert measured([lambda: unbounded(D + '/run')]) == [0]");
}

#[test]
fn several_writers_at_once() {
    run_away("assert measured([lambda n=n: unbounded(D + '/run%d' % n) for n in range(4)]) == [0] * 4");
}

/// A writer that never closes stays within the bound as long as it lives.
#[test]
fn a_writer_that_is_killed_leaves_nothing() {
    run_away(
        "def endless():
    import signal
    signal.setitimer(signal.ITIMER_REAL, 3)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    fd = os.open(D + '/run', os.O_WRONLY | os.O_CREAT)
    while True:
        try: os.write(fd, b'e' * (1 << 20))
        except OSError as e: assert e.errno == errno.ENOSPC
assert measured([endless]) == [14]  # SIGALRM",
    );
}

/// What was emptied under a memory map is gone there too (SIGBUS), as when any file is truncated.
#[test]
fn a_writer_by_memory_map() {
    run_away(
        "def mapped():
    fd = os.open(D + '/run', os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 8 * Q)
    try: area = mmap.mmap(fd, 8 * Q)
    except OSError as e:
        assert e.errno == errno.ENODEV
        return unbounded(D + '/run')
    for at in range(0, 8 * Q, 4096): area[at] = 1
    area.close()
    try: os.close(fd)
    except OSError as e:
        assert e.errno == errno.ENOSPC
        return
    raise AssertionError('published')
end = measured([mapped])
assert end == [0] or os.WTERMSIG(end[0]) == 7, end",
    );
}

/// Length is not space: a sparse value of any length fits by what it occupies.
#[test]
fn a_sparse_value_counts_what_it_occupies() {
    run_away(
        "path = D + '/sparse'
def sparse():
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.ftruncate(fd, 1 << 40)
    os.pwrite(fd, b'x' * 4096, 1 << 39)
    os.close(fd)
    assert os.stat(path).st_size == 1 << 40
    os.unlink(path)
assert measured([sparse]) == [0]",
    );
}

/// `>>` on a key that exists: it is visible and counted as it was, until it has outgrown the quota.
#[test]
fn an_appender_to_a_key_that_exists() {
    run_away_and_evict(
        1,
        "open(D + '/run', 'wb').write(b'x' * 8192)
assert measured([lambda: endless(os.open(D + '/run', os.O_WRONLY | os.O_APPEND))]) == [0]",
    );
}

#[test]
fn several_appenders_to_keys_that_exist() {
    run_away_and_evict(
        4,
        "for n in range(4): open(D + '/run%d' % n, 'wb').write(b'x' * 8192)
assert measured([lambda n=n: endless(os.open(D + '/run%d' % n, os.O_WRONLY | os.O_APPEND)) for n in range(4)]) == [0] * 4",
    );
}

/// A pin is no leave to fill the disk.
#[test]
fn an_appender_to_a_key_that_is_pinned() {
    run_away_and_evict(
        1,
        "open(D + '/run', 'wb').write(b'x' * 8192)
os.setxattr(D + '/run', 'user.fencefs.pin', b'1')
assert measured([lambda: endless(os.open(D + '/run', os.O_WRONLY | os.O_APPEND))]) == [0]",
    );
}

/// The first close publishes; a duplicate goes on.
#[test]
fn a_writer_that_goes_on_after_its_publication() {
    run_away_and_evict(
        1,
        "def on():
    fd = os.open(D + '/run', os.O_WRONLY | os.O_CREAT)
    os.write(fd, b'x' * 8192)
    os.close(os.dup(fd))
    assert os.stat(D + '/run').st_size == 8192
    endless(fd)
assert measured([on]) == [0]",
    );
}

/// Nobody finds it any more, and nothing counts it.
#[test]
fn an_appender_to_a_key_that_was_removed() {
    run_away(
        "def on():
    open(D + '/run', 'wb').write(b'x' * 8192)
    fd = os.open(D + '/run', os.O_WRONLY | os.O_APPEND)
    os.unlink(D + '/run')
    endless(fd)
assert measured([on]) == [0]",
    );
}

/// Its close has failed, and a duplicate goes on.
#[test]
fn a_writer_that_goes_on_after_its_value_was_given_up() {
    run_away(
        "def on():
    fd = os.open(D + '/run', os.O_WRONLY | os.O_CREAT)
    try: os.truncate(fd, 1); [os.write(fd, b'x' * (1 << 20)) for n in range((Q >> 20) + 1)]
    except OSError as e: assert e.errno == errno.ENOSPC
    try: os.close(os.dup(fd)); raise AssertionError('published')
    except OSError as e: assert e.errno == errno.ENOSPC
    for n in range(12 * Q >> 20):
        try: os.write(fd, b'x' * (1 << 20))
        except OSError as e: assert e.errno == errno.ENOSPC; break
    try: os.close(fd)
    except OSError as e: assert e.errno == errno.ENOSPC  # It has not been emptied since its last write.
assert measured([on]) == [0]",
    );
}

/// Growth in place that has come to rest counts, while its editor stays: others make room for it.
#[test]
fn an_editor_that_stays_is_counted_when_it_rests() {
    run_away(
        "import time
fd = os.open(D + '/keep32', os.O_WRONLY | os.O_APPEND)
before = os.statvfs(D)
os.write(fd, b'g' * (8 << 20))
def grown(): s = os.statvfs(D); return (before.f_bfree - s.f_bfree) * s.f_frsize
until = time.monotonic() + 60
while grown() < 8 << 20 and time.monotonic() < until: time.sleep(0.05)
assert 8 << 20 <= grown() < 9 << 20, grown()
os.ftruncate(fd, 1 << 20); os.close(fd)",
    );
}
