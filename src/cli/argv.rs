//! The ways in which mount(8) calls a filesystem's program, turned into `fencefs mount`.
//!
//! An fstab line of type `fuse.fencefs` makes mount.fuse3 run `fencefs STORE MOUNTPOINT -o OPT,OPT`; one of type
//! `fencefs` makes mount(8) run `mount.fencefs STORE MOUNTPOINT [-sfnv] -o OPT,OPT` where such a link exists.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What to do with a command line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Argv {
    /// Parse this one.
    Run(Vec<OsString>),
    /// mount(8) asked to do everything but the mount.
    Nothing,
}

/// The command line with its subcommand first.
pub(super) fn normalise(mut argv: Vec<OsString>) -> Argv {
    let helper = argv
        .first()
        .and_then(|a| Path::new(a).file_name())
        .is_some_and(|name| name.as_bytes().starts_with(b"mount."));
    if helper {
        let dry_run = argv.iter().skip(1).any(|a| is_flag_of_mount(a) && a.as_bytes().contains(&b'f'));
        if dry_run {
            return Argv::Nothing;
        }
        argv.retain(|a| !is_flag_of_mount(a));
        argv.insert(1, "mount".into());
    } else if argv.len() >= 3 && argv[1].as_bytes().contains(&b'/') {
        argv.insert(1, "mount".into());
    }
    Argv::Run(argv)
}

/// One of the flags that mount(8) hands to every helper: sloppy, fake, no mtab, verbose.
fn is_flag_of_mount(arg: &OsString) -> bool {
    let bytes = arg.as_bytes();
    bytes.len() > 1 && bytes[0] == b'-' && bytes[1..].iter().all(|b| matches!(b, b's' | b'f' | b'n' | b'v'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalised(line: &[&str]) -> Argv {
        normalise(line.iter().map(OsString::from).collect())
    }

    fn run(line: &[&str]) -> Argv {
        Argv::Run(line.iter().map(OsString::from).collect())
    }

    #[test]
    fn mount_8_finds_its_way() {
        assert_eq!(
            normalised(&["fencefs", "/s", "/m", "-o", "rw"]),
            run(&["fencefs", "mount", "/s", "/m", "-o", "rw"])
        );
        let helper = normalised(&["/sbin/mount.fencefs", "/s", "/m", "-sv", "-o", "rw"]);
        assert_eq!(helper, run(&["/sbin/mount.fencefs", "mount", "/s", "/m", "-o", "rw"]));
        assert_eq!(normalised(&["mount.fencefs", "/s", "/m", "-f"]), Argv::Nothing);
    }

    #[test]
    fn other_command_lines_stay() {
        for line in [&["fencefs"][..], &["fencefs", "mount", "/s", "/m", "-f"], &["fencefs", "/s"], &[]] {
            assert_eq!(normalised(line), run(line));
        }
    }
}
