//! The threads beside the event loop: pools for operations that may take long, and two threads that tell the kernel
//! what to forget.
//!
//! A notification can wait for a directory lock that some process holds while the daemon works for it; so the event
//! loop never notifies, and no operation waits for a notification but by leaving its reply behind. Where the process may
//! wait for a fence meanwhile, the notification goes to the second thread, for which nobody waits.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use fuser::{INodeNo, Notifier};
use parking_lot::Mutex;

use crate::error::{Error, Result};

/// Something to run on the pool.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// A few threads that run jobs in order of arrival.
pub(super) struct Pool {
    jobs: mpsc::Sender<Job>,
    threads: usize,
}

pub(super) fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(run);
    spawned.map(drop).map_err(|e| Error::os(format!("cannot start the thread {name}"), e))
}

impl Pool {
    pub(super) fn start(name: &str, threads: usize) -> Result<Pool> {
        let (sender, receiver) = mpsc::channel::<Job>();
        let receiver = Arc::new(Mutex::new(receiver));
        for n in 0..threads {
            let receiver = Arc::clone(&receiver);
            thread(&format!("{name}-{n}"), move || {
                loop {
                    let job = receiver.lock().recv();
                    match job {
                        Ok(job) => job(),
                        Err(_) => return,
                    }
                }
            })?;
        }
        Ok(Pool { jobs: sender, threads })
    }

    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) {
        if let Err(mpsc::SendError(job)) = self.jobs.send(Box::new(job)) {
            job();
        }
    }

    /// Waits until every job of before is done, at most `wait`: all threads meet.
    pub(super) fn settle(&self, wait: Duration) {
        let (meeting, (tell, told)) = (Arc::new(Barrier::new(self.threads)), mpsc::channel());
        for _ in 0..self.threads {
            let (meeting, tell) = (Arc::clone(&meeting), tell.clone());
            self.run(move || {
                // Nobody listens any more where it took too long.
                if meeting.wait().is_leader() && tell.send(()).is_err() {
                    log::debug!("what was cut off has ended");
                }
            });
        }
        if told.recv_timeout(wait).is_err() {
            log::warn!("something takes longer than {wait:?}: it is cut off");
        }
    }
}

/// Something that the kernel should forget.
pub(super) enum Notice {
    /// The entry of a directory, and then whatever waited for that.
    Entry { parent: INodeNo, name: Box<[u8]>, then: Option<Job> },
    /// Cached content and attributes of an inode.
    Inode { ino: INodeNo },
    /// Nothing: when it is dropped, all that came before is done.
    Settled { _tell: mpsc::Sender<()> },
}

/// A thread that notifies. It owns nothing that an operation needs.
pub(super) fn start_notices(name: &str, notifier: Notifier) -> Result<mpsc::Sender<Notice>> {
    let (sender, receiver) = mpsc::channel();
    thread(name, move || {
        while let Ok(notice) = receiver.recv() {
            match notice {
                Notice::Entry { parent, name, then } => {
                    forget_entry(&notifier, parent, &name);
                    if let Some(then) = then {
                        then();
                    }
                }
                // Dropped with the notice.
                Notice::Settled { .. } => {}
                Notice::Inode { ino } => {
                    if let Err(e) = notifier.inval_inode(ino, 0, 0) {
                        log::debug!("the kernel did not forget inode {ino:?}: {e}");
                    }
                }
            }
        }
    })?;
    Ok(sender)
}

pub(super) fn forget_entry(notifier: &Notifier, parent: INodeNo, name: &[u8]) {
    if let Err(e) = notifier.inval_entry(parent, OsStr::from_bytes(name)) {
        // ENOTEMPTY, ENOTDIR: the kernel has something else there already. ENOTCONN: the mount is gone.
        log::debug!("the kernel did not forget an entry: {e}");
    }
}
