//! How often a daemon asks, so that all of a fleet together ask no more than a cluster answers with ease; and what has it
//! ask at once.
//!
//! The figures, and what they cost a cluster of three, stand in docs/fleet.md.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::EtcdLedger;
use crate::config::limits;
use crate::error::Result;

/// Intervals of one daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pace {
    /// Between two looks at what is pending.
    pub(super) poll: Duration,
    /// Between two renewals of the lease, which lasts three of them.
    pub(super) renew: Duration,
    /// Between two notes that the daemon runs, which outlast the lease.
    pub(super) note: Duration,
}

impl Pace {
    /// The pace in a fleet of so many: each interval is the shortest one, or as long as all together may take.
    fn of(size: usize) -> Pace {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let shared =
            |least: Duration, each_second: u32| least.max(Duration::from_secs(1) * size / each_second);
        Pace {
            poll: shared(limits::ETCD_POLL, limits::ETCD_POLLS_A_SECOND),
            renew: shared(limits::ETCD_LEASE / 3, limits::ETCD_RENEWALS_A_SECOND),
            note: shared(limits::ETCD_NOTE, limits::ETCD_NOTES_A_SECOND),
        }
    }

    /// The same, between three quarters and five: daemons that were started together do not go on asking together.
    fn spread(self, random: u8) -> Pace {
        let by = |interval: Duration| interval.mul_f64(0.75 + f64::from(random) / 510.0);
        Pace { poll: by(self.poll), renew: by(self.renew), note: by(self.note) }
    }
}

impl EtcdLedger {
    /// The intervals from now to the next time.
    pub(super) fn pace(&self) -> Pace {
        let size = self.size.load(Ordering::Relaxed);
        Pace::of(size).spread(Uuid::new_v4().as_bytes()[0])
    }
}

impl EtcdLedger {
    /// Tells when a request was made or is complete, for a while. In a large fleet nobody watches: a member of etcd would
    /// keep a stream for each, and all would ask at once.
    pub(super) fn watch_requests(&self, heard: &dyn Fn()) -> Result<()> {
        let size = self.size.load(Ordering::Relaxed);
        if size > limits::ETCD_WATCHERS {
            std::thread::sleep(limits::ETCD_WATCH);
            return Ok(());
        }
        // As many as may ask in a second do so in each.
        let most =
            Duration::from_secs(1) * u32::try_from(size).unwrap_or(u32::MAX) / limits::ETCD_POLLS_A_SECOND;
        let later = most.mul_f64(f64::from(Uuid::new_v4().as_bytes()[0]) / 256.0);
        let create = json!({ "create_request": self.keys.all("open") });
        self.client.follow("/v3/watch", &create, &|| {
            std::thread::sleep(later);
            heard();
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_fleet_asks_often_and_a_large_one_asks_no_more_in_all() {
        let small = Pace::of(0);
        assert_eq!((small, small), (Pace::of(1), Pace::of(100)));
        assert_eq!(small.poll, limits::ETCD_POLL);
        for size in [1_000, 10_000, 100_000] {
            let pace = Pace::of(size);
            let each_second = |interval: Duration| size as f64 / interval.as_secs_f64();
            assert!(each_second(pace.poll) <= f64::from(limits::ETCD_POLLS_A_SECOND) * 1.001);
            assert!(each_second(pace.renew) <= f64::from(limits::ETCD_RENEWALS_A_SECOND) * 1.001);
            assert!(each_second(pace.note) <= f64::from(limits::ETCD_NOTES_A_SECOND) * 1.001);
        }
        for random in [0, 128, 255] {
            let spread = small.spread(random);
            assert!(spread.poll >= small.poll.mul_f64(0.75) && spread.poll <= small.poll.mul_f64(1.251));
        }
    }
}
