//! Writes that a removal overtakes: what was admitted before it comes to nothing.

use crate::harness::wait_until;
use crate::harness::{Mount, each, each_with};
use crate::removals::{
    Bystander, Control, PATIENCE, Stuck, assert_counters_equal_the_disk, assert_empty, epoch, generation,
    query, remove, tenant, two_tenants, wait_complete,
};

/// RFC matrix: "Write admitted before the fence"; timeline "A write crosses the clear boundary".
#[test]
fn a_write_begun_before_and_closed_after_publishes_nothing() {
    each(|m| {
        two_tenants(m);
        let b = Bystander::look(m);
        let mut a = m.peer();
        for (round, scope) in ["tenant=a", "scope=global"].into_iter().enumerate() {
            a.run("os.makedirs(R + '/a/sub', exist_ok=True); write(R + '/a/old', b'old')");
            a.run("new = os.open(R + '/a/sub/new', os.O_CREAT | os.O_WRONLY); os.write(new, b'n' * 100000)");
            a.run(
                "excl = os.open(R + '/a/excl', os.O_CREAT | os.O_EXCL | os.O_WRONLY); os.write(excl, b'n')",
            );
            a.run("over = os.open(R + '/a/old', os.O_WRONLY | os.O_TRUNC); os.write(over, b'n' * 100000)");
            a.run("empty = os.open(R + '/a/empty2', os.O_CREAT | os.O_WRONLY)");
            if round == 1 {
                a.run("d = os.open(R + '/default/k', os.O_CREAT | os.O_WRONLY); os.write(d, b'n')");
            }
            let number = remove(m, scope);
            for fd in ["new", "excl", "over"] {
                assert_eq!(a.error(&format!("os.close({fd})")), "ESTALE", "{scope} {fd}");
            }
            // Nothing was written: whether such a close says something is the mount's, that it publishes is not.
            a.outcome("os.close(empty)");
            if round == 1 {
                assert_eq!(a.error("os.close(d)"), "ESTALE");
                assert_empty(m, "default");
            }
            assert_empty(m, "a");
            // What comes later is of the new epoch.
            a.run("write(R + '/a/old', b'later')");
            assert_eq!(a.text("os.getxattr(R + '/a/old', 'user.fencefs.epoch')"), number.to_string());
            assert_counters_equal_the_disk(m);
            if round == 0 {
                b.assert_untouched(m);
            }
        }
        m.crash();
        m.shell("[ \"$(ls $R/a)\" = old ]; [ $(cat $R/a/old) = later ]").ok();
        assert_counters_equal_the_disk(m);
    });
}

/// Nor does a descriptor from before change what a removal took, by any call.
#[test]
fn attributes_are_not_changed_through_old_handles() {
    each(|m| {
        two_tenants(m);
        let mut a = m.peer();
        a.run("os.setxattr(R + '/a/k1', 'user.y', b'1')");
        a.run("new = os.open(R + '/a/new', os.O_CREAT | os.O_WRONLY); os.write(new, b'n')");
        a.run("over = os.open(R + '/a/k3', os.O_WRONLY | os.O_TRUNC); os.write(over, b'n')");
        a.run("edit = os.open(R + '/a/k1', os.O_RDWR); read_only = os.open(R + '/a/k2', os.O_RDONLY)");
        remove(m, "tenant=a");
        for fd in ["new", "over", "edit"] {
            for call in [
                "os.fchmod(FD, 0o600)",
                "os.fchown(FD, 0, 0)",
                "os.utime(FD, (1, 1))",
                "os.setxattr(FD, 'user.x', b'1')",
                "os.setxattr(FD, 'user.fencefs.epoch', b'1')",
                "os.setxattr(FD, 'user.fencefs.pin', b'1')",
                "os.removexattr(FD, 'user.y')",
                "os.posix_fallocate(FD, 0, 4096)",
                "os.ftruncate(FD, 1)",
                "os.fsync(FD)",
            ] {
                let call = call.replace("FD", fd);
                assert_eq!(a.error(&call), "ESTALE", "{call}");
            }
        }
        // Readers go on.
        assert_eq!(a.int("len(os.pread(read_only, 6000, 0))"), 6000);
        assert_empty(m, "a");
        a.run("write(R + '/a/k1', b'later'); os.chmod(R + '/a/k1', 0o600)");
        a.run("os.setxattr(R + '/a/k1', 'user.x', b'1')");
    });
}

/// RFC matrix: "Task fetched before a generation change", for whatever else a program can do with an old handle.
#[test]
fn renames_truncations_and_edits_with_old_handles_are_stale() {
    each(|m| {
        two_tenants(m);
        let mut a = m.peer();
        a.run("tmp = os.open(R + '/a/.tmp', os.O_CREAT | os.O_WRONLY); os.write(tmp, b't' * 5000)");
        a.run("write(R + '/a/.whole', b'whole')");
        a.run("edit = os.open(R + '/a/k1', os.O_RDWR); os.pwrite(edit, b'before', 0)");
        a.run("app = os.open(R + '/a/k2', os.O_WRONLY | os.O_APPEND)");
        a.run("cut = os.open(R + '/a/k3', os.O_RDWR)");
        a.run("fd = os.open(R + '/a/k12', os.O_RDWR); x = mmap.mmap(fd, 0); x[0:4] = b'mmap'");
        remove(m, "tenant=a");
        for step in ["os.rename(R + '/a/.tmp', R + '/a/k')", "os.rename(R + '/a/.whole', R + '/a/k')"] {
            let errno = a.error(step);
            assert!(["ENOENT", "ESTALE"].contains(&errno.as_str()), "{step}: {errno}");
        }
        assert_eq!(a.error("os.truncate(R + '/a/k4', 10)"), "ENOENT");
        assert_eq!(a.error("os.ftruncate(cut, 10)"), "ESTALE");
        // Where the kernel moves the bytes a write is seen by nobody; then the close, at the latest, says so.
        for step in ["os.pwrite(edit, b'after', 0); os.fsync(edit)", "os.write(app, b'after'); os.fsync(app)"]
        {
            let outcome = a.outcome(step);
            assert!(["ok", "ESTALE"].contains(&outcome.as_str()), "{step}: {outcome}");
            let fd = if step.contains("edit") { "edit" } else { "app" };
            if outcome == "ok" {
                assert_eq!(a.error(&format!("os.close({fd})")), "ESTALE", "{step}");
            }
        }
        a.outcome("x[0:4] = b'late'; x.flush()");
        a.outcome("x.close()");
        // Who holds one of these open holds its bytes.
        for fd in ["fd", "cut", "edit", "app"] {
            a.outcome(&format!("os.close({fd})"));
        }
        assert_eq!(a.error("os.close(tmp)"), "ESTALE");
        assert_empty(m, "a");
        assert!(wait_until(PATIENCE, || m.status_number("staged_bytes") == 0), "{}", m.status());
        assert_counters_equal_the_disk(m);
        m.crash();
        assert_empty(m, "a");
        assert_counters_equal_the_disk(m);
    });
}

/// Issue 3: conditional puts. INTERFACE: `user.fencefs.epoch` set on a handle open for writing.
#[test]
fn a_conditional_put_is_published_under_its_epoch_alone() {
    each(|m| {
        two_tenants(m);
        let mut a = m.peer();
        a.run(
            "def put(name, epoch):
    fd = os.open(R + '/a/' + name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.setxattr(fd, 'user.fencefs.epoch', str(epoch).encode())
    os.write(fd, b'v%d' % epoch)
    os.close(fd)",
        );
        a.run("put('now', 0)");
        let told = epoch(m, "a");
        assert_eq!(told, 0);
        let number = remove(m, "tenant=a");
        // The work was taken before, the handle is from after: a late task.
        assert_eq!(a.error("put('late', 0)"), "ESTALE");
        assert_eq!(a.error("os.stat(R + '/a/late')"), "ENOENT");
        a.run(&format!("put('now', {number})"));
        assert_eq!(a.error("put('now', 0)"), "ESTALE");
        assert_eq!(a.text("read(R + '/a/now')"), format!("v{number}"), "the old value stays");
        // Another tenant's epoch is its own.
        a.run("fd = os.open(R + '/b/new', os.O_CREAT | os.O_WRONLY); os.setxattr(fd, 'user.fencefs.epoch', b'0')");
        a.run("os.write(fd, b'b'); os.close(fd); os.unlink(R + '/b/new')");
        let global = remove(m, "scope=global");
        assert_eq!(a.error(&format!("put('now', {number})")), "ESTALE");
        a.run(&format!("put('now', {global})"));
        m.shell("[ \"$(ls $R/a)\" = now ]").ok();
        assert_counters_equal_the_disk(m);
    });
}

/// RFC matrix: "Write/offload attempted after the fence"; invariant "Cleanup failure never ... reports readiness".
/// The scope is held closed by a record that cannot be deleted.
#[test]
fn a_write_to_a_scope_that_stays_closed_waits_and_is_busy_while_others_go_on() {
    each_with(
        |b| b.arg("--fence-wait").arg("400ms"),
        |m| {
            two_tenants(m);
            let b = Bystander::look(m);
            let Some(mut stuck) = Stuck::new(m, "a/k7") else { return };
            let before = tenant(m, "a");
            let mut control = Control::open(m);
            let number = generation(&control.ask("remove-all tenant=a"));
            let second = control.line();
            assert_eq!((&second["state"], generation(&second)), (&"failed".into(), number), "{second}");
            let (mut a, mut other) = (m.peer(), m.peer());
            a.run("import time");
            for step in [
                "write(R + '/a/new', b'x')",
                "os.mkdir(R + '/a/d')",
                "os.symlink('x', R + '/a/s')",
                "os.mknod(R + '/a/n')",
            ] {
                a.begin(&format!(
                    "t = time.monotonic()
try: {step}
finally: waited = time.monotonic() - t"
                ));
                // Meanwhile B is as before.
                other.run("write(R + '/b/w', b'w'); os.rename(R + '/b/w', R + '/b/v'); read(R + '/b/v')");
                other
                    .run("os.unlink(R + '/b/v'); write(R + '/default/k', b'x'); os.unlink(R + '/default/k')");
                let answer = a.finish();
                assert_eq!(answer["errno"], "EBUSY", "{step}: {answer}");
                let waited = a.run("waited").as_f64().unwrap();
                assert!((0.3..20.0).contains(&waited), "{step}: waited {waited} s");
            }
            // Removed means removed, for readers, while deletion goes on failing.
            assert_eq!(a.error("os.stat(R + '/a/k1')"), "ENOENT");
            assert_eq!(a.run("os.listdir(R + '/a')"), serde_json::json!([]));
            assert_held(m, number, &before);
            b.assert_untouched(m);
            stuck.release();
            Control::open(m).ask("retry");
            wait_complete(m, &format!("generation={number}"));
            a.run("write(R + '/a/new', b'x')");
            assert_eq!(a.text("os.getxattr(R + '/a/new', 'user.fencefs.epoch')"), number.to_string());
            a.run("os.unlink(R + '/a/new')");
            assert_empty(m, "a");
            b.assert_untouched(m);
            assert_counters_equal_the_disk(m);
        },
    );
}

/// RFC matrix: "Partial deletion": visible, not acknowledged, counters as before.
#[track_caller]
fn assert_held(m: &Mount, number: u64, before: &serde_json::Value) {
    let state = query(m, &format!("generation={number}"));
    assert_ne!(state["state"], "complete", "{state}");
    assert!(state["last_error"].as_str().is_some_and(|text| !text.is_empty()), "{state}");
    let status = m.status();
    assert_eq!(status["pending_requests"], 1, "{status}");
    assert!(["removing", "failed"].contains(&status["state"].as_str().unwrap()), "{status}");
    assert!(status["last_error"].as_str().is_some_and(|text| !text.is_empty()), "{status}");
    let now = tenant(m, "a");
    assert!(["removing", "failed"].contains(&now["state"].as_str().unwrap()), "{now}");
    assert_eq!((&now["keys"], &now["bytes"]), (&before["keys"], &before["bytes"]), "no false zeros");
    assert_eq!(tenant(m, "b")["state"], "ready");
}

/// The same, found again by a restart: the scope is closed until the request is complete.
#[test]
fn a_failing_removal_outlives_a_restart_and_ends_by_itself() {
    each_with(
        |b| b.arg("--fence-wait").arg("100ms"),
        |m| {
            two_tenants(m);
            let b = Bystander::look(m);
            let Some(mut stuck) = Stuck::new(m, "a/k7") else { return };
            let mut control = Control::open(m);
            let number = generation(&control.ask("remove-all tenant=a id=stuck"));
            assert_eq!(control.line()["state"], "failed");
            drop(control);
            for _ in 0..2 {
                m.crash();
                let mut a = m.peer();
                assert_eq!(a.error("os.stat(R + '/a/k7')"), "ENOENT");
                assert_eq!(a.error("write(R + '/a/new', b'x')"), "EBUSY");
                assert_ne!(query(m, "id=stuck")["state"], "complete");
                b.assert_untouched(m);
            }
            stuck.release();
            // No retry is asked for: it comes by itself.
            assert_eq!(generation(&wait_complete(m, "id=stuck")), number);
            assert!(wait_until(PATIENCE, || tenant(m, "a")["state"] == "ready"));
            assert_empty(m, "a");
            b.assert_untouched(m);
            assert_counters_equal_the_disk(m);
            assert_eq!(m.status_number("pending_requests"), 0);
        },
    );
}

/// Acceptance: "No mutation can commit across a scoped generation boundary". Many writers, all on their way.
#[test]
fn no_value_of_many_writers_crosses_a_removal() {
    each(|m| {
        two_tenants(m);
        let mut peers: Vec<_> = (0..4).map(|_| m.peer()).collect();
        for (who, peer) in peers.iter_mut().enumerate() {
            peer.run("import time");
            peer.begin(&format!(
                "end = time.monotonic() + 3; done = stale = 0
while time.monotonic() < end:
    try:
        fd = os.open(R + '/a/w{who}-%d' % (done % 7), os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.write(fd, b'x' * 20000); os.close(fd); done += 1
    except OSError as e:
        assert e.errno in (errno.ESTALE, errno.EBUSY, errno.ENOENT), e
        stale += 1"
            ));
        }
        let mut last = 0;
        for _ in 0..8 {
            last = remove(m, "tenant=a");
            let mut look = m.peer();
            // Every key that is there now was written under the epoch of now.
            look.run(&format!(
                "for n in os.listdir(R + '/a'):
    try: assert int(os.getxattr(R + '/a/' + n, 'user.fencefs.epoch')) >= {last}, n
    except FileNotFoundError: pass
    except OSError as e: assert e.errno in (errno.ENODATA, errno.ESTALE), e"
            ));
        }
        for peer in &mut peers {
            let answer = peer.finish();
            assert!(answer.get("ok").is_some(), "{answer}");
            assert!(peer.int("done") > 0);
        }
        assert!(remove(m, "tenant=a") > last);
        assert_empty(m, "a");
        m.shell("diff -r --no-dereference $W/copy-b $R/b").ok();
        assert_counters_equal_the_disk(m);
    });
}
