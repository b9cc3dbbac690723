//! flock and fcntl locks exclude between processes, also on a lock file that nobody has published yet.

use crate::harness::each;

const OPEN: &str = "fd = os.open(M + '/lock', os.O_CREAT | os.O_RDWR, 0o644)";

fn exclude(take: &str, release: &str) {
    each(|m| {
        for fresh in [true, false] {
            let (mut a, mut b) = (m.peer(), m.peer());
            a.run(OPEN);
            a.run(take);
            // The winner has neither written nor closed: its file is unpublished the first time round.
            b.run(OPEN);
            let refused = b.error(take);
            assert!(refused == "EAGAIN" || refused == "EACCES", "fresh={fresh}: {refused}");
            a.run(release);
            b.run(take);
            assert!(["EAGAIN", "EACCES"].contains(&a.error(take).as_str()));
            b.run("os.close(fd)");
            a.run(take);
            a.run("os.write(fd, b'pid'); os.close(fd)");
        }
        m.shell("[ $(cat $M/lock) = pid ]").ok();
    });
}

#[test]
fn flock_excludes() {
    exclude("fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)", "fcntl.flock(fd, fcntl.LOCK_UN)");
}

#[test]
fn fcntl_excludes() {
    exclude("fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)", "fcntl.lockf(fd, fcntl.LOCK_UN)");
}

#[test]
fn a_waiting_lock_is_handed_over() {
    each(|m| {
        let (mut a, mut b) = (m.peer(), m.peer());
        for lock in ["fcntl.flock(fd, fcntl.LOCK_EX)", "fcntl.lockf(fd, fcntl.LOCK_EX)"] {
            a.run(OPEN);
            b.run(OPEN);
            a.run(lock);
            b.begin(lock);
            a.run("os.close(fd)");
            let answer = b.finish();
            assert!(answer.get("ok").is_some(), "{answer}");
            b.run("os.close(fd)");
        }
    });
}

#[test]
fn a_killed_holder_lets_go() {
    each(|m| {
        let (mut a, mut b) = (m.peer(), m.peer());
        let take = "fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)";
        m.shell("touch $M/lock").ok();
        a.run(OPEN);
        a.run(take);
        b.run(OPEN);
        assert_eq!(b.error(take), "EAGAIN");
        a.kill();
        b.run(take);
    });
}

#[test]
fn counter_under_flock_loses_nothing() {
    each(|m| {
        let mut peers: Vec<_> = (0..4).map(|_| m.peer()).collect();
        for peer in &mut peers {
            peer.begin(
                "for n in range(100):
    lock = os.open(M + '/count.lock', os.O_CREAT | os.O_RDWR, 0o644)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try: old = int(read(M + '/count'))
    except FileNotFoundError: old = 0
    write(M + '/count', b'%d' % (old + 1))
    os.close(lock)",
            );
        }
        for peer in &mut peers {
            let answer = peer.finish();
            assert!(answer.get("ok").is_some(), "{answer}");
        }
        m.shell("[ $(cat $M/count) = 400 ]").ok();
    });
}
