//! A disk that fails under SQLite: each call, once, several times or permanently.
//!
//! Failures are reported with SQLite's codes. Nothing that was committed is lost, and the
//! database is whole: at once, and after the fault when everything goes on.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::simulated::{disk, looked_at_plainly, new_path, start};
use common::{SAFE_MODES, check, number_from, open, set_mode};
use mobifs_store::JournalOptions;
use mobifs_testkit::crash::{Calls, Fault, Harm};
use mobifs_testkit::random::Random;
use rusqlite::{Connection, ErrorCode};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// Number of the last transaction.
fn state(connection: &Connection) -> i64 {
    check(connection);
    let query = "SELECT min(n), max(n) FROM t";
    let (least, most): (i64, i64) = connection
        .query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    assert_eq!(least, most);
    least
}

fn is_expected(error: &rusqlite::Error) -> bool {
    let expected = [
        ErrorCode::SystemIoFailure,
        ErrorCode::DiskFull,
        ErrorCode::ReadOnly,
    ];
    // The code of a failed PRAGMA of ours is a plain error, with the reason in words.
    error.sqlite_error_code().is_some_and(|code| {
        expected.contains(&code) || (code == ErrorCode::Unknown && error.to_string().len() > 20)
    })
}

/// One history with one fault in it.
fn history(seed: u64) {
    let mut dice = Random::new(seed);
    let is_durable = dice.below(2) == 0;
    let journal = JournalOptions {
        journal_bytes: 256 << 10,
        direct_bytes_max: Some(65_536),
        ..JournalOptions::default()
    };
    let lower = disk();
    let alive = start(&lower, &journal, new_path()).unwrap();
    let class = if is_durable { "&class=durable" } else { "" };
    let connection = open(&alive.path, class).unwrap();
    connection
        .execute_batch("PRAGMA cache_size=4; PRAGMA synchronous=FULL")
        .unwrap();
    set_mode(&connection, SAFE_MODES[dice.below(4) as usize]);
    let create = "CREATE TABLE t(a INTEGER PRIMARY KEY, n INTEGER, b BLOB);
                  INSERT INTO t VALUES (1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 0, 0), (5, 0, 0)";
    connection.execute_batch(create).unwrap();
    let all = [Calls::All, Calls::Changes, Calls::Journal, Calls::Syncs];
    let fault = Fault {
        first: 1 + dice.below(60),
        count: [1, 3, u64::MAX][dice.below(3) as usize],
        calls: all[dice.below(4) as usize],
        errno: [EIO, ENOSPC][dice.below(2) as usize],
        harm: [Harm::Nothing, Harm::Half, Harm::Everything][dice.below(3) as usize],
    };
    lower.set_fault(Some(Fault {
        first: lower.calls() + fault.first,
        ..fault
    }));
    let mut committed = 0;
    let mut failed = Vec::new();
    for number in 1..15 {
        let bytes = dice.below(3000);
        let update = format!("UPDATE t SET n = {number}, b = randomblob({bytes})");
        match connection.execute_batch(&update) {
            Ok(()) => committed = number,
            Err(error) => {
                assert!(is_expected(&error), "{fault:?}: {error}");
                failed.push(number);
            }
        }
        if dice.below(4) == 0 {
            let checkpoint = connection.query_row("PRAGMA mobifs_checkpoint", [], |_| Ok(()));
            if let Err(error) = checkpoint {
                assert!(is_expected(&error), "{fault:?}: {error}");
            }
        }
    }
    // The disk works again.
    lower.set_fault(None);
    connection
        .query_row("PRAGMA mobifs_checkpoint", [], |_| Ok(()))
        .unwrap();
    // A transaction that failed is not in the cache that the next one begins with.
    let found = state(&connection);
    // A COMMIT that failed may have happened all the same, if it came after the last that did not
    // fail.
    let is_late = |number: &i64| *number > committed && *number == found;
    assert!(
        found == committed || failed.iter().any(is_late),
        "{fault:?}: {found}, {committed}, {failed:?}"
    );
    let update = "UPDATE t SET n = 99";
    connection.execute_batch(update).unwrap();
    connection.close().unwrap();
    alive.adopted.close().unwrap();
    assert_eq!(looked_at_plainly(&lower, state), Some(99), "{fault:?}");
}

#[test]
fn a_failing_disk_is_reported_and_no_committed_data_is_lost() {
    let seed = number_from("MOBIFS_FAULT_SEED", 1);
    for number in 0..number_from("MOBIFS_FAULTS", 150) {
        history(seed.wrapping_mul(1_000_003) + number);
    }
}
