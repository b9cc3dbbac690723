//! `by-key`: a tenant's keys under percent-encoded names, those also that no path spells.
//!
//! An entry here is a second name of an ordinary node, so the kernel remembers none: whoever takes a key away need not
//! tell it of two. What is made or unlinked here under a name that a path spells too is told at that path. That is
//! never waited for: the request holds this directory's lock in the kernel, and a rename between the two directories
//! may hold the other one.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{FileAttr, FileType, INodeNo, ReplyDirectory, ReplyDirectoryPlus};

use super::dirs::{Seen, bare};
use super::files::Caller;
use super::requests::errno;
use super::virt::VirtualIno;
use super::work::Notice;
use super::{FORGET, Fs, Inode, attr};
use crate::error::{Error, Kind, Result};
use crate::format::percent;
use crate::key::Key;
use crate::os::{Attr, Timespec, process};
use crate::store::NodeId;
use crate::store::index::FIRST_COOKIE;

/// The empty key's name, since no entry can be called nothing. It is no encoding of any key.
const EMPTY_KEY: &str = "%";
/// Longest name that is listed: with its attributes it still fits the smallest buffer that the kernel offers, one page.
/// A longer one would end the listing.
const MAX_LISTED_BYTES: usize = 3944;
const SEARCH: u16 = 0o1;
const WRITE: u16 = 0o2;

/// The entry that a request is about.
pub(super) struct Named<'a> {
    /// Its directory.
    pub(super) dir: NodeId,
    /// Its name there.
    pub(super) name: Cow<'a, [u8]>,
    /// The request said it by its key.
    pub(super) by_key: bool,
}

/// The name of a key below `by-key`.
fn encode(key: &[u8]) -> String {
    if key.is_empty() { EMPTY_KEY.to_owned() } else { percent::encode(key) }
}

fn no_name() -> Error {
    Error::new(Kind::NotFound, "no key has this name")
}

impl Fs {
    /// The entry that a change is about; [`Kind::NotPermitted`] where there is none to be changed.
    pub(super) fn named<'a>(&self, who: Caller, parent: INodeNo, name: &'a [u8]) -> Result<Named<'a>> {
        match self.inode(parent) {
            Inode::Virtual(v) if v.is_by_key() => self.entry_by_key(who, v, name, SEARCH | WRITE),
            _ => {
                let dir = self.node(parent)?;
                self.unreserved(dir, name)?;
                Ok(Named { dir, name: Cow::Borrowed(name), by_key: false })
            }
        }
    }

    /// The entry that a look-up below `by-key` is about.
    pub(super) fn seen_by_key(&self, who: Caller, v: VirtualIno, name: &[u8]) -> Result<Named<'static>> {
        self.entry_by_key(who, v, name, SEARCH)
    }

    fn entry_by_key(&self, who: Caller, v: VirtualIno, name: &[u8], access: u16) -> Result<Named<'static>> {
        let tenant = self.tenant_of_scope(v)?.ok_or_else(no_name)?;
        let is_empty = name == EMPTY_KEY.as_bytes();
        let key = if is_empty { Some(Vec::new()) } else { percent::decode(name) };
        let (dir, name) = self.store.place_of_key(&tenant, &Key::new(key.ok_or_else(no_name)?)?)?;
        if is_empty && self.store.child(dir, &name).is_none() {
            // Nobody makes that one: a name that is no encoding is a mistake, unless an import brought the empty key.
            return Err(no_name());
        }
        self.may_enter(who, dir, access)?;
        Ok(Named { dir, name: Cow::Owned(name.into()), by_key: true })
    }

    /// Whether a caller may use a directory that the kernel did not walk through. The tenant's own it has judged by
    /// `by-key`'s mode.
    fn may_enter(&self, who: Caller, dir: NodeId, access: u16) -> Result<()> {
        let (mut at, mut access) = (self.store.governing(dir), access);
        while who.uid != 0 && !self.store.is_tenant_dir(at) {
            let (attr, _) = self.attr_of(at, who.tid)?;
            if !self.grants(who, at, &attr, access)? {
                return Err(Error::new(Kind::AccessDenied, "a directory of the key's path may not be used"));
            }
            (at, access) = (self.store.parent(at)?, SEARCH);
        }
        Ok(())
    }

    fn grants(&self, who: Caller, dir: NodeId, attr: &FileAttr, access: u16) -> Result<bool> {
        let allows = |shift: u16| attr.perm >> shift & access == access;
        if who.uid == attr.uid {
            return Ok(allows(6));
        }
        // An ACL may say anything; the kernel judges it, on the path.
        if self.has_acl(who, dir)? {
            return Ok(false);
        }
        Ok(match process::groups(who.tid) {
            _ if who.gid == attr.gid => allows(3),
            Some(groups) if groups.contains(&attr.gid) => allows(3),
            Some(_) => allows(0),
            None => allows(3) && allows(0),
        })
    }

    /// The sticky bit of a directory that the kernel did not see.
    pub(super) fn may_unlink_by_key(&self, who: Caller, dir: NodeId, id: NodeId) -> Result<()> {
        if who.uid == 0 || self.store.is_tenant_dir(self.store.governing(dir)) {
            return Ok(());
        }
        let (above, _) = self.attr_of(dir, who.tid)?;
        let sticky = u32::from(above.perm) & libc::S_ISVTX != 0;
        if sticky && above.uid != who.uid && self.attr_of(id, who.tid)?.0.uid != who.uid {
            return Err(Error::new(
                Kind::NotPermitted,
                "the directory is sticky, and the value another user's",
            ));
        }
        Ok(())
    }

    /// Refuses to move what a path spells by its key: the kernel would take the entry at the path for what it was.
    pub(super) fn movable_by_key(&self, from: &Named<'_>, to: &Named<'_>) -> Result<()> {
        let spelled = |at: &Named<'_>| at.by_key && self.store.governing(at.dir) == at.dir;
        let is_dir =
            |at: &Named<'_>| self.store.child(at.dir, &at.name).is_some_and(|id| self.store.is_directory(id));
        if spelled(from) || spelled(to) {
            return Err(Error::new(Kind::CrossTenant, "a key that a path spells is renamed by its path"));
        }
        if (from.by_key || to.by_key) && (is_dir(from) || is_dir(to)) {
            return Err(Error::new(Kind::NotPermitted, "below by-key are only values and symbolic links"));
        }
        Ok(())
    }

    /// A value was made: where it was made by its key, the kernel may remember that its path leads nowhere.
    pub(super) fn entry_appeared(&self, named: &Named<'_>) {
        if named.by_key {
            self.notice_later(Notice::Entry {
                parent: self.ino(named.dir),
                name: named.name.as_ref().into(),
                then: None,
            });
        }
    }

    /// A value was unlinked by its key: the kernel may remember its path.
    pub(super) fn entry_vanished(&self, dir: NodeId, name: &[u8], id: NodeId) {
        // Without attributes it asks, and is told that there is nothing.
        self.forget_attributes(id);
        self.notice_later(Notice::Entry { parent: self.ino(dir), name: name.into(), then: None });
    }

    /// Attributes of `by-key`: who may use the tenant's directory may use it.
    pub(super) fn by_key_attr(&self, v: VirtualIno) -> FileAttr {
        let above = self.tenant_of_scope(v).and_then(|tenant| {
            let tenant = tenant.ok_or_else(no_name)?;
            self.attr_of(self.store.tenant_node(&tenant)?, 0)
        });
        let now = Timespec::now();
        let (perm, uid, gid) = above.map_or((0, 0, 0), |(a, _)| (a.perm, a.uid, a.gid));
        let plain =
            Attr { mode: perm.into(), uid, gid, atime: now, mtime: now, ctime: now, ..Attr::default() };
        // The time of its last change is always now, so that the kernel never believes a listing that it kept.
        let mut attr = attr::plain(self.virtual_ino(v), FileType::Directory, &plain);
        attr.nlink = 2;
        attr
    }

    fn each_by_key(
        &self,
        v: VirtualIno,
        offset: u64,
        mut add: impl FnMut(u64, INodeNo, FileType, &[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let tenant = self.tenant_of_scope(v)?.ok_or_else(no_name)?;
        let dots = [v, v.above()].map(|v| self.virtual_ino(v));
        self.each_entry(self.store.unspelled(&tenant)?, dots, offset, |at, ino, kind, name| {
            let shown =
                if at < FIRST_COOKIE { Cow::Borrowed(name) } else { encode(name).into_bytes().into() };
            shown.len() <= MAX_LISTED_BYTES && add(at, ino, kind, name, &shown)
        })
    }

    /// READDIR of `by-key`: the keys that no path spells.
    pub(super) fn readdir_by_key(&self, v: VirtualIno, offset: u64, mut reply: ReplyDirectory) {
        let done = self.each_by_key(v, offset, |at, ino, kind, _, shown| {
            reply.add(ino, at, kind, OsStr::from_bytes(shown))
        });
        match done {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }

    /// READDIRPLUS of `by-key`.
    pub(super) fn readdirplus_by_key(
        &self,
        who: Caller,
        v: VirtualIno,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let dir = self.tenant_of_scope(v).and_then(|t| self.store.unspelled(&t.ok_or_else(no_name)?));
        let done = dir.and_then(|dir| {
            self.each_by_key(v, offset, |at, ino, kind, name, shown| {
                let seen = bare(at, ino, kind).unwrap_or_else(|| self.see(who, dir, name));
                let seen = match seen {
                    Ok(Seen::Node(attr, _)) => Ok(Seen::Node(attr, FORGET)),
                    other => other,
                };
                self.add_seen(&mut reply, (at, shown), seen)
            })
        });
        match done {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_name_that_an_entry_can_have() {
        for key in [&b""[..], b".", b"..", b"/", b"a//b", b"\0", b"%"] {
            let name = encode(key);
            assert!(!["", ".", ".."].contains(&name.as_str()) && !name.contains('/'), "{name}");
        }
        assert_eq!(percent::decode(EMPTY_KEY.as_bytes()), None);
    }
}
