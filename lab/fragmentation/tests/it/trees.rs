//! Trees that are deep, that change, and that may not be read.

use std::fs;
use std::path::Path;
use std::process::Command;

use mobifs_fragmentation::{MeasureError, Options, measure};
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, open, openat, unlinkat};

use crate::disk::{measured, measured_with, scratch};

/// Whether files of the scratch directory have extents that are reported; else the test is skipped.
fn has_map(base: &Path) -> bool {
    let probe = base.join("probe");
    fs::write(&probe, [1; 5000]).unwrap();
    let probed = measure(&[probe], &Options::default(), None, &|_| {});
    let why = probed.err().map(|error| error.to_string());
    mobifs_skip::can(why)
}

#[test]
fn a_tree_that_is_deeper_than_any_path_is_measured() {
    const DEPTH: usize = 3_000;
    let base = scratch();
    if !has_map(base.path()) {
        return;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut directory = open(base.path(), flags, Mode::empty()).unwrap();
    for _ in 0..DEPTH {
        mkdirat(&directory, c"a directory", Mode::RWXU).unwrap();
        directory = openat(&directory, c"a directory", flags, Mode::empty()).unwrap();
    }
    let create = OFlags::CREATE | OFlags::WRONLY;
    let file = openat(&directory, c"deep.db", create, Mode::RUSR).unwrap();
    rustix::io::write(&file, &[1; 8192]).unwrap();
    let (report, rows) = measured(base.path());
    assert_eq!((report.files, rows["deep.db"].dof), (2, 1.0));
    // The way back, because a recursive removal might be too deep.
    unlinkat(&directory, c"deep.db", AtFlags::empty()).unwrap();
    for _ in 0..DEPTH {
        directory = openat(&directory, c"..", flags, Mode::empty()).unwrap();
        unlinkat(&directory, c"a directory", AtFlags::REMOVEDIR).unwrap();
    }
}

#[test]
fn paths_within_each_other_count_once() {
    let base = scratch();
    if !has_map(base.path()) {
        return;
    }
    let inner = base.path().join("inner");
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("file"), [1; 5000]).unwrap();
    let paths = [
        base.path().to_owned(),
        inner.clone(),
        inner.join("file"),
        inner,
    ];
    let (outcome, rows) = measured_with(&paths, &Options::default());
    assert_eq!((outcome.report.files, rows.len()), (2, 2), "{rows:?}");
}

#[test]
fn files_that_were_not_read_are_left_out_on_request() {
    let base = scratch();
    if !has_map(base.path()) {
        return;
    }
    fs::write(base.path().join("old"), [1; 5000]).unwrap();
    let mut touch = Command::new("touch");
    touch
        .args(["-a", "-d", "2001-01-01"])
        .arg(base.path().join("old"));
    assert!(touch.status().unwrap().success());
    let options = Options {
        read_within_days: Some(30),
        ..Options::default()
    };
    let (outcome, rows) = measured_with(&[base.path().to_owned()], &options);
    assert_eq!(rows.keys().collect::<Vec<_>>(), ["probe"]);
    assert_eq!(outcome.report.left_out.not_read_lately, 1);
}

#[test]
fn a_tree_that_changes_meanwhile_is_measured() {
    let base = scratch();
    if !has_map(base.path()) {
        return;
    }
    for directory in 0..20 {
        let directory = base.path().join(format!("d{directory}"));
        fs::create_dir(&directory).unwrap();
        for file in 0..20 {
            fs::write(directory.join(format!("f{file}")), [1; 5000]).unwrap();
        }
    }
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut turn = 0_usize;
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                turn += 1;
                let directory = base.path().join(format!("d{}", turn % 20));
                let moved = base.path().join("moved");
                let file = directory.join(format!("f{}", turn % 19));
                fs::remove_file(&file).unwrap();
                fs::rename(&directory, &moved).unwrap();
                fs::rename(&moved, &directory).unwrap();
                fs::write(&file, vec![1; 5000 + turn % 70_000]).unwrap();
            }
        });
        for _ in 0..10 {
            let outcome = measure(
                &[base.path().to_owned()],
                &Options::default(),
                None,
                &|_| {},
            );
            let report = outcome.unwrap().report;
            assert!(
                report.files <= 401 && report.left_out.failed == 0,
                "{report:?}"
            );
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn filesystems_without_a_map_say_so() {
    let path = Path::new("/proc/self/status").to_owned();
    let error = measure(&[path], &Options::default(), None, &|_| {}).unwrap_err();
    assert!(matches!(error, MeasureError::NoMap { .. }), "{error}");
    assert!(error.to_string().contains("proc"), "{error}");
}
