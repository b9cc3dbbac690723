//! The threads of a long walk, and how they make way: one goes on behind everything else of the machine, the others only
//! while nobody uses the store.
//!
//! Two threads that delete at once hold up every other mutation of the filesystem, its journal being one; one does not.

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
}

/// One thread of a walk.
#[derive(Debug)]
pub(super) struct Walker<'a> {
    stop: &'a AtomicBool,
    others: Option<&'a Counters>,
    uses: u64,
}

impl<'a> Walkers<'a> {
    /// With every thread, whoever uses the store.
    pub(super) fn undisturbed(stop: &'a AtomicBool) -> Walkers<'a> {
        Walkers { threads: threads(), stop, others: None }
    }

    /// Runs the same work on each thread, and ends when all have.
    pub(super) fn run(&self, work: impl Fn(&mut Walker<'_>) + Sync) {
        let walker = |others| Walker { stop: self.stop, others, uses: 0 };
        // None of it is done by the calling thread: a thread that stood back cannot come forward again.
        std::thread::scope(|scope| {
            let work = &work;
            let spawn = |number: &usize| {
                let mut walker = walker(self.others.filter(|_| *number > 0));
                let walk = move || {
                    os::process::stand_back(limits::REMOVAL_NICE);
                    work(&mut walker);
                };
                std::thread::Builder::new().name("fencefs-walk".into()).spawn_scoped(scope, walk).is_ok()
            };
            if (0..self.threads).filter(spawn).count() == 0 {
                work(&mut walker(None));
            }
        });
    }
}

impl Walker<'_> {
    /// Before each step: [`Kind::Busy`] once the walk is to end. Waits while this thread is to make way.
    pub(super) fn go_on(&mut self) -> Result<()> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::new(Kind::Busy, "the store is being closed"));
            }
            let uses = self.others.map_or(0, Counters::uses);
            if uses == std::mem::replace(&mut self.uses, uses) {
                return Ok(());
            }
            std::thread::sleep(limits::MAKE_WAY);
        }
    }
}

impl Store {
    /// Of a walk beside the store's users.
    pub(super) fn walkers(&self) -> Walkers<'_> {
        Walkers { threads: threads(), stop: &self.stopping, others: Some(&self.counters) }
    }
}

/// Threads of a long walk: no more than the machine can run.
pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(limits::REMOVAL_THREADS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_goes_on_whatever_others_do_and_the_rest_make_way() {
        let (stop, counters) = (AtomicBool::new(false), Counters::default());
        let mut first = Walker { stop: &stop, others: None, uses: 0 };
        let mut second = Walker { stop: &stop, others: Some(&counters), uses: 0 };
        second.go_on().unwrap();
        counters.hits.fetch_add(1, Ordering::Relaxed);
        first.go_on().unwrap();
        assert!(second.uses != counters.uses());
        second.go_on().unwrap();
        assert_eq!(second.uses, counters.uses(), "it has waited until there was no more of it");
        stop.store(true, Ordering::Relaxed);
        assert_eq!(first.go_on().unwrap_err().kind(), Kind::Busy);
        assert_eq!(second.go_on().unwrap_err().kind(), Kind::Busy);
    }
}
