//! When the device below databases is measured: once for many, and for those that commit much only.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::{Path, PathBuf};

use common::{child, insert, is_ordinary, make_table, opened, purpose, set_mode};
use mobifs_store::{Calibration, PosixLower, StoreScope, inspect};

/// New databases of each process.
const DATABASES: u16 = 20;
/// What each writes at most: zeros of its journal, and what a few rows take. A measurement alone is 7 MiB.
const DATABASE_BYTES_MAX: u64 = (1 << 20) + (256 << 10);
const PARAMETERS: &str = "&journal_bytes=1MiB&class=durable";
/// What a database commits before it is measured, in MiB.
const MEASURED_AFTER_MIB: u16 = 128;

/// What this process has written so far, to files of any filesystem.
fn written_bytes() -> u64 {
    let counters = std::fs::read_to_string("/proc/self/io").unwrap();
    let mut lines = counters.lines();
    let written = lines.find_map(|line| line.strip_prefix("wchar: "));
    written.unwrap().parse().unwrap()
}

fn database(directory: &Path, process: &str, number: u16) -> PathBuf {
    directory.join(format!("{process}-{number}.db"))
}

/// What was measured of the device below a database that is closed.
fn calibration(path: &Path) -> Option<Calibration> {
    let scope = StoreScope::File(path.file_name().unwrap().to_owned());
    let lower = PosixLower::open_scoped(path.parent().unwrap(), scope).unwrap();
    inspect(&lower).unwrap().calibration
}

/// Not a test: a program that makes databases and says what it wrote.
#[test]
fn makes_small_databases() {
    let Some((process, directory)) = purpose() else {
        return;
    };
    let before = written_bytes();
    for number in 0..DATABASES {
        let connection = opened(&database(&directory, &process, number), PARAMETERS);
        set_mode(&connection, ["wal", "delete"][usize::from(number % 2)]);
        make_table(&connection);
        insert(&connection, 5);
        connection.close().unwrap();
    }
    println!("written_bytes={}", written_bytes() - before);
}

/// In an app with 39 databases four fifths of what was written were measurements.
#[test]
fn small_databases_are_not_measured() {
    let place = tempfile::tempdir().unwrap();
    for process in ["first", "second"] {
        let program = child("makes_small_databases", process, place.path()).output();
        let output = program.unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{said}");
        let written = said.split_once("written_bytes=").unwrap().1;
        let written = written.lines().next().unwrap();
        let written_bytes: u64 = written.parse().unwrap();
        println!("{process} process: {written_bytes} bytes for {DATABASES} databases");
        assert!(
            written_bytes < u64::from(DATABASES) * DATABASE_BYTES_MAX,
            "the {process} process has written {written_bytes} bytes"
        );
        for number in 0..DATABASES {
            let path = database(place.path(), process, number);
            is_ordinary(&path, 5);
            assert_eq!(calibration(&path), None);
        }
    }
}

/// Not a test: a program with a database that commits much, or had done so, and others.
#[test]
fn uses_databases_on_a_measured_device() {
    let Some((process, directory)) = purpose() else {
        return;
    };
    let early = opened(&database(&directory, &process, 0), PARAMETERS);
    make_table(&early);
    let large_path = directory.join("large.db");
    let large = opened(&large_path, PARAMETERS);
    if process == "first" {
        make_table(&large);
        for _ in 0..=MEASURED_AFTER_MIB {
            large
                .execute("REPLACE INTO t VALUES (1, randomblob(1048576))", [])
                .unwrap();
        }
    }
    large.close().unwrap();
    let measured = calibration(&large_path).unwrap();
    assert_eq!(measured.sizes.len(), 7);
    // New ones, and those that are open.
    let before = written_bytes();
    let configured = format!("{PARAMETERS}&direct_write_max_bytes=8KiB");
    for (number, parameters) in [(1, PARAMETERS), (2, &configured)] {
        let new = opened(&database(&directory, &process, number), parameters);
        make_table(&new);
        new.close().unwrap();
    }
    early.close().unwrap();
    let written_bytes = written_bytes() - before;
    assert!(written_bytes < 3 * DATABASE_BYTES_MAX, "{written_bytes}");
    let of = |number| calibration(&database(&directory, &process, number));
    assert_eq!(
        [of(0), of(1), of(2)],
        [Some(measured.clone()), Some(measured), None]
    );
}

#[test]
fn one_measurement_serves_all_databases_on_the_device() {
    let place = tempfile::tempdir().unwrap();
    for process in ["first", "second"] {
        let entry = "uses_databases_on_a_measured_device";
        let status = child(entry, process, place.path()).status().unwrap();
        assert!(status.success(), "{process}: {status}");
        is_ordinary(&place.path().join("large.db"), 1);
    }
}
