//! Requests are made, and the oldest of those that are complete dropped.

use uuid::Uuid;

use super::EtcdLedger;
use super::keys::{number, scope_name};
use super::rows::{self, BumpRow, DoneRow, RequestRow};
use super::wire::{Compare, Found, Op, Range};
use crate::config::limits;
use crate::error::{Error, Kind, Result};
use crate::ledger::failure::corrupt;
use crate::ledger::local::now_ms;
use crate::ledger::request::Submitted;
use crate::ledger::row;
use crate::ledger::rules;
use crate::scope::{Generation, Mode, Scope};

impl EtcdLedger {
    /// One compare-and-swap: of the sequence, so that each generation is given once; of the members, so that its targets
    /// are exactly those who registered; of the id, so that it stands for one request.
    pub(super) fn make(&self, scope: &Scope, mode: Mode, id: Option<&str>) -> Result<Submitted> {
        rules::check_id(id)?;
        self.begun()?;
        let nonce = Uuid::new_v4();
        let mut tried: Option<Generation> = None;
        let submitted = self.until_committed(|| {
            // A commit that seemed to fail may have been this very request, sent twice.
            if let Some(generation) = tried
                && let Some(submitted) = self.made_as(generation, nonce)?
            {
                return Ok(Some(submitted));
            }
            let rid = self.keys.rid(id.unwrap_or_default());
            let [seq, mver, used, floor] = self.read([
                Range::one(&self.keys.seq()),
                Range::one(&self.keys.mver()),
                Range::one(&rid),
                Range::one(&self.keys.floor(scope)),
            ])?;
            if let Some(id) = id
                && used.one().is_some()
            {
                return rules::answered(self.by_id(id)?, scope, mode).map(Some);
            }
            let generation = Generation(rows::number(&seq)?.0 + 1);
            let members = self.members_at(mver.revision())?;
            let now_ms = now_ms();
            let row = RequestRow::new(scope, mode, id, nonce, now_ms);
            let targets = members.targets(generation);
            let request = row.request(generation)?;
            let request = rules::of_targets(request, targets, now_ms);

            let mut compare = vec![
                Compare::unchanged(&self.keys.seq(), seq.revision()),
                Compare::unchanged(&self.keys.mver(), mver.revision()),
                // Raised together with the sequence; compared in case somebody edits by hand.
                Compare::unchanged(&self.keys.floor(scope), floor.revision()),
            ];
            let (mut raised, _) = floor.one().map(rows::to_floor).transpose()?.unwrap_or_default();
            raised.raise(mode, generation);
            let mut change = vec![
                Op::put(&self.keys.seq(), number(generation)),
                Op::put(&self.keys.numbered("req", generation), row::to_text(&row)),
                Op::put(&self.keys.floor(scope), rows::floor_text(raised, nonce)),
            ];
            if id.is_some() {
                compare.push(Compare::unchanged(&rid, used.revision()));
                change.push(Op::put(&rid, number(generation)));
            }
            change.push(match request.completed_ms {
                Some(completed_ms) => {
                    Op::put(&self.keys.numbered("done", generation), row::to_text(&DoneRow { completed_ms }))
                }
                None => Op::put(&self.keys.numbered("open", generation), scope_name(scope)),
            });
            step!("ledger.submit");
            tried = Some(generation);
            Ok(self.commit(compare, change)?.then_some(Submitted { request, fresh: true }))
        })?;
        if submitted.fresh
            && let Err(e) = self.drop_oldest()
        {
            log::warn!("cannot drop old requests of the ledger: {e}");
        }
        step!("ledger.submitted");
        Ok(submitted)
    }

    pub(super) fn raise_to(&self, least: Generation) -> Result<()> {
        let key = self.keys.seq();
        self.until_committed(|| {
            let [seq] = self.read([Range::one(&key)])?;
            if rows::number(&seq)? >= least {
                return Ok(Some(()));
            }
            let unchanged = vec![Compare::unchanged(&key, seq.revision())];
            Ok(self.commit(unchanged, vec![Op::put(&key, number(least))])?.then_some(()))
        })
    }

    /// An operator's word that a ledger which went backwards counts as it is: its numbers go on above all that any storage
    /// can know of what it lost.
    ///
    /// # Errors
    /// [`Kind::NotFound`] where there is no ledger.
    pub fn bump(&self) -> Result<(Generation, Generation)> {
        let (seq_key, bump_key) = (self.keys.seq(), self.keys.bump());
        self.until_committed(|| {
            let [seq, bump] = self.read([Range::one(&seq_key), Range::one(&bump_key)])?;
            if self.ledger_id.get().is_none() {
                return Err(Error::new(Kind::NotFound, format!("there is no ledger at {}", self.name)));
            }
            let from = rows::number(&seq)?;
            let to = Generation(from.0.saturating_add(limits::BUMP_GENERATIONS));
            let row = BumpRow { from, to, host: self.host.clone(), bumped_ms: now_ms() };
            let compare = vec![
                Compare::unchanged(&seq_key, seq.revision()),
                Compare::unchanged(&bump_key, bump.revision()),
            ];
            let change = vec![Op::put(&seq_key, number(to)), Op::put(&bump_key, row::to_text(&row))];
            Ok(self.commit(compare, change)?.then_some((from, to)))
        })
    }

    /// The request of a generation, if this submission made it.
    fn made_as(&self, generation: Generation, nonce: Uuid) -> Result<Option<Submitted>> {
        let [found] = self.read([Range::one(&self.keys.numbered("req", generation))])?;
        let Some(entry) = found.one() else { return Ok(None) };
        if rows::record::<RequestRow>(entry)?.nonce != nonce {
            return Ok(None);
        }
        Ok(Some(Submitted { request: self.by_generation(generation)?, fresh: true }))
    }

    /// Drops the oldest complete requests, then the oldest ids: a few of each, so that no submission pays for all. Where
    /// another host does the same at the same time, one of the two does it.
    fn drop_oldest(&self) -> Result<()> {
        let oldest = self.beyond("done", self.kept.requests)?;
        if !oldest.is_empty() {
            let requests = oldest.iter().map(|(generation, _)| self.keys.numbered("req", *generation));
            let requests = self.read_all(requests.map(|key| Range::one(&key)).collect())?;
            self.drop_requests(&oldest, &requests)?;
        }
        let oldest = self.beyond("past", self.kept.ids)?;
        if oldest.is_empty() {
            return Ok(());
        }
        let (mut compare, mut change) = (Vec::new(), Vec::new());
        for (generation, found) in &oldest {
            let key = self.keys.numbered("past", *generation);
            compare.push(Compare::unchanged(&key, found.revision()));
            change.push(Op::delete(&key));
            let entry = found.one().ok_or_else(|| corrupt("a key without itself"))?;
            if let Some(id) = rows::record::<RequestRow>(entry)?.id {
                change.push(Op::delete(&self.keys.rid(&id)));
            }
        }
        self.commit(compare, change).map(drop)
    }

    fn drop_requests(&self, oldest: &[(Generation, Found)], requests: &[Found]) -> Result<()> {
        let (mut compare, mut change) = (Vec::new(), Vec::new());
        for ((generation, done), request) in oldest.iter().zip(requests) {
            let key = |kind: &str| self.keys.numbered(kind, *generation);
            compare.push(Compare::unchanged(&key("done"), done.revision()));
            change.extend(["done", "req", "fail"].map(|kind| Op::delete(&key(kind))));
            if let (Some(done), Some(request)) = (done.one(), request.one()) {
                let DoneRow { completed_ms } = rows::record(done)?;
                let row: RequestRow = rows::record(request)?;
                if row.id.is_some() {
                    let past = RequestRow { completed_ms: Some(completed_ms), ..row };
                    change.push(Op::put(&key("past"), row::to_text(&past)));
                }
            }
        }
        self.commit(compare, change).map(drop)
    }

    /// The oldest of a kind, where there are more than should be.
    fn beyond(&self, kind: &str, most: u64) -> Result<Vec<(Generation, Found)>> {
        let [found] = self.read([self.keys.all(kind).first(limits::DROPPED_AT_ONCE)])?;
        let all = u64::try_from(found.count.0).unwrap_or(0);
        let excess = usize::try_from(all.saturating_sub(most)).unwrap_or(usize::MAX);
        let named = found.kvs.into_iter().take(excess).map(|entry| {
            let generation = self.generation_of(kind, &entry)?;
            Ok((generation, Found { kvs: vec![entry], count: super::Int(1) }))
        });
        named.collect()
    }
}
