//! Changing an existing record in place: content, length, attributes, pin.
//!
//! The record is flagged as being edited before the first such handle exists, so that a crash leaves a record whose
//! length is taken from the file; flag and length are settled when the last writer is gone.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use super::Store;
use super::content::Summed;
use super::evict::Opener;
use super::index::{NodeId, State};
use super::legacy::Value;
use super::object::{Found, Place, absent};
use super::tenants::{Home, dir_attr};
use super::writer::Owner;
use crate::error::{Error, Kind, Result};
use crate::format::record::Record;
use crate::key::RecordKind;
use crate::os::{self, Attr, RenameHow, SetTime};

/// Changes of attributes; `None` leaves one as it is.
#[derive(Debug, Clone, Copy)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub atime: SetTime,
    /// Last change of content.
    pub mtime: SetTime,
}

impl Store {
    /// The home and place of a linked node below a tenant directory.
    pub(super) fn place_of(&self, id: NodeId) -> Result<(Arc<Home>, Place)> {
        let index = self.index.lock();
        let node = index.linked(id)?;
        let home = Arc::clone(&index.tenant_of(id)?.home);
        let key = index.key_of(id.slot())?;
        Ok((Arc::clone(&home), Place::new(&home, key, node.kind)))
    }

    /// The home and place of a linked node with its name locked: neither the name nor its file moves meanwhile.
    /// `None` when the node is gone.
    pub(super) fn lock_place(&self, id: NodeId) -> Option<(Arc<Home>, Place, MutexGuard<'_, ()>)> {
        loop {
            let (home, place) = self.place_of(id).ok()?;
            let lock = self.keys.lock(&place);
            let index = self.index.lock();
            index.linked(id).ok()?;
            // A rename that was faster took the file to another name.
            if index.key_of(id.slot()).is_ok_and(|k| k == place.key) {
                return Some((home, place, lock));
            }
        }
    }

    /// Opens a value for reading: validated, and counted as a touch. `None` when the key is gone, or its time is over.
    pub fn open_value(&self, id: NodeId, opener: Option<Opener>) -> Result<Option<Value>> {
        self.verify_first(id)?;
        let Some((home, place, _key)) = self.lock_place(id) else { return Ok(None) };
        let opened = self.open_kept(&home, &place, id)?;
        if let Some(Value { file, attr, span: None }) = &opened
            && self.is_over(id, file, attr)?
        {
            return Ok(None);
        }
        if let Some(value) = &opened {
            self.index.lock().opened(id, opener, Some(value.attr.size_bytes));
            self.counters.hits.fetch_add(1, Ordering::Relaxed);
        }
        Ok(opened)
    }

    /// Opens the record of a linked node; a key whose record is gone or invalid leaves the index: it is a miss.
    pub(super) fn open_or_forget(
        &self,
        home: &Home,
        place: &Place,
        id: NodeId,
        write: bool,
    ) -> Result<Option<(File, Attr)>> {
        match self.open_record(home, place, write)? {
            Found::Record(file, attr, _) => return Ok(Some((file, attr))),
            Found::Invalid(why) => self.quarantine(home, place.digest, why)?,
            Found::Absent => {
                log::warn!("the record of {} vanished from the store; it is a miss now", place.key)
            }
            Found::OtherKey => {}
        }
        self.forget_linked(id);
        Ok(None)
    }

    /// A key that has no record any more leaves the index, and whoever caches it is told.
    pub(super) fn forget_linked(&self, id: NodeId) {
        let gone = {
            let mut index = self.index.lock();
            let gone = index.linked(id).ok().map(|n| (n.parent, n.name.clone()));
            gone.map(|(parent, name)| (index.id_of(parent), name, index.unlink(id, os::Timespec::now())))
        };
        if let Some((parent, name, _)) = gone {
            self.tell_gone(parent, &name, id);
        }
    }

    /// Begins editing a value in place; `None` when the key is gone. Ends with [`Store::end_edit`].
    pub fn begin_edit(&self, id: NodeId) -> Result<Option<(Arc<File>, Attr)>> {
        self.verify_first(id)?;
        self.migrate(id)?;
        let Ok((home, _)) = self.place_of(id) else { return Ok(None) };
        let _lease = home.fence.enter(home.epoch)?;
        let Some((_, place, _key)) = self.lock_place(id) else { return Ok(None) };
        match self.open_record(&home, &place, true)? {
            Found::Record(file, attr, _) if self.is_over(id, &file, &attr)? => Ok(None),
            Found::Record(file, attr, mut record) => {
                self.edits.begin(id);
                if !record.editing {
                    record.editing = true;
                    record.checksum = None;
                    record.key = place.key.clone();
                    self.write_record(&file, &record)?;
                }
                {
                    let mut index = self.index.lock();
                    index.add_writers(id, 1)?;
                    index.opened(id, None, None);
                }
                let file = Arc::new(file);
                self.watch_edited(id, &file);
                Ok(Some((file, attr)))
            }
            Found::Invalid(why) => {
                self.quarantine(&home, place.digest, why)?;
                self.forget_linked(id);
                Ok(None)
            }
            Found::Absent | Found::OtherKey => {
                self.forget_linked(id);
                Ok(None)
            }
        }
    }

    /// One in-place writer fewer; the last one settles length, checksum and usage. An orphan has nothing to settle.
    pub fn end_edit(&self, id: NodeId, file: &File) -> Result<()> {
        self.end_edit_with(id, file, None)
    }

    /// The same, with a checksum where one was made as the bytes passed.
    pub(super) fn end_edit_with(&self, id: NodeId, file: &File, passed: Option<Summed>) -> Result<()> {
        self.forget_edited(id);
        let (left, linked) = {
            let mut index = self.index.lock();
            let linked = index.linked(id).is_ok();
            (index.add_writers(id, -1)?, linked)
        };
        if left > 0 || !linked {
            return Ok(());
        }
        if self.evict_overgrown(id, os::stat(file)?.blocks) {
            return Ok(());
        }
        let settled = self.settle(id, file, passed);
        if settled.is_err() {
            self.doubted.store(true, Ordering::Relaxed);
        }
        settled
    }

    /// Writes the length and checksum that a record has now, and takes its editing flag away.
    fn settle(&self, id: NodeId, file: &File, passed: Option<Summed>) -> Result<()> {
        // Read without the lock, or whoever looks the key up would wait as long.
        let sum = passed.filter(|s| s.edits == self.edits.of(id)).or_else(|| self.sum_unlocked(id, file));
        let Some((_home, place, _key)) = self.lock_place(id) else { return Ok(()) };
        {
            let index = self.index.lock();
            // Another editor came meanwhile: its end settles the record.
            if index.get(id)?.writers > 0 {
                return Ok(());
            }
        }
        let packed =
            os::xattr_get(file, crate::format::record::XATTR, crate::format::record::MAX_XATTR_BYTES + 64)?;
        let Some(packed) = packed else { return Err(absent(&place.key)) };
        let mut record = crate::format::record::Record::decode(&packed)?;
        let attr = os::stat(file)?;
        if record.editing || record.payload_bytes != attr.size_bytes {
            record.editing = false;
            record.payload_bytes = attr.size_bytes;
            record.checksum = match sum {
                Some(sum) if self.still_holds(id, sum, attr.size_bytes) => Some(sum.value),
                // It was edited while it was read.
                Some(_) => self.sum_unlocked(id, file).map(|s| s.value),
                None => None,
            };
            if self.durable() {
                os::sync_file(file)?;
            }
            self.write_record(file, &record)?;
        }
        self.recount(id, file)?;
        self.note_change(id, file)?;
        if self.over_high(&self.index.lock()) {
            self.wake_keeper();
        }
        Ok(())
    }

    /// Sets the length of a linked value that nobody has open for writing.
    pub fn truncate(&self, id: NodeId, size_bytes: u64) -> Result<()> {
        let (file, _) =
            self.begin_edit(id)?.ok_or_else(|| Error::new(Kind::NotFound, "no such key any more"))?;
        let done = os::truncate(&file, size_bytes);
        self.end_edit(id, &file)?;
        done
    }

    /// Changes attributes of a linked node.
    pub fn set_attr(&self, id: NodeId, set: &SetAttr) -> Result<()> {
        let is_dir = self.index.lock().linked(id)?.dir.is_some();
        if is_dir {
            return self.set_dir_attr(id, set);
        }
        self.migrate(id)?;
        let (home, place) = self.place_of(id)?;
        let _lease = home.fence.enter(home.epoch)?;
        let (_, place, _key) = self.lock_place(id).ok_or_else(|| absent(&place.key))?;
        let opened = self.open_or_forget(&home, &place, id, false)?;
        let (file, _) = opened.ok_or_else(|| absent(&place.key))?;
        apply(&file, set)?;
        if set.mtime == SetTime::Keep { Ok(()) } else { self.note_change(id, &file) }
    }

    fn set_dir_attr(&self, id: NodeId, set: &SetAttr) -> Result<()> {
        let after = if id == super::index::ROOT {
            apply(&self.tenants_dir, set)?;
            self.tenants_dir.attr()?
        } else if self.index.lock().is_tenant_dir(id.slot()) {
            let home = Arc::clone(&self.index.lock().tenant_of(id)?.home);
            apply(&home.top, set)?;
            home.top.attr()?
        } else {
            let file = self.directory_record(id)?;
            apply(&file, set)?;
            os::stat(&file)?
        };
        let mut index = self.index.lock();
        let dir = index.dir_mut(id)?;
        let mut attr = dir_attr(&after);
        // The disk's times are behind those in memory, unless they were set just now.
        if set.atime == SetTime::Keep {
            attr.atime = dir.attr.atime;
        }
        if set.mtime == SetTime::Keep {
            attr.mtime = dir.attr.mtime;
        }
        dir.attr = attr;
        Ok(())
    }

    /// The record file of a directory; an implied directory gets one.
    pub(super) fn directory_record(&self, id: NodeId) -> Result<File> {
        let (home, place) = self.place_of(id)?;
        let _lease = home.fence.enter(home.epoch)?;
        let (_, place, _key) = self.lock_place(id).ok_or_else(|| absent(&place.key))?;
        if let Found::Record(file, _, _) = self.open_record(&home, &place, false)? {
            return Ok(file);
        }
        let attr = self.index.lock().dir(id)?.attr;
        let name = format!("{}.{}", place.digest, self.next_serial());
        let file = self.staging.create_file(&name, attr.mode)?;
        self.own(&file, attr.uid, attr.gid)?;
        let record = crate::format::record::Record {
            kind: RecordKind::Directory,
            editing: false,
            pinned: false,
            epoch: home.epoch,
            payload_bytes: 0,
            checksum: None,
            tenant: home.tenant.clone(),
            key: place.key.clone(),
            origin: None,
        };
        self.write_record(&file, &record)?;
        let shard = self.ensure_shard(&home, place.digest)?;
        if self.durable() {
            os::sync_file(&file)?;
        }
        self.staging.rename(&name, &shard, place.digest.to_string(), RenameHow::Replace)?;
        if self.durable() {
            shard.sync()?;
        }
        let blocks = os::stat(&file)?.blocks;
        let mut index = self.index.lock();
        index.set_blocks(id, blocks)?;
        index.dir_mut(id)?.recorded = true;
        Ok(file)
    }

    /// The file that keeps a linked node's attributes and user attributes; `None` for the root and tenant directories.
    pub fn attribute_file(&self, id: NodeId) -> Result<Option<File>> {
        {
            let index = self.index.lock();
            if id == super::index::ROOT || index.is_tenant_dir(id.slot()) {
                return Ok(None);
            }
            if index.linked(id)?.dir.is_some() {
                drop(index);
                return self.directory_record(id).map(Some);
            }
        }
        let gone = || Error::new(Kind::NotFound, "no such key any more");
        let (home, place, _key) = self.lock_place(id).ok_or_else(gone)?;
        let opened = self.open_kept(&home, &place, id)?;
        Ok(Some(opened.ok_or_else(|| absent(&place.key))?.file))
    }

    /// Pins or unpins a linked value, durably.
    pub fn set_pinned(&self, id: NodeId, pinned: bool) -> Result<()> {
        self.change_value(id, "only values are pinned, not directories", |file, mut record| {
            record.pinned = pinned;
            self.write_record(file, &record)?;
            {
                let mut index = self.index.lock();
                if index.linked(id).is_ok() {
                    index.set_pinned(id, pinned)?;
                }
            }
            // What is pinned lives for ever.
            self.note_change(id, file)
        })
    }

    /// Changes what the record of a linked value says of it, admitted and under the key's lock; a directory is refused
    /// with this sentence.
    pub(super) fn change_value<T>(
        &self,
        id: NodeId,
        refusal: &'static str,
        change: impl FnOnce(&File, Record) -> Result<T>,
    ) -> Result<T> {
        self.migrate(id)?;
        let (home, place) = self.place_of(id)?;
        if place.kind == RecordKind::Directory {
            return Err(Error::new(Kind::IsDirectory, refusal));
        }
        let _lease = home.fence.enter(home.epoch)?;
        let (_, place, _key) = self.lock_place(id).ok_or_else(|| absent(&place.key))?;
        match self.open_record(&home, &place, false)? {
            Found::Record(file, _, record) => change(&file, record),
            _ => Err(absent(&place.key)),
        }
    }

    /// Whether a linked node is pinned.
    pub fn is_pinned(&self, id: NodeId) -> bool {
        self.index.lock().get(id).is_ok_and(|n| n.pinned && n.state == State::Linked)
    }
}

/// Applies attribute changes to an open file or directory. Owner first: changing it drops set-id bits.
pub fn apply(fd: impl std::os::fd::AsFd, set: &SetAttr) -> Result<()> {
    if set.uid.is_some() || set.gid.is_some() {
        os::chown(&fd, set.uid, set.gid)?;
    }
    if let Some(mode) = set.mode {
        os::chmod(&fd, mode)?;
    }
    if set.atime != SetTime::Keep || set.mtime != SetTime::Keep {
        os::set_times(&fd, set.atime, set.mtime)?;
    }
    Ok(())
}

impl From<&Attr> for Owner {
    fn from(a: &Attr) -> Self {
        Owner { mode: a.mode & 0o7777, uid: a.uid, gid: a.gid }
    }
}
