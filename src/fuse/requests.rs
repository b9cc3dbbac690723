//! `impl Filesystem`: each request is handed to the file that holds its group of operations.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};

use super::dirs::{answer_entry, set_time};
use super::files::{Caller, answer_empty};
use super::leave::REST;
use super::parked::Change;
use super::{Fs, Inode};
use crate::config::{Durability, Passthrough};
use crate::error::{Error, Result};
use crate::store::SetAttr;

/// The errno of an error; what the disk did wrong is also said in the log.
pub(super) fn errno(e: &Error) -> Errno {
    if e.errno() == libc::EIO {
        log::error!("{e}");
    }
    Errno::from_i32(e.errno())
}

/// What the event loops call.
pub(super) struct Requests(pub(super) Arc<Fs>);

impl Requests {
    /// Who asks; every request is counted that somebody waits for.
    fn caller(&self, req: &Request) -> Caller {
        self.0.awake.served();
        Caller { uid: req.uid(), gid: req.gid(), tid: req.pid() }
    }

    /// Runs a change of names: at once, or beside the event loop where each waits for the disk.
    fn change_names<const N: usize, R, T>(
        &self,
        parents: &[INodeNo],
        names: [&[u8]; N],
        reply: R,
        run: impl Fn(&Arc<Fs>, [&[u8]; N]) -> Result<T> + Send + 'static,
        answer: impl FnOnce(&Arc<Fs>, R, Result<T>) + Send + 'static,
    ) where
        R: Send + 'static,
    {
        let change = Change {
            waits: parents.iter().all(|dir| self.0.may_wait_in(*dir)),
            beside: self.0.store.settings().durability == Durability::Fsync,
            reply,
            run: move |fs: &Arc<Fs>, _: &R, names: [&[u8]; N]| run(fs, names),
            answer,
        };
        self.0.change(names, change);
    }

    /// The same for what makes an entry.
    fn make<const N: usize>(
        &self,
        parent: INodeNo,
        names: [&[u8]; N],
        reply: ReplyEntry,
        run: impl Fn(&Arc<Fs>, [&[u8]; N]) -> Result<(FileAttr, Duration)> + Send + 'static,
    ) {
        self.change_names(&[parent], names, reply, run, |_, reply, made| answer_entry(reply, made));
    }

    /// A change of what a node is, not of names.
    fn change_node<const N: usize>(
        &self,
        names: [&[u8]; N],
        reply: ReplyEmpty,
        run: impl Fn(&Arc<Fs>, [&[u8]; N]) -> Result<()> + Send + 'static,
    ) {
        let run = move |fs: &Arc<Fs>, _: &ReplyEmpty, names: [&[u8]; N]| run(fs, names);
        let answer = |_: &Arc<Fs>, reply, done| answer_empty(reply, done);
        self.0.change(names, Change { waits: true, beside: false, reply, run, answer });
    }
}

/// Refuses what is about an inode that only an earlier daemon knew: the kernel walks the path again, once.
macro_rules! known {
    ($self:ident, $ino:expr, $reply:ident) => {
        if $self.0.is_an_earlier_daemons($ino) {
            return $reply.error(Errno::ESTALE);
        }
    };
}

/// What the mount asks of the kernel, where the kernel has it.
const WANTED: [InitFlags; 14] = [
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_BIG_WRITES,
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_AUTO_INVAL_DATA,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_NO_OPENDIR_SUPPORT,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
];
const MAX_WRITE_BYTES: u32 = 1 << 20;

impl Filesystem for Requests {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for flag in WANTED {
            if config.add_capabilities(flag).is_err() {
                log::info!("this kernel does not offer {flag:?}");
            }
        }
        if config.set_max_write(MAX_WRITE_BYTES).is_err() {
            log::info!("writes stay at the kernel's default size");
        }
        // Depth 2, so that a store on an overlay works as well.
        let offered = self.0.settings.passthrough != Passthrough::Off
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(2).is_ok();
        self.0.passthrough.store(offered, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        known!(self, parent, reply);
        self.0.lookup(self.caller(req), parent, name.as_bytes(), reply);
    }

    fn forget(&self, _req: &Request, ino: INodeNo, n: u64) {
        if ino.0 == REST {
            return self.0.gate.rest();
        }
        if let Inode::Node(id) = self.0.inode(ino)
            && id != self.0.top
        {
            self.0.store.release(id, n);
            let mut uncached = self.0.uncached.lock();
            // The kernel gives single references back too, of an inode that it keeps.
            if !uncached.nodes.is_empty() && !self.0.store.exists(id) {
                uncached.nodes.remove(&id);
                uncached.awaited.remove(&id);
            }
        }
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let who = self.caller(req);
        if self.0.is_an_earlier_daemons(ino) {
            return self.0.getattr_of_open(who, ino, reply);
        }
        self.0.getattr(who, ino, reply);
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        known!(self, ino, reply);
        let set = SetAttr { mode, uid, gid, atime: set_time(atime), mtime: set_time(mtime) };
        self.0.setattr(self.caller(req), ino, fh, size, set, reply);
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.0.node(ino).and_then(|id| self.0.store.read_link(id)) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        let who = self.caller(req);
        self.make(parent, [name.as_bytes()], reply, move |fs, [name]| {
            fs.mknod(who, parent, name, mode, umask)
        });
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let who = self.caller(req);
        self.make(parent, [name.as_bytes()], reply, move |fs, [name]| {
            fs.mkdir(who, parent, name, mode, umask)
        });
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let who = self.caller(req);
        let run = move |fs: &Arc<Fs>, [name]: [&[u8]; 1]| fs.unlink(who, parent, name);
        let answer = |_: &Arc<Fs>, reply, done| answer_empty(reply, done);
        self.change_names(&[parent], [name.as_bytes()], reply, run, answer);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let run = move |fs: &Arc<Fs>, [name]: [&[u8]; 1]| fs.rmdir(parent, name);
        let answer = |_: &Arc<Fs>, reply, done| answer_empty(reply, done);
        self.change_names(&[parent], [name.as_bytes()], reply, run, answer);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let who = self.caller(req);
        let names = [name.as_bytes(), target.as_os_str().as_bytes()];
        self.make(parent, names, reply, move |fs, [name, target]| fs.symlink(who, parent, name, target));
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let who = self.caller(req);
        let run = move |fs: &Arc<Fs>, [name, newname]: [&[u8]; 2]| {
            let (from, to) = ((parent, name), (newparent, newname));
            fs.rename(who, from, to, flags)?;
            let stale = fs.moved_stale_entry(from, to);
            Ok(stale.then(|| [name, newname].map(Box::<[u8]>::from)))
        };
        let answer = move |fs: &Arc<Fs>, reply: ReplyEmpty, done: Result<Option<[Box<[u8]>; 2]>>| match done {
            Ok(stale) => {
                reply.ok();
                if let Some([name, newname]) = stale {
                    fs.forget_moved((parent, &name), (newparent, &newname));
                }
            }
            Err(e) => reply.error(errno(&e)),
        };
        let names = [name.as_bytes(), newname.as_bytes()];
        self.change_names(&[parent, newparent], names, reply, run, answer);
    }

    fn link(&self, _req: &Request, _ino: INodeNo, _newparent: INodeNo, _newname: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        known!(self, ino, reply);
        let (fs, who) = (Arc::clone(&self.0), self.caller(req));
        self.0.gate.pass(move || fs.open(who, ino, flags.0, reply));
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let who = self.caller(req);
        if self.0.gate.is_closed() {
            let (fs, name) = (Arc::clone(&self.0), Box::<[u8]>::from(name.as_bytes()));
            return self.0.gate.pass(move || fs.create(who, (parent, &name), (mode, umask), flags, reply));
        }
        self.0.create(who, (parent, name.as_bytes()), (mode, umask), flags, reply);
    }

    fn read(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.0.inode(ino) {
            Inode::Node(_) => {
                self.0.awake.served();
                self.0.read(fh, offset, size, reply);
            }
            Inode::Virtual(v) => self.0.read_virtual(self.caller(req), v, fh, (offset, size), flags.0, reply),
        }
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.0.inode(ino) {
            Inode::Node(_) => {
                self.0.awake.served();
                self.0.write(fh, offset, data, reply);
            }
            Inode::Virtual(v) => self.0.write_virtual(self.caller(req), v, fh, data, reply),
        }
    }

    fn flush(&self, req: &Request, ino: INodeNo, fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        match self.0.inode(ino) {
            Inode::Node(_) => self.0.flush(self.caller(req), fh, reply),
            Inode::Virtual(_) => reply.ok(),
        }
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        match self.0.inode(ino) {
            Inode::Node(_) => self.0.release_file(fh, reply),
            Inode::Virtual(_) => {
                self.0.streams.close(fh.0);
                reply.ok();
            }
        }
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        match self.0.inode(ino) {
            Inode::Node(_) => self.0.fsync(fh, datasync, reply),
            Inode::Virtual(_) => reply.ok(),
        }
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // "No such request" makes the kernel open directories by itself from now on, and keep their listings.
        reply.error(Errno::ENOSYS);
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        known!(self, ino, reply);
        self.0.readdir(ino, offset, reply);
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        known!(self, ino, reply);
        self.0.readdirplus(self.caller(req), ino, offset, reply);
    }

    fn fsyncdir(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let fs = Arc::clone(&self.0);
        self.0.pool.run(move || answer_empty(reply, fs.store.sync_names()));
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.0.statfs(reply);
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let who = self.caller(req);
        self.change_node([name.as_bytes(), value], reply, move |fs, [name, value]| {
            fs.setxattr(who, ino, name, value, flags)
        });
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        known!(self, ino, reply);
        self.0.getxattr(self.caller(req), ino, name.as_bytes(), size, reply);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        known!(self, ino, reply);
        self.0.listxattr(self.caller(req), ino, size, reply);
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let who = self.caller(req);
        self.change_node([name.as_bytes()], reply, move |fs, [name]| fs.removexattr(who, ino, name));
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        match self.0.inode(ino) {
            Inode::Virtual(v) if v.is_control() => self.0.ioctl(self.caller(req), v, cmd, in_data, reply),
            _ => reply.error(Errno::ENOTTY),
        }
    }

    fn poll(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        notifier: PollNotifier,
        events: PollEvents,
        flags: PollFlags,
        reply: ReplyPoll,
    ) {
        match self.0.inode(ino) {
            Inode::Node(_) => reply.poll(events),
            Inode::Virtual(_) => {
                let wanted = flags.contains(PollFlags::FUSE_POLL_SCHEDULE_NOTIFY).then_some(notifier);
                reply.poll(self.0.streams.poll(fh.0, events, wanted));
            }
        }
    }

    fn fallocate(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        match self.0.inode(ino) {
            Inode::Node(_) => self.0.fallocate(fh, offset, length, mode, reply),
            Inode::Virtual(_) => reply.error(Errno::EPERM),
        }
    }

    fn lseek(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match self.0.inode(ino) {
            Inode::Node(_) => self.0.lseek(fh, offset, whence, reply),
            Inode::Virtual(_) => reply.error(Errno::EINVAL),
        }
    }

    fn copy_file_range(
        &self,
        _req: &Request,
        ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        match (self.0.inode(ino_in), self.0.inode(ino_out)) {
            (Inode::Node(_), Inode::Node(_)) => {
                self.0.copy_range((fh_in, offset_in), (fh_out, offset_out), len, reply);
            }
            _ => reply.error(Errno::EXDEV),
        }
    }
}
