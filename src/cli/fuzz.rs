//! (tests, feature `fuzzing`) What people, fstab and the kernel tell a command.

use clap::CommandFactory;

use super::{Cli, control_client, mount_options, mountinfo, parse};

/// The words of `-o`, alone and as part of a command line.
pub fn options(bytes: &[u8]) {
    let Ok(list) = std::str::from_utf8(bytes) else { return };
    let expanded = mount_options::expand(&mut Cli::command(), vec![list.to_owned()]);
    let argv = ["fencefs", "mount", "/srv/store", "/mnt/cache", "-o", list].map(Into::into).to_vec();
    let parsed = parse(argv);
    assert!(expanded.is_ok() || parsed.is_err(), "{list:?}");
    control_client::parses(list);
}

/// `/proc/self/mountinfo`.
pub fn mountinfo(bytes: &[u8]) {
    let lines = bytes.split(|b| *b == b'\n').count();
    assert!(mountinfo::parse(bytes).len() <= lines);
}
