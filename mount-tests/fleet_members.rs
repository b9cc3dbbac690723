//! Who takes part in a fleet: hosts that are forgotten, stores that are copied or put back, and a ledger that is.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::fleet::{
    PATIENCE, fill, fleet, has, listed, pending, records_of, request, storage_id, submit, wait_complete,
};
use crate::harness::{Builder, Mount, fencefs, run, wait_until};

/// What a mount that must be refused says.
#[track_caller]
fn refused(m: &Mount) -> String {
    let (code, why) = m.try_mount().failed();
    assert_eq!(code, 1, "{why}");
    assert!(!m.is_mounted());
    why
}

/// Puts a copy of a store that is stopped in another's place.
#[track_caller]
fn copy(from: &Path, to: &Path) {
    if to.exists() {
        fs::remove_dir_all(to).unwrap();
    }
    run(Command::new("cp").arg("-a").arg(from).arg(to)).ok();
}

#[track_caller]
fn forget(at: &Mount, storage: &str) {
    fencefs([Path::new("forget"), &at.mnt, Path::new("--storage"), Path::new(storage)]).ok();
}

/// A host that never comes back is waived: shown so, never as acknowledged. Should its store come back after all it is
/// refused, until it is wiped; then it is a new one.
#[test]
fn a_forgotten_host_is_waived_and_refused_until_its_store_is_wiped() {
    let Some((_cluster, mut mounts)) = fleet::<3>(1) else { return };
    mounts.iter().for_each(fill);
    let ids = mounts.each_ref().map(storage_id);
    mounts[2].kill();
    let generation = submit(&mounts[0], "tenant=default");
    assert!(wait_until(PATIENCE, || listed(&request(&mounts[1], generation), "acked").len() == 2));
    assert_ne!(request(&mounts[1], generation)["state"], "complete");
    forget(&mounts[1], &ids[2]);
    let done = wait_complete(&mounts[0], generation);
    assert_eq!(listed(&done, "retired"), [ids[2].clone()], "waived: {done}");
    let mut two = ids[..2].to_vec();
    two.sort();
    assert_eq!(listed(&done, "acked"), two, "and not acknowledged: {done}");
    assert!(fencefs([Path::new("requests"), &mounts[0].mnt]).ok().contains("2/3, 1 waived"));
    forget(&mounts[0], &ids[2]);

    let why = refused(&mounts[2]);
    assert!(why.contains("retired for good"), "{why}");
    assert!(!records_of(&mounts[2], "default").is_empty(), "it has removed nothing");
    let refused_ack = mounts[0]
        .control(&format!("ack storage={} generation={generation} scope=tenant tenant=default", ids[2]));
    assert_eq!(refused_ack.0, Err(libc::ESTALE), "{}", refused_ack.1);
    // Who keeps its ledger himself cannot forget in it.
    let store = mounts[2].store.clone();
    let (_, why) =
        fencefs([Path::new("forget"), &store, Path::new("--storage"), Path::new(&ids[0])]).failed();
    assert!(why.contains("takes part in the ledger"), "{why}");

    fs::remove_dir_all(&store).unwrap();
    mounts[2].mount();
    let new = storage_id(&mounts[2]);
    assert_ne!(new, ids[2]);
    fill(&mounts[2]);
    let next = submit(&mounts[0], "tenant=default");
    let done = wait_complete(&mounts[0], next);
    assert!(listed(&done, "acked").contains(&new) && !listed(&done, "targets").contains(&ids[2]), "{done}");
    assert!(!has(&mounts[2], "default"));
}

/// A daemon whose storage is forgotten while it runs goes on serving, and says what has become of it.
#[test]
fn a_host_that_is_forgotten_while_it_runs_says_so() {
    let Some((_cluster, mounts)) = fleet::<2>(1) else { return };
    mounts.iter().for_each(fill);
    forget(&mounts[0], &storage_id(&mounts[1]));
    let says = |m: &Mount| m.status()["last_error"].as_str().unwrap_or_default().to_owned();
    assert!(wait_until(PATIENCE, || says(&mounts[1]).contains("retired for good")), "{}", mounts[1].status());
    let (done, reply) = mounts[1].control("remove-all scope=global");
    assert_eq!(done, Err(libc::ESTALE), "{reply}");
    assert!(has(&mounts[1], "default"));
    let generation = submit(&mounts[0], "scope=global");
    wait_complete(&mounts[0], generation);
    assert!(has(&mounts[1], "default"), "it is no target any more");
}

/// A disk that was copied, and both are used; one that was put back to an older state. Whoever registers second is
/// refused, and acknowledges nothing.
#[test]
fn copies_and_older_states_of_a_store_are_refused() {
    let Some((cluster, mut mounts)) = fleet::<2>(1) else { return };
    mounts.iter().for_each(fill);
    let id = storage_id(&mounts[1]);
    let url = cluster.coordinator();
    let clone = Builder::new().arg("--coordinator").arg(&url).prepare();

    // Copied while it was stopped; the original runs.
    mounts[1].umount();
    copy(&mounts[1].store, &clone.store);
    mounts[1].mount();
    let why = refused(&clone);
    assert!(why.contains("is a copy, or an older state"), "{why}");

    // The copy comes first, and the original is refused: as long as both are there nobody knows which is the right one.
    mounts[1].umount();
    copy(&mounts[1].store, &clone.store);
    let older = mounts[1].scratch.join("older");
    copy(&mounts[1].store, &older);
    let mut clone = clone;
    clone.mount();
    let why = refused(&mounts[1]);
    assert!(why.contains("is a copy, or an older state"), "{why}");

    // Nothing is acknowledged for the one that is refused.
    clone.kill();
    let generation = submit(&mounts[0], "tenant=default");
    assert!(wait_until(PATIENCE, || listed(&request(&mounts[0], generation), "acked").len() == 1));
    refused(&mounts[1]);
    assert_eq!(pending(&mounts[0], &id).len(), 1, "nothing was acknowledged");
    assert!(!records_of(&mounts[1], "default").is_empty());
    clone.mount();
    wait_complete(&mounts[0], generation);
    assert!(!has(&clone, "default"));

    // Put back to what it was before that: the values that were removed are there again, and stay unseen.
    clone.umount();
    copy(&older, &clone.store);
    let why = refused(&clone);
    assert!(why.contains("is a copy, or an older state"), "{why}");
}

/// etcd is put back to a backup from before a removal. Every store that knows better refuses it, those that run as well
/// as those that start, until an operator says that it counts; then numbers go on above all that was lost.
#[test]
fn a_ledger_from_an_older_backup_is_refused_until_it_is_bumped() {
    let Some((mut cluster, mut mounts)) = fleet::<3>(1) else { return };
    mounts.iter().for_each(fill);
    let first = submit(&mounts[0], "tenant=other");
    wait_complete(&mounts[0], first);
    let backup = mounts[0].scratch.join("backup");
    cluster.kill_all();
    cluster.back_up(&backup);
    cluster.revive_all();
    let lost = submit(&mounts[0], "tenant=default id=lost");
    wait_complete(&mounts[0], lost);
    mounts.iter().for_each(fill);
    // One is not there when it happens, and one starts between the two: its new token is lost, too.
    mounts[2].umount();
    mounts[1].crash();
    cluster.kill_all();
    cluster.restore(&backup);
    cluster.revive_all();

    let backwards = |why: &str| why.contains("went backwards") || why.contains("restored from a backup");
    for m in &mounts[..2] {
        let mut reply = (Ok(()), Value::Null);
        assert!(
            wait_until(PATIENCE, || {
                reply = m.control("remove-all tenant=default id=more");
                reply.0 == Err(libc::ESTALE)
            }),
            "{reply:?}"
        );
        assert!(backwards(reply.1["message"].as_str().unwrap()), "{reply:?}");
        assert!(has(m, "default"), "it serves");
        let says = || m.status()["last_error"].as_str().is_some_and(backwards);
        assert!(wait_until(PATIENCE, says), "{}", m.status());
    }
    let why = refused(&mounts[2]);
    assert!(why.contains("went backwards") && why.contains("fencefs bump"), "{why}");
    mounts[0].umount();
    let why = refused(&mounts[0]);
    assert!(why.contains("went backwards"), "{why}");

    let file = mounts[0].scratch.join("fleet");
    fs::write(&file, format!("coordinator={}\n", cluster.coordinator())).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let said = fencefs([Path::new("bump"), Path::new("--coordinator-file"), &file]).ok();
    assert!(said.contains(&format!("up to generation {first}")), "{said}");
    mounts[1].crash();
    mounts[0].mount();
    mounts[2].mount();
    assert!(mounts.iter().all(|m| has(m, "default")));
    let next = submit(&mounts[1], "tenant=default id=lost");
    assert!(next > lost + 1_000_000, "above all that was lost: {next}");
    let done = wait_complete(&mounts[0], next);
    assert_eq!(listed(&done, "acked").len(), 3, "{done}");
    for m in &mounts {
        assert!(!has(m, "default") && has(m, "other"));
        assert_eq!(records_of(m, "default"), Vec::<std::path::PathBuf>::new());
        let is_over = || m.status()["state"] == "ready" && m.status()["pending_requests"] == 0;
        assert!(wait_until(PATIENCE, is_over), "{}", m.status());
    }
}
