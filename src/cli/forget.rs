//! `fencefs forget`: an operator's word that a storage identity never comes back.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use uuid::Uuid;

use super::control_client::ControlClient;
use super::patience::{ANSWER_WAIT, within};
use super::print;
use crate::control::removals::forget_at;
use crate::error::Result;
use crate::format::layout;

/// Retire a storage identity for good: no removal waits for it any more
#[derive(Debug, Args)]
pub(super) struct ForgetArgs {
    /// A mount, or a store that is not mounted
    #[arg(value_name = "STORE-OR-MOUNTPOINT")]
    place: PathBuf,
    /// The identity, as `fencefs requests` shows it
    #[arg(long, value_name = "ID")]
    storage: Uuid,
}

/// Forgets, through the daemon where one serves the store.
pub(super) fn run(args: &ForgetArgs) -> Result<ExitCode> {
    let superblock = args.place.join(layout::SUPERBLOCK);
    if within(ANSWER_WAIT, &args.place, move || Ok(superblock.is_file()))? {
        forget_at(&args.place, args.storage)?;
    } else {
        let line = format!("forget storage={}", args.storage);
        let reply = ControlClient::open(&args.place, ANSWER_WAIT)?.ask(&line, ANSWER_WAIT)?;
        reply.check("cannot forget")?;
    }
    print(format!("storage {} is forgotten\n", args.storage))?;
    Ok(ExitCode::SUCCESS)
}
