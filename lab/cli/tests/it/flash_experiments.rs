//! `mobifs flash validate` and `mobifs flash replay` as a user calls them.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::process::{Command, Output};

use serde_json::Value;

const TRACE: &str = "\
proces,device,rw_flag,sector,size,timestamp
app-1,8388608,W,0,8,100.000000
nonsense
app-1,8388608,R,0,8,100.500000
";

fn flash(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mobifs-lab"));
    command.arg("flash").args(arguments).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The refusal of the root, and of other mounts, was "No such file or directory".
#[test]
fn what_lies_on_no_served_device_is_refused_in_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    for place in ["/", "/proc", directory.path().to_str().unwrap()] {
        let output = flash(&["stats", place]);
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(5), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        for needle in [place, "served", "`mobifs flash serve`"] {
            assert!(said.contains(needle), "{said}");
        }
    }
    let missing = directory.path().join("missing");
    let output = flash(&["stats", missing.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("No such file"), "{output:?}");
}

fn replayed(content: &str, options: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.csv");
    std::fs::write(&path, content).unwrap();
    let path = path.to_str().unwrap();
    let fixed = ["replay", "--size", "64MiB"];
    flash(&[fixed.as_slice(), options, &[path]].concat())
}

#[test]
fn a_bad_line_is_reported_and_skipped_unless_strict() {
    let output = replayed(TRACE, &["--json"]);
    assert!(output.status.success(), "{}", errors(&output));
    assert!(errors(&output).contains("trace.csv: line 3: 1 columns"));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["execution"]["requests"], 2);
    assert_eq!(document["execution"]["lines"]["malformed"], 1);

    let output = replayed(TRACE, &["--strict"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("line 3"), "{}", errors(&output));
}

#[test]
fn an_address_beyond_the_device_says_what_to_do() {
    let line = "app-1,8388608,W,999999999,8,1.0\n";
    let output = replayed(line, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("larger --size, or --wrap"));
    assert!(replayed(line, &["--wrap"]).status.success());
}

#[test]
fn wrong_arguments_are_refused() {
    for options in [
        ["--preset", "floppy"],
        ["--scale", "-1"],
        ["--scale", "nan"],
        ["--as-fast-as-possible", "0"],
        ["--size", "7"],
    ] {
        let output = replayed(TRACE, &options);
        assert_eq!(output.status.code(), Some(2), "{options:?}");
    }
    let output = flash(&["validate", "--preset", "floppy"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn the_exit_code_says_whether_a_criterion_failed() {
    let directory = tempfile::tempdir().unwrap();
    let plot = directory.path().join("plot.svg");
    let plot = plot.to_str().unwrap();
    let output = flash(&["validate", "--quick", "--json", "--plot", plot]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["validations"].as_array().unwrap().len(), 3);
    assert_eq!(document["failed"] == 0, output.status.success());
    assert!(std::fs::read_to_string(plot).unwrap().starts_with("<svg "));
}
