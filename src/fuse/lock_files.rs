//! Lock files. Whoever opens one to lock it means the file that the others lock: while an empty value is open it is not
//! evicted, and a replacement of it that stays empty replaces nothing. The kernel keeps the locks and tells nobody, so
//! every empty value is taken for one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Fs;
use super::opens::{Handle, OpenNode, Writing};
use crate::error::Result;
use crate::os::{self, SetTime};
use crate::store::SetAttr;

impl Fs {
    /// Keeps an empty value where it is until its inode's last close; whether it still is there.
    pub(super) fn hold(&self, open: &OpenNode) -> bool {
        if !open.held.swap(true, Ordering::AcqRel) && !self.store.hold(open.node) {
            open.held.store(false, Ordering::Release);
            return false;
        }
        true
    }

    /// One open of an inode fewer.
    pub(super) fn leave(&self, open: &Arc<OpenNode>) {
        if self.opens.leave(open) && open.held.load(Ordering::Acquire) {
            self.store.let_go(open.node);
        }
    }

    /// At the last close of a replacement: whether it and what it is to replace are both empty, and nothing else differs.
    /// Then the key keeps its inode, which others may hold a lock on, and only its time changes.
    pub(super) fn replaces_nothing(&self, handle: &Handle, writing: &Writing) -> Result<bool> {
        if !handle.replaces || !writing.is_unsettled() || writing.staged.lock().is_doomed() {
            return Ok(false);
        }
        let (new, old) = (os::stat(&*writing.file)?, os::stat(&*handle.open.file)?);
        let (parent, name) = writing.place.lock().clone();
        let same = new.size_bytes == 0
            && handle.open.span.is_none()
            && (old.size_bytes, old.mode, old.uid, old.gid) == (0, new.mode, new.uid, new.gid)
            && self.store.child(parent, &name) == Some(handle.open.node)
            && attributes(&writing.file)? == attributes(&handle.open.file)?;
        if same {
            let (mode, uid, gid) = (None, None, None);
            let now = SetAttr { mode, uid, gid, atime: SetTime::Keep, mtime: SetTime::Now };
            self.store.set_attr(handle.open.node, &now)?;
        }
        Ok(same)
    }
}

/// What a program has set on a file.
fn attributes(file: &std::fs::File) -> Result<Vec<(String, Option<Vec<u8>>)>> {
    let mut names = os::xattr_list(file)?;
    names.retain(|name| name != crate::format::record::XATTR);
    names.sort();
    names.into_iter().map(|name| Ok((name.clone(), os::xattr_get(file, &name, 64 << 10)?))).collect()
}
