//! The virtual files of `.fencefs`: control, status, metrics, requests, fleet, and by-key.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use fuser::{
    FileAttr, FileHandle, FileType, FopenFlags, Generation, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEntry, ReplyOpen, ReplyWrite,
};
use serde_json::{Map, Value};

use super::attr;
use super::files::Caller;
use super::numbers::VIRTUAL_BIT;
use super::replies::{MOST_WAITING_BYTES, Replies};
use super::requests::errno;
use super::{FORGET, Fs};
use crate::control::command::{Command, parse, split_lines};
use crate::control::execute::execute;
use crate::control::permission::Asker;
use crate::control::reply;
use crate::control::report::{self, MountFacts};
use crate::error::{Error, Kind, Result};
use crate::key::Tenant;
use crate::os::{Attr, Timespec};
use crate::scope;
use crate::store::NodeId;

/// What a virtual inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Directory = 0,
    Control = 1,
    Status = 2,
    Metrics = 3,
    Requests = 4,
    ByKey = 5,
    Fleet = 6,
}

const NAMES: [(&[u8], What); 6] = [
    (b"control", What::Control),
    (b"status", What::Status),
    (b"metrics", What::Metrics),
    (b"requests", What::Requests),
    (b"fleet", What::Fleet),
    (b"by-key", What::ByKey),
];

/// A virtual inode: what it is, and of which directory (by slot; 0 for the root of the mount).
#[derive(Debug, Clone, Copy)]
pub(super) struct VirtualIno {
    what: What,
    scope: u32,
}

impl VirtualIno {
    pub(super) fn directory(scope: u32) -> Self {
        VirtualIno { what: What::Directory, scope }
    }

    /// The directory that it stands in.
    pub(super) fn above(self) -> Self {
        VirtualIno::directory(self.scope)
    }

    pub(super) fn from_number(number: u64) -> Self {
        let what = match number & 0xff {
            1 => What::Control,
            2 => What::Status,
            3 => What::Metrics,
            4 => What::Requests,
            5 => What::ByKey,
            6 => What::Fleet,
            _ => What::Directory,
        };
        VirtualIno { what, scope: (number >> 8) as u32 }
    }

    pub(super) fn number(self) -> u64 {
        VIRTUAL_BIT | u64::from(self.scope) << 8 | self.what as u64
    }

    pub(super) fn is_control(self) -> bool {
        self.what == What::Control
    }

    pub(super) fn is_by_key(self) -> bool {
        self.what == What::ByKey
    }
}

/// JSON objects, one a line.
fn lines(objects: impl IntoIterator<Item = Map<String, Value>>) -> Vec<u8> {
    objects.into_iter().flat_map(|object| format!("{}\n", Value::Object(object)).into_bytes()).collect()
}

fn no_such_file() -> Error {
    Error::new(Kind::NotFound, "no such file in .fencefs")
}

impl Fs {
    /// The scope number of a directory: 0 for the root of the mount.
    pub(super) fn scope_of(&self, dir: NodeId) -> u32 {
        if dir == self.top { 0 } else { dir.slot() }
    }

    pub(super) fn tenant_of_scope(&self, v: VirtualIno) -> Result<Option<Tenant>> {
        if v.scope == 0 {
            Ok(self.settings.tenant.clone())
        } else {
            self.store.tenant_in_slot(v.scope).map(Some)
        }
    }

    /// Attributes: the owner is the directory's, the control file is writable by whoever may write there.
    pub(super) fn virtual_attr(&self, v: VirtualIno) -> FileAttr {
        let dir = if v.scope == 0 { Ok(self.top) } else { self.store.node_in_slot(v.scope) };
        let above = dir.and_then(|d| self.store.attr(d)).ok().flatten().map(|a| a.attr).unwrap_or_default();
        let is_root_scope = v.scope == 0 && self.settings.tenant.is_none();
        let (kind, mode) = match v.what {
            What::Directory => (FileType::Directory, 0o555),
            What::ByKey => return self.by_key_attr(v),
            // At the root each command is judged by its user.
            What::Control if is_root_scope => (FileType::RegularFile, 0o666),
            What::Control => {
                let writers = above.mode & 0o222;
                (FileType::RegularFile, 0o600 | writers | writers << 1)
            }
            What::Status | What::Metrics | What::Requests | What::Fleet => (FileType::RegularFile, 0o444),
        };
        let now = Timespec::now();
        let plain = Attr {
            mode,
            uid: above.uid,
            gid: above.gid,
            atime: now,
            mtime: now,
            ctime: now,
            ..Attr::default()
        };
        let mut attr = attr::plain(self.virtual_ino(v), kind, &plain);
        attr.nlink = if kind == FileType::Directory { 2 } else { 1 };
        attr
    }

    pub(super) fn lookup_virtual(&self, dir: VirtualIno, name: &[u8], reply: ReplyEntry) {
        let found = match dir.what {
            What::Directory => {
                NAMES.iter().find(|(n, _)| *n == name).map(|(_, what)| VirtualIno { what: *what, ..dir })
            }
            _ => None,
        };
        match found.filter(|v| self.is_there(*v)) {
            Some(v) => reply.entry(&FORGET, &self.virtual_attr(v), Generation(0)),
            None => reply.error(errno(&no_such_file())),
        }
    }

    /// by-key belongs to a tenant, the fleet to the whole mount.
    fn is_there(&self, v: VirtualIno) -> bool {
        let of_tenant = matches!(self.tenant_of_scope(v), Ok(Some(_)));
        match v.what {
            What::ByKey => of_tenant,
            What::Fleet => !of_tenant,
            _ => true,
        }
    }

    fn rows(&self, dir: VirtualIno) -> Vec<(&'static [u8], VirtualIno)> {
        let mut rows: Vec<(&[u8], VirtualIno)> = vec![(b".", dir), (b"..", dir.above())];
        if dir.what == What::Directory {
            let files = NAMES.iter().map(|(name, what)| (*name, VirtualIno { what: *what, ..dir }));
            rows.extend(files.filter(|(_, v)| self.is_there(*v)));
        }
        rows
    }

    pub(super) fn readdir_virtual(&self, dir: VirtualIno, offset: u64, mut reply: ReplyDirectory) {
        for (at, (name, v)) in self.rows(dir).into_iter().enumerate().skip(offset as usize) {
            let kind = self.virtual_attr(v).kind;
            if reply.add(self.virtual_ino(v), at as u64 + 1, kind, OsStr::from_bytes(name)) {
                break;
            }
        }
        reply.ok();
    }

    pub(super) fn readdirplus_virtual(&self, dir: VirtualIno, offset: u64, mut reply: ReplyDirectoryPlus) {
        for (at, (name, v)) in self.rows(dir).into_iter().enumerate().skip(offset as usize) {
            let attr = self.virtual_attr(v);
            if reply.add(
                self.virtual_ino(v),
                at as u64 + 1,
                OsStr::from_bytes(name),
                &FORGET,
                &attr,
                Generation(0),
            ) {
                break;
            }
        }
        reply.ok();
    }

    pub(super) fn open_virtual(self: &Arc<Self>, v: VirtualIno, reply: ReplyOpen) {
        // A coordinator is asked for these, and may be slow to answer: never on the event loop.
        if self.removals.is_shared() && matches!(v.what, What::Requests | What::Fleet) {
            let fs = Arc::clone(self);
            return self.pool.run(move || fs.opened_virtual(v, reply));
        }
        self.opened_virtual(v, reply);
    }

    fn opened_virtual(&self, v: VirtualIno, reply: ReplyOpen) {
        let text = match v.what {
            What::Control => Ok(None),
            What::Status => self.tenant_of_scope(v).map(|t| Some(self.status_text(t.as_ref()))),
            What::Metrics => Ok(Some(report::metrics(&self.removals, self.facts()).into_bytes())),
            What::Requests => self.tenant_of_scope(v).and_then(|t| self.requests_text(t.as_ref())).map(Some),
            What::Fleet => self.fleet_text().map(Some),
            What::Directory | What::ByKey => Err(no_such_file()),
        };
        match text {
            Ok(text) => {
                let handle = self.streams.open(text);
                let stream = if v.is_control() { FopenFlags::FOPEN_STREAM } else { FopenFlags::empty() };
                reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO | stream);
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    /// The requests whose scope includes the tenant, one a line, oldest first.
    fn requests_text(&self, tenant: Option<&Tenant>) -> Result<Vec<u8>> {
        let mut requests = self.removals.requests()?;
        requests.retain(|request| tenant.is_none_or(|tenant| request.scope.includes_tenant(tenant)));
        Ok(lines(report::named(&self.removals, &requests)?))
    }

    /// The storages of the fleet, one a line.
    fn fleet_text(&self) -> Result<Vec<u8>> {
        Ok(lines(self.removals.storages()?.iter().map(report::storage)))
    }

    pub(super) fn facts(&self) -> MountFacts {
        MountFacts { passthrough: self.is_passthrough(), unlinked_bytes: self.opens.unlinked_bytes() }
    }

    fn status_text(&self, tenant: Option<&Tenant>) -> Vec<u8> {
        lines([report::status(&self.removals, self.facts(), tenant)])
    }

    /// READ of a virtual file.
    pub(super) fn read_virtual(
        self: &Arc<Self>,
        who: Caller,
        v: VirtualIno,
        fh: FileHandle,
        (offset, size): (u64, u32),
        flags: i32,
        reply: ReplyData,
    ) {
        if v.is_control() {
            let waits = flags & libc::O_NONBLOCK == 0;
            let fresh = || self.status_text(self.settings.tenant.as_ref());
            self.streams.read(fh.0, who.uid, size, waits, fresh, reply);
        } else {
            self.streams.read_at(fh.0, offset, size, reply);
        }
    }

    /// WRITE to a virtual file: commands.
    pub(super) fn write_virtual(
        self: &Arc<Self>,
        who: Caller,
        v: VirtualIno,
        fh: FileHandle,
        data: &[u8],
        reply: ReplyWrite,
    ) {
        if !v.is_control() {
            return reply.error(fuser::Errno::EPERM);
        }
        // A command may evict: never on the event loop.
        let (fs, data) = (Arc::clone(self), data.to_vec());
        self.pool.run(move || {
            let (replies, failed) = fs.carry_out(who, v, &data);
            let awaited = replies.removals.clone();
            fs.streams.add(fh.0, who.uid, replies);
            for generation in awaited {
                fs.tell_if_ended(generation);
            }
            match failed {
                None => reply.written(data.len() as u32),
                Some(e) => reply.error(errno(&e)),
            }
        });
    }

    /// Who asks, through this control file.
    pub(super) fn asker(&self, who: Caller, v: VirtualIno) -> Result<Asker> {
        let daemon_uid = rustix::process::geteuid().as_raw();
        Ok(Asker { uid: who.uid, gid: who.gid, daemon_uid, tenant: self.tenant_of_scope(v)? })
    }

    /// Carries the lines of one write out; stops at the first that fails.
    fn carry_out(&self, who: Caller, v: VirtualIno, data: &[u8]) -> (Replies, Option<Error>) {
        let mut replies = Replies::default();
        let done = split_lines(data).and_then(|lines| {
            let asker = self.asker(who, v)?;
            for line in lines {
                let command = parse(line)?;
                let fields = execute(&self.removals, self.facts(), &asker, &command)?;
                replies.text.extend_from_slice(reply::ok(&fields).as_bytes());
                if let (Command::RemoveAll { .. }, Some(n)) =
                    (&command, fields.get("generation").and_then(Value::as_u64))
                {
                    replies.removals.push(scope::Generation(n));
                }
                if replies.text.len() > MOST_WAITING_BYTES {
                    return Err(Error::new(
                        Kind::Invalid,
                        "too many commands in one write; read the replies between",
                    ));
                }
            }
            Ok(())
        });
        match done {
            Ok(()) => (replies, None),
            Err(e) => {
                replies.text.extend_from_slice(reply::failure(&e).as_bytes());
                (replies, Some(e))
            }
        }
    }
}
