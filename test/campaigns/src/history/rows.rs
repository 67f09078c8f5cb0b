//! SQLite: each step appends a row in a transaction of its own.

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use mobifs_workloads::workload::sqlite::{JournalMode, check_prefix, insert, open};

use super::returned;

fn database(app: &Path) -> PathBuf {
    app.join("rows.db")
}

/// Appends rows.
pub(super) fn work(
    app: &Path,
    mode: JournalMode,
    from: u64,
    removal_commits: bool,
) -> Result<Infallible, String> {
    let connection = open(&database(app), mode).map_err(|error| error.to_string())?;
    if mode == JournalMode::Delete && !removal_commits {
        // With FULL the last transaction may roll back where a deletion is not durable: SQLite
        // then does not sync the directory from which the journal was deleted.
        let extra = connection.execute_batch("PRAGMA synchronous=EXTRA");
        extra.map_err(|error| error.to_string())?;
    }
    let mut row = from;
    loop {
        row += 1;
        insert(&connection, row).map_err(|error| error.to_string())?;
        returned(row)?;
    }
}

/// The database is consistent and its rows are a prefix of all.
pub(super) fn check(app: &Path) -> Result<u64, String> {
    let database = database(app);
    if !database.exists() {
        return Ok(0);
    }
    check_prefix(&database).map_err(|error| error.to_string())
}
