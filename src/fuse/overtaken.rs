//! Opens that another program's replacement overtakes, and what the kernel's cache must not mix up meanwhile.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Fs;
use super::files::Caller;
use super::opens::OpenNode;
use crate::error::{Error, Kind, Result};
use crate::os::{self, Attr};
use crate::store::NodeId;
use crate::store::legacy::Value;

/// How often one open is overtaken before it is sent back to look its path up.
pub(super) const MOST_OVERTAKES: usize = 64;
/// Callers whose return is expected, and for how long.
const MOST_SENT_BACK: usize = 64;
const RETURN_WAIT: Duration = Duration::from_secs(2);

/// The inode lost its key. The kernel answers ESTALE with a fresh look-up of the path, so that a program sees the new
/// value of a replaced key, and ENOENT where there is none.
pub(super) fn gone() -> Error {
    Error::new(Kind::Stale, "no such key any more")
}

/// The same where a fresh look-up led to such an inode again.
fn absent() -> Error {
    Error::new(Kind::NotFound, "no such key any more")
}

impl Fs {
    /// An open was overtaken by a replacement: the kernel is to look its path up once more, which leads to the new value's
    /// inode. It does so once, and a busy key is replaced faster than that: one that came back goes on.
    pub(super) fn look_up_again(&self, who: Caller) -> Result<()> {
        if self.came_back(who) { Ok(()) } else { Err(self.send_back(who)) }
    }

    /// What a request by path is told whose inode lost its key: the kernel looks the path up once more, and where that led
    /// to an inode without a key again, there is none.
    pub(super) fn overtaken(&self, who: Caller, e: Error) -> Error {
        match e.kind() {
            Kind::Stale if self.came_back(who) => absent(),
            Kind::Stale => self.send_back(who),
            _ => e,
        }
    }

    /// An open that was overtaken more than once gets the new value through the old inode, past the kernel's cache: what
    /// that knows of the inode, length and content, is the old value's.
    pub(super) fn open_successor(&self, who: Caller, id: NodeId, access: u32) -> Result<(NodeId, Value)> {
        let overtaken = || -> Result<_> {
            let next = self.store.successor(id).ok_or_else(absent)?;
            Ok(self.store.open_value(next, None)?.map(|value| (next, value)))
        };
        // The successor may be overtaken as well.
        let mut found = None;
        for _ in 0..MOST_OVERTAKES {
            found = overtaken()?;
            if found.is_some() {
                break;
            }
        }
        let (next, value) = found.ok_or_else(gone)?;
        let attr = &value.attr;
        // The kernel judged the old value's permissions. What it could not judge goes the long way.
        let allowed = match who {
            Caller { uid: 0, .. } => true,
            Caller { uid, .. } if uid == attr.uid => attr.mode & (access << 6) != 0,
            Caller { gid, .. } if gid == attr.gid => attr.mode & (access << 3) != 0,
            _ => attr.mode & access != 0,
        };
        if !allowed {
            return Err(gone());
        }
        self.uncached.lock().nodes.insert(id);
        Ok((next, value))
    }

    /// Where the daemon copies, cached readers go by the inode's length in the kernel, and that is about to become the
    /// replacement's. So they keep the inode, and the key gets another, whose readers are not cached; the kernel finds
    /// it when it looks the path up again after ESTALE. It does that once: whoever comes back waits for them, until
    /// [`Kind::Busy`] is final.
    pub(super) fn spare_cached_readers(&self, who: Caller, open: &OpenNode, again: bool) -> Result<()> {
        if open.backing.is_some() {
            return Ok(());
        }
        let id = open.node;
        let mut uncached = self.uncached.lock();
        let read = open.edits.load(Ordering::Relaxed) == 0 && open.cached.load(Ordering::Relaxed) > 0;
        if !read {
            uncached.nodes.insert(id);
            return Ok(());
        }
        if again {
            // Another value came between. Its readers close soon; new ones are not cached.
            uncached.nodes.insert(id);
            uncached.awaited.insert(id);
            drop(uncached);
            self.send_back(who);
            return Err(Error::new(Kind::Busy, "the value is being read; it cannot be overwritten yet"));
        }
        // Somebody else may have replaced it this very moment: then the key has another inode already.
        if let Ok((parent, _)) = self.store.place(id)
            && let Ok(fresh) = self.store.rehome(id)
        {
            uncached.nodes.insert(fresh);
            drop(uncached);
            self.listing_changed(parent);
        }
        Err(self.send_back(who))
    }

    /// A handle that the kernel cached is closed.
    pub(super) fn leave_cached(&self, open: &OpenNode) {
        let mut uncached = self.uncached.lock();
        if open.cached.fetch_sub(1, Ordering::Relaxed) == 1 && uncached.awaited.remove(&open.node) {
            drop(uncached);
            self.fences.change();
        }
    }

    /// What takes the name of an inode that is overwritten is overwritten next: its readers are not cached either.
    pub(super) fn inherit_uncached(&self, from: Option<NodeId>, by: NodeId) {
        if !self.is_passthrough()
            && let Some(from) = from
        {
            let mut uncached = self.uncached.lock();
            if uncached.nodes.contains(&from) {
                uncached.nodes.insert(by);
            }
        }
    }

    /// The error that has the kernel look a caller's path up once more; it is remembered that it did.
    pub(super) fn send_back(&self, who: Caller) -> Error {
        let mut sent_back = self.sent_back.lock();
        sent_back.retain(|(tid, _)| *tid != who.tid);
        if sent_back.len() >= MOST_SENT_BACK {
            sent_back.remove(0);
        }
        sent_back.push((who.tid, Instant::now()));
        gone()
    }

    /// Whether this caller's path was just looked up once more: a second ESTALE would reach the program.
    pub(super) fn came_back(&self, who: Caller) -> bool {
        let mut sent_back = self.sent_back.lock();
        let at = sent_back.iter().position(|(tid, _)| *tid == who.tid);
        at.map(|at| sent_back.swap_remove(at)).is_some_and(|(_, when)| when.elapsed() < RETURN_WAIT)
    }

    /// O_TRUNC of a key that vanished between look-up and open, twice: it is made anew in its last place.
    pub(super) fn vanished(&self, who: Caller, id: NodeId) -> Result<(NodeId, Value)> {
        let file = self.store.probe_file()?;
        let attr = os::stat(&file)?;
        let attr = Attr { mode: libc::S_IFREG | 0o644, uid: who.uid, gid: who.gid, ..attr };
        Ok((id, Value::from((file, attr))))
    }
}
