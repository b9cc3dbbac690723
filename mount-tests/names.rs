//! What a key may be called, what a tenant may be called, and where `.fencefs` means something.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;

use crate::harness::each;

#[test]
fn any_bytes() {
    each(|m| {
        let names: [&[u8]; 8] = [
            b"z\xff\xfe\x80 k",
            b"new\nline",
            b"tab\t",
            b"a:b*c?\"<>|\\",
            b" ",
            b"-rf",
            b"...",
            "schl\u{fc}ssel".as_bytes(),
        ];
        for name in names {
            let path = m.key(OsStr::from_bytes(name));
            fs::write(&path, name).unwrap();
            assert_eq!(fs::read(&path).unwrap(), name);
        }
        m.remount();
        let mut listed: Vec<_> =
            fs::read_dir(m.keys()).unwrap().map(|e| e.unwrap().file_name().as_bytes().to_vec()).collect();
        listed.sort();
        let mut expected: Vec<_> = names.iter().map(|n| n.to_vec()).collect();
        expected.sort();
        assert_eq!(listed, expected);
        for name in names {
            assert_eq!(fs::read(m.key(OsStr::from_bytes(name))).unwrap(), name);
        }
        // Names in status and metrics never break their text.
        assert!(m.status()["keys"].as_u64() >= Some(8));
        fs::read_to_string(m.mnt.join(".fencefs/metrics")).unwrap();
    });
}

#[test]
fn names_that_a_sanitiser_would_merge() {
    each(|m| {
        let names =
            ["a:b", "a*b", "a?b", "a\"b", "a<b", "a>b", "a|b", "a\\b", "a_b", "A_B", "a b", "a@b", "a%2Fb"];
        for name in names {
            fs::write(m.key(name), name).unwrap();
        }
        for name in names {
            assert_eq!(fs::read_to_string(m.key(name)).unwrap(), name);
        }
        assert_eq!(fs::read_dir(m.keys()).unwrap().count(), names.len());
    });
}

#[test]
fn long_names() {
    each(|m| {
        for length in [255, 256, 282, 346, 1000] {
            let path = m.key("k".repeat(length));
            fs::write(&path, b"hi").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"hi", "{length}");
        }
        m.remount();
        assert_eq!(fs::read(m.key("k".repeat(1000))).unwrap(), b"hi");
        assert_eq!(fs::read_dir(m.keys()).unwrap().count(), 5);
    });
}

#[test]
fn the_longest_key() {
    each(|m| {
        let directory = ["d".repeat(1000), "e".repeat(1000)].join("/");
        fs::create_dir_all(m.key(&directory)).unwrap();
        let rest = 3072 - directory.len() - 1;
        let longest = m.key(format!("{directory}/{}", "f".repeat(rest)));
        fs::write(&longest, b"x").unwrap();
        assert_eq!(fs::read(&longest).unwrap(), b"x");
        let longer = m.key(format!("{directory}/{}", "f".repeat(rest + 1)));
        let refused = fs::write(&longer, b"x").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()));
        assert_eq!(rustix::fs::rename(&longest, &longer), Err(Errno::NAMETOOLONG));
        m.remount();
        assert_eq!(fs::read(&longest).unwrap(), b"x");
    });
}

#[test]
fn tenants_are_made_and_removed() {
    each(|m| {
        let make = |name: &str| rustix::fs::mkdir(m.mnt.join(name), 0o755.into());
        assert!(m.mnt.join("default").is_dir());
        for name in ["blue", "A.b_c-9", "x", &"n".repeat(64)] {
            make(name).unwrap();
            fs::write(m.mnt.join(name).join("k"), name).unwrap();
        }
        for name in ["with space", "a:b", ".hidden", "\u{fc}", &"n".repeat(65)] {
            assert_eq!(make(name), Err(Errno::INVAL), "{name}");
        }
        assert_eq!(make("blue"), Err(Errno::EXIST));
        assert_eq!(rustix::fs::rmdir(m.mnt.join("blue")), Err(Errno::NOTEMPTY));
        fs::remove_file(m.mnt.join("blue/k")).unwrap();
        fs::remove_dir(m.mnt.join("blue")).unwrap();
        assert!(!m.mnt.join("blue").exists());
        // A value needs a tenant.
        assert!(fs::write(m.mnt.join("file"), b"").is_err());
        m.remount();
        assert!(!m.mnt.join("blue").exists() && m.mnt.join("x").is_dir() && m.mnt.join("default").is_dir());
        assert_eq!(fs::read_to_string(m.mnt.join("A.b_c-9/k")).unwrap(), "A.b_c-9");
    });
}

#[test]
fn the_virtual_directory() {
    each(|m| {
        m.shell("mkdir -p $M/sub/deep; [ \"$(ls -A $R)\" = default ]; [ \"$(ls -A $M)\" = sub ]").ok();
        m.shell("for d in $R $M; do for f in status metrics control; do [ -e $d/.fencefs/$f ]; done; done")
            .ok();
        assert_eq!(m.status()["name"], "fencefs");
        assert!(fs::read_to_string(m.mnt.join(".fencefs/metrics")).unwrap().contains("fencefs"));
        let mut a = m.peer();
        for attempt in [
            "write(R + '/.fencefs/x', b'')",
            "os.mkdir(R + '/.fencefs/d')",
            "os.unlink(R + '/.fencefs/status')",
            "os.rename(R + '/.fencefs/status', M + '/s')",
            "os.rmdir(R + '/.fencefs')",
            "os.mkdir(M + '/.fencefs/d')",
            "os.symlink('x', M + '/.fencefs/l')",
        ] {
            let errno = a.error(attempt);
            assert!(
                errno == "EPERM" || (errno == "EXDEV" && attempt.contains("rename")),
                "{attempt}: {errno}"
            );
        }
    });
}

#[test]
fn internal_names_are_ordinary_deeper() {
    each(|m| {
        m.shell(
            "mkdir -p $M/sub/.fencefs; echo mine > $M/sub/.fencefs/status; chmod 600 $M/sub/.fencefs/status",
        )
        .ok();
        m.shell("for n in .staging .trash .quarantine t data lock FENCEFS; do echo $n > $M/$n; done").ok();
        m.shell("echo f > $M/sub/deep; [ \"$(ls -A $M/sub)\" = $'.fencefs\\ndeep' ]").ok();
        m.remount();
        m.shell("[ $(cat $M/sub/.fencefs/status) = mine ]; [ $(cat $M/.staging) = .staging ]; [ $(cat $M/lock) = lock ]").ok();
        m.shell("rm -r $M/sub/.fencefs; [ ! -e $M/sub/.fencefs ]").ok();
    });
}

#[test]
fn the_virtual_directory_lists_its_files() {
    each(|m| {
        m.shell("[ \"$(ls $M/.fencefs | tr '\\n' ' ')\" = 'by-key control metrics requests status ' ]").ok();
        m.shell("ls -la $M/.fencefs > /dev/null; ls -la $M/.fencefs/by-key > /dev/null; find $R/.fencefs > /dev/null").ok();
    });
}
