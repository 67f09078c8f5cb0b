//! What the engine hands to a store, and what a store hands back.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::{Attributes, ByteRange, FileKind, Name, ObjectId, Page, PageIndex};

/// One extended attribute: name (with its namespace prefix) and value.
pub type Xattr = (Arc<[u8]>, Arc<[u8]>);

/// A change of one extended attribute; no value means that it is removed.
pub type XattrChange = (Arc<[u8]>, Option<Arc<[u8]>>);

/// One entry of a transaction: a final state, never an operation, so that applying
/// it any number of times ends in the same tree.
///
/// Within one transaction there is at most one [`Entry::Object`] for an object, one
/// [`Entry::Dentry`] for a (parent, name) and one [`Entry::Page`] for an (object,
/// page). Order within a transaction carries no meaning, except that an object's
/// [`Entry::Object`] precedes its pages.
#[derive(Clone, Debug)]
pub enum Entry {
    /// An object's state. Every object that has pages in the transaction has one.
    Object(ObjectState),
    /// Which object a directory entry names; none: the entry does not exist.
    Dentry {
        /// The directory.
        parent: ObjectId,
        /// The entry's name.
        name: Name,
        /// The object that it names.
        child: Option<ObjectId>,
    },
    /// The content of one page of a regular file.
    Page {
        /// The file.
        object: ObjectId,
        /// Which of its pages.
        index: PageIndex,
        /// The content; bytes after the file's size are zero.
        page: Page,
    },
}

/// The state of one object at the end of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectState {
    /// Which object.
    pub id: ObjectId,
    /// No earlier transaction of this mount mentioned the object and the lower
    /// filesystem does not have it.
    pub created: bool,
    /// All attributes, size and number of links included.
    pub attributes: Attributes,
    /// Target, for a created symlink.
    pub symlink_target: Option<Arc<[u8]>>,
    /// Ranges (page aligned; the last may be without end) whose earlier content is
    /// gone: they read as zero except where this transaction has a page. A
    /// truncation is such a range without end.
    pub zeroed: Vec<ByteRange>,
    /// Ranges for which the caller asked to have room allocated (`fallocate`).
    pub allocated: Vec<ByteRange>,
    /// Extended attributes that changed.
    pub xattrs: Vec<XattrChange>,
}

impl ObjectState {
    /// An object of which nothing but these attributes is to be recorded.
    pub const fn of_attributes(id: ObjectId, attributes: Attributes) -> Self {
        Self {
            id,
            created: false,
            attributes,
            symlink_target: None,
            zeroed: Vec::new(),
            allocated: Vec::new(),
            xattrs: Vec::new(),
        }
    }
}

/// One entry of a directory as a store lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The entry's name.
    pub name: Name,
    /// The object that it names.
    pub id: ObjectId,
    /// The object's kind.
    pub kind: FileKind,
}

/// A store's description of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Committed attributes.
    pub attributes: Attributes,
    /// Bytes that its content occupies in the lower filesystem.
    pub allocated_bytes: u64,
    /// The object lies on another filesystem (something is mounted over the store's
    /// tree at this place): it may be seen, not used.
    pub foreign: bool,
    /// The lower filesystem lets no user change it, its names, or what it names.
    pub immutable: bool,
}

/// Room in the lower filesystem, as `statfs` shows it to a user of the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceInfo {
    /// Size of an allocation unit, in bytes.
    pub block_bytes: u64,
    /// All room, in bytes.
    pub total_bytes: u64,
    /// Free room, in bytes.
    pub free_bytes: u64,
    /// Free room that the daemon's user may take, in bytes.
    pub available_bytes: u64,
    /// Where directories, lists of extents and small files have room of their own (btrfs): what
    /// is left of that, in bytes. No more may be promised at once, however much is free.
    pub metadata_bytes: Option<u64>,
    /// All inodes; 0 where the filesystem does not count them.
    pub total_inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
}

impl SpaceInfo {
    /// Inodes that are left to the store itself, at most: for what it tries out when it is opened,
    /// for its reserve, and for transactions that its journal is too small for.
    const OWN_INODES: u64 = 16;

    /// With fewer free bytes than this it is room that lacks, also where there are no free inodes: filesystems
    /// that make inodes when they are needed (XFS) have none then.
    const ROOM_BYTES_MIN: u64 = 1 << 20;

    /// Whether it is inodes that lack, and not bytes.
    pub fn lacks_inodes(&self) -> bool {
        self.total_inodes > 0
            && self.free_inodes <= self.own_inodes()
            && self.available_bytes >= Self::ROOM_BYTES_MIN
    }

    /// Free inodes that users may not have.
    pub fn own_inodes(&self) -> u64 {
        Self::OWN_INODES.min(self.total_inodes / Self::OWN_INODES)
    }
}
