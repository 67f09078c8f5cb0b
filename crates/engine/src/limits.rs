//! The limits of an engine.

use mobifs_base::{DeviceNumber, NAME_BYTES_MAX, SYMLINK_BYTES_MAX};

use crate::namespace::OBJECT_MEMORY_BYTES;

/// Limits that an operation must obey before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Memory for uncommitted changes, in bytes.
    pub memory_budget_bytes: u64,
    /// Objects kept in memory although no program uses them. A small memory budget lowers it.
    pub objects_max: usize,
    /// Room for one object's extended attributes, each of which takes
    /// [`mobifs_base::xattr_room_bytes`]; 0: none are supported.
    pub xattr_bytes_max: usize,
    /// Largest file.
    pub file_bytes_max: u64,
    /// Longest name of something new.
    pub name_bytes_max: usize,
    /// Longest target of a symlink; 0: there are none.
    pub symlink_bytes_max: usize,
    /// Most that the entries of a directory may take together, each of them
    /// [`mobifs_base::dentry_room_bytes`].
    pub directory_bytes_max: u64,
    /// Most links of a file.
    pub links_max: u32,
    /// Largest major and largest minor number of a device node.
    pub device_max: DeviceNumber,
    /// The lower filesystem lets us make devices and give files away.
    pub privileged: bool,
    /// If it does not: the owner of all new objects.
    pub owner_uid: u32,
    /// Nothing may change.
    pub read_only: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_budget_bytes: 256 << 20,
            objects_max: 200_000,
            xattr_bytes_max: 64 << 10,
            file_bytes_max: i64::MAX as u64,
            name_bytes_max: NAME_BYTES_MAX,
            symlink_bytes_max: SYMLINK_BYTES_MAX,
            directory_bytes_max: u64::MAX,
            links_max: 65_000,
            device_max: DeviceNumber::MAX,
            privileged: true,
            owner_uid: 0,
            read_only: false,
        }
    }
}

impl Limits {
    /// Most objects that stay in memory although no program uses them: as many as configured, and
    /// no more than fit into the memory budget.
    pub(crate) fn objects_allowed(&self) -> usize {
        let fit = self.memory_budget_bytes / OBJECT_MEMORY_BYTES;
        let fit = usize::try_from(fit).unwrap_or(usize::MAX);
        self.objects_max.min(fit)
    }
}
