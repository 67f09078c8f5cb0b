//! What a database of SQLite says of itself (<https://www.sqlite.org/fileformat.html>, 1.3), and what
//! lies beside it.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::Serialize;

/// Bytes of a database's header.
const HEADER_BYTES: usize = 100;
/// The first bytes of a rollback journal that is hot or in use; PERSIST leaves zeros there.
const JOURNAL_MAGIC_BYTES: usize = 8;

/// The journal mode of a database, as far as its files tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JournalMode {
    /// No journal is there: DELETE, or one that leaves nothing (MEMORY, OFF).
    Delete,
    /// An empty journal.
    Truncate,
    /// A journal whose header is zero.
    Persist,
    /// A journal that is in use or hot: any mode but WAL.
    Rollback,
    /// The header of the database says so.
    Wal,
}

/// What is known of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseHead {
    /// Its page size.
    pub page_bytes: u32,
    /// How it is journaled.
    pub mode: JournalMode,
}

impl DatabaseHead {
    /// The database in a file; none if it is no database, or cannot be read.
    #[must_use]
    pub fn read(path: &Path) -> Option<Self> {
        let mut header = [0; HEADER_BYTES];
        open(path)?.read_exact(&mut header).ok()?;
        let (page_bytes, is_wal) = parse(&header)?;
        let mode = if is_wal {
            JournalMode::Wal
        } else {
            rollback_mode(path)
        };
        Some(Self { page_bytes, mode })
    }
}

/// Nothing waits for a pipe that has taken the name, and no link is followed.
fn open(path: &Path) -> Option<std::fs::File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .ok()
}

/// The page size of a header, and whether it says WAL.
fn parse(header: &[u8; HEADER_BYTES]) -> Option<(u32, bool)> {
    const WRITE_VERSION: usize = 18;
    const WAL: u8 = 2;
    if !header.starts_with(b"SQLite format 3\0") {
        return None;
    }
    let page = u32::from(u16::from_be_bytes([header[16], header[17]]));
    // 1 stands for 65536, which two bytes cannot say.
    let page = if page == 1 { 1 << 16 } else { page };
    let is_valid = page.is_power_of_two() && (512..=1 << 16).contains(&page);
    is_valid.then_some((page, header[WRITE_VERSION] == WAL))
}

fn rollback_mode(path: &Path) -> JournalMode {
    let mut name = OsString::from(path);
    name.push("-journal");
    let journal = PathBuf::from(name);
    let Some(file) = open(&journal) else {
        return JournalMode::Delete;
    };
    let mut magic = Vec::with_capacity(JOURNAL_MAGIC_BYTES);
    let read = file
        .take(JOURNAL_MAGIC_BYTES as u64)
        .read_to_end(&mut magic);
    match (read, magic.as_slice()) {
        (Err(_), _) => JournalMode::Rollback,
        (_, []) => JournalMode::Truncate,
        (_, zeros) if zeros.iter().all(|&byte| byte == 0) => JournalMode::Persist,
        _ => JournalMode::Rollback,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode_of(pragma: &str) -> Option<DatabaseHead> {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("a.db");
        let database = rusqlite::Connection::open(&path).unwrap();
        database
            .query_row(&format!("PRAGMA journal_mode={pragma}"), [], |_| Ok(()))
            .unwrap();
        database
            .execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES(1);")
            .unwrap();
        DatabaseHead::read(&path)
    }

    #[test]
    fn modes_are_told_by_what_sqlite_leaves() {
        let is = |mode| {
            Some(DatabaseHead {
                page_bytes: 4096,
                mode,
            })
        };
        assert_eq!(mode_of("delete"), is(JournalMode::Delete));
        assert_eq!(mode_of("truncate"), is(JournalMode::Truncate));
        assert_eq!(mode_of("persist"), is(JournalMode::Persist));
        assert_eq!(mode_of("wal"), is(JournalMode::Wal));
    }

    #[test]
    fn what_is_no_database_is_none() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("x");
        assert_eq!(DatabaseHead::read(&path), None);
        std::fs::write(&path, b"SQLite format 3\0").unwrap();
        assert_eq!(DatabaseHead::read(&path), None, "cut short");
        let mut header = [0; HEADER_BYTES];
        header[..16].copy_from_slice(b"SQLite format 3\0");
        header[16..18].copy_from_slice(&1000_u16.to_be_bytes());
        assert_eq!(parse(&header), None, "no size of a page");
        header[16..18].copy_from_slice(&1_u16.to_be_bytes());
        assert_eq!(parse(&header), Some((65536, false)));
    }
}
