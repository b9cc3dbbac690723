//! `fencefs status`: the mount's status object, for people or as it is.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::requests::{contact, now_ms};
use super::{control_client, print, watch};
use crate::config::format_size;
use crate::error::{Error, Kind, Result};

/// Show what a mount holds and how it is
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Where the filesystem is mounted
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Repeat every second: with bars on a terminal (NO_COLOR: without colours), as plain text elsewhere
    #[arg(short, long)]
    watch: bool,
}

/// Shows the status.
pub(super) fn run(args: &StatusArgs) -> Result<ExitCode> {
    if args.watch && !args.json && watch::is_possible() {
        return watch::run(&args.mountpoint).map(|()| ExitCode::SUCCESS);
    }
    loop {
        let mut status = parsed(&control_client::read(&args.mountpoint, "status")?)?;
        if status["coordinator"].as_str().is_some_and(|name| name != "local") {
            match fleet(args) {
                Ok(storages) => status["fleet"] = storages,
                Err(e) => status["fleet_error"] = e.to_string().into(),
            }
        }
        let shown = if args.json { format!("{status}\n") } else { human(&status, now_ms()) };
        print(shown)?;
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn parsed(text: &str) -> Result<Value> {
    serde_json::from_str(text)
        .map_err(|e| Error::new(Kind::Corrupt, format!("the status of this mount is no JSON: {e}")))
}

/// The storages of the fleet; an error where the coordinator cannot be asked. A view has none.
fn fleet(args: &StatusArgs) -> Result<Value> {
    let text = match control_client::read(&args.mountpoint, "fleet") {
        Err(e) if e.kind() == Kind::NotFound => return Ok(Value::Null),
        text => text?,
    };
    text.lines().map(parsed).collect::<Result<Vec<_>>>().map(Value::Array)
}

/// The status for people: what is missing is left out.
fn human(status: &Value, now_ms: u64) -> String {
    let number = |name: &str| status[name].as_u64();
    let mut rows: Vec<(&str, String)> = Vec::new();
    let mut row = |label, value: Option<String>| rows.extend(value.map(|value| (label, value)));
    row("state", text_of(&status["state"]));
    row("last error", text_of(&status["last_error"]));
    row("used", number("used_bytes").map(|used| used_of(used, number("quota_bytes"))));
    row("keys", number("keys").map(|n| n.to_string()));
    row("staged", number("staged_bytes").map(format_size));
    row("evicted", number("evicted_keys").map(|n| keys(n, text_of(&status["evict"]))));
    row("attached", attached_of(&status["attached"]));
    row("passthrough", status["passthrough"].as_bool().map(|on| if on { "on" } else { "off" }.to_owned()));
    row("coordinator", text_of(&status["coordinator"]));
    row("generation", number("generation").map(|n| n.to_string()));
    row("removals pending", number("pending_requests").map(|n| n.to_string()));
    row("storage", text_of(&status["storage_id"]));
    row("version", text_of(&status["version"]));
    let mut out = String::new();
    let width = rows.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
    for (label, value) in &rows {
        line(&mut out, format_args!("{label:width$}  {value}"));
    }
    let tenants = status["tenants"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !tenants.is_empty() {
        out.push('\n');
        out.push_str(&tenant_table(tenants));
    }
    if let Some(storages) = status["fleet"].as_array() {
        out.push('\n');
        out.push_str(&fleet_table(storages, now_ms));
    }
    if let Some(why) = text_of(&status["fleet_error"]) {
        line(&mut out, format_args!("\nthe fleet cannot be shown: {why}"));
    }
    out
}

/// The legacy directory, with what it still serves.
fn attached_of(attached: &Value) -> Option<String> {
    let path = text_of(&attached["path"])?;
    let records = attached["records"].as_u64().unwrap_or(0);
    let size = format_size(attached["bytes"].as_u64().unwrap_or(0));
    let rejected = attached["rejected"].as_u64().filter(|n| *n > 0);
    let rejected = rejected.map_or(String::new(), |n| format!(", {n} rejected"));
    Some(format!("{path} ({records} records, {size}{rejected})"))
}

/// The storages of a fleet, a line each.
fn fleet_table(storages: &[Value], now_ms: u64) -> String {
    let mut rows = vec![["STORAGE", "HOST", "CONTACT", "APPLIED"].map(str::to_owned)];
    rows.extend(storages.iter().map(|storage| {
        let text = |name: &str| text_of(&storage[name]).unwrap_or("-".to_owned());
        let contact = contact(&text("state"), storage["last_contact_ms"].as_u64().unwrap_or(0), now_ms);
        [text("storage"), text("host"), contact, applied_of(&storage["applied"])]
    }));
    let widths: [usize; 4] =
        std::array::from_fn(|n| rows.iter().map(|row| row[n].chars().count()).max().unwrap_or(0));
    let [w0, w1, w2, _] = widths;
    let mut out = String::new();
    for [storage, host, contact, applied] in &rows {
        line(&mut out, format_args!("{storage:w0$}  {host:w1$}  {contact:w2$}  {applied}"));
    }
    out
}

/// `global 7, a 9`.
fn applied_of(applied: &Value) -> String {
    let tenants = applied["tenants"].as_object().into_iter().flatten();
    let mut parts = vec![format!("global {}", applied["global"])];
    parts.extend(tenants.map(|(tenant, generation)| format!("{tenant} {generation}")));
    parts.join(", ")
}

/// The tenants, a line each.
fn tenant_table(tenants: &[Value]) -> String {
    let mut rows = vec![["TENANT", "STATE", "EPOCH", "KEYS", "USED", "QUOTA"].map(str::to_owned)];
    rows.extend(tenants.iter().map(|t| {
        let plain = |name: &str| t[name].as_u64().map_or("-".to_owned(), |n| n.to_string());
        let size = |name: &str| t[name].as_u64().map_or("-".to_owned(), format_size);
        let text = |name: &str| text_of(&t[name]).unwrap_or("-".to_owned());
        [text("name"), text("state"), plain("epoch"), plain("keys"), size("bytes"), size("quota_bytes")]
    }));
    let mut out = String::new();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    for [name, state, epoch, keys, used, quota] in &rows {
        let [w0, w1, w2, w3, w4, w5] = widths;
        line(
            &mut out,
            format_args!("{name:w0$}  {state:w1$}  {epoch:>w2$}  {keys:>w3$}  {used:>w4$}  {quota:>w5$}"),
        );
    }
    out
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("writing to a String cannot fail");
}

pub(super) fn text_of(value: &Value) -> Option<String> {
    value.as_str().map(|text| text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
}

fn used_of(used_bytes: u64, quota_bytes: Option<u64>) -> String {
    let used = format_size(used_bytes);
    match quota_bytes {
        Some(quota @ 1..) => {
            let percent = u128::from(used_bytes) * 100 / u128::from(quota);
            format!("{used} of {} ({percent} %)", format_size(quota))
        }
        _ => used,
    }
}

fn keys(count: u64, policy: Option<String>) -> String {
    let unit = if count == 1 { "key" } else { "keys" };
    policy.map_or(format!("{count} {unit}"), |policy| format!("{count} {unit} ({policy})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_for_people() {
        let text = r#"{"name":"fencefs","version":"0.1.0","storage_id":"u","state":"ready","coordinator":"local",
            "passthrough":true,"quota_bytes":2147483648,"used_bytes":1073741824,"keys":12,"evict":"lru",
            "evicted_keys":3,"staged_bytes":0,"generation":7,"pending_requests":0,"last_error":null,
            "tenants":[{"name":"default","epoch":0,"state":"ready","keys":12,"bytes":1073741824,"quota_bytes":null},
                       {"name":"a-long-name","epoch":7,"state":"removing","keys":0,"bytes":0,"quota_bytes":1024}]}"#;
        let expected = "\
state             ready
used              1 GiB of 2 GiB (50 %)
keys              12
staged            0 B
evicted           3 keys (lru)
passthrough       on
coordinator       local
generation        7
removals pending  0
storage           u
version           0.1.0

TENANT       STATE     EPOCH  KEYS   USED  QUOTA
default      ready         0    12  1 GiB      -
a-long-name  removing      7     0    0 B  1 KiB
";
        assert_eq!(human(&parsed(text).unwrap(), 0), expected);
    }

    #[test]
    fn a_fleet_has_a_line_a_storage() {
        let text = r#"{"fleet":[
            {"storage":"one","host":"h","state":"present","last_contact_ms":5,"applied":{"global":7,"tenants":{"a":9}}},
            {"storage":"other","host":"h2","state":"absent","last_contact_ms":5000,"applied":{"global":0,"tenants":{}}}]}"#;
        let expected = "
STORAGE  HOST  CONTACT                       APPLIED
one      h     present                       global 7, a 9
other    h2    absent, last contact 5 s ago  global 0
";
        assert_eq!(human(&parsed(text).unwrap(), 10_000), expected);
        let without = parsed(r#"{"fleet_error":"no etcd answers"}"#).unwrap();
        assert!(human(&without, 0).contains("cannot be shown: no etcd answers"));
    }

    #[test]
    fn what_is_missing_is_left_out() {
        let shown = |text: &str| human(&parsed(text).unwrap(), 0);
        assert_eq!(shown("{}"), "");
        assert_eq!(
            shown(r#"{"state":"failed","last_error":"a\nb"}"#),
            "state       failed\nlast error  a b\n"
        );
        assert_eq!(shown(r#"{"used_bytes":1,"quota_bytes":0}"#), "used  1 B\n");
        assert!(parsed("no json").is_err());
    }
}
