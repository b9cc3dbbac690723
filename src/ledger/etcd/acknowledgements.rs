//! What a storage has still to do, what it has done, and what is complete with that.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use uuid::Uuid;

use super::EtcdLedger;
use super::keys::{self, number};
use super::members::require_token;
use super::rows::{self, DoneRow, FailRow, RequestRow, SessionRow, StorageRow};
use super::wire::{Compare, Entry, Found, Int, Op, Range};
use crate::config::limits;
use crate::error::{Error, Kind, Result};
use crate::ledger::applied::Applied;
use crate::ledger::fleet::Standing;
use crate::ledger::local::{no_such, now_ms};
use crate::ledger::row;
use crate::ledger::rules::{self, Member};
use crate::scope::{Generation, Scope};

impl EtcdLedger {
    pub(super) fn standing_of(&self, storage: Uuid) -> Result<Standing> {
        self.keep_session(storage);
        // What nobody noted, because whoever was to died, somebody of the fleet finds about once an interval.
        let size = self.size.load(Ordering::Relaxed).max(1);
        let is_turn = Uuid::new_v4().as_u128().is_multiple_of(size as u128);
        if self.unsettled.swap(false, Ordering::Relaxed) | is_turn {
            self.settle_quietly(&Scope::Global, Generation(u64::MAX), None);
        }
        let [found, retired, seq, floors, acked] = self.read([
            Range::one(&self.keys.storage(storage)),
            Range::one(&self.keys.retired(storage)),
            Range::one(&self.keys.seq()),
            self.keys.all("floor"),
            self.keys.acks_of(storage),
        ])?;
        let member = Member::live(rows::member(&found, &retired)?, storage)?;
        if let Some(own) = self.own_token(storage) {
            require_token(storage, member.token, own)?;
        }
        let (mut requested, mut marks) = (Vec::new(), BTreeMap::new());
        for entry in &floors.kvs {
            let (floor, mark) = rows::to_floor(entry)?;
            requested.push((self.scope_of("floor", entry)?, floor));
            marks.insert(floor.highest(), mark);
        }
        let acked = self.marks(&acked)?.remove(&storage).unwrap_or_default();
        let pending = rules::pending(&requested, &acked);
        Ok(Standing { highest: rows::number(&seq)?, acked, pending, marks })
    }

    pub(super) fn has_mark(&self, generation: Generation, mark: Uuid) -> Result<bool> {
        let [found] = self.read([Range::one(&self.keys.numbered("req", generation))])?;
        let row = found.one().map(rows::record::<RequestRow>).transpose()?;
        Ok(row.is_some_and(|row| row.nonce == mark))
    }

    pub(super) fn acknowledge(&self, storage: Uuid, scope: &Scope, generation: Generation) -> Result<()> {
        let (mine, mark) = (self.keys.storage(storage), self.keys.ack(storage, scope));
        let session_key = self.keys.session(storage);
        let has_advanced = self.until_committed(|| {
            let [found, retired, seq, request, global, own, session] = self.read([
                Range::one(&mine),
                Range::one(&self.keys.retired(storage)),
                Range::one(&self.keys.seq()),
                Range::one(&self.keys.numbered("req", generation)),
                Range::one(&self.keys.ack(storage, &Scope::Global)),
                Range::one(&mark),
                Range::one(&session_key),
            ])?;
            Member::live(rows::member(&found, &retired)?, storage)?;
            let mut compare =
                vec![Compare::unchanged(&mine, found.revision()), Compare::unchanged(&mark, own.revision())];
            if let (Some(token), Some(entry)) = (self.own_token(storage), found.one()) {
                require_token(storage, rows::record::<StorageRow>(entry)?.token, token)?;
                let Some(session) = session.one() else {
                    self.begin_session(storage)?;
                    return Ok(None);
                };
                require_token(storage, rows::record::<SessionRow>(session)?.token, token)?;
                compare.push(Compare::unchanged(&session_key, session.mod_revision));
            }
            let kept = request.one().map(rows::record::<RequestRow>).transpose()?;
            let kept = kept.map(|row| row.request(generation)).transpose()?;
            let mut marks = Applied::default();
            marks.advance(&Scope::Global, rows::number(&global)?);
            marks.advance(scope, rows::number(&own)?);
            if !rules::advances(scope, generation, rows::number(&seq)?, kept.as_ref(), &marks)? {
                return Ok(Some(false));
            }
            step!("ledger.ack");
            let change = vec![Op::put(&mark, number(generation)), self.put_seen(storage)];
            let done = self.commit(compare, change)?;
            Ok(done.then_some(true))
        })?;
        if has_advanced {
            self.settle_quietly(scope, generation, Some(storage));
        }
        step!("ledger.acked");
        Ok(())
    }

    pub(super) fn failed(&self, generation: Generation, error: &str) -> Result<()> {
        let (open, fail) = (self.keys.numbered("open", generation), self.keys.numbered("fail", generation));
        self.until_committed(|| {
            let [waits, before, seq] =
                self.read([Range::one(&open), Range::one(&fail), Range::one(&self.keys.seq())])?;
            if generation == Generation(0) || generation > rows::number(&seq)? {
                return Err(no_such(generation));
            }
            if waits.one().is_none() {
                return Ok(Some(()));
            }
            let attempts = before.one().map(rows::record::<FailRow>).transpose()?.map_or(0, |f| f.attempts);
            let row = FailRow { attempts: attempts + 1, host: self.host.clone(), error: error.to_owned() };
            let compare = vec![
                Compare::unchanged(&open, waits.revision()),
                Compare::unchanged(&fail, before.revision()),
            ];
            step!("ledger.note");
            Ok(self.commit(compare, vec![Op::put(&fail, row::to_text(&row))])?.then_some(()))
        })
    }

    /// The same, where what it notes follows from what is recorded: whoever comes next notes it.
    pub(super) fn settle_quietly(&self, scope: &Scope, last: Generation, by: Option<Uuid>) {
        if let Err(e) = self.settle(scope, last, by) {
            log::warn!("cannot note which requests are complete: {e}");
            self.unsettled.store(true, Ordering::Relaxed);
        }
    }

    /// Notes the requests of a scope, up to a generation, for which nobody is waited any more. Two storages that
    /// acknowledge at the same time both look afterwards, so one of them sees both.
    fn settle(&self, scope: &Scope, last: Generation, by: Option<Uuid>) -> Result<()> {
        // All of the circle of members, from behind the one who asks round to him: a few at first, since who acknowledges
        // early soon finds another who has not.
        let start = by.unwrap_or(Uuid::nil());
        let (mut after, mut at_once, mut is_round) = (start, limits::ETCD_FIRST_MARKS, false);
        let [open, mut page] =
            self.read([self.keys.all("open"), self.keys.storages_after(after).first(at_once)])?;
        let mut settled = Vec::new();
        for entry in open.kvs {
            let (generation, of) = self.open_request(&entry)?;
            if generation <= last && scope.includes(&of) {
                settled.push((generation, of, entry.mod_revision));
            }
        }
        while !settled.is_empty() {
            let mut some = Vec::new();
            for entry in &page.kvs {
                some.push((self.named("storage", entry)?, rows::record::<StorageRow>(entry)?.first));
            }
            let is_last = page.kvs.len() < at_once;
            after = some.last().map_or(after, |(id, _)| *id);
            some.retain(|(id, _)| !is_round || *id <= start);
            let asked = some.iter().map(|(id, _)| self.keys.acks_of(*id)).collect();
            let found = if some.is_empty() { Vec::new() } else { self.read_all(asked)? };
            for ((id, first), found) in some.iter().zip(found) {
                let marks = self.marks(&found)?.remove(id).unwrap_or_default();
                settled.retain(|(generation, of, _)| generation <= first || marks.covers(of, *generation));
            }
            if (is_round || start.is_nil()) && (is_last || (is_round && after >= start)) {
                break;
            }
            if is_last {
                (after, is_round) = (Uuid::nil(), true);
            }
            if !settled.is_empty() {
                at_once = (4 * at_once).min(limits::ETCD_MARKS_AT_ONCE);
                [page] = self.read([self.keys.storages_after(after).first(at_once)])?;
            }
        }
        for (generation, _, revision) in settled {
            self.finish(generation, revision)?;
        }
        Ok(())
    }

    pub(super) fn open_requests(&self) -> Result<BTreeMap<Generation, Scope>> {
        let [open] = self.read([self.keys.all("open")])?;
        open.kvs.iter().map(|entry| self.open_request(entry)).collect()
    }

    fn open_request(&self, entry: &Entry) -> Result<(Generation, Scope)> {
        let generation = self.generation_of("open", entry)?;
        let scope = std::str::from_utf8(&entry.value.0).ok().and_then(keys::to_scope);
        Ok((generation, scope.ok_or_else(|| unreadable(entry))?))
    }

    fn finish(&self, generation: Generation, revision: Int) -> Result<()> {
        let open = self.keys.numbered("open", generation);
        let row = DoneRow { completed_ms: now_ms() };
        let change =
            vec![Op::delete(&open), Op::put(&self.keys.numbered("done", generation), row::to_text(&row))];
        // Where it is not open any more, another has noted it.
        self.commit(vec![Compare::unchanged(&open, revision)], change).map(drop)
    }

    /// Acknowledgements, by storage.
    pub(super) fn marks(&self, found: &Found) -> Result<BTreeMap<Uuid, Applied>> {
        let mut marks = BTreeMap::<Uuid, Applied>::new();
        for entry in &found.kvs {
            let name = self.keys.rest("ack", &entry.key.0).and_then(|rest| rest.split_once('/'));
            let named =
                name.and_then(|(id, scope)| Some((Uuid::parse_str(id).ok()?, keys::to_scope(scope)?)));
            let generation = keys::to_number(&entry.value.0);
            let (Some((id, scope)), Some(generation)) = (named, generation) else {
                return Err(unreadable(entry));
            };
            marks.entry(id).or_default().advance(&scope, generation);
        }
        Ok(marks)
    }

    fn scope_of(&self, kind: &str, entry: &Entry) -> Result<Scope> {
        self.keys.rest(kind, &entry.key.0).and_then(keys::to_scope).ok_or_else(|| unreadable(entry))
    }

    pub(super) fn generation_of(&self, kind: &str, entry: &Entry) -> Result<Generation> {
        let name = self.keys.rest(kind, &entry.key.0);
        name.and_then(|name| keys::to_number(name.as_bytes())).ok_or_else(|| unreadable(entry))
    }
}

fn unreadable(entry: &Entry) -> Error {
    Error::new(
        Kind::Corrupt,
        format!("{} in etcd is not as fencefs writes it", String::from_utf8_lossy(&entry.key.0)),
    )
}
