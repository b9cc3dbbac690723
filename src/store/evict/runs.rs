//! Which keys belong together: the runs of a client.
//!
//! A client of a KV cache reads the blocks of a request in order, then publishes the rest in order; each block is of use
//! only with those before it. A run is such a row of keys, used by one opener in one directory. The opener is a thread of
//! the client; nothing is asked about it.
//!
//! Where a request ends and the next begins nobody says. A run ends when its opener
//! - uses a key again that is in the run: requests share their first blocks;
//! - reads after it published: a request writes only behind its last hit;
//! - used a value that is shorter than the one before: the last block of a request is seldom full;
//! - pauses, or has come to the longest run: where runs cannot be told apart, the order is that of no runs.

use std::time::Instant;

use hashbrown::{HashMap, HashSet};

use super::Slot;
use crate::config::limits;
use crate::store::node::NodeId;

/// A thread of a client, by the number that the kernel gives with its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opener(pub u32);

/// A use of a key: by whom, in which directory, when.
#[derive(Debug, Clone, Copy)]
pub struct Use {
    /// Who.
    pub opener: Opener,
    /// The key's directory.
    pub directory: Slot,
    /// When.
    pub at: Instant,
}

/// A use, and what it tells.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) by: Use,
    pub(super) id: NodeId,
    /// The value's length, where that is known.
    pub(super) size_bytes: Option<u64>,
    pub(super) publishes: bool,
}

/// What a use means for the order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Placing {
    /// The key before it in its run.
    pub(super) after: Option<NodeId>,
    /// Its value is shorter than the one before it.
    pub(super) short: bool,
}

struct Run {
    last: NodeId,
    /// Where `last` was placed: a temporary file is placed again when it gets its name.
    placing: Placing,
    size_bytes: Option<u64>,
    published: bool,
    ended: bool,
    at: Instant,
    slots: HashSet<Slot>,
}

/// The runs under way.
#[derive(Default)]
pub(super) struct Runs {
    runs: HashMap<(Opener, Slot), Run>,
}

/// The longest run among so many keys.
fn longest(resident: usize) -> usize {
    (resident / limits::RUN_SHARE).clamp(limits::SHORTEST_RUN_BOUND, limits::RUN_KEYS)
}

impl Runs {
    /// A use of a key, among so many in all.
    pub(super) fn step(&mut self, step: &Step, resident: usize) -> Placing {
        let (by, id) = (step.by, step.id);
        let Some(run) = self.runs.get_mut(&(by.opener, by.directory)) else {
            self.begin(step);
            return Placing::default();
        };
        let paused = by.at.saturating_duration_since(run.at) > limits::RUN_PAUSE;
        run.at = by.at;
        if run.last == id && !paused {
            run.published |= step.publishes;
            return run.placing;
        }
        let over = paused
            || run.ended
            || (run.published && !step.publishes)
            || run.slots.len() >= longest(resident)
            || run.slots.contains(&id.slot());
        if over {
            run.slots.clear();
            (run.published, run.ended, run.placing) = (step.publishes, false, Placing::default());
        } else {
            let short = step.size_bytes.zip(run.size_bytes).is_some_and(|(this, before)| this < before);
            run.placing = Placing { after: Some(run.last), short };
            run.published |= step.publishes;
            run.ended = short;
        }
        run.slots.insert(id.slot());
        run.last = id;
        // A length that is not known is taken to be that of the value before.
        run.size_bytes = step.size_bytes.or(run.size_bytes.filter(|_| !over));
        run.placing
    }

    fn begin(&mut self, step: &Step) {
        if self.runs.len() >= limits::RUNS {
            let oldest = self.runs.iter().min_by_key(|(_, run)| run.at).map(|(at, _)| *at);
            oldest.and_then(|at| self.runs.remove(&at));
        }
        let run = Run {
            last: step.id,
            placing: Placing::default(),
            size_bytes: step.size_bytes,
            published: step.publishes,
            ended: false,
            at: step.by.at,
            slots: HashSet::from_iter([step.id.slot()]),
        };
        self.runs.insert((step.by.opener, step.by.directory), run);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const KEYS: usize = 1 << 20;

    struct Client {
        runs: Runs,
        now: Instant,
        directory: Slot,
        opener: u32,
    }

    impl Client {
        fn new() -> Client {
            Client { runs: Runs::default(), now: Instant::now(), directory: 1, opener: 1 }
        }

        fn step(&mut self, key: u64, size_bytes: Option<u64>, publishes: bool) -> (Option<u64>, bool) {
            let by = Use { opener: Opener(self.opener), directory: self.directory, at: self.now };
            let placing = self.runs.step(&Step { by, id: NodeId(key), size_bytes, publishes }, KEYS);
            (placing.after.map(|id| id.0), placing.short)
        }

        fn reads(&mut self, key: u64) -> Option<u64> {
            self.step(key, Some(9), false).0
        }

        fn puts(&mut self, key: u64) -> Option<u64> {
            self.step(key, Some(9), true).0
        }
    }

    #[test]
    fn keys_of_one_opener_and_directory_are_a_run() {
        let mut client = Client::new();
        assert_eq!([client.reads(10), client.reads(11), client.puts(12)], [None, Some(10), Some(11)]);
        client.opener = 2;
        assert_eq!([client.reads(20), client.puts(21)], [None, Some(20)]);
        (client.opener, client.directory) = (1, 2);
        assert_eq!(client.puts(30), None);
        client.directory = 1;
        assert_eq!(client.puts(13), Some(12));
    }

    #[test]
    fn a_run_ends_with_a_key_of_its_own_a_read_after_a_publication_and_a_pause() {
        let mut client = Client::new();
        assert_eq!(
            [client.reads(1), client.reads(2), client.reads(1)],
            [None, Some(1), None],
            "its first key"
        );
        assert_eq!([client.puts(3), client.reads(4)], [Some(1), None], "a read after a publication");
        client.now += limits::RUN_PAUSE;
        assert_eq!(client.reads(5), Some(4), "no longer than the pause");
        client.now += limits::RUN_PAUSE + Duration::from_millis(1);
        assert_eq!(client.reads(6), None, "a pause");
    }

    #[test]
    fn a_key_that_is_used_twice_at_once_is_used_once() {
        let mut client = Client::new();
        assert_eq!(
            [client.puts(1), client.puts(2), client.puts(2), client.reads(2)].map(|a| a.unwrap_or(0)),
            [0, 1, 1, 1]
        );
        assert_eq!(client.puts(3), Some(2));
    }

    #[test]
    fn a_shorter_value_is_the_tail_and_ends_the_run() {
        let mut client = Client::new();
        assert_eq!(client.step(1, Some(9), false), (None, false));
        assert_eq!(
            client.step(2, None, false),
            (Some(1), false),
            "as long as the one before, for all that is known"
        );
        assert_eq!(client.step(3, Some(4), true), (Some(2), true));
        assert_eq!(client.step(3, Some(4), true), (Some(2), true), "the same once more: it got its name");
        assert_eq!(client.step(4, Some(4), true), (None, false));
        assert_eq!(client.step(5, Some(9), true), (Some(4), false));
    }

    #[test]
    fn runs_and_their_number_are_bounded() {
        let mut client = Client::new();
        let begun = (0..3 * limits::RUN_KEYS as u64).filter(|key| client.puts(*key).is_none()).count();
        assert_eq!(begun, 3);
        for opener in 0..2 * limits::RUNS as u32 {
            client.opener = opener;
            client.now += Duration::from_micros(1);
            client.puts(u64::from(opener));
        }
        assert_eq!(client.runs.runs.len(), limits::RUNS);
        assert_eq!(client.puts(1 << 20), Some(u64::from(client.opener)), "the last ones are there");
        assert_eq!([longest(3), longest(1600), longest(1 << 20)], [limits::SHORTEST_RUN_BOUND, 100, 1024]);
    }
}
