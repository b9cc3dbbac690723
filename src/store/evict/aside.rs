//! Keys that a search has set aside: they stand before all others, each tenant's in a queue of its own, until they are
//! used again or go.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::{Heat, Slot};

/// A key that is set aside.
#[derive(Debug, Clone, Copy)]
struct Mark {
    /// Its entry in the queue; one of its slot's with another stamp is stale.
    stamp: u32,
    tenant: u32,
    heat: Heat,
}

/// The keys. INVARIANT: each is in the queue of its tenant once with its own stamp; no queue has more stale entries than
/// twice its others.
#[derive(Debug, Default)]
pub(super) struct Aside {
    marks: HashMap<Slot, Mark>,
    queues: HashMap<u32, Queue>,
    next_stamp: u32,
}

#[derive(Debug, Default)]
struct Queue {
    coldest_first: VecDeque<(Slot, u32)>,
    live: usize,
}

impl Aside {
    /// Sets a key aside, behind those that are.
    pub(super) fn put(&mut self, tenant: u32, slot: Slot, heat: Heat) {
        self.next_stamp = self.next_stamp.wrapping_add(1);
        let stamp = self.next_stamp;
        self.marks.insert(slot, Mark { stamp, tenant, heat });
        let queue = self.queues.entry(tenant).or_default();
        queue.coldest_first.push_back((slot, stamp));
        queue.live += 1;
    }

    /// Takes a key out, if it is there.
    pub(super) fn take(&mut self, slot: Slot) -> Option<Heat> {
        let Mark { tenant, heat, .. } = self.marks.remove(&slot)?;
        if let Some(queue) = self.queues.get_mut(&tenant) {
            queue.live -= 1;
            if queue.live == 0 {
                self.queues.remove(&tenant);
            } else if queue.coldest_first.len() > 3 * queue.live {
                let marks = &self.marks;
                queue
                    .coldest_first
                    .retain(|(slot, stamp)| marks.get(slot).is_some_and(|m| m.stamp == *stamp));
            }
        }
        Some(heat)
    }

    /// Of one tenant, coldest first.
    pub(super) fn of(&self, tenant: u32) -> impl Iterator<Item = Slot> + '_ {
        let entries = self.queues.get(&tenant).into_iter().flat_map(|q| &q.coldest_first);
        let is_live = |(slot, stamp): &&(Slot, u32)| self.marks.get(slot).is_some_and(|m| m.stamp == *stamp);
        entries.filter(is_live).map(|(slot, _)| *slot)
    }

    /// All of them, those of one tenant coldest first.
    pub(super) fn all(&self) -> Vec<(Slot, Heat)> {
        let mut tenants: Vec<u32> = self.queues.keys().copied().collect();
        tenants.sort_unstable();
        let slots = tenants.iter().flat_map(|tenant| self.of(*tenant));
        slots.filter_map(|slot| Some((slot, self.marks.get(&slot)?.heat))).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.marks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenants_stand_in_the_order_in_which_they_came() {
        let heat = Heat::new(1, 3);
        let mut aside = Aside::default();
        for (tenant, slot) in [(2, 9), (1, 5), (2, 4), (1, 6)] {
            aside.put(tenant, slot, heat);
        }
        assert_eq!(aside.all(), [(5, heat), (6, heat), (9, heat), (4, heat)]);
        assert_eq!((aside.take(9), aside.take(9), aside.take(7)), (Some(heat), None, None));
        // Its old entry does not stand for it any more.
        aside.put(2, 9, heat);
        assert_eq!(aside.of(2).collect::<Vec<_>>(), [4, 9]);
        assert_eq!(aside.len(), 4);
    }

    #[test]
    fn stale_entries_are_few() {
        let mut aside = Aside::default();
        aside.put(1, 1, Heat::default());
        for _ in 0..1000 {
            aside.put(1, 2, Heat::default());
            aside.take(2);
        }
        assert!(aside.queues[&1].coldest_first.len() <= 4);
        assert_eq!(aside.of(1).collect::<Vec<_>>(), [1]);
        aside.take(1);
        assert!(aside.queues.is_empty());
    }
}
