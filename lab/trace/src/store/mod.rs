//! Traces as Parquet files.

mod column;
mod error;
mod page_headers;
mod pages;
mod read;
mod row;
mod write;

#[cfg(test)]
mod tests;

pub use error::{ReadError, RowError, WriteError};
pub use read::{catches_panics, read, read_file};
pub use row::Row;
pub(crate) use write::GROUP_EVENTS;
pub use write::{TraceWriter, create_file, write, write_file, write_into};

/// The version of the schema that is written, and the only one that is read.
pub const FORMAT_VERSION: &str = "1";

/// The bytes that a Parquet file begins and ends with.
pub const PARQUET_MAGIC: [u8; 4] = *b"PAR1";

/// Keys of the file's metadata.
mod key {
    /// The schema's version; a file without it is no trace.
    pub(super) const VERSION: &str = "mobifs.trace.version";
    /// What observed the events.
    pub(super) const SOURCE: &str = "mobifs.trace.source";
    /// The program that wrote the file.
    pub(super) const TOOL: &str = "mobifs.trace.tool";
    /// One note; the key may be there any number of times.
    pub(super) const NOTE: &str = "mobifs.trace.note";
}
