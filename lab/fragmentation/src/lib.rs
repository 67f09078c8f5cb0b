//! How fragmented files are: of mounted filesystems by what the kernel reports of extents, of images
//! of ext4 by the tools of e2fsprogs. `docs/FRAGMENTATION-REFERENCE.md` defines what is counted.
#![deny(unsafe_code)]

mod benefit;
mod bins;
mod charts;
mod collector;
mod csv;
mod distribution;
mod error;
mod extent;
mod facts;
mod fiemap;
mod filesystem;
mod free;
mod fsmap;
mod image;
mod kind;
mod layout;
mod measure;
mod mounted;
mod names;
mod page;
mod report;
mod shape;
mod table;
mod targets;
mod tree;

pub use benefit::{Benefit, Model};
pub use collector::MeasuredFile;
pub use error::MeasureError;
pub use extent::Extent;
pub use fiemap::extents_of;
pub use filesystem::{extent_bytes_max, is_network};
pub use free::{FreeSize, FreeSpace};
pub use fsmap::free_extents_of;
#[doc(hidden)]
pub use image::fuzzing;
pub use kind::{Kind, is_rollback_journal};
pub use measure::{Options, Outcome, measure, measure_each};
pub use names::{counted, number, shown, size};
pub use page::{OUTPUT_BEGINNINGS_MAX, is_output, layouts, page};
pub use report::{Report, SCHEMA};
pub use shape::{FS_LEVELS, FileShape, Pieces, Run, level};
pub use table::table;
pub use targets::open_image;
