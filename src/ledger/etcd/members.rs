//! Who takes part: storages join, live on under a lease, and leave.

use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use uuid::Uuid;

use super::EtcdLedger;
use super::rows::{self, Members, RetiredRow, SessionRow, StorageRow};
use super::wire::{Compare, Found, Granted, Int, Op, Range, Renewed};
use crate::config::limits;
use crate::error::{Error, Kind, Result};
use crate::ledger::Token;
use crate::ledger::failure::corrupt;
use crate::ledger::local::now_ms;
use crate::ledger::row;
use crate::ledger::rules::Member;
use crate::scope::{Generation, Scope};

/// What a daemon that runs is known by. It says who is there, not who takes part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Session {
    pub(super) token: Token,
    lease: Int,
    renewed: Instant,
}

impl EtcdLedger {
    pub(super) fn join(&self, storage: Uuid, known: &[Token], next: Token) -> Result<()> {
        self.begun()?;
        let session = self.session(next)?;
        let (mine, gone, seq) = (self.keys.storage(storage), self.keys.retired(storage), self.keys.seq());
        let mut has_tried = false;
        self.until_committed(|| {
            let [found, retired, highest] =
                self.read([Range::one(&mine), Range::one(&gone), Range::one(&seq)])?;
            let before = rows::member(&found, &retired)?;
            if has_tried && before.as_ref().is_some_and(|m| m.token == next && !m.retired) {
                return Ok(Some(()));
            }
            let is_new = before.is_none();
            Member::registered(before, known, next)?;
            let mut compare = vec![
                Compare::unchanged(&mine, found.revision()),
                Compare::unchanged(&gone, retired.revision()),
            ];
            let mut change = vec![self.put_session(storage, &session)];
            let first = match found.one() {
                Some(entry) => rows::record::<StorageRow>(entry)?.first,
                None => rows::number(&highest)?,
            };
            let row = StorageRow { token: next, first, host: self.host.clone(), registered_ms: now_ms() };
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

    pub(super) fn leave(&self, storage: Uuid) -> Result<()> {
        let (mine, gone, seq) = (self.keys.storage(storage), self.keys.retired(storage), self.keys.seq());
        self.until_committed(|| {
            let [found, retired, highest] =
                self.read([Range::one(&mine), Range::one(&gone), Range::one(&seq)])?;
            if Member::known(rows::member(&found, &retired)?, storage)?.retired {
                return Ok(Some(()));
            }
            let entry = found.one().ok_or_else(|| corrupt("a member without a record"))?;
            let StorageRow { token, first, host, .. } = rows::record(entry)?;
            // What was asked for until now waits for it no more; of what comes it is no target.
            let row = RetiredRow { token, first, last: rows::number(&highest)?, host, retired_ms: now_ms() };
            let compare = vec![
                Compare::unchanged(&mine, found.revision()),
                Compare::unchanged(&gone, Int(0)),
                Compare::unchanged(&seq, highest.revision()),
            ];
            let change = vec![
                Op::put(&gone, row::to_text(&row)),
                Op::delete(&mine),
                Op::delete(&self.keys.session(storage)),
                Op::put(&self.keys.mver(), storage.to_string()),
            ];
            step!("ledger.forget");
            Ok(self.commit(compare, change)?.then_some(()))
        })?;
        self.settle_quietly(&Scope::Global, Generation(u64::MAX), None);
        Ok(())
    }

    /// Everybody, as of a revision of `mver` that was read.
    pub(super) fn members_at(&self, mver: Int) -> Result<Arc<Members>> {
        if let Some((of, members)) = &*self.members.lock()
            && *of == mver
        {
            return Ok(Arc::clone(members));
        }
        let [now, storages, retired] =
            self.read([Range::one(&self.keys.mver()), self.keys.all("storage"), self.keys.all("retired")])?;
        let members = Arc::new(self.to_members(&storages, &retired)?);
        *self.members.lock() = Some((now.revision(), Arc::clone(&members)));
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
        if session.renewed.elapsed() < limits::ETCD_LEASE / 3 {
            return;
        }
        if let Err(e) = self.renew(storage, &session) {
            log::warn!("cannot renew this daemon's session: {e}");
        }
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
        let key = self.keys.storage(storage);
        let [found] = self.read([Range::one(&key)])?;
        if let Some(entry) = found.one() {
            require_token(storage, rows::record::<StorageRow>(entry)?.token, token)?;
            let unchanged = vec![Compare::unchanged(&key, found.revision())];
            if self.commit(unchanged, vec![self.put_session(storage, &session)])? {
                self.sessions.lock().insert(storage, session);
            }
        }
        Ok(())
    }

    fn session(&self, token: Token) -> Result<Session> {
        let seconds = limits::ETCD_LEASE.as_secs().to_string();
        let granted: Granted = self.client.call("/v3/lease/grant", &json!({ "TTL": seconds }))?;
        Ok(Session { token, lease: granted.id, renewed: Instant::now() })
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
            "storage {storage} has been started elsewhere: another daemon uses it, or a copy of it; stop one of them"
        ),
    ))
}
