//! Requests that wait without holding a thread: for a fence to open, or for a line on a control file.
//!
//! A parked job is run again when something has changed, and a last time at its deadline. It is evaluated afresh each
//! time: what it meant may be gone by then. Jobs run on threads of their own, so that thousands of them that wake up
//! together stand in nobody's way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Fs;
use super::work::{Pool, thread};
use crate::error::{Kind, Result};

/// Something to be tried until it says that it is done; with `true` for the last time, and then it must be.
pub(super) type Attempt = Box<dyn FnMut(bool) -> bool + Send>;

#[derive(Default)]
struct State {
    /// By deadline and order of arrival.
    waiting: BTreeMap<(Instant, u64), Attempt>,
    arrivals: u64,
    /// Something has changed since the jobs were run last.
    changed: bool,
    ended: bool,
    /// What waits is not to be answered, not even by the error that dropping it is.
    abandoned: bool,
}

#[derive(Default)]
struct Place {
    state: Mutex<State>,
    woken: Condvar,
    changes: AtomicU64,
}

/// Jobs that wait.
pub(super) struct Parked(Arc<Place>, Arc<Pool>);

impl Parked {
    /// Starts the thread that wakes jobs up, and those that run them.
    pub(super) fn start(name: &str, threads: usize) -> Result<Parked> {
        let place = Arc::new(Place::default());
        let pool = Arc::new(Pool::start(&format!("fencefs-{name}"), threads)?);
        let parked = Parked(Arc::clone(&place), Arc::clone(&pool));
        thread(&format!("fencefs-{name}"), move || place.wake(&pool))?;
        Ok(parked)
    }

    /// How much has changed so far: read before an attempt, and given to [`Parked::park`] when it failed, so that no
    /// change in between is missed.
    pub(super) fn changes(&self) -> u64 {
        self.0.changes.load(Ordering::Acquire)
    }

    /// Something has changed: whoever waits tries again.
    pub(super) fn change(&self) {
        self.0.changes.fetch_add(1, Ordering::AcqRel);
        self.0.state.lock().changed = true;
        self.0.woken.notify_all();
    }

    /// Has a job wait that was tried when `seen` had changed.
    pub(super) fn park(&self, seen: u64, deadline: Instant, attempt: Attempt) {
        self.0.park(seen, deadline, attempt);
    }

    /// Has no job tried any more, and answers none: somebody else is asked. Waits for those that run, at most `wait`.
    pub(super) fn abandon(&self, wait: Duration) {
        let mut state = self.0.state.lock();
        (state.ended, state.abandoned) = (true, true);
        std::mem::forget(std::mem::take(&mut state.waiting));
        drop(state);
        self.0.woken.notify_all();
        self.1.settle(wait);
    }

    /// Drops every job, and whatever it holds: nobody waits for its answer any more.
    pub(super) fn end(&self) {
        let mut state = self.0.state.lock();
        state.ended = true;
        let dropped = std::mem::take(&mut state.waiting);
        drop(state);
        self.0.woken.notify_all();
        drop(dropped);
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.end();
    }
}

impl Place {
    fn park(&self, seen: u64, deadline: Instant, attempt: Attempt) {
        let mut state = self.state.lock();
        if state.ended {
            if state.abandoned {
                std::mem::forget(attempt);
            }
            return;
        }
        state.arrivals += 1;
        let at = (deadline, state.arrivals);
        state.waiting.insert(at, attempt);
        state.changed |= seen != self.changes.load(Ordering::Acquire);
        // Only these two cut the thread's sleep short.
        if state.changed || state.waiting.first_key_value().is_some_and(|(first, _)| *first == at) {
            self.woken.notify_all();
        }
    }

    /// Wakes jobs up until there is nobody to wake.
    fn wake(self: &Arc<Self>, pool: &Pool) {
        let mut state = self.state.lock();
        while !state.ended {
            let due = if std::mem::take(&mut state.changed) {
                std::mem::take(&mut state.waiting)
            } else {
                let later = state.waiting.split_off(&(Instant::now(), u64::MAX));
                std::mem::replace(&mut state.waiting, later)
            };
            if due.is_empty() {
                match state.waiting.first_key_value().map(|(at, _)| at.0) {
                    Some(deadline) => drop(self.woken.wait_until(&mut state, deadline)),
                    None => self.woken.wait(&mut state),
                }
                continue;
            }
            drop(state);
            for ((deadline, _), attempt) in due {
                let place = Arc::clone(self);
                pool.run(move || place.run(deadline, attempt));
            }
            state = self.state.lock();
        }
    }

    fn run(&self, deadline: Instant, mut attempt: Attempt) {
        let seen = self.changes.load(Ordering::Acquire);
        if !attempt(Instant::now() >= deadline) {
            self.park(seen, deadline, attempt);
        }
    }
}

/// A request that may meet a closed fence: how it is tried, and how it is answered.
pub(super) struct Change<R, Run, Answer> {
    /// Whether it waits for a fence. Nothing that holds the lock of the root directory in the kernel may.
    pub(super) waits: bool,
    /// Whether it runs beside the event loop even so.
    pub(super) beside: bool,
    pub(super) reply: R,
    /// Tries it, with its names: whatever it borrows, so that a first attempt copies nothing.
    pub(super) run: Run,
    pub(super) answer: Answer,
}

impl Fs {
    /// Tries a request, again whenever a fence has opened while it is refused with [`Kind::Busy`], a last time when
    /// `--fence-wait` is over, and answers it.
    pub(super) fn change<const N: usize, R, T, Run, Answer>(
        self: &Arc<Self>,
        names: [&[u8]; N],
        change: Change<R, Run, Answer>,
    ) where
        R: Send + 'static,
        Run: Fn(&Arc<Fs>, &R, [&[u8]; N]) -> Result<T> + Send + 'static,
        Answer: FnOnce(&Arc<Fs>, R, Result<T>) + Send + 'static,
    {
        let Change { waits, beside, reply, run, answer } = change;
        let seen = self.fences.changes();
        if !beside {
            match run(self, &reply, names) {
                Err(e) if waits && e.kind() == Kind::Busy => {}
                done => return answer(self, reply, done),
            }
        }
        let deadline = Instant::now() + if waits { self.settings.fence_wait } else { Duration::ZERO };
        let names = names.map(Box::<[u8]>::from);
        let mut unanswered = Some((reply, answer));
        let fs = Arc::clone(self);
        let mut attempt: Attempt = Box::new(move |last| {
            let Some((reply, answer)) = unanswered.take() else { return true };
            match run(&fs, &reply, names.each_ref().map(|name| &**name)) {
                Err(e) if !last && e.kind() == Kind::Busy => unanswered = Some((reply, answer)),
                done => answer(&fs, reply, done),
            }
            unanswered.is_none()
        });
        if beside {
            let fs = Arc::clone(self);
            self.pool.run(move || {
                let seen = fs.fences.changes();
                if !attempt(!waits) {
                    fs.fences.park(seen, deadline, attempt);
                }
            });
        } else {
            self.fences.park(seen, deadline, attempt);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_secs(60);

    /// A job that tells each attempt, and is done when told so.
    fn job(tell: mpsc::Sender<bool>, is_done: impl Fn() -> bool + Send + 'static) -> Attempt {
        Box::new(move |last| {
            let done = last || is_done();
            tell.send(last).unwrap();
            done
        })
    }

    #[test]
    fn a_job_is_run_again_when_something_changes_and_not_once_it_is_done() {
        let parked = Parked::start("test", 1).unwrap();
        let (tell, told) = mpsc::channel();
        let open = Arc::new(AtomicU64::new(0));
        let opened = Arc::clone(&open);
        let attempt = job(tell, move || opened.load(Ordering::SeqCst) == 1);
        parked.park(parked.changes(), Instant::now() + LONG, attempt);
        assert!(told.try_recv().is_err());
        parked.change();
        assert!(!told.recv().unwrap());
        open.store(1, Ordering::SeqCst);
        parked.change();
        assert!(!told.recv().unwrap());
        parked.change();
        assert!(told.recv().is_err(), "the job and its channel are gone");
    }

    #[test]
    fn a_change_between_an_attempt_and_its_parking_is_not_missed() {
        let parked = Parked::start("test", 1).unwrap();
        let (tell, told) = mpsc::channel();
        let seen = parked.changes();
        parked.change();
        // Also when the thread has dealt with that change long ago.
        std::thread::sleep(Duration::from_millis(20));
        parked.park(seen, Instant::now() + LONG, job(tell, || true));
        assert!(!told.recv_timeout(LONG).unwrap());
    }

    #[test]
    fn the_last_attempt_is_at_the_deadline() {
        let parked = Parked::start("test", 2).unwrap();
        let (tell, told) = mpsc::channel();
        let begun = Instant::now();
        for ms in [60, 20] {
            let attempt = job(tell.clone(), || false);
            parked.park(parked.changes(), begun + Duration::from_millis(ms), attempt);
        }
        assert!(told.recv_timeout(LONG).unwrap());
        assert!(begun.elapsed() >= Duration::from_millis(20));
        assert!(told.recv_timeout(LONG).unwrap());
        assert!(begun.elapsed() >= Duration::from_millis(60));
    }

    #[test]
    fn thousands_wait_on_no_thread_and_all_come_back() {
        let parked = Parked::start("test", 2).unwrap();
        let (tell, told) = mpsc::channel();
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = threads();
        let seen = parked.changes();
        for _ in 0..5000 {
            parked.park(seen, Instant::now() + LONG, job(tell.clone(), || true));
        }
        assert!(threads() < before + 200, "other tests have threads of their own, but not thousands");
        parked.change();
        drop(tell);
        assert_eq!(told.iter().count(), 5000);
    }

    #[test]
    fn the_end_drops_what_waits_and_what_comes_later() {
        let parked = Parked::start("test", 1).unwrap();
        let (tell, told) = mpsc::channel();
        parked.park(parked.changes(), Instant::now() + LONG, job(tell.clone(), || true));
        parked.end();
        parked.park(parked.changes(), Instant::now(), job(tell, || true));
        assert!(told.recv_timeout(LONG).is_err_and(|e| e == mpsc::RecvTimeoutError::Disconnected));
    }

    #[test]
    fn what_is_abandoned_is_neither_tried_nor_dropped() {
        let parked = Parked::start("test", 1).unwrap();
        let (tell, told) = mpsc::channel();
        parked.park(parked.changes(), Instant::now() + LONG, job(tell.clone(), || true));
        parked.abandon(LONG);
        parked.park(parked.changes(), Instant::now(), job(tell, || true));
        parked.end();
        assert_eq!(told.recv_timeout(Duration::from_millis(20)), Err(mpsc::RecvTimeoutError::Timeout));
    }
}
