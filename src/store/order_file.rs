//! The file `order`: the eviction order, for a start that walks the records.
//!
//! A hint, and never evidence that a key exists: it is written at a clean stop, and while the store is used by a thread
//! of its own, now and then. Keys that it names come first, in its order; what it does not name is newer.

use std::io::{BufReader, Read};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::Mutex;

use super::Store;
use super::evict::Heat;
use super::index::{Index, NodeId};
use crate::config::limits;
use crate::error::Result;
use crate::format::layout;
use crate::key::Digest;

/// The first bytes of the file as it is written: after them digest and heat of each key, coldest first.
const MAGIC: &[u8; 16] = b"FENCEFS-ORDER-2\n";
/// The first bytes of one of which only digests follow.
const MAGIC_1: &[u8; 16] = b"FENCEFS-ORDER-1\n";
/// The rank of a value that no order names: it comes behind those that one does.
pub(super) const NO_RANK: u32 = u32::MAX;

/// What an order says of a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    pub(super) rank: u32,
    pub(super) heat: Heat,
}

impl Turn {
    fn unknown() -> Turn {
        Turn { rank: NO_RANK, heat: Heat::default() }
    }
}

/// An order by the low half of a digest. Two keys that share it share a turn, which is no worse a guess than any.
pub(super) struct Turns(Vec<(u64, Turn)>);

impl Turns {
    pub(super) fn of(&self, digest: Digest) -> Turn {
        let at = self.0.partition_point(|(low, _)| *low < digest.low());
        self.0.get(at).filter(|(low, _)| *low == digest.low()).map_or(Turn::unknown(), |(_, turn)| *turn)
    }
}

/// When the file was written.
pub(super) struct Saved {
    at: Instant,
    /// Uses until then.
    uses: u64,
    writer: Option<JoinHandle<()>>,
}

impl Saved {
    pub(super) fn now() -> Mutex<Saved> {
        Mutex::new(Saved { at: Instant::now(), uses: 0, writer: None })
    }
}

impl Index {
    /// What the file has of a node; none where it is no linked value any more.
    fn line_of(&self, id: NodeId, heat: Heat) -> Option<[u8; 17]> {
        let node = self.linked(id).ok().filter(|n| n.dir.is_none())?;
        let (home, key) = (&self.tenant_of(id).ok()?.home, self.key_of(id.slot()).ok()?);
        let mut line = [heat.byte(); 17];
        line[..16]
            .copy_from_slice(&Digest::of(&home.tenant, key.as_bytes(), node.kind).to_u128().to_le_bytes());
        Some(line)
    }
}

impl Store {
    /// What the file says; nothing where it cannot be read.
    pub(super) fn read_order(&self) -> Turns {
        let Ok(Some(file)) = self.root.dir.open_file(layout::ORDER, false) else { return Turns(Vec::new()) };
        let (mut file, mut magic) = (BufReader::new(file), [0; MAGIC.len()]);
        let heats = match file.read_exact(&mut magic) {
            Ok(()) if magic == *MAGIC => 1,
            Ok(()) if magic == *MAGIC_1 => 0,
            _ => {
                log::warn!("the file `order` cannot be read; eviction order starts from the records' times");
                return Turns(Vec::new());
            }
        };
        let (mut turns, mut line) = (Vec::new(), [Heat::default().byte(); 17]);
        while turns.len() < NO_RANK as usize && file.read_exact(&mut line[..16 + heats]).is_ok() {
            let [digest @ .., heat] = line;
            let turn = Turn { rank: turns.len() as u32, heat: Heat::from_byte(heat) };
            turns.push((Digest::from_u128(u128::from_le_bytes(digest)).low(), turn));
        }
        turns.sort_unstable_by_key(|(low, turn)| (*low, turn.rank));
        Turns(turns)
    }

    /// Writes the file. The index waits for a copy of the links, and then for a part of the keys at a time; none is left
    /// out but what changes meanwhile.
    pub(super) fn write_order(&self) -> Result<()> {
        let later = self.index.lock().order.all_later();
        let order = later();
        let mut bytes = Vec::with_capacity(MAGIC.len() + 17 * order.len());
        bytes.extend_from_slice(MAGIC);
        for part in order.chunks(limits::ORDERED_AT_ONCE) {
            let index = self.index.lock();
            let lines = part.iter().filter_map(|(slot, heat)| index.line_of(index.id_of(*slot), *heat));
            lines.for_each(|line| bytes.extend_from_slice(&line));
        }
        step!("order.write");
        self.replace_root_file(layout::ORDER, &bytes)
    }

    /// Has the file written if it is time and there were uses since.
    pub(super) fn save_order_when_due(self: &Arc<Self>) {
        let mut saved = self.order_saved.lock();
        let uses = self.index.lock().order.uses();
        let busy = saved.writer.as_ref().is_some_and(|w| !w.is_finished());
        if busy || uses == saved.uses || saved.at.elapsed() < self.settings.order_interval {
            return;
        }
        (saved.at, saved.uses) = (Instant::now(), uses);
        let store = Arc::clone(self);
        let write = move || {
            if let Err(e) = store.write_order() {
                store.note_error(format!("cannot write the eviction order: {e}"));
            }
        };
        match std::thread::Builder::new().name("fencefs-order".into()).spawn(write) {
            Ok(writer) => saved.writer = Some(writer),
            Err(e) => log::warn!("the eviction order is not written: {e}"),
        }
    }

    /// Waits until nobody writes the file.
    pub(super) fn settle_order(&self) {
        let writer = self.order_saved.lock().writer.take();
        if writer.is_some_and(|w| w.join().is_err()) {
            log::warn!("writing the eviction order panicked");
        }
    }
}
