//! An existing key opened for writing without O_TRUNC: edited in place, visible as it happens.

use std::fs;

use crate::harness::each;

#[test]
fn edits_are_visible_as_they_happen() {
    each(|m| {
        let (mut a, mut b) = (m.peer(), m.peer());
        a.run("write(M + '/k', b'0123456789')");
        b.run("held = os.open(M + '/k', os.O_RDONLY)");
        a.run("fd = os.open(M + '/k', os.O_RDWR); os.pwrite(fd, b'abc', 3)");
        assert_eq!(b.text("read(M + '/k')"), "012abc6789");
        assert_eq!(b.text("os.pread(held, 20, 0)"), "012abc6789");
        a.run("os.pwrite(fd, b'more', 10)");
        assert_eq!(b.int("os.stat(M + '/k').st_size"), 14);
        assert_eq!(b.text("os.pread(held, 20, 0)"), "012abc6789more");
        a.run("os.close(fd)");
        assert_eq!(b.text("read(M + '/k')"), "012abc6789more");
        b.run("os.close(held)");
        m.remount();
        assert_eq!(fs::read(m.key("k")).unwrap(), b"012abc6789more");
    });
}

#[test]
fn an_edit_survives_a_crash_of_the_daemon() {
    each(|m| {
        let mut a = m.peer();
        a.run("write(M + '/k', b'a' * 1000)");
        a.run("fd = os.open(M + '/k', os.O_RDWR); os.pwrite(fd, b'b' * 1000, 1000); os.fsync(fd)");
        m.crash();
        assert_eq!(m.peer().run("read(M + '/k') == b'a' * 1000 + b'b' * 1000"), true);
    });
}

#[test]
fn truncate_in_place() {
    each(|m| {
        m.shell("head -c 100000 /dev/zero > $M/k; truncate -s 10 $M/k; [ $(stat -c %s $M/k) = 10 ]").ok();
        m.shell("truncate -s 50000 $M/k; [ $(stat -c %s $M/k) = 50000 ]; cmp -n 50000 $M/k /dev/zero").ok();
        m.shell("truncate -s 0 $M/k; [ -f $M/k ]; [ ! -s $M/k ]; truncate -s 7 $M/made; [ $(stat -c %s $M/made) = 7 ]").ok();
        m.remount();
        m.shell("[ -f $M/k ]; [ ! -s $M/k ]; [ $(stat -c %s $M/made) = 7 ]").ok();
    });
}

#[test]
fn an_open_for_both_that_only_reads_changes_nothing() {
    each(|m| {
        m.shell("head -c 65536 /dev/urandom > $M/rw; touch -d @1000000000 $M/rw").ok();
        let look = "[os.stat(M + '/rw').st_mtime_ns, os.stat(M + '/rw').st_size, os.stat(M + '/rw').st_ino, \
                    os.statvfs(M).f_bfree]";
        let (mut a, mut b) = (m.peer(), m.peer());
        let before = b.run(look);
        let record = fs::read(m.record_of("rw")).unwrap();
        a.run("fd = os.open(M + '/rw', os.O_RDWR); os.pread(fd, 4096, 0)");
        assert_eq!(b.run(look), before);
        a.run("os.close(fd)");
        assert_eq!(b.run(look), before);
        assert_eq!(fs::read(m.record_of("rw")).unwrap(), record);
        m.remount();
        assert_eq!(m.peer().run("os.stat(M + '/rw').st_mtime_ns"), before[0]);
    });
}

#[test]
fn reads_do_not_move_mtime() {
    each(|m| {
        m.shell("echo x > $M/k; touch -d @1000000000 $M/k; cat $M/k > $W/out; touch -a $M/k; [ $(stat -c %Y $M/k) = 1000000000 ]")
            .ok();
    });
}

#[test]
fn closing_a_duplicate_leaves_the_reader_alone() {
    each(|m| {
        let mut a = m.peer();
        a.run("write(M + '/k', b'value')");
        a.run("fd = os.open(M + '/k', os.O_RDONLY); d = os.dup(fd); os.close(d)");
        a.run("write(M + '/k', b'other')");
        assert_eq!(a.text("os.read(fd, 10)"), "value");
    });
}

#[test]
fn concurrent_appenders_of_a_new_file_lose_no_line() {
    each(|m| {
        let mut peers: Vec<_> = (0..5).map(|_| m.peer()).collect();
        for (i, peer) in peers.iter_mut().enumerate() {
            peer.begin(&format!(
                "for n in range(200):
    fd = os.open(M + '/log', os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
    os.write(fd, b'{i}-%d\\n' % n); os.close(fd)"
            ));
        }
        for peer in &mut peers {
            let answer = peer.finish();
            assert!(answer.get("ok").is_some(), "{answer}");
        }
        let text = fs::read_to_string(m.key("log")).unwrap();
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!((lines.len(), text.lines().count()), (1000, 1000));
    });
}

/// Two processes open a name that does not exist for appending before either has written.
#[test]
fn appenders_that_meet_before_publication_share_the_file() {
    each(|m| {
        let (mut a, mut b) = (m.peer(), m.peer());
        let open = "fd = os.open(M + '/log', os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)";
        a.run(open);
        b.run(open);
        a.run("os.write(fd, b'a1\\n')");
        b.run("os.write(fd, b'b1\\n')");
        a.run("os.write(fd, b'a2\\n'); os.close(fd)");
        b.run("os.write(fd, b'b2\\n'); os.close(fd)");
        assert_eq!(fs::read_to_string(m.key("log")).unwrap(), "a1\nb1\na2\nb2\n");
    });
}

#[test]
fn shared_memory_map_writes_in_place() {
    each(|m| {
        let (mut a, mut b) = (m.peer(), m.peer());
        a.run("write(M + '/k', bytes(8192))");
        a.run(
            "fd = os.open(M + '/k', os.O_RDWR); x = mmap.mmap(fd, 8192); x[4096:4100] = b'mmap'; x.flush()",
        );
        assert_eq!(b.text("read(M + '/k')[4096:4100]"), "mmap");
        a.run("os.close(fd); x[0:4] = b'late'; x.flush(); x.close()");
        assert_eq!(b.text("read(M + '/k')[0:4]"), "late");
        m.remount();
        assert_eq!(&fs::read(m.key("k")).unwrap()[4096..4100], b"mmap");
    });
}

/// A writer sizes a temporary file, maps it, closes the descriptor, writes through the map, unmaps and renames.
#[test]
fn map_written_after_the_close() {
    each(|m| {
        let mut a = m.peer();
        a.run("write(M + '/g.tmp', b'h' * 4096); fd = os.open(M + '/g.tmp', os.O_RDWR); os.ftruncate(fd, 1052672)");
        a.run("x = mmap.mmap(fd, 1052672); os.close(fd); x[4096:] = b'd' * 1048576; x.close()");
        a.run("os.rename(M + '/g.tmp', M + '/g')");
        assert_eq!(m.peer().run("read(M + '/g') == b'h' * 4096 + b'd' * 1048576"), true);
    });
}

#[test]
fn sqlite_works_and_survives_a_remount() {
    each(|m| {
        let write = "import sqlite3, os
c = sqlite3.connect(os.environ['M'] + '/t.db')
c.execute('pragma journal_mode=%s' % os.environ.get('MODE', 'delete'))
c.execute('create table t(x)')
for i in range(200): c.execute('insert into t values(?)', (i,)); c.commit()
c.close()";
        let check = "import sqlite3, os
c = sqlite3.connect(os.environ['M'] + '/t.db')
assert c.execute('pragma integrity_check').fetchone() == ('ok',)
assert c.execute('select count(*), sum(x) from t').fetchone() == (200, 19900)";
        for mode in ["delete", "wal"] {
            m.python(&format!("import os\nos.environ['MODE'] = '{mode}'\n{write}")).ok();
            m.python(check).ok();
            m.remount();
            m.python(check).ok();
            m.shell("rm $M/t.db*").ok();
        }
    });
}

/// A key that is replaced all the time can be opened for editing all the same: no stale handle reaches a program.
#[test]
fn a_busy_key_opens_for_editing() {
    each(|m| {
        let (mut replacer, mut editor) = (m.peer(), m.peer());
        replacer.run("write(M + '/k', b'x')");
        replacer.begin(
            "n = 0
while not os.path.exists(W + '/stop'): n += 1; write(M + '/.t', b'x%d' % n); os.rename(M + '/.t', M + '/k')",
        );
        editor.run(
            "for n in range(1500):
    os.close(os.open(M + '/k', os.O_RDWR)); os.close(os.open(M + '/k', os.O_WRONLY | os.O_APPEND))",
        );
        fs::write(m.scratch.join("stop"), b"").unwrap();
        let answer = replacer.finish();
        assert!(answer.get("ok").is_some(), "{answer}");
    });
}
