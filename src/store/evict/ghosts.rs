//! How often the keys that were evicted lately had been used: first in, first out.
//!
//! Compact, because there are more ghosts than keys: a ghost is four bytes of its key's hash in a ring, and four bytes
//! and one more in an open-addressed table: about eleven bytes. Two keys with the same four bytes are one ghost, which is
//! a wrong guess for one key of two thousand at a million ghosts, and nothing worse than a guess.

use std::collections::VecDeque;

/// Slots of the table for each ghost, in quarters: beyond that it grows.
const FULL_QUARTERS: usize = 3;
/// Times that a ghost can be in the ring at once; it is a bit field of the table.
const MOST_TIMES: u8 = 7;
const FREQUENCY_BITS: u32 = 5;

/// What the table knows of a fingerprint.
#[derive(Clone, Copy)]
struct Ghost {
    /// How often it is in the ring: the older ones do not count any more, and the last of them takes the ghost along.
    times: u8,
    /// How often its key had been used; 0 once its key is back.
    frequency: u8,
}

impl Ghost {
    fn packed(self) -> u8 {
        self.times << FREQUENCY_BITS | self.frequency
    }

    fn unpacked(byte: u8) -> Ghost {
        Ghost { times: byte >> FREQUENCY_BITS, frequency: byte & ((1 << FREQUENCY_BITS) - 1) }
    }
}

/// The ghosts.
#[derive(Default)]
pub(super) struct Ghosts {
    ring: VecDeque<u32>,
    /// INVARIANT: by linear probing from where its fingerprint belongs, each ghost of the ring is found before a 0.
    prints: Vec<u32>,
    known: Vec<u8>,
    used: usize,
}

/// The four bytes of a key's hash; never 0, which is a free place.
fn print(key: u64) -> u32 {
    ((key ^ (key >> 32)) as u32).max(1)
}

impl Ghosts {
    /// The place where a fingerprint belongs.
    fn home(&self, print: u32) -> usize {
        // The fingerprint as a fraction of its range: no division, and any length of the table.
        ((u64::from(print) * self.prints.len() as u64) >> 32) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.prints.len() { 0 } else { at + 1 }
    }

    /// Where a fingerprint is, or the free place where it would go.
    fn find(&self, print: u32) -> Result<usize, usize> {
        let mut at = self.home(print);
        while self.prints[at] != 0 {
            if self.prints[at] == print {
                return Ok(at);
            }
            at = self.next(at);
        }
        Err(at)
    }

    fn grow(&mut self) {
        let larger = (self.prints.len() * 3 / 2).max(16);
        let prints = std::mem::replace(&mut self.prints, vec![0; larger]);
        let known = std::mem::replace(&mut self.known, vec![0; larger]);
        for (print, known) in prints.into_iter().zip(known).filter(|(print, _)| *print != 0) {
            if let Err(free) = self.find(print) {
                (self.prints[free], self.known[free]) = (print, known);
            }
        }
    }

    /// Frees a place, and closes the gap in the probes that lead across it.
    fn free(&mut self, mut gap: usize) {
        self.used -= 1;
        let length = self.prints.len();
        let mut at = self.next(gap);
        while self.prints[at] != 0 {
            let probed = (at + length - self.home(self.prints[at])) % length;
            if probed >= (at + length - gap) % length {
                (self.prints[gap], self.known[gap]) = (self.prints[at], self.known[at]);
                gap = at;
            }
            at = self.next(at);
        }
        self.prints[gap] = 0;
    }

    /// One appearance of a fingerprint has left the ring.
    fn leave(&mut self, print: u32) {
        let Ok(at) = self.find(print) else { return };
        let ghost = Ghost::unpacked(self.known[at]);
        if ghost.times <= 1 {
            self.free(at);
        } else {
            self.known[at] = Ghost { times: ghost.times - 1, ..ghost }.packed();
        }
    }

    /// Remembers an eviction, and of all not more than `most`, but always this last one: a value that is replaced leaves
    /// its frequency to the one that comes in its place at once.
    pub(super) fn remember(&mut self, key: u64, frequency: u8, most: usize) {
        while self.ring.len() >= most.max(1)
            && let Some(oldest) = self.ring.pop_front()
        {
            self.leave(oldest);
        }
        if (self.used + 1) * 4 > self.prints.len() * FULL_QUARTERS {
            self.grow();
        }
        let print = print(key);
        match self.find(print) {
            Ok(at) => {
                let times = Ghost::unpacked(self.known[at]).times;
                if times < MOST_TIMES {
                    self.ring.push_back(print);
                }
                self.known[at] = Ghost { times: (times + 1).min(MOST_TIMES), frequency }.packed();
            }
            Err(free) => {
                self.ring.push_back(print);
                (self.prints[free], self.known[free]) = (print, Ghost { times: 1, frequency }.packed());
                self.used += 1;
            }
        }
    }

    /// The frequency that a key left behind, once.
    pub(super) fn take(&mut self, key: u64) -> Option<u8> {
        if self.used == 0 {
            return None;
        }
        let print = print(key);
        let at = self.find(print).ok()?;
        let ghost = Ghost::unpacked(self.known[at]);
        self.known[at] = Ghost { frequency: 0, ..ghost }.packed();
        if self.ring.back() == Some(&print) {
            // It takes no other ghost's place.
            self.ring.pop_back();
            self.leave(print);
        }
        Some(ghost.frequency).filter(|f| *f > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first_and_each_is_taken_once() {
        let mut ghosts = Ghosts::default();
        for key in 1..=5 {
            ghosts.remember(key, key as u8, 3);
        }
        assert_eq!(
            (1..=5).map(|k| ghosts.take(k)).collect::<Vec<_>>(),
            [None, None, Some(3), Some(4), Some(5)]
        );
        assert_eq!(ghosts.take(4), None);
    }

    #[test]
    fn one_that_comes_again_counts_from_its_last_eviction() {
        let mut ghosts = Ghosts::default();
        ghosts.remember(1, 4, 3);
        ghosts.remember(2, 1, 3);
        assert_eq!(ghosts.take(1), Some(4));
        ghosts.remember(1, 5, 3);
        // The first eviction of 1 leaves the ring; the second stays.
        ghosts.remember(3, 1, 3);
        assert_eq!(ghosts.take(1), Some(5));
    }

    #[test]
    fn what_is_taken_at_once_pushes_nobody_out() {
        let mut ghosts = Ghosts::default();
        ghosts.remember(1, 9, 2);
        for _ in 0..10 {
            ghosts.remember(2, 3, 2);
            assert_eq!(ghosts.take(2), Some(3));
        }
        assert_eq!(ghosts.take(1), Some(9));
        ghosts.remember(7, 2, 0);
        assert_eq!(ghosts.take(7), Some(2), "the last one is there even where none is to be");
    }

    /// The table agrees with a plain list of the last evictions, while it grows and shrinks.
    #[test]
    fn ghosts_agree_with_a_list() {
        let (mut ghosts, mut model) = (Ghosts::default(), VecDeque::<(u64, u8)>::new());
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for step in 0..60_000_u64 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let most = 1 + (step / 100 % 300) as usize;
            // Spread over the range of the fingerprints, and dense enough to meet again, but not seven times.
            let key = (random >> 33) % 400 * 10_737_417 + 1;
            if random >> 32 & 1 == 0 {
                while model.len() >= most {
                    model.pop_front();
                }
                if model.iter().filter(|(k, _)| *k == key).count() >= MOST_TIMES.into() {
                    continue;
                }
                ghosts.remember(key, 1 + (step % 31) as u8, most);
                model.iter_mut().filter(|(k, _)| *k == key).for_each(|ghost| ghost.1 = 0);
                model.push_back((key, 1 + (step % 31) as u8));
            } else {
                let found = model.iter().rev().find(|(k, _)| *k == key).map(|(_, f)| *f).filter(|f| *f > 0);
                assert_eq!(ghosts.take(key), found, "step {step}");
                model.iter_mut().filter(|(k, _)| *k == key).for_each(|ghost| ghost.1 = 0);
                if model.back().is_some_and(|(k, _)| *k == key) {
                    model.pop_back();
                }
            }
            assert_eq!(ghosts.ring.len(), model.len(), "step {step}");
        }
    }
}
