//! Programs that are killed: no transaction that was committed is lost, in any class.
//!
//! `MOBIFS_KILLS` says how many, `MOBIFS_KILL_SEED` which.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use common::{
    Place, SAFE_MODES, check, child, count, is_ordinary, make_table, number_from, open, plain,
    purpose, set_mode,
};
use mobifs_testkit::random::Random;
use rusqlite::Connection;

/// Number of the last transaction. Each one replaces all rows, so that half a transaction
/// shows.
fn state(connection: &Connection) -> i64 {
    check(connection);
    let query = "SELECT coalesce(min(b), 0), coalesce(max(b), 0), count(*) FROM t";
    let (least, most, rows): (i64, i64, i64) = connection
        .query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .unwrap();
    assert_eq!(least, most, "half of a transaction is there");
    assert!(rows == 0 || rows == 20, "{rows} rows");
    most
}

fn last(connection: &Connection) -> i64 {
    let query = "SELECT coalesce(max(b), 0) FROM t";
    connection.query_row(query, [], |row| row.get(0)).unwrap()
}

/// Not a test: the program that is killed.
#[test]
fn works_until_it_is_killed() {
    let Some((parameters, path)) = purpose() else {
        return;
    };
    let (modes, parameters) = parameters.split_once(' ').unwrap();
    // Two connections take turns: they delete, empty and keep each other's journals.
    let connections: Vec<Connection> = modes
        .split('/')
        .map(|mode| {
            let connection = open(&path, parameters).unwrap();
            set_mode(&connection, mode);
            // So that logs begin anew, too.
            connection
                .execute_batch("PRAGMA wal_autocheckpoint=20")
                .unwrap();
            connection
        })
        .collect();
    let mut number = state(&connections[0]);
    let mut out = std::io::stdout();
    loop {
        number += 1;
        let connection = &connections[number as usize % connections.len()];
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        // A lost transaction would be replaced by this one.
        assert_eq!(last(connection), number - 1, "{modes}");
        let transaction = format!(
            "DELETE FROM t; \
             WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 20) \
             INSERT INTO t SELECT x, {number}, hex(randomblob(200)) FROM c; COMMIT"
        );
        connection.execute_batch(&transaction).unwrap();
        writeln!(out, "\ncommitted {number}").unwrap();
        out.flush().unwrap();
        if number % 50 == 0 {
            // Closing and opening are killed, too.
            drop(connections);
            return works_again(&path, modes, parameters);
        }
    }
}

fn works_again(path: &Path, modes: &str, parameters: &str) {
    let connection = open(path, parameters).unwrap();
    set_mode(&connection, modes.split('/').next().unwrap());
    connection.close().unwrap();
    works_until_it_is_killed();
}

#[test]
fn no_committed_transaction_is_lost() {
    let kills = number_from("MOBIFS_KILLS", 24);
    let mut dice = Random::new(number_from("MOBIFS_KILL_SEED", 1));
    let mut done = 0;
    while done < kills {
        let place = Place::new();
        let setup = place.open("");
        setup
            .execute_batch("CREATE TABLE t(a INTEGER PRIMARY KEY, b INTEGER, c TEXT)")
            .unwrap();
        setup.close().unwrap();
        let mode = match SAFE_MODES[dice.below(4) as usize] {
            "wal" => "wal/wal".to_owned(),
            first => format!("{first}/{}", SAFE_MODES[dice.below(3) as usize]),
        };
        let parameters = [
            "",
            "&class=durable",
            "&age_max_ms=20",
            "&journal_bytes=64KiB",
        ];
        let parameters = parameters[dice.below(4) as usize];
        let mut committed = 0;
        for _ in 0..8 {
            let after = Duration::from_micros(dice.below(150_000));
            committed = kill_once(
                &place.path(),
                &format!("{mode} {parameters}"),
                after,
                committed,
            );
            done += 1;
            if dice.below(3) == 0 {
                // Another program reads in between.
                let connection = place.open("");
                let found = state(&connection);
                assert!(
                    found >= committed,
                    "{mode}{parameters}: {found} of {committed}"
                );
                committed = found;
            } else {
                look_plainly(&place.path(), committed);
            }
        }
        let connection = place.open("");
        assert!(state(&connection) >= committed, "{mode}{parameters}");
        connection.close().unwrap();
        let rows = if committed > 0 { 20 } else { 0 };
        if rows > 0 {
            is_ordinary(&place.path(), rows);
        }
        eprintln!("{done} kills, {committed} transactions ({mode}{parameters})");
    }
}

/// A program without MobiFS is refused, or finds all that was committed: the program may have
/// closed the database just before it was killed.
fn look_plainly(path: &Path, committed: i64) {
    let plain = plain(path).unwrap();
    let looked = plain.query_row("SELECT count(*) FROM sqlite_master", [], |row| {
        row.get::<_, i64>(0)
    });
    match looked {
        Ok(_) => assert!(state(&plain) >= committed),
        Err(error) => assert!(error.to_string().contains("not a database"), "{error}"),
    }
}

/// Not a test: the program that ends as soon as it has committed.
#[test]
fn commits_and_dies() {
    let Some((pragmas, path)) = purpose() else {
        return;
    };
    let (pragmas, parameters) = pragmas.split_once('&').unwrap_or((&pragmas, ""));
    let connection = open(&path, &format!("&{parameters}")).unwrap();
    connection.execute_batch(pragmas).unwrap();
    connection
        .execute_batch("INSERT INTO t(b) VALUES (1)")
        .unwrap();
    std::process::abort();
}

#[test]
fn a_process_that_dies_right_after_a_commit_loses_nothing() {
    let place = Place::new();
    make_table(&place.open(""));
    let mut rows = 0;
    for mode in SAFE_MODES {
        for synchronous in ["off", "normal", "full"] {
            for locking in ["normal", "exclusive"] {
                let pragmas = format!(
                    "PRAGMA locking_mode={locking}; PRAGMA journal_mode={mode}; \
                     PRAGMA synchronous={synchronous}"
                );
                let died = child("commits_and_dies", &pragmas, &place.path())
                    .output()
                    .unwrap();
                assert!(died.status.code().is_none(), "{:?}", died.stderr);
                rows += 1;
                let connection = place.open("");
                check(&connection);
                assert_eq!(count(&connection), rows, "{pragmas}");
            }
        }
    }
}

/// What a killed process had not committed was lost when the next one was told another directory for the arena.
#[test]
fn the_arena_is_found_under_another_parameter() {
    let place = Place::new();
    make_table(&place.open(""));
    let arenas = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let parameters = [
        String::new(),
        format!("&arena={}", arenas[0].path().display()),
        format!("&arena={}", arenas[1].path().display()),
        "&arena=/no/such/directory".to_owned(),
    ];
    let mut rows = 0;
    for killed in &parameters[..3] {
        for next in &parameters {
            let purpose = format!("PRAGMA synchronous=full{killed}");
            let died = child("commits_and_dies", &purpose, &place.path())
                .output()
                .unwrap();
            assert!(died.status.code().is_none(), "{:?}", died.stderr);
            rows += 1;
            let connection = place.open(next);
            check(&connection);
            assert_eq!(count(&connection), rows, "{killed} then {next}");
        }
    }
    for directory in &arenas {
        let left = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, 0, "an arena that is not needed any more stays");
    }
}

/// Starts the program and kills it so long after its first transaction (or its start, if
/// there is none by then); the last transaction that it said was committed.
fn kill_once(database: &Path, purpose: &str, after: Duration, committed: i64) -> i64 {
    let mut program = child("works_until_it_is_killed", purpose, database)
        .spawn()
        .unwrap();
    let started = Instant::now();
    let output = program.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut last = None;
        for line in BufReader::new(output).lines() {
            let Ok(line) = line else { break };
            if let Some(number) = line.strip_prefix("committed ") {
                last = number.parse().ok().or(last);
            }
        }
        last
    });
    std::thread::sleep(after.saturating_sub(started.elapsed()));
    program.kill().unwrap();
    let status = program.wait().unwrap();
    assert!(
        !status.success() && status.code().is_none(),
        "it failed by itself: {status}"
    );
    let last: Option<i64> = reader.join().unwrap();
    last.unwrap_or(committed).max(committed)
}
