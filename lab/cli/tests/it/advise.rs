//! `mobifs frag advise` as a user calls it, and the exit codes that it shares with `measure` and `defrag`.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn frag(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mobifs-lab"));
    command.arg("frag").args(arguments).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A directory on a filesystem that reports extents; none, and the test is skipped, where `/var/tmp` has none.
fn tree() -> Option<tempfile::TempDir> {
    let base = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::write(base.path().join("a.db"), [1; 9000]).unwrap();
    let output = frag(&["measure", base.path().to_str().unwrap()]);
    let obstacle = (!output.status.success()).then(|| errors(&output));
    mobifs_skip::can(obstacle).then_some(base)
}

#[test]
fn advice_is_a_table_and_a_document() {
    let Some(base) = tree() else {
        return;
    };
    let path = base.path().to_str().unwrap();
    let output = frag(&["advise", "--json", path]);
    assert!(output.status.success(), "{}", errors(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&report["schema"], &report["files"]),
        (&1.into(), &1.into())
    );
    assert_eq!(report["model"]["source"], "paper");
    let output = frag(&["advise", "--piece-ms", "0.5", path]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.contains("1 file with") && said.contains("as given"),
        "{said}"
    );
}

/// Bad input has the same exit code, whichever command gets it.
#[test]
fn bad_input_has_the_same_exit_code_for_all_three_commands() {
    let Some(base) = tree() else {
        return;
    };
    let at = |name: &str| base.path().join(name).to_str().unwrap().to_owned();
    let code = |arguments: &[&str]| {
        let output = frag(arguments);
        let said = errors(&output);
        assert!(
            output.stdout.is_empty() && said.lines().count() == 1,
            "{arguments:?}: {said}"
        );
        (output.status.code().unwrap(), said)
    };
    std::os::unix::fs::symlink("a.db", Path::new(&at("link"))).unwrap();
    for (path, expected) in [
        ("/nonexistent", 1),
        ("/proc", 1),
        ("/dev/null", 2),
        (&at("link"), 2),
    ] {
        for command in [&["measure"][..], &["advise"], &["defrag", "--dry-run"]] {
            let (found, said) = code(&[command, &[path]].concat());
            assert_eq!(found, expected, "{command:?} {path}: {said}");
        }
    }
    fs::write(at("no-trace"), "words\n").unwrap();
    fs::write(at("torn.parquet"), b"PAR1torn").unwrap();
    let path = base.path().to_str().unwrap();
    for (trace, expected) in [
        ("/nonexistent", 1),
        (&at("no-trace"), 2),
        (&at("torn.parquet"), 4),
    ] {
        for command in [
            &["advise", "--trace"][..],
            &["defrag", "--dry-run", "--hot"],
        ] {
            let (found, said) = code(&[command, &[trace, path]].concat());
            assert_eq!(found, expected, "{command:?} {trace}: {said}");
            assert!(said.contains(trace), "{said}");
        }
    }
    let (found, said) = code(&["advise", "--measure-cost", path]);
    assert_eq!(found, 1);
    assert!(said.contains("too few files"), "{said}");
}
