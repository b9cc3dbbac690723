//! A few threads over a list of jobs, for walks: results in the jobs' order, or the first error. Once a job has
//! failed the others end where they are.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::error::Result;

/// What a job tells the others.
pub(super) struct Teller<'a, T> {
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
    /// Some job failed: whatever this one finds is not wanted any more.
    pub(super) fn is_over(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Counts `n` more.
    pub(super) fn found(&self, n: u64) {
        // The receiver outlives every sender.
        drop(self.tell.send(Told::Found(n)));
    }
}

/// Works through `jobs` with at most `threads` threads. `progress` is called by this thread alone, with counts that only
/// grow.
pub(super) fn run<J: Sync, T: Send>(
    (threads, jobs): (usize, &[J]),
    work: impl Fn(&J, &Teller<'_, T>) -> Result<T> + Sync,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<T>> {
    let (tell, told) = mpsc::channel();
    let (failed, next) = (AtomicBool::new(false), AtomicUsize::new(0));
    let all = |tell: mpsc::Sender<Told<T>>| {
        while !failed.load(Ordering::Relaxed)
            && let number = next.fetch_add(1, Ordering::Relaxed)
            && let Some(job) = jobs.get(number)
        {
            let done = work(job, &Teller { failed: &failed, tell: &tell });
            drop(tell.send(Told::Done(number, done)));
        }
    };
    let mut results: Vec<Option<T>> = jobs.iter().map(|_| None).collect();
    let (mut first, mut count) = (None, 0);
    std::thread::scope(|scope| {
        let all = &all;
        let spawn = |_: &usize| {
            let tell = tell.clone();
            let walk = std::thread::Builder::new().name("fencefs-walk".into());
            walk.spawn_scoped(scope, move || all(tell)).is_ok()
        };
        if (0..threads.min(jobs.len())).filter(spawn).count() == 0 {
            all(tell.clone());
        }
        drop(tell);
        for told in told {
            match told {
                Told::Found(n) => {
                    count += n;
                    progress(count);
                }
                Told::Done(number, Ok(result)) => results[number] = Some(result),
                Told::Done(_, Err(e)) => {
                    failed.store(true, Ordering::Relaxed);
                    first.get_or_insert(e);
                }
            }
        }
    });
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
        let done = run((3, &jobs), work, &mut |n| counted = n).unwrap();
        assert_eq!(done, jobs.iter().map(|n| n * 2).collect::<Vec<_>>());
        assert_eq!(counted, 100);
        let fails = |job: &u64, _: &Teller<'_, ()>| match job {
            7 => Err(Error::new(Kind::Corrupt, "seven")),
            _ => Ok(()),
        };
        assert_eq!(run((3, &jobs), fails, &mut |_| {}).unwrap_err().to_string(), "seven");
        assert!(run((3, &[][..]), work, &mut |_| {}).unwrap().is_empty());
    }
}
