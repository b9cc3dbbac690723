//! Nodes by their paths from the root: how one opening of a store finds again what another one knew by number.

use super::Store;
use super::index::{Index, NodeId, ROOT, State};

/// Names from the root down.
pub type Names = Vec<Box<[u8]>>;

/// A directory that somebody has references to.
#[derive(Debug)]
pub struct KnownDirectory {
    /// Its node.
    pub node: NodeId,
    /// How many.
    pub references: u32,
    /// Where it stands.
    pub path: Names,
}

impl Index {
    /// Where a linked node stands; nothing where no names lead to it.
    fn path_of(&self, id: NodeId) -> Option<Names> {
        let (mut path, mut at) = (Names::new(), id);
        while at != ROOT {
            let node = self.linked(at).ok()?;
            let parent = self.parent_of(node);
            if self.child(parent, &node.name) != Some(at) {
                return None;
            }
            path.push(node.name.clone());
            at = parent;
        }
        path.reverse();
        Some(path)
    }

    fn at_path(&self, path: &[Box<[u8]>]) -> Option<NodeId> {
        path.iter().try_fold(ROOT, |dir, name| self.child(dir, name))
    }
}

impl Store {
    /// Every directory but the root that has references.
    pub fn known_directories(&self) -> Vec<KnownDirectory> {
        let index = self.index.lock();
        let known = |slot: usize| {
            let node = &index.nodes[slot];
            let is_known = node.state == State::Linked && node.dir.is_some() && node.is_referred_to();
            let id = index.id_of(slot as u32);
            let path = (is_known && id != ROOT).then(|| index.path_of(id))??;
            Some(KnownDirectory { node: id, references: node.refs, path })
        };
        (0..index.nodes.len()).filter_map(known).collect()
    }

    /// Where a node stands, if names lead to it.
    pub fn path_of(&self, id: NodeId) -> Option<Names> {
        self.index.lock().path_of(id)
    }

    /// The node at a path.
    pub fn at_path(&self, path: &[Box<[u8]>]) -> Option<NodeId> {
        self.index.lock().at_path(path)
    }

    /// The directory at a path, which somebody has so many references to.
    pub fn adopt_directory(&self, path: &[Box<[u8]>], references: u32) -> Option<NodeId> {
        let mut index = self.index.lock();
        let id = index.at_path(path)?;
        let node = index.get_mut(id).ok().filter(|node| node.dir.is_some())?;
        node.refs = node.refs.saturating_add(references);
        Some(id)
    }
}
