//! A few threads over a list of jobs, for walks: results in the jobs' order, or the first error. Once a job has
//! failed the others end where they are.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use super::walkers::{Walker, Walkers};
use crate::error::Result;

/// What a job tells the others.
pub(super) struct Teller<'a, T> {
    walker: &'a Walker<'a>,
    failed: &'a AtomicBool,
    tell: &'a mpsc::Sender<Told<T>>,
}

enum Told<T> {
    /// So many more were found.
    Found(u64),
    /// The job of this number is done.
    Done(usize, Result<T>),
}

impl<T> Teller<'_, T> {
    /// Before each step: whether some job failed, or the walk is to end. Whatever this one finds is not wanted any more.
    pub(super) fn is_over(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || self.walker.go_on().is_err()
    }

    /// Counts `n` more.
    pub(super) fn found(&self, n: u64) {
        // The receiver outlives every sender.
        drop(self.tell.send(Told::Found(n)));
    }
}

/// Works through `jobs`. `progress` is called by this thread alone, with counts that only grow.
pub(super) fn run<J: Sync, T: Send>(
    walkers: &Walkers<'_>,
    jobs: &[J],
    work: impl Fn(&J, &Teller<'_, T>) -> Result<T> + Sync,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<T>> {
    let (tell, told) = mpsc::channel();
    let (failed, next) = (AtomicBool::new(false), AtomicUsize::new(0));
    let over = || failed.load(Ordering::Relaxed) || next.load(Ordering::Relaxed) >= jobs.len();
    let each = |walker: &mut Walker<'_>| {
        loop {
            walker.make_way(over);
            if over() {
                return;
            }
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(number) else { return };
            let done = work(job, &Teller { walker, failed: &failed, tell: &tell });
            // What ended early because the walk is to end is not done.
            let done = done.and_then(|result| walker.go_on().map(|()| result));
            if done.is_err() {
                failed.store(true, Ordering::Relaxed);
            }
            drop(tell.send(Told::Done(number, done)));
        }
    };
    let mut results: Vec<Option<T>> = jobs.iter().map(|_| None).collect();
    let (mut first, mut count, mut left) = (None, 0, jobs.len());
    let listen = || {
        while left > 0
            && first.is_none()
            && let Ok(told) = told.recv()
        {
            match told {
                Told::Found(n) => {
                    count += n;
                    progress(count);
                }
                Told::Done(number, Ok(result)) => {
                    results[number] = Some(result);
                    left -= 1;
                }
                Told::Done(_, Err(e)) => first = Some(e),
            }
        }
    };
    walkers.run_beside(each, listen);
    match first {
        Some(e) => Err(e),
        None => Ok(results.into_iter().flatten().collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, Kind};

    #[test]
    fn results_come_in_the_jobs_order_and_an_error_ends_all() {
        let jobs: Vec<u64> = (0..100).collect();
        let mut counted = 0;
        let work = |job: &u64, told: &Teller<'_, u64>| {
            told.found(1);
            Ok(job * 2)
        };
        let stop = AtomicBool::new(false);
        let three = Walkers::alone(3, &stop);
        let done = run(&three, &jobs, work, &mut |n| counted = n).unwrap();
        assert_eq!(done, jobs.iter().map(|n| n * 2).collect::<Vec<_>>());
        assert_eq!(counted, 100);
        let fails = |job: &u64, _: &Teller<'_, ()>| match job {
            7 => Err(Error::new(Kind::Corrupt, "seven")),
            _ => Ok(()),
        };
        assert_eq!(run(&three, &jobs, fails, &mut |_| {}).unwrap_err().to_string(), "seven");
        assert!(run(&three, &[], work, &mut |_| {}).unwrap().is_empty());
        stop.store(true, Ordering::Relaxed);
        assert_eq!(run(&three, &jobs, work, &mut |_| {}).unwrap_err().kind(), Kind::Busy);
    }
}
