//! What the tests of the VFS share.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    dead_code,
    unreachable_pub,
    reason = "each test uses what it needs, and fails where something is missing"
)]

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

/// A directory with a database.
pub struct Place {
    pub directory: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        mobifs_sqlite::register().unwrap();
        let directory = tempfile::tempdir().unwrap();
        Self { directory }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("app.db")
    }

    /// Opens it through the VFS; `parameters` begin with `&`.
    pub fn open(&self, parameters: &str) -> Connection {
        self.try_open(parameters).unwrap()
    }

    pub fn try_open(&self, parameters: &str) -> rusqlite::Result<Connection> {
        let uri = format!("file:{}?vfs=mobifs{parameters}", self.path().display());
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_URI;
        Connection::open_with_flags(uri, flags)
    }
}

/// What a program without MobiFS is told.
pub fn hot_error(path: &Path) -> String {
    let plain =
        Connection::open_with_flags_and_vfs(path, OpenFlags::SQLITE_OPEN_READ_WRITE, "unix");
    let looked = plain.and_then(|plain| {
        plain.busy_timeout(std::time::Duration::ZERO)?;
        plain.query_row("SELECT count(*) FROM sqlite_master", [], |row| {
            row.get::<_, i64>(0)
        })
    });
    looked
        .expect_err("told that the database is in use")
        .to_string()
}

/// A program without MobiFS finds a database that is whole, with so many rows.
pub fn is_ordinary(path: &Path, rows: i64) {
    let plain = Connection::open_with_flags_and_vfs(path, OpenFlags::default(), "unix").unwrap();
    let check: String = plain
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(check, "ok");
    let count: i64 = plain
        .query_row("SELECT count(*) FROM t", [], |row| row.get(0))
        .unwrap();
    assert_eq!(count, rows);
    plain.close().unwrap();
}
