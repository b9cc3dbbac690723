//! What users of this and of neighbouring systems ran into: one test a case, named by the case's number.
//!
//! docs/cases.md lists the cases with what is right in each; where that is not what was asked for, the test says so and
//! docs/semantics.md says why. A case tries what its user did, on a store and a mount of its own, with and without
//! passthrough; the machinery is that of the other tests.

mod attributes;
mod capacity;
mod control;
mod data;
mod directories;
mod eviction;
mod lifecycle;
mod names;
mod publish;
mod removal;
mod scale;
mod tools;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::harness::{BINARY, Builder, Mount, Output, each_with, wait_until};

/// The quota of a case.
const QUOTA: u64 = 64 << 20;
/// How long what comes by itself may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a case on a mount with that quota.
fn case(body: impl Fn(&mut Mount)) {
    case_with(|b| b, body);
}

/// The same with further settings.
fn case_with(settings: impl Fn(Builder) -> Builder, body: impl Fn(&mut Mount)) {
    each_with(|b| settings(b.size(&QUOTA.to_string())), body);
}

/// A shell script with `Q` the quota, `CTL` the control file, `TA` and `TB` the directories of two tenants, `BIN` the
/// binary, besides the names that every script has.
#[track_caller]
fn shell(m: &Mount, script: &str) -> Output {
    let names = format!("Q={QUOTA}; CTL=$R/.fencefs/control; TA=$R/a; TB=$R/b; BIN={BINARY}");
    m.shell(&format!("{names}\n{script}"))
}

/// A python3 script with the same names, and what the scripts need of the library.
#[track_caller]
fn python(m: &Mount, script: &str) -> Output {
    let names = format!(
        "import errno, fcntl, hashlib, json, mmap, os, random, shutil, signal, stat, sys, threading, time
M, R, W, S = (os.environ[n] for n in 'MRWS')
Q, CTL, TA, TB, BIN = {QUOTA}, R + '/.fencefs/control', R + '/a', R + '/b', '{BINARY}'
def read(path):
    with open(path, 'rb') as f: return f.read()
def write(path, data):
    with open(path, 'wb') as f: f.write(data)
def df():
    s = os.statvfs(M)
    return (s.f_blocks - s.f_bfree) * s.f_frsize
"
    );
    m.python(&format!("{names}{script}"))
}

/// Makes the tenants `a` and `b`.
fn make_tenants(m: &Mount) {
    for name in ["a", "b"] {
        fs::create_dir(m.mnt.join(name)).unwrap();
    }
}

/// Has users who are not root reach the mount.
fn let_others_in(m: &Mount) {
    fs::set_permissions(m.scratch.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
}

/// Waits until nothing is being written.
#[track_caller]
fn settle(m: &Mount) {
    assert!(wait_until(PATIENCE, || m.status_number("staged_bytes") == 0), "{}", m.status());
}

/// Used bytes as df tells them.
fn df_used(m: &Mount) -> u64 {
    let s = rustix::fs::statvfs(&m.mnt).unwrap();
    (s.f_blocks - s.f_bfree) * s.f_frsize
}

/// Allocated bytes of the records.
fn record_bytes(m: &Mount) -> u64 {
    m.records().iter().map(|(_, bytes)| bytes).sum()
}

/// Whether a tool is there; says so where it is not.
fn has(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()));
    if !found {
        eprintln!("skipped: no {program}");
    }
    found
}
