//! The `fencefs` command: parse, run, exit status.

use std::process::ExitCode;

fn main() -> ExitCode {
    fencefs::cli::main()
}
