//! Loading traces, and saying what was left out.

use std::path::{Path, PathBuf};

use globset::{Glob, GlobSet, GlobSetBuilder};
use mobifs_trace::{ImportReport, LoadError, LoadOptions, Selection, Trace, TraceNs, cut, load};

use super::arguments::{InputArguments, SelectionArguments};
use crate::failure::{Code, Failure};

/// Loads a trace; what was left out goes to standard error.
pub(super) fn trace(path: &Path, arguments: &InputArguments) -> Result<Trace, Failure> {
    let loaded = load(path, &options(arguments)?)?;
    report(&loaded.report);
    Ok(loaded.trace)
}

/// Loads a trace for a command that has no options of other tools' formats.
pub(crate) fn known_trace(path: &Path) -> Result<Trace, Failure> {
    let usage = |said: &str| Failure::new(Code::Usage, format!("{}: {said}", path.display()));
    // Opening a pipe would wait for one that writes to it.
    if std::fs::metadata(path).is_ok_and(|about| !about.is_file()) {
        return Err(usage("this is no file, and so no trace"));
    }
    let loaded = match load(path, &LoadOptions::default()) {
        Err(LoadError::Unrecognised { .. }) => {
            return Err(usage(
                "the content looks like no trace; if it is one, `mobifs trace import --from FORMAT` makes it known",
            ));
        }
        loaded => loaded?,
    };
    report(&loaded.report);
    Ok(loaded.trace)
}

/// What a trace is loaded with.
pub(crate) fn options(arguments: &InputArguments) -> Result<LoadOptions, Failure> {
    let action = u8::try_from(arguments.action)
        .unwrap_or(b'?')
        .to_ascii_uppercase();
    if !b"QGIDC".contains(&action) {
        let message = "--action takes one of the letters Q, G, I, D and C";
        return Err(Failure::new(Code::Usage, message));
    }
    let absolute = |path: &Option<PathBuf>| path.as_deref().map(absolute).transpose();
    Ok(LoadOptions {
        format: arguments.from,
        strict: arguments.strict,
        root: absolute(&arguments.root)?,
        directory: absolute(&arguments.directory)?,
        app_depth: arguments.app_depth,
        keep_pipes: arguments.keep_pipes,
        keep_repeats: arguments.keep_repeats,
        action,
        ..LoadOptions::default()
    })
}

/// An absolute path, as traces have them: without symbolic links where the path is there.
pub(super) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let found = path.canonicalize().or_else(|_| std::path::absolute(path));
    found.map_err(|error| Failure::new(Code::Usage, format!("{}: {error}", path.display())))
}

/// Says what was not taken over, or not exactly.
pub(crate) fn report(report: &ImportReport) {
    for quoted in &report.malformed_quoted {
        eprintln!("mobifs: skipped: {quoted}");
    }
    let rest = report.malformed - report.malformed_quoted.len() as u64;
    if rest > 0 {
        eprintln!("mobifs: skipped: {rest} more lines");
    }
    for (reason, count) in &report.left_out {
        eprintln!("mobifs: left out {count}: {reason}");
    }
    for (reason, count) in &report.inexact {
        eprintln!("mobifs: not exact {count}: {reason}");
    }
}

/// The part of a trace that is selected.
pub(super) fn selected(
    trace: &Trace,
    arguments: &SelectionArguments,
    moves_start: bool,
) -> Result<Trace, Failure> {
    let apps = globs(&arguments.app)?;
    let paths = globs(&arguments.path)?;
    Ok(cut(
        trace,
        &Selection {
            from: time(arguments.start)?,
            until: match arguments.end {
                Some(end) => time(end)?,
                None => TraceNs(u64::MAX),
            },
            app: &|app| matches(apps.as_ref(), app),
            path: &|path| matches(paths.as_ref(), path),
            moves_start,
        },
    ))
}

fn matches(globs: Option<&GlobSet>, name: &[u8]) -> bool {
    use std::os::unix::ffi::OsStrExt as _;
    globs.is_none_or(|globs| globs.is_match(std::ffi::OsStr::from_bytes(name)))
}

fn globs(patterns: &[String]) -> Result<Option<GlobSet>, Failure> {
    if patterns.is_empty() {
        return Ok(None);
    }
    let usage = |error: globset::Error| Failure::new(Code::Usage, error.to_string());
    let mut globs = GlobSetBuilder::new();
    for pattern in patterns {
        globs.add(Glob::new(pattern).map_err(usage)?);
    }
    globs.build().map(Some).map_err(usage)
}

/// Seconds of the command line as a time of a trace.
pub(super) fn time(seconds: f64) -> Result<TraceNs, Failure> {
    if !(0.0..1e9).contains(&seconds) {
        let message = format!("{seconds} is no time in a trace: it takes seconds from its start");
        return Err(Failure::new(Code::Usage, message));
    }
    Ok(TraceNs((seconds * 1e9).round() as u64))
}
