//! Newtypes for identifiers.

use core::fmt;

/// Identifies a filesystem object (file, directory, symlink, device, …) for the
/// life of one mount. [`ObjectId::ROOT`] is the mount's root directory.
///
/// An object that existed in the lower filesystem when it was first seen carries
/// its lower inode number where that is possible; objects created during the mount
/// get numbers from [`ObjectId::FIRST_NEW`] upwards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u64);

impl ObjectId {
    /// The root directory of the mount.
    pub const ROOT: Self = Self(1);
    /// First number given to objects without a usable lower inode number.
    pub const FIRST_NEW: Self = Self(1 << 48);
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >= Self::FIRST_NEW.0 {
            write!(f, "object+{}", self.0 - Self::FIRST_NEW.0)
        } else {
            write!(f, "object#{}", self.0)
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Index of a page within a file: byte offset divided by [`crate::PAGE_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageIndex(pub u64);

impl PageIndex {
    /// The page that holds the byte at `offset`.
    pub const fn of_offset(offset: u64) -> Self {
        Self(offset / crate::PAGE_BYTES_U64)
    }

    /// Offset of the first byte of the page.
    pub const fn offset(self) -> u64 {
        self.0 * crate::PAGE_BYTES_U64
    }
}

/// Identifies an app (a top-level directory or a configured glob) within one mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppId(pub u32);

/// Identifies a transaction within one mount; those opened later have larger numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(pub u64);
