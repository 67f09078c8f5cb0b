//! What a journaled block is.

use crate::bytes::{be32, le16, le32};
use serde::Serialize;

/// What a journaled block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The filesystem's superblock.
    Superblock,
    /// Group descriptors, or room that is reserved for them.
    GroupDescriptors,
    /// Which blocks are in use.
    BlockBitmap,
    /// Which inodes are in use.
    InodeBitmap,
    /// Inodes.
    InodeTable,
    /// Entries of a directory, or their index.
    Directory,
    /// A node of a tree of extents, or a block of pointers of ext3.
    Extents,
    /// Extended attributes.
    Attributes,
    /// Inodes that are being deleted.
    Orphans,
    /// None of these: content of files with `data=journal`, of quotas, or of another kind.
    Other,
}

impl Kind {
    /// As a table names it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Superblock => "superblock",
            Self::GroupDescriptors => "group descriptors",
            Self::BlockBitmap => "block bitmap",
            Self::InodeBitmap => "inode bitmap",
            Self::InodeTable => "inode table",
            Self::Directory => "directory",
            Self::Extents => "extents",
            Self::Attributes => "attributes",
            Self::Orphans => "orphans",
            Self::Other => "other",
        }
    }
}

const EXTENT_MAGIC: u16 = 0xf30a;
const EXTENT_DEPTH_MAX: u16 = 5;
const ATTRIBUTES_MAGIC: u32 = 0xea02_0000;
const ORPHANS_MAGIC: u32 = 0x0b10_ca04;

/// What a block is that has no place of its own.
pub(crate) fn kind_of_content(content: &[u8]) -> Kind {
    let (entries, most, depth) = (le16(content, 2), le16(content, 4), le16(content, 6));
    if le16(content, 0) == EXTENT_MAGIC && entries <= most && depth <= EXTENT_DEPTH_MAX {
        return Kind::Extents;
    }
    if le32(content, 0) == ATTRIBUTES_MAGIC {
        return Kind::Attributes;
    }
    // Its tail is the magic and a checksum.
    if content.len() >= 8 && le32(content, content.len() - 8) == ORPHANS_MAGIC {
        return Kind::Orphans;
    }
    if is_directory(content) && be32(content, 0) != crate::jbd2::MAGIC {
        return Kind::Directory;
    }
    Kind::Other
}

/// Entries that follow each other up to the end of the block, each with room for its name; an index is one
/// entry that is not in use, or two that cover the block.
fn is_directory(content: &[u8]) -> bool {
    const HEADER_BYTES: usize = 8;
    let mut at = 0;
    while at + HEADER_BYTES <= content.len() {
        let length = match le16(content, at + 4) {
            // As 64 KiB are written.
            0 | 0xffff if content.len() == 65536 => 65536,
            length => usize::from(length),
        };
        let (name_bytes, kind) = (usize::from(content[at + 6]), content[at + 7]);
        let is_tail = le32(content, at) == 0 && length == 12 && kind == 0xde;
        let is_entry = length >= HEADER_BYTES
            && length % 4 == 0
            && at + length <= content.len()
            && name_bytes + HEADER_BYTES <= length
            && (kind <= 7 || is_tail);
        if !is_entry {
            return false;
        }
        at += length;
    }
    at == content.len() && at > 0
}
