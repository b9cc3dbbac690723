//! (tests, feature `fuzzing`) What comes from outside, as bytes: disk contents, peers, people. Each target takes bytes to
//! where they are judged, and checks what must hold of the verdict. None may panic, hang or ask for memory without bound.
//!
//! `scripts/fuzz` gives them to libFuzzer; the tests here give them every seed in `fuzz/seeds` and changed copies of them.

use crate::cli::fuzz as cli;
use crate::config;
use crate::control::{command, reply};
use crate::format::checkpoint::Checkpoint;
use crate::format::record::Record;
use crate::format::superblock::Superblock;
use crate::format::{legacy, percent};
use crate::fuse::fuzz as fuse;
use crate::ledger::fuzz as ledger;

/// A name, and what takes the bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 12] = [
    ("acl", fuse::acl),
    ("checkpoint", checkpoint),
    ("control", control),
    ("etcd", ledger::etcd),
    ("ioctl", fuse::ioctl),
    ("ledger", ledger::row),
    ("legacy", legacy_record),
    ("mountinfo", cli::mountinfo),
    ("options", cli::options),
    ("record", record),
    ("superblock", superblock),
    ("words", words),
];

/// The attribute of a record.
fn record(bytes: &[u8]) {
    let Ok(record) = Record::decode(bytes) else { return };
    // What another key's record says of itself is judged by the name of its file.
    if let Ok(again) = record.encode() {
        assert_eq!(Record::decode(&again).expect("it was made here"), record);
    }
}

/// A file of Mooncake's, and its path.
fn legacy_record(bytes: &[u8]) {
    if let Ok(found) = legacy::locate_bytes(bytes) {
        let end = found.value.offset.checked_add(found.value.bytes);
        assert!(end.is_some_and(|end| end <= bytes.len() as u64), "a value beyond its file");
        if let Ok((tenant, key)) = found.storage_key.owner() {
            let spelled = legacy::StorageKey::scoped(&tenant, &key);
            assert_eq!(spelled.owner().expect("it was made here"), (tenant, key));
        }
    }
    if let Some(place) = legacy::Place::parse(bytes) {
        place.binds(bytes);
    }
}

/// A checkpoint whose sum is right, whatever is in it.
fn checkpoint(bytes: &[u8]) {
    let sealed = [bytes, &xxhash_rust::xxh3::xxh3_64(bytes).to_le_bytes()].concat();
    if let Ok(checkpoint) = Checkpoint::decode(&sealed) {
        assert!(checkpoint.entries().all(|entry| entry.is_ok()), "it was judged as a whole");
    }
}

fn superblock(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(found) = Superblock::decode(text) {
        assert_eq!(
            Superblock::decode(&found.encode()).expect("it was made here").storage_id,
            found.storage_id
        );
    }
}

/// Lines written to a control file.
fn control(bytes: &[u8]) {
    for line in command::split_lines(bytes).unwrap_or_default() {
        if let Err(e) = command::parse(line) {
            // Whatever was written, the reply is a line for a terminal.
            let reply = reply::failure(&e);
            let sentence = reply.trim_end_matches('\n');
            assert!(!sentence.chars().any(char::is_control), "{sentence:?}");
        }
    }
}

/// Words of options: sizes, times, percents, modes, names.
fn words(bytes: &[u8]) {
    let name = percent::encode(bytes);
    assert_eq!(percent::decode(name.as_bytes()).as_deref(), Some(bytes));
    percent::decode(bytes);
    let Ok(word) = std::str::from_utf8(bytes) else { return };
    drop(config::parse_size(word));
    drop(config::parse_duration(word));
    drop(config::parse_ttl(word));
    drop(config::parse_percent(word));
    drop(config::parse_mode(word));
    drop(config::parse_fence_wait(word));
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::random::Random;

    /// Changed copies of a target's seeds that it gets here. Options build the whole tree of commands each time.
    fn copies(target: &str) -> usize {
        if target == "options" { 500 } else { 10_000 }
    }

    fn seeds_of(target: &str) -> Vec<Vec<u8>> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
        let mut paths: Vec<PathBuf> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
        paths.sort();
        let seeds: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
        assert!(seeds.len() >= 3, "{} needs more seeds", dir.display());
        seeds
    }

    /// A copy of a seed with a few changes, as a fuzzer makes them.
    fn changed(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
        let mut bytes = seeds[random.below(seeds.len())].clone();
        for _ in 0..1 + random.below(6) {
            let at = random.below(bytes.len() + 1);
            let to = at + random.below(bytes.len() + 1 - at);
            match random.below(8) {
                0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
                1 if at < bytes.len() => {
                    bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'\n', b',', b'='][random.below(8)]
                }
                2 => drop(bytes.drain(at..to.min(at + 16))),
                3 => {
                    let copy = bytes[at..to.min(at + 64)].to_vec();
                    bytes.splice(at..at, copy);
                }
                4 => {
                    let number = [0, 1, u64::MAX, 1 << 31, 1 << 63, random.next()][random.below(6)];
                    let width = [1, 2, 4, 8][random.below(4)].min(bytes.len() - at);
                    bytes[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
                }
                5 => bytes.truncate(at),
                6 => {
                    let other = &seeds[random.below(seeds.len())];
                    bytes.truncate(at);
                    bytes.extend_from_slice(&other[random.below(other.len() + 1)..]);
                }
                _ => bytes.insert(at, random.next() as u8),
            }
        }
        bytes
    }

    #[test]
    fn every_target_has_seeds_and_stands_changes_of_them() {
        for (name, target) in TARGETS {
            let (seeds, mut random) = (seeds_of(name), Random(1));
            seeds.iter().for_each(|seed| target(seed));
            for _ in 0..copies(name) {
                target(&changed(&seeds, &mut random));
            }
        }
    }

    #[test]
    fn no_seed_is_of_a_target_that_is_not_there() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
        for entry in fs::read_dir(dir).unwrap() {
            let name = entry.unwrap().file_name();
            assert!(TARGETS.iter().any(|(target, _)| name == *target), "{name:?}");
        }
    }
}
