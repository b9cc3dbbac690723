//! A removal is what people ask for when the disk is full: it is accepted, carried out and acknowledged with no block free.

use crate::full_disk::{modes_of, on_disk};

/// `fill` writes another file than the store's until no block is left; `refused` is a write that finds none.
const FILL: &str = "
    fill() {
        for bs in 1M 4k 1k 1k; do
            dd if=/dev/zero of=$W/disk/other bs=$bs oflag=append conv=notrunc status=none 2>/dev/null || true; sync
        done
        if head -c 8192 /dev/zero > $W/disk/more; then echo 'the disk is not full'; exit 1; fi; rm $W/disk/more
    }
    put() { mkdir -p $W/mnt/$1; for k in 1 2 3; do head -c 300K /dev/urandom > $W/mnt/$1/k$k; $F pin $W/mnt/$1/k$k; done; }
    gone() { [ -z \"$(ls $W/mnt/$1)\" ]; [ -z \"$(find $S/data/t/$1 $S/data/.trash -type f)\" ]; }
";

/// Runs a script on a small disk for blocks of both sizes: of either, other things are the last to find none.
fn on_full_disk(script: &str) {
    for blocks in ["-b 1024", "-b 4096"] {
        modes_of("1GiB", |m, mount| on_disk(m, "64M", blocks, mount, &format!("{FILL}\n{script}")));
    }
}

#[test]
fn a_full_disk_does_not_keep_a_removal_from_its_end() {
    on_full_disk(
        "put a; put b; put c; put d; fill
         $F remove-all $W/mnt --tenant a --timeout 60s | grep -q 'generation 1, tenant a: complete'
         gone a; [ $(ls $W/mnt/b | wc -l) = 3 ]
         fill
         echo 'remove-all tenant=b' > $W/mnt/.fencefs/control
         $F remove-all $W/mnt --tenant b --id again --timeout 60s > /dev/null || { $F requests $W/mnt; exit 1; }
         gone b
         fill
         $F remove-all $W/mnt --tenant c --logical --timeout 60s | grep -q complete
         [ -z \"$(ls $W/mnt/c)\" ]
         fill
         $F remove-all $W/mnt --global --timeout 60s | grep -q complete
         gone d
         $F requests $W/mnt --json | python3 -c \"
import json, sys
requests = [json.loads(line) for line in sys.stdin]
assert [r['generation'] for r in requests] == [1, 2, 3, 4, 5], requests
assert all(r['state'] == 'complete' and r['acked'] for r in requests), requests\"
         rm $W/disk/other; sync; echo new > $W/mnt/a/k1; [ $(cat $W/mnt/a/k1) = new ]
         $F umount $W/mnt; $F fsck $S > /dev/null",
    );
}

/// Each request writes to the ledger a few times: it has room for many of them.
#[test]
fn a_full_disk_takes_one_removal_after_another() {
    on_full_disk(
        "for i in $(seq 20); do mkdir $W/mnt/t$i; echo $i > $W/mnt/t$i/k; $F pin $W/mnt/t$i/k; done
         for i in $(seq 20); do
             fill
             $F remove-all $W/mnt --tenant t$i --timeout 60s > /dev/null || { $F requests $W/mnt; exit 1; }
             gone t$i
         done",
    );
}

/// Without the room that was kept (a filesystem that keeps none, a copy that was put back) a request may be refused. It
/// says of what and what to do, and the ledger is as it was.
#[test]
fn a_ledger_without_room_says_so_and_takes_no_harm() {
    on_full_disk(
        "put a; $F remove-all $W/mnt --tenant default > /dev/null
         truncate -s $(stat -c %s $S/ledger.redb) $S/ledger.redb; fill
         for i in $(seq 1000); do
             $F remove-all $W/mnt --tenant default --no-wait >/dev/null 2>$W/said || break
             if [ $i = 1000 ]; then echo 'every request was taken'; exit 1; fi
         done
         grep -q \"the ledger $(realpath $S)/ledger.redb needs more room than its disk has (make some\" $W/said
         grep -q 'No space left' $W/said
         $F requests $W/mnt > /dev/null
         rm $W/disk/other; sync
         $F remove-all $W/mnt --tenant a --timeout 60s | grep -q complete
         gone a
         $F umount $W/mnt; $F fsck $S > /dev/null",
    );
}

/// What a daemon that dies has not come to the next one does, on a disk that is as full. (With fail points it comes to
/// nothing but the request.)
#[test]
fn a_removal_on_a_full_disk_outlives_its_daemon() {
    for blocks in ["-b 1024", "-b 4096"] {
        modes_of("1GiB", |m, mount| {
            let script = format!(
                "{FILL}
                 put a; put b; mkdir $W/mnt/empty; $F umount $W/mnt
                 FAILPOINTS=removal.drain=return $F mount $S $W/mnt {mount}
                 fill
                 echo 'remove-all tenant=a' > $W/mnt/.fencefs/control
                 echo 'remove-all tenant=empty mode=logical' > $W/mnt/.fencefs/control
                 P=$(cat $S/lock); kill -KILL $P
                 for i in $(seq 100); do [ -e /proc/$P ] || break; read -t 0.1 < <(:) || sleep 0.1; done
                 fill
                 $F mount $S $W/mnt {mount}
                 for i in $(seq 300); do
                     [ $($F requests $W/mnt | grep -c complete) = 2 ] && break; read -t 0.1 < <(:) || sleep 0.1
                 done
                 [ $($F requests $W/mnt | grep -c complete) = 2 ] || {{ $F requests $W/mnt >&2; exit 1; }}
                 gone a; gone empty; [ $(ls $W/mnt/b | wc -l) = 3 ]"
            );
            on_disk(m, "64M", blocks, mount, &script);
        });
    }
}
