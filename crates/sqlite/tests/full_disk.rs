//! A disk that is full when the last connection closes: nothing that was committed is lost, the
//! error says that the file is not an ordinary database yet, and it becomes one when there is room
//! and it is opened and closed again. Needs root, to mount.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::time::Duration;

use common::{
    SAFE_MODES, check, child, count, hot_error, insert, is_ordinary, make_table, on_a_small_disk,
    opened, plain, purpose, set_mode, text,
};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode};

/// The mark stayed without an error message.
#[test]
fn a_close_on_a_full_disk_says_so_and_is_made_up_for() {
    for mode in SAFE_MODES {
        on_a_small_disk(|path, disk| {
            let connection = opened(path, "&age_max_ms=600000");
            set_mode(&connection, mode);
            make_table(&connection);
            insert(&connection, 2000);
            disk.fill();
            mobifs_sqlite::forget_last_error();
            drop(connection);
            let message = mobifs_sqlite::last_error();
            let is_closed =
                plain(path).is_ok_and(|plain| plain.execute_batch("SELECT * FROM t").is_ok());
            if is_closed {
                assert_eq!(message, None, "{mode}");
            } else {
                let message = message.unwrap_or_else(|| panic!("{mode}: no message"));
                eprintln!("{mode}: {message}");
                let refused = hot_error(path);
                assert!(refused.contains("not a database"), "{mode}: {refused}");
            }
            disk.clear();
            let connection = opened(path, "");
            check(&connection);
            assert_eq!(count(&connection), 2000, "{mode}");
            connection.close().unwrap();
            is_ordinary(path, 2000);
        });
    }
}

/// SQLite ignores that it cannot bring its log into the database: the mark stayed, without an error
/// message.
#[test]
fn a_log_without_room_in_the_database_is_reported_and_checkpointed_later() {
    on_a_small_disk(|path, disk| {
        let connection = opened(path, "&age_max_ms=600000");
        set_mode(&connection, "wal");
        make_table(&connection);
        connection
            .execute_batch("PRAGMA wal_autocheckpoint=0")
            .unwrap();
        let blob = "INSERT INTO t(b) SELECT hex(randomblob(1500000))";
        for _ in 0..2 {
            connection.execute_batch(blob).unwrap();
        }
        disk.fill();
        connection
            .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)
            .unwrap();
        mobifs_sqlite::forget_last_error();
        drop(connection);
        if plain(path).is_ok_and(|plain| plain.execute_batch("SELECT * FROM t").is_err()) {
            let message = mobifs_sqlite::last_error().unwrap_or_default();
            assert!(!message.is_empty(), "no message");
            eprintln!("{message}");
        }
        disk.clear();
        let connection = opened(path, "");
        assert_eq!(count(&connection), 2);
        connection.close().unwrap();
        is_ordinary(path, 2);
    });
}

/// What plain SQLite reads on a full disk is read.
#[test]
fn a_database_on_a_full_disk_is_opened() {
    on_a_small_disk(|path, disk| {
        let made = plain(path).unwrap();
        make_table(&made);
        insert(&made, 10);
        made.close().unwrap();
        disk.fill();
        let connection = opened(path, "");
        assert_eq!(count(&connection), 10);
        connection.close().unwrap();
        disk.clear();
        let connection = opened(path, "");
        insert(&connection, 1);
        connection.close().unwrap();
        is_ordinary(path, 11);
    });
}

/// Not a test: the program that is killed. It commits as long as there is room, and is in the middle
/// of a transaction when it says so. The purpose: the mode, rows that are there before, parameters.
#[test]
fn writes_until_it_is_killed() {
    let Some((purpose, path)) = purpose() else {
        return;
    };
    let mut words = purpose.split(' ');
    let (mode, parameters) = (words.next().unwrap(), words.next().unwrap());
    let connection = opened(&path, parameters);
    set_mode(&connection, mode);
    let before = count(&connection);
    let mut more = 0;
    while more < 20 && connection.execute_batch(SMALL_ROW).is_ok() {
        more += 1;
    }
    let half = format!("BEGIN; UPDATE t SET b = 'half'; {SMALL_ROW}");
    let _full = connection.execute_batch(&half);
    println!("\nrows {}", before + more);
    loop {
        std::thread::park();
    }
}

const SMALL_ROW: &str = "INSERT INTO t(b) SELECT hex(randomblob(200))";

/// Starts that program, lets it come to its end, and kills it. How many rows it has committed.
fn rows_of_a_killed_program(path: &Path, mode: &str, parameters: &str) -> i64 {
    let purpose = format!("{mode} {parameters}");
    let mut program = child("writes_until_it_is_killed", &purpose, path)
        .spawn()
        .unwrap();
    let lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let rows = lines.map_while(Result::ok).find_map(|line| {
        let rows = line.strip_prefix("rows ")?;
        rows.parse().ok()
    });
    program.kill().unwrap();
    program.wait().unwrap();
    rows.unwrap()
}

/// A program was killed, and then other programs took all room: what it had committed could not even
/// be read before there was room again.
#[test]
fn what_a_killed_program_committed_is_read_on_a_full_disk() {
    for mode in SAFE_MODES {
        for class in ["relaxed", "durable"] {
            on_a_small_disk(|path, disk| {
                let name = format!("{mode}, {class}");
                let parameters = format!("&class={class}&journal_bytes=1MiB&age_max_ms=600000");
                let setup = opened(path, &parameters);
                make_table(&setup);
                insert(&setup, 50);
                setup.close().unwrap();
                let rows = rows_of_a_killed_program(path, mode, &parameters);
                assert!(rows >= 50, "{name}");
                disk.fill();
                // Also of one that opened it when the disk was full.
                let rows_now = rows_of_a_killed_program(path, mode, &parameters);
                assert!(rows_now >= rows, "{name}: {rows_now} of {rows}");
                let connection = opened(path, &parameters);
                check(&connection);
                assert_eq!(count(&connection), rows_now, "{name}");
                let halves = "SELECT count(*) || '' FROM t WHERE b = 'half'";
                assert_eq!(text(&connection, halves), "0", "{name}");
                drop(connection);
                disk.clear();
                let connection = opened(path, &parameters);
                assert_eq!(count(&connection), rows_now, "{name}");
                insert(&connection, 1);
                connection.close().unwrap();
                is_ordinary(path, rows_now + 1);
            });
        }
    }
}

/// What a power cut leaves of a database right now, as nothing is going on: a copy of its file, of
/// its store and of what lies beside them. How many rows are in it.
fn rows_after_a_power_cut(path: &Path) -> i64 {
    let directory = tempfile::tempdir().unwrap();
    let copy = format!("cp -a {}* {}", path.display(), directory.path().display());
    let copied = std::process::Command::new("sh")
        .args(["-c", &copy])
        .status();
    assert!(copied.unwrap().success());
    let connection = opened(&directory.path().join("app.db"), "");
    check(&connection);
    count(&connection)
}

/// The commit failed with `SQLITE_IOERR_FSYNC`, and the transaction was there all the same: at once
/// with a rollback journal, in WAL mode when the database was opened next.
#[test]
fn a_durable_commit_whose_room_another_program_has_taken_is_rolled_back() {
    let without_locks = ["delete&nolock=1", "persist&nolock=1"];
    for place in SAFE_MODES.into_iter().chain(without_locks) {
        let (mode, parameters) = place.split_at(place.find('&').unwrap_or(place.len()));
        for left_bytes in [0, 64 << 10, 1 << 20, 3 << 20, 4 << 20, 6 << 20] {
            on_a_small_disk(|path, disk| {
                let name = format!("{place}, {left_bytes} bytes are left");
                let parameters = format!("&class=durable&journal_bytes=4MiB{parameters}");
                let connection = opened(path, &parameters);
                set_mode(&connection, mode);
                make_table(&connection);
                insert(&connection, 5);
                connection
                    .execute_batch("BEGIN; INSERT INTO t(b) SELECT hex(randomblob(1500000))")
                    .unwrap();
                disk.fill_but(left_bytes);
                let rows = match connection.execute_batch("COMMIT") {
                    Ok(()) => 6,
                    Err(error) => {
                        assert_eq!(
                            error.sqlite_error_code(),
                            Some(ErrorCode::DiskFull),
                            "{name}"
                        );
                        assert!(connection.is_autocommit(), "{name}: not rolled back");
                        5
                    }
                };
                let found = connection.query_row("SELECT count(*) FROM t", [], |row| row.get(0));
                let message = mobifs_sqlite::last_error();
                assert_eq!(found, Ok(rows), "{name}: {message:?}");
                disk.clear();
                assert_eq!(rows_after_a_power_cut(path), rows, "{name}");
                // The engine has room as soon as it checks again.
                let checkpoint = "PRAGMA mobifs_checkpoint";
                connection.query_row(checkpoint, [], |_| Ok(())).unwrap();
                assert_eq!(rows_after_a_power_cut(path), rows, "{name}");
                insert(&connection, 1);
                connection.close().unwrap();
                is_ordinary(path, rows + 1);
            });
        }
    }
}

/// It was `SQLITE_IOERR`.
#[test]
fn a_write_that_finds_no_room_says_that_the_disk_is_full() {
    for mode in SAFE_MODES {
        on_a_small_disk(|path, disk| {
            let connection = opened(path, "&age_max_ms=600000&journal_bytes=4MiB");
            set_mode(&connection, mode);
            make_table(&connection);
            // More than the journal takes: it is committed on the way.
            let blob = "INSERT INTO t(b) SELECT hex(randomblob(4000000))";
            let mut rows = 0;
            for left_bytes in [10 << 20, 3 << 20, 100 << 10, 0] {
                disk.fill_but(left_bytes);
                match connection.execute_batch(blob) {
                    Ok(()) => rows += 1,
                    Err(error) => {
                        let message = mobifs_sqlite::last_error();
                        let code = error.sqlite_error_code();
                        assert_eq!(code, Some(ErrorCode::DiskFull), "{mode}: {message:?}");
                    }
                }
                let found = connection.query_row("SELECT count(*) FROM t", [], |row| row.get(0));
                assert_eq!(found, Ok(rows), "{mode}: {:?}", mobifs_sqlite::last_error());
                disk.clear();
            }
            connection
                .execute_batch("INSERT INTO t(b) VALUES ('small')")
                .unwrap();
            connection.close().unwrap();
            is_ordinary(path, rows + 1);
        });
    }
}

/// What the checkpointer has committed so far.
fn checkpoints(connection: &Connection) -> String {
    let status = text(connection, "PRAGMA mobifs_status");
    let (_, after) = status.split_once("\"checkpoints\":").unwrap();
    after.split([',', '}']).next().unwrap().to_owned()
}

/// A transaction of half the rows, of which SQLite has written most to the database when this
/// returns: its own cache is small.
fn change_rows(connection: &Connection) {
    connection
        .execute_batch(
            "BEGIN; UPDATE t SET b = hex(randomblob(length(b) / 2)) WHERE rowid % 2 = 0; \
             INSERT INTO t(b) SELECT hex(randomblob(400000))",
        )
        .unwrap();
}

/// The oldest change was older than it may be, another program had taken the room, and the commit
/// failed in the middle of the transaction: then nothing could be changed, and so nothing rolled
/// back, until there was room.
#[test]
fn a_transaction_that_an_age_limit_meets_on_a_full_disk_is_rolled_back() {
    for mode in SAFE_MODES {
        for (is_filled_before, left_bytes) in
            [(true, 0), (true, 1 << 20), (false, 0), (false, 1 << 20)]
        {
            on_a_small_disk(|path, disk| {
                let name = format!("{mode}, {left_bytes} bytes are left, {is_filled_before}");
                let connection = opened(path, "&age_max_ms=300&journal_bytes=1MiB");
                set_mode(&connection, mode);
                connection.execute_batch("PRAGMA cache_size=5").unwrap();
                make_table(&connection);
                let rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n \
                            WHERE i < 1000) INSERT INTO t(b) SELECT hex(randomblob(1000)) FROM n";
                connection.execute_batch(rows).unwrap();
                let before = text(
                    &connection,
                    "SELECT sum(length(b)) || min(b) || max(b) FROM t",
                );
                text(&connection, "PRAGMA mobifs_checkpoint");
                let committed = checkpoints(&connection);
                change_rows(&connection);
                if is_filled_before {
                    disk.fill_but(left_bytes);
                    // Longer than the age limit; how much longer does not matter.
                    std::thread::sleep(Duration::from_millis(900));
                } else {
                    while checkpoints(&connection) == committed {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    disk.fill_but(left_bytes);
                }
                let message = |at: &str| format!("{name}, {at}: {:?}", mobifs_sqlite::last_error());
                let rolled_back = connection.execute_batch("ROLLBACK");
                assert!(
                    rolled_back.is_ok(),
                    "{}: {rolled_back:?}",
                    message("ROLLBACK")
                );
                // SQLite says here that it could not roll back.
                let found = connection.query_row("SELECT count(*) FROM t", [], |row| row.get(0));
                assert_eq!(found, Ok(1000), "{}", message("count"));
                let after = text(
                    &connection,
                    "SELECT sum(length(b)) || min(b) || max(b) FROM t",
                );
                assert_eq!(after, before, "{}", message("content"));
                disk.clear();
                text(&connection, "PRAGMA mobifs_checkpoint");
                insert(&connection, 1);
                connection.close().unwrap();
                is_ordinary(path, 1001);
            });
        }
    }
}
