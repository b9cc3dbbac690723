//! `fencefs bump`: an operator's word that the ledger of a fleet counts as it is, though it went backwards.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::coordinator::{self, WordsParser};
use super::print;
use crate::config::{Coordinator, CoordinatorWords};
use crate::control::removals::bump_at;
use crate::error::{Error, Kind, Result};

/// Have the ledger of a fleet count as it is, after it was restored from an older backup
#[derive(Debug, Args)]
pub(super) struct BumpArgs {
    /// The ledger: etcd://HOST:PORT[,HOST:PORT...]/PREFIX
    #[arg(long, value_parser = WordsParser, value_name = "WHO", required_unless_present = "coordinator_file")]
    coordinator: Option<CoordinatorWords>,
    /// File with lines coordinator=, ca=, cert=, key=, user= and password=, as for mount
    #[arg(long, value_name = "FILE")]
    coordinator_file: Option<PathBuf>,
}

/// Bumps.
pub(super) fn run(args: &BumpArgs) -> Result<ExitCode> {
    let words = args.coordinator.clone().unwrap_or_default();
    let Coordinator::Etcd(settings) = coordinator::read(words, args.coordinator_file.as_deref())? else {
        return Err(Error::new(
            Kind::Invalid,
            "only the ledger of a fleet can go backwards: name one in etcd",
        ));
    };
    let (from, to) = bump_at(&settings)?;
    print(format!(
        "the ledger counts as it is, up to generation {from}; it goes on after {to}\nstart the daemons again that refused \
         it, and ask again for the removals that it has lost\n"
    ))?;
    Ok(ExitCode::SUCCESS)
}
