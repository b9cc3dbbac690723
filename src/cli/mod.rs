//! Commands for people: the clap tree, and a file a command.
//!
//! The only layer that prints. Results go to stdout, errors to stderr as one line `fencefs: what: why`; exit status 0
//! is done, 1 failed, 2 a command line that means nothing (clap prints why), 3 the daemon did not answer; `fsck` also 4,
//! all repaired.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::error::{Error, Kind, Result};

mod argv;
mod bump;
mod control_client;
mod coordinator;
mod daemon;
mod forget;
mod fsck;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod guard;
mod holders;
mod import;
mod mount;
mod mount_args;
mod mount_options;
mod mountinfo;
mod mountpoint;
mod notify;
mod path;
mod patience;
mod pin;
mod progress;
mod quota;
mod remove_all;
mod requests;
mod retry;
mod status;
mod supervise;
mod umount;
mod watch;

/// A filesystem for KV-cache tiers: whole values, quota eviction, and clears that are acknowledged.
#[derive(Debug, Parser)]
#[command(name = "fencefs", version, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Mount(Box<mount_args::MountArgs>),
    Umount(umount::UmountArgs),
    Status(status::StatusArgs),
    RemoveAll(remove_all::RemoveAllArgs),
    Requests(requests::RequestsArgs),
    Retry(retry::RetryArgs),
    Quota(quota::QuotaArgs),
    Pin(pin::PinArgs),
    Unpin(pin::UnpinArgs),
    Path(path::PathArgs),
    Fsck(fsck::FsckArgs),
    Import(import::ImportArgs),
    Forget(forget::ForgetArgs),
    Bump(bump::BumpArgs),
    #[command(hide = true)]
    Guard(guard::GuardArgs),
}

/// The commands as a tree, for who makes manual pages and completions of it.
pub fn tree() -> clap::Command {
    Cli::command()
}

/// Parses the command line and runs it.
pub fn main() -> ExitCode {
    let argv = match argv::normalise(std::env::args_os().collect()) {
        argv::Argv::Run(argv) => argv,
        argv::Argv::Nothing => return ExitCode::SUCCESS,
    };
    let code = parse(argv).map_err(Stop::Usage).and_then(|parsed| run(parsed).map_err(Stop::Failed));
    match code {
        Ok(code) => code,
        Err(Stop::Usage(e)) => {
            let status = u8::try_from(e.exit_code()).unwrap_or(2);
            // Help that nobody can read any more is no failure.
            drop(e.print());
            ExitCode::from(status)
        }
        // Who reads the result has seen enough (`| head`): nothing to complain about.
        Err(Stop::Failed(e)) if e.kind() == Kind::Io(libc::EPIPE) => ExitCode::FAILURE,
        Err(Stop::Failed(e)) => {
            complain(&e.to_string());
            ExitCode::from(e.exit_status())
        }
    }
}

enum Stop {
    Usage(clap::Error),
    Failed(Error),
}

/// A parsed command line, with what the daemon of a `mount` is started with.
struct Parsed {
    cli: Cli,
    daemon_argv: Vec<OsString>,
}

/// Parses twice where `-o` is given: first to find it, then with its options spelled out before the others.
fn parse(argv: Vec<OsString>) -> Result<Parsed, clap::Error> {
    let mut root = Cli::command();
    let mut matches = root.try_get_matches_from_mut(&argv)?;
    let mut kernel_options = Vec::new();
    if let Some(("mount", mount)) = matches.subcommand() {
        let expanded = mount_options::expand(&mut root, mount_options::given(mount))?;
        kernel_options = expanded.kernel_options;
        if !expanded.long_options.is_empty() {
            let mut spelled = argv[..2].to_vec();
            spelled.extend(expanded.long_options);
            spelled.extend_from_slice(&argv[2..]);
            matches = root.try_get_matches_from_mut(&spelled)?;
        }
    }
    let daemon_argv = match matches.subcommand() {
        Some(("mount", mount)) => mount_args::daemon_argv(&root, mount),
        _ => Vec::new(),
    };
    let mut cli = Cli::from_arg_matches(&matches)?;
    if let Command::Mount(args) = &mut cli.command {
        args.set_kernel_options(kernel_options);
        args.check().map_err(|e| mount_options::usage(&mut root, &e.to_string()))?;
    }
    if let Command::Import(args) = &cli.command {
        args.check().map_err(|e| mount_options::usage(&mut root, &e.to_string()))?;
    }
    Ok(Parsed { cli, daemon_argv })
}

fn run(parsed: Parsed) -> Result<ExitCode> {
    match parsed.cli.command {
        Command::Mount(args) => mount::run(&args, &parsed.daemon_argv),
        Command::Umount(args) => umount::run(&args),
        Command::Status(args) => status::run(&args),
        Command::RemoveAll(args) => remove_all::run(&args),
        Command::Requests(args) => requests::run(&args),
        Command::Retry(args) => retry::run(&args),
        Command::Quota(args) => quota::run(&args),
        Command::Pin(args) => pin::run(&args.files, true),
        Command::Unpin(args) => pin::run(&args.files, false),
        Command::Path(args) => path::run(&args),
        Command::Fsck(args) => fsck::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Forget(args) => forget::run(&args),
        Command::Bump(args) => bump::run(&args),
        Command::Guard(args) => guard::run(&args),
    }
}

/// Writes bytes to stdout; a reader that went away is an error, not a panic.
fn print(bytes: impl AsRef<[u8]>) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes.as_ref())
        .and_then(|()| out.flush())
        .map_err(|e| Error::os("cannot write the result", e))
}

/// One line on stderr. That stderr is gone must not become a second failure.
fn complain(message: &str) {
    drop(writeln!(std::io::stderr(), "fencefs: {}", one_line(message)));
}

/// The message as one line: errors from elsewhere may hold newlines.
fn one_line(message: &str) -> String {
    message.split(['\n', '\r']).map(str::trim).filter(|s| !s.is_empty()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &[&str]) -> Result<Parsed, clap::Error> {
        parse(std::iter::once("fencefs").chain(line.iter().copied()).map(OsString::from).collect())
    }

    fn mount_args(line: &[&str]) -> mount_args::MountArgs {
        match parsed(line).unwrap().cli.command {
            Command::Mount(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_tree_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_means_nothing_exits_with_2() {
        for line in [
            &["mount"][..],
            &["mount", "/s"],
            &["mount", "/s", "/m", "--bogus"],
            &["mount", "/s", "/m", "--size", "lots"],
            &["mount", "/s", "/m", "--size", "0"],
            &["mount", "/s", "/m", "--evict", "mru"],
            &["mount", "/s", "/m", "--tenant", ".a"],
            &["mount", "/s", "/m", "--uid", "4294967295"],
            &["mount", "/s", "/m", "--high-watermark", "80", "--low-watermark", "90"],
            &["mount", "/s", "/m", "--checksum", "maybe"],
            &["mount", "/s", "/m", "--map-tenant", "a=b"],
            &["mount", "/s", "/m", "--legacy-fsdir", "records"],
            &["mount", "/s", "/m", "--attach-legacy", "/l", "--map-tenant", "a"],
            &["mount", "/s", "/m", "--attach-legacy", "/l", "--map-tenant", "a=b", "--map-tenant", "a=c"],
            &["mount", "/s", "/m", "--coordinator", "remote"],
            &["mount", "/s", "/m", "--coordinator", "etcd://h:2379"],
            &["mount", "/s", "/m", "--coordinator", "etcd://h:2379/p?user=u&password=p"],
            &["mount", "/s", "/m", "--coordinator", "etcd://h:2379/p?cert=c"],
            &["mount", "/s", "/m", "--metrics-listen", "9100"],
            &["mount", "/s", "/m", "--metrics-listen", "localhost:9100"],
            &["mount", "/s", "/m", "-o", "bogus"],
            &["mount", "/s", "/m", "-o", "size"],
            &["mount", "/s", "/m", "-o", "size=10G,ready-pipe"],
            &["mount", "/s", "/m", "-o", "help"],
            &["mount", "/s", "/m", "-o", "options=ro"],
            &["mount", "/s", "/m", "-o", "allow_other=1"],
            &["umount"],
            &["quota", "/m", "lots"],
            &["remove-all", "/m"],
            &["remove-all", "/m", "--global", "--tenant", "a"],
            &["remove-all", "/m", "--global", "--logical"],
            &["remove-all", "/m", "--tenant", "../a"],
            &["remove-all", "/m", "--tenant", "a", "--timeout", "5"],
            &["retry"],
            &["retry", "/m", "--generation", "0"],
            &["forget", "/m"],
            &["forget", "/m", "--storage", "it"],
            &["bump"],
            &["bump", "--coordinator", "etcd://h:2379"],
            &["path", "/s", "key"],
            &["fsck"],
            &["fsck", "/s", "--fix"],
            &["import", "/s"],
            &["import", "--from", "/d"],
            &["import", "/s", "--from", "/d", "--map-tenant", "a"],
            &["import", "/s", "--from", "/d", "--map-tenant", "a=.b"],
            &["import", "/s", "--from", "/d", "--map-tenant", "a=b", "--map-tenant", "a=c"],
            &["import", "/s", "--from", "/d", "--high-watermark", "80", "--low-watermark", "90"],
            &["pin"],
            &["nonsense"],
        ] {
            assert_eq!(parsed(line).err().map(|e| e.exit_code()), Some(2), "{line:?}");
        }
    }

    #[test]
    fn fstab_options_are_the_long_options() {
        let args = mount_args(&[
            "mount",
            "/s",
            "/m",
            "-o",
            "rw,nofail,_netdev,x-systemd.automount,comment=x,size=10G,evict=lru,tenant=a,coordinator=local",
            "-o",
            "file-mode=0640,dir_mode=0750,allow_other,fence_wait=2s,nosuid,ro,noatime,user",
        ]);
        let store = args.store_settings().unwrap();
        let mount = args.mount_settings(false);
        assert_eq!(store.quota.size_bytes, Some(10 << 30));
        assert_eq!(mount.fence_wait.as_secs(), 2);
        assert_eq!(mount.tenant.unwrap().as_str(), "a");
        assert_eq!((mount.file_mode, mount.dir_mode), (Some(0o640), Some(0o750)));
        assert!(mount.allow_other);
        assert_eq!(mount.kernel_options, ["nosuid", "ro", "noatime"]);
    }

    #[test]
    fn a_legacy_directory_reaches_the_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let list = format!("attach_legacy={},map_tenant=team:1=a,legacy_fsdir=records", path.display());
        let daemon = parsed(&["mount", "-o", &list, "/s", "/m", "--map-tenant", "b=c"]).unwrap().daemon_argv;
        let argv = std::iter::once(OsString::from("fencefs")).chain(daemon).collect();
        let Command::Mount(args) = parse(argv).unwrap().cli.command else { panic!("not a mount") };
        let attach = args.attach(std::path::Path::new("/m")).unwrap().unwrap();
        assert_eq!((&attach.dir, attach.fsdir.to_str()), (&path, Some("records")));
        assert_eq!(attach.tenants, ["b=c", "team:1=a"]);
        assert!(args.attach(&path).is_err() && args.attach(&path.join("records/m")).is_err());
        assert_eq!(mount_args(&["mount", "/s", "/m"]).attach(&path).unwrap(), None);
    }

    #[test]
    fn the_command_line_overrides_fstab_options() {
        let args =
            mount_args(&["mount", "-o", "size=1G,allow_other", "/s", "/m", "--size=2G", "--no-allow-other"]);
        assert_eq!(args.store_settings().unwrap().quota.size_bytes, Some(2 << 30));
        assert!(!args.mount_settings(true).allow_other);
        let default = mount_args(&["mount", "/s", "/m"]);
        assert!(default.mount_settings(true).allow_other);
        assert!(!default.mount_settings(false).allow_other);
    }

    #[test]
    fn the_daemon_gets_the_same_settings() {
        let line = ["mount", "-o", "size=1G,ro,allow-other", "--max-keys", "5", "--", "-s", "m"];
        let daemon = parsed(&line).unwrap().daemon_argv;
        assert_eq!(daemon[..5], ["mount", "./-s", "m", "--foreground", "--ready-pipe"]);
        let mut argv = vec![OsString::from("fencefs")];
        argv.extend(daemon);
        let Command::Mount(args) = parse(argv).unwrap().cli.command else { panic!("not a mount") };
        assert!(args.foreground && args.ready_pipe);
        let store = args.store_settings().unwrap();
        assert_eq!((store.quota.size_bytes, store.quota.max_keys), (Some(1 << 30), Some(5)));
        assert_eq!(args.mount_settings(false).kernel_options, ["ro"]);
        assert!(args.mount_settings(false).allow_other);
    }

    #[test]
    fn messages_are_one_line() {
        assert_eq!(one_line("a:\n  b\r\n\nc\n"), "a:; b; c");
    }
}
