//! Every step of a removal fails, once and for good: nothing is acknowledged, no counter lies, it is tried again.

use std::fs;
use std::io::Write;

use rustix::process::{Signal, kill_process};

use crate::harness::{Mount, each_with, in_turn, processes_of, wait_until};
use crate::removals::{
    Bystander, Control, PATIENCE, assert_counters_equal_the_disk, assert_empty, each_evicting_with, epoch,
    generation, is_empty_dir, list, query, tenant, two_tenants, wait_complete,
};

/// The steps up to the one that makes the removal count.
const BEFORE_THE_MARKER: [&str; 11] = [
    "removal.fence",
    "removal.drain",
    "removal.hide",
    "removal.trash",
    "removal.trashed",
    "removal.delete",
    "removal.delete=7*off->",
    "removal.verify",
    "removal.sync",
    "removal.epoch",
    "ledger.marker",
];
/// The steps from there to the acknowledgement.
const BEFORE_THE_ACK: [&str; 3] = ["ledger.marked", "removal.counters", "ledger.ack"];
/// And to readiness.
const AFTER_THE_ACK: [&str; 2] = ["ledger.acked", "removal.open"];
/// What another attempt, or one after a restart, does not come to.
const ONCE: [&str; 2] = ["removal.staged", "removal.epoch.sync"];

fn with(points: String) -> impl Fn(crate::harness::Builder) -> crate::harness::Builder {
    move |b| b.arg("--fence-wait").arg("100ms").env("FAILPOINTS", &points)
}

/// A failed attempt: visible with the step in its error, nothing acknowledged, nothing ready, the counters as before.
#[track_caller]
fn assert_failed(m: &Mount, number: u64, step: &str, before: Option<&serde_json::Value>) {
    let request = query(m, &format!("generation={number}"));
    assert!(
        ["failed", "pending", "removing", "applied"].contains(&request["state"].as_str().unwrap()),
        "{request}"
    );
    assert!(request["last_error"].as_str().is_some_and(|text| text.contains(step)), "{step}: {request}");
    let status = m.status();
    assert_eq!(status["pending_requests"], 1, "{status}");
    assert!(["removing", "failed"].contains(&status["state"].as_str().unwrap()), "{status}");
    assert!(status["last_error"].as_str().is_some_and(|text| text.contains(step)), "{step}: {status}");
    let storage = status["storage_id"].as_str().unwrap();
    let pending = list(&Control::open(m).ask(&format!("poll storage={storage}")));
    assert_eq!(pending.len(), 1, "no acknowledgement: {pending:?}");
    let now = tenant(m, "a");
    assert_ne!(now["state"], "ready", "{now}");
    if let Some(before) = before {
        assert_eq!((&now["keys"], &now["bytes"]), (&before["keys"], &before["bytes"]), "{step}: false zeros");
        let applied = format!("ack storage={storage} generation={number} scope=tenant tenant=a");
        Control::open(m).refused(&applied);
    }
    let mut peer = m.peer();
    assert_eq!(peer.error("write(R + '/a/new', b'x')"), "EBUSY", "{step}");
}

/// RFC matrix: "Partial deletion or marker-fsync failure", for every step: for good, until the next start.
#[test]
fn a_step_that_keeps_failing_acknowledges_nothing() {
    // Past the marker another attempt has only the acknowledgement left to fail at.
    let steps = BEFORE_THE_MARKER.iter().map(|s| (*s, true)).chain([("ledger.ack", false)]);
    for (turn, (point, counts)) in steps.enumerate() {
        eprintln!("{point}");
        let step = point.split('=').next().unwrap();
        let points = if point == step { format!("{step}=return") } else { format!("{point}return") };
        in_turn(turn, with(points), |m| {
            two_tenants(m);
            let b = Bystander::look(m);
            let before = tenant(m, "a");
            let before = counts.then_some(&before);
            // In the kernel's caches.
            let mut reader = m.peer();
            reader.run("[os.stat(R + p).st_size for p in ('/a/k1', '/a/deep/er/k1')]");
            let mut control = Control::open(m);
            let number = generation(&control.ask("remove-all tenant=a"));
            let second = control.line();
            assert_eq!(second["state"], "failed", "{step}: {second}");
            assert!(second["last_error"].as_str().is_some_and(|t| t.contains(step)), "{step}: {second}");
            if !["removal.fence", "removal.drain", "removal.hide"].contains(&step) {
                assert_eq!(reader.run("os.listdir(R + '/a')"), serde_json::json!([]), "{step}");
                for key in ["/a/k1", "/a/deep/er/k1"] {
                    assert_eq!(reader.error(&format!("os.stat(R + '{key}')")), "ENOENT", "{step}: in sight");
                    assert_eq!(reader.error(&format!("read(R + '{key}')")), "ENOENT", "{step}: readable");
                }
            }
            drop(reader);
            assert_failed(m, number, step, before);
            Control::open(m).ask(&format!("retry generation={number}"));
            assert_failed(m, number, step, before);
            b.assert_untouched(m);
            // A restart into the same failure serves the others and keeps the scope closed.
            m.crash();
            let noted =
                wait_until(PATIENCE, || query(m, &format!("generation={number}"))["last_error"].is_string());
            assert!(noted, "{step}");
            let mut peer = m.peer();
            assert_eq!(peer.error("write(R + '/a/new', b'x')"), "EBUSY", "{step}");
            assert_eq!(peer.error("os.stat(R + '/a/k1')"), "ENOENT", "{step}: registered again");
            b.assert_untouched(m);
            m.unset_env("FAILPOINTS");
            m.crash();
            finished(m, number, &b);
        });
    }
}

/// Complete, empty, counted right, ready, and nothing of B touched.
#[track_caller]
fn finished(m: &Mount, number: u64, b: &Bystander) {
    let request = wait_complete(m, &format!("generation={number}"));
    assert!(request["last_error"].is_null(), "{request}");
    assert!(wait_until(PATIENCE, || tenant(m, "a")["state"] == "ready"));
    assert_empty(m, "a");
    b.assert_untouched(m);
    assert_eq!((epoch(m, "a"), epoch(m, "b")), (number, 0));
    let status = m.status();
    assert_eq!((&status["state"], &status["pending_requests"]), (&"ready".into(), &0.into()), "{status}");
    m.shell("echo new > $R/a/k1; [ $(cat $R/a/k1) = new ]; rm $R/a/k1").ok();
    assert_counters_equal_the_disk(m);
}

/// Acceptance: "Failed cleanup remains visible and retryable": once, and it comes right by itself.
#[test]
fn a_step_that_fails_once_is_tried_again_by_itself() {
    let steps = BEFORE_THE_MARKER.iter().chain(&BEFORE_THE_ACK).chain(&AFTER_THE_ACK);
    for (turn, point) in steps.chain(&ONCE).enumerate() {
        eprintln!("{point}");
        let step = &point.split('=').next().unwrap();
        let points = if point == step { format!("{step}=1*return") } else { format!("{point}1*return") };
        let settings = with(points);
        each_with(
            |b| settings(b).evicting(turn),
            |m| {
                two_tenants(m);
                let b = Bystander::look(m);
                let mut half = fs::File::create(m.mnt.join("a/half")).unwrap();
                half.write_all(&[b'h'; 100_000]).unwrap();
                let mut control = Control::open(m);
                let number = generation(&control.ask("remove-all tenant=a"));
                let second = control.line();
                drop(half);
                if !AFTER_THE_ACK.contains(step) {
                    assert_eq!(second["state"], "failed", "{step}: {second}");
                    assert!(
                        second["last_error"].as_str().is_some_and(|t| t.contains(step)),
                        "{step}: {second}"
                    );
                }
                finished(m, number, &b);
            },
        );
    }
}

/// The same by `retry`, which does not wait for the backoff.
#[test]
fn a_failed_removal_is_tried_again_when_asked() {
    each_with(with("removal.delete=3*return".to_owned()), |m| {
        two_tenants(m);
        let b = Bystander::look(m);
        let mut control = Control::open(m);
        let number = generation(&control.ask("remove-all tenant=a"));
        assert_eq!(control.line()["state"], "failed");
        // The failures that are left are used up, by whichever attempt.
        let done = wait_until(PATIENCE, || {
            Control::open(m).ask("retry");
            query(m, &format!("generation={number}"))["state"] == "complete"
        });
        assert!(done);
        finished(m, number, &b);
    });
}

/// Issue: "ENOSPC while persisting the marker".
#[test]
fn a_marker_without_room_is_no_marker() {
    for scope in ["tenant=a", "scope=global"] {
        let settings = with("ledger.marker=return(enospc)".to_owned());
        each_evicting_with(settings, |m| {
            two_tenants(m);
            let before = (tenant(m, "a"), m.status_number("used_bytes"));
            let mut control = Control::open(m);
            let number = generation(&control.ask(&format!("remove-all {scope}")));
            let second = control.line();
            assert_eq!(second["state"], "failed", "{second}");
            assert!(second["last_error"].as_str().is_some_and(|t| t.contains("No space left")), "{second}");
            assert_failed(m, number, "ledger.marker", Some(&before.0));
            assert_eq!(m.status_number("used_bytes"), before.1);
            m.unset_env("FAILPOINTS");
            m.crash();
            wait_complete(m, &format!("generation={number}"));
            assert_empty(m, "a");
            assert_counters_equal_the_disk(m);
        });
    }
}

/// A request that cannot be recorded has not been made; one whose answer is lost is found again by its id.
#[test]
fn a_submission_that_fails_changes_nothing_or_is_found_by_its_id() {
    for (step, made) in [("ledger.submit", false), ("ledger.submitted", true)] {
        for (turn, errno) in [("return", libc::EIO), ("return(enospc)", libc::ENOSPC)].iter().enumerate() {
            in_turn(turn, with(format!("{step}=1*{}", errno.0)), |m| {
                two_tenants(m);
                let b = Bystander::look(m);
                let (refused, reply) = Control::open(m).refused("remove-all tenant=a id=r");
                assert_eq!(refused, errno.1, "{step}: {reply}");
                if !made {
                    m.shell("diff -r --no-dereference $W/copy-a $R/a; echo x > $R/a/w; rm $R/a/w").ok();
                    assert_eq!(m.status_number("pending_requests"), 0);
                }
                let number = generation(&Control::open(m).ask("remove-all tenant=a id=r"));
                assert_eq!(number, 1, "{step}");
                finished(m, number, &b);
            });
        }
    }
}

/// RFC matrix: "Partial deletion": of a global removal, between one tenant and the next.
#[test]
fn a_global_removal_that_fails_half_way_acknowledges_nothing_for_anybody() {
    let points = [
        "removal.hide=1*off->return",
        "removal.trash=1*off->return",
        "removal.stranger=return",
        "removal.delete=30*off->return",
        "removal.epoch=1*off->return",
        "removal.epoch.sync=2*off->return",
    ];
    for (turn, points) in points.into_iter().enumerate() {
        eprintln!("{points}");
        let step = points.split('=').next().unwrap();
        in_turn(turn, with(points.to_owned()), |m| {
            two_tenants(m);
            m.shell("echo x > $M/k; echo theirs > $S/data/t/a/0/stranger").ok();
            let names = ["a", "b", "default"];
            let counts = |m: &Mount| {
                let of = |name| (tenant(m, name)["keys"].clone(), tenant(m, name)["bytes"].clone());
                (names.map(of), m.status_number("used_bytes"), m.status_number("keys"))
            };
            let before = counts(m);
            let mut control = Control::open(m);
            let number = generation(&control.ask("remove-all scope=global"));
            let second = control.line();
            assert_eq!(second["state"], "failed", "{step}: {second}");
            assert!(second["last_error"].as_str().is_some_and(|t| t.contains(step)), "{step}: {second}");
            assert_eq!(counts(m), before, "{step}: false zeros");
            assert_eq!(m.status_number("pending_requests"), 1);
            let mut peer = m.peer();
            for name in names {
                assert_ne!(tenant(m, name)["state"], "ready", "{step}: {name}");
                assert_eq!(peer.error(&format!("write(R + '/{name}/new', b'x')")), "EBUSY", "{step}: {name}");
                if step != "removal.hide" {
                    let listed = peer.run(&format!("os.listdir(R + '/{name}')"));
                    assert_eq!(listed, serde_json::json!([]), "{step}: {name}");
                }
            }
            drop(peer);
            m.unset_env("FAILPOINTS");
            m.crash();
            wait_complete(m, &format!("generation={number}"));
            for name in names {
                assert_empty(m, name);
                assert_eq!(epoch(m, name), number);
            }
            m.shell("[ $(cat $S/data/.quarantine/a.stranger.*) = theirs ]").ok();
            assert_counters_equal_the_disk(m);
        });
    }
}

/// Ends whatever runs of the daemon.
fn end(m: &Mount) {
    for pid in processes_of(&m.store) {
        kill_process(pid, Signal::KILL).ok();
    }
    assert!(wait_until(PATIENCE, || processes_of(&m.store).is_empty()));
}

/// Issue: "ENOSPC while persisting the marker", RFC matrix: "marker-fsync failure": each call that changes the ledger's
/// file fails, once or from then on, or is the daemon's last. The same request is one request, is carried out once,
/// and needs no restart where the disk works again.
#[test]
fn each_change_of_the_ledgers_file_may_fail_or_be_the_last() {
    let words = ["return(kill)", "1*return", "1*return(enospc)", "return(enospc)"];
    for (turn, word) in words.into_iter().enumerate() {
        in_turn(turn, with(String::new()), |m| {
            two_tenants(m);
            let b = Bystander::look(m);
            m.umount();
            // Opening takes some calls, a removal some more, in three transactions; then it is met by no failure.
            let (mut number, mut asked) = (0, 0);
            for calls in (turn..).step_by(3) {
                m.set_env("FAILPOINTS", &format!("ledger.disk={calls}*off->{word}"));
                let id = format!("id={calls}");
                let removal = format!("remove-all tenant=a {id}");
                if m.try_mount().status.success() {
                    asked += 1;
                    let mut told = Vec::new();
                    for _ in 0..3 {
                        let Ok(mut control) = Control::try_at(&m.mnt) else { break };
                        told.push(control.send(&removal));
                    }
                    if word.starts_with("1*") {
                        assert!(told.contains(&Ok(())), "{word} after {calls}: {told:?}");
                        wait_complete(m, &id);
                    }
                    end(m);
                } else if word != "return(kill)" {
                    assert!(!m.is_mounted(), "{word} after {calls}");
                }
                m.unset_env("FAILPOINTS");
                m.mount();
                Control::open(m).ask(&removal);
                wait_complete(m, &id);
                number += 1;
                assert_eq!(generation(&query(m, &id)), number, "{word} after {calls}");
                assert!(wait_until(PATIENCE, || tenant(m, "a")["state"] == "ready"));
                assert_empty(m, "a");
                b.assert_untouched(m);
                fs::write(m.mnt.join("a/k1"), id).unwrap();
                if asked == 14 {
                    break;
                }
                m.umount();
            }
            assert_counters_equal_the_disk(m);
        });
    }
}

/// What a logical removal hid is deleted later: that fails, is visible, is tried again, and holds nothing up.
#[test]
fn deletion_after_a_logical_removal_fails_and_is_tried_again() {
    each_with(with("removal.delete=5*off->4*return".to_owned()), |m| {
        two_tenants(m);
        let b = Bystander::look(m);
        let done = Control::open(m).remove("tenant=a mode=logical");
        assert_eq!(done["mode"], "logical", "{done}");
        fs::write(m.mnt.join("a/new"), b"new").unwrap();
        let shown =
            |m: &Mount| m.status()["last_error"].as_str().is_some_and(|t| t.contains("removal.delete"));
        assert!(wait_until(PATIENCE, || shown(m)), "{}", m.status());
        assert!(wait_until(PATIENCE, || is_empty_dir(&m.store.join("data/.trash"))), "{}", m.status());
        assert_eq!(fs::read(m.mnt.join("a/new")).unwrap(), b"new");
        b.assert_untouched(m);
        assert_counters_equal_the_disk(m);
    });
}
