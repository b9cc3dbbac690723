//! The namespace: look up, list, make and remove directories, unlink, rename.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Store;
use super::evict::Opener;
use super::index::{DirAttr, NodeId, ROOT};
use super::object::{Found, Place, absent};
use super::tenants::Home;
use super::writer::Owner;
use crate::error::{Error, Kind, Result};
use crate::format::record::{MAX_XATTR_BYTES, Record};
use crate::key::{Key, MAX_KEY_BYTES, RecordKind};
use crate::os::{self, Attr, RenameHow, Timespec};

/// Attributes of a node.
#[derive(Debug, Clone, Copy)]
pub struct NodeAttr {
    /// What it is.
    pub kind: RecordKind,
    /// Attributes; of a symlink, the size is its target's length.
    pub attr: Attr,
    /// Links: 1, and for directories 2 and one a subdirectory.
    pub links: u32,
}

/// Which key a node is.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Owner.
    pub tenant: crate::key::Tenant,
    /// Key.
    pub key: Key,
    /// Epoch of the record.
    pub epoch: crate::key::Epoch,
    /// Name of the record.
    pub digest: crate::key::Digest,
}

impl Store {
    /// The entry `name` of a directory; takes no reference.
    pub fn child(&self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        self.index.lock().child(parent, name)
    }

    /// Attributes of a linked node; `None` when it is gone, or a key whose time is over.
    pub fn attr(&self, id: NodeId) -> Result<Option<NodeAttr>> {
        {
            let index = self.index.lock();
            let Ok(node) = index.linked(id) else { return Ok(None) };
            if let Some(dir) = &node.dir {
                let (attr, links) = (attr_of_dir(&dir.attr, node.blocks), 2 + dir.subdirs);
                return Ok(Some(NodeAttr { kind: RecordKind::Directory, attr, links }));
            }
        }
        let Some((home, place, _key)) = self.lock_place(id) else { return Ok(None) };
        let (file, attr) = match home.dir.open_file(place.path(), false) {
            _ if self.is_attached(id) => match self.open_kept(&home, &place, id)? {
                Some(value) => (None, value.attr),
                None => return Ok(None),
            },
            Ok(Some(file)) => {
                let attr = os::stat(&file)?;
                (Some(file), attr)
            }
            // Gone, or something that is no file: judged as any open judges it.
            _ => match self.open_or_forget(&home, &place, id, false)? {
                Some((file, attr)) => (Some(file), attr),
                None => return Ok(None),
            },
        };
        if let Some(file) = file
            && self.is_over(id, &file, &attr)?
        {
            return Ok(None);
        }
        let mut index = self.index.lock();
        match index.linked(id) {
            Ok(node) if node.blocks != attr.blocks => index.set_blocks(id, attr.blocks)?,
            Ok(_) => {}
            Err(_) => return Ok(None),
        }
        Ok(Some(NodeAttr { kind: place.kind, attr, links: 1 }))
    }

    /// Counts a look-up of a key that does not exist.
    pub fn count_miss(&self) {
        self.counters.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// Where a linked node stands: its directory, and its name there.
    pub fn place(&self, id: NodeId) -> Result<(NodeId, Box<[u8]>)> {
        let index = self.index.lock();
        let node = index.linked(id)?;
        Ok((index.parent_of(node), node.name.clone()))
    }

    /// Gives a linked value another node: whoever refers to the old one keeps it, as one whose name is gone.
    pub fn rehome(&self, id: NodeId) -> Result<NodeId> {
        self.index.lock().rehome(id, Timespec::now())
    }

    /// What stands now where a node lost its name: the value that replaced it.
    pub fn successor(&self, id: NodeId) -> Option<NodeId> {
        let index = self.index.lock();
        let node = index.get(id).ok().filter(|n| n.state == super::index::State::Orphan)?;
        index.child(index.parent_of(node), &node.name)
    }

    /// Where a node stands, or stood when it lost its name.
    pub fn last_place(&self, id: NodeId) -> Result<(NodeId, Box<[u8]>)> {
        let index = self.index.lock();
        let node = index.get(id)?;
        Ok((index.parent_of(node), node.name.clone()))
    }

    /// Whether any record of the store may have an ACL: without one, nobody need look.
    pub fn has_acls(&self) -> bool {
        self.acls.load(Ordering::Relaxed)
    }

    /// From now on records of the store may have ACLs. Kept on disk, so that a restart knows.
    pub fn note_acls(&self) {
        if !self.acls.swap(true, Ordering::Relaxed)
            && let Err(e) = os::xattr_set(&self.data, super::ACLS_XATTR, b"1", os::XattrMode::Set)
        {
            log::warn!("ACLs are in force until the next start only: {e}");
        }
    }

    /// Whether a node is there still: with its name, or for whoever refers to it.
    pub fn exists(&self, id: NodeId) -> bool {
        self.index.lock().get(id).is_ok()
    }

    /// Keeps an empty value that is open out of eviction's reach, until as many calls of [`Store::let_go`]; `false` where it
    /// has lost its name.
    pub fn hold(&self, id: NodeId) -> bool {
        self.index.lock().hold(id)
    }

    /// Ends one [`Store::hold`].
    pub fn let_go(&self, id: NodeId) {
        self.index.lock().let_go(id);
    }

    /// Whether a node still has its name.
    pub fn is_named(&self, id: NodeId) -> bool {
        self.index
            .lock()
            .get(id)
            .is_ok_and(|n| matches!(n.state, super::index::State::Linked | super::index::State::Pending))
    }

    /// Whether a node is a directory, or was one.
    pub fn is_directory(&self, id: NodeId) -> bool {
        self.index.lock().get(id).is_ok_and(|n| n.kind == RecordKind::Directory)
    }

    /// Whether this is the directory of a tenant.
    pub fn is_tenant_dir(&self, id: NodeId) -> bool {
        let index = self.index.lock();
        index.get(id).is_ok() && index.is_tenant_dir(id.slot())
    }

    /// The tenant and key of a node, and the epoch of its home.
    pub fn identity(&self, id: NodeId) -> Result<Identity> {
        let index = self.index.lock();
        let kind = index.get(id)?.kind;
        let home = &index.tenant_of(id)?.home;
        let key = index.key_of(id.slot())?;
        let digest = crate::key::Digest::of(&home.tenant, key.as_bytes(), kind);
        Ok(Identity { tenant: home.tenant.clone(), key, epoch: home.epoch, digest })
    }

    /// Counts a reference to a node, to be given back with [`Store::release`].
    pub fn retain(&self, id: NodeId) -> Result<()> {
        self.index.lock().retain(id)
    }

    /// Gives references back.
    pub fn release(&self, id: NodeId, n: u64) {
        self.index.lock().release(id, n);
    }

    /// Whether a node stands in this directory.
    pub fn stands_in(&self, id: NodeId, dir: NodeId) -> bool {
        let index = self.index.lock();
        index.get(id).is_ok_and(|node| index.parent_of(node) == dir)
    }

    /// A linked node's parent directory.
    pub fn parent(&self, id: NodeId) -> Result<NodeId> {
        let index = self.index.lock();
        let parent = index.get(id)?.parent;
        Ok(index.id_of(parent))
    }

    /// Makes a directory below a tenant.
    pub fn make_dir(self: &Arc<Self>, parent: NodeId, name: &[u8], owner: Owner) -> Result<NodeId> {
        if parent == ROOT {
            return self.make_tenant(name, owner.mode, owner.uid, owner.gid);
        }
        if self.child(parent, name).is_some() {
            return Err(Error::new(Kind::Exists, "the name is taken"));
        }
        let mut staged = self.stage(parent, name, RecordKind::Directory, owner)?;
        self.publish(&mut staged, false)?;
        Ok(staged.node())
    }

    /// Makes a symbolic link.
    pub fn make_symlink(
        self: &Arc<Self>,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
        owner: Owner,
    ) -> Result<NodeId> {
        if self.child(parent, name).is_some() {
            return Err(Error::new(Kind::Exists, "the name is taken"));
        }
        let mut staged = self.stage(parent, name, RecordKind::Symlink, owner)?;
        let written = std::io::Write::write_all(&mut &**staged.file(), target);
        written.map_err(|e| Error::os("cannot write a symbolic link", e))?;
        self.publish(&mut staged, false)?;
        Ok(staged.node())
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, id: NodeId) -> Result<Vec<u8>> {
        let link = self
            .open_value(id, None)?
            .ok_or_else(|| Error::new(Kind::NotFound, "no such symbolic link any more"))?;
        let mut target = Vec::with_capacity(link.attr.size_bytes as usize);
        std::io::Read::read_to_end(&mut &link.file, &mut target)
            .map_err(|e| Error::os("cannot read a symbolic link", e))?;
        Ok(target)
    }

    /// Removes a value or symlink.
    pub fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        let id = self.child(parent, name).ok_or_else(|| Error::new(Kind::NotFound, "no such key"))?;
        let (home, place) = self.place_of(id)?;
        if place.kind == RecordKind::Directory {
            return Err(Error::new(Kind::IsDirectory, format!("{} is a directory", place.key)));
        }
        let _lease = home.fence.enter(home.epoch)?;
        let _key = self.keys.lock(&place);
        if self.child(parent, name) != Some(id) {
            return Err(absent(&place.key));
        }
        step!("unlink.record");
        self.delete_copies(id, &home, &place)?;
        self.index.lock().unlink(id, Timespec::now())
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        if parent == ROOT {
            return self.remove_tenant(name);
        }
        let id = self.child(parent, name).ok_or_else(|| Error::new(Kind::NotFound, "no such directory"))?;
        let (home, place) = self.place_of(id)?;
        let _lease = home.fence.enter(home.epoch)?;
        let _key = self.keys.lock(&place);
        let (attr, blocks) = {
            // From here on nothing can be linked into it: the index has no such directory any more.
            let mut index = self.index.lock();
            if index.child(parent, name) != Some(id) {
                return Err(absent(&place.key));
            }
            let was = (index.dir(id)?.attr, index.linked(id)?.blocks);
            if !index.dir(id)?.children.is_empty() {
                return Err(Error::new(Kind::NotEmpty, format!("{} is not empty", place.key)));
            }
            index.unlink(id, Timespec::now())?;
            was
        };
        self.delete_record(&home, &place).inspect_err(|_| {
            let mut index = self.index.lock();
            let dir = super::index::Directory::new(attr, true);
            let again = index.add_pending(parent, name, home.number, RecordKind::Directory, Some(dir));
            if let Err(e) = index.link(again, blocks, Timespec::now()) {
                log::warn!("{} is back after the next start: {e}", place.key);
            }
        })
    }

    /// Moves a linked node to another name of its tenant; what stood there is replaced atomically and returned.
    /// A directory moves only while it is empty.
    pub fn rename(
        &self,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        how: RenameHow,
    ) -> Result<Option<NodeId>> {
        self.rename_by(from, to, how, None)
    }

    /// The same for a client. To the eviction order it is a publication of the key that it makes.
    pub fn rename_by(
        &self,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        how: RenameHow,
        opener: Option<Opener>,
    ) -> Result<Option<NodeId>> {
        loop {
            let id = self.child(from.0, from.1).ok_or_else(|| Error::new(Kind::NotFound, "no such key"))?;
            let (home, old) = self.place_of(id)?;
            let (target, new) = self.rename_target(&home, id, to, old.kind)?;
            self.migrate(id)?;
            if let Some(target) = target.filter(|_| how == RenameHow::Exchange) {
                self.migrate(target)?;
            }
            let _lease = home.fence.enter(home.epoch)?;
            let _keys = self.keys.lock_two(&old, &new);
            // Somebody was faster at one of the two names: look again.
            if self.child(from.0, from.1) == Some(id) && self.child(to.0, to.1) == target {
                return self.rename_locked(&home, (id, &old), (target, &new), to, (how, opener));
            }
        }
    }

    fn rename_locked(
        &self,
        home: &Home,
        (id, old): (NodeId, &Place),
        (target, new): (Option<NodeId>, &Place),
        to: (NodeId, &[u8]),
        (how, opener): (RenameHow, Option<Opener>),
    ) -> Result<Option<NodeId>> {
        match (target, how) {
            (Some(_), RenameHow::NoReplace) => {
                return Err(Error::new(Kind::Exists, format!("{} exists", new.key)));
            }
            (Some(other), _) if other == id => return Ok(None),
            (None, RenameHow::Exchange) => return Err(absent(&new.key)),
            (Some(other), RenameHow::Exchange) => {
                // A link and a value may change places: each record is of its own kind.
                let theirs = Place { kind: self.index.lock().linked(other)?.kind, ..new.clone() };
                let (a, b, synced) = self.exchange_records(home, (id, old), (other, &theirs))?;
                self.index.lock().exchange(id, other, Timespec::now())?;
                self.recount(id, &a)?;
                self.recount(other, &b)?;
                return synced.map(|()| None);
            }
            _ => {}
        }
        self.retire_first(home, &old.key)?;
        // What fails once the file has moved is told only when the index has followed it.
        let Moved { blocks, payload_bytes, left, synced } =
            self.move_record(home, (id, old), (target, new))?;
        let mut index = self.index.lock();
        if let Some(e) = left {
            index.link_copy(id, to.0, to.1, blocks.unwrap_or(0), Timespec::now())?;
            return Err(e);
        }
        let replaced = index.relink(id, to.0, to.1, Timespec::now())?;
        if let Some(blocks) = blocks {
            index.set_blocks(id, blocks)?;
        }
        index.published(id, opener, payload_bytes);
        drop(index);
        self.tell_moved(replaced, to.0);
        self.counters.renames.fetch_add(1, Ordering::Relaxed);
        synced?;
        self.retire(home, &new.key);
        Ok(replaced)
    }

    fn rename_target(
        &self,
        home: &Home,
        id: NodeId,
        to: (NodeId, &[u8]),
        kind: RecordKind,
    ) -> Result<(Option<NodeId>, Place)> {
        let index = self.index.lock();
        index.dir(to.0)?;
        if to.0 == ROOT || index.tenant_of(to.0)?.home.number != home.number {
            return Err(Error::new(Kind::CrossTenant, "a key cannot move to another tenant"));
        }
        if let Some(dir) = &index.linked(id)?.dir
            && !dir.children.is_empty()
        {
            return Err(Error::new(
                Kind::CrossTenant,
                "a directory with entries cannot be renamed, only copied",
            ));
        }
        if index.key_bytes(to.0.slot(), to.1) > MAX_KEY_BYTES {
            return Err(Error::new(
                Kind::NameTooLong,
                format!("the key is longer than {MAX_KEY_BYTES} bytes"),
            ));
        }
        let target = index.child(to.0, to.1);
        if let Some(target) = target {
            match (&index.at(target.slot()).dir, kind) {
                (Some(dir), RecordKind::Directory) if !dir.children.is_empty() => {
                    return Err(Error::new(Kind::NotEmpty, "the target directory is not empty"));
                }
                (Some(_), RecordKind::Directory) | (None, RecordKind::File | RecordKind::Symlink) => {}
                (Some(_), _) => return Err(Error::new(Kind::IsDirectory, "the target is a directory")),
                (None, _) => return Err(Error::new(Kind::NotDirectory, "the target is no directory")),
            }
        }
        let mut key = index.key_of(to.0.slot())?.as_bytes().to_vec();
        if !key.is_empty() {
            key.push(b'/');
        }
        key.extend_from_slice(to.1);
        Ok((target, Place::new(home, Key::new(key)?, kind)))
    }

    /// Gives a record its new key, then its new name. An implied directory has no record.
    fn move_record(
        &self,
        home: &Home,
        (id, old): (NodeId, &Place),
        (target, new): (Option<NodeId>, &Place),
    ) -> Result<Moved> {
        let (file, mut record) = match self.open_record(home, old, false)? {
            Found::Record(file, _, record) => (file, record),
            Found::Absent if old.kind == RecordKind::Directory => {
                return Ok(Moved { blocks: None, payload_bytes: None, left: None, synced: Ok(()) });
            }
            _ => return Err(absent(&old.key)),
        };
        let from = self.shard(home, old.digest)?.ok_or_else(|| absent(&old.key))?;
        let to = self.ensure_shard(home, new.digest)?;
        (record.key, record.origin, record.epoch) = (new.key.clone(), Some(old.key.clone()), home.epoch);
        if record.encode().is_err_and(|e| e.kind() == Kind::NameTooLong) {
            if self.index.lock().get(id)?.writers > 0 {
                // The copy would not see what the writer still writes.
                return Err(Error::new(
                    Kind::CrossTenant,
                    format!("{} is open for writing, and keys this long are renamed by copying", old.key),
                ));
            }
            return self.copy_record(home, (&file, record), old, (target, new));
        }
        step!("rename.metadata");
        let moved = self.write_record(&file, &record).and_then(|()| {
            step!("rename.move");
            if new.digest == old.digest {
                return Ok(());
            }
            self.put_in_place(&from, &old.digest.to_string(), (home, new, &to), self.has_record(target))
        });
        if let Err(e) = moved {
            // The second key in its metadata may have taken a block.
            self.recount(id, &file)?;
            return Err(e);
        }
        let synced = (|| {
            step!("rename.moved");
            if self.durable() {
                os::sync_file(&file)?;
                to.sync()?;
                from.sync()?;
            }
            Ok(())
        })();
        let payload_bytes = Some(record.payload_bytes);
        Ok(Moved { blocks: Some(os::stat(&file)?.blocks), payload_bytes, left: None, synced })
    }

    /// A rename of keys too long to stand in one record together: by a copy, so that no step loses the value.
    fn copy_record(
        &self,
        home: &Home,
        source: (&File, Record),
        old: &Place,
        (target, new): (Option<NodeId>, &Place),
    ) -> Result<Moved> {
        let (file, mut record) = source;
        record.origin = None;
        debug_assert!(new.key.as_bytes().len() < MAX_XATTR_BYTES);
        let attr = os::stat(file)?;
        let name = format!("{}.{}", new.digest, self.next_serial());
        let copy = self.staging.create_file(&name, attr.mode)?;
        let done = (|| {
            os::truncate(&copy, attr.size_bytes)?;
            let mut at = 0;
            while at < attr.size_bytes {
                match os::copy_range(file, at, &copy, at, (attr.size_bytes - at).min(1 << 30) as usize)? {
                    0 => break,
                    n => at += n as u64,
                }
            }
            for name in os::xattr_list(file)?.iter().filter(|n| n.starts_with("user.")) {
                if let Some(value) = os::xattr_get(file, name, 64 * 1024)? {
                    os::xattr_set(&copy, name, &value, os::XattrMode::Set)?;
                }
            }
            self.write_record(&copy, &record)?;
            os::chown(&copy, Some(attr.uid), Some(attr.gid))?;
            os::chmod(&copy, attr.mode)?;
            os::set_times(&copy, os::SetTime::At(attr.atime), os::SetTime::At(attr.mtime))?;
            if self.durable() {
                os::sync_file(&copy)?;
            }
            let to = self.ensure_shard(home, new.digest)?;
            let known = self.has_record(target) || new.digest == old.digest;
            self.put_in_place(&self.staging, &name, (home, new, &to), known)?;
            Ok(to)
        })();
        let to = match done {
            Ok(to) => to,
            Err(e) => {
                self.staging.unlink(&name)?;
                return Err(e);
            }
        };
        let synced = if self.durable() { to.sync() } else { Ok(()) };
        let left = self.delete_record(home, old).err();
        Ok(Moved {
            blocks: Some(os::stat(&copy)?.blocks),
            payload_bytes: Some(attr.size_bytes),
            left,
            synced,
        })
    }

    /// Exchanges two records; their files, and whether that is durable.
    fn exchange_records(
        &self,
        home: &Home,
        (a_id, a): (NodeId, &Place),
        (b_id, b): (NodeId, &Place),
    ) -> Result<(File, File, Result<()>)> {
        if a.kind == RecordKind::Directory || b.kind == RecordKind::Directory {
            return Err(Error::new(Kind::Invalid, "directories cannot be exchanged"));
        }
        let open = |place: &Place| match self.open_record(home, place, false)? {
            Found::Record(file, _, record) => Ok((file, record)),
            _ => Err(absent(&place.key)),
        };
        let ((a_file, mut a_rec), (b_file, mut b_rec)) = (open(a)?, open(b)?);
        (a_rec.key, a_rec.origin) = (b.key.clone(), Some(a.key.clone()));
        (b_rec.key, b_rec.origin) = (a.key.clone(), Some(b.key.clone()));
        let (a_shard, b_shard) = (self.ensure_shard(home, a.digest)?, self.ensure_shard(home, b.digest)?);
        let exchanged = (|| {
            self.write_record(&a_file, &a_rec)?;
            self.write_record(&b_file, &b_rec)?;
            a_shard.rename(a.digest.to_string(), &b_shard, b.digest.to_string(), RenameHow::Exchange)
        })();
        if let Err(e) = exchanged {
            self.recount(a_id, &a_file)?;
            self.recount(b_id, &b_file)?;
            return Err(e);
        }
        let synced = (|| {
            if self.durable() {
                os::sync_file(&a_file)?;
                os::sync_file(&b_file)?;
                a_shard.sync()?;
                b_shard.sync()?;
            }
            Ok(())
        })();
        Ok((a_file, b_file, synced))
    }
}

/// A record that stands at its new place.
struct Moved {
    /// What it occupies there.
    blocks: Option<u64>,
    /// The length of its value, where it has one.
    payload_bytes: Option<u64>,
    /// It was copied, and why the old one could not be removed.
    left: Option<Error>,
    /// Whether the move is durable, where it must be.
    synced: Result<()>,
}

fn attr_of_dir(dir: &DirAttr, blocks: u64) -> Attr {
    Attr {
        mode: libc::S_IFDIR | (dir.mode & 0o7777),
        uid: dir.uid,
        gid: dir.gid,
        size_bytes: 4096,
        blocks,
        atime: dir.atime,
        mtime: dir.mtime,
        ctime: dir.ctime,
        dev: 0,
        ino: 0,
    }
}
