//! A store and a mount of the real binary, made for one test and removed after it.
//!
//! Everything outside is bounded in time: commands are killed by pid when they take too long, and a daemon that
//! outlives its test's patience is killed so that file calls fail instead of hanging. Only own processes are ended.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use tempfile::TempDir;

use crate::peer::Peer;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_fencefs");
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
const MOUNT_PATIENCE: Duration = Duration::from_secs(240);

/// What a command left.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// Standard output of a command that must have worked.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert!(self.status.success(), "{self:?}");
        self.stdout
    }

    /// Exit code and standard error of a command that must have failed.
    #[track_caller]
    pub(crate) fn failed(self) -> (i32, String) {
        assert!(!self.status.success(), "should have failed: {self:?}");
        (self.status.code().unwrap_or(-1), self.stderr)
    }
}

/// Runs a command to its end, or kills it. Output goes through files, so that a daemon which kept them open is no hang.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> Output {
    let (mut out, mut err) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(err.try_clone().unwrap());
    let mut child = command.process_group(0).spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let mut status = None;
    if !wait_until(COMMAND_TIMEOUT, || {
        status = child.try_wait().unwrap();
        status.is_some()
    }) {
        // With what it started: the command leads a process group of its own.
        kill_process_group(Pid::from_child(&child), Signal::KILL).unwrap();
        child.wait().unwrap();
        panic!("{command:?} was not done after {COMMAND_TIMEOUT:?}");
    }
    let text = |file: &mut File| {
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Output { status: status.unwrap(), stdout: text(&mut out), stderr: text(&mut err) }
}

/// Runs the binary under test.
#[track_caller]
pub(crate) fn fencefs<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    run(Command::new(BINARY).args(args))
}

/// Polls until the condition holds, bounded; for states that nothing can be told to signal. Not for races.
pub(crate) fn wait_until(patience: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + patience;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The interpreter itself: what `PATH` finds may be a script that looks for it, for most of a second.
pub(crate) fn python3() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| {
        let told = run(Command::new("python3").args(["-c", "import sys; print(sys.executable)"]));
        PathBuf::from(told.ok().trim_end())
    })
}

/// Whether mounts can be made here; says why not.
pub(crate) fn can_mount() -> bool {
    let why = if !Path::new("/dev/fuse").exists() {
        "/dev/fuse is missing"
    } else if !rustix::process::geteuid().is_root() {
        "not root"
    } else {
        return true;
    };
    eprintln!("skipped: {why}");
    false
}

/// The values of `--passthrough` to test with.
fn passthrough_matrix() -> Vec<&'static str> {
    match std::env::var("FENCEFS_TEST_PASSTHROUGH").as_deref() {
        Ok("on") => vec!["on"],
        Ok("off") => vec!["off"],
        Ok("both") | Err(_) => vec!["on", "off"],
        Ok(other) => panic!("FENCEFS_TEST_PASSTHROUGH={other}: on, off or both"),
    }
}

/// Whether this kernel can do passthrough at all (6.9 and later).
fn kernel_has_passthrough() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 9)
}

/// Runs a test on a default mount, once with passthrough and once without.
pub(crate) fn each(body: impl Fn(&mut Mount)) {
    each_with(|builder| builder, body);
}

/// The same with a mount of the test's own settings.
pub(crate) fn each_with(settings: impl Fn(Builder) -> Builder, body: impl Fn(&mut Mount)) {
    if !can_mount() {
        return;
    }
    for passthrough in passthrough_matrix() {
        if passthrough == "on" && !kernel_has_passthrough() {
            eprintln!("skipped: this kernel has no passthrough");
            continue;
        }
        eprintln!("--passthrough {passthrough}");
        body(&mut settings(Builder::new()).arg("--passthrough").arg(passthrough).mount());
    }
}

/// Runs a test once: the `turn`-th in a row with passthrough, the next one without, and with eviction and without in
/// twos. For rows of many steps where each pair of settings need not meet each step.
#[cfg(feature = "failpoints")]
pub(crate) fn in_turn(turn: usize, settings: impl Fn(Builder) -> Builder, body: impl Fn(&mut Mount)) {
    let mut matrix = passthrough_matrix();
    matrix.retain(|passthrough| *passthrough == "off" || kernel_has_passthrough());
    if !can_mount() || matrix.is_empty() {
        return;
    }
    let passthrough = matrix[turn % matrix.len()];
    let builder = settings(Builder::new()).evicting(turn / 2);
    eprintln!("--passthrough {passthrough}");
    body(&mut builder.arg("--passthrough").arg(passthrough).mount());
}

/// Settings of a mount to be made.
#[derive(Default)]
pub(crate) struct Builder {
    args: Vec<OsString>,
    env: Vec<(String, String)>,
    tenant: Option<String>,
    within: Vec<OsString>,
}

impl Builder {
    /// The defaults.
    pub(crate) fn new() -> Builder {
        Builder::default()
    }

    /// Any argument of `fencefs mount`.
    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Builder {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// `--size`.
    pub(crate) fn size(self, size: &str) -> Builder {
        self.arg("--size").arg(size)
    }

    /// `--evict`.
    pub(crate) fn evict(self, policy: &str) -> Builder {
        self.arg("--evict").arg(policy)
    }

    /// A quota that evicts, or one that no disk reaches, by turns.
    #[cfg(feature = "failpoints")]
    pub(crate) fn evicting(self, turn: usize) -> Builder {
        let (size, policy) = [("64MiB", "lru"), ("8TiB", "lru"), ("64MiB", "fifo")][turn % 3];
        self.size(size).evict(policy)
    }

    /// A variable in the environment of the daemon, until [`Mount::unset_env`].
    #[cfg(feature = "failpoints")]
    pub(crate) fn env(mut self, name: &str, value: &str) -> Builder {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// `--tenant`: a view of that tenant alone.
    pub(crate) fn tenant(mut self, tenant: &str) -> Builder {
        self.tenant = Some(tenant.to_owned());
        self.arg("--tenant").arg(tenant)
    }

    /// The network namespace that the daemon runs in.
    pub(crate) fn within(mut self, namespace: &Path) -> Builder {
        let mut net = OsString::from("--net=");
        net.push(namespace);
        self.within = vec!["nsenter".into(), net, "--".into()];
        self
    }

    /// Makes the directories and mounts.
    #[track_caller]
    pub(crate) fn mount(self) -> Mount {
        let mut mount = self.prepare();
        mount.mount();
        mount
    }

    /// Makes the directories.
    pub(crate) fn prepare(self) -> Mount {
        let root = tempfile::Builder::new().prefix("fencefs-test-").tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        let (store, mnt, scratch) = (path("store"), path("mnt"), path("scratch"));
        fs::create_dir(&mnt).unwrap();
        fs::create_dir(&scratch).unwrap();
        let daemon = Arc::new(Mutex::new(None));
        let watchdog = watch(daemon.clone(), store.clone());
        Mount {
            store,
            mnt,
            scratch,
            args: self.args,
            env: self.env,
            tenant: self.tenant,
            daemon,
            within: self.within,
            watchdog,
            root: Some(root),
        }
    }
}

/// Kills the daemon when the test takes too long: its file calls then fail instead of hanging for ever.
fn watch(daemon: Arc<Mutex<Option<Pid>>>, store: PathBuf) -> Sender<()> {
    let (stop, stopped) = channel();
    std::thread::spawn(move || {
        if stopped.recv_timeout(MOUNT_PATIENCE) == Err(RecvTimeoutError::Timeout)
            && let Some(pid) = *daemon.lock().unwrap()
        {
            eprintln!("{}: not done after {MOUNT_PATIENCE:?}, killing daemon {pid:?}", store.display());
            if let Err(e) = kill_process(pid, Signal::KILL) {
                eprintln!("kill: {e}");
            }
        }
    });
    stop
}

/// A mounted store.
pub(crate) struct Mount {
    pub(crate) store: PathBuf,
    pub(crate) mnt: PathBuf,
    pub(crate) scratch: PathBuf,
    args: Vec<OsString>,
    env: Vec<(String, String)>,
    tenant: Option<String>,
    within: Vec<OsString>,
    daemon: Arc<Mutex<Option<Pid>>>,
    #[expect(dead_code, reason = "dropping it ends the watchdog")]
    watchdog: Sender<()>,
    root: Option<TempDir>,
}

impl Mount {
    /// Where plain keys go: the default tenant's directory, or the view.
    pub(crate) fn keys(&self) -> PathBuf {
        if self.tenant.is_some() { self.mnt.clone() } else { self.mnt.join("default") }
    }

    /// The path of a plain key.
    pub(crate) fn key(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.keys().join(name.as_ref())
    }

    /// Runs `fencefs mount` as a person would: it returns when the mount answers.
    #[track_caller]
    pub(crate) fn mount(&mut self) {
        self.try_mount().ok();
        self.find_again();
    }

    /// Notes the daemon of a mount that was made another way.
    #[track_caller]
    pub(crate) fn find_again(&mut self) {
        assert!(self.is_mounted(), "mount returned 0 and nothing is mounted");
        let pid = self.find_daemon();
        *self.daemon.lock().unwrap() = Some(pid);
    }

    /// Runs `fencefs mount`, whatever comes of it.
    #[track_caller]
    pub(crate) fn try_mount(&self) -> Output {
        run(&mut self.mount_command())
    }

    /// Starts `fencefs mount` with what it says in a file.
    pub(crate) fn start_mounting(&self, out: &Path) -> Child {
        let file = File::create(out).unwrap();
        let mut command = self.mount_command();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        command.spawn().unwrap()
    }

    fn mount_command(&self) -> Command {
        let (store, mnt) = (self.store.as_os_str(), self.mnt.as_os_str());
        let mut words = self.within.iter().map(OsString::as_os_str).chain([OsStr::new(BINARY)]);
        let mut command = Command::new(words.next().expect("at least the binary"));
        command.args(words).args([OsStr::new("mount"), store, mnt]);
        if let Some(checksum) = std::env::var_os("FENCEFS_TEST_CHECKSUM") {
            command.arg("--checksum").arg(checksum);
        }
        command.args(&self.args);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Replaces or adds an argument of the next mount.
    pub(crate) fn set_arg(&mut self, name: &str, value: &str) {
        match self.args.iter().position(|a| a == name) {
            Some(at) => self.args[at + 1] = value.into(),
            None => self.args.extend([name.into(), value.into()]),
        }
    }

    /// Takes an argument and its value from the next mount.
    pub(crate) fn unset_arg(&mut self, name: &str) {
        if let Some(at) = self.args.iter().position(|a| a == name) {
            self.args.drain(at..at + 2);
        }
    }

    /// Sets a variable in the environment of the next daemon.
    #[cfg(feature = "failpoints")]
    pub(crate) fn set_env(&mut self, name: &str, value: &str) {
        self.unset_env(name);
        self.env.push((name.to_owned(), value.to_owned()));
    }

    /// Takes it away again.
    #[cfg(feature = "failpoints")]
    pub(crate) fn unset_env(&mut self, name: &str) {
        self.env.retain(|(known, _)| known != name);
    }

    /// The daemon's pid.
    pub(crate) fn pid(&self) -> Pid {
        self.daemon.lock().unwrap().expect("mounted")
    }

    /// The one live process with the store in its arguments.
    #[track_caller]
    fn find_daemon(&self) -> Pid {
        let mut found = Vec::new();
        wait_until(Duration::from_secs(10), || {
            found = processes_of(&self.store);
            // Who supervises it is started first, and ends last.
            found.retain(|pid| !is_handed(*pid));
            found.len() == 1
        });
        assert_eq!(found.len(), 1, "daemons of {}: {found:?}", self.store.display());
        found[0]
    }

    /// The daemon of a supervised mount; [`Mount::pid`] is who supervises it.
    #[track_caller]
    pub(crate) fn supervised(&self) -> Pid {
        let mut found = Vec::new();
        wait_until(Duration::from_secs(30), || {
            found = processes_of(&self.store);
            found.retain(|pid| is_handed(*pid));
            found.len() == 1
        });
        assert_eq!(found.len(), 1, "supervised daemons of {}: {found:?}", self.store.display());
        found[0]
    }

    /// Whether the kernel has a mount there.
    pub(crate) fn is_mounted(&self) -> bool {
        let table = fs::read("/proc/self/mountinfo").unwrap();
        table
            .split(|b| *b == b'\n')
            .any(|line| line.split(|b| *b == b' ').nth(4) == Some(self.mnt.as_os_str().as_bytes()))
    }

    /// `fencefs umount`, and waits until the daemon has let go of the store.
    #[track_caller]
    pub(crate) fn umount(&mut self) {
        fencefs([OsStr::new("umount"), self.mnt.as_os_str()]).ok();
        assert!(!self.is_mounted(), "umount returned 0 and the mount is still there");
        self.wait_for_exit();
    }

    /// Waits until the daemon is gone.
    #[track_caller]
    pub(crate) fn wait_for_exit(&mut self) {
        let pid = self.pid();
        assert!(wait_until(Duration::from_secs(30), || !is_alive(pid)), "daemon {pid:?} did not end");
        *self.daemon.lock().unwrap() = None;
    }

    /// A clean unmount and a new mount.
    #[track_caller]
    pub(crate) fn remount(&mut self) {
        self.umount();
        self.mount();
    }

    /// SIGKILL, nothing more: the dead mount stays for the next mount to clear.
    #[track_caller]
    pub(crate) fn kill(&mut self) {
        kill_process(self.pid(), Signal::KILL).unwrap();
        self.wait_for_exit();
        // What the next start counts is then what there is.
        self.write_out();
    }

    /// SIGKILL and a new mount, which must clear the dead one by itself.
    #[track_caller]
    pub(crate) fn crash(&mut self) {
        self.kill();
        self.mount();
    }

    /// The status object.
    #[track_caller]
    pub(crate) fn status(&self) -> Value {
        serde_json::from_slice(&fs::read(self.mnt.join(".fencefs/status")).unwrap()).unwrap()
    }

    /// One number of the status object.
    #[track_caller]
    pub(crate) fn status_number(&self, name: &str) -> u64 {
        self.status()[name].as_u64().unwrap_or_else(|| panic!("status has no number {name}"))
    }

    /// Writes one command to a control file: the errno of write(2), and the reply.
    #[track_caller]
    pub(crate) fn control(&self, line: &str) -> (Result<(), i32>, Value) {
        let mut file =
            OpenOptions::new().read(true).write(true).open(self.mnt.join(".fencefs/control")).unwrap();
        let result = file.write_all(format!("{line}\n").as_bytes()).map_err(|e| e.raw_os_error().unwrap());
        let mut reply = vec![0; 1 << 20];
        let length = file.read(&mut reply).unwrap();
        let text = std::str::from_utf8(&reply[..length]).unwrap();
        (result, serde_json::from_str(text.lines().next().unwrap_or_default()).unwrap_or(Value::Null))
    }

    /// Writes a command that the daemon may not live to answer: whether write(2) returned.
    #[cfg(feature = "failpoints")]
    pub(crate) fn control_if_it_lives(&self, line: &str) -> bool {
        let control = OpenOptions::new().write(true).open(self.mnt.join(".fencefs/control"));
        control.unwrap().write_all(format!("{line}\n").as_bytes()).is_ok()
    }

    /// Another process that sees this mount.
    pub(crate) fn peer(&self) -> Peer {
        Peer::start(self)
    }

    /// Runs a shell script with `M`, `R`, `W` and `S` (the store) set.
    #[track_caller]
    pub(crate) fn shell(&self, script: &str) -> Output {
        run(self.with_names(Command::new("bash").args(["-euo", "pipefail", "-c", script])))
    }

    /// Runs a python3 script with the same names in its environment.
    #[track_caller]
    pub(crate) fn python(&self, script: &str) -> Output {
        run(self.with_names(Command::new(python3()).args(["-c", script])))
    }

    fn with_names<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("M", self.keys()).env("R", &self.mnt).env("W", &self.scratch).env("S", &self.store)
    }

    /// Has the filesystem of the store write everything out: while ext4 does, a file may have no blocks for a moment.
    pub(crate) fn write_out(&self) {
        rustix::fs::syncfs(File::open(&self.store).unwrap()).unwrap();
    }

    /// Before used bytes are compared with the disk. The filesystem may give a file a block for its map, or take it
    /// back, when it writes the file out; the store counts that when the key is next looked at.
    pub(crate) fn settle_blocks(&self) {
        self.write_out();
        let mut todo = vec![self.mnt.clone()];
        while let Some(dir) = todo.pop() {
            for path in fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()) {
                let no_cache = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
                // A key may be evicted meanwhile.
                let Ok(seen) = statx(CWD, &path, no_cache, StatxFlags::BASIC_STATS) else { continue };
                if FileType::from_raw_mode(seen.stx_mode.into()).is_dir() {
                    todo.push(path);
                }
            }
        }
    }

    /// The record files in the store, with their allocated bytes.
    pub(crate) fn records(&self) -> Vec<(PathBuf, u64)> {
        self.write_out();
        let mut found = Vec::new();
        let mut todo = vec![self.store.join("data/t")];
        while let Some(dir) = todo.pop() {
            for entry in fs::read_dir(&dir).unwrap().map(Result::unwrap) {
                let meta = entry.metadata().unwrap();
                if meta.is_dir() {
                    todo.push(entry.path());
                } else {
                    found.push((entry.path(), meta.blocks() * 512));
                }
            }
        }
        found
    }

    /// The record file of a plain key, as the key's own attribute names it.
    #[track_caller]
    pub(crate) fn record_of(&self, name: impl AsRef<OsStr>) -> PathBuf {
        let mut path = vec![0; 4096];
        let length = rustix::fs::getxattr(self.key(name), "user.fencefs.path", &mut path[..]).unwrap();
        self.store.join(OsStr::from_bytes(&path[..length]))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A dead mount may lie below a live one.
        for _ in 0..4 {
            if self.is_mounted()
                && let Err(e) = unmount(&self.mnt, UnmountFlags::DETACH)
            {
                eprintln!("cannot detach {}: {e}", self.mnt.display());
            }
        }
        if !wait_until(Duration::from_secs(5), || processes_of(&self.store).is_empty()) {
            for pid in processes_of(&self.store) {
                eprintln!("daemon {pid:?} outlived its mount: {:?}", kill_process(pid, Signal::KILL));
            }
        }
        if self.is_mounted()
            && let Some(root) = self.root.take()
        {
            eprintln!("left behind, still mounted: {}", root.keep().display());
        }
    }
}

/// Whether a process exists and is no zombie.
pub(crate) fn is_alive(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .and_then(|rest| rest.trim_start().chars().next())
        .is_some_and(|state| state != 'Z')
}

/// Whether a daemon was handed its connection by who supervises it.
fn is_handed(pid: Pid) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    line.split(|b| *b == 0).any(|arg| arg.starts_with(b"--handed="))
}

/// Live `fencefs` processes that have the path as an argument.
pub(crate) fn processes_of(store: &Path) -> Vec<Pid> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()).and_then(Pid::from_raw)
        else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut args = line.split(|b| *b == 0);
        let ours = args.next().is_some_and(|a| a.ends_with(b"fencefs"));
        if ours && args.any(|a| a == store.as_os_str().as_bytes()) && is_alive(pid) {
            found.push(pid);
        }
    }
    found
}
