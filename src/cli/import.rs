//! `fencefs import`: a Mooncake directory's values into a store that is not mounted.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use serde_json::{Value, json};

use super::coordinator::{self, WordsParser};
use super::mount_args::{QuotaArgs, named};
use super::progress::Progress;
use super::{mountinfo, mountpoint, path, print};
use crate::config::{Checksum, CoordinatorWords, StoreSettings};
use crate::control::removals::Removals;
use crate::error::{Error, Kind, Result};
use crate::format::legacy::FSDIR;
use crate::store::import::{Finding, Options, Summary, import};
use crate::store::legacy::{TenantMap, TenantRule, Tree};

/// Copy the values of a Mooncake file-per-key directory into a store that is not mounted
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct ImportArgs {
    /// Directory that holds the store; it is created where it is missing
    #[arg(value_name = "STORE")]
    store: PathBuf,
    /// The directory that Mooncake stores in; it is only read
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// The directory in DIR that holds the records: Mooncake's fsdir
    #[arg(long, value_name = "NAME", default_value = FSDIR)]
    fsdir: PathBuf,
    /// Give the keys of Mooncake's tenant OLD to the tenant NEW; for names that are not allowed here
    #[arg(long, value_name = "OLD=NEW", value_parser = OsStringValueParser::new().try_map(TenantRule::try_from))]
    map_tenant: Vec<TenantRule>,
    /// Where the store has another content for a key, take DIR's
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    quota: QuotaArgs,
    /// Keep a checksum of the content with each record
    #[arg(long, value_name = "WHEN", value_parser = named(&Checksum::NAMES), default_value = "off")]
    checksum: Checksum,
    /// Who keeps the removal requests, of a store that takes part in a fleet: as for mount
    #[arg(long, value_parser = WordsParser, value_name = "WHO")]
    coordinator: Option<CoordinatorWords>,
    /// A file that says more of it, as for mount
    #[arg(long, value_name = "FILE")]
    coordinator_file: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Nothing is evicted to make room. An import that was interrupted is run again: what is there is compared, not copied.
Exit status: 0 when the store has every value of DIR, 1 when one is left, or nothing could be done.";

impl ImportArgs {
    /// Refuses values that are right alone and wrong together.
    pub(super) fn check(&self) -> Result<()> {
        self.quota.quota()?;
        self.tenants().map(drop)
    }

    fn tenants(&self) -> Result<TenantMap> {
        TenantMap::new(self.map_tenant.iter().cloned())
    }

    fn settings(&self) -> Result<StoreSettings> {
        let quota = self.quota.quota()?;
        Ok(StoreSettings { quota, checksum: self.checksum, evicts: false, ..StoreSettings::default() })
    }
}

/// Copies, and says what was done and what was not.
pub(super) fn run(args: &ImportArgs) -> Result<ExitCode> {
    let tree = Tree::open(&args.from, &args.fsdir, args.tenants()?)?;
    keep_apart(&args.store, tree.path())?;
    // Modes are those of the directory's files.
    rustix::process::umask(rustix::fs::Mode::empty());
    let mut shown = Progress::new();
    let update = &mut |phase: &str, count| shown.update(phase, count);
    let words = args.coordinator.clone().unwrap_or_default();
    let coordinator = coordinator::read(words, args.coordinator_file.as_deref())?;
    let removals = Removals::open(&args.store, &args.settings()?, &coordinator, update)?;
    let opened = removals.wait_until_open(update);
    let update = &mut |phase: &str, count, total| shown.update_of(phase, count, total);
    let options = Options { replace: args.replace };
    let imported = opened.and_then(|()| import(removals.store(), &tree, options, update));
    let closed = removals.close();
    drop(shown);
    let summary = imported?;
    closed?;
    print(if args.json { format!("{}\n", object(args, &tree, &summary)) } else { human(&summary) })?;
    let is_whole = !summary.findings.iter().any(|f| f.what.leaves_a_value());
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A store in the directory, or the other way round, would be read as records, or change what is only to be read. A
/// mount is no store.
fn keep_apart(store: &Path, fsdir: &Path) -> Result<()> {
    let store = mountpoint::resolve_new(store)?;
    let mounts = mountinfo::read()?;
    if let Some(mount) = mounts.iter().find(|m| m.is_fencefs() && store.starts_with(&m.mountpoint)) {
        let (there, source) = (mount.mountpoint.display(), mount.source.display());
        return Err(Error::new(
            Kind::Invalid,
            format!(
                "{} is in the mount of {source} (fencefs umount {there}, and give the store itself)",
                store.display()
            ),
        ));
    }
    if store.starts_with(fsdir) || fsdir.starts_with(&store) {
        return Err(Error::new(
            Kind::Invalid,
            format!(
                "{} and {} are one inside the other; give a store beside it",
                store.display(),
                fsdir.display()
            ),
        ));
    }
    Ok(())
}

fn object(args: &ImportArgs, tree: &Tree, summary: &Summary) -> Value {
    let listed: Vec<Value> = summary
        .findings
        .iter()
        .map(|f| {
            let key = f.owner.as_ref().map(|(_, key)| key.as_bytes());
            json!({
                "path": f.path.escape_ascii().to_string(),
                "tenant": f.owner.as_ref().map(|(tenant, _)| tenant.as_str()),
                "key": key.map(String::from_utf8_lossy),
                "key_hex": key.map(path::hex),
                "kind": f.what.as_str(),
                "what": f.what.to_string(),
            })
        })
        .collect();
    let left = summary.findings.iter().filter(|f| f.what.leaves_a_value()).count();
    json!({
        "store": args.store.to_string_lossy(),
        "from": tree.path().to_string_lossy(),
        "complete": left == 0,
        "imported": summary.imported,
        "imported_bytes": summary.imported_bytes,
        "replaced": summary.replaced,
        "already_there": summary.already_there,
        "differing": summary.differing(),
        "rejected": listed.len() - summary.differing(),
        "left": left,
        "findings": listed,
    })
}

fn human(summary: &Summary) -> String {
    let mut text = String::new();
    for Finding { path, owner, what } in &summary.findings {
        let whose = match owner {
            Some((tenant, key)) => format!(" (tenant {tenant}, key {key})"),
            None => String::new(),
        };
        let why = super::one_line(&what.to_string());
        text.push_str(&format!("{}: {}{whose}: {why}\n", what.as_str(), path.escape_ascii()));
    }
    let Summary { imported, imported_bytes, replaced, already_there, findings } = summary;
    let differing = summary.differing();
    text.push_str(&format!("{imported} imported ({imported_bytes} bytes)"));
    if *replaced > 0 {
        text.push_str(&format!(", {replaced} of them replaced another content"));
    }
    let rejected = findings.len() - differing;
    text.push_str(&format!(", {already_there} already there, {differing} differing, {rejected} rejected\n"));
    if differing > 0 {
        text.push_str("take the directory's contents with --replace\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Key, Tenant};
    use crate::store::import::What;
    use crate::store::legacy::Why;

    #[test]
    fn what_was_not_copied_is_told_with_its_reason() {
        let owner = (Tenant::default_tenant(), Key::new(&b"a/\xffb"[..]).unwrap());
        let differs = Finding { path: b"j/p/x"[..].into(), owner: Some(owner), what: What::Differs };
        let link = Finding { path: b"line\n"[..].into(), owner: None, what: What::Rejected(Why::Symlink) };
        let summary = Summary {
            imported: 3,
            imported_bytes: 12,
            already_there: 2,
            findings: vec![differs, link],
            ..Summary::default()
        };
        assert_eq!(
            human(&summary),
            "differs: j/p/x (tenant default, key a/\\xffb): the store has another content for its key, and keeps it\n\
             symlink: line\\n: it is a symbolic link\n\
             3 imported (12 bytes), 2 already there, 1 differing, 1 rejected\n\
             take the directory's contents with --replace\n"
        );
    }

    #[test]
    fn a_store_and_a_directory_stand_apart() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().canonicalize().unwrap().join(name);
        std::fs::create_dir_all(at("m/fsdir")).unwrap();
        std::os::unix::fs::symlink(at("m"), at("link")).unwrap();
        for (store, ok) in [
            ("store", true),
            ("new/store", true),
            ("m/store", true),
            ("m/fsdirs", true),
            ("m/fsdir", false),
            ("m", false),
            ("", false),
            ("m/fsdir/new/store", false),
            ("link/fsdir/store", false),
        ] {
            assert_eq!(keep_apart(&at(store), &at("m/fsdir")).is_ok(), ok, "{store}");
        }
    }
}
