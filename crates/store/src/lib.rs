//! Checkpoint stores of MobiFS.
//!
//! A [`Store`] keeps the *committed* state: what would be found after a crash. The
//! engine keeps everything newer in memory and hands over whole transactions
//! ([`Store::commit`]), which are durable when the call returns. (The MobiFS paper, S0 §4.5, has four
//! calls for that, as if a transaction were handed over piece by piece.)
//!
//! * [`MemoryStore`]: no persistence; for tests and for measuring the engine.
//! * [`JournalStore`]: any POSIX filesystem, reached through the [`lower::Lower`]
//!   trait so that a test can put a simulated, crashing one in its place.
#![deny(unsafe_code)]

mod apply;
mod calibration;
mod commit;
mod error;
#[cfg(test)]
mod fixtures;
/// For the fuzz targets; no part of the interface.
#[doc(hidden)]
pub mod fuzzing;
mod journal_store;
mod locks;
mod log;
pub mod log_reader;
pub mod lower;
mod memory;
mod options;
mod overlay;
mod own_file;
pub mod placement;
mod recovery;
mod restart_state;
pub mod salvage;
mod store;
mod trust;
mod unlinked;

pub use apply::preallocation::list::NAME as PREALLOCATED_FILE;
pub use apply::spare::NAMES as SPARE_FILES;
pub use calibration::file::NAME as CALIBRATION_FILE;
pub use calibration::shared::{MeasuredDevices, Measuring};
pub use calibration::{Calibration, WriteTimes};
pub use error::StoreError;
pub use journal_store::{JournalInfo, JournalStore};
pub use lower::{
    Capabilities, ExaminedLower, Gate, PosixLower, StoreScope, examined, is_in_memory,
    is_of_the_kernel,
};
pub use memory::{MEMORY_CAPABILITIES, MemoryObject, MemoryStore};
pub use mobifs_base::Transaction;
pub use options::{JournalOptions, Preallocation};
pub use recovery::inspect::{Inspection, inspect};
pub use recovery::report::{RecoveryReport, Resumed};
pub use restart_state::{Intent, KnownLocation, KnownObject, RestartSink, RestartState};
pub use store::{JournalWrites, PendingWork, Seek, Store};
pub use trust::check_owner;
