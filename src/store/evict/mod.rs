//! Which key goes when room is needed.
//!
//! A policy orders slots of the index and proposes the coldest. It never frees anything: the caller says which
//! slots may go (pinned, open and fenced keys may not), deletes the key, and then says so.
//! Pure values without I/O; the index lock guards them. `docs/eviction.md` has the whole picture.

use crate::config::{EvictOptions, PolicyName};

mod aside;
mod gaps;
mod ghosts;
mod kept;
mod list;
mod mq;
mod one_list;
mod order;
mod runs;
#[cfg(test)]
mod tests;

pub use order::Order;
pub use runs::{Opener, Use};

/// One entry: a slot number of the index. Slots are dense and reused after [`Policy::remove`].
pub type Slot = u32;

/// Whose victim a search looks for: one tenant's, by its number, or anybody's.
pub type Scope = Option<u32>;

/// What a search is told of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is the victim.
    Goes,
    /// Not this time.
    Stays,
    /// It is another tenant's, or pinned: no search of this scope need ask again until the slot moves, or
    /// [`Policy::forget_passed`].
    Passed,
}

/// What a search passed, by list.
pub type Passed = Vec<(u8, gaps::Gap)>;

/// What a search found.
#[derive(Debug, Default)]
pub struct Found {
    /// The victim.
    pub slot: Option<Slot>,
    /// For [`Policy::note_passed`].
    pub passed: Passed,
}

/// What is known of a key that is admitted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Admission {
    /// A hash of what the key is: the same whenever it comes back.
    pub key: u64,
    /// The key before it in its run.
    pub after: Option<Slot>,
    /// The tail of its run: its value is shorter than the one before.
    pub short: bool,
}

/// How often a key was used and what is left of that, in a byte that outlasts restarts: frequency and queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heat(u8);

impl Default for Heat {
    fn default() -> Self {
        Heat::new(0, 1)
    }
}

impl Heat {
    /// The frequency that higher ones count as.
    pub const MOST: u8 = (1 << Self::BITS) - 1;
    const BITS: u32 = 5;

    fn new(queue: u8, frequency: u8) -> Heat {
        Heat(queue << Self::BITS | frequency.min(Self::MOST))
    }

    /// Any byte is one.
    pub fn from_byte(byte: u8) -> Heat {
        Heat(byte)
    }

    /// As [`Heat::from_byte`] takes it.
    pub fn byte(self) -> u8 {
        self.0
    }

    fn frequency(self) -> u8 {
        (self.0 & Self::MOST).max(1)
    }

    fn queue(self) -> u8 {
        self.0 >> Self::BITS
    }

    fn one_more(frequency: u8) -> u8 {
        (frequency + 1).min(Self::MOST)
    }
}

/// An order that was copied under a lock and is walked through without it.
pub type Later = Box<dyn FnOnce() -> Vec<(Slot, Heat)> + Send>;

/// An order of slots from the coldest to the hottest.
pub trait Policy: Send {
    /// Admits a key, which counts as its first touch. A known slot got another name or value.
    fn insert(&mut self, slot: Slot, admission: Admission);

    /// Puts a slot back at the hot end of where it was when [`Policy::order_later`] told of it.
    fn restore(&mut self, slot: Slot, heat: Heat);

    /// The key was opened, after another one in its run. Unknown slots are ignored.
    fn touch(&mut self, slot: Slot, after: Option<Slot>);

    /// Whether a touch changes the order.
    fn moves(&self) -> bool {
        true
    }

    /// How a slot was used; none of one that is not there.
    fn heat(&self, slot: Slot) -> Option<Heat>;

    /// Forgets a slot; its number may come back as another key. Unknown slots are ignored.
    fn remove(&mut self, slot: Slot);

    /// The same of a key that is expected to come back, by the hash of what it is.
    fn evicted(&mut self, slot: Slot, _key: u64) {
        self.remove(slot);
    }

    /// Whether the hash of a key is of any use.
    fn remembers(&self) -> bool {
        false
    }

    /// The coldest slot of a scope that goes; it is there until it is removed. Asks about no slot behind the one it
    /// returns, and about none that an earlier search passed, if that was noted.
    fn victim(&self, scope: Scope, ask: &mut dyn FnMut(Slot) -> Verdict) -> Found;

    /// Has the next searches of a scope step over what this one passed. Nothing has changed since.
    fn note_passed(&mut self, scope: Scope, passed: Passed);

    /// What was passed may go now: a key was unpinned.
    fn forget_passed(&mut self, scope: Scope);

    /// All slots, coldest first: restoring them in this order into an empty policy makes it what this one is. Only a
    /// copy is made now.
    fn order_later(&self) -> Later;

    /// Makes room for the slots below this one, in one piece.
    fn reserve(&mut self, slots: usize);

    /// How many slots there are.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An empty policy of this name.
pub fn new(name: PolicyName, options: EvictOptions) -> Box<dyn Policy> {
    match name {
        PolicyName::Fifo => Box::new(one_list::OneList::fifo()),
        PolicyName::Lru => Box::new(one_list::OneList::lru(false)),
        PolicyName::LruChain => Box::new(one_list::OneList::lru(true)),
        PolicyName::Mq => Box::new(mq::Mq::new(options, false)),
        PolicyName::MqChain => Box::new(mq::Mq::new(options, true)),
    }
}

/// One that keeps the same order and gives nothing away.
pub fn keeping_all(name: PolicyName, options: EvictOptions) -> Box<dyn Policy> {
    Box::new(kept::Kept(new(name, options)))
}
