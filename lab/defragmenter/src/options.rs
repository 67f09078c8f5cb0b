//! How to defragment.

use mobifs_fragmentation::Model;

use crate::hot::Hot;

/// How content moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Not at all: only planned.
    DryRun,
    /// It is copied.
    Copy,
    /// The device below gets the pairs, and changes its mapping instead of copying.
    Remap,
}

impl Mode {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::DryRun => "dry-run",
            Self::Copy => "copy",
            Self::Remap => "remap",
        }
    }
}

/// How to defragment.
#[derive(Clone, Debug)]
pub struct Options {
    /// How content moves.
    pub mode: Mode,
    /// All fragmented files and all their pieces, not only what is worth it.
    pub takes_all: bool,
    /// Shared extents are moved, and then not shared any more.
    pub unshares: bool,
    /// What pieces cost.
    pub model: Model,
    /// Only what is read.
    pub hot: Option<Hot>,
    /// Moved bytes in a second at most.
    pub rate_bytes: Option<u64>,
    /// Ends before more bytes are written to flash; when remapping, about then.
    pub flash_writes_max_bytes: Option<u64>,
    /// Free room that is left to others meanwhile; none: a quarter of it.
    pub leave_bytes: Option<u64>,
    /// A free run of this length is made as well.
    pub free_run_bytes: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mode: Mode::DryRun,
            takes_all: false,
            unshares: false,
            model: Model::default(),
            hot: None,
            rate_bytes: None,
            flash_writes_max_bytes: None,
            leave_bytes: None,
            free_run_bytes: None,
        }
    }
}
