//! The laboratory (`mobifs-lab`), a program of its own: a user of a mount needs nothing of it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Name of its program.
pub const PROGRAM: &str = "mobifs-lab";

/// The laboratory's program: the one beside this program, else the first of the search path.
pub fn installed() -> Option<PathBuf> {
    let beside = std::env::current_exe()
        .ok()
        .map(|own| own.with_file_name(PROGRAM));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).filter(|directory| directory.is_absolute());
    let on_path = directories.map(|directory| directory.join(PROGRAM));
    beside
        .into_iter()
        .chain(on_path)
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Has a trace made of the log of a recording, and waits for it.
pub(crate) fn finish_trace(program: &Path, trace: &Path) -> Result<(), String> {
    let output = Command::new(program)
        .args(["trace", "finish"])
        .arg(trace)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{} cannot be run: {error}", program.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}, {}", said.trim(), output.status))
}
