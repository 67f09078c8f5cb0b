//! Inode attributes.

use crate::Timestamp;

/// Permission, set-id and sticky bits: what of `st_mode` is not the file kind.
pub const MODE_MASK: u16 = 0o7777;
/// Set-user-id bit.
pub const S_ISUID: u16 = 0o4000;
/// Set-group-id bit.
pub const S_ISGID: u16 = 0o2000;
/// Sticky bit.
pub const S_ISVTX: u16 = 0o1000;

/// What kind of object an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Unix-domain socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

impl FileKind {
    /// The file-type bits of `st_mode` (`S_IFMT`), as Linux defines them.
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::Fifo => 0o010_000,
            Self::CharDevice => 0o020_000,
            Self::Directory => 0o040_000,
            Self::BlockDevice => 0o060_000,
            Self::Regular => 0o100_000,
            Self::Symlink => 0o120_000,
            Self::Socket => 0o140_000,
        }
    }

    /// The kind that the file-type bits of `mode` name; none for an unknown type.
    pub const fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o010_000 => Self::Fifo,
            0o020_000 => Self::CharDevice,
            0o040_000 => Self::Directory,
            0o060_000 => Self::BlockDevice,
            0o100_000 => Self::Regular,
            0o120_000 => Self::Symlink,
            0o140_000 => Self::Socket,
            _ => return None,
        })
    }
}

/// A device number in the kernel's 32-bit encoding (as FUSE carries it):
/// `(minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber(pub u32);

impl DeviceNumber {
    /// Packs major and minor.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12))
    }

    /// The largest there is.
    pub const MAX: Self = Self(u32::MAX);

    /// Whether both numbers are at most those of `most`.
    pub const fn is_within(self, most: Self) -> bool {
        self.major() <= most.major() && self.minor() <= most.minor()
    }

    /// Major number.
    pub const fn major(self) -> u32 {
        (self.0 >> 8) & 0xfff
    }

    /// Minor number.
    pub const fn minor(self) -> u32 {
        (self.0 & 0xff) | ((self.0 >> 12) & 0xfff00)
    }
}

/// An inode's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Kind of the object; never changes.
    pub kind: FileKind,
    /// Permission bits, within [`MODE_MASK`].
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, for device nodes.
    pub rdev: DeviceNumber,
    /// Size in bytes (regular files: content; symlinks: target; directories: 0 or
    /// what the lower filesystem says).
    pub size: u64,
    /// Number of links. Informational for stores: the links themselves are the directory entries.
    pub nlink: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of anything. The lower filesystem sets its own; only the mounted
    /// view shows this one.
    pub ctime: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_packing() {
        for (major, minor) in [(0, 0), (1, 3), (8, 255), (253, 256), (0xfff, 0xfffff)] {
            let number = DeviceNumber::new(major, minor);
            assert_eq!((number.major(), number.minor()), (major, minor));
        }
    }

    #[test]
    fn both_parts_of_a_device_number_are_bounded() {
        let most = DeviceNumber::new(511, (1 << 18) - 1);
        for (major, minor, fits) in [
            (511, (1 << 18) - 1, true),
            (512, 0, false),
            (0, 1 << 18, false),
            (0, 0, true),
        ] {
            assert_eq!(DeviceNumber::new(major, minor).is_within(most), fits);
            assert!(DeviceNumber::new(major, minor).is_within(DeviceNumber::MAX));
        }
    }

    #[test]
    fn kinds_survive_mode_bits() {
        for kind in [
            FileKind::Regular,
            FileKind::Directory,
            FileKind::Symlink,
            FileKind::Fifo,
            FileKind::Socket,
            FileKind::CharDevice,
            FileKind::BlockDevice,
        ] {
            assert_eq!(FileKind::from_mode(kind.mode_bits() | 0o4755), Some(kind));
        }
        assert_eq!(FileKind::from_mode(0o644), None);
    }
}
