//! Cases on O_DIRECT, allocation, memory maps, and what the kernel remembers.

use std::time::Duration;

use crate::cases::{QUOTA, case, python, settle, shell};
use crate::harness::{Mount, wait_until};

fn has_passthrough(m: &Mount) -> bool {
    m.status()["passthrough"] == true
}

/// A value is stored by writes of any length and alignment, and who switches O_DIRECT off for the odd end may. What is published
/// is read and edited with O_DIRECT as the store's filesystem has it where there is passthrough: docs/semantics.md, "O_DIRECT".
#[test]
fn u062_direct_io() {
    case(|m| {
        let mut a = m.peer();
        a.run("b = mmap.mmap(-1, 1 << 20); b.write(b'z' * (1 << 20)); fd = os.open(M + '/od', os.O_CREAT | os.O_WRONLY | os.O_DIRECT)");
        assert_eq!(a.int("os.write(fd, b)"), 1 << 20);
        assert_eq!(a.int("os.write(fd, b'q' * 1001)"), 1001);
        a.run("os.close(fd); fd = os.open(M + '/od', os.O_RDONLY | os.O_DIRECT)");
        let odd = a.outcome("assert os.read(fd, 777) == b'z' * 777");
        assert!(odd == "ok" || has_passthrough(m) && odd == "EINVAL", "{odd}");
        a.run("os.lseek(fd, 0, 0); assert os.readv(fd, [b]) == 1 << 20 and b[:] == b'z' * (1 << 20)");
        assert_eq!(a.int("os.readv(fd, [b])"), 1001, "the end, into memory that is aligned");
        a.run("os.close(fd); assert b[:1001] == b'q' * 1001 and read(M + '/od') == b'z' * (1 << 20) + b'q' * 1001");
        // Over it, beside it under a temporary name, and switched off for the end, as dd does.
        a.run("b[:] = b'y' * (1 << 20)");
        for (name, flags) in [("od", "os.O_TRUNC"), ("od.tmp", "os.O_EXCL")] {
            a.run(&format!("fd = os.open(M + '/{name}', os.O_CREAT | os.O_WRONLY | os.O_DIRECT | {flags}); os.write(fd, b)"));
            a.run("fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT); os.write(fd, b'q' * 7); os.close(fd)");
            a.run(&format!("assert read(M + '/{name}') == b'y' * (1 << 20) + b'q' * 7"));
        }
        shell(
            m,
            "head -c 3000001 /dev/urandom > $W/v; dd if=$W/v of=$M/dd bs=1M oflag=direct; cmp $W/v $M/dd
             dd if=$M/dd bs=1M iflag=direct | cmp - $W/v
             dd if=/dev/zero of=$M/dd bs=1M count=2 oflag=direct conv=notrunc; [ $(stat -c %s $M/dd) = 3000001 ]",
        )
        .ok();
        // What is edited in place, with what an ordinary filesystem asks for.
        a.run("fd = os.open(M + '/od', os.O_RDWR | os.O_DIRECT); c = mmap.mmap(-1, 4096); c.write(b'c' * 4096); os.pwritev(fd, [c], 8192); os.close(fd)");
        assert_eq!(a.run("read(M + '/od')[8191:12289] == b'y' + b'c' * 4096 + b'y'"), true);
    });
}

/// Switched on after mkstemp, on a file that loses its name and is never published.
#[test]
fn u064_direct_io_switched_on_later() {
    case(|m| {
        let mut a = m.peer();
        a.run("fd, p = tempfile.mkstemp(dir=M); fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)");
        a.run("zeros = mmap.mmap(-1, 1 << 20); back = mmap.mmap(-1, 4096); back.write(b'x' * 4096)");
        assert_eq!(a.int("os.pwrite(fd, zeros, 0)"), 1 << 20);
        a.run("os.unlink(p)");
        assert_eq!(a.int("os.preadv(fd, [back], 4096)"), 4096);
        assert_eq!(a.run("back[:] == bytes(4096)"), true);
        assert_eq!(a.int("os.pwrite(fd, zeros, 1 << 20)"), 1 << 20);
        // It has lost its name, and is counted until its close.
        assert!(
            wait_until(Duration::from_secs(10), || m.status_number("staged_bytes") >= 2 << 20),
            "{}",
            m.status()
        );
        assert!(m.status_number("unlinked_bytes") >= 2 << 20, "{}", m.status());
        // From and to memory of any alignment.
        assert_eq!(a.int("os.pwrite(fd, b'1' * 16385, 7)"), 16385);
        assert_eq!(a.run("os.pread(fd, 4096, 7) == b'1' * 4096"), true);
        a.run("os.close(fd)");
        settle(m);
        assert_eq!(m.status_number("unlinked_bytes"), 0);
        shell(m, "[ -z \"$(ls -A $M)\" ]").ok();
        // Nor is it a way around the quota: what outgrows it is emptied, and its close says so.
        a.run("fd, p = tempfile.mkstemp(dir=M); os.unlink(p); chunk = bytes(1 << 20)");
        a.outcome("for n in range(100): os.write(fd, chunk)");
        assert!(
            wait_until(Duration::from_secs(10), || m.status_number("staged_bytes") <= QUOTA),
            "{}",
            m.status()
        );
        assert_eq!(a.error("os.close(fd)"), "ENOSPC");
        settle(m);
    });
}

#[test]
fn u065_allocation() {
    case(|m| {
        shell(m, "fallocate -l 16M $M/fa; [ $(stat -c %s $M/fa) = 16777216 ]").ok();
        settle(m);
        assert!(m.status_number("used_bytes") >= 16 << 20, "it is charged: {}", m.status());
        let (_, text) = shell(m, "fallocate -l $((Q * 2)) $M/fb").failed();
        assert!(text.contains("No space left on device"), "{text}");
        assert!(wait_until(Duration::from_secs(10), || m.status_number("staged_bytes") == 0));
        shell(m, "[ \"$(ls -A $M)\" = fa ]").ok();
        assert_eq!(m.status_number("evicted_keys"), 0);
        // Also of what is there already, and with an offset.
        for refused in ["-l $((Q * 2)) $M/fa", "-o $((Q * 2)) -l 4096 $M/fa"] {
            let text = shell(m, &format!("fallocate {refused}"));
            assert!(
                text.status.success() || text.stderr.contains("No space left on device"),
                "{refused}: {text:?}"
            );
        }
        shell(m, "echo x > $M/k; fallocate -p -o 0 -l 4096 $M/fa || [ $? = 1 ]; fallocate -z -o 0 -l 4096 $M/k || true; [ -e $M/fa ]").ok();
        python(
            m,
            "fd = os.open(M + '/zeros', os.O_CREAT | os.O_RDWR); os.posix_fallocate(fd, 0, 1 << 20)
assert os.pread(fd, 1 << 21, 0) == bytes(1 << 20); os.pwrite(fd, b'x', 5); os.close(fd)
assert read(M + '/zeros') == bytes(5) + b'x' + bytes((1 << 20) - 6)",
        )
        .ok();
    });
}

#[test]
fn u067_maps_to_read() {
    case(|m| {
        python(
            m,
            "v = os.urandom(1000000); write(M + '/mm', v)
for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
    fd = os.open(M + '/mm', os.O_RDONLY); x = mmap.mmap(fd, 1000000, flags=flags, prot=mmap.PROT_READ)
    os.close(fd); assert x[:] == v
    # It goes on over what becomes of the name.
    write(M + '/.n', os.urandom(500)); os.rename(M + '/.n', M + '/mm'); assert x[:] == v; x.close()
    write(M + '/.n', v); os.rename(M + '/.n', M + '/mm')
# While another descriptor writes it, and by way of an open for both.
w = os.open(M + '/mm', os.O_RDWR); r = os.open(M + '/mm', os.O_RDONLY)
x = mmap.mmap(r, 1000000, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ); os.pwrite(w, b'new', 10)
assert x[:] == v[:10] + b'new' + v[13:]
y = mmap.mmap(w, 1000000, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE); y[0:1] = b'Y'; assert x[:1] == b'Y'",
        )
        .ok();
    });
}

/// The descriptor is closed, and so flushed, before a byte is written through the map.
#[test]
fn u068_written_through_a_map_after_the_close() {
    case(|m| {
        let begin = "
NAME = next(names); T = NAME + '.tmp'
write(T, b'h' * 4096); fd = os.open(T, os.O_RDWR); os.ftruncate(fd, 1052672)
x = mmap.mmap(fd, 1052672, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE); os.close(fd)";
        let steps = ["x[4096:] = b'd' * 1048576", "x.close()", "os.rename(T, NAME)"];
        let mut script = "import itertools\nnames = (M + '/g%d' % n for n in itertools.count())".to_owned();
        // The map is written before it is let go; the rename comes after that, between the two, or first.
        for order in [[0, 1, 2], [0, 2, 1], [2, 0, 1]] {
            script += begin;
            for at in order {
                script += "\n";
                script += steps[at];
            }
            script += "\nd = read(NAME); assert d == b'h' * 4096 + b'd' * 1048576, (NAME, len(d), d[:1], d[4096:4097])";
        }
        // In one new file, that was never closed before it was mapped.
        script += "
fd = os.open(M + '/new', os.O_RDWR | os.O_CREAT); os.ftruncate(fd, 1 << 20)
x = mmap.mmap(fd, 1 << 20, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE); os.close(fd)
x[:] = b'm' * (1 << 20); x.close(); assert read(M + '/new') == b'm' * (1 << 20)";
        python(m, &script).ok();
        // Another process sees the same, and so does the next mount.
        let check = "for n in ['g0', 'g1', 'g2']: assert read(M + '/' + n) == b'h' * 4096 + b'd' * 1048576, n
assert read(M + '/new') == b'm' * (1 << 20) and len(os.listdir(M)) == 4";
        python(m, check).ok();
        m.remount();
        python(m, check).ok();
    });
}

/// What a process makes or removes, every other one sees at once, whatever it looked at before.
#[test]
fn u070_no_absence_and_no_presence_is_remembered_too_long() {
    case(|m| {
        let (mut a, mut b) = (m.peer(), m.peer());
        let seen = "os.path.exists(M + '/neg'), 'neg' in os.listdir(M)";
        for make in [
            "write(M + '/neg', b'x')",
            "write(M + '/.t', b'x'); os.rename(M + '/.t', M + '/neg')",
            "os.mkdir(M + '/neg')",
            "os.symlink('/', M + '/neg')",
        ] {
            for peer in [&mut a, &mut b] {
                assert_eq!(peer.run(seen).to_string(), "[false,false]", "{make}");
            }
            a.run(make);
            assert_eq!(b.run(seen).to_string(), "[true,true]", "{make}");
            assert_eq!(a.run(seen).to_string(), "[true,true]", "{make}");
            b.run("os.rmdir(M + '/neg') if os.path.isdir(M + '/neg') and not os.path.islink(M + '/neg') else os.unlink(M + '/neg')");
            assert_eq!(a.run(seen).to_string(), "[false,false]", "{make}");
        }
        shell(m, "echo x > $M/neg; [ -e $M/neg ]; rm $M/neg; [ ! -e $M/neg ]").ok();
    });
}
