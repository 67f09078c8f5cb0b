//! Checkpoint stores of MobiFS.
//!
//! A [`Store`] keeps the *committed* state: what would be found after a crash. The
//! engine keeps everything newer in memory and hands over whole transactions with
//! the four calls of the MobiFS paper (S0 §4.5): begin transaction, append entry,
//! end transaction, wait sync.
//!
//! * [`MemoryStore`]: no persistence; for tests and for measuring the engine.
//! * [`JournalStore`]: any POSIX filesystem, reached through the [`lower::Lower`]
//!   trait so that a test can put a simulated, crashing one below it.
#![deny(unsafe_code)]

mod error;
mod journal;
pub mod lower;
mod memory;
mod store;
mod trust;
mod witness;

/// For the fuzz targets; no part of the interface.
#[doc(hidden)]
pub use journal::fuzzing;

pub use error::StoreError;
pub use journal::{
    Inspection, JournalInfo, JournalOptions, JournalStore, RecoveryReport, Resumed, inspect,
};
pub use lower::{PosixLower, StoreScope};
pub use memory::{MEMORY_CAPABILITIES, MemoryObject, MemoryStore};
pub use store::{Capabilities, PendingWork, Seek, Store, Ticket, Transaction};
pub use trust::check_owner;
pub use witness::{Intent, KnownLocation, KnownObject, Saved, Witness};
