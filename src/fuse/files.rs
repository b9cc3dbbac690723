//! CREATE and OPEN: what a descriptor is opened on, and who may.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fuser::{
    BackingId, FileAttr, FileHandle, FopenFlags, Generation, INodeNo, ReplyCreate, ReplyEmpty, ReplyOpen,
};

use super::Fs;
use super::by_key::Named;
use super::opens::{Handle, OpenNode, Place, Writing, spare_descriptors};
use super::overtaken::{MOST_OVERTAKES, gone};
use super::parked::Change;
use super::requests::errno;
use super::{FORGET, Inode};
use crate::config::limits;
use crate::error::{Error, Kind, Result};
use crate::format::legacy::Span;
use crate::key::RecordKind;
use crate::os::{self, Attr};
use crate::store::legacy::Value;
use crate::store::{NodeId, Opener, Owner, ROOT, Staged};

/// Who asks: credentials and thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) tid: u32,
}

impl Caller {
    /// Whose run a use belongs to: threads are told apart, and nothing is asked about them.
    pub(super) fn opener(self) -> Option<Opener> {
        Some(Opener(self.tid)).filter(|o| o.0 != 0)
    }
}

/// The reply to an open or a create: the two differ in the attributes that a create carries.
pub(super) enum OpenReply {
    Open(ReplyOpen),
    Create(ReplyCreate),
}

impl OpenReply {
    fn back(&self, file: &File) -> std::io::Result<BackingId> {
        match self {
            OpenReply::Open(r) => r.open_backing(file),
            OpenReply::Create(r) => r.open_backing(file),
        }
    }

    fn answer(self, opened: Result<Opened>) {
        let Opened { attr, handle, flags, open } = match opened {
            Ok(opened) => opened,
            Err(e) => {
                return match self {
                    OpenReply::Open(r) => r.error(errno(&e)),
                    OpenReply::Create(r) => r.error(errno(&e)),
                };
            }
        };
        let fh = FileHandle(handle);
        // The entry holds for one look-up only: whether the value is published decides who may see it.
        match (self, open.backing.as_ref()) {
            (OpenReply::Open(r), None) => r.opened(fh, flags),
            (OpenReply::Open(r), Some(id)) => r.opened_passthrough(fh, flags, id),
            (OpenReply::Create(r), None) => r.created(&FORGET, &attr, Generation(0), fh, flags),
            (OpenReply::Create(r), Some(id)) => {
                r.created_passthrough(&FORGET, &attr, Generation(0), fh, flags, id)
            }
        }
    }
}

/// A file that was opened, for the kernel.
struct Opened {
    attr: FileAttr,
    handle: u64,
    flags: FopenFlags,
    open: Arc<OpenNode>,
}

/// Permission bits of others.
const MAY_READ: u32 = 0o4;
const MAY_WRITE: u32 = 0o2;

fn writes(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

impl Fs {
    /// Whether a request on a directory's names may wait: it holds the directory's lock in the kernel meanwhile, and
    /// with the root's it would be in every tenant's way.
    pub(super) fn may_wait_in(&self, dir: INodeNo) -> bool {
        match self.inode(dir) {
            Inode::Node(id) => id != ROOT,
            Inode::Virtual(v) => v.is_by_key(),
        }
    }

    /// Registers a file with the kernel for passthrough. Where that fails, the daemon copies from then on.
    fn back(&self, reply: &OpenReply, file: &File) -> Option<BackingId> {
        if !self.is_passthrough() {
            return None;
        }
        match reply.back(file) {
            Ok(id) => Some(id),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => None,
            Err(e) => {
                if self.gate.is_closed() {
                    return None;
                }
                log::warn!("kernel passthrough does not work here ({e}); the daemon copies from now on");
                self.passthrough.store(false, Ordering::Relaxed);
                None
            }
        }
    }

    /// How the kernel is to do an ordinary open with `flags`, and whether it reads it through its cache: it is counted then.
    fn open_flags(&self, open: &OpenNode, flags: i32) -> (FopenFlags, bool) {
        // With the backing file O_DIRECT would be its filesystem's, which writes no odd ends, and could not be switched off.
        let any_length = flags & libc::O_DIRECT != 0 && writes(flags) && open.unsettled().is_some();
        let reads_only = !writes(flags);
        let (mut flags, cached) = match &open.backing {
            Some(_) if any_length => (FopenFlags::FOPEN_DIRECT_IO, false),
            Some(_) => (FopenFlags::empty(), false),
            None => {
                let uncached = self.uncached.lock();
                if uncached.nodes.contains(&open.node) {
                    // While a value is replaced, its inode's length in the kernel is the replacement's.
                    (FopenFlags::FOPEN_DIRECT_IO, false)
                } else {
                    open.cached.fetch_add(1, Ordering::Relaxed);
                    // The kernel's cache does not see what passes it by at other times.
                    let passed_by = self.is_passthrough() && open.span.is_none();
                    (if passed_by { FopenFlags::empty() } else { FopenFlags::FOPEN_KEEP_CACHE }, true)
                }
            }
        };
        if reads_only {
            flags |= FopenFlags::FOPEN_NOFLUSH;
        }
        (flags, cached)
    }

    /// CREATE: a name that the kernel believes to be free. `mode` comes with the caller's umask.
    pub(super) fn create(
        self: &Arc<Self>,
        who: Caller,
        (parent, name): (INodeNo, &[u8]),
        mode: (u32, u32),
        flags: i32,
        reply: ReplyCreate,
    ) {
        let run = move |fs: &Arc<Fs>, reply: &OpenReply, [name]: [&[u8]; 1]| {
            fs.create_in(who, &fs.named(who, parent, name)?, mode, flags, reply)
        };
        let change = Change {
            waits: self.may_wait_in(parent),
            beside: false,
            reply: OpenReply::Create(reply),
            run,
            answer: |_: &Arc<Fs>, reply: OpenReply, done| reply.answer(done),
        };
        self.change([name], change);
    }

    /// A create holds the lock of its directory in the kernel, and whoever it would wait for may wait for that lock. So where
    /// the name is another's by the time that it is opened, it is looked at again at once.
    fn create_in(
        self: &Arc<Self>,
        who: Caller,
        named: &Named<'_>,
        modes: (u32, u32),
        flags: i32,
        reply: &OpenReply,
    ) -> Result<Opened> {
        let mut tries = 1;
        loop {
            let found = self.store.child(named.dir, &named.name);
            let done = self.try_create(who, named, modes, flags, reply);
            let lost = done.as_ref().is_err_and(|e| matches!(e.kind(), Kind::Stale | Kind::NotFound));
            if lost {
                // Not the kernel is to look again.
                self.came_back(who);
            }
            let same = || self.store.child(named.dir, &named.name) == found;
            let is_stale = done.as_ref().is_err_and(|e| e.kind() == Kind::Stale);
            if !lost || tries == MOST_OVERTAKES || (!is_stale && same()) {
                return done;
            }
            tries += 1;
        }
    }

    fn try_create(
        self: &Arc<Self>,
        who: Caller,
        named: &Named<'_>,
        (mode, umask): (u32, u32),
        flags: i32,
        reply: &OpenReply,
    ) -> Result<Opened> {
        let (parent, name) = (named.dir, &*named.name);
        let creating = self.opens.creating(parent, name);
        self.store.give_way(parent, name)?;
        let existing = self.store.child(parent, name);
        if flags & libc::O_EXCL != 0 && (existing.is_some() || !creating.is_empty()) {
            return Err(Error::new(Kind::Exists, "the key exists, or somebody is creating it"));
        }
        if let Some(open) = creating.into_iter().find(|o| joins(o, who.tid, flags)) {
            self.store.retain(open.node)?;
            return self.open_pending(who, open, flags);
        }
        if let Some(id) = existing {
            self.store.retain(id)?;
            return self.open_node(who, id, flags, reply).inspect_err(|_| self.store.release(id, 1));
        }
        let owner = self.new_owner(who, parent, mode, umask)?;
        let mut staged = self.store.stage(parent, name, RecordKind::File, owner.owner)?;
        spare_descriptors(staged.file())?;
        owner.store_acl(staged.file())?;
        staged.opener = who.opener();
        let node = staged.node();
        if !writes(flags) {
            // Nothing can be written through it: the value is empty, and whole.
            self.store.publish(&mut staged, false)?;
            self.listing_changed(parent);
            self.entry_appeared(named);
            self.store.retain(node)?;
            let opened = self.open_node(who, node, flags & !libc::O_TRUNC, reply);
            return opened.inspect_err(|_| self.store.release(node, 1));
        }
        // What is to have a checksum is written through the daemon; its readers are passed through later.
        let backing = if self.store.keeps_checksums() { None } else { self.back(reply, staged.file()) };
        let attr = os::stat(&**staged.file())?;
        self.store.retain(node)?;
        let writing = Writing::new(staged, parent, name, who.tid, flags);
        writing.by_key.store(named.by_key, Ordering::Relaxed);
        let file = Arc::clone(&writing.file);
        let home = Arc::clone(&writing.home);
        let fresh = OpenNode::new(node, home, (Arc::clone(&file), None), backing, Some(Arc::clone(&writing)));
        let open = self.opens.enter(fresh);
        self.opens.add_creating((parent, name.into()), &open);
        let appends = flags & libc::O_APPEND != 0;
        let writing = Some(writing);
        let (flags, cached) = self.open_flags(&open, flags);
        let open_node = Arc::clone(&open);
        let handle = Handle { open: open_node, file, writing, replaces: false, edits: None, appends, cached };
        let handle = self.opens.add_handle(handle);
        let node_attr = crate::store::NodeAttr { kind: RecordKind::File, attr, links: 1 };
        Ok(Opened { attr: self.file_attr(node, &node_attr), handle, flags, open })
    }

    /// OPEN.
    pub(super) fn open(self: &Arc<Self>, who: Caller, ino: INodeNo, flags: i32, reply: ReplyOpen) {
        let id = match self.inode(ino) {
            Inode::Node(id) => id,
            Inode::Virtual(v) => return self.open_virtual(v, reply),
        };
        let fs = Arc::clone(self);
        self.once_settled(who, id, move || {
            let change = Change {
                waits: true,
                beside: fs.store.prepares_first(id, writes(flags)),
                reply: OpenReply::Open(reply),
                run: move |fs: &Arc<Fs>, reply: &OpenReply, []: [&[u8]; 0]| {
                    fs.open_node(who, id, flags, reply)
                },
                answer: |_: &Arc<Fs>, reply: OpenReply, done| reply.answer(done),
            };
            fs.change([], change);
        });
    }

    /// Runs something on a node at once, or, while the last close of a value that replaces it is on its way, when that
    /// is settled.
    pub(super) fn once_settled(
        self: &Arc<Self>,
        who: Caller,
        id: NodeId,
        then: impl FnOnce() + Send + 'static,
    ) {
        let closing = |w: &Arc<Writing>| w.flushed_empty.load(Ordering::Acquire) && !w.opened_by(who.tid);
        if self.opens.replacing(id).iter().any(closing) {
            let fs = Arc::clone(self);
            self.pool.run(move || {
                fs.opens.wait_replaced(id, limits::SETTLE_WAIT);
                then();
            });
        } else {
            then();
        }
    }

    fn open_node(self: &Arc<Self>, who: Caller, id: NodeId, flags: i32, reply: &OpenReply) -> Result<Opened> {
        if let Some(open) = self.opens.node(id)
            && open.unsettled().is_some()
        {
            return self.open_pending(who, open, flags);
        }
        if self.store.has_expired(id) {
            return Err(gone());
        }
        if writes(flags) && flags & libc::O_TRUNC != 0 {
            return self.open_replacing(who, id, flags, reply);
        }
        if writes(flags) {
            let (node, file) = self.begin_edit(who, id)?;
            let done = self.open_record(id, (&file, None), flags, reply, Some(node));
            if done.is_err() {
                self.store.end_edit(node, &file)?;
            }
            return done;
        }
        if let Some(open) = self.opens.enter_if_open(id) {
            if self.store.is_named(id) {
                self.store.touch(id, who.opener());
            } else if open.is_cancelled() {
                // Who has it open goes on; nobody else finds it any more.
                self.leave(&open);
                return Err(gone());
            }
            let file = Arc::clone(&open.file);
            return self.answer(open, file, None, None, flags);
        }
        let Value { file, span, .. } = match self.store.open_value(id, who.opener())? {
            Some(value) => value,
            None => {
                self.look_up_again(who)?;
                self.open_successor(who, id, MAY_READ)?.1
            }
        };
        self.open_record(id, (&Arc::new(file), span), flags, reply, None)
    }

    /// Begins editing the value of an inode, or of what replaced it meanwhile; which node that is. While the inode is
    /// open with its old value, the kernel's writes would go there: then the path is looked up again.
    fn begin_edit(&self, who: Caller, id: NodeId) -> Result<(NodeId, Arc<File>)> {
        if let Some((file, _)) = self.store.begin_edit(id)? {
            return Ok((id, file));
        }
        self.look_up_again(who)?;
        for _ in 0..MOST_OVERTAKES {
            // Where the daemon copies, each handle has a file of its own.
            if self.opens.node(id).is_some_and(|open| open.backing.is_some()) {
                break;
            }
            let (next, ..) = self.open_successor(who, id, MAY_WRITE)?;
            if let Some((file, _)) = self.store.begin_edit(next)? {
                return Ok((next, file));
            }
        }
        Err(gone())
    }

    /// Counts one more open of an inode; the first has the kernel back it with `file`, unless it `writes` what is to
    /// have a checksum.
    fn enter(
        &self,
        id: NodeId,
        (file, span): (&Arc<File>, Option<Span>),
        reply: &OpenReply,
        writes: bool,
    ) -> Result<Arc<OpenNode>> {
        if let Some(open) = self.opens.enter_if_open(id) {
            return Ok(open);
        }
        let home = self.store.home_of(id)?;
        let copies = span.is_some() || (writes && self.store.keeps_checksums());
        let backing = if copies { None } else { self.back(reply, file) };
        Ok(self.opens.enter(OpenNode::new(id, home, (Arc::clone(file), span), backing, None)))
    }

    /// Opens the record of an inode that `file` was opened for.
    fn open_record(
        self: &Arc<Self>,
        id: NodeId,
        (file, span): (&Arc<File>, Option<Span>),
        flags: i32,
        reply: &OpenReply,
        edits: Option<NodeId>,
    ) -> Result<Opened> {
        spare_descriptors(file)?;
        let open = self.enter(id, (file, span), reply, edits.is_some())?;
        if let Some(node) = edits
            && open.backing.is_some()
            && self.store.keeps_checksums()
        {
            // The kernel lets the file be mapped, and does not say for how long: also after the last close.
            self.store.note_unseen(node);
        }
        // Somebody may have opened it in between, with another value: a reader reads what the inode is open with.
        let file = Arc::clone(if edits.is_some() { file } else { &open.file });
        self.answer(open, file, None, edits, flags)
    }

    /// One more open of an inode whose value is not published yet.
    fn open_pending(self: &Arc<Self>, who: Caller, open: Arc<OpenNode>, flags: i32) -> Result<Opened> {
        if open.is_cancelled() {
            return Err(gone());
        }
        let open = self.opens.enter_if_open(open.node).ok_or_else(|| self.send_back(who))?;
        let writing = open.writing.clone().filter(|_| writes(flags));
        let file = Arc::clone(&open.file);
        if let Some(writing) = &writing {
            if flags & libc::O_TRUNC != 0
                && let Err(e) = writing.truncate(0)
            {
                self.leave(&open);
                return Err(e);
            }
            writing.join(who.tid);
        }
        self.answer(open, file, writing, None, flags)
    }

    fn answer(
        &self,
        open: Arc<OpenNode>,
        file: Arc<File>,
        writing: Option<Arc<Writing>>,
        edits: Option<NodeId>,
        flags: i32,
    ) -> Result<Opened> {
        let attr = match self.open_attr(&open) {
            Ok((attr, _)) => attr,
            Err(e) => {
                self.leave(&open);
                return Err(e);
            }
        };
        if attr.nlink == 0 {
            // What the kernel knows of the inode may be the value that it had before its key was replaced; whoever opens
            // it asks for its length next.
            self.forget_attributes(open.node);
        } else if attr.size == 0 && writing.is_none() && edits.is_none() && !self.hold(&open) {
            self.leave(&open);
            return Err(gone());
        }
        if edits.is_some() {
            open.edits.fetch_add(1, Ordering::Relaxed);
        }
        let appends = flags & libc::O_APPEND != 0;
        let (flags, cached) = self.open_flags(&open, flags);
        let handle =
            Handle { open: Arc::clone(&open), file, writing, replaces: false, edits, appends, cached };
        let handle = self.opens.add_handle(handle);
        Ok(Opened { attr, handle, flags, open })
    }

    /// O_TRUNC of an existing key: the new value goes to staging, readers keep the old one until the close.
    fn open_replacing(
        self: &Arc<Self>,
        who: Caller,
        id: NodeId,
        flags: i32,
        reply: &OpenReply,
    ) -> Result<Opened> {
        // A create needs no fresh look-up by the kernel to be given another inode.
        let again = matches!(reply, OpenReply::Open(_)) && self.came_back(who);
        let mut tries = 1;
        loop {
            let done = self.try_replacing(who, id, flags, reply, again);
            // The kernel has looked again already, and would tell the program.
            let is_stale = done.as_ref().is_err_and(|e| e.kind() == Kind::Stale);
            if !again && is_stale {
                // Wherever that came from: the next time it would reach the program.
                return Err(self.send_back(who));
            }
            if !is_stale || tries == MOST_OVERTAKES {
                return done;
            }
            tries += 1;
        }
    }

    fn try_replacing(
        self: &Arc<Self>,
        who: Caller,
        id: NodeId,
        flags: i32,
        reply: &OpenReply,
        again: bool,
    ) -> Result<Opened> {
        let (old, Value { file: old_file, attr: old_attr, span }) = match self.store.open_value(id, None)? {
            Some(value) => (id, value),
            None if !again => return Err(self.send_back(who)),
            None => match self.open_successor(who, id, MAY_WRITE) {
                Err(_) if self.store.successor(id).is_none() => self.vanished(who, id)?,
                found => found?,
            },
        };
        let old_file = Arc::new(old_file);
        let open = self.enter(id, (&old_file, span), reply, true)?;
        let staged = self
            .spare_cached_readers(who, &open, again)
            .and_then(|()| self.stage_replacement(old, &old_file, &old_attr));
        let (mut staged, (parent, name)) = staged.inspect_err(|_| self.leave(&open))?;
        staged.opener = who.opener();
        if !self.is_passthrough() {
            // What was overwritten once is likely to be again.
            self.uncached.lock().nodes.insert(staged.node());
        }
        if old_attr.size_bytes == 0 && !self.hold(&open) {
            log::debug!("an empty value was evicted while it was opened");
        }
        let writing = Writing::new(staged, parent, &name, who.tid, flags);
        self.opens.add_replacing(id, &writing);
        let handle = Handle {
            open: Arc::clone(&open),
            file: Arc::clone(&writing.file),
            writing: Some(writing),
            replaces: true,
            edits: None,
            appends: flags & libc::O_APPEND != 0,
            cached: false,
        };
        let handle = self.opens.add_handle(handle);
        let node_attr = crate::store::NodeAttr { kind: RecordKind::File, attr: old_attr, links: 1 };
        let (attr, flags) = (self.file_attr(id, &node_attr), FopenFlags::FOPEN_DIRECT_IO);
        Ok(Opened { attr, handle, flags, open })
    }

    /// A new value for a key, with what it keeps of the old one.
    fn stage_replacement(&self, old: NodeId, old_file: &File, old_attr: &Attr) -> Result<(Staged, Place)> {
        let (parent, name) = self.store.last_place(old).map_err(|_| gone())?;
        let mut staged = self.store.stage(parent, &name, RecordKind::File, Owner::from(old_attr))?;
        spare_descriptors(staged.file())?;
        copy_attributes(old_file, staged.file())?;
        staged.pinned = self.store.is_pinned(old);
        Ok((staged, (parent, name)))
    }
}

/// Whether a CREATE by another process shares the value that is being created. Without O_TRUNC it means the file that
/// is there; a lock file (read-write, still empty) is one file for all who lock it. Whoever truncates writes a value
/// of his own, and the last close wins.
fn joins(open: &OpenNode, tid: u32, flags: i32) -> bool {
    let Some(writing) = open.unsettled() else { return false };
    flags & libc::O_TRUNC == 0
        || writing.opened_by(tid)
        || (flags & libc::O_ACCMODE == libc::O_RDWR && writing.is_empty())
}

/// What a replacement keeps of the old record: the user's attributes and the ACL.
fn copy_attributes(from: &File, to: &File) -> Result<()> {
    for name in os::xattr_list(from)? {
        if name.starts_with("user.") && name != crate::format::record::XATTR {
            let value = os::xattr_get(from, &name, 64 * 1024)?.unwrap_or_default();
            os::xattr_set(to, &name, &value, os::XattrMode::Set)?;
        }
    }
    Ok(())
}

pub(super) fn answer_empty(reply: ReplyEmpty, done: Result<()>) {
    match done {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(&e)),
    }
}
