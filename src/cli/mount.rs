//! `fencefs mount`: the daemon's whole life in the foreground; the background is [`super::daemon`]'s.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::daemon::{self, Ready};
use super::mount_args::MountArgs;
use super::mountinfo::{self, MountEntry};
use super::mountpoint::{self, Place};
use super::notify::Service;
use super::{guard, progress, supervise};
use crate::config::{AttachLegacy, Coordinator, StoreSettings};
use crate::control::removals::Removals;
use crate::control::report;
use crate::control::scrape::Listener;
use crate::error::{Error, Kind, Result};
use crate::fuse::{Handed, Mount, Stopper, Takeover};

/// How long a store may stay locked that is mounted nowhere: its last daemon is closing it.
const CLOSING_WAIT: Duration = Duration::from_secs(10);

/// Mounts, in this process or in a daemon of its own.
pub(super) fn run(args: &MountArgs, daemon_argv: &[OsString]) -> Result<ExitCode> {
    if args.ready_pipe {
        let mut ready = Ready::take()?;
        let served = match args.supervise && args.handed.is_none() {
            true => supervise::run(args, daemon_argv, Some(&mut ready)),
            false => serve(args, Some(&mut ready)),
        };
        return match served {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(e) if ready.is_waiting() => {
                ready.failed(&e);
                Ok(ExitCode::FAILURE)
            }
            Err(e) => Err(e),
        };
    }
    let place = mountpoint::prepare(&args.store, &args.mountpoint)?;
    check_fuse(args)?;
    if args.foreground && args.supervise {
        supervise::run(args, daemon_argv, None)?;
    } else if args.foreground {
        serve(args, None)?;
    } else {
        daemon::start(&place, daemon_argv)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the store, mounts it, serves until the mount is gone, closes the store.
fn serve(args: &MountArgs, mut ready: Option<&mut Ready>) -> Result<()> {
    let log_file = args.log_file.as_deref().map(open_log).transpose()?;
    start_log(args, log_file.as_ref())?;
    // The notification socket of a service manager is its main process's.
    let service = Arc::new(Service::take());
    let takeover = args.handed.clone().map(take_connection).transpose()?;
    let place = match &takeover {
        // Its own mount is there already, or about to be, and answers nothing yet.
        Some(_) => Place::given(&args.store, &args.mountpoint),
        None => mountpoint::prepare(&args.store, &args.mountpoint)?,
    };
    // By a path from here, before the daemon goes elsewhere.
    let attach = args.attach(&place.mountpoint)?;
    let coordinator = args.coordinator()?;
    // Before the store is touched: a port that is taken is found out at once.
    let metrics = args.metrics_listen.map(Listener::bind).transpose()?;
    raise_file_limit();
    // Modes are the callers' own: the kernel hands their umask along.
    rustix::process::umask(rustix::fs::Mode::empty());
    std::env::set_current_dir("/").map_err(|e| Error::os("cannot change to the root directory", e))?;

    let removals = match &mut ready {
        Some(ready) => {
            open(&place, args, (attach, &coordinator), &mut |phase, count| ready.progress(phase, count))?
        }
        None => {
            let mut shown = progress::Progress::new();
            open(&place, args, (attach, &coordinator), &mut |phase, count| {
                shown.update(phase, count);
                service.opening(phase, count);
            })?
        }
    };
    let live = Live { ready, service: Arc::clone(&service), log_file };
    let served = mount_and_run(&place, args, &removals, metrics, live, takeover);
    let closed = removals.close();
    served.and(closed)
}

/// Who is told that the mount is live.
struct Live<'a> {
    ready: Option<&'a mut Ready>,
    service: Arc<Service>,
    log_file: Option<File>,
}

impl Live<'_> {
    fn tell(self, place: &Place, args: &MountArgs, mount_answer: Option<&[u8]>) -> Result<()> {
        let Live { ready, service, log_file } = self;
        let Some(ready) = ready else {
            service.ready(&place.mountpoint);
            return Ok(());
        };
        ready.answered(mount_answer);
        if args.keep_stderr { ready.live_here() } else { ready.live(log_file) }
    }
}

/// The connection on stdin, which is nothing's any more then.
fn take_connection(handed: Handed) -> Result<Takeover> {
    let failed = |e: rustix::io::Errno| Error::os("cannot take the connection from stdin", e);
    let kept = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3).map_err(failed)?;
    rustix::stdio::dup2_stdin(daemon::dev_null()?).map_err(failed)?;
    handed.take(kept)
}

fn mount_and_run(
    place: &Place,
    args: &MountArgs,
    removals: &Arc<Removals>,
    metrics: Option<Listener>,
    live: Live<'_>,
    takeover: Option<Takeover>,
) -> Result<()> {
    let in_background = live.ready.is_some();
    let service = Arc::clone(&live.service);
    let connection = takeover.as_ref().map(Takeover::connection);
    // Before the mount: a signal that comes in between must find the handler, or the mount outlives the daemon.
    let hands_on = connection.map(|_| SIGUSR1);
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP].into_iter().chain(hands_on))
        .map_err(|e| Error::os("cannot install signal handlers", e))?;
    let handle = signals.handle();
    let settings = args.mount_settings(is_root());
    let mount = Mount::new(Arc::clone(removals), &place.mountpoint, &settings, takeover)?;
    match connection {
        Some(connection) => guard::start_patient(&place.mountpoint, connection),
        None => guard::start(&place.mountpoint),
    }
    let (removals, facts) = (Arc::clone(removals), mount.facts());
    let scrapes = metrics.map(|m| m.serve(move || report::metrics(&removals, facts()))).transpose();
    let end = mount.stopper()?;
    let ending = end.clone();
    let running = scrapes.and_then(|scrapes| {
        let stopper = std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || stop_on_signal(signals, &ending, &service, in_background))
            .map_err(|e| Error::os("cannot start the signal thread", e))?;
        live.tell(place, args, mount.answer())?;
        Ok((stopper, scrapes))
    });
    let (stopper, scrapes) = match running {
        Ok(running) => running,
        Err(e) => {
            end.stop();
            mount.run()?;
            return Err(e);
        }
    };
    let served = mount.run();
    drop(scrapes);
    handle.close();
    if stopper.join().is_err() {
        log::error!("the signal thread panicked");
    }
    served
}

/// Detaches the mount at each request to stop. A hangup stops only what a terminal holds.
fn stop_on_signal(mut signals: Signals, mount: &Stopper, service: &Service, in_background: bool) {
    for signal in signals.forever() {
        if signal == SIGHUP && in_background {
            continue;
        }
        if signal == SIGUSR1 {
            mount.leave();
            continue;
        }
        log::info!("signal {signal}: unmounting");
        service.stopping();
        mount.stop();
    }
}

/// Opens the store. One that is locked, yet mounted nowhere, is being closed by its last daemon: wait for that.
fn open(
    place: &Place,
    args: &MountArgs,
    (attach, coordinator): (Option<AttachLegacy>, &Coordinator),
    progress: &mut dyn FnMut(&str, u64),
) -> Result<Arc<Removals>> {
    let settings = StoreSettings { attach, ..args.store_settings()? };
    let deadline = Instant::now() + CLOSING_WAIT;
    loop {
        let locked = match Removals::open(&place.store, &settings, coordinator, progress) {
            Err(e) if e.kind() == Kind::Locked => e,
            other => return other,
        };
        let mounts = mountinfo::read()?;
        let other = |m: &&MountEntry| m.is_fencefs() && m.source == place.store && args.handed.is_none();
        if let Some(mount) = mounts.iter().find(other) {
            let there = mount.mountpoint.display();
            return Err(Error::new(
                Kind::Locked,
                format!("{locked}: it is mounted at {there} (fencefs umount {there})"),
            ));
        }
        if Instant::now() >= deadline {
            return Err(locked);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Refuses early what would fail late, with what to do about it.
fn check_fuse(args: &MountArgs) -> Result<()> {
    if !Path::new("/dev/fuse").exists() {
        return Err(Error::new(
            Kind::Unsupported,
            "cannot mount: /dev/fuse does not exist (load the module: modprobe fuse; into a container: --device /dev/fuse)",
        ));
    }
    let asked = args.mount_settings(is_root()).allow_other;
    if asked && !is_root() && !user_allow_other() {
        return Err(Error::new(
            Kind::NotPermitted,
            "cannot mount with --allow-other: root has not allowed it (add user_allow_other to /etc/fuse.conf)",
        ));
    }
    if let Err(e) = OpenOptions::new().read(true).write(true).open("/dev/fuse")
        && e.kind() == std::io::ErrorKind::PermissionDenied
    {
        return Err(Error::new(
            Kind::NotPermitted,
            "cannot mount: this user may not open /dev/fuse (as root: chmod 666 /dev/fuse, which is its usual mode)",
        ));
    }
    Ok(())
}

fn user_allow_other() -> bool {
    let conf = std::fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    conf.lines().any(|line| line.trim() == "user_allow_other")
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Every open key costs a descriptor: take all that the hard limit allows.
fn raise_file_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(e) = rustix::process::setrlimit(Resource::Nofile, raised) {
        log::warn!("cannot raise the limit of open files from {:?}: {e}", limit.current);
    }
}

pub(super) fn open_log(path: &Path) -> Result<File> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map_err(|e| Error::os(format!("cannot open log file {}", path.display()), e))
}

pub(super) fn start_log(args: &MountArgs, log_file: Option<&File>) -> Result<()> {
    let mut builder = env_logger::Builder::new();
    builder.filter_level(args.log_level);
    if args.log_level < log::LevelFilter::Debug {
        // The crate warns of what is ordinary: a mount that is gone, a client that was killed.
        builder.filter_module("fuser", log::LevelFilter::Off);
    }
    if let Some(file) = log_file {
        let file = file.try_clone().map_err(|e| Error::os("cannot keep the log file open", e))?;
        builder.target(env_logger::Target::Pipe(Box::new(file)));
    }
    builder.try_init().map_err(|e| Error::new(Kind::Invalid, format!("cannot start logging: {e}")))
}
