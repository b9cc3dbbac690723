//! Reading one state, and changing it if it is still that one.

use std::time::{Duration, Instant};

use uuid::Uuid;

use super::EtcdLedger;
use super::wire::{Compare, Found, Op, Range, Txn, TxnAnswer};
use crate::config::limits;
use crate::error::{Error, Kind, Result};
use crate::ledger::failure::corrupt;

const TXN: &str = "/v3/kv/txn";

impl EtcdLedger {
    /// What these ranges hold, all at one moment: linearizable, never a stale member's word.
    pub(super) fn read<const N: usize>(&self, ranges: [Range; N]) -> Result<[Found; N]> {
        let found = self.read_all(ranges.into())?;
        found.try_into().map_err(|_| corrupt("etcd answered another number of questions than it was asked"))
    }

    /// The same of any number of ranges; etcd takes 128 at once, one of which says which ledger it is.
    pub(super) fn read_all(&self, mut ranges: Vec<Range>) -> Result<Vec<Found>> {
        let asked = ranges.len();
        ranges.push(Range::one(&self.keys.ledger_id()));
        let txn = Txn { compare: Vec::new(), success: ranges.into_iter().map(Op::Range).collect() };
        let knew = self.ledger_id.get().copied();
        let answer: TxnAnswer = self.client.call(TXN, &txn)?;
        let found: Option<Vec<Found>> = answer.responses.into_iter().map(|r| r.response_range).collect();
        let mut found = found
            .filter(|found| answer.succeeded && found.len() == asked + 1)
            .ok_or_else(|| corrupt("etcd answered something else than it was asked"))?;
        let id = found.pop().unwrap_or_default();
        self.require_same_ledger(knew, &id)?;
        Ok(found)
    }

    /// Every key of these kinds, in parts: all of a large fleet is more than one answer can bring in its time. Not of one
    /// moment: what is written meanwhile may be seen or not. Acknowledgements only advance, and who is gone from among
    /// the members was forgotten: so what is complete by it, of requests that were read before, is complete.
    pub(super) fn read_parts<const N: usize>(&self, kinds: [&str; N]) -> Result<[Found; N]> {
        let part = |kind: &str| self.keys.all(kind).first(limits::ETCD_PART);
        let mut whole: [Found; N] = std::array::from_fn(|_| Found::default());
        let mut rest: Vec<(usize, Range)> =
            kinds.iter().enumerate().map(|(n, kind)| (n, part(kind))).collect();
        while !rest.is_empty() {
            let found = self.read_all(rest.iter().map(|(_, range)| range.clone()).collect())?;
            let mut next = Vec::new();
            for ((n, _), found) in rest.into_iter().zip(found) {
                if let Some(last) = found.kvs.get(limits::ETCD_PART - 1) {
                    let behind = [&last.key.0[..], &[0]].concat();
                    next.push((n, part(kinds[n]).from(behind)));
                }
                whole[n].kvs.extend(found.kvs);
            }
            rest = next;
        }
        Ok(whole)
    }

    /// Does all of `success` if `compare` holds and the ledger is still the same one; whether it did.
    pub(super) fn commit(&self, mut compare: Vec<Compare>, success: Vec<Op>) -> Result<bool> {
        let id = self.known_ledger()?;
        compare.push(Compare::holds(&self.keys.ledger_id(), &id.to_string()));
        let answer: TxnAnswer = self.client.call(TXN, &Txn { compare, success })?;
        Ok(answer.succeeded)
    }

    /// Repeats what reads and commits until its commit was not overtaken by another's.
    pub(super) fn until_committed<T>(&self, mut attempt: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let (began, mut pause) = (Instant::now(), Duration::from_millis(1));
        loop {
            if let Some(done) = attempt()? {
                return Ok(done);
            }
            if began.elapsed() >= limits::ETCD_CONTENTION_WAIT {
                return Err(Error::new(
                    Kind::Busy,
                    format!("{}: others were always faster to change the ledger; try again", self.name),
                ));
            }
            // Of random length, or those who met would meet again.
            std::thread::sleep(pause.mul_f64(f64::from(Uuid::new_v4().as_bytes()[0]) / 256.0));
            pause = (2 * pause).min(limits::ETCD_FIRST_PAUSE * 4);
        }
    }

    /// The identity of the ledger, which is begun here if there is none.
    pub(super) fn begun(&self) -> Result<Uuid> {
        self.until_committed(|| {
            let [] = self.read([])?;
            if let Some(id) = self.ledger_id.get() {
                return Ok(Some(*id));
            }
            let key = self.keys.ledger_id();
            let txn = Txn {
                compare: vec![Compare::unchanged(&key, super::Int(0))],
                success: vec![Op::put(&key, Uuid::new_v4().to_string())],
            };
            let _: TxnAnswer = self.client.call(TXN, &txn)?;
            Ok(None)
        })
    }

    fn known_ledger(&self) -> Result<Uuid> {
        self.ledger_id.get().copied().map_or_else(|| self.begun(), Ok)
    }

    /// Refuses an answer of another ledger than the one that was known as it was asked: another thread may have begun the
    /// ledger since, of which the answer cannot tell.
    fn require_same_ledger(&self, knew: Option<Uuid>, found: &Found) -> Result<()> {
        let id = found.one().map(|entry| {
            let text = std::str::from_utf8(&entry.value.0).ok();
            text.and_then(|text| Uuid::parse_str(text).ok())
                .ok_or_else(|| corrupt(format!("{} holds no identity", self.keys.ledger_id())))
        });
        match (knew, id.transpose()?) {
            (None, None) => Ok(()),
            (None, Some(id)) if *self.ledger_id.get_or_init(|| id) == id => Ok(()),
            (Some(knew), Some(id)) if knew == id => Ok(()),
            _ => Err(Error::new(
                Kind::Stale,
                format!(
                    "the ledger at {} is gone, or another one than this daemon knew: it was emptied or restored; \
                     nothing is recorded there until the daemon is started again",
                    self.name
                ),
            )),
        }
    }
}

#[cfg(test)]
use crate::scope::{Generation, Scope};

#[cfg(test)]
impl EtcdLedger {
    fn everything(&self) -> Range {
        let first = self.keys.ledger_id();
        Range::below(first.strip_suffix("ledger_id").unwrap())
    }

    /// What an operator does who clears the prefix.
    pub(in super::super) fn empty_for_a_test(&self) {
        let txn = Txn { compare: Vec::new(), success: vec![Op::DeleteRange(self.everything())] };
        self.client.call::<TxnAnswer>(TXN, &txn).unwrap();
    }

    /// An acknowledgement by one who dies before he looks who else has.
    pub(super) fn mark_for_a_test(&self, storage: Uuid, scope: &Scope, generation: Generation) {
        let put = Op::put(&self.keys.ack(storage, scope), super::keys::number(generation));
        assert!(self.commit(Vec::new(), vec![put]).unwrap());
    }

    /// A backup.
    pub(in super::super) fn dump_for_a_test(&self) -> Vec<(String, String)> {
        let [found] = self.read([self.everything()]).unwrap();
        let text = |bytes: &super::wire::Bytes| String::from_utf8(bytes.0.clone()).unwrap();
        found.kvs.iter().map(|entry| (text(&entry.key), text(&entry.value))).collect()
    }

    /// And its return.
    pub(in super::super) fn restore_for_a_test(&self, backup: &[(String, String)]) {
        self.empty_for_a_test();
        let success = backup.iter().map(|(key, value)| Op::put(key, value.as_str())).collect();
        self.client.call::<TxnAnswer>(TXN, &Txn { compare: Vec::new(), success }).unwrap();
    }
}
