//! Several connections, threads and processes on one database.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use common::{
    MODES, Place, SAFE_MODES, check, child, count, hot_error, insert, is_ordinary, make_table,
    open, plain, purpose, set_mode,
};
use rusqlite::{Connection, ErrorCode, OpenFlags};

#[test]
fn readers_and_a_writer_see_what_the_journal_mode_lets_them() {
    let place = Place::new();
    let (one, other) = (place.open(""), place.open(""));
    for connection in [&one, &other] {
        connection.busy_timeout(Duration::ZERO).unwrap();
    }
    make_table(&one);
    one.execute_batch("BEGIN IMMEDIATE").unwrap();
    insert(&one, 5);
    assert_eq!(count(&other), 0, "uncommitted rows are not visible");
    let error = other.execute_batch("BEGIN IMMEDIATE").unwrap_err();
    assert_eq!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy));
    other.execute_batch("BEGIN; SELECT * FROM t").unwrap();
    let error = one.execute_batch("COMMIT").unwrap_err();
    assert_eq!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy),
        "a reader holds its lock"
    );
    other.execute_batch("COMMIT").unwrap();
    one.execute_batch("COMMIT").unwrap();
    assert_eq!(count(&other), 5);

    set_mode(&one, "wal");
    other.execute_batch("BEGIN; SELECT * FROM t").unwrap();
    insert(&one, 5);
    assert_eq!(count(&other), 5, "a reader has its snapshot");
    other.execute_batch("COMMIT").unwrap();
    assert_eq!(count(&other), 10);
    one.close().unwrap();
    insert(&other, 1);
    other.close().unwrap();
    is_ordinary(&place.path(), 11);
}

#[test]
fn threads_with_connections_of_their_own_lose_nothing() {
    for mode in ["delete", "wal"] {
        let place = Place::new();
        let connection = place.open("");
        set_mode(&connection, mode);
        make_table(&connection);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let connection = place.open("");
                    connection.busy_timeout(Duration::from_secs(60)).unwrap();
                    insert(&connection, 100);
                    check(&connection);
                });
            }
        });
        assert_eq!(count(&connection), 400, "{mode}");
        connection.close().unwrap();
        is_ordinary(&place.path(), 400);
    }
}

/// Not a test: what the other processes of these tests do.
#[test]
fn another_process() {
    let Some((purpose, path)) = purpose() else {
        return;
    };
    match purpose.as_str() {
        "open" => {
            let looked = open(&path, "").and_then(|connection| {
                connection.busy_timeout(Duration::ZERO)?;
                let query = "SELECT count(*) FROM t";
                connection.query_row(query, [], |row| row.get::<_, i64>(0))
            });
            let outcome = match looked {
                Ok(rows) => format!("rows {rows}"),
                Err(error) => format!("{error}: {}", mobifs_sqlite::last_error().unwrap()),
            };
            println!("outcome {outcome}");
        }
        "hold" => {
            let connection = open(&path, "").unwrap();
            insert(&connection, 1);
            println!("outcome open");
            std::io::stdout().flush().unwrap();
            // Until it is asked to end.
            std::io::stdin().read_to_string(&mut String::new()).unwrap();
        }
        "commit" => {
            let connection = open(&path, "").unwrap();
            set_mode(&connection, "wal");
            insert(&connection, 50);
            let checkpoint = "PRAGMA mobifs_checkpoint";
            connection.query_row(checkpoint, [], |_| Ok(())).unwrap();
            println!("outcome open");
            std::io::stdout().flush().unwrap();
            std::io::stdin().read_to_string(&mut String::new()).unwrap();
        }
        "threads" => {
            let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
            let before = threads();
            let connection = open(&path, "").unwrap();
            insert(&connection, 1);
            let during = threads();
            connection.close().unwrap();
            println!("outcome {} {}", during - before, threads() - before);
        }
        "fork" => fork(&path),
        "begin" => {
            let connection = open(&path, "&age_max_ms=600000").unwrap();
            make_table(&connection);
            // Its journal is longer than what the VFS collects before it writes.
            let rows = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 600) \
                        INSERT INTO t(b) SELECT printf('%0900d', x) FROM c";
            connection.execute_batch(rows).unwrap();
            let begun = "BEGIN IMMEDIATE; UPDATE t SET b = 'killed'";
            connection.execute_batch(begun).unwrap();
            println!("outcome {}", count(&connection));
            std::process::exit(0);
        }
        other => match other.strip_prefix("commit in ") {
            Some(mode) => {
                let connection = open(&path, "&age_max_ms=600000").unwrap();
                set_mode(&connection, mode);
                insert(&connection, 10);
                println!("outcome {}", count(&connection));
                // Without closing it, as if it was killed.
                std::process::exit(0);
            }
            None => panic!("{other}"),
        },
    }
}

#[allow(unsafe_code, reason = "fork(2) is what is tested")]
fn fork(path: &Path) {
    let connection = open(path, "").unwrap();
    insert(&connection, 1);
    // SAFETY: the child does nothing but read, report and end.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let query = "SELECT count(*) FROM t";
        let looked = connection.query_row(query, [], |row| row.get::<_, i64>(0));
        let why = mobifs_sqlite::last_error().unwrap_or_default();
        let again = open(path, "").and_then(|again| {
            again.busy_timeout(Duration::ZERO)?;
            again.execute_batch(query)
        });
        let again = again.err().map(|error| error.to_string());
        println!("outcome child {} {why} / {again:?}", looked.is_err());
        drop(connection);
        std::process::exit(0);
    }
    // SAFETY: our own child.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    insert(&connection, 1);
    println!("outcome parent {}", count(&connection));
    connection.close().unwrap();
}

fn outcomes(purpose: &str, database: &Path) -> Vec<String> {
    let output = child("another_process", purpose, database)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let lines = text.lines().filter_map(|line| line.split_once("outcome "));
    lines.map(|(_, outcome)| outcome.to_owned()).collect()
}

#[test]
fn a_second_process_is_refused_with_the_reason() {
    let place = Place::new();
    let connection = place.open("");
    make_table(&connection);
    let refused = outcomes("open", &place.path()).concat();
    assert!(refused.contains("database is locked"), "{refused}");
    let holder = format!("in process {};", std::process::id());
    assert!(refused.contains(&holder), "{refused}");
    connection.close().unwrap();
    assert_eq!(outcomes("open", &place.path()), ["rows 0"]);
}

#[test]
fn a_program_without_mobifs_keeps_us_out_and_we_keep_it_out() {
    let place = Place::new();
    let connection = place.open("");
    make_table(&connection);
    assert!(hot_error(&place.path()).contains("locked"));
    connection.close().unwrap();
    let plain = common::plain(&place.path()).unwrap();
    plain.execute_batch("BEGIN; SELECT * FROM t").unwrap();
    let refused = open(&place.path(), "").unwrap();
    refused.busy_timeout(Duration::ZERO).unwrap();
    let error = refused.execute_batch("SELECT * FROM t").unwrap_err();
    assert_eq!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy));
    // What was refused has not taken the other's lock away.
    let refused = outcomes("open", &place.path()).concat();
    assert!(refused.contains("locked"), "{refused}");
    plain.execute_batch("COMMIT").unwrap();
    assert_eq!(count(&place.open("")), 0);
}

#[test]
fn a_killed_process_loses_nothing_and_others_get_an_error_meanwhile() {
    let place = Place::new();
    make_table(&place.open(""));
    let mut holder = child("another_process", "hold", &place.path());
    let mut holder = holder.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("outcome open")));
    holder.kill().unwrap();
    holder.wait().unwrap();
    let message = hot_error(&place.path());
    assert!(message.contains("not a database"), "{message}");
    let connection = place.open("");
    assert_eq!(count(&connection), 1);
    connection.close().unwrap();
    is_ordinary(&place.path(), 1);
}

#[test]
fn a_backup_put_in_the_place_of_a_database_in_use_is_left_as_it_is() {
    for is_copied_over in [false, true] {
        let place = Place::new();
        make_table(&place.open(""));
        let backup = place.directory.path().join("backup");
        std::fs::copy(place.path(), &backup).unwrap();
        let mut holder = child("another_process", "commit", &place.path());
        let mut holder = holder.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("outcome open")));
        holder.kill().unwrap();
        holder.wait().unwrap();
        if is_copied_over {
            // The same file, with other content.
            std::fs::write(place.path(), std::fs::read(&backup).unwrap()).unwrap();
        } else {
            std::fs::rename(&backup, place.path()).unwrap();
        }
        let connection = place.open("");
        assert_eq!(count(&connection), 0, "copied over: {is_copied_over}");
        check(&connection);
        insert(&connection, 2);
        connection.close().unwrap();
        is_ordinary(&place.path(), 2);
        let aside = place.directory.path().join("app.db.mobifs-replaced-1");
        assert!(aside.join("journal").exists(), "nothing is thrown away");
    }
}

#[test]
fn no_thread_is_left_after_the_last_close() {
    let place = Place::new();
    make_table(&place.open(""));
    assert_eq!(outcomes("threads", &place.path()), ["1 0"]);
}

#[test]
fn a_forked_child_gets_an_error_and_changes_nothing() {
    let place = Place::new();
    make_table(&place.open(""));
    let outcomes = outcomes("fork", &place.path());
    assert_eq!(outcomes.len(), 2, "{outcomes:?}");
    assert!(outcomes[0].starts_with("child true"), "{outcomes:?}");
    assert!(outcomes[0].contains("before fork"), "{outcomes:?}");
    assert_eq!(outcomes[1], "parent 2");
    is_ordinary(&place.path(), 2);
}

/// The results that two connections with these journal modes get, one after the other.
fn results(connections: &[Connection; 2], modes: [&str; 2]) -> Vec<String> {
    let mut results = Vec::new();
    make_table(&connections[0]);
    for _ in 0..3 {
        for (connection, mode) in connections.iter().zip(modes) {
            connection.busy_timeout(Duration::ZERO).unwrap();
            let asked = format!("PRAGMA journal_mode={mode}");
            let got = connection.query_row(&asked, [], |row| row.get::<_, String>(0));
            results.push(format!("{got:?}"));
            let mut run =
                |statement| results.push(format!("{:?}", connection.execute_batch(statement)));
            run("INSERT INTO t(b) VALUES (1); INSERT INTO t(b) VALUES (2)");
            if mode != "off" {
                run("BEGIN; DELETE FROM t; ROLLBACK");
            }
            for reader in connections {
                let rows =
                    reader.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0));
                results.push(format!("{rows:?}"));
            }
        }
    }
    results
}

/// The VFS says that journals cannot be deleted while they are open, so a connection in the modes
/// PERSIST and TRUNCATE keeps its journal open between transactions. But when another one, in mode
/// DELETE, had committed, the journal was deleted all the same: the first took what it had open for
/// the journal of a crash and rolled the other's transaction back. Such a journal is emptied now.
#[test]
fn connections_with_different_journal_modes_get_the_same_results_as_without_mobifs() {
    for (first, second) in MODES
        .iter()
        .flat_map(|a| MODES.iter().map(move |b| (*a, *b)))
    {
        let place = Place::new();
        let other = place.directory.path().join("plain.db");
        let without = [plain(&other).unwrap(), plain(&other).unwrap()];
        for connection in &without {
            connection.execute_batch("PRAGMA synchronous=OFF").unwrap();
        }
        let through = [place.open(""), place.open("")];
        let expected = results(&without, [first, second]);
        assert_eq!(
            results(&through, [first, second]),
            expected,
            "{first} and {second}"
        );
        let rows = count(&without[0]);
        for connection in through {
            check(&connection);
            connection.close().unwrap();
        }
        is_ordinary(&place.path(), rows);
    }
}

/// The results that connections of two databases get, one through MobiFS and one without it.
fn demand_equal_results(
    setup: &str,
    steps: impl Fn(&Path, &dyn Fn(&Path) -> Connection) -> Vec<String>,
) {
    let place = Place::new();
    let other = place.directory.path().join("plain.db");
    for path in [&place.path(), &other] {
        let made = plain(path).unwrap();
        make_table(&made);
        insert(&made, 1);
        made.execute_batch(setup).unwrap();
    }
    let through = steps(&place.path(), &|path| {
        let connection = open(path, "").unwrap();
        connection.busy_timeout(Duration::ZERO).unwrap();
        connection
    });
    let without = steps(&other, &|path| plain(path).unwrap());
    assert_eq!(through, without);
    is_ordinary(&place.path(), count(&plain(&other).unwrap()));
}

fn rows_or_error(connection: &Connection) -> String {
    let query = "SELECT count(*) FROM t";
    format!(
        "{:?}",
        connection.query_row(query, [], |row| row.get::<_, i64>(0))
    )
}

/// The connection that was refused locked all others out until it was closed.
#[test]
fn a_connection_that_cannot_have_an_exclusive_log_blocks_no_other() {
    demand_equal_results("PRAGMA journal_mode=wal", |path, connect| {
        let (one, other) = (connect(path), connect(path));
        let mut results = vec![rows_or_error(&one), rows_or_error(&other)];
        let exclusive = "PRAGMA locking_mode=exclusive; BEGIN IMMEDIATE";
        results.push(format!("{:?}", one.execute_batch(exclusive)));
        drop(other);
        let third = connect(path);
        results.push(rows_or_error(&third));
        let write = "INSERT INTO t(b) VALUES (2)";
        results.push(format!("{:?}", third.execute_batch(write)));
        drop(third);
        results.push(format!("{:?}", one.execute_batch(write)));
        results.push(rows_or_error(&connect(path)));
        results
    });
}

/// fcntl(2) gives a descriptor that only reads no lock for writing, and SQLite needs one to leave
/// WAL mode. Here such a connection got it, and in exclusive locking mode locked all others out.
#[test]
fn a_connection_that_only_reads_gets_no_lock_for_writing() {
    for (mode, other_mode) in [("delete", "wal"), ("wal", "delete"), ("wal", "persist")] {
        let place = Place::new();
        let other = place.directory.path().join("plain.db");
        let results = [(place.path(), c"mobifs"), (other, c"unix")].map(|(path, vfs)| {
            let connect = |flags| Connection::open_with_flags_and_vfs(&path, flags, vfs).unwrap();
            let writer = connect(OpenFlags::default());
            set_mode(&writer, mode);
            make_table(&writer);
            insert(&writer, 3);
            let reader = connect(OpenFlags::SQLITE_OPEN_READ_ONLY);
            let change = format!("PRAGMA journal_mode={other_mode}");
            let code = |error: rusqlite::Error| match error {
                rusqlite::Error::SqliteFailure(error, _) => error.extended_code,
                other => panic!("{other}"),
            };
            let mut results = Vec::new();
            for locking_mode in ["normal", "exclusive"] {
                let pragma = format!("PRAGMA locking_mode={locking_mode}");
                results.push(format!("{:?}", reader.execute_batch(&pragma)));
                results.push(rows_or_error(&reader));
                let changed = reader.query_row(&change, [], |_| Ok(()));
                results.push(format!("{:?}", changed.map_err(code)));
                results.push(rows_or_error(&connect(OpenFlags::default())));
            }
            drop(writer);
            results.push(rows_or_error(&reader));
            drop(reader);
            let again = connect(OpenFlags::default());
            assert_eq!(common::text(&again, "PRAGMA journal_mode"), mode, "{vfs:?}");
            check(&again);
            results
        });
        assert_eq!(results[0], results[1], "{mode} {other_mode}");
        is_ordinary(&place.path(), 3);
    }
}

/// It continued with its cached pages, and the app's committed changes were lost: SQLite reads the
/// header anew only if the counter of changes has changed.
#[test]
fn a_program_with_a_cache_of_the_database_notices_a_killed_app() {
    for mode in SAFE_MODES {
        let place = Place::new();
        let known = plain(&place.path()).unwrap();
        make_table(&known);
        insert(&known, 3);
        assert_eq!(count(&known), 3);
        let committed = outcomes(&format!("commit in {mode}"), &place.path());
        assert_eq!(committed, ["13"], "{mode}");
        for statement in ["INSERT INTO t(b) VALUES ('lost')", "SELECT count(*) FROM t"] {
            let refused = known.execute_batch(statement).unwrap_err().to_string();
            assert!(refused.contains("not a database"), "{mode}: {refused}");
        }
        let again = place.open("");
        assert_eq!(count(&again), 13, "{mode}");
        again.close().unwrap();
        assert_eq!(
            count(&known),
            13,
            "it has seen the mark, which is gone: {mode}"
        );
        insert(&known, 1);
        known.close().unwrap();
        is_ordinary(&place.path(), 14);
    }
}

/// Found by the histories with seed 28112: SQLite writes a journal that is valid at once where appending is
/// safe, and then asks for a connection that may write to roll the transaction back.
#[test]
fn a_connection_that_only_reads_waits_for_one_that_rolls_a_killed_transaction_back() {
    let place = Place::new();
    assert_eq!(outcomes("begin", &place.path()), ["600"]);
    let rows = |flags| {
        let uri = format!("file:{}?vfs=mobifs", place.path().display());
        let connection = Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI)?;
        let query = "SELECT count(*) FROM t WHERE b <> 'killed'";
        connection.query_row(query, [], |row| row.get::<_, i64>(0))
    };
    let refused = rows(OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap_err();
    let code = refused.sqlite_error().map(|error| error.extended_code);
    assert_eq!(
        code,
        Some(rusqlite::ffi::SQLITE_READONLY_ROLLBACK),
        "{refused}"
    );
    assert_eq!(rows(OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap(), 600);
    assert_eq!(rows(OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap(), 600);
    is_ordinary(&place.path(), 600);
}
