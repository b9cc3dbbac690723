//! Recovery: before the store is ready, staging is emptied and every record is validated and counted.
//!
//! The walk changes nothing that is sound. Records that fail are quarantined; links, special files and strangers are
//! left where they are and reported. What was found is put into the index in one step, coldest first.

use std::collections::HashMap;
use std::sync::Arc;

use super::Store;
use super::index::{DirAttr, Directory, NodeId};
use super::object::{Found, judge};
use super::tenants::{Home, dir_attr};
use crate::error::Result;
use crate::format::layout;
use crate::format::record::Record;
use crate::key::{Digest, Key, RecordKind};
use crate::os::{self, Attr, Dir, EntryType, Timespec};

/// A sound record, as the walk found it.
struct Seen {
    key: Key,
    digest: Digest,
    attr: Attr,
    kind: RecordKind,
    pinned: bool,
    unverified: bool,
}

impl Store {
    /// Empties staging, walks every tenant and fills the index.
    pub(super) fn recover(&self, progress: &mut dyn FnMut(&str, u64)) -> Result<()> {
        for entry in self.staging.entries()? {
            if entry.kind == EntryType::File {
                self.staging.unlink(&entry.name)?;
            } else {
                log::warn!(
                    "data/.staging/{} is no staged value; it is left where it is",
                    entry.name.escape_ascii()
                );
            }
        }
        let homes: Vec<Arc<Home>> = self.index.lock().tenants.iter().map(|t| Arc::clone(&t.home)).collect();
        let mut all = Vec::new();
        let mut count = 0;
        for home in homes {
            let seen = self.walk(&home, &mut |n| {
                count += n;
                progress("records", count);
            })?;
            all.push((home, seen));
        }
        let order = self.read_order();
        self.fill(all, &order)
    }

    fn walk(&self, home: &Home, found: &mut dyn FnMut(u64)) -> Result<Vec<Seen>> {
        let mut seen = Vec::new();
        for upper in self.levels(home, &home.dir, "")? {
            let before_upper = seen.len();
            let upper_dir = home.dir.open_dir(&upper)?;
            let shown = String::from_utf8_lossy(&upper).into_owned();
            for lower in self.levels(home, &upper_dir, &shown)? {
                let dir = upper_dir.open_dir(&lower)?;
                let before = seen.len();
                let shard = [upper.as_slice(), lower.as_slice()];
                self.walk_shard(home, &dir, shard, &mut seen)?;
                self.prune(&upper_dir, &lower, seen.len() == before);
                found((seen.len() - before) as u64);
            }
            self.prune(&home.dir, &upper, seen.len() == before_upper);
        }
        Ok(seen)
    }

    /// Removes a shard directory in which nothing was found; one that holds a stranger stays.
    fn prune(&self, above: &Dir, name: &[u8], empty: bool) {
        if empty && let Err(e) = above.rmdir(name) {
            log::debug!("an empty shard stays: {e}");
        }
    }

    /// The shard directories of one level; everything else there is a stranger.
    fn levels(&self, home: &Home, dir: &Dir, at: &str) -> Result<Vec<Vec<u8>>> {
        let mut levels = Vec::new();
        for entry in dir.entries()? {
            if entry.kind == EntryType::Dir && layout::is_shard_level(&entry.name) {
                levels.push(entry.name);
            } else {
                stranger(home, at, &entry.name);
            }
        }
        Ok(levels)
    }

    fn walk_shard(&self, home: &Home, dir: &Dir, shard: [&[u8]; 2], seen: &mut Vec<Seen>) -> Result<()> {
        let at = format!("{}/{}", String::from_utf8_lossy(shard[0]), String::from_utf8_lossy(shard[1]));
        for entry in dir.entries()? {
            let digest = Digest::parse(&entry.name).filter(|d| layout::shard(*d) == at);
            let (Some(digest), EntryType::File) = (digest, entry.kind) else {
                stranger(home, &at, &entry.name);
                continue;
            };
            let Some(file) = dir.open_file(&entry.name, false)? else { continue };
            match judge(file, home, digest)? {
                (Found::Record(file, attr, record), Some(key)) => {
                    let kind = record.kind;
                    let pinned = record.pinned;
                    let unverified = self.unclean && record.checksum.is_some() && !record.editing;
                    let attr = self.settle_found(&file, attr, record)?;
                    seen.push(Seen { key, digest, attr, kind, pinned, unverified });
                }
                (Found::Invalid(why), _) => self.quarantine(home, digest, why)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// A record that was being edited when the daemon died takes its length from the file.
    fn settle_found(&self, file: &std::fs::File, attr: Attr, mut record: Record) -> Result<Attr> {
        if !record.editing {
            return Ok(attr);
        }
        record.editing = false;
        record.payload_bytes = attr.size_bytes;
        record.checksum = None;
        self.write_record(file, &record)?;
        os::stat(file)
    }

    fn fill(&self, all: Vec<(Arc<Home>, Vec<Seen>)>, order: &HashMap<Digest, u64>) -> Result<()> {
        let mut rows: Vec<(Arc<Home>, Seen)> = all
            .into_iter()
            .flat_map(|(home, seen)| seen.into_iter().map(move |s| (Arc::clone(&home), s)))
            .collect();
        // Directories first, parents before children; then values, coldest first: those of the last clean stop in
        // its order, behind them what came later, by the time of its last change.
        rows.sort_by_cached_key(|(_, s)| {
            let is_value = s.kind != RecordKind::Directory;
            let cold = if is_value {
                order.get(&s.digest).copied().unwrap_or(u64::MAX)
            } else {
                s.key.as_bytes().len() as u64
            };
            (is_value, cold, s.attr.ctime)
        });
        let mut index = self.index.lock();
        for (home, seen) in rows {
            let Some(path) = seen.key.path() else {
                log::warn!(
                    "the key {} of tenant {} is spelled by no path and stays out of the tree",
                    seen.key,
                    home.tenant
                );
                continue;
            };
            let mut at = index.tenants[home.number as usize].node;
            let mut parts = path.peekable();
            let mut placed = true;
            while let Some(part) = parts.next() {
                let last = parts.peek().is_none();
                match (index.child(at, part), last) {
                    (Some(id), false) if index.at(id.slot()).dir.is_some() => at = id,
                    (Some(_), _) => {
                        placed = false;
                        break;
                    }
                    (None, false) => at = implied_dir(&mut index, at, part, home.number)?,
                    (None, true) => place(&mut index, at, part, home.number, &seen)?,
                }
            }
            if !placed {
                log::warn!(
                    "the key {} of tenant {} is also a directory of others and stays out of the tree",
                    seen.key,
                    home.tenant
                );
            }
        }
        Ok(())
    }

    fn read_order(&self) -> HashMap<Digest, u64> {
        let Ok(Some(mut file)) = self.root.dir.open_file(layout::ORDER, false) else { return HashMap::new() };
        let mut bytes = Vec::new();
        if std::io::Read::read_to_end(&mut file, &mut bytes).is_err() || !bytes.starts_with(ORDER_MAGIC) {
            log::warn!("the file `order` cannot be read; eviction order starts from the records' times");
            return HashMap::new();
        }
        let entries =
            bytes[ORDER_MAGIC.len()..].chunks_exact(16).map(|c| c.try_into().expect("chunks of sixteen"));
        entries.zip(0..).map(|(b, n)| (Digest::from_u128(u128::from_le_bytes(b)), n)).collect()
    }

    /// Writes the eviction order, and the directory times that only memory has.
    pub(super) fn write_checkpoint(&self) -> Result<()> {
        let (order, dirs) = {
            let index = self.index.lock();
            let mut order = Vec::new();
            for slot in index.policy.order() {
                let home = &index.tenant_of(index.id_of(slot))?.home;
                let key = index.key_of(slot)?;
                order.push(Digest::of(&home.tenant, key.as_bytes(), index.at(slot).kind));
            }
            let dirty = index
                .linked_slots()
                .filter(|&s| index.at(s).dir.as_ref().is_some_and(|d| d.dirty && d.recorded));
            let dirs: Vec<NodeId> = dirty.map(|s| index.id_of(s)).collect();
            (order, dirs)
        };
        for id in dirs {
            let times = self.index.lock().dir(id).map(|d| (d.attr.atime, d.attr.mtime));
            let Ok((atime, mtime)) = times else { continue };
            let set = (os::SetTime::At(atime), os::SetTime::At(mtime));
            let is_tenant = self.index.lock().is_tenant_dir(id.slot());
            if is_tenant {
                let home = Arc::clone(&self.index.lock().tenant_of(id)?.home);
                os::set_times(&home.top, set.0, set.1)?;
            } else {
                os::set_times(&self.directory_record(id)?, set.0, set.1)?;
            }
        }
        let mut bytes = ORDER_MAGIC.to_vec();
        bytes.extend(order.iter().flat_map(|d| d.to_u128().to_le_bytes()));
        self.replace_root_file(layout::ORDER, &bytes)
    }
}

const ORDER_MAGIC: &[u8] = b"FENCEFS-ORDER-1\n";

fn stranger(home: &Home, at: &str, name: &[u8]) {
    let name = name.escape_ascii();
    log::warn!("data/t/{}/{}/{at}/{name} is no record; it is left where it is", home.tenant, home.epoch);
}

/// A directory that no record keeps: it exists because keys below it do.
fn implied_dir(index: &mut super::index::Index, parent: NodeId, name: &[u8], tenant: u32) -> Result<NodeId> {
    let now = Timespec::now();
    let above = index.dir(parent)?.attr;
    let attr = DirAttr { mode: above.mode, atime: now, mtime: now, ctime: now, ..above };
    let id =
        index.add_pending(parent, name, tenant, RecordKind::Directory, Some(Directory::new(attr, false)));
    link_quietly(index, id, parent, 0)?;
    Ok(id)
}

fn place(
    index: &mut super::index::Index,
    parent: NodeId,
    name: &[u8],
    tenant: u32,
    seen: &Seen,
) -> Result<()> {
    let dir = (seen.kind == RecordKind::Directory).then(|| Directory::new(dir_attr(&seen.attr), true));
    let id = index.add_pending(parent, name, tenant, seen.kind, dir);
    link_quietly(index, id, parent, seen.attr.blocks)?;
    if seen.pinned {
        index.set_pinned(id, true)?;
    }
    index.get_mut(id)?.content.unverified = seen.unverified;
    Ok(())
}

/// Links a recovered node without moving its directory's times.
fn link_quietly(index: &mut super::index::Index, id: NodeId, parent: NodeId, blocks: u64) -> Result<()> {
    let above = index.dir(parent)?;
    let (attr, dirty) = (above.attr, above.dirty);
    index.link(id, blocks, Timespec::now())?;
    let above = index.dir_mut(parent)?;
    (above.attr, above.dirty) = (attr, dirty);
    Ok(())
}
