//! Processors are kept from sleeping while requests come, and only then.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::harness::{Builder, Mount, can_mount, wait_until};

const WAKE_LATENCY: &str = "/dev/cpu_dma_latency";
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether the daemon holds the file by which Linux is told how long a wake may take.
fn is_held(m: &Mount) -> bool {
    let open = fs::read_dir(format!("/proc/{}/fd", m.pid().as_raw_nonzero())).unwrap();
    open.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|file| file == Path::new(WAKE_LATENCY)))
}

/// So many requests, as quickly as they are answered: an attribute that no kernel remembers.
fn ask(m: &Mount, times: usize) {
    for _ in 0..times {
        let _unset = rustix::fs::getxattr(m.keys(), "user.nothing", &mut [0_u8; 8]);
    }
}

#[test]
fn while_requests_come_and_only_then() {
    if !can_mount() || fs::OpenOptions::new().write(true).open(WAKE_LATENCY).is_err() {
        println!("skipped: {WAKE_LATENCY} cannot be written here");
        return;
    }
    let m = Builder::new().mount();
    assert!(wait_until(PATIENCE, || !is_held(&m)), "nobody asks anything");
    let held = wait_until(PATIENCE, || {
        ask(&m, 64);
        is_held(&m)
    });
    assert!(held, "requests come in quick succession");
    assert!(wait_until(PATIENCE, || !is_held(&m)), "they have ended");
    let m = Builder::new().arg("--no-keep-awake").mount();
    let held = (0..200).any(|_| {
        ask(&m, 64);
        is_held(&m)
    });
    assert!(!held, "it was not wanted");
}
