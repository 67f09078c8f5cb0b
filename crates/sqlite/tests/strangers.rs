//! Other users: owners of the directory around a database, and files that they put beside it. Needs
//! root, for several users; elsewhere each test says that it is skipped.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;

use common::{Place, USER, as_user, count, insert, is_ordinary, make_table, open};

const STRANGER: u32 = 7;

/// A directory of root's in which everybody may make files.
fn public_place() -> Option<Place> {
    if !rustix::process::geteuid().is_root() {
        mobifs_skip::skip("only root can be several users");
        return None;
    }
    let place = Place::new();
    fs::set_permissions(place.directory.path(), Permissions::from_mode(0o1777)).unwrap();
    Some(place)
}

/// Another user's file or directory, which everybody may change.
fn plant(path: &Path, is_directory: bool) {
    if is_directory {
        fs::create_dir(path).unwrap();
    } else {
        fs::write(path, "forged").unwrap();
    }
    chown(path, Some(STRANGER), Some(STRANGER)).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
}

fn use_it(path: &Path) {
    let connection = open(path, "").unwrap();
    make_table(&connection);
    insert(&connection, 5);
    connection.close().unwrap();
}

#[test]
fn a_database_may_lie_in_a_directory_of_another_user() {
    let Some(place) = public_place() else { return };
    let before = fs::metadata(place.directory.path()).unwrap().mode();
    as_user(|| use_it(&place.path()));
    is_ordinary(&place.path(), 5);
    let after = fs::metadata(place.directory.path()).unwrap().mode();
    assert_eq!(after, before);
}

#[test]
fn the_mode_of_the_directory_is_its_owners() {
    let place = Place::new();
    let connection = open(&place.path(), "").unwrap();
    make_table(&connection);
    let private = Permissions::from_mode(0o711);
    fs::set_permissions(place.directory.path(), private).unwrap();
    insert(&connection, 5);
    connection.close().unwrap();
    let mode = fs::metadata(place.directory.path()).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o711);
    is_ordinary(&place.path(), 5);
}

#[test]
fn files_of_another_user_beside_a_database_are_not_trusted() {
    let names = [("app.db-mobifs", true), ("app.db-mobifs-journal", false)];
    for (name, is_directory) in names {
        let Some(place) = public_place() else { return };
        let planted = place.directory.path().join(name);
        plant(&planted, is_directory);
        as_user(|| {
            open(&place.path(), "").unwrap_err();
            let words = mobifs_sqlite::last_error().unwrap_or_default();
            let named = ["user 7,", "user with id 7,"]
                .iter()
                .any(|user| words.contains(user));
            assert!(named, "{name}: {words}");
        });
        if is_directory {
            assert_eq!(fs::read_dir(&planted).unwrap().count(), 0);
            fs::remove_dir(&planted).unwrap();
        } else {
            assert_eq!(fs::read(&planted).unwrap(), b"forged");
            fs::remove_file(&planted).unwrap();
        }
        as_user(|| use_it(&place.path()));
        is_ordinary(&place.path(), 5);
    }
}

#[test]
fn a_foreign_file_with_the_arenas_name_does_not_block_the_database() {
    let Some(place) = public_place() else { return };
    as_user(|| use_it(&place.path()));
    let about = fs::metadata(place.path()).unwrap();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::set_permissions(memory.path(), Permissions::from_mode(0o1777)).unwrap();
    let name = format!("mobifs-{USER}-{:x}-{:x}", about.dev(), about.ino());
    let planted = memory.path().join(name);
    plant(&planted, false);
    as_user(|| {
        let arena = format!("&arena={}", memory.path().display());
        let connection = open(&place.path(), &arena).unwrap();
        assert_eq!(count(&connection), 5);
        insert(&connection, 1);
        let status: String = connection
            .query_row("PRAGMA mobifs_status", [], |row| row.get(0))
            .unwrap();
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        assert_eq!(status["outlives_process"], true, "{status}");
        connection.close().unwrap();
    });
    assert_eq!(fs::read(&planted).unwrap(), b"forged");
    assert_eq!(fs::read_dir(memory.path()).unwrap().count(), 1);
    is_ordinary(&place.path(), 6);
}
