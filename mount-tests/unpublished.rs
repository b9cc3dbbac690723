//! What others see of a value that is still being written: nothing.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{each, is_alive, wait_until};

#[test]
fn invisible_before_the_close() {
    each(|m| {
        let (mut a, mut b) = (m.peer(), m.peer());
        a.run("fd = os.open(M + '/k', os.O_CREAT | os.O_WRONLY); os.write(fd, b'part')");
        assert_eq!(b.error("read(M + '/k')"), "ENOENT");
        assert_eq!(b.run("os.listdir(M)"), serde_json::json!([]));
        a.run("os.write(fd, b'+rest'); os.close(fd)");
        assert_eq!(b.text("read(M + '/k')"), "part+rest");
        assert_eq!(b.run("os.listdir(M)"), serde_json::json!(["k"]));
    });
}

#[test]
fn replaced_only_at_the_close() {
    each(|m| {
        let (mut a, mut b) = (m.peer(), m.peer());
        a.run("write(M + '/k', b'old value')");
        b.run("held = open(M + '/k', 'rb')");
        a.run("fd = os.open(M + '/k', os.O_WRONLY | os.O_TRUNC); os.write(fd, b'new')");
        assert_eq!(b.text("read(M + '/k')"), "old value");
        assert_eq!(b.int("os.stat(M + '/k').st_size"), 9);
        a.run("os.close(fd)");
        assert_eq!(b.text("read(M + '/k')"), "new");
        assert_eq!(b.text("held.read()"), "old value");
        assert_eq!(b.int("os.stat(M + '/k').st_size"), 3);
    });
}

#[test]
fn a_fresh_key_is_seen_where_its_absence_was_cached() {
    each(|m| {
        let (mut a, mut b) = (m.peer(), m.peer());
        for round in 0..20 {
            assert_eq!(b.error("os.stat(M + '/neg')"), "ENOENT", "round {round}");
            a.run("write(M + '/neg', b'x')");
            assert_eq!(b.text("read(M + '/neg')"), "x");
            a.run("os.unlink(M + '/neg')");
        }
    });
}

#[test]
fn a_killed_writer_publishes_nothing() {
    each(|m| {
        m.shell("echo old > $M/old").ok();
        let mut a = m.peer();
        a.run("f = os.open(M + '/new', os.O_CREAT | os.O_WRONLY); os.write(f, b'n' * 100000)");
        a.run("g = os.open(M + '/old', os.O_WRONLY | os.O_TRUNC); os.write(g, b'o' * 100000)");
        a.kill();
        m.shell("[ ! -e $M/new ]; [ $(cat $M/old) = old ]; [ \"$(ls $M)\" = old ]").ok();
        // The same names are free for the next writer.
        m.shell(
            "echo again > $M/new; echo next > $M/old; [ $(cat $M/new) = again ]; [ $(cat $M/old) = next ]",
        )
        .ok();
        m.remount();
        m.shell("[ $(cat $M/new) = again ]; [ $(cat $M/old) = next ]").ok();
        assert_eq!(m.status_number("staged_bytes"), 0);
    });
}

#[test]
fn a_writer_killed_with_a_child_publishes_nothing() {
    each(|m| {
        let mut a = m.peer();
        a.run("fd = os.open(M + '/k', os.O_CREAT | os.O_WRONLY); os.write(fd, b'x')");
        a.run("child = subprocess.Popen(['sleep', '600'], pass_fds=[fd])");
        let child = a.int("child.pid");
        a.kill();
        assert_eq!(m.peer().error("read(M + '/k')"), "ENOENT");
        // The last holder dies by a signal too.
        let child = Pid::from_raw(child as i32).unwrap();
        kill_process(child, Signal::KILL).unwrap();
        assert!(wait_until(Duration::from_secs(10), || !is_alive(child)));
        assert_eq!(m.peer().error("read(M + '/k')"), "ENOENT");
    });
}

#[test]
fn a_writer_that_exits_without_closing_publishes() {
    each(|m| {
        m.python("import os; os.write(os.open(os.environ['M'] + '/k', os.O_CREAT | os.O_WRONLY), b'value'); os._exit(0)")
            .ok();
        m.shell("[ $(cat $M/k) = value ]").ok();
        m.python("import os; os.write(os.open(os.environ['M'] + '/k', os.O_TRUNC | os.O_WRONLY), b'next'); os._exit(3)")
            .failed();
        m.shell("[ $(cat $M/k) = next ]").ok();
    });
}

#[test]
fn exclusive_creation_has_one_winner() {
    each(|m| {
        let mut peers: Vec<_> = (0..6).map(|_| m.peer()).collect();
        for round in 0..20 {
            let open = format!("fd = os.open(M + '/lock{round}', os.O_CREAT | os.O_EXCL | os.O_WRONLY)");
            peers.iter_mut().for_each(|p| p.begin(&open));
            let answers: Vec<_> = peers.iter_mut().map(|p| p.finish()).collect();
            let winners: Vec<_> = (0..peers.len()).filter(|i| answers[*i].get("ok").is_some()).collect();
            assert_eq!(winners.len(), 1, "round {round}: {answers:?}");
            assert!(answers.iter().all(|a| a.get("ok").is_some() || a["errno"] == "EEXIST"), "{answers:?}");
            // Still exclusive while the winner is unpublished, and after it was published.
            let loser = (winners[0] + 1) % peers.len();
            assert_eq!(peers[loser].error(&open), "EEXIST");
            peers[winners[0]].run("os.write(fd, b'mine'); os.close(fd)");
            assert_eq!(peers[loser].error(&open), "EEXIST");
            assert_eq!(peers[loser].text(&format!("read(M + '/lock{round}')")), "mine");
        }
    });
}

#[test]
fn an_exclusive_name_is_free_after_its_winner_was_killed() {
    each(|m| {
        let mut a = m.peer();
        a.run("fd = os.open(M + '/lock', os.O_CREAT | os.O_EXCL | os.O_WRONLY); os.write(fd, b'x')");
        a.kill();
        m.peer().run("os.close(os.open(M + '/lock', os.O_CREAT | os.O_EXCL | os.O_WRONLY))");
        m.shell("[ -f $M/lock ]; [ ! -s $M/lock ]").ok();
    });
}

#[test]
fn unlinked_while_unpublished() {
    each(|m| {
        let (mut a, mut b) = (m.peer(), m.peer());
        let free = m.status_number("used_bytes");
        a.run("fd, p = tempfile.mkstemp(dir=M); os.write(fd, b'z' * 100000); os.unlink(p)");
        a.run("os.write(fd, b'y'); assert os.pread(fd, 3, 0) == b'zzz'");
        assert_eq!(b.run("os.listdir(M)"), serde_json::json!([]));
        a.run("os.close(fd)");
        assert_eq!(b.run("os.listdir(M)"), serde_json::json!([]));
        assert_eq!(a.error("os.stat(p)"), "ENOENT");
        a.run("f = tempfile.TemporaryFile(dir=M); f.write(b'x' * 5000); f.flush(); f.seek(0); assert len(f.read()) == 5000");
        a.run("f.close()");
        m.umount();
        assert_eq!(fs::read_dir(m.store.join("data/.staging")).unwrap().count(), 0);
        m.mount();
        assert_eq!(m.status_number("used_bytes"), free);
    });
}

#[test]
fn replacement_unlinked_while_unpublished() {
    each(|m| {
        let (mut a, mut b) = (m.peer(), m.peer());
        a.run("write(M + '/k', b'old')");
        a.run("fd = os.open(M + '/k', os.O_WRONLY | os.O_TRUNC); os.write(fd, b'new')");
        b.run("os.unlink(M + '/k')");
        assert_eq!(b.error("read(M + '/k')"), "ENOENT");
        a.run("os.close(fd)");
        // As on any filesystem: what was unlinked is gone, a later close of it brings nothing back.
        assert_eq!(b.error("read(M + '/k')"), "ENOENT");
    });
}

#[test]
fn renamed_while_unpublished() {
    each(|m| {
        let (mut a, mut b) = (m.peer(), m.peer());
        a.run("write(M + '/final', b'old')");
        a.run("fd = os.open(M + '/.tmpX', os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600); os.ftruncate(fd, 1000000)");
        a.run("os.pwrite(fd, b'h' * 88, 0); os.pwrite(fd, b'b' * 999912, 88); os.rename(M + '/.tmpX', M + '/final')");
        assert_eq!(b.run("read(M + '/final') == b'h' * 88 + b'b' * 999912"), true);
        a.run("os.close(fd)");
        assert_eq!(b.run("read(M + '/final') == b'h' * 88 + b'b' * 999912"), true);
        assert_eq!(b.run("os.listdir(M)"), serde_json::json!(["final"]));
        m.remount();
        assert_eq!(fs::read(m.key("final")).unwrap().len(), 1_000_000);
    });
}

#[test]
fn the_writer_sees_its_own_file() {
    each(|m| {
        let mut a = m.peer();
        a.run("fd = os.open(M + '/own', os.O_CREAT | os.O_RDWR); os.write(fd, b'12345')");
        assert_eq!(a.int("os.fstat(fd).st_size"), 5);
        assert_eq!(a.text("os.pread(fd, 10, 0)"), "12345");
        a.run("os.ftruncate(fd, 3); os.fchmod(fd, 0o604); os.utime(fd, (1000000000, 1000000000)); os.fsync(fd); os.close(fd)");
        let stat = "s = os.stat(M + '/own'); assert (s.st_size, s.st_mode & 0o777, int(s.st_mtime)) == (3, 0o604, 1000000000), s";
        a.run(stat);
        m.remount();
        m.peer().run(stat);
    });
}
