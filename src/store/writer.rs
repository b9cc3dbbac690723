//! Staging and publication: a value is written in `.staging` and appears by rename, whole.
//!
//! Steps of a publication, in order: lease (same epoch), write the metadata, reserve the whole size (the metadata may
//! take a block), sync (with `--durability fsync`), rename into the shard, link in the index, sync the shard. Until the
//! rename nothing that exists is touched; after it nothing can fail but the sync. What a legacy directory still has of
//! the key is retired last.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Store;
use super::content::{self, Passing, Summed};
use super::evict::Opener;
use super::fate::Fate;
use super::index::{Directory, NodeId};
use super::object::Place;
use super::room::Needs;
use super::tenants::{Home, dir_attr};
use crate::error::{Error, Kind, Result};
use crate::format::record::Record;
use crate::key::{Digest, Epoch, Key, MAX_KEY_BYTES, RecordKind};
use crate::os::{self, Timespec};

/// Owner and permission bits of something new.
#[derive(Debug, Clone, Copy)]
pub struct Owner {
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Staged,
    Published,
    Discarded,
}

/// A value being written. Dropped before publication, it leaves nothing behind.
#[derive(Debug)]
pub struct Staged {
    file: Arc<File>,
    name: String,
    home: Arc<Home>,
    node: NodeId,
    kind: RecordKind,
    /// The epoch that its writer was told, where it named one.
    expected: Option<Epoch>,
    progress: Progress,
    /// Set with `user.fencefs.pin` before publication.
    pub pinned: bool,
    store: Arc<Store>,
    /// Whose run it belongs to, in the eviction order.
    pub opener: Option<Opener>,
    fate: Arc<Fate>,
    /// Its checksum in the making, where it is to have one.
    passing: Option<Arc<Passing>>,
    /// Edits of the node before there was any.
    edits: u64,
}

impl Staged {
    /// The open file: written in staging first, the canonical record after publication.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// The node that the value will be linked as.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Its checksum in the making, where it is to have one: told of every change of the file.
    pub fn passing(&self) -> Option<&Arc<Passing>> {
        self.passing.as_ref()
    }

    fn passed(&self) -> Option<Summed> {
        let size_bytes = os::stat(&*self.file).ok()?.size_bytes;
        let value = self.passing.as_ref()?.sum(size_bytes)?;
        Some(Summed { value, size_bytes, edits: self.edits })
    }

    /// Whether it has been published.
    pub fn is_published(&self) -> bool {
        self.progress == Progress::Published
    }

    /// Whether it can still be published.
    pub fn is_staged(&self) -> bool {
        self.progress == Progress::Staged
    }

    /// The epoch that the write was admitted under.
    pub fn epoch(&self) -> Epoch {
        self.expected.unwrap_or(self.home.epoch)
    }

    /// Publication is to happen under this epoch, or not at all.
    pub fn expect_epoch(&mut self, epoch: Epoch) {
        self.expected = Some(epoch);
    }

    /// The tenant's home that the write was admitted to.
    pub fn home(&self) -> &Arc<Home> {
        &self.home
    }

    /// [`Kind::Stale`] once the value can never be published, since its generation is gone.
    pub fn admitted(&self) -> Result<()> {
        self.home.fence.admits(self.epoch())?;
        self.home.fence.admits(self.home.epoch)
    }

    /// The value can never be published whole: its close fails with [`Kind::NoSpace`].
    pub fn doom(&self) {
        self.fate.doom();
    }

    /// Whether the value can never be published whole.
    pub fn is_doomed(&self) -> bool {
        self.fate.is_doomed()
    }

    /// Gives the value up.
    pub fn discard(&mut self) {
        if self.progress == Progress::Staged {
            self.progress = Progress::Discarded;
            // Who has it open may go on writing: it is watched until then.
            if let Err(e) = self.store.staging.unlink(&self.name) {
                log::warn!("a value that was given up stays in staging until the next start: {e}");
            }
            self.store.index.lock().abandon(self.node);
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.discard();
        // Until now somebody may have gone on writing.
        if self.progress == Progress::Discarded {
            self.store.forget_staged(&self.name);
        }
    }
}

impl Store {
    /// Begins a value for the entry `name` of `parent`. The node that it will become is pending.
    pub fn stage(
        self: &Arc<Self>,
        parent: NodeId,
        name: &[u8],
        kind: RecordKind,
        owner: Owner,
    ) -> Result<Staged> {
        let home = {
            let index = self.index.lock();
            index.dir(parent)?;
            if index.key_bytes(parent.slot(), name) > MAX_KEY_BYTES {
                return Err(Error::new(
                    Kind::NameTooLong,
                    format!("the key is longer than {MAX_KEY_BYTES} bytes"),
                ));
            }
            Arc::clone(&index.tenant_of(parent)?.home)
        };
        // Through the creation, so that a removal finds every file that it must give up.
        let _lease = home.fence.enter(home.epoch)?;
        let n = self.next_serial();
        let staged_name = format!("{}.{n}", Digest::of(&home.tenant, name, kind));
        step!("stage.create");
        let file = self.with_room(|| self.staging.create_file(&staged_name, owner.mode & 0o7777))?;
        let made = (|| {
            self.own(&file, owner.uid, owner.gid)?;
            // The owner change drops set-id bits, and the daemon's umask may have taken others.
            if owner.mode & 0o7000 != 0 { os::chmod(&file, owner.mode) } else { Ok(()) }
        })();
        if let Err(e) = made {
            self.staging.unlink(&staged_name)?;
            return Err(e);
        }
        let dir = match kind {
            RecordKind::Directory => Some(Directory::new(dir_attr(&os::stat(&file)?), true)),
            RecordKind::File | RecordKind::Symlink => None,
        };
        let node = self.index.lock().add_pending(parent, name, home.number, kind, dir);
        let (file, fate) = (Arc::new(file), Arc::new(Fate::default()));
        if kind == RecordKind::File {
            self.watch_staged(&home, &staged_name, &file, &fate);
        }
        Ok(Staged {
            file,
            name: staged_name,
            home,
            node,
            kind,
            expected: None,
            progress: Progress::Staged,
            pinned: false,
            opener: None,
            store: Arc::clone(self),
            fate,
            passing: content::passing(self).filter(|_| kind == RecordKind::File),
            edits: self.edits.of(node),
        })
    }

    /// Makes a staged value the value of its key; the node that it replaced, if any. On an error nothing has changed
    /// for readers, and the value is still staged.
    ///
    /// With `still_open` the writer may go on: the record is flagged as being edited, and the caller ends that with
    /// [`Store::end_edit`].
    pub fn publish(&self, staged: &mut Staged, still_open: bool) -> Result<Option<NodeId>> {
        if staged.progress != Progress::Staged {
            return Ok(None);
        }
        let home = Arc::clone(&staged.home);
        staged.admitted()?;
        let sum = if still_open { None } else { self.sum_of_staged(staged)? };
        let _lease = home.fence.commit(home.epoch)?;
        let (key, old) = self.standing(staged)?;
        let _transaction = self.transaction(old);
        let place = Place::new(&home, key, staged.kind);
        let Some(claim) = staged.fate.claim() else {
            return Err(self.no_space("the value is larger than the quota, or missed a write"));
        };
        let payload_bytes = os::stat(&*staged.file)?.size_bytes;
        let record = Record {
            kind: staged.kind,
            editing: still_open,
            pinned: staged.pinned,
            epoch: home.epoch,
            payload_bytes,
            checksum: sum.filter(|s| s.size_bytes == payload_bytes).map(|s| s.value),
            tenant: home.tenant.clone(),
            key: place.key.clone(),
            origin: None,
        };
        step!("publish.metadata");
        self.with_room(|| self.write_record(&staged.file, &record))?;
        let shard = self.with_room(|| self.ensure_shard(&home, place.digest))?;
        let needs = Needs {
            bytes: os::stat(&*staged.file)?.allocated_bytes(),
            key: staged.kind != RecordKind::Directory,
        };
        if staged.kind == RecordKind::File {
            self.keep_free(needs.bytes)?;
        }
        let _reservation = self.reserve(&home, needs, old)?;
        if self.durable() {
            step!("publish.sync");
            os::sync_file(&*staged.file)?;
        }
        let _key = self.keys.lock(&place);
        // Somebody may have been faster.
        let (_, old) = self.standing(staged)?;
        step!("publish.rename");
        self.put_in_place(&self.staging, &staged.name, (&home, &place, &shard), self.has_record(old))?;
        staged.progress = Progress::Published;
        claim.published();
        if still_open {
            self.watch_edited(staged.node, &staged.file);
        }
        self.forget_staged(&staged.name);
        let linked = self.link_published(staged, &place, payload_bytes, still_open);
        if linked.is_err() {
            // Its directory was removed meanwhile: the value has no place.
            self.index.lock().abandon(staged.node);
            if let Err(e) = self.delete_record(&home, &place) {
                self.doubted.store(true, Ordering::Relaxed);
                return Err(e);
            }
        }
        let replaced = linked?;
        self.counters.publications.fetch_add(1, Ordering::Relaxed);
        self.counters.published_bytes.fetch_add(needs.bytes, Ordering::Relaxed);
        step!("publish.renamed");
        if self.durable() {
            shard.sync()?;
        }
        self.retire(&home, &place.key);
        Ok(replaced)
    }

    /// The checksum of a value whose writers are gone: as it passed, or else read back.
    fn sum_of_staged(&self, staged: &Staged) -> Result<Option<Summed>> {
        if !self.keeps_checksums() || staged.kind == RecordKind::Directory {
            return Ok(None);
        }
        if let Some(sum) = staged.passed() {
            return Ok(Some(sum));
        }
        let (value, size_bytes) = content::read_sum(&staged.file)?;
        Ok(Some(Summed { value, size_bytes, edits: staged.edits }))
    }

    /// The last writer of a published value is gone.
    pub fn end_writing(&self, staged: &Staged) -> Result<()> {
        self.end_edit_with(staged.node, &staged.file, staged.passed())
    }

    /// The key that a staged value will have, and what stands there now; an error where that cannot be replaced.
    fn standing(&self, staged: &Staged) -> Result<(Key, Option<NodeId>)> {
        let index = self.index.lock();
        let node = index.get(staged.node)?;
        let parent = index.parent_of(node);
        index.dir(parent)?;
        let key = index.key_of(staged.node.slot())?;
        let old = index.child(parent, &node.name);
        match (staged.kind, old.map(|old| index.at(old.slot()).kind)) {
            (RecordKind::Directory, Some(_)) => Err(Error::new(Kind::Exists, format!("{key} exists"))),
            (_, Some(RecordKind::Directory)) => {
                Err(Error::new(Kind::IsDirectory, format!("{key} is a directory")))
            }
            _ => Ok((key, old)),
        }
    }

    fn link_published(
        &self,
        staged: &Staged,
        place: &Place,
        payload_bytes: u64,
        still_open: bool,
    ) -> Result<Option<NodeId>> {
        // The metadata may have taken a block; usage counts what is there now.
        let attr = os::stat(&*staged.file)?;
        let (blocks, life) = (attr.blocks, self.life_of(&staged.file, &attr)?);
        let mut index = self.index.lock();
        if index.key_of(staged.node.slot())? != place.key {
            return Err(Error::new(
                Kind::NotFound,
                format!("the directory of {} moved meanwhile", place.key),
            ));
        }
        let replaced = index.join(staged.node, blocks, Timespec::now())?;
        index.published(staged.node, staged.opener, Some(payload_bytes));
        if staged.pinned {
            index.set_pinned(staged.node, true)?;
        }
        if still_open {
            index.add_writers(staged.node, 1)?;
        }
        if place.kind == RecordKind::Directory {
            index.dir_mut(staged.node)?.recorded = true;
        }
        let is_next = life.is_some_and(|life| index.note_life(staged.node, life));
        let over = is_next || self.over_high(&index);
        let parent = index.parent_of(index.at(staged.node.slot()));
        drop(index);
        self.tell_moved(replaced, parent);
        if over {
            self.wake_keeper();
        }
        Ok(replaced)
    }

    /// Moves a staged value to the entry `name` of `parent` before it is published.
    pub fn retarget(&self, staged: &Staged, parent: NodeId, name: &[u8]) -> Result<()> {
        let mut index = self.index.lock();
        index.dir(parent)?;
        if index.tenant_of(parent)?.home.number != staged.home.number {
            return Err(Error::new(Kind::CrossTenant, "a key cannot move to another tenant"));
        }
        if index.key_bytes(parent.slot(), name) > MAX_KEY_BYTES {
            return Err(Error::new(
                Kind::NameTooLong,
                format!("the key is longer than {MAX_KEY_BYTES} bytes"),
            ));
        }
        index.retarget(staged.node, parent, name)
    }

    /// Counts again what a published value occupies, once its writer has closed it: backing filesystems give back
    /// what they allocated ahead.
    pub fn recount(&self, node: NodeId, file: &File) -> Result<()> {
        let blocks = os::stat(file)?.blocks;
        let mut index = self.index.lock();
        if index.linked(node).is_ok_and(|n| n.blocks != blocks) {
            index.set_blocks(node, blocks)?;
        }
        Ok(())
    }
}
