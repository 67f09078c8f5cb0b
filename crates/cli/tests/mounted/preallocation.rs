//! Blocks beyond the ends of growing files, on real filesystems.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::process::Command;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::process::{Pid, Signal, kill_process};

use crate::filesystems::put_store_on;
use crate::fixture::{Fixture, mobifs, needs_mounts, succeeds, wait_until};

const KIB: u64 = 1 << 10;

/// Bytes of blocks beyond what the size needs, without what lists of extents take.
fn unused(path: &Path) -> u64 {
    let about = fs::metadata(path).unwrap();
    let needed = about.size().next_multiple_of(4 * KIB);
    (about.blocks() * 512).saturating_sub(needed) / (16 * KIB) * (16 * KIB)
}

/// A database of 8 KiB, by its name.
fn make(path: &Path) -> File {
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .unwrap();
    file.write_all_at(&[7; 8 << 10], 0).unwrap();
    file
}

/// What is preallocated is given back at unmount, after a kill and at the next unmount, and after a
/// power cut by the next mount; room that a program requested stays; the status counts.
fn blocks_come_and_go(make_filesystem: &[&str], keeps: bool) {
    let mut fixture = Fixture::new();
    if !put_store_on(&mut fixture, make_filesystem) {
        return;
    }
    let config = fixture
        .config("preallocate_database_bytes = \"128KiB\"\npreallocate_large_bytes = \"1MiB\"\n");
    let words = ["--config", config.to_str().unwrap()];
    fixture.mount(&words);
    let lower = |name: &str| fixture.store.join("app").join(name);
    let on_mount = |name: &str| fixture.mountpoint.join("app").join(name);
    let sync = || succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    let file = make(&on_mount("a.db"));
    let requested = make(&on_mount("b.db"));
    fallocate(&requested, FallocateFlags::KEEP_SIZE, 0, 300 * KIB).unwrap();
    sync();
    let step = if keeps { 112 * KIB } else { 0 };
    assert_eq!(unused(&lower("a.db")), step);
    let counted = fixture.status()["store"]["preallocated_unused_bytes"].as_u64();
    assert_eq!(counted, Some(if keeps { 120 * KIB } else { 0 }));
    file.write_all_at(&[7; 8 << 10], 8 << 10).unwrap();
    drop((file, requested));
    sync();
    fixture.umount();
    assert_eq!(unused(&lower("a.db")), 0, "after the unmount");
    assert!(unused(&lower("b.db")) >= 272 * KIB, "it was requested");

    fixture.mount(&words);
    make(&on_mount("c.db"));
    sync();
    assert_eq!(unused(&lower("c.db")), step);
    let killed = fixture.daemon_pid();
    kill_process(Pid::from_raw(killed as i32).unwrap(), Signal::KILL).unwrap();
    wait_until(|| fs::metadata(on_mount("c.db")).is_ok() && fixture.daemon_pid() != killed);
    fixture.umount();
    assert_eq!(unused(&lower("c.db")), 0, "after a kill and an unmount");

    fixture.mount(&words);
    make(&on_mount("d.db"));
    sync();
    let written = fs::metadata(lower("d.db")).unwrap().modified().unwrap();
    fixture.cut_power();
    assert_eq!(unused(&lower("d.db")), step);
    fixture.mount(&words);
    sync();
    assert_eq!(unused(&lower("d.db")), 0, "after a power cut");
    let after = fs::metadata(lower("d.db")).unwrap().modified().unwrap();
    assert_eq!(after, written);
    fixture.umount();
    assert!(unused(&lower("b.db")) >= 272 * KIB, "it was requested");
}

/// At the unmount, the database was cut to the size of a file that was mounted over it in the store.
#[test]
fn blocks_are_given_back_by_a_database_over_which_another_file_is_mounted() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    if !put_store_on(&mut fixture, &["mkfs.ext4", "-q"]) {
        return;
    }
    let config = fixture.config("preallocate_database_bytes = \"128KiB\"\n");
    let words = ["--config", config.to_str().unwrap()];
    fixture.mount(&words);
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    drop(make(&fixture.mountpoint.join("app/a.db")));
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    let lower = fixture.store.join("app/a.db");
    assert_eq!(unused(&lower), 112 * KIB);
    let other = fixture.path("other");
    fs::write(&other, "short").unwrap();
    let mounted = Command::new("mount")
        .arg("--bind")
        .args([&other, &lower])
        .status();
    assert!(mounted.unwrap().success());
    fixture.umount();
    let unmounted = Command::new("umount").arg(&lower).status();
    assert!(unmounted.unwrap().success());
    let content = fs::read(&lower).unwrap();
    assert!(content == [7; 8 << 10], "{} bytes", content.len());
    fixture.mount(&words);
    assert!(fs::read(fixture.mountpoint.join("app/a.db")).unwrap() == content);
    fixture.umount();
}

#[test]
fn blocks_beyond_the_ends_of_files_come_and_go_on_ext4() {
    needs_mounts!();
    blocks_come_and_go(&["mkfs.ext4", "-q"], true);
}

#[test]
fn blocks_beyond_the_ends_of_files_come_and_go_on_xfs() {
    needs_mounts!();
    blocks_come_and_go(&["mkfs.xfs", "-q"], true);
}

#[test]
fn on_btrfs_nothing_is_preallocated() {
    needs_mounts!();
    blocks_come_and_go(&["mkfs.btrfs", "-q"], false);
}
