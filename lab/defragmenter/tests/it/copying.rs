//! Copying, and what must stay as it is.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use mobifs_defragmenter::{DefragError, Mode, Options, defragment};
use rustix::fs::{FallocateFlags, fallocate};

use crate::disk::{Disk, noise, succeed};

#[test]
fn an_ext4_is_defragmented_by_copying_and_a_dry_run_foretells_it() {
    let Some(mut disk) = Disk::plain("ext4", 200, &["-F", "-b", "4096"]) else {
        return;
    };
    disk.interleave(&["a.db", "b.db", "c.db"], 40, 8192);
    let (content, times) = (
        disk.content(),
        fs::metadata(disk.path().join("a.db")).unwrap().mtime_nsec(),
    );
    let dry = disk.defragment(Mode::DryRun);
    assert_eq!(disk.content(), content);
    let report = disk.defragment(Mode::Copy);
    assert!(report.before.mean_dof > Some(2.0), "{report:?}");
    assert_eq!(report.after.mean_dof, Some(1.0), "{report:?}");
    assert_eq!((dry.before, dry.after.mean_dof), (report.before, Some(1.0)));
    assert_eq!(disk.content(), content);
    assert_eq!(
        fs::metadata(disk.path().join("a.db")).unwrap().mtime_nsec(),
        times
    );
    assert_eq!(
        disk.defragment(Mode::Copy).moves,
        0,
        "there is nothing left to do"
    );
    disk.check();
}

#[test]
fn what_must_not_move_does_not_and_the_rest_keeps_its_shape() {
    let Some(mut disk) = Disk::plain("ext4", 200, &["-F", "-b", "4096", "-O", "inline_data"])
    else {
        return;
    };
    let names = ["a.db", "a.db-journal", "fixed", "holes", "reserved"];
    disk.interleave(&names, 20, 8192);
    let path = |name: &str| disk.path().join(name);
    disk.write("tiny", 20, 1);
    let open = |name: &str| File::options().write(true).open(path(name)).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for offset in [16384, 65536] {
        fallocate(open("holes"), punch, offset, 8192).unwrap();
    }
    fallocate(open("reserved"), FallocateFlags::empty(), 20 * 8192, 65536).unwrap();
    fallocate(open("reserved"), FallocateFlags::ZERO_RANGE, 40960, 32768).unwrap();
    fallocate(open("a.db"), FallocateFlags::KEEP_SIZE, 20 * 8192, 1 << 20).unwrap();
    succeed(Command::new("chattr").arg("+i").arg(path("fixed")));
    let content = disk.content();
    let blocks = |name: &str| fs::metadata(path(name)).unwrap().blocks();
    let holes = blocks("holes");
    let first_hole = || {
        let opened = File::open(path("holes")).unwrap();
        rustix::fs::seek(&opened, rustix::fs::SeekFrom::Hole(0)).unwrap()
    };
    assert_eq!(first_hole(), 16384);
    let report = disk.defragment(Mode::Copy);
    succeed(Command::new("chattr").arg("-i").arg(path("fixed")));
    assert_eq!(disk.content(), content);
    assert!(blocks("holes") <= holes, "holes stay holes");
    assert_eq!(first_hole(), 16384);
    let left: u64 = report.left_out.values().sum();
    assert!(
        left >= 3,
        "the journal, the immutable one, the one without extents: {report:?}"
    );
    assert!(report.after.extents < report.before.extents, "{report:?}");
    let shown = mobifs_fragmentation::measure(
        &[path("a.db"), path("reserved")],
        &mobifs_fragmentation::Options::default(),
        None,
        &|_| {},
    );
    assert_eq!(shown.unwrap().report.fragmented_files, 0);
    disk.check();
}

#[test]
fn free_room_is_brought_together_on_a_full_filesystem() {
    let Some(mut disk) = Disk::plain("ext4", 64, &["-F", "-b", "4096", "-m", "0", "-N", "4096"])
    else {
        return;
    };
    // Small files until it is full, then every second one is deleted: free extents of 24 KiB.
    let mut names = Vec::new();
    for number in 0.. {
        let path = disk.path().join(format!("small-{number}"));
        if fs::write(&path, noise(24 << 10, number)).is_err() {
            fs::remove_file(path).unwrap();
            break;
        }
        names.push(path);
    }
    disk.sync();
    names
        .iter()
        .step_by(8)
        .for_each(|path| fs::remove_file(path).unwrap());
    disk.sync();
    disk.interleave(&["a.db", "b.db"], 40, 16384);
    let content = disk.content();
    let report = disk.defragment(Mode::Copy);
    let dof = |state: mobifs_defragmenter::State| state.mean_dof_of_fragmented.unwrap_or(1.0);
    assert!(dof(report.before) > 5.0, "{report:?}");
    assert!(report.room_bytes > 0, "{report:?}");
    assert_eq!(report.after.fragmented_files, 0, "{report:?}");
    assert_eq!(disk.content(), content);
    disk.check();
}

#[test]
fn a_full_filesystem_is_refused_in_a_sentence() {
    let Some(mut disk) = Disk::plain("ext4", 32, &["-F", "-b", "4096", "-m", "0"]) else {
        return;
    };
    disk.interleave(&["a", "b"], 20, 8192);
    let filler = File::create(disk.path().join("filler")).unwrap();
    for portion in [1 << 20, 4096] {
        let mut length = 0;
        while fallocate(&filler, FallocateFlags::KEEP_SIZE, length, portion).is_ok() {
            length += portion;
        }
    }
    drop(filler);
    let content = disk.content();
    let options = Options {
        mode: Mode::Copy,
        ..Options::default()
    };
    let error = defragment(&[disk.path()], &options, &|| false).unwrap_err();
    assert!(matches!(error, DefragError::NoRoom { .. }), "{error}");
    assert_eq!(disk.content(), content);
    disk.check();
}

#[test]
fn what_cannot_be_defragmented_is_said_in_a_sentence() {
    let refused = |path: &str, mode| {
        let options = Options {
            mode,
            ..Options::default()
        };
        defragment(&[path.into()], &options, &|| false)
            .unwrap_err()
            .to_string()
    };
    assert!(refused("/proc", Mode::Copy).contains("cannot be defragmented while it is mounted"));
    assert!(refused("/nowhere", Mode::Copy).contains("No such file"));
    assert!(refused("/dev/null", Mode::Copy).contains("neither a directory nor a file"));
    let Some(disk) = Disk::plain("ext4", 32, &["-F", "-b", "4096"]) else {
        return;
    };
    let path = disk.path();
    let said = refused(path.to_str().unwrap(), Mode::Remap);
    assert!(
        said.contains("without a served device use --copy"),
        "{said}"
    );
    if let Some(small) = Disk::plain("ext4", 32, &["-F", "-b", "1024"]) {
        let said = refused(small.path().to_str().unwrap(), Mode::Copy);
        assert!(said.contains("smaller than a page"), "{said}");
    }
    let other = disk.write("other.img", 100, 1);
    assert!(refused(other.to_str().unwrap(), Mode::Copy).contains("image"));
    succeed(Command::new("mount").args(["-o", "remount,ro"]).arg(&path));
    assert!(refused(path.to_str().unwrap(), Mode::Copy).contains("read-only"));
}
