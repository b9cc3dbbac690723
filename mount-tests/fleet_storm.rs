//! The storm over a fleet: four hosts with writers and readers of their own, removals from everywhere, daemons and the
//! leader of etcd killed again and again. Each host has a checker of its values; a removal is over for a host when its
//! acknowledgement is seen at any other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::fleet::{fleet, storage_id};
use crate::harness::{Mount, wait_until};
use crate::peer::Peer;
use crate::removals::Control;
use crate::storm::{KEYS, Random, Storm, TENANTS, calm, looker, name, number_from, seed};
use crate::storm_check::Removal;

const HOSTS: usize = 4;
/// Writers of each host.
const WRITERS: usize = 2;
/// How long a removal may take while hosts it waits for are killed.
const PATIENCE: Duration = Duration::from_secs(120);

/// The hosts, and the storages that they are.
struct Hosts {
    storms: Vec<Arc<Storm>>,
    ids: Vec<String>,
}

impl Hosts {
    /// One command at one of them.
    fn ask(&self, random: &mut Random, line: &str) -> Option<Value> {
        let host = random.pick(&self.storms);
        let _mounted = host.begin();
        let mut control = Control::try_at(&host.mnt).ok()?;
        control.send(line).ok()?;
        control.next(Duration::from_secs(10))
    }

    /// Random removals, each asked for until it is recorded, at whichever host, and followed to its end.
    fn remover(&self, who: usize, mut peers: Vec<Peer>, mut random: Random) {
        let mut n = 0;
        while !self.storms[0].stop.load(Ordering::SeqCst) {
            n += 1;
            let tenant = (random.below(5) > 0).then(|| *random.pick(&TENANTS));
            let removals: Vec<Removal> = self.storms.iter().map(|s| s.check.removal_begins(tenant)).collect();
            let line = format!("remove-all {} id=storm-{who}-{n}", removals[0].words());
            let began = Instant::now();
            let generation = loop {
                assert!(began.elapsed() < PATIENCE, "cannot be recorded: {line}");
                let reply = self.ask(&mut random, &line);
                if let Some(generation) = reply.and_then(|reply| reply["generation"].as_u64()) {
                    break generation;
                }
            };
            self.follow(&mut random, &mut peers, &removals, generation);
            std::thread::sleep(Duration::from_millis(random.below(120)));
        }
        assert!(n > 0);
    }

    fn follow(&self, random: &mut Random, peers: &mut [Peer], removals: &[Removal], generation: u64) {
        let (began, mut ended) = (Instant::now(), [false; HOSTS]);
        loop {
            assert!(began.elapsed() < PATIENCE, "generation {generation} does not end: {ended:?}");
            std::thread::sleep(Duration::from_millis(5));
            let Some(request) = self.ask(random, &format!("query generation={generation}")) else { continue };
            assert_ne!(request["error"], "ENOENT", "generation {generation} is lost");
            for (n, id) in self.ids.iter().enumerate() {
                let acked =
                    request["acked"].as_array().is_some_and(|acked| acked.contains(&id.as_str().into()));
                if acked && !ended[n] {
                    self.storms[n].check.removal_ends(&removals[n], Some(generation));
                    ended[n] = true;
                    self.walk(n, &mut peers[n], removals[n].tenant.as_deref());
                }
            }
            if request["state"] == "complete" {
                assert_eq!(ended, [true; HOSTS], "complete, and not acknowledged by all: {request}");
                return;
            }
        }
    }

    /// Looks at every key of a scope, at the moment that its host's acknowledgement is seen.
    fn walk(&self, n: usize, peer: &mut Peer, tenant: Option<&str>) {
        let _mounted = self.storms[n].begin();
        for of in TENANTS.into_iter().filter(|of| tenant.is_none_or(|tenant| tenant == *of)) {
            for who in 0..WRITERS {
                (0..KEYS).for_each(|key| self.storms[n].look(peer, of, &name(who, key)));
            }
        }
    }
}

fn threads(mounts: &[Mount; HOSTS], hosts: &Arc<Hosts>, random: &mut Random) -> Vec<JoinHandle<()>> {
    let mut threads = Vec::new();
    for (m, storm) in mounts.iter().zip(&hosts.storms) {
        for who in 0..WRITERS {
            let (storm, random) = (Arc::clone(storm), Random(random.next()));
            threads.push(std::thread::spawn(move || storm.writer(who, random)));
        }
        let (storm, peer, random) = (Arc::clone(storm), looker(m), Random(random.next()));
        threads.push(std::thread::spawn(move || storm.reader(peer, random)));
    }
    for who in 0..2 {
        let (hosts, random) = (Arc::clone(hosts), Random(random.next()));
        let peers = mounts.iter().map(looker).collect();
        threads.push(std::thread::spawn(move || hosts.remover(who, peers, random)));
    }
    threads
}

/// Issue 7, "the storm across 4 daemons with the fleet checker".
#[test]
fn a_storm_over_a_fleet() {
    let kills = number_from("FENCEFS_TEST_STORM_KILLS", 30).div_ceil(2);
    let seed = seed();
    eprintln!("FENCEFS_TEST_SEED={seed} FENCEFS_TEST_STORM_KILLS={}", 2 * kills);
    let Some((mut cluster, mut mounts)) = fleet::<HOSTS>(3) else { return };
    let mut random = Random(seed);
    for m in &mounts {
        m.shell("mkdir $R/alpha $R/beta $R/gamma").ok();
    }
    let hosts = Arc::new(Hosts {
        storms: mounts.iter().map(|m| Storm::over(m, false)).collect(),
        ids: mounts.iter().map(storage_id).collect(),
    });
    let threads = threads(&mounts, &hosts, &mut random);
    for _ in 0..kills {
        // The moment is random by intent.
        std::thread::sleep(Duration::from_millis(150 + random.below(500)));
        let n = random.below(HOSTS as u64 + 2) as usize;
        if n < HOSTS {
            hosts.storms[n].kill(&mut mounts[n]);
        } else {
            let leader = cluster.wait_for_leader();
            cluster.kill(leader);
            std::thread::sleep(Duration::from_millis(random.below(1500)));
            cluster.revive(leader);
        }
    }
    for storm in &hosts.storms {
        storm.stop.store(true, Ordering::SeqCst);
    }
    let all = wait_until(PATIENCE, || threads.iter().all(JoinHandle::is_finished));
    assert!(all, "seed {seed}: an operation hangs");
    let ended: Vec<_> = threads.into_iter().map(JoinHandle::join).collect();
    assert!(ended.iter().all(Result::is_ok), "seed {seed}: a thread found a fault, see above");
    for (m, storm) in mounts.iter_mut().zip(&hosts.storms) {
        calm(m, storm);
        m.crash();
        calm(m, storm);
    }
}
