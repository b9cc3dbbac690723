//! The checkpoint: written at a clean stop, believed once, at the next start.
//!
//! Nothing of it counts but with its *mark*, an attribute of the data directory that names this one stop. The mark is
//! set, durably, when the store takes no more changes and everything that the checkpoint says is durable. It is taken
//! away, durably, before a start changes anything. So a store that was opened since, or was not closed to the end,
//! has no mark, whatever files stand there; and a copy of an older checkpoint names an older stop.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use uuid::Uuid;
use xxhash_rust::xxh3::Xxh3;

use super::Store;
use super::evict::{Heat, Slot};
use super::fill::{Recovered, link};
use super::index::{DirAttr, Directory, Index, NodeId, ROOT};
use super::tenants::Home;
use crate::error::{Error, Kind, Result};
use crate::format::checkpoint::{Checkpoint, DirectoryPart, Entry, Head, Moment, TenantPart, Writer};
use crate::format::layout;
use crate::key::RecordKind;
use crate::ledger::Applied;
use crate::os::{self, Dir, Timespec, XattrMode};

/// The mark, on the data directory: the clean stop that the data was left by.
const MARK_XATTR: &str = "user.fencefs.stopped";
/// Entries between two words of progress.
const TOLD_EVERY: u64 = 1 << 14;

/// Takes the mark of a clean stop away, for good, before anything changes; what it said, if it was there.
pub(super) fn take_mark(data: &Dir) -> Result<Option<u128>> {
    let mark = os::xattr_get(data, MARK_XATTR, 64)?;
    if mark.is_none() {
        return Ok(None);
    }
    step!("checkpoint.unmark");
    os::xattr_remove(data, MARK_XATTR)?;
    data.sync()?;
    step!("checkpoint.unmarked");
    Ok(mark.and_then(|m| m.try_into().ok()).map(u128::from_le_bytes))
}

fn unusable(why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(Kind::Corrupt, why)
}

fn sum_of(applied: &Applied) -> u64 {
    let mut sum = Xxh3::new();
    sum.update(&applied.global.0.to_le_bytes());
    for (tenant, generation) in &applied.tenants {
        sum.update(&[tenant.as_str().len() as u8]);
        sum.update(tenant.as_str().as_bytes());
        sum.update(&generation.0.to_le_bytes());
    }
    sum.digest()
}

/// The tenants' directories, in the order of a checkpoint.
type Tops = Vec<(NodeId, Arc<Home>)>;

impl Store {
    /// Fills the index from the checkpoint; whether it could be believed.
    pub(super) fn restore(&self, stop: Option<u128>, progress: &mut dyn FnMut(&str, u64)) -> bool {
        let restored = match stop {
            None => Ok(None),
            Some(stop) => self.restore_from(stop, progress).map(Some),
        };
        // It has had its day, used or not. What cannot be removed does no harm without its mark.
        if let Err(e) = self.root.dir.unlink(layout::CHECKPOINT) {
            log::warn!("the file `{}` stays: {e}", layout::CHECKPOINT);
        }
        match restored {
            Ok(None) => false,
            Ok(Some(entries)) => {
                log::info!("{entries} entries are as the last clean stop left them");
                true
            }
            Err(e) => {
                log::warn!("the checkpoint is of no use ({e}); every record is looked at instead");
                false
            }
        }
    }

    fn restore_from(&self, stop: u128, progress: &mut dyn FnMut(&str, u64)) -> Result<u64> {
        let file = self.root.dir.open_file(layout::CHECKPOINT, false)?;
        let bytes = read(file.ok_or_else(|| unusable("it is gone"))?)?;
        let found = Checkpoint::decode(&bytes)?;
        if found.head != self.head(stop) {
            return Err(unusable("it is of another store, of another stop, or from before a removal"));
        }
        let tops = self.tops();
        let mut here = self.parts(&tops)?;
        let by_name = |a: &TenantPart, b: &TenantPart| a.tenant.cmp(&b.tenant);
        // What they hold is what there is to learn.
        let bare = |t: &TenantPart| TenantPart { keys: 0, bytes: 0, ..t.clone() };
        let mut there: Vec<_> = found.tenants.iter().map(bare).collect();
        here.sort_by(by_name);
        there.sort_by(by_name);
        if here != there || tops.iter().any(|(_, home)| home.fence.closed_towards().is_some()) {
            return Err(unusable("the tenants are not what they were"));
        }
        let mut index = self.index.lock();
        let placed = place_all(&mut index, &found, &tops, progress);
        if placed.is_err() {
            take_all_out(&mut index)?;
        }
        placed.map(|()| found.entries)
    }

    fn head(&self, stop: u128) -> Head {
        Head {
            storage_id: self.root.storage_id(),
            superblock: self.root.superblock_sum,
            applied: sum_of(&self.root.storage.applied()),
            stop,
        }
    }

    fn tops(&self) -> Tops {
        let index = self.index.lock();
        index.tenants.iter().filter(|t| t.live).map(|t| (t.node, Arc::clone(&t.home))).collect()
    }

    /// The tenants as the disk has them, without what they hold.
    fn parts(&self, tops: &Tops) -> Result<Vec<TenantPart>> {
        let part = |(_, home): &(NodeId, Arc<Home>)| {
            Ok(TenantPart {
                tenant: home.tenant.clone(),
                epoch: home.epoch,
                // A generation of records that somebody has taken away, or put there, is noticed at least.
                shards: home.dir.entries()?.len() as u32,
                keys: 0,
                bytes: 0,
            })
        };
        tops.iter().map(part).collect()
    }

    /// What a clean stop leaves: the eviction order, the directory times that only memory has, and the checkpoint.
    pub(super) fn write_stop(&self) -> Result<()> {
        self.write_times()?;
        self.write_order()?;
        step!("checkpoint.begin");
        let tops = self.tops();
        // Nothing is admitted from here on, and what was admitted is done.
        let held = tops.iter().try_for_each(|(_, home)| home.fence.hold());
        // With a checkpoint or without: what counts as verified from now on must not be lost with the power.
        self.sync_names()?;
        if let Err(e) = held {
            log::info!("no checkpoint, a removal is under way ({e}): the next start looks at every record");
            return Ok(());
        }
        let stop = Uuid::new_v4().as_u128();
        let Some(bytes) = self.encode(stop, &tops)? else { return Ok(()) };
        step!("checkpoint.write");
        self.replace_root_file(layout::CHECKPOINT, &bytes)?;
        step!("checkpoint.mark");
        os::xattr_set(&self.data, MARK_XATTR, &stop.to_le_bytes(), XattrMode::Set)?;
        step!("checkpoint.marked");
        self.data.sync()
    }

    /// The directory times that only memory has, to where a walk finds them.
    fn write_times(&self) -> Result<()> {
        let dirs: Vec<NodeId> = {
            let index = self.index.lock();
            let is_dirty = |s: &Slot| index.at(*s).dir.as_ref().is_some_and(|d| d.dirty && d.recorded);
            index.linked_slots().filter(is_dirty).map(|s| index.id_of(s)).collect()
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
        Ok(())
    }

    /// The checkpoint's bytes; none where memory is not sure to be what the disk holds.
    fn encode(&self, stop: u128, tops: &Tops) -> Result<Option<Vec<u8>>> {
        let mut parts = self.parts(tops)?;
        let index = self.index.lock();
        let doubts = self.doubts(&index);
        if let Some(doubt) = doubts {
            log::info!("no checkpoint, {doubt}: the next start looks at every record");
            return Ok(None);
        }
        for (part, (_, home)) in parts.iter_mut().zip(tops) {
            let usage = index.tenants[home.number as usize].usage;
            (part.keys, part.bytes) = (usage.keys, usage.bytes);
        }
        let mut writer = Writer::new(&self.head(stop), &parts);
        let mut dirs: Vec<NodeId> = tops.iter().map(|(node, _)| *node).collect();
        dirs.extend(tops.iter().map(|(_, home)| index.tenants[home.number as usize].unspelled));
        let mut numbers: HashMap<Slot, u32> = dirs.iter().map(|d| d.slot()).zip(0..).collect();
        let mut at = 0;
        while let Some(&dir) = dirs.get(at) {
            let directory = index.dir(dir)?;
            let subdirs = directory.children.slots().filter(|&s| index.at(s).dir.is_some());
            for slot in subdirs.take(directory.subdirs as usize) {
                numbers.insert(slot, dirs.len() as u32);
                dirs.push(index.id_of(slot));
                writer.entry(&entry_of(&index, slot, at as u32));
            }
            at += 1;
        }
        for (slot, heat) in index.order.all() {
            let parent = numbers.get(&index.at(slot).parent);
            let parent = *parent.ok_or_else(|| unusable("a value has no directory"))?;
            writer.entry(&Entry { heat: heat.byte(), ..entry_of(&index, slot, parent) });
        }
        Ok(Some(writer.seal()))
    }

    /// Why the index should not be believed by the next start.
    fn doubts(&self, index: &Index) -> Option<String> {
        if self.attached.is_some() {
            return Some("a directory is attached, and others may write to it".to_owned());
        }
        if self.doubted.load(Ordering::Relaxed) {
            return Some("something failed halfway".to_owned());
        }
        if index.linked_slots().any(|s| index.at(s).writers > 0) {
            return Some("values are being written".to_owned());
        }
        if index.linked_slots().any(|s| index.at(s).content.unverified) {
            return Some("some values were not verified since the last unclean stop".to_owned());
        }
        index.check().into_iter().next()
    }
}

fn read(mut file: File) -> Result<Vec<u8>> {
    let attr = os::stat(&file)?;
    if !attr.is_file() {
        return Err(unusable("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(attr.size_bytes as usize).map_err(|_| unusable("it is larger than memory"))?;
    file.read_to_end(&mut bytes).map_err(|e| Error::os("cannot read it", e))?;
    Ok(bytes)
}

fn entry_of(index: &Index, slot: Slot, parent: u32) -> Entry<'_> {
    let node = index.at(slot);
    let moment = |t: Timespec| -> Moment { (t.sec, t.nsec) };
    let directory = node.dir.as_ref().map(|d| DirectoryPart {
        recorded: d.recorded,
        mode: d.attr.mode,
        uid: d.attr.uid,
        gid: d.attr.gid,
        times: [moment(d.attr.atime), moment(d.attr.mtime), moment(d.attr.ctime)],
    });
    let kind = if directory.is_some() { RecordKind::Directory } else { node.kind };
    Entry { parent, name: &node.name, kind, pinned: node.pinned, blocks: node.blocks, heat: 0, directory }
}

fn place_all(
    index: &mut Index,
    found: &Checkpoint<'_>,
    tops: &Tops,
    progress: &mut dyn FnMut(&str, u64),
) -> Result<()> {
    let top = |part: &TenantPart| {
        let top = tops.iter().find(|(_, home)| home.tenant == part.tenant);
        top.ok_or_else(|| unusable("it names an unknown tenant"))
    };
    let found_tops = found.tenants.iter().map(top).collect::<Result<Vec<_>>>()?;
    let mut dirs: Vec<NodeId> = found_tops.iter().map(|(node, _)| *node).collect();
    dirs.extend(found_tops.iter().map(|(_, home)| index.tenants[home.number as usize].unspelled));
    index.reserve(found.entries as usize);
    for (entry, count) in found.entries().zip(1..) {
        let entry = entry?;
        let parent = dirs.get(entry.parent as usize).copied();
        let parent = parent.ok_or_else(|| unusable("an entry of it is in no directory"))?;
        if index.entry(parent.slot(), entry.name).is_some() {
            return Err(unusable("it has a name twice"));
        }
        let moment = |(sec, nsec): Moment| Timespec { sec, nsec };
        let dir = entry.directory.map(|d| {
            let [atime, mtime, ctime] = d.times.map(moment);
            Directory::new(DirAttr { mode: d.mode, uid: d.uid, gid: d.gid, atime, mtime, ctime }, d.recorded)
        });
        let is_dir = dir.is_some();
        let what = Recovered {
            kind: entry.kind,
            pinned: entry.pinned,
            unverified: false,
            attached: false,
            blocks: entry.blocks,
            heat: Heat::from_byte(entry.heat),
        };
        let node = link(index, parent, entry.name, &what, dir)?;
        if is_dir {
            dirs.push(node);
        }
        if count % TOLD_EVERY == 0 {
            progress("records", count);
        }
    }
    for part in &found.tenants {
        let here = index.tenants.iter().find(|t| t.home.tenant == part.tenant).map(|t| t.usage);
        if here.is_none_or(|u| (u.keys, u.bytes) != (part.keys, part.bytes)) {
            return Err(unusable("its sums are wrong"));
        }
    }
    Ok(())
}

/// Takes everything below the tenants out of the index again.
fn take_all_out(index: &mut Index) -> Result<()> {
    // Nothing has been freed yet, so children have higher slots than their directories.
    let stays = |s: &Slot| index.is_tenant_dir(*s) || index.is_unspelled(*s);
    let mut slots: Vec<Slot> = index.linked_slots().filter(|s| !stays(s)).collect();
    slots.reverse();
    let tops: Vec<(NodeId, DirAttr, bool)> = {
        let tenants = index.children(ROOT, usize::MAX).into_iter();
        tenants.filter_map(|t| index.dir(t).ok().map(|d| (t, d.attr, d.dirty))).collect()
    };
    for slot in slots {
        index.unlink(index.id_of(slot), Timespec::default())?;
    }
    for (top, attr, dirty) in tops {
        let dir = index.dir_mut(top)?;
        (dir.attr, dir.dirty) = (attr, dirty);
    }
    Ok(())
}
