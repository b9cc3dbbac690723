//! `fencefs requests`: every removal request that is kept, with what has become of it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::Value;

use super::{control_client, print};
use crate::error::{Error, Kind, Result};

/// Show every removal request: scope, who must apply it, who did, its state and last error
#[derive(Debug, Args)]
pub(super) struct RequestsArgs {
    /// Where the filesystem is mounted
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
    /// Print one JSON object a line, newest last
    #[arg(long)]
    json: bool,
}

/// Shows the requests.
pub(super) fn run(args: &RequestsArgs) -> Result<ExitCode> {
    let text = control_client::read(&args.mountpoint, "requests")?;
    print(if args.json { text } else { human(&text, now_ms())? })?;
    Ok(ExitCode::SUCCESS)
}

/// Storages that a request waits for which are named; more are counted.
const NAMED: usize = 8;

fn human(text: &str, now_ms: u64) -> Result<String> {
    let mut rows = vec![["GENERATION", "SCOPE", "MODE", "STATE", "ACKED", "LAST ERROR"].map(str::to_owned)];
    let mut waits = vec![String::new()];
    for line in text.lines() {
        let request: Value = serde_json::from_str(line)
            .map_err(|e| Error::new(Kind::Corrupt, format!("a request of this mount is no JSON: {e}")))?;
        let word = |name: &str| request[name].as_str().unwrap_or_default().to_owned();
        let count = |name: &str| request[name].as_array().map_or(0, Vec::len);
        let scope = request["tenant"].as_str().map_or("global".to_owned(), |t| format!("tenant {t}"));
        let waived = match count("retired") {
            0 => String::new(),
            n => format!(", {n} waived"),
        };
        rows.push([
            request["generation"].to_string(),
            scope,
            word("mode"),
            word("state"),
            format!("{}/{}{waived}", count("acked"), count("targets")),
            word("last_error"),
        ]);
        waits.push(awaited(&request, now_ms));
    }
    if rows.len() == 1 {
        return Ok("no removal was asked for\n".to_owned());
    }
    let widths: [usize; 6] = std::array::from_fn(|n| rows.iter().map(|row| row[n].len()).max().unwrap_or(0));
    let line = |(row, waits): (&[String; 6], &String)| {
        let cells: Vec<String> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n{waits}", cells.join("  ").trim_end())
    };
    Ok(rows.iter().zip(&waits).map(line).collect())
}

/// Lines of the hosts that a request waits for. A store of its own has none: it is the one that is looked at.
fn awaited(request: &Value, now_ms: u64) -> String {
    let all = request["waits_for"].as_array().map(Vec::as_slice).unwrap_or_default();
    let hosts: Vec<_> = all.iter().filter(|awaited| awaited["host"].is_string()).collect();
    let line = |awaited: &&Value| {
        let word = |name: &str| awaited[name].as_str().unwrap_or_default().to_owned();
        let contact = contact(&word("state"), awaited["last_contact_ms"].as_u64().unwrap_or(0), now_ms);
        format!("{:12}waits for {}, host {}: {contact}\n", "", word("storage"), word("host"))
    };
    let mut lines: String = hosts.iter().take(NAMED).map(line).collect();
    if hosts.len() > NAMED {
        lines.push_str(&format!("{:12}and for {} more\n", "", hosts.len() - NAMED));
    }
    lines
}

/// When a storage was last heard of, in words.
pub(super) fn contact(state: &str, last_contact_ms: u64, now_ms: u64) -> String {
    let ago = now_ms.saturating_sub(last_contact_ms) / 1000;
    let ago = match ago {
        0..=119 => format!("{ago} s"),
        120..=7_199 => format!("{} min", ago / 60),
        7_200..=172_799 => format!("{} h", ago / 3600),
        _ => format!("{} days", ago / 86_400),
    };
    match state {
        "present" => "present".to_owned(),
        state => format!("{state}, last contact {ago} ago"),
    }
}

pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_a_request() {
        let line = r#"{"generation":7,"scope":"tenant","tenant":"a","mode":"physical","state":"failed","targets":["x"],"acked":[],"last_error":"cannot remove"}"#;
        let shown = human(&format!("{line}\n"), 0).unwrap();
        assert_eq!(shown.lines().count(), 2);
        assert!(shown.ends_with("7           tenant a  physical  failed  0/1    cannot remove\n"), "{shown}");
        assert_eq!(human("", 0).unwrap(), "no removal was asked for\n");
    }

    #[test]
    fn who_is_waited_for_has_a_line_with_its_last_contact() {
        let line = r#"{"generation":7,"scope":"global","tenant":null,"mode":"physical","state":"applied",
            "targets":["a","b","c","d"],"acked":["a"],"retired":["d"],"waits_for":[
            {"storage":"b","host":"h2","state":"absent","last_contact_ms":1000},
            {"storage":"c","host":"h3","state":"present","last_contact_ms":9000}]}"#;
        let shown = human(&line.replace('\n', " "), 1_000 + 150_000).unwrap();
        let lines: Vec<_> = shown.lines().skip(1).map(str::trim).collect();
        assert_eq!(
            lines,
            [
                "7           global  physical  applied  1/4, 1 waived",
                "waits for b, host h2: absent, last contact 2 min ago",
                "waits for c, host h3: present",
            ]
        );
        let many: Vec<String> = (0..10).map(|n| format!(r#"{{"storage":"{n}","host":"h"}}"#)).collect();
        let line = format!(r#"{{"generation":7,"state":"pending","waits_for":[{}]}}"#, many.join(","));
        assert!(human(&line, 0).unwrap().ends_with("and for 2 more\n"));
    }
}
