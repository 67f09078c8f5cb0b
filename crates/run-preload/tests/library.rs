//! The library as programs load it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

/// What it stands before; more would be called by mistake, less would be missed.
const FUNCTIONS: [&str; 10] = [
    "fdatasync",
    "fsync",
    "mmap",
    "mmap64",
    "msync",
    "pwritev2",
    "pwritev64v2",
    "sync",
    "sync_file_range",
    "syncfs",
];

#[test]
fn the_library_has_these_functions_and_no_others() {
    // Beside the directory of this program, where cargo puts libraries.
    let tests = std::env::current_exe().unwrap();
    let library = tests
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("libmobifs_run.so");
    let listed = Command::new("nm")
        .args(["--dynamic", "--defined-only"])
        .arg(&library)
        .output();
    let obstacle = match &listed {
        Ok(_) => (!library.is_file()).then(|| "the library is not built".to_owned()),
        Err(error) => Some(format!("nm: {error}")),
    };
    if !mobifs_skip::can(obstacle) {
        return;
    }
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    let mut names: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.split_once(" T "))
        .map(|(_, name)| name.split('@').next().unwrap_or(name))
        .collect();
    names.sort_unstable();
    assert_eq!(names, FUNCTIONS);
}
