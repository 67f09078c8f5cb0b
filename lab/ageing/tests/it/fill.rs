//! The procedure of large and small files, on real filesystems.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use mobifs_ageing::fill::{
    self, Ageing, DIRECTORY, Deletion, Filled, Procedure, Progress, Sizes, Utilisation,
};
use mobifs_ageing::{AgeError, Space};
use mobifs_fragmentation::{Options, measure};

use crate::disk::{Disk, scratch};

const BYTES: u64 = 300 << 20;

fn on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Fills a new filesystem.
fn filled(filesystem: &str, procedure: &Procedure) -> Option<(Disk, Filled)> {
    let disk = Disk::new(filesystem, BYTES)?;
    let filled = fill::run(&disk.path(), procedure, &mut on).unwrap();
    Some((disk, filled))
}

#[test]
fn each_utilisation_of_s4_is_reached_on_ext4() {
    for (utilisation, range) in [
        (Utilisation::Low, 0..=100),
        (Utilisation::Moderate, 740..=799),
        (Utilisation::High, 800..=950),
        (Utilisation::Full, 951..=1000),
    ] {
        let Some((disk, filled)) = filled("ext4", &Procedure::new(7, utilisation)) else {
            return;
        };
        let used_permille = filled.after.used_permille();
        assert!(range.contains(&used_permille), "{utilisation:?} {filled:?}");
        let is_low = utilisation == Utilisation::Low;
        assert_eq!(filled.small_files_deleted == 0, is_low, "{filled:?}");
        assert!(!filled.was_full_early, "{filled:?}");
        assert_eq!(Space::of(&disk.path()).unwrap(), filled.after);
    }
}

#[test]
fn the_same_seed_makes_the_same_tree_on_every_filesystem() {
    for filesystem in ["ext4", "xfs", "btrfs"] {
        let procedure = |seed| Procedure {
            mark_permille: 800,
            deletion: Deletion::ToPermille(700),
            ..Procedure::new(seed, Utilisation::Moderate)
        };
        let run = |seed| filled(filesystem, &procedure(seed)).map(|(_, filled)| filled);
        let (Some(one), Some(same), Some(other)) = (run(3), run(3), run(4)) else {
            continue;
        };
        assert_eq!(one.checksum, same.checksum, "{filesystem}");
        assert_eq!(one.small_files_deleted, same.small_files_deleted);
        assert_ne!(one.checksum, other.checksum, "{filesystem}");
    }
}

/// S4's check: a file that takes the free room of a Full filesystem lies in thousands of pieces.
#[test]
fn a_file_that_fills_a_full_filesystem_lies_in_small_pieces() {
    let procedure = Procedure {
        deletion: Deletion::ToPermille(955),
        ..Procedure::new(1, Utilisation::Full)
    };
    let Some((disk, filled)) = filled("ext4", &procedure) else {
        return;
    };
    let path = disk.path().join("one");
    let room = filled.after.free_bytes * 9 / 10;
    fs::write(&path, vec![1; room as usize]).unwrap();
    let report = measure(&[path], &Options::default(), None, &|_| {}).unwrap();
    let pieces = report.report.all.extents;
    assert!(
        pieces >= filled.small_files_deleted / 3,
        "{pieces} {filled:?}"
    );
    assert!(pieces > 10, "{pieces}");
}

/// On 16 GiB that are 98.5 % full a new app lay in one piece: what the mark left of a large filesystem was more
/// than it needs, in extents of 10 MB.
#[test]
fn at_full_nothing_is_left_but_what_was_deleted() {
    let procedure = Procedure {
        mark_permille: 900,
        deletion: Deletion::ToPermille(955),
        ..Procedure::new(1, Utilisation::Full)
    };
    let Some((_disk, filled)) = filled("ext4", &procedure) else {
        return;
    };
    let most = filled.deleted_bytes + fill::REST_LEFT_BYTES;
    assert!(filled.after.free_bytes <= most, "{filled:?}");
    assert!(!Procedure::new(1, Utilisation::High).takes_rest);
}

/// Moderate could not be reached by deleting small files where much was used before.
#[test]
fn a_filesystem_that_is_partly_used_has_more_small_files() {
    let Some(disk) = Disk::new("ext4", BYTES) else {
        return;
    };
    let used = disk.path().join("lost+found/used");
    fs::write(used, vec![1; BYTES as usize / 4]).unwrap();
    let before = Space::of(&disk.path()).unwrap();
    let procedure = Procedure::new(1, Utilisation::Moderate);
    let fitting = procedure.fitting(before);
    assert!(fitting.small.unwrap().share_permille > procedure.small.unwrap().share_permille);
    let filled = fill::run(&disk.path(), &fitting, &mut on).unwrap();
    assert!(filled.after.used_permille() < 800, "{filled:?}");
}

#[test]
fn smaller_files_leave_smaller_holes() {
    let holes = |ageing| {
        let procedure = Procedure::aged(1, ageing, BYTES, BYTES / 50);
        let (_disk, filled) = filled("ext4", &procedure)?;
        assert!(
            (800..=950).contains(&filled.after.used_permille()),
            "{filled:?}"
        );
        Some(filled.small_files_deleted)
    };
    let (Some(none), Some(moderate), Some(severe)) = (
        holes(Ageing::None),
        holes(Ageing::Moderate),
        holes(Ageing::Severe),
    ) else {
        return;
    };
    assert_eq!(none, 0);
    assert!(
        moderate > 40 && severe > 4 * moderate,
        "{moderate} {severe}"
    );
}

/// Regression: few small files were deleted before ext4 had allocated their blocks, and left no holes.
#[test]
fn few_small_files_leave_as_many_holes_as_many_do() {
    const GIB: u64 = 1 << 30;
    let Some(disk) = Disk::new("ext4", GIB) else {
        return;
    };
    let procedure = Procedure::aged(7, Ageing::Severe, GIB, 20_000_000);
    let filled = fill::run(&disk.path(), &procedure, &mut on).unwrap();
    assert!(filled.small_files_deleted > 1000, "{filled:?}");
    let report = measure(&[disk.path()], &Options::default(), None, &|_| {}).unwrap();
    let free = report.report.filesystems[0].free.as_ref().unwrap();
    assert!(
        free.extents > filled.small_files_deleted / 4,
        "{} free extents by {} deleted files",
        free.extents,
        filled.small_files_deleted
    );
}

#[test]
fn a_stopped_run_goes_on_to_the_same_tree() {
    let procedure = Procedure::new(9, Utilisation::High);
    let Some((_disk, whole)) = filled("ext4", &procedure) else {
        return;
    };
    for stop_after in [1, 8, 16, 60] {
        let Some(disk) = Disk::new("ext4", BYTES) else {
            return;
        };
        let before = Space::of(&disk.path()).unwrap();
        let mut steps = 0;
        let stopped = fill::run(&disk.path(), &procedure, &mut |_| {
            steps += 1;
            if steps > stop_after {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        assert!(matches!(stopped, Err(AgeError::Cancelled)), "{stop_after}");
        // What a kill leaves: a file that is not whole.
        cut_one(&disk.path());
        let resumed = fill::resume(&disk.path(), &procedure, before, &mut on).unwrap();
        assert_eq!(resumed.checksum, whole.checksum, "after {stop_after}");
    }
}

fn cut_one(directory: &Path) {
    let small = directory.join(DIRECTORY).join("small/0000");
    if let Some(entry) = fs::read_dir(small).into_iter().flatten().next() {
        fs::write(entry.unwrap().path(), "half").unwrap();
    }
}

#[test]
fn bad_input_is_refused_in_one_sentence_and_changes_nothing() {
    let base = scratch();
    let usual = Procedure::new(1, Utilisation::High);
    let refused = |directory: &Path, procedure: &Procedure, words: &str| {
        let error = fill::run(directory, procedure, &mut on).unwrap_err();
        let said = error.to_string();
        assert!(said.contains(words) && said.lines().count() == 1, "{said}");
    };
    let wrong = |mark_permille, deletion| Procedure {
        mark_permille,
        deletion,
        ..usual
    };
    let to = Deletion::ToPermille;
    refused(base.path(), &wrong(0, to(0)), "the mark is 0");
    refused(base.path(), &wrong(1001, to(0)), "the mark is 1001");
    refused(base.path(), &wrong(500, to(501)), "the target is 501");
    let large = Sizes {
        least_bytes: 2,
        most_bytes: 1,
    };
    refused(base.path(), &Procedure { large, ..usual }, "size of files");
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    refused(&base.path().join("gone"), &usual, "No such file");
    let file = base.path().join("file");
    fs::write(&file, "mine").unwrap();
    refused(&file, &usual, "no directory");
    refused(base.path(), &usual, "is not empty (it has file)");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    let Some(disk) = Disk::new("ext4", 16 << 20) else {
        return;
    };
    refused(&disk.path(), &usual, "are needed at least");
}
