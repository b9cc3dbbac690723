//! Keeps the machine's processors from sleeping while requests come.
//!
//! A client and the loop that answers it take turns, so on two processors each wakes the other with every request, and a
//! processor that sleeps takes longer to wake than most requests take to answer: in a virtual machine ten times as long.
//! Linux lets a program say how long a wake may take, for as long as it holds a file open. Here it is held while requests
//! come in quick succession: idle processors spin meanwhile, which costs power and nobody's time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::os;

/// So many requests in [`QUICK`] are quick succession.
const BURST: u64 = 16;
const QUICK: Duration = Duration::from_millis(20);

/// Counts requests, and says when they come quickly.
pub(super) struct Awake {
    born: Instant,
    /// When the last full burst ended, in microseconds since then.
    burst_ended: AtomicU64,
    seen: Arc<Seen>,
    /// None where processors may sleep.
    tell: Option<SyncSender<()>>,
}

#[derive(Default)]
struct Seen {
    served: AtomicU64,
    /// They are kept awake, or cannot be.
    told: AtomicBool,
}

impl Awake {
    /// With a thread that keeps processors awake, if that is wanted.
    pub(super) fn start(wanted: bool) -> Result<Awake> {
        let seen = Arc::<Seen>::default();
        let mut tell = None;
        if wanted {
            let (sender, told) = sync_channel(1);
            let shared = Arc::clone(&seen);
            let run = move || keep(&told, &shared);
            let spawned = std::thread::Builder::new().name("fencefs-awake".into()).spawn(run);
            spawned.map_err(|e| Error::os("cannot start the thread fencefs-awake", e))?;
            tell = Some(sender);
        }
        Ok(Awake { born: Instant::now(), burst_ended: AtomicU64::new(0), seen, tell })
    }

    /// A request came.
    pub(super) fn served(&self) {
        let served = self.seen.served.fetch_add(1, Ordering::Relaxed) + 1;
        if served.is_multiple_of(BURST)
            && let Some(tell) = &self.tell
            && !self.seen.told.load(Ordering::Relaxed)
            && self.is_quick(self.born.elapsed())
        {
            // Where it is full, or the thread gave up, there is nothing to say.
            let _told = tell.try_send(());
        }
    }

    /// Whether a burst that ends now was a quick one.
    fn is_quick(&self, now: Duration) -> bool {
        let now = now.as_micros() as u64;
        let before = self.burst_ended.swap(now, Ordering::Relaxed);
        now.saturating_sub(before) < QUICK.as_micros() as u64
    }
}

fn keep(told: &Receiver<()>, seen: &Seen) {
    while told.recv().is_ok() {
        seen.told.store(true, Ordering::Relaxed);
        let hold = match os::process::keep_processors_awake() {
            Ok(hold) => hold,
            Err(e) => return log::info!("requests may take longer than they need: {e}"),
        };
        loop {
            let before = seen.served.load(Ordering::Relaxed);
            std::thread::sleep(QUICK);
            if seen.served.load(Ordering::Relaxed) - before < BURST {
                break;
            }
        }
        drop(hold);
        seen.told.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_requests_are_told_of_and_slow_ones_are_not() {
        let (tell, told) = sync_channel(1);
        let seen = Arc::<Seen>::default();
        let awake = Awake {
            born: Instant::now() - Duration::from_secs(60),
            burst_ended: AtomicU64::new(0),
            seen: Arc::clone(&seen),
            tell: Some(tell),
        };
        for _ in 0..BURST {
            awake.served();
        }
        assert!(told.try_recv().is_err(), "they came within a minute");
        awake.burst_ended.store(u64::MAX, Ordering::Relaxed);
        for _ in 1..BURST {
            awake.served();
        }
        assert!(told.try_recv().is_err(), "there are too few");
        awake.served();
        assert!(told.try_recv().is_ok());
        seen.told.store(true, Ordering::Relaxed);
        for _ in 0..BURST {
            awake.served();
        }
        assert!(told.try_recv().is_err(), "it is known");
    }

    #[test]
    fn a_burst_is_quick_or_slow() {
        let awake = Awake::start(false).unwrap();
        let at = Duration::from_millis;
        let quick: Vec<bool> = [100, 119, 140, 159].map(|ms| awake.is_quick(at(ms))).into();
        assert_eq!(quick, [false, true, false, true]);
    }
}
