//! The backing filesystem itself is full: of bytes, or of inodes. The store evicts; half a value is never published.

use crate::harness::{Mount, each_with};

/// Runs a script over a store on a small ext4 image of its own: `$S` is the store, `$D` the default tenant of the
/// mount, `$F` the program. Mount and image are gone afterwards, whatever happens.
fn on_small_disk(m: &Mount, mkfs: &str, mount: &str, script: &str) {
    on_disk(m, "64M", mkfs, mount, script);
}

/// The same on an image of this size.
pub(crate) fn on_disk(m: &Mount, size: &str, mkfs: &str, mount: &str, script: &str) {
    let program = env!("CARGO_BIN_EXE_fencefs");
    m.shell(&format!(
        "set -e; F={program}; mkdir -p $W/disk $W/mnt; truncate -s {size} $W/img; mkfs.ext4 -qF {mkfs} $W/img
         mount -o loop $W/img $W/disk; S=$W/disk/store; D=$W/mnt/default
         end() {{ $F umount --lazy $W/mnt || true; for i in $(seq 100); do umount $W/disk 2>/dev/null && break; read -t 0.1 < <(:) || true; done; }}
         trap end EXIT
         $F mount $S $W/mnt {mount}
         used() {{ python3 -c \"import json; print(json.load(open('$W/mnt/.fencefs/status'))['$1'])\"; }}
         {script}"
    ))
    .ok();
}

fn modes(body: impl Fn(&Mount, &str)) {
    modes_of("1GiB", body);
}

/// Runs a test for stores of this quota, with passthrough and without.
pub(crate) fn modes_of(size: &str, body: impl Fn(&Mount, &str)) {
    for mode in ["on", "off"] {
        each_with(
            |builder| builder.size("1GiB"),
            |m| {
                if rustix::process::geteuid().is_root() {
                    body(m, &format!("--size {size} --passthrough {mode}"));
                } else {
                    println!("skipped: loop devices need root");
                }
            },
        );
    }
}

#[test]
fn a_full_disk_publishes_no_half_value() {
    modes(|m, mount| {
        on_small_disk(
            m,
            "",
            mount,
            "head -c 10M /dev/urandom > $W/old; cat $W/old > $D/v; $F pin $D/v
             python3 - $D/v $D/new <<'PY'
import os, sys
for path in sys.argv[1:]:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    errors = 0
    try:
        while True: os.write(fd, b'x' * (1 << 20))
    except OSError: errors += 1
    try: os.close(fd)
    except OSError: errors += 1
    assert errors == 2, (path, errors)
    os.sync()  # what was given up is free now, not while the next value is written
PY
             cmp $W/old $D/v; [ ! -e $D/new ]",
        );
    });
}

#[test]
fn a_full_disk_evicts_for_the_next_key() {
    modes(|m, mount| {
        on_small_disk(
            m,
            "",
            mount,
            "for i in $(seq 100); do head -c 1M /dev/urandom > $D/k$i; done; [ -e $D/k100 ]; [ ! -e $D/k1 ]",
        );
    });
}

#[test]
fn a_disk_without_inodes_evicts_for_the_next_key() {
    modes(|m, mount| {
        on_small_disk(
            m,
            "-N 512",
            mount,
            "for i in $(seq 600); do echo $i > $D/k$i; done; [ $(cat $D/k600) = 600 ]; [ ! -e $D/k1 ]
             [ $(used evicted_keys) -gt 0 ]",
        );
    });
}

#[test]
fn what_something_else_fills_is_given_back_by_eviction() {
    modes(|m, mount| {
        on_disk(
            m,
            "256M",
            "",
            mount,
            "for i in $(seq 100); do head -c 1M /dev/urandom > $D/k$i; done
             [ $(used evicted_keys) = 0 ]
             dd if=/dev/zero of=$W/disk/other bs=1M count=120 status=none
             for i in $(seq 100); do [ $(used evicted_keys) -gt 0 ] && break; read -t 0.1 < <(:) || sleep 0.1; done
             python3 -c \"import json; d = json.load(open('$W/mnt/.fencefs/status')); assert d['evictions']['free_space'] > 0, d\"
             for i in $(seq 20); do head -c 1M /dev/urandom > $D/after$i; done
             [ -e $D/after20 ]; [ ! -e $D/k1 ]",
        );
    });
}
