//! The program `mobifs-top`.

use std::process::ExitCode;

fn main() -> ExitCode {
    mobifs_top::main()
}
