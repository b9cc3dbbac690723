//! `fencefs requests`: every removal request that is kept, with what has become of it.

use std::path::PathBuf;
use std::process::ExitCode;

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
    print(if args.json { text } else { human(&text)? })?;
    Ok(ExitCode::SUCCESS)
}

fn human(text: &str) -> Result<String> {
    let mut rows = vec![["GENERATION", "SCOPE", "MODE", "STATE", "ACKED", "LAST ERROR"].map(str::to_owned)];
    for line in text.lines() {
        let request: Value = serde_json::from_str(line)
            .map_err(|e| Error::new(Kind::Corrupt, format!("a request of this mount is no JSON: {e}")))?;
        let word = |name: &str| request[name].as_str().unwrap_or_default().to_owned();
        let count = |name: &str| request[name].as_array().map_or(0, Vec::len);
        let scope = request["tenant"].as_str().map_or("global".to_owned(), |t| format!("tenant {t}"));
        rows.push([
            request["generation"].to_string(),
            scope,
            word("mode"),
            word("state"),
            format!("{}/{}", count("acked"), count("targets")),
            word("last_error"),
        ]);
    }
    if rows.len() == 1 {
        return Ok("no removal was asked for\n".to_owned());
    }
    let widths: [usize; 6] = std::array::from_fn(|n| rows.iter().map(|row| row[n].len()).max().unwrap_or(0));
    let line = |row: &[String; 6]| {
        let cells: Vec<String> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    Ok(rows.iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_a_request() {
        let line = r#"{"generation":7,"scope":"tenant","tenant":"a","mode":"physical","state":"failed","targets":["x"],"acked":[],"last_error":"cannot remove"}"#;
        let shown = human(&format!("{line}\n")).unwrap();
        assert_eq!(shown.lines().count(), 2);
        assert!(shown.ends_with("7           tenant a  physical  failed  0/1    cannot remove\n"), "{shown}");
        assert_eq!(human("").unwrap(), "no removal was asked for\n");
    }
}
