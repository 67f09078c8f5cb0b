//! A database through the VFS, as an app sees it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Place, hot_error, is_ordinary};

const MODES: [&str; 6] = ["delete", "truncate", "persist", "memory", "wal", "off"];

#[test]
fn every_journal_mode_gives_what_was_put_and_leaves_an_ordinary_database() {
    for mode in MODES {
        let place = Place::new();
        for round in 0..3 {
            let connection = place.open("");
            let set: String = connection
                .query_row(&format!("PRAGMA journal_mode={mode}"), [], |row| row.get(0))
                .unwrap();
            assert_eq!(set, mode);
            connection
                .execute_batch("CREATE TABLE IF NOT EXISTS t(a INTEGER PRIMARY KEY, b TEXT)")
                .unwrap();
            for number in 0..50 {
                let text = format!("{round} {number}");
                connection
                    .execute("INSERT INTO t(b) VALUES (?)", [text])
                    .unwrap();
            }
            let count: i64 = connection
                .query_row("SELECT count(*) FROM t", [], |row| row.get(0))
                .unwrap();
            assert_eq!(count, (round + 1) * 50, "{mode}");
            let told = hot_error(&place.path());
            assert!(told.contains("locked"), "{told}");
            connection.close().unwrap();
            is_ordinary(&place.path(), (round + 1) * 50);
        }
    }
}
