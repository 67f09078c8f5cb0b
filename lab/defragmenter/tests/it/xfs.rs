//! XFS: whole files by SWAPEXT, ranges where the filesystem can exchange them.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mobifs_defragmenter::{Mode, Options, defragment};
use rustix::fs::{FallocateFlags, fallocate};

use crate::disk::{Disk, noise, succeed};

const MEBIBYTES: u64 = 320;

/// What has changed within the last second stays as it is.
fn grow_old() {
    std::thread::sleep(Duration::from_millis(2100));
}

/// Gives an unmounted XFS the feature *exchange*, which `mkfs.xfs` of the distribution may not know: a bit of the
/// superblock, and its checksum.
fn allow_exchange(image: &Path) {
    const EXCHANGE: u32 = 1 << 6;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(image)
        .unwrap();
    let mut sector = [0; 512];
    file.read_exact_at(&mut sector, 0).unwrap();
    let features = u32::from_be_bytes(sector[216..220].try_into().unwrap());
    sector[216..220].copy_from_slice(&(features | EXCHANGE).to_be_bytes());
    sector[224..228].fill(0);
    let checksum = crc32c::crc32c(&sector);
    sector[224..228].copy_from_slice(&checksum.to_le_bytes());
    file.write_all_at(&sector, 0).unwrap();
}

fn disk(has_ranges: bool) -> Option<Disk> {
    let mut disk = Disk::plain("xfs", MEBIBYTES, &["-f"])?;
    if has_ranges {
        disk.unmount();
        allow_exchange(&disk.image());
        disk.mount_loop().then_some(())?;
    }
    Some(disk)
}

fn defragmented(has_ranges: bool) {
    let Some(mut disk) = disk(has_ranges) else {
        return;
    };
    let names = ["a.db", "b.db", "b.db-journal", "holes", "reserved"];
    disk.interleave(&names, 40, 8192);
    let root = disk.path();
    let path = |name: &str| root.join(name);
    let open = |name: &str| File::options().write(true).open(path(name)).unwrap();
    // An end within a block, a hole, and blocks that were never written.
    open("a.db").set_len(40 * 8192 - 1000).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(open("holes"), punch, 65536, 16384).unwrap();
    fallocate(open("reserved"), FallocateFlags::ZERO_RANGE, 40960, 32768).unwrap();
    // XFS may keep room of its own after the ends until it forgets the inodes.
    disk.unmount();
    assert!(disk.mount_loop());
    grow_old();
    let content = disk.content();
    let times = |name: &str| {
        let about = fs::metadata(path(name)).unwrap();
        (
            about.mtime(),
            about.mtime_nsec(),
            about.ctime(),
            about.ctime_nsec(),
        )
    };
    let (before, blocks) = (times("a.db"), fs::metadata(path("holes")).unwrap().blocks());
    let report = disk.defragment(Mode::Copy);
    assert!(report.before.mean_dof > Some(3.0), "{report:?}");
    let pieces = |name: &str| {
        let options = mobifs_fragmentation::Options::default();
        let measured = mobifs_fragmentation::measure(&[path(name)], &options, None, &|_| {});
        measured.unwrap().report.all.extents
    };
    let found: Vec<_> = names.iter().map(|name| pieces(name)).collect();
    assert_eq!((found[0], found[1]), (1, 1), "{report:?}");
    assert!(found[2] > 3, "journals stay: {found:?}");
    assert!(found[3] <= 2 && found[4] == 1, "{found:?} {report:?}");
    assert!(disk.content() == content);
    assert_eq!(times("a.db"), before, "what has moved has not changed");
    assert!(fs::metadata(path("holes")).unwrap().blocks() <= blocks);
    assert_eq!(
        disk.defragment(Mode::Copy).moves,
        0,
        "there is nothing left to do"
    );
    // What is there is durable, and a whole filesystem.
    disk.unmount();
    if !has_ranges {
        succeed(Command::new("xfs_repair").arg("-n").arg(disk.image()));
    }
    assert!(disk.mount_loop());
    assert!(disk.content() == content);
}

/// Files of 13 to 21 pieces were left alone: their extents are in a tree, as the inode has room for an attribute, and
/// would not have been in that of the file which gets the room.
#[test]
fn files_of_any_number_of_pieces_are_moved() {
    const BYTES: u64 = 8192;
    let Some(disk) = disk(false) else {
        return;
    };
    let counts = [5, 11, 12, 13, 14, 17, 20, 21, 22, 23, 30];
    for count in counts {
        let files = ["a", "b"].map(|name| {
            let file = File::create(disk.path().join(format!("{count}-{name}"))).unwrap();
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::fsetxattr(&file, "user.note", b"1", flags).unwrap();
            file
        });
        for number in 0..count {
            for file in &files {
                let none = FallocateFlags::empty();
                fallocate(file, none, number * BYTES, BYTES).unwrap();
                file.sync_all().unwrap();
            }
        }
        for file in files {
            let content = vec![count as u8; (count * BYTES) as usize];
            file.write_all_at(&content, 0).unwrap();
            file.sync_all().unwrap();
        }
    }
    let pieces = |count: u64| {
        let options = mobifs_fragmentation::Options::default();
        let path = disk.path().join(format!("{count}-a"));
        let measured = mobifs_fragmentation::measure(&[path], &options, None, &|_| {});
        measured.unwrap().report.all.extents
    };
    for count in counts {
        assert_eq!(pieces(count), count, "they do not lie in turns");
    }
    grow_old();
    let content = disk.content();
    let report = disk.defragment(Mode::Copy);
    for count in counts {
        assert_eq!(pieces(count), 1, "of {count}: {report:?}");
    }
    assert!(disk.content() == content);
}

#[test]
fn an_xfs_is_defragmented_file_by_file() {
    defragmented(false);
}

#[test]
fn an_xfs_that_exchanges_ranges_is_defragmented_by_ranges() {
    defragmented(true);
}

/// Few small pieces at the end of a large file.
fn with_a_tail(disk: &Disk) {
    disk.write("large", 8 << 20, 1);
    disk.sync();
    disk.interleave(&["large", "other"], 16, 8192);
    grow_old();
}

#[test]
fn of_a_large_file_only_the_small_pieces_move_or_nothing() {
    let only_small = Options {
        mode: Mode::Copy,
        ..Options::default()
    };
    for has_ranges in [false, true] {
        let Some(disk) = disk(has_ranges) else {
            return;
        };
        with_a_tail(&disk);
        let content = disk.content();
        let report = defragment(&[disk.path()], &only_small, &|| false).unwrap();
        let left = report
            .left_out
            .keys()
            .any(|reason| reason.contains("all or nothing"));
        if has_ranges {
            assert!(!left && report.joined_bytes < 1 << 20, "{report:?}");
        } else {
            // "other" is small enough to be moved.
            assert!(report.joined_bytes < 1 << 20, "{report:?}");
        }
        assert!(disk.content() == content);
    }
}

#[test]
fn what_was_just_written_and_room_after_the_end_stay() {
    let Some(disk) = disk(false) else {
        return;
    };
    disk.interleave(&["a", "b"], 20, 8192);
    let report = disk.defragment(Mode::Copy);
    let reasons = |report: &mobifs_defragmenter::Report| {
        let reasons: Vec<_> = report.left_out.keys().cloned().collect();
        reasons.join(", ")
    };
    assert_eq!(report.moves, 0, "{report:?}");
    assert!(reasons(&report).contains("last second"), "{report:?}");
    let file = File::options()
        .write(true)
        .open(disk.path().join("a"))
        .unwrap();
    fallocate(&file, FallocateFlags::KEEP_SIZE, 20 * 8192, 1 << 20).unwrap();
    drop(file);
    grow_old();
    let blocks = fs::metadata(disk.path().join("a")).unwrap().blocks();
    let report = disk.defragment(Mode::Copy);
    assert_eq!(report.moves, 1, "{report:?}");
    assert!(reasons(&report).contains("after their end"), "{report:?}");
    assert_eq!(
        fs::metadata(disk.path().join("a")).unwrap().blocks(),
        blocks
    );
}

#[test]
fn a_file_that_is_written_all_the_time_keeps_every_write() {
    for has_ranges in [false, true] {
        let Some(disk) = disk(has_ranges) else {
            return;
        };
        disk.interleave(&["a", "b"], 40, 8192);
        grow_old();
        let path = disk.path().join("a");
        let writer = std::thread::spawn(move || {
            let file = File::options().write(true).open(path).unwrap();
            for round in 0..400_u64 {
                let bytes = noise(512, round);
                file.write_all_at(&bytes, round * 512 % (40 * 8192))
                    .unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        while !writer.is_finished() {
            disk.defragment(Mode::Copy);
        }
        writer.join().unwrap();
        let found = fs::read(disk.path().join("a")).unwrap();
        for round in 0..400_u64 {
            let at = (round * 512) as usize;
            assert!(found[at..at + 512] == noise(512, round), "write {round}");
        }
    }
}
