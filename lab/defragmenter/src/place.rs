//! Where a run works.

use std::path::PathBuf;

/// Where the paths lie.
pub(crate) struct Place {
    pub(crate) filesystem: String,
    pub(crate) mountpoint: PathBuf,
    /// A directory on it.
    pub(crate) directory: PathBuf,
    pub(crate) block_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) is_read_only: bool,
}
