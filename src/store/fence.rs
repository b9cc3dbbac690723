//! The fence of one tenant: who may mutate it, and under which epoch.
//!
//! A mutation holds a [`Lease`] through its commit point. A removal closes the fence, which waits for the leases in
//! progress (milliseconds), and opens it under the next epoch. A write that was admitted under an older epoch gets no
//! lease any more: its generation is gone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Kind, Result};
use crate::key::Epoch;

#[derive(Debug)]
struct State {
    epoch: Epoch,
    closed: bool,
    leases: u32,
}

/// Admission to a tenant's mutations.
#[derive(Debug)]
pub struct Fence {
    state: Mutex<State>,
    changed: Condvar,
}

/// The right to commit one mutation; given back on drop.
#[derive(Debug)]
#[must_use = "a mutation holds its lease through the commit"]
pub struct Lease(Arc<Fence>);

impl Fence {
    /// An open fence.
    pub fn new(epoch: Epoch) -> Arc<Fence> {
        Arc::new(Fence {
            state: Mutex::new(State { epoch, closed: false, leases: 0 }),
            changed: Condvar::new(),
        })
    }

    /// The epoch that a new write is admitted under. Does not wait.
    pub fn epoch(&self) -> Epoch {
        self.state.lock().epoch
    }

    /// A lease to commit a mutation that was admitted under `epoch`. Waits up to `wait` while the scope is being
    /// removed, then [`Kind::Busy`]; [`Kind::Stale`] once the epoch has moved on.
    pub fn lease(self: &Arc<Self>, epoch: Epoch, wait: Duration) -> Result<Lease> {
        let deadline = Instant::now() + wait;
        let mut state = self.state.lock();
        loop {
            if state.epoch != epoch {
                return Err(Error::new(
                    Kind::Stale,
                    format!("this write was admitted under epoch {epoch}, the tenant is at {}", state.epoch),
                ));
            }
            if !state.closed {
                state.leases += 1;
                return Ok(Lease(Arc::clone(self)));
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() && state.closed {
                return Err(Error::new(Kind::Busy, "the tenant is being removed; try again"));
            }
        }
    }

    /// Closes the fence and waits for every lease in progress.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        while state.leases > 0 {
            self.changed.wait(&mut state);
        }
    }

    /// Opens the fence under `epoch`, which never goes back.
    pub fn open(&self, epoch: Epoch) {
        let mut state = self.state.lock();
        state.epoch = state.epoch.max(epoch);
        state.closed = false;
        self.changed.notify_all();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.leases -= 1;
        if state.leases == 0 {
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const NO_WAIT: Duration = Duration::ZERO;

    #[test]
    fn a_closed_fence_is_busy_and_an_old_epoch_is_stale() {
        let fence = Fence::new(Epoch(0));
        drop(fence.lease(Epoch(0), NO_WAIT).unwrap());
        fence.close();
        assert_eq!(fence.lease(Epoch(0), NO_WAIT).unwrap_err().kind(), Kind::Busy);
        fence.open(Epoch(4));
        assert_eq!(fence.lease(Epoch(0), NO_WAIT).unwrap_err().kind(), Kind::Stale);
        drop(fence.lease(Epoch(4), NO_WAIT).unwrap());
        fence.open(Epoch(2));
        assert_eq!(fence.epoch(), Epoch(4));
    }

    #[test]
    fn closing_waits_for_the_leases_in_progress() {
        let fence = Fence::new(Epoch(0));
        let lease = fence.lease(Epoch(0), NO_WAIT).unwrap();
        let (tell, told) = mpsc::channel();
        let closer = std::thread::spawn({
            let fence = Arc::clone(&fence);
            move || {
                fence.close();
                tell.send(()).unwrap();
            }
        });
        // The closer shows itself by refusing new leases; it cannot have returned while ours is held.
        while fence.lease(Epoch(0), NO_WAIT).is_ok() {
            std::thread::yield_now();
        }
        assert!(told.try_recv().is_err());
        drop(lease);
        told.recv().unwrap();
        closer.join().unwrap();
    }

    #[test]
    fn a_waiter_that_was_admitted_before_is_refused_when_the_epoch_moves() {
        let fence = Fence::new(Epoch(0));
        fence.close();
        let waiter = std::thread::spawn({
            let fence = Arc::clone(&fence);
            move || fence.lease(Epoch(0), Duration::from_secs(60)).map(drop)
        });
        fence.open(Epoch(1));
        assert_eq!(waiter.join().unwrap().unwrap_err().kind(), Kind::Stale);
    }
}
