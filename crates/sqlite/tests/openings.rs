//! Connections that are opened, or closed, at the same time, and what a program without MobiFS
//! finds afterwards.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{
    Place, SAFE_MODES, check, child, count, hot_error, insert, is_ordinary, make_table, open,
    opened, plain, purpose, set_mode, started_for,
};
use rusqlite::{Connection, ErrorCode};

/// Several threads do this at once, each with its number.
fn at_once(threads: usize, body: impl Fn(usize) + Sync) {
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        for number in 0..threads {
            let (barrier, body) = (&barrier, &body);
            scope.spawn(move || {
                barrier.wait();
                body(number);
            });
        }
    });
}

/// A database in WAL mode that is closed.
fn in_wal_mode() -> Place {
    let place = Place::new();
    let connection = place.open("");
    set_mode(&connection, "wal");
    make_table(&connection);
    connection.close().unwrap();
    place
}

/// Each of them looked for the log, found none and made one, and all but the first got an error
/// because the file exists: 231 of 320 connections failed with `SQLITE_CANTOPEN`.
#[test]
fn connections_that_access_a_wal_database_first_and_at_once_all_get_in() {
    for round in 0..6 {
        let place = in_wal_mode();
        let path = place.path();
        at_once(4, |number| {
            let connection = opened(&path, "");
            connection.busy_timeout(Duration::from_secs(60)).unwrap();
            if round % 2 == 0 {
                assert_eq!(count(&connection), 0, "they only read");
            } else {
                insert(&connection, number);
            }
        });
        is_ordinary(&path, if round % 2 == 0 { 0 } else { 6 });
    }
}

/// Each waited for the others to close the database, so none brought the log into it: the mark
/// stayed after 27 of 150 such closes.
#[test]
fn last_connections_that_close_at_once_leave_an_ordinary_database() {
    for mode in SAFE_MODES {
        for _ in 0..4 {
            let place = Place::new();
            let path = place.path();
            let setup = place.open("");
            set_mode(&setup, mode);
            make_table(&setup);
            at_once(3, |_| {
                let connection = opened(&path, "");
                connection.busy_timeout(Duration::from_secs(60)).unwrap();
                insert(&connection, 2);
            });
            setup.close().unwrap();
            is_ordinary(&path, 6);
            let connections: Vec<Connection> = (0..3)
                .map(|_| {
                    let connection = place.open("");
                    insert(&connection, 1);
                    connection
                })
                .collect();
            let barrier = Barrier::new(connections.len());
            std::thread::scope(|scope| {
                for connection in connections {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        barrier.wait();
                        connection.close().unwrap();
                    });
                }
            });
            is_ordinary(&path, 9);
        }
    }
}

/// The last connection was closed, and the file still locked by what was being dropped: a
/// connection that opened it right then got the error that a program without MobiFS uses it.
#[test]
fn a_database_is_unlocked_when_its_last_connection_is_closed() {
    let place = Place::new();
    make_table(&place.open(""));
    at_once(3, |_| {
        for _ in 0..8 {
            let connection = opened(&place.path(), "");
            connection.busy_timeout(Duration::ZERO).unwrap();
            assert_eq!(count(&connection), 0);
        }
    });
}

/// It reported `SQLITE_CANTOPEN` at once, and no busy timeout held.
#[test]
fn a_busy_timeout_holds_while_a_program_without_mobifs_uses_the_database() {
    for mode in SAFE_MODES {
        let place = Place::new();
        let writer = plain(&place.path()).unwrap();
        set_mode(&writer, mode);
        make_table(&writer);
        insert(&writer, 3);
        writer.execute_batch("BEGIN IMMEDIATE").unwrap();
        insert(&writer, 1);
        let waiting = open(&place.path(), "").unwrap();
        waiting.busy_timeout(Duration::ZERO).unwrap();
        let query = || waiting.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0));
        let error = query().unwrap_err();
        let code = error.sqlite_error_code();
        assert_eq!(code, Some(ErrorCode::DatabaseBusy), "{mode}: {error}");
        let words = mobifs_sqlite::last_error().unwrap();
        assert!(words.contains("without MobiFS"), "{words}");
        waiting.busy_timeout(Duration::from_secs(60)).unwrap();
        let (asked, is_asked) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                is_asked.recv().unwrap();
                writer.execute_batch("COMMIT").unwrap();
                writer.close().unwrap();
            });
            asked.send(()).unwrap();
            assert_eq!(query().unwrap(), 4, "{mode}");
        });
        insert(&waiting, 1);
        waiting.close().unwrap();
        is_ordinary(&place.path(), 5);
    }
}

#[test]
fn a_connection_whose_wait_timed_out_can_be_closed_and_leaves_the_database_alone() {
    let place = Place::new();
    let reader = plain(&place.path()).unwrap();
    make_table(&reader);
    reader.execute_batch("BEGIN; SELECT * FROM t").unwrap();
    let waiting = open(&place.path(), "").unwrap();
    waiting.busy_timeout(Duration::ZERO).unwrap();
    for statement in [
        "SELECT * FROM t",
        "INSERT INTO t(b) VALUES (1)",
        "PRAGMA mobifs_status",
    ] {
        let error = waiting.execute_batch(statement).unwrap_err();
        assert_eq!(
            error.sqlite_error_code(),
            Some(ErrorCode::DatabaseBusy),
            "{statement}: {error}"
        );
    }
    waiting.close().unwrap();
    reader.execute_batch("COMMIT").unwrap();
    insert(&reader, 1);
    reader.close().unwrap();
    is_ordinary(&place.path(), 1);
}

/// The second name's connection got the error that a program without MobiFS uses the database, and
/// SQLite alone lets each name have a journal of its own.
#[test]
fn a_hard_link_is_the_same_database() {
    for mode in SAFE_MODES {
        let place = Place::new();
        let connection = place.open("");
        set_mode(&connection, mode);
        make_table(&connection);
        let link = place.directory.path().join("link.db");
        std::fs::hard_link(place.path(), &link).unwrap();
        let linked = opened(&link, "");
        insert(&linked, 2);
        insert(&connection, 1);
        assert_eq!(count(&linked), 3, "{mode}");
        connection.close().unwrap();
        insert(&linked, 1);
        linked.close().unwrap();
        is_ordinary(&link, 4);
        is_ordinary(&place.path(), 4);
    }
}

/// As a hard link: SQLite identifies files by device and inode.
#[test]
fn a_bind_mount_leads_to_the_same_database() {
    let place = Place::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let mut mount = std::process::Command::new("mount");
    mount.arg("--bind").arg(place.directory.path());
    let status = mount.arg(elsewhere.path()).status();
    if !status.is_ok_and(|status| status.success()) {
        mobifs_skip::skip("nothing can be mounted here");
        return;
    }
    let connection = place.open("");
    make_table(&connection);
    let path = elsewhere.path().join("app.db");
    let bound = open(&path, "");
    let rows = bound.map(|bound| {
        insert(&bound, 2);
        insert(&connection, 1);
        let rows = count(&bound);
        connection.close().unwrap();
        bound.close().unwrap();
        rows
    });
    let umount = std::process::Command::new("umount")
        .arg(elsewhere.path())
        .status();
    assert!(umount.unwrap().success());
    assert_eq!(rows.unwrap(), 3);
    is_ordinary(&place.path(), 3);
}

/// A second process that comes by another name of the file got the error that a program without
/// MobiFS uses it.
#[test]
fn a_process_that_uses_a_database_by_another_name_is_not_reported_as_without_mobifs() {
    let Some((_, link)) = started_for() else {
        let place = Place::new();
        let connection = place.open("");
        make_table(&connection);
        let link = place.directory.path().join("link.db");
        std::fs::hard_link(place.path(), &link).unwrap();
        let entry =
            "a_process_that_uses_a_database_by_another_name_is_not_reported_as_without_mobifs";
        let output = child(entry, "other name", &link).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    };
    let looked = open(&link, "").and_then(|connection| connection.execute_batch("SELECT * FROM t"));
    let code = looked.unwrap_err().sqlite_error_code();
    assert_eq!(code, Some(ErrorCode::DatabaseBusy));
    let words = mobifs_sqlite::last_error().unwrap();
    assert!(
        words.contains("through MobiFS in another process"),
        "{words}"
    );
}

#[test]
fn a_file_put_in_the_place_of_an_open_database_is_not_taken_for_it() {
    let place = Place::new();
    let old = place.open("");
    make_table(&old);
    insert(&old, 1);
    let other = place.directory.path().join("other.db");
    let made = plain(&other).unwrap();
    make_table(&made);
    insert(&made, 7);
    made.close().unwrap();
    std::fs::rename(&other, place.path()).unwrap();
    let new = open(&place.path(), "").unwrap();
    new.busy_timeout(Duration::ZERO).unwrap();
    let error = new
        .query_row("SELECT count(*) FROM t", [], |_| Ok(()))
        .unwrap_err();
    assert_eq!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy));
    let words = mobifs_sqlite::last_error().unwrap();
    assert!(words.contains("replaced"), "{words}");
    assert_eq!(count(&old), 1);
    drop(old);
    assert_eq!(count(&new), 7);
}

/// Where a transaction over two databases is killed.
fn super_journals(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.to_string_lossy().contains("-mj"))
        .collect()
}

/// Not a test: the program that leaves the journal of a transaction over several databases,
/// which nothing names, as a kill leaves it that comes before the first journal names it.
#[test]
fn leaves_a_super_journal_and_dies() {
    let Some((_, path)) = purpose() else { return };
    let connection = opened(&path, "");
    insert(&connection, 1);
    common::plant_super_journal(&path, b"other.db-journal");
    connection
        .query_row("PRAGMA mobifs_checkpoint", [], |_| Ok(()))
        .unwrap();
    std::process::abort();
}

/// It counted as needed for ever: 4 of 620 kills, and then plain SQLite said "file is not a
/// database" after every close.
#[test]
fn a_super_journal_that_no_journal_names_does_not_keep_the_mark() {
    let place = Place::new();
    make_table(&place.open(""));
    let died = child("leaves_a_super_journal_and_dies", "", &place.path())
        .output()
        .unwrap();
    assert!(died.status.code().is_none(), "{died:?}");
    assert!(hot_error(&place.path()).contains("not a database"));
    let connection = place.open("");
    check(&connection);
    assert_eq!(count(&connection), 1);
    connection.close().unwrap();
    is_ordinary(&place.path(), 1);
    assert!(super_journals(place.directory.path()).is_empty());
}

/// A connection kept the journal open that another one deleted, took it for the database's, and
/// rolled back from it what other connections had committed.
#[test]
fn connections_with_different_journal_modes_share_a_database() {
    const ROLLBACK_MODES: [&str; 3] = ["delete", "truncate", "persist"];
    for one_mode in ROLLBACK_MODES {
        for other_mode in ROLLBACK_MODES {
            let place = Place::new();
            let one = place.open("");
            set_mode(&one, one_mode);
            make_table(&one);
            let other = place.open("");
            set_mode(&other, other_mode);
            insert(&other, 2);
            insert(&one, 1);
            assert_eq!(count(&other), 3, "{one_mode} {other_mode}");
            assert_eq!(count(&one), 3, "{one_mode} {other_mode}");
        }
    }
}
