//! Publication, the promise of a close: what appears, and when, with the programs and habits of real writers.

use std::fs;

use crate::harness::{each, each_with};

#[test]
fn redirects() {
    each(|m| {
        m.shell("echo one > $M/a; [ \"$(cat $M/a)\" = one ]").ok();
        m.shell("{ echo one; echo two; } > $M/b; [ \"$(cat $M/b)\" = $'one\\ntwo' ]").ok();
        m.shell(": > $M/empty; [ -f $M/empty ]; [ ! -s $M/empty ]").ok();
        m.shell("echo new > $M/a; [ \"$(cat $M/a)\" = new ]").ok();
        m.shell(": > $M/a; [ -f $M/a ]; [ ! -s $M/a ]").ok();
        // A shell redirect flushes its descriptor once before the command writes: that must not publish nothing.
        m.shell("( sleep 0; echo late ) > $M/c; [ \"$(cat $M/c)\" = late ]").ok();
        m.shell("head -c 3000000 /dev/urandom > $W/v; cat $W/v > $M/big; cmp $W/v $M/big").ok();
        m.remount();
        m.shell("[ \"$(cat $M/b)\" = $'one\\ntwo' ]; [ -f $M/empty ] && cmp $W/v $M/big").ok();
    });
}

#[test]
fn touch_and_mktemp() {
    each(|m| {
        m.shell("touch $M/t; [ -f $M/t ]; [ ! -s $M/t ]").ok();
        m.shell("echo x > $M/t; touch $M/t; [ \"$(cat $M/t)\" = x ]").ok();
        m.shell(
            "f=$(mktemp -p $M); [ -f $f ]; echo kept > $f; mv $f $M/final; [ \"$(cat $M/final)\" = kept ]",
        )
        .ok();
        m.shell("touch -d @1000000000 $M/t; [ $(stat -c %Y $M/t) = 1000000000 ]; [ \"$(cat $M/t)\" = x ]")
            .ok();
    });
}

#[test]
fn append_makes_and_extends() {
    each(|m| {
        m.shell("echo a >> $M/log; echo b >> $M/log; [ \"$(cat $M/log)\" = $'a\\nb' ]").ok();
        m.remount();
        m.shell("echo c >> $M/log; [ \"$(cat $M/log)\" = $'a\\nb\\nc' ]").ok();
    });
}

#[test]
fn sed_in_place() {
    each(|m| {
        m.shell(
            "printf 'a=1\\nb=2\\n' > $M/conf; sed -i s/1/9/ $M/conf; [ \"$(cat $M/conf)\" = $'a=9\\nb=2' ]",
        )
        .ok();
        m.shell("[ \"$(ls -A $M)\" = conf ]").ok();
    });
}

#[test]
fn copy_and_archive() {
    each(|m| {
        m.shell(
            "mkdir -p $W/src/d; head -c 100000 /dev/urandom > $W/src/d/x; echo y > $W/src/y; chmod 600 $W/src/y
             cp -a $W/src $M/cp; diff -r $W/src $M/cp; [ $(stat -c %a $M/cp/y) = 600 ]
             mkdir $M/tar; tar -C $W/src -cf - . | tar -C $M/tar -xf -; diff -r $W/src $M/tar
             tar -C $M/cp -cf $W/out.tar . 2> $W/warnings; [ ! -s $W/warnings ]
             install -m 640 $W/src/y $M/installed; [ $(stat -c %a $M/installed) = 640 ]",
        )
        .ok();
    });
}

/// numpy writes through a duplicate, closes that, and goes on with the first descriptor.
#[test]
fn duplicate_closed_first() {
    each(|m| {
        let mut a = m.peer();
        a.run("fd = os.open(M + '/np', os.O_CREAT | os.O_WRONLY | os.O_TRUNC)");
        a.run(
            "d = os.dup(fd); os.write(d, b'1' * 4096); os.close(d); os.write(fd, b'2' * 4096); os.close(fd)",
        );
        assert_eq!(a.run("read(M + '/np') == b'1' * 4096 + b'2' * 4096"), true);
        assert_eq!(m.peer().int("os.stat(M + '/np').st_size"), 8192);
    });
}

#[test]
fn child_goes_on_writing() {
    each(|m| {
        let mut a = m.peer();
        a.run("fd = os.open(M + '/log', os.O_CREAT | os.O_WRONLY); os.write(fd, b'parent ')");
        a.run("go, tell = os.pipe(); done, end = os.pipe()");
        a.run(
            "if os.fork() == 0:\n os.close(tell); os.read(go, 1); os.write(fd, b'child'); os.close(fd); \
             os.write(end, b'x'); os._exit(0)",
        );
        a.run("os.close(go); os.close(fd)");
        assert_eq!(a.text("read(M + '/log')"), "parent ");
        a.run("os.close(tell); os.read(done, 1)");
        assert_eq!(a.text("read(M + '/log')"), "parent child");
        assert_eq!(m.peer().text("read(M + '/log')"), "parent child");
    });
}

#[test]
fn read_back_at_once() {
    each(|m| {
        let mut a = m.peer();
        let code = "for i in range(300):
    p = M + '/k%d' % (i % 7)
    write(p, b'%d' % i * 500)
    assert read(p) == b'%d' % i * 500, i
    assert os.stat(p).st_size == len(b'%d' % i) * 500, i";
        a.run(code);
    });
}

#[test]
fn rename_while_open_then_written_again() {
    each(|m| {
        let (mut a, mut b) = (m.peer(), m.peer());
        a.run("fd = os.open(M + '/.tmp', os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600); os.write(fd, b'head')");
        a.run("os.rename(M + '/.tmp', M + '/final')");
        assert_eq!(b.text("read(M + '/final')"), "head");
        assert_eq!(b.error("os.stat(M + '/.tmp')"), "ENOENT");
        a.run("os.write(fd, b' tail'); os.pwrite(fd, b'H', 0)");
        assert_eq!(b.text("read(M + '/final')"), "Head tail");
        a.run("os.close(fd)");
        assert_eq!(b.text("read(M + '/final')"), "Head tail");
        m.remount();
        assert_eq!(fs::read(m.key("final")).unwrap(), b"Head tail");
    });
}

#[test]
fn rename_over_an_open_target() {
    each(|m| {
        let (mut a, mut b) = (m.peer(), m.peer());
        a.run("write(M + '/k', b'old' * 50000); write(M + '/n', b'new' * 40000)");
        b.run("old = open(M + '/k', 'rb'); first = old.read(10)");
        a.run("os.rename(M + '/n', M + '/k')");
        assert_eq!(b.run("first + old.read() == b'old' * 50000"), true);
        assert_eq!(b.run("read(M + '/k') == b'new' * 40000"), true);
        assert_eq!(b.error("os.stat(M + '/n')"), "ENOENT");
        b.run("old.close()");
        assert_eq!(a.run("read(M + '/k') == b'new' * 40000"), true);
    });
}

#[test]
fn rename_exchange_and_noreplace() {
    each(|m| {
        m.shell("echo a > $M/a; echo b > $M/b").ok();
        let rename = |from: &str, to: &str, flags| {
            rustix::fs::renameat_with(rustix::fs::CWD, m.key(from), rustix::fs::CWD, m.key(to), flags)
        };
        let taken = rename("a", "b", rustix::fs::RenameFlags::NOREPLACE);
        assert_eq!(taken, Err(rustix::io::Errno::EXIST));
        rename("a", "c", rustix::fs::RenameFlags::NOREPLACE).unwrap();
        rename("b", "c", rustix::fs::RenameFlags::EXCHANGE).unwrap();
        m.shell("[ $(cat $M/b) = a ]; [ $(cat $M/c) = b ]; [ ! -e $M/a ]").ok();
    });
}

/// Four shells write one temporary name and rename it: losers see ENOENT, the key is always one whole value.
#[test]
fn racing_renames_of_one_temporary_name() {
    each(|m| {
        m.shell(
            "for j in 1 2 3 4; do
               ( for i in $(seq 50); do printf '%d-%02d\\n' $j $i > $M/s.tmp && mv $M/s.tmp $M/s.data || true; done ) 2>> $W/err$j &
             done
             wait
             grep -Eqx '[1-4]-[0-9][0-9]' $M/s.data
             [ $(wc -l < $M/s.data) = 1 ]
             # The losers' errors, as on any filesystem: the file is gone, or it was moved between mv's two looks.
             ! cat $W/err* | grep -v -e 'No such file' -e 'are the same file'",
        )
        .ok();
    });
}

/// One writer replaces by temporary file and rename, one by O_TRUNC, four read: every read is one whole value.
#[test]
fn readers_never_see_a_torn_value() {
    each(|m| {
        let setup = "def value(n): return (b'%08d' % n) * 8192
def whole(data): return len(data) == 65536 and data == data[:8] * 8192
def one(fd):
    data = b''
    while True:
        part = os.read(fd, 1 << 20)
        if not part: return data
        data += part";
        let (mut renamer, mut truncater) = (m.peer(), m.peer());
        let mut readers: Vec<_> = (0..4).map(|_| m.peer()).collect();
        renamer.run(setup);
        renamer.run("write(M + '/k', value(0))");
        truncater.run(setup);
        for reader in &mut readers {
            reader.run(setup);
            reader.begin(
                "torn = missing = reads = 0
while not os.path.exists(W + '/stop'):
    try: fd = os.open(M + '/k', os.O_RDONLY)
    except FileNotFoundError: missing += 1; continue
    reads += 1; torn += not whole(one(fd)); os.close(fd)",
            );
        }
        renamer.begin(
            "for n in range(1, 400):
    write(M + '/.t%d' % n, value(n)); os.rename(M + '/.t%d' % n, M + '/k')",
        );
        truncater.run("for n in range(1000, 1400): write(M + '/k', value(n))");
        assert!(renamer.finish().get("ok").is_some());
        fs::write(m.scratch.join("stop"), b"").unwrap();
        for reader in &mut readers {
            let answer = reader.finish();
            assert!(answer.get("ok").is_some(), "{answer}");
            assert_eq!(reader.run("(torn, missing, reads > 0)"), serde_json::json!([0, 0, true]));
        }
        m.shell("[ \"$(ls -A $M)\" = k ]").ok();
    });
}

/// An open that was on its way to an inode while its key was replaced gets the new value, all of it, though the kernel
/// is not yet told that what it knows of the inode is over.
#[cfg(feature = "failpoints")]
#[test]
fn an_open_that_is_overtaken_by_a_rename_reads_the_new_value_whole() {
    each_with(
        |b| b.env("FAILPOINTS", "rename.answer=sleep(1000);events.gone=sleep(1000)"),
        |m| {
            let (mut reader, mut writer) = (m.peer(), m.peer());
            reader.run("write(M + '/k', b'o' * 5000); p = os.open(M + '/k', os.O_PATH)");
            reader.run("path = '/proc/self/fd/%d' % p; os.stat(path)");
            writer.run("write(M + '/t', b'n' * 90000)");
            writer.begin("os.rename(M + '/t', M + '/k')");
            let renamed = || {
                let metrics = std::fs::read_to_string(m.mnt.join(".fencefs/metrics")).unwrap();
                metrics.lines().any(|line| line == "fencefs_renames_total 1")
            };
            assert!(crate::harness::wait_until(std::time::Duration::from_secs(10), renamed));
            reader.run(
                "fd = os.open(path, os.O_RDONLY); size = os.fstat(fd).st_size; seen = os.read(fd, 200000)",
            );
            assert_eq!(
                reader.run("(size, len(seen), seen == b'n' * 90000)"),
                serde_json::json!([90000, 90000, true])
            );
            reader.run("x = mmap.mmap(fd, size, prot=mmap.PROT_READ)");
            assert_eq!(reader.run("x[:] == b'n' * 90000"), true);
            assert!(writer.finish().get("ok").is_some());
        },
    );
}

/// Where the daemon copies, the kernel cuts what readers see by the length of the inode. An open that was on its way to
/// that inode while the key got another one must not empty it under them.
#[test]
fn readers_of_an_inode_that_lost_its_key_are_not_cut_short() {
    each_with(
        |b| b.arg("--fence-wait").arg("1ms"),
        |m| {
            let (mut reader, mut writer, mut late) = (m.peer(), m.peer(), m.peer());
            reader.run("write(M + '/k', b'o' * 100000); fd = os.open(M + '/k', os.O_RDONLY)");
            // Leads to the inode whatever becomes of its key.
            late.run("path = '/proc/self/fd/%d' % os.open(M + '/k', os.O_PATH)");
            writer.run("write(M + '/k', b'n' * 1000)");
            late.begin(
                "for n in range(500):
    try: write(path, b'l' * 100)
    except OSError as e: assert e.errno == errno.EBUSY, e",
            );
            reader.run("whole = [os.pread(fd, 100000, 0) == b'o' * 100000 for n in range(2000)]");
            assert_eq!(reader.int("whole.count(False)"), 0);
            assert!(late.finish().get("ok").is_some());
            reader.run("os.close(fd)");
            late.run("write(path, b'l' * 100)");
            assert_eq!(writer.text("read(M + '/k')"), "l".repeat(100));
        },
    );
}
