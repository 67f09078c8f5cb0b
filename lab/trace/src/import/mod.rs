//! Traces of other tools.

mod blkparse;
mod mobigen;
mod options;
mod pixel;
mod report;
mod strace;
mod text;

use std::io::{self, BufRead};
use std::path::{Path, PathBuf};

use thiserror::Error;

pub use options::{Format, LoadOptions};
pub use report::ImportReport;

use crate::lines::{self, Lines};
use crate::model::Trace;
use crate::recording::{ConvertError, read_log, read_log_bytes};
use crate::store::{PARQUET_MAGIC, ReadError, read_file};
use text::TextImport;

/// A trace, and what became of the file's lines.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The trace.
    pub trace: Trace,
    /// What was left out; empty for Parquet.
    pub report: ImportReport,
}

/// Why a file cannot be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system or the decompressor said.
        source: io::Error,
    },
    /// The content is in no format that is known.
    #[error(
        "{}: the content looks like no trace; --from says what it is, if it is one",
        path.display()
    )]
    Unrecognised {
        /// The file.
        path: PathBuf,
    },
    /// The file looks like a Parquet file, but is no trace.
    #[error("{}: {source}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ReadError,
    },
    /// The file is no recording of a mount.
    #[error("{}: {source}", path.display())]
    Recording {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ConvertError,
    },
    /// A line cannot be understood, and none may be skipped.
    #[error("{}: line {line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// No line could be understood.
    #[error(
        "{}: none of its {lines} lines is an event; the first is wrong because: {reason}",
        path.display()
    )]
    NoEvent {
        /// The file.
        path: PathBuf,
        /// How many lines there are.
        lines: u64,
        /// What is wrong with the first that was refused.
        reason: String,
    },
}

/// Loads a trace from a file of any format.
///
/// # Errors
/// The file cannot be read, or is no trace.
pub fn load(path: &Path, options: &LoadOptions) -> Result<Loaded, LoadError> {
    let io = |source| LoadError::Io {
        path: path.to_owned(),
        source,
    };
    let mut input = lines::open_text(path).map_err(io)?;
    let format = match options.format {
        Some(format) => Some(format),
        None => recognise(&mut input).map_err(io)?,
    };
    match format {
        None => Err(LoadError::Unrecognised {
            path: path.to_owned(),
        }),
        Some(Format::Parquet) => Ok(Loaded {
            trace: read_file(path).map_err(|source| LoadError::Parquet {
                path: path.to_owned(),
                source,
            })?,
            report: ImportReport::default(),
        }),
        Some(Format::Recording) => recorded(path, read_log(path)),
        Some(format) => import(format, path, input, options),
    }
}

fn recorded(
    path: &Path,
    read: Result<(Trace, ImportReport), ConvertError>,
) -> Result<Loaded, LoadError> {
    let failed = |source| LoadError::Recording {
        path: path.to_owned(),
        source,
    };
    let (trace, report) = read.map_err(failed)?;
    Ok(Loaded { trace, report })
}

/// Imports from anything; `path` is what errors call it. Parquet is refused.
///
/// # Errors
/// As [`load`].
pub fn import(
    format: Format,
    path: &Path,
    mut input: Box<dyn BufRead>,
    options: &LoadOptions,
) -> Result<Loaded, LoadError> {
    match format {
        Format::Parquet => Err(LoadError::Unrecognised {
            path: path.to_owned(),
        }),
        Format::MobiGen => run::<mobigen::Import>(path, input, options),
        Format::Strace => run::<strace::Import>(path, input, options),
        Format::Pixel => run::<pixel::Import>(path, input, options),
        Format::Blkparse => run::<blkparse::Import>(path, input, options),
        Format::Recording => {
            let mut log = Vec::new();
            let read = input.read_to_end(&mut log);
            read.map_err(|source| LoadError::Io {
                path: path.to_owned(),
                source,
            })?;
            recorded(path, read_log_bytes(&log))
        }
    }
}

/// Lines that are shown to the formats before the content is called unknown.
const LINES_LOOKED_AT: usize = 100;

/// The format of some content, by its beginning. Nothing is consumed.
fn recognise(input: &mut dyn BufRead) -> io::Result<Option<Format>> {
    let beginning = input.fill_buf()?;
    if beginning.starts_with(&PARQUET_MAGIC) {
        return Ok(Some(Format::Parquet));
    }
    if beginning.starts_with(&mobifs_recording::MAGIC) {
        return Ok(Some(Format::Recording));
    }
    let lines = beginning.split(|&byte| byte == b'\n');
    for line in lines.take(LINES_LOOKED_AT) {
        let line = line.trim_ascii();
        if pixel::recognises(line) {
            return Ok(Some(Format::Pixel));
        }
        if mobigen::recognises(line) {
            return Ok(Some(Format::MobiGen));
        }
        if strace::recognises(line) {
            return Ok(Some(Format::Strace));
        }
        if blkparse::recognises(line) {
            return Ok(Some(Format::Blkparse));
        }
    }
    Ok(None)
}

fn run<I: TextImport>(
    path: &Path,
    input: Box<dyn BufRead>,
    options: &LoadOptions,
) -> Result<Loaded, LoadError> {
    let mut lines = Lines::new(path.to_owned(), input, I::LINE_BYTES_MAX);
    let mut report = ImportReport::default();
    let mut import = I::new(path, options);
    loop {
        let number = lines.number() + 1;
        let line = lines.next().map_err(|source| LoadError::Io {
            path: path.to_owned(),
            source,
        })?;
        let Some(line) = line else { break };
        report.lines = number;
        if let Err(reason) = import.line(number, line, &mut report) {
            if options.strict {
                return Err(LoadError::Line {
                    path: path.to_owned(),
                    line: number,
                    reason,
                });
            }
            report.note_malformed(path, number, &reason);
        }
    }
    let mut trace = import.finish(&mut report);
    if trace.events.is_empty()
        && let Some(reason) = report.malformed_quoted.first()
    {
        return Err(LoadError::NoEvent {
            path: path.to_owned(),
            lines: report.lines,
            reason: reason.clone(),
        });
    }
    trace.header.notes.extend(report.notes());
    Ok(Loaded { trace, report })
}
