//! A disk that is filled by files and directories of one shape each: what was acknowledged can be
//! brought to its place, whatever blocks it needs there.
//!
//! By default a few shapes on small filesystems; `make room` fills larger ones with all of them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::Path;
use std::process::Command;

use rustix::fs::{FallocateFlags, XattrFlags, fallocate, setxattr};

use crate::filesystems::put_store_on_sized;
use crate::fixture::{Fixture, mobifs, needs_mounts, succeeds};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// Makes the piece of a shape that has this number.
type Shape = fn(&Path, u64) -> io::Result<()>;

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

/// Every other page of one file.
fn half_dense_file(app: &Path, number: u64) -> io::Result<()> {
    open(&app.join("sparse"))?.write_all_at(b"x", number * 2 * PAGE)
}

/// Every other page of many.
fn half_dense_files(app: &Path, number: u64) -> io::Result<()> {
    let file = open(&app.join((number / 128).to_string()))?;
    file.write_all_at(&[1; PAGE as usize], number % 128 * 2 * PAGE)
}

fn scattered_pages(app: &Path, number: u64) -> io::Result<()> {
    let page = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    open(&app.join("scattered"))?.write_all_at(&[1; PAGE as usize], page * PAGE)
}

fn long_symlinks(app: &Path, number: u64) -> io::Result<()> {
    symlink("x".repeat(900), app.join(number.to_string()))
}

fn longest_symlinks(app: &Path, number: u64) -> io::Result<()> {
    symlink("x".repeat(3500), app.join(number.to_string()))
}

fn long_names(app: &Path, number: u64) -> io::Result<()> {
    File::create(app.join(format!("{number:0>255}"))).map(drop)
}

fn small_files(app: &Path, number: u64) -> io::Result<()> {
    File::create(app.join(number.to_string()))?.write_all(b"small")
}

fn deep_directories(app: &Path, number: u64) -> io::Result<()> {
    let path = format!("{}{}", number / 50, "/d".repeat((number % 50) as usize));
    fs::create_dir(app.join(path))
}

fn attributes(app: &Path, number: u64) -> io::Result<()> {
    let path = app.join(number.to_string());
    File::create(&path)?;
    let value = number.to_string().repeat(100);
    Ok(setxattr(
        &path,
        "user.a",
        &value.as_bytes()[..100],
        XattrFlags::empty(),
    )?)
}

/// One file after the other, with as many small ones as it takes.
fn many_attributes(app: &Path, number: u64) -> io::Result<()> {
    let path = app.join((number / 8).to_string());
    open(&path)?;
    let name = format!("user.{number:0>40}");
    Ok(setxattr(&path, name, &[b'v'; 20], XattrFlags::empty())?)
}

fn allocated_ranges(app: &Path, number: u64) -> io::Result<()> {
    let file = open(&app.join(number.to_string()))?;
    let (offset, length) = (number % 4 * PAGE + 100, number % 50 * 5000 + 1);
    Ok(fallocate(&file, FallocateFlags::empty(), offset, length)?)
}

fn mixture(app: &Path, number: u64) -> io::Result<()> {
    const ALL: [Shape; 8] = [
        half_dense_file,
        scattered_pages,
        |app, number| small_files(&made(app, "small")?, number),
        |app, number| long_symlinks(&made(app, "links")?, number),
        |app, number| long_names(&made(app, "names")?, number),
        |app, number| deep_directories(&made(app, "deep")?, number / 8),
        |app, number| attributes(&made(app, "attributes")?, number),
        |app, number| allocated_ranges(&made(app, "allocated")?, number),
    ];
    ALL[(number % ALL.len() as u64) as usize](app, number)
}

fn made(app: &Path, name: &str) -> io::Result<std::path::PathBuf> {
    let path = app.join(name);
    fs::create_dir_all(&path)?;
    Ok(path)
}

/// Fills the disk, has all of it applied, cuts the power, and empties the disk again.
fn fill(shape: Shape, make: &[&str], bytes: u64) {
    let mut fixture = Fixture::new();
    if !put_store_on_sized(&mut fixture, make, bytes) {
        return;
    }
    let config = fixture.config("journal_bytes = \"2MiB\"\nmemory_budget_bytes = \"8MiB\"\n");
    let words = ["--config", config.to_str().unwrap()];
    fixture.mount(&words);
    let (app, other) = (
        fixture.mountpoint.join("app"),
        fixture.mountpoint.join("other"),
    );
    fs::create_dir(&app).unwrap();
    fs::create_dir(&other).unwrap();
    fs::write(other.join("file"), [1; PAGE as usize]).unwrap();
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    // Not what is available: btrfs assigns chunks to trees, and keeps them empty.
    let free = || rustix::fs::statvfs(&fixture.store).unwrap().f_bfree;
    let before = free();

    let refused = (0..).find_map(|number| shape(&app, number).err()).unwrap();
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull, "{make:?}");
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    // Other apps go on with the room that they have.
    let file = OpenOptions::new()
        .write(true)
        .open(other.join("file"))
        .unwrap();
    let others = match file.write_all_at(&[2; PAGE as usize], 0) {
        Ok(()) => [2; PAGE as usize],
        // It is written elsewhere there.
        Err(error) if make[0] == BTRFS[0] && error.kind() == io::ErrorKind::StorageFull => {
            [1; PAGE as usize]
        }
        Err(error) => panic!("{make:?}: {error}"),
    };
    drop(file);
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    let count = |directory: &Path| fs::read_dir(directory).unwrap().count();
    let names = count(&app);

    fixture.cut_power();
    fixture.mount(&words);
    assert_eq!(count(&app), names, "{make:?}");
    assert!(fs::read(other.join("file")).unwrap() == others);
    let removed = Command::new("rm").arg("-rf").arg(&app).output().unwrap();
    succeeds(&removed);
    fixture.umount();
    rustix::fs::syncfs(File::open(&fixture.store).unwrap()).unwrap();
    let after = free();
    assert!(
        after > before / 4 * 3,
        "{make:?}: {after} of {before} blocks"
    );
    assert!(fs::read(fixture.store.join("other/file")).unwrap() == others);
}

const EXT4: [&str; 6] = ["mkfs.ext4", "-q", "-m", "0", "-b", "4096"];
const EXT4_1K: [&str; 8] = ["mkfs.ext4", "-q", "-m", "0", "-b", "1024", "-N", "30000"];
/// Directories with an index of three levels, which the kernel does not report.
const EXT4_LARGE_DIRECTORIES: [&str; 10] = [
    "mkfs.ext4",
    "-q",
    "-m",
    "0",
    "-b",
    "1024",
    "-N",
    "60000",
    "-O",
    "large_dir",
];
const BTRFS: [&str; 3] = ["mkfs.btrfs", "-q", "-f"];
/// Data and metadata share their chunks.
const BTRFS_MIXED: [&str; 4] = ["mkfs.btrfs", "-q", "-f", "--mixed"];

/// Applying gave the holes blocks, too: up to twice what was budgeted.
#[test]
fn a_disk_full_of_half_dense_files_is_applied_and_emptied() {
    needs_mounts!();
    fill(half_dense_file, &EXT4, 32 * MIB);
    fill(half_dense_files, &EXT4_1K, 32 * MIB);
}

/// Their targets went to files for which there was no room.
#[test]
fn a_disk_full_of_long_symlinks_is_applied_and_emptied() {
    needs_mounts!();
    fill(longest_symlinks, &EXT4, 32 * MIB);
}

/// The index of the directory was full when they were applied, with half of the disk in use.
#[test]
fn a_directory_full_of_long_names_is_applied_and_emptied() {
    needs_mounts!();
    fill(long_names, &EXT4_1K, 64 * MIB);
}

/// The room that a rename reserves was not left, nor room for chunks that content takes from
/// metadata: small files, long names and symlinks filled it, and could neither be applied nor
/// mounted.
#[test]
fn a_btrfs_full_of_long_symlinks_is_applied_and_emptied() {
    needs_mounts!();
    fill(longest_symlinks, &BTRFS, 112 * MIB);
}

const SHAPES: [(&str, Shape); 11] = [
    ("half_dense_file", half_dense_file),
    ("half_dense_files", half_dense_files),
    ("scattered_pages", scattered_pages),
    ("long_symlinks", long_symlinks),
    ("long_names", long_names),
    ("small_files", small_files),
    ("deep_directories", deep_directories),
    ("attributes", attributes),
    ("many_attributes", many_attributes),
    ("allocated_ranges", allocated_ranges),
    ("mixture", mixture),
];

const FILESYSTEMS: [(&str, &[&str], u64); 7] = [
    ("ext4", &EXT4, 64 * MIB),
    ("ext4-1k", &EXT4_1K, 64 * MIB),
    ("ext4-large-dir", &EXT4_LARGE_DIRECTORIES, 64 * MIB),
    ("xfs", &["mkfs.xfs", "-q", "-f"], 320 * MIB),
    ("btrfs", &BTRFS, 112 * MIB),
    ("btrfs-mixed", &BTRFS_MIXED, 48 * MIB),
    ("f2fs", &["mkfs.f2fs", "-q", "-f"], 128 * MIB),
];

/// Those that a variable names, with commas between them; without it all.
fn is_chosen(variable: &str, name: &str) -> bool {
    std::env::var(variable).map_or(true, |chosen| chosen.split(',').any(|one| one == name))
}

#[test]
#[ignore = "takes minutes: `make room`"]
fn disks_full_of_every_shape_are_applied_and_emptied() {
    needs_mounts!();
    let mut failed = Vec::new();
    for (filesystem, make, bytes) in FILESYSTEMS {
        for (name, shape) in SHAPES {
            let is_chosen =
                is_chosen("MOBIFS_FILESYSTEMS", filesystem) && is_chosen("MOBIFS_SHAPES", name);
            if !is_chosen {
                continue;
            }
            println!("{name} on {filesystem}");
            // The others are filled all the same.
            if std::panic::catch_unwind(|| fill(shape, make, bytes)).is_err() {
                failed.push(format!("{name} on {filesystem}"));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
