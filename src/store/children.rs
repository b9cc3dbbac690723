//! The entries of a directory by their readdir cookie, close together: a cookie is never reused and each new one is above all
//! others, so entries are kept in runs, each a short sorted list of distances from its first cookie. An entry costs some
//! nine bytes, where a map would take 25.

use std::collections::BTreeMap;

use super::evict::Slot;

/// Entries in a run at most.
const RUN: usize = 256;

/// The entries of one directory.
#[derive(Debug, Default)]
pub struct Children {
    /// By a cookie that is at most that of the run's first entry.
    runs: BTreeMap<u64, Vec<(u32, Slot)>>,
}

impl Children {
    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Adds an entry behind all others.
    pub(super) fn push(&mut self, cookie: u64, slot: Slot) {
        if let Some(mut last) = self.runs.last_entry()
            && let Ok(distance) = u32::try_from(cookie - last.key())
            && last.get().len() < RUN
        {
            last.get_mut().push((distance, slot));
        } else {
            self.runs.insert(cookie, vec![(0, slot)]);
        }
    }

    /// Removes the entry of a cookie, if it is there.
    pub(super) fn remove(&mut self, cookie: u64) {
        let Some((&first, run)) = self.runs.range_mut(..=cookie).next_back() else { return };
        let Ok(at) = run.binary_search_by_key(&(cookie - first), |e| u64::from(e.0)) else { return };
        run.remove(at);
        if run.is_empty() {
            self.runs.remove(&first);
        } else if run.len() <= RUN / 4 {
            self.absorb_next(first);
            if let Some((&before, _)) = self.runs.range(..first).next_back() {
                self.absorb_next(before);
            }
        }
    }

    /// A run takes over the entries of the next one where both have few, and gives back what it does not need.
    fn absorb_next(&mut self, first: u64) {
        let Some(mut run) = self.runs.remove(&first) else { return };
        if let Some((&next, others)) = self.runs.range(first..).next()
            && run.len() + others.len() <= RUN / 2
            && let Some(last) = others.last()
            && u32::try_from(next - first + u64::from(last.0)).is_ok()
        {
            run.extend(others.iter().map(|&(distance, slot)| ((next - first) as u32 + distance, slot)));
            self.runs.remove(&next);
        }
        if run.capacity() > 4 * run.len() {
            run.shrink_to(2 * run.len());
        }
        self.runs.insert(first, run);
    }

    /// The entries in order.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        self.runs.values().flatten().map(|e| e.1)
    }

    /// The entries behind a cookie, in order, with theirs.
    pub fn behind(&self, cookie: u64) -> impl Iterator<Item = (u64, Slot)> {
        let start = self.runs.range(..=cookie).next_back().map_or(0, |(&first, _)| first);
        self.runs.range(start..).flat_map(move |(&first, run)| {
            let from = run.partition_point(|e| first + u64::from(e.0) <= cookie);
            run[from..].iter().map(move |e| (first + u64::from(e.0), e.1))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn entries_agree_with_a_map() {
        let mut random = Random(7);
        let (mut children, mut map, mut next) = (Children::default(), BTreeMap::new(), 3_u64);
        for step in 0..60_000_u32 {
            // Fills up, thins out, and fills up again; now and then a directory is very old.
            let removes = random.below(100) < if step / 10_000 % 2 == 0 { 30 } else { 80 };
            if removes && !map.is_empty() {
                let from = next.saturating_sub(random.below(40_000) as u64);
                let cookie = map.range(from..).next().map_or(from, |(&c, _)| c);
                children.remove(cookie);
                map.remove(&cookie);
            } else {
                next += if random.below(5_000) == 0 { 1 << 33 } else { 1 + random.below(2) as u64 };
                children.push(next, step);
                map.insert(next, step);
            }
            if step % 500 == 0 {
                assert!(children.slots().eq(map.values().copied()), "{step}");
                let at = next.saturating_sub(random.below(60_000) as u64);
                let behind = map.range(at + 1..).map(|(&c, &s)| (c, s));
                assert!(children.behind(at).eq(behind), "{step}");
                assert_eq!(children.is_empty(), map.is_empty());
            }
        }
        let cookies: Vec<u64> = map.keys().copied().collect();
        cookies.iter().for_each(|c| children.remove(*c));
        assert!(children.is_empty() && children.behind(0).next().is_none());
    }

    /// One key in 256 left: no run of its own for each.
    #[test]
    fn few_entries_of_many_need_few_runs() {
        let mut children = Children::default();
        (0..256_000_u32).for_each(|n| children.push(u64::from(n) + 3, n));
        (0..256_000_u32).filter(|n| n % 256 != 5).for_each(|n| children.remove(u64::from(n) + 3));
        assert_eq!(children.slots().count(), 1000);
        assert!(children.runs.len() < 32, "{}", children.runs.len());
        let room: usize = children.runs.values().map(Vec::capacity).sum();
        assert!(room <= 4 * 1000, "{room}");
    }
}
