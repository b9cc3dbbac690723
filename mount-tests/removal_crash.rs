//! The daemon dies, as by `kill -9`, at every named step of a removal. The next start ends what was begun.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::fs::XattrFlags;
use serde_json::Value;

use crate::harness::{Builder, Mount, each_with, fencefs, in_turn, processes_of, wait_until};
use crate::removals::{
    Bystander, Control, PATIENCE, assert_counters_equal_the_disk, assert_empty, epoch, generation,
    is_empty_dir, query, requests, tenant, two_tenants, wait_complete,
};

fn dies_at(points: String) -> impl Fn(Builder) -> Builder {
    move |b| b.arg("--fence-wait").arg("100ms").env("FAILPOINTS", &points)
}

/// Asks for a removal that the daemon does not live to the end of: whether write(2) had returned.
#[track_caller]
fn submit_and_die(m: &mut Mount, words: &str) -> bool {
    let mut control = Control::open(m);
    let told = control.send(&format!("remove-all {words}")).is_ok();
    m.wait_for_exit();
    told
}

#[track_caller]
fn start_again(m: &mut Mount) {
    m.unset_env("FAILPOINTS");
    m.mount();
}

/// What must hold once a removal of tenant A that a crash has cut is ended.
#[track_caller]
fn assert_ended(m: &mut Mount, b: &Bystander, id: &str) -> u64 {
    let request = wait_complete(m, &format!("id={id}"));
    let number = generation(&request);
    assert!(wait_until(PATIENCE, || tenant(m, "a")["state"] == "ready"), "{}", m.status());
    assert_empty(m, "a");
    b.assert_untouched(m);
    assert!(is_empty_dir(&m.store.join("data/.trash")), "trash is left");
    assert_counters_equal_the_disk(m);
    assert_eq!((epoch(m, "a"), epoch(m, "b")), (number, 0));
    assert_eq!(m.status_number("pending_requests"), 0);
    m.shell("mkdir -p $R/a/deep; echo new > $R/a/deep/k; [ $(cat $R/a/deep/k) = new ]").ok();
    // And once more from the disk.
    m.crash();
    m.shell("[ $(cat $R/a/deep/k) = new ]; [ ! -e $R/a/k1 ]; diff -r --no-dereference $W/copy-b $R/b").ok();
    assert_eq!(requests(m).len(), 1);
    assert_counters_equal_the_disk(m);
    number
}

/// Each row below is met with passthrough and without, and with eviction and without.
#[track_caller]
fn cut_and_ended(turn: usize, points: &str) {
    eprintln!("{points}");
    let settings = dies_at(points.to_owned());
    each_with(
        |b| settings(b).evicting(turn),
        |m| {
            two_tenants(m);
            let b = Bystander::look(m);
            // An open writer and an open reader do not change what happens.
            let mut a = m.peer();
            a.run("fd = os.open(R + '/a/half', os.O_CREAT | os.O_WRONLY); os.write(fd, b'h' * 100000); r = open(R + '/a/k12', 'rb')");
            submit_and_die(m, "tenant=a id=cut");
            start_again(m);
            assert_eq!(assert_ended(m, &b, "cut"), 1);
        },
    );
}

/// RFC matrix: "Crash before, during, or after physical deletion": before.
#[test]
fn killed_before_deletion() {
    let steps = [
        "ledger.submitted",
        "removal.fence",
        "removal.drain",
        "removal.hide",
        "removal.trash",
        "removal.trashed",
        "removal.staged",
    ];
    for (turn, step) in steps.into_iter().enumerate() {
        cut_and_ended(turn, &format!("{step}=return(kill)"));
    }
}

/// The same row: during, at the first, a middle and the last record.
#[test]
fn killed_during_deletion() {
    for (turn, survived) in ["", "1*off->", "7*off->", "19*off->"].into_iter().enumerate() {
        cut_and_ended(turn, &format!("removal.delete={survived}return(kill)"));
    }
}

/// The same row: after it, and before the marker is durable.
#[test]
fn killed_after_deletion() {
    let steps = ["removal.verify", "removal.sync", "removal.epoch", "removal.epoch.sync", "ledger.marker"];
    for (turn, step) in steps.into_iter().enumerate() {
        cut_and_ended(turn, &format!("{step}=return(kill)"));
    }
}

/// A failed attempt is cut while its error is written down.
#[test]
fn killed_after_a_failure() {
    for (turn, failed) in ["removal.delete=5*off->return", "ledger.marker=return(enospc)"].iter().enumerate()
    {
        cut_and_ended(turn, &format!("{failed};ledger.note=return(kill)"));
    }
}

/// RFC matrix: "Master failover with pending or recorded ACK": recorded, and the daemon did not hear of it.
#[test]
fn killed_after_the_acknowledgement() {
    for (turn, step) in ["ledger.acked", "removal.open"].into_iter().enumerate() {
        cut_and_ended(turn, &format!("{step}=return(kill)"));
    }
}

/// Puts a sound record of tenant A into its epoch directory, as docs/format.md has it, while nothing is mounted: it
/// stands for what a second deletion would take.
#[track_caller]
fn plant_value(m: &Mount, key: &str, number: u64) {
    let store = m.store.to_str().unwrap();
    let told = fencefs(["path", store, "--tenant", "a", key, "--json"]).ok();
    let digest = serde_json::from_str::<Value>(&told).unwrap()["digest"].as_str().unwrap().to_owned();
    let shard = m.store.join(format!("data/t/a/{number}/{}/{}", &digest[..2], &digest[2..4]));
    fs::create_dir_all(&shard).unwrap();
    let file = shard.join(digest);
    fs::write(&file, b"planted").unwrap();
    let mut record = vec![1, 0, 0, 1];
    record.extend(number.to_le_bytes());
    record.extend(7_u64.to_le_bytes());
    record.extend(u16::try_from(key.len()).unwrap().to_le_bytes());
    record.extend(b"a\0");
    record.extend(key.as_bytes());
    rustix::fs::setxattr(&file, "user.fencefs", &record, XattrFlags::empty()).unwrap();
}

/// RFC matrix: "Crash after marker persistence but before ACK": "ACK is resent without another destructive clear".
#[test]
fn killed_after_the_marker_sends_the_ack_again_and_deletes_nothing() {
    for step in ["ledger.marked", "removal.counters", "ledger.ack"] {
        eprintln!("{step}");
        each_with(dies_at(format!("{step}=return(kill)")), |m| {
            two_tenants(m);
            let b = Bystander::look(m);
            submit_and_die(m, "tenant=a id=marked");
            let dir = m.store.join("data/t/a/1");
            let before = fs::metadata(&dir).expect("the epoch has its directory before the marker").ino();
            plant_value(m, "survivor", 1);
            // Deletion would not get far: the start has nothing to do with it.
            m.set_env("FAILPOINTS", "removal.delete=return;removal.trash=return;ledger.marker=return");
            m.mount();
            let request = wait_complete(m, "id=marked");
            assert_eq!(generation(&request), 1, "{request}");
            assert_eq!(fs::metadata(&dir).unwrap().ino(), before);
            m.shell("[ $(cat $R/a/survivor) = planted ]; [ \"$(ls $R/a)\" = survivor ]").ok();
            b.assert_untouched(m);
            assert_eq!((epoch(m, "a"), requests(m).len()), (1, 1));
            assert!(wait_until(PATIENCE, || tenant(m, "a")["state"] == "ready"));
            m.shell("echo x > $R/a/k1; rm $R/a/k1").ok();
            assert_counters_equal_the_disk(m);
        });
    }
}

/// A request whose daemon died before it was durable has not been made: nothing goes, and its id makes it.
#[test]
fn killed_before_the_request_is_durable() {
    each_with(dies_at("ledger.submit=return(kill)".to_owned()), |m| {
        two_tenants(m);
        let b = Bystander::look(m);
        assert!(!submit_and_die(m, "tenant=a id=cut"), "write(2) returned before the request was durable");
        start_again(m);
        m.shell("diff -r --no-dereference $W/copy-a $R/a; echo x > $R/a/w; rm $R/a/w").ok();
        assert_eq!((m.status_number("pending_requests"), epoch(m, "a")), (0, 0));
        assert_eq!(Control::open(m).refused("query id=cut").0, libc::ENOENT);
        Control::open(m).ask("remove-all tenant=a id=cut");
        assert_ended(m, &b, "cut");
    });
}

/// The global scope, at a step of each kind.
#[test]
fn a_global_removal_that_is_killed_is_ended_for_every_tenant() {
    // Some between one tenant and the next.
    let steps = [
        "ledger.submitted=",
        "removal.hide=1*off->",
        "removal.trash=",
        "removal.trash=1*off->",
        "removal.trash=2*off->",
        "removal.trashed=",
        "removal.stranger=",
        "removal.delete=10*off->",
        "removal.delete=30*off->",
        "removal.epoch=",
        "removal.epoch=1*off->",
        "removal.epoch.sync=2*off->",
        "ledger.marker=",
        "ledger.marked=",
        "ledger.ack=",
    ];
    for (turn, step) in steps.into_iter().enumerate() {
        eprintln!("{step}");
        in_turn(turn, dies_at(format!("{step}return(kill)")), |m| {
            two_tenants(m);
            m.shell("echo x > $M/k; echo beside > $S/beside; echo theirs > $S/data/t/a/0/stranger").ok();
            submit_and_die(m, "scope=global id=all");
            start_again(m);
            let number = generation(&wait_complete(m, "id=all"));
            assert!(wait_until(PATIENCE, || m.status()["state"] == "ready"));
            for name in ["a", "b", "default"] {
                assert_empty(m, name);
                assert_eq!(epoch(m, name), number);
            }
            m.shell("[ $(cat $S/beside) = beside ]; [ $(cat $S/data/.quarantine/a.stranger.*) = theirs ]; for t in a b default; do echo new > $R/$t/k1; done").ok();
            m.crash();
            m.shell("for t in a b default; do [ \"$(ls $R/$t)\" = k1 ]; done").ok();
            assert_counters_equal_the_disk(m);
        });
    }
}

/// RFC matrix: "`ScanMeta` while cleanup is pending": "No re-registration for the pending scope". The old values are
/// all on the disk, and the removal does not get on.
#[test]
fn a_start_with_a_pending_request_registers_nothing_of_its_scope() {
    for (died, stays) in [
        ("removal.fence", "removal.trash"),
        ("ledger.submitted", "removal.fence"),
        ("removal.trashed", "removal.delete"),
        ("removal.sync", "ledger.marker"),
    ] {
        eprintln!("{died}, then {stays}");
        each_with(dies_at(format!("{died}=return(kill)")), |m| {
            two_tenants(m);
            let b = Bystander::look(m);
            submit_and_die(m, "tenant=a id=pending");
            m.set_env("FAILPOINTS", &format!("{stays}=return"));
            m.mount();
            let mut peer = m.peer();
            for _ in 0..3 {
                assert_eq!(peer.run("os.listdir(R + '/a')"), serde_json::json!([]));
                assert_eq!(peer.error("os.stat(R + '/a/k1')"), "ENOENT");
                assert_eq!(peer.error("read(R + '/a/deep/er/k1')"), "ENOENT");
                assert_eq!(peer.error("write(R + '/a/new', b'x')"), "EBUSY");
                b.assert_untouched(m);
                Control::open(m).ask("retry");
            }
            assert_ne!(query(m, "id=pending")["state"], "complete");
            assert_ne!(tenant(m, "a")["state"], "ready");
            assert_eq!(tenant(m, "b")["state"], "ready");
            peer.run("write(R + '/b/w', b'w'); os.unlink(R + '/b/w')");
            drop(peer);
            m.kill();
            start_again(m);
            assert_ended(m, &b, "pending");
        });
    }
}

/// A start that is killed at its own attempt, again and again, at other steps.
#[test]
fn killed_again_while_it_ends_what_was_cut() {
    each_with(dies_at("removal.fence=return(kill)".to_owned()), |m| {
        two_tenants(m);
        let b = Bystander::look(m);
        submit_and_die(m, "tenant=a id=cut");
        for step in [
            "ledger.register=",
            "removal.trashed=",
            "removal.delete=",
            "removal.delete=3*off->",
            "ledger.register=",
            "removal.sync=",
            "ledger.marker=",
            "ledger.ack=",
        ] {
            let points = format!("{step}return(kill)");
            m.set_env("FAILPOINTS", &points);
            // It may die before the mount answers.
            drop(m.try_mount());
            let gone = wait_until(PATIENCE, || processes_of(&m.store).is_empty());
            assert!(gone, "{points}: the daemon lives");
        }
        start_again(m);
        assert_ended(m, &b, "cut");
    });
}

/// A logical removal is cut as well: what it hid never comes back.
#[test]
fn a_logical_removal_that_is_killed_stays_hidden() {
    let steps = [
        "removal.fence",
        "removal.hide",
        "removal.trash",
        "removal.trashed",
        "ledger.marker",
        "ledger.marked",
        "removal.open",
    ];
    for (turn, step) in steps.into_iter().enumerate() {
        eprintln!("{step}");
        in_turn(turn, dies_at(format!("{step}=return(kill)")), |m| {
            two_tenants(m);
            let b = Bystander::look(m);
            submit_and_die(m, "tenant=a mode=logical id=cut");
            start_again(m);
            assert_eq!(wait_complete(m, "id=cut")["mode"], "logical");
            assert!(wait_until(PATIENCE, || tenant(m, "a")["state"] == "ready"));
            let mut peer = m.peer();
            assert_eq!(peer.run("os.listdir(R + '/a')"), serde_json::json!([]));
            assert!(wait_until(PATIENCE, || is_empty_dir(&m.store.join("data/.trash"))));
            assert_counters_equal_the_disk(m);
            b.assert_untouched(m);
        });
    }
}
