//! The files that SQLite keeps beside a database: journals and the write-ahead log.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// What the names of companions in the store have between the database's name and SQLite's
/// ending. A program without MobiFS finds no file under SQLite's own name, so it takes
/// nothing for the journal of a database that it must not read.
pub(crate) const INFIX: &[u8] = b"-mobifs";

const JOURNAL: &[u8] = b"-journal";
const LOG: &[u8] = b"-wal";
const SUPER: &[u8] = b"-mj";
/// What SQLite appends to [`SUPER`].
const SUPER_DIGITS: usize = 9;
/// Length of SQLite's ending of a super-journal's name.
const SUPER_ENDING_BYTES: usize = SUPER.len() + SUPER_DIGITS;

/// What the name of a database's journal has more than the database's.
pub(crate) const JOURNAL_ADDS_BYTES: usize = INFIX.len() + JOURNAL.len();
/// The most that any companion's has.
pub(crate) const ADDED_BYTES_MAX: usize = INFIX.len() + SUPER_ENDING_BYTES;

/// A file beside a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Companion {
    /// The database's path.
    pub(crate) database: PathBuf,
    /// What SQLite has appended to the database's name.
    pub(crate) ending: Vec<u8>,
}

impl Companion {
    /// Whether it is the journal of a transaction over several databases.
    pub(crate) fn is_super_journal(&self) -> bool {
        self.ending.starts_with(SUPER)
    }

    /// Parses a path: the database and the ending, if it can be a companion's.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let bytes = path.as_os_str().as_bytes();
        let length = ordinary(bytes).or_else(|| super_journal(bytes))?;
        let (database, ending) = bytes.split_at(length);
        let database = PathBuf::from(OsStr::from_bytes(database));
        database.file_name()?;
        let ending = ending.to_vec();
        Some(Self { database, ending })
    }
}

/// Length of the database's path in that of its journal or log.
fn ordinary(bytes: &[u8]) -> Option<usize> {
    let mut endings = [JOURNAL, LOG].into_iter();
    let ending = endings.find(|ending| bytes.ends_with(ending))?;
    Some(bytes.len() - ending.len())
}

/// Length of the database's path in that of the journal of a transaction over several
/// databases: SQLite appends `-mj` and nine hexadecimal digits.
fn super_journal(bytes: &[u8]) -> Option<usize> {
    let length = bytes.len().checked_sub(SUPER_ENDING_BYTES)?;
    let digits = bytes[length..].strip_prefix(SUPER)?;
    digits.iter().all(u8::is_ascii_hexdigit).then_some(length)
}

/// The companions that a program without MobiFS leaves if it does not close a database.
pub(crate) fn left_behind(database: &Path) -> [PathBuf; 2] {
    [JOURNAL, LOG].map(|ending| {
        let mut path = database.as_os_str().to_owned();
        path.push(OsStr::from_bytes(ending));
        path.into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let companion = |path: &str| Companion::of(Path::new(path));
        let journal = companion("/d/a.db-journal").unwrap();
        assert_eq!(journal.database, Path::new("/d/a.db"));
        assert_eq!(journal.ending, b"-journal");
        assert_eq!(companion("/d/a.db-wal").unwrap().ending, b"-wal");
        let joint = companion("/d/a.db-mj0A1B2C9FF").unwrap();
        assert_eq!(joint.database, Path::new("/d/a.db"));
        assert_eq!(joint.ending, b"-mj0A1B2C9FF");
        for other in ["/d/a.db", "/d/a.db-mjx", "/d/a.db-shm", "-wa"] {
            assert_eq!(companion(other), None, "{other}");
        }
    }
}
