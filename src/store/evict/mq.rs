//! Multi-queue replacement (Zhou, Philbin and Li, USENIX ATC 2001), optionally with chains.
//!
//! A key stands in the queue of the logarithm of its frequency. One that is not touched for a lifetime is moved down
//! by a queue, so that what was popular once does not stay for ever; the victim is the coldest of the lowest queue.
//! What was evicted leaves its frequency behind for a while ([`Ghosts`]). Time is a count of touches.

use super::ghosts::Ghosts;
use super::list::{At, Ends, Entries};
use super::{Admission, Found, Heat, Later, Passed, Policy, Scope, Slot, Verdict};
use crate::config::EvictOptions;

/// What is known of a slot, beside its links: with them 16 bytes.
#[derive(Clone, Copy, Default)]
struct Known {
    /// The touch that it was placed at. It wraps; nothing stays in a queue above the lowest for long enough to matter.
    placed_at: u32,
    frequency: u8,
    queue: u8,
}

impl Known {
    fn heat(self) -> Heat {
        Heat::new(self.queue, self.frequency)
    }
}

/// The queues.
pub(super) struct Mq {
    entries: Entries<Known>,
    queues: Vec<Ends>,
    ghosts: Ghosts,
    touches: u32,
    options: EvictOptions,
    chain: bool,
}

impl Mq {
    pub(super) fn new(options: EvictOptions, chain: bool) -> Mq {
        Mq {
            entries: Entries::default(),
            queues: vec![Ends::default(); options.queues.into()],
            ghosts: Ghosts::default(),
            touches: 0,
            options,
            chain,
        }
    }

    /// The queue of a frequency.
    fn queue_of(&self, frequency: u8) -> u8 {
        (frequency.max(1).ilog2() as u8).min(self.options.queues - 1)
    }

    fn link(&mut self, slot: Slot, frequency: u8, queue: u8, at: At) {
        let known = Known { placed_at: self.touches, frequency, queue };
        self.entries.link(&mut self.queues[usize::from(queue)], slot, known, at);
    }

    fn unlink(&mut self, slot: Slot) -> Option<Known> {
        let known = self.entries.get(slot)?;
        self.entries.unlink(&mut self.queues[usize::from(known.queue)], slot);
        Some(known)
    }

    /// A use of a slot that is in no queue now: to the hot end of its queue, or just behind the key before it in its
    /// run where that is in the same queue.
    fn place(&mut self, slot: Slot, frequency: u8, after: Option<Slot>) {
        let queue = self.queue_of(frequency);
        let in_queue = |a: &Slot| self.chain && self.entries.get(*a).is_some_and(|k| k.queue == queue);
        let at = after.filter(in_queue).map_or(At::HotEnd, At::Behind);
        self.link(slot, frequency, queue, at);
    }

    /// Time goes on by one touch: what has expired at the cold end of a queue goes to the hot end of the one below.
    fn tick(&mut self) {
        self.touches = self.touches.wrapping_add(1);
        let lifetime = self.entries.len() as u64 * u64::from(self.options.lifetime_percent) / 100;
        for queue in 1..self.options.queues {
            let Some(slot) = self.queues[usize::from(queue)].coldest() else { continue };
            let Some(known) = self.entries.get(slot) else { continue };
            if u64::from(self.touches.wrapping_sub(known.placed_at)) > lifetime {
                self.unlink(slot);
                self.link(slot, known.frequency, queue - 1, At::HotEnd);
            }
        }
    }
}

impl Policy for Mq {
    fn insert(&mut self, slot: Slot, admission: Admission) {
        let known = self.unlink(slot);
        let own = known.map_or(1, |known| known.frequency);
        let frequency = self.ghosts.take(admission.key).map_or(own, |f| own.max(Heat::one_more(f)));
        if admission.short && self.chain {
            self.link(slot, frequency, 0, At::ColdEnd);
        } else {
            self.place(slot, frequency, admission.after);
        }
        // One that gets its name is no further use.
        if known.is_none() {
            self.tick();
        }
    }

    fn restore(&mut self, slot: Slot, heat: Heat) {
        self.unlink(slot);
        self.link(slot, heat.frequency(), heat.queue().min(self.options.queues - 1), At::HotEnd);
    }

    fn touch(&mut self, slot: Slot, after: Option<Slot>) {
        let Some(known) = self.unlink(slot) else { return };
        self.place(slot, Heat::one_more(known.frequency), after);
        self.tick();
    }

    fn remove(&mut self, slot: Slot) {
        self.unlink(slot);
    }

    fn evicted(&mut self, slot: Slot, key: u64) {
        let resident = self.entries.len() as u64;
        if let Some(known) = self.unlink(slot) {
            let most = resident * u64::from(self.options.ghosts_percent) / 100;
            self.ghosts.remember(key, known.frequency, most as usize);
        }
    }

    fn remembers(&self) -> bool {
        true
    }

    fn victim(&self, scope: Scope, ask: &mut dyn FnMut(Slot) -> Verdict) -> Found {
        let mut found = Found::default();
        for (queue, ends) in (0..).zip(&self.queues) {
            let (slot, gap) = self.entries.search(ends, scope, ask);
            found.passed.extend(gap.map(|gap| (queue, gap)));
            if slot.is_some() {
                return Found { slot, ..found };
            }
        }
        found
    }

    fn note_passed(&mut self, scope: Scope, passed: Passed) {
        for (queue, gap) in passed {
            self.queues[usize::from(queue)].note(scope, gap);
        }
    }

    fn forget_passed(&mut self, scope: Scope) {
        self.queues.iter_mut().for_each(|ends| ends.forget_gap(scope));
    }

    fn heat(&self, slot: Slot) -> Option<Heat> {
        self.entries.get(slot).map(Known::heat)
    }

    fn order_later(&self) -> Later {
        let (entries, queues) = (self.entries.clone(), self.queues.clone());
        Box::new(move || {
            let all = queues.iter().flat_map(|ends| entries.iter(ends));
            all.filter_map(|s| Some((s, entries.get(s)?.heat()))).collect()
        })
    }

    fn reserve(&mut self, slots: usize) {
        self.entries.reserve(slots);
    }

    fn len(&self) -> usize {
        self.entries.len()
    }
}
