//! Random operations against a map. The seed is printed on failure; FENCEFS_TEST_SEED reruns it.

use std::os::unix::fs::FileExt;

use super::*;
use crate::format::record::MAX_XATTR_BYTES;
use crate::key::MAX_KEY_BYTES;
use crate::os::RenameHow;

const STEPS: usize = 2500;
const TENANTS: [&str; 2] = ["default", "other"];

type Path = (String, Vec<u8>);

struct Model {
    bench: Bench,
    random: Random,
    expected: BTreeMap<Path, Content>,
    paths: Vec<Vec<u8>>,
    log: Vec<String>,
}

fn parent_of(path: &[u8]) -> Option<&[u8]> {
    path.iter().rposition(|b| *b == b'/').map(|at| &path[..at])
}

fn name_of(path: &[u8]) -> &[u8] {
    parent_of(path).map_or(path, |p| &path[p.len() + 1..])
}

fn shown((tenant, path): &Path) -> String {
    let text = path.escape_ascii().to_string();
    format!("{tenant}:{}({})", &text[..text.len().min(12)], path.len())
}

impl Model {
    fn new(seed: u64) -> Model {
        let bench = Bench::new(StoreSettings::default());
        bench.make_tenant(b"other", 0o755, 0, 0).unwrap();
        let long = |first: u8| [&[first], &[b'L'; 2499][..]].concat();
        let mut paths: Vec<Vec<u8>> = vec![long(b'1'), long(b'2'), [b"d/", &long(b'3')[..]].concat()];
        for short in ["a", "b", "c\n", "d", "e", "d/a", "d/b", "e/a", "d/e", "d/e/x"] {
            paths.push(short.into());
        }
        Model { bench, random: Random(seed), expected: BTreeMap::new(), paths, log: Vec::new() }
    }

    /// A random path whose parent directory exists.
    fn path(&mut self) -> Path {
        loop {
            let tenant = TENANTS[self.random.below(TENANTS.len())].to_owned();
            let path = self.paths[self.random.below(self.paths.len())].clone();
            let above = parent_of(&path).map(|p| (tenant.clone(), p.to_vec()));
            if above.is_none_or(|p| self.expected.get(&p) == Some(&Content::Dir)) {
                return (tenant, path);
            }
        }
    }

    fn dir(&self, (tenant_name, path): &Path) -> NodeId {
        match parent_of(path) {
            None => self.bench.tenant_node(&tenant(tenant_name)).unwrap(),
            Some(above) => self.bench.find_key(&tenant(tenant_name), &key(above)).unwrap().unwrap(),
        }
    }

    fn node(&self, path: &Path) -> Option<NodeId> {
        self.bench.child(self.dir(path), name_of(&path.1))
    }

    fn is_empty_dir(&self, (tenant, path): &Path) -> bool {
        !self.expected.keys().any(|(t, p)| t == tenant && parent_of(p) == Some(path))
    }

    fn value(&mut self) -> Vec<u8> {
        let len = [0, 1, 100, 4096, 4097, 20_000][self.random.below(6)];
        self.random.bytes(len)
    }

    fn step(&mut self) {
        let op = self.random.below(100);
        let path = self.path();
        self.log.push(format!("{op} {}", shown(&path)));
        match op {
            0..25 => self.put(&path),
            25..35 => self.edit(&path),
            35..40 => self.truncate(&path),
            40..58 => self.rename(&path),
            58..68 => self.unlink(&path),
            68..77 => self.make_dir(&path),
            77..82 => self.remove_dir(&path),
            82..88 => self.make_link(&path),
            88..96 => self.pin(&path),
            96..98 => self.bench.reopen(),
            _ => self.bench.close_and_reopen(),
        }
    }

    fn put(&mut self, path: &Path) {
        let (bytes, pinned) = (self.value(), self.random.below(8) == 0);
        let store = &*self.bench;
        let mut staged = stage(store, self.dir(path), name_of(&path.1), &bytes).unwrap();
        staged.pinned = pinned;
        let done = store.publish(&mut staged, false);
        if self.expected.get(path) == Some(&Content::Dir) {
            assert_eq!(done.unwrap_err().kind(), Kind::IsDirectory);
        } else {
            assert_eq!(done.unwrap().is_some(), self.expected.contains_key(path));
            self.expected.insert(path.clone(), Content::Value { bytes, pinned });
        }
    }

    fn edit(&mut self, path: &Path) {
        let (at, more) = (self.random.below(9000), self.value());
        let id = self.node(path);
        let Some(Content::Value { bytes, .. }) = self.expected.get_mut(path) else { return };
        let id = id.unwrap();
        let (file, _) = self.bench.begin_edit(id).unwrap().unwrap();
        file.write_all_at(&more, at as u64).unwrap();
        if !more.is_empty() {
            bytes.resize(bytes.len().max(at + more.len()), 0);
            bytes[at..at + more.len()].copy_from_slice(&more);
        }
        self.bench.end_edit(id, &file).unwrap();
    }

    fn truncate(&mut self, path: &Path) {
        let len = self.random.below(9000);
        let id = self.node(path);
        let Some(Content::Value { bytes, .. }) = self.expected.get_mut(path) else { return };
        bytes.resize(len, 0);
        self.bench.truncate(id.unwrap(), len as u64).unwrap();
    }

    fn unlink(&mut self, path: &Path) {
        let done = self.bench.unlink(self.dir(path), name_of(&path.1));
        match self.expected.get(path) {
            None => assert_eq!(done.unwrap_err().kind(), Kind::NotFound),
            Some(Content::Dir) => assert_eq!(done.unwrap_err().kind(), Kind::IsDirectory),
            Some(_) => {
                done.unwrap();
                self.expected.remove(path);
            }
        }
    }

    fn make_dir(&mut self, path: &Path) {
        let done = self.bench.make_dir(self.dir(path), name_of(&path.1), OWNER);
        if self.expected.contains_key(path) {
            assert_eq!(done.unwrap_err().kind(), Kind::Exists);
        } else {
            done.unwrap();
            self.expected.insert(path.clone(), Content::Dir);
        }
    }

    fn remove_dir(&mut self, path: &Path) {
        let empty = self.is_empty_dir(path);
        let done = self.bench.remove_dir(self.dir(path), name_of(&path.1));
        match self.expected.get(path) {
            None => assert_eq!(done.unwrap_err().kind(), Kind::NotFound),
            Some(Content::Dir) if empty => {
                done.unwrap();
                self.expected.remove(path);
            }
            Some(Content::Dir) => assert_eq!(done.unwrap_err().kind(), Kind::NotEmpty),
            Some(_) => assert_eq!(done.unwrap_err().kind(), Kind::NotDirectory),
        }
    }

    fn make_link(&mut self, path: &Path) {
        let target = self.random.bytes(30);
        let done = self.bench.make_symlink(self.dir(path), name_of(&path.1), &target, OWNER);
        if self.expected.contains_key(path) {
            assert_eq!(done.unwrap_err().kind(), Kind::Exists);
        } else {
            done.unwrap();
            self.expected.insert(path.clone(), Content::Link(target));
        }
    }

    fn pin(&mut self, path: &Path) {
        let on = self.random.below(2) == 0;
        let id = self.node(path);
        if let Some(Content::Value { pinned, .. }) = self.expected.get_mut(path) {
            self.bench.set_pinned(id.unwrap(), on).unwrap();
            *pinned = on;
        }
    }

    fn rename(&mut self, from: &Path) {
        let to = self.path();
        // The kernel keeps a directory from moving into itself; the engine never sees it.
        if to.0 == from.0 && parent_of(&to.1).is_some_and(|p| p.starts_with(&from.1)) {
            return;
        }
        let how = [RenameHow::Replace, RenameHow::Replace, RenameHow::NoReplace, RenameHow::Exchange]
            [self.random.below(4)];
        self.log.push(format!("  to {} {how:?}", shown(&to)));
        let done =
            self.bench.rename((self.dir(from), name_of(&from.1)), (self.dir(&to), name_of(&to.1)), how);
        match self.rename_refused(from, &to, how) {
            Some(kind) => assert_eq!(done.unwrap_err().kind(), kind),
            None => {
                done.unwrap();
                let moved = self.expected.remove(from).unwrap();
                if how == RenameHow::Exchange && to != *from {
                    let other = self.expected.remove(&to).unwrap();
                    self.expected.insert(from.clone(), other);
                }
                self.expected.insert(to, moved);
            }
        }
    }

    fn rename_refused(&self, from: &Path, to: &Path, how: RenameHow) -> Option<Kind> {
        let Some(source) = self.expected.get(from) else { return Some(Kind::NotFound) };
        let is_dir = *source == Content::Dir;
        if from.0 != to.0 || (is_dir && !self.is_empty_dir(from)) {
            return Some(Kind::CrossTenant);
        }
        if to.1.len() > MAX_KEY_BYTES {
            return Some(Kind::NameTooLong);
        }
        match (self.expected.get(to), is_dir, how) {
            (Some(Content::Dir), true, _) if !self.is_empty_dir(to) => Some(Kind::NotEmpty),
            (Some(Content::Dir), false, _) => Some(Kind::IsDirectory),
            (Some(Content::Link(_) | Content::Value { .. }), true, _) => Some(Kind::NotDirectory),
            (Some(_), _, RenameHow::NoReplace) => Some(Kind::Exists),
            (Some(_), ..) if from == to => None,
            (None, _, RenameHow::Exchange) => Some(Kind::NotFound),
            (Some(_), true, RenameHow::Exchange) => Some(Kind::Invalid),
            (Some(_), _, RenameHow::Exchange) if self.too_long_together(from, to) => Some(Kind::NameTooLong),
            _ => None,
        }
    }

    /// Whether no record can name both keys, as an exchange needs.
    fn too_long_together(&self, a: &Path, b: &Path) -> bool {
        a.1.len() + b.1.len() + 60 > MAX_XATTR_BYTES
    }
}

#[test]
fn random_operations_agree_with_a_map() {
    let given = std::env::var("FENCEFS_TEST_SEED").ok().and_then(|s| s.parse().ok());
    let seed: u64 = given.unwrap_or_else(|| crate::os::Timespec::now().nsec.into());
    let mut model = Model::new(seed);
    for n in 0..STEPS {
        let stepped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            model.step();
            model.bench.sound();
            let found = tree(&model.bench);
            if found != model.expected {
                let differ = |p: &&Path| found.get(p) != model.expected.get(p);
                let paths: Vec<_> =
                    found.keys().chain(model.expected.keys()).filter(differ).map(shown).collect();
                panic!("these differ from the model: {paths:?}");
            }
        }));
        if stepped.is_err() {
            let last = model.log.len().saturating_sub(12);
            panic!("step {n} of FENCEFS_TEST_SEED={seed} failed after {:#?}", &model.log[last..]);
        }
    }
}
