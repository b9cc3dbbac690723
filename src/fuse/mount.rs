//! A mount's life: options, session, and an end that never hangs.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fuser::{BackingId, Config, MountOption, Session, SessionACL};
use parking_lot::{Condvar, Mutex};

use super::awake::Awake;
use super::handover::{Takeover, close_backings};
use super::known::Known;
use super::leave::{Gate, Hold};
use super::numbers::Incarnation;
use super::parked::Parked;
use super::replies::Streams;
use super::requests::Requests;
use super::{Fs, events, opens, replies, work};
use crate::config::{MountSettings, Passthrough};
use crate::control::removals::Removals;
use crate::control::report::MountFacts;
use crate::error::{Error, Kind, Result};
use crate::store::{ROOT, Store};

/// Threads for operations that may take long.
const POOL_THREADS: usize = 4;
/// Threads for requests whose fence has opened.
const FENCE_THREADS: usize = 2;
/// How long a mount that was told to stop waits for files that are still open.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// A live mount.
pub struct Mount {
    session: Session<Requests>,
    fs: Arc<Fs>,
    end: Arc<End>,
    mountpoint: PathBuf,
    answer: Option<Vec<u8>>,
    loops: usize,
    connection: Option<u32>,
    known_file: Option<File>,
}

/// Ends a mount from another thread.
#[derive(Clone)]
pub struct Stopper {
    end: Arc<End>,
    mountpoint: PathBuf,
    hold: Option<Hold>,
}

#[derive(Default)]
struct End {
    told: AtomicBool,
    /// The connection is another daemon's now.
    left: AtomicBool,
    over: Mutex<bool>,
    changed: Condvar,
}

impl Stopper {
    /// Detaches the mount, also with files open; `run` returns soon after. Readers keep what they have open.
    pub fn stop(&self) {
        if !self.end.told.swap(true, Ordering::SeqCst)
            && let Err(e) = detach(&self.mountpoint)
        {
            log::info!("{e}");
        }
        self.end.changed.notify_all();
    }

    /// Lets go of the connection, for another daemon to take over, and ends; `run` returns soon after. A mount that
    /// cannot be handed on goes on.
    pub fn leave(&self) {
        let Some(hold) = &self.hold else { return log::warn!("this mount cannot be handed on") };
        match hold.let_go() {
            Ok(()) => {
                self.end.left.store(true, Ordering::SeqCst);
                self.end.changed.notify_all();
            }
            Err(e) => log::error!("the mount is not handed on: {e}"),
        }
    }
}

fn options(store: &Store, settings: &MountSettings, is_handed: bool) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(store.path().to_string_lossy().into_owned()),
        // As a custom option: the crate leaves its own subtype option out when root mounts.
        MountOption::CUSTOM("subtype=fencefs".into()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
    ];
    let mut nosuid = true;
    for option in &settings.kernel_options {
        config.mount_options.push(match option.as_str() {
            "ro" => MountOption::RO,
            "noexec" => MountOption::NoExec,
            "exec" => MountOption::Exec,
            "noatime" => MountOption::NoAtime,
            "atime" => MountOption::Atime,
            "sync" => MountOption::Sync,
            "dirsync" => MountOption::DirSync,
            "suid" => {
                nosuid = false;
                MountOption::Suid
            }
            "rw" | "dev" | "nodev" | "nosuid" => continue,
            other => MountOption::CUSTOM(other.into()),
        });
    }
    if nosuid {
        config.mount_options.push(MountOption::NoSuid);
    }
    config.acl = if settings.allow_other { SessionACL::All } else { SessionACL::Owner };
    if settings.passthrough == Passthrough::Off {
        // The daemon copies every byte: more than one loop pays.
        config.n_threads = Some(std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 4)));
        // A connection that may be handed on is read through one descriptor, or it could not be let go of.
        config.clone_fd = !is_handed;
    }
    config
}

impl Mount {
    /// Tells what the mount alone knows of itself, whenever it is called.
    pub fn facts(&self) -> impl Fn() -> MountFacts + Send + Sync + 'static {
        let fs = Arc::clone(&self.fs);
        move || fs.facts()
    }

    /// Mounts a store at `mountpoint`, or serves the connection that was handed over; live when this returns.
    pub fn new(
        removals: Arc<Removals>,
        mountpoint: &Path,
        settings: &MountSettings,
        mut takeover: Option<Takeover>,
    ) -> Result<Mount> {
        let store = Arc::clone(removals.store());
        let top = match &settings.tenant {
            Some(tenant) => match store.tenant_node(tenant) {
                Ok(node) => node,
                Err(_) => store.make_tenant(
                    tenant.as_str().as_bytes(),
                    0o755,
                    rustix::process::geteuid().as_raw(),
                    rustix::process::getegid().as_raw(),
                )?,
            },
            None => ROOT,
        };
        let config = options(&store, settings, takeover.is_some());
        let loops = config.n_threads.unwrap_or(1);
        let connection = takeover.as_ref().map(Takeover::connection);
        let known = match &mut takeover {
            Some(takeover) => Known::adopt(&store, &takeover.take_known()?),
            None => Known::default(),
        };
        let known_file = takeover.as_ref().map(Takeover::known_file).transpose()?;
        let incarnation = takeover.as_ref().map(Takeover::incarnation).unwrap_or_default();
        let fs = Arc::new(Fs {
            settings: settings.clone(),
            incarnation,
            gate: Gate::default(),
            known,
            top,
            passthrough: AtomicBool::new(false),
            opens: opens::Opens::new(incarnation),
            pool: work::Pool::start("fencefs-work", POOL_THREADS)?,
            fences: Parked::start("fence", FENCE_THREADS)?,
            notices: Mutex::new(None),
            late_notices: Mutex::new(None),
            notifier: Mutex::new(None),
            stale: Mutex::default(),
            uncached: Mutex::default(),
            sent_back: Mutex::default(),
            listed: Mutex::default(),
            streams: Streams::start(incarnation)?,
            awake: Awake::start(store.settings().keep_awake)?,
            store,
            removals,
        });
        let requests = Requests(Arc::clone(&fs));
        let (session, answer) = match takeover {
            Some(takeover) => takeover.session(requests, config)?,
            None => {
                let session = Session::new(requests, mountpoint, &config);
                (
                    session.map_err(|e| Error::os(format!("cannot mount at {}", mountpoint.display()), e))?,
                    None,
                )
            }
        };
        let mount = Mount {
            session,
            fs,
            end: Arc::default(),
            mountpoint: mountpoint.to_owned(),
            answer,
            loops,
            connection,
            known_file,
        };
        mount.probe_passthrough()?;
        *mount.fs.notices.lock() = Some(work::start_notices("fencefs-notify", mount.session.notifier())?);
        *mount.fs.late_notices.lock() = Some(work::start_notices("fencefs-late", mount.session.notifier())?);
        *mount.fs.notifier.lock() = Some(mount.session.notifier());
        // The root is not looked up, so its attributes and its listing are not forgotten with the entries.
        if incarnation != Incarnation::default() {
            mount.fs.forget_attributes(top);
        }
        events::start(&mount.fs, mount.session.notifier())?;
        replies::start_outcomes(&mount.fs)?;
        Ok(mount)
    }

    /// Whether the kernel takes a backing file of this store from this process.
    fn probe_passthrough(&self) -> Result<()> {
        let wanted = self.fs.settings.passthrough;
        if wanted == Passthrough::Off {
            return Ok(());
        }
        let offered = self.fs.is_passthrough();
        let tried = if offered {
            let file = self.fs.store.probe_file()?;
            // The id is not given back: one file without a name, for as long as the mount lives.
            BackingId::create_raw(&self.session, &file).map_err(|e| e.to_string())
        } else {
            Err("this kernel does not offer it; Linux 6.9 does".to_owned())
        };
        match tried {
            Ok(id) if self.fs.incarnation != Incarnation::default() => close_backings(&self.session, id),
            Ok(_) => Ok(()),
            Err(why) if wanted == Passthrough::On => Err(Error::new(
                Kind::Unsupported,
                format!(
                    "kernel passthrough cannot work here: {why} (mount with --passthrough auto, or as root)"
                ),
            )),
            Err(why) => {
                log::info!("no kernel passthrough ({why}); the daemon copies");
                self.fs.passthrough.store(false, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// What was answered to the kernel's first message, where another daemon could take the connection over.
    pub fn answer(&self) -> Option<&[u8]> {
        self.answer.as_deref()
    }

    /// What ends this mount from another thread.
    pub fn stopper(&self) -> Result<Stopper> {
        let handed = self.connection.zip(self.known_file.as_ref()).filter(|_| self.answer.is_some());
        let hold = handed.map(|(connection, known)| {
            let parts = (&self.session, connection, known);
            Hold::new(&self.fs, parts, &self.mountpoint, self.loops)
        });
        let (end, mountpoint) = (Arc::clone(&self.end), self.mountpoint.clone());
        Ok(Stopper { end, mountpoint, hold: hold.transpose()? })
    }

    /// Serves until the mount is gone: unmounted by anyone, aborted, or stopped.
    pub fn run(self) -> Result<()> {
        let Mount { session, fs, end, .. } = self;
        let (tell, done) = (Arc::clone(&end), Arc::new(Mutex::new(Ok(()))));
        let result = Arc::clone(&done);
        let serve = move || {
            *result.lock() = session.run().map_err(|e| Error::os("the FUSE session ended", e));
            *tell.over.lock() = true;
            tell.changed.notify_all();
        };
        let serving = std::thread::Builder::new().name("fencefs-session".into()).spawn(serve);
        drop(serving.map_err(|e| Error::os("cannot start the session thread", e))?);
        let mut over = end.over.lock();
        let mut deadline = None;
        while !*over {
            if end.left.load(Ordering::SeqCst) {
                break;
            }
            if end.told.load(Ordering::SeqCst) {
                let until = *deadline.get_or_insert_with(|| Instant::now() + STOP_GRACE);
                if end.changed.wait_until(&mut over, until).timed_out() {
                    log::info!("files are still open; the mount is detached and ends now");
                    break;
                }
            } else {
                end.changed.wait(&mut over);
            }
        }
        drop(over);
        *fs.notices.lock() = None;
        *fs.late_notices.lock() = None;
        fs.fences.end();
        fs.streams.end();
        *fs.notifier.lock() = None;
        fs.opens.discard_all();
        std::mem::replace(&mut *done.lock(), Ok(()))
    }
}

/// Detaches the mount at `mountpoint`, also with files open.
pub fn detach(mountpoint: &Path) -> Result<()> {
    rustix::mount::unmount(mountpoint, rustix::mount::UnmountFlags::DETACH)
        .map_err(|e| Error::os(format!("cannot detach {}", mountpoint.display()), e))
}
