//! A database through the VFS, as an app sees it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{
    MODES, Place, SAFE_MODES, check, child, count, hot_error, insert, is_ordinary, make_table,
    on_a_small_disk, open, plain, set_mode, started_for, text,
};
use rusqlite::backup::Backup;
use rusqlite::{Connection, ErrorCode, OpenFlags};

fn status(connection: &Connection) -> serde_json::Value {
    serde_json::from_str(&text(connection, "PRAGMA mobifs_status")).unwrap()
}

#[test]
fn every_journal_mode_gives_what_was_put_and_leaves_an_ordinary_database() {
    for mode in MODES {
        let place = Place::new();
        for round in 1..4 {
            let connection = place.open("");
            set_mode(&connection, mode);
            make_table(&connection);
            insert(&connection, 50);
            assert_eq!(count(&connection), round * 50, "{mode}");
            let message = hot_error(&place.path());
            assert!(message.contains("locked"), "{message}");
            connection.close().unwrap();
            is_ordinary(&place.path(), round * 50);
        }
        let left: Vec<_> = std::fs::read_dir(place.directory.path()).unwrap().collect();
        assert_eq!(
            left.len(),
            2,
            "{mode}: the database and what may be deleted: {left:?}"
        );
    }
}

#[test]
fn what_mobifs_keeps_beside_a_closed_database_may_be_deleted() {
    let place = Place::new();
    let connection = place.open("");
    make_table(&connection);
    connection.close().unwrap();
    std::fs::remove_dir_all(place.directory.path().join("app.db-mobifs")).unwrap();
    let connection = place.open("");
    insert(&connection, 3);
    connection.close().unwrap();
    is_ordinary(&place.path(), 3);
}

#[test]
fn a_database_may_be_used_with_and_without_mobifs_in_turn() {
    let place = Place::new();
    let mut rows = 0;
    for mode in SAFE_MODES {
        let connection = place.open("");
        set_mode(&connection, mode);
        make_table(&connection);
        insert(&connection, 10);
        connection.close().unwrap();
        let plain = plain(&place.path()).unwrap();
        insert(&plain, 10);
        plain.close().unwrap();
        rows += 20;
        assert_eq!(count(&place.open("")), rows, "{mode}");
    }
}

#[test]
fn a_rollback_goes_back_in_every_safe_mode() {
    for mode in SAFE_MODES {
        let place = Place::new();
        let mut connection = place.open("");
        set_mode(&connection, mode);
        make_table(&connection);
        insert(&connection, 10);
        // More than the page cache takes, so that the database is written to on the way.
        connection.execute_batch("PRAGMA cache_size=10").unwrap();
        let transaction = connection.transaction().unwrap();
        insert(&transaction, 2000);
        transaction.rollback().unwrap();
        assert_eq!(count(&connection), 10, "{mode}");
        check(&connection);
        connection.close().unwrap();
        is_ordinary(&place.path(), 10);
    }
}

#[test]
fn the_first_transaction_rolled_back_leaves_an_empty_database() {
    let place = Place::new();
    let mut connection = place.open("");
    let transaction = connection.transaction().unwrap();
    make_table(&transaction);
    insert(&transaction, 100);
    transaction.rollback().unwrap();
    let tables = "SELECT count(*) FROM sqlite_master";
    let found: i64 = connection.query_row(tables, [], |row| row.get(0)).unwrap();
    assert_eq!(found, 0);
    connection.close().unwrap();
    assert_eq!(std::fs::metadata(place.path()).unwrap().len(), 0);
    let connection = place.open("");
    make_table(&connection);
    connection.close().unwrap();
    is_ordinary(&place.path(), 0);
}

#[test]
fn a_database_that_is_only_looked_at_is_not_touched() {
    let place = Place::new();
    let connection = plain(&place.path()).unwrap();
    make_table(&connection);
    insert(&connection, 5);
    connection.close().unwrap();
    let before = std::fs::read(place.path()).unwrap();
    let modified = || std::fs::metadata(place.path()).unwrap().modified().unwrap();
    let time = modified();
    let connection = place.open("");
    assert_eq!(count(&connection), 5);
    connection.close().unwrap();
    assert_eq!(std::fs::read(place.path()).unwrap(), before);
    assert_eq!(modified(), time);
}

/// A user's shell ended at an error without closing an empty database, which nothing had been
/// written to; SQLite without MobiFS refused it from then on.
#[test]
fn an_empty_database_that_is_only_looked_at_stays_empty() {
    let place = Place::new();
    let connection = place.open("");
    let tables = "SELECT count(*) FROM sqlite_master";
    let found: i64 = connection.query_row(tables, [], |row| row.get(0)).unwrap();
    assert_eq!(found, 0);
    let bytes = || std::fs::metadata(place.path()).unwrap().len();
    assert_eq!(bytes(), 0, "also while it is open");
    make_table(&connection);
    assert_ne!(bytes(), 0, "what was changed is only in the engine");
    connection.close().unwrap();
    is_ordinary(&place.path(), 0);
}

#[test]
fn big_things_go_through() {
    let place = Place::new();
    let mut connection = place.open("&memory_budget_bytes=4MiB");
    make_table(&connection);
    let transaction = connection.transaction().unwrap();
    // Several times the memory.
    let insert = "INSERT INTO t(b) SELECT hex(zeroblob(50000))";
    for _ in 0..300 {
        transaction.execute(insert, []).unwrap();
    }
    transaction.commit().unwrap();
    connection
        .execute_batch("DELETE FROM t WHERE a % 2; VACUUM")
        .unwrap();
    check(&connection);
    let mut copy = Connection::open_in_memory().unwrap();
    let backup = Backup::new(&connection, &mut copy).unwrap();
    backup
        .run_to_completion(1000, Duration::ZERO, None)
        .unwrap();
    drop(backup);
    assert_eq!(count(&copy), 150);
    connection.close().unwrap();
    is_ordinary(&place.path(), 150);
}

#[test]
fn page_sizes_change() {
    let place = Place::new();
    for size in [512, 65536, 4096, 1024] {
        let connection = place.open("");
        let change = format!("PRAGMA page_size={size}; VACUUM");
        make_table(&connection);
        connection.execute_batch(&change).unwrap();
        insert(&connection, 100);
        check(&connection);
        connection.close().unwrap();
        let now: i64 = plain(&place.path())
            .unwrap()
            .query_row("PRAGMA page_size", [], |row| row.get(0))
            .unwrap();
        assert_eq!(now, size);
    }
    is_ordinary(&place.path(), 400);
}

#[test]
fn the_pragmas_report_and_change_settings() {
    let place = Place::new();
    let connection = place.open("");
    make_table(&connection);
    insert(&connection, 10);
    let before = status(&connection);
    assert_eq!(before["class"], "relaxed");
    assert!(before["bytes_at_risk"].as_u64().unwrap() > 0, "{before}");
    assert_eq!(before["outlives_process"], true);
    assert_eq!(text(&connection, "PRAGMA mobifs_checkpoint"), "ok");
    let after = status(&connection);
    assert_eq!(after["bytes_at_risk"], 0);
    assert!(after["checkpoints"].as_u64() > before["checkpoints"].as_u64());
    assert_eq!(text(&connection, "PRAGMA mobifs_class"), "relaxed");
    assert_eq!(text(&connection, "PRAGMA mobifs_class=durable"), "durable");
    insert(&connection, 1);
    assert_eq!(status(&connection)["bytes_at_risk"], 0);
    let refused = connection
        .query_row("PRAGMA mobifs_class=sometimes", [], |_| Ok(()))
        .unwrap_err();
    assert!(refused.to_string().contains("not a class"), "{refused}");
}

/// In a process of its own: as long as a transaction over several databases commits anywhere in a
/// process, every sync there is a commit.
#[test]
fn a_durable_transaction_is_one_small_commit_in_every_mode() {
    let entry = "a_durable_transaction_is_one_small_commit_in_every_mode";
    if started_for().is_none() {
        let output = child(entry, "alone", Path::new("/")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    for mode in SAFE_MODES {
        let place = Place::new();
        // However slow the machine is, no commit comes of age.
        let connection = place.open("&class=durable&age_max_ms=600000");
        set_mode(&connection, mode);
        connection.execute_batch("PRAGMA synchronous=FULL").unwrap();
        make_table(&connection);
        insert(&connection, 1);
        let number = |name: &str| status(&connection)[name].as_u64().unwrap();
        let (commits, bytes) = (number("checkpoints"), number("device_written_bytes"));
        insert(&connection, 10);
        assert_eq!(number("checkpoints") - commits, 10, "{mode}");
        let bytes = number("device_written_bytes") - bytes;
        assert!(bytes <= 10 * 8192, "{mode}: {bytes}");
        assert_eq!(number("bytes_at_risk"), 0);
        // Without a sync SQLite promises nothing.
        connection.execute_batch("PRAGMA synchronous=OFF").unwrap();
        insert(&connection, 10);
        assert_eq!(number("checkpoints") - commits, 10, "{mode}");
    }
}

#[test]
fn rollback_journals_never_reach_the_device() {
    let place = Place::new();
    let connection = place.open("");
    set_mode(&connection, "delete");
    make_table(&connection);
    insert(&connection, 1000);
    connection
        .query_row("PRAGMA mobifs_checkpoint", [], |_| Ok(()))
        .unwrap();
    let status = status(&connection);
    let written = status["written_bytes"].as_u64().unwrap();
    let reached = status["device_written_bytes"].as_u64().unwrap();
    assert!(written > 8 << 20 && reached < 1 << 20, "{status}");
}

#[test]
fn a_transaction_over_several_databases_is_atomic_and_committed() {
    let place = Place::new();
    let connection = place.open("");
    make_table(&connection);
    let other = place.directory.path().join("other.db");
    let attach = format!("ATTACH 'file:{}?vfs=mobifs' AS other", other.display());
    connection.execute_batch(&attach).unwrap();
    let both = "CREATE TABLE other.u(a); BEGIN; INSERT INTO t(b) VALUES (1); \
                INSERT INTO other.u VALUES (1); COMMIT";
    connection.execute_batch(both).unwrap();
    // In both databases: each alone could be ahead of the other after a power cut.
    for schema in ["main", "other"] {
        let status = text(&connection, &format!("PRAGMA {schema}.mobifs_status"));
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        assert!(
            status["checkpoints"].as_u64().unwrap() > 0,
            "{schema}: {status}"
        );
    }
    connection.close().unwrap();
    is_ordinary(&place.path(), 1);
    plain(&other)
        .unwrap()
        .query_row("SELECT a FROM u", [], |_| Ok(()))
        .unwrap();
}

#[test]
fn a_database_that_was_left_open_without_mobifs_is_recovered_first() {
    for mode in ["delete", "wal"] {
        let place = Place::new();
        let before = place.directory.path().join("before.db");
        let connection = plain(&before).unwrap();
        set_mode(&connection, mode);
        make_table(&connection);
        insert(&connection, 10);
        if mode == "delete" {
            connection
                .execute_batch("PRAGMA cache_size=5; BEGIN")
                .unwrap();
            insert(&connection, 2000);
        }
        // As a power cut leaves it.
        for ending in ["", "-journal", "-wal"] {
            let from = before.with_file_name(format!("before.db{ending}"));
            let to = place.directory.path().join(format!("app.db{ending}"));
            if from.exists() {
                std::fs::copy(from, to).unwrap();
            }
        }
        let connection = place.open("");
        assert_eq!(count(&connection), 10, "{mode}");
        insert(&connection, 1);
        connection.close().unwrap();
        is_ordinary(&place.path(), 11);
    }
}

#[test]
fn a_log_that_sqlite_leaves_keeps_the_database_ours() {
    let place = Place::new();
    let connection = place.open("");
    set_mode(&connection, "wal");
    make_table(&connection);
    connection
        .set_db_config(
            rusqlite::config::DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE,
            true,
        )
        .unwrap();
    insert(&connection, 10);
    connection.close().unwrap();
    let message = hot_error(&place.path());
    assert!(message.contains("not a database"), "{message}");
    let connection = place.open("");
    assert_eq!(count(&connection), 10);
    connection.close().unwrap();
    is_ordinary(&place.path(), 10);
}

#[test]
fn what_is_no_database_is_refused_and_left_alone() {
    let place = Place::new();
    let content = b"this is not a database, but long enough to be one, if it only began like one";
    std::fs::write(place.path(), content).unwrap();
    let error = open(&place.path(), "").unwrap_err();
    assert_eq!(error.sqlite_error_code(), Some(ErrorCode::NotADatabase));
    let why = mobifs_sqlite::last_error().unwrap();
    assert!(why.contains("encrypted"), "{why}");
    assert_eq!(std::fs::read(place.path()).unwrap(), content);
    assert!(!place.directory.path().join("app.db-mobifs").exists());
}

#[test]
fn a_database_that_was_deleted_while_in_use_leaves_no_memory_behind() {
    let place = Place::new();
    let arenas = tempfile::tempdir().unwrap();
    let connection = place.open(&format!("&arena={}", arenas.path().display()));
    make_table(&connection);
    let kept = || std::fs::read_dir(arenas.path()).unwrap().count();
    assert_eq!(kept(), 1);
    std::fs::remove_file(place.path()).unwrap();
    std::fs::remove_dir_all(place.directory.path().join("app.db-mobifs")).unwrap();
    connection.close().unwrap();
    assert!(mobifs_sqlite::last_error().is_some(), "it cannot be closed");
    assert_eq!(kept(), 0);
}

#[test]
fn wrong_parameters_are_named() {
    let place = Place::new();
    for (parameters, name) in [
        ("&class=often", "class"),
        ("&age_max_ms=never", "age_max_ms"),
        ("&journal_bytes=1", "journal_bytes"),
    ] {
        open(&place.path(), parameters).unwrap_err();
        let why = mobifs_sqlite::last_error().unwrap();
        assert!(why.contains(name), "{why}");
    }
    let _open = place.open("");
    open(&place.path(), "&journal_bytes=16MiB").unwrap_err();
    let why = mobifs_sqlite::last_error().unwrap();
    assert!(
        why.contains("open in this process with another journal_bytes"),
        "{why}"
    );
}

#[test]
fn a_read_only_directory_is_left_to_sqlite() {
    let place = Place::new();
    let connection = plain(&place.path()).unwrap();
    make_table(&connection);
    insert(&connection, 5);
    connection.close().unwrap();
    let uri = format!("file:{}?vfs=mobifs&immutable=1", place.path().display());
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(uri, flags).unwrap();
    assert_eq!(count(&connection), 5);
    assert!(!place.directory.path().join("app.db-mobifs").exists());
}

#[test]
fn a_full_disk_is_reported_and_no_acknowledged_data_is_lost() {
    on_a_small_disk(|path, disk| {
        let ballast = &disk.ballast();
        std::fs::write(ballast, vec![1; 2 << 20]).unwrap();
        fill(path, ballast);
    });
}

/// The database stayed read-only until a checkpoint was asked for.
#[test]
fn room_that_others_have_taken_and_given_back_is_found_by_itself() {
    on_a_small_disk(|path, disk| {
        let ballast = &disk.ballast();
        let connection = open(path, "&age_max_ms=600000").unwrap();
        make_table(&connection);
        let blob = "INSERT INTO t(b) SELECT hex(randomblob(1000000))";
        connection.execute_batch(blob).unwrap();
        connection.execute_batch(blob).unwrap();
        let mut others = std::fs::File::create(ballast).unwrap();
        let error = std::iter::repeat_with(|| others.write_all(&[1; 4096])).find_map(Result::err);
        assert_eq!(error.unwrap().kind(), std::io::ErrorKind::StorageFull);
        let full = Some(ErrorCode::DiskFull);
        let checkpoint = connection.query_row("PRAGMA mobifs_checkpoint", [], |_| Ok(()));
        let error = checkpoint.unwrap_err().to_string();
        assert!(error.contains("No space left on device"), "{error}");
        let error = connection.execute_batch(blob).unwrap_err();
        assert_eq!(error.sqlite_error_code(), full, "{error}");
        assert_eq!(count(&connection), 2);
        std::fs::remove_file(ballast).unwrap();
        drop(others);
        let until = Instant::now() + Duration::from_secs(30);
        while let Err(error) = connection.execute_batch(blob) {
            assert_eq!(error.sqlite_error_code(), full, "{error}");
            assert!(Instant::now() < until, "{error}");
            std::thread::sleep(Duration::from_millis(100));
        }
        connection.close().unwrap();
        is_ordinary(path, 3);
    });
}

fn fill(path: &Path, ballast: &Path) {
    let connection = open(path, "&memory_budget_bytes=4MiB").unwrap();
    make_table(&connection);
    let mut rows = 0;
    let error = loop {
        let insert = "INSERT INTO t(b) SELECT hex(randomblob(20000))";
        match connection.execute(insert, []) {
            Ok(_) => rows += 1,
            Err(error) => break error,
        }
        assert!(rows < 2000, "the disk is never full");
    };
    assert_eq!(
        error.sqlite_error_code(),
        Some(ErrorCode::DiskFull),
        "{error}"
    );
    assert!(rows > 20, "{rows}");
    assert_eq!(count(&connection), rows);
    check(&connection);
    std::fs::remove_file(ballast).unwrap();
    // What is known of the room is renewed by and by.
    let delete = "DELETE FROM t WHERE a % 20 = 0";
    let until = Instant::now() + Duration::from_secs(20);
    while let Err(error) = connection.execute_batch(delete) {
        assert!(Instant::now() < until, "{error}");
    }
    insert(&connection, 1);
    let rows = count(&connection);
    connection.close().unwrap();
    is_ordinary(path, rows);
}

/// Checkpoints of both databases.
fn checkpoints(connection: &Connection) -> [u64; 2] {
    ["main", "other"].map(|name| {
        let status = text(connection, &format!("PRAGMA {name}.mobifs_status"));
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        status["checkpoints"].as_u64().unwrap()
    })
}

/// A transaction over several databases was promised to be in all of them or in none, also where
/// SQLite does not say that they belong together: without syncs, and without a journal in a file.
#[test]
fn databases_are_committed_together_where_sqlite_says_that_they_are() {
    for (mode, synchronous, is_joint) in [
        ("delete", "FULL", true),
        ("persist", "NORMAL", true),
        ("truncate", "EXTRA", true),
        ("delete", "OFF", false),
        ("wal", "FULL", false),
        ("memory", "FULL", false),
        ("off", "FULL", false),
    ] {
        let place = Place::new();
        let connection = place.open("&age_max_ms=600000");
        let other = place.directory.path().join("other.db");
        let attach = format!(
            "ATTACH 'file:{}?vfs=mobifs&age_max_ms=600000' AS other",
            other.display()
        );
        connection.execute_batch(&attach).unwrap();
        for name in ["main", "other"] {
            let set = format!(
                "PRAGMA {name}.journal_mode={mode}; PRAGMA {name}.synchronous={synchronous};
                 CREATE TABLE {name}.{name}_t(a)"
            );
            connection.execute_batch(&set).unwrap();
        }
        let before = checkpoints(&connection);
        let both = "BEGIN; INSERT INTO main_t VALUES (1); INSERT INTO other_t VALUES (1); COMMIT";
        connection.execute_batch(both).unwrap();
        let after = checkpoints(&connection);
        for (before, after) in before.into_iter().zip(after) {
            // While they commit together, every step of it is durable.
            assert_eq!(after > before, is_joint, "{mode} {synchronous}");
        }
        connection.close().unwrap();
    }
}
