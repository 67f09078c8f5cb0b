//! Effects that are not durable yet, and which of them imply which.

use std::collections::HashSet;
use std::sync::Arc;

use mobifs_base::{FileKind, Timestamp};

/// Unit in which content lands: what a medium writes whole.
pub const SECTOR_BYTES: usize = 512;
/// [`SECTOR_BYTES`] as an offset.
pub(super) const SECTOR: u64 = SECTOR_BYTES as u64;

/// Content of a sector.
pub(super) type Sector = Arc<[u8; SECTOR_BYTES]>;

/// Identifies an inode of the simulation for its whole life (inode *numbers* are
/// reused).
pub type InodeKey = u64;
/// Name of a directory entry.
pub type EntryName = Arc<[u8]>;

/// One effect of a call that a crash may keep or lose by itself.
#[derive(Clone, Debug)]
pub enum Effect {
    /// A sector of content; none: it became a hole.
    Sector {
        /// The file.
        inode: InodeKey,
        /// Which sector.
        index: u64,
        /// All its bytes, as memory held them when it was written.
        content: Option<Arc<[u8; SECTOR_BYTES]>>,
    },
    /// The size; a smaller one truncates the content.
    Size {
        /// The file.
        inode: InodeKey,
        /// The new size.
        size: u64,
    },
    /// Blocks up to here, of which some are beyond the end.
    Allocated {
        /// The file.
        inode: InodeKey,
        /// Where they end.
        end: u64,
    },
    /// Permission bits.
    Mode {
        /// The object.
        inode: InodeKey,
        /// The new bits.
        mode: u16,
    },
    /// Owner and group.
    Owner {
        /// The object.
        inode: InodeKey,
        /// The new owner.
        uid: u32,
        /// The new group.
        gid: u32,
    },
    /// Times.
    Times {
        /// The object.
        inode: InodeKey,
        /// Last access, if it changed.
        atime: Option<Timestamp>,
        /// Last change of content.
        mtime: Timestamp,
    },
    /// An extended attribute.
    Xattr {
        /// The object.
        inode: InodeKey,
        /// Its name.
        name: Arc<[u8]>,
        /// The new value; none: removed.
        value: Option<Arc<[u8]>>,
    },
    /// A new directory entry.
    Link {
        /// The directory.
        directory: InodeKey,
        /// The entry.
        name: EntryName,
        /// The object that it names.
        inode: InodeKey,
        /// The object was made by this.
        creation: bool,
    },
    /// A removed directory entry.
    Unlink {
        /// The directory.
        directory: InodeKey,
        /// The entry.
        name: EntryName,
        /// The object that it named.
        inode: InodeKey,
        /// Kind of the object.
        kind: FileKind,
    },
    /// A moved directory entry: removed here and added there atomically.
    Rename {
        /// Directory of the old entry.
        from: InodeKey,
        /// Old name.
        from_name: EntryName,
        /// Directory of the new entry.
        to: InodeKey,
        /// New name.
        to_name: EntryName,
        /// The object.
        inode: InodeKey,
        /// Kind of the object.
        kind: FileKind,
    },
}

impl Effect {
    /// The object whose content or attributes change; none for directory entries.
    pub(super) fn content_of(&self) -> Option<InodeKey> {
        match *self {
            Self::Sector { inode, .. }
            | Self::Size { inode, .. }
            | Self::Allocated { inode, .. }
            | Self::Mode { inode, .. }
            | Self::Owner { inode, .. }
            | Self::Times { inode, .. }
            | Self::Xattr { inode, .. } => Some(inode),
            Self::Link { .. } | Self::Unlink { .. } | Self::Rename { .. } => None,
        }
    }

    /// Whether bytes of a file change, or how many there are.
    pub(super) const fn is_content(&self) -> bool {
        matches!(self, Self::Sector { .. } | Self::Size { .. })
    }

    /// The object whose links change; none for content and attributes.
    pub(super) fn linked(&self) -> Option<InodeKey> {
        match *self {
            Self::Link { inode, .. } | Self::Unlink { inode, .. } | Self::Rename { inode, .. } => {
                Some(inode)
            }
            _ => None,
        }
    }

    /// The directory entries that change: at most two.
    pub(super) fn slots(&self) -> impl Iterator<Item = (InodeKey, &EntryName)> {
        let (first, second) = match self {
            Self::Link {
                directory, name, ..
            }
            | Self::Unlink {
                directory, name, ..
            } => (Some((*directory, name)), None),
            Self::Rename {
                from,
                from_name,
                to,
                to_name,
                ..
            } => (Some((*from, from_name)), Some((*to, to_name))),
            _ => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// Whether an entry of `directory` changes.
    pub(super) fn is_in(&self, directory: InodeKey) -> bool {
        self.slots().any(|(slot, _)| slot == directory)
    }
}

/// What a crash does to one effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It reached the medium.
    Land,
    /// It did not.
    Vanish,
}

/// Adds to the effects that land those without which they could not have. Any other subset stays as
/// it was chosen, in any order in time. The rules hold on every medium and filesystem:
///
/// 1. *One name has one history.* A change of a directory entry implies the earlier
///    changes of the same entry; as a rename is atomic, it implies both its ends.
/// 2. *A directory exists before its entries.* A new entry in a directory implies
///    the directory's creation.
/// 3. *A removed directory was empty.* Its removal implies the earlier changes of
///    its entries.
/// 4. *An inode number names one inode.* The creation of an inode that reuses a
///    number implies the removal of the number's earlier holder.
///
/// All four lead to earlier effects only, so one pass backwards finds everything.
/// `predecessor` returns the earlier holder of an inode's number.
pub(super) fn close<'a>(
    effects: impl DoubleEndedIterator<Item = &'a Effect> + ExactSizeIterator,
    land: &mut [bool],
    predecessor: impl Fn(InodeKey) -> Option<InodeKey>,
) {
    let mut slots: HashSet<(InodeKey, &EntryName)> = HashSet::new();
    let mut emptied: HashSet<InodeKey> = HashSet::new();
    let mut existing: HashSet<InodeKey> = HashSet::new();
    let mut gone: HashSet<InodeKey> = HashSet::new();
    for (effect, land) in effects.zip(land.iter_mut()).rev() {
        let Some(inode) = effect.linked() else {
            continue;
        };
        let created = matches!(effect, Effect::Link { creation: true, .. });
        *land |= gone.contains(&inode)
            || (created && existing.contains(&inode))
            || effect
                .slots()
                .any(|slot| slots.contains(&slot) || emptied.contains(&slot.0));
        if !*land {
            continue;
        }
        slots.extend(effect.slots());
        match *effect {
            Effect::Link { directory, .. } => {
                existing.insert(directory);
                gone.extend(predecessor(inode));
            }
            Effect::Rename { to, .. } => {
                existing.insert(to);
                gone.extend(predecessor(inode));
            }
            Effect::Unlink {
                kind: FileKind::Directory,
                ..
            } => {
                emptied.insert(inode);
            }
            _ => {}
        }
    }
}
