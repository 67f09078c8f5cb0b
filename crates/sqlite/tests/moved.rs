//! Databases that were not closed, and that somebody copied or renamed then.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::Path;

use common::{
    Place, SAFE_MODES, check, child, count, insert, is_ordinary, make_table, open, purpose,
    set_mode,
};
use rusqlite::ErrorCode;

const DURABLE_ROWS: i64 = 100;
const ROWS: i64 = 150;

/// Not a test: the program that does not close its database.
#[test]
fn dies_with_its_database_open() {
    let Some((mode, path)) = purpose() else {
        return;
    };
    let connection = open(&path, "").unwrap();
    set_mode(&connection, &mode);
    make_table(&connection);
    insert(&connection, DURABLE_ROWS.unsigned_abs() as usize);
    let checkpoint = connection.query_row("PRAGMA mobifs_checkpoint", [], |_| Ok(()));
    checkpoint.unwrap();
    insert(&connection, (ROWS - DURABLE_ROWS).unsigned_abs() as usize);
    std::process::abort();
}

/// A database with rows that are durable and some that only memory has, and nobody has it open.
fn not_closed(mode: &str) -> Place {
    let place = Place::new();
    let died = child("dies_with_its_database_open", mode, &place.path())
        .output()
        .unwrap();
    assert!(!died.status.success());
    assert!(place.path().exists(), "{died:?}");
    place
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// A copy has other inodes than those that the journal names: it was an empty database.
#[test]
fn a_copy_has_what_was_durable() {
    for mode in SAFE_MODES {
        let place = not_closed(mode);
        let name = place.path().file_name().unwrap().to_owned();
        let (first, second) = (Place::new(), Place::new());
        copy(place.directory.path(), first.directory.path());
        // Also one of a copy that nobody has opened.
        copy(first.directory.path(), second.directory.path());
        for copied in [first, second] {
            let path = copied.directory.path().join(&name);
            let connection = open(&path, "").unwrap();
            check(&connection);
            let rows = count(&connection);
            assert!((DURABLE_ROWS..=ROWS).contains(&rows), "{mode}: {rows}");
            insert(&connection, 1);
            connection.close().unwrap();
            is_ordinary(&path, rows + 1);
        }
        let connection = place.open("");
        assert_eq!(count(&connection), ROWS, "{mode}");
        connection.close().unwrap();
        is_ordinary(&place.path(), ROWS);
    }
}

/// What was committed is for the old name: without that it was lost, and nobody was told.
#[test]
fn a_database_with_another_name_than_when_it_was_used_is_refused() {
    for mode in SAFE_MODES {
        let place = not_closed(mode);
        let (old, new) = (place.path(), place.directory.path().join("renamed.db"));
        let own = |path: &Path| {
            let mut own = path.as_os_str().to_owned();
            own.push("-mobifs");
            own
        };
        let rename = |from: &Path, to: &Path| {
            fs::rename(from, to).unwrap();
            fs::rename(own(from), own(to)).unwrap();
        };
        rename(&old, &new);
        for _ in 0..2 {
            let opened = open(&new, "").and_then(|connection| {
                connection.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0))
            });
            let error = opened.unwrap_err();
            assert_eq!(
                error.sqlite_error_code(),
                Some(ErrorCode::CannotOpen),
                "{mode}: {error}"
            );
        }
        rename(&new, &old);
        let connection = place.open("");
        assert_eq!(count(&connection), ROWS, "{mode}");
        connection.close().unwrap();
        is_ordinary(&old, ROWS);
    }
}
