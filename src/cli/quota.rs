//! `fencefs quota`: shows or sets the quota of a store or of a tenant, through the control file.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::control_client::{ControlClient, Reply};
use super::patience::ANSWER_WAIT;
use super::{complain, mount_args, print};
use crate::config::{self, format_size};
use crate::error::Result;
use crate::key::Tenant;

/// Show or set the quota of the store or of one tenant, or a tenant's reserve and time to live
#[derive(Debug, Args)]
#[command(
    after_help = "Sizes: 100G and 100GiB count in 1024, 100GB in 1000; a plain number is bytes. Durations: 30s, 10m, 24h."
)]
pub(super) struct QuotaArgs {
    /// Where the filesystem is mounted
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
    /// The tenant [default: the whole store]
    #[arg(long, value_name = "NAME", value_parser = mount_args::tenant)]
    tenant: Option<Tenant>,
    /// The new quota, or `none` to take it away [default: show it]
    #[arg(value_name = "SIZE|none", value_parser = limit)]
    size: Option<Limit>,
    /// What other tenants' pressure leaves this one, or `none` to take it away
    #[arg(long, value_name = "SIZE|none", value_parser = limit, requires = "tenant")]
    reserve: Option<Limit>,
    /// How long this tenant's keys live after their last change, or `none`: for ever
    #[arg(long, value_name = "DURATION|none", value_parser = ttl, requires = "tenant")]
    ttl: Option<Ttl>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limit {
    None,
    Bytes(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ttl {
    None,
    Seconds(u64),
}

fn ttl(text: &str) -> Result<Ttl> {
    if text == "none" { Ok(Ttl::None) } else { config::parse_ttl(text).map(Ttl::Seconds) }
}

fn limit(text: &str) -> Result<Limit> {
    if text == "none" { Ok(Limit::None) } else { config::parse_size(text).map(Limit::Bytes) }
}

/// Shows or sets the quota.
pub(super) fn run(args: &QuotaArgs) -> Result<ExitCode> {
    let mut control = ControlClient::open(&args.mountpoint, ANSWER_WAIT)?;
    let line = command(args.tenant.as_ref(), args.size, args.reserve, args.ttl);
    let reply = control.ask(&line, ANSWER_WAIT)?;
    let sets = args.size.or(args.reserve).is_some() || args.ttl.is_some();
    let doing = if sets { "cannot set the quota" } else { "cannot show the quota" };
    let done = reply.check(doing);
    if args.json {
        print(reply.json_line())?;
    } else if done.is_ok() {
        print(human(args.tenant.as_ref(), args.size, &reply))?;
    }
    match done {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(e) => {
            complain(&e.to_string());
            Ok(ExitCode::FAILURE)
        }
    }
}

/// The control file's line.
fn command(tenant: Option<&Tenant>, size: Option<Limit>, reserve: Option<Limit>, ttl: Option<Ttl>) -> String {
    let mut line = "quota".to_owned();
    if let Some(tenant) = tenant {
        line.push_str(&format!(" tenant={tenant}"));
    }
    for (word, limit) in [("bytes", size), ("reserve", reserve)] {
        match limit {
            Some(Limit::Bytes(bytes)) => line.push_str(&format!(" {word}={bytes}")),
            Some(Limit::None) => line.push_str(&format!(" {word}=none")),
            None => {}
        }
    }
    match ttl {
        Some(Ttl::Seconds(seconds)) => line.push_str(&format!(" ttl={seconds}s")),
        Some(Ttl::None) => line.push_str(" ttl=none"),
        None => {}
    }
    line
}

/// `tenant a: quota 1 GiB, 512 MiB used`; what the reply does not say is what was asked for.
fn human(tenant: Option<&Tenant>, asked: Option<Limit>, reply: &Reply) -> String {
    let whose = tenant.map_or("store".to_owned(), |tenant| format!("tenant {tenant}"));
    let told = reply.get("quota_bytes").map(|value| value.as_u64().map_or(Limit::None, Limit::Bytes));
    let quota = match told.or(asked) {
        Some(Limit::Bytes(bytes)) => format!("quota {}", format_size(bytes)),
        Some(Limit::None) => "no quota".to_owned(),
        None => "quota unknown".to_owned(),
    };
    let used = reply.get("used_bytes").or(reply.get("bytes")).and_then(Value::as_u64);
    let used = used.map_or(String::new(), |used| format!(", {} used", format_size(used)));
    let reserve = reply.get("reserve_bytes").and_then(Value::as_u64);
    let reserve = reserve.map_or(String::new(), |bytes| format!(", {} reserved", format_size(bytes)));
    let ttl = reply.get("ttl_seconds").and_then(Value::as_u64);
    let ttl = ttl.map_or(String::new(), |seconds| format!(", keys live {seconds} s"));
    format!("{whose}: {quota}{reserve}{ttl}{used}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_control_file() {
        let a = Tenant::new(b"a").unwrap();
        assert_eq!(command(None, None, None, None), "quota");
        assert_eq!(command(Some(&a), None, None, None), "quota tenant=a");
        assert_eq!(command(Some(&a), Some(limit("1K").unwrap()), None, None), "quota tenant=a bytes=1024");
        assert_eq!(command(None, Some(limit("none").unwrap()), None, None), "quota bytes=none");
        let reserve = command(Some(&a), None, Some(limit("2K").unwrap()), None);
        assert_eq!(reserve, "quota tenant=a reserve=2048");
        let with = |text| command(Some(&a), None, None, Some(ttl(text).unwrap()));
        assert_eq!(
            (with("2m"), with("none")),
            ("quota tenant=a ttl=120s".into(), "quota tenant=a ttl=none".into())
        );
        assert!(limit("lots").is_err() && ttl("lots").is_err());
    }
}
