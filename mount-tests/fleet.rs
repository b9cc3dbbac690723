//! Hosts with a store each, and one etcd: a request reaches all of them, through failures of any of them and of etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Duration;

use serde_json::Value;

use crate::etcd::Cluster;
use crate::harness::{Builder, Mount, can_mount, fencefs, wait_until};

/// How long the fleet may take over what a moment's work and a few elections are.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A fleet of daemons at one cluster, each with a key in two tenants; `None` where there cannot be one.
pub(crate) fn fleet<const N: usize>(members: usize) -> Option<(Cluster, [Mount; N])> {
    if !can_mount() {
        return None;
    }
    let cluster = Cluster::start(members)?;
    let url = cluster.coordinator();
    let mounts = std::array::from_fn(|_| Builder::new().arg("--coordinator").arg(&url).mount());
    Some((cluster, mounts))
}

pub(crate) fn fill(m: &Mount) {
    for tenant in ["default", "other"] {
        fs::create_dir_all(m.mnt.join(tenant)).unwrap();
        put(m, &format!("{tenant}/key"), "value");
    }
}

/// Writes a key, as soon as its tenant is open: a request is complete a moment before.
#[track_caller]
pub(crate) fn put(m: &Mount, key: &str, value: &str) {
    let mut done = Ok(());
    let is_done = wait_until(PATIENCE, || {
        done = fs::write(m.mnt.join(key), value);
        done.is_ok()
    });
    assert!(is_done, "{key}: {done:?}");
}

pub(crate) fn has(m: &Mount, tenant: &str) -> bool {
    m.mnt.join(tenant).join("key").exists()
}

/// Asks until the coordinator answers: the same id is the same request, however often.
pub(crate) fn submit(m: &Mount, words: &str) -> u64 {
    let mut made = None;
    assert!(wait_until(PATIENCE, || {
        let (done, reply) = m.control(&format!("remove-all {words}"));
        made = done.ok().and_then(|()| reply["generation"].as_u64());
        made.is_some()
    }));
    made.unwrap()
}

pub(crate) fn request(m: &Mount, generation: u64) -> Value {
    m.control(&format!("query generation={generation}")).1
}

pub(crate) fn is_complete(m: &Mount, generation: u64) -> bool {
    request(m, generation)["state"] == "complete"
}

pub(crate) fn storage_id(m: &Mount) -> String {
    m.status()["storage_id"].as_str().unwrap().to_owned()
}

/// The storages in a list of a request.
pub(crate) fn listed(request: &Value, name: &str) -> Vec<String> {
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

/// Waits until a request is complete, as a host says.
#[track_caller]
pub(crate) fn wait_complete(m: &Mount, generation: u64) -> Value {
    let mut last = Value::Null;
    let done = wait_until(PATIENCE, || {
        last = request(m, generation);
        last["state"] == "complete"
    });
    assert!(done, "{last}");
    last
}

/// What a storage has yet to acknowledge, as a host says.
#[track_caller]
pub(crate) fn pending(m: &Mount, storage: &str) -> Vec<Value> {
    let (done, reply) = m.control(&format!("poll storage={storage}"));
    assert_eq!(done, Ok(()), "{reply}");
    reply["pending"].as_array().unwrap().clone()
}

/// The files of records that a store has for a tenant, wherever: the walker.
pub(crate) fn records_of(m: &Mount, tenant: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = vec![m.store.join("data/t").join(tenant)];
    let trash = fs::read_dir(m.store.join("data/.trash")).into_iter().flatten().filter_map(Result::ok);
    todo.extend(trash.map(|entry| entry.path()));
    while let Some(dir) = todo.pop() {
        // What goes while it is looked at is gone.
        for entry in fs::read_dir(&dir).into_iter().flatten().filter_map(Result::ok) {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => todo.push(entry.path()),
                _ => found.push(entry.path()),
            }
        }
    }
    found
}

/// Follows a request; walks the scope of each host at the moment that its acknowledgement is seen.
#[track_caller]
fn walk_as_they_acknowledge(asked: &Mount, hosts: &[(String, &Mount)], tenant: &str, generation: u64) {
    let mut walked = BTreeSet::new();
    let all = wait_until(PATIENCE, || {
        for id in listed(&request(asked, generation), "acked") {
            let host = hosts.iter().find(|(host, _)| *host == id);
            if let Some((_, host)) = host
                && walked.insert(id.clone())
            {
                assert_eq!(
                    records_of(host, tenant),
                    Vec::<PathBuf>::new(),
                    "{id} has acknowledged {generation}"
                );
                let listed: Vec<_> = fs::read_dir(host.mnt.join(tenant)).unwrap().collect();
                assert!(listed.is_empty(), "{id} has acknowledged {generation} and shows {listed:?}");
            }
        }
        walked.len() == hosts.len()
    });
    assert!(all, "{}", request(asked, generation));
}

/// The leader is killed again and again while three of four hosts submit: each generation is given once, none is lost, an
/// id is one request, every acknowledgement is true when it is seen, and nothing is complete while a host is away.
#[test]
fn requests_outlive_the_leader() {
    let kills = std::env::var("FENCEFS_TEST_LEADER_KILLS").map_or(20, |n| n.parse().unwrap());
    let Some((mut cluster, mut mounts)) = fleet::<4>(3) else { return };
    let ids = mounts.each_ref().map(storage_id);
    let mut made = BTreeMap::new();
    for round in 0..kills {
        mounts.iter().for_each(fill);
        let away = round % 7 == 3;
        if away {
            mounts[3].kill();
        }
        let leader = cluster.wait_for_leader();
        let start = Barrier::new(4);
        let submitted: Vec<(String, u64)> = std::thread::scope(|s| {
            let submitting = |n: usize| {
                let (start, m) = (&start, &mounts[n]);
                s.spawn(move || {
                    let id = format!("round{round}host{n}");
                    start.wait();
                    let generation = submit(m, &format!("tenant=default id={id}"));
                    (id, generation)
                })
            };
            let threads = [0, 1, 2].map(submitting);
            start.wait();
            cluster.kill(leader);
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let last = submitted.iter().map(|(_, generation)| *generation).max().unwrap();
        made.extend(submitted);
        let here = mounts.len() - usize::from(away);
        let hosts: Vec<(String, &Mount)> = ids[..here].iter().cloned().zip(&mounts[..here]).collect();
        walk_as_they_acknowledge(&mounts[round % 3], &hosts, "default", last);
        if away {
            let waiting = request(&mounts[0], last);
            assert_ne!(waiting["state"], "complete", "a host is away: {waiting}");
            assert_eq!(waiting["waits_for"][0]["storage"], ids[3], "{waiting}");
            mounts[3].mount();
            assert!(!has(&mounts[3], "default") && has(&mounts[3], "other"));
        }
        wait_complete(&mounts[(round + 1) % 4], last);
        cluster.revive(leader);
    }
    cluster.wait_for_leader();
    let mut generations: Vec<u64> = made.values().copied().collect();
    generations.sort_unstable();
    assert_eq!(generations, (1..=made.len() as u64).collect::<Vec<_>>(), "dense and unique");
    for (id, generation) in &made {
        let (_, known) = mounts[3].control(&format!("query id={id}"));
        assert_eq!(
            (known["generation"].as_u64(), &known["state"]),
            (Some(*generation), &"complete".into()),
            "{id}"
        );
    }
    for (id, generation) in made.iter().step_by(made.len() / 4 + 1) {
        assert_eq!(submit(&mounts[3], &format!("tenant=default id={id}")), *generation, "{id}");
    }
    for m in &mounts {
        assert!(has(m, "other"));
        assert!(wait_until(PATIENCE, || m.status()["state"] == "ready"), "{}", m.status());
    }
}

/// RFC matrix: "Master failover with pending or recorded ACK": "Scoped generation state is preserved".
#[test]
fn a_failover_preserves_pending_requests_and_recorded_acknowledgements() {
    let Some((mut cluster, mut mounts)) = fleet::<3>(3) else { return };
    mounts.iter().for_each(fill);
    let ids = mounts.each_ref().map(storage_id);
    mounts[2].kill();
    let generation = submit(&mounts[0], "tenant=default id=once");
    let others = || listed(&request(&mounts[1], generation), "acked").len() == 2;
    assert!(wait_until(PATIENCE, others), "{}", request(&mounts[1], generation));

    // Pending for one, recorded for two.
    let fail_over = |cluster: &mut Cluster| {
        let leader = cluster.wait_for_leader();
        cluster.kill(leader);
        assert_ne!(cluster.wait_for_leader(), leader);
        cluster.revive(leader);
    };
    let states = |at: &Mount| {
        let request = request(at, generation);
        let words = ["generation", "scope", "tenant", "mode", "id"].map(|name| request[name].clone());
        (words, listed(&request, "targets"), listed(&request, "acked"))
    };
    let before = states(&mounts[0]);
    let owed = pending(&mounts[0], &ids[2]);
    assert_eq!((owed.len(), &owed[0]["tenant"]), (1, &"default".into()));
    fail_over(&mut cluster);
    for m in &mounts[..2] {
        assert!(wait_until(PATIENCE, || m.control("requests").0.is_ok()));
        assert_eq!(states(m), before);
        assert_eq!(pending(m, &ids[2]), owed);
        assert_eq!(pending(m, &ids[0]), Vec::<Value>::new());
        assert_ne!(request(m, generation)["state"], "complete");
        assert_eq!(submit(m, "tenant=default id=once"), generation);
    }
    mounts[2].mount();
    wait_complete(&mounts[0], generation);

    // Recorded for all.
    put(&mounts[2], "default/key", "newer");
    fail_over(&mut cluster);
    for (m, id) in mounts.iter().zip(&ids) {
        assert!(wait_until(PATIENCE, || m.control("requests").0.is_ok()));
        assert_eq!(request(m, generation)["state"], "complete");
        assert_eq!(pending(m, id), Vec::<Value>::new());
    }
    mounts[2].crash();
    assert_eq!(
        fs::read_to_string(mounts[2].mnt.join("default/key")).unwrap(),
        "newer",
        "it is not applied again"
    );
}

/// All of etcd is killed and started again from its disks: what was answered is there, and what was pending goes on.
#[test]
fn everything_outlives_a_restart_of_all_of_etcd() {
    let Some((mut cluster, mut mounts)) = fleet::<3>(3) else { return };
    mounts.iter().for_each(fill);
    let done = submit(&mounts[0], "tenant=default id=done");
    wait_complete(&mounts[1], done);
    mounts[2].kill();
    let open = submit(&mounts[1], "tenant=other id=open");
    let others = || listed(&request(&mounts[1], open), "acked").len() == 2;
    assert!(wait_until(PATIENCE, others));
    cluster.kill_all();
    assert!(
        wait_until(PATIENCE, || mounts[0].control("remove-all scope=global").0 == Err(libc::EHOSTUNREACH))
    );
    put(&mounts[0], "default/key", "served");
    cluster.revive_all();
    assert_eq!(submit(&mounts[0], "tenant=default id=done"), done);
    assert_eq!(submit(&mounts[0], "tenant=other id=open"), open);
    assert_eq!(request(&mounts[1], done)["state"], "complete");
    assert_ne!(request(&mounts[1], open)["state"], "complete");
    mounts[2].mount();
    wait_complete(&mounts[0], open);
    let next = submit(&mounts[2], "tenant=default id=next");
    assert_eq!(next, open + 1);
    wait_complete(&mounts[1], next);
    assert!(mounts.iter().all(|m| !has(m, "default") && !has(m, "other")));
}

/// `fencefs requests` and `fencefs status` show every storage: its host, when it was heard of, how far it is, and whom each
/// request waits for.
#[test]
fn the_fleet_is_shown() {
    let Some((_cluster, mut mounts)) = fleet::<3>(1) else { return };
    mounts.iter().for_each(fill);
    let ids = mounts.each_ref().map(storage_id);
    let first = submit(&mounts[0], "tenant=default");
    wait_complete(&mounts[0], first);
    mounts[2].umount();
    let second = submit(&mounts[1], "scope=global");
    assert!(wait_until(PATIENCE, || listed(&request(&mounts[0], second), "acked").len() == 2));

    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();
    let shown = fencefs([Path::new("status"), &mounts[0].mnt, Path::new("--json")]).ok();
    let status: Value = serde_json::from_str(&shown).unwrap();
    let storages = status["fleet"].as_array().unwrap();
    assert_eq!(storages.len(), 3, "{status}");
    for (n, id) in ids.iter().enumerate() {
        let found = storages.iter().find(|s| s["storage"] == **id).unwrap();
        assert_eq!(found["host"], *host);
        let (state, global) = if n == 2 { ("absent", 0) } else { ("present", second) };
        assert_eq!(
            (&found["state"], &found["applied"]["global"]),
            (&state.into(), &global.into()),
            "{found}"
        );
        assert_eq!(found["applied"]["tenants"]["default"], first, "{found}");
        let (registered, contact) = (&found["registered_ms"], &found["last_contact_ms"]);
        assert!(contact.as_u64().unwrap() >= registered.as_u64().unwrap(), "{found}");
    }
    let text = fencefs([Path::new("status"), &mounts[1].mnt]).ok();
    assert!(ids.iter().all(|id| text.contains(id.as_str())), "{text}");
    assert!(text.contains("present") && text.contains("absent, last contact"), "{text}");

    let text = fencefs([Path::new("requests"), &mounts[1].mnt]).ok();
    let waits = text.lines().find(|line| line.contains("waits for")).unwrap_or_else(|| panic!("{text}"));
    assert!(
        waits.contains(&ids[2]) && waits.contains(&host) && waits.contains("absent, last contact"),
        "{waits}"
    );
    assert_eq!(text.matches("waits for").count(), 1, "{text}");
    let lines = fs::read_to_string(mounts[0].mnt.join(".fencefs/requests")).unwrap();
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    let awaited = last["waits_for"].as_array().unwrap();
    assert_eq!(
        (awaited.len(), &awaited[0]["storage"], &awaited[0]["host"]),
        (1, &ids[2].clone().into(), &host.clone().into())
    );
    let metrics = fs::read_to_string(mounts[0].mnt.join(".fencefs/metrics")).unwrap();
    assert!(metrics.contains("fencefs_coordinator_up 1"), "{metrics}");
    mounts[2].mount();
    wait_complete(&mounts[0], second);
    assert!(!fencefs([Path::new("requests"), &mounts[1].mnt]).ok().contains("waits for"));
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
    // What is shown of the fleet is said to be missing; the rest of the status is there.
    let shown = fencefs([Path::new("status"), &mounts[0].mnt]).ok();
    assert!(shown.contains("the fleet cannot be shown: the coordinator does not answer"), "{shown}");
    let (_, why) = fencefs([Path::new("requests"), &mounts[0].mnt]).failed();
    assert!(why.contains("the coordinator does not answer"), "{why}");
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

/// Commands for a store that is not mounted know of the fleet: what was asked for there is not pending for ever, and an
/// import carries out first what is.
#[test]
fn offline_commands_know_a_store_of_a_fleet() {
    let Some((cluster, mut mounts)) = fleet::<2>(1) else { return };
    mounts.iter().for_each(fill);
    wait_complete(&mounts[0], submit(&mounts[0], "tenant=default"));
    put(&mounts[1], "default/key", "newer");
    mounts[1].umount();
    let store = mounts[1].store.clone();
    let found = fencefs([Path::new("fsck"), &store, Path::new("--json")]).ok();
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!((&found["clean"], &found["findings"]), (&true.into(), &Value::Array(Vec::new())), "{found}");

    let from = mounts[1].scratch.join("mooncake");
    fs::create_dir_all(from.join("file_per_key_dir")).unwrap();
    let import = [Path::new("import"), &store, Path::new("--from"), &from];
    let (_, why) = fencefs(import).failed();
    assert!(why.contains("takes part in the ledger"), "{why}");
    let pending = submit(&mounts[0], "tenant=default");
    let url = cluster.coordinator();
    fencefs(import.into_iter().chain([Path::new("--coordinator"), Path::new(&url)])).ok();
    wait_complete(&mounts[0], pending);
    mounts[1].mount();
    assert!(!has(&mounts[1], "default") && has(&mounts[1], "other"));
}

/// A tenant need not be at every host: who does not have it has nothing of it, and says so.
#[test]
fn a_tenant_that_is_at_one_host_is_removed_for_all() {
    let Some((_cluster, mounts)) = fleet::<2>(1) else { return };
    mounts.iter().for_each(fill);
    fs::create_dir(mounts[0].mnt.join("rare")).unwrap();
    put(&mounts[0], "rare/key", "value");
    let (done, reply) = mounts[1].control("remove-all tenant=rare");
    assert_eq!((done, &reply["code"]), (Err(libc::ENOENT), &"UNKNOWN_TENANT".into()), "{reply}");
    let generation = submit(&mounts[0], "tenant=rare");
    let done = wait_complete(&mounts[0], generation);
    assert_eq!(listed(&done, "acked").len(), 2, "{done}");
    assert!(!has(&mounts[0], "rare") && mounts.iter().all(|m| has(m, "other")));
    // Made afterwards, it is of the epoch that all know.
    fs::create_dir(mounts[1].mnt.join("rare")).unwrap();
    let epoch = mounts[1].control("epoch tenant=rare").1["epoch"].as_u64();
    assert_eq!(epoch, Some(generation));
}

/// What keeps one host from removing is told at every other, with the host's name; when it is gone the request is complete.
#[test]
fn a_host_that_cannot_remove_is_named_at_the_others() {
    let Some((_cluster, mounts)) = fleet::<2>(1) else { return };
    mounts.iter().for_each(fill);
    let stranger = mounts[1].store.join("data/t/default/0/stranger");
    fs::write(&stranger, "nobody's").unwrap();
    let (done, reply) = mounts[1].control("remove-all tenant=default");
    assert_eq!((done, &reply["code"]), (Err(libc::EOPNOTSUPP), &"UNSUPPORTED_TENANT_LOCAL_CLEANUP".into()));
    let generation = submit(&mounts[0], "tenant=default");
    let mut seen = Value::Null;
    assert!(
        wait_until(PATIENCE, || {
            seen = request(&mounts[0], generation);
            seen["state"] == "complete" || seen["state"] == "failed"
        }),
        "{seen}"
    );
    let kept = fs::read_dir(mounts[1].store.join("data/.quarantine")).into_iter().flatten().count();
    if seen["state"] == "failed" {
        let why = seen["last_error"].as_str().unwrap();
        assert!(why.contains("at ") && why.contains("stranger"), "{why}");
        fs::remove_file(&stranger).unwrap();
        mounts[1].control("retry").0.unwrap();
        wait_complete(&mounts[0], generation);
    } else {
        assert_eq!(kept, 1, "it was not deleted");
    }
    assert!(mounts.iter().all(|m| !has(m, "default") && has(m, "other")));
}
