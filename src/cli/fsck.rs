//! `fencefs fsck`: whether a store that is not mounted is as it should be, and repairs.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::progress::Progress;
use super::{path, print};
use crate::error::Result;
use crate::store::fsck::{Finding, Options, Report, Summary, check};

/// Every error that was found was repaired.
const REPAIRED: u8 = 4;

/// Check a store that is not mounted: metadata, removals, leftovers, and contents where they have a checksum
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct FsckArgs {
    /// Directory that holds the store
    #[arg(value_name = "STORE")]
    store: PathBuf,
    /// Clear leftovers away, set invalid records aside; safe to interrupt at any moment
    #[arg(long)]
    repair: bool,
    /// Read every value that has a checksum, and compare
    #[arg(long)]
    verify_data: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Exit status: 0 without errors, 1 with errors that are left, 4 where all were repaired.
Warnings (strangers, what was set aside earlier) are nobody's to repair and no errors.";

/// Checks, and says what was found.
pub(super) fn run(args: &FsckArgs) -> Result<ExitCode> {
    let options = Options { repair: args.repair, verify_data: args.verify_data };
    let found = Found { progress: Mutex::new(Progress::new()), findings: Mutex::default() };
    let summary = check(&args.store, options, &found)?;
    let Found { progress, findings } = found;
    drop(progress);
    let mut findings = findings.into_inner();
    findings.sort_by(|a, b| a.path.cmp(&b.path));
    print(if args.json {
        format!("{}\n", object(&args.store.to_string_lossy(), options, &summary, &findings))
    } else {
        human(options, &summary, &findings)
    })?;
    Ok(match (summary.left(), summary.repaired) {
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => ExitCode::from(REPAIRED),
        _ => ExitCode::FAILURE,
    })
}

/// Kept until the end, so that they come in order whatever the threads did.
struct Found {
    progress: Mutex<Progress>,
    findings: Mutex<Vec<Finding>>,
}

impl Report for Found {
    fn found(&self, finding: Finding) {
        self.findings.lock().push(finding);
    }

    fn progress(&self, phase: &str, count: u64) {
        // Whoever finds it taken is not the only one who counts.
        if let Some(mut progress) = self.progress.try_lock() {
            progress.update(phase, count);
        }
    }
}

fn severity(finding: &Finding) -> &'static str {
    if finding.what.is_error() { "error" } else { "warning" }
}

fn object(store: &str, options: Options, summary: &Summary, findings: &[Finding]) -> Value {
    let listed: Vec<Value> = findings
        .iter()
        .map(|f| {
            let key = f.key.as_ref().map(|k| k.as_bytes());
            json!({
                "path": f.path,
                "tenant": f.tenant.as_ref().map(|t| t.as_str()),
                "key": key.map(String::from_utf8_lossy),
                "key_hex": key.map(path::hex),
                "kind": f.what.as_str(),
                "severity": severity(f),
                "what": f.why,
                "repaired": f.repaired,
            })
        })
        .collect();
    json!({
        "store": store,
        "repair": options.repair,
        "verify_data": options.verify_data,
        "clean": summary.left() == 0,
        "records": summary.records,
        "verified": summary.verified,
        "unverifiable": summary.unverifiable,
        "errors": summary.errors,
        "repaired": summary.repaired,
        "left": summary.left(),
        "warnings": summary.warnings,
        "findings": listed,
    })
}

fn human(options: Options, summary: &Summary, findings: &[Finding]) -> String {
    let mut text = String::new();
    for f in findings {
        let whose = match (&f.tenant, &f.key) {
            (Some(tenant), Some(key)) => format!(" (tenant {tenant}, key {key})"),
            _ => String::new(),
        };
        let repaired = if f.repaired { "; repaired" } else { "" };
        let why = super::one_line(&f.why);
        text.push_str(&format!("{}: {}: {}{whose}: {why}{repaired}\n", severity(f), f.what.as_str(), f.path));
    }
    let Summary { records, verified, unverifiable, errors, repaired, warnings } = *summary;
    text.push_str(&format!(
        "{records} records, {errors} errors, {repaired} repaired, {} left, {warnings} warnings\n",
        summary.left()
    ));
    if options.verify_data {
        text.push_str(&format!("{verified} contents verified, {unverifiable} without a checksum\n"));
    }
    if summary.left() > 0 && !options.repair {
        text.push_str("repair with --repair\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Key, Tenant};
    use crate::store::fsck::What;

    #[test]
    fn findings_as_text_and_as_json() {
        let finding = Finding {
            path: "data/t/default/0/ab/cd/x".into(),
            tenant: Some(Tenant::default_tenant()),
            key: Some(Key::new(&b"a/\xffb"[..]).unwrap()),
            what: What::Record,
            why: "its length is not\nwhat was published".into(),
            repaired: true,
        };
        let summary = Summary { records: 3, errors: 2, repaired: 1, ..Summary::default() };
        let options = Options { repair: false, verify_data: true };
        let text = human(options, &summary, std::slice::from_ref(&finding));
        assert!(text.starts_with(
            "error: record: data/t/default/0/ab/cd/x (tenant default, key a/\\xffb): its length is not; what was \
             published; repaired\n3 records, 2 errors, 1 repaired, 1 left, 0 warnings\n"
        ), "{text}");
        assert!(text.ends_with("repair with --repair\n"));
        let json = object("/s", options, &summary, &[finding]);
        assert_eq!((json["clean"].as_bool(), json["left"].as_u64()), (Some(false), Some(1)));
        assert_eq!(json["findings"][0]["kind"], "record");
        assert_eq!(json["findings"][0]["key_hex"], "612fff62");
    }
}
