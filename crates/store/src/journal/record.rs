//! What a journal transaction says.

use mobifs_types::{ByteRange, FileKind, Name, ObjectId, ObjectState, PAGE_BYTES, Page, PageIndex};

/// Runs of changed bytes with fewer equal bytes than this between them are stored as
/// one run: a run of its own costs up to four bytes and a copy when it is applied.
const RUN_GAP_BYTES: usize = 16;

/// One record of a transaction: like the engine's entries a final state, so that
/// replaying records any number of times ends in the same tree.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// Where an object of the lower tree is at the start of the epoch.
    Known {
        /// The object.
        id: ObjectId,
        /// Its lower inode.
        inode: u64,
        /// Its kind.
        kind: FileKind,
        /// The directory that it is in.
        parent: ObjectId,
        /// Its name there.
        name: Vec<u8>,
    },
    /// The state of an object.
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
    /// Changed bytes of one page.
    Bytes {
        /// The file.
        object: ObjectId,
        /// Which of its pages.
        index: PageIndex,
        /// The rest of the page is zero; else the rest is what was committed before.
        fresh: bool,
        /// Offset within the page, and bytes; together within one page.
        runs: Vec<(u16, Vec<u8>)>,
    },
    /// The content of this range is already in the object's lower inode.
    Direct {
        /// The file.
        object: ObjectId,
        /// The range.
        range: ByteRange,
    },
    /// All records of a transaction that is too large for the journal lie in an
    /// overflow file. It is the only record of its transaction.
    External {
        /// Number of the overflow file, `stage/t<file>`.
        file: u64,
        /// Bytes that the records take there, from its start.
        bytes: u64,
        /// Number of records.
        records: u32,
        /// CRC32C of these bytes.
        crc32c: u32,
    },
    /// The stage object `id` has this lower inode.
    Bind {
        /// The object.
        id: ObjectId,
        /// Its lower inode.
        inode: u64,
    },
    /// From here on names of the lower tree may have moved. Before this record was
    /// written, all that earlier transactions say of anything else was in its place,
    /// durably: new objects in `stage/`, content and attributes.
    Moving,
}

/// The byte runs in which `page` differs from `base` (none: from all zeros), with the
/// bytes that `page` has there, ascending. Empty if they are equal.
pub(crate) fn diff(base: Option<&Page>, page: &Page) -> Vec<(u16, Vec<u8>)> {
    let old = base.map_or(&[][..], Page::stored);
    let new = page.stored();
    let end = old.len().max(new.len());
    let mut runs = Vec::new();
    let mut at = next_difference(old, new, 0, end);
    while at < end {
        let start = at;
        let mut run_end = at + 1;
        // The run goes on as long as the next difference is near.
        loop {
            at = next_difference(old, new, run_end, end.min(run_end + RUN_GAP_BYTES));
            if at >= end.min(run_end + RUN_GAP_BYTES) {
                break;
            }
            run_end = at + 1;
        }
        runs.push((page_offset(start), padded(new, start, run_end)));
        at = next_difference(old, new, at, end);
    }
    runs
}

/// The first offset in `from..end` where the two differ, or `end`; bytes that are not
/// stored are zero.
fn next_difference(old: &[u8], new: &[u8], from: usize, end: usize) -> usize {
    /// Compared at once while nothing differs.
    const CHUNK: usize = 32;
    let mut at = from;
    while at + CHUNK <= end.min(old.len()).min(new.len())
        && old[at..at + CHUNK] == new[at..at + CHUNK]
    {
        at += CHUNK;
    }
    let byte = |bytes: &[u8], at: usize| bytes.get(at).copied().unwrap_or(0);
    while at < end && byte(old, at) == byte(new, at) {
        at += 1;
    }
    at
}

/// `content[start..end]`, with zeros for what is not stored.
fn padded(content: &[u8], start: usize, end: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(end - start);
    bytes.extend_from_slice(&content[start.min(content.len())..end.min(content.len())]);
    bytes.resize(end - start, 0);
    bytes
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "an offset within a page is below 4096"
)]
fn page_offset(offset: usize) -> u16 {
    debug_assert!(offset < PAGE_BYTES);
    offset as u16
}
