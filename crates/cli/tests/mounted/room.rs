//! Room that programs ask for and give back is taken and given back below as well.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};

use crate::fixture::{Fixture, mobifs, needs_mounts, succeeds, wait_until};

const MIB: u64 = 1 << 20;

/// Changes a file; calls the second argument where everything is to be committed and applied.
type Case = fn(&File, &dyn Fn());

fn allocate(file: &File, flags: FallocateFlags, offset: u64, length: u64) {
    fallocate(file, flags, offset, length).unwrap();
}

fn punch(file: &File, offset: u64, length: u64) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    allocate(file, flags, offset, length);
}

fn fill(file: &File, length: u64) {
    file.write_all_at(&vec![1; length as usize], 0).unwrap();
}

/// What is done, and how much of a mebibyte is left to the file: none, half or all.
const CASES: [(&str, u64, Case); 10] = [
    ("allocated", 2, |file, _| {
        allocate(file, FallocateFlags::empty(), 0, MIB);
    }),
    ("allocated and punched", 0, |file, _| {
        allocate(file, FallocateFlags::empty(), 0, MIB);
        punch(file, 0, MIB);
    }),
    ("allocated and half punched", 1, |file, _| {
        allocate(file, FallocateFlags::empty(), 0, MIB);
        punch(file, MIB / 2, MIB / 2);
    }),
    ("allocated, applied and punched", 0, |file, apply| {
        allocate(file, FallocateFlags::empty(), 0, MIB);
        apply();
        punch(file, 0, MIB);
    }),
    ("ahead and cut off", 0, |file, _| {
        allocate(file, FallocateFlags::KEEP_SIZE, 0, MIB);
        file.set_len(0).unwrap();
    }),
    ("ahead, written to and cut off", 0, |file, _| {
        allocate(file, FallocateFlags::KEEP_SIZE, 0, MIB);
        fill(file, 5000);
        file.set_len(5000).unwrap();
    }),
    ("ahead, applied and cut off", 0, |file, apply| {
        allocate(file, FallocateFlags::KEEP_SIZE, 0, MIB);
        fill(file, 5000);
        apply();
        file.set_len(5000).unwrap();
    }),
    ("written and punched", 0, |file, apply| {
        fill(file, MIB);
        apply();
        punch(file, 0, MIB);
    }),
    ("zeroed and punched", 0, |file, _| {
        allocate(file, FallocateFlags::ZERO_RANGE, 0, MIB);
        punch(file, 0, MIB);
    }),
    ("allocated and written", 2, |file, _| {
        allocate(file, FallocateFlags::empty(), 0, MIB);
        fill(file, MIB);
    }),
];

fn halves(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512 * 2 / MIB
}

/// Found by what xfstests' generic/488 asks: with everything applied and nothing else going on,
/// the last `close` of a deleted file was the end of it only when something else changed. On a
/// disk that was full of the file nothing could.
#[test]
fn what_is_deleted_while_open_goes_when_it_is_closed() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let app = fixture.mountpoint.join("app");
    fs::create_dir(&app).unwrap();
    let path = app.join("file");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    let open = File::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    let limbo = fixture.store.join(".mobifs/limbo");
    let waiting = || fs::read_dir(&limbo).unwrap().count();
    assert_eq!(waiting(), 1);
    drop(open);
    wait_until(|| waiting() == 0);
    fixture.umount();
}

/// RocksDB, journald and others allocate ahead and cut off what they did not need.
#[test]
fn room_that_is_given_back_is_free_below() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let app = fixture.mountpoint.join("app");
    fs::create_dir(&app).unwrap();
    let apply = || succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    for (name, expected, case) in CASES {
        let path = app.join(name);
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).open(&path).unwrap();
        case(&file, &apply);
        assert_eq!(halves(&path), expected, "{name}, on the mount");
        apply();
        let below = fixture.store.join("app").join(name);
        assert_eq!(halves(&below), expected, "{name}, below");
    }
    fixture.umount();
}
