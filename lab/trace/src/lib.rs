//! What programs did to files, as data.
//!
//! A [`Trace`] is one stream of typed events in the order of time: operations on files, commands
//! to block devices, what the user and the device did. It is stored as Parquet ([`read`],
//! [`write`], [`TraceWriter`]; docs/TRACES.md has the schema). [`load`] takes the files of other
//! tools, too, [`statistics`] counts, and [`replay`] does again what a trace says.
#![forbid(unsafe_code)]

pub mod block;
mod edit;
mod import;
mod lines;
mod model;
pub mod recording;
mod replay;
mod statistics;
mod store;

pub use edit::{Part, Selection, cut, merge};
pub use import::{Format, ImportReport, LoadError, LoadOptions, Loaded, import, load};
pub use model::{
    AllocateMode, AppIndex, Attribute, BlockCommand, DeviceState, Event, EventKind, Header,
    NameIndex, Names, OpenFlags, PathIndex, Trace, TraceBuilder, TraceNs, UserOperation,
};
pub use replay::{
    Difference, Latency, ReplayError, ReplayOptions, ReplayReport, ReplaySpeed, replay,
};
pub use statistics::{Counts, Statistics, statistics};
pub use store::{
    FORMAT_VERSION, PARQUET_MAGIC, ReadError, Row, RowError, TraceWriter, WriteError,
    catches_panics, create_file, read, read_file, write, write_file, write_into,
};
