//! The laboratory (`mobifs-lab`), a program of its own: a user of a mount needs nothing of it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use mobifs_daemon::laboratory::{PROGRAM, installed};
use mobifs_daemon::{Code, Failure};

/// Becomes the laboratory's program. Returns only if that fails.
pub(crate) fn run(command: Option<&str>, words: &[OsString]) -> Result<(), Failure> {
    let Some(program) = installed() else {
        return Err(Failure::new(
            Code::Failed,
            format!(
                "`mobifs {}` belongs to the laboratory, whose program {PROGRAM} is neither beside \
                 mobifs nor in the search path; `make install-lab` or the package \
                 mobifs-lab installs it",
                command.unwrap_or("lab")
            ),
        ));
    };
    // Its help calls it what the user has typed.
    let name = match command {
        Some(_) => "mobifs",
        None => "mobifs lab",
    };
    let mut laboratory = Command::new(&program);
    let error = laboratory.arg0(name).args(command).args(words).exec();
    Err(Failure::new(
        Code::Failed,
        format!("{} cannot be run: {error}", program.display()),
    ))
}
