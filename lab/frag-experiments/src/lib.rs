//! The experiments of S4 with fragmented files, repeated on real filesystems over the served flash
//! device. `docs/AGEING.md` says what each does and what it is held against.
//!
//! Unlike `mobifs-experiments`, which is a pure function of a seed, everything here needs a kernel, root
//! and loop devices, and what the kernel's allocator does is part of the result.
#![forbid(unsafe_code)]

mod aged;
mod apps;
mod degrees;
mod disk;
mod error;
mod experiment;
mod outcome;
mod page;
mod pieces;
mod report;
mod settings;
mod together;
mod waits_of;

pub use disk::Filesystem;
pub use error::FragError;
pub use outcome::{Figure, Outcome};
pub use page::page;
pub use report::{Name, Report, SCHEMA, run, table_text, text};
pub use settings::{Extent, Settings};
pub use waits_of::{Round, WaitsOf, waits_of, waits_table};
