//! Threads that go their rounds beside the store's operations, and the bell that each waits at in between.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};

/// Starts such a thread.
pub(super) fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(run);
    spawned.map(drop).map_err(|e| Error::os(format!("cannot start the thread {name}"), e))
}

/// One bell, one thread that waits at it.
#[derive(Default)]
pub(super) struct Bell {
    rung: Mutex<Rung>,
    waiting: Condvar,
}

#[derive(Default)]
struct Rung {
    again: bool,
    stop: bool,
}

impl Bell {
    pub(super) fn wake(&self) {
        self.rung.lock().again = true;
        self.waiting.notify_one();
    }

    /// The thread ends its rounds.
    pub(super) fn stop(&self) {
        self.rung.lock().stop = true;
        self.waiting.notify_one();
    }

    /// Until somebody wakes, or so long; whether to go on.
    pub(super) fn wait(&self, most: Duration) -> bool {
        let mut rung = self.rung.lock();
        if !rung.again && !rung.stop {
            self.waiting.wait_for(&mut rung, most);
        }
        rung.again = false;
        !rung.stop
    }
}
