//! What a restart keeps of removals. Rows that speak of master failover are covered here by a restart with a pending
//! and with a recorded acknowledgement (`removal_writes` and `removal_crash` hold the pending ones).

use std::fs;

use crate::harness::each;
use crate::removals::{
    Bystander, Control, assert_counters_equal_the_disk, assert_empty, epoch, generation, query, remove,
    requests, two_tenants, wait_complete,
};

/// RFC matrix: "Master failover with pending or recorded ACK", recorded. Invariant: "Required generations survive
/// master failover; applied generations survive client restart".
#[test]
fn complete_requests_and_generations_survive_stops_of_both_kinds() {
    each(|m| {
        two_tenants(m);
        let b = Bystander::look(m);
        let mut numbers = vec![remove(m, "tenant=a id=first")];
        let storage = m.status()["storage_id"].clone();
        for round in 0..4 {
            if round % 2 == 0 {
                m.remount()
            } else {
                m.crash()
            }
            assert_eq!(m.status()["storage_id"], storage);
            assert_eq!(requests(m).iter().map(generation).collect::<Vec<_>>(), numbers);
            assert!(requests(m).iter().all(|r| r["state"] == "complete"));
            assert_eq!(generation(&query(m, "id=first")), numbers[0]);
            assert_eq!(epoch(m, "a"), *numbers.last().unwrap());
            assert_eq!(m.status_number("generation"), *numbers.last().unwrap());
            b.assert_untouched(m);
            m.shell("echo x > $R/a/k1").ok();
            let next = remove(m, "tenant=a");
            assert!(next > *numbers.last().unwrap(), "{next}: {numbers:?}");
            numbers.push(next);
            assert_empty(m, "a");
        }
        let global = remove(m, "scope=global");
        m.crash();
        assert_eq!((epoch(m, "a"), epoch(m, "b"), epoch(m, "default")), (global, global, global));
        // A tenant that is made later begins under what was removed before it.
        m.shell("mkdir $R/late; echo x > $R/late/k").ok();
        assert!(epoch(m, "late") <= global);
        m.crash();
        m.shell("[ $(cat $R/late/k) = x ]").ok();
        assert_counters_equal_the_disk(m);
    });
}

/// RFC matrix: "Poll response is lost"; timeline "A clear request is lost". The caller is gone right after write(2),
/// and so is the daemon.
#[test]
fn a_request_that_was_written_is_carried_out_whoever_dies() {
    each(|m| {
        two_tenants(m);
        m.shell("for i in $(seq 600); do echo $i > $R/a/z$i; done").ok();
        let b = Bystander::look(m);
        for round in 0..4 {
            m.shell("echo x > $R/a/k1").ok();
            let mut control = Control::open(m);
            assert_eq!(control.send(&format!("remove-all tenant=a id=lost{round}")), Ok(()));
            m.kill();
            drop(control);
            m.mount();
            wait_complete(m, &format!("id=lost{round}"));
            assert_empty(m, "a");
            b.assert_untouched(m);
            assert_counters_equal_the_disk(m);
        }
    });
}

/// Issue 1: a damaged ledger is refused with a sentence, and never made anew.
#[test]
fn a_damaged_ledger_is_refused_and_kept() {
    each(|m| {
        two_tenants(m);
        remove(m, "tenant=a");
        m.umount();
        let file = m.store.join("ledger.redb");
        let whole = fs::read(&file).unwrap();
        for damaged in [b"this is no ledger".to_vec(), Vec::new(), vec![0; whole.len()]] {
            fs::write(&file, &damaged).unwrap();
            let (code, text) = m.try_mount().failed();
            assert_eq!((code, text.trim_end().lines().count()), (1, 1), "{text}");
            assert!(text.contains("ledger"), "{text}");
            assert!(!m.is_mounted());
            assert_eq!(fs::read(&file).unwrap(), damaged, "it is left as it is");
        }
        // Nor is a missing one taken for a first start: its store has been removed from before.
        fs::remove_file(&file).unwrap();
        let (code, text) = m.try_mount().failed();
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("ledger") && !file.exists(), "{text}");
        fs::write(&file, whole).unwrap();
        m.mount();
        m.shell("diff -r --no-dereference $W/copy-b $R/b").ok();
        assert_empty(m, "a");
    });
}

/// What is written to a file without a name is forgotten by the next start: requests fail, and change nothing, until the
/// very file is back.
#[test]
fn a_ledger_that_is_taken_away_under_the_daemon_takes_no_request() {
    each(|m| {
        two_tenants(m);
        remove(m, "tenant=a id=first");
        let b = Bystander::look(m);
        let (file, aside) = (m.store.join("ledger.redb"), m.scratch.join("aside"));
        for copied in [false, true] {
            fs::rename(&file, &aside).unwrap();
            if copied {
                fs::copy(&aside, &file).unwrap();
            }
            for line in ["remove-all tenant=b", "remove-all scope=global", "remove-all tenant=a id=first"] {
                let (errno, reply) = Control::open(m).refused(line);
                assert_eq!(errno, libc::EIO, "{line}: {reply}");
                let said = reply["message"].as_str().unwrap();
                assert!(said.contains("ledger.redb") && said.contains("taken away"), "{said}");
            }
            b.assert_untouched(m);
            fs::rename(&aside, &file).unwrap();
        }
        let number = remove(m, "tenant=a id=second");
        m.crash();
        assert_eq!(generation(&query(m, "id=second")), number);
        b.assert_untouched(m);
    });
}

/// Issue 9: however many requests there were, none is lost and the file stays small.
#[test]
fn many_requests_lose_nothing() {
    each(|m| {
        two_tenants(m);
        let b = Bystander::look(m);
        let mut control = Control::open(m);
        let mut last = 0;
        for n in 0..120 {
            let done = control.remove(&format!("tenant=a id=many{n}"));
            assert!(generation(&done) > last);
            last = generation(&done);
        }
        drop(control);
        m.crash();
        assert_eq!((epoch(m, "a"), m.status_number("generation")), (last, last));
        assert_eq!(query(m, "id=many119")["state"], "complete");
        assert_eq!(requests(m).last().map(generation), Some(last));
        assert!(fs::metadata(m.store.join("ledger.redb")).unwrap().len() < 16 << 20);
        assert_empty(m, "a");
        b.assert_untouched(m);
    });
}
