//! btrfs: rows are laid where there is a longer run, and stay where there is none.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use mobifs_defragmenter::Mode;
use rustix::fs::{FallocateFlags, fallocate, statvfs};

use crate::disk::{Disk, noise, succeed};

#[test]
fn btrfs_defragments_and_shared_extents_stay_shared() {
    let Some(mut disk) = Disk::plain("btrfs", 400, &["-f"]) else {
        return;
    };
    disk.interleave(&["a.db", "shared"], 60, 8192);
    let path = |name: &str| disk.path().join(name);
    succeed(
        Command::new("cp")
            .arg("--reflink=always")
            .arg(path("shared"))
            .arg(path("copy")),
    );
    disk.sync();
    let content = disk.content();
    let report = disk.defragment(Mode::Copy);
    assert_eq!(disk.content(), content);
    assert!(report.after.extents < report.before.extents, "{report:?}");
    let shared = report
        .left_out
        .iter()
        .find(|(reason, _)| reason.contains("--unshare"));
    assert_eq!(shared.map(|(_, &count)| count), Some(2), "{report:?}");
    disk.unmount();
}

#[test]
fn what_btrfs_moves_keeps_its_shape_its_times_and_its_flags() {
    let Some(mut disk) = Disk::plain("btrfs", 400, &["-f"]) else {
        return;
    };
    let path = |name: &str| disk.path().join(name);
    fs::write(path("nocow"), "").unwrap();
    succeed(Command::new("chattr").arg("+C").arg(path("nocow")));
    let names = ["end", "holes", "reserved", "nocow"];
    disk.interleave(&names, 40, 16384);
    let open = |name: &str| OpenOptions::new().write(true).open(path(name)).unwrap();
    open("end").set_len(40 * 16384 - 1000).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(open("holes"), punch, 65536, 16384).unwrap();
    fallocate(open("reserved"), FallocateFlags::empty(), 40 * 16384, 65536).unwrap();
    disk.sync();
    let content = disk.content();
    let shape = |name: &str| {
        let about = fs::metadata(path(name)).unwrap();
        (
            about.len(),
            about.blocks(),
            about.mtime_nsec(),
            about.ctime_nsec(),
        )
    };
    let before = names.map(shape);
    let report = disk.defragment(Mode::Copy);
    assert_eq!(disk.content(), content);
    assert_eq!(names.map(shape), before);
    assert!(report.after.mean_dof < Some(1.5), "{report:?}");
    assert!(report.before.mean_dof > Some(5.0), "{report:?}");
    assert_eq!(report.worse_files, 0, "{report:?}");
    disk.unmount();
}

/// Free room in small holes only: btrfs itself would write rows anew in as many pieces, or more.
#[test]
fn a_btrfs_without_a_free_run_does_not_get_worse() {
    let Some(mut disk) = Disk::plain("btrfs", 200, &["-f"]) else {
        return;
    };
    let mut random = fastrand::Rng::with_seed(5);
    let small = |number: u64| disk.path().join(format!("small-{number}"));
    let mut count = 0;
    while fs::write(small(count), noise(random.usize(4 << 10..40 << 10), count)).is_ok() {
        count += 1;
    }
    disk.sync();
    (0..=count)
        .step_by(2)
        .for_each(|number| fs::remove_file(small(number)).unwrap());
    disk.sync();
    let room = statvfs(disk.path()).unwrap();
    let bytes = room.f_bavail * room.f_frsize / 20 * 7;
    for name in ["large-0", "large-1"] {
        let mut file = fs::File::create(disk.path().join(name)).unwrap();
        let content = noise(bytes as usize, 3);
        file.write_all(&content).unwrap();
        file.sync_all().unwrap();
    }
    let content = disk.content();
    let report = disk.defragment(Mode::Copy);
    assert!(
        report.before.extents > report.before.files + 100,
        "{report:?}"
    );
    assert!(report.after.extents <= report.before.extents, "{report:?}");
    assert_eq!(report.worse_files, 0, "{report:?}");
    assert!(report.saved_ms >= 0.0, "{report:?}");
    assert!(disk.content() == content);
    disk.unmount();
}
