//! `fencefs retry`: failed removals are attempted again now, not at the end of their pauses.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::control_client::{ControlClient, Reply};
use super::patience::ANSWER_WAIT;
use super::{print, remove_all};
use crate::error::Result;

/// Attempt failed removals again at once, when what kept them from it is out of the way
#[derive(Debug, Args)]
#[command(
    after_help = "A failed removal is tried again by itself, after 0.1 s and up to 30 s. fencefs requests shows how \
                        it ends."
)]
pub(super) struct RetryArgs {
    /// Where the filesystem is mounted
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
    /// This request alone, by its number [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    generation: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Ends the pauses.
pub(super) fn run(args: &RetryArgs) -> Result<ExitCode> {
    let line = args.generation.map_or("retry".to_owned(), |n| format!("retry generation={n}"));
    let reply = ControlClient::open(&args.mountpoint, ANSWER_WAIT)?.ask(&line, ANSWER_WAIT)?;
    if args.json {
        print(reply.json_line())?;
    }
    reply.check("cannot retry")?;
    if !args.json {
        print(told(&reply, args))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn told(reply: &Reply, args: &RetryArgs) -> String {
    match args.generation {
        Some(_) => format!("{}\n", remove_all::human(reply)),
        None => format!(
            "every failed removal is attempted again now (fencefs requests {} shows how they end)\n",
            args.mountpoint.display()
        ),
    }
}
