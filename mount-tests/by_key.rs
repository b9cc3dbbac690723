//! Keys that no path spells, by their percent-encoded names: as an import leaves them on the disk, and as programs use
//! them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencefs::format::layout::canonical_path;
use fencefs::format::record::{Record, XATTR};
use fencefs::key::{Digest, Epoch, Key, RecordKind, Tenant};
use rustix::fs::{AtFlags, CWD, RenameFlags, XattrFlags, getxattr, renameat_with, setxattr, statat};
use rustix::io::Errno;

use crate::harness::{Builder, Mount, each, each_with, fencefs, wait_until};

/// Keys that no path spells, and their names.
const UNSPELLABLE: [(&[u8], &str); 15] = [
    (b"", "%"),
    (b"/", "%2F"),
    (b".", "%2E"),
    (b"..", "%2E%2E"),
    (b"a//b", "a%2F%2Fb"),
    (b"a/./b", "a%2F.%2Fb"),
    (b"../up", "..%2Fup"),
    (b"a/..", "a%2F.."),
    (b"/first", "%2Ffirst"),
    (b"last/", "last%2F"),
    (b"nul\0byte", "nul%00byte"),
    (b"\xff\n//~", "%FF%0A%2F%2F~"),
    (b".fencefs", ".fencefs"),
    (b".fencefs/status", ".fencefs%2Fstatus"),
    // Also the directory of others, below.
    (b"dir", "dir"),
];
/// Keys beside them that a path spells.
const SPELLED: [(&[u8], &str); 3] =
    [(b"dir/k", "dir%2Fk"), (b"plain", "plain"), (b"dir/sub/~k", "dir%2Fsub%2F~k")];

fn value_of(key: &[u8]) -> Vec<u8> {
    [b"value of ", key].concat()
}

/// A record as another program puts it into a store that is not mounted.
fn craft(store: &Path, tenant: &str, key: &[u8]) {
    let tenant = Tenant::new(tenant.as_bytes()).unwrap();
    let path = store.join(canonical_path(&tenant, Epoch(0), Digest::of(&tenant, key, RecordKind::File)));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let value = value_of(key);
    fs::write(&path, &value).unwrap();
    let record = Record {
        kind: RecordKind::File,
        editing: false,
        pinned: false,
        epoch: Epoch(0),
        payload_bytes: value.len() as u64,
        checksum: None,
        tenant,
        key: Key::new(key).unwrap(),
        origin: None,
    };
    setxattr(&path, XATTR, &record.encode().unwrap(), XattrFlags::empty()).unwrap();
}

/// Gives a mounted store all these keys while it is not mounted.
fn import(m: &mut Mount) {
    m.umount();
    for (key, _) in UNSPELLABLE.into_iter().chain(SPELLED) {
        craft(&m.store, "default", key);
    }
    m.mount();
}

fn by_key(m: &Mount, name: &str) -> PathBuf {
    m.keys().join(".fencefs/by-key").join(name)
}

fn listed(m: &Mount) -> Vec<String> {
    let entries = fs::read_dir(by_key(m, "")).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn sorted<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut names: Vec<_> = names.into_iter().map(str::to_owned).collect();
    names.sort();
    names
}

fn unspellable() -> Vec<String> {
    sorted(UNSPELLABLE.iter().map(|(_, name)| *name))
}

fn errno<T: std::fmt::Debug>(done: std::io::Result<T>) -> Errno {
    Errno::from_io_error(&done.unwrap_err()).unwrap()
}

fn attribute(path: &Path, name: &str) -> String {
    let mut value = vec![0; 8192];
    let length = getxattr(path, name, &mut value[..]).unwrap();
    String::from_utf8(value[..length].to_vec()).unwrap()
}

#[test]
fn what_an_import_left_is_read_listed_and_counted() {
    each(|m| {
        import(m);
        for _ in 0..2 {
            assert_eq!(listed(m), unspellable());
            for (key, name) in UNSPELLABLE.into_iter().chain(SPELLED) {
                let path = by_key(m, name);
                assert_eq!(fs::read(&path).unwrap(), value_of(key), "{name}");
                let meta = fs::metadata(&path).unwrap();
                assert!(meta.is_file());
                assert_eq!((meta.len(), meta.nlink()), (value_of(key).len() as u64, 1), "{name}");
                assert_eq!(attribute(&path, "user.fencefs.tenant"), "default");
                let record = m.store.join(attribute(&path, "user.fencefs.path"));
                assert_eq!(fs::read(record).unwrap(), value_of(key));
            }
            assert_eq!(m.status_number("keys"), (UNSPELLABLE.len() + SPELLED.len()) as u64);
            // None of them is an entry anywhere else.
            m.shell("[ \"$(ls -A $M | tr '\\n' ' ')\" = 'dir plain ' ]; [ \"$(ls -A $M/dir | tr '\\n' ' ')\" = 'k sub ' ]")
                .ok();
            m.shell(
                "ls -laR $M/.fencefs/ > /dev/null; find $M/.fencefs/by-key -type f | wc -l | grep -qx 15",
            )
            .ok();
            m.remount();
        }
        // The digests of the contract, by either name.
        m.shell("mkdir $M/a; echo x > $M/a/b").ok();
        assert_eq!(attribute(&by_key(m, "a%2Fb"), "user.fencefs.digest"), "64c719bce58a6a9d621f9888577b399c");
    });
}

#[test]
fn only_the_one_encoding_is_a_name() {
    each(|m| {
        import(m);
        m.shell("mkdir $M/a; echo x > $M/a/b").ok();
        for name in [
            "a%2fb", "%70lain", "%2e", "%", "%%", "a%", "a%2", "%GG", "pl ain", "~%7E", "%41", "none",
            "a%2Fnone",
        ] {
            let known = name == "%";
            assert_eq!(by_key(m, name).exists(), known, "{name}");
            if !known {
                assert_eq!(errno(fs::read(by_key(m, name))), Errno::NOENT, "{name}");
            }
        }
        // A directory is no key.
        assert_eq!(errno(fs::metadata(by_key(m, "a"))), Errno::NOENT);
        assert_eq!(errno(fs::metadata(by_key(m, "dir%2Fsub"))), Errno::NOENT);
        assert_eq!(errno(fs::write(by_key(m, "a%2fc"), b"")), Errno::NOENT);
        fs::remove_file(by_key(m, "%")).unwrap();
        assert_eq!(errno(fs::write(by_key(m, "%"), b"")), Errno::NOENT);
        // At the root of the mount there is no by-key: keys are a tenant's.
        assert!(!m.mnt.join(".fencefs/by-key").exists());
    });
}

#[test]
fn they_are_made_replaced_edited_and_unlinked() {
    each(|m| {
        fs::create_dir_all(m.key("dir/sub")).unwrap();
        let made: Vec<_> =
            UNSPELLABLE.into_iter().filter(|(key, _)| !key.is_empty()).chain(SPELLED).collect();
        let mut b = m.peer();
        b.run("K = M + '/.fencefs/by-key/'");
        for (key, name) in &made {
            let path = by_key(m, name);
            assert_eq!(b.error(&format!("os.stat(K + '{name}')")), "ENOENT");
            fs::write(&path, b"first").unwrap();
            assert_eq!(b.text(&format!("read(K + '{name}')")), "first");
            // Whole: the old value until the close.
            b.run(&format!("f = open(K + '{name}', 'wb', 0); f.write(b'longer second') and None"));
            assert_eq!(fs::read(&path).unwrap(), b"first", "{name}");
            b.run("f.close()");
            assert_eq!(fs::read(&path).unwrap(), b"longer second", "{name}");
            b.run(&format!("f = open(K + '{name}', 'ab', 0); f.write(b' and more') and None; f.close()"));
            assert_eq!(fs::read(&path).unwrap(), b"longer second and more", "{name}");
            assert_eq!(b.error(&format!("os.open(K + '{name}', os.O_CREAT | os.O_EXCL)")), "EEXIST");
            fs::write(&path, value_of(key)).unwrap();
        }
        let expected =
            sorted(made.iter().map(|(_, name)| *name).filter(|n| !SPELLED.iter().any(|(_, s)| s == n)));
        assert_eq!(listed(m), expected);
        m.remount();
        assert_eq!(listed(m), expected);
        let mut keys = made.len() as u64;
        assert_eq!(m.status_number("keys"), keys);
        for (key, name) in &made {
            assert_eq!(fs::read(by_key(m, name)).unwrap(), value_of(key), "{name}");
            fs::remove_file(by_key(m, name)).unwrap();
            assert_eq!(errno(fs::read(by_key(m, name))), Errno::NOENT, "{name}");
            keys -= 1;
            assert_eq!(m.status_number("keys"), keys);
        }
        assert_eq!(listed(m), [""; 0]);
        m.remount();
        assert_eq!(listed(m), [""; 0]);
    });
}

#[test]
fn a_spelled_key_is_one_file_by_either_name() {
    each(|m| {
        m.shell("mkdir $M/d; [ ! -e $M/d/k ]").ok();
        let (path, name) = (m.key("d/k"), by_key(m, "d%2Fk"));
        let ino = |p: &Path| fs::metadata(p).unwrap().ino();
        for round in 0..3 {
            // The kernel remembered that the path leads nowhere.
            assert!(!path.exists());
            fs::write(&name, b"by key").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"by key", "{round}");
            assert_eq!(ino(&path), ino(&name));
            assert_eq!(fs::read_dir(m.key("d")).unwrap().count(), 1);
            fs::write(&path, b"by path").unwrap();
            assert_eq!(fs::read(&name).unwrap(), b"by path");
            fs::write(&name, b"by key again, longer").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"by key again, longer");
            assert_eq!((fs::metadata(&path).unwrap().len(), ino(&path)), (20, ino(&name)));
            m.shell("chmod 600 $M/.fencefs/by-key/d%2Fk; [ $(stat -c %a $M/d/k) = 600 ]").ok();
            if round == 1 {
                fs::remove_file(&path).unwrap();
            } else {
                fs::remove_file(&name).unwrap();
            }
            assert_eq!(errno(fs::metadata(&path)), Errno::NOENT, "{round}");
            assert_eq!(errno(fs::read(&path)), Errno::NOENT, "{round}");
            assert_eq!(errno(fs::metadata(&name)), Errno::NOENT, "{round}");
            assert_eq!(fs::read_dir(m.key("d")).unwrap().count(), 0);
        }
        // Its directory is not made for it.
        assert_eq!(errno(fs::write(by_key(m, "none%2Fk"), b"")), Errno::NOENT);
        // An empty value, by one open.
        m.peer().run("os.close(os.open(M + '/.fencefs/by-key/e', os.O_CREAT | os.O_RDONLY))");
        assert!(wait_until(Duration::from_secs(5), || m.key("e").exists()));
    });
}

#[test]
fn other_kinds_of_change_are_refused() {
    each(|m| {
        import(m);
        fs::create_dir(m.key("empty")).unwrap();
        let mut b = m.peer();
        b.run("K = M + '/.fencefs/by-key/'");
        for (attempt, expected) in [
            ("os.mkdir(K + 'x%2F%2Fy')", "EPERM"),
            ("os.symlink('t', K + 'x%2F%2Fy')", "EPERM"),
            ("os.mknod(K + 'x%2F%2Fy')", "EPERM"),
            ("os.link(M + '/plain', K + 'x%2F%2Fy')", "EPERM"),
            ("os.rename(M + '/empty', K + 'x%2F%2Fy')", "EPERM"),
            ("os.rename(K + 'plain', M + '/other')", "EXDEV"),
            ("os.rename(M + '/plain', K + 'other')", "EXDEV"),
            ("os.rename(K + 'a%2F%2Fb', K + 'other')", "EXDEV"),
            ("os.rmdir(M + '/.fencefs/by-key')", "EPERM"),
            ("os.unlink(M + '/.fencefs/by-key')", "EPERM"),
            ("os.chmod(M + '/.fencefs/by-key', 0o700)", "EPERM"),
            ("write(K + '%2F' * 1025 + 'x' * 1025, b'')", "ENAMETOOLONG"),
        ] {
            let errno = b.error(attempt);
            let by_kernel = attempt.contains("unlink") && errno == "EISDIR";
            assert!(errno == expected || by_kernel, "{attempt}: {errno}");
        }
        // mv copies where a rename is refused.
        m.shell("mv $M/.fencefs/by-key/plain $M/other; [ \"$(cat $M/other)\" = 'value of plain' ]; [ ! -e $M/plain ]").ok();
        assert_eq!(listed(m), unspellable());
    });
}

#[test]
fn one_moves_to_a_path_and_back() {
    each(|m| {
        import(m);
        let (strange, saved) = (by_key(m, "a%2F%2Fb"), m.key("saved"));
        assert!(!saved.exists());
        fs::rename(&strange, &saved).unwrap();
        assert_eq!((fs::read(&saved).unwrap(), strange.exists()), (value_of(b"a//b"), false));
        assert_eq!(attribute(&saved, "user.fencefs.digest").len(), 32);
        m.remount();
        assert_eq!((fs::read(&saved).unwrap(), strange.exists()), (value_of(b"a//b"), false));
        fs::rename(&saved, &strange).unwrap();
        assert_eq!((fs::read(&strange).unwrap(), saved.exists()), (value_of(b"a//b"), false));
        // What moved there is not remembered either.
        fs::write(&strange, b"replaced").unwrap();
        assert_eq!(
            (fs::read(&strange).unwrap(), fs::metadata(&strange).unwrap().len()),
            (b"replaced".to_vec(), 8)
        );
        fs::rename(&strange, by_key(m, "c%2F%2Fd")).unwrap();
        let plain = m.key("plain");
        renameat_with(CWD, by_key(m, "c%2F%2Fd"), CWD, &plain, RenameFlags::EXCHANGE).unwrap();
        for _ in 0..2 {
            assert_eq!(fs::read(&plain).unwrap(), b"replaced");
            assert_eq!(fs::read(by_key(m, "c%2F%2Fd")).unwrap(), value_of(b"plain"));
            m.remount();
        }
        // A value that is still being written is published under the name that it is given.
        let mut a = m.peer();
        a.run("f = open(M + '/tmp', 'wb', 0); f.write(b'whole') and None");
        a.run("os.rename(M + '/tmp', M + '/.fencefs/by-key/e%2F'); f.close()");
        assert_eq!((fs::read(by_key(m, "e%2F")).unwrap(), m.key("tmp").exists()), (b"whole".to_vec(), false));
    });
}

#[test]
fn attributes_pins_and_eviction() {
    each_with(
        |builder: Builder| builder.size("64MiB").evict("fifo"),
        |m| {
            import(m);
            let kept = by_key(m, "a%2F%2Fb");
            setxattr(&kept, "user.mine", b"one", XattrFlags::CREATE).unwrap();
            fencefs(["pin".as_ref(), kept.as_os_str()]).ok();
            fencefs(["pin".as_ref(), by_key(m, "plain").as_os_str()]).ok();
            m.remount();
            assert_eq!(attribute(&kept, "user.mine"), "one");
            assert_eq!(attribute(&kept, "user.fencefs.pin"), "1");
            let mut b = m.peer();
            b.run("K = M + '/.fencefs/by-key/'; f = open(K + 'last%2F', 'rb')");
            b.run("[os.stat(K + n) for n in os.listdir(K)] and None");
            assert_eq!(m.control("evict to=0").0, Ok(()));
            assert!(wait_until(Duration::from_secs(20), || m.status_number("keys") == 2));
            assert_eq!(listed(m), ["a%2F%2Fb"]);
            for (_, name) in UNSPELLABLE.into_iter().filter(|(_, name)| *name != "a%2F%2Fb") {
                assert_eq!(b.error(&format!("os.stat(K + '{name}')")), "ENOENT", "{name}");
                assert_eq!(b.error(&format!("read(K + '{name}')")), "ENOENT", "{name}");
            }
            // Who has it open goes on.
            assert_eq!(b.text("f.read()"), "value of last/");
            assert_eq!(fs::read(&kept).unwrap(), value_of(b"a//b"));
            assert_eq!(fs::read(m.key("plain")).unwrap(), value_of(b"plain"));
            fencefs(["unpin".as_ref(), kept.as_os_str()]).ok();
            assert_eq!(m.control("evict to=0").0, Ok(()));
            assert!(wait_until(Duration::from_secs(20), || !kept.exists()));
        },
    );
}

#[test]
fn a_removal_takes_them_and_no_other_tenants() {
    each(|m| {
        m.shell("mkdir $R/b").ok();
        m.umount();
        craft(&m.store, "b", b"a//b");
        m.mount();
        import(m);
        let mut b = m.peer();
        b.run("K = M + '/.fencefs/by-key/'; f = open(K + 'last%2F', 'rb')");
        b.run("[os.stat(K + n) for n in os.listdir(K)] and None");
        b.run("w = open(K + 'late%2F%2Fr', 'wb', 0); w.write(b'late') and None");
        let mnt = m.mnt.to_str().unwrap().to_owned();
        fencefs(["remove-all", &mnt, "--tenant", "default"]).ok();
        assert_eq!(listed(m), [""; 0]);
        for (_, name) in UNSPELLABLE.into_iter().chain(SPELLED) {
            assert_eq!(b.error(&format!("os.stat(K + '{name}')")), "ENOENT", "{name}");
        }
        assert_eq!(b.text("f.read()"), "value of last/");
        b.run("f.close()");
        assert_eq!(b.error("w.close()"), "ESTALE");
        assert_eq!(m.status_number("keys"), 1);
        assert_eq!(m.records().len(), 1);
        let of_b = m.mnt.join("b/.fencefs/by-key/a%2F%2Fb");
        assert_eq!(fs::read(&of_b).unwrap(), value_of(b"a//b"));
        fs::write(by_key(m, "a%2F%2Fb"), b"new").unwrap();
        assert_eq!(attribute(&by_key(m, "a%2F%2Fb"), "user.fencefs.epoch"), "1");
        m.remount();
        assert_eq!(
            (listed(m), fs::read(by_key(m, "a%2F%2Fb")).unwrap()),
            (sorted(["a%2F%2Fb"]), b"new".to_vec())
        );
        assert_eq!(rustix::fs::rmdir(m.mnt.join("b")), Err(Errno::NOTEMPTY));
        fs::remove_file(of_b).unwrap();
        rustix::fs::rmdir(m.mnt.join("b")).unwrap();
        fencefs(["remove-all", &mnt, "--global"]).ok();
        assert_eq!((listed(m).len(), m.status_number("keys")), (0, 0));
    });
}

#[test]
fn permissions_are_those_of_the_path() {
    each(|m| {
        import(m);
        m.shell("chmod 755 $M $R; mkdir $M/private $M/shared; chmod 700 $M/private; chmod 1777 $M/shared")
            .ok();
        m.shell("for d in private shared; do echo secret > $M/$d/k; chmod 666 $M/$d/k; done").ok();
        let mut nobody = m.peer();
        nobody.run("K = M + '/.fencefs/by-key/'; os.setgroups([]); os.setgid(65534); os.setuid(65534)");
        assert_eq!(nobody.text("read(K + 'a%2F%2Fb')"), "value of a//b");
        assert_eq!(nobody.error("read(K + 'private%2Fk')"), "EACCES");
        assert_eq!(nobody.text("read(K + 'shared%2Fk')"), "secret\n");
        // Whoever may not write to the tenant's directory changes nothing here.
        for attempt in
            ["write(K + 'x%2F%2Fy', b'')", "os.unlink(K + 'a%2F%2Fb')", "os.unlink(K + 'shared%2Fk')"]
        {
            assert_eq!(nobody.error(attempt), "EACCES", "{attempt}");
        }
        m.shell("chmod 777 $M").ok();
        for (attempt, expected) in [
            ("write(K + 'private%2Fnew', b'')", "EACCES"),
            ("os.unlink(K + 'private%2Fk')", "EACCES"),
            ("write(K + 'dir%2Fnew', b'')", "EACCES"),
            ("os.unlink(K + 'dir%2Fk')", "EACCES"),
            ("os.unlink(K + 'shared%2Fk')", "EPERM"),
        ] {
            assert_eq!(nobody.error(attempt), expected, "{attempt}");
        }
        nobody.run("write(K + 'shared%2Fmine', b'm'); os.unlink(K + 'shared%2Fmine')");
        nobody.run("write(K + 'x%2F%2Fy', b'mine')");
        assert_eq!(fs::metadata(by_key(m, "x%2F%2Fy")).unwrap().uid(), 65534);
        nobody.run("os.unlink(K + 'x%2F%2Fy')");
        // An ACL is the kernel's to judge, on the path.
        let entries =
            [(1u16, 7u16, u32::MAX), (2, 0, 65534), (4, 7, u32::MAX), (16, 7, u32::MAX), (32, 7, u32::MAX)];
        let mut acl = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            acl.extend([&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat());
        }
        setxattr(m.key("shared"), "system.posix_acl_access", &acl, XattrFlags::empty()).unwrap();
        assert_eq!(nobody.error("read(K + 'shared%2Fk')"), "EACCES");
        m.shell("chmod 700 $M").ok();
        assert_eq!(nobody.error("read(K + 'a%2F%2Fb')"), "EACCES");
        m.shell("chmod 755 $M").ok();
    });
}

#[test]
fn long_names() {
    each(|m| {
        for slashes in [100, 300, 1000, 1300] {
            let name = format!("{}k", "%2F".repeat(slashes));
            fs::write(by_key(m, &name), b"v").unwrap();
            assert_eq!(fs::read(by_key(m, &name)).unwrap(), b"v", "{slashes}");
        }
        let long = format!("{}%2F", "k".repeat(3000));
        fs::write(by_key(m, &long), b"v").unwrap();
        m.remount();
        assert_eq!((listed(m).len(), fs::read(by_key(m, &long)).unwrap()), (5, b"v".to_vec()));
        // A key whose name the kernel cannot carry is counted, and stands in no other's way.
        m.umount();
        craft(&m.store, "default", &[b'/'; 2000]);
        craft(&m.store, "default", b"a//b");
        m.mount();
        assert_eq!((listed(m).len(), m.status_number("keys")), (6, 7));
    });
}

#[test]
fn many_are_listed_once_each_while_others_go() {
    each(|m| {
        let mut a = m.peer();
        a.run("K = M + '/.fencefs/by-key/'");
        a.run("[write(K + '%%2F%04d' % i, b'') for i in range(1500)] and None");
        assert_eq!(listed(m).len(), 1500);
        a.run("it = os.scandir(K); first = next(it).name");
        for at in 1400..1500 {
            fs::remove_file(by_key(m, &format!("%2F{at:04}"))).unwrap();
        }
        let rest = a.int("len(set([first] + [e.name for e in it]))");
        assert!((1400..=1500).contains(&rest), "{rest}");
        assert_eq!(listed(m).len(), 1400);
        m.shell("rm $M/.fencefs/by-key/*").ok();
        assert_eq!(listed(m).len(), 0);
    });
}

/// A rename between the two directories holds both locks in the kernel, an unlink by key the one while it tells of the
/// other: neither may wait for the other.
#[test]
fn changes_by_key_and_renames_out_of_it_wait_for_nobody() {
    each(|m| {
        fs::create_dir(m.key("d")).unwrap();
        let (mut a, mut b) = (m.peer(), m.peer());
        for peer in [&mut a, &mut b] {
            peer.run("K = M + '/.fencefs/by-key/'; D = M + '/d/'");
        }
        a.begin(
            "for i in range(400): write(K + 'd%2Fk', b'v'); os.path.exists(D + 'k'); os.unlink(K + 'd%2Fk')",
        );
        b.begin("for i in range(400): write(D + 'x', b'v'); os.rename(D + 'x', K + 'x%2F%2Fy'); os.rename(K + 'x%2F%2Fy', D + 'z')");
        assert!(a.finish().get("ok").is_some());
        assert!(b.finish().get("ok").is_some());
        assert!(!m.key("d/k").exists() && m.key("d/z").exists());
        assert_eq!(m.status_number("keys"), 1);
    });
}

#[test]
fn in_a_view_of_one_tenant_they_stand_at_its_root() {
    each_with(
        |builder| builder.tenant("view"),
        |m| {
            m.umount();
            craft(&m.store, "view", b"a//b");
            m.mount();
            assert_eq!(listed(m), ["a%2F%2Fb"]);
            assert_eq!(fs::read(by_key(m, "a%2F%2Fb")).unwrap(), value_of(b"a//b"));
            fs::write(by_key(m, "k"), b"v").unwrap();
            assert_eq!(fs::read(m.key("k")).unwrap(), b"v");
            fs::remove_file(by_key(m, "a%2F%2Fb")).unwrap();
            assert_eq!(listed(m), [""; 0]);
        },
    );
}

#[test]
fn a_key_whose_directory_goes_is_found_at_its_path() {
    each(|m| {
        import(m);
        m.shell("rm -r $M/dir").ok();
        let (path, name) = (m.key("dir"), by_key(m, "dir"));
        assert_eq!(fs::read(&path).unwrap(), value_of(b"dir"));
        assert_eq!(listed(m), unspellable());
        // Also when it goes by its key.
        fs::remove_file(&name).unwrap();
        assert_eq!(errno(fs::metadata(&path)), Errno::NOENT);
        fs::write(&path, b"new").unwrap();
        assert_eq!(fs::read(&name).unwrap(), b"new");
        assert_eq!(listed(m).len(), UNSPELLABLE.len() - 1);
        m.crash();
        assert_eq!((fs::read(&name).unwrap(), fs::read(&path).unwrap()), (b"new".to_vec(), b"new".to_vec()));
        assert!(statat(CWD, &path, AtFlags::empty()).is_ok());
        assert!(fs::read_dir(m.keys()).unwrap().any(|e| e.unwrap().file_name() == OsStr::from_bytes(b"dir")));
    });
}
