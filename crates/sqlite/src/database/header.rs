//! The mark in the file of a database that is in use: see "The mark" in `docs/SQLITE.md`.
//!
//! The file's content, which other programs see, is older than the database, so they must not use
//! it. A database's header says in byte 19 which version of the format a reader must know, and
//! every reader refuses one above 2: while the database is in use the highest bit of that byte is
//! set. An empty database has no header; there a text stands in its place.
//!
//! A connection that has read the database before does not read byte 19 again, unless bytes 24
//! to 39 have changed since: the counter of changes (24 to 27), the size and the free list. It
//! compares them whenever it takes its lock, in the modes with a rollback journal; in WAL mode it
//! never gives its lock back, and the engine cannot have the database meanwhile. So the mark
//! changes the counter, too: its highest bit is inverted, and the second highest bit of byte 19
//! says that it is. Such a connection drops its cache, reads the header, and refuses it. After
//! the last close the counter is what SQLite has made it again, byte for byte: it differs from
//! the one in the mark, so a connection that has read that one reads the header anew as well; and
//! from the one before the mark if anything has changed, as SQLite itself sees to.
//!
//! Adding one to the counter permanently would be noticed, too, but is not enough: SQLite adds one
//! to the counter that it has read, so the first transaction would end with the number that the
//! mark has, and a connection that has read the mark would keep it. It would also leave another
//! file than SQLite without MobiFS does, and need the same change in bytes 92 to 95, which repeat
//! the counter.

use std::ops::Range;

/// What every database begins with.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// The byte of the header that says which version a reader must know.
const READ_VERSION_AT: usize = 19;
/// The first byte of the counter of changes.
const COUNTER_AT: usize = 24;
/// The bytes of the header that bear the mark. They lie in one sector, and are written at once.
pub const MARK_PLACE: Range<usize> = READ_VERSION_AT..COUNTER_AT + 1;
/// The bit of the version that is set while the database is in use.
const MARK: u8 = 0x80;
/// The bit of the version that says that the counter of changes is inverted: earlier versions of
/// MobiFS left the counter as it was.
const COUNTER_IS_INVERTED: u8 = 0x40;
/// The bit of the counter that is inverted.
const COUNTER_BIT: u8 = 0x80;
/// Length of the stand-in for an empty database, and of a header.
pub const HEADER_BYTES: usize = 100;
const STAND_IN_TEXT: &[u8] =
    b"MobiFS: this database is empty so far and in use; open it with vfs=mobifs\n";

/// What stands in the file of an empty database that is in use.
pub fn stand_in() -> [u8; HEADER_BYTES] {
    let mut text = [0; HEADER_BYTES];
    text[..STAND_IN_TEXT.len()].copy_from_slice(STAND_IN_TEXT);
    text
}

/// What the first bytes of a file show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// Nothing is in the file.
    Empty,
    /// An empty database is in use.
    StandIn,
    /// A database.
    Database {
        /// The database is in use, or was when the machine or the program stopped.
        is_marked: bool,
    },
    /// Something else: no database, or an encrypted one.
    Foreign,
}

impl Beginning {
    /// Reads the first bytes of a file: one more than [`HEADER_BYTES`], fewer of a shorter one.
    pub fn of(bytes: &[u8]) -> Self {
        // A power cut may leave the size of a stand-in, and not its text.
        let is_blank = bytes.len() == HEADER_BYTES && bytes.iter().all(|&byte| byte == 0);
        if bytes.is_empty() || is_blank {
            Self::Empty
        } else if bytes.starts_with(STAND_IN_TEXT) {
            Self::StandIn
        } else if !bytes.starts_with(MAGIC) {
            Self::Foreign
        } else {
            let version = bytes.get(READ_VERSION_AT).copied().unwrap_or(0);
            let is_marked = version & MARK != 0;
            Self::Database { is_marked }
        }
    }

    /// Whether the file is that of a database in use.
    pub const fn is_in_use(self) -> bool {
        matches!(self, Self::StandIn | Self::Database { is_marked: true })
    }
}

/// Where in what was read or written from `at` on a byte of the header is, if it is there.
fn place_in(bytes: &[u8], at: u64, place: usize) -> Option<usize> {
    let place = (place as u64).checked_sub(at)?;
    usize::try_from(place).ok().filter(|&it| it < bytes.len())
}

/// Whether a read from `at` on can be unmarked only if the byte before it is known that has the
/// mark.
pub(crate) fn begins_within_mark(at: u64) -> bool {
    (MARK_PLACE.start as u64 + 1..MARK_PLACE.end as u64).contains(&at)
}

/// Adds the mark to unmarked bytes that are to be written at `at`.
pub fn mark(bytes: &mut [u8], at: u64) {
    if let Some(version) = place_in(bytes, at, READ_VERSION_AT) {
        bytes[version] |= MARK | COUNTER_IS_INVERTED;
    }
    if let Some(counter) = place_in(bytes, at, COUNTER_AT) {
        bytes[counter] ^= COUNTER_BIT;
    }
}

/// Removes the mark from bytes that were read at `at`, if they have it.
pub fn unmark(bytes: &mut [u8], at: u64) {
    let Some(version) = place_in(bytes, at, READ_VERSION_AT) else {
        return;
    };
    if bytes[version] & MARK == 0 {
        return;
    }
    if bytes[version] & COUNTER_IS_INVERTED != 0
        && let Some(counter) = place_in(bytes, at, COUNTER_AT)
    {
        bytes[counter] ^= COUNTER_BIT;
    }
    bytes[version] &= !(MARK | COUNTER_IS_INVERTED);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: u8) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[..16].copy_from_slice(MAGIC);
        bytes[18..20].fill(version);
        bytes
    }

    #[test]
    fn kinds_of_headers_are_distinguished() {
        let beginning = |bytes: &[u8]| Beginning::of(bytes);
        assert_eq!(beginning(&[]), Beginning::Empty);
        assert_eq!(beginning(&stand_in()), Beginning::StandIn);
        assert_eq!(
            beginning(&[0; HEADER_BYTES]),
            Beginning::Empty,
            "a power cut"
        );
        assert_eq!(beginning(&[0; HEADER_BYTES + 1]), Beginning::Foreign);
        assert_eq!(beginning(b"SQLite format 2"), Beginning::Foreign);
        for version in [1, 2] {
            let mut bytes = header(version);
            let ordinary = Beginning::Database { is_marked: false };
            assert_eq!(Beginning::of(&bytes), ordinary);
            mark(&mut bytes, 0);
            assert!(Beginning::of(&bytes).is_in_use());
            assert!(bytes[READ_VERSION_AT] > 2, "every reader refuses it");
        }
    }

    /// A plain connection that had read the database did not read the version again, used its
    /// cache, and its changes overwrote what an app had committed.
    #[test]
    fn a_connection_with_a_cache_notices_the_mark_by_the_counter() {
        for counter in [0_u32, 1, 7, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
            let mut bytes = header(2);
            bytes[24..28].copy_from_slice(&counter.to_be_bytes());
            let before = bytes.clone();
            mark(&mut bytes, 0);
            for known in [counter, counter.wrapping_sub(1), counter.wrapping_add(1)] {
                assert_ne!(bytes[24..28], known.to_be_bytes());
            }
            unmark(&mut bytes, 0);
            assert_eq!(bytes, before);
            unmark(&mut bytes, 0);
            assert_eq!(bytes, before, "there was none");
        }
    }

    #[test]
    fn parts_of_a_header_are_marked_as_the_whole_is() {
        let whole = header(1);
        let mut marked = whole.clone();
        mark(&mut marked, 0);
        for at in 0..30 {
            let mut part = whole[at..].to_vec();
            mark(&mut part, at as u64);
            assert_eq!(part, marked[at..]);
            let mut beginning = whole[..at].to_vec();
            mark(&mut beginning, 0);
            assert_eq!(beginning, marked[..at]);
            if !begins_within_mark(at as u64) {
                unmark(&mut part, at as u64);
                assert_eq!(part, whole[at..]);
            }
        }
        mark(&mut [], 0);
        unmark(&mut [], u64::MAX);
    }

    #[test]
    fn a_mark_without_the_counter_is_taken_off() {
        let mut bytes = header(2);
        bytes[READ_VERSION_AT] = 2 | MARK;
        assert!(Beginning::of(&bytes).is_in_use());
        unmark(&mut bytes, 0);
        assert_eq!(bytes, header(2));
    }
}
