//! Programs that are killed while a transaction over two databases commits: whichever of them is
//! opened first, alone, is opened and read at the first try, and both have the transaction or
//! neither has.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::{Path, PathBuf};

use common::{
    Place, check, child, count, insert, is_ordinary, kill_point, make_table, opened, purpose,
    set_mode,
};

/// More than a transaction over two databases has.
const INSTANTS_MAX: u64 = 40;

fn second(path: &Path) -> PathBuf {
    path.with_file_name("second.db")
}

/// Not a test: the program that ends at some instant of its second transaction.
#[test]
fn commits_in_two_databases_until_it_is_killed() {
    let Some((purpose, path)) = purpose() else {
        return;
    };
    let words: Vec<&str> = purpose.split(' ').collect();
    let [mode, class, instant] = words[..] else {
        panic!("{purpose}");
    };
    let parameters = format!("&class={class}");
    let connection = opened(&path, &parameters);
    let attach = format!(
        "ATTACH 'file:{}?vfs=mobifs{parameters}' AS other",
        second(&path).display()
    );
    connection.execute_batch(&attach).unwrap();
    set_mode(&connection, mode);
    connection
        .execute_batch(&format!("PRAGMA other.journal_mode={mode}"))
        .unwrap();
    let both = "BEGIN; INSERT INTO main.t VALUES (randomblob(3000)); \
                INSERT INTO other.t VALUES (randomblob(3000)); COMMIT";
    let create = "CREATE TABLE main.t(b); CREATE TABLE other.t(b)";
    connection
        .execute_batch(&format!("{create}; {both}"))
        .unwrap();
    kill_point::end_at(instant.parse().unwrap());
    connection.execute_batch(both).unwrap();
    kill_point::end_at(0);
    connection.close().unwrap();
}

/// The first try failed with `unable to open database file`, or with `disk I/O error`: the other
/// database was recovered and closed between the moment at which SQLite found its journal and the
/// one at which SQLite opened it, or it was to be recovered while this one was locked for that.
#[test]
fn one_of_two_databases_opens_at_once_after_a_kill_in_a_commit_over_both() {
    let (mut kills, mut undone) = (0, 0);
    for mode in ["delete", "truncate", "persist"] {
        for (class, is_second_first) in [("durable", false), ("relaxed", true)] {
            for instant in 1..INSTANTS_MAX {
                let place = Place::new();
                let purpose = format!("{mode} {class} {instant}");
                let entry = "commits_in_two_databases_until_it_is_killed";
                let ended = child(entry, &purpose, &place.path()).output().unwrap();
                let is_killed = ended.status.code().is_none();
                assert!(is_killed || ended.status.success(), "{purpose}: {ended:?}");
                let mut paths = [place.path(), second(&place.path())];
                if is_second_first {
                    paths.reverse();
                }
                let rows = paths.each_ref().map(|path| {
                    mobifs_sqlite::forget_last_error();
                    let connection = opened(path, "");
                    check(&connection);
                    let rows = count(&connection);
                    connection.close().unwrap();
                    let said = mobifs_sqlite::last_error();
                    assert_eq!(said, None, "{purpose}: {}", path.display());
                    rows
                });
                assert_eq!(rows[0], rows[1], "{purpose}");
                for path in &paths {
                    is_ordinary(path, rows[0]);
                }
                if !is_killed {
                    break;
                }
                assert!(instant + 1 < INSTANTS_MAX, "{purpose}: it goes on");
                kills += 1;
                undone += u64::from(rows[0] == 1);
            }
        }
    }
    assert!(
        0 < undone && undone < kills,
        "{undone} of {kills} were undone"
    );
}

/// Not a test: the program that ends with a journal that has ended and is kept.
#[test]
fn dies_with_a_kept_journal() {
    let Some((_, path)) = purpose() else {
        return;
    };
    let connection = opened(&path, "");
    set_mode(&connection, "persist");
    make_table(&connection);
    insert(&connection, 3);
    std::process::abort();
}

/// What SQLite does with the journal of another database in a recovery: it looks whether it is
/// there, and opens it. The codes of both, and whether it is there.
#[allow(unsafe_code, reason = "SQLite's C interface")]
fn looked_at(journal: &Path) -> (i32, bool, i32) {
    use rusqlite::ffi;
    use std::os::unix::ffi::OsStrExt as _;
    let name = [journal.as_os_str().as_bytes(), b"\0"].concat();
    // SAFETY: a VFS that is registered, room for a file of it, a name with its end.
    unsafe {
        let vfs = ffi::sqlite3_vfs_find(c"mobifs".as_ptr());
        let mut is_there = 0;
        let access = (*vfs).xAccess.unwrap();
        let exists = ffi::SQLITE_ACCESS_EXISTS;
        let looked = access(vfs, name.as_ptr().cast(), exists, &raw mut is_there);
        let mut room = vec![0_u64; (*vfs).szOsFile as usize / 8 + 1];
        let file = room.as_mut_ptr().cast::<ffi::sqlite3_file>();
        let flags = ffi::SQLITE_OPEN_READONLY | ffi::SQLITE_OPEN_SUPER_JOURNAL;
        let open = (*vfs).xOpen.unwrap();
        let opened = open(vfs, name.as_ptr().cast(), file, flags, std::ptr::null_mut());
        if opened == ffi::SQLITE_OK {
            assert_eq!((*(*file).pMethods).xClose.unwrap()(file), ffi::SQLITE_OK);
        }
        (looked, is_there != 0, opened)
    }
}

/// The look brought the database to its end, without the journal that it had found: in `persist`
/// that lies there when it has ended.
#[test]
fn a_database_that_is_looked_at_keeps_a_journal_that_has_ended() {
    let place = Place::new();
    let entry = "dies_with_a_kept_journal";
    let died = child(entry, "", &place.path()).output().unwrap();
    assert!(died.status.code().is_none(), "{died:?}");
    let journal = place.path().with_file_name("app.db-journal");
    for _ in 0..2 {
        assert_eq!(looked_at(&journal), (0, true, 0));
    }
    let connection = opened(&place.path(), "");
    assert_eq!(count(&connection), 3);
    connection.close().unwrap();
    is_ordinary(&place.path(), 3);
}
