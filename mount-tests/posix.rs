//! Directories, renames, permissions and the calls that real programs make.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use rustix::io::Errno;
use serde_json::json;

use crate::harness::{Builder, can_mount, each, each_with};

#[test]
fn renames_in_and_between_tenants() {
    each(|m| {
        m.shell(
            "mkdir $R/other $M/d; echo x > $M/k; mv $M/k $M/d/k2; mv $M/d/k2 $M/k3; [ $(cat $M/k3) = x ]",
        )
        .ok();
        let between = rustix::fs::rename(m.key("k3"), m.mnt.join("other/k3"));
        assert_eq!(between, Err(Errno::XDEV));
        // mv falls back to a copy.
        m.shell("mv $M/k3 $R/other/k3; [ $(cat $R/other/k3) = x ]; [ ! -e $M/k3 ]").ok();
        m.shell(
            "echo a > $M/same; echo b > $R/other/same; [ $(cat $M/same) = a ]; [ $(cat $R/other/same) = b ]",
        )
        .ok();
        m.remount();
        m.shell("[ $(cat $R/other/k3) = x ]; [ $(cat $M/same) = a ]; [ $(cat $R/other/same) = b ]").ok();
    });
}

#[test]
fn directory_renames() {
    each(|m| {
        m.shell("mkdir -p $M/full/in $M/empty; echo x > $M/full/in/f").ok();
        fs::rename(m.key("empty"), m.key("moved")).unwrap();
        assert!(m.key("moved").is_dir() && !m.key("empty").exists());
        match rustix::fs::rename(m.key("full"), m.key("full2")) {
            Ok(()) => m.shell("mv $M/full2 $M/full").ok(),
            Err(e) => {
                assert_eq!(e, Errno::XDEV);
                m.shell("[ $(cat $M/full/in/f) = x ]").ok()
            }
        };
        m.shell("mv $M/full $M/gone; [ $(cat $M/gone/in/f) = x ]; [ ! -e $M/full ]").ok();
        m.remount();
        m.shell("[ $(cat $M/gone/in/f) = x ]; [ -d $M/moved ]").ok();
    });
}

#[test]
fn directories_are_real() {
    each(|m| {
        m.shell("mkdir -p $M/a/b/c; mkdir $M/empty; echo x > $M/a/f; chmod 711 $M/empty").ok();
        m.remount();
        m.shell("[ -d $M/a/b/c ]; [ -d $M/empty ]; [ $(stat -c %a $M/empty) = 711 ]").ok();
        assert_eq!(rustix::fs::rmdir(m.key("a")), Err(Errno::NOTEMPTY));
        assert_eq!(rustix::fs::rmdir(m.key("a/f")), Err(Errno::NOTDIR));
        assert_eq!(rustix::fs::unlink(m.key("a")), Err(Errno::ISDIR));
        assert_eq!(rustix::fs::mkdir(m.key("a"), 0o755.into()), Err(Errno::EXIST));
        assert_eq!(rustix::fs::mkdir(m.key("no/sub"), 0o755.into()), Err(Errno::NOENT));
        // Deleting the last key of a directory does not delete the directory.
        m.shell("rm $M/a/f; [ -d $M/a ]; rm -r $M/a; [ ! -e $M/a ]; rmdir $M/empty").ok();
        m.remount();
        assert_eq!(fs::read_dir(m.keys()).unwrap().count(), 0);
    });
}

#[test]
fn what_is_not_offered_is_eperm() {
    each(|m| {
        let mut a = m.peer();
        a.run("write(M + '/k', b'x')");
        assert_eq!(a.error("os.link(M + '/k', M + '/l')"), "EPERM");
        assert_eq!(a.error("os.mkfifo(M + '/fifo')"), "EPERM");
        assert_eq!(a.error("os.mknod(M + '/dev', 0o600 | stat.S_IFCHR, os.makedev(1, 3))"), "EPERM");
        assert_eq!(a.error("import socket; socket.socket(socket.AF_UNIX).bind(M + '/s')"), "EPERM");
        assert_eq!(a.run("os.listdir(M)"), json!(["k"]));
    });
}

#[test]
fn symlinks() {
    each(|m| {
        m.shell("mkdir -p $M/blobs $M/snap; echo w > $M/blobs/abc; ln -s ../blobs/abc $M/snap/f; [ $(cat $M/snap/f) = w ]").ok();
        m.shell("ln -s /nowhere $M/dangling; [ $(readlink $M/dangling) = /nowhere ]; [ ! -e $M/dangling ]; [ -L $M/dangling ]")
            .ok();
        m.shell("mv $M/dangling $M/moved; [ $(readlink $M/moved) = /nowhere ]; ln -sfn /else $M/moved").ok();
        m.remount();
        m.shell("[ $(cat $M/snap/f) = w ]; [ $(readlink $M/moved) = /else ]; rm $M/moved; [ ! -L $M/moved ]")
            .ok();
    });
}

#[test]
fn attributes_last() {
    each(|m| {
        m.shell(
            "echo x > $M/k; chmod 604 $M/k; chown 1234:2345 $M/k; touch -d @1000000000.123456789 $M/k
             mkdir $M/d; chmod 751 $M/d; chown 12:34 $M/d",
        )
        .ok();
        let check = |m: &crate::harness::Mount| {
            let k = fs::metadata(m.key("k")).unwrap();
            assert_eq!((k.mode() & 0o7777, k.uid(), k.gid()), (0o604, 1234, 2345));
            assert_eq!((k.mtime(), k.mtime_nsec()), (1_000_000_000, 123_456_789));
            let d = fs::metadata(m.key("d")).unwrap();
            assert_eq!((d.mode() & 0o7777, d.uid(), d.gid()), (0o751, 12, 34));
        };
        check(m);
        m.remount();
        check(m);
    });
}

#[test]
fn a_private_tenant_keeps_others_out() {
    each(|m| {
        fs::set_permissions(m.scratch.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
        m.shell("mkdir -m 700 $R/private; echo s > $R/private/k; mkdir -m 755 $R/open; echo o > $R/open/k")
            .ok();
        let mut a = m.peer();
        a.run("os.setgroups([]); os.setgid(65534); os.setuid(65534)");
        assert_eq!(a.text("read(R + '/open/k')"), "o\n");
        assert_eq!(a.error("read(R + '/private/k')"), "EACCES");
        assert_eq!(a.error("os.listdir(R + '/private')"), "EACCES");
        assert_eq!(a.error("os.unlink(R + '/open/k')"), "EACCES");
        assert_eq!(a.error("write(R + '/open/new', b'')"), "EACCES");
        assert_eq!(a.error("os.rename(R + '/open/k', R + '/open/j')"), "EACCES");
        m.shell("mkdir -m 1777 $R/shared").ok();
        a.run("write(R + '/shared/mine', b'x')");
        assert_eq!(a.int("os.stat(R + '/shared/mine').st_uid"), 65534);
        m.remount();
        let mode = fs::metadata(m.mnt.join("private")).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o700);
        assert_eq!(fs::metadata(m.mnt.join("shared/mine")).unwrap().uid(), 65534);
    });
}

#[test]
fn allocation_and_holes() {
    each(|m| {
        let mut a = m.peer();
        m.shell("fallocate -l 1M $M/fa; [ $(stat -c %s $M/fa) = 1048576 ]").ok();
        a.run("fd = os.open(M + '/h', os.O_CREAT | os.O_RDWR); os.pwrite(fd, b'a' * 4096, 0); os.pwrite(fd, b'b' * 4096, 1 << 20)");
        for published in [false, true] {
            assert_eq!(a.int("os.lseek(fd, 0, os.SEEK_HOLE)"), 4096, "published={published}");
            assert_eq!(a.int("os.lseek(fd, 4096, os.SEEK_DATA)"), 1 << 20);
            assert_eq!(a.error("os.lseek(fd, 2 << 20, os.SEEK_DATA)"), "ENXIO");
            a.run("os.close(fd); fd = os.open(M + '/h', os.O_RDWR)");
        }
        assert!(["ok", "EOPNOTSUPP"].contains(&a.outcome("os.posix_fallocate(fd, 0, 2 << 20)").as_str()));
        let punch = m.shell("fallocate -p -o 0 -l 4096 $M/h");
        if punch.status.success() {
            assert_eq!(a.run("os.pread(fd, 4096, 0) == bytes(4096)"), true);
        } else {
            assert!(punch.stderr.contains("not supported"), "{punch:?}");
        }
    });
}

#[test]
fn copy_file_range_and_sync() {
    each(|m| {
        let mut a = m.peer();
        a.run("write(M + '/src', b'0123456789' * 10000)");
        a.run("s = os.open(M + '/src', os.O_RDONLY); d = os.open(M + '/dst', os.O_CREAT | os.O_WRONLY)");
        a.run("n = 0\nwhile n < 100000:\n g = os.copy_file_range(s, d, 100000 - n)\n assert g > 0\n n += g");
        a.run("os.fsync(d); os.fdatasync(d); os.close(d)");
        assert_eq!(a.run("read(M + '/dst') == read(M + '/src')"), true);
        a.run("q = os.open(M, os.O_RDONLY | os.O_DIRECTORY); os.fsync(q); os.close(q)");
        m.shell("cp --reflink=auto $M/src $M/c; cmp $M/src $M/c; sync -f $M/c").ok();
    });
}

#[test]
fn direct_io() {
    each(|m| {
        let mut a = m.peer();
        a.run("b = mmap.mmap(-1, 1 << 20); b.write(b'z' * (1 << 20))");
        a.run("fd = os.open(M + '/od', os.O_CREAT | os.O_WRONLY | os.O_DIRECT)");
        assert_eq!(a.int("os.write(fd, b)"), 1 << 20);
        a.run("os.close(fd); fd = os.open(M + '/od', os.O_RDONLY | os.O_DIRECT)");
        assert_eq!(a.int("os.readv(fd, [b])"), 1 << 20);
        assert_eq!(a.run("b[:] == b'z' * (1 << 20)"), true);
        a.run("os.close(fd)");
        // Switched on later, as pinned-memory writers do, on a file without a name.
        a.run("fd, p = tempfile.mkstemp(dir=M); fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)");
        assert_eq!(a.int("os.pwritev(fd, [memoryview(b)[:16384]], 0)"), 16384);
        a.run("os.unlink(p); c = mmap.mmap(-1, 4096); assert os.preadv(fd, [c], 0) == 4096; os.close(fd)");
        assert_eq!(a.run("c[:] == b'z' * 4096"), true);
    });
}

#[test]
fn maps_to_read() {
    each(|m| {
        let mut a = m.peer();
        a.run("v = os.urandom(1000000); write(M + '/mm', v)");
        for flags in ["mmap.MAP_SHARED", "mmap.MAP_PRIVATE"] {
            let map = format!(
                "fd = os.open(M + '/mm', os.O_RDONLY); x = mmap.mmap(fd, 1000000, flags={flags}, prot=mmap.PROT_READ); \
                 assert x[:] == v; os.close(fd)"
            );
            a.run(&map);
        }
        // The mapping outlives the name.
        m.shell("rm $M/mm").ok();
        assert_eq!(a.run("x[:] == v"), true);
    });
}

#[test]
fn listing_while_entries_come_and_go() {
    each(|m| {
        let (mut a, mut b) = (m.peer(), m.peer());
        a.run("os.mkdir(M + '/d')\nfor i in range(3000): write(M + '/d/stay%05d' % i, b'')");
        a.run("for i in range(1000): write(M + '/d/go%05d' % i, b'')");
        b.run("it = os.scandir(M + '/d'); seen = [next(it).name for _ in range(100)]");
        a.run("for i in range(1000): os.unlink(M + '/d/go%05d' % i)");
        a.run("for i in range(1000): write(M + '/d/came%05d' % i, b'')");
        b.run("seen += [e.name for e in it]");
        assert_eq!(b.int("len([n for n in seen if n.startswith('stay')])"), 3000);
        assert_eq!(b.int("len(seen) - len(set(seen))"), 0);
        assert_eq!(b.int("len(os.listdir(M + '/d'))"), 4000);
        a.run("for e in os.scandir(M + '/d'): os.unlink(e.path)");
        assert_eq!(b.int("len(os.listdir(M + '/d'))"), 0);
        m.shell("rm -r $M/d").ok();
    });
}

#[test]
fn entries_carry_their_type() {
    each(|m| {
        m.shell("mkdir $M/d; echo x > $M/f; ln -s f $M/l").ok();
        let mut a = m.peer();
        let kinds = "sorted((e.name, e.is_dir(follow_symlinks=False), e.is_file(follow_symlinks=False), e.is_symlink()) \
                     for e in os.scandir(M))";
        assert_eq!(
            a.run(kinds),
            json!([["d", true, false, false], ["f", false, true, false], ["l", false, false, true]])
        );
    });
}

#[test]
fn statfs_tells_the_quota() {
    each_with(
        |b| b.size("64MiB"),
        |m| {
            m.shell("head -c 1000000 /dev/urandom > $M/k").ok();
            let s = rustix::fs::statvfs(&m.mnt).unwrap();
            assert_eq!((s.f_blocks * s.f_frsize, s.f_bsize), (64 << 20, 4096));
            assert!(s.f_namemax >= 255 && s.f_files > 0, "{} {}", s.f_namemax, s.f_files);
            let used = (s.f_blocks - s.f_bfree) * s.f_frsize;
            assert!(used.abs_diff(m.status_number("used_bytes")) < 4096, "{used}");
            assert!(s.f_bavail <= s.f_bfree);
        },
    );
}

#[test]
fn a_tenant_view() {
    each_with(
        |b| b.tenant("blue"),
        |m| {
            m.shell(
                "echo v > $R/k; mkdir $R/d; echo w > $R/d/k; [ $(cat $R/k) = v ]; [ -r $R/.fencefs/status ]",
            )
            .ok();
            m.remount();
            m.shell("[ \"$(ls -A $R)\" = $'d\\nk' ]; [ $(cat $R/d/k) = w ]").ok();
        },
    );
}

#[test]
fn an_overridden_owner_and_mode() {
    if !can_mount() {
        return;
    }
    let args = ["--uid", "77", "--gid", "88", "--file-mode", "0640", "--dir-mode", "0750"];
    let m = args.into_iter().fold(Builder::new(), Builder::arg).mount();
    m.shell("echo x > $M/k; mkdir $M/d; [ $(stat -c %u:%g:%a $M/k) = 77:88:640 ]; [ $(stat -c %u:%g:%a $M/d) = 77:88:750 ]")
        .ok();
}
