//! Why a trace cannot be stored or read.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a trace cannot be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The file is there, and may be what the trace is made of.
    #[error("{path} is there, and is not replaced: name another file", path = path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A file cannot be made.
    #[error("{}: {source}", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("the trace cannot be written: {0}")]
    Parquet(String),
}

/// Why a file cannot be read as a trace.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be opened.
    #[error("{0}")]
    Open(#[from] io::Error),
    /// The bytes are no whole Parquet file: another format, cut short, or damaged.
    #[error("the file is not a whole Parquet file: {0}")]
    Damaged(String),
    /// A Parquet file of something else.
    #[error("the file is not a trace: its metadata has no 'mobifs.trace.version'")]
    NotATrace,
    /// A trace of another version of this program.
    #[error("the trace has version '{0}', and this program reads version 1")]
    Version(String),
    /// The columns are not those of the schema.
    #[error("column {position} of the trace is '{found}' where '{expected}' should be")]
    Column {
        /// Which one, from 1.
        position: usize,
        /// What is there.
        found: String,
        /// What should be.
        expected: String,
    },
    /// A row is no event.
    #[error("row {row} of the trace is no event: {reason}")]
    Row {
        /// Which one, from 1.
        row: u64,
        /// What is wrong.
        reason: RowError,
    },
}

/// Why a row is no event.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RowError {
    /// An operation that the version does not have.
    #[error("there is no operation '{0}'")]
    Operation(String),
    /// A column that the operation needs.
    #[error("'{operation}' needs the column '{column}'")]
    Missing {
        /// What the row is.
        operation: String,
        /// What is null.
        column: &'static str,
    },
    /// A detail that the operation does not have.
    #[error("'{operation}' has no detail '{detail}'")]
    Detail {
        /// What the row is.
        operation: String,
        /// What is there.
        detail: String,
    },
    /// Events are not in the order of time.
    #[error("it is earlier than the row before")]
    Order,
}
