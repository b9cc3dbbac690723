//! What a record's content must be: XXH3-64 of its bytes, kept in its metadata with `--checksum on`.
//!
//! INVARIANT: a checksum stands in a record only while every change of the content comes through the daemon, which
//! takes it away first. So none is kept of a value that the kernel may have let somebody map for writing
//! (`Content::unseen`), and none through an edit in place.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3;

use super::Store;
use super::index::NodeId;
use super::object::{Found, Place};
use super::tenants::Home;
use crate::config::{Checksum, limits};
use crate::error::{Error, Result};
use crate::os::{self, Dir, XattrMode};

/// On the data directory while a daemon has the store, and from an unclean stop on until every record that has a
/// checksum was verified.
const UNCLEAN_XATTR: &str = "user.fencefs.unclean";
/// How often a value that is edited again and again is read before its checksum is made under its lock.
const TRIES: u32 = 3;

/// XXH3-64 of all that a file holds, and how much that is.
pub fn read_sum(file: &File) -> Result<(u64, u64)> {
    let mut hasher = Xxh3::new();
    let mut buf = vec![0; limits::SUM_BUFFER_BYTES];
    let mut at = 0;
    loop {
        match file.read_at(&mut buf, at) {
            Ok(0) => return Ok((hasher.digest(), at)),
            Ok(n) => {
                hasher.update(&buf[..n]);
                at += n as u64;
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::os("cannot read a record", e)),
        }
    }
}

/// The checksum of a value whose bytes pass the daemon, for as long as they come in order.
#[derive(Default)]
pub struct Passing(Mutex<Passed>);

struct Passed {
    hasher: Xxh3,
    bytes: u64,
    in_order: bool,
}

impl Default for Passed {
    fn default() -> Self {
        Passed { hasher: Xxh3::new(), bytes: 0, in_order: true }
    }
}

impl std::fmt::Debug for Passing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let passed = self.0.lock();
        write!(f, "Passing({} bytes, in order: {})", passed.bytes, passed.in_order)
    }
}

impl Passing {
    /// These bytes are about to be written at `offset`.
    pub fn passed(&self, offset: u64, bytes: &[u8]) {
        let mut passed = self.0.lock();
        if passed.in_order && offset == passed.bytes {
            passed.hasher.update(bytes);
            passed.bytes += bytes.len() as u64;
        } else {
            passed.in_order = false;
        }
    }

    /// The value has this length now.
    pub fn cut(&self, size_bytes: u64) {
        let mut passed = self.0.lock();
        if size_bytes == 0 {
            *passed = Passed::default();
        } else if size_bytes != passed.bytes {
            passed.in_order = false;
        }
    }

    /// The value changed in another way: it must be read back.
    pub fn changed(&self) {
        self.0.lock().in_order = false;
    }

    /// The checksum, where all of a value of this length has passed.
    pub fn sum(&self, size_bytes: u64) -> Option<u64> {
        let passed = self.0.lock();
        (passed.in_order && passed.bytes == size_bytes).then(|| passed.hasher.digest())
    }
}

/// How many edits in place have begun, by node: whoever reads a value without a lock sees that it stayed as it was.
pub(super) struct Edits([AtomicU64; 256]);

impl Edits {
    pub(super) fn new() -> Self {
        Edits(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    pub(super) fn of(&self, id: NodeId) -> u64 {
        self.0[id.slot() as usize % 256].load(Ordering::Acquire)
    }

    pub(super) fn begin(&self, id: NodeId) {
        self.0[id.slot() as usize % 256].fetch_add(1, Ordering::AcqRel);
    }
}

/// A checksum that was made without a lock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Summed {
    pub(super) value: u64,
    pub(super) size_bytes: u64,
    /// What [`Edits::of`] said before.
    pub(super) edits: u64,
}

impl Store {
    /// Whether records get a checksum.
    pub fn keeps_checksums(&self) -> bool {
        self.settings.checksum == Checksum::On
    }

    /// From now on a value may change without a request, for as long as its record exists: it gets no checksum.
    pub fn note_unseen(&self, id: NodeId) {
        if let Ok(node) = self.index.lock().get_mut(id) {
            node.content.unseen = true;
        }
    }

    /// Whether the first use of a value reads all of it: it may take long.
    pub fn verifies_first(&self, id: NodeId) -> bool {
        self.unclean && self.index.lock().get(id).is_ok_and(|n| n.content.unverified)
    }

    /// The checksum of a value nobody edits, read without a lock; `None` where it gets none, or cannot be read.
    pub(super) fn sum_unlocked(&self, id: NodeId, file: &File) -> Option<Summed> {
        if !self.keeps_checksums() || self.index.lock().get(id).map_or(true, |n| n.content.unseen) {
            return None;
        }
        let edits = self.edits.of(id);
        match read_sum(file) {
            Ok((value, size_bytes)) => Some(Summed { value, size_bytes, edits }),
            Err(e) => {
                log::warn!("a value gets no checksum: {e}");
                None
            }
        }
    }

    /// Whether a checksum that was made without a lock holds, now that there is one.
    pub(super) fn still_holds(&self, id: NodeId, sum: Summed, size_bytes: u64) -> bool {
        sum.edits == self.edits.of(id) && sum.size_bytes == size_bytes
    }

    /// Verifies the content of a record before its first use after an unclean stop. One that fails is quarantined, and
    /// its key is a miss.
    pub(super) fn verify_first(&self, id: NodeId) -> Result<()> {
        for attempt in 0..=TRIES {
            if !self.verifies_first(id) {
                return Ok(());
            }
            let edits = self.edits.of(id);
            let Some((home, place, lock)) = self.lock_place(id) else { return Ok(()) };
            let Found::Record(file, _, record) = self.open_record(&home, &place, false)? else {
                return Ok(());
            };
            let Some(expected) = record.checksum else {
                drop(lock);
                return self.note_verified(id);
            };
            // Others may have the lock while the value is read; the last try goes without them.
            let mut lock = Some(lock);
            if attempt < TRIES {
                lock = None;
            }
            let (found, _) = read_sum(&file)?;
            if found == expected {
                drop(lock);
                return self.note_verified(id);
            }
            let _lock = match lock {
                Some(lock) => lock,
                None => {
                    let Some((_, now, lock)) = self.lock_place(id) else { return Ok(()) };
                    if now.digest != place.digest || self.edits.of(id) != edits {
                        continue;
                    }
                    lock
                }
            };
            self.reject_content(&home, &place)?;
            self.forget_linked(id);
            return Ok(());
        }
        Ok(())
    }

    fn reject_content(&self, home: &Home, place: &Place) -> Result<()> {
        self.quarantine(home, place.digest, "its content does not have its checksum")
    }

    fn note_verified(&self, id: NodeId) -> Result<()> {
        if let Ok(node) = self.index.lock().get_mut(id) {
            node.content.unverified = false;
        }
        Ok(())
    }

    /// A clean stop: nothing need be verified at the next start, unless something still is to be.
    pub(super) fn note_clean(&self) -> Result<()> {
        if self.unclean {
            let index = self.index.lock();
            let left = index.linked_slots().any(|slot| index.at(slot).content.unverified);
            drop(index);
            if left {
                return Ok(());
            }
        }
        os::xattr_remove(&self.data, UNCLEAN_XATTR).map(drop)
    }
}

/// Notes on disk that a daemon has the store; whether the last one left it without a clean stop.
pub(super) fn note_open(data: &Dir) -> Result<bool> {
    let unclean = os::xattr_get(data, UNCLEAN_XATTR, 8)?.is_some();
    if !unclean {
        os::xattr_set(data, UNCLEAN_XATTR, b"1", XattrMode::Set)?;
        data.sync()?;
    }
    Ok(unclean)
}

/// The checksum in the making of a value that is being written.
pub(super) fn passing(store: &Store) -> Option<Arc<Passing>> {
    store.keeps_checksums().then(Arc::default)
}

#[cfg(test)]
mod tests {
    use super::*;
    use xxhash_rust::xxh3::xxh3_64;

    #[test]
    fn bytes_in_order_are_summed_as_they_pass() {
        let passing = Passing::default();
        assert_eq!(passing.sum(0), Some(xxh3_64(b"")));
        passing.passed(0, b"abc");
        passing.passed(3, b"def");
        assert_eq!(passing.sum(6), Some(xxh3_64(b"abcdef")));
        // A length that did not pass: something else made the file longer.
        assert_eq!(passing.sum(7), None);
        passing.cut(6);
        assert_eq!(passing.sum(6), Some(xxh3_64(b"abcdef")));
        passing.cut(3);
        assert_eq!((passing.sum(3), passing.sum(6)), (None, None));
        passing.cut(0);
        passing.passed(0, b"x");
        assert_eq!(passing.sum(1), Some(xxh3_64(b"x")));
    }

    #[test]
    fn what_comes_out_of_order_or_twice_is_read_back() {
        for (offset, bytes) in [(4, &b"late"[..]), (0, b"over"), (2, b"overlap")] {
            let passing = Passing::default();
            passing.passed(0, b"abc");
            passing.passed(offset, bytes);
            passing.passed(3, b"d");
            assert_eq!(passing.sum(4), None, "{offset}");
        }
        let passing = Passing::default();
        passing.passed(0, b"abc");
        passing.changed();
        assert_eq!(passing.sum(3), None);
    }

    #[test]
    fn a_file_is_summed_whole() {
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..3_000_001u32).map(|n| (n % 251) as u8).collect();
        std::io::Write::write_all(&mut &file, &bytes).unwrap();
        assert_eq!(read_sum(&file).unwrap(), (xxh3_64(&bytes), 3_000_001));
    }
}
