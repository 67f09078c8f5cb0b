//! Programs that are killed while a transaction over two databases commits: whichever of them is
//! opened first, alone, is opened and read at the first try, and both have the transaction or
//! neither has.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::{Path, PathBuf};

use common::{Place, check, child, count, is_ordinary, kill_point, opened, purpose, set_mode};

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
