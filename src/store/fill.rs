//! The one step by which a start believes what it found: nothing of it is in the index before all of it is known.
//!
//! A source of recovery hands over batches, in whatever order; what they hold is linked here, directories first,
//! parents before children, then values, coldest first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::Store;
use super::evict::Heat;
use super::index::{DirAttr, Directory, Index, NodeId};
use super::order_file::{NO_RANK, Turn};
use super::tenants::{Home, dir_attr};
use crate::error::{Error, Kind, Result};
use crate::key::{Key, RecordKind};
use crate::os::{Attr, Timespec};

/// The nanosecond of a record's last change, not below any rank.
fn changed(attr: &Attr) -> u64 {
    let sec = u64::try_from(attr.ctime.sec).unwrap_or(0);
    sec.saturating_mul(1_000_000_000).saturating_add(attr.ctime.nsec.into()).max(NO_RANK.into())
}

/// A sound record of a source.
#[derive(Debug)]
pub(super) struct Seen<'a> {
    pub(super) key: &'a Key,
    pub(super) kind: RecordKind,
    pub(super) pinned: bool,
    /// Its content is to be compared with its checksum before its first use.
    pub(super) unverified: bool,
    /// It is in the attached directory.
    pub(super) attached: bool,
    pub(super) attr: &'a Attr,
    /// Its place in the eviction order, if that is known.
    pub(super) turn: Turn,
}

/// A record, as small as it gets: a start holds one for each key beside the index that it fills.
#[derive(Debug, Clone, Copy)]
struct Row {
    blocks: u64,
    /// Its rank in the eviction order, or, behind all ranks, the time of its last change.
    warmth: u64,
    /// Where its key begins.
    at: u32,
    length: u16,
    heat: Heat,
    /// [`PINNED`], [`UNVERIFIED`], [`ATTACHED`], [`DIRECTORY`], [`SYMLINK`].
    marks: u8,
}

const PINNED: u8 = 1;
const UNVERIFIED: u8 = 2;
const ATTACHED: u8 = 4;
const DIRECTORY: u8 = 8;
const SYMLINK: u8 = 16;

impl Row {
    fn recovered(&self) -> Recovered {
        let [pinned, unverified, attached, directory, symlink] =
            [PINNED, UNVERIFIED, ATTACHED, DIRECTORY, SYMLINK].map(|mark| self.marks & mark != 0);
        let kind = match (directory, symlink) {
            (true, _) => RecordKind::Directory,
            (_, true) => RecordKind::Symlink,
            _ => RecordKind::File,
        };
        Recovered { kind, pinned, unverified, attached, blocks: self.blocks, heat: self.heat }
    }
}

/// Records of one tenant, their keys end to end.
#[derive(Debug)]
pub(super) struct Batch {
    home: Arc<Home>,
    keys: Vec<u8>,
    values: Vec<Row>,
    dirs: Vec<(Row, DirAttr)>,
}

impl Batch {
    pub(super) fn new(home: &Arc<Home>) -> Batch {
        Batch { home: Arc::clone(home), keys: Vec::new(), values: Vec::new(), dirs: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.values.len() + self.dirs.len()
    }

    pub(super) fn push(&mut self, seen: &Seen<'_>) -> Result<()> {
        let key = seen.key.as_bytes();
        let too_much = |_| Error::new(Kind::TooMany, "there are more keys in it than can be counted");
        let row = Row {
            blocks: seen.attr.blocks,
            warmth: if seen.turn.rank == NO_RANK { changed(seen.attr) } else { seen.turn.rank.into() },
            at: u32::try_from(self.keys.len()).map_err(too_much)?,
            length: u16::try_from(key.len()).map_err(too_much)?,
            heat: seen.turn.heat,
            marks: (u8::from(seen.pinned) * PINNED)
                | (u8::from(seen.unverified) * UNVERIFIED)
                | (u8::from(seen.attached) * ATTACHED)
                | match seen.kind {
                    RecordKind::Directory => DIRECTORY,
                    RecordKind::Symlink => SYMLINK,
                    RecordKind::File => 0,
                },
        };
        self.keys.extend_from_slice(key);
        match seen.kind {
            RecordKind::Directory => self.dirs.push((row, dir_attr(seen.attr))),
            RecordKind::File | RecordKind::Symlink => self.values.push(row),
        }
        Ok(())
    }

    /// All of it is there: orders it for [`coldest_first`], and gives back what was allocated ahead.
    pub(super) fn finish(&mut self) {
        self.values.sort_unstable_by_key(|row| (row.warmth, row.at));
        self.keys.shrink_to_fit();
        self.values.shrink_to_fit();
        self.dirs.shrink_to_fit();
    }

    fn key(&self, row: &Row) -> &[u8] {
        let at = row.at as usize;
        &self.keys[at..at + usize::from(row.length)]
    }
}

impl Store {
    /// Puts into the index what all sources found.
    pub(super) fn fill(&self, batches: &[Batch]) -> Result<()> {
        let mut dirs: Vec<(&Batch, &(Row, DirAttr))> =
            batches.iter().flat_map(|b| b.dirs.iter().map(move |d| (b, d))).collect();
        dirs.sort_by_key(|(_, (row, _))| (row.length, row.warmth));
        step!("recover.commit");
        let mut index = self.index.lock();
        index.reserve(batches.iter().map(Batch::len).sum());
        for (batch, (row, attr)) in dirs {
            let key = Key::new(batch.key(row))?;
            if directory_of(&mut index, batch, &key, Some((row, *attr)))?.is_none() {
                log::warn!(
                    "no path spells the directory {key} of tenant {}: it is not shown",
                    batch.home.tenant
                );
            }
        }
        // Every directory that a key implies comes before any value: of a key that is also a directory it is always the
        // value that no path spells, whatever the order.
        for (batch, row) in batches.iter().flat_map(|b| b.values.iter().map(move |row| (b, row))) {
            directory_of(&mut index, batch, &Key::new(batch.key(row))?, None)?;
        }
        for (batch, row) in coldest_first(batches) {
            place(&mut index, batch, row)?;
        }
        Ok(())
    }
}

/// The values of all batches in one order: those of the last clean stop in its order, behind them what came later, by the
/// time of its last change. Of each batch one is looked at, so that no list of all is needed.
fn coldest_first(batches: &[Batch]) -> impl Iterator<Item = (&Batch, &Row)> {
    debug_assert!(batches.iter().all(|b| b.values.is_sorted_by_key(|row| (row.warmth, row.at))));
    let next = |batch: usize, n: usize| Some(Reverse((batches[batch].values.get(n)?.warmth, batch, n)));
    let mut heads: BinaryHeap<_> = (0..batches.len()).filter_map(|batch| next(batch, 0)).collect();
    std::iter::from_fn(move || {
        let Reverse((_, batch, n)) = heads.pop()?;
        heads.extend(next(batch, n + 1));
        Some((&batches[batch], &batches[batch].values[n]))
    })
}

/// The directory that a key stands in, or, of a directory's own record, that directory; made where it is missing. None
/// where no path spells the key.
fn directory_of(
    index: &mut Index,
    batch: &Batch,
    key: &Key,
    own: Option<(&Row, DirAttr)>,
) -> Result<Option<NodeId>> {
    let Some(path) = key.path() else { return Ok(None) };
    let mut at = index.tenants[batch.home.number as usize].node;
    let mut parts = path.peekable();
    while let Some(part) = parts.next() {
        match (index.entry(at.slot(), part), parts.peek().is_none(), &own) {
            (_, true, None) => {}
            (Some(id), _, _) => at = id,
            (None, false, _) => at = implied_dir(index, at, part)?,
            (None, true, Some((row, attr))) => {
                at = link(index, at, part, &row.recovered(), Some(Directory::new(*attr, true)))?;
            }
        }
    }
    Ok(Some(at))
}

fn place(index: &mut Index, batch: &Batch, row: &Row) -> Result<()> {
    let key = Key::new(batch.key(row))?;
    let unspelled = index.tenants[batch.home.number as usize].unspelled;
    let what = row.recovered();
    let name = key.path().and_then(Iterator::last);
    match (directory_of(index, batch, &key, None)?, name) {
        (Some(parent), Some(name)) if index.entry(parent.slot(), name).is_none() => {
            link(index, parent, name, &what, None)?;
        }
        _ => drop(link(index, unspelled, key.as_bytes(), &what, None)?),
    }
    Ok(())
}

/// A directory that no record keeps: it exists because keys below it do.
pub(super) fn implied_dir(index: &mut Index, parent: NodeId, name: &[u8]) -> Result<NodeId> {
    let now = Timespec::now();
    let above = index.dir(parent)?.attr;
    let attr = DirAttr { mode: above.mode, atime: now, mtime: now, ctime: now, ..above };
    let what = Recovered {
        kind: RecordKind::Directory,
        pinned: false,
        unverified: false,
        attached: false,
        blocks: 0,
        heat: Heat::default(),
    };
    link(index, parent, name, &what, Some(Directory::new(attr, false)))
}

/// What a recovered node is, beside its name.
pub(super) struct Recovered {
    pub(super) kind: RecordKind,
    pub(super) pinned: bool,
    pub(super) unverified: bool,
    pub(super) attached: bool,
    pub(super) blocks: u64,
    pub(super) heat: Heat,
}

/// Links a recovered node without moving its directory's times.
pub(super) fn link(
    index: &mut Index,
    parent: NodeId,
    name: &[u8],
    what: &Recovered,
    dir: Option<Directory>,
) -> Result<NodeId> {
    let tenant = index.tenant_of(parent)?.home.number;
    let above = index.dir(parent)?;
    let (attr, dirty) = (above.attr, above.dirty);
    let is_value = dir.is_none();
    let id = index.add_pending(parent, name, tenant, what.kind, dir);
    index.join(id, what.blocks, attr.mtime)?;
    if is_value {
        index.order.restored(id.slot(), what.heat);
    }
    let above = index.dir_mut(parent)?;
    (above.attr, above.dirty) = (attr, dirty);
    if what.pinned {
        index.set_pinned(id, true)?;
    }
    index.get_mut(id)?.content.unverified = what.unverified;
    if what.attached {
        index.mark_attached(id)?;
    }
    Ok(id)
}
