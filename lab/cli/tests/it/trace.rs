//! `mobifs trace` as a user calls it.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const STRACE: &str = "\
7 100.000000 openat(AT_FDCWD, \"/r/mail/a\", O_RDWR|O_CREAT|O_EXCL, 0640) = 3 <0.0001>
7 100.500000 write(3, \"\"..., 5000) = 5000 <0.0001>
nonsense
7 101.000000 pwrite64(3, \"\"..., 1000, 0) = 1000 <0.0001>
7 101.500000 fsync(3) = 0 <0.001>
8 102.000000 mkdir(\"/r/web\", 0755) = 0 <0.0001>
7 103.000000 +++ exited with 0 +++
";

fn trace(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mobifs-lab"));
    command.arg("trace").args(arguments).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn done(arguments: &[&str]) -> String {
    let output = trace(arguments);
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        errors(&output)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_trace_goes_through_all_commands() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (source, stored, part, merged) = (at("output"), at("stored"), at("part"), at("merged"));
    std::fs::write(&source, STRACE).unwrap();
    let output = trace(&[
        "import",
        "--root",
        "/r",
        "--out",
        text(&stored),
        text(&source),
    ]);
    assert!(output.status.success(), "{}", errors(&output));
    assert!(
        errors(&output).contains("line 3: 'nonsense'"),
        "{}",
        errors(&output)
    );

    let counted: Value = serde_json::from_str(&done(&["stat", "--json", text(&stored)])).unwrap();
    let mail = &counted["traces"][0]["apps"]["mail"];
    assert_eq!(mail["bytes_written"], 6000);
    assert_eq!(mail["bytes_overwritten"], 1000);
    assert_eq!((&mail["syncs"], &mail["files"]), (&1.into(), &1.into()));
    assert!(done(&["stat", text(&stored)]).contains("mail"));

    let cat = done(&["cat", "--app", "mail", text(&stored)]);
    assert_eq!(cat.lines().count(), 6);
    assert!(
        cat.contains("0.500000000 mail 7/7 write mail/a offset 0 length 5000 = 5000 (100.0 µs)"),
        "{cat}"
    );
    let json = done(&["cat", "--json", "--path", "web*", text(&stored)]);
    let event: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&event["operation"], &event["mode"]),
        (&"make_directory".into(), &0o755.into())
    );

    done(&[
        "cut",
        "--start",
        "0.9",
        "--end",
        "1.2",
        "--out",
        text(&part),
        text(&stored),
    ]);
    let cut = done(&["cat", text(&part)]);
    assert!(
        cut.starts_with("0.100000000 mail") && cut.lines().count() == 1,
        "{cut}"
    );

    let (first, second) = (
        text(&stored).to_owned(),
        format!("{}=other@10", text(&part)),
    );
    done(&["merge", "--out", text(&merged), &first, &second]);
    let all = done(&["cat", text(&merged)]);
    assert!(
        all.contains("10.100000000 other/mail 15/15 write other/mail/a"),
        "{all}"
    );

    replays(&stored, &at("place"));
}

/// A replay of the trace into a new directory does what the trace says.
fn replays(stored: &Path, place: &Path) {
    std::fs::create_dir(place).unwrap();
    let report = done(&[
        "replay",
        "--full-speed",
        "--json",
        text(stored),
        text(place),
    ]);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(
        report["differences"].as_array().unwrap().len(),
        0,
        "{report}"
    );
    assert_eq!(std::fs::metadata(place.join("mail/a")).unwrap().len(), 5000);
    assert!(place.join("web").is_dir());
}

#[test]
fn errors_are_one_sentence_and_have_their_codes() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (unknown, source, cut, block) = (at("unknown"), at("output"), at("cut"), at("block"));
    std::fs::write(&unknown, "hello\n").unwrap();
    std::fs::write(&source, STRACE).unwrap();
    std::fs::write(&block, "a-1,8,R,0,8,1.0\n").unwrap();
    let stored = at("stored");
    done(&["import", "--out", text(&stored), text(&source)]);
    let bytes = std::fs::read(&stored).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let full = directory.path();
    // The library panics on it.
    let regressions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test/fuzz/regressions");
    let negative = regressions.join("trace_parquet/column-at-a-negative-offset");
    for (arguments, code, message) in [
        (&["stat", text(&unknown)][..], 2, "looks like no trace"),
        (&["stat", text(&cut)], 4, "not a whole Parquet file"),
        (&["stat", text(&negative)], 4, "header is cut short"),
        (&["stat", "/nowhere"], 1, "/nowhere"),
        (&["stat", "--strict", text(&source)], 1, "line 3"),
        (
            &["stat", "--from", "nothing", text(&source)],
            2,
            "no format of traces",
        ),
        (&["cat", "--app", "[", text(&source)], 2, "mobifs: "),
        (
            &["replay", text(&block), text(full)],
            2,
            "mobifs flash replay",
        ),
        (&["replay", text(&source), text(full)], 2, "not empty"),
        (
            &["replay", "--speed", "0", text(&source), text(full)],
            2,
            "above 0",
        ),
        (&["record", "--out", "/nowhere/x", "true"], 1, "/nowhere/x"),
    ] {
        let output = trace(arguments);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {}",
            errors(&output)
        );
        let stderr = errors(&output);
        assert!(stderr.contains(message), "{arguments:?}: {stderr}");
        assert!(!stderr.contains("panicked"), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_command_is_recorded_with_what_the_user_does() {
    if Command::new("strace").arg("-V").output().is_err() {
        mobifs_skip::skip("strace is not installed");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (root, out, pipe) = (
        directory.path().join("root"),
        directory.path().join("t"),
        directory.path().join("p"),
    );
    std::fs::create_dir(&root).unwrap();
    let script =
        "mkdir app; echo touch > $MOBIFS_TOUCH_FIFO; echo 1 > app/x; mv app/x app/y; exit 7";
    let output = Command::new(env!("CARGO_BIN_EXE_mobifs-lab"))
        .args([
            "trace",
            "record",
            "--root",
            text(&root),
            "--out",
            text(&out),
            "--touch-fifo",
            text(&pipe),
        ])
        .args(["--", "sh", "-c", script])
        .current_dir(&root)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", errors(&output));
    let cat = done(&["cat", text(&out)]);
    for expected in [
        " user touch = 0",
        " write app/x offset 0 length 2 = 2",
        " rename app/x -> app/y",
    ] {
        assert!(cat.contains(expected), "{expected}: {cat}");
    }
}

/// `trace import --out X X` replaced its source, and others what was there.
#[test]
fn a_file_that_is_there_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    std::fs::write(&source, STRACE).unwrap();
    let stored = directory.path().join("stored");
    done(&["import", "--out", text(&stored), text(&source)]);
    let before = std::fs::read(&stored).unwrap();
    for words in [
        &["import", "--out", text(&source), text(&source)][..],
        &["import", "--out", text(&stored), text(&source)],
        &["cut", "--out", text(&stored), text(&stored)],
        &["merge", "--out", text(&stored), text(&stored)],
        &["record", "--out", text(&stored), "--", "true"],
    ] {
        let output = trace(words);
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert!(
            said.contains("is there, and is not replaced"),
            "{words:?}: {said}"
        );
    }
    assert_eq!(std::fs::read_to_string(&source).unwrap(), STRACE);
    assert_eq!(std::fs::read(&stored).unwrap(), before);
}

/// A user gave a directory that was not there, and got an empty trace without an error.
#[test]
fn a_recording_of_nothing_says_why() {
    if Command::new("strace").arg("-V").output().is_err() {
        mobifs_skip::skip("strace is not installed");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (missing, out) = (directory.path().join("missing"), directory.path().join("t"));
    let record = |root: &Path| {
        let words = ["record", "--root", text(root), "--out", text(&out), "--"];
        trace(&[&words[..], &["true"]].concat())
    };
    let refused = record(&missing);
    let said = errors(&refused);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("missing is not a directory"), "{said}");
    assert!(!out.exists(), "an empty trace would look like a good one");
    std::fs::write(&out, "precious").unwrap();
    assert!(!record(&missing).status.success());
    assert_eq!(std::fs::read(&out).unwrap(), b"precious");
    std::fs::remove_file(&out).unwrap();

    std::fs::create_dir(&missing).unwrap();
    let empty = record(&missing);
    let said = errors(&empty);
    assert!(
        empty.status.success() && said.contains("did nothing below"),
        "{said}"
    );
    assert!(out.exists());
}
