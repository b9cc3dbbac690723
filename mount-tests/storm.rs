//! The storm: four tenants, eight writers, readers, removals from three interfaces, and a daemon that is killed again
//! and again. Every value says what it is; the checker (`storm_check`) says what may be seen.
//!
//! `FENCEFS_TEST_SEED` repeats one (as far as threads allow), `FENCEFS_TEST_STORM_KILLS` sets how often the daemon is
//! killed.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use rustix::fs::XattrFlags;

use crate::harness::{BINARY, Builder, Mount, each_with, wait_until};
use crate::peer::Peer;
use crate::removals::{Control, PATIENCE, assert_counters_equal_the_disk, epoch, list};
use crate::storm_check::{Checker, Outcome, Removal, Value};

pub(crate) const TENANTS: [&str; 4] = ["alpha", "beta", "gamma", "default"];
const WRITERS: usize = 8;
const READERS: usize = 2;
/// Keys of one writer in one tenant.
pub(crate) const KEYS: usize = 5;
const LONGEST_VALUE: u64 = 60_000;

/// SplitMix64: enough for a storm, and the same everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(crate) fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }
}

/// What every thread shares.
pub(crate) struct Storm {
    pub(crate) mnt: PathBuf,
    pub(crate) check: Checker,
    serial: AtomicU64,
    pub(crate) stop: AtomicBool,
    /// Held for reading by an operation, for writing while there may be no mount: below it is an empty directory, in
    /// which everything looks removed.
    gate: RwLock<()>,
    /// Nobody begins anything.
    paused: AtomicBool,
}

/// Whether an error says that nothing has happened; of any other it is not known.
fn is_certain(e: &std::io::Error) -> bool {
    let certain = [libc::ESTALE, libc::EBUSY, libc::ENOSPC, libc::EDQUOT, libc::ENOENT];
    e.raw_os_error().is_some_and(|errno| certain.contains(&errno))
}

fn outcome(result: &std::io::Result<()>) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(e) if is_certain(e) => Outcome::Refused,
        Err(_) => Outcome::Unknown,
    }
}

/// close(2), with what it says.
#[expect(unsafe_code, reason = "the standard library keeps what close(2) says to itself")]
fn close(file: File) -> std::io::Result<()> {
    // SAFETY: the descriptor was owned by `file`, which is gone.
    unsafe { rustix::io::try_close(file.into_raw_fd()) }.map_err(Into::into)
}

impl Storm {
    pub(crate) fn over(m: &Mount, evicts: bool) -> Arc<Storm> {
        Arc::new(Storm {
            mnt: m.mnt.clone(),
            check: Checker::new(evicts),
            serial: AtomicU64::new(1),
            stop: AtomicBool::new(false),
            gate: RwLock::new(()),
            paused: AtomicBool::new(false),
        })
    }

    /// The daemon is killed and the store mounted again, with nobody looking meanwhile.
    #[track_caller]
    pub(crate) fn kill(&self, m: &mut Mount) {
        m.kill();
        let nobody = self.pause();
        m.mount();
        drop(nobody);
        self.paused.store(false, Ordering::SeqCst);
    }

    /// An operation may begin: there is a mount, dead or alive, until the guard is gone.
    pub(crate) fn begin(&self) -> RwLockReadGuard<'_, ()> {
        while self.paused.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.gate.read().unwrap()
    }

    /// Nothing is under way, and nothing begins until the guard is gone.
    #[track_caller]
    fn pause(&self) -> RwLockWriteGuard<'_, ()> {
        self.paused.store(true, Ordering::SeqCst);
        let mut guard = None;
        wait_until(PATIENCE, || {
            guard = self.gate.try_write().ok();
            guard.is_some()
        });
        guard.expect("no operation hangs on a dead mount")
    }

    fn path(&self, tenant: &str, key: &str) -> PathBuf {
        self.mnt.join(tenant).join(key)
    }

    fn told_epoch(&self, tenant: &str) -> Option<u64> {
        let mut control = Control::try_at(&self.mnt).ok()?;
        control.send(&format!("epoch tenant={tenant}")).ok()?;
        control.next(PATIENCE)?["epoch"].as_u64()
    }

    /// Writes a new value of `key` to `path`; what it is, and what came of it. Nothing where it could not begin.
    fn write(
        &self,
        random: &mut Random,
        tenant: &str,
        (key, path): (&str, &Path),
        begun: u64,
    ) -> Option<(Value, std::io::Result<()>)> {
        let told = self.told_epoch(tenant)?;
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path).ok()?;
        let conditional = random.below(2) == 0;
        if conditional {
            let text = told.to_string();
            rustix::fs::fsetxattr(&file, "user.fencefs.epoch", text.as_bytes(), XattrFlags::empty()).ok()?;
        }
        let value = Value {
            tenant: tenant.to_owned(),
            key: key.to_owned(),
            serial: self.serial.fetch_add(1, Ordering::SeqCst),
            told,
            conditional,
            begun,
            opened: self.check.tick(),
            length: random.below(LONGEST_VALUE),
        };
        // It may be published from here on: by its close, or by a daemon that dies after it.
        self.check.may_become(&value);
        let written = file.write_all(&value.encode());
        let closed = close(file);
        Some((value, written.and(closed)))
    }

    fn put(&self, random: &mut Random, tenant: &str, key: &str, directly: bool) {
        let begun = self.check.tick();
        let target = self.path(tenant, key);
        if directly {
            let Some((value, result)) = self.write(random, tenant, (key, &target), begun) else { return };
            return self.check.written(&value, outcome(&result));
        }
        let tmp = self.path(tenant, &format!(".tmp-{key}"));
        let Some((value, result)) = self.write(random, tenant, (key, &tmp), begun) else { return };
        let renamed = result.and_then(|()| fs::rename(&tmp, &target));
        self.check.written(&value, outcome(&renamed));
        if renamed.is_err() {
            // What is left of it is in nobody's way; it is written over by the next.
            fs::remove_file(&tmp).ok();
        }
    }

    fn rename(&self, tenant: &str, from: &str, to: &str) {
        let begun = self.check.tick();
        self.check.may_move(tenant, from, to);
        let result = fs::rename(self.path(tenant, from), self.path(tenant, to));
        let absent = result.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::ENOENT));
        self.check.moved(tenant, from, to, outcome(&result));
        if absent {
            self.check.saw(tenant, from, None, (begun, self.check.tick()));
        }
    }

    fn delete(&self, tenant: &str, key: &str) {
        let begun = self.check.tick();
        self.check.may_go(tenant, key);
        let result = fs::remove_file(self.path(tenant, key));
        self.check.gone(tenant, key, outcome(&result));
        if result.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::ENOENT)) {
            self.check.saw(tenant, key, None, (begun, self.check.tick()));
        }
    }

    /// Reads a key: `Err` where nobody can tell.
    fn read(&self, tenant: &str, key: &str) -> Result<Option<Value>, ()> {
        let mut bytes = Vec::new();
        let read = File::open(self.path(tenant, key)).and_then(|mut file| file.read_to_end(&mut bytes));
        match read {
            Ok(_) => {
                Ok(Some(Value::decode(&bytes).unwrap_or_else(|why| panic!("{tenant}/{key}: torn: {why}"))))
            }
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(_) => Err(()),
        }
    }

    /// Another process reads a key: torn, foreign and removed values are looked for; what the key must hold is not
    /// known while its writer is at it. (The writers' own process sees what they have not published.)
    pub(crate) fn look(&self, peer: &mut Peer, tenant: &str, key: &str) {
        let begun = self.check.tick();
        let seen = peer.run(&format!("look('/{tenant}/{key}')"));
        let Some(text) = seen.as_str() else { return };
        let value =
            Value::decode(text.as_bytes()).unwrap_or_else(|why| panic!("{tenant}/{key}: torn: {why}"));
        self.check.may_be_seen(tenant, key, &value, begun);
    }

    /// Its writer looks at a key: now it must hold what it was told.
    fn look_exactly(&self, tenant: &str, key: &str) {
        let begun = self.check.tick();
        if let Ok(seen) = self.read(tenant, key) {
            self.check.saw(tenant, key, seen.as_ref(), (begun, self.check.tick()));
        }
    }

    pub(crate) fn writer(&self, who: usize, mut random: Random) {
        while !self.stop.load(Ordering::SeqCst) {
            let _mounted = self.begin();
            let tenant = *random.pick(&TENANTS);
            let key = name(who, random.below(KEYS as u64) as usize);
            match random.below(10) {
                0 => self.delete(tenant, &key),
                1 => {
                    let other = name(who, random.below(KEYS as u64) as usize);
                    if other != key {
                        self.rename(tenant, &key, &other);
                    }
                }
                2 | 3 => self.look_exactly(tenant, &key),
                kind => self.put(&mut random, tenant, &key, kind < 7),
            }
        }
    }

    pub(crate) fn reader(&self, mut peer: Peer, mut random: Random) {
        while !self.stop.load(Ordering::SeqCst) {
            let _mounted = self.begin();
            let key = name(random.below(WRITERS as u64) as usize, random.below(KEYS as u64) as usize);
            let tenant = *random.pick(&TENANTS);
            self.look(&mut peer, tenant, &key);
        }
    }

    /// Random removals, now from one interface, now from another, each followed to its end.
    fn remover(&self, mut peer: Peer, mut random: Random) {
        let mut unsettled: Vec<(Removal, String)> = Vec::new();
        let mut n = 0;
        while !self.stop.load(Ordering::SeqCst) {
            {
                let _mounted = self.begin();
                n += 1;
                let tenant = (random.below(5) > 0).then(|| *random.pick(&TENANTS));
                let removal = self.check.removal_begins(tenant);
                let id = format!("storm-{n}");
                let end = match random.below(4) {
                    0 => self.remove_by_control(&self.mnt, &removal, &id),
                    1 if tenant.is_some() => {
                        self.remove_by_control(&self.mnt.join(tenant.unwrap_or_default()), &removal, &id)
                    }
                    2 => Self::remove_by_ioctl(&mut peer, &removal),
                    _ => self.remove_by_command(&removal),
                };
                match end {
                    Some(generation) => self.check.removal_ends(&removal, Some(generation)),
                    None => unsettled.push((removal, id)),
                }
                unsettled.retain(|(removal, id)| !self.settle(removal, id));
            }
            std::thread::sleep(Duration::from_millis(random.below(120)));
        }
        assert!(n > 0);
    }

    /// `remove-all` through a control file: the generation, once its second line is there.
    fn remove_by_control(&self, dir: &Path, removal: &Removal, id: &str) -> Option<u64> {
        let mut control = Control::try_at(dir).ok()?;
        control.send(&format!("remove-all {} id={id}", removal.words())).ok()?;
        self.check.must_happen(removal);
        loop {
            let line = control.next(Duration::from_millis(200));
            if let Some(line) = line
                && line["state"] == "complete"
            {
                return line["generation"].as_u64();
            }
            // A daemon that is gone gives no line, and takes no question.
            control.send(&format!("query id={id}")).ok()?;
        }
    }

    fn remove_by_ioctl(peer: &mut Peer, removal: &Removal) -> Option<u64> {
        let (scope, tenant) = removal.tenant.as_deref().map_or((0, ""), |t| (1, t));
        let answer = peer.run(&format!("removed({scope}, b'{tenant}')"));
        answer.as_u64()
    }

    fn remove_by_command(&self, removal: &Removal) -> Option<u64> {
        let mut command = std::process::Command::new(BINARY);
        command.arg("remove-all").arg(&self.mnt).args(["--json", "--timeout", "20s"]);
        match &removal.tenant {
            Some(tenant) => command.args(["--tenant", tenant]),
            None => command.arg("--global"),
        };
        let output = crate::harness::run(&mut command);
        if !output.status.success() {
            return None;
        }
        let reply: serde_json::Value = serde_json::from_str(output.stdout.lines().last()?).ok()?;
        assert_eq!(reply["state"], "complete", "exit status 0: {reply}");
        reply["generation"].as_u64()
    }

    /// Learns what became of a removal whose end was not seen. One that has no name is over, whether it happened or not,
    /// when nothing is pending.
    fn settle(&self, removal: &Removal, id: &str) -> bool {
        let Ok(mut control) = Control::try_at(&self.mnt) else { return false };
        let sent = control.send(&format!("query id={id}"));
        let Some(reply) = control.next(PATIENCE) else { return false };
        if sent.is_ok() && reply["state"] == "complete" {
            self.check.removal_ends(removal, reply["generation"].as_u64());
            return true;
        }
        if sent != Err(libc::ENOENT) {
            return false;
        }
        assert!(!self.check.is_bound_to_happen(removal), "a durable request is lost: {id}");
        let idle = control.send("status").ok().and_then(|()| control.next(PATIENCE));
        let idle = idle.is_some_and(|status| status["pending_requests"] == 0);
        if idle {
            self.check.removal_ends(removal, None);
        }
        idle
    }
}

/// The name of a writer's key.
pub(crate) fn name(writer: usize, key: usize) -> String {
    format!("w{writer}-{key}")
}

/// The ioctl interface, from a program.
const IOCTL: &str = "import struct, time
LAYOUT = '=IIII256sQQ'
def removed(scope, tenant):
    try:
        fd = os.open(R + '/.fencefs/control', os.O_RDWR)
        try:
            data = bytearray(struct.pack(LAYOUT, 1, scope, 0, 0, tenant, 0, 0))
            fcntl.ioctl(fd, 3 << 30 | 288 << 16 | 0xFC << 8 | 1, data)
            generation = struct.unpack(LAYOUT, bytes(data))[5]
            end = time.monotonic() + 20
            while time.monotonic() < end:
                data = bytearray(struct.pack(LAYOUT, 1, scope, 0, 0, tenant, generation, 0))
                fcntl.ioctl(fd, 3 << 30 | 288 << 16 | 0xFC << 8 | 2, data)
                if struct.unpack(LAYOUT, bytes(data))[3] == 3: return generation
                time.sleep(0.003)
        finally: os.close(fd)
    except OSError: pass
    return None";

/// A peer that reads keys.
pub(crate) fn looker(m: &Mount) -> Peer {
    let mut peer = m.peer();
    peer.run(
        "def look(path):
    try: return read(R + path)
    except OSError: return None",
    );
    peer
}

pub(crate) fn number_from(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |n| n.parse().unwrap_or_else(|_| panic!("{variable}={n}")))
}

pub(crate) fn seed() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    number_from("FENCEFS_TEST_SEED", since_epoch.subsec_nanos().into())
}

fn storm(settings: fn(Builder) -> Builder, evicts: bool) {
    let kills = number_from("FENCEFS_TEST_STORM_KILLS", 30);
    let seed = seed();
    eprintln!("FENCEFS_TEST_SEED={seed} FENCEFS_TEST_STORM_KILLS={kills}");
    each_with(
        |b| settings(b).arg("--fence-wait").arg("50ms"),
        |m| {
            m.shell("mkdir $R/alpha $R/beta $R/gamma").ok();
            let mut peer = m.peer();
            peer.run(IOCTL);
            let mut random = Random(seed);
            let storm = Storm::over(m, evicts);
            let mut threads = Vec::new();
            for who in 0..WRITERS {
                let (storm, random) = (Arc::clone(&storm), Random(random.next()));
                threads.push(std::thread::spawn(move || storm.writer(who, random)));
            }
            for _ in 0..READERS {
                let (storm, random) = (Arc::clone(&storm), Random(random.next()));
                let peer = looker(m);
                threads.push(std::thread::spawn(move || storm.reader(peer, random)));
            }
            let (shared, its_own) = (Arc::clone(&storm), Random(random.next()));
            threads.push(std::thread::spawn(move || shared.remover(peer, its_own)));
            for _ in 0..kills {
                // The moment is random by intent.
                std::thread::sleep(Duration::from_millis(150 + random.below(500)));
                storm.kill(m);
            }
            std::thread::sleep(Duration::from_millis(300));
            storm.stop.store(true, Ordering::SeqCst);
            let all = wait_until(PATIENCE, || threads.iter().all(std::thread::JoinHandle::is_finished));
            assert!(all, "seed {seed}: an operation hangs");
            let ended: Vec<_> = threads.into_iter().map(std::thread::JoinHandle::join).collect();
            assert!(ended.iter().all(Result::is_ok), "seed {seed}: a thread found a fault, see above");
            calm(m, &storm);
            m.crash();
            calm(m, &storm);
            m.remount();
            calm(m, &storm);
        },
    );
}

/// After the storm: everything requested is done, every key holds what it must, and the counters are the disk's.
#[track_caller]
pub(crate) fn calm(m: &Mount, storm: &Storm) {
    assert!(wait_until(PATIENCE, || m.status_number("pending_requests") == 0), "{}", m.status());
    assert!(wait_until(PATIENCE, || m.status()["state"] == "ready"), "{}", m.status());
    let storage = m.status()["storage_id"].as_str().unwrap().to_owned();
    assert!(list(&Control::open(m).ask(&format!("poll storage={storage}"))).is_empty());
    let mut peer = looker(m);
    for tenant in TENANTS {
        assert!(epoch(m, tenant) >= storm.check.acknowledged(tenant), "{tenant}");
        for writer in 0..WRITERS {
            (0..KEYS).for_each(|key| storm.look_exactly(tenant, &name(writer, key)));
        }
        // Also what stands under no name that a writer keeps track of.
        for entry in fs::read_dir(m.mnt.join(tenant)).unwrap() {
            let found = entry.unwrap().file_name().into_string().unwrap();
            storm.look(&mut peer, tenant, &found);
        }
    }
    assert_counters_equal_the_disk(m);
}

/// Issue 3, "a storm", eviction at work: half of what is written fits.
#[test]
fn a_storm_with_eviction() {
    storm(|b| b.size("3MiB").evict("lru"), true);
}

/// The same where nothing is evicted: what each tenant must hold is known exactly.
#[test]
fn a_storm_in_which_no_tenant_loses_a_value_to_another() {
    storm(|b| b.size("8TiB"), false);
}
