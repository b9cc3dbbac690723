//! The fence of one tenant: who may mutate it, and under which epoch.
//!
//! A mutation holds a [`Lease`] through its commit point. A removal closes the fence towards the epoch that will
//! follow, which waits for the leases in progress (milliseconds), and opens it under that epoch. Nothing waits for a
//! fence to open: who is refused with [`Kind::Busy`] may come back, and one with [`Kind::Stale`] need not.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Kind, Result};
use crate::key::Epoch;

#[derive(Debug)]
struct State {
    epoch: Epoch,
    door: Door,
    leases: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    Open,
    /// For a moment; nothing is removed.
    Held,
    /// A removal is under way, after which this is the epoch.
    Closed(Epoch),
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

fn stale(admitted: Epoch, now: Epoch) -> Error {
    Error::new(
        Kind::Stale,
        format!("this write was admitted under epoch {admitted}, the tenant has gone on to {now}"),
    )
}

fn busy() -> Error {
    Error::new(Kind::Busy, "the tenant is being removed; try again")
}

impl Fence {
    /// An open fence.
    pub fn new(epoch: Epoch) -> Arc<Fence> {
        Arc::new(Fence {
            state: Mutex::new(State { epoch, door: Door::Open, leases: 0 }),
            changed: Condvar::new(),
        })
    }

    /// The epoch that a new write is admitted under.
    pub fn epoch(&self) -> Epoch {
        self.state.lock().epoch
    }

    /// The epoch that follows the removal under way, if one is.
    pub fn closed_towards(&self) -> Option<Epoch> {
        match self.state.lock().door {
            Door::Closed(next) => Some(next),
            Door::Open | Door::Held => None,
        }
    }

    /// A lease for a mutation that begins now, of what stands under `epoch`. [`Kind::Busy`] while the fence is closed,
    /// [`Kind::Stale`] once the epoch has moved on.
    pub fn enter(self: &Arc<Self>, epoch: Epoch) -> Result<Lease> {
        let mut state = self.state.lock();
        if state.door != Door::Open {
            return Err(busy());
        }
        if state.epoch != epoch {
            return Err(stale(epoch, state.epoch));
        }
        state.leases += 1;
        Ok(Lease(Arc::clone(self)))
    }

    /// A lease to commit what was admitted under `epoch` earlier. [`Kind::Stale`] as soon as a removal has closed the
    /// fence: what it admitted before is cancelled.
    pub fn commit(self: &Arc<Self>, epoch: Epoch) -> Result<Lease> {
        self.admits(epoch)?;
        self.enter(epoch)
    }

    /// Whether what was admitted under `epoch` may still become anything: else [`Kind::Stale`].
    pub fn admits(&self, epoch: Epoch) -> Result<()> {
        let state = self.state.lock();
        match state.door {
            Door::Closed(next) if epoch < next => Err(stale(epoch, next)),
            Door::Closed(_) => Ok(()),
            _ if state.epoch != epoch => Err(stale(epoch, state.epoch)),
            _ => Ok(()),
        }
    }

    /// Closes the fence for a removal after which the epoch is `next`; closed already, it stays so, with the later of
    /// the two. Refuses new leases from now on; does not wait for those in progress.
    pub fn close(&self, next: Epoch) {
        let mut state = self.state.lock();
        state.door = match state.door {
            Door::Closed(other) => Door::Closed(next.max(other)),
            Door::Open | Door::Held => Door::Closed(next),
        };
    }

    /// Waits for every lease in progress.
    pub fn drain(&self) {
        let mut state = self.state.lock();
        while state.leases > 0 {
            self.changed.wait(&mut state);
        }
    }

    /// Holds an open fence closed for a moment; waits for every lease in progress. [`Kind::Busy`] where it is not open.
    pub fn hold(&self) -> Result<()> {
        let mut state = self.state.lock();
        if state.door != Door::Open {
            return Err(busy());
        }
        state.door = Door::Held;
        drop(state);
        self.drain();
        Ok(())
    }

    /// Ends [`Fence::hold`], unless a removal has closed the fence meanwhile.
    pub fn unhold(&self) {
        let mut state = self.state.lock();
        if state.door == Door::Held {
            state.door = Door::Open;
        }
    }

    /// Opens the fence under `epoch`, which never goes back. A fence that is closed towards a later epoch stays closed.
    pub fn open(&self, epoch: Epoch) {
        let mut state = self.state.lock();
        state.epoch = state.epoch.max(epoch);
        if !matches!(state.door, Door::Closed(next) if next > state.epoch) {
            state.door = Door::Open;
        }
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

    #[test]
    fn a_closed_fence_is_busy_and_an_old_epoch_is_stale() {
        let fence = Fence::new(Epoch(0));
        drop(fence.enter(Epoch(0)).unwrap());
        fence.close(Epoch(4));
        assert_eq!(fence.enter(Epoch(0)).unwrap_err().kind(), Kind::Busy);
        fence.open(Epoch(4));
        assert_eq!(fence.enter(Epoch(0)).unwrap_err().kind(), Kind::Stale);
        drop(fence.enter(Epoch(4)).unwrap());
        fence.open(Epoch(2));
        assert_eq!(fence.epoch(), Epoch(4));
    }

    #[test]
    fn what_was_admitted_before_is_cancelled_as_soon_as_a_removal_closes() {
        let fence = Fence::new(Epoch(0));
        fence.hold().unwrap();
        assert_eq!(fence.commit(Epoch(0)).unwrap_err().kind(), Kind::Busy, "nothing is removed");
        fence.unhold();
        drop(fence.commit(Epoch(0)).unwrap());
        fence.close(Epoch(1));
        assert_eq!(fence.commit(Epoch(0)).unwrap_err().kind(), Kind::Stale);
        assert_eq!(fence.admits(Epoch(0)).unwrap_err().kind(), Kind::Stale);
    }

    #[test]
    fn draining_waits_for_the_leases_in_progress() {
        let fence = Fence::new(Epoch(0));
        let lease = fence.enter(Epoch(0)).unwrap();
        let (tell, told) = mpsc::channel();
        let closer = std::thread::spawn({
            let fence = Arc::clone(&fence);
            move || {
                fence.close(Epoch(1));
                fence.drain();
                tell.send(()).unwrap();
            }
        });
        // The closer shows itself by refusing new leases; it cannot have returned while ours is held.
        while fence.enter(Epoch(0)).is_ok() {
            std::thread::yield_now();
        }
        assert!(told.try_recv().is_err());
        drop(lease);
        told.recv().unwrap();
        closer.join().unwrap();
    }

    #[test]
    fn a_later_removal_keeps_the_fence_closed() {
        let fence = Fence::new(Epoch(0));
        fence.close(Epoch(3));
        fence.close(Epoch(5));
        fence.close(Epoch(4));
        fence.open(Epoch(3));
        assert_eq!(fence.closed_towards(), Some(Epoch(5)));
        assert_eq!(fence.hold().unwrap_err().kind(), Kind::Busy);
        fence.open(Epoch(5));
        drop(fence.enter(Epoch(5)).unwrap());
    }

    #[test]
    fn a_removal_that_finds_the_fence_held_closes_it() {
        let fence = Fence::new(Epoch(0));
        fence.hold().unwrap();
        fence.close(Epoch(1));
        fence.unhold();
        assert_eq!(fence.enter(Epoch(0)).unwrap_err().kind(), Kind::Busy);
    }
}
