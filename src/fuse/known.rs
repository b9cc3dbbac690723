//! What a daemon that lets go tells the next one of the numbers that the kernel has.
//!
//! A directory keeps its number: programs work in it, list it and make names in it across the change. A file that is open
//! has its attributes by its old number and is another inode to whoever opens it now, for the kernel's inode is backed by
//! what the old daemon gave it.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::format::percent::{decode, encode};
use crate::store::{Names, NodeId, Store};

/// Numbers of earlier daemons', and what they stand for now.
#[derive(Debug, Default)]
pub(super) struct Known {
    directories: HashMap<u64, NodeId>,
    numbers: HashMap<NodeId, u64>,
    files: HashMap<u64, NodeId>,
}

impl Known {
    /// Finds again what an earlier daemon has written down.
    pub(super) fn adopt(store: &Store, text: &str) -> Self {
        let mut known = Known::default();
        for line in text.lines().filter_map(Line::parse) {
            if line.is_directory {
                if let Some(id) = store.adopt_directory(&line.path, line.references) {
                    known.directories.insert(line.number, id);
                    known.numbers.insert(id, line.number);
                }
            } else if let Some(id) = store.at_path(&line.path) {
                known.files.insert(line.number, id);
            }
        }
        known
    }

    /// Writes down what the kernel has: directories by references, and what is open.
    pub(super) fn describe(
        &self,
        store: &Store,
        number_of: impl Fn(NodeId) -> u64,
        open: Vec<NodeId>,
    ) -> String {
        let mut text = String::new();
        let mut write = |number: u64, is_directory: bool, references: u32, path: &Names| {
            Line { number, is_directory, references, path: path.clone() }.write(&mut text);
        };
        for dir in store.known_directories() {
            write(number_of(dir.node), true, dir.references, &dir.path);
        }
        let open = open.into_iter().map(|id| (number_of(id), id));
        for (number, id) in open.chain(self.files.iter().map(|(number, id)| (*number, *id))) {
            if let Some(path) = store.path_of(id) {
                write(number, false, 0, &path);
            }
        }
        text
    }

    /// The directory that has kept its number.
    pub(super) fn directory(&self, number: u64) -> Option<NodeId> {
        self.directories.get(&number).copied()
    }

    /// The file that is open by this number.
    pub(super) fn file(&self, number: u64) -> Option<NodeId> {
        self.files.get(&number).copied()
    }

    /// The number that a directory has kept.
    pub(super) fn number(&self, id: NodeId) -> Option<u64> {
        self.numbers.get(&id).copied()
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Line {
    number: u64,
    is_directory: bool,
    references: u32,
    path: Names,
}

impl Line {
    fn write(&self, out: &mut String) {
        let kind = if self.is_directory { 'd' } else { 'f' };
        write!(out, "{kind} {} {} ", self.number, self.references).expect("a string takes every write");
        let names: Vec<_> = self.path.iter().map(|name| encode(name)).collect();
        out.push_str(&names.join("/"));
        out.push('\n');
    }

    fn parse(line: &str) -> Option<Line> {
        let [kind, number, references, path] =
            <[&str; 4]>::try_from(line.splitn(4, ' ').collect::<Vec<_>>()).ok()?;
        Some(Line {
            number: number.parse().ok()?,
            is_directory: kind == "d",
            references: references.parse().ok()?,
            path: path
                .split('/')
                .map(|name| decode(name.as_bytes()).map(Into::into))
                .collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_any_name() {
        for (is_directory, path) in [(true, &["a", "b c", "%2F\n"][..]), (false, &["t", "\u{e9}\u{0}"])] {
            let path = path.iter().map(|name| name.as_bytes().into()).collect();
            let line = Line { number: 1 << 56 | 7, is_directory, references: 3, path };
            let mut text = String::new();
            line.write(&mut text);
            assert_eq!((text.lines().count(), Line::parse(text.trim_end())), (1, Some(line)));
        }
        for wrong in ["", "d", "d 1 2", "d x 2 a", "f 1 0 %zz"] {
            assert_eq!(Line::parse(wrong), None, "{wrong}");
        }
    }
}
