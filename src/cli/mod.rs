//! Commands for people.

use std::process::ExitCode;

/// Parses the command line and runs it.
pub fn main() -> ExitCode {
    ExitCode::from(2)
}
