//! A daemon of a fleet dies, as by `kill -9`, at the steps around its marker and its acknowledgement, and the leader of
//! etcd dies with it. The next start ends what was begun, once.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::etcd::Cluster;
use crate::fleet::{
    PATIENCE, fill, has, listed, pending, put, records_of, request, storage_id, submit, wait_complete,
};
use crate::harness::{Builder, Mount, can_mount, wait_until};

/// Two hosts, of which the second dies at a step.
fn pair(step: &str) -> Option<(Cluster, [Mount; 2])> {
    if !can_mount() {
        return None;
    }
    let cluster = Cluster::start(3)?;
    let url = cluster.coordinator();
    let builder = || Builder::new().arg("--coordinator").arg(&url);
    let mounts = [builder().mount(), builder().env("FAILPOINTS", &format!("{step}=return(kill)")).mount()];
    mounts.iter().for_each(fill);
    Some((cluster, mounts))
}

fn fail_over(cluster: &mut Cluster) {
    let leader = cluster.wait_for_leader();
    cluster.kill(leader);
    assert_ne!(cluster.wait_for_leader(), leader);
    cluster.revive(leader);
}

/// RFC matrix: "Crash before, during, or after physical deletion" and "Master failover with pending ACK", together.
#[test]
fn killed_before_its_marker_a_host_removes_again() {
    for step in ["ledger.asked", "removal.hide", "removal.trashed", "removal.sync", "ledger.marker"] {
        let Some((mut cluster, mut mounts)) = pair(step) else { return };
        let id = storage_id(&mounts[1]);
        let generation = submit(&mounts[0], "tenant=default");
        mounts[1].wait_for_exit();
        fail_over(&mut cluster);
        assert!(
            wait_until(PATIENCE, || listed(&request(&mounts[0], generation), "acked").len() == 1),
            "{step}"
        );
        assert_eq!(pending(&mounts[0], &id).len(), 1, "{step}");
        mounts[1].unset_env("FAILPOINTS");
        mounts[1].mount();
        wait_complete(&mounts[0], generation);
        assert!(!has(&mounts[1], "default") && has(&mounts[1], "other"), "{step}");
        assert_eq!(records_of(&mounts[1], "default"), Vec::<PathBuf>::new(), "{step}");
    }
}

/// RFC matrix: "Crash after marker persistence but before ACK": "ACK is resent without another destructive clear"; and
/// "Master failover with recorded ACK": the daemon did not hear of its own.
#[test]
fn killed_between_marker_and_acknowledgement_a_host_deletes_nothing_again() {
    for (step, is_recorded) in
        [("ledger.marked", false), ("removal.counters", false), ("ledger.ack", false), ("ledger.acked", true)]
    {
        let Some((mut cluster, mut mounts)) = pair(step) else { return };
        let id = storage_id(&mounts[1]);
        let generation = submit(&mounts[0], "tenant=default");
        mounts[1].wait_for_exit();
        fail_over(&mut cluster);
        assert!(
            wait_until(PATIENCE, || !listed(&request(&mounts[0], generation), "acked").is_empty()),
            "{step}"
        );
        if is_recorded {
            wait_complete(&mounts[0], generation);
        } else {
            assert_eq!(pending(&mounts[0], &id).len(), 1, "{step}");
            assert_ne!(request(&mounts[0], generation)["state"], "complete", "{step}");
        }
        let dir = mounts[1].store.join(format!("data/t/default/{generation}"));
        let before = fs::metadata(&dir).expect("the epoch has its directory before the marker").ino();
        // Deletion would not get far: the start has nothing to do with it.
        mounts[1].set_env("FAILPOINTS", "removal.delete=return;removal.trash=return;ledger.marker=return");
        mounts[1].mount();
        wait_complete(&mounts[0], generation);
        assert!(wait_until(PATIENCE, || mounts[1].status()["state"] == "ready"), "{step}");
        assert_eq!(fs::metadata(&dir).unwrap().ino(), before, "{step}");
        assert!(!has(&mounts[1], "default") && has(&mounts[1], "other"), "{step}");
        put(&mounts[1], "default/key", "new");
        assert_eq!(pending(&mounts[0], &id), Vec::<serde_json::Value>::new(), "{step}");
    }
}

/// A submission whose daemon dies before and after etcd has it: asked again at another host with its id, it is one.
#[test]
fn killed_while_it_submits_a_host_has_asked_once_or_not_at_all() {
    for (step, is_made) in [("ledger.submit", false), ("ledger.submitted", true)] {
        let Some((mut cluster, mut mounts)) = pair(step) else { return };
        let told = mounts[1].control_if_it_lives("remove-all tenant=default id=cut");
        assert!(!told, "{step}");
        mounts[1].wait_for_exit();
        fail_over(&mut cluster);
        assert!(wait_until(PATIENCE, || mounts[0].control("requests").0.is_ok()));
        let known = mounts[0].control("query id=cut").0;
        assert_eq!(known, if is_made { Ok(()) } else { Err(libc::ENOENT) }, "{step}");
        assert_eq!(submit(&mounts[0], "tenant=default id=cut"), 1, "{step}");
        mounts[1].unset_env("FAILPOINTS");
        mounts[1].mount();
        wait_complete(&mounts[0], 1);
        assert!(mounts.iter().all(|m| !has(m, "default") && has(m, "other")), "{step}");
        assert_eq!(submit(&mounts[1], "tenant=default id=next"), 2, "{step}");
    }
}
