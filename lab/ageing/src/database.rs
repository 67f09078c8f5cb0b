//! The work of databases, by SQLite itself. A database counts its transactions in its `user_version`, within
//! each of them, so that one that is there already is not done again.

use std::path::{Path, PathBuf};

use mobifs_numerics::Random;
use rusqlite::{Connection, OpenFlags, params};

use crate::content::mix;
use crate::error::AgeError;
use crate::plan::Database;

pub(crate) const FULL_ADVICE: &str = "the metadata of this filesystem takes more than the plan leaves: age again with \
                                      a lower --full";

/// Which VFS of SQLite is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vfs {
    /// SQLite's own.
    Own,
    /// The VFS of MobiFS.
    Mobifs,
}

/// A database that one thread has open.
#[derive(Debug)]
pub(crate) struct Open {
    connection: Connection,
    path: PathBuf,
    /// Transactions that it has.
    done: u64,
}

impl Open {
    pub(crate) fn new(root: &Path, database: &Database, vfs: Vfs) -> Result<Self, AgeError> {
        let path = root.join(&database.path);
        let of = |error| sqlite(&path, &error);
        let connection = match vfs {
            Vfs::Own => Connection::open(&path),
            Vfs::Mobifs => Connection::open_with_flags(uri(&path), OpenFlags::default()),
        };
        let connection = connection.map_err(of)?;
        let wanted = database.journal.name();
        let chosen: String = connection
            .query_row(&format!("PRAGMA journal_mode={wanted}"), [], |row| {
                row.get(0)
            })
            .map_err(of)?;
        if chosen != wanted {
            return Err(AgeError::Sqlite {
                path,
                message: format!("journal mode {wanted} was asked for, and it is {chosen}"),
            });
        }
        connection
            .execute_batch("PRAGMA synchronous=FULL")
            .map_err(of)?;
        let done = connection
            .query_row("PRAGMA user_version", [], |row| row.get(0))
            .map_err(of)?;
        Ok(Self {
            connection,
            path,
            done,
        })
    }

    /// Does a transaction, if the database does not have it yet.
    pub(crate) fn transaction(&mut self, database: &Database, number: u64) -> Result<(), AgeError> {
        if number < self.done {
            return Ok(());
        }
        if number > self.done {
            return Err(AgeError::Sqlite {
                path: self.path.clone(),
                message: format!(
                    "it has {} transactions and should have {number}: it was changed or damaged since; age \
                     again from the beginning",
                    self.done
                ),
            });
        }
        let done = if number == 0 {
            self.make_tables()
        } else {
            self.change(database, number)
        };
        done.map_err(|error| sqlite(&self.path, &error))?;
        self.done = number + 1;
        Ok(())
    }

    fn make_tables(&self) -> rusqlite::Result<()> {
        self.connection.execute_batch(
            "BEGIN IMMEDIATE;
             CREATE TABLE item (id INTEGER PRIMARY KEY, stamp INTEGER NOT NULL, body BLOB NOT NULL);
             CREATE INDEX item_stamp ON item (stamp);
             PRAGMA user_version = 1;
             COMMIT",
        )
    }

    fn change(&mut self, database: &Database, number: u64) -> rusqlite::Result<()> {
        let mut random = Random::new(mix(database.seed, number));
        let first = database.rows_inserted_by(number) + 1;
        let last = database.rows_inserted_by(number + 1);
        let oldest = (last + 1).saturating_sub(database.rows_max).max(1);
        // A failed transaction is rolled back when this is dropped.
        let transaction = self.connection.transaction()?;
        let body = |random: &mut Random| {
            let mut body = vec![0; database.row_bytes.draw(random) as usize];
            random.fill(&mut body);
            body
        };
        {
            let mut insert = transaction
                .prepare_cached("INSERT INTO item (id, stamp, body) VALUES (?1, ?2, ?3)")?;
            for id in first..=last {
                let stamp = random.next_u64() >> 1;
                insert.execute(params![id, stamp, body(&mut random)])?;
            }
            let mut update =
                transaction.prepare_cached("UPDATE item SET stamp=?2, body=?3 WHERE id=?1")?;
            for _ in 0..database.rows_updated {
                let id = oldest + random.below(last - oldest + 1);
                let stamp = random.next_u64() >> 1;
                update.execute(params![id, stamp, body(&mut random)])?;
            }
            let mut trim = transaction.prepare_cached("DELETE FROM item WHERE id < ?1")?;
            if oldest > 1 {
                trim.execute([oldest])?;
            }
        }
        transaction.execute_batch(&format!("PRAGMA user_version = {}", number + 1))?;
        transaction.commit()
    }

    pub(crate) fn close(self) -> Result<(), AgeError> {
        let path = self.path;
        self.connection
            .close()
            .map_err(|(_, error)| sqlite(&path, &error))
    }
}

fn sqlite(path: &Path, error: &rusqlite::Error) -> AgeError {
    let path = path.to_owned();
    let no_room = rusqlite::ErrorCode::DiskFull;
    if error.sqlite_error_code() == Some(no_room) {
        return AgeError::Full {
            path,
            advice: FULL_ADVICE,
        };
    }
    let said = mobifs_sqlite::last_error();
    let said = said.map_or_else(|| error.to_string(), |said| format!("{error} ({said})"));
    AgeError::Sqlite {
        path,
        message: said.replace('\n', " "),
    }
}

/// The path for SQLite's parser of URIs. Names of the tree are plain; those above it may not be.
fn uri(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let mut text = "file:".to_owned();
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02x}"));
        }
    }
    text + "?vfs=mobifs&journal_bytes=1MiB"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_any_bytes_are_uris() {
        assert!(uri(Path::new("/a b/c?d%#.db")).starts_with("file:/a%20b/c%3fd%25%23.db?vfs="));
    }
}
