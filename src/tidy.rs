//! (tests) The rules of the tree itself: layers, lengths, letters, names. Text is checked, not meaning; each message
//! says what to do.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Most lines of a source file.
const MAX_LINES: usize = 650;
/// Files that may hold the keyword, relative to src/.
const UNSAFE_ALLOWED: [&str; 0] = [];
/// Names that say nothing of what is inside.
const EMPTY_NAMES: [&str; 6] = ["util", "utils", "common", "helpers", "manager", "handler"];
/// What modules of the lowest layer may take from each other: there is nothing below them.
const WITHIN_LOWEST: [(&str, &str); 5] =
    [("key", "error"), ("config", "error"), ("config", "key"), ("scope", "key"), ("step", "error")];

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Every source file: its path relative to src/, and its text.
fn sources() -> Vec<(String, String)> {
    let (root, mut dirs, mut found) = (src(), vec![src()], Vec::new());
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    assert!(found.len() > 40, "only {} sources were found: the walk is wrong", found.len());
    found
}

/// The lines of a text that are no comments, with their numbers.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(n, l)| (n + 1, l)).filter(|(_, l)| !l.trim_start().starts_with("//"))
}

/// The layer of each module, from the table at the head of lib.rs.
fn layers() -> BTreeMap<String, u32> {
    let text = fs::read_to_string(src().join("lib.rs")).unwrap();
    let mut layers = BTreeMap::new();
    for row in text.lines().filter_map(|l| l.strip_prefix("//! | ")) {
        let mut cells = row.split('|').map(str::trim);
        let (number, modules) = (cells.next().unwrap_or(""), cells.next().unwrap_or(""));
        let Ok(number) = number.parse() else { continue };
        for module in modules.split(',') {
            layers.insert(module.trim().trim_matches('`').to_owned(), number);
        }
    }
    layers
}

/// The module of a file.
fn module_of(path: &str) -> &str {
    path.split('/').next().unwrap_or(path).trim_end_matches(".rs")
}

/// The modules of the crate that a line names.
fn imports(line: &str) -> impl Iterator<Item = &str> {
    line.split(concat!("crate", "::")).skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        // The crate's root gives `error`'s types another name.
        match &rest[..end] {
            "Error" | "Kind" | "Result" => "error",
            module => module,
        }
    })
}

#[test]
fn the_table_of_layers_names_every_module() {
    let layers = layers();
    for (path, _) in sources() {
        let module = module_of(&path);
        let known = layers.contains_key(module) || ["lib", "main", "tidy"].contains(&module);
        assert!(known, "src/{path}: give the module `{module}` a layer in the table at the head of lib.rs");
    }
}

#[test]
fn imports_go_down() {
    let layers = layers();
    for (path, text) in sources() {
        let from = module_of(&path);
        let Some(&at) = layers.get(from) else { continue };
        for (line_number, line) in code(&text) {
            for to in imports(line) {
                let Some(&below) = layers.get(to) else {
                    panic!("src/{path}:{line_number}: name the module of each import in full (found {to:?})");
                };
                let lowest = at == 0 && WITHIN_LOWEST.contains(&(from, to));
                assert!(
                    from == to || below < at || lowest,
                    "src/{path}:{line_number}: `{from}` (layer {at}) may not use `{to}` (layer {below}): let it \
                     travel up as a return value or an event, or move what both need to a lower layer"
                );
            }
            let up = |m: &String| line.contains(&format!("{}{m}::", concat!("super::", "super::")));
            let climbs = layers.keys().any(up);
            assert!(!climbs, "src/{path}:{line_number}: name other modules from the crate's root");
        }
    }
}

#[test]
fn files_are_short() {
    for (path, text) in sources() {
        let lines = text.lines().count();
        assert!(
            lines <= MAX_LINES,
            "src/{path} has {lines} lines, more than {MAX_LINES}: split it by operation"
        );
    }
}

#[test]
fn sources_are_ascii() {
    for (path, text) in sources() {
        let odd = text.lines().zip(1..).find(|(line, _)| !line.is_ascii());
        assert_eq!(odd, None, "src/{path}: write it in ASCII, in a string as \\u{{..}} or \\x..");
    }
}

#[test]
fn no_unchecked_code() {
    let keyword = concat!("un", "safe");
    for (path, text) in sources().iter().filter(|(path, _)| !UNSAFE_ALLOWED.contains(&path.as_str())) {
        let word = |line: &str| {
            line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == keyword)
        };
        let found = code(text).find(|(_, line)| word(line)).map(|(n, _)| n);
        assert_eq!(found, None, "src/{path}: use rustix, or add the file to UNSAFE_ALLOWED with a reason");
    }
}

#[test]
fn names_say_something() {
    for (path, _) in sources() {
        let empty = path.split('/').any(|part| EMPTY_NAMES.contains(&part.trim_end_matches(".rs")));
        assert!(!empty, "src/{path}: name it after what is done there");
    }
}
