//! A node of the index: a directory, a key, or a value on its way. Plain values.

use super::children::Children;
use super::evict::Slot;
use crate::key::RecordKind;
use crate::os::Timespec;

/// A node for as long as anyone may ask for it: slot number and the slot's generation. The uppermost eight bits are
/// always 0, for who has something to add.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

/// Generations of a slot: so many that nobody still asks for the node that had the same one before.
const GENERATIONS: u32 = 1 << 24;

/// No node, ever.
pub const NOWHERE: NodeId = NodeId(0);
/// The root: the directory of tenants.
pub const ROOT: NodeId = NodeId(1);
pub(super) const ROOT_SLOT: Slot = 1;

impl NodeId {
    pub(super) fn new(slot: Slot, generation: u32) -> Self {
        NodeId(u64::from(generation) << 32 | u64::from(slot))
    }

    /// The slot in the index.
    pub fn slot(self) -> Slot {
        self.0 as Slot
    }

    pub(super) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The generation that a slot has next.
    pub(super) fn after(generation: u32) -> u32 {
        (generation + 1) % GENERATIONS
    }
}

/// Where a node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The slot is unused.
    Free,
    /// Its parent lists it.
    Linked,
    /// Its value is being written; only its writer knows it.
    Pending,
    /// Its name is gone.
    Orphan,
}

/// Where a value is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// In a record of the store.
    #[default]
    Record,
    /// In the attached directory: it is copied into a record before anything of it changes.
    Attached,
}

/// What is known of a value's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Content {
    /// Its checksum is to be compared before its first use.
    pub unverified: bool,
    /// It may change without a request: it has no checksum.
    pub unseen: bool,
    /// Where it is kept.
    pub source: Source,
}

/// A directory's own attributes, kept in memory so that creating a file writes none of them.
#[derive(Debug, Clone, Copy)]
pub struct DirAttr {
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub atime: Timespec,
    /// Last change of the entries.
    pub mtime: Timespec,
    /// Last change of anything.
    pub ctime: Timespec,
}

/// The part of a node that only directories have.
#[derive(Debug)]
pub struct Directory {
    /// Entries by their readdir cookie: stable, never reused, in order of linking.
    pub children: Children,
    pub(super) next_cookie: u64,
    /// Directories among the children.
    pub subdirs: u32,
    /// Attributes.
    pub attr: DirAttr,
    /// Whether a record on disk keeps this directory; an implied one lives only by its keys.
    pub recorded: bool,
    /// Whether `attr` has times that the disk does not.
    pub dirty: bool,
}

/// First cookie of a real entry; 1 and 2 stand for `.` and `..`.
pub const FIRST_COOKIE: u64 = 3;

impl Directory {
    /// An empty directory.
    pub fn new(attr: DirAttr, recorded: bool) -> Self {
        Directory {
            children: Children::default(),
            next_cookie: FIRST_COOKIE,
            subdirs: 0,
            attr,
            recorded,
            dirty: false,
        }
    }
}

/// One directory, key or pending value.
#[derive(Debug)]
pub struct Node {
    pub(super) generation: u32,
    /// The directory that lists it (or would).
    pub parent: Slot,
    pub(super) parent_generation: u32,
    /// Its number among the tenants; meaningless for the root.
    pub tenant: u32,
    /// References handed out.
    pub(super) refs: u32,
    /// Handles that may change the content in place.
    pub writers: u32,
    /// Where it stands.
    pub state: State,
    /// What it is.
    pub kind: RecordKind,
    /// Out of eviction's reach.
    pub pinned: bool,
    /// What is known of its content.
    pub content: Content,
    /// Allocated blocks of 512 bytes that usage counts for it.
    pub blocks: u64,
    pub(super) cookie: u64,
    /// Its name in `parent`.
    pub name: Box<[u8]>,
    /// What only directories have.
    pub dir: Option<Box<Directory>>,
}

impl Node {
    /// Whether anybody knows of it: then it may be remembered.
    pub(super) fn is_referred_to(&self) -> bool {
        self.refs > 0
    }
}
