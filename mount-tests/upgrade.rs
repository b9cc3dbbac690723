//! Stores that earlier releases made, as they left them: read, used and refused. What is in them:
//! `mount-tests/fixtures/make-store-v1`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Mount, each, fencefs, run};

/// The directory of one of the fixture's stores, `clean` or `crashed`, in place of the mount's own.
fn replace_store(m: &Mount, which: &str) {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("mount-tests/fixtures/store-v1.tar.gz");
    fs::remove_dir_all(&m.store).unwrap();
    fs::create_dir(&m.store).unwrap();
    run(Command::new("tar")
        .args(["--xattrs", "--xattrs-include=user.*", "--strip-components=1", "-xzf"])
        .arg(packed)
        .arg("-C")
        .arg(&m.store)
        .arg(which))
    .ok();
}

/// Everything below a store, but for who locked it last: path, length, inode and times.
fn everything(dir: &Path) -> BTreeMap<PathBuf, (u64, u64, i64, i64)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name() == Some("lock".as_ref()) {
            continue;
        }
        let attr = path.symlink_metadata().unwrap();
        found.insert(path.clone(), (attr.size(), attr.ino(), attr.ctime(), attr.ctime_nsec()));
        if attr.is_dir() {
            found.append(&mut everything(&path));
        }
    }
    found
}

fn holds_what_it_held(m: &Mount) {
    m.shell(
        "set -e
         [ \"$(cat $M/plain)\" = 'value of a plain key' ]; [ \"$(readlink $M/link)\" = plain ]
         [ \"$(seq 1 15000 | sha256sum)\" = \"$(sha256sum < $M/dir/sub/long-value)\" ]
         [ -f $M/empty ]; [ ! -s $M/empty ]
         [ \"$(getfattr --only-values -n user.fencefs.pin $M/pinned)\" = 1 ]
         [ \"$(getfattr --only-values -n user.note $M/noted)\" = 'a note' ]
         [ \"$(stat -c '%a %Y' $M/noted)\" = '600 1234567890' ]
         [ \"$(getfattr --only-values -n user.fencefs.ttl $M/timed)\" = 4000000000 ]
         [ \"$(cat $M/renamed)\" = renamed ]; [ ! -e $M/.tmp ]
         [ \"$(head -c 100000 /dev/zero | tr '\\0' r | sha256sum)\" = \"$(sha256sum < $M/read-often)\" ]
         [ \"$(cat $M/$(printf '%0700d' 7))\" = 'long name' ]
         [ \"$(cat $R/a/shared)\" = 'of a' ]; [ \"$(cat $R/b/shared)\" = 'of b, new' ]; [ -z \"$(ls -A $R/c)\" ]",
    )
    .ok();
    let odd = std::ffi::OsStr::from_bytes(b"b\xffd\nname");
    assert_eq!(fs::read(m.key(odd)).unwrap(), b"not text\n");
    let quota =
        fencefs(["quota".as_ref(), m.mnt.as_os_str(), "--tenant".as_ref(), "a".as_ref(), "--json".as_ref()])
            .ok();
    let quota: serde_json::Value = serde_json::from_str(&quota).unwrap();
    assert_eq!((&quota["quota_bytes"], &quota["reserve_bytes"]), (&(10 << 20).into(), &(1 << 20).into()));
    let requests = fencefs(["requests".as_ref(), m.mnt.as_os_str(), "--json".as_ref()]).ok();
    for id in ["first", "second"] {
        assert!(requests.contains(&format!("\"{id}\"")), "{requests}");
    }
    assert_eq!((m.status_number("generation"), m.status_number("pending_requests")), (2, 0));
    assert_eq!(m.status_number("quarantined"), 0);
}

#[test]
fn a_store_of_the_first_format_is_read_and_used() {
    each(|m| {
        for which in ["clean", "crashed"] {
            m.umount();
            replace_store(m, which);
            if which == "clean" {
                fencefs(["fsck".as_ref(), m.store.as_os_str(), "--verify-data".as_ref()]).ok();
            }
            m.mount();
            holds_what_it_held(m);
            if which == "crashed" {
                assert_eq!(fs::read(m.key("edited")).unwrap(), b"before, and after");
                assert!(!m.key("never-closed").exists());
            }
            // The next generation is above all that it knows, and what is written now is read by the next start.
            m.shell("set -e; echo new > $M/plain; echo more > $R/a/more").ok();
            fencefs(["remove-all".as_ref(), m.mnt.as_os_str(), "--tenant".as_ref(), "b".as_ref()]).ok();
            m.remount();
            assert_eq!(m.status_number("generation"), 3);
            m.shell(
                "[ \"$(cat $M/plain)\" = new ]; [ \"$(cat $R/a/more)\" = more ]; [ -z \"$(ls -A $R/b)\" ]",
            )
            .ok();
        }
    });
}

#[test]
fn a_store_of_a_later_format_is_refused_and_left_as_it_is() {
    each(|m| {
        m.umount();
        replace_store(m, "clean");
        let superblock = m.store.join("FENCEFS");
        let text = fs::read_to_string(&superblock).unwrap();
        assert!(text.contains("\"format\": 1"), "{text}");
        fs::write(&superblock, text.replace("\"format\": 1", "\"format\": 2, \"extents\": true")).unwrap();
        let before = everything(&m.store);
        let (code, message) = m.try_mount().failed();
        assert_eq!(code, 1);
        assert!(message.contains("format 2") && message.contains("version that wrote it"), "{message}");
        for command in ["fsck", "import"] {
            let source = m.scratch.join("nothing");
            fs::create_dir_all(source.join("file_per_key_dir")).unwrap();
            let arguments = match command {
                "fsck" => vec!["fsck".as_ref(), m.store.as_os_str(), "--repair".as_ref()],
                _ => vec!["import".as_ref(), "--from".as_ref(), source.as_os_str(), m.store.as_os_str()],
            };
            let output = fencefs(arguments);
            assert_ne!(output.status.code(), Some(0));
            assert!((output.stdout + &output.stderr).contains("format 2"), "{command}");
        }
        assert!(everything(&m.store) == before, "something has changed");
        fs::write(&superblock, text).unwrap();
        m.mount();
        holds_what_it_held(m);
    });
}
