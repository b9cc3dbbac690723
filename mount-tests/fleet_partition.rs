//! A host that is cut off from etcd, in a network namespace of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::etcd::Cluster;
use crate::fleet::{
    PATIENCE, fill, has, listed, pending, records_of, request, storage_id, submit, wait_complete,
};
use crate::harness::{Builder, can_mount, run, wait_until};

/// A network namespace with one cable to this one; gone with the test.
struct Island {
    name: String,
    /// This end of the cable.
    cable: String,
    address: String,
}

impl Island {
    /// `None`, with a word, where there can be none.
    fn new() -> Option<Island> {
        static NEXT: AtomicU8 = AtomicU8::new(0);
        let own = u16::try_from(std::process::id() % 0x4000).unwrap();
        let n = NEXT.fetch_add(4, Ordering::Relaxed);
        // From the range for tests between two networks: 198.18.0.0/15.
        let subnet = format!("198.{}.{}", 18 + (own >> 8 & 1), own & 0xff);
        let island = Island {
            name: format!("fencefs-{own}-{n}"),
            cable: format!("ff{own}-{n}"),
            address: format!("{subnet}.{}", n + 1),
        };
        let (name, cable, far) = (&island.name, &island.cable, format!("fp{own}-{n}"));
        let steps = [
            format!("netns add {name}"),
            format!("link add {cable} type veth peer name {far} netns {name}"),
            format!("address add {}/30 dev {cable}", island.address),
            format!("link set {cable} up"),
            format!("-n {name} address add {subnet}.{}/30 dev {far}", n + 2),
            format!("-n {name} link set {far} up"),
        ];
        for step in steps {
            if let Err(why) = ip(&step) {
                eprintln!("skipped: no network namespaces here: ip {step}: {why}");
                return None;
            }
        }
        Some(island)
    }

    fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    fn cut(&self) {
        ip(&format!("link set {} down", self.cable)).unwrap();
    }

    fn heal(&self) {
        ip(&format!("link set {} up", self.cable)).unwrap();
    }
}

impl Drop for Island {
    fn drop(&mut self) {
        // The far end of the cable goes with the near one.
        for step in [format!("link delete {}", self.cable), format!("netns delete {}", self.name)] {
            if let Err(why) = ip(&step) {
                eprintln!("ip {step}: {why}");
            }
        }
    }
}

fn ip(words: &str) -> Result<(), String> {
    if Command::new("ip").arg("-V").output().is_err() {
        return Err("there is no ip (install the package iproute2)".to_owned());
    }
    let output = run(Command::new("ip").args(words.split(' ')));
    if output.status.success() { Ok(()) } else { Err(output.stderr) }
}

/// It serves, refuses what it cannot record, and acknowledges nothing; nothing is complete without it. When it is back it
/// removes before anything else is written to the scope, and all goes on.
#[test]
fn a_host_that_is_cut_off_serves_and_holds_up_what_it_has_not_done() {
    if !can_mount() {
        return;
    }
    let Some(island) = Island::new() else { return };
    let Some(mut cluster) = Cluster::start_at(3, Some(&island.address)) else { return };
    let url = cluster.coordinator();
    let builder = || Builder::new().arg("--coordinator").arg(&url);
    let (near, far) = (builder().mount(), builder().within(&island.path()).mount());
    fill(&near);
    fill(&far);
    let id = storage_id(&far);
    let before = submit(&far, "tenant=default id=before");
    wait_complete(&near, before);
    fill(&near);
    fill(&far);

    island.cut();
    let generation = submit(&near, "tenant=default id=during");
    assert!(wait_until(PATIENCE, || listed(&request(&near, generation), "acked").len() == 1));
    let (done, reply) = far.control("remove-all scope=global");
    assert_eq!(done, Err(libc::EHOSTUNREACH), "{reply}");
    // The status does not wait for what does not answer, and neither does anybody who reads and writes.
    assert!(wait_until(PATIENCE, || far.status()["last_error"]
        .as_str()
        .is_some_and(|e| e.contains("no etcd answers"))));
    assert_eq!(far.status()["state"], "ready");
    assert!(has(&far, "default"));
    fs::write(far.mnt.join("default/new"), "served").unwrap();
    assert_eq!(fs::read_to_string(far.mnt.join("default/new")).unwrap(), "served");
    let metrics = fs::read_to_string(far.mnt.join(".fencefs/metrics")).unwrap();
    assert!(metrics.contains("fencefs_coordinator_up 0"), "{metrics}");
    assert_ne!(request(&near, generation)["state"], "complete");
    assert_eq!(pending(&near, &id).len(), 1);

    // Meanwhile the leader changes, and there is one more request.
    let leader = cluster.wait_for_leader();
    cluster.kill(leader);
    let last = submit(&near, "tenant=other id=after");
    cluster.revive(leader);
    island.heal();
    for generation in [generation, last] {
        let done = wait_complete(&near, generation);
        assert!(listed(&done, "acked").contains(&id), "{done}");
    }
    assert!(!has(&far, "default") && !has(&far, "other"));
    for tenant in ["default", "other"] {
        assert_eq!(records_of(&far, tenant), Vec::<PathBuf>::new());
    }
    assert!(wait_until(PATIENCE, || far.status()["generation"] == last));
    assert_eq!(submit(&far, "scope=global id=healed"), last + 1);
    wait_complete(&near, last + 1);
}

/// At a mount: not ready before the first answer, and it says for whom it waits, and why.
#[test]
fn a_mount_waits_for_its_coordinator_and_says_so() {
    if !can_mount() {
        return;
    }
    let Some(mut cluster) = Cluster::start(1) else { return };
    let mut m = Builder::new().arg("--coordinator").arg(cluster.coordinator()).mount();
    fill(&m);
    m.umount();
    cluster.kill_all();
    let coordinator = cluster.coordinator();
    let out = m.scratch.join("said");
    let mut waiting = m.start_mounting(&out);
    let says = || fs::read_to_string(&out).unwrap_or_default();
    let waits = wait_until(PATIENCE, || says().contains(&coordinator) && says().contains("refused"));
    assert!(waits, "{}", says());
    assert!(!m.is_mounted() && waiting.try_wait().unwrap().is_none());
    cluster.revive_all();
    assert!(
        wait_until(PATIENCE, || waiting.try_wait().unwrap().is_some_and(|status| status.success())),
        "{}",
        says()
    );
    m.find_again();
    assert!(has(&m, "default"));
}
