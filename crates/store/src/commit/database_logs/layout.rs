//! Where the pages of a database are in SQLite's log and in its rollback journal.
//!
//! Both are a header and then frames: each is a page of the database between a few bytes that begin with the
//! page's number. A frame does not begin where a page of the file begins.

use std::ops::Range;

use mobifs_base::{PAGE_BYTES, PAGE_BYTES_U64, PageIndex};

/// Bytes of a header that are looked at.
pub(in crate::commit) const HEADER_BYTES: usize = 32;
/// Bytes before the content of a frame, at most.
pub(in crate::commit) const FRAME_HEADER_BYTES: usize = 24;
/// A log begins with one of these numbers, which differ in the last bit.
const LOG_MAGIC: u32 = 0x377f_0682;
const ROLLBACK_JOURNAL_MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
const DATABASE_MAGIC: &[u8] = b"SQLite format 3\0";
/// What SQLite takes for a sector, where a write does not harm what is beside it: the header of a
/// rollback journal that is ended is zeros.
const SECTOR_BYTES: u64 = 512;
const PAGE_SIZES: std::ops::RangeInclusive<u64> = 512..=65536;

/// What a file beside a database has pages of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commit) enum Kind {
    /// Those of transactions that are not in the database yet.
    Log,
    /// Those that the database had.
    RollbackJournal,
}

impl Kind {
    /// What a name says, and the names that the database may have. Beside a single file that is a
    /// store, there is `-mobifs` in between.
    pub(in crate::commit) fn of_name(name: &[u8]) -> Option<(Self, [Option<&[u8]>; 2])> {
        let log = name.strip_suffix(b"-wal").map(|of| (Self::Log, of));
        let (kind, database) = log.or_else(|| {
            let of = name.strip_suffix(b"-journal")?;
            Some((Self::RollbackJournal, of))
        })?;
        Some((kind, [Some(database), database.strip_suffix(b"-mobifs")]))
    }
}

/// A part of a page of the file that is content of one page of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commit) struct Part {
    /// Where the frame begins, in the file.
    pub(in crate::commit) frame: u64,
    /// Where the part begins in the page of the database.
    pub(in crate::commit) within_content: u64,
    /// What it takes of the page of the file.
    pub(in crate::commit) within: Range<usize>,
}

/// Where the frames of a file are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::commit) struct Layout {
    header_bytes: u64,
    frame_header_bytes: usize,
    frame_bytes: u64,
    page_bytes: u64,
}

impl Layout {
    /// By the header of the file, and the size of the pages of the database; also the salt of the
    /// frames that count.
    pub(in crate::commit) fn of(
        kind: Kind,
        header: &[u8; HEADER_BYTES],
        page_bytes_of_database: impl FnOnce() -> Option<u64>,
    ) -> Option<(Self, [u8; 8])> {
        let (header_bytes, frame_header_bytes, rest_bytes, page_bytes, salt) = match kind {
            Kind::Log => {
                if number_at(header, 0) & !1 != LOG_MAGIC {
                    return None;
                }
                let mut salt = [0; 8];
                salt.copy_from_slice(&header[16..24]);
                (32, 24, 0, u64::from(number_at(header, 8)), salt)
            }
            Kind::RollbackJournal => {
                let is_valid = header.starts_with(&ROLLBACK_JOURNAL_MAGIC);
                let sector_bytes = match is_valid {
                    true => u64::from(number_at(header, 20)),
                    false => SECTOR_BYTES,
                };
                (sector_bytes, 4, 4, page_bytes_of_database()?, [0; 8])
            }
        };
        let is_size = |bytes: u64| PAGE_SIZES.contains(&bytes) && bytes.is_power_of_two();
        let is_header = kind == Kind::Log || is_size(header_bytes);
        (is_size(page_bytes) && is_header).then_some((
            Self {
                header_bytes,
                frame_header_bytes,
                frame_bytes: frame_header_bytes as u64 + page_bytes + rest_bytes,
                page_bytes,
            },
            salt,
        ))
    }

    pub(in crate::commit) const fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    pub(in crate::commit) const fn frame_header_bytes(&self) -> usize {
        self.frame_header_bytes
    }

    /// Where the frames begin that are in a page of the file, or in a part of it.
    pub(in crate::commit) fn frames(self, index: PageIndex) -> impl Iterator<Item = u64> {
        let (start, end) = (index.offset(), end_of(index));
        let first = start.saturating_sub(self.header_bytes) / self.frame_bytes;
        (first..).map_while(move |number| {
            let frame = number.checked_mul(self.frame_bytes)?;
            let frame = frame.checked_add(self.header_bytes)?;
            (frame < end).then_some(frame)
        })
    }

    /// The content of pages of the database in a page of the file.
    pub(in crate::commit) fn parts(self, index: PageIndex) -> impl Iterator<Item = Part> {
        let (start, end) = (index.offset(), end_of(index));
        self.frames(index).filter_map(move |frame| {
            let content = frame.checked_add(self.frame_header_bytes as u64)?;
            let from = content.max(start);
            let to = content.checked_add(self.page_bytes)?.min(end);
            (from < to).then(|| Part {
                frame,
                within_content: from - content,
                within: (from - start) as usize..(to - start) as usize,
            })
        })
    }
}

fn end_of(index: PageIndex) -> u64 {
    index.offset().saturating_add(PAGE_BYTES_U64)
}

/// The bytes before the content of a frame; of a rollback journal only the first four.
pub(in crate::commit) struct FrameHeader(pub(in crate::commit) [u8; FRAME_HEADER_BYTES]);

impl FrameHeader {
    /// Which page of the database it is; the first one is 1.
    pub(in crate::commit) fn page_number(&self) -> u32 {
        number_at(&self.0, 0)
    }

    pub(in crate::commit) fn salt(&self) -> [u8; 8] {
        let mut salt = [0; 8];
        salt.copy_from_slice(&self.0[8..16]);
        salt
    }
}

/// The size of the pages of a database that begins so.
pub(in crate::commit) fn database_page_bytes(header: &[u8; HEADER_BYTES]) -> Option<u64> {
    if !header.starts_with(DATABASE_MAGIC) {
        return None;
    }
    match u16::from_be_bytes([header[16], header[17]]) {
        1 => Some(65536),
        bytes => Some(u64::from(bytes)),
    }
}

fn number_at(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..)
        .and_then(<[u8]>::first_chunk)
        .map_or(0, |number| u32::from_be_bytes(*number))
}

/// An offset or a length within a page.
#[expect(
    clippy::cast_possible_truncation,
    reason = "nothing within a page is above 4096"
)]
pub(in crate::commit) fn within_page(bytes: usize) -> u16 {
    debug_assert!(bytes <= PAGE_BYTES, "{bytes} is within a page");
    bytes as u16
}
