//! Connections that are opened, or closed, at the same time, and what a program without MobiFS
//! finds afterwards.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

use common::{
    Place, SAFE_MODES, check, child, count, insert, is_ordinary, make_table, open, opened, plain,
    purpose, set_mode,
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

/// Each of them looked for the log, found none and made one, and all but the first were told
/// that the file exists: 231 of 320 connections failed with `SQLITE_CANTOPEN`.
#[test]
fn connections_that_access_a_wal_database_first_and_at_once_all_get_in() {
    for round in 0..10 {
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

/// Each waited for the others to leave the database, so none brought the log into it.
#[test]
fn last_connections_that_close_at_once_leave_an_ordinary_database() {
    for mode in SAFE_MODES {
        for round in 0..20 {
            let place = Place::new();
            let path = place.path();
            let setup = place.open("");
            set_mode(&setup, mode);
            make_table(&setup);
            let barrier = Barrier::new(3);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        let connection = opened(&path, "");
                        connection.busy_timeout(Duration::from_secs(60)).unwrap();
                        insert(&connection, 2);
                        barrier.wait();
                        connection.close().unwrap();
                    });
                }
                setup.close().unwrap();
            });
            is_ordinary(&path, 6);
            let _ = round;
        }
    }
}
