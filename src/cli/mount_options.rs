//! `-o OPT,OPT...`: options in the manner of fstab.
//!
//! A name of a long option of `mount` becomes that option and goes through the same parser; what the kernel interprets
//! is passed on; what mount(8) and systemd keep for themselves is ignored; anything else is a usage error.

use std::ffi::OsString;

use clap::ArgMatches;
use clap::error::ErrorKind;

/// What `-o` asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Expanded {
    /// Long options, as they would be typed.
    pub(super) long_options: Vec<OsString>,
    /// Options that the kernel interprets.
    pub(super) kernel_options: Vec<String>,
}

/// Options that the kernel interprets, each with the one that it takes back.
const KERNEL: [(&str, &str); 13] = [
    ("ro", "rw"),
    ("noexec", "exec"),
    ("exec", "noexec"),
    ("suid", "nosuid"),
    ("nosuid", "suid"),
    ("dev", "nodev"),
    ("nodev", "dev"),
    ("noatime", "atime"),
    ("atime", "noatime"),
    ("sync", "async"),
    ("async", "sync"),
    ("dirsync", ""),
    ("rw", "ro"),
];

/// Options that say what happens without them, or that others than the filesystem read.
const IGNORED: [&str; 22] = [
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "nofail",
    "_netdev",
    "_rnetdev",
    "relatime",
    "norelatime",
    "diratime",
    "nodiratime",
    "silent",
    "loud",
    "default_permissions",
    "comment",
];

/// The values of every `-o` on a command line, in order.
pub(super) fn given(mount: &ArgMatches) -> Vec<String> {
    mount.get_many::<String>("options").into_iter().flatten().cloned().collect()
}

/// Sorts the options of every `-o`; `root` is the whole clap tree.
pub(super) fn expand(root: &mut clap::Command, given: Vec<String>) -> Result<Expanded, clap::Error> {
    let known = long_names(root);
    let mut expanded = Expanded::default();
    for option in given.iter().flat_map(|list| split(list)) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option.as_str(), None),
        };
        let long = name.replace('_', "-");
        if let Some((_, opposite)) = KERNEL.iter().find(|(kernel, _)| *kernel == option) {
            expanded.kernel_options.retain(|o| o != opposite && *o != option);
            // Writable and asynchronous is what a mount is anyway.
            if !matches!(option.as_str(), "rw" | "async") {
                expanded.kernel_options.push(option);
            }
        } else if known.contains(&long) {
            let typed = value.map_or(format!("--{long}"), |value| format!("--{long}={value}"));
            expanded.long_options.push(typed.into());
        } else if !IGNORED.contains(&name) && !name.starts_with("x-") && !name.starts_with("X-") {
            return Err(usage(root, &format!("unknown option {name:?} in -o")));
        }
    }
    Ok(expanded)
}

/// A usage error of `fencefs mount`.
pub(super) fn usage(root: &mut clap::Command, message: &str) -> clap::Error {
    let mount = root.find_subcommand_mut("mount").expect("mount is a command of the tree");
    mount.error(ErrorKind::ValueValidation, message)
}

/// The long options that fstab may name: all that people see, but for those that only a command line can mean.
fn long_names(root: &clap::Command) -> Vec<String> {
    let mount = root.find_subcommand("mount").expect("mount is a command of the tree");
    let seen = mount.get_arguments().filter(|arg| !arg.is_hide_set());
    seen.filter_map(|arg| arg.get_long())
        .filter(|long| !matches!(*long, "options" | "help" | "foreground"))
        .map(str::to_owned)
        .collect()
}

/// Splits at commas; `\,` is a comma within a value. Empty options are nothing.
fn split(list: &str) -> Vec<String> {
    let mut options = vec![String::new()];
    let mut chars = list.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            (',', _) => options.push(String::new()),
            ('\\', Some(next @ (',' | '\\'))) => {
                let next = *next;
                chars.next();
                options.last_mut().expect("never empty").push(next);
            }
            _ => options.last_mut().expect("never empty").push(c),
        }
    }
    options.retain(|o| !o.is_empty());
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn expanded(list: &str) -> Result<Expanded, clap::Error> {
        expand(&mut crate::cli::Cli::command(), vec![list.to_owned()])
    }

    #[test]
    fn commas_split_unless_escaped() {
        assert_eq!(split("a,b=c\\,d,,e\\\\,"), ["a", "b=c,d", "e\\"]);
        assert!(split("").is_empty());
        assert_eq!(split("\\"), ["\\"]);
    }

    #[test]
    fn the_last_of_two_opposites_wins() {
        assert_eq!(expanded("ro,noexec,exec,nosuid,ro").unwrap().kernel_options, ["exec", "nosuid", "ro"]);
        assert_eq!(expanded("ro,rw").unwrap(), Expanded::default());
        assert_eq!(expanded("sync,async,rw,nofail,x-a=b").unwrap(), Expanded::default());
    }

    #[test]
    fn options_are_sorted() {
        let e = expanded("max_keys=5,no_allow_other,log-file=/a b,comment=z,dirsync").unwrap();
        assert_eq!(e.long_options, ["--max-keys=5", "--no-allow-other", "--log-file=/a b"]);
        assert_eq!(e.kernel_options, ["dirsync"]);
        for bad in ["bogus", "quota=1G", "f", "foreground", "ready_pipe", "x", "ro=1", "coordinated=x", "=5"]
        {
            assert!(expanded(bad).is_err(), "{bad}");
        }
    }
}
