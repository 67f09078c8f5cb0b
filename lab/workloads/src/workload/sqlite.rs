//! SQLite, one small transaction after another with `synchronous=FULL`.

use super::{Limit, Measured, WorkloadError};
use clap::ValueEnum;
use mobifs_numerics::Random;
use rusqlite::{Connection, OpenFlags, params};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Rows that are there before updates and deletes are measured.
const ROWS: u64 = 20_000;
/// Bytes of the text in a row.
const TEXT_BYTES: usize = 100;

/// SQLite's journal modes that survive a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JournalMode {
    /// The rollback journal is deleted at each commit.
    Delete,
    /// It is truncated.
    Truncate,
    /// Its header is overwritten.
    Persist,
    /// A write-ahead log.
    Wal,
}

impl JournalMode {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Delete, Self::Truncate, Self::Persist, Self::Wal];

    /// As the PRAGMA spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Truncate => "truncate",
            Self::Persist => "persist",
            Self::Wal => "wal",
        }
    }
}

/// The statement of each transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Statement {
    /// One new row.
    Insert,
    /// One row chosen at random gets a new text.
    Update,
    /// One row goes; they are deleted in random order.
    Delete,
}

impl Statement {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Insert, Self::Update, Self::Delete];

    /// In lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

/// Opens the database with the journal mode and full synchronisation, and makes the table.
pub fn open(path: &Path, mode: JournalMode) -> Result<Connection, WorkloadError> {
    let connection = Connection::open(path)?;
    let chosen: String =
        connection.query_row(&format!("PRAGMA journal_mode={}", mode.name()), [], |row| {
            row.get(0)
        })?;
    if chosen != mode.name() {
        return Err(WorkloadError::Wrong(format!(
            "asked SQLite for journal mode {}, got {chosen}",
            mode.name()
        )));
    }
    connection.execute_batch(
        "PRAGMA synchronous=FULL;
         CREATE TABLE IF NOT EXISTS item (id INTEGER PRIMARY KEY, stamp INTEGER, body TEXT);
         CREATE INDEX IF NOT EXISTS item_stamp ON item (stamp);",
    )?;
    Ok(connection)
}

/// The text of row `id` at version `stamp`: what a check after a crash compares with.
#[must_use]
pub fn body(id: u64, stamp: u64) -> String {
    let mut random = Random::new(id.wrapping_mul(1_000_003) ^ stamp);
    let mut text = String::with_capacity(TEXT_BYTES + 16);
    while text.len() < TEXT_BYTES {
        text.push_str(&format!("{:016x}", random.next_u64()));
    }
    text.truncate(TEXT_BYTES);
    text
}

/// A database that is ready for transactions of one row each.
#[derive(Debug)]
pub struct Prepared {
    connection: Connection,
    statement: Statement,
    /// Rows to delete, the last first.
    doomed: Vec<u64>,
    random: Random,
}

/// Makes the database of a workload in `directory`; for updates and deletes with its rows.
pub fn prepare(
    directory: &Path,
    mode: JournalMode,
    statement: Statement,
) -> Result<Prepared, WorkloadError> {
    let mut connection = open(&path_of(directory, mode, statement), mode)?;
    if statement != Statement::Insert {
        fill(&mut connection, ROWS)?;
    }
    Ok(Prepared::new(connection, statement))
}

/// Opens a database that [`prepare`] has made.
pub fn reopen(
    directory: &Path,
    mode: JournalMode,
    statement: Statement,
) -> Result<Prepared, WorkloadError> {
    let connection = open(&path_of(directory, mode, statement), mode)?;
    Ok(Prepared::new(connection, statement))
}

fn path_of(directory: &Path, mode: JournalMode, statement: Statement) -> PathBuf {
    directory.join(format!("{}-{statement:?}.db", mode.name()))
}

impl Prepared {
    fn new(connection: Connection, statement: Statement) -> Self {
        let mut doomed: Vec<u64> = (1..=ROWS).collect();
        let mut random = Random::new(7);
        for index in (1..doomed.len()).rev() {
            doomed.swap(index, random.below(index as u64 + 1) as usize);
        }
        Self {
            connection,
            statement,
            doomed,
            random,
        }
    }

    /// Transactions of one row each, as many as `limit` allows.
    pub fn run(mut self, limit: Limit) -> Result<Measured, WorkloadError> {
        let mut times = Vec::new();
        let mut operations = 0;
        let start = Instant::now();
        while limit.goes_on(operations, start) {
            let before = Instant::now();
            match self.statement {
                Statement::Insert => insert(&self.connection, operations + 1)?,
                Statement::Update => {
                    update(&self.connection, 1 + self.random.below(ROWS), operations)?;
                }
                Statement::Delete => {
                    // Only a limit by time can meet this end: every row has gone.
                    let Some(id) = self.doomed.pop() else { break };
                    self.connection
                        .prepare_cached("DELETE FROM item WHERE id=?1")?
                        .execute([id])?;
                }
            }
            times.push(before.elapsed());
            operations += 1;
        }
        let measured = Measured::new(operations, operations * TEXT_BYTES as u64, start.elapsed());
        Ok(measured.with_latencies(times))
    }
}

/// [`prepare`] and [`Prepared::run`].
pub fn transactions(
    directory: &Path,
    mode: JournalMode,
    statement: Statement,
    limit: Limit,
) -> Result<Measured, WorkloadError> {
    prepare(directory, mode, statement)?.run(limit)
}

/// Appends row `id` in a transaction of its own.
pub fn insert(connection: &Connection, id: u64) -> Result<(), WorkloadError> {
    connection
        .prepare_cached("INSERT INTO item (id, stamp, body) VALUES (?1, ?2, ?3)")?
        .execute(params![id, id, body(id, id)])?;
    Ok(())
}

fn update(connection: &Connection, id: u64, stamp: u64) -> Result<(), WorkloadError> {
    connection
        .prepare_cached("UPDATE item SET stamp=?2, body=?3 WHERE id=?1")?
        .execute(params![id, stamp, body(id, stamp)])?;
    Ok(())
}

fn fill(connection: &mut Connection, rows: u64) -> Result<(), WorkloadError> {
    let transaction = connection.transaction()?;
    for id in 1..=rows {
        insert(&transaction, id)?;
    }
    transaction.commit()?;
    Ok(())
}

/// Checks a database that [`insert`] filled in order and a crash cut short: intact, and the
/// rows are exactly 1 to n, each with its own text. Returns n. A database that is not there is an
/// error, and stays so.
pub fn check_prefix(path: &Path) -> Result<u64, WorkloadError> {
    let flags = OpenFlags::default() - OpenFlags::SQLITE_OPEN_CREATE;
    let connection = Connection::open_with_flags(path, flags)?;
    let verdict: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    if verdict != "ok" {
        return Err(WorkloadError::Wrong(format!(
            "{}: {verdict}",
            path.display()
        )));
    }
    let tables: u64 = connection.query_row(
        "SELECT count(*) FROM sqlite_master WHERE name='item'",
        [],
        |row| row.get(0),
    )?;
    if tables == 0 {
        return Ok(0);
    }
    let mut query = connection.prepare("SELECT id, stamp, body FROM item ORDER BY id")?;
    let mut rows = query.query([])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        count += 1;
        let (id, stamp, text): (u64, u64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        if id != count || stamp != count || text != body(count, count) {
            return Err(WorkloadError::Wrong(format!(
                "{}: row {id} where row {count} was written",
                path.display()
            )));
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wrong path was an intact database without rows, and one lay there from then on.
    #[test]
    fn a_database_that_is_checked_is_not_made() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("missing.db");
        check_prefix(&missing).unwrap_err();
        assert!(!missing.exists());
        let connection = Connection::open(&missing).unwrap();
        connection.execute_batch("CREATE TABLE other (id)").unwrap();
        drop(connection);
        assert_eq!(check_prefix(&missing).unwrap(), 0);
    }
}
