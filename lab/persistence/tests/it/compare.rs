//! A small comparison: what is counted, never a time.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mobifs_device_model::Preset;
use mobifs_device_server::Scale;
use mobifs_persistence::compare::{
    Arm, BASELINE, CompareOptions, NO_JOURNAL, compare, section, text,
};
use mobifs_persistence::{PersistError, Under};
use mobifs_workloads::workload::background::Job;
use mobifs_workloads::workload::sqlite::{JournalMode, Statement};

use crate::disk::can_run;

fn options(under: Under) -> CompareOptions {
    let scratch =
        std::env::var_os("MOBIFS_SCRATCH").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    CompareOptions {
        under,
        size_bytes: 512 << 20,
        arms: Arm::all()
            .into_iter()
            .filter(|arm| arm.mobifs.is_none() || arm.unavailable.is_some())
            .collect(),
        modes: vec![JournalMode::Delete, JournalMode::Wal],
        statements: vec![Statement::Insert],
        is_cold: false,
        operations: 20,
        rounds: 1,
        background: None,
        mobifs: None,
        scratch,
        stop: Arc::new(AtomicBool::new(false)),
    }
}

fn model() -> Under {
    Under::Model {
        preset: Preset::Emmc51,
        scale: Scale::COUNT_ONLY,
    }
}

#[test]
fn each_way_is_counted_on_the_device() {
    if !can_run() {
        return;
    }
    let found = compare(&options(model()), &mut |_| {}).unwrap();
    assert_eq!(found.cells.len(), 8, "four ways, two modes");
    for cell in &found.cells {
        let (name, cost) = (&found.arms[cell.key.arm].name, &cell.median);
        let commits = cost.commits.unwrap();
        assert!(
            cost.flushes >= 1.0 && cost.programmed_bytes.unwrap() > 0.0,
            "{name}: {cost:?}"
        );
        assert!(cost.energy_mj.unwrap() > 0.0, "{name}: {cost:?}");
        if name == NO_JOURNAL {
            assert!(commits < f64::EPSILON, "{cost:?}");
        } else {
            assert!(
                commits > 0.0 && cost.journal_blocks.unwrap() >= commits,
                "{name}: {cost:?}"
            );
        }
        // The rollback journal is made, written, and removed in each transaction.
        if name == BASELINE && cell.key.mode == JournalMode::Delete {
            assert!(commits >= 2.0, "{cost:?}");
        }
    }
    assert!(text(&found).contains("geometric mean"));
    assert!(section("title", &found).is_ok());
}

#[test]
fn a_real_disk_and_programs_in_the_background_and_a_signal() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut options = options(Under::Real(directory.path().to_owned()));
    options.arms = vec![Arm::baseline()];
    options.modes = vec![JournalMode::Wal];
    options.background = Some(Job::Trees);
    let found = compare(&options, &mut |_| {}).unwrap();
    let cost = &found.cells[0].median;
    assert!(
        cost.commits.unwrap() > 0.0 && cost.flushes > 0.0,
        "{cost:?}"
    );
    assert_eq!((cost.programmed_bytes, cost.journal_blocks), (None, None));
    options.stop.store(true, Ordering::Relaxed);
    let stopped = compare(&options, &mut |_| {}).unwrap_err();
    assert!(matches!(stopped, PersistError::Interrupted), "{stopped}");
    // Nothing of it is mounted any more.
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(directory.path().to_str().unwrap()));
}

#[test]
fn a_disk_without_room_for_a_filesystem_is_refused_before_any_way_is_measured() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut options = options(Under::Real(directory.path().to_owned()));
    options.size_bytes = 1 << 52;
    let mut steps = 0;
    let said = compare(&options, &mut |_| steps += 1).unwrap_err();
    assert!(matches!(said, PersistError::NoRoom { .. }), "{said}");
    assert_eq!(steps, 0);
}

/// The kernel counts them by themselves, the log of the served device has both.
#[test]
fn fast_commits_count_alike_on_a_real_disk_and_on_the_served_device() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let commits = |under: Under| {
        let mut options = options(under);
        options
            .arms
            .retain(|arm| arm.name == NO_JOURNAL || arm.name == "ext4 fast_commit");
        options.modes = vec![JournalMode::Wal];
        let found = compare(&options, &mut |_| {}).unwrap();
        let of = |name: &str| {
            let mut cells = found.cells.iter();
            let cell = cells.find(|cell| found.arms[cell.key.arm].name == name);
            cell.unwrap().median.commits.unwrap()
        };
        (of(NO_JOURNAL), of("ext4 fast_commit"))
    };
    for under in [model(), Under::Real(directory.path().to_owned())] {
        let (none, fast) = commits(under.clone());
        assert!(none < f64::EPSILON, "{none} on {under:?}");
        assert!(fast >= 0.9, "{fast} on {under:?}");
    }
}
