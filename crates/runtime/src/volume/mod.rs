//! A live engine over a store: what the kernel adapter and the tests call.

mod types;

use std::sync::Arc;

use mobifs_core::{
    AllocateMode, AttributeChange, Caller, FsError, Node, NodeSpec, ReadDirEntry, RenameMode,
    Whence, WriteAt, XattrMode,
};
use mobifs_types::{ObjectId, SpaceInfo};

pub use types::VolumeError;

/// A live engine over a store. All methods block and may be called from any thread.
///
/// Calls that return a [`Node`] of `lookup`, `lookup_parent`, `create`,
/// `create_unnamed` and `link` count one reference each; [`Volume::forget`] gives
/// references back.
#[derive(Debug)]
pub struct Volume {}

#[expect(unused_variables, clippy::missing_errors_doc, reason = "first push: signatures")]
#[expect(missing_docs, reason = "first push: signatures")]
impl Volume {
    pub fn lookup(&self, parent: ObjectId, name: &[u8]) -> Result<Node, FsError> { Err(FsError::NotSupported) }
    pub fn lookup_parent(&self, dir: ObjectId) -> Result<Node, FsError> { Err(FsError::NotSupported) }
    pub fn forget(&self, id: ObjectId, n: u64) {}
    /// For readdirplus: counts a reference as `lookup` does.
    pub fn attributes(&self, id: ObjectId) -> Result<Node, FsError> { Err(FsError::NotSupported) }
    pub fn set_attributes(&self, caller: &Caller, id: ObjectId, change: &AttributeChange) -> Result<Node, FsError> { Err(FsError::NotSupported) }
    pub fn read_link(&self, id: ObjectId) -> Result<Vec<u8>, FsError> { Err(FsError::NotSupported) }
    pub fn create(&self, caller: &Caller, parent: ObjectId, name: &[u8], spec: &NodeSpec<'_>) -> Result<Node, FsError> { Err(FsError::NotSupported) }
    pub fn create_unnamed(&self, caller: &Caller, parent: ObjectId, mode: u16) -> Result<Node, FsError> { Err(FsError::NotSupported) }
    pub fn link(&self, id: ObjectId, new_parent: ObjectId, new_name: &[u8]) -> Result<Node, FsError> { Err(FsError::NotSupported) }
    pub fn unlink(&self, parent: ObjectId, name: &[u8]) -> Result<(), FsError> { Err(FsError::NotSupported) }
    pub fn remove_directory(&self, parent: ObjectId, name: &[u8]) -> Result<(), FsError> { Err(FsError::NotSupported) }
    pub fn rename(&self, parent: ObjectId, name: &[u8], new_parent: ObjectId, new_name: &[u8], mode: RenameMode) -> Result<(), FsError> { Err(FsError::NotSupported) }
    pub fn open(&self, id: ObjectId) -> Result<(), FsError> { Err(FsError::NotSupported) }
    pub fn release(&self, id: ObjectId) {}
    pub fn read(&self, id: ObjectId, offset: u64, out: &mut [u8]) -> Result<usize, FsError> { Err(FsError::NotSupported) }
    pub fn write(&self, id: ObjectId, at: WriteAt, data: &[u8], kill_suid_sgid: bool, sync: bool) -> Result<usize, FsError> { Err(FsError::NotSupported) }
    pub fn allocate(&self, id: ObjectId, mode: AllocateMode, offset: u64, len: u64) -> Result<(), FsError> { Err(FsError::NotSupported) }
    pub fn seek(&self, id: ObjectId, offset: u64, whence: Whence) -> Result<u64, FsError> { Err(FsError::NotSupported) }
    pub fn copy_range(&self, from: ObjectId, from_offset: u64, to: ObjectId, to_offset: u64, len: u64) -> Result<usize, FsError> { Err(FsError::NotSupported) }
    pub fn read_directory(&self, id: ObjectId, after_cookie: u64, max_entries: usize) -> Result<Vec<ReadDirEntry>, FsError> { Err(FsError::NotSupported) }
    pub fn get_xattr(&self, id: ObjectId, name: &[u8]) -> Result<Arc<[u8]>, FsError> { Err(FsError::NotSupported) }
    pub fn list_xattrs(&self, id: ObjectId) -> Result<Vec<Arc<[u8]>>, FsError> { Err(FsError::NotSupported) }
    pub fn set_xattr(&self, id: ObjectId, name: &[u8], value: &[u8], mode: XattrMode, kill_sgid: bool) -> Result<(), FsError> { Err(FsError::NotSupported) }
    pub fn remove_xattr(&self, id: ObjectId, name: &[u8]) -> Result<(), FsError> { Err(FsError::NotSupported) }
    pub fn fsync(&self, id: ObjectId) -> Result<(), FsError> { Err(FsError::NotSupported) }
    pub fn sync_all(&self) -> Result<(), FsError> { Err(FsError::NotSupported) }
    pub fn sync_app(&self, name: Option<&str>, apply: bool) -> Result<(), VolumeError> { Ok(()) }
    pub fn statfs(&self) -> Result<SpaceInfo, FsError> { Err(FsError::NotSupported) }
    /// Whether fsync requests matter: some app is durable, or may become so while mounted.
    pub fn has_durable_apps(&self) -> bool { true }
    /// The kernel adapter says whether `sync(2)` reaches this mount.
    pub fn set_sync_reaches(&self, reaches: bool) {}
    pub fn cut_power(&self) {}
    pub fn shutdown(&self) -> Result<(), VolumeError> { Ok(()) }
}
