//! Which VFS serves a database, the engine's or SQLite's own: what plain SQLite can read is read,
//! and a database and its companions are never decided apart.
//!
//! Parts need root, for several users and for mounts; elsewhere each says that it is skipped.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::time::Duration;

use common::{
    Place, SAFE_MODES, as_user, check, child, count, hot_error, insert, is_ordinary, make_table,
    open, opened, plain, purpose, set_mode, text,
};
use rusqlite::{Connection, ErrorCode, OpenFlags};

/// Opens a database with parameters, read-only.
fn open_to_read(path: &Path, parameters: &str) -> rusqlite::Result<Connection> {
    mobifs_sqlite::register().unwrap();
    let uri = format!("file:{}?vfs=mobifs{parameters}", path.display());
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(uri, flags)
}

/// A database that was used through MobiFS, so that a directory of ours lies beside it.
fn used(mode: &str) -> Place {
    let place = Place::new();
    let connection = place.open("");
    set_mode(&connection, mode);
    make_table(&connection);
    insert(&connection, 5);
    connection.close().unwrap();
    place
}

/// The database went to SQLite's own VFS and its journal to the engine: a transaction that was
/// committed returned `SQLITE_IOERR_DELETE_NOENT`.
#[test]
fn a_database_without_locks_has_its_journal_where_it_is() {
    for mode in ["delete", "truncate", "persist"] {
        let place = used(mode);
        let connection = place.open("&nolock=1");
        insert(&connection, 3);
        connection
            .execute_batch("BEGIN; DELETE FROM t; ROLLBACK")
            .unwrap();
        assert_eq!(count(&connection), 8, "{mode}");
        let other = place.open("");
        assert_eq!(count(&other), 8, "{mode}");
        connection.close().unwrap();
        other.close().unwrap();
        is_ordinary(&place.path(), 8);
    }
}

/// Not a test: the program that dies in a transaction that is larger than SQLite's cache.
#[test]
fn dies_in_a_large_transaction() {
    let Some((parameters, path)) = purpose() else {
        return;
    };
    let connection = opened(&path, &parameters);
    connection
        .execute_batch("PRAGMA cache_size=5; BEGIN; UPDATE t SET b = 'changed'")
        .unwrap();
    std::process::abort();
}

/// 171 of 3,000 rows were changed.
#[test]
fn a_killed_transaction_without_locks_is_rolled_back() {
    let place = used("delete");
    let connection = place.open("");
    let more = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 2995) \
                INSERT INTO t(b) SELECT hex(randomblob(100)) FROM c";
    connection.execute_batch(more).unwrap();
    connection.close().unwrap();
    let died = child("dies_in_a_large_transaction", "&nolock=1", &place.path())
        .output()
        .unwrap();
    assert!(died.status.code().is_none(), "{died:?}");
    let connection = place.open("");
    check(&connection);
    let changed = text(
        &connection,
        "SELECT 'n' || count(*) FROM t WHERE b = 'changed'",
    );
    assert_eq!(changed, "n0");
    connection.close().unwrap();
    is_ordinary(&place.path(), 3000);
}

#[test]
fn what_a_program_without_mobifs_uses_is_left_to_sqlite_where_no_locks_are_wanted() {
    let place = used("delete");
    let reader = plain(&place.path()).unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM t").unwrap();
    let connection = place.open("&nolock=1");
    assert_eq!(count(&connection), 5);
    // Decided for all connections, as long as there is one.
    let other = place.open("");
    assert_eq!(count(&other), 5);
    let why = other
        .query_row("PRAGMA mobifs_status", [], |_| Ok(()))
        .unwrap_err()
        .to_string();
    assert!(why.contains("left to SQLite's own VFS"), "{why}");
    reader.execute_batch("COMMIT").unwrap();
    insert(&other, 1);
    connection.close().unwrap();
    other.close().unwrap();
    let connection = place.open("");
    connection
        .query_row("PRAGMA mobifs_status", [], |_| Ok(()))
        .unwrap();
    assert_eq!(count(&connection), 6);
    connection.close().unwrap();
    is_ordinary(&place.path(), 6);
}

/// Not a test: the program that has the database open.
#[test]
fn has_it_open() {
    let Some((_, path)) = purpose() else { return };
    let connection = opened(&path, "");
    assert!(count(&connection) > 0);
    println!("\nopen");
    std::io::read_to_string(std::io::stdin()).unwrap();
}

/// The other process has changed nothing yet, so the file bears no mark.
#[test]
fn a_database_without_locks_is_not_changed_under_another_process() {
    use std::io::BufRead as _;
    let place = used("delete");
    let mut holder = child("has_it_open", "", &place.path());
    let mut holder = holder.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufReader::new(holder.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("open")));
    let error = open(&place.path(), "&nolock=1").unwrap_err();
    assert_eq!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy));
    drop(holder.stdin.take());
    holder.wait().unwrap();
    let connection = place.open("&nolock=1");
    insert(&connection, 1);
    connection.close().unwrap();
    is_ordinary(&place.path(), 6);
}

/// Its journals were asked for in the engine, which may not be there: `SQLITE_IOERR_ACCESS`, or
/// `SQLITE_CANTOPEN`, where plain SQLite reads.
#[test]
fn what_lies_where_nothing_can_be_written_is_read() {
    if !mobifs_skip::is_root() {
        return;
    }
    for mode in ["delete", "truncate", "persist"] {
        let place = used(mode);
        // Root's file, beside what root used.
        fs::set_permissions(place.directory.path(), Permissions::from_mode(0o755)).unwrap();
        let path = place.path();
        as_user(|| {
            let reader = open_to_read(&path, "").unwrap();
            assert_eq!(count(&reader), 5, "{mode}");
            let connection = open(&path, "").unwrap();
            assert_eq!(count(&connection), 5, "{mode}");
            let error = connection
                .execute_batch("INSERT INTO t(b) VALUES (1)")
                .unwrap_err();
            assert_eq!(error.sqlite_error_code(), Some(ErrorCode::ReadOnly));
        });
        // One's own file in a directory of root's.
        chown(&path, Some(common::USER), None).unwrap();
        as_user(|| {
            for connection in [open_to_read(&path, "").unwrap(), open(&path, "").unwrap()] {
                assert_eq!(count(&connection), 5, "{mode}");
            }
        });
        chown(&path, Some(0), None).unwrap();
        is_ordinary(&path, 5);
    }
}

#[test]
fn a_database_on_a_read_only_mount_is_read() {
    let place = used("delete");
    let directory = place.directory.path();
    let mount = |arguments: &[&str]| {
        let status = std::process::Command::new("mount")
            .args(arguments)
            .arg(directory)
            .status();
        status.is_ok_and(|status| status.success())
    };
    let is_mounted = mobifs_skip::is_root() && mount(&["--bind", directory.to_str().unwrap()]);
    if !is_mounted {
        mobifs_skip::skip("nothing can be mounted here");
        return;
    }
    let is_read_only = mount(&["-o", "remount,bind,ro"]);
    let read = |connection: rusqlite::Result<Connection>| {
        let query = "SELECT count(*) FROM t";
        connection.and_then(|connection| connection.query_row(query, [], |row| row.get(0)))
    };
    let found: Vec<rusqlite::Result<i64>> = vec![
        read(open_to_read(&place.path(), "")),
        read(open(&place.path(), "")),
        read(open(&place.path(), "&nolock=1")),
        read(open_to_read(&place.path(), "&immutable=1")),
    ];
    let umount = std::process::Command::new("umount").arg(directory).status();
    assert!(umount.unwrap().success() && is_read_only);
    for found in found {
        assert_eq!(found.unwrap(), 5);
    }
}

/// It was refused: the engine wants to write.
#[test]
fn a_file_that_its_owner_may_not_write_is_read() {
    if !mobifs_skip::is_root() {
        return;
    }
    let place = Place::new();
    fs::set_permissions(place.directory.path(), Permissions::from_mode(0o777)).unwrap();
    let path = place.path();
    as_user(|| {
        let connection = opened(&path, "");
        make_table(&connection);
        insert(&connection, 5);
        connection.close().unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
        for connection in [open_to_read(&path, "").unwrap(), open(&path, "").unwrap()] {
            assert_eq!(count(&connection), 5);
        }
        let connection = open(&path, "").unwrap();
        let error = connection.execute_batch("DELETE FROM t").unwrap_err();
        assert_eq!(error.sqlite_error_code(), Some(ErrorCode::ReadOnly));
        drop(connection);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let connection = opened(&path, "");
        insert(&connection, 1);
        connection.close().unwrap();
    });
    is_ordinary(&path, 6);
}

/// `app.db-mobifs` is root's after root has used the database: its owner was refused.
#[test]
fn a_database_that_root_used_is_its_owners_as_before() {
    if !mobifs_skip::is_root() {
        return;
    }
    let place = used("delete");
    fs::set_permissions(place.directory.path(), Permissions::from_mode(0o777)).unwrap();
    let path = place.path();
    chown(&path, Some(common::USER), None).unwrap();
    as_user(|| {
        let connection = opened(&path, "");
        insert(&connection, 1);
        assert_eq!(count(&connection), 6);
        connection.close().unwrap();
    });
    is_ordinary(&path, 6);
}

#[test]
fn an_immutable_database_is_read_where_it_is() {
    for mode in SAFE_MODES {
        let place = used(mode);
        fs::remove_dir_all(place.directory.path().join("app.db-mobifs")).unwrap();
        let reader = open_to_read(&place.path(), "&immutable=1").unwrap();
        assert_eq!(count(&reader), 5);
        assert!(!place.directory.path().join("app.db-mobifs").exists());
        // It decides nothing for other connections: it looks at no companion and takes no lock.
        let connection = place.open("");
        insert(&connection, 1);
        let reader = open_to_read(&place.path(), "&immutable=1").unwrap();
        if mode != "wal" {
            assert_eq!(count(&reader), 6, "the engine has it");
        }
        connection.close().unwrap();
    }
}

/// Only the engine can open it, by any user and with any parameters.
#[test]
fn a_database_that_was_not_closed_is_the_engines_whatever_is_asked_for() {
    for parameters in ["&nolock=1", "&immutable=1", ""] {
        let place = used("delete");
        let died = child("dies_in_a_large_transaction", "", &place.path())
            .output()
            .unwrap();
        assert!(died.status.code().is_none(), "{died:?}");
        assert!(hot_error(&place.path()).contains("not a database"));
        let reader = open_to_read(&place.path(), parameters).unwrap();
        reader.busy_timeout(Duration::ZERO).unwrap();
        if parameters != "&immutable=1" {
            assert_eq!(count(&reader), 5, "{parameters}");
        }
        reader.close().unwrap();
        is_ordinary(&place.path(), 5);
    }
}
