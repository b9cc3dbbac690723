//! Attributes as the kernel wants them.

use std::time::Duration;

use fuser::{FileAttr, FileType, INodeNo};

use super::Fs;
use super::opens::OpenNode;
use super::overtaken::gone;
use super::{CLOCK_TICK, FORGET, REMEMBER};
use crate::error::{Error, Kind, Result};
use crate::key::RecordKind;
use crate::os::{self, Attr};
use crate::store::{NodeAttr, NodeId};

impl Fs {
    /// Attributes of a node, as the thread `tid` sees them, and how long they hold.
    pub(super) fn attr_of(&self, id: NodeId, tid: u32) -> Result<(FileAttr, Duration)> {
        for writing in self.opens.replacing(id) {
            if writing.opened_by(tid) {
                let attr = os::stat(&*writing.file)?;
                return Ok((
                    self.file_attr(id, &NodeAttr { kind: RecordKind::File, attr, links: 1 }),
                    FORGET,
                ));
            }
        }
        if let Some(open) = self.opens.node(id) {
            return self.open_attr(&open);
        }
        match self.store.attr(id)? {
            Some(attr) => Ok((self.file_attr(id, &attr), self.remembered(id))),
            // The kernel asks while a process works in it, and would answer ESTALE with no look-up of it.
            None if self.store.is_directory(id) => {
                Err(Error::new(Kind::NotFound, "no such directory any more"))
            }
            None => match self.store.successor(id).map(|next| self.store.attr(next)) {
                Some(Ok(Some(attr))) => Ok((self.file_attr(id, &attr), FORGET)),
                _ => Err(gone()),
            },
        }
    }

    /// Attributes of an open inode, from its file.
    pub(super) fn open_attr(&self, open: &OpenNode) -> Result<(FileAttr, Duration)> {
        let attr = self.content_attr(open)?;
        let links = u32::from(self.store.is_named(open.node));
        let is_written = open.is_written() || !self.opens.replacing(open.node).is_empty();
        let ttl = if is_written { FORGET } else { self.remembered(open.node) };
        Ok((self.file_attr(open.node, &NodeAttr { kind: RecordKind::File, attr, links }), ttl))
    }

    /// How long the kernel may remember a node: never past the end of its time.
    fn remembered(&self, id: NodeId) -> Duration {
        self.store.time_left(id).map_or(REMEMBER, |left| left.saturating_sub(CLOCK_TICK).min(REMEMBER))
    }

    pub(super) fn file_attr(&self, id: NodeId, node: &NodeAttr) -> FileAttr {
        let kind = kind_of(node.kind);
        let mut attr = plain(self.ino(id), kind, &node.attr);
        attr.nlink = node.links;
        let s = &self.settings;
        attr.uid = s.uid.unwrap_or(attr.uid);
        attr.gid = s.gid.unwrap_or(attr.gid);
        let forced = match kind {
            FileType::Directory => s.dir_mode,
            FileType::RegularFile => s.file_mode,
            _ => Some(0o777),
        };
        attr.perm = forced.map_or(attr.perm, |m| m as u16 & 0o7777);
        attr
    }
}

/// The kernel's word for a kind of record.
pub(super) fn kind_of(kind: RecordKind) -> FileType {
    match kind {
        RecordKind::File => FileType::RegularFile,
        RecordKind::Symlink => FileType::Symlink,
        RecordKind::Directory => FileType::Directory,
    }
}

/// Attributes without any of the mount's overrides.
pub(super) fn plain(ino: INodeNo, kind: FileType, a: &Attr) -> FileAttr {
    let mtime = a.mtime.to_system_time();
    FileAttr {
        ino,
        size: a.size_bytes,
        blocks: a.blocks,
        atime: a.atime.to_system_time(),
        mtime,
        ctime: a.ctime.to_system_time(),
        crtime: mtime,
        kind,
        perm: (a.mode & 0o7777) as u16,
        nlink: 1,
        uid: a.uid,
        gid: a.gid,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
