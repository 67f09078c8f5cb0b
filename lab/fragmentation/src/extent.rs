//! A part of a file that lies in one place, as a filesystem or a tool reports it.

/// One extent. All places and lengths are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins in the file.
    pub logical: u64,
    /// Where it begins in the filesystem.
    pub physical: u64,
    /// Its length in the file.
    pub length: u64,
    /// The extent is allocated, and nothing was ever written to it.
    pub is_unwritten: bool,
    /// The extent has no place yet, or the filesystem does not report which.
    pub is_unplaced: bool,
    /// The extent lies within metadata (inline data, tails).
    pub is_inline: bool,
    /// The filesystem compresses or encrypts the extent: it takes at most `length` on the disk.
    pub is_encoded: bool,
    /// Other files have it as well.
    pub is_shared: bool,
}
