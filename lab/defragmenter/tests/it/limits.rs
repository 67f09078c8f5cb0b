//! Limits on what is written, and on the free room that is taken.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::Write as _;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use mobifs_defragmenter::{DefragError, Mode, Options, Report, Stopped, defragment};
use rustix::fs::statvfs;

use crate::disk::{Disk, noise, succeed};

const EXT4: &[&str] = &["-F", "-b", "4096", "-m", "0", "-N", "8192"];

fn options() -> Options {
    Options {
        mode: Mode::Copy,
        takes_all: true,
        ..Options::default()
    }
}

/// Files in pieces of 32 KiB: written into holes of that length, before everything else goes.
fn in_pieces(disk: &Disk, names: &[&str], rounds: usize) {
    const PIECE: usize = 32 << 10;
    let small = |number: u64| disk.path().join(format!("small-{number}"));
    let mut count = 0;
    while fs::write(small(count), noise(PIECE, count)).is_ok() {
        count += 1;
    }
    disk.sync();
    let remove = |number: u64| fs::remove_file(small(number)).unwrap();
    (0..=count).step_by(2).for_each(remove);
    disk.sync();
    disk.interleave(names, rounds, PIECE);
    (1..=count).step_by(2).for_each(remove);
    disk.sync();
}

fn free(disk: &Disk) -> u64 {
    let room = statvfs(disk.path()).unwrap();
    room.f_bavail * room.f_frsize
}

#[test]
fn limits_and_cancelling_end_it_between_two_moves() {
    let Some(mut disk) = Disk::plain("ext4", 200, &["-F", "-b", "4096"]) else {
        return;
    };
    disk.interleave(&["a", "b", "c", "d"], 30, 8192);
    let content = disk.content();
    let options = Options {
        mode: Mode::Copy,
        takes_all: true,
        flash_writes_max_bytes: Some(1),
        ..Options::default()
    };
    let report = defragment(&[disk.path()], &options, &|| false).unwrap();
    assert_eq!(
        (report.moves, report.stopped),
        (0, Some(Stopped::FlashWrites))
    );
    let asked = AtomicU64::new(0);
    let options = Options {
        flash_writes_max_bytes: None,
        rate_bytes: Some(1 << 20),
        ..options
    };
    let report = defragment(&[disk.path()], &options, &|| {
        // Before the first piece, in it, and before the second one.
        asked.fetch_add(1, Ordering::Relaxed) >= 3
    });
    let report = report.unwrap();
    assert_eq!(
        (report.moves, report.stopped),
        (1, Some(Stopped::Cancelled))
    );
    assert_eq!(disk.content(), content);
    disk.check();
}

/// A row of many pieces is longer than the limits: they hold within it.
#[test]
fn limits_hold_within_a_row_and_no_file_gets_more_pieces() {
    const LIMIT: u64 = 1 << 20;
    let Some(mut disk) = Disk::plain("ext4", 64, EXT4) else {
        return;
    };
    in_pieces(&disk, &["a", "b"], 80);
    let content = disk.content();
    let limited = Options {
        flash_writes_max_bytes: Some(LIMIT),
        ..options()
    };
    let report = defragment(&[disk.path()], &limited, &|| false).unwrap();
    assert_eq!(report.stopped, Some(Stopped::FlashWrites), "{report:?}");
    let moved = |report: &Report| report.joined_bytes + report.room_bytes;
    assert!((1..=LIMIT).contains(&moved(&report)), "{report:?}");
    assert!(report.after.extents < report.before.extents, "{report:?}");
    assert_eq!(report.worse_files, 0, "{report:?}");
    // Each slice that waits for the rate asks whether to go on.
    let asked = AtomicU64::new(0);
    let slow = Options {
        rate_bytes: Some(512 << 10),
        ..options()
    };
    let report = defragment(&[disk.path()], &slow, &|| {
        asked.fetch_add(1, Ordering::Relaxed) >= 8
    });
    let report = report.unwrap();
    assert_eq!(report.stopped, Some(Stopped::Cancelled), "{report:?}");
    assert!(moved(&report) <= 8 * (64 << 10), "{report:?}");
    assert_eq!(report.worse_files, 0, "{report:?}");
    assert_eq!(disk.content(), content);
    disk.check();
}

#[test]
fn a_rate_of_nothing_is_refused() {
    let options = Options {
        rate_bytes: Some(0),
        ..options()
    };
    let error = defragment(&["/".into()], &options, &|| false).unwrap_err();
    assert!(matches!(error, DefragError::NoRate), "{error}");
}

/// Each time that the run asks whether to go on, another program has written one more MiB.
#[test]
fn another_program_that_fills_the_filesystem_gets_the_room() {
    let Some(mut disk) = Disk::plain("ext4", 64, EXT4) else {
        return;
    };
    in_pieces(&disk, &["a", "b", "c"], 40);
    let content = disk.content();
    let before = free(&disk);
    let slow = Options {
        rate_bytes: Some(256 << 10),
        ..options()
    };
    let mut other = File::create(disk.path().join("other")).unwrap();
    other.set_len(0).unwrap();
    let (written, least) = (Cell::new(0), Cell::new(u64::MAX));
    let mebibyte = noise(1 << 20, 7);
    let report = defragment(&[disk.path()], &slow, &|| {
        least.set(least.get().min(free(&disk)));
        if written.get() < before / 8 * 7 {
            let result = (&other)
                .write_all(&mebibyte)
                .and_then(|()| other.sync_data());
            result.unwrap_or_else(|error| panic!("after {} bytes: {error}", written.get()));
            written.set(written.get() + (1 << 20));
        }
        written.get() >= before / 8 * 7
    });
    let report = report.unwrap();
    other.flush().unwrap();
    // It ends when it has given everything, or, here, when the other has had enough.
    let ends = [Some(Stopped::RoomNeeded), Some(Stopped::Cancelled)];
    assert!(ends.contains(&report.stopped), "{report:?}");
    assert!(written.get() >= before / 2, "{report:?}");
    assert!(least.get() < before / 4, "the test is about a shortage");
    assert_eq!(report.worse_files, 0, "{report:?}");
    drop(other);
    fs::remove_file(disk.path().join("other")).unwrap();
    assert_eq!(disk.content(), content);
    disk.check();
}

#[test]
fn nothing_is_reserved_where_nothing_can_move() {
    // Nothing is fragmented.
    let Some(whole) = Disk::plain("ext4", 64, EXT4) else {
        return;
    };
    whole.write("whole", 1 << 20, 1);
    let before = free(&whole);
    let least = Cell::new(u64::MAX);
    let look = || {
        least.set(least.get().min(free(&whole)));
        false
    };
    let report = defragment(&[whole.path()], &options(), &look).unwrap();
    assert_eq!((report.moves, report.stopped), (0, None));
    assert!(least.get() >= before, "{} of {before}", least.get());
    let refused = |features: &[&str], words: &str| {
        let Some(disk) = Disk::plain("ext4", 64, features) else {
            return;
        };
        disk.interleave(&["a", "b"], 30, 16384);
        for mode in [Mode::DryRun, Mode::Copy] {
            let options = Options { mode, ..options() };
            let error = defragment(&[disk.path()], &options, &|| false).unwrap_err();
            assert!(error.to_string().contains(words), "{mode:?}: {error}");
        }
    };
    refused(
        &["-F", "-b", "4096", "-O", "bigalloc", "-C", "16384"],
        "bigalloc",
    );
    refused(&["-F", "-b", "4096", "-O", "^extents"], "without extents");
}

/// The whole filesystem by its mount option, or one file by its flag: a dry run promised gains that the run refused.
#[test]
fn a_dry_run_refuses_journaled_data_as_copying_does() {
    let Some(mut disk) = Disk::plain("ext4", 64, EXT4) else {
        return;
    };
    disk.interleave(&["a", "b"], 30, 16384);
    disk.unmount();
    // As `chattr +j` does, which takes CAP_SYS_RESOURCE: the flag beside the one of extents.
    let mut debugfs = Command::new("debugfs");
    debugfs.args(["-w", "-R", "set_inode_field /a flags 0x84000"]);
    succeed(debugfs.arg(disk.image()));
    let mut mount = Command::new("mount");
    succeed(
        mount
            .args(["-o", "loop"])
            .arg(disk.image())
            .arg(disk.path()),
    );
    let with = |mode| Options { mode, ..options() };
    for mode in [Mode::DryRun, Mode::Copy] {
        let report = defragment(&[disk.path()], &with(mode), &|| false).unwrap();
        let stays = report
            .left_out
            .iter()
            .find(|(why, _)| why.contains("with a journal for their data"));
        assert_eq!(stays.map(|(_, &count)| count), Some(1), "{report:?}");
        assert_eq!(
            (report.wanted_files, report.after.fragmented_files),
            (1, 1),
            "{report:?}"
        );
    }
    succeed(Command::new("umount").arg(disk.path()));
    let mut mount = Command::new("mount");
    mount
        .args(["-o", "loop,data=journal"])
        .arg(disk.image())
        .arg(disk.path());
    succeed(&mut mount);
    disk.interleave(&["c", "d"], 30, 16384);
    for mode in [Mode::DryRun, Mode::Copy] {
        let error = defragment(&[disk.path()], &with(mode), &|| false);
        let umount = || succeed(Command::new("umount").arg(disk.path()));
        let error = error
            .map_err(|error| error.to_string())
            .err()
            .unwrap_or_else(|| {
                umount();
                panic!("{mode:?} promises something")
            });
        assert!(error.contains("data=journal"), "{error}");
    }
    succeed(Command::new("umount").arg(disk.path()));
}

#[test]
fn a_free_run_is_made_and_what_it_was_before_is_known() {
    let Some(mut disk) = Disk::plain("ext4", 64, EXT4) else {
        return;
    };
    // Pieces of 32 KiB everywhere, every second one free.
    let small = |number: u64| disk.path().join(format!("small-{number}"));
    let mut count = 0;
    while fs::write(small(count), noise(32 << 10, count)).is_ok() {
        count += 1;
    }
    disk.sync();
    (0..=count)
        .step_by(2)
        .for_each(|number| fs::remove_file(small(number)).unwrap());
    disk.sync();
    let wanted = 1 << 20;
    let with = |mode| Options {
        mode,
        free_run_bytes: Some(wanted),
        ..options()
    };
    for mode in [Mode::DryRun, Mode::Copy] {
        let report = defragment(&[disk.path()], &with(mode), &|| false).unwrap();
        let run = report.free_run.unwrap();
        assert!(run.largest_before_bytes < wanted, "{run:?}");
        assert!(
            run.is_reached && run.largest_after_bytes >= wanted,
            "{mode:?}: {run:?}"
        );
    }
    disk.check();
}

#[test]
fn little_that_is_left_is_enough_and_too_much_is_named() {
    let Some(mut disk) = Disk::plain("ext4", 64, EXT4) else {
        return;
    };
    disk.interleave(&["a", "b", "c"], 60, 8192);
    let content = disk.content();
    let filler = File::create(disk.path().join("filler")).unwrap();
    let most = free(&disk) - (8 << 20);
    rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::KEEP_SIZE, 0, most).unwrap();
    drop(filler);
    let with = |leave| Options {
        leave_bytes: Some(leave),
        ..options()
    };
    let error = defragment(&[disk.path()], &with(1 << 40), &|| false).unwrap_err();
    assert!(
        error.to_string().contains("--leave 1099511627776"),
        "{error}"
    );
    let report = defragment(&[disk.path()], &with(0), &|| false).unwrap();
    assert!(report.after.extents < report.before.extents, "{report:?}");
    let no_room = report.left_out.keys().find(|why| why.contains("room"));
    assert_eq!(no_room, None, "{report:?}");
    succeed(Command::new("rm").arg(disk.path().join("filler")));
    assert_eq!(disk.content(), content);
    disk.check();
}

#[test]
fn a_full_xfs_is_refused_in_a_sentence() {
    let Some(mut disk) = Disk::plain("xfs", 320, &["-f"]) else {
        return;
    };
    disk.interleave(&["a", "b"], 20, 8192);
    let filler = File::create(disk.path().join("filler")).unwrap();
    for portion in [16 << 20, 1 << 20, 4096] {
        let mut length = 0;
        let keep = rustix::fs::FallocateFlags::KEEP_SIZE;
        while rustix::fs::fallocate(&filler, keep, length, portion).is_ok() {
            length += portion;
        }
        disk.sync();
    }
    drop(filler);
    let error = defragment(&[disk.path()], &options(), &|| false).unwrap_err();
    assert!(matches!(error, DefragError::NoRoom { .. }), "{error}");
    disk.unmount();
}

/// What a user may not write would be refused by copying: it is promised by no dry run.
#[test]
fn a_dry_run_promises_a_user_only_what_copying_does() {
    use std::os::unix::fs::PermissionsExt as _;
    let Some(mut disk) = Disk::plain("ext4", 64, EXT4) else {
        return;
    };
    in_pieces(&disk, &["a", "b"], 20);
    let mode = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(disk.base.path(), 0o755);
    let as_user = |mode| {
        let path = disk.path();
        let run = move || {
            let user = rustix::thread::Uid::from_raw(65534);
            // Of this thread only.
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            let options = Options { mode, ..options() };
            defragment(&[path], &options, &|| false)
        };
        std::thread::spawn(run).join().unwrap()
    };
    for how in [Mode::DryRun, Mode::Copy] {
        let report = as_user(how).unwrap();
        let may_not = report
            .left_out
            .iter()
            .find(|(why, _)| why.contains("may not write"));
        assert_eq!(may_not.map(|(_, &count)| count), Some(2), "{report:?}");
        assert_eq!((report.moves, report.wanted_files), (0, 0), "{report:?}");
    }
    ["a", "b"]
        .iter()
        .for_each(|name| mode(&disk.path().join(name), 0o666));
    for how in [Mode::DryRun, Mode::Copy] {
        let error = as_user(how).unwrap_err();
        assert!(matches!(error, DefragError::NotPermitted { .. }), "{error}");
    }
    disk.check();
}
