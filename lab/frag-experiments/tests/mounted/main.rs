//! Each experiment once, as small as can be: what is counted is checked, never a time.
//!
//! Needs root, `/dev/fuse` and loop devices, and the programs that a test names; a test that cannot run
//! prints a line that begins with `SKIPPED`.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use mobifs_frag_experiments::{Extent, FragError, Name, Outcome, Settings, page, run, text};
use serde_json::Value;
use tempfile::TempDir;

/// Whether experiments can run here; says so if not.
fn can_run(programs: &[&str]) -> bool {
    let reason = mobifs_skip::why_no_mounts().map(str::to_owned);
    let reason = reason.or_else(|| {
        let has_loops = Path::new("/dev/loop-control").exists();
        (!has_loops).then(|| "no loop devices".to_owned())
    });
    let reason = reason.or_else(|| {
        let missing = programs.iter().find(|program| !is_installed(program));
        missing.map(|program| format!("no {program}"))
    });
    mobifs_skip::can(reason)
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(more)
        .any(|directory| directory.join(program).exists())
}

fn scratch() -> TempDir {
    let parent = std::env::var_os("MOBIFS_SCRATCH").unwrap_or_else(|| "/var/tmp".into());
    tempfile::Builder::new()
        .prefix("mobifs-frag-test-")
        .tempdir_in(parent)
        .unwrap()
}

fn settings(scratch: &TempDir) -> Settings {
    Settings {
        scratch: scratch.path().to_owned(),
        extent: Extent::Tiny,
        seed: 1,
        stop: Arc::new(AtomicBool::new(false)),
    }
}

/// Nothing is mounted there any more, and no file is left.
fn assert_clean(scratch: &TempDir) {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(
        !mounts.contains(scratch.path().to_str().unwrap()),
        "{mounts}"
    );
    let left: Vec<_> = std::fs::read_dir(scratch.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Makes one experiment; its outcome.
fn outcome(name: Name) -> Outcome {
    let scratch = scratch();
    let mut seen = 0;
    let report = run(&[name], &settings(&scratch), &mut |_| seen += 1).unwrap();
    assert_clean(&scratch);
    assert_eq!((seen, report.experiments.len()), (1, 1));
    let shown = page(&report);
    assert!(shown.contains("</html>") && shown.contains("class=\"criteria\""));
    let outcome = report.experiments.into_iter().next().unwrap();
    assert!(!outcome.criteria.is_empty());
    assert!(text(&outcome).contains(outcome.title));
    outcome
}

fn points(outcome: &Outcome) -> Vec<Value> {
    outcome.data["points"].as_array().unwrap().clone()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn a_file_has_the_pieces_that_were_asked_for_and_each_is_a_request() {
    if !can_run(&["mkfs.ext4"]) {
        return;
    }
    let outcome = outcome(Name::Scan);
    let points = points(&outcome);
    let extents: Vec<_> = points
        .iter()
        .map(|point| number(&point["extents"]))
        .collect();
    assert_eq!(extents[0], 1);
    // The allocator may put a few pieces of a file side by side.
    for (extents, wanted) in extents[1..].iter().zip([50, 500]) {
        assert!((wanted * 9 / 10..=wanted).contains(extents), "{points:?}");
    }
    let reads = |point: &Value| number(&point["counts"]["reads"]);
    // 500 pages in windows of 128 KiB, and some metadata.
    assert!((16..60).contains(&reads(&points[0])), "{points:?}");
    assert!(reads(&points[2]) >= extents[2], "{points:?}");
    let bytes = |point: &Value| number(&point["counts"]["bytes_read"]);
    assert!(points.iter().all(|point| bytes(point) >= 500 * 4096));
}

#[test]
fn requests_are_counted_for_a_file_in_one_piece_and_in_many() {
    if !can_run(&["mkfs.ext4"]) {
        return;
    }
    let data = outcome(Name::IoCounts).data;
    let extents = |point: &Value| number(&point["extents"]);
    assert_eq!(extents(&data["whole"]), 1);
    assert_eq!(extents(&data["fragmented"]), 12_365 * 500 / 25_000);
    assert!(
        number(&data["fragmented"]["counts"]["reads"])
            > 4 * number(&data["whole"]["counts"]["reads"])
    );
}

#[test]
fn databases_and_journals_are_measured_by_mode_and_filesystem() {
    if !can_run(&["mkfs.ext4", "mkfs.xfs", "mkfs.btrfs"]) {
        return;
    }
    let outcome = outcome(Name::Sqlite);
    let points = points(&outcome);
    for point in &points {
        assert_eq!(point["databases"]["files"], point["threads"], "{point}");
        let has_journals = point["mode"] != "delete";
        assert_eq!(point["journals"].is_object(), has_journals, "{point}");
    }
    // ext4 with one thread and two, the others with one.
    assert_eq!(points.len(), 3 * 2 + 2 * 3);
    let layouts = outcome.figures.iter();
    let layouts = layouts.filter(|figure| figure.caption.contains("block address"));
    assert_eq!(
        layouts
            .filter(|figure| figure.svg.contains("<svg class=\"blocks\""))
            .count(),
        1
    );
}

#[test]
fn room_that_is_reserved_at_once_is_one_extent() {
    if !can_run(&["mkfs.ext4"]) {
        return;
    }
    let points = points(&outcome(Name::Preallocation));
    let at_low: Vec<_> = points
        .iter()
        .filter(|point| point["state"] == "low")
        .collect();
    let extents = |step: u64| {
        let found = at_low.iter().find(|point| point["step_kib"] == step);
        number(&found.unwrap()["files"]["extents"])
    };
    assert_eq!(extents(512), 2, "one for each of two files");
    assert!(extents(0) >= 2);
    assert!(
        points
            .iter()
            .all(|point| point["files"]["bytes"] == 2 * 512 * 1024)
    );
}

#[test]
fn larger_steps_waste_more() {
    if !can_run(&["mkfs.ext4"]) {
        return;
    }
    let points = points(&outcome(Name::Reservation));
    let wasted: Vec<_> = points
        .iter()
        .map(|point| number(&point["wasted_bytes"]))
        .collect();
    assert!(wasted.len() == 2 && wasted[0] < wasted[1], "{points:?}");
}

#[test]
fn accesses_reach_the_device_one_by_one() {
    if !can_run(&["mkfs.ext4"]) {
        return;
    }
    for point in points(&outcome(Name::Dispersed)) {
        let kind = if point["is_write"] == true {
            "writes"
        } else {
            "reads"
        };
        assert!(number(&point["counts"][kind]) >= 50, "{point}");
    }
}

#[test]
fn smaller_holes_are_more_pieces() {
    if !can_run(&["mkfs.ext4"]) {
        return;
    }
    let points = points(&outcome(Name::Waits));
    let extents: Vec<_> = points
        .iter()
        .map(|point| number(&point["executables"]["extents"]))
        .collect();
    assert!(extents[0] < extents[2], "{extents:?}");
    for point in &points {
        for what in ["launch", "scan"] {
            assert!(number(&point[what]["reads"]) > 0, "{point}");
        }
        assert!(number(&point["install"]["writes"]) > 0, "{point}");
    }
}

#[test]
fn apps_are_measured_on_filesystems_that_are_full_or_large() {
    if !can_run(&["mkfs.ext4"]) {
        return;
    }
    for point in points(&outcome(Name::Utilisation)) {
        let used = point["free"]["used_share"].as_f64().unwrap();
        assert_eq!(point["state"] == "high", used >= 0.8, "{point}");
        assert_eq!(point["databases"]["files"], 2);
    }
    let points = points(&outcome(Name::Capacity));
    assert_eq!(points.len(), 4);
    assert!(
        points
            .iter()
            .all(|point| point["others"]["mean_dof"] == 1.0),
        "{points:?}"
    );
}

#[test]
fn copying_leaves_one_piece_where_there_is_room_and_writes_it_all() {
    if !can_run(&["mkfs.ext4", "e4defrag"]) {
        return;
    }
    let points = points(&outcome(Name::Defragmentation));
    let low = points.iter().find(|point| point["state"] == "low").unwrap();
    assert_eq!(low["after"]["extents"], 2, "{low}");
    if number(&low["before"]["extents"]) > 2 {
        assert!(
            number(&low["counts"]["bytes_written"]) >= 512 * 1024,
            "{low}"
        );
    }
}

#[test]
fn an_experiment_that_is_stopped_leaves_nothing_mounted() {
    if !can_run(&["mkfs.ext4"]) {
        return;
    }
    let scratch = scratch();
    let settings = Settings {
        extent: Extent::Reduced,
        ..settings(&scratch)
    };
    let stop = Arc::clone(&settings.stop);
    let base = scratch.path().to_owned();
    let stopper = std::thread::spawn(move || {
        // As soon as there is something to leave behind.
        let is_mounted = || {
            let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
            mounts.contains(base.to_str().unwrap())
        };
        for _ in 0..10_000 {
            if is_mounted() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let stopped = run(&[Name::Scan], &settings, &mut |_| {});
    stopper.join().unwrap();
    assert!(
        matches!(stopped, Err(FragError::Interrupted)),
        "{stopped:?}"
    );
    assert_clean(&scratch);
}

#[test]
fn a_program_that_is_missing_is_named() {
    if !can_run(&["mkfs.ext4"]) {
        return;
    }
    // In a process of its own, because the path of programs is that of the process.
    let binary = std::env::current_exe().unwrap();
    let status = Command::new(binary)
        .args(["--exact", "without_programs", "--ignored", "--nocapture"])
        .env("PATH", "/nonexistent")
        .status();
    assert!(status.unwrap().success());
}

#[test]
#[ignore = "a part of another test"]
fn without_programs() {
    let scratch = scratch();
    let failed = run(&[Name::Scan], &settings(&scratch), &mut |_| {}).unwrap_err();
    let said = failed.to_string();
    assert!(said.contains("mkfs.ext4 is not installed"), "{said}");
    assert_clean(&scratch);
}
