//! The laboratory (`mobifs-lab`), a program of its own: a user of a mount needs nothing of it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Becomes the laboratory's program. Returns only if that fails.
use mobifs_daemon::laboratory::{PROGRAM, installed};
use mobifs_daemon::{Code, Failure};

pub(crate) fn run(command: Option<&str>, words: &[OsString]) -> Result<(), Failure> {
    let Some(program) = installed() else {
        return Err(Failure::new(
            Code::Failed,
            format!(
                "`mobifs {}` belongs to the laboratory, whose program {PROGRAM} is neither beside \
                 mobifs nor in the search path; `make install-lab` installs it",
                command.unwrap_or("lab")
            ),
        ));
    };
    let error = Command::new(&program).args(command).args(words).exec();
    Err(Failure::new(
        Code::Failed,
        format!("{} cannot be run: {error}", program.display()),
    ))
}
