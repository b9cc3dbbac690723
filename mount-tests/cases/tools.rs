//! Cases on tools: locks, databases, build caches, watchers, rm.

use crate::cases::{PATIENCE, QUOTA, case, case_with, python, record_bytes, settle, shell};
use crate::harness::wait_until;

/// flock and fcntl exclude, also by a lock file that is opened for reading alone, and eviction takes none that is open: who
/// comes next would lock another file.
#[test]
fn u085_locks() {
    for more in [&[][..], &["--max-keys=40"]] {
        case_with(
            |b| more.iter().fold(b.evict("fifo"), |b, arg| b.arg(arg)),
            |m| {
                shell(m, "flock -n $M/.lock -c \"flock -n $M/.lock -c true; [ \\$? = 1 ]\"").ok();
                let (mut a, mut b) = (m.peer(), m.peer());
                for (open, take) in [
                    ("os.O_CREAT | os.O_RDONLY", "fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)"),
                    ("os.O_CREAT | os.O_RDWR", "fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)"),
                    ("os.O_CREAT | os.O_RDWR", "fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)"),
                ] {
                    for lock in [".lock", "fresh"] {
                        let open = format!("fd = os.open(M + '/{lock}', {open})");
                        a.run(&open);
                        a.run(take);
                        python(m, "for n in range(100): write(M + '/fill%d' % n, bytes(1 << 20))").ok();
                        assert_eq!(m.control("evict to=0").0, Ok(()));
                        b.run(&open);
                        assert_eq!(
                            a.run("os.fstat(fd).st_ino"),
                            b.run("os.fstat(fd).st_ino"),
                            "{lock}: another file"
                        );
                        assert!(["EAGAIN", "EACCES"].contains(&b.error(take).as_str()), "{lock}: {take}");
                        a.run("os.close(fd)");
                        b.run(take);
                        b.run("os.close(fd)");
                    }
                    shell(m, "rm -f $M/fresh").ok();
                }
                // As filelock does, with O_TRUNC: a close that wrote nothing gives the key no other inode.
                let mut peers: Vec<_> = (0..3).map(|_| m.peer()).collect();
                for peer in &mut peers {
                    peer.begin(
                        "for n in range(60):
    fd = os.open(M + '/file.lock', os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try: old = int(read(W + '/count'))
    except FileNotFoundError: old = 0
    write(W + '/count', b'%d' % (old + 1))
    os.close(fd)",
                    );
                }
                for peer in &mut peers {
                    let answer = peer.finish();
                    assert!(answer.get("ok").is_some(), "{answer}");
                }
                shell(m, "[ $(cat $W/count) = 180 ]; rm $W/count").ok();
                // Nobody has it open: it goes like any other.
                python(m, "for n in range(100): write(M + '/more%d' % n, bytes(1 << 20))").ok();
                assert_eq!(m.control("evict to=0").0, Ok(()));
                assert!(
                    wait_until(PATIENCE, || m.status_number("keys") == 0),
                    "{}",
                    m.shell("ls -lA $M").ok()
                );
            },
        );
    }
}

/// A database with either journal, while eviction runs, over a clean restart and a crash of the daemon.
#[test]
fn u086_sqlite() {
    case(|m| {
        for journal in ["delete", "truncate", "persist", "memory", "wal"] {
            let mut a = m.peer();
            a.run(&format!(
                "import sqlite3; c = sqlite3.connect(M + '/{journal}.db', timeout=30); c.execute('pragma journal_mode={journal}').fetchall()
c.execute('create table t(x, y)')
for i in range(300):
    c.execute('insert into t values(?, ?)', (i, 'v' * 500))
    if i % 20 == 0: c.commit()
c.commit()"
            ));
            // Under pressure, with the database open for all of it.
            python(m, "for n in range(80): write(M + '/fill%d' % n, bytes(1 << 20))").ok();
            a.run("for i in range(300, 400): c.execute('insert into t values(?, ?)', (i, 'v' * 500))\nc.commit()");
            let mut b = m.peer();
            b.run(&format!("import sqlite3; c = sqlite3.connect(M + '/{journal}.db', timeout=30)"));
            let check = "c.execute('pragma integrity_check').fetchone()[0] + ' %d' % c.execute('select count(*) from t').fetchone()[0]";
            assert_eq!(b.text(check), "ok 400", "{journal}");
            b.run("c.execute('insert into t values(400, 1)'); c.commit()");
            assert_eq!(a.text(check), "ok 401", "{journal}");
            a.run("c.close()");
            b.run("c.close()");
            for crash in [false, true] {
                if crash {
                    m.crash()
                } else {
                    m.remount()
                }
                let mut c = m.peer();
                c.run(&format!("import sqlite3; c = sqlite3.connect(M + '/{journal}.db')"));
                assert_eq!(c.text(check), "ok 401", "{journal}, crash={crash}");
                c.run("c.close()");
            }
            shell(m, &format!("rm $M/{journal}.db*")).ok();
        }
    });
}

/// The layout of build caches: by digest, through a temporary name.
#[test]
fn u088_a_build_cache_is_bounded() {
    case(|m| {
        python(
            m,
            "def put(i):
    h = hashlib.sha256(b'%d' % i).hexdigest(); d = M + '/cas/' + h[:2]
    os.makedirs(d, exist_ok=True); write(M + '/tmp_%d' % i, h.encode() * (Q // 30 // 64)); os.rename(M + '/tmp_%d' % i, d + '/' + h)
    return d + '/' + h
paths = [put(i) for i in range(80)]
assert os.path.exists(paths[-1]) and not os.path.exists(paths[0])
hits = 0
for p in paths:
    try: d = read(p)
    except OSError as e: assert e.errno == errno.ENOENT, e
    else: hits += 1; assert d == os.path.basename(p).encode() * (Q // 30 // 64)
assert 20 <= hits <= 30, hits
# A miss is put again where it was, without its directory being made again.
assert not os.path.exists(paths[0]); write(M + '/tmp', b'again'); os.rename(M + '/tmp', paths[0]); assert read(paths[0]) == b'again'
total = sum(os.lstat(t + '/' + f).st_size for t, _, fs in os.walk(M) for f in fs); assert total <= Q, total",
        )
        .ok();
        settle(m);
        assert!(record_bytes(m) <= QUOTA);
    });
}

/// inotify tells what programs do through the mount, not what the daemon does by itself: docs/semantics.md, "Reading,
/// listing, looking up".
#[test]
fn u089_watchers_see_what_programs_do() {
    case(|m| {
        python(
            m,
            "import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
CREATE, MOVED_FROM, MOVED_TO, DELETE, CLOSE_WRITE, ATTRIB = 0x100, 0x40, 0x80, 0x200, 0x8, 0x4
fd = libc.inotify_init1(os.O_NONBLOCK); assert fd >= 0
watch = libc.inotify_add_watch(fd, os.fsencode(M), CREATE | MOVED_FROM | MOVED_TO | DELETE | CLOSE_WRITE)
assert watch >= 0, ctypes.get_errno()
def events():
    seen = []
    while True:
        try: data = os.read(fd, 65536)
        except BlockingIOError: return seen
        while data:
            _, mask, _, n = struct.unpack_from('iIII', data); seen.append((mask, data[16:16 + n].rstrip(b'\\0').decode())); data = data[16 + n:]
if os.fork() == 0:
    write(M + '/.i', b'x'); os.rename(M + '/.i', M + '/i1'); os.unlink(M + '/i1'); os.mkdir(M + '/d'); os._exit(0)
os.wait()
seen = events()
assert seen == [(CREATE, '.i'), (CLOSE_WRITE, '.i'), (MOVED_FROM, '.i'), (MOVED_TO, 'i1'), (DELETE, 'i1'), (CREATE | 0x40000000, 'd')], seen
write(M + '/k', b'x'); events()
write(CTL, b'evict to=0\\n')
assert not os.path.exists(M + '/k')
assert events() == []
write(M + '/k', b'y'); assert (CLOSE_WRITE, 'k') in events()",
        )
        .ok();
    });
}

#[test]
fn u091_everything_is_deleted_and_the_control_file_stays() {
    case(|m| {
        shell(
            m,
            "mkdir -p $M/a/b $TA; echo x > $M/a/b/c; echo y > $M/.dot; echo z > $TA/k
             find $M -mindepth 1 -delete; [ -z \"$(ls -A $M)\" ]
             mkdir -p $M/a/b; echo x > $M/a/b/c; rm -rf $M/* $M/.[!.]*; [ -z \"$(ls -A $M)\" ]
             # `default` is always there: everything else goes.
             find $R -mindepth 1 -delete 2> $W/said || true; [ \"$(find $R -mindepth 1)\" = $M ]; ! grep -v $M $W/said
             echo status > $CTL; cat $CTL | grep -q '\"ok\":true'
             [ \"$(ls -A $R)\" = default ]",
        )
        .ok();
        let mut a = m.peer();
        for place in ["R", "M"] {
            for file in ["control", "status", "metrics", "requests"] {
                let path = format!("{place} + '/.fencefs/{file}'");
                for step in [
                    format!("os.unlink({path})"),
                    format!("os.rename({path}, M + '/x')"),
                    format!("os.rename({path}, {path} + 'x')"),
                    format!("os.chmod({path}, 0o777)"),
                    format!("os.chown({path}, 1, 1)"),
                ] {
                    let errno = a.error(&step);
                    assert!(
                        errno == "EPERM" || errno == "EXDEV" && step.contains("rename"),
                        "{step}: {errno}"
                    );
                }
                // INTERFACE: truncating the control file does nothing; a shell's redirection does it first.
                if file == "control" {
                    a.run(&format!("os.truncate({path}, 0)"));
                } else {
                    assert!(
                        ["EPERM", "EACCES"].contains(&a.error(&format!("os.truncate({path}, 0)")).as_str())
                    );
                }
                a.run(&format!("write(M + '/k', b''); os.stat({path})"));
                assert_eq!(a.error(&format!("os.rename(M + '/k', {path})")), "EPERM");
            }
            assert_eq!(a.error(&format!("os.rmdir({place} + '/.fencefs')")), "EPERM");
        }
        shell(m, "echo status > $CTL; cat $CTL | grep -q '\"ok\":true'").ok();
    });
}
