//! Block traces as the recordings of phones have them: what a request is, and how a file of
//! them is read line by line. The other traces of block devices arrive as events only.

mod line;
mod reader;
mod repeat;

pub(crate) use line::is_header;
pub use line::{LINE_BYTES_MAX, LineError, parse_line};
pub use reader::{TraceError, TraceReader};
pub use repeat::RepeatFilter;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Data from the device.
    Read,
    /// Data to the device.
    Write {
        /// The cache is to be flushed before (`REQ_PREFLUSH`).
        flush_before: bool,
        /// The data is to be durable at the end (`REQ_FUA`).
        durable: bool,
    },
    /// The content of the range is no longer needed.
    Discard,
    /// The cache is to be flushed; the request has no range.
    Flush,
}

/// One line of a block trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRequest {
    /// The recorder's clock, in nanoseconds.
    pub at_ns: u64,
    /// Name and id of the process that issued it, as the recorder wrote them.
    pub process: Vec<u8>,
    /// The recorder's number of the device.
    pub device: u64,
    /// What is asked for.
    pub access: Access,
    /// First sector, of 512 bytes.
    pub start: u64,
    /// Number of sectors; 0 for a flush only.
    pub sectors: u32,
}
