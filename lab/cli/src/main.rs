//! The `mobifs-lab` command; the library beside this file is all of it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    mobifs_lab_cli::main()
}
