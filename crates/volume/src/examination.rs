//! Looking at a store that is not open, and salvaging one.
//!
//! The store's code is generic over the filesystem below it. What is called here is compiled with this crate, as is all
//! that opens stores, and through the same type: so a program has it once.

use std::path::Path;

use mobifs_store::salvage::{self, Salvaged, Survey};
use mobifs_store::{
    ExaminedLower, Inspection, JournalOptions, PosixLower, StoreError, StoreScope, examined,
};

fn lower(path: &Path, scope: StoreScope) -> Result<ExaminedLower, StoreError> {
    Ok(examined(PosixLower::open_scoped(path, scope)?))
}

/// Looks at the store at `path`, and changes nothing.
///
/// # Errors
/// As [`mobifs_store::inspect`].
pub fn inspect(path: &Path, scope: StoreScope) -> Result<Inspection, StoreError> {
    mobifs_store::inspect(&lower(path, scope)?)
}

/// What a salvage of the store at `path` would find; changes nothing.
///
/// # Errors
/// As [`salvage::survey`].
pub fn survey(path: &Path, because: Option<&StoreError>) -> Result<Survey, StoreError> {
    salvage::survey(&lower(path, StoreScope::Tree)?, because)
}

/// Brings the damaged store at `path` to its recovery point.
///
/// # Errors
/// As [`salvage::salvage`].
pub fn salvage(
    path: &Path,
    options: &JournalOptions,
    because: Option<&StoreError>,
) -> Result<Salvaged, StoreError> {
    salvage::salvage(&lower(path, StoreScope::Tree)?, options, because)
}
