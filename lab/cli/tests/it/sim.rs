//! `mobifs sim` and `mobifs lab figures` as a user calls them, on the samples of the
//! repository.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn sample(name: &str) -> PathBuf {
    let samples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces");
    Path::new(samples).join(name)
}

fn mobifs(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mobifs-lab"));
    command.args(arguments).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn simulated(arguments: &[&str]) -> Value {
    let output = mobifs(&[&["sim", "--json"], arguments].concat());
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        errors(&output)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

fn reduction(report: &Value) -> f64 {
    report["flush_reduction_vs_ext4"].as_f64().unwrap()
}

#[test]
fn a_simulation_reports_the_savings_and_is_deterministic() {
    let (git, sqlite) = (sample("git.parquet"), sample("sqlite.parquet"));
    let both = [git.to_str().unwrap(), sqlite.to_str().unwrap()];
    let report = simulated(&both);
    let saved = reduction(&report);
    assert!((0.0..=1.0).contains(&saved), "{saved}");
    assert_eq!(report["traces"].as_array().unwrap().len(), 2);
    assert_eq!(report, simulated(&both));
    let policy = |name: &str| reduction(&simulated(&["--policy", name, both[1]]));
    // An engine that commits with every fsync saves less than one that never has to.
    let (eager, ideal) = (policy("fsync"), policy("ideal"));
    assert!(eager < ideal, "{eager} {ideal}");
    assert!((0.0..=1.0).contains(&ideal), "{ideal}");
}

#[test]
fn bad_input_of_a_simulation_is_reported_in_one_sentence() {
    let git = sample("git.parquet");
    let git = git.to_str().unwrap();
    for (arguments, code, message) in [
        (&["sim", "--policy", "nope", git][..], 2, "nope"),
        (&["sim", "--device", "nope", git], 2, "nope"),
        (&["sim", "/nowhere"], 1, "/nowhere"),
        (&["figures", "-o", "/dev/null/x", git], 1, "/dev/null/x"),
    ] {
        let output = mobifs(arguments);
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(message), "{arguments:?}: {said}");
    }
}

#[test]
fn figures_that_traces_do_not_give_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let packages = sample("packages.parquet");
    let output = mobifs(&[
        "figures",
        "-o",
        directory.path().to_str().unwrap(),
        packages.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", errors(&output));
    assert!(errors(&output).contains("Figures 8 and 9"));
    assert!(!directory.path().join("fig08-conflicts.svg").exists());
}

#[test]
fn every_figure_comes_as_picture_and_as_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().to_str().unwrap();
    let desk = sample("desk.parquet");
    let has_renderer = Command::new("rsvg-convert")
        .arg("--version")
        .output()
        .is_ok();
    let mut arguments = vec!["figures", "-o", output];
    if has_renderer {
        arguments.push("--png");
    } else {
        mobifs_skip::skip_part("PNG pictures: no rsvg-convert");
    }
    arguments.push(desk.to_str().unwrap());
    let done = mobifs(&arguments);
    assert!(done.status.success(), "{}", errors(&done));
    let with_ending = |ending: &str| {
        let entries = std::fs::read_dir(directory.path()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let mut names: Vec<_> = paths
            .filter(|path| path.extension().is_some_and(|found| found == ending))
            .map(|path| path.file_stem().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    let figures = with_ending("svg");
    for number in [
        "fig01", "fig03", "fig05", "fig06", "fig07", "fig08", "fig09", "fig13",
    ] {
        let is_it = |name: &std::ffi::OsString| name.to_string_lossy().starts_with(number);
        assert!(figures.iter().any(is_it), "{number} of {figures:?}");
    }
    assert_eq!(with_ending("csv"), figures);
    if has_renderer {
        assert_eq!(with_ending("png"), figures);
        let picture = directory.path().join(&figures[0]).with_extension("png");
        assert!(std::fs::read(picture).unwrap().starts_with(b"\x89PNG"));
    }
    let page = std::fs::read_to_string(directory.path().join("index.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), figures.len());
    // Nothing is loaded from elsewhere.
    assert!(!page.contains("src=") && !page.contains("<link"));
}
