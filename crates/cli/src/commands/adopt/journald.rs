//! The system's journal, which has its files open all the time where it is kept on the disk. It can be
//! asked to write to memory meanwhile.

use std::path::Path;
use std::process::{Command, Stdio};

/// Where it is kept.
const JOURNAL: &str = "/var/log/journal";

/// Whether the journal is kept in this directory.
pub(super) fn lies_in(directory: &Path) -> bool {
    Path::new(JOURNAL).starts_with(directory)
}

/// Asks journald to close its files in this directory, if it has any.
pub(super) fn step_aside(directory: &Path) {
    if writes_to(directory) {
        ask("--relinquish-var");
    }
}

/// Asks it to write there again, with what it has written to memory.
pub(super) fn come_back(directory: &Path) {
    if writes_to(directory) {
        ask("--flush");
    }
}

fn writes_to(directory: &Path) -> bool {
    let runs = Path::new("/run/systemd/journal/socket").exists();
    runs && lies_in(directory) && Path::new(JOURNAL).is_dir()
}

/// Where it does not do so, its open files are found as those of any other process.
fn ask(what: &str) {
    let mut command = Command::new("journalctl");
    command.arg(what).stdin(Stdio::null()).stdout(Stdio::null());
    if let Err(error) = command.stderr(Stdio::null()).status() {
        tracing::debug!(%error, "cannot start journalctl");
    }
}
