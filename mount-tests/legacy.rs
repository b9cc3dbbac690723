//! `--attach-legacy`: Mooncake directories served in place, moved into the store as their keys change, and cleared with
//! their tenants. The fixtures are what the released program wrote.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{BINARY, Builder, Mount, can_mount, each_with, fencefs, run};
use crate::removals::{Control, remove, tenant};

/// The unpacked fixtures, and the directory of one of them.
fn fixture(name: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("mount-tests/fixtures/mooncake-real.tar.gz");
    run(Command::new("tar").arg("xzf").arg(packed).arg("-C").arg(dir.path())).ok();
    let at = dir.path().join("mooncake-real").join(name);
    (dir, at)
}

/// Where Mooncake keeps the record of a storage key below the fsdir: two letters of libstdc++'s hash of it, and the key
/// with what no file name should have replaced.
fn legacy_path(storage_key: &[u8]) -> PathBuf {
    const MUL: u64 = 0xc6a4_a793_5bd1_e995;
    let mix = |v: u64| v ^ (v >> 47);
    let mut hash = 0xc70f_6907 ^ (storage_key.len() as u64).wrapping_mul(MUL);
    for word in storage_key.chunks(8) {
        let number = word.iter().rev().fold(0_u64, |n, b| n << 8 | u64::from(*b));
        let whole = word.len() == 8;
        hash = (hash ^ if whole { mix(number.wrapping_mul(MUL)).wrapping_mul(MUL) } else { number })
            .wrapping_mul(MUL);
    }
    hash = mix(mix(hash).wrapping_mul(MUL));
    let letter = |n: u64| char::from(b'a' + (n & 15) as u8).to_string();
    let sane = |b: &u8| if b"/\\:*?\"<>|\0".contains(b) { b'_' } else { *b };
    let name: Vec<u8> = storage_key.iter().map(sane).collect();
    [letter(hash).as_ref(), letter(hash >> 4).as_ref(), OsStr::from_bytes(&name)].iter().collect()
}

fn varint(mut n: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while n > 127 {
        out.push(n as u8 | 128);
        n >>= 7;
    }
    out.push(n as u8);
    out
}

/// Writes the record of a key where Mooncake would; its path.
fn write_record(dir: &Path, tenant: &str, key: &str, value: &[u8]) -> PathBuf {
    let storage_key = [tenant.as_bytes(), &[0], key.as_bytes()].concat();
    let bytes = [&[0x0a][..], &varint(storage_key.len()), &storage_key, &[0x12], &varint(value.len()), value]
        .concat();
    let path = dir.join("file_per_key_dir").join(legacy_path(&storage_key));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, bytes).unwrap();
    path
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let (mut dirs, mut found) = (vec![dir.to_owned()], Vec::new());
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let is_dir = entry.file_type().unwrap().is_dir();
            if is_dir { dirs.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    found.sort();
    found
}

fn bytes_of(files: &[PathBuf]) -> u64 {
    files.iter().map(|f| f.symlink_metadata().unwrap().blocks() * 512).sum()
}

/// Mounts with the directory attached, with passthrough and without.
fn each_attached(
    settings: impl Fn(Builder) -> Builder,
    make: impl Fn() -> (TempDir, PathBuf),
    body: impl Fn(&mut Mount, &Path),
) {
    let dirs = std::cell::RefCell::new(Vec::new());
    each_with(
        |b| {
            dirs.borrow_mut().push(make());
            let dirs = dirs.borrow();
            settings(b).arg("--attach-legacy").arg(&dirs.last().unwrap().1)
        },
        |m| {
            let at = dirs.borrow().last().unwrap().1.clone();
            body(m, &at);
        },
    );
}

/// One tenant with two keys, and a bystander.
fn small() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_owned();
    write_record(&at, "a", "k", b"first");
    write_record(&at, "a", "sub/large", &vec![7; 300_000]);
    write_record(&at, "b", "k", b"of b");
    (dir, at)
}

fn attached(m: &Mount, name: &str) -> u64 {
    m.status()["attached"][name].as_u64().unwrap()
}

/// Usage is what the records of the store and the files of the directory occupy.
#[track_caller]
fn assert_counted(m: &Mount, at: &Path) {
    m.settle_blocks();
    let records: u64 = m.records().iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(m.status_number("used_bytes"), records + bytes_of(&files(at)));
}

fn percent_encoded(key: &[u8]) -> String {
    // A name of dots alone means something else to the kernel.
    let dots = key == b"." || key == b"..";
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_~".contains(&b) || (b == b'.' && !dots);
    key.iter().map(|&b| if plain(b) { (b as char).to_string() } else { format!("%{b:02X}") }).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|p| u8::from_str_radix(std::str::from_utf8(p).unwrap(), 16).unwrap())
        .collect()
}

fn sha256(path: &Path) -> String {
    let told = run(Command::new("sha256sum").arg("-z").arg(path)).ok();
    told.split(' ').next().unwrap().to_owned()
}

/// All 26 that the program wrote, with the values that it was given; the two that it lost are absent.
#[test]
fn every_record_that_the_real_program_wrote_is_served_and_cleared() {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("mount-tests/fixtures/path_vectors.json");
    let vectors: Value = serde_json::from_slice(&fs::read(vectors).unwrap()).unwrap();
    each_attached(
        |b| b,
        || fixture("default-tenant"),
        |m, at| {
            let before = files(at);
            assert_eq!((before.len(), attached(m, "records"), attached(m, "rejected")), (26, 26, 0));
            for vector in vectors.as_array().unwrap() {
                let storage_key = unhex(vector["storage_key_hex"].as_str().unwrap());
                let key = &storage_key[storage_key.iter().position(|b| *b == 0).unwrap() + 1..];
                let path = m.mnt.join("default/.fencefs/by-key").join(percent_encoded(key));
                let written = vector["written"].as_bool().unwrap();
                assert_eq!(path.symlink_metadata().is_ok(), written, "{vector}");
                if written {
                    assert_eq!(
                        path.metadata().unwrap().len(),
                        vector["value_len"].as_u64().unwrap(),
                        "{vector}"
                    );
                    assert_eq!(sha256(&path), vector["value_sha256"].as_str().unwrap(), "{vector}");
                }
            }
            assert_eq!(fs::read(m.key("a/b")).unwrap(), b"hello");
            assert_eq!(files(at), before);
            assert_counted(m, at);
            remove(m, "tenant=default");
            assert_eq!(files(at), [] as [PathBuf; 0]);
            assert_eq!((m.status_number("keys"), m.status_number("used_bytes")), (0, 0));
            m.crash();
            assert_eq!(fs::read_dir(m.keys()).unwrap().count(), 0);
        },
    );
}

#[test]
fn one_tenants_clear_leaves_the_other_tenants_files() {
    each_attached(
        |b| b,
        || fixture("two-tenants"),
        |m, at| {
            m.shell("[ $(cat $R/tenantA/shared/key) = from-A ]; [ $(cat $R/tenantB/shared/key) = from-B ]")
                .ok();
            m.shell("echo new > $R/tenantA/record; echo over > $R/tenantA/only-a").ok();
            assert_eq!(files(at).len(), 3);
            let b = tenant(m, "tenantB");
            fencefs([
                OsStr::new("remove-all"),
                m.mnt.as_os_str(),
                OsStr::new("--tenant"),
                OsStr::new("tenantA"),
            ])
            .ok();
            let left = files(at);
            assert_eq!(left.len(), 2);
            assert!(left.iter().all(|f| f.to_string_lossy().contains("tenantB")));
            assert_eq!(tenant(m, "tenantB"), b);
            assert_counted(m, at);
            m.crash();
            m.shell("[ -z \"$(ls -A $R/tenantA)\" ]; [ $(cat $R/tenantB/only-b) = B-data ]; [ $(cat $R/tenantB/shared/key) = from-B ]").ok();
            assert_counted(m, at);
        },
    );
}

/// The file of two keys with one path is served for the key inside it alone.
#[test]
fn a_collision_is_a_miss_for_the_other_key() {
    each_attached(
        |b| b,
        || fixture("collision"),
        |m, _| {
            m.shell("[ $(cat $M/c__:___) = VALUE-1 ]; [ ! -e $M/c::::/_ ]").ok();
            m.shell("mkdir $M/c::::; echo VALUE-0 > $M/c::::/_; [ $(cat $M/c__:___) = VALUE-1 ]").ok();
            m.crash();
            m.shell("[ $(cat $M/c__:___) = VALUE-1 ]; [ $(cat $M/c::::/_) = VALUE-0 ]").ok();
        },
    );
}

/// Programs read a value at its length and offsets, whatever stands around it in the file.
#[test]
fn reading_in_every_way_sees_the_value_alone() {
    each_attached(
        |b| b,
        small,
        |m, at| {
            let before = files(at);
            m.python(
                r"
import mmap, os
R = os.environ['R']
path = R + '/a/sub/large'
assert os.stat(path).st_size == 300000
f = os.open(path, os.O_RDONLY)
assert os.pread(f, 10, 299995) == b'\7' * 5
assert os.pread(f, 10, 300000) == b''
assert os.lseek(f, 0, os.SEEK_END) == 300000
assert os.lseek(f, 5, os.SEEK_DATA) == 5 and os.lseek(f, 5, os.SEEK_HOLE) == 300000
m = mmap.mmap(f, 300000, prot=mmap.PROT_READ)
assert m[:] == b'\7' * 300000
out = os.open(os.environ['W'] + '/out', os.O_RDWR | os.O_CREAT)
inside = os.open(R + '/b/copy', os.O_RDWR | os.O_CREAT)
for to in out, inside:
    at = 0
    while at < 300000:
        at += os.copy_file_range(f, to, 400000, at, at) if to == inside else os.sendfile(to, f, at, 400000)
    assert os.copy_file_range(f, inside, 100, 300000, 0) == 0
    assert os.fstat(to).st_size == 300000
",
            )
            .ok();
            m.shell("cmp $W/out $R/a/sub/large; cmp $R/b/copy $R/a/sub/large; tail -c 3 $R/a/sub/large | cmp - <(printf '\\7\\7\\7')").ok();
            m.shell("cp -a $R/a $W/copy; [ $(cat $W/copy/k) = first ]; tar cf - -C $R b | tar tf - | grep -x b/k > /dev/null").ok();
            assert_eq!(files(at), before, "reading migrates nothing");
            assert_eq!(attached(m, "migrated"), 0);
        },
    );
}

/// Each way of changing a key leaves the new value in the store and no file in the directory.
#[test]
fn whatever_changes_a_key_migrates_it() {
    for (change, expected) in [
        ("echo -n second > $R/a/k", Some("second")),
        ("echo -n second > $R/a/.k; mv $R/a/.k $R/a/k", Some("second")),
        ("echo -n + >> $R/a/k", Some("first+")),
        ("truncate -s 2 $R/a/k", Some("fi")),
        ("chmod 600 $R/a/k; [ $(stat -c %a $R/a/k) = 600 ]", Some("first")),
        ("touch -d @1000 $R/a/k; [ $(stat -c %Y $R/a/k) = 1000 ]", Some("first")),
        ("chown 1:1 $R/a/k", Some("first")),
        (
            "python3 -c 'import os; os.setxattr(os.environ[\"R\"] + \"/a/k\", \"user.x\", b\"1\")'",
            Some("first"),
        ),
        ("mv $R/a/k $R/a/moved; [ $(cat $R/a/moved) = first ]", None),
        ("rm $R/a/k", None),
    ] {
        eprintln!("{change}");
        each_attached(
            |b| b,
            small,
            |m, at| {
                m.shell(change).ok();
                for _ in 0..2 {
                    let now = fs::read(m.mnt.join("a/k")).ok();
                    assert_eq!(now.as_deref(), expected.map(str::as_bytes));
                    assert_eq!(files(at).len(), 2, "the legacy file is retired");
                    assert_counted(m, at);
                    m.shell("[ $(cat $R/b/k) = 'of b' ]").failed();
                    assert_eq!(fs::read(m.mnt.join("b/k")).unwrap(), b"of b");
                    m.crash();
                }
            },
        );
    }
}

/// A reader that had the legacy file open sees what is edited in place; one of a value that is replaced or removed keeps
/// what it opened.
#[test]
fn open_readers_go_on() {
    each_attached(
        |b| b,
        small,
        |m, at| {
            let mut reader = File::open(m.mnt.join("a/k")).unwrap();
            m.shell("printf 12345678 | dd of=$R/a/k conv=notrunc status=none; [ $(cat $R/a/k) = 12345678 ]")
                .ok();
            let mut seen = String::new();
            reader.read_to_string(&mut seen).unwrap();
            assert_eq!(seen, "12345678");
            assert_eq!(reader.metadata().unwrap().len(), 8);
            let large = File::open(m.mnt.join("a/sub/large")).unwrap();
            let b = File::open(m.mnt.join("b/k")).unwrap();
            m.shell("echo small > $R/a/sub/large; rm $R/b/k").ok();
            assert!(files(at).is_empty());
            let mut end = [0; 8];
            assert_eq!(large.read_at(&mut end, 299_996).unwrap(), 4);
            assert_eq!(end[..4], [7; 4]);
            assert_eq!(b.read_at(&mut end, 0).unwrap(), 4);
            assert_eq!(&end[..4], b"of b");
            drop((reader, large, b));
            // A replacement that is longer, while it is written and afterwards.
            write_record(at, "b", "k", b"of b");
            m.crash();
            let open = File::open(m.mnt.join("b/k")).unwrap();
            let mut writer = m.peer();
            writer.run("globals().__setitem__('f', os.open(R + '/b/k', os.O_WRONLY | os.O_TRUNC))");
            let late = File::open(m.mnt.join("b/k")).unwrap();
            for turn in 0..3 {
                for reader in [&open, &late] {
                    let mut all = vec![1; 5000];
                    let length = reader.read_at(&mut all, 0).unwrap();
                    assert_eq!(
                        (&all[..length], reader.metadata().unwrap().len()),
                        (&b"of b"[..], 4),
                        "{turn}"
                    );
                }
                assert_eq!(writer.int("os.write(f, b'x' * 4096)"), 4096);
            }
            writer.run("os.close(f)");
            assert_eq!(fs::read(m.mnt.join("b/k")).unwrap(), [b'x'; 3 * 4096]);
            let mut all = vec![1; 5000];
            assert_eq!(open.read_at(&mut all, 0).unwrap(), 4);
            assert_eq!(&all[..4], b"of b");
            drop((open, late));
            m.shell("[ $(cat $R/a/sub/large) = small ]").ok();
            assert_counted(m, at);
        },
    );
}

/// Nothing is removed of a tenant while a file may be its own unseen; the answer says which.
#[test]
fn a_tenants_clear_is_unsupported_while_an_owner_is_unproven() {
    for odd in ["no record", "tenant"] {
        each_attached(
            |b| b,
            small,
            |m, at| {
                let path = match odd {
                    "tenant" => write_record(at, "team:1", "k", b"left alone"),
                    _ => {
                        let path = at.join("file_per_key_dir/a/b/default_odd");
                        fs::create_dir_all(path.parent().unwrap()).unwrap();
                        fs::write(&path, b"no record").unwrap();
                        path
                    }
                };
                m.crash();
                let before = files(at);
                assert_eq!((attached(m, "records"), attached(m, "rejected")), (3, 1));
                let (_, reply) = Control::open(m).refused("remove-all tenant=a");
                assert_eq!(reply["code"], "UNSUPPORTED_TENANT_LOCAL_CLEANUP", "{reply}");
                let named = path.file_name().unwrap().to_str().unwrap();
                assert!(reply["message"].as_str().unwrap().contains(named), "{reply}");
                assert_eq!(files(at), before);
                assert_eq!(fs::read(m.mnt.join("a/k")).unwrap(), b"first");
                if odd == "tenant" {
                    // A name of its own makes it somebody's.
                    m.umount();
                    m.set_arg("--map-tenant", "team:1=team-1");
                    m.mount();
                    assert_eq!(fs::read(m.mnt.join("team-1/k")).unwrap(), b"left alone");
                } else {
                    fs::remove_file(&path).unwrap();
                }
                remove(m, "tenant=a");
                assert_eq!(files(at).len(), if odd == "tenant" { 2 } else { 1 });
                m.unset_arg("--map-tenant");
            },
        );
    }
}

/// What fencefs does not serve it does not remove either.
#[test]
fn a_global_clear_leaves_what_is_no_record() {
    each_attached(
        |b| b,
        small,
        |m, at| {
            let odd = at.join("file_per_key_dir/a/b/default_odd");
            fs::create_dir_all(odd.parent().unwrap()).unwrap();
            fs::write(&odd, b"no record").unwrap();
            remove(m, "scope=global");
            assert_eq!(files(at), [odd]);
            m.crash();
            assert_eq!(m.status_number("keys"), 0);
        },
    );
}

/// Quota and eviction reach legacy values.
#[test]
fn a_full_store_evicts_legacy_values_too() {
    each_attached(
        |b| b.size("2MiB").evict("fifo"),
        || {
            let dir = tempfile::tempdir().unwrap();
            let at = dir.path().to_owned();
            (0..6).for_each(|n| drop(write_record(&at, "default", &format!("k{n}"), &vec![n; 200_000])));
            (dir, at)
        },
        |m, at| {
            assert_eq!(m.status_number("keys"), 6);
            for n in 0..12 {
                fs::write(m.key(format!("new{n}")), vec![n; 200_000]).unwrap();
            }
            assert!(files(at).is_empty(), "the oldest went first");
            assert!(m.status_number("evicted_keys") >= 6);
            assert!(m.status_number("used_bytes") <= 2 << 20);
            assert_counted(m, at);
        },
    );
}

#[test]
fn what_cannot_be_attached_is_refused_with_a_sentence() {
    each_attached(
        |b| b,
        small,
        |m, at| {
            let dir = tempfile::tempdir().unwrap();
            let (store, mnt) = (dir.path().join("store"), dir.path().join("mnt"));
            fs::create_dir(&mnt).unwrap();
            let try_mount = |mnt: &Path, at: &Path, more: &[&str]| {
                let mut command = Command::new(BINARY);
                command.arg("mount").args([&store, mnt]).arg("--attach-legacy").arg(at).args(more);
                let (code, said) = run(&mut command).failed();
                assert!(code == 2 || said.trim_end().lines().count() == 1, "{said}");
                (code, said)
            };
            assert!(try_mount(&mnt, at, &[]).1.contains("another daemon"));
            assert!(try_mount(&mnt, dir.path(), &[]).1.contains("file_per_key_dir"));
            assert_eq!(try_mount(&mnt, at, &["--map-tenant", "a"]).0, 2);
            let inside = at.join("file_per_key_dir/a");
            fs::create_dir_all(&inside).unwrap();
            assert!(try_mount(&inside, at, &[]).1.contains("inside one another"));
            assert_eq!(fs::read(m.mnt.join("a/k")).unwrap(), b"first");
        },
    );
}

#[test]
fn status_and_metrics_tell_of_the_directory() {
    each_attached(
        |b| b,
        small,
        |m, at| {
            let shown = fencefs([OsStr::new("status"), m.mnt.as_os_str()]).ok();
            assert!(shown.contains("attached") && shown.contains("3 records"), "{shown}");
            fs::write(m.mnt.join("a/k"), b"second").unwrap();
            let path = at.canonicalize().unwrap().join("file_per_key_dir");
            assert_eq!(m.status()["attached"]["path"], path.to_str().unwrap());
            assert_eq!((attached(m, "records"), attached(m, "shadows")), (2, 0));
            let metrics = fs::read_to_string(m.mnt.join(".fencefs/metrics")).unwrap();
            assert!(metrics.contains("\nfencefs_attached_records 2\n"), "{metrics}");
            assert!(fs::read_to_string(m.mnt.join("a/.fencefs/status")).unwrap().find("attached").is_none());
        },
    );
}

/// A directory that is attached no longer leaves what was migrated, and nothing else.
#[test]
fn without_the_directory_the_store_has_what_moved_into_it() {
    if !can_mount() {
        return;
    }
    let (_dir, at) = small();
    let mut m = Builder::new().arg("--attach-legacy").arg(&at).mount();
    m.shell("echo -n + >> $R/a/k").ok();
    m.umount();
    m.unset_arg("--attach-legacy");
    m.mount();
    assert_eq!(fs::read(m.mnt.join("a/k")).unwrap(), b"first+");
    assert!(!m.mnt.join("a/sub").exists());
    assert_eq!(files(&at).len(), 2);
    assert_eq!(OsStr::from_bytes(b"k"), m.mnt.join("a/k").file_name().unwrap());
}

#[cfg(feature = "failpoints")]
mod steps {
    use super::*;
    use crate::harness::wait_until;
    use crate::removals::{PATIENCE, assert_empty, wait_complete};

    /// On a daemon that dies at `step`: what makes it go there, then what the next one finds.
    fn killed_at(step: &str, provoke: impl Fn(&mut Mount), found: impl Fn(&mut Mount, &Path)) {
        eprintln!("{step}");
        let points = format!("{step}=return(kill)");
        each_attached(
            |b| b.env("FAILPOINTS", &points),
            small,
            |m, at| {
                provoke(m);
                m.wait_for_exit();
                m.unset_env("FAILPOINTS");
                m.mount();
                found(m, at);
            },
        );
    }

    /// The daemon dies at every step of a migration: one value counts, no copy is left behind it.
    #[test]
    fn killed_at_every_step_of_a_migration() {
        let steps = [
            ("migrate.stage", false),
            ("migrate.reserve", false),
            ("migrate.rename", false),
            ("migrate.renamed", true),
            ("retire.begin", true),
            ("retire.unlink", true),
            ("retire.unlinked", true),
        ];
        for (step, moved) in steps {
            killed_at(
                step,
                |m| {
                    m.shell("truncate -s 3 $R/a/k").failed();
                },
                |m, at| {
                    assert_eq!(fs::read(m.mnt.join("a/k")).unwrap(), b"first", "{step}");
                    assert_eq!(files(at).len(), if moved { 2 } else { 3 }, "{step}");
                    assert_eq!(attached(m, "records"), files(at).len() as u64);
                    assert_counted(m, at);
                    m.shell("truncate -s 3 $R/a/k; [ $(cat $R/a/k) = fir ]").ok();
                    assert_eq!(files(at).len(), 2);
                    assert_counted(m, at);
                },
            );
        }
    }

    /// The same of a replacement.
    #[test]
    fn killed_at_every_step_of_a_replacement() {
        let steps = [
            ("publish.metadata", false),
            ("publish.rename", false),
            ("publish.renamed", true),
            ("retire.begin", true),
            ("retire.unlink", true),
            ("retire.unlinked", true),
        ];
        for (step, moved) in steps {
            killed_at(
                step,
                |m| {
                    m.shell("cat <(echo second) > $R/a/k && cat $R/a/k").failed();
                },
                |m, at| {
                    let expected: &[u8] = if moved { b"second\n" } else { b"first" };
                    assert_eq!(fs::read(m.mnt.join("a/k")).unwrap(), expected, "{step}");
                    assert_eq!(files(at).len(), if moved { 2 } else { 3 }, "{step}");
                    assert_counted(m, at);
                },
            );
        }
    }

    /// And of a removal: what it had still to unlink has no name at the next start, and is unlinked then.
    #[test]
    fn killed_at_every_step_of_a_removal() {
        for step in [
            "removal.hide",
            "removal.legacy",
            "retire.unlink",
            "retire.unlinked",
            "removal.verify",
            "ledger.marker",
        ] {
            killed_at(
                step,
                |m| {
                    let mut control = Control::open(m);
                    control.send("remove-all tenant=a id=it").unwrap_or_else(|e| eprintln!("errno {e}"));
                },
                |m, at| {
                    wait_complete(m, "id=it");
                    assert!(wait_until(PATIENCE, || tenant(m, "a")["state"] == "ready"), "{}", m.status());
                    assert_empty(m, "a");
                    assert_eq!(files(at).len(), 1, "{step}");
                    assert_eq!(fs::read(m.mnt.join("b/k")).unwrap(), b"of b");
                    assert_counted(m, at);
                    m.crash();
                    assert_empty(m, "a");
                },
            );
        }
    }

    /// A removal is about the directory that was attached: it is not acknowledged without it.
    #[test]
    fn a_pending_removal_is_not_carried_out_without_the_directory() {
        each_attached(
            |b| b.env("FAILPOINTS", "removal.legacy=return"),
            small,
            |m, at| {
                Control::open(m).ask("remove-all tenant=a id=it");
                assert!(wait_until(PATIENCE, || tenant(m, "a")["state"] == "failed"));
                assert_eq!(fs::read_dir(m.mnt.join("a")).unwrap().count(), 0);
                m.kill();
                m.unset_env("FAILPOINTS");
                m.unset_arg("--attach-legacy");
                let (_, said) = m.try_mount().failed();
                assert!(said.contains("--attach-legacy") && said.contains(at.to_str().unwrap()), "{said}");
                assert_eq!(files(at).len(), 3);
                m.set_arg("--attach-legacy", at.to_str().unwrap());
                m.mount();
                wait_complete(m, "id=it");
                assert_eq!(files(at).len(), 1);
            },
        );
    }
}
