//! A program on a served device, and what its commits were.

mod own_journal;
pub(crate) mod stream;
mod syncs;
mod times;
mod view;

use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use crate::disk::{Disk, DiskOptions};
use crate::error::PersistError;
use crate::figures::{CallFigures, Characterisation, SCHEMA, WINDOW_SECONDS};
use crate::mobifs_mount::MobifsMount;
use stream::Window;

/// What the program works through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// The ext4 itself.
    Ext4,
    /// A mount of MobiFS on it, durable.
    Mobifs,
}

/// What is to be run, and where.
#[derive(Clone, Debug)]
pub struct LiveOptions {
    /// The disk.
    pub disk: DiskOptions,
    /// What the program works through.
    pub through: Through,
    /// The program `mobifs`; none: beside this program, or on the PATH.
    pub mobifs: Option<PathBuf>,
    /// The program and its arguments; it runs in an empty directory of the filesystem.
    pub command: Vec<OsString>,
}

/// Runs the program and characterises what it made durable.
///
/// # Errors
/// Something could not be made or mounted, or the program failed.
pub fn characterise(options: &LiveOptions) -> Result<Characterisation, PersistError> {
    let disk = Disk::new(&options.disk)?;
    let directory = disk.beside("mobifs")?;
    let mut mount = match options.through {
        Through::Ext4 => None,
        Through::Mobifs => {
            let program = options
                .mobifs
                .clone()
                .map_or_else(crate::tool::mobifs, Ok)?;
            Some(MobifsMount::new(
                &program,
                &disk.root().join("store"),
                &directory,
                "",
            )?)
        }
    };
    let root = mount
        .as_ref()
        .map_or_else(|| disk.root(), |mount| mount.path().to_owned());
    let place = tempfile::Builder::new().prefix("run-").tempdir_in(&root);
    let place = place.map_err(PersistError::io(&root))?.keep();
    disk.sync()?;
    let begin = disk.now();
    let started = Instant::now();
    let syncs = run_command(options, &place, &disk)?;
    let seconds = started.elapsed().as_secs_f64();
    let end = disk.now();
    if let Some(mount) = &mut mount {
        mount.unmount()?;
    }
    drop(mount);
    let Some(finished) = disk.finish()? else {
        return Err(PersistError::Unexpected("no log of commands".to_owned()));
    };
    let windows = [Window { begin, end }];
    let mut found = stream::read(&finished.commands, finished.base.as_ref(), &windows, None)?;
    let found = found
        .pop()
        .ok_or_else(|| PersistError::Unexpected("no window".to_owned()))?;
    let words: Vec<_> = options
        .command
        .iter()
        .map(|word| word.to_string_lossy())
        .collect();
    Ok(Characterisation {
        schema: SCHEMA,
        source: words.join(" "),
        ext4: found.ext4,
        mobifs: found.mobifs,
        calls: Some(CallFigures {
            syncs,
            syncs_in_5_seconds: syncs.map(|syncs| syncs as f64 * WINDOW_SECONDS / seconds),
            seconds,
        }),
        device: Some(found.device),
    })
}

/// Runs it under `strace`, where there is one, which stops it at calls for durability only.
fn run_command(
    options: &LiveOptions,
    place: &std::path::Path,
    disk: &Disk,
) -> Result<Option<u64>, PersistError> {
    let Some((program, arguments)) = options.command.split_first() else {
        return Err(PersistError::Unexpected("no command".to_owned()));
    };
    let output = disk.beside("strace")?.join("calls");
    let mut command = match crate::tool::find("strace") {
        Some(strace) => {
            let mut traced = Command::new(strace);
            traced
                .args(syncs::STRACE)
                .arg("-o")
                .arg(&output)
                .arg("--")
                .arg(program);
            traced
        }
        None => Command::new(program),
    };
    let shown = program.to_string_lossy().into_owned();
    // The standard output is for the report.
    let errors = std::io::stderr().as_fd().try_clone_to_owned();
    let errors = errors.map_err(PersistError::io(std::path::Path::new("standard error")))?;
    let status = command
        .stdout(errors)
        .args(arguments)
        .current_dir(place)
        .status();
    let status = status.map_err(PersistError::io(std::path::Path::new(program)))?;
    if !status.success() {
        return Err(PersistError::Program {
            program: shown,
            status,
            said: "its output is above".to_owned(),
        });
    }
    Ok(std::fs::read_to_string(&output)
        .ok()
        .map(|text| syncs::count(&text)))
}
