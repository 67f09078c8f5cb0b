//! `PRAGMA mobifs_status`, `mobifs_checkpoint` and `mobifs_class`.

use serde::Serialize;

use crate::database::Database;
use crate::failure::Failure;
use crate::options::Options;

/// What the names of ours begin with.
const PREFIX: &str = "mobifs_";

/// What `PRAGMA mobifs_status` returns, as JSON.
#[derive(Debug, Serialize)]
struct Report {
    /// `relaxed` or `durable`.
    class: String,
    /// What a power cut would take right now, in bytes.
    bytes_at_risk: u64,
    /// Age of the oldest change that a power cut would take, in seconds.
    seconds_at_risk: f64,
    /// Age of the last checkpoint since the database was opened, in seconds; null: none yet.
    last_checkpoint_seconds: Option<f64>,
    /// Checkpoints since the database was opened.
    checkpoints: u64,
    /// Bytes that SQLite wrote to the database's files since it was opened.
    written_bytes: u64,
    /// Bytes written to the device since then, by checkpoints and by applying them.
    device_written_bytes: u64,
    /// Committed bytes that wait in the journal for being applied.
    journal_used_bytes: u64,
    /// Memory in use, and how much may be.
    memory_used_bytes: u64,
    memory_budget_bytes: u64,
    /// Whether nothing is lost if the process is killed now.
    outlives_process: bool,
    /// Why nothing can be changed; null if it can.
    read_only: Option<String>,
}

/// Whether a PRAGMA may be one of ours.
pub(crate) fn is_ours(name: &str) -> bool {
    let beginning = name.get(..PREFIX.len());
    beginning.is_some_and(|beginning| beginning.eq_ignore_ascii_case(PREFIX))
}

/// Answers one of our PRAGMAs; none if it is not ours.
///
/// # Errors
/// [`Failure`].
pub(crate) fn answer(
    database: &Database,
    name: &str,
    argument: Option<&str>,
) -> Option<Result<String, Failure>> {
    match name.to_ascii_lowercase().as_str() {
        "mobifs_status" => Some(Ok(status(database))),
        "mobifs_checkpoint" => Some(database.commit().map(|()| "ok".to_owned())),
        "mobifs_class" => Some(class(database, argument)),
        _ => None,
    }
}

fn status(database: &Database) -> String {
    let status = database.status();
    let app = status.apps.first();
    let report = Report {
        class: class_name(database),
        bytes_at_risk: app.map_or(0, |app| app.bytes_at_risk),
        seconds_at_risk: app.map_or(0.0, |app| app.seconds_at_risk),
        last_checkpoint_seconds: app
            .and_then(|app| app.last_checkpoint.as_ref())
            .map(|last| last.age_seconds),
        checkpoints: status.store.commits,
        written_bytes: app.map_or(0, |app| app.bytes_written_by_app),
        device_written_bytes: status.store.commit_written_bytes + status.store.apply_written_bytes,
        journal_used_bytes: status.store.journal_used_bytes,
        memory_used_bytes: status.memory.used_bytes,
        memory_budget_bytes: status.memory.budget_bytes,
        outlives_process: database.outlives_process(),
        read_only: app.and_then(|app| app.read_only.clone()),
    };
    serde_json::to_string(&report).unwrap_or_default()
}

fn class(database: &Database, argument: Option<&str>) -> Result<String, Failure> {
    if let Some(wanted) = argument {
        let change = Options::read(&|name| (name == "class").then(|| wanted.to_owned()))?;
        database.change(&change)?;
        if database.is_durable() {
            // What was done before is promised from now on, too.
            database.commit()?;
        }
    }
    Ok(class_name(database))
}

fn class_name(database: &Database) -> String {
    let name = if database.is_durable() {
        "durable"
    } else {
        "relaxed"
    };
    name.to_owned()
}
