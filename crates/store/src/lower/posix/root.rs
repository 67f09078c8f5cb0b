//! What is open of the lower filesystem as long as the store is.

use std::fs::File;
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use rustix::fs::IFlags;

use super::scope::StoreScope;
use super::xfs::Removals;

/// A directory tree of a mounted filesystem.
///
/// *Permissions.* A daemon with privileges is never refused. A daemon without may meet objects of
/// its own whose mode refuses their owner (a file with mode 0400 that must be written, a directory
/// with mode 0 whose entry must be removed): it then raises the owner's bits for the length of one
/// system call. A process killed inside that window leaves the raised mode until the object's
/// attributes are next applied; within the process it is not seen, because
/// [`Lower::stat`](crate::lower::Lower::stat) waits for the window to close.
#[derive(Debug)]
pub struct PosixLower {
    pub(super) root: Arc<File>,
    pub(super) scope: StoreScope,
    /// The file of a store of one file, if others have it open anyway.
    pub(super) file: Option<Arc<File>>,
    /// What keeps the root's directory apart from others.
    pub(super) apart: IFlags,
    /// Held for writing while some object's mode is raised, for reading by `stat`.
    pub(super) modes: RwLock<()>,
    /// What XFS may have to free.
    pub(super) removals: Removals,
    /// Whether the filesystem moves content; asked once.
    pub(super) moves_content: OnceLock<bool>,
}
