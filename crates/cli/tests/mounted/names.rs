//! Apps whose names are no text.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Output};

use crate::fixture::{Fixture, PROGRAM, fails, needs_mounts, succeeds};

/// Found by hand: the command line refused such a name, and the status showed another one.
#[test]
fn an_app_whose_name_is_no_text_can_be_named_as_the_status_shows_it() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let name = OsStr::from_bytes(b"ma\xffil");
    fs::create_dir(fixture.mountpoint.join(name)).unwrap();
    fs::create_dir(fixture.mountpoint.join("other")).unwrap();
    let run = |words: &[&str], name: &OsStr| -> Output {
        let mut command = Command::new(PROGRAM);
        command.args(words).arg("--app").arg(name);
        command.arg(&fixture.mountpoint).output().unwrap()
    };
    succeeds(&run(&["set", "--class", "durable"], name));
    succeeds(&run(&["sync"], name));
    let unknown = OsStr::from_bytes(b"ma\xfeil");
    fails(&run(&["sync"], unknown), 2, &[r"$'ma\xfeil'"]);
    fails(
        &run(&["set", "--class", "durable"], unknown),
        2,
        &[r"$'ma\xfeil'"],
    );

    let shown = run(&["status"], name);
    succeeds(&shown);
    let shown = String::from_utf8(shown.stdout).unwrap();
    let is_row = |line: &&str| line.starts_with(r"$'ma\xffil' ");
    let row = shown.lines().find(is_row).unwrap();
    assert!(row.contains(" durable "), "{shown}");
    assert!(!shown.contains("other"), "{shown}");
    let json = run(&["status", "--json"], name);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["apps"].as_array().unwrap().len(), 1, "{json}");
    assert_eq!(json["apps"][0]["name_hex"], "6d61ff696c");
    assert_eq!(json["apps"][0]["class"], "durable");
    fixture.umount();
}
