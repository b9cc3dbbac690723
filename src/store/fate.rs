//! What becomes of a value that is being written, in staging or in place: the watch may doom it and take its bytes away, or
//! a publication claims it. INVARIANT: never both, so no value is emptied on its way into place.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::os;

const DOOMED: u8 = 1;
const CLAIMED: u8 = 2;
const EMPTYING: u8 = 4;

/// The fate of one value.
#[derive(Debug, Default)]
pub(super) struct Fate(AtomicU8);

impl Fate {
    /// It can never be published whole.
    pub(super) fn doom(&self) {
        self.0.fetch_or(DOOMED, Ordering::AcqRel);
    }

    /// The same, unless a publication is under way or was; whether its bytes may be taken away.
    fn doom_unclaimed(&self) -> bool {
        let unclaimed = |fate| (fate & CLAIMED == 0).then_some(fate | DOOMED);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, unclaimed).is_ok()
    }

    pub(super) fn is_doomed(&self) -> bool {
        self.0.load(Ordering::Acquire) & DOOMED != 0
    }

    /// Whether its bytes are being taken away at this moment.
    pub(super) fn is_being_emptied(&self) -> bool {
        self.0.load(Ordering::Acquire) & EMPTYING != 0
    }

    /// Dooms a value and takes its bytes away, unless it is claimed: its writer learns that at its close. Before that
    /// `remove` takes it from its readers; where it cannot, the bytes stay.
    ///
    /// On a busy disk that takes long, and for all that time it holds up the value's writer but no other one. `beside`, a
    /// thread of its own does it, and whoever asked for it goes on.
    pub(super) fn empty(
        self: &Arc<Self>,
        file: &Arc<File>,
        beside: bool,
        remove: impl Fn() -> bool + Clone + Send + 'static,
    ) {
        if !self.doom_unclaimed() || self.0.fetch_or(EMPTYING, Ordering::AcqRel) & EMPTYING != 0 {
            return;
        }
        let run = {
            let (fate, file) = (Arc::clone(self), Arc::clone(file));
            move || {
                stall!("staged.empty");
                if remove()
                    && let Err(e) = os::truncate(&*file, 0)
                {
                    log::warn!("cannot empty a value that can never be published: {e}");
                }
                fate.0.fetch_and(!EMPTYING, Ordering::AcqRel);
            }
        };
        let thread = std::thread::Builder::new().name("fencefs-empty".into());
        if !beside || thread.spawn(run.clone()).is_err() {
            run();
        }
    }

    /// Keeps the bytes for a publication; `None` when the value is doomed.
    pub(super) fn claim(self: &Arc<Self>) -> Option<Claim> {
        let hale = |fate| (fate & DOOMED == 0).then_some(fate | CLAIMED);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, hale).ok()?;
        Some(Claim { fate: Arc::clone(self), published: false })
    }
}

/// A publication under way; dropped before the value is in place, it leaves the value as staged as before.
pub(super) struct Claim {
    fate: Arc<Fate>,
    published: bool,
}

impl Claim {
    /// The value is in place: nobody takes anything away any more.
    pub(super) fn published(mut self) {
        self.published = true;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.published {
            self.fate.0.fetch_and(!CLAIMED, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_claimed_is_not_emptied_and_what_is_emptied_is_not_claimed() {
        let fate = Arc::new(Fate::default());
        let claim = fate.claim().expect("it is hale");
        assert!(!fate.doom_unclaimed() && !fate.is_doomed());
        drop(claim);
        assert!(fate.doom_unclaimed() && fate.is_doomed() && fate.claim().is_none());
        assert!(fate.doom_unclaimed(), "what is lost may be emptied again");
        let fate = Arc::new(Fate::default());
        fate.claim().expect("it is hale").published();
        assert!(!fate.doom_unclaimed());
    }
}
