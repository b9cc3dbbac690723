//! Cases on names.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use serde_json::Value;

use crate::cases::{case, case_with, python, shell};
use crate::eviction::Immutable;

/// The names that the long keys of real caches have, and the longest that the mount itself says it takes.
#[test]
fn u011_names_as_long_as_keys_are() {
    case(|m| {
        python(
            m,
            "most = os.pathconf(M, 'PC_NAME_MAX')
assert most >= 1000, most
lengths = [1, 254, 255, 256, 282, 346, 1000, most]
for n in lengths:
    name = M + '/' + 'k' * n
    write(name, b'hi'); assert read(name) == b'hi'; os.unlink(name)
    # As those who write a temporary file beside it do.
    if n > 4: write(name[:-4] + '.tmp', b'%d' % n); os.rename(name[:-4] + '.tmp', name)
    else: write(name, b'%d' % n)
    write(W + '/lengths', repr(lengths).encode())
try: write(M + '/' + 'k' * (most + 1), b'')
except OSError as e: assert e.errno == errno.ENAMETOOLONG, e
else: assert False, 'longer than it says'",
        )
        .ok();
        shell(m, "[ $(getconf NAME_MAX $M) = $(stat -f -c %l $M) ]").ok();
        m.remount();
        python(
            m,
            "lengths = eval(read(W + '/lengths'))
for n in lengths: assert read(M + '/' + 'k' * n) == b'%d' % n, n
assert sorted(map(len, os.listdir(M))) == sorted(set(lengths))",
        )
        .ok();
    });
}

#[test]
fn u013_no_two_keys_are_one() {
    case(|m| {
        let look = "keys = ['a:b', 'a*b', 'a?b', 'a\"b', 'a<b', 'a>b', 'a|b', 'a\\\\b', 'a_b', 'A_B', 'a b', 'a@b', 'a%2Fb', 'a-SEP-b',
    'A_b', 'a_b ', ' a_b', 'a_b.', 'a\\nb', 'a\\tb', '\\u00e9', 'e\\u0301', 'a%2fb', 'a%b', '~', '-rf', '#', \"'\", '$(x)']
for i, k in enumerate(keys):
    if first: write(M + '/' + k, b'%d:%s' % (i, os.fsencode(k)))
for i, k in enumerate(keys):
    assert read(M + '/' + k) == b'%d:%s' % (i, os.fsencode(k)), k
assert sorted(os.listdir(M)) == sorted(keys)";
        python(m, &format!("first = True\n{look}")).ok();
        m.remount();
        python(m, &format!("first = False\n{look}")).ok();
        // The key inside a record decides, not the name of its file.
        let (one, other) = (m.record_of("a_b"), m.record_of("A_B"));
        m.umount();
        shell(m, &format!("cp --preserve=all {} {}", one.display(), other.display())).ok();
        m.mount();
        assert!(
            shell(m, "cat $M/A_B").failed().1.contains("No such file"),
            "a miss, never the other's bytes"
        );
        shell(m, "[ \"$(cat $M/a_b)\" = 8:a_b ]").ok();
    });
}

/// Bytes that are no text, in names and in what is told of them.
#[test]
fn u014_names_that_are_no_text() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    case_with(
        |b| b.evict("fifo").arg("--log-level=debug").arg("--log-file").arg(&log),
        |m| {
            let name = "n = os.fsencode(M) + b'/z\\xff\\xfe\\x80 \"k\\x01\\n'";
            python(
                m,
                &format!(
                    "{name}
write(n, b'1'); os.rename(n, n + b'2')
assert os.listdir(os.fsencode(M)) == [os.path.basename(n) + b'2']
assert read(n + b'2') == b'1'
os.unlink(n + b'2'); assert os.listdir(M) == []
write(n, b'1'); os.mkdir(n + b'd'); write(n + b'd/\\xc3\\x28', b'2'); os.symlink(b'\\xf0\\x28', n + b'l')"
                ),
            )
            .ok();
            m.remount();
            python(
                m,
                &format!("{name}\nassert read(n) == b'1' and read(n + b'd/\\xc3\\x28') == b'2' and os.readlink(n + b'l') == b'\\xf0\\x28'"),
            )
            .ok();
            // An error that names the key. Text that is told stays text.
            let stuck = Immutable::new(m.record_of(OsStr::from_bytes(b"z\xff\xfe\x80 \"k\x01\n")));
            shell(m, "for i in $(seq 80); do head -c 1M /dev/zero > $M/f$i; done").ok();
            for file in ["status", "metrics", "requests"] {
                let text = fs::read(m.mnt.join(".fencefs").join(file)).unwrap();
                assert!(
                    std::str::from_utf8(&text).is_ok_and(|t| !t.contains(['\x01', '\u{fffd}'])),
                    "{file}"
                );
            }
            let status = m.status();
            if stuck.is_some() {
                let told = status["last_error"].as_str().unwrap_or_default();
                assert!(told.is_ascii() && !told.contains(char::is_control), "{status}");
                assert!(status["eviction_errors"].as_u64() > Some(0), "{status}");
            }
            drop(stuck);
            shell(m, "$BIN status $R; $BIN status $R --json; echo status > $CTL; cat $CTL").ok();
            m.umount();
            let report = shell(m, "$BIN fsck $S --json").ok();
            let report: Value = serde_json::from_str(&report).unwrap();
            assert_eq!(report["errors"], 0, "{report}");
            m.mount();
            let logged = fs::read(&log).unwrap_or_default();
            assert!(
                logged.iter().all(|b| *b == b'\n' || *b == b'\t' || (b' '..0x7f).contains(b)),
                "{}",
                String::from_utf8_lossy(&logged)
            );
        },
    );
}

#[test]
fn u016_the_reserved_name_is_reserved_in_two_places_alone() {
    case(|m| {
        for dir in ["sub", "sub/deep"] {
            fs::create_dir(m.key(dir)).unwrap();
            // As a file, then as a directory of files with the names of the virtual ones.
            shell(
                m,
                &format!(
                    "f=$M/{dir}/.fencefs
                     echo mine > $f; chmod 755 $f; [ $(stat -c %a $f) = 755 ]; [ $(cat $f) = mine ]
                     [ \"$(ls -A $M/{dir})\" = .fencefs ]; rm $f; [ ! -e $f ]
                     mkdir $f; for n in control status metrics requests by-key; do echo $n > $f/$n; done
                     for n in control status metrics requests by-key; do [ $(cat $f/$n) = $n ]; mv $f/$n $f/x; mv $f/x $f/$n; done
                     [ $(ls $f | wc -l) = 5 ]; rm -r $f; [ ! -e $f ]"
                ),
            )
            .ok();
        }
        for place in ["$R/.fencefs", "$M/.fencefs"] {
            for change in ["mkdir", "rmdir", "touch", "rm -f", "chmod 700", "mv -T $M/sub"] {
                let (_, text) = shell(m, &format!("{change} {place}")).failed();
                assert!(!text.contains("Input/output"), "{change} {place}: {text}");
            }
        }
        shell(m, "[ -r $R/.fencefs/status ]; [ -r $M/.fencefs/status ]; [ -d $M/sub ]").ok();
    });
}
