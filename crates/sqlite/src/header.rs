//! How the file of a database says that it is in use: see "The mark" in `docs/SQLITE.md`.
//!
//! What other programs find in the file is older than what the database holds, so they must
//! not take it for the database. A database's header says in byte 19 which version of the
//! format a reader must know, and every reader refuses one above 2: while the database is
//! in use the highest bit of that byte is set. An empty database has no header; there a text
//! stands in its place.

/// What every database begins with.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// The byte of the header that says which version a reader must know.
pub const READ_VERSION_AT: usize = 19;
/// The bit of it that is set while the database is in use.
const MARK: u8 = 0x80;
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

/// What the first bytes of a file say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// Nothing is in the file.
    Empty,
    /// An empty database is in use.
    StandIn,
    /// A database.
    Database {
        /// It is in use, or was when the machine or the program stopped.
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

/// The byte that says which version a reader must know, while the database is in use.
pub const fn marked(version: u8) -> u8 {
    version | MARK
}

/// The same while it is not.
pub const fn unmarked(version: u8) -> u8 {
    version & !MARK
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
    fn beginnings_are_told_apart() {
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
            bytes[READ_VERSION_AT] = marked(version);
            assert!(Beginning::of(&bytes).is_in_use());
            assert!(bytes[READ_VERSION_AT] > 2, "every reader refuses it");
            assert_eq!(unmarked(bytes[READ_VERSION_AT]), version);
        }
    }
}
