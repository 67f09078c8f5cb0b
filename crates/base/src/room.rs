//! What a change takes in the lower filesystem at most: the contract between engine and store.
//!
//! The engine acknowledges a change only where the lower filesystem has the room to commit and to
//! apply it, and charges the transaction for it. Once the transaction is committed, the store says
//! what applying still takes. Both compute it here, so that
//!
//! * a closed transaction is charged at least [`Room::of_transaction`] of what it holds: else a
//!   change would be acknowledged without room. The engine asserts that where a transaction
//!   closes, and where closed transactions are merged.
//! * what the store reserves grows by at most [`Room::of_transaction`] with a commit: what an
//!   earlier one has reserved is not reserved again. So the room that was promised before the
//!   commit is enough after it. The store asserts that where it commits.
//!
//! # Why that is the most
//!
//! The filesystems in use have blocks of at most a page. Where a rule depends on the filesystem
//! the worst one counts.
//!
//! * **Objects** ([`Room::OBJECT`]). Besides its content an object may need two blocks: for
//!   extended attributes, and for a long symlink, a list of extents, or the first entries of a
//!   directory; a directory that grows, for two levels of its index. A created or changed object
//!   may pass through `stage/` or `limbo/` under a name of the store's own, which takes
//!   [`NAME_BYTES`] of their blocks.
//! * **Inodes** ([`Room::INODE`]). A created object takes one.
//! * **Directory entries** ([`Room::of_dentry`]). One that names another object than before may
//!   split a block of its directory, whether the name is new or not, because it may be removed and
//!   made again; the object that it named passes through `limbo/`. One that goes takes only that
//!   name. A directory whose entries change without a state of it in the transaction (its own
//!   change is that of another app) is committed with a state all the same: it counts as an object.
//! * **Content** ([`Room::of_run`]). A run of blocks takes these, a list of extents in which each
//!   of its blocks is one ([`EXTENTS_SHARE`]), and a block for the list: if that is full where the
//!   run begins, it is split. What follows on goes into the block that the split has left half
//!   empty, which the share has counted. So the room of a file's pages depends only on which they
//!   are and on how many runs they form. A page that is written is charged as a run of its own
//!   unless it follows on ([`Room::of_page`]); a hole in a run makes two of it.
//! * **Allocated ranges** ([`Room::of_range`]). As content: the blocks that they touch.
//! * **Extended attributes** ([`Room::of_xattr`]). A value has blocks of its own (`ea_inode` of
//!   ext4, remote values of XFS), and a block more for where it is listed.
//! * **Records** ([`Room::of_overflow`]). The journal has its blocks. A transaction that is too
//!   large for it takes a file of its own until it is applied.

use alloc::collections::BTreeSet;

use crate::{ByteRange, Name, ObjectId, ObjectState, PAGE_BYTES_U64, PageIndex, Transaction};

/// A name in the store's own directories (`stage/`, `limbo/`).
const NAME_BYTES: u64 = 512;
/// The part of a page that the list of extents takes if each of its blocks is one: four entries
/// of 12 bytes on a filesystem with blocks of 1 KiB, in blocks that are not quite full.
const EXTENTS_SHARE: u64 = 64;
/// A transaction that the journal is too small for takes this part of its size more, at most, in
/// a file of its own: what its records have besides content.
const OVERFLOW_SHARE: u64 = 4;

/// Room in the lower filesystem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    bytes: u64,
    inodes: u64,
}

/// Amounts.
impl Room {
    /// None at all.
    pub const NONE: Self = Self::new(0, 0);

    /// This many bytes and inodes.
    pub const fn new(bytes: u64, inodes: u64) -> Self {
        Self { bytes, inodes }
    }

    /// This many bytes, and no inode.
    pub const fn of_bytes(bytes: u64) -> Self {
        Self::new(bytes, 0)
    }

    /// In bytes.
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Inodes.
    pub const fn inodes(self) -> u64 {
        self.inodes
    }

    /// Whether it is nothing.
    pub const fn is_none(self) -> bool {
        self.bytes == 0 && self.inodes == 0
    }

    /// Whether all of `other` is in it.
    pub const fn covers(self, other: Self) -> bool {
        self.bytes >= other.bytes && self.inodes >= other.inodes
    }

    /// Both together; none if there is no such number.
    pub const fn checked_add(self, more: Self) -> Option<Self> {
        match (
            self.bytes.checked_add(more.bytes),
            self.inodes.checked_add(more.inodes),
        ) {
            (Some(bytes), Some(inodes)) => Some(Self::new(bytes, inodes)),
            _ => None,
        }
    }

    /// Both together, or the largest number. For what a forged journal may ask for.
    #[must_use]
    pub const fn saturating_add(self, more: Self) -> Self {
        Self::new(
            self.bytes.saturating_add(more.bytes),
            self.inodes.saturating_add(more.inodes),
        )
    }

    /// What is left without `less`; of what there is less of, nothing.
    #[must_use]
    pub const fn saturating_sub(self, less: Self) -> Self {
        Self::new(
            self.bytes.saturating_sub(less.bytes),
            self.inodes.saturating_sub(less.inodes),
        )
    }

    /// The smaller number of bytes, and the smaller number of inodes.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self::new(self.bytes.min(other.bytes), self.inodes.min(other.inodes))
    }

    /// Adds to a sum. What is counted is on a disk, so a sum is far from the largest number.
    pub fn charge(&mut self, more: Self) {
        debug_assert!(
            self.checked_add(more).is_some(),
            "{self:?} + {more:?} overflows"
        );
        *self = self.saturating_add(more);
    }

    /// Takes off a sum what was added to it before.
    pub fn refund(&mut self, less: Self) {
        debug_assert!(self.covers(less), "{less:?} is refunded of {self:?}");
        *self = self.saturating_sub(less);
    }
}

/// What the kinds of change take: see the [module](self).
impl Room {
    /// A changed object, besides its content and extended attributes.
    pub const OBJECT: Self = Self::of_bytes(NAME_BYTES + 2 * PAGE_BYTES_U64);
    /// The inode of a created object.
    pub const INODE: Self = Self::new(0, 1);

    /// The room of this many changed objects.
    pub const fn of_objects(count: u64) -> Self {
        Self::of_bytes(count.saturating_mul(Self::OBJECT.bytes))
    }

    /// An entry that names this object from now on; none: that goes.
    pub const fn of_dentry(child: Option<ObjectId>) -> Self {
        Self::of_bytes(match child {
            Some(_) => NAME_BYTES + PAGE_BYTES_U64,
            None => NAME_BYTES,
        })
    }

    /// An extended attribute with a value of so many bytes.
    pub const fn of_xattr(value_bytes: usize) -> Self {
        let value = (value_bytes as u64).checked_next_multiple_of(PAGE_BYTES_U64);
        match value {
            Some(value) => Self::of_bytes(value.saturating_add(PAGE_BYTES_U64)),
            None => Self::of_bytes(u64::MAX),
        }
    }

    /// Blocks of so many pages, without what they take in a list of extents.
    pub const fn of_blocks(pages: u64) -> Self {
        Self::of_bytes(pages.saturating_mul(PAGE_BYTES_U64))
    }

    /// Blocks of so many bytes, in one run.
    pub const fn of_run(bytes: u64) -> Self {
        let list = (bytes / EXTENTS_SHARE).saturating_add(PAGE_BYTES_U64);
        Self::of_bytes(bytes.saturating_add(list))
    }

    /// A page, that continues the run of the page before it or begins one.
    pub const fn of_page(follows_on: bool) -> Self {
        let list = if follows_on { 0 } else { PAGE_BYTES_U64 };
        Self::of_bytes(PAGE_BYTES_U64 + PAGE_BYTES_U64 / EXTENTS_SHARE + list)
    }

    /// An allocated range.
    pub const fn of_range(range: ByteRange) -> Self {
        let first = range.start - range.start % PAGE_BYTES_U64;
        let blocks = match range.end.checked_next_multiple_of(PAGE_BYTES_U64) {
            Some(end) => end.saturating_sub(first),
            None => u64::MAX - first,
        };
        Self::of_run(blocks)
    }

    /// The overflow file of a transaction with so much content and so many entries, in bytes as
    /// the engine counts them in memory.
    pub const fn of_overflow(bytes: u64) -> Self {
        Self::of_bytes(bytes.saturating_add(bytes / OVERFLOW_SHARE))
    }

    /// An object with its extended attributes and what is allocated.
    pub fn of_state(state: &ObjectState) -> Self {
        let values = state.xattrs.iter().filter_map(|(_, value)| value.as_ref());
        let values = values.map(|value| Self::of_xattr(value.len()));
        let allocated = state.allocated.iter().map(|range| Self::of_range(*range));
        let inode = if state.created {
            Self::INODE
        } else {
            Self::NONE
        };
        let parts = values.chain(allocated).chain([inode]);
        parts.fold(Self::OBJECT, Self::saturating_add)
    }

    /// Pages of one file, in rising order.
    pub fn of_pages(pages: impl IntoIterator<Item = PageIndex>) -> Self {
        let mut before = None;
        pages.into_iter().fold(Self::NONE, |room, index| {
            debug_assert!(before.is_none_or(|before| before < index), "rising order");
            let follows_on = before.is_some_and(|PageIndex(before)| before + 1 == index.0);
            before = Some(index);
            room.saturating_add(Self::of_page(follows_on))
        })
    }

    /// Objects and directory entries of a transaction, and the directories that have no state in
    /// it. That walks all of them: it is for checks, and for what is rare.
    pub fn of_names(
        objects: &[ObjectState],
        dentries: &[(ObjectId, Name, Option<ObjectId>)],
    ) -> Self {
        let mut parents: BTreeSet<ObjectId> = dentries.iter().map(|(id, ..)| *id).collect();
        for state in objects {
            parents.remove(&state.id);
        }
        let states = objects.iter().map(Self::of_state);
        let entries = dentries.iter();
        let entries = entries.map(|(_, _, child)| Self::of_dentry(*child));
        let parts = states.chain(entries);
        parts.fold(Self::of_objects(parents.len() as u64), Self::saturating_add)
    }

    /// All of a transaction, as [`Room::of_names`].
    pub fn of_transaction(transaction: &Transaction) -> Self {
        let pages = transaction.pages.values();
        let pages = pages.map(|pages| Self::of_pages(pages.keys().copied()));
        let names = Self::of_names(&transaction.objects, &transaction.dentries);
        pages.fold(names, Self::saturating_add)
    }
}

/// What may be promised although the lower filesystem has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FullDisk {
    /// Uncommitted changes that the store commits together without taking any room, in bytes: so
    /// much content may be overwritten that has its blocks. What is larger takes room for itself
    /// ([`Room::of_overflow`]), until it is applied. 0: not known.
    pub overwritten_bytes_max: u64,
    /// Entries that may move, in bytes as they are charged, because the store keeps room for
    /// the directories that grow by it.
    pub entries_bytes_max: u64,
}

impl FullDisk {
    /// One of so many bytes that are kept is promised: what moves is charged with a block for each
    /// directory, and passes through `limbo/` as well.
    const PROMISED_SHARE: u64 = 2;

    /// What may be promised for entries that move where this much room is kept.
    pub const fn promised_of(kept_bytes: u64) -> u64 {
        kept_bytes / Self::PROMISED_SHARE
    }
}

/// What an extended attribute takes of the room that there is for all of an object: what ext4
/// counts (its on-disk layout, `struct ext4_xattr_entry`), and other filesystems at most. A limit
/// of each object, and not taken from free blocks.
pub const fn xattr_room_bytes(name_bytes: usize, value_bytes: usize) -> usize {
    16 + name_bytes.next_multiple_of(4) + value_bytes.next_multiple_of(4)
}

/// What an entry takes of the room that there is in a directory, as ext4 keeps it: the filesystem
/// in use whose directories can be full first. A limit of each directory, and not taken from free
/// blocks.
pub const fn dentry_room_bytes(name_bytes: usize) -> u64 {
    8 + name_bytes.next_multiple_of(4) as u64
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn pages(indices: &[u64]) -> Room {
        Room::of_pages(indices.iter().map(|&index| PageIndex(index)))
    }

    #[test]
    fn pages_take_what_the_runs_do_that_they_form() {
        let run = |pages: u64| Room::of_run(pages * PAGE_BYTES_U64);
        assert_eq!(pages(&[]), Room::NONE);
        assert_eq!(pages(&[7, 8, 9]), run(3));
        assert_eq!(pages(&[0, 2, 3]), run(1).saturating_add(run(2)));
        assert_eq!(Room::of_page(false), run(1));
    }

    #[test]
    fn a_hole_of_whole_pages_gives_back_its_blocks_but_one() {
        let whole: Vec<u64> = (0..100).collect();
        for hole in [0..0, 0..10, 50..51, 50..60, 90..100] {
            let left: Vec<u64> = (0..100).filter(|index| !hole.contains(index)).collect();
            let splits = u64::from(hole.start > 0 && hole.end < 100);
            let mut room = pages(&whole);
            room.refund(Room::of_blocks(
                (hole.end - hole.start).saturating_sub(splits),
            ));
            assert!(room.covers(pages(&left)), "{hole:?}");
        }
    }

    #[test]
    fn a_range_takes_the_blocks_that_it_touches() {
        let touched = |pages: u64| Room::of_run(pages * PAGE_BYTES_U64);
        assert_eq!(Room::of_range(ByteRange::new(4095, 4097)), touched(2));
        assert_eq!(Room::of_range(ByteRange::new(4096, 8192)), touched(1));
        assert_eq!(Room::of_range(ByteRange::from(0)).bytes(), u64::MAX);
        assert_eq!(Room::of_range(ByteRange::new(8192, 1)), touched(0));
    }

    #[test]
    fn sums_are_checked() {
        let most = Room::new(u64::MAX, 1);
        assert_eq!(most.checked_add(Room::INODE), Some(Room::new(u64::MAX, 2)));
        assert_eq!(most.checked_add(Room::OBJECT), None);
        assert_eq!(most.saturating_add(Room::OBJECT), most);
        assert!(most.covers(Room::OBJECT) && !Room::OBJECT.covers(most));
    }
}
