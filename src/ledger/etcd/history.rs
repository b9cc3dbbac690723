//! Requests as they stand.

use std::collections::BTreeMap;

use super::EtcdLedger;
use super::rows::{self, RequestRow};
use super::wire::{Entry, Found, Range};
use crate::error::{Error, Kind, Result};
use crate::ledger::failure::corrupt;
use crate::ledger::local::no_such;
use crate::ledger::request::Request;
use crate::scope::Generation;

impl EtcdLedger {
    pub(super) fn by_id(&self, id: &str) -> Result<Request> {
        let rid = Range::one(&self.keys.rid(id));
        self.until_committed(|| {
            let [found] = self.read([rid.clone()])?;
            if found.one().is_none() {
                return Err(Error::new(Kind::NotFound, format!("no request is known by the id {id:?}")));
            }
            let generation = rows::number(&found)?;
            // Gone from both places only if it was dropped between the two reads: then its id is gone as well.
            let [past, again] =
                self.read([Range::one(&self.keys.numbered("past", generation)), rid.clone()])?;
            if let Some(entry) = past.one() {
                return rows::record::<RequestRow>(entry)?.request(generation).map(Some);
            }
            match self.by_generation(generation) {
                Err(e) if e.kind() == Kind::NotFound && again.revision() == found.revision() => {
                    let [past, again] =
                        self.read([Range::one(&self.keys.numbered("past", generation)), rid.clone()])?;
                    if past.one().is_none() && again.one().is_some() {
                        return Err(corrupt(format!(
                            "the id {id:?} stands for request {generation}, which is not there"
                        )));
                    }
                    Ok(None)
                }
                other => other.map(Some),
            }
        })
    }

    pub(super) fn by_generation(&self, generation: Generation) -> Result<Request> {
        let one = |kind: &str| Range::one(&self.keys.numbered(kind, generation));
        let [request, done, failed, seq] =
            self.read([one("req"), one("done"), one("fail"), Range::one(&self.keys.seq())])?;
        let Some(entry) = request.one() else {
            return Err(if generation == Generation(0) || generation > rows::number(&seq)? {
                no_such(generation)
            } else {
                let sentence = format!("request {generation} was complete and is no longer kept");
                Error::new(Kind::NotFound, sentence)
            });
        };
        // Afterwards: who joins meanwhile is no target of it.
        let [storages, retired, marks] = self.read_parts(["storage", "retired", "ack"])?;
        rows::assemble(
            generation,
            &rows::record(entry)?,
            done.one().map(rows::record).transpose()?,
            failed.one().map(rows::record).transpose()?,
            &self.to_members(&storages, &retired)?,
            &self.marks(&marks)?,
        )
    }

    pub(super) fn every_request(&self) -> Result<Vec<Request>> {
        let [requests, done, failed] = self.read_parts(["req", "done", "fail"])?;
        // Afterwards: who joins meanwhile is no target of these.
        let [storages, retired, marks] = self.read_parts(["storage", "retired", "ack"])?;
        let (members, marks) = (self.to_members(&storages, &retired)?, self.marks(&marks)?);
        let (mut done, mut failed) = (self.numbered("done", &done)?, self.numbered("fail", &failed)?);
        let assembled = self.numbered("req", &requests)?.into_iter().map(|(generation, entry)| {
            rows::assemble(
                generation,
                &rows::record(entry)?,
                done.remove(&generation).map(rows::record).transpose()?,
                failed.remove(&generation).map(rows::record).transpose()?,
                &members,
                &marks,
            )
        });
        assembled.collect()
    }

    fn numbered<'f>(&self, kind: &str, found: &'f Found) -> Result<BTreeMap<Generation, &'f Entry>> {
        found.kvs.iter().map(|entry| Ok((self.generation_of(kind, entry)?, entry))).collect()
    }
}
