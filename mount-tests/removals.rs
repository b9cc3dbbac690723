//! What the tests of removals share: control streams, the states they wait for, and what must hold afterwards.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

use crate::eviction::Immutable;
use crate::harness::{Builder, Mount, each_with, run, wait_until};

/// How long a removal of these tests' few keys may take, retries included.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The user that owns a tenant in the tests of permissions, and one that owns none.
pub(crate) const OWNER: u32 = 4001;
pub(crate) const OTHER: u32 = 4002;

/// Runs a test with a quota that evicts and with one that no disk reaches, each with passthrough on and off.
pub(crate) fn each_evicting(body: impl Fn(&mut Mount)) {
    each_evicting_with(|b| b, body);
}

/// The same with settings of the test's own.
pub(crate) fn each_evicting_with(settings: impl Fn(Builder) -> Builder, body: impl Fn(&mut Mount)) {
    for (size, policy) in [("64MiB", "lru"), ("64MiB", "fifo"), ("8TiB", "lru")] {
        eprintln!("--size {size} --evict {policy}");
        each_with(|b: Builder| settings(b).size(size).evict(policy), &body);
    }
}

/// An open control file: commands in, its own stream of replies out.
pub(crate) struct Control {
    file: File,
    read: Vec<u8>,
}

impl Control {
    /// The control file at the root of the mount.
    #[track_caller]
    pub(crate) fn open(m: &Mount) -> Control {
        Control::at(&m.mnt)
    }

    /// The control file of a directory.
    #[track_caller]
    pub(crate) fn at(dir: &Path) -> Control {
        Control::try_at(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
    }

    /// The same, where it may fail.
    pub(crate) fn try_at(dir: &Path) -> std::io::Result<Control> {
        let file = OpenOptions::new().read(true).write(true).open(dir.join(".fencefs/control"))?;
        Ok(Control { file, read: Vec::new() })
    }

    /// Writes one command; the errno of write(2).
    pub(crate) fn send(&mut self, line: &str) -> Result<(), i32> {
        let line = format!("{line}\n");
        match self.file.write(line.as_bytes()) {
            Ok(length) => {
                assert_eq!(length, line.len(), "a command is written whole");
                Ok(())
            }
            Err(e) => Err(e.raw_os_error().unwrap()),
        }
    }

    /// Whether poll(2) says that a reply waits.
    pub(crate) fn is_readable(&self, patience: Duration) -> bool {
        let mut fds = [PollFd::new(&self.file, PollFlags::IN)];
        let patience = Timespec::try_from(patience).unwrap();
        poll(&mut fds, Some(&patience)).unwrap() > 0 && fds[0].revents().contains(PollFlags::IN)
    }

    /// The next reply; `None` where none comes in time, or the daemon is gone.
    pub(crate) fn next(&mut self, patience: Duration) -> Option<Value> {
        loop {
            if let Some(end) = self.read.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("a reply is one JSON object a line"));
            }
            if !self.is_readable(patience) {
                return None;
            }
            let mut buffer = [0; 65536];
            match self.file.read(&mut buffer) {
                Ok(length) if length > 0 => self.read.extend_from_slice(&buffer[..length]),
                _ => return None,
            }
        }
    }

    /// The next reply, which must come.
    #[track_caller]
    pub(crate) fn line(&mut self) -> Value {
        self.next(PATIENCE).expect("a reply")
    }

    /// A command that must work, and its reply.
    #[track_caller]
    pub(crate) fn ask(&mut self, line: &str) -> Value {
        let sent = self.send(line);
        let reply = self.line();
        assert_eq!((sent, &reply["ok"]), (Ok(()), &Value::Bool(true)), "{line}: {reply}");
        reply
    }

    /// A command that must be refused: the errno of write(2), and the reply.
    #[track_caller]
    pub(crate) fn refused(&mut self, line: &str) -> (i32, Value) {
        let sent = self.send(line);
        let reply = self.line();
        assert_eq!(reply["ok"], false, "{line}: {reply}");
        (sent.expect_err("write(2) fails with the command's errno"), reply)
    }

    /// A removal that must be complete with its second line: that line.
    #[track_caller]
    pub(crate) fn remove(&mut self, words: &str) -> Value {
        let first = self.ask(&format!("remove-all {words}"));
        let second = self.line();
        assert_eq!(second["state"], "complete", "{first} {second}");
        for same in ["generation", "scope", "tenant"] {
            assert_eq!(first[same], second[same], "{first} {second}");
        }
        second
    }
}

/// The generation that a reply carries.
#[track_caller]
pub(crate) fn generation(reply: &Value) -> u64 {
    reply["generation"].as_u64().unwrap_or_else(|| panic!("no generation: {reply}"))
}

/// A removal from the root of the mount, waited for: its generation.
#[track_caller]
pub(crate) fn remove(m: &Mount, words: &str) -> u64 {
    generation(&Control::open(m).remove(words))
}

/// The state of a request.
#[track_caller]
pub(crate) fn query(m: &Mount, name: &str) -> Value {
    Control::open(m).ask(&format!("query {name}"))
}

/// Waits until a request is complete.
#[track_caller]
pub(crate) fn wait_complete(m: &Mount, name: &str) -> Value {
    let mut last = Value::Null;
    let done = wait_until(PATIENCE, || {
        last = query(m, name);
        last["state"] == "complete"
    });
    assert!(done, "{name}: {last}");
    last
}

/// The epoch that a new write to the tenant is admitted under.
#[track_caller]
pub(crate) fn epoch(m: &Mount, tenant: &str) -> u64 {
    let reply = Control::open(m).ask(&format!("epoch tenant={tenant}"));
    reply["epoch"].as_u64().unwrap_or_else(|| panic!("no epoch: {reply}"))
}

/// A tenant's line of the status.
#[track_caller]
pub(crate) fn tenant(m: &Mount, name: &str) -> Value {
    let status = m.status();
    let found = status["tenants"].as_array().unwrap().iter().find(|t| t["name"] == name).cloned();
    found.unwrap_or_else(|| panic!("no tenant {name}: {status}"))
}

/// The one list in a reply, by whatever name.
#[track_caller]
pub(crate) fn list(reply: &Value) -> Vec<Value> {
    let mut lists = reply.as_object().unwrap().values().filter_map(Value::as_array);
    lists.next().unwrap_or_else(|| panic!("no list: {reply}")).clone()
}

/// The lines of `.fencefs/requests`.
#[track_caller]
pub(crate) fn requests(m: &Mount) -> Vec<Value> {
    let text = fs::read_to_string(m.mnt.join(".fencefs/requests")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Two tenants that share a disk, each with keys on several levels, an owner, a mode and a quota; copies of both in
/// the scratch directory. They are reached through their parents by users who are not root.
#[track_caller]
pub(crate) fn two_tenants(m: &Mount) {
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(m.scratch.parent().unwrap(), open).unwrap();
    // In this process: a fork a key would be most of the time that the tests take.
    let mut noise = File::open("/dev/urandom").unwrap();
    for (name, owner, quota) in [("a", OWNER, "40MiB"), ("b", OTHER, "48MiB")] {
        let (top, copy) = (m.mnt.join(name), m.scratch.join(format!("copy-{name}")));
        fs::create_dir(&top).unwrap();
        fs::set_permissions(&top, fs::Permissions::from_mode(0o750)).unwrap();
        for dir in [&top, &copy] {
            fs::create_dir_all(dir.join("deep/er")).unwrap();
        }
        let shallow = (1..=12).map(|n| (format!("k{n}"), n * 3000));
        let deep = (1..=6).map(|n| (format!("deep/er/k{n}"), n * 5000));
        for (key, length) in shallow.chain(deep).chain([("empty".to_owned(), 0)]) {
            let mut value = vec![0; length];
            noise.read_exact(&mut value).unwrap();
            fs::write(top.join(&key), &value).unwrap();
            fs::write(copy.join(&key), &value).unwrap();
        }
        symlink("k1", top.join("link")).unwrap();
        symlink("k1", copy.join("link")).unwrap();
        chown(&top, Some(owner), Some(owner)).unwrap();
        Control::open(m).ask(&format!("quota tenant={name} bytes={quota}"));
    }
}

/// That one of the tenants of [`two_tenants`] has exactly what it was given.
#[track_caller]
pub(crate) fn assert_whole(m: &Mount, name: &str) {
    assert_eq!(contents(&m.mnt.join(name)), contents(&m.scratch.join(format!("copy-{name}"))), "{name}");
}

/// Everything below a directory: files and symlinks with a digest of what they hold.
fn contents(top: &Path) -> BTreeMap<PathBuf, Option<u64>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![top.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).unwrap().map(Result::unwrap) {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let held = if kind.is_dir() {
                todo.push(path.clone());
                None
            } else if kind.is_symlink() {
                Some(digest(fs::read_link(&path).unwrap().as_os_str().as_bytes()))
            } else {
                Some(digest(&fs::read(&path).unwrap()))
            };
            found.insert(path.strip_prefix(top).unwrap().to_owned(), held);
        }
    }
    found
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// What B has and what is counted of it.
#[derive(Debug, PartialEq)]
pub(crate) struct Bystander {
    status: Value,
    owner: (u32, u32, u32),
    records: Vec<(PathBuf, u64)>,
}

impl Bystander {
    /// B as it is now, after looking that its values are those of [`two_tenants`].
    #[track_caller]
    pub(crate) fn look(m: &Mount) -> Bystander {
        assert_whole(m, "b");
        let meta = fs::metadata(m.mnt.join("b")).unwrap();
        let mut records = m.records();
        records.retain(|(path, _)| path.starts_with(m.store.join("data/t/b")));
        records.sort();
        Bystander { status: tenant(m, "b"), owner: (meta.uid(), meta.gid(), meta.mode()), records }
    }

    /// That nothing of B has changed.
    #[track_caller]
    pub(crate) fn assert_untouched(&self, m: &Mount) {
        assert_eq!(*self, Bystander::look(m));
    }
}

/// That a tenant has no key, by listing, by name, in the counts and on the disk; its directory is there.
#[track_caller]
pub(crate) fn assert_empty(m: &Mount, name: &str) {
    let listed: Vec<_> = fs::read_dir(m.mnt.join(name)).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(listed.is_empty(), "{name}: {listed:?}");
    for key in ["k1", "k12", "deep/er/k1", "deep", "link", "empty"] {
        let looked = m.mnt.join(name).join(key).symlink_metadata();
        assert!(looked.is_err_and(|e| e.kind() == ErrorKind::NotFound), "{name}/{key}");
    }
    let status = tenant(m, name);
    assert_eq!((&status["keys"], &status["bytes"]), (&0.into(), &0.into()), "{status}");
    let mut records = m.records();
    records.retain(|(path, _)| path.starts_with(m.store.join("data/t").join(name)));
    assert!(records.is_empty(), "{records:?}");
}

/// That the counters are what a walk of the disk finds, and nothing of a removal or a write lies about.
#[track_caller]
pub(crate) fn assert_counters_equal_the_disk(m: &Mount) {
    assert!(wait_until(PATIENCE, || m.status_number("staged_bytes") == 0), "{}", m.status());
    assert!(wait_until(PATIENCE, || is_empty_dir(&m.store.join("data/.trash"))), "trash is left");
    m.settle_blocks();
    let status = m.status();
    let records = m.records();
    let walked: u64 = records.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(status["used_bytes"], walked, "{status}");
    let tenants = status["tenants"].as_array().unwrap();
    for tenant in tenants {
        let top = m.store.join("data/t").join(tenant["name"].as_str().unwrap());
        let of_tenant: u64 = records.iter().filter(|(p, _)| p.starts_with(&top)).map(|(_, n)| n).sum();
        assert_eq!(tenant["bytes"], of_tenant, "{tenant}");
    }
    let sum: u64 = tenants.iter().map(|t| t["keys"].as_u64().unwrap()).sum();
    assert_eq!(status["keys"], sum, "{status}");
}

/// Whether a directory is empty or missing.
pub(crate) fn is_empty_dir(path: &Path) -> bool {
    fs::read_dir(path).map_or(true, |mut entries| entries.next().is_none())
}

/// The record file of a key of a tenant.
#[track_caller]
pub(crate) fn record_of(m: &Mount, key: &str) -> PathBuf {
    let mut path = vec![0; 4096];
    let length = rustix::fs::getxattr(m.mnt.join(key), "user.fencefs.path", &mut path[..]).unwrap();
    m.store.join(std::ffi::OsStr::from_bytes(&path[..length]))
}

/// Makes the next removal of tenant `a` fail at its deletion: one record of it cannot be unlinked. Found again by its
/// inode number when it is to be let go, as the removal moves it. `None` where the filesystem cannot.
pub(crate) struct Stuck {
    m_data: PathBuf,
    ino: u64,
    held: Option<Immutable>,
}

impl Stuck {
    /// Holds the record of a key.
    pub(crate) fn new(m: &Mount, key: &str) -> Option<Stuck> {
        let record = record_of(m, key);
        let ino = fs::metadata(&record).unwrap().ino();
        let Some(held) = Immutable::new(record) else {
            eprintln!("skipped: no immutable files here");
            return None;
        };
        Some(Stuck { m_data: m.store.join("data"), ino, held: Some(held) })
    }

    /// Lets it go, wherever it is by now.
    pub(crate) fn release(&mut self) {
        let Some(held) = self.held.take() else { return };
        std::mem::forget(held);
        let mut todo = vec![self.m_data.clone()];
        while let Some(dir) = todo.pop() {
            for entry in fs::read_dir(&dir).into_iter().flatten().filter_map(Result::ok) {
                let Ok(meta) = entry.path().symlink_metadata() else { continue };
                if meta.is_dir() {
                    todo.push(entry.path());
                } else if meta.ino() == self.ino {
                    run(std::process::Command::new("chattr").arg("-i").arg(entry.path()));
                }
            }
        }
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        self.release();
    }
}
