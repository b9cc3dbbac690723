//! Time to live: a key whose time is over is gone for readers at that moment, and deleted by the keeper soon after.
//!
//! The time counts from the last change of content. A tenant's is an attribute of its directory, a key's own one of its
//! record; a mark on the data directory says that any key may have its own, so that nobody looks for one without it.
//! Attached values live for ever: they are another program's files.
//!
//! Whoever opens a record, or asks for its attributes, notes what it says. Of keys that nobody asks for the keeper
//! learns in a *round* over the index, a part at a time: after a start, and when a tenant's time to live has changed.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::Event;
use super::Store;
use super::deadlines::{Life, time_between};
use super::evict::Slot;
use super::index::NodeId;
use super::listing::Row;
use super::object::Place;
use super::room::Reason;
use super::tenants::Home;
use crate::config::limits;
use crate::error::Result;
use crate::key::RecordKind;
use crate::os::{self, Attr, Dir, Timespec, XattrMode};

/// On a record: its own time to live in decimal seconds.
const OWN_XATTR: &str = "user.fencefs.ttl";
/// On the data directory, once any record may have one of its own.
const OWN_MARK_XATTR: &str = "user.fencefs.ttls";

/// What the store knows of times to live, beside the index.
pub(super) struct Ttls {
    /// Some record may have its own.
    own: AtomicBool,
    /// Some record has its own, or some tenant has one, or did. Without, nothing is asked of any key.
    used: AtomicBool,
    round: Mutex<Round>,
}

/// How far the keeper's round is.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Round {
    number: u64,
    /// The next slot; the last number once it is through.
    at: Slot,
}

impl Ttls {
    pub(super) fn of(data: &Dir) -> Result<Ttls> {
        let own = os::xattr_get(data, OWN_MARK_XATTR, 8)?.is_some();
        // A store where it is used begins with a round.
        let round = Mutex::new(Round { number: 0, at: Slot::MAX });
        Ok(Ttls { own: AtomicBool::new(own), used: AtomicBool::new(own), round })
    }

    fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// A tenant has one.
    pub(super) fn note_tenant(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    /// The keeper looks at every key anew.
    pub(super) fn start_round(&self) {
        let mut round = self.round.lock();
        *round = Round { number: round.number + 1, at: 0 };
    }

    /// Whether there may be keys that nobody has looked at.
    fn is_under_way(&self) -> bool {
        self.round.lock().at != Slot::MAX
    }
}

/// A record's own time to live.
pub fn own_ttl(file: &File) -> Result<Option<u64>> {
    let Some(text) = os::xattr_get(file, OWN_XATTR, 64)? else { return Ok(None) };
    let seconds = parse_own(&text);
    if seconds.is_none() {
        log::warn!("the time to live of a key cannot be read and is taken as none; set it again");
    }
    Ok(seconds)
}

/// Decimal seconds.
pub fn parse_own(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

fn write_own(file: &File, seconds: Option<u64>) -> Result<()> {
    match seconds {
        Some(n) => os::xattr_set(file, OWN_XATTR, n.to_string().as_bytes(), XattrMode::Set),
        None => os::xattr_remove(file, OWN_XATTR).map(drop),
    }
}

impl Store {
    /// What the file of a record says of its key's time; nothing where no key lives for a time.
    pub(super) fn life_of(&self, file: &File, attr: &Attr) -> Result<Option<Life>> {
        if !self.ttls.is_used() {
            return Ok(None);
        }
        let own_seconds = if self.ttls.own.load(Ordering::Relaxed) { own_ttl(file)? } else { None };
        Ok(Some(Life { changed: attr.mtime, own_seconds }))
    }

    /// Notes what the file of a linked value says, and whether its time is over.
    pub(super) fn is_over(&self, id: NodeId, file: &File, attr: &Attr) -> Result<bool> {
        let Some(life) = self.life_of(file, attr)? else { return Ok(false) };
        let mut index = self.index.lock();
        let is_next = index.note_life(id, life);
        let expired = index.has_expired(id, Timespec::now());
        drop(index);
        if is_next {
            self.wake_keeper();
        }
        Ok(expired)
    }

    /// The same after a change that may have brought the deadline nearer: whoever remembers the key is told.
    pub(super) fn note_change(&self, id: NodeId, file: &File) -> Result<()> {
        if !self.ttls.is_used() {
            return Ok(());
        }
        let before = self.deadline(id);
        self.is_over(id, file, &os::stat(file)?)?;
        let index = self.index.lock();
        let nearer = match (before, index.deadline(id)) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(before), Some(now)) => now < before,
        };
        let known = index.linked(id).ok().filter(|node| nearer && node.is_referred_to());
        let place = known.map(|node| (index.parent_of(node), node.name.clone()));
        drop(index);
        if let Some((parent, name)) = place {
            self.tell(Event::Ages { parent, name, node: id });
        }
        Ok(())
    }

    /// When a linked value's time is over; `None` while it lives for ever.
    pub fn deadline(&self, id: NodeId) -> Option<Timespec> {
        if !self.ttls.is_used() {
            return None;
        }
        self.index.lock().deadline(id)
    }

    /// How long a linked value lives yet; `None` while that is for ever.
    pub fn time_left(&self, id: NodeId) -> Option<Duration> {
        self.deadline(id).map(|deadline| time_between(Timespec::now(), deadline))
    }

    /// Whether a linked value's time is over: it is there until the keeper comes, and nobody finds it.
    pub fn has_expired(&self, id: NodeId) -> bool {
        self.ttls.is_used() && self.index.lock().has_expired(id, Timespec::now())
    }

    /// Whether an entry that was not found is not there, rather than over its time: then whoever makes it tells of it.
    pub fn is_absent(&self, parent: NodeId, name: &[u8]) -> bool {
        !self.ttls.is_used() || self.child(parent, name).is_none()
    }

    /// A key whose time is over gives way to what is made under its name.
    pub fn give_way(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        if !self.ttls.is_used() {
            return Ok(());
        }
        match self.child(parent, name).filter(|id| self.has_expired(*id)) {
            Some(id) => self.evict(id, Reason::Expired).map(drop),
            None => Ok(()),
        }
    }

    /// Marks which entries of a listing nobody finds any more.
    pub(super) fn mark_expired(&self, entries: &mut [Row]) {
        if !self.ttls.is_used() {
            return;
        }
        if self.ttls.is_under_way() {
            // Nobody may have looked at them; what cannot be looked at stays in the listing.
            for entry in entries.iter().filter(|e| e.kind != RecordKind::Directory) {
                if let Err(e) = self.look_at(entry.node) {
                    log::debug!("cannot tell the age of a key: {e}");
                }
            }
        }
        let (index, now) = (self.index.lock(), Timespec::now());
        for entry in entries {
            entry.expired = index.has_expired(entry.node, now);
        }
    }

    /// Sets the time to live of a linked value, durably; `None` leaves it its tenant's. Whether it had its own.
    pub fn set_ttl(&self, id: NodeId, seconds: Option<u64>) -> Result<bool> {
        self.change_value(id, "only values live for a time, not directories", |file, _| {
            let had = self.set_ttl_of(file, seconds)?;
            self.note_change(id, file)?;
            Ok(had)
        })
    }

    /// The same of a file that is no record yet, or none any more.
    pub fn set_ttl_of(&self, file: &File, seconds: Option<u64>) -> Result<bool> {
        if seconds.is_some() {
            self.note_own()?;
        }
        let had = own_ttl(file)?.is_some();
        write_own(file, seconds)?;
        Ok(had)
    }

    /// From now on records may have their own. Durable before the first does: a start without the mark looks for none.
    fn note_own(&self) -> Result<()> {
        if !self.ttls.own.load(Ordering::Relaxed) {
            os::xattr_set(&self.data, OWN_MARK_XATTR, b"1", XattrMode::Set)?;
            self.data.sync()?;
            self.ttls.own.store(true, Ordering::Relaxed);
            self.ttls.used.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether the record at a place says that its key's time is over; a key without a record leaves the index.
    pub(super) fn is_over_by_record(&self, home: &Home, place: &Place, id: NodeId) -> Result<bool> {
        if self.is_attached(id) {
            return Ok(false);
        }
        match self.open_or_forget(home, place, id, false)? {
            Some((file, attr)) => self.is_over(id, &file, &attr),
            None => Ok(false),
        }
    }

    /// Looks at the record of a key, for its age alone.
    fn look_at(&self, id: NodeId) -> Result<()> {
        let Some((home, place, _key)) = self.lock_place(id) else { return Ok(()) };
        match home.dir.open_file(place.path(), false)? {
            Some(file) if !self.is_attached(id) => self.note_change(id, &file),
            _ => Ok(()),
        }
    }

    /// The keeper's part: looks at some keys that nobody has asked for, deletes some whose time is over, the earliest
    /// first, and says when there is more to do.
    pub(super) fn keep_time(&self) -> Duration {
        if !self.ttls.is_used() || !self.settings.evicts {
            return Duration::MAX;
        }
        let looks_on = self.look_around();
        if self.expire_some() || looks_on {
            return Duration::ZERO;
        }
        let next = self.index.lock().deadlines.next();
        next.map_or(Duration::MAX, |turn| time_between(Timespec::now(), turn))
    }

    /// One part of a round; whether another follows.
    fn look_around(&self) -> bool {
        let round = *self.ttls.round.lock();
        if round.at == Slot::MAX {
            return false;
        }
        let all = self.ttls.own.load(Ordering::Relaxed);
        let (ids, next) =
            self.index.lock().mortal_from(round.at, all, limits::AGED_SLOTS_AT_ONCE, limits::AGED_AT_ONCE);
        for id in ids {
            // Behind whoever waits for the processor.
            std::thread::yield_now();
            if let Err(e) = self.look_at(id) {
                log::debug!("cannot tell the age of a key: {e}");
            }
        }
        let mut now = self.ttls.round.lock();
        // Otherwise another round has begun.
        if *now == round {
            now.at = next;
        }
        now.at != Slot::MAX
    }

    /// Deletes some keys whose time is over; whether there may be more.
    fn expire_some(&self) -> bool {
        let now = Timespec::now();
        let due = self.index.lock().deadlines.due(now, limits::EXPIRED_AT_ONCE);
        for id in &due {
            let closed = {
                let index = self.index.lock();
                index.linked(*id).is_ok_and(|node| index.is_closed(node.tenant))
            };
            // A removal takes it.
            if !closed && let Err(e) = self.evict(*id, Reason::Expired) {
                log::warn!("cannot delete a key whose time is over: {e}");
            }
            let until = Timespec { sec: now.sec.saturating_add(limits::EXPIRE_AGAIN_SECONDS), ..now };
            self.index.lock().deadlines.postpone(*id, now, until);
        }
        due.len() == limits::EXPIRED_AT_ONCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_decimal_seconds_are_a_time_to_live() {
        assert_eq!(parse_own(b"0"), Some(0));
        assert_eq!(parse_own(b"86400"), Some(86400));
        for bad in [&b""[..], b"+1", b"-1", b"1s", b"1.5", b" 1", b"99999999999999999999", b"\xff"] {
            assert_eq!(parse_own(bad), None, "{bad:?}");
        }
    }
}
