//! Running programs.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::PersistError;

/// Runs a program that must succeed; returns what it printed.
pub(crate) fn run(command: &mut Command, hint: &'static str) -> Result<String, PersistError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| match error.kind() {
        ErrorKind::NotFound => PersistError::NoProgram {
            program: program.clone(),
            hint,
        },
        _ => PersistError::io(Path::new(&program))(error),
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(PersistError::Program {
        program,
        status: output.status,
        said: said
            .trim()
            .lines()
            .next_back()
            .unwrap_or_default()
            .to_owned(),
    })
}

/// A program beside this one, or on the `PATH`.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let beside = own.map(|own| own.with_file_name(name));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|directory| directory.join(name));
    beside
        .into_iter()
        .chain(on_path)
        .find(|path| path.is_file())
}

/// The program `mobifs`.
pub(crate) fn mobifs() -> Result<PathBuf, PersistError> {
    let given = std::env::var_os("MOBIFS_BIN").map(PathBuf::from);
    let found = given.or_else(|| find("mobifs"));
    found.ok_or_else(|| PersistError::NoProgram {
        program: "mobifs".to_owned(),
        hint: "install it beside this program or on the PATH",
    })
}
