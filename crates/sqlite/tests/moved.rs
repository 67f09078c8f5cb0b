//! Databases that were not closed and then copied or renamed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::UNIX_EPOCH;

use common::{
    Place, SAFE_MODES, check, child, count, insert, is_ordinary, make_table, open, opened, purpose,
    set_mode,
};
use mobifs_volume::Arena;
use rusqlite::{ErrorCode, ffi};
use serde_json::Value;

const DURABLE_ROWS: i64 = 100;
const ROWS: i64 = 150;

/// Not a test: the program that does not close its database.
#[test]
fn dies_with_its_database_open() {
    let Some((mode, path)) = purpose() else {
        return;
    };
    let connection = opened(&path, "");
    set_mode(&connection, &mode);
    make_table(&connection);
    insert(&connection, DURABLE_ROWS.unsigned_abs() as usize);
    let checkpoint = connection.query_row("PRAGMA mobifs_checkpoint", [], |_| Ok(()));
    checkpoint.unwrap();
    insert(&connection, (ROWS - DURABLE_ROWS).unsigned_abs() as usize);
    std::process::abort();
}

/// A database with rows that are durable and some that only memory has, and no process has it open.
fn not_closed(mode: &str) -> Place {
    let place = Place::new();
    let died = child("dies_with_its_database_open", mode, &place.path())
        .output()
        .unwrap();
    assert!(!died.status.success());
    assert!(place.path().exists(), "{died:?}");
    place
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// A copy has other inodes than those that the journal names: it was an empty database.
#[test]
fn a_copy_has_what_was_durable() {
    for mode in SAFE_MODES {
        let place = not_closed(mode);
        let name = place.path().file_name().unwrap().to_owned();
        let (first, second) = (Place::new(), Place::new());
        copy(place.directory.path(), first.directory.path());
        // Also a copy of a copy that was never opened.
        copy(first.directory.path(), second.directory.path());
        for copied in [first, second] {
            let path = copied.directory.path().join(&name);
            let connection = opened(&path, "");
            check(&connection);
            let rows = count(&connection);
            assert!((DURABLE_ROWS..=ROWS).contains(&rows), "{mode}: {rows}");
            insert(&connection, 1);
            connection.close().unwrap();
            is_ordinary(&path, rows + 1);
        }
        let connection = place.open("");
        assert_eq!(count(&connection), ROWS, "{mode}");
        connection.close().unwrap();
        is_ordinary(&place.path(), ROWS);
    }
}

/// The arena of a killed process is found by its database's inode, whose number a copy got when
/// the database was deleted. The copy could not be opened before the machine was started again.
#[test]
fn a_copy_with_the_inode_of_what_a_killed_process_had_has_what_was_durable() {
    for mode in SAFE_MODES {
        let (place, copied) = (not_closed(mode), Place::new());
        copy(place.directory.path(), copied.directory.path());
        let arena = |path: &Path| {
            let about = fs::metadata(path).unwrap();
            let user = rustix::process::geteuid().as_raw();
            let (device, inode) = (about.dev(), about.ino());
            Path::new("/dev/shm").join(format!("mobifs-{user}-{device:x}-{inode:x}"))
        };
        let mut options = File::options();
        let file = options.read(true).write(true).open(arena(&place.path()));
        let left = Arena::attach_file(&file.unwrap(), arena(&place.path())).unwrap();
        let mut owner: Value = serde_json::from_slice(&left.session().unwrap()).unwrap();
        let about = fs::metadata(copied.path()).unwrap();
        // As on a filesystem that does not keep when a file was made.
        let made = about.created().ok();
        let made = made.map(|made| made.duration_since(UNIX_EPOCH).unwrap());
        owner["database"]["inode"] = about.ino().into();
        owner["database"]["made"] = serde_json::to_value(made).unwrap();
        left.set_session(owner.to_string().as_bytes()).unwrap();
        drop(left);
        fs::rename(arena(&place.path()), arena(&copied.path())).unwrap();
        let connection = copied.open("");
        check(&connection);
        let rows = count(&connection);
        assert!((DURABLE_ROWS..=ROWS).contains(&rows), "{mode}: {rows}");
        insert(&connection, 1);
        connection.close().unwrap();
        is_ordinary(&copied.path(), rows + 1);
        assert!(!arena(&copied.path()).exists());
    }
}

/// What was committed is for the old name: without that it was lost, without an error.
#[test]
fn a_database_with_another_name_than_when_it_was_used_is_refused() {
    for mode in SAFE_MODES {
        let place = not_closed(mode);
        let (old, new) = (place.path(), place.directory.path().join("renamed.db"));
        let own = |path: &Path| {
            let mut own = path.as_os_str().to_owned();
            own.push("-mobifs");
            own
        };
        let rename = |from: &Path, to: &Path| {
            fs::rename(from, to).unwrap();
            fs::rename(own(from), own(to)).unwrap();
        };
        rename(&old, &new);
        for _ in 0..2 {
            let opened = open(&new, "").and_then(|connection| {
                connection.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0))
            });
            let error = opened.unwrap_err();
            assert_eq!(
                error.sqlite_error_code(),
                Some(ErrorCode::CannotOpen),
                "{mode}: {error}"
            );
        }
        rename(&new, &old);
        let connection = place.open("");
        assert_eq!(count(&connection), ROWS, "{mode}");
        connection.close().unwrap();
        is_ordinary(&old, ROWS);
    }
}

/// Prints what SQLite writes to its log.
unsafe extern "C" fn print(_: *mut c_void, _code: c_int, text: *const c_char) {
    // SAFETY: SQLite passes a string that ends with a zero.
    let text = unsafe { CStr::from_ptr(text) };
    println!("\nlog: {}", text.to_string_lossy());
}

/// Not a test: the program that opens a database and prints what SQLite writes to its log.
#[test]
fn opens_with_a_log() {
    let Some((_, path)) = purpose() else {
        return;
    };
    let print: unsafe extern "C" fn(*mut c_void, c_int, *const c_char) = print;
    // SAFETY: no other thread uses SQLite yet, and the arguments are those of this option.
    let set = unsafe {
        ffi::sqlite3_config(
            ffi::SQLITE_CONFIG_LOG,
            print,
            std::ptr::null_mut::<c_void>(),
        )
    };
    assert_eq!(set, ffi::SQLITE_OK);
    let connection = opened(&path, "");
    let rows = connection.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0));
    // The table, too, may be in the store alone.
    println!("\nrows: {}", rows.unwrap_or(0));
    connection.close().unwrap();
}

/// The file is what it was when it was opened, and that was said nowhere.
#[test]
fn a_database_without_the_store_of_the_app_that_did_not_close_it_is_opened_with_a_warning() {
    for is_there in [true, false] {
        let place = not_closed(SAFE_MODES[0]);
        let mut own = place.path().into_os_string();
        own.push("-mobifs");
        if !is_there {
            fs::remove_dir_all(&own).unwrap();
        }
        let output = child("opens_with_a_log", "", &place.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("\nrows: "), "{output:?}");
        let warning = "which has what was committed since it was opened, is not there";
        assert_eq!(said.contains(warning), !is_there, "{said}");
        assert_eq!(said.contains(&format!("rows: {ROWS}")), is_there, "{said}");
    }
}

/// It was opened as the file was, and what had been committed, also durably, was of no use by its own name either.
#[test]
fn a_database_that_was_not_closed_is_refused_by_another_of_its_names() {
    for mode in SAFE_MODES {
        let place = not_closed(mode);
        let other = place.directory.path().join("other.db");
        fs::hard_link(place.path(), &other).unwrap();
        for _ in 0..2 {
            let error = open(&other, "")
                .and_then(|connection| connection.execute_batch("SELECT count(*) FROM t"))
                .unwrap_err();
            assert_eq!(
                error.sqlite_error_code(),
                Some(ErrorCode::CannotOpen),
                "{mode}: {error}"
            );
            let why = mobifs_sqlite::last_error().unwrap();
            assert!(why.contains("has other names (hard links)"), "{why}");
        }
        let connection = place.open("");
        assert_eq!(count(&connection), ROWS, "{mode}");
        connection.close().unwrap();
        is_ordinary(&other, ROWS);
    }
}

/// As tools restore files: what had been committed for the old one was dropped, and nothing said so.
#[test]
fn what_was_committed_to_a_file_that_a_copy_has_replaced_is_kept() {
    for mode in SAFE_MODES {
        let place = Place::new();
        // What is committed next is for a file that is there.
        let connection = place.open("");
        make_table(&connection);
        connection.close().unwrap();
        let entry = "commits_to_a_database_and_dies";
        let died = child(entry, mode, &place.path()).output().unwrap();
        assert!(!died.status.success());
        let copied = place.directory.path().join("copy");
        fs::copy(place.path(), &copied).unwrap();
        fs::rename(&copied, place.path()).unwrap();
        let connection = place.open("");
        assert_eq!(count(&connection), 0, "{mode}: as the file was");
        connection.close().unwrap();
        is_ordinary(&place.path(), 0);
        let kept = fs::read_dir(place.directory.path()).unwrap();
        let kept: Vec<_> = kept.map(|entry| entry.unwrap().file_name()).collect();
        let is_kept = |name: &std::ffi::OsString| name.to_string_lossy().contains("replaced");
        assert!(kept.iter().any(is_kept), "{mode}: {kept:?}");
    }
}

/// Not a test: the program whose commits only the store has.
#[test]
fn commits_to_a_database_and_dies() {
    let Some((mode, path)) = purpose() else {
        return;
    };
    let connection = opened(&path, "&class=durable");
    set_mode(&connection, &mode);
    insert(&connection, 3);
    std::process::abort();
}
