//! The `fencefs` command: parse, run, exit status.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Tests name the steps to fail at in the environment of the process.
    #[cfg(feature = "failpoints")]
    let _scenario = fail::FailScenario::setup();
    fencefs::cli::main()
}
