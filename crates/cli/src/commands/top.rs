//! `mobifs top`, which is a program of its own: a device with a mount need not carry it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use mobifs_daemon::{Code, Failure};

/// Its file.
const PROGRAM: &str = "mobifs-top";

/// Becomes that program. Returns only if that fails.
pub(crate) fn run(words: &[OsString]) -> Result<(), Failure> {
    let beside = std::env::current_exe()
        .ok()
        .map(|own| own.with_file_name(PROGRAM))
        .filter(|path| path.is_file());
    let program = beside.unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(&program).arg0("mobifs top").args(words).exec();
    let message = if error.kind() == std::io::ErrorKind::NotFound {
        format!(
            "`mobifs top` is the program {PROGRAM}, which is neither beside mobifs nor in the search \
             path; `sudo make install` installs both, and `mobifs status --watch` needs nothing more"
        )
    } else {
        format!("{} cannot be run: {error}", program.display())
    };
    Err(Failure::new(Code::Failed, message))
}
