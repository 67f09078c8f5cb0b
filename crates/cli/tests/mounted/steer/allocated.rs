//! Room that programs allocate ahead, on an ext4 with `data=journal`.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FallocateFlags, fallocate};

use super::{Disk, EXT4, Made, mount_line, unmount};
use crate::fixture::{mobifs, needs_mounts, succeeds, wait_until};

/// Small blocks, and a journal that keeps all of the test.
const SMALL_BLOCKS: Made = Made {
    make: &["mkfs.ext4", "-q", "-b", "1024", "-J", "size=16"],
    options: "loop,data=journal,commit=300",
    mib: 96,
};
const PAGE: usize = 4096;
const FILE: usize = 6 * PAGE;

/// As a power cut: what is not in the journal by now is lost.
fn cut_power(at: &Path) {
    let script = "
import fcntl, os, struct, sys
EXT4_IOC_SHUTDOWN, NOLOGFLUSH = 0x8004587d, 2
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), EXT4_IOC_SHUTDOWN, struct.pack('I', NOLOGFLUSH))
";
    let mut python = Command::new("python3");
    succeeds(&python.args(["-c", script]).arg(at).output().unwrap());
}

fn zeroing(disk: &Disk) -> PathBuf {
    let line = mount_line(&disk.at);
    let device = PathBuf::from(line.rsplit(' ').nth(1).unwrap());
    let name = device.file_name().unwrap().to_str().unwrap();
    PathBuf::from(format!("/sys/fs/ext4/{name}/extent_max_zeroout_kb"))
}

fn zeroing_kib(disk: &Disk) -> String {
    fs::read_to_string(zeroing(disk)).unwrap().trim().to_owned()
}

/// Writes, shortens to nothing, allocates the same blocks, and writes one page of them.
fn write_into_allocated_room(path: &Path) -> Vec<u8> {
    let file = File::create(path).unwrap();
    file.write_all_at(&[b'A'; FILE], 0).unwrap();
    file.sync_all().unwrap();
    file.set_len(0).unwrap();
    file.sync_all().unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, FILE as u64).unwrap();
    file.write_all_at(&[b'B'; PAGE], PAGE as u64).unwrap();
    file.sync_all().unwrap();
    fs::read(path).unwrap()
}

/// The kernel wrote zeros past the journal, and recovery put the older content over them that the journal had
/// of these blocks: the file had bytes that it never had there.
#[test]
fn room_that_is_allocated_holds_no_older_content_after_a_power_cut() {
    needs_mounts!();
    let Some(disk) = Disk::new(SMALL_BLOCKS) else {
        return;
    };
    let (early, late) = (disk.at.join("early"), disk.at.join("late"));
    // What was written before it is steered counts, too, from when it is.
    let wanted_early = write_into_allocated_room(&early);
    assert_eq!(zeroing_kib(&disk), "32");
    disk.steer("");
    assert_eq!(zeroing_kib(&disk), "0");
    let wanted_late = write_into_allocated_room(&late);
    succeeds(&mobifs(&["sync", "--commit-only"], &disk.at));
    cut_power(&disk.at);
    // The daemon cannot commit any more.
    let _ended = mobifs(&["steer", "--stop"], &disk.at);
    unmount(&disk.at);
    disk.mount_again();
    assert_eq!(fs::read(&early).unwrap(), wanted_early);
    assert_eq!(fs::read(&late).unwrap(), wanted_late);
}

#[test]
fn zeros_past_the_journal_are_allowed_again_when_steering_stops() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    fs::write(zeroing(&disk), "8").unwrap();
    disk.steer("");
    assert_eq!(zeroing_kib(&disk), "0");
    disk.stop();
    assert_eq!(zeroing_kib(&disk), "8");
    disk.steer("");
    let pid = super::life::pid(&disk);
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    wait_until(|| disk.registration().is_none());
    assert_eq!(zeroing_kib(&disk), "0");
    succeeds(&mobifs(&["steer", "--stop"], &disk.at));
    assert_eq!(zeroing_kib(&disk), "8");
}

#[test]
fn another_program_that_allows_zeros_past_the_journal_withdraws_the_promise() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    disk.steer("");
    fs::write(zeroing(&disk), "16").unwrap();
    let status = disk.status();
    let why = status["native"]["promise_withdrawn"].as_str().unwrap();
    assert!(why.contains("extent_max_zeroout_kb"), "{why}");
    assert!(!disk.is_in_force());
    succeeds(&mobifs(&["reload"], &disk.at));
    assert_eq!(zeroing_kib(&disk), "0");
    assert!(disk.is_in_force());
}
