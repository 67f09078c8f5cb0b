//! `mobifs persist` as a user calls it. Needs root, `/dev/fuse` and loop devices.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_mobifs-lab");

fn persist(arguments: &[&str]) -> Output {
    Command::new(PROGRAM)
        .arg("persist")
        .args(arguments)
        .output()
        .unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn document(arguments: &[&str]) -> Value {
    let output = persist(arguments);
    assert!(output.status.success(), "{}", errors(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn can_run() -> bool {
    let has_loops = Path::new("/dev/loop-control").exists();
    mobifs_skip::can_mount()
        && mobifs_skip::can((!has_loops).then_some("no loop devices"))
        && mobifs_skip::can(mobifs_skip::why_fails(Command::new("mkfs.ext4").arg("-V")))
}

#[test]
fn what_is_no_journal_is_refused_in_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "text").unwrap();
    let output = persist(&["characterise", file.to_str().unwrap()]);
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("file: it is neither an image") && said.lines().count() == 1,
        "{said}"
    );
    for wrong in [
        &["characterise"][..],
        &["compare", "--preset", "x"],
        &["characterise", "--model", "x", "--", "true"],
        // Nothing is served for an image.
        &["characterise", "--through", "mobifs", "image"],
        &["characterise", "--scale", "0", "image"],
        &["characterise", "--mount-options", "discard", "image"],
    ] {
        assert_eq!(persist(wrong).status.code(), Some(2), "{wrong:?}");
    }
    let output = persist(&["compare", "--only", "packed"]);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
}

/// Regression: the advice was an option that the command has not, and came with the child's name.
#[test]
fn a_trace_that_is_none_is_refused_before_a_device_is_served() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "words\n").unwrap();
    let output = persist(&["characterise", "--trace", file.to_str().unwrap()]);
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("`mobifs trace import --from") && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn what_is_no_store_or_damaged_is_refused_with_what_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().to_str().unwrap();
    let output = persist(&["characterise", at]);
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("has no store of MobiFS"), "{said}");
    fs::create_dir(directory.path().join(".mobifs")).unwrap();
    fs::write(directory.path().join(".mobifs/journal"), "text").unwrap();
    let output = persist(&["characterise", at]);
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("a damaged journal of MobiFS"), "{said}");
}

#[test]
fn an_output_that_cannot_be_written_is_refused_before_anything_is_measured() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path().to_str().unwrap();
    for html in [&format!("{here}/missing/page.html"), here] {
        let compare = ["compare", "--preset", "quick", "--scale", "0"];
        let output = persist(&[&compare[..], &["--html", html]].concat());
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains("cannot write") && !said.contains("round 1"),
            "{said}"
        );
        let ran = directory.path().join("ran");
        let command = ["--html", html, "--", "touch", ran.to_str().unwrap()];
        let output = persist(&[&["characterise"], &command[..]].concat());
        assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
        assert!(!ran.exists());
    }
    // Nothing is left of the attempt.
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_program_is_characterised_and_its_output_is_not_in_the_way() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let html = directory.path().join("page.html");
    let command = "echo hello; for i in 1 2 3; do echo $i > $i; sync $i; done";
    let options = [
        "characterise",
        "--json",
        "--scale",
        "0",
        "--size",
        "256MiB",
        "--mount-options",
        "commit=300",
    ];
    let rest = ["--html", html.to_str().unwrap(), "--", "sh", "-c", command];
    let found = document(&[&options[..], &rest].concat());
    assert_eq!(found["ext4"]["commits"], 3, "{found}");
    assert_eq!(found["mobifs"], Value::Null);
    assert!(fs::read_to_string(html).unwrap().contains("<svg"));
    // A program that fails is an error, and nothing stays mounted.
    let failed = persist(&[
        "characterise",
        "--scale",
        "0",
        "--size",
        "256MiB",
        "--",
        "false",
    ]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(
        errors(&failed).contains("false failed"),
        "{}",
        errors(&failed)
    );
    assert!(
        !fs::read_to_string("/proc/self/mounts")
            .unwrap()
            .contains("mobifs-persist-")
    );
}
