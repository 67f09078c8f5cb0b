//! Limits of a lower filesystem.

use mobifs_base::DeviceNumber;

/// Limits of the lower filesystem that the engine must keep *before* it
/// acknowledges an operation, because afterwards it is too late to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Room for all extended attributes of one object, each of which takes
    /// [`mobifs_base::xattr_room_bytes`]; 0 where the filesystem has none.
    pub xattr_bytes_max: usize,
    /// Largest file, in bytes.
    pub file_bytes_max: u64,
    /// Longest name, in bytes.
    pub name_bytes_max: usize,
    /// Longest target of a symlink, in bytes.
    pub symlink_bytes_max: usize,
    /// Most that the entries of one directory may take together, each of which takes
    /// [`mobifs_base::dentry_room_bytes`].
    pub directory_bytes_max: u64,
    /// Most links of one regular file.
    pub links_max: u32,
    /// Largest major and largest minor number of a device node.
    pub device_max: DeviceNumber,
    /// Whether the daemon may create device nodes and give files to other users.
    pub privileged: bool,
    /// The owner of new objects where it may not.
    pub owner_uid: u32,
    /// Whether the lower filesystem (or the mount option `ro`) forbids writing.
    pub read_only: bool,
}
