//! The arguments of `fencefs mount`, and the settings that they make.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args};
use log::LevelFilter;

use super::coordinator::{self, WordsParser};
use crate::config::{
    self, AttachLegacy, Checksum, Coordinator, CoordinatorWords, Durability, EvictOptions, MountSettings,
    Passthrough, PolicyName, Quota, StoreSettings,
};
use crate::error::{Error, Kind, Result};
use crate::format::legacy;
use crate::fuse::Handed;
use crate::key::Tenant;
use crate::store::legacy::{TenantMap, TenantRule};

/// Create the store if it is missing, recover it, mount it, and return when it is live
#[derive(Debug, Args)]
#[command(args_override_self = true, after_help = AFTER_HELP)]
pub(super) struct MountArgs {
    /// Directory that holds the store; it is created where it is missing
    #[arg(value_name = "STORE")]
    pub(super) store: PathBuf,
    /// Existing directory where the filesystem appears
    #[arg(value_name = "MOUNTPOINT")]
    pub(super) mountpoint: PathBuf,

    /// Stay in the foreground until the filesystem is unmounted
    #[arg(short, long)]
    pub(super) foreground: bool,
    /// Options in the manner of fstab: every long option below by its name, and ro, noexec and the like
    #[arg(short = 'o', long = "options", value_name = "OPT,OPT...")]
    options: Vec<String>,
    /// Stay beside the daemon and start it again when it dies: programs wait meanwhile, and the mount stays (root only)
    #[arg(long)]
    pub(super) supervise: bool,
    /// Say on stdout when the mount is live: how the daemon talks to the command that started it
    #[arg(long, hide = true)]
    pub(super) ready_pipe: bool,
    /// Serve the connection on stdin: how a daemon is started by who supervises it
    #[arg(long, hide = true)]
    pub(super) handed: Option<Handed>,
    /// Go on logging to stderr once the mount is live
    #[arg(long, hide = true)]
    pub(super) keep_stderr: bool,

    #[command(flatten)]
    quota: QuotaArgs,
    /// Which key goes when room is needed
    #[arg(long, value_name = "POLICY", value_parser = named(&PolicyName::NAMES), default_value = "mq-chain", help_heading = QUOTA)]
    evict: PolicyName,
    /// For mq and mq-chain: queues, by the logarithm of how often a key was used [default: 4]
    #[arg(long, value_name = "N", help_heading = QUOTA)]
    evict_queues: Option<u8>,
    /// For mq and mq-chain: uses of other keys after which a key moves down by a queue, in percent of all keys [default: 50]
    #[arg(long, value_name = "PERCENT", help_heading = QUOTA)]
    evict_lifetime: Option<u32>,
    /// For mq and mq-chain: evicted keys whose frequency is remembered, in percent of all keys [default: 200]
    #[arg(long, value_name = "PERCENT", help_heading = QUOTA)]
    evict_ghosts: Option<u32>,
    /// How often the eviction order is written while keys are used: what an unclean stop may lose of it [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = config::parse_order_interval, help_heading = QUOTA)]
    order_interval: Option<Duration>,

    /// What a close promises: namespace order (rename), or to outlast a loss of power (fsync)
    #[arg(long, value_name = "HOW", value_parser = named(&Durability::NAMES), default_value = "rename", help_heading = BEHAVIOUR)]
    durability: Durability,
    /// Keep a checksum of the content with each record; values are then written through the daemon
    #[arg(long, value_name = "WHEN", value_parser = named(&Checksum::NAMES), default_value = "off", help_heading = BEHAVIOUR)]
    checksum: Checksum,
    /// Whether the kernel moves the bytes itself; `on` fails the mount where it cannot
    #[arg(long, value_name = "WHEN", value_parser = named(&Passthrough::NAMES), default_value = "auto", help_heading = BEHAVIOUR)]
    passthrough: Passthrough,
    /// Let processors sleep between requests: saves power, and costs time where waking one takes long
    #[arg(long, help_heading = BEHAVIOUR)]
    no_keep_awake: bool,
    /// Who keeps the removal requests: local, the store itself, or etcd://HOST:PORT[,HOST:PORT...]/PREFIX, for a fleet
    /// that shares them; ?ca=FILE&cert=FILE&key=FILE for TLS [default: local]
    #[arg(long, value_parser = WordsParser, value_name = "WHO", help_heading = FLEET)]
    coordinator: Option<CoordinatorWords>,
    /// A file with lines coordinator=, ca=, cert=, key=, user=, password=, so that no secret is on a command line
    #[arg(long, value_name = "FILE", help_heading = FLEET)]
    coordinator_file: Option<PathBuf>,
    /// Serve a Mooncake file-per-key directory in place: DIR, or DIR/file_per_key_dir itself; keys move into the store as they
    /// are rewritten
    #[arg(long, value_name = "DIR", help_heading = LEGACY)]
    attach_legacy: Option<PathBuf>,
    /// The directory of records in it [default: file_per_key_dir]
    #[arg(long, value_name = "NAME", help_heading = LEGACY)]
    legacy_fsdir: Option<PathBuf>,
    /// Show the keys of Mooncake's tenant OLD as those of NEW; may be given more than once
    #[arg(long, value_name = "OLD=NEW", help_heading = LEGACY)]
    map_tenant: Vec<OsString>,

    /// How long a change waits for a tenant that is being removed
    #[arg(long, value_name = "TIME", value_parser = config::parse_fence_wait, default_value = "1s", help_heading = BEHAVIOUR)]
    fence_wait: Duration,

    /// Show the keys of this tenant alone, at the root of the mount
    #[arg(long, value_name = "NAME", value_parser = tenant, help_heading = ACCESS)]
    tenant: Option<Tenant>,
    /// Let other users in; permissions are enforced either way [default: when root mounts]
    #[arg(long, overrides_with = "no_allow_other", help_heading = ACCESS)]
    allow_other: bool,
    /// Keep other users out
    #[arg(long, help_heading = ACCESS)]
    no_allow_other: bool,
    /// Show this user as the owner of everything
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=MAX_ID), help_heading = ACCESS)]
    uid: Option<u32>,
    /// Show this group as the group of everything
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=MAX_ID), help_heading = ACCESS)]
    gid: Option<u32>,
    /// Show these permission bits on every file, such as 0640
    #[arg(long, value_name = "MODE", value_parser = config::parse_mode, help_heading = ACCESS)]
    file_mode: Option<u32>,
    /// Show these permission bits on every directory, such as 0750
    #[arg(long, value_name = "MODE", value_parser = config::parse_mode, help_heading = ACCESS)]
    dir_mode: Option<u32>,

    /// What the daemon logs
    #[arg(long, value_name = "LEVEL", value_parser = named(&LEVELS), default_value = "warn", help_heading = LOGGING)]
    pub(super) log_level: LevelFilter,
    /// Where it logs to [default: stderr in the foreground, else nowhere]
    #[arg(long, value_name = "FILE", help_heading = LOGGING)]
    pub(super) log_file: Option<PathBuf>,

    /// Serve the metrics by HTTP at this address and port, to whoever reaches it: http://127.0.0.1:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = LOGGING)]
    pub(super) metrics_listen: Option<SocketAddr>,

    #[arg(skip)]
    kernel_options: Vec<String>,
}

/// How much a store may hold.
#[derive(Debug, Args)]
pub(super) struct QuotaArgs {
    /// Quota of the whole store, such as 100G or 100GB [default: 90 % of the backing filesystem]
    #[arg(long, value_name = "SIZE", value_parser = config::parse_size, help_heading = QUOTA)]
    size: Option<u64>,
    /// Most keys that the store may hold [default: no limit]
    #[arg(long, value_name = "N", help_heading = QUOTA)]
    max_keys: Option<u64>,
    /// Percent of the quota where background eviction starts [default: 97]
    #[arg(long, value_name = "PERCENT", value_parser = config::parse_percent, help_heading = QUOTA)]
    high_watermark: Option<u8>,
    /// Percent of the quota where background eviction stops [default: 95]
    #[arg(long, value_name = "PERCENT", value_parser = config::parse_percent, help_heading = QUOTA)]
    low_watermark: Option<u8>,
}

impl QuotaArgs {
    /// The quota; values may be right alone and wrong together.
    pub(super) fn quota(&self) -> Result<Quota> {
        Quota::new(self.size, self.max_keys, self.high_watermark, self.low_watermark)
    }
}

const QUOTA: &str = "Quota and eviction";
const BEHAVIOUR: &str = "Behaviour";
const FLEET: &str = "Fleet";
const ACCESS: &str = "Access";
const LEGACY: &str = "Legacy directory";
const LOGGING: &str = "Logging and metrics";

const AFTER_HELP: &str = "\
Sizes: 100G and 100GiB count in 1024, 100GB in 1000; a plain number is bytes.
In fstab: /srv/store /mnt/cache fuse.fencefs size=100G,allow_other,nofail 0 0";

/// The largest user or group id; the one above means no id to the kernel.
const MAX_ID: i64 = u32::MAX as i64 - 1;

const LEVELS: [(&str, LevelFilter); 4] = [
    ("error", LevelFilter::Error),
    ("warn", LevelFilter::Warn),
    ("info", LevelFilter::Info),
    ("debug", LevelFilter::Debug),
];

/// A parser for one of these names.
pub(super) fn named<T: Copy + Send + Sync + 'static>(
    names: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names.iter().map(|(name, _)| *name)).map(move |text| {
        let named = names.iter().find(|(name, _)| *name == text);
        named.expect("PossibleValuesParser lets only these names through").1
    })
}

/// A tenant name from the command line.
pub(super) fn tenant(text: &str) -> Result<Tenant> {
    Tenant::new(text.as_bytes())
}

impl MountArgs {
    /// Gives the options that the kernel interprets, found in `-o`.
    pub(super) fn set_kernel_options(&mut self, kernel_options: Vec<String>) {
        self.kernel_options = kernel_options;
    }

    /// Refuses values that are right alone and wrong together.
    pub(super) fn check(&self) -> Result<()> {
        // Not by the parser: a part of this may be in `-o`, and the rest not.
        if self.attach_legacy.is_none() && (self.legacy_fsdir.is_some() || !self.map_tenant.is_empty()) {
            return Err(Error::new(
                Kind::Invalid,
                "--legacy-fsdir and --map-tenant say something of --attach-legacy, which is not there",
            ));
        }
        if let (Some(words), None) = (&self.coordinator, &self.coordinator_file)
            && words.file().is_none()
        {
            words.coordinator()?;
        }
        TenantMap::new(self.map_tenant.iter().map(|w| TenantRule::parse(w)).collect::<Result<Vec<_>>>()?)?;
        self.evict_options()?;
        self.quota.quota().map(drop)
    }

    /// Who keeps the removal requests. Reads the file that says more of it, so it is asked for before the daemon changes
    /// its directory.
    pub(super) fn coordinator(&self) -> Result<Coordinator> {
        coordinator::read(self.coordinator.clone().unwrap_or_default(), self.coordinator_file.as_deref())
    }

    fn evict_options(&self) -> Result<EvictOptions> {
        EvictOptions::new(self.evict_queues, self.evict_lifetime, self.evict_ghosts)
    }

    /// The legacy directory, by a path that means the same from everywhere. One that the mount would cover, or that
    /// would hold it, is refused.
    pub(super) fn attach(&self, mountpoint: &Path) -> Result<Option<AttachLegacy>> {
        let Some(given) = &self.attach_legacy else { return Ok(None) };
        let cannot = format!("cannot attach {}", given.display());
        let dir = given.canonicalize().map_err(|e| Error::os(cannot.clone(), e))?;
        let fsdir = self.legacy_fsdir.clone().unwrap_or_else(|| legacy::FSDIR.into());
        let inside = dir.join(&fsdir);
        let is_itself = dir.ends_with(&fsdir) && !inside.is_dir();
        let records = if is_itself { &dir } else { &inside };
        if records.starts_with(mountpoint) || mountpoint.starts_with(records) {
            let why = "the mountpoint and it are inside one another (use another mountpoint)";
            return Err(Error::new(Kind::Invalid, format!("{cannot}: {why}")));
        }
        // What stands in `-o` reaches a daemon in both ways.
        let mut tenants = self.map_tenant.clone();
        tenants.sort_unstable();
        tenants.dedup();
        Ok(Some(AttachLegacy { dir, fsdir, tenants }))
    }

    /// The settings of the store, but for the legacy directory, which is asked for with the mountpoint.
    pub(super) fn store_settings(&self) -> Result<StoreSettings> {
        Ok(StoreSettings {
            quota: self.quota.quota()?,
            policy: self.evict,
            evict: self.evict_options()?,
            order_interval: self.order_interval.unwrap_or(config::DEFAULT_ORDER_INTERVAL),
            durability: self.durability,
            checksum: self.checksum,
            keep_awake: !self.no_keep_awake,
            evicts: true,
            attach: None,
        })
    }

    /// The settings of the mount; others may enter by default where `root` mounts.
    pub(super) fn mount_settings(&self, root: bool) -> MountSettings {
        MountSettings {
            tenant: self.tenant.clone(),
            allow_other: self.allow_other || (root && !self.no_allow_other),
            passthrough: self.passthrough,
            fence_wait: self.fence_wait,
            uid: self.uid,
            gid: self.gid,
            file_mode: self.file_mode,
            dir_mode: self.dir_mode,
            kernel_options: self.kernel_options.clone(),
        }
    }
}

/// The arguments of the daemon: `mount STORE MOUNTPOINT` first, so that `pgrep -f` finds it, then the same options.
pub(super) fn daemon_argv(root: &clap::Command, matches: &ArgMatches) -> Vec<OsString> {
    let mut argv = vec![OsString::from("mount")];
    for id in ["store", "mountpoint"] {
        argv.extend(matches.get_raw(id).into_iter().flatten().map(|path| match path.as_bytes() {
            [b'-', ..] => [OsString::from("./"), path.to_owned()].into_iter().collect(),
            _ => path.to_owned(),
        }));
    }
    argv.extend(["--foreground".into(), "--ready-pipe".into()]);
    let mount = root.find_subcommand("mount").expect("mount is a command of the tree");
    for arg in mount.get_arguments() {
        argv.extend(spelled(arg, matches));
    }
    argv
}

/// The option as it would be typed, once a value, where somebody gave it.
fn spelled(arg: &Arg, matches: &ArgMatches) -> Vec<OsString> {
    let Some(long) = arg
        .get_long()
        .filter(|long| !matches!(*long, "foreground" | "ready-pipe" | "handed" | "keep-stderr" | "help"))
    else {
        return Vec::new();
    };
    if matches.value_source(arg.get_id().as_str()) != Some(ValueSource::CommandLine) {
        return Vec::new();
    }
    if !arg.get_action().takes_values() {
        return vec![format!("--{long}").into()];
    }
    let values = matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
    values
        .map(|value| [OsString::from(format!("--{long}=")), value.to_owned()].into_iter().collect())
        .collect()
}
