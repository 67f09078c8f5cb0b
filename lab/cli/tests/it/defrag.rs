//! `mobifs frag defrag` as a user calls it.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use mobifs_trace::{Event, EventKind, Header, TraceBuilder, TraceNs, write_file};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mobifs-lab"));
    command.args(["frag", "defrag"]).args(arguments);
    command
}

fn document(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A mounted ext4 with three files in many pieces.
struct Disk(TempDir);

impl Disk {
    fn new() -> Option<Self> {
        if !mobifs_skip::is_root() {
            return None;
        }
        let disk = Self(tempfile::tempdir_in("/var/tmp").unwrap());
        let image = disk.0.path().join("disk");
        File::create(&image).unwrap().set_len(64 << 20).unwrap();
        fs::create_dir(disk.path()).unwrap();
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-F", "-b", "4096"]).arg(&image);
        mobifs_skip::can(mobifs_skip::why_fails(&mut mkfs)).then_some(())?;
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop"]).arg(&image).arg(disk.path());
        mobifs_skip::can(mobifs_skip::why_fails(&mut mount)).then_some(())?;
        for round in 0..20_u8 {
            for name in ["a", "b", "c"] {
                let path = disk.path().join(name);
                let mut file = OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(path)
                    .unwrap();
                file.write_all(&[round; 8192]).unwrap();
                file.sync_data().unwrap();
            }
        }
        Some(disk)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("mnt")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _status = Command::new("umount").arg(self.path()).output();
    }
}

/// A trace that reads one file.
fn trace_of(file: &Path, trace: &Path) {
    let mut builder = TraceBuilder::new(Header::default());
    let (app, path) = (
        builder.app(b"app"),
        builder.path(file.as_os_str().as_bytes()),
    );
    builder.push(Event {
        time: TraceNs(0),
        app,
        process: 1,
        thread: 1,
        kind: EventKind::Read {
            path,
            offset: 0,
            length: 1 << 20,
        },
        result: 1 << 20,
        duration_ns: 0,
    });
    write_file(&builder.finish(), trace).unwrap();
}

#[test]
fn only_what_a_trace_reads_is_moved_and_a_signal_ends_it_between_moves() {
    let Some(disk) = Disk::new() else {
        return;
    };
    let path = disk.path();
    let mount = path.to_str().unwrap();
    let trace = disk.0.path().join("trace.parquet");
    trace_of(&path.join("b"), &trace);
    let hot = ["--all", "--json", "--hot", trace.to_str().unwrap(), mount];
    let output = command(&[&["--dry-run"], &hot[..]].concat())
        .output()
        .unwrap();
    let predicted = document(&output);
    // Regression: a file that was read by another of its names counted as not read.
    fs::hard_link(path.join("b"), path.join("link-of-b")).unwrap();
    let by_link = disk.0.path().join("link.parquet");
    trace_of(&path.join("link-of-b"), &by_link);
    let words = ["--dry-run", "--all", "--json", "--hot"];
    let words = [&words[..], &[by_link.to_str().unwrap(), mount]].concat();
    let output = command(&words).output().unwrap();
    assert_eq!(document(&output)["after"], predicted["after"]);
    let advised = Command::new(env!("CARGO_BIN_EXE_mobifs-lab"))
        .args(["frag", "advise", "--json", "--trace"])
        .args([by_link.to_str().unwrap(), mount])
        .output()
        .unwrap();
    assert_eq!(document(&advised)["trace"]["files_here"], 1);
    let output = command(&[&["--copy"], &hot[..]].concat()).output().unwrap();
    let report = document(&output);
    assert_eq!(predicted["after"], report["after"]);
    let fragmented = |state: &str| report[state]["fragmented_files"].as_u64().unwrap();
    assert_eq!(
        (fragmented("before"), fragmented("after")),
        (3, 2),
        "{report}"
    );
    let signalled = |words: &[&str]| {
        // So slow that it does not get to the end.
        let slow = [words, &["--copy", "--all", "--rate", "1KiB", mount]].concat();
        let child = command(&slow).stdout(Stdio::piped()).spawn().unwrap();
        // Until then it ends by the signal at once, which the exit code would show.
        std::thread::sleep(Duration::from_secs(3));
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "as a shell says it");
        output
    };
    let said = String::from_utf8(signalled(&[]).stdout).unwrap();
    assert!(said.contains("every file has its content"), "{said}");
    let output = signalled(&["--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["stopped"], "cancelled", "{report}");
    assert_eq!(report["moves"], 1, "{report}");
}

#[test]
fn a_dry_run_names_what_would_move_and_what_would_be_written() {
    let Some(disk) = Disk::new() else {
        return;
    };
    let path = disk.path();
    let mount = path.to_str().unwrap();
    let output = command(&["--dry-run", "--all", "--json", mount]).output();
    let planned = &document(&output.unwrap())["planned"];
    let first = planned["first"].as_array().unwrap();
    assert_eq!((planned["files"].as_u64(), first.len()), (Some(3), 3));
    assert_eq!(first[0]["path"], format!("{mount}/a"), "{planned}");
    assert_eq!(
        (&first[0]["moved_bytes"], &first[0]["extents_after"]),
        (&(20 * 8192).into(), &1.into())
    );
    let copied = planned["copied_bytes"].as_u64().unwrap();
    assert!(copied > 3 * 20 * 8192, "with metadata: {planned}");
    let output = command(&["--dry-run", "--all", mount]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("would write about"), "{said}");
    assert!(said.contains(&format!("  {mount}/c")), "{said}");
}

#[test]
fn whether_a_free_run_was_reached_is_said_and_is_the_exit_code() {
    let Some(disk) = Disk::new() else {
        return;
    };
    let path = disk.path();
    let mount = path.to_str().unwrap();
    for how in ["--dry-run", "--copy"] {
        let output = command(&[how, "--free-run", "1MiB", mount])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && said.contains("1 MiB were asked for: reached"),
            "{said}"
        );
        // More than the filesystem has.
        let output = command(&[how, "--free-run", "1GiB", mount])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("1 GiB were asked for: not reached"), "{said}");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("no free run of 1 GiB"), "{error}");
    }
}

#[test]
fn bad_input_is_refused_in_one_sentence() {
    let refused = |arguments: &[&str], code: i32, words: &str| {
        let output = command(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{said}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    };
    refused(&["/"], 2, "--dry-run");
    refused(&["--copy", "--remap", "/"], 2, "cannot be used with");
    refused(&["--copy", "--rate", "0", "/"], 2, "--rate 0");
    refused(&["--copy", "/nonexistent"], 1, "No such file");
    refused(
        &["--copy", "/dev/null"],
        2,
        "neither a directory nor a file",
    );
    refused(&["--dry-run", "/proc"], 1, "cannot be defragmented");
    refused(
        &["--dry-run", "--hot", "/nonexistent", "/"],
        1,
        "/nonexistent",
    );
}
