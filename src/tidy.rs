//! (tests) The rules of the tree itself: layers, lengths, letters, names. Text is checked, not meaning; each message
//! says what to do.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Most lines of a source file.
const MAX_LINES: usize = 650;
/// Files that may hold the keyword, relative to src/.
/// `os/device.rs`: two ioctls of the FUSE device, and a descriptor that a library owns.
const UNSAFE_ALLOWED: [&str; 1] = ["os/device.rs"];
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

/// The names in backquotes of a line, cell by cell of a table.
fn quoted(line: &str) -> impl Iterator<Item = Vec<&str>> {
    line.split(" | ").map(|cell| cell.split('`').skip(1).step_by(2).collect())
}

fn is_path_of_names(word: &str) -> bool {
    let is_name = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    word.split("::").all(is_name)
}

/// The file that the tests of a module stand in, below the crate's root.
fn test_file(modules: &[&str]) -> Option<String> {
    let inside = modules.strip_suffix(&["tests"]).unwrap_or(modules).join("/");
    let all = modules.join("/");
    let places = ["mount-tests/M.rs", "src/M.rs", "src/M/mod.rs"];
    let found = [all, inside].into_iter().flat_map(|m| places.map(|place| place.replace('M', &m)));
    found.into_iter().find(|path| Path::new(env!("CARGO_MANIFEST_DIR")).join(path).is_file())
}

fn read(path: &str) -> String {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path));
    text.unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Whether a word stands alone somewhere in the lines that are no comments.
fn has_word(text: &str, word: &str) -> bool {
    let mut words = code(text).flat_map(|(_, l)| l.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    words.any(|found| found == word)
}

/// Words of steps; `ledger.redb` is a file.
const STEPS: [&str; 8] =
    ["removal.", "ledger.", "recover.", "migrate.", "retire.", "attach.", "legacy.", "publish."];

/// Asserts of the tables of a matrix that what they name exists: a name with `::` that begins small is a test, a path below
/// src/ is followed by names of that file, and a name with a dot that begins like a step is one. How many tests and names
/// there are, and how many rows by their letter.
fn check_matrix(matrix: &str) -> (usize, usize, BTreeMap<String, usize>) {
    let (text, mounted) = (read(matrix), read("mount-tests/main.rs"));
    let all: String = sources().into_iter().map(|(_, text)| text).collect();
    let (mut tests, mut names, mut rows) = (0, 0, BTreeMap::<String, usize>::new());
    for (line, number) in text.lines().zip(1..).filter(|(line, _)| line.starts_with("| ")) {
        let at = format!("{matrix}:{number}");
        let mut tests_of_line = 0;
        for cell in quoted(line) {
            let mut file: Option<String> = None;
            for word in cell {
                if word.starts_with("src/") {
                    file = Some(read(word));
                } else if STEPS.iter().any(|step| word.starts_with(step)) && word != "ledger.redb" {
                    let step = format!("step!(\"{word}\")");
                    assert!(all.contains(&step), "{at}: there is no step {word}");
                } else if is_path_of_names(word)
                    && word.contains("::")
                    && word.starts_with(char::is_lowercase)
                {
                    check_test(&at, word, &mounted);
                    tests_of_line += 1;
                } else if let Some(text) = file.as_ref().filter(|_| is_path_of_names(word)) {
                    let missing = word.split("::").find(|part| !has_word(text, part));
                    assert_eq!(missing, None, "{at}: the file named before does not have `{word}`");
                    names += 1;
                }
            }
        }
        tests += tests_of_line;
        let row = line.strip_prefix("| ").and_then(|rest| rest.split(" | ").next()).unwrap_or_default();
        if row.len() > 1 && row.len() < 4 && row[1..].bytes().all(|b| b.is_ascii_digit()) {
            assert!(tests_of_line > 0, "{at}: no test asserts row {row}");
            let last = rows.entry(row[..1].to_owned()).or_default();
            *last += 1;
            assert_eq!(row[1..].parse(), Ok(*last), "{at}: the rows are numbered in order");
        }
    }
    (tests, names, rows)
}

fn check_test(at: &str, word: &str, mounted: &str) {
    let mut modules: Vec<&str> = word.split("::").collect();
    let name = modules.pop().unwrap_or_default();
    let path = test_file(&modules).or_else(|| {
        // A module within the file of another.
        let (inner, outer) = modules.split_last()?;
        let path = test_file(outer)?;
        read(&path).contains(&format!("mod {inner} {{")).then_some(path)
    });
    let path = path.unwrap_or_else(|| panic!("{at}: there is no module of tests {word}"));
    let text = read(&path);
    let in_macro = text.contains(&format!("    {name}: ")) && text.contains("macro_rules!");
    let is_test = text.contains(&format!("fn {name}()")) || in_macro;
    assert!(is_test, "{at}: {path} has no test {name}");
    let own = path.strip_prefix("mount-tests/").and_then(|p| p.strip_suffix(".rs"));
    let runs = own.is_none_or(|module| mounted.contains(&format!("\nmod {module};")));
    assert!(runs, "{at}: {path} is not registered in mount-tests/main.rs");
}

#[test]
fn the_removal_matrix_names_what_there_is() {
    const MATRIX: &str = "docs/removal-matrix.md";
    let (tests, names, rows) = check_matrix(MATRIX);
    // The matrix, the invariants, the timelines, the acceptance criteria.
    for (letter, count) in [("M", 16), ("I", 13), ("T", 4), ("A", 6)] {
        assert_eq!(rows.get(letter), Some(&count), "{MATRIX}: rows that begin with {letter}");
    }
    assert!(tests > 100 && names > 40, "{MATRIX}: only {tests} tests and {names} names were found");
}

#[test]
fn the_recovery_matrix_names_what_there_is() {
    const MATRIX: &str = "docs/recovery-matrix.md";
    let (tests, names, rows) = check_matrix(MATRIX);
    // The design, the ordering contract, the operational behaviour, the validation, the tenants.
    for (letter, count) in [("D", 6), ("O", 5), ("C", 5), ("V", 11), ("T", 4)] {
        assert_eq!(rows.get(letter), Some(&count), "{MATRIX}: rows that begin with {letter}");
    }
    assert!(tests > 60 && names > 30, "{MATRIX}: only {tests} tests and {names} names were found");
}

#[test]
fn the_cases_have_one_test_each() {
    const CASES: &str = "docs/cases.md";
    let of_row = |line: &str| {
        let id = line.strip_prefix("| U")?.split(' ').next()?.to_owned();
        let test = line.rsplit('`').nth(1)?.to_owned();
        Some((id, test))
    };
    let text = read(CASES);
    let rows: BTreeMap<String, String> = text.lines().filter_map(of_row).collect();
    assert_eq!(rows.len(), 74, "{CASES}: rows");
    let mut written = 0;
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("mount-tests/cases")).unwrap() {
        let path = entry.unwrap().path();
        let module = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        let names = text.split("#[test]\nfn ").skip(1).filter_map(|rest| rest.split('(').next());
        for name in names {
            let id = name.get(1..4).unwrap_or_default();
            let test = format!("cases::{module}::{name}");
            assert_eq!(rows.get(id), Some(&test), "{CASES}: the row of {test}");
            written += 1;
        }
    }
    assert_eq!(written, rows.len(), "{CASES}: a row has no test");
}
