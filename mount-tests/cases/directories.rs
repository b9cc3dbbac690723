//! Cases on directories and links.

use crate::cases::{case, python, shell};

/// What is in a directory is never lost with it. A directory with entries is not renamed (EXDEV), so mv copies.
#[test]
fn u079_a_directory_with_entries() {
    case(|m| {
        shell(
            m,
            "mkdir -p $M/ne/in; echo x > $M/ne/in/f; ln -s f $M/ne/in/l; setfattr -n user.n -v 1 $M/ne/in/f
             ! rmdir $M/ne 2> $W/said; grep 'not empty' $W/said; ! rmdir $M/ne/in; [ $(cat $M/ne/in/f) = x ]
             mv $M/ne $M/ne2; [ $(cat $M/ne2/in/f) = x ]; [ $(readlink $M/ne2/in/l) = f ]; [ ! -e $M/ne ]
             [ $(getfattr --only-values -n user.n $M/ne2/in/f) = 1 ]
             mkdir $M/e1; mv $M/e1 $M/ne2; [ -d $M/ne2/e1 ]; [ ! -e $M/e1 ]
             mkdir $M/e2 $M/e3; mv -T $M/e2 $M/e3; [ -d $M/e3 ]; [ ! -e $M/e2 ]
             ! mv -T $M/e3 $M/ne2 2> $W/said; [ $(cat $M/ne2/in/f) = x ]",
        )
        .ok();
        let mut a = m.peer();
        assert_eq!(a.error("os.rename(M + '/ne2', M + '/ne3')"), "EXDEV");
        assert_eq!(a.error("os.rmdir(M + '/ne2')"), "ENOTEMPTY");
        assert_eq!(a.error("os.unlink(M + '/ne2')"), "EISDIR");
        assert_eq!(a.text("read(M + '/ne2/in/f')"), "x\n");
        // A file that is only being written keeps its directory as well.
        a.run("os.mkdir(M + '/w'); fd = os.open(M + '/w/new', os.O_CREAT | os.O_WRONLY); os.write(fd, b'v')");
        let removed = a.outcome("os.rmdir(M + '/w')");
        let closed = a.outcome("os.close(fd)");
        match removed.as_str() {
            "ENOTEMPTY" => assert_eq!((closed.as_str(), a.text("read(M + '/w/new')").as_str()), ("ok", "v")),
            "ok" => assert_ne!(closed, "ok", "a close that published nothing must say so"),
            other => panic!("{other}"),
        }
    });
}

#[test]
fn u080_rm_while_listing() {
    case(|m| {
        python(
            m,
            "d = M + '/rd'; os.mkdir(d)
def make(n):
    for i in range(n): os.close(os.open(d + '/%05d' % i, os.O_CREAT | os.O_WRONLY))
make(1500)
for e in os.scandir(d): os.unlink(e.path)
assert os.listdir(d) == []
make(1500)
# Every second one, then the rest, each by a listing that others change.
it = os.scandir(d); first = [next(it).name for _ in range(300)]
for name in first[::2]: os.unlink(d + '/' + name)
for i in range(200): write(d + '/new%d' % i, b'')
rest = [e.name for e in it]
old = [n for n in first + rest if not n.startswith('new')]
assert sorted(old) == ['%05d' % i for i in range(1500)], len(old)
shutil.rmtree(d); assert not os.path.exists(d)
os.mkdir(d); make(500)",
        )
        .ok();
        shell(m, "rm -rf $M/rd; [ ! -e $M/rd ]; mkdir -p $M/x/y/z; touch $M/x/{1..200} $M/x/y/{1..200}; rm -r $M/x; [ -z \"$(ls -A $M)\" ]").ok();
    });
}

/// No hard links, said as the kernel says it of filesystems that have none.
#[test]
fn u082_hard_links_are_refused_cleanly() {
    case(|m| {
        shell(m, "echo x > $M/hl; ! ln $M/hl $M/hl2 2> $W/said; grep 'not permitted' $W/said; [ $(stat -c %h $M/hl) = 1 ]; [ ! -e $M/hl2 ]; [ $(cat $M/hl) = x ]").ok();
        let mut a = m.peer();
        assert_eq!(a.error("os.link(M + '/hl', M + '/hl2')"), "EPERM");
        assert_eq!(a.error("os.link(M + '/none', M + '/hl2')"), "ENOENT");
        // Who tries a link and falls back on a rename or an exclusive create gets what it is after.
        a.run("os.rename(M + '/hl', M + '/hl2'); os.close(os.open(M + '/lock', os.O_CREAT | os.O_EXCL | os.O_WRONLY))");
        assert_eq!(a.error("os.open(M + '/lock', os.O_CREAT | os.O_EXCL | os.O_WRONLY)"), "EEXIST");
        shell(m, "cp -l $M/hl2 $M/hl3 2> $W/said || cp $M/hl2 $M/hl3; cmp $M/hl2 $M/hl3").ok();
    });
}

/// The layout of a hub's cache. Where a link leads is the kernel's affair, never the daemon's.
#[test]
fn u083_links_of_a_hub_cache() {
    case(|m| {
        shell(
            m,
            "h=$M/models--org--name; mkdir -p $h/blobs $h/snapshots/rev $h/refs; echo w > $h/blobs/abc.incomplete; mv $h/blobs/abc.incomplete $h/blobs/abc
             ln -s ../../blobs/abc $h/snapshots/rev/f; [ $(cat $h/snapshots/rev/f) = w ]; echo rev > $h/refs/main
             [ $(readlink -f $h/snapshots/rev/f) = $(readlink -f $h)/blobs/abc ]
             ln -s /etc/passwd $M/esc; cmp $M/esc /etc/passwd; [ $(stat -c %F $M/esc | tr -d ' ') = symboliclink ]
             ln -s /etc/no-such-file $M/dangling; ! cat $M/dangling 2> $W/said; grep 'No such file' $W/said; [ -L $M/dangling ]
             [ $(stat -Lc %s $h/snapshots/rev/f) = 2 ]; rm $h/blobs/abc; ! cat $h/snapshots/rev/f 2> $W/said",
        )
        .ok();
        m.remount();
        shell(
            m,
            "[ $(readlink $M/models--org--name/snapshots/rev/f) = ../../blobs/abc ]; cmp $M/esc /etc/passwd",
        )
        .ok();
        // Where a link leads is the reader's root directory: the daemon has opened nothing of it.
        shell(m, "mkdir -p $W/root/etc; echo jail > $W/root/etc/passwd; [ -e /etc/passwd ]; rm $M/esc; cmp /etc/passwd /etc/passwd").ok();
        python(
            m,
            "import subprocess
os.symlink('/where', M + '/l'); os.makedirs(W + '/jail'); write(W + '/jail/where', b'inside')
fd = os.open(M, os.O_RDONLY | os.O_DIRECTORY)
if os.fork() == 0:
    os.chroot(W + '/jail')
    got = os.open('l', os.O_RDONLY, dir_fd=fd)
    os._exit(0 if os.read(got, 10) == b'inside' else 1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0",
        )
        .ok();
    });
}
