//! How a daemon lets go of a connection that another one is to take over: no request is lost between them.
//!
//! First the *gate* is closed: new opens are taken and not answered, until nobody has a file open that only this daemon can
//! serve. Then the event loops are led away from the kernel: their descriptor becomes a socket, from which each gets one
//! message that has it *rest*; a loop that already waits in the kernel takes a request of ours before. What they had taken
//! is answered through the socket, which is relayed. At the end the kernel is told to ask again whatever has no answer, and
//! keeps it for the next daemon.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::net::sockopt::set_socket_send_buffer_size_force;

use super::Fs;
use super::handover::{RAISE_EPOCH, notify};
use super::work::{Job, Notice, thread};
use crate::error::{Error, Kind, Result};
use crate::os::device::Number;

/// How long a daemon serves at least before it lets go.
const LEAST_SERVICE: Duration = Duration::from_millis(500);
/// How long to wait altogether for programs that have a file open which the next daemon cannot serve.
const DRAIN_WAIT: Duration = Duration::from_secs(10);
/// How long the gate stays closed for them at a time: one of them may need to open another file first.
const GATE_WAIT: Duration = Duration::from_millis(250);
const GATE_OPEN: Duration = Duration::from_millis(50);
const DRAIN_POLL: Duration = Duration::from_millis(1);
/// How long what is under way may take.
const SETTLE_WAIT: Duration = Duration::from_secs(5);
/// More than any answer.
const MOST_ANSWER_BYTES: usize = (1 << 20) + 4096;
/// What no answer is: it ends the relay.
const END: &[u8] = b"end";
/// `FUSE_NOTIFY_RESEND`.
const ASK_AGAIN: i32 = 7;

/// The inode number by which a loop is told to rest: the kernel has no such inode.
pub(super) const REST: u64 = u64::MAX;

/// Whether opens are answered, and how many event loops rest.
#[derive(Default)]
pub(super) struct Gate {
    closed: AtomicBool,
    /// Opens that wait, while it is closed.
    held: Mutex<Option<Vec<Job>>>,
    resting: Mutex<Resting>,
    changed: Condvar,
}

#[derive(Default)]
struct Resting {
    loops: usize,
    /// How often the loops were sent back to work.
    woken: u64,
}

impl Gate {
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Lets a request that opens something through, or holds it.
    pub(super) fn pass(&self, open: impl FnOnce() + Send + 'static) {
        if self.is_closed()
            && let Some(held) = &mut *self.held.lock()
        {
            return held.push(Box::new(open));
        }
        open();
    }

    fn close(&self) {
        self.held.lock().get_or_insert_default();
        self.closed.store(true, Ordering::Release);
    }

    /// What was held is done after all.
    fn open(&self) {
        self.closed.store(false, Ordering::Release);
        for open in self.held.lock().take().into_iter().flatten() {
            open();
        }
    }

    /// What was held is the next daemon's: it has no answer, not even an error, as dropping it would give.
    fn abandon(&self) {
        std::mem::forget(self.held.lock().replace(Vec::new()));
    }

    /// For an event loop: rests until it is sent back to work, or the process ends.
    pub(super) fn rest(&self) {
        let mut resting = self.resting.lock();
        let before = resting.woken;
        resting.loops += 1;
        self.changed.notify_all();
        self.changed.wait_while(&mut resting, |resting| resting.woken == before);
    }

    fn wait_for_rest(&self, loops: usize) -> bool {
        let mut resting = self.resting.lock();
        !self.changed.wait_while_for(&mut resting, |r| r.loops < loops, SETTLE_WAIT).timed_out()
    }

    fn wake(&self) {
        let mut resting = self.resting.lock();
        resting.loops = 0;
        resting.woken += 1;
        self.changed.notify_all();
    }
}

/// What is needed to let go.
#[derive(Clone)]
pub(super) struct Hold {
    fs: Weak<Fs>,
    /// What the event loops read from.
    read: Number,
    kernel: Arc<OwnedFd>,
    known: Arc<File>,
    connection: u32,
    mountpoint: PathBuf,
    loops: usize,
    begun: Instant,
}

impl Hold {
    pub(super) fn new(
        fs: &Arc<Fs>,
        (session, connection, known): (&impl AsFd, u32, &File),
        mountpoint: &Path,
        loops: usize,
    ) -> Result<Self> {
        let kernel = session.as_fd().try_clone_to_owned();
        let kernel = kernel.map_err(|e| Error::os("cannot keep the connection open", e))?;
        Ok(Hold {
            fs: Arc::downgrade(fs),
            read: Number::of(session.as_fd()),
            kernel: Arc::new(kernel),
            known: Arc::new(known.try_clone().map_err(|e| Error::os("cannot keep a file open", e))?),
            connection,
            mountpoint: mountpoint.to_owned(),
            loops,
            begun: Instant::now(),
        })
    }

    /// When this returns no event loop reads from the kernel any more, all that was done is answered, and all that was not
    /// is asked again. An error: the mount goes on as before.
    pub(super) fn let_go(&self) -> Result<()> {
        let Some(fs) = self.fs.upgrade() else { return Ok(()) };
        // Who was sent back to look its path up again comes back, and is sent back once only.
        std::thread::sleep(LEAST_SERVICE.saturating_sub(self.begun.elapsed()));
        // Through this the loops are led away. It is opened while they still answer.
        let root = rustix::fs::openat(CWD, &self.mountpoint, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| Error::os(format!("cannot open {}", self.mountpoint.display()), e))?;
        let at = rustix::fs::statx(&root, "", ASKING_NOBODY, StatxFlags::TYPE);
        if at.map_err(|e| Error::os("cannot look at the mount", e))?.stx_dev_minor != self.connection {
            let sentence = format!("another mount covers {}", self.mountpoint.display());
            return Err(Error::new(Kind::Busy, sentence));
        }
        let root = Arc::new(root);
        let deadline = Instant::now() + DRAIN_WAIT;
        loop {
            fs.gate.close();
            let is_last = Instant::now() >= deadline;
            let done =
                if self.drained(&fs) || is_last { self.lead_away(&fs, &root, is_last) } else { Ok(false) };
            if matches!(done, Ok(true)) {
                fs.gate.abandon();
                self.write_down(&fs);
                return self.ask_again();
            }
            fs.gate.open();
            done?;
            std::thread::sleep(GATE_OPEN);
        }
    }

    /// Waits a little until nothing is open that only this daemon can serve.
    fn drained(&self, fs: &Fs) -> bool {
        let until = Instant::now() + GATE_WAIT;
        while fs.needs_this_daemon() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(DRAIN_POLL);
        }
        fs.pool.settle(SETTLE_WAIT);
        true
    }

    /// Has all loops rest and all answers given; whether it stays so. What was opened at the last moment is a reason to
    /// go back, unless there is no more time.
    fn lead_away(&self, fs: &Arc<Fs>, root: &Arc<OwnedFd>, is_last: bool) -> Result<bool> {
        let failed = |e| Error::os("cannot make a socket", e);
        let (loops, answers) = UnixDatagram::pair().map_err(failed)?;
        // More than anybody is allowed by default, for reads that are answered through it.
        set_socket_send_buffer_size_force(&loops, MOST_ANSWER_BYTES).map_err(|e| failed(e.into()))?;
        let kernel = Arc::clone(&self.kernel);
        let told_to_rest = answers.try_clone().map_err(failed)?;
        let relay = std::thread::Builder::new().name("fencefs-relay".into());
        let relay = relay.spawn(move || relay_answers(&answers, &kernel)).map_err(failed)?;
        self.read.becomes(loops.as_fd())?;
        let rest = (0..self.loops).try_for_each(|_| {
            told_to_rest.send(&message_to_rest()).map(drop).map_err(failed)?;
            let root = Arc::clone(root);
            // One that nobody takes any more is the next daemon's, and ends with this process.
            thread("fencefs-leave", move || {
                if let Err(e) = rustix::fs::statx(&*root, "", ASKING, StatxFlags::TYPE) {
                    log::debug!("a request to lead a loop away: {e}");
                }
            })
        });
        let rests = rest.is_ok() && fs.gate.wait_for_rest(self.loops);
        fs.settle(SETTLE_WAIT);
        let stays = rests && (is_last || !fs.needs_this_daemon());
        if stays {
            // They wait for something, and have done nothing yet.
            fs.fences.abandon(SETTLE_WAIT);
            fs.streams.abandon(SETTLE_WAIT);
            fs.settle(SETTLE_WAIT);
        } else {
            self.read.becomes(self.kernel.as_fd())?;
            fs.gate.wake();
        }
        loops.send(END).map_err(failed)?;
        if relay.join().is_err() {
            log::error!("the relay of answers panicked");
        }
        rest.map(|()| stays)
    }

    /// What the kernel knows is for the next daemon to know. Without it, it would refuse more than it need.
    fn write_down(&self, fs: &Fs) {
        let text = fs.known.describe(&fs.store, |id| fs.ino(id).0, fs.opens.nodes());
        let written = self.known.set_len(0).and_then(|()| self.known.write_all_at(text.as_bytes(), 0));
        if let Err(e) = written {
            log::warn!("the next daemon is not told what is open ({e}): programs may have to open it again");
        }
    }

    /// Has the kernel look up again what it remembers, and ask again for whatever was taken and not answered.
    fn ask_again(&self) -> Result<()> {
        let told =
            [RAISE_EPOCH, ASK_AGAIN].into_iter().try_for_each(|code| notify(self.kernel.as_fd(), code));
        told.map_err(|e| Error::os("cannot have the kernel ask again", e))
    }
}

const ASKING_NOBODY: AtFlags = AtFlags::EMPTY_PATH.union(AtFlags::STATX_DONT_SYNC);
const ASKING: AtFlags = AtFlags::EMPTY_PATH.union(AtFlags::STATX_FORCE_SYNC);

/// A FORGET, which has no answer: length, operation, number, inode, user, group, process, padding; references.
fn message_to_rest() -> [u8; 48] {
    let mut message = [0; 48];
    message[..4].copy_from_slice(&48_u32.to_ne_bytes());
    message[4..8].copy_from_slice(&2_u32.to_ne_bytes());
    message[16..24].copy_from_slice(&REST.to_ne_bytes());
    message
}

/// Hands answers on to the kernel, each as one message, until it is told to end.
fn relay_answers(answers: &UnixDatagram, kernel: &OwnedFd) {
    let mut buffer = vec![0; MOST_ANSWER_BYTES];
    while let Ok(length) = answers.recv(&mut buffer) {
        match &buffer[..length] {
            END => return,
            answer => {
                if let Err(e) = rustix::io::write(kernel, answer) {
                    log::debug!("what was answered is not asked any more: {e}");
                }
            }
        }
    }
}

impl Fs {
    /// Whether anything is open that no other daemon can serve: what is written, what the daemon copies, control files.
    fn needs_this_daemon(&self) -> bool {
        self.opens.need_the_daemon() || self.streams.are_open()
    }

    /// Waits until what was begun is done and answered.
    fn settle(&self, wait: Duration) {
        self.pool.settle(wait);
        let (tell, told) = mpsc::channel();
        self.notice(Notice::Settled { _tell: tell });
        if told.recv_timeout(wait) == Err(mpsc::RecvTimeoutError::Timeout) {
            log::warn!("a close waits longer than {wait:?} for a directory: it is cut off");
        }
    }
}
