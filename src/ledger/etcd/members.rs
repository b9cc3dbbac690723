//! Who takes part: storages join, live on under a lease, and leave.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::json;
use uuid::Uuid;

use super::EtcdLedger;
use super::rows::{self, Members, RetiredRow, SessionRow, StorageRow};
use super::wire::{Compare, Entry, Found, Granted, Int, Op, Range, Renewed};
use crate::error::{Error, Kind, Result};
use crate::ledger::Token;
use crate::ledger::failure::corrupt;
use crate::ledger::fleet::{Presence, StorageStatus};
use crate::ledger::local::now_ms;
use crate::ledger::row;
use crate::ledger::rules::Member;
use crate::scope::{Generation, Scope};

/// What a daemon that runs is known by. It says who is there, not who takes part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Session {
    pub(super) token: Token,
    lease: Int,
    lasts: Duration,
    renewed: Instant,
    /// When the ledger was last told that the daemon runs in a way that outlasts the lease.
    noted: Instant,
}

impl EtcdLedger {
    pub(super) fn join(&self, storage: Uuid, known: &[Token], next: Token) -> Result<()> {
        self.begun()?;
        self.count()?;
        let session = self.session(next)?;
        let (mine, gone, seq) = (self.keys.storage(storage), self.keys.retired(storage), self.keys.seq());
        let bump = Range::one(&self.keys.bump());
        let mut has_tried = false;
        self.until_committed(|| {
            let [found, retired, highest, bump] =
                self.read([Range::one(&mine), Range::one(&gone), Range::one(&seq), bump.clone()])?;
            let bumped = rows::bumped(&bump)?;
            let before = rows::member(&found, &retired)?;
            if has_tried && before.as_ref().is_some_and(|m| m.token == next && !m.retired) {
                return Ok(Some(()));
            }
            let is_new = before.is_none();
            let row = found.one().map(rows::record::<StorageRow>).transpose()?;
            // A ledger from a backup has an older token, which its storage may have forgotten. It is excused once.
            let excused = row.as_ref().filter(|row| row.bumped < bumped).map(|row| row.token);
            let known: Vec<Token> = known.iter().copied().chain(excused).collect();
            Member::registered(before, &known, next)?;
            let mut compare = vec![
                Compare::unchanged(&mine, found.revision()),
                Compare::unchanged(&gone, retired.revision()),
            ];
            let mut change = vec![self.put_session(storage, &session)];
            let first = row.map_or_else(|| rows::number(&highest), |row| Ok(row.first))?;
            let (host, registered_ms) = (self.host.clone(), now_ms());
            let row = StorageRow { token: next, first, host, registered_ms, bumped };
            change.push(Op::put(&mine, row::to_text(&row)));
            if is_new {
                // It holds nothing that is older than it: as if it had acknowledged all there was.
                compare.push(Compare::unchanged(&seq, highest.revision()));
                change.push(Op::put(&self.keys.ack(storage, &Scope::Global), super::keys::number(first)));
                change.push(Op::put(&self.keys.mver(), storage.to_string()));
            }
            step!("ledger.register");
            has_tried = true;
            Ok(self.commit(compare, change)?.then_some(()))
        })?;
        self.sessions.lock().insert(storage, session);
        self.settle_quietly(&Scope::Global, Generation(u64::MAX), None);
        Ok(())
    }

    pub(super) fn retire(&self, storage: Uuid) -> Result<()> {
        let (mine, gone, seq) = (self.keys.storage(storage), self.keys.retired(storage), self.keys.seq());
        let seen = Range::one(&self.keys.seen(storage));
        self.until_committed(|| {
            let [found, retired, highest, seen] =
                self.read([Range::one(&mine), Range::one(&gone), Range::one(&seq), seen.clone()])?;
            if Member::known(rows::member(&found, &retired)?, storage)?.retired {
                return Ok(Some(()));
            }
            let entry = found.one().ok_or_else(|| corrupt("a member without a record"))?;
            let StorageRow { token, first, host, registered_ms, .. } = rows::record(entry)?;
            let seen_ms = seen.one().map(rows::milliseconds).transpose()?.unwrap_or(0).max(registered_ms);
            // What was asked for until now waits for it no more; of what comes it is no target.
            let (last, retired_ms) = (rows::number(&highest)?, now_ms());
            let row = RetiredRow { token, first, last, host, registered_ms, seen_ms, retired_ms };
            let compare = vec![
                Compare::unchanged(&mine, found.revision()),
                Compare::unchanged(&gone, Int(0)),
                Compare::unchanged(&seq, highest.revision()),
            ];
            let change = vec![
                Op::put(&gone, row::to_text(&row)),
                Op::delete(&mine),
                Op::delete(&self.keys.session(storage)),
                Op::delete(&self.keys.seen(storage)),
                Op::put(&self.keys.mver(), storage.to_string()),
            ];
            step!("ledger.forget");
            Ok(self.commit(compare, change)?.then_some(()))
        })?;
        self.settle_quietly(&Scope::Global, Generation(u64::MAX), None);
        Ok(())
    }

    /// Everybody, as of a revision of `mver` that was read; where they have changed since, whoever compares that finds out.
    pub(super) fn members_at(&self, mver: Int) -> Result<Arc<Members>> {
        if let Some((of, members)) = &*self.members.lock()
            && *of == mver
        {
            return Ok(Arc::clone(members));
        }
        let [storages, retired] = self.read_parts(["storage", "retired"])?;
        let members = Arc::new(self.to_members(&storages, &retired)?);
        // They are those of a moment only if nobody came or went while they were read.
        let [now] = self.read([Range::one(&self.keys.mver())])?;
        if now.revision() == mver {
            *self.members.lock() = Some((mver, Arc::clone(&members)));
        }
        Ok(members)
    }

    pub(super) fn to_members(&self, storages: &Found, retired: &Found) -> Result<Members> {
        Members::of(storages, retired, |entry| {
            let kinds = ["storage", "retired"].into_iter();
            let mut names = kinds.filter_map(|kind| self.keys.rest(kind, &entry.key.0));
            names
                .next()
                .and_then(|name| Uuid::parse_str(name).ok())
                .ok_or_else(|| corrupt(format!("{} names no storage", String::from_utf8_lossy(&entry.key.0))))
        })
    }

    /// The token that a storage must have to be the one that registered here.
    pub(super) fn own_token(&self, storage: Uuid) -> Option<Token> {
        self.sessions.lock().get(&storage).map(|session| session.token)
    }

    /// Keeps the lease of a storage's session, or makes another. Whether anybody sees the daemon depends on it, and no
    /// request does: so an error is for the log.
    pub(super) fn keep_session(&self, storage: Uuid) {
        let Some(session) = self.sessions.lock().get(&storage).copied() else { return };
        let pace = self.pace();
        if session.renewed.elapsed() < pace.renew.min(session.lasts / 2) {
            return;
        }
        // A fleet that has grown renews less often.
        let kept = match pace.renew > session.lasts / 2 {
            true => self.begin_session(storage),
            false => self.renew(storage, &session),
        };
        let kept = kept.and_then(|()| self.count().map(drop));
        let noted = match session.noted.elapsed() < pace.note {
            true => kept,
            false => kept.and_then(|()| self.note_presence(storage, session.token)),
        };
        if let Err(e) = noted {
            log::warn!("cannot renew this daemon's session: {e}");
        }
    }

    /// How many storages take part: it decides how often each asks.
    pub fn count(&self) -> Result<usize> {
        let [found] = self.read([self.keys.all("storage").counted()])?;
        let size = usize::try_from(found.count.0).unwrap_or(0);
        self.size.store(size, Ordering::Relaxed);
        Ok(size)
    }

    fn note_presence(&self, storage: Uuid, token: Token) -> Result<()> {
        self.change_as(storage, token, vec![self.put_seen(storage)])?;
        if let Some(session) = self.sessions.lock().get_mut(&storage) {
            session.noted = Instant::now();
        }
        Ok(())
    }

    /// Changes what is a storage's own, as long as it is the one that registered here: another may have its identity by now.
    fn change_as(&self, storage: Uuid, token: Token, change: Vec<Op>) -> Result<bool> {
        let key = self.keys.storage(storage);
        let [found] = self.read([Range::one(&key)])?;
        let Some(entry) = found.one() else { return Ok(false) };
        require_token(storage, rows::record::<StorageRow>(entry)?.token, token)?;
        self.commit(vec![Compare::unchanged(&key, found.revision())], change)
    }

    pub(super) fn put_seen(&self, storage: Uuid) -> Op {
        Op::put(&self.keys.seen(storage), now_ms().to_string())
    }

    /// The daemon of a storage stops: whoever looks need not wait for its lease to run out. Not tried where etcd is known
    /// to be silent.
    pub(super) fn end_session(&self, storage: Uuid) {
        let session = self.sessions.lock().remove(&storage);
        let Some(session) = session.filter(|_| self.client.require_answering().is_ok()) else { return };
        let change = vec![Op::delete(&self.keys.session(storage)), self.put_seen(storage)];
        if let Err(e) = self.change_as(storage, session.token, change) {
            log::warn!("cannot end this daemon's session: {e}");
        }
    }

    pub(super) fn every_storage(&self) -> Result<Vec<StorageStatus>> {
        let [storages, retired, sessions, seen, acked] =
            self.read_parts(["storage", "retired", "session", "seen", "ack"])?;
        let mut acked = self.marks(&acked)?;
        let now_ms = now_ms();
        let here: BTreeSet<Uuid> =
            sessions.kvs.iter().map(|e| self.named("session", e)).collect::<Result<_>>()?;
        let mut last = BTreeMap::new();
        for entry in &seen.kvs {
            last.insert(self.named("seen", entry)?, rows::milliseconds(entry)?);
        }
        let mut found = Vec::new();
        for entry in &storages.kvs {
            let (storage, row) = (self.named("storage", entry)?, rows::record::<StorageRow>(entry)?);
            let is_here = here.contains(&storage);
            let seen_ms = last.remove(&storage).unwrap_or(0).max(row.registered_ms);
            found.push(StorageStatus {
                storage,
                host: row.host,
                presence: if is_here { Presence::Present } else { Presence::Absent },
                registered_ms: row.registered_ms,
                last_contact_ms: if is_here { now_ms } else { seen_ms },
                acked: acked.remove(&storage).unwrap_or_default(),
            });
        }
        for entry in &retired.kvs {
            let (storage, row) = (self.named("retired", entry)?, rows::record::<RetiredRow>(entry)?);
            found.push(StorageStatus {
                storage,
                host: row.host,
                presence: Presence::Retired,
                registered_ms: row.registered_ms,
                last_contact_ms: row.seen_ms,
                acked: acked.remove(&storage).unwrap_or_default(),
            });
        }
        Ok(found)
    }

    pub(super) fn named(&self, kind: &str, entry: &Entry) -> Result<Uuid> {
        let name = self.keys.rest(kind, &entry.key.0).and_then(|name| Uuid::parse_str(name).ok());
        name.ok_or_else(|| corrupt(format!("{} names no storage", String::from_utf8_lossy(&entry.key.0))))
    }

    fn renew(&self, storage: Uuid, session: &Session) -> Result<()> {
        let asked: Result<Renewed, _> =
            self.client.call("/v3/lease/keepalive", &json!({ "ID": session.lease }));
        let session = match asked {
            Ok(renewed) if renewed.result.seconds > Int(0) => Session { renewed: Instant::now(), ..*session },
            Ok(_) => return self.begin_session(storage),
            Err(e) => return Err(e.into()),
        };
        self.sessions.lock().insert(storage, session);
        Ok(())
    }

    /// Another session for a storage whose last one ran out.
    ///
    /// # Errors
    /// [`Kind::Stale`] where the storage has registered elsewhere since.
    pub(super) fn begin_session(&self, storage: Uuid) -> Result<()> {
        let Some(token) = self.own_token(storage) else { return Ok(()) };
        let session = self.session(token)?;
        if self.change_as(storage, token, vec![self.put_session(storage, &session)])? {
            self.sessions.lock().insert(storage, session);
        }
        Ok(())
    }

    fn session(&self, token: Token) -> Result<Session> {
        let lasts = Duration::from_secs((3 * self.pace().renew).as_secs());
        let granted: Granted =
            self.client.call("/v3/lease/grant", &json!({ "TTL": lasts.as_secs().to_string() }))?;
        let now = Instant::now();
        Ok(Session { token, lease: granted.id, lasts, renewed: now, noted: now })
    }

    fn put_session(&self, storage: Uuid, session: &Session) -> Op {
        let row = SessionRow { token: session.token, host: self.host.clone(), since_ms: now_ms() };
        Op::put_leased(&self.keys.session(storage), row::to_text(&row), session.lease)
    }
}

/// Refuses a storage that has registered elsewhere since it did here.
pub(super) fn require_token(storage: Uuid, found: Token, own: Token) -> Result<()> {
    if found == own {
        return Ok(());
    }
    Err(Error::new(
        Kind::Stale,
        format!(
            "storage {storage} has been started elsewhere: another daemon uses it, or a copy of it; stop one of them. (Or \
             the ledger was restored from a backup that is older than this daemon: see fencefs bump.)"
        ),
    ))
}
