//! Cases on attributes: modes, times, df, extended attributes.

use std::os::unix::ffi::OsStrExt;

use crate::cases::{QUOTA, case, df_used, python, settle, shell};

#[test]
fn u071_copies_keep_mode_and_time() {
    case(|m| {
        shell(
            m,
            "cp -p /etc/hostname $M/cp1; install -m 600 /etc/hostname $M/cp2; chmod 640 $M/cp1; touch -d 2020-01-01 $M/cp1
             cp -a /etc/hostname $M/cp4; chown 12:34 $M/cp4; chgrp 56 $M/cp2",
        )
        .ok();
        python(m, "shutil.copy2('/etc/hostname', M + '/cp3'); shutil.copy('/etc/hostname', M + '/cp5'); shutil.copystat(M + '/cp1', M + '/cp5')").ok();
        let check = "[ \"$(stat -c '%a %Y' $M/cp1)\" = \"640 $(date -d 2020-01-01 +%s)\" ]
             [ \"$(stat -c '%a %Y' $M/cp5)\" = \"640 $(date -d 2020-01-01 +%s)\" ]
             [ \"$(stat -c '%a %g' $M/cp2)\" = '600 56' ]; [ $(stat -c %u:%g $M/cp4) = 12:34 ]
             for n in 3 4; do [ $(stat -c %Y $M/cp$n) = $(stat -c %Y /etc/hostname) ]; done
             for n in 1 2 3 4 5; do cmp /etc/hostname $M/cp$n; done";
        shell(m, check).ok();
        m.remount();
        shell(m, check).ok();
        m.crash();
        shell(m, check).ok();
        // As git and installers do: a file that is read-only while it is written.
        python(m, "fd = os.open(M + '/ro', os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o444); os.fchmod(fd, 0o400); os.write(fd, b'x'); os.close(fd)").ok();
        shell(m, "[ $(stat -c %a $M/ro) = 400 ]; [ $(cat $M/ro) = x ]; chmod u+w $M/ro; echo y > $M/ro; [ $(cat $M/ro) = y ]").ok();
    });
}

#[test]
fn u073_tar_sees_no_file_change() {
    case(|m| {
        python(m, "os.makedirs(M + '/d/e')\nfor i in range(50): write(M + ('/d/e' if i % 5 == 0 else '') + '/t%d' % i, os.urandom(100000))").ok();
        for _ in 0..2 {
            shell(
                m,
                "tar -C $M -cf $W/t.tar . 2> $W/said; [ ! -s $W/said ]
                 rm -rf $W/x; mkdir $W/x; tar -C $W/x -xf $W/t.tar; diff -r $M $W/x",
            )
            .ok();
        }
        // The other way, with what is there already.
        shell(m, "mkdir $M/back; tar -C $M/back -xf $W/t.tar; diff -r $W/x $M/back; tar -C $M -df $W/t.tar")
            .ok();
        m.remount();
        shell(m, "tar -C $M -df $W/t.tar; rm -r $M/back").ok();
    });
}

/// Neither a read nor what the eviction order makes of it moves a time that tools compare.
#[test]
fn u074_reads_move_no_time() {
    case(|m| {
        shell(m, "echo x > $M/t1; head -c 1M /dev/zero > $M/t2; mkdir $M/d; echo y > $M/d/k").ok();
        let look = "stat -c '%y %z %s %i' $M/t1 $M/t2 $M/d/k; stat -c '%y %z %i' $M/d $M";
        let before = shell(m, look).ok();
        shell(
            m,
            "cat $M/t1 $M/t2 $M/d/k > $W/out; ls -lR $M > $W/out; tail -c 10 $M/t2 > $W/out
             head -c 100 $M/t2 > $W/out; cp $M/t2 $W/copy; find $M > $W/out; du $M > $W/out; grep -r zzz $M || true",
        )
        .ok();
        python(m, "fd = os.open(M + '/t2', os.O_RDONLY); x = mmap.mmap(fd, 0, prot=mmap.PROT_READ); x[:]; x.close(); os.close(fd)").ok();
        assert_eq!(shell(m, look).ok(), before);
        // A touch of the access time is a change of the inode, as anywhere; what tools compare stays.
        let compared = "stat -c '%y %s %i' $M/t1";
        let before = shell(m, compared).ok();
        shell(m, "touch -a $M/t1").ok();
        assert_eq!(shell(m, compared).ok(), before);
    });
}

#[test]
fn u076_df_tells_quota_and_use() {
    case(|m| {
        shell(m, "head -c 5000000 /dev/urandom > $M/k; : > $M/empty").ok();
        settle(m);
        m.settle_blocks();
        let used = m.status_number("used_bytes");
        assert!((5_000_000..5_100_000).contains(&used), "{used}");
        assert!(df_used(m).abs_diff(used) < 4096);
        let shown = shell(m, "df -B1 --output=size,used,avail $M | tail -1").ok();
        let shown: Vec<u64> = shown.split_whitespace().map(|n| n.parse().unwrap()).collect();
        assert_eq!((shown[0], shown[2]), (QUOTA, QUOTA - shown[1]));
        assert_eq!(shown[1], df_used(m));
        let inodes = shell(m, "df --output=itotal,iavail $M | tail -1").ok();
        assert!(inodes.split_whitespace().all(|n| n.parse::<u64>().unwrap() > 0), "{inodes}");
        shell(m, "[ $(stat -f -c %l $M) = $(getconf NAME_MAX $M) ]; df -h $M").ok();
        // Among all that is mounted, by where it comes from.
        let line = shell(m, "(df -T 2> $W/said || true) | grep \" $R$\"").ok();
        let mut words = line.split_whitespace();
        assert_eq!(words.next().unwrap().as_bytes(), m.store.as_os_str().as_bytes());
        assert_eq!(words.next(), Some("fuse.fencefs"));
    });
}

#[test]
fn u077_what_a_key_tells_breaks_no_copy() {
    case(|m| {
        shell(
            m,
            "echo x > $M/xa
             for n in digest tenant epoch path; do
                 getfattr --only-values -n user.fencefs.$n $M/xa | grep -q .
                 ! setfattr -n user.fencefs.$n -v 1 $M/xa 2> $W/said; grep -E 'not permitted|Read-only' $W/said
                 ! setfattr -x user.fencefs.$n $M/xa 2> $W/said; grep -E 'not permitted|Read-only' $W/said
             done
             [ -z \"$(getfattr -d -m - $M/xa)\" ]
             cp -a $M/xa $W/xa_copy; tar --xattrs -C $M -cf $W/x.tar xa; cp -a $M/xa $M/xb; cp -a $W/xa_copy $M/xc; cmp $M/xb $M/xc
             setfattr -n user.mine -v 7 $M/xa; [ $(getfattr --only-values -n user.mine $M/xa) = 7 ]
             cp -a $M/xa $M/xd; [ $(getfattr --only-values -n user.mine $M/xd) = 7 ]
             tar --xattrs --xattrs-include='user.*' -C $M -cf $W/x.tar xa; mkdir $M/in; tar --xattrs --xattrs-include='user.*' -C $M/in -xf $W/x.tar
             [ $(getfattr --only-values -n user.mine $M/in/xa) = 7 ]",
        )
        .ok();
        m.remount();
        shell(m, "for k in xa xd in/xa; do [ $(getfattr --only-values -n user.mine $M/$k) = 7 ]; done").ok();
    });
}
