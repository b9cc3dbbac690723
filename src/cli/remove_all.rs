//! `fencefs remove-all`: asks for a removal and waits until it is complete.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};
use serde_json::Value;

use super::control_client::{ControlClient, Reply};
use super::progress::Progress;
use super::{complain, mount_args, print};
use crate::config;
use crate::error::{Error, Kind, Result};
use crate::key::Tenant;

/// Remove every key of a tenant, or of all tenants, and wait until that is acknowledged
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("scope").required(true),
    after_help = "The request is durable before anything is removed: what a timeout, a signal or a crash interrupts \
                  here goes on by itself (fencefs requests shows how far it is)."
)]
pub(super) struct RemoveAllArgs {
    /// Where the filesystem is mounted
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
    /// The keys of this tenant
    #[arg(long, value_name = "NAME", value_parser = mount_args::tenant, group = "scope")]
    tenant: Option<Tenant>,
    /// The keys of every tenant
    #[arg(long, group = "scope")]
    global: bool,
    /// Hide the keys now and delete them later; needs no proof that every file is the tenant's
    #[arg(long, conflicts_with = "global")]
    logical: bool,
    /// A name for this request: the same again removes nothing new
    #[arg(long, value_name = "TEXT")]
    id: Option<String>,
    /// Return as soon as the request is durable
    #[arg(long)]
    no_wait: bool,
    /// How long to wait; the removal goes on after that
    #[arg(long, value_name = "TIME", value_parser = config::parse_duration, default_value = "30s")]
    timeout: Duration,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// How often the daemon is asked how far it is.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// An answer may take this long whatever the timeout.
const LEAST_WAIT: Duration = Duration::from_secs(1);

/// Asks and waits.
pub(super) fn run(args: &RemoveAllArgs) -> Result<ExitCode> {
    let limit = args.timeout.max(LEAST_WAIT);
    let mut control = ControlClient::open(&args.mountpoint, limit)?;
    let asked = control.ask(&command(args)?, limit).map_err(|e| match e.kind() {
        Kind::NoAnswer => e.context("whether the request was accepted is not known (fencefs requests tells)"),
        _ => e,
    })?;
    if let Err(e) = asked.check("cannot remove") {
        if args.json {
            print(asked.json_line())?;
        }
        complain(&e.to_string());
        return Ok(ExitCode::FAILURE);
    }
    let waited = if args.no_wait { Ok(asked.clone()) } else { wait(&asked, args) };
    let last = match waited {
        Ok(last) => last,
        Err(e) => return lost(&asked, e, args),
    };
    print(if args.json { last.json_line() } else { format!("{}\n", human(&last)) })?;
    if args.no_wait || state(&last) == "complete" {
        return Ok(ExitCode::SUCCESS);
    }
    complain(&unfinished(&last, args));
    Ok(ExitCode::FAILURE)
}

/// What stays true of a request that this command no longer waits for.
fn unfinished(last: &Reply, args: &RemoveAllArgs) -> String {
    let waited = if args.timeout.is_zero() { String::new() } else { format!(" after {:?}", args.timeout) };
    let generation = last.get("generation").map_or(Value::Null, Clone::clone);
    let id = last.get("id").and_then(Value::as_str).map_or(String::new(), |id| format!(" (id {id})"));
    let at = args.mountpoint.display();
    format!(
        "request {generation}{id} is durable, and not complete{waited}; it goes on by itself, also after a restart: fencefs \
         requests {at} shows how far it is and what keeps it, fencefs retry {at} ends the pause after a failure"
    )
}

/// The daemon died, or stopped answering, after it had accepted the request.
fn lost(asked: &Reply, e: Error, args: &RemoveAllArgs) -> Result<ExitCode> {
    if e.kind() == Kind::Invalid {
        // It answers.
        return Err(e);
    }
    let generation = asked.get("generation").map_or(Value::Null, Clone::clone);
    let then = match e.kind() {
        Kind::NoAnswer => "is carried out when the daemon goes on, or at the next mount",
        _ => "is finished at the next mount",
    };
    let e = e.context(format!("request {generation} is durable and {then}"));
    if args.json {
        print(asked.unanswered(&e).json_line())?;
    }
    Err(e)
}

/// The control file's line.
fn command(args: &RemoveAllArgs) -> Result<String> {
    let mut line = match &args.tenant {
        Some(tenant) => format!("remove-all tenant={tenant}"),
        None => "remove-all scope=global".to_owned(),
    };
    if args.logical {
        line.push_str(" mode=logical");
    }
    if let Some(id) = &args.id {
        if id.is_empty() || id.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(Error::new(Kind::Invalid, "an id is one word, without blanks"));
        }
        line.push_str(&format!(" id={id}"));
    }
    Ok(line)
}

/// Asks until the request is complete or the time is over; the last answer. On a stream of its own: the one that asked
/// for the removal is told of each end of an attempt, between the answers to other questions.
fn wait(asked: &Reply, args: &RemoveAllArgs) -> Result<Reply> {
    let deadline = Instant::now() + args.timeout;
    let left = || deadline.saturating_duration_since(Instant::now()).max(LEAST_WAIT);
    let mut control = ControlClient::open(&args.mountpoint, left())?;
    let generation = asked
        .get("generation")
        .and_then(Value::as_u64)
        .ok_or_else(|| Error::new(Kind::Corrupt, "the daemon's reply names no generation"))?;
    let (mut progress, mut told) = (Progress::new(), None);
    loop {
        let began = Instant::now();
        let now = control.ask(&format!("query generation={generation}"), left())?;
        // Of a large fleet it is a long answer.
        let pause = ASK_EVERY.max(4 * began.elapsed());
        now.check("cannot follow the removal")?;
        progress.update("deleted", now.get("deleted_records").and_then(Value::as_u64).unwrap_or(0));
        let error = now.get("last_error").and_then(Value::as_str).map(str::to_owned);
        if state(&now) == "failed" && told != error {
            complain(&format!("an attempt failed and will be repeated: {}", error.as_deref().unwrap_or("?")));
            told = error;
        }
        if state(&now) == "complete" || Instant::now() >= deadline {
            return Ok(now);
        }
        std::thread::sleep(pause.min(left()));
    }
}

fn state(reply: &Reply) -> &str {
    reply.get("state").and_then(Value::as_str).unwrap_or("unknown")
}

/// `generation 7, tenant a: complete`.
pub(super) fn human(reply: &Reply) -> String {
    let scope = match reply.get("tenant").and_then(Value::as_str) {
        Some(tenant) => format!("tenant {tenant}"),
        None => "all tenants".to_owned(),
    };
    let mode = if reply.get("mode").and_then(Value::as_str) == Some("logical") { ", logical" } else { "" };
    let generation = reply.get("generation").map_or(Value::Null, Clone::clone);
    format!("generation {generation}, {scope}{mode}: {}", state(reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(id: Option<&str>, tenant: Option<&str>, logical: bool) -> RemoveAllArgs {
        RemoveAllArgs {
            mountpoint: PathBuf::new(),
            tenant: tenant.map(|t| Tenant::new(t.as_bytes()).unwrap()),
            global: tenant.is_none(),
            logical,
            id: id.map(str::to_owned),
            no_wait: false,
            timeout: Duration::ZERO,
            json: false,
        }
    }

    #[test]
    fn who_gives_up_waiting_is_told_what_becomes_of_the_request() {
        let args = RemoveAllArgs {
            mountpoint: "/mnt/cache".into(),
            timeout: Duration::from_secs(2),
            ..args(Some("x"), Some("a"), false)
        };
        let last = |text: &str| Reply::parse(text).unwrap();
        let said = unfinished(&last(r#"{"ok":true,"generation":7,"id":"x","state":"removing"}"#), &args);
        assert!(said.starts_with("request 7 (id x) is durable, and not complete after 2s"), "{said}");
        assert!(
            said.contains("fencefs requests /mnt/cache") && said.contains("fencefs retry /mnt/cache"),
            "{said}"
        );
        let said = unfinished(&last(r#"{"ok":true,"generation":7,"id":null,"state":"failed"}"#), &args);
        assert!(said.starts_with("request 7 is durable"), "{said}");
    }

    #[test]
    fn lines_of_the_control_file() {
        assert_eq!(command(&args(None, None, false)).unwrap(), "remove-all scope=global");
        assert_eq!(command(&args(Some("x=1"), Some("a"), false)).unwrap(), "remove-all tenant=a id=x=1");
        assert_eq!(command(&args(None, Some("a"), true)).unwrap(), "remove-all tenant=a mode=logical");
        for bad in ["", "a b", "a\nremove-all scope=global"] {
            assert_eq!(
                command(&args(Some(bad), Some("a"), false)).unwrap_err().kind(),
                Kind::Invalid,
                "{bad:?}"
            );
        }
    }
}
