//! `fencefs mount --supervise`: the process beside the daemon that starts it again when it dies.
//!
//! It keeps the connection to the kernel ([`crate::fuse::Connection`]), so the mount outlives the daemon: programs wait, and
//! the next daemon takes over where the last one left. Where that cannot be (the kernel cannot hand over, or somebody
//! ended the connection) it mounts anew, in the dead mount's place. It serves nothing itself and touches no store.
//!
//! A daemon that keeps dying is given up after a while: programs must not wait for ever.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::daemon::{Line, Ready, ending};
use super::mount_args::MountArgs;
use super::mountpoint::Place;
use super::notify::{self, Service};
use super::{mount, mountinfo, mountpoint, progress};
use crate::error::{Error, Kind, Result};
use crate::fuse::{Connection, Handed};

/// A daemon that dies so often within [`GIVE_UP_TIME`] is given up.
const GIVE_UP_DEATHS: usize = 5;
const GIVE_UP_TIME: Duration = Duration::from_secs(60);
/// How long to wait before a start that follows one that failed.
const RETRY_WAIT: Duration = Duration::from_millis(200);

/// What happens to who supervises.
enum Event {
    /// The daemon said something.
    Said(Line),
    /// The daemon is gone.
    Ended(ExitStatus),
    /// Somebody told us to end.
    Stop,
    /// Somebody told us to have another daemon serve.
    Replace,
}

/// How the service of one daemon ended.
struct End {
    status: ExitStatus,
    /// Whether it had been live.
    was_live: bool,
    /// Why it was not, in its words.
    refusal: Option<String>,
}

struct Supervisor<'a> {
    args: &'a MountArgs,
    place: Place,
    /// By its path of the start: when the file is replaced, the next daemon is of the new one.
    program: PathBuf,
    daemon_argv: Vec<OsString>,
    ready: Option<&'a mut Ready>,
    service: Arc<Service>,
    shown: progress::Progress,
    tell: Sender<Event>,
    events: Receiver<Event>,
    /// The mount was live at least once.
    announced: bool,
    /// A daemon serves, so the mount must answer.
    serving: Arc<AtomicBool>,
    stopping: bool,
    deaths: VecDeque<Instant>,
}

/// Mounts, and keeps the mount alive until somebody unmounts it.
pub(super) fn run(args: &MountArgs, daemon_argv: &[OsString], ready: Option<&mut Ready>) -> Result<()> {
    let service = Arc::new(Service::take());
    let log_file = args.log_file.as_deref().map(mount::open_log).transpose()?;
    mount::start_log(args, log_file.as_ref())?;
    let place = mountpoint::prepare(&args.store, &args.mountpoint)?;
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])
        .map_err(|e| Error::os("cannot install signal handlers", e))?;
    let (tell, events) = channel();
    listen_to_signals(signals, ready.is_some(), tell.clone())?;
    let daemon_argv = argv_of_daemon(daemon_argv, &place, ready.is_some());
    let mut supervisor = Supervisor {
        args,
        place,
        program: std::env::current_exe().map_err(|e| Error::os("cannot find the fencefs program", e))?,
        daemon_argv,
        ready,
        service,
        shown: progress::Progress::new(),
        tell,
        events,
        announced: false,
        serving: Arc::default(),
        stopping: false,
        deaths: VecDeque::new(),
    };
    supervisor.watch()?;
    supervisor.supervise()
}

/// The daemon's arguments: the paths as they are from everywhere, and none of what is only the supervisor's.
fn argv_of_daemon(argv: &[OsString], place: &Place, in_background: bool) -> Vec<OsString> {
    let mut argv: Vec<OsString> = argv.iter().filter(|arg| *arg != "--supervise").cloned().collect();
    argv[1] = place.store.clone().into();
    argv[2] = place.mountpoint.clone().into();
    if !in_background {
        argv.push("--keep-stderr".into());
    }
    argv
}

fn listen_to_signals(mut signals: Signals, in_background: bool, tell: Sender<Event>) -> Result<()> {
    let listen = move || {
        for signal in signals.forever() {
            let event = match signal {
                SIGHUP if in_background => continue,
                SIGUSR1 => Event::Replace,
                _ => Event::Stop,
            };
            if tell.send(event).is_err() {
                return;
            }
        }
    };
    let spawned = std::thread::Builder::new().name("signals".into()).spawn(listen);
    spawned.map(drop).map_err(|e| Error::os("cannot start the signal thread", e))
}

impl Supervisor<'_> {
    fn supervise(&mut self) -> Result<()> {
        let settings = self.args.mount_settings(mount::is_root());
        let mut connection = Connection::new(&self.place.store, &settings)?;
        loop {
            let Some(handed) = connection.hand() else {
                if self.announced {
                    log::warn!(
                        "the mount cannot be handed over: it is made anew, and what is open in it fails"
                    );
                }
                connection = Connection::new(&self.place.store, &settings)?;
                continue;
            };
            let end = self.serve(&mut connection, &handed)?;
            if self.is_over(&connection, &end)? {
                return Ok(());
            }
            self.judge(&end)?;
            if !end.was_live {
                // Nobody is to wait for a daemon that does not start: what waits fails, and the place stays taken.
                connection = Connection::new(&self.place.store, &settings)?;
                std::thread::sleep(RETRY_WAIT);
            }
        }
    }

    /// Whether the mount ended in order: somebody unmounted it, or told us to.
    fn is_over(&self, connection: &Connection, end: &End) -> Result<bool> {
        let mounts = mountinfo::read()?;
        let mount = mounts.iter().find(|m| is_of(m, connection));
        if let (true, Some(mount)) = (self.stopping, mount) {
            // It was told to end before it could answer.
            mountpoint::unmount(&mount.mountpoint, true)?;
        }
        Ok(self.stopping || (end.status.success() && end.was_live && mount.is_none()))
    }

    /// Counts a death; an error where there were too many, or the mount was never live.
    fn judge(&mut self, end: &End) -> Result<()> {
        let how = end.refusal.clone().unwrap_or_else(|| ending(end.status));
        if !self.announced {
            let what = if end.refusal.is_some() { String::new() } else { "the daemon died: ".to_owned() };
            return Err(Error::new(Kind::Invalid, format!("{what}{how}")));
        }
        let now = Instant::now();
        self.deaths.retain(|death| now.duration_since(*death) < GIVE_UP_TIME);
        if !(end.status.success() && end.was_live) {
            self.deaths.push_back(now);
        }
        if self.deaths.len() >= GIVE_UP_DEATHS {
            let sentence = format!(
                "the daemon died {GIVE_UP_DEATHS} times within {} seconds, last: {how}; it is not started again (mend \
                 that, then mount: the dead mount is cleared away by itself)",
                GIVE_UP_TIME.as_secs()
            );
            return Err(Error::new(Kind::Invalid, sentence));
        }
        if end.status.success() && end.was_live {
            log::info!("the daemon has let go of its mount; another one takes it over");
        } else {
            log::error!("the daemon died ({how}); another one takes its mount over");
            self.service.status("The daemon died and is started again");
        }
        Ok(())
    }

    /// Starts a daemon and stays with it until it is gone.
    fn serve(&mut self, connection: &mut Connection, handed: &Handed) -> Result<End> {
        let process = self.start(connection, handed)?;
        let (mut was_live, mut refusal, mut replace) = (false, None, false);
        if self.stopping {
            send(&process, Signal::TERM);
        }
        loop {
            match self.events.recv().expect("one sender is our own") {
                Event::Said(Line::Progress { phase, count }) => self.opening(&phase, count),
                Event::Said(Line::Answer(answer)) => connection.note_answer(answer),
                Event::Said(Line::Failed(sentence)) => refusal = Some(sentence),
                Event::Said(Line::Ready) => {
                    was_live = true;
                    if connection.is_unseen() {
                        connection.attach(&self.place.mountpoint, self.announced)?;
                    }
                    self.serving.store(true, Ordering::SeqCst);
                    self.live()?;
                    if std::mem::take(&mut replace) {
                        send(&process, Signal::USR1);
                    }
                }
                Event::Stop => {
                    self.stopping = true;
                    self.service.stopping();
                    send(&process, Signal::TERM);
                }
                Event::Replace if was_live => send(&process, Signal::USR1),
                // One that is starting does not listen yet, and may be of a program that was replaced since.
                Event::Replace => replace = true,
                Event::Ended(status) => {
                    self.serving.store(false, Ordering::SeqCst);
                    return Ok(End { status, was_live, refusal });
                }
            }
        }
    }

    fn start(&self, connection: &Connection, handed: &Handed) -> Result<OwnedFd> {
        let program = &self.program;
        let failed = |e| Error::os(format!("cannot start {}", program.display()), e);
        let device = connection.device().try_clone_to_owned().map_err(failed)?;
        let mut child = Command::new(program)
            .args(&self.daemon_argv)
            .arg(format!("--handed={handed}"))
            .env_remove(notify::SOCKET)
            .env_remove(notify::WATCHDOG)
            .stdin(Stdio::from(device))
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        // It cannot be reaped before the thread below begins.
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        let process = process.map_err(|e| failed(e.into()))?;
        let (tell, stdout) = (self.tell.clone(), child.stdout.take().expect("stdout is piped"));
        let listen = move || {
            for line in BufReader::new(stdout).lines().map_while(|line| line.ok()) {
                if let Some(line) = Line::parse(&line) {
                    drop(tell.send(Event::Said(line)));
                }
            }
            match child.wait() {
                Ok(status) => drop(tell.send(Event::Ended(status))),
                Err(e) => log::error!("cannot wait for the daemon: {e}"),
            }
        };
        let spawned = std::thread::Builder::new().name("daemon".into()).spawn(listen);
        spawned.map_err(|e| Error::os("cannot start a thread", e))?;
        Ok(process)
    }

    fn opening(&mut self, phase: &str, count: u64) {
        self.service.opening(phase, count);
        match &mut self.ready {
            Some(ready) => ready.progress(phase, count),
            None => self.shown.update(phase, count),
        }
    }

    /// The mount answers: whoever waits for that is told, once.
    fn live(&mut self) -> Result<()> {
        self.service.ready(&self.place.mountpoint);
        if std::mem::replace(&mut self.announced, true) {
            log::info!("the mount is served again");
            return Ok(());
        }
        match &mut self.ready {
            Some(ready) => ready.live(self.args.log_file.as_deref().map(mount::open_log).transpose()?),
            None => Ok(()),
        }
    }

    /// Tells a service manager that wants to hear it that the mount answers, or that a daemon is on its way to.
    fn watch(&self) -> Result<()> {
        let Some(interval) = self.service.watchdog() else { return Ok(()) };
        let (service, serving) = (Arc::clone(&self.service), Arc::clone(&self.serving));
        let mountpoint = self.place.mountpoint.clone();
        let watch = move || {
            loop {
                if serving.load(Ordering::SeqCst) {
                    // Whatever is answered is an answer. While none comes this thread is held, and the manager hears nothing.
                    let flags = AtFlags::STATX_FORCE_SYNC;
                    let answer = rustix::fs::statx(CWD, &mountpoint, flags, StatxFlags::BASIC_STATS);
                    log::debug!("the mount answers the watchdog: {:?}", answer.err());
                    service.well();
                }
                std::thread::sleep(interval);
            }
        };
        let spawned = std::thread::Builder::new().name("watchdog".into()).spawn(watch);
        spawned.map(drop).map_err(|e| Error::os("cannot start the watchdog thread", e))
    }
}

fn is_of(mount: &mountinfo::MountEntry, connection: &Connection) -> bool {
    mount.is_fencefs() && mount.device == (0, connection.number())
}

/// A daemon that is gone meanwhile needs no signal.
fn send(process: &OwnedFd, signal: Signal) {
    if let Err(e) = pidfd_send_signal(process.as_fd(), signal) {
        log::debug!("cannot signal the daemon: {e}");
    }
}
