//! The mount: close-to-open semantics over the store, and the virtual files.
//!
//! `Fs` is thin: each request goes to the file that holds its group of operations (`files`, `io`, `dirs`, `xattr`,
//! `virt`, `ioctl`); what is open lives in `opens` and `replies`, what waits in `parked`, what the store tells in
//! `events`, threads beside the event loop in `work`.

mod acl;
mod attr;
mod awake;
mod by_key;
mod close;
mod connection;
mod dirs;
mod events;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod handover;
mod io;
mod ioctl;
mod known;
mod leave;
mod lock_files;
mod mount;
mod numbers;
mod opens;
mod overtaken;
mod parked;
mod publish;
mod replies;
mod requests;
mod virt;
mod work;
mod xattr;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fuser::{INodeNo, Notifier};
use parking_lot::Mutex;

use crate::config::MountSettings;
use crate::control::removals::Removals;
use crate::error::{Error, Kind, Result};
use crate::key::RESERVED;
use crate::store::{NOWHERE, NodeId, ROOT, Store};
use numbers::VIRTUAL_BIT;

pub use connection::Connection;
pub use handover::{Handed, Takeover};
pub use mount::{Mount, Stopper, detach};
pub use numbers::Incarnation;

/// How long the kernel may remember what it was told. Whatever changes is taken back explicitly.
const REMEMBER: Duration = Duration::from_secs(24 * 3600);
const FORGET: Duration = Duration::ZERO;
/// How much later than it was told the kernel's coarse clock may forget.
const CLOCK_TICK: Duration = Duration::from_millis(20);

/// What a number stands for.
enum Inode {
    Node(NodeId),
    Virtual(virt::VirtualIno),
}

/// Inodes whose readers are not cached, since their values are overwritten by O_TRUNC.
#[derive(Default)]
struct Uncached {
    nodes: HashSet<NodeId>,
    /// Those with readers from before, which somebody waits for.
    awaited: HashSet<NodeId>,
}

/// The filesystem, shared by the event loops and the threads beside them.
struct Fs {
    store: Arc<Store>,
    removals: Arc<Removals>,
    settings: MountSettings,
    /// Which daemon of the mount's connection this is.
    incarnation: Incarnation,
    gate: leave::Gate,
    /// Numbers that an earlier daemon gave and that still count.
    known: known::Known,
    /// The node at the root of the mount: the root of the store, or one tenant.
    top: NodeId,
    passthrough: AtomicBool,
    opens: opens::Opens,
    pool: work::Pool,
    /// Requests that wait for a fence to open.
    fences: parked::Parked,
    notices: Mutex<Option<mpsc::Sender<work::Notice>>>,
    /// Notices that may wait long for a lock in the kernel, and that nobody waits for.
    late_notices: Mutex<Option<mpsc::Sender<work::Notice>>>,
    notifier: Mutex<Option<Notifier>>,
    /// Entries that the kernel is about to forget: until then it may take them for what they were.
    stale: Mutex<Vec<(NodeId, Box<[u8]>)>>,
    /// Threads whose open was sent back to look its path up once more.
    sent_back: Mutex<Vec<(u32, Instant)>>,
    /// Without passthrough: which inodes the kernel must not cache.
    uncached: Mutex<Uncached>,
    /// Directories that were listed since their listing last changed.
    listed: Mutex<HashSet<NodeId>>,
    streams: replies::Streams,
    awake: awake::Awake,
}

impl Fs {
    fn inode(&self, ino: INodeNo) -> Inode {
        if ino.0 == ROOT.0 {
            return Inode::Node(self.top);
        }
        match self.incarnation.unmark(ino.0) {
            Some(number) if number & VIRTUAL_BIT != 0 => {
                Inode::Virtual(virt::VirtualIno::from_number(number))
            }
            Some(number) => Inode::Node(NodeId(number)),
            None => Inode::Node(self.known.directory(ino.0).unwrap_or(NOWHERE)),
        }
    }

    /// Whether a number is one that an earlier daemon of the connection gave.
    fn is_an_earlier_daemons(&self, ino: INodeNo) -> bool {
        matches!(self.inode(ino), Inode::Node(NOWHERE))
    }

    /// The node of a number; a virtual file is EPERM.
    fn node(&self, ino: INodeNo) -> Result<NodeId> {
        match self.inode(ino) {
            Inode::Node(NOWHERE) => Err(handover::of_an_earlier_daemon()),
            Inode::Node(id) => Ok(id),
            Inode::Virtual(_) => Err(Error::new(Kind::NotPermitted, "not inside .fencefs")),
        }
    }

    fn ino(&self, id: NodeId) -> INodeNo {
        if id == self.top {
            return INodeNo(ROOT.0);
        }
        INodeNo(self.known.number(id).unwrap_or_else(|| self.incarnation.mark(id.0)))
    }

    fn virtual_ino(&self, v: virt::VirtualIno) -> INodeNo {
        INodeNo(self.incarnation.mark(v.number()))
    }

    fn is_passthrough(&self) -> bool {
        self.passthrough.load(Ordering::Relaxed)
    }

    /// Whether `.fencefs` is the reserved name in this directory.
    fn reserves(&self, parent: NodeId, name: &[u8]) -> bool {
        name == RESERVED && (parent == self.top || self.store.is_tenant_dir(parent))
    }

    /// Refuses changes of the reserved name.
    fn unreserved(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        if self.reserves(parent, name) {
            Err(Error::new(Kind::NotPermitted, "the name .fencefs is reserved here"))
        } else {
            Ok(())
        }
    }

    /// Has the notifying thread do something; after the mount is gone there is nothing to forget. In a tenant that is
    /// being removed a directory may be locked for as long as that takes, and others' closes must not wait for it.
    fn notice(&self, notice: work::Notice) {
        match notice {
            work::Notice::Entry { parent, name, then } if self.is_being_removed(parent) => {
                self.notice_later(work::Notice::Entry { parent, name, then: None });
                if let Some(then) = then {
                    then();
                }
            }
            notice => Self::send_notice(&self.notices, notice),
        }
    }

    /// Has the kernel forget something that nobody waits for, or not for long.
    fn notice_later(&self, notice: work::Notice) {
        Self::send_notice(&self.late_notices, notice);
    }

    fn send_notice(to: &Mutex<Option<mpsc::Sender<work::Notice>>>, notice: work::Notice) {
        let unsent = match &*to.lock() {
            Some(sender) => sender.send(notice).err().map(|e| e.0),
            None => Some(notice),
        };
        if let Some(work::Notice::Entry { then: Some(then), .. }) = unsent {
            then();
        }
    }

    /// Whether a removal has closed the fence of a directory's tenant.
    fn is_being_removed(&self, dir: INodeNo) -> bool {
        let home = self.node(dir).and_then(|id| self.store.home_of(id));
        home.is_ok_and(|home| home.fence.closed_towards().is_some())
    }

    /// A directory's listing changed without a request on it: the kernel's copy is dropped.
    fn listing_changed(&self, dir: NodeId) {
        if self.listed.lock().remove(&dir) {
            self.forget_attributes(dir);
        }
    }

    /// Has the kernel ask for the attributes of a node, and the listing of a directory, when it next needs them. This
    /// notification takes no lock in the kernel, so it may be sent from anywhere.
    fn forget_attributes(&self, id: NodeId) {
        if let Some(notifier) = &*self.notifier.lock()
            && let Err(e) = notifier.inval_inode(self.ino(id), -1, 0)
        {
            log::debug!("the kernel did not forget attributes: {e}");
        }
    }
}
