//! SQLite: each step appends a row in a transaction of its own.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mobifs_workloads::workload::sqlite::{JournalMode, check_prefix, insert, open};

use super::found::Found;
use crate::history::FULL_PAUSE;
use crate::history::returned;

/// How long SQLite may be refused before that is taken for an error.
const PATIENCE: Duration = Duration::from_secs(120);

fn database(app: &Path) -> PathBuf {
    app.join("rows.db")
}

/// Tries again until there is room: a transaction that fails is rolled back.
fn with_room<T, E: std::fmt::Display>(attempt: impl Fn() -> Result<T, E>) -> Result<T, String> {
    let start = Instant::now();
    loop {
        match attempt().map_err(|error| error.to_string()) {
            Err(problem) if problem.contains("full") && start.elapsed() < PATIENCE => {
                std::thread::sleep(FULL_PAUSE);
            }
            other => return other,
        }
    }
}

pub(super) fn work(app: &Path, mode: JournalMode) -> Result<Infallible, String> {
    let connection = with_room(|| open(&database(app), mode))?;
    let mut row = 0;
    loop {
        row += 1;
        with_room(|| insert(&connection, row))?;
        returned(row)?;
    }
}

/// The database is consistent and its rows are a prefix of all.
pub(super) fn check(app: &Path) -> Result<Found, String> {
    let database = database(app);
    if !database.exists() {
        return Ok(Found::after(0));
    }
    let rows = check_prefix(&database).map_err(|error| error.to_string())?;
    Ok(Found::after(rows))
}
