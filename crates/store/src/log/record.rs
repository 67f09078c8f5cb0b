//! The records of a journal transaction.

use std::num::NonZeroU64;

use mobifs_base::{
    ByteRange, FileKind, Name, ObjectId, ObjectState, PAGE_BYTES, PAGE_BYTES_U64, Page, PageIndex,
};

/// Runs of changed bytes with fewer equal bytes than this between them are stored as
/// one run: a run of its own costs up to four bytes and a copy when it is applied.
const RUN_GAP_BYTES: usize = 16;

/// One record of a transaction: like the engine's entries it has a final state, so that
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
        /// The rest of the page is zero; otherwise it is as committed before.
        fresh: bool,
        /// Offset within the page, and bytes; together within one page.
        runs: Vec<(u16, Vec<u8>)>,
    },
    /// Changed bytes of one page, most of which are content that is elsewhere.
    Copied {
        /// The file.
        object: ObjectId,
        /// Which of its pages.
        index: PageIndex,
        /// What is not copied is zero; otherwise it is as committed before.
        fresh: bool,
        /// Bytes as they were before this transaction; together within one page.
        copies: Vec<CopiedBytes>,
        /// Offset within the page, and bytes, over what is copied; together within one page.
        runs: Vec<(u16, Vec<u8>)>,
        /// CRC32C of the page's 4096 bytes.
        crc32c: u32,
    },
    /// Every page that a [`Record::Copied`] of an earlier transaction changed and that still counts is
    /// in this transaction, as [`Record::Bytes`]. What was copied may be overwritten from here on.
    Materialized,
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
        /// Size of the records there, from its start.
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
    /// From here on names of the lower tree may have been renamed. Before this record was written,
    /// everything else of earlier transactions was applied, durably: new objects in `stage/`,
    /// content and attributes.
    RenameMark,
    /// As [`Record::RenameMark`], but not everything else was applied: a recovery that finds
    /// renamed names applies all of it again.
    RenameMarkInPart,
    /// The journal is a copy, and so is the tree around it: the object is at the place in an
    /// earlier record, and this is its inode there.
    Found {
        /// The object.
        id: ObjectId,
        /// Its lower inode; none: the copy does not have it.
        inode: Option<NonZeroU64>,
    },
}

/// Bytes of a page that were somewhere else before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopiedBytes {
    /// Where in the page.
    pub offset: u16,
    /// How many.
    pub length: u16,
    /// The file that had them.
    pub source: ObjectId,
    /// Where in that file.
    pub from: u64,
}

impl CopiedBytes {
    /// The range of the page.
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        let start = usize::from(self.offset);
        start..start + usize::from(self.length)
    }

    /// Whether the bytes lie within a page, and within what a file can have.
    pub(crate) fn is_possible(&self) -> bool {
        self.range().end <= PAGE_BYTES && self.from <= u64::MAX - PAGE_BYTES_U64
    }
}

impl Record {
    /// Bytes of pages in it.
    pub(crate) fn content_bytes(&self) -> u64 {
        match self {
            Self::Bytes { runs, .. } | Self::Copied { runs, .. } => {
                runs.iter().map(|(_, bytes)| bytes.len() as u64).sum()
            }
            _ => 0,
        }
    }
}

/// The byte runs in which `page` differs from `base` (none: from all zeros), with the
/// bytes that `page` has there, ascending. Empty if they are equal.
pub(crate) fn diff(base: Option<&Page>, page: &Page) -> Vec<(u16, Vec<u8>)> {
    let both = Both {
        old: base.map_or(&[][..], Page::stored),
        new: page.stored(),
    };
    let end = both.old.len().max(both.new.len());
    let mut runs = Vec::new();
    let mut at = both.next_difference(0, end);
    while at < end {
        let start = at;
        let run_end;
        (run_end, at) = both.end_of_run(start, end);
        runs.push((page_offset(start), padded(both.new, start, run_end)));
    }
    runs
}

/// Two contents of a page; bytes that are not stored are zero.
struct Both<'a> {
    old: &'a [u8],
    new: &'a [u8],
}

impl Both<'_> {
    /// Bytes that are compared at once.
    const WORD_BYTES: usize = size_of::<u64>();

    fn differs(&self, at: usize) -> bool {
        let byte = |bytes: &[u8]| bytes.get(at).copied().unwrap_or(0);
        byte(self.old) != byte(self.new)
    }

    fn word_differs(&self, at: usize) -> bool {
        word(self.old, at) != word(self.new, at)
    }

    /// The first offset in `from..end` where the two differ, or `end`.
    fn next_difference(&self, from: usize, end: usize) -> usize {
        let mut at = from;
        while at < end && !self.word_differs(at) {
            at += Self::WORD_BYTES;
        }
        while at < end && !self.differs(at) {
            at += 1;
        }
        at.min(end)
    }

    /// Where the run that begins at `start`, where the two differ, ends, and the next
    /// difference after it, or `end`.
    fn end_of_run(&self, start: usize, end: usize) -> (usize, usize) {
        // After the last byte that is known to belong to the run.
        let mut run_end = start + 1;
        loop {
            // Equal bytes that end the run are so many that an aligned word is among them.
            const { assert!(RUN_GAP_BYTES >= 2 * Both::WORD_BYTES - 1) };
            let mut equal = run_end.next_multiple_of(Self::WORD_BYTES);
            while equal < end && self.word_differs(equal) {
                equal += Self::WORD_BYTES;
            }
            let mut gap = equal.min(end);
            while gap > run_end && !self.differs(gap - 1) {
                gap -= 1;
            }
            let next = self.next_difference(gap, end);
            if next >= end || next - gap >= RUN_GAP_BYTES {
                return (gap, next);
            }
            run_end = next + 1;
        }
    }
}

/// Eight bytes of content, with zeros for what is not stored.
fn word(content: &[u8], at: usize) -> u64 {
    if let Some(bytes) = content.get(at..).and_then(<[u8]>::first_chunk) {
        return u64::from_ne_bytes(*bytes);
    }
    let mut bytes = [0; size_of::<u64>()];
    let stored = content.get(at..).unwrap_or_default();
    bytes[..stored.len()].copy_from_slice(stored);
    u64::from_ne_bytes(bytes)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As it is defined: a run ends where enough equal bytes follow, or only equal ones.
    fn runs_byte_by_byte(old: &[u8], new: &[u8]) -> Vec<(u16, Vec<u8>)> {
        let byte = |bytes: &[u8], at: usize| bytes.get(at).copied().unwrap_or(0);
        let end = old.len().max(new.len());
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for at in (0..end).filter(|&at| byte(old, at) != byte(new, at)) {
            match runs.last_mut() {
                Some(last) if at - last.1 < RUN_GAP_BYTES => last.1 = at + 1,
                _ => runs.push((at, at + 1)),
            }
        }
        let content = |&(start, end): &(usize, usize)| (start..end).map(|at| byte(new, at));
        runs.iter()
            .map(|run| (page_offset(run.0), content(run).collect()))
            .collect()
    }

    #[test]
    fn runs_are_the_same_whatever_is_compared_at_once() {
        let mut state = 1_u64;
        let mut below = |limit: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % limit
        };
        for _ in 0..4000 {
            let length = below(200);
            let old: Vec<u8> = (0..length).map(|_| below(256) as u8).collect();
            let mut new = old.clone();
            new.resize(below(200), 7);
            for _ in 0..below(12) {
                let start = below(200).min(new.len());
                let end = (start + below(9)).min(new.len());
                new[start..end].fill(0);
            }
            let (base, page) = (Page::new(&old), Page::new(&new));
            assert_eq!(diff(Some(&base), &page), runs_byte_by_byte(&old, &new));
            assert_eq!(diff(None, &page), runs_byte_by_byte(&[], &new));
        }
    }
}
