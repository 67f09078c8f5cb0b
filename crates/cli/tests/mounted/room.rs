//! Room that programs ask for and give back is taken and given back below as well.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};

use crate::filesystems::put_store_on;
use crate::fixture::{Fixture, message, mobifs, needs_mounts, succeeds, wait_until};

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

/// Takes every block that is free.
fn fill_disk(filler: &Path) {
    let mut file = File::create(filler).unwrap();
    for bytes in [1 << 20, 4096, 1] {
        // What is written may wait for its blocks, and then find fewer than it seemed.
        while file
            .write_all(&vec![9; bytes])
            .and_then(|()| file.sync_all())
            .is_ok()
        {}
    }
    let free = rustix::fs::statvfs(filler).unwrap().f_bavail;
    assert!(free < 300, "{free} blocks are free");
}

/// SQLite goes on in the room that its log has, and what is renamed needs no block: so on ext4
/// and XFS, which were full, also where the mount had refused both.
fn full_disk_takes_what_has_its_place(make: &[&str]) {
    const FILES: usize = 150;
    let mut fixture = Fixture::new();
    if !put_store_on(&mut fixture, make) {
        return;
    }
    let config = fixture.config("journal_bytes = \"4MiB\"\nmemory_budget_bytes = \"16MiB\"\n");
    fixture.mount(&["--config", config.to_str().unwrap()]);
    let app = fixture.mountpoint.join("app");
    fs::create_dir_all(app.join("to")).unwrap();
    let open = |name: &str| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        options.open(app.join(name)).unwrap()
    };
    let (written, ahead, small) = (open("written"), open("ahead"), open("small"));
    fill(&written, 3 * MIB);
    fill(&small, 100);
    allocate(&ahead, FallocateFlags::KEEP_SIZE, 0, MIB);
    for number in 0..FILES {
        fs::write(app.join(number.to_string()), number.to_string()).unwrap();
    }
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    fill_disk(&fixture.path("disk").join("filler"));
    // The mount does not ask all the time.
    wait_until(|| rustix::fs::statvfs(&fixture.mountpoint).unwrap().f_bavail < 300);

    let refused = |done: std::io::Result<()>| {
        assert_eq!(done.unwrap_err().kind(), ErrorKind::StorageFull);
    };
    let old = vec![2; 3 * MIB as usize];
    let long = "n".repeat(250);
    for round in 0..3_u8 {
        for (number, piece) in old.chunks(100_000).enumerate() {
            let changed = vec![round; piece.len()];
            written
                .write_all_at(&changed, number as u64 * 100_000)
                .unwrap();
        }
        small.write_all_at(&[round], 50).unwrap();
    }
    for at in (0..MIB).step_by(4096) {
        ahead.write_all_at(&[7; 4096], at).unwrap();
    }
    refused(ahead.write_all_at(&vec![7; 3 * MIB as usize], MIB));
    for number in 0..FILES {
        let to = app.join("to").join(format!("{number}-{}", &long[..240]));
        fs::rename(app.join(number.to_string()), to).unwrap();
    }
    fs::hard_link(app.join("small"), app.join("link")).unwrap();
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    written.write_all_at(&[5; 4096], 4096).unwrap();
    drop((written, ahead, small));
    fixture.umount();

    let below = fixture.store.join("app");
    let read = |name: &str| fs::read(below.join(name)).unwrap();
    let mut expected = vec![2; 3 * MIB as usize];
    expected[4096..8192].fill(5);
    assert!(read("written") == expected);
    assert!(read("ahead") == vec![7; MIB as usize]);
    let mut small = vec![1; 100];
    small[50] = 2;
    assert_eq!((read("small"), read("link")), (small.clone(), small));
    for number in 0..FILES {
        let name = format!("to/{number}-{}", &long[..240]);
        assert_eq!(read(&name), number.to_string().as_bytes());
    }
    fixture.mount(&["--config", config.to_str().unwrap()]);
    fs::remove_file(fixture.path("disk").join("filler")).unwrap();
    fs::write(app.join("new"), "there is room").unwrap();
    fixture.umount();
}

#[test]
fn a_full_ext4_takes_what_has_its_place() {
    needs_mounts!();
    full_disk_takes_what_has_its_place(&["mkfs.ext4", "-q", "-m", "0"]);
}

#[test]
fn a_full_xfs_takes_what_has_its_place() {
    needs_mounts!();
    full_disk_takes_what_has_its_place(&["mkfs.xfs", "-q"]);
}

/// Another program takes all room while files wait to be brought to their places: the store could
/// not be mounted, and nothing deleted gave any back.
fn disk_filled_by_others_leaves_the_store_usable(make: &[&str]) {
    const FILES: usize = 300;
    let mut fixture = Fixture::new();
    if !put_store_on(&mut fixture, make) {
        return;
    }
    let config = fixture.config(
        "journal_bytes = \"16MiB\"\napply_idle_ms = 86400000\n[defaults]\nclass = \"durable\"\n",
    );
    let words = ["--config", config.to_str().unwrap()];
    fixture.mount(&words);
    let (app, other) = (
        fixture.mountpoint.join("app"),
        fixture.mountpoint.join("other"),
    );
    fs::create_dir_all(app.join("to")).unwrap();
    fs::create_dir(&other).unwrap();
    fs::write(other.join("file"), [1; 8192]).unwrap();
    for number in 0..FILES {
        fs::write(app.join(number.to_string()), number.to_string()).unwrap();
    }
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    // Committed, and not applied: names that move, and content that needs blocks.
    for number in 0..FILES {
        let (old, new) = (number.to_string(), format!("{number:0>200}"));
        fs::rename(app.join(old), app.join("to").join(new)).unwrap();
        // One at a time: many new files would be written to their places at once.
        let mut new = File::create(app.join(format!("new{number}"))).unwrap();
        new.write_all(&[3; 20_000]).unwrap();
        new.sync_all().unwrap();
    }
    let filler = fixture.path("disk").join("filler");
    fill_disk(&filler);
    let check = || {
        for number in 0..FILES {
            let moved = app.join("to").join(format!("{number:0>200}"));
            assert_eq!(fs::read(moved).unwrap(), number.to_string().as_bytes());
            let new = app.join(format!("new{number}"));
            assert!(fs::read(new).unwrap() == vec![3; 20_000], "{number}");
        }
    };
    let refused = mobifs(&["sync"], &fixture.mountpoint);
    assert!(!refused.status.success(), "{make:?}: there is no room");
    assert!(message(&refused).contains("\"app/"), "{refused:?}");
    check();
    // Another app goes on, and what it commits stays.
    let file = OpenOptions::new().write(true).open(other.join("file"));
    let file = file.unwrap();
    file.write_all_at(&[2; 8192], 0).unwrap();
    file.sync_all().unwrap();
    drop(file);

    fixture.cut_power();
    fixture.mount(&words);
    check();
    assert_eq!(fs::read(other.join("file")).unwrap(), [2; 8192]);
    for number in 0..FILES {
        fs::remove_file(app.join(format!("new{number}"))).unwrap();
    }
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    fixture.umount();
    assert_eq!(
        fs::read(fixture.store.join("other/file")).unwrap(),
        [2; 8192]
    );
    let moved = fs::read_dir(fixture.store.join("app/to")).unwrap().count();
    assert_eq!(moved, FILES);
    fs::remove_file(filler).unwrap();
}

#[test]
fn an_ext4_that_others_fill_leaves_the_store_usable() {
    needs_mounts!();
    disk_filled_by_others_leaves_the_store_usable(&["mkfs.ext4", "-q", "-m", "0"]);
}

#[test]
fn an_xfs_that_others_fill_leaves_the_store_usable() {
    needs_mounts!();
    disk_filled_by_others_leaves_the_store_usable(&["mkfs.xfs", "-q"]);
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
