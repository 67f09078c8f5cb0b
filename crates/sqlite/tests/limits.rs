//! What a process has little of: descriptors, shared memory, sizes of files and of names; and a
//! debugger that hides parts of the process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{
    MODES, Place, SAFE_MODES, check, child, count, insert, is_ordinary, make_table, open, opened,
    plain, purpose, set_mode, text,
};
use mobifs_sqlite::last_error;
use rusqlite::{Connection, ErrorCode};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a database may have open all the time.
const DESCRIPTORS_MAX: usize = 4;
/// What it may take of `/dev/shm` after a small transaction.
const SHARED_MEMORY_BYTES_MAX: u64 = 512 << 10;

fn file_of(descriptor: &Path) -> Option<PathBuf> {
    fs::read_link(descriptor).ok()
}

/// Descriptors of this process whose files lie in a directory, or are it.
fn descriptors_in(directory: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir("/proc/self/fd").unwrap();
    let files = all.filter_map(|entry| file_of(&entry.unwrap().path()));
    files.filter(|file| file.starts_with(directory)).collect()
}

fn arena_of(database: &Path) -> PathBuf {
    let about = fs::metadata(database).unwrap();
    let user = rustix::process::geteuid().as_raw();
    let (device, inode) = (about.dev(), about.ino());
    Path::new("/dev/shm").join(format!("mobifs-{user}-{device:x}-{inode:x}"))
}

/// A program with 20 databases had 240 descriptors for them: more than many programs may have.
#[test]
fn a_database_in_use_takes_few_descriptors_and_little_shared_memory() {
    for mode in MODES {
        let place = Place::new();
        let path = |number| place.directory.path().join(format!("{number}.db"));
        let open_one = |number| {
            let connection = opened(&path(number), "&class=durable");
            set_mode(&connection, mode);
            make_table(&connection);
            insert(&connection, 1);
            connection
        };
        let all: Vec<Connection> = (0..5).map(open_one).collect();
        let held = descriptors_in(place.directory.path());
        assert!(
            held.len() <= all.len() * DESCRIPTORS_MAX,
            "{mode}: {held:?}"
        );
        for number in 0..all.len() {
            let about = fs::metadata(arena_of(&path(number))).unwrap();
            let taken_bytes = about.blocks() * 512;
            assert!(
                taken_bytes <= SHARED_MEMORY_BYTES_MAX,
                "{mode}: {taken_bytes}"
            );
            // Tools that read all memory of a process make what is mapped real.
            assert!(about.len() <= 2 * SHARED_MEMORY_BYTES_MAX, "{mode}");
        }
        for connection in all {
            connection.close().unwrap();
        }
        assert_eq!(descriptors_in(place.directory.path()), [] as [PathBuf; 0]);
        is_ordinary(&path(0), 1);
    }
}

fn limit_file_sizes(bytes: u64) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    let current = Some(bytes);
    setrlimit(Resource::Fsize, Rlimit { current, maximum }).unwrap();
}

/// Takes all descriptors that this process may have but so many.
fn take_descriptors(left: usize) -> Vec<fs::File> {
    let mut taken: Vec<_> = std::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect();
    taken.truncate(taken.len().saturating_sub(left));
    taken
}

/// Not a test: a program that has no descriptors left.
#[test]
fn works_with_few_descriptors() {
    let Some((mode, path)) = purpose() else {
        return;
    };
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = Some(256);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let mut refused = 0;
    for left in 0..14 {
        let connection = opened(&path, "");
        set_mode(&connection, &mode);
        make_table(&connection);
        insert(&connection, 1);
        let rows = count(&connection);
        connection.close().unwrap();
        let taken = take_descriptors(left);
        mobifs_sqlite::forget_last_error();
        let worked = open(&path, "").and_then(|connection| {
            connection.execute("INSERT INTO t(b) VALUES ('x')", [])?;
            connection.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0))?;
            Ok(connection)
        });
        let message = last_error();
        let added = match worked {
            Err(error) => {
                refused += 1;
                assert!(message.is_some(), "{mode}, {left}: {error}, and no message");
                drop(taken);
                0
            }
            Ok(connection) => {
                let taken = (taken, take_descriptors(0));
                mobifs_sqlite::forget_last_error();
                drop(connection);
                let message = last_error();
                drop(taken);
                if plain(&path)
                    .unwrap()
                    .execute_batch("SELECT * FROM t")
                    .is_err()
                {
                    let message = message.unwrap_or_else(|| panic!("{mode}, {left}: no message"));
                    assert!(
                        message.contains("stays marked"),
                        "{mode}, {left}: {message}"
                    );
                }
                1
            }
        };
        let connection = opened(&path, "");
        assert_eq!(count(&connection), rows + added, "{mode}, {left}");
        connection.close().unwrap();
        is_ordinary(&path, rows + added);
    }
    assert!(refused > 0, "the limit has to matter");
}

/// Neither the reason why a database could not be opened was reported, nor the reason why a last
/// close had left the mark.
#[test]
fn what_fails_for_want_of_descriptors_says_so() {
    for mode in SAFE_MODES {
        let place = Place::new();
        let mut program = child("works_with_few_descriptors", mode, &place.path());
        succeeded(&program.output().unwrap());
    }
}

/// Not a test: a program that may have few descriptors, all the time.
#[test]
fn works_to_the_end_with_few_descriptors() {
    let Some((purpose, path)) = purpose() else {
        return;
    };
    let (mode, class) = purpose.split_once(' ').unwrap();
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = Some(64);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let mut rows = 0;
    let mut served = 0;
    for left in 0..20 {
        let taken = take_descriptors(left);
        mobifs_sqlite::forget_last_error();
        let Ok(connection) = open(&path, &format!("&class={class}")) else {
            assert!(last_error().is_some(), "{purpose}, {left}: no message");
            continue;
        };
        let work = || -> rusqlite::Result<()> {
            connection.query_row(&format!("PRAGMA journal_mode={mode}"), [], |_| Ok(()))?;
            let create = "CREATE TABLE IF NOT EXISTS t(a INTEGER PRIMARY KEY, b TEXT)";
            connection.execute_batch(create)?;
            for _ in 0..100 {
                let insert = "INSERT INTO t(b) VALUES (hex(randomblob(4000)))";
                connection.execute(insert, [])?;
            }
            connection.query_row("PRAGMA mobifs_checkpoint", [], |_| Ok(()))
        };
        let worked = work();
        let said = last_error();
        assert!(worked.is_ok(), "{purpose}, {left}: {worked:?} {said:?}");
        mobifs_sqlite::forget_last_error();
        drop(connection);
        let said = last_error();
        assert_eq!(said, None, "{purpose}, {left}: the last close");
        drop(taken);
        rows += 100;
        served += 1;
        is_ordinary(&path, rows);
    }
    assert!(
        0 < served && served < 20,
        "the limit has to matter: {served}"
    );
}

/// With twelve descriptors a database was opened, and a durable commit failed, or the last close left
/// the mark.
#[test]
fn a_database_that_opens_has_the_descriptors_that_it_needs_later() {
    for mode in SAFE_MODES {
        for class in ["durable", "relaxed"] {
            let place = Place::new();
            let purpose = format!("{mode} {class}");
            let entry = "works_to_the_end_with_few_descriptors";
            let mut program = child(entry, &purpose, &place.path());
            let program = program.stderr(std::process::Stdio::piped());
            succeeded(&program.output().unwrap());
        }
    }
}

#[test]
fn a_database_that_is_not_there_is_not_said_to_be_read_only() {
    let place = Place::new();
    for parameters in ["&mode=ro", "&mode=rw"] {
        mobifs_sqlite::forget_last_error();
        let error = open(&place.path(), parameters).unwrap_err();
        assert_eq!(error.sqlite_error_code(), Some(ErrorCode::CannotOpen));
        let message = last_error().unwrap();
        assert!(
            message.contains("does not exist"),
            "{parameters}: {message}"
        );
    }
}

fn shows_status(connection: &Connection) -> bool {
    connection
        .query_row("PRAGMA mobifs_status", [], |_| Ok(()))
        .is_ok()
}

/// Inserts until it is refused, or there are so many rows of 4000 bytes, 50 at a time.
fn fill(connection: &Connection, rows_max: usize) -> Result<(), rusqlite::Error> {
    let insert = "INSERT INTO t(b) WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c
        WHERE x < 50) SELECT hex(randomblob(2000)) FROM c";
    for _ in 0..rows_max / 50 {
        connection.execute(insert, [])?;
    }
    Ok(())
}

/// Not a test: the program with a limit of file sizes, in MiB.
#[test]
fn works_with_limited_files() {
    let Some((purpose, path)) = purpose() else {
        return;
    };
    let mut words = purpose.splitn(3, ' ');
    let (mebibytes, mode) = (words.next().unwrap(), words.next().unwrap());
    limit_file_sizes(mebibytes.parse::<u64>().unwrap() << 20);
    match words.next().unwrap() {
        "fits" => {
            let connection = opened(&path, "&class=durable");
            assert!(shows_status(&connection));
            set_mode(&connection, mode);
            make_table(&connection);
            fill(&connection, 500).unwrap();
            connection
                .query_row("PRAGMA mobifs_checkpoint", [], |_| Ok(()))
                .unwrap();
            assert!(
                text(&connection, "PRAGMA mobifs_status").contains(r#""outlives_process":true"#)
            );
            connection.close().unwrap();
        }
        "too much" => {
            let connection = opened(&path, "");
            set_mode(&connection, mode);
            make_table(&connection);
            // The transaction that does not fit is refused, and nothing else.
            fill(&connection, 100_000).unwrap_err();
            let _rolled_back = connection.execute_batch("ROLLBACK");
            check(&connection);
            let rows = count(&connection);
            assert!(rows > 500);
            // A log that is as large as it may be takes no more, as with SQLite's own VFS.
            if mode != "wal" {
                let deleted = connection.execute("DELETE FROM t WHERE a <= 100", []);
                deleted.unwrap_or_else(|error| panic!("{error}: {:?}", last_error()));
                assert_eq!(count(&connection), rows - 100);
                check(&connection);
            }
            // What cannot be brought to its place now is in use, and goes on from there.
            let _closed = connection.close();
        }
        "no room" => {
            let connection = opened(&path, "");
            assert!(!shows_status(&connection), "SQLite's own VFS has it");
            set_mode(&connection, mode);
            make_table(&connection);
            fill(&connection, 50).unwrap();
            connection.close().unwrap();
        }
        "in use" => {
            let error = open(&path, "")
                .and_then(|connection| connection.query_row("SELECT 1 FROM t", [], |_| Ok(())));
            assert_eq!(
                error.unwrap_err().sqlite_error_code(),
                Some(ErrorCode::CannotOpen)
            );
            assert!(
                last_error().unwrap().contains("ulimit -f"),
                "{:?}",
                last_error()
            );
        }
        "dies" => {
            let connection = opened(&path, "");
            make_table(&connection);
            insert(&connection, 7);
            std::process::abort();
        }
        other => panic!("{other}"),
    }
}

fn with_limit(path: &Path, mebibytes: u64, mode: &str, what: &str) -> Output {
    let purpose = format!("{mebibytes} {mode} {what}");
    child("works_with_limited_files", &purpose, path)
        .stderr(std::process::Stdio::piped())
        .output()
        .unwrap()
}

fn succeeded(output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {said}", output.status);
}

/// The arena was a sparse file of 4 GiB: with a limit of file sizes nothing could be opened, and
/// a program that does not ignore SIGXFSZ was killed.
#[test]
fn a_limit_of_file_sizes_is_obeyed_and_no_process_is_killed() {
    for mode in ["delete", "wal"] {
        let place = Place::new();
        succeeded(&with_limit(&place.path(), 9, mode, "fits"));
        is_ordinary(&place.path(), 500);
        let place = Place::new();
        succeeded(&with_limit(&place.path(), 9, mode, "too much"));
        let left = place.open("");
        check(&left);
        let rows = count(&left);
        assert!(rows > 400);
        left.close().unwrap();
        is_ordinary(&place.path(), rows);
        let place = Place::new();
        succeeded(&with_limit(&place.path(), 1, mode, "no room"));
        is_ordinary(&place.path(), 50);
        assert!(!place.directory.path().join("app.db-mobifs").exists());
    }
}

#[test]
fn a_database_that_is_in_use_is_not_left_to_sqlite_for_a_limit_and_the_reason_is_said() {
    let place = Place::new();
    let died = with_limit(&place.path(), 64, "delete", "dies");
    assert_eq!(died.status.signal(), Some(libc::SIGABRT));
    succeeded(&with_limit(&place.path(), 1, "delete", "in use"));
    let connection = place.open("");
    assert_eq!(count(&connection), 7);
    connection.close().unwrap();
}

/// Names of 241 to 247 bytes could be opened, and failed when the first journal was made.
#[test]
fn a_name_that_leaves_no_room_for_those_beside_it_is_refused_at_once() {
    let place = Place::new();
    let path = |length| place.directory.path().join("n".repeat(length));
    for length in [237, 240, 241, 247, 248, 255] {
        let error = open(&path(length), "")
            .and_then(|connection| connection.execute_batch("CREATE TABLE t(a)"));
        let code = error.unwrap_err().sqlite_error_code();
        assert_eq!(code, Some(ErrorCode::CannotOpen), "{length}");
        if length <= 247 {
            let why = last_error().unwrap();
            assert!(
                why.contains("too long") && why.contains("255"),
                "{length}: {why}"
            );
        }
        assert!(!path(length).exists(), "{length}: nothing is made");
    }
    let (longest, other) = (path(236), place.directory.path().join("m".repeat(236)));
    for mode in SAFE_MODES {
        let connection = opened(&longest, "");
        set_mode(&connection, mode);
        let attached = format!("ATTACH 'file:{}?vfs=mobifs' AS other", other.display());
        connection.execute_batch(&attached).unwrap();
        let both = "CREATE TABLE IF NOT EXISTS t(a); CREATE TABLE IF NOT EXISTS other.o(a);
            BEGIN; INSERT INTO t VALUES (1); INSERT INTO o VALUES (1); COMMIT";
        connection.execute_batch(both).unwrap();
        connection.close().unwrap();
    }
    is_ordinary(&longest, 4);
}

/// A store of an earlier version, whose database has a name that is refused for new ones.
#[test]
fn a_long_name_that_was_used_before_can_be_opened() {
    let place = Place::new();
    let name = "n".repeat(240);
    let path = place.directory.path().join(&name);
    fs::create_dir(place.directory.path().join(format!("{name}-mobifs"))).unwrap();
    let connection = opened(&path, "");
    make_table(&connection);
    insert(&connection, 3);
    connection.close().unwrap();
    is_ordinary(&path, 3);
}

/// Not a test: the program that is debugged.
#[test]
fn uses_a_database_under_valgrind() {
    let Some((mode, path)) = purpose() else {
        return;
    };
    let connection = opened(&path, "");
    set_mode(&connection, &mode);
    make_table(&connection);
    insert(&connection, 20);
    check(&connection);
    // A leak check reads all that is mapped: it is to be little, so it stays open.
    std::mem::forget(connection);
}

/// Valgrind hides the code that the kernel puts into each process, and rustix looks for its clock
/// there: the process ended when the first database was opened.
#[test]
fn valgrind_runs_programs_with_databases_and_finds_nothing() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        mobifs_skip::skip("there is no valgrind");
        return;
    }
    let place = Place::new();
    let plain = child("uses_a_database_under_valgrind", "wal", &place.path());
    let mut command = Command::new("valgrind");
    command
        .args([
            "--quiet",
            "--error-exitcode=9",
            "--leak-check=full",
            "--errors-for-leak-kinds=none",
        ])
        .arg(plain.get_program())
        .args(plain.get_args());
    for (name, value) in plain.get_envs() {
        command.env(name, value.unwrap());
    }
    succeeded(&command.output().unwrap());
    let arena_bytes = fs::metadata(arena_of(&place.path())).unwrap().blocks() * 512;
    assert!(arena_bytes <= 2 * SHARED_MEMORY_BYTES_MAX, "{arena_bytes}");
    let connection = place.open("");
    assert_eq!(count(&connection), 20);
    connection.close().unwrap();
}
