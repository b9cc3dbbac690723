//! What programs see while a removal is under way: it is held open at a named step.

use std::time::Duration;

use crate::harness::wait_until;
use crate::harness::{Builder, Mount, each_with};
use crate::removals::{
    Bystander, Control, OTHER, assert_counters_equal_the_disk, assert_empty, epoch, generation, query,
    remove, requests, tenant, two_tenants, wait_complete,
};

/// A mount whose removals stop at a step, for good.
fn held(step: &'static str) -> impl Fn(Builder) -> Builder {
    move |b| b.arg("--fence-wait").arg("300ms").env("FAILPOINTS", &format!("{step}=pause"))
}

/// Ends the daemon that is held, and goes on without the fail point.
#[track_caller]
fn go_on(m: &mut Mount) {
    m.kill();
    m.unset_env("FAILPOINTS");
    m.mount();
}

/// Submits, and waits until the scope's fence is closed.
#[track_caller]
fn begin(m: &Mount, control: &mut Control, words: &str) -> u64 {
    let number = generation(&control.ask(&format!("remove-all {words}")));
    let closed = wait_until(Duration::from_secs(20), || tenant(m, "a")["state"] != "ready");
    assert!(closed, "{}", m.status());
    number
}

/// RFC matrix: "Write/offload attempted after the fence"; INTERFACE: `--fence-wait`, EBUSY.
#[test]
fn writes_wait_for_the_fence_and_are_then_busy() {
    for step in ["removal.trash", "removal.delete", "ledger.ack"] {
        each_with(held(step), |m| {
            two_tenants(m);
            let b = Bystander::look(m);
            let (mut a, mut early, mut other) = (m.peer(), m.peer(), m.peer());
            a.run("import time");
            early.run("fd = os.open(R + '/a/early', os.O_CREAT | os.O_WRONLY); os.write(fd, b'e')");
            early.run("tmp = os.open(R + '/a/.tmp', os.O_CREAT | os.O_WRONLY); os.write(tmp, b'e')");
            let mut control = Control::open(m);
            let number = begin(m, &mut control, "tenant=a");
            // Admitted before: cancelled at once, without a wait for the end.
            assert_eq!(early.error("os.close(fd)"), "ESTALE", "{step}");
            let renamed = early.error("os.rename(R + '/a/.tmp', R + '/a/k1')");
            assert!(["ESTALE", "EBUSY", "ENOENT"].contains(&renamed.as_str()), "{step}: {renamed}");
            for write in ["write(R + '/a/new', b'x')", "os.mkdir(R + '/a/d')", "os.symlink('x', R + '/a/s')"]
            {
                a.begin(&format!(
                    "t = time.monotonic()\ntry: {write}\nfinally: waited = time.monotonic() - t"
                ));
                other.run(
                    "t = R + '/b/.t'; write(t, b'b' * 70000); os.rename(t, R + '/b/n'); assert len(read(R + '/b/n')) == 70000
os.truncate(R + '/b/n', 5); os.unlink(R + '/b/n'); os.mkdir(R + '/b/dd'); os.rmdir(R + '/b/dd')",
                );
                let answer = a.finish();
                assert_eq!(answer["errno"], "EBUSY", "{step} {write}: {answer}");
                assert!(a.run("waited").as_f64().unwrap() >= 0.25, "{step} {write} did not wait");
            }
            // Looking never waits, and never sees the old keys come back.
            m.shell("timeout 5 ls $R; timeout 5 stat -f $R; timeout 5 stat $R/a; timeout 5 ls -A $R/b").ok();
            assert_eq!(tenant(m, "b")["state"], "ready");
            assert_ne!(query(m, &format!("generation={number}"))["state"], "complete");
            b.assert_untouched(m);
            go_on(m);
            wait_complete(m, &format!("generation={number}"));
            assert_empty(m, "a");
            b.assert_untouched(m);
            m.shell("echo new > $R/a/new; [ $(cat $R/a/new) = new ]").ok();
            assert_eq!(epoch(m, "a"), number);
            assert_counters_equal_the_disk(m);
        });
    }
}

/// INTERFACE: a mutation waits up to `--fence-wait`: one that ends in time goes through, under the new epoch.
#[test]
fn a_write_that_waits_long_enough_goes_through_under_the_new_epoch() {
    each_with(
        |b| b.arg("--fence-wait").arg("30s").env("FAILPOINTS", "removal.verify=sleep(1500)"),
        |m| {
            two_tenants(m);
            let (mut a, mut rename) = (m.peer(), m.peer());
            let mut control = Control::open(m);
            let number = begin(m, &mut control, "tenant=a");
            a.begin("write(R + '/a/waited', b'w')");
            rename.begin("os.mkdir(R + '/a/dir'); write(R + '/a/dir/.t', b't'); os.rename(R + '/a/dir/.t', R + '/a/dir/k')");
            for peer in [&mut a, &mut rename] {
                let answer = peer.finish();
                assert!(answer.get("ok").is_some(), "{answer}");
            }
            wait_complete(m, &format!("generation={number}"));
            assert_eq!(a.text("os.getxattr(R + '/a/waited', 'user.fencefs.epoch')"), number.to_string());
            m.shell("[ $(cat $R/a/waited) = w ]; [ $(cat $R/a/dir/k) = t ]; [ \"$(ls $R/a | wc -l)\" = 2 ]")
                .ok();
            assert_counters_equal_the_disk(m);
        },
    );
}

/// A global removal closes every tenant, and a held one of a tenant only that.
#[test]
fn a_global_removal_under_way_closes_every_tenant() {
    each_with(held("removal.delete"), |m| {
        two_tenants(m);
        m.shell("echo x > $M/k").ok();
        let mut control = Control::open(m);
        let number = begin(m, &mut control, "scope=global");
        let mut a = m.peer();
        for name in ["a", "b", "default"] {
            assert_eq!(a.error(&format!("write(R + '/{name}/new', b'x')")), "EBUSY", "{name}");
            assert_ne!(tenant(m, name)["state"], "ready", "{name}");
        }
        assert_eq!(m.status()["state"], "removing");
        go_on(m);
        wait_complete(m, &format!("generation={number}"));
        for name in ["a", "b", "default"] {
            assert_empty(m, name);
        }
        assert_counters_equal_the_disk(m);
    });
}

/// Two removals of one tenant at once: a caller who asks while one is under way is not told of its end as their own.
#[test]
fn requests_made_during_a_removal_are_carried_out_too() {
    each_with(
        |b| b.arg("--fence-wait").arg("30s").env("FAILPOINTS", "removal.verify=sleep(300)"),
        |m| {
            two_tenants(m);
            let b = Bystander::look(m);
            let mut streams: Vec<_> = (0..4).map(|_| Control::open(m)).collect();
            let numbers: Vec<u64> =
                streams.iter_mut().map(|c| generation(&c.ask("remove-all tenant=a"))).collect();
            assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
            for (stream, number) in streams.iter_mut().zip(&numbers) {
                let second = stream.line();
                assert_eq!((generation(&second), second["state"].as_str()), (*number, Some("complete")));
                assert!(epoch(m, "a") >= *number);
            }
            assert_eq!(epoch(m, "a"), numbers[3]);
            b.assert_untouched(m);
            let all = remove(m, "scope=global");
            assert_eq!(epoch(m, "b"), all);
            assert_counters_equal_the_disk(m);
        },
    );
}

/// Issue 8: poll(2), blocking and non-blocking reads, while nothing waits yet. A read can be interrupted, and the
/// request goes on.
#[test]
fn reads_of_a_reply_that_is_not_there_block_or_say_so() {
    each_with(held("removal.delete"), |m| {
        two_tenants(m);
        let mut control = Control::open(m);
        let number = begin(m, &mut control, "tenant=a id=held");
        assert!(!control.is_readable(Duration::from_millis(100)), "the second line is not there yet");
        let mut a = m.peer();
        a.run("import time, select; n = os.open(R + '/.fencefs/control', os.O_RDWR | os.O_NONBLOCK)");
        a.run("os.write(n, b'remove-all tenant=a id=held'); first = os.read(n, 4096)");
        assert_eq!(a.error("os.read(n, 4096)"), "EAGAIN");
        a.run("p = select.poll(); p.register(n, select.POLLIN); assert p.poll(50) == []");
        // Blocking, until a signal.
        a.run("c = os.open(R + '/.fencefs/control', os.O_RDWR); os.write(c, b'remove-all tenant=a id=held'); os.read(c, 4096)");
        a.run(
            "class Alarm(Exception): pass
def ring(*_): raise Alarm()
signal.signal(signal.SIGALRM, ring); signal.setitimer(signal.ITIMER_REAL, 0.3)
try: os.read(c, 4096); ended = 'answer'
except Alarm: ended = 'signal'",
        );
        assert_eq!(a.text("ended"), "signal");
        // Another reader is not in the way of the rest of the mount.
        m.shell("timeout 10 cat $R/.fencefs/status > $W/out; echo x > $R/b/x; rm $R/b/x").ok();
        go_on(m);
        assert_eq!(generation(&wait_complete(m, "id=held")), number);
        assert_empty(m, "a");
    });
}

/// Other users' requests and other tenants' removals go on while one is held.
#[test]
fn a_held_removal_does_not_hold_another_tenants() {
    each_with(
        |b| b.arg("--fence-wait").arg("300ms").env("FAILPOINTS", "removal.verify=1*sleep(4000)"),
        |m| {
            two_tenants(m);
            let mut control = Control::open(m);
            let number = begin(m, &mut control, "tenant=a");
            let mut other = m.peer();
            other.run(&format!("os.setgroups([]); os.setgid({OTHER}); os.setuid({OTHER})"));
            other.run("write(R + '/b/mine', b'x'); c = os.open(R + '/b/.fencefs/control', os.O_RDWR)");
            other.run("os.write(c, b'remove-all tenant=b'); g = json.loads(os.read(c, 4096).splitlines()[0])['generation']");
            let theirs = u64::try_from(other.int("g")).unwrap();
            assert!(theirs > number);
            wait_complete(m, &format!("generation={theirs}"));
            wait_complete(m, &format!("generation={number}"));
            assert_empty(m, "a");
            assert_empty(m, "b");
            assert_counters_equal_the_disk(m);
        },
    );
}

/// A request that is carried out before its own caller hears that it was made: by the attempt for a later one.
#[test]
fn a_request_that_is_over_before_its_answer_is_not_waited_for() {
    each_with(
        |b| b.env("FAILPOINTS", "ledger.submitted=1*sleep(1500)"),
        |m| {
            two_tenants(m);
            let b = Bystander::look(m);
            std::thread::scope(|threads| {
                let slow = threads.spawn(|| {
                    // The kernel carries out the writes to one file one by one.
                    Control::at(&m.mnt.join("a")).remove("tenant=a id=slow")
                });
                let made = wait_until(Duration::from_secs(20), || requests(m).len() == 1);
                assert!(made);
                let number = remove(m, "tenant=a");
                let told = slow.join().unwrap();
                assert_eq!((number, generation(&told)), (2, 1), "{told}");
            });
            let status = m.status();
            assert_eq!(
                (&status["state"], &status["pending_requests"]),
                (&"ready".into(), &0.into()),
                "{status}"
            );
            assert_empty(m, "a");
            b.assert_untouched(m);
        },
    );
}
