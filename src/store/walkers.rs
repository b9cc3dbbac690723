//! The threads of a long walk, and how they make way: each gives the processor to whoever wants it, step by step; of a
//! walk that deletes, one goes on behind everything else of the machine, the others only while nobody uses the store.
//!
//! Two threads that delete at once hold up every other mutation of the filesystem, its journal being one; one does not.
//! Threads of one walk wait for each other in the filesystem all the time, so processors are kept awake meanwhile: where
//! waking one takes long, a removal took half as long again.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Store;
use super::status::Counters;
use crate::config::limits;
use crate::error::{Error, Kind, Result};
use crate::os;

/// How a walk goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Walkers<'a> {
    /// At most so many threads.
    threads: usize,
    /// Ends it where it is.
    stop: &'a AtomicBool,
    /// The uses of the store that all but one of them make way for.
    others: Option<&'a Counters>,
    /// They go behind everything else of the machine.
    behind: bool,
    /// Processors do not sleep meanwhile.
    awake: bool,
}

/// One thread of a walk.
#[derive(Debug)]
pub(super) struct Walker<'a> {
    stop: &'a AtomicBool,
    others: Option<&'a Counters>,
    uses: u64,
}

impl<'a> Walkers<'a> {
    /// With up to `most` threads while nobody uses the store.
    pub(super) fn alone(most: usize, stop: &'a AtomicBool) -> Walkers<'a> {
        Walkers { threads: threads(most), stop, others: None, behind: false, awake: false }
    }

    /// The same with every thread, whoever uses the store.
    pub(super) fn undisturbed(self) -> Walkers<'a> {
        Walkers { others: None, ..self }
    }

    /// Runs the same work on each thread, and ends when all have.
    pub(super) fn run(&self, work: impl Fn(&mut Walker<'_>) + Sync) {
        self.run_beside(work, || ());
    }

    /// The same, and something else on the calling thread meanwhile.
    pub(super) fn run_beside(&self, work: impl Fn(&mut Walker<'_>) + Sync, beside: impl FnOnce()) {
        let _awake = self.awake.then(os::process::keep_processors_awake);
        let walker = |others| Walker { stop: self.stop, others, uses: 0 };
        // None of it is done by the calling thread: a thread that stood back cannot come forward again.
        std::thread::scope(|scope| {
            let work = &work;
            let spawn = |number: &usize| {
                let mut walker = walker(self.others.filter(|_| *number > 0));
                let walk = move || {
                    if self.behind {
                        os::process::stand_back(limits::REMOVAL_NICE);
                    }
                    work(&mut walker);
                };
                std::thread::Builder::new().name("fencefs-walk".into()).spawn_scoped(scope, walk).is_ok()
            };
            if (0..self.threads).filter(spawn).count() == 0 {
                work(&mut walker(None));
            }
            beside();
        });
    }
}

impl Walker<'_> {
    /// Before each step: [`Kind::Busy`] once the walk is to end. Whoever waits for the processor has it first: it would
    /// wait for the end of this thread's slice otherwise, which is longer than a put takes.
    pub(super) fn go_on(&self) -> Result<()> {
        std::thread::yield_now();
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Busy, "the store is being closed"));
        }
        Ok(())
    }

    /// Before a job is taken, never with one in hand, which nobody else would do: waits while this thread is to make
    /// way, until the jobs are `over`.
    pub(super) fn make_way(&mut self, over: impl Fn() -> bool) {
        while self.go_on().is_ok() && !over() {
            let uses = self.others.map_or(0, Counters::uses);
            if uses == std::mem::replace(&mut self.uses, uses) {
                return;
            }
            std::thread::sleep(limits::MAKE_WAY);
        }
    }
}

impl Store {
    /// Of the walk that a start is.
    pub(super) fn walkers_at_start(&self) -> Walkers<'_> {
        Walkers { awake: self.settings.keep_awake, ..Walkers::alone(limits::START_THREADS, &self.stopping) }
    }

    /// Of a walk beside the store's users.
    pub(super) fn walkers(&self) -> Walkers<'_> {
        let threads = threads(limits::REMOVAL_THREADS);
        let (others, awake) = (Some(&self.counters), self.settings.keep_awake);
        Walkers { threads, stop: &self.stopping, others, behind: true, awake }
    }
}

/// Threads of a long walk: no more than the machine can run.
fn threads(most: usize) -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(most))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicUsize;

    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn one_goes_on_whatever_others_do_and_the_rest_make_way() {
        let (stop, counters) = (AtomicBool::new(false), Counters::default());
        let mut first = Walker { stop: &stop, others: None, uses: 0 };
        let mut second = Walker { stop: &stop, others: Some(&counters), uses: 0 };
        let asked = std::cell::Cell::new(0);
        let never = || {
            asked.set(asked.get() + 1);
            false
        };
        second.make_way(never);
        counters.hits.fetch_add(1, Ordering::Relaxed);
        first.make_way(never);
        assert_eq!(asked.take(), 2, "neither waits");
        second.make_way(never);
        assert_eq!(asked.take(), 2, "it looks again after a pause");
        stop.store(true, Ordering::Relaxed);
        assert_eq!(first.go_on().unwrap_err().kind(), Kind::Busy);
    }

    /// The store is used all the time: one thread does everything, and the other ends with it.
    #[test]
    fn a_thread_that_makes_way_holds_no_job() {
        let (stop, counters) = (AtomicBool::new(false), Counters::default());
        let walkers =
            Walkers { threads: 2, stop: &stop, others: Some(&counters), behind: true, awake: false };
        let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeSet::new()));
        walkers.run(|walker| {
            loop {
                walker.make_way(|| {
                    counters.hits.fetch_add(1, Ordering::Relaxed);
                    next.load(Ordering::Relaxed) >= 100
                });
                let job = next.fetch_add(1, Ordering::Relaxed);
                if job >= 100 {
                    break;
                }
                assert!(walker.others.is_none(), "it was to make way");
                done.lock().insert(job);
            }
        });
        assert_eq!(done.into_inner().len(), 100);
    }
}
