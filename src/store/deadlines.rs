//! Which keys live for a time only, and whose is over next: a part of the index, a plain value. It knows nothing of keys
//! that live for ever, so it costs nothing for them.
//!
//! What is kept of a key is what its record says, the time of its last change and its own time to live. The deadline
//! comes of that and of what its tenant's is now, so a tenant's change counts for every key at once; only the keeper's
//! turns have to be taken anew. What a record says may have changed unseen (a map that is still written through): the
//! keeper reads it once more before it deletes anything.

use std::collections::BTreeSet;
use std::time::Duration;

use hashbrown::HashMap;

use super::evict::Slot;
use super::index::{Index, NodeId, State};
use crate::os::Timespec;

/// What a record says of its key's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// The last change of content.
    pub changed: Timespec,
    /// Its own time to live, which counts in place of its tenant's.
    pub own_seconds: Option<u64>,
}

/// The keys that live for a time. INVARIANT: `turns` has each of them once, at its turn ([`Deadlines::check`]).
#[derive(Debug, Default)]
pub struct Deadlines {
    lives: HashMap<NodeId, (Life, Timespec)>,
    /// When the keeper looks at which.
    turns: BTreeSet<(Timespec, NodeId)>,
}

impl Deadlines {
    fn set(&mut self, id: NodeId, life: Life, turn: Timespec) {
        self.forget(id);
        self.lives.insert(id, (life, turn));
        self.turns.insert((turn, id));
    }

    /// A key that is gone, or lives for ever.
    pub(super) fn forget(&mut self, id: NodeId) {
        if let Some((_, turn)) = self.lives.remove(&id) {
            self.turns.remove(&(turn, id));
        }
    }

    /// What is known of a key that lives for a time.
    pub(super) fn of(&self, id: NodeId) -> Option<Life> {
        self.lives.get(&id).map(|(life, _)| *life)
    }

    /// When the keeper's next turn is.
    pub(super) fn next(&self) -> Option<Timespec> {
        self.turns.first().map(|(turn, _)| *turn)
    }

    /// Whose turn it is, the earliest first.
    pub(super) fn due(&self, now: Timespec, most: usize) -> Vec<NodeId> {
        self.turns.iter().take_while(|(turn, _)| *turn <= now).take(most).map(|(_, id)| *id).collect()
    }

    /// One that was due and is there still has another turn.
    pub(super) fn postpone(&mut self, id: NodeId, now: Timespec, until: Timespec) {
        if let Some((life, turn)) = self.lives.get(&id).copied()
            && turn <= now
        {
            self.set(id, life, until);
        }
    }

    /// What is wrong with it, as sentences.
    pub(super) fn check(&self, is_value: impl Fn(NodeId) -> bool) -> Vec<String> {
        let mut found = Vec::new();
        for (id, (_, turn)) in &self.lives {
            if !is_value(*id) {
                found.push(format!("node {} has a time to live and is no key", id.slot()));
            }
            if !self.turns.contains(&(*turn, *id)) {
                found.push(format!("node {} lives for a time and has no turn", id.slot()));
            }
        }
        if self.lives.len() != self.turns.len() {
            found.push(format!("{} keys live for a time, with {} turns", self.lives.len(), self.turns.len()));
        }
        found
    }
}

impl Index {
    fn deadline_with(&self, id: NodeId, life: Life) -> Option<Timespec> {
        let node = self.linked(id).ok().filter(|node| node.dir.is_none() && !node.pinned)?;
        if self.is_attached(id) {
            return None;
        }
        let tenant = self.tenants.get(node.tenant as usize);
        let seconds = life.own_seconds.or_else(|| tenant?.ttl_seconds)?;
        Some(after(life.changed, seconds))
    }

    /// When a linked value's time is over, as far as its record has been looked at; `None` while it lives for ever.
    pub fn deadline(&self, id: NodeId) -> Option<Timespec> {
        self.deadline_with(id, self.deadlines.of(id)?)
    }

    /// Whether a linked value's time is over. Not while somebody writes it in place.
    pub fn has_expired(&self, id: NodeId, now: Timespec) -> bool {
        self.deadline(id).is_some_and(|deadline| deadline <= now)
            && self.get(id).is_ok()
            && !self.is_in_use(id)
    }

    /// Takes over what the record of a linked value says; whether it is the next whose time is over.
    pub fn note_life(&mut self, id: NodeId, life: Life) -> bool {
        let Some(deadline) = self.deadline_with(id, life) else {
            self.deadlines.forget(id);
            return false;
        };
        if self.deadlines.of(id) != Some(life) || self.deadlines.lives[&id].1 != deadline {
            self.deadlines.set(id, life, deadline);
        }
        self.deadlines.turns.first() == Some(&(deadline, id))
    }

    /// A node takes the place of another.
    pub(super) fn inherit_life(&mut self, from: Option<Life>, to: NodeId) {
        if let Some(life) = from {
            self.note_life(to, life);
        }
    }

    /// Values from a slot on that may live for a time, and the slot behind the last that was asked.
    pub(super) fn mortal_from(&self, at: Slot, all: bool, slots: usize, most: usize) -> (Vec<NodeId>, Slot) {
        let (mut found, mut slot) = (Vec::new(), at);
        let end = self.nodes.len().min((at as usize).saturating_add(slots)) as Slot;
        while slot < end && found.len() < most {
            let (node, id) = (self.at(slot), self.id_of(slot));
            let of_tenant =
                || self.tenants.get(node.tenant as usize).is_some_and(|t| t.ttl_seconds.is_some());
            let is_value = node.state == State::Linked && node.dir.is_none();
            if is_value && (all || of_tenant() || self.deadlines.of(id).is_some()) {
                found.push(id);
            }
            slot += 1;
        }
        (found, if slot as usize == self.nodes.len() { Slot::MAX } else { slot })
    }
}

fn after(time: Timespec, seconds: u64) -> Timespec {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    Timespec { sec: time.sec.saturating_add(seconds), ..time }
}

/// From one moment to a later one; nothing where it is earlier.
pub(super) fn time_between(from: Timespec, to: Timespec) -> Duration {
    if to <= from {
        return Duration::ZERO;
    }
    let seconds = to.sec.saturating_sub(from.sec) as u64;
    let (to_nanos, from_nanos) =
        (Duration::from_nanos(to.nsec.into()), Duration::from_nanos(from.nsec.into()));
    Duration::from_secs(seconds).saturating_add(to_nanos).saturating_sub(from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sec: i64, nsec: u32) -> Timespec {
        Timespec { sec, nsec }
    }

    #[test]
    fn turns_come_in_order_and_each_key_has_one() {
        let mut deadlines = Deadlines::default();
        let life = Life { changed: at(1, 0), own_seconds: None };
        let (a, b, c) = (NodeId(1), NodeId(2), NodeId(3));
        for (id, turn) in [(a, at(30, 0)), (b, at(10, 5)), (c, at(10, 4)), (a, at(20, 0))] {
            deadlines.set(id, life, turn);
        }
        assert_eq!(deadlines.check(|_| true), [""; 0]);
        assert_eq!(deadlines.next(), Some(at(10, 4)));
        assert_eq!(deadlines.due(at(10, 3), 9), []);
        assert_eq!(deadlines.due(at(20, 0), 9), [c, b, a]);
        assert_eq!(deadlines.due(at(20, 0), 2), [c, b]);
        deadlines.postpone(c, at(10, 4), at(40, 0));
        deadlines.postpone(a, at(10, 4), at(50, 0));
        assert_eq!(deadlines.due(at(99, 0), 9), [b, a, c], "only what was due has another turn");
        deadlines.forget(b);
        deadlines.forget(b);
        assert_eq!((deadlines.of(b), deadlines.of(a)), (None, Some(life)));
        assert_eq!(deadlines.check(|_| true), [""; 0]);
        assert_eq!(deadlines.check(|id| id != a), ["node 1 has a time to live and is no key"]);
    }

    #[test]
    fn no_clock_and_no_time_to_live_overflows() {
        assert_eq!(after(at(5, 7), 3), at(8, 7));
        assert_eq!(after(at(5, 7), u64::MAX), at(i64::MAX, 7));
        assert_eq!(after(at(-5, 7), 3), at(-2, 7));
        assert_eq!(time_between(at(5, 7), at(8, 5)), Duration::new(2, 999_999_998));
        assert_eq!(time_between(at(8, 5), at(5, 7)), Duration::ZERO);
        assert!(time_between(at(i64::MIN, 0), at(i64::MAX, 0)) > Duration::from_secs(1 << 40));
    }
}
