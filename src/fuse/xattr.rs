//! Extended attributes: the user's own, what fencefs tells of a key, and POSIX ACLs.
//!
//! `user.fencefs.*` is the project's and never listed: `digest`, `tenant`, `epoch`, `path` and `pin` are answered from the
//! index, `ttl` from the record. ACLs are kept as attributes of the record, since a directory's record is a file and could not hold a
//! default ACL of its own.

use std::fs::File;
use std::sync::Arc;

use fuser::{INodeNo, ReplyXattr};

use super::acl::Acl;
use super::files::Caller;
use super::parked::Change;
use super::requests::errno;
use super::{Fs, Inode};
use crate::error::{Error, Kind, Result};
use crate::format::layout;
use crate::key::Epoch;
use crate::os::{self, XattrMode};
use crate::store::fence::Lease;
use crate::store::{NodeId, Owner, ROOT, SetAttr, Staged, Store};

const OURS: &str = "user.fencefs";
const TTL: &str = "user.fencefs.ttl";
const ACL_ACCESS: &str = "system.posix_acl_access";
const ACL_DEFAULT: &str = "system.posix_acl_default";
const KEPT_ACCESS: &str = "user.fencefs.acl";
const KEPT_DEFAULT: &str = "user.fencefs.dacl";
/// Longest value of an attribute (Linux's own limit).
const MAX_VALUE_BYTES: usize = 64 * 1024;

fn unset() -> Error {
    Error::new(Kind::NoAttribute, "no such attribute")
}

fn not_ours_to_set() -> Error {
    Error::new(Kind::NotPermitted, "the attributes user.fencefs.* are read-only, but for pin and ttl")
}

/// Owner, mode and ACLs of something new.
pub(super) struct NewOwner {
    pub(super) owner: Owner,
    access: Option<Acl>,
    default: Option<Acl>,
    in_setgid_dir: bool,
}

impl NewOwner {
    /// As a directory: the set-group bit is inherited.
    pub(super) fn for_directory(mut self) -> Self {
        if self.in_setgid_dir {
            self.owner.mode |= libc::S_ISGID;
        }
        self
    }

    /// Keeps the access ACL with a new value.
    pub(super) fn store_acl(&self, file: &File) -> Result<()> {
        match &self.access {
            Some(acl) => os::xattr_set(file, KEPT_ACCESS, &acl.encode(), XattrMode::Set),
            None => Ok(()),
        }
    }

    /// Keeps both ACLs with a new directory.
    pub(super) fn store_dir_acl(&self, store: &Store, id: NodeId) -> Result<()> {
        if self.default.is_none() {
            return Ok(());
        }
        let Some(file) = store.attribute_file(id)? else { return Ok(()) };
        self.store_acl(&file)?;
        match &self.default {
            Some(acl) => os::xattr_set(&file, KEPT_DEFAULT, &acl.encode(), XattrMode::Set),
            None => Ok(()),
        }
    }
}

impl Fs {
    /// Owner and mode of something that the caller makes in a directory: with a default ACL there, that decides in
    /// place of the umask.
    pub(super) fn new_owner(&self, who: Caller, dir: NodeId, mode: u32, umask: u32) -> Result<NewOwner> {
        let dir = self.store.governing(dir);
        let above =
            self.store.attr(dir)?.ok_or_else(|| Error::new(Kind::NotFound, "no such directory any more"))?;
        let in_setgid_dir = above.attr.mode & libc::S_ISGID != 0;
        let gid = if in_setgid_dir { above.attr.gid } else { who.gid };
        let default = if self.store.has_acls() { self.kept_acl(who, dir, KEPT_DEFAULT)? } else { None };
        let (access, mode) = match &default {
            Some(default) => Acl::inherit(default, mode),
            None => (None, mode & !umask),
        };
        Ok(NewOwner {
            owner: Owner { mode: mode & 0o7777, uid: who.uid, gid },
            access,
            default,
            in_setgid_dir,
        })
    }

    /// The file that holds a node's attributes, for this caller; `None` for the root and tenant directories.
    fn attributes(&self, who: Caller, id: NodeId) -> Result<Option<Arc<File>>> {
        match self.own_file(who, id) {
            Some(file) => Ok(Some(file)),
            None => Ok(self.store.attribute_file(id)?.map(Arc::new)),
        }
    }

    /// The same, to change them: of a published key under a lease of its tenant's fence.
    fn changeable(&self, who: Caller, id: NodeId) -> Result<Option<(Arc<File>, Option<Lease>)>> {
        if let Some(file) = self.own_file(who, id) {
            return Ok(Some((file, None)));
        }
        if id == ROOT || self.store.is_tenant_dir(id) {
            return Ok(None);
        }
        self.store.migrate(id)?;
        let home = self.store.home_of(id)?;
        let lease = home.fence.enter(home.epoch)?;
        Ok(self.store.attribute_file(id)?.map(|file| (Arc::new(file), Some(lease))))
    }

    fn kept_acl(&self, who: Caller, id: NodeId, name: &str) -> Result<Option<Acl>> {
        let Some(file) = self.attributes(who, id)? else { return Ok(None) };
        os::xattr_get(&*file, name, MAX_VALUE_BYTES)?.map(|v| Acl::parse(&v)).transpose()
    }

    /// Whether a directory's mode bits are not all that decides who may use it.
    pub(super) fn has_acl(&self, who: Caller, dir: NodeId) -> Result<bool> {
        Ok(self.store.has_acls() && self.kept_acl(who, dir, KEPT_ACCESS)?.is_some())
    }

    /// A mode that was set changes the ACL that stands behind it.
    pub(super) fn acl_follows_mode(&self, who: Caller, id: NodeId, mode: u32) -> Result<()> {
        if !self.store.has_acls() {
            return Ok(());
        }
        let Some(file) = self.attributes(who, id)? else { return Ok(()) };
        match os::xattr_get(&*file, KEPT_ACCESS, MAX_VALUE_BYTES)? {
            Some(kept) => {
                let acl = Acl::parse(&kept)?.with_mode(mode);
                os::xattr_set(&*file, KEPT_ACCESS, &acl.encode(), XattrMode::Set)
            }
            None => Ok(()),
        }
    }

    /// GETXATTR.
    pub(super) fn getxattr(
        self: &Arc<Self>,
        who: Caller,
        ino: INodeNo,
        name: &[u8],
        size: u32,
        reply: ReplyXattr,
    ) {
        // The attributes of a directory may have to be made first.
        let run = move |fs: &Arc<Fs>, _: &ReplyXattr, [name]: [&[u8]; 1]| match fs.inode(ino) {
            Inode::Node(id) => fs.xattr(who, id, name),
            Inode::Virtual(_) => Err(unset()),
        };
        let answer = move |_: &Arc<Fs>, reply, got| answer(reply, size, got);
        self.change([name], Change { waits: true, beside: false, reply, run, answer });
    }

    fn xattr(&self, who: Caller, id: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        let name = std::str::from_utf8(name).map_err(|_| unset())?;
        let kept = match name {
            ACL_ACCESS if self.store.has_acls() => KEPT_ACCESS,
            ACL_DEFAULT if self.store.has_acls() => KEPT_DEFAULT,
            TTL => return self.own_ttl(who, id),
            _ if is_ours(name) => return self.told(id, name),
            _ if name.starts_with("user.") => name,
            _ => return Err(unset()),
        };
        let file = self.attributes(who, id)?.ok_or_else(unset)?;
        os::xattr_get(&*file, kept, MAX_VALUE_BYTES)?.ok_or_else(unset)
    }

    /// What fencefs tells of a key.
    fn told(&self, id: NodeId, name: &str) -> Result<Vec<u8>> {
        if id == ROOT || self.store.is_tenant_dir(id) {
            return Err(unset());
        }
        let it = self.store.identity(id)?;
        let text = match name.strip_prefix("user.fencefs.") {
            Some("digest") => it.digest.to_string(),
            Some("tenant") => it.tenant.to_string(),
            Some("epoch") => it.epoch.to_string(),
            Some("path") => layout::canonical_path(&it.tenant, it.epoch, it.digest),
            Some("pin") => u8::from(self.store.is_pinned(id)).to_string(),
            _ => return Err(unset()),
        };
        Ok(text.into_bytes())
    }

    /// LISTXATTR: the user's own, and ACLs.
    pub(super) fn listxattr(self: &Arc<Self>, who: Caller, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let run = move |fs: &Arc<Fs>, _: &ReplyXattr, []: [&[u8]; 0]| match fs.inode(ino) {
            Inode::Node(id) => fs.xattr_names(who, id),
            Inode::Virtual(_) => Ok(Vec::new()),
        };
        let answer = move |_: &Arc<Fs>, reply, listed| answer(reply, size, listed);
        self.change([], Change { waits: true, beside: false, reply, run, answer });
    }

    fn xattr_names(&self, who: Caller, id: NodeId) -> Result<Vec<u8>> {
        let Some(file) = self.attributes(who, id)? else { return Ok(Vec::new()) };
        let mut out = Vec::new();
        for name in os::xattr_list(&*file)? {
            let shown = match name.as_str() {
                KEPT_ACCESS => ACL_ACCESS,
                KEPT_DEFAULT => ACL_DEFAULT,
                n if n.starts_with("user.") && !is_ours(n) => n,
                _ => continue,
            };
            out.extend_from_slice(shown.as_bytes());
            out.push(0);
        }
        Ok(out)
    }

    /// SETXATTR.
    pub(super) fn setxattr(
        &self,
        who: Caller,
        ino: INodeNo,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        let id = self.node(ino)?;
        self.refuse_removed(who, id)?;
        let name =
            std::str::from_utf8(name).map_err(|_| Error::new(Kind::Invalid, "attribute names are UTF-8"))?;
        let mode = match flags {
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => XattrMode::Set,
        };
        match name {
            ACL_ACCESS | ACL_DEFAULT => self.set_acl(who, id, name, value),
            "user.fencefs.pin" => self.set_pin(who, id, value),
            TTL => self.set_ttl(who, id, parse_ttl(value)?).map(drop),
            "user.fencefs.epoch" => self.expect_epoch(who, id, value),
            _ if is_ours(name) => Err(not_ours_to_set()),
            _ if name.starts_with("user.") => {
                let (file, _lease) = self.changeable(who, id)?.ok_or_else(no_attributes)?;
                os::xattr_set(&*file, name, value, mode)
            }
            _ => Err(Error::new(Kind::Unsupported, "only user.* attributes and ACLs are kept")),
        }
    }

    fn set_pin(&self, who: Caller, id: NodeId, value: &[u8]) -> Result<()> {
        let pinned = match value {
            b"1" => true,
            b"0" => false,
            _ => return Err(Error::new(Kind::Invalid, "user.fencefs.pin is 0 or 1")),
        };
        match self.before_publication(who, id, |staged| staged.pinned = pinned) {
            Ok(()) => Ok(()),
            Err(id) => self.store.set_pinned(id, pinned),
        }
    }

    /// Does something to a value that is being written, which its publication takes over; the node to do it to where it
    /// is published.
    fn before_publication<T>(
        &self,
        who: Caller,
        id: NodeId,
        run: impl FnOnce(&mut Staged) -> T,
    ) -> std::result::Result<T, NodeId> {
        let Some(writing) = self.unpublished(who, id) else { return Err(id) };
        let mut staged = writing.staged.lock();
        // Published while this waited for the lock, or a moment ago.
        if staged.is_published() { Err(staged.node()) } else { Ok(run(&mut staged)) }
    }

    fn own_ttl(&self, who: Caller, id: NodeId) -> Result<Vec<u8>> {
        if self.store.is_directory(id) {
            return Err(unset());
        }
        let file = self.attributes(who, id)?.ok_or_else(unset)?;
        let seconds = crate::store::ttl::own_ttl(&file)?.ok_or_else(unset)?;
        Ok(seconds.to_string().into_bytes())
    }

    /// Sets how long a key lives, none is as long as its tenant's do; whether it had a time of its own.
    fn set_ttl(&self, who: Caller, id: NodeId, seconds: Option<u64>) -> Result<bool> {
        let id = match self.before_publication(who, id, |s| self.store.set_ttl_of(s.file(), seconds)) {
            Ok(set) => return set,
            Err(id) => id,
        };
        match self.own_file(who, id).filter(|_| !self.store.is_named(id)) {
            Some(file) => self.store.set_ttl_of(&file, seconds),
            None => self.store.set_ttl(id, seconds),
        }
    }

    /// A writer says under which epoch it took its work: if the tenant has moved on, its close fails.
    fn expect_epoch(&self, who: Caller, id: NodeId, value: &[u8]) -> Result<()> {
        let epoch = std::str::from_utf8(value).ok().and_then(|t| t.parse().ok());
        let epoch =
            epoch.ok_or_else(|| Error::new(Kind::Invalid, "user.fencefs.epoch is a decimal number"))?;
        let now = if let Some(writing) = self.unpublished(who, id) {
            let mut staged = writing.staged.lock();
            if !staged.is_published() {
                staged.expect_epoch(Epoch(epoch));
                return Ok(());
            }
            staged.epoch()
        } else {
            // What is edited in place is visible as it happens: its writer is refused before it has done anything.
            let open = self.opens.node(id).filter(|open| open.is_written()).ok_or_else(not_ours_to_set)?;
            open.home().epoch
        };
        if now == Epoch(epoch) {
            return Ok(());
        }
        Err(Error::new(Kind::Stale, format!("the work was taken under epoch {epoch}, and this is {now}")))
    }

    fn unpublished(&self, who: Caller, id: NodeId) -> Option<Arc<super::opens::Writing>> {
        let replacing = self.opens.replacing(id).into_iter().find(|w| w.opened_by(who.tid));
        replacing.or_else(|| self.opens.node(id)?.unsettled().cloned())
    }

    fn set_acl(&self, who: Caller, id: NodeId, name: &str, value: &[u8]) -> Result<()> {
        let acl = Acl::parse(value)?;
        let (file, _lease) = self.changeable(who, id)?.ok_or_else(no_attributes)?;
        self.store.note_acls();
        if name == ACL_DEFAULT {
            return os::xattr_set(&*file, KEPT_DEFAULT, &acl.encode(), XattrMode::Set);
        }
        if acl.is_trivial() {
            os::xattr_remove(&*file, KEPT_ACCESS)?;
        } else {
            os::xattr_set(&*file, KEPT_ACCESS, &acl.encode(), XattrMode::Set)?;
        }
        // The mode shows the ACL's owner, mask and others.
        let mode = os::stat(&*file)?.mode & 0o7000 | acl.to_mode_bits();
        let set = SetAttr {
            mode: Some(mode),
            uid: None,
            gid: None,
            atime: os::SetTime::Keep,
            mtime: os::SetTime::Keep,
        };
        match self.own_file(who, id) {
            Some(file) => crate::store::edit::apply(&*file, &set),
            None => self.store.set_attr(id, &set),
        }
    }

    /// REMOVEXATTR.
    pub(super) fn removexattr(&self, who: Caller, ino: INodeNo, name: &[u8]) -> Result<()> {
        let id = self.node(ino)?;
        self.refuse_removed(who, id)?;
        let name = std::str::from_utf8(name).map_err(|_| unset())?;
        let kept = match name {
            ACL_ACCESS => KEPT_ACCESS,
            ACL_DEFAULT => KEPT_DEFAULT,
            TTL => return if self.set_ttl(who, id, None)? { Ok(()) } else { Err(unset()) },
            _ if is_ours(name) => return Err(not_ours_to_set()),
            _ if name.starts_with("user.") => name,
            _ => return Err(unset()),
        };
        let (file, _lease) = self.changeable(who, id)?.ok_or_else(unset)?;
        if os::xattr_remove(&*file, kept)? { Ok(()) } else { Err(unset()) }
    }
}

/// Seconds; 0 is none.
fn parse_ttl(value: &[u8]) -> Result<Option<u64>> {
    let invalid = || Error::new(Kind::Invalid, "user.fencefs.ttl is a decimal number of seconds");
    let seconds = crate::store::ttl::parse_own(value).ok_or_else(invalid)?;
    Ok(Some(seconds).filter(|n| *n > 0))
}

fn no_attributes() -> Error {
    Error::new(Kind::Unsupported, "the root and tenant directories keep no user attributes")
}

fn is_ours(name: &str) -> bool {
    name == OURS || name.starts_with("user.fencefs.")
}

fn answer(reply: ReplyXattr, size: u32, value: Result<Vec<u8>>) {
    match value {
        Ok(v) if size == 0 => reply.size(v.len() as u32),
        Ok(v) if v.len() > size as usize => reply.error(fuser::Errno::ERANGE),
        Ok(v) => reply.data(&v),
        Err(e) => reply.error(errno(&e)),
    }
}
