//! What becomes of a value that is being written: the watch may doom it and take its bytes away, or a publication claims
//! it. INVARIANT: never both, so no value is emptied on its way into place.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const DOOMED: u8 = 1;
const CLAIMED: u8 = 2;

/// The fate of one value.
#[derive(Debug, Default)]
pub(super) struct Fate(AtomicU8);

impl Fate {
    /// It can never be published whole.
    pub(super) fn doom(&self) {
        self.0.fetch_or(DOOMED, Ordering::AcqRel);
    }

    /// The same, unless a publication is under way or was; whether its bytes may be taken away.
    pub(super) fn doom_unclaimed(&self) -> bool {
        let unclaimed = |fate| (fate & CLAIMED == 0).then_some(fate | DOOMED);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, unclaimed).is_ok()
    }

    pub(super) fn is_doomed(&self) -> bool {
        self.0.load(Ordering::Acquire) & DOOMED != 0
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
