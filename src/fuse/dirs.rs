//! Names and attributes: look-up, listing, making and removing, rename, stat and its setters.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Generation, INodeNo, RenameFlags, ReplyAttr, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEntry, ReplyStatfs, TimeOrNow,
};

use super::attr::kind_of;
use super::by_key::Named;
use super::files::Caller;
use super::handover::of_an_earlier_daemon;
use super::opens::{OpenNode, Writing};
use super::parked::Change;
use super::requests::errno;
use super::{FORGET, Fs, Inode, REMEMBER, virt};
use crate::config::limits;
use crate::error::{Error, Kind, Result};
use crate::key::RecordKind;
use crate::os::{RenameHow, SetTime, Timespec};
use crate::store::index::FIRST_COOKIE;
use crate::store::{ListEntry, NodeId, SetAttr, edit};

/// A name that was looked up.
pub(super) enum Seen {
    /// The node, its attributes, and how long the kernel may remember them.
    Node(FileAttr, Duration),
    /// Nothing, and how long that may be remembered.
    Absent(Duration),
    /// Nothing yet: somebody's last close of it may be on its way.
    Unsettled,
}

/// Most entries that one listing request gathers.
const LIST_BATCH: usize = 128;

fn absent() -> Error {
    Error::new(Kind::NotFound, "no such key")
}

pub(super) fn answer_entry(reply: ReplyEntry, made: Result<(FileAttr, Duration)>) {
    match made {
        Ok((attr, ttl)) => reply.entry(&ttl, &attr, Generation(0)),
        Err(e) => reply.error(errno(&e)),
    }
}

impl Fs {
    /// LOOKUP.
    pub(super) fn lookup(self: &Arc<Self>, who: Caller, parent: INodeNo, name: &[u8], reply: ReplyEntry) {
        let dir = match self.inode(parent) {
            Inode::Node(id) => id,
            Inode::Virtual(v) if v.is_by_key() => {
                return match self.seen_by_key(who, v, name) {
                    Ok(named) => self.lookup_in(who, named.dir, &named.name, FORGET, reply),
                    Err(e) => reply.error(errno(&e)),
                };
            }
            Inode::Virtual(v) => return self.lookup_virtual(v, name, reply),
        };
        if self.reserves(dir, name) {
            let attr = self.virtual_attr(virt::VirtualIno::directory(self.scope_of(dir)));
            return reply.entry(&FORGET, &attr, Generation(0));
        }
        self.lookup_in(who, dir, name, REMEMBER, reply);
    }

    /// Answers what stands under a name, to be remembered for `most` at most.
    fn lookup_in(self: &Arc<Self>, who: Caller, dir: NodeId, name: &[u8], most: Duration, reply: ReplyEntry) {
        match self.see(who, dir, name) {
            Ok(Seen::Unsettled) => {
                let (fs, name) = (Arc::clone(self), Box::<[u8]>::from(name));
                self.pool.run(move || {
                    fs.opens.wait_settled(dir, &name, limits::SETTLE_WAIT);
                    fs.answer_lookup(fs.see(who, dir, &name), most, reply);
                });
            }
            seen => self.answer_lookup(seen, most, reply),
        }
    }

    fn answer_lookup(&self, seen: Result<Seen>, most: Duration, reply: ReplyEntry) {
        match seen {
            Ok(Seen::Node(attr, ttl)) => reply.entry(&ttl.min(most), &attr, Generation(0)),
            // A negative entry: number 0.
            Ok(Seen::Absent(ttl)) => reply.entry(&ttl.min(most), &negative(), Generation(0)),
            Ok(Seen::Unsettled) => reply.entry(&FORGET, &negative(), Generation(0)),
            Err(e) => reply.error(errno(&e)),
        }
    }

    /// What a thread sees under a name. A node is counted as referred to.
    pub(super) fn see(&self, who: Caller, dir: NodeId, name: &[u8]) -> Result<Seen> {
        let creating = self.opens.creating(dir, name);
        if let Some(open) = creating.iter().rev().find(|o| o.unsettled().is_some_and(|w| w.seen_by(who.tid)))
        {
            self.store.retain(open.node)?;
            let (attr, _) = self.open_attr(open)?;
            return Ok(Seen::Node(attr, FORGET));
        }
        // While somebody creates the name, what others see of it may change with the next close.
        let ttl = if creating.is_empty() { REMEMBER } else { FORGET };
        if let Some(id) = self.store.child(dir, name).filter(|id| !self.store.has_expired(*id)) {
            self.store.retain(id)?;
            // Who takes it away there tells the kernel of that place.
            let ttl = if self.store.stands_in(id, dir) { ttl } else { FORGET };
            match self.attr_of(id, who.tid) {
                Ok((attr, attr_ttl)) => return Ok(Seen::Node(attr, ttl.min(attr_ttl))),
                Err(e) => {
                    self.store.release(id, 1);
                    if !matches!(e.kind(), Kind::NotFound | Kind::Stale) {
                        return Err(e);
                    }
                }
            }
        }
        let settling = |o: &Arc<OpenNode>| {
            o.unsettled().is_some_and(|w| w.flushed_empty.load(std::sync::atomic::Ordering::Acquire))
        };
        if creating.iter().any(settling) {
            return Ok(Seen::Unsettled);
        }
        self.store.count_miss();
        // A key whose time is over is there until the keeper comes: what happens to it until then tells the kernel
        // nothing of an absence.
        Ok(Seen::Absent(if self.store.is_absent(dir, name) { ttl } else { FORGET }))
    }

    /// GETATTR.
    pub(super) fn getattr(self: &Arc<Self>, who: Caller, ino: INodeNo, reply: ReplyAttr) {
        let id = match self.inode(ino) {
            Inode::Node(id) => id,
            Inode::Virtual(v) => return reply.attr(&FORGET, &self.virtual_attr(v)),
        };
        let fs = Arc::clone(self);
        self.once_settled(who, id, move || match fs.attr_of(id, who.tid) {
            Ok((attr, ttl)) => reply.attr(&ttl, &attr),
            Err(e) => reply.error(errno(&fs.overtaken(who, e))),
        });
    }

    /// GETATTR of a file that was opened when an earlier daemon served.
    pub(super) fn getattr_of_open(&self, who: Caller, ino: INodeNo, reply: ReplyAttr) {
        let known = self.known.file(ino.0).ok_or_else(of_an_earlier_daemon);
        match known.and_then(|id| self.attr_of(id, who.tid)) {
            Ok((attr, _)) => reply.attr(&FORGET, &FileAttr { ino, ..attr }),
            Err(e) => reply.error(errno(&e)),
        }
    }

    /// SETATTR: length first, then owner, mode and times.
    pub(super) fn setattr(
        self: &Arc<Self>,
        who: Caller,
        ino: INodeNo,
        fh: Option<FileHandle>,
        size: Option<u64>,
        set: SetAttr,
        reply: ReplyAttr,
    ) {
        let id = match self.inode(ino) {
            Inode::Node(id) => id,
            Inode::Virtual(v) if size.is_some() && v.is_control() => {
                // `> control` truncates first; that means nothing to a stream.
                return reply.attr(&FORGET, &self.virtual_attr(v));
            }
            Inode::Virtual(_) => return reply.error(Errno::EPERM),
        };
        let run = move |fs: &Arc<Fs>, _: &ReplyAttr, []: [&[u8]; 0]| {
            if let Some(size) = size {
                fs.set_size(who, id, fh, size)?;
            }
            fs.set_attributes(who, id, &set)?;
            fs.attr_of(id, who.tid)
        };
        let answer = |_: &Arc<Fs>, reply: ReplyAttr, done: Result<(FileAttr, Duration)>| match done {
            Ok((attr, ttl)) => reply.attr(&ttl, &attr),
            Err(e) => reply.error(errno(&e)),
        };
        // A value that is cut may have to be read: all of it before, or what is left for its checksum.
        let cuts = size.is_some() && (self.store.keeps_checksums() || self.store.verifies_first(id));
        let beside = cuts || self.store.is_attached(id);
        self.change([], Change { waits: true, beside, reply, run, answer });
    }

    fn set_size(&self, who: Caller, id: NodeId, fh: Option<FileHandle>, size: u64) -> Result<()> {
        if let Some(handle) = fh.and_then(|fh| self.opens.handle(fh.0)) {
            handle.admitted()?;
            return match &handle.writing {
                Some(writing) => writing.truncate(size),
                None => crate::os::truncate(&*handle.file, size),
            };
        }
        let replacing = self.opens.replacing(id).into_iter().find(|w| w.opened_by(who.tid));
        if let Some(writing) = replacing.or_else(|| self.opens.node(id)?.unsettled().cloned()) {
            return writing.truncate(size);
        }
        self.refuse_removed(who, id)?;
        match self.own_file(who, id) {
            Some(file) => crate::os::truncate(&*file, size),
            None => self.store.truncate(id, size),
        }
    }

    /// The unpublished file that a thread's process writes through this inode, or an open inode without a name.
    pub(super) fn own_file(&self, who: Caller, id: NodeId) -> Option<Arc<std::fs::File>> {
        if let Some(w) = self.opens.replacing(id).into_iter().find(|w| w.opened_by(who.tid)) {
            return Some(Arc::clone(&w.file));
        }
        let open = self.opens.node(id)?;
        // What was attached is not this mount's to change, not even without its name.
        let own = open.unsettled().is_some() || (!self.store.is_named(id) && open.span.is_none());
        own.then(|| Arc::clone(&open.file))
    }

    /// [`crate::Kind::Stale`] where a removal took what a thread would change through a descriptor: the value that it
    /// writes, or an open inode that has no name any more.
    pub(super) fn refuse_removed(&self, who: Caller, id: NodeId) -> Result<()> {
        if let Some(w) = self.opens.replacing(id).into_iter().find(|w| w.opened_by(who.tid)) {
            return w.home.fence.admits(w.home.epoch);
        }
        match self.opens.node(id) {
            Some(open) if open.unsettled().is_some() || !self.store.is_named(id) => {
                open.home().fence.admits(open.home().epoch)
            }
            _ => Ok(()),
        }
    }

    fn set_attributes(&self, who: Caller, id: NodeId, set: &SetAttr) -> Result<()> {
        let only_times = set.mode.is_none() && set.uid.is_none() && set.gid.is_none();
        if only_times && (set.atime, set.mtime) == (SetTime::Keep, SetTime::Keep) {
            return Ok(());
        }
        self.refuse_removed(who, id)?;
        match self.own_file(who, id) {
            Some(file) => edit::apply(&*file, set)?,
            None => self.store.set_attr(id, set)?,
        }
        if only_times && set.mtime == SetTime::Keep {
            // Some clients mark a key as used by its access time alone.
            self.store.touch(id, who.opener());
        }
        if let Some(mode) = set.mode {
            self.acl_follows_mode(who, id, mode)?;
        }
        Ok(())
    }

    /// READDIR. The kernel keeps the listing, so it is asked for again only when it changed.
    pub(super) fn readdir(&self, ino: INodeNo, offset: u64, mut reply: ReplyDirectory) {
        let id = match self.inode(ino) {
            Inode::Node(id) => id,
            Inode::Virtual(v) if v.is_by_key() => return self.readdir_by_key(v, offset, reply),
            Inode::Virtual(v) => return self.readdir_virtual(v, offset, reply),
        };
        self.listed.lock().insert(id);
        let done = self.each_entry(id, self.dots(id), offset, |at, ino, kind, name| {
            reply.add(ino, at, kind, OsStr::from_bytes(name))
        });
        match done {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }

    /// Adds a directory's entries behind `offset`, itself and what is above it first, until `add` says that the answer
    /// is full.
    pub(super) fn each_entry(
        &self,
        id: NodeId,
        dots: [INodeNo; 2],
        offset: u64,
        mut add: impl FnMut(u64, INodeNo, FileType, &[u8]) -> bool,
    ) -> Result<()> {
        let mut at = offset;
        for (cookie, ino, name) in [(1, dots[0], b".".as_slice()), (2, dots[1], b"..")] {
            if at < cookie {
                if add(cookie, ino, FileType::Directory, name) {
                    return Ok(());
                }
                at = cookie;
            }
        }
        loop {
            let batch = self.store.list(id, at.max(FIRST_COOKIE - 1), LIST_BATCH)?;
            for ListEntry { cookie, node, kind, name, expired } in batch.iter() {
                if !expired && add(cookie, self.ino(node), kind_of(kind), name) {
                    return Ok(());
                }
                at = cookie;
            }
            if batch.len() < LIST_BATCH {
                return Ok(());
            }
        }
    }

    /// A directory, and the one above it.
    fn dots(&self, id: NodeId) -> [INodeNo; 2] {
        let above = if id == self.top { id } else { self.store.parent(id).unwrap_or(self.top) };
        [self.ino(id), self.ino(above)]
    }

    /// READDIRPLUS: each entry is looked up as it is listed.
    pub(super) fn readdirplus(&self, who: Caller, ino: INodeNo, offset: u64, mut reply: ReplyDirectoryPlus) {
        let id = match self.inode(ino) {
            Inode::Node(id) => id,
            Inode::Virtual(v) if v.is_by_key() => return self.readdirplus_by_key(who, v, offset, reply),
            Inode::Virtual(v) => return self.readdirplus_virtual(v, offset, reply),
        };
        self.listed.lock().insert(id);
        let done = self.each_entry(id, self.dots(id), offset, |at, ino, kind, name| {
            self.add_seen(
                &mut reply,
                (at, name),
                bare(at, ino, kind).unwrap_or_else(|| self.see(who, id, name)),
            )
        });
        match done {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }

    /// Adds an entry that was looked up to a listing; whether the listing is full.
    pub(super) fn add_seen(
        &self,
        reply: &mut ReplyDirectoryPlus,
        (at, name): (u64, &[u8]),
        seen: Result<Seen>,
    ) -> bool {
        // If it vanished, or cannot be read, the listing goes on without it.
        let Ok(Seen::Node(attr, ttl)) = seen else { return false };
        let full = reply.add(attr.ino, at, OsStr::from_bytes(name), &ttl, &attr, Generation(0));
        if full && attr.nlink > 0 {
            // The kernel did not get it: it has no reference to give back.
            self.store.release(NodeId(attr.ino.0), 1);
        }
        full
    }

    /// The entry of something that was made just now, counted as referred to. If a removal was so quick as to take it
    /// already, the kernel is told to come again.
    fn made(&self, who: Caller, dir: NodeId, id: NodeId) -> Result<(FileAttr, Duration)> {
        self.listing_changed(dir);
        let taken = |_| Error::new(Kind::Stale, "it was removed as soon as it was made");
        self.store.retain(id).map_err(taken)?;
        self.attr_of(id, who.tid).inspect_err(|_| self.store.release(id, 1)).map_err(taken)
    }

    /// MKDIR.
    pub(super) fn mkdir(
        &self,
        who: Caller,
        parent: INodeNo,
        name: &[u8],
        mode: u32,
        umask: u32,
    ) -> Result<(FileAttr, Duration)> {
        let dir = self.node(parent)?;
        self.unreserved(dir, name)?;
        let owner = self.new_owner(who, dir, mode & 0o7777, umask)?;
        let owner = owner.for_directory();
        self.store.give_way(dir, name)?;
        let id = self.store.make_dir(dir, name, owner.owner)?;
        owner.store_dir_acl(&self.store, id)?;
        self.made(who, dir, id)
    }

    /// MKNOD: an empty value; devices, FIFOs and sockets are no values.
    pub(super) fn mknod(
        &self,
        who: Caller,
        parent: INodeNo,
        name: &[u8],
        mode: u32,
        umask: u32,
    ) -> Result<(FileAttr, Duration)> {
        let dir = self.node(parent)?;
        self.unreserved(dir, name)?;
        if mode & libc::S_IFMT != libc::S_IFREG && mode & libc::S_IFMT != 0 {
            return Err(Error::new(
                Kind::NotPermitted,
                "only values, symbolic links and directories are kept",
            ));
        }
        self.store.give_way(dir, name)?;
        if self.store.child(dir, name).is_some() || !self.opens.creating(dir, name).is_empty() {
            return Err(Error::new(Kind::Exists, "the key exists, or somebody is creating it"));
        }
        let owner = self.new_owner(who, dir, mode & 0o7777, umask)?;
        let mut staged = self.store.stage(dir, name, RecordKind::File, owner.owner)?;
        owner.store_acl(staged.file())?;
        self.store.publish(&mut staged, false)?;
        self.made(who, dir, staged.node())
    }

    /// SYMLINK.
    pub(super) fn symlink(
        &self,
        who: Caller,
        parent: INodeNo,
        name: &[u8],
        target: &[u8],
    ) -> Result<(FileAttr, Duration)> {
        let dir = self.node(parent)?;
        self.unreserved(dir, name)?;
        let owner = self.new_owner(who, dir, 0o777, 0)?;
        self.store.give_way(dir, name)?;
        let id = self.store.make_symlink(dir, name, target, owner.owner)?;
        self.made(who, dir, id)
    }

    /// UNLINK. A value that the caller's process is still writing is given up with its name.
    pub(super) fn unlink(&self, who: Caller, parent: INodeNo, name: &[u8]) -> Result<()> {
        let Named { dir, name, by_key } = &self.named(who, parent, name)?;
        let (dir, name) = (*dir, &**name);
        let own = |open: Arc<OpenNode>| open.unsettled().filter(|w| w.opened_by(who.tid)).cloned();
        let own: Vec<Arc<Writing>> = self.opens.creating(dir, name).into_iter().filter_map(own).collect();
        match self.store.child(dir, name) {
            // First, since nothing has happened yet when it is refused.
            Some(id) => {
                if *by_key {
                    self.may_unlink_by_key(who, dir, id)?;
                }
                self.store.unlink(dir, name)?;
                if *by_key {
                    self.entry_vanished(dir, name, id);
                }
                for writing in self.opens.replacing(id) {
                    self.give_up(&writing);
                }
            }
            None if !own.is_empty() => {}
            None => return Err(absent()),
        }
        for writing in own {
            self.give_up(&writing);
        }
        self.listing_changed(dir);
        Ok(())
    }

    /// RMDIR.
    pub(super) fn rmdir(&self, parent: INodeNo, name: &[u8]) -> Result<()> {
        let dir = self.node(parent)?;
        self.unreserved(dir, name)?;
        self.store.remove_dir(dir, name)?;
        self.listing_changed(dir);
        Ok(())
    }

    /// RENAME. A value that the caller's process is still writing is published under its new name.
    pub(super) fn rename(
        &self,
        who: Caller,
        from: (INodeNo, &[u8]),
        to: (INodeNo, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let (from, to) = (self.named(who, from.0, from.1)?, self.named(who, to.0, to.1)?);
        self.movable_by_key(&from, &to)?;
        let (from, to) = ((from.dir, &*from.name), (to.dir, &*to.name));
        let how = rename_how(flags)?;
        self.store.give_way(to.0, to.1)?;
        let creating = self.opens.all_creating(from.0, from.1);
        let own = creating.into_iter().rev().find(|o| o.unsettled().is_some_and(|w| w.opened_by(who.tid)));
        if let Some((open, writing)) = own.and_then(|o| o.unsettled().cloned().map(|w| (o, w))) {
            return self.rename_unpublished(&open, &writing, from, to, (how, who));
        }
        let id = self.store.child(from.0, from.1).ok_or_else(absent)?;
        self.inherit_uncached(self.store.child(to.0, to.1), id);
        self.store.rename_by(from, to, how, who.opener())?;
        for writing in self.opens.replacing(id) {
            // What replaces this value follows its name.
            self.store.retarget(&writing.staged.lock(), to.0, to.1)?;
            *writing.place.lock() = (to.0, to.1.into());
        }
        self.listing_changed(from.0);
        self.listing_changed(to.0);
        step!("rename.answer");
        Ok(())
    }

    /// Whether the kernel moves an entry that it should have forgotten: it may be of a value that was replaced.
    pub(super) fn moved_stale_entry(&self, from: (INodeNo, &[u8]), to: (INodeNo, &[u8])) -> bool {
        let stale = |at: (INodeNo, &[u8])| match self.inode(at.0) {
            Inode::Node(dir) => self.is_stale(dir, at.1),
            // Nothing below `by-key` is remembered, but what was moved there was.
            Inode::Virtual(_) => true,
        };
        stale(from) || stale(to)
    }

    /// Has the kernel forget an entry at its new name, and below `by-key` also what was exchanged for it, once whatever
    /// it is doing there is done.
    pub(super) fn forget_moved(&self, from: (INodeNo, &[u8]), to: (INodeNo, &[u8])) {
        let exchanged = Some(from).filter(|at| matches!(self.inode(at.0), Inode::Virtual(_)));
        for (parent, name) in exchanged.into_iter().chain([to]) {
            self.notice(super::work::Notice::Entry { parent, name: name.into(), then: None });
        }
    }

    fn rename_unpublished(
        &self,
        open: &Arc<OpenNode>,
        writing: &Arc<Writing>,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        (how, who): (RenameHow, Caller),
    ) -> Result<()> {
        // Before anything is changed; while it is refused nothing has happened.
        drop(writing.home.fence.commit(writing.home.epoch)?);
        let taken = self.store.child(to.0, to.1);
        self.inherit_uncached(taken, open.node);
        match how {
            RenameHow::NoReplace if taken.is_some() => {
                return Err(Error::new(Kind::Exists, "the target exists"));
            }
            RenameHow::Exchange => {
                return Err(Error::new(
                    Kind::Invalid,
                    "a value that is still being written cannot be exchanged",
                ));
            }
            _ => {}
        }
        self.store.retarget(&writing.staged.lock(), to.0, to.1)?;
        *writing.place.lock() = (to.0, to.1.into());
        self.opens.move_creating(open, &(from.0, from.1.into()), (to.0, to.1.into()));
        // The kernel moves its entry by itself: nothing is stale.
        self.publish(writing, true)?;
        if self.store.child(to.0, to.1) != Some(open.node)
            && self.store.child(from.0, from.1) == Some(open.node)
        {
            // Another thread's close published it under its old name meanwhile.
            self.store.rename_by(from, to, how, who.opener())?;
        }
        Ok(())
    }

    /// STATFS, from memory.
    pub(super) fn statfs(&self, reply: ReplyStatfs) {
        const BLOCK: u64 = 4096;
        let (used, keys, quota) = self.store.usage(self.settings.tenant.as_ref());
        let blocks = quota / BLOCK;
        let free = blocks.saturating_sub(used.div_ceil(BLOCK));
        let most_keys = self.store.settings().quota.max_keys.unwrap_or_else(|| (keys + free).max(1));
        reply.statfs(
            blocks,
            free,
            free,
            most_keys,
            most_keys.saturating_sub(keys),
            BLOCK as u32,
            crate::key::MAX_KEY_BYTES as u32,
            BLOCK as u32,
        );
    }
}

fn rename_how(flags: RenameFlags) -> Result<RenameHow> {
    if flags.is_empty() {
        Ok(RenameHow::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Ok(RenameHow::NoReplace)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Ok(RenameHow::Exchange)
    } else {
        Err(Error::new(Kind::Invalid, "no such way of renaming"))
    }
}

/// Of the first two entries of a listing, what is told without a look-up: no reference, and no attributes.
pub(super) fn bare(at: u64, ino: INodeNo, kind: FileType) -> Option<Result<Seen>> {
    (at < FIRST_COOKIE).then(|| Ok(Seen::Node(FileAttr { ino, kind, ..negative() }, FORGET)))
}

/// The attributes of nothing.
fn negative() -> FileAttr {
    let never = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: never,
        mtime: never,
        ctime: never,
        crtime: never,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// A time of SETATTR.
pub(super) fn set_time(t: Option<TimeOrNow>) -> SetTime {
    match t {
        None => SetTime::Keep,
        Some(TimeOrNow::Now) => SetTime::Now,
        Some(TimeOrNow::SpecificTime(t)) => SetTime::At(Timespec::from_system_time(t)),
    }
}
