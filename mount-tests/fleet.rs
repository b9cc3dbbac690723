//! Hosts with a store each, and one etcd: a request reaches all of them, through failures of any of them and of etcd.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::etcd::Cluster;
use crate::harness::{Builder, Mount, can_mount, wait_until};

/// How long the fleet may take over what a moment's work and a few elections are.
const PATIENCE: Duration = Duration::from_secs(60);

/// A fleet of daemons at one cluster, each with a key in two tenants; `None` where there cannot be one.
fn fleet<const N: usize>(members: usize) -> Option<(Cluster, [Mount; N])> {
    if !can_mount() {
        return None;
    }
    let cluster = Cluster::start(members)?;
    let url = cluster.coordinator();
    let mounts = std::array::from_fn(|_| Builder::new().arg("--coordinator").arg(&url).mount());
    Some((cluster, mounts))
}

fn fill(m: &Mount) {
    for tenant in ["default", "other"] {
        fs::create_dir_all(m.mnt.join(tenant)).unwrap();
        fs::write(m.mnt.join(tenant).join("key"), "value").unwrap();
    }
}

fn has(m: &Mount, tenant: &str) -> bool {
    m.mnt.join(tenant).join("key").exists()
}

/// Asks until the coordinator answers: the same id is the same request, however often.
fn submit(m: &Mount, words: &str) -> u64 {
    let mut made = None;
    assert!(wait_until(PATIENCE, || {
        let (done, reply) = m.control(&format!("remove-all {words}"));
        made = done.ok().and_then(|()| reply["generation"].as_u64());
        made.is_some()
    }));
    made.unwrap()
}

fn request(m: &Mount, generation: u64) -> Value {
    m.control(&format!("query generation={generation}")).1
}

fn is_complete(m: &Mount, generation: u64) -> bool {
    request(m, generation)["state"] == "complete"
}

fn storage_id(m: &Mount) -> String {
    m.status()["storage_id"].as_str().unwrap().to_owned()
}

/// The storages in a list of a request.
fn listed(request: &Value, name: &str) -> Vec<String> {
    let list = request[name].as_array().into_iter().flatten();
    let mut ids: Vec<String> = list.map(|id| id.as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

#[test]
fn one_request_reaches_every_host() {
    let Some((_cluster, mounts)) = fleet::<4>(3) else { return };
    mounts.iter().for_each(fill);
    let generation = submit(&mounts[1], "tenant=default id=once");
    assert!(
        wait_until(PATIENCE, || is_complete(&mounts[0], generation)),
        "{}",
        request(&mounts[0], generation)
    );
    let mut all: Vec<String> = mounts.iter().map(storage_id).collect();
    all.sort();
    for m in &mounts {
        assert!(!has(m, "default") && has(m, "other"));
        let request = request(m, generation);
        assert_eq!((listed(&request, "targets"), listed(&request, "acked")), (all.clone(), all.clone()));
        assert!(m.status()["coordinator"].as_str().unwrap().starts_with("etcd://"));
    }
    assert_eq!(submit(&mounts[3], "tenant=default id=once"), generation, "the same id is the same request");
}

/// A host that is down is waited for, and is a target still; its acknowledgement comes when it has removed.
#[test]
fn nothing_is_complete_while_a_host_is_down() {
    let Some((_cluster, mut mounts)) = fleet::<3>(1) else { return };
    mounts.iter().for_each(fill);
    let absent = storage_id(&mounts[2]);
    mounts[2].kill();
    let generation = submit(&mounts[0], "scope=global");
    let others = || listed(&request(&mounts[1], generation), "acked").len() == 2;
    assert!(wait_until(PATIENCE, others));
    let waiting = request(&mounts[0], generation);
    assert_ne!(waiting["state"], "complete");
    assert!(!listed(&waiting, "acked").contains(&absent) && listed(&waiting, "targets").contains(&absent));
    mounts[2].mount();
    // It removes before anybody reads from it.
    assert!(!has(&mounts[2], "default") && !has(&mounts[2], "other"));
    assert!(wait_until(PATIENCE, || is_complete(&mounts[1], generation)));
}

/// RFC matrix: "master failover with pending or recorded ACK". The leader is killed again and again while every host
/// submits: each generation is given once, none is lost, each is complete in the end.
#[test]
fn requests_outlive_the_leader() {
    let kills = std::env::var("FENCEFS_TEST_LEADER_KILLS").map_or(5, |n| n.parse().unwrap());
    let Some((mut cluster, mounts)) = fleet::<3>(3) else { return };
    mounts.iter().for_each(fill);
    let mut made = BTreeMap::new();
    for round in 0..kills {
        let before = submit(&mounts[0], &format!("scope=global id=before{round}"));
        made.insert(format!("before{round}"), before);
        let leader = cluster.leader().expect("there is one between rounds");
        cluster.kill(leader);
        let submitted: Vec<(String, u64)> = std::thread::scope(|s| {
            let threads: Vec<_> = mounts
                .iter()
                .enumerate()
                .map(|(n, m)| {
                    let id = format!("round{round}host{n}");
                    s.spawn(move || (id.clone(), submit(m, &format!("tenant=default id={id}"))))
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        made.extend(submitted);
        cluster.revive(leader);
        assert!(wait_until(PATIENCE, || cluster.leader().is_some()));
    }
    let mut generations: Vec<u64> = made.values().copied().collect();
    generations.sort_unstable();
    assert_eq!(generations, (1..=made.len() as u64).collect::<Vec<_>>(), "dense and unique");
    for (id, generation) in &made {
        let scope = if id.starts_with("before") { "scope=global" } else { "tenant=default" };
        assert_eq!(submit(&mounts[2], &format!("{scope} id={id}")), *generation, "{id}");
        assert!(wait_until(PATIENCE, || is_complete(&mounts[1], *generation)), "{id}");
    }
    for m in &mounts {
        assert!(!has(m, "default") && !has(m, "other"));
        assert_eq!(m.status()["state"], "ready");
    }
}

/// Without a quorum mounts serve, requests are refused with the reason, and nothing is complete; with one again all goes on.
#[test]
fn without_a_quorum_mounts_serve_and_nothing_completes() {
    let Some((mut cluster, mounts)) = fleet::<2>(3) else { return };
    mounts.iter().for_each(fill);
    cluster.kill(0);
    cluster.kill(1);
    let (done, reply) = mounts[0].control("remove-all scope=global id=later");
    assert_eq!(done, Err(libc::EHOSTUNREACH), "{reply}");
    assert!(reply["message"].as_str().unwrap().contains("quorum"), "{reply}");
    for m in &mounts {
        assert!(has(m, "default"));
        fs::write(m.mnt.join("default/new"), "served").unwrap();
        assert_eq!(fs::read_to_string(m.mnt.join("default/new")).unwrap(), "served");
        assert_eq!(m.status()["state"], "ready");
    }
    cluster.revive(0);
    cluster.revive(1);
    let generation = submit(&mounts[0], "scope=global id=later");
    assert!(wait_until(PATIENCE, || is_complete(&mounts[1], generation)));
    assert!(mounts.iter().all(|m| !has(m, "default")));
}
