//! Room that programs ask for and give back is allocated and freed in the lower filesystem as well.

use std::ffi::c_void;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::ptr;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use crate::filesystems::{put_store_on, put_store_on_sized};
use crate::fixture::{Fixture, mobifs, needs_mounts, succeeds, wait_until};
use crate::full::fill_disk;

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

/// Found by what xfstests' generic/488 asks: with everything applied and nothing else going on, a
/// deleted file was freed after its last `close` only when something else changed. On a disk that
/// was full of the file nothing could.
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

    let lower = fixture.store.join("app");
    let read = |name: &str| fs::read(lower.join(name)).unwrap();
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

/// A file of this many bytes, mapped to be written.
fn map(file: &File, bytes: usize) -> *mut c_void {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping of a file that keeps its size.
    let mapped = unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0) };
    mapped.unwrap()
}

/// A write through a mapping cannot be refused; the error comes when the pages are written back, as
/// SEMANTICS.md says; what was allocated before finds its room.
#[test]
fn msync_reports_a_full_disk_to_a_mapping_of_holes() {
    needs_mounts!();
    const BYTES: usize = MIB as usize;
    let mut fixture = Fixture::new();
    if !put_store_on_sized(&mut fixture, &["mkfs.ext4", "-q", "-m", "0"], 64 * MIB) {
        return;
    }
    let config = fixture.config("journal_bytes = \"4MiB\"\n[defaults]\nclass = \"durable\"\n");
    let words = ["--config", config.to_str().unwrap()];
    fixture.mount(&words);
    let app = fixture.mountpoint.join("app");
    fs::create_dir(&app).unwrap();
    let create = |name: &str| File::create_new(app.join(name)).unwrap();
    let (holes, ahead) = (create("holes"), create("ahead"));
    let open = |name: &str| {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(app.join(name));
        file.unwrap()
    };
    holes.set_len(MIB).unwrap();
    allocate(&ahead, FallocateFlags::empty(), 0, MIB);
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    let (holes, ahead) = (open("holes"), open("ahead"));
    let mapped = [&holes, &ahead].map(|file| map(file, BYTES));
    fill_disk(&fixture.path("disk").join("filler"));
    // The mount does not ask all the time.
    wait_until(|| rustix::fs::statvfs(&fixture.mountpoint).unwrap().f_bavail < 300);

    let results = mapped.map(|start| {
        // SAFETY: both mappings have so many bytes, and only this thread uses them.
        unsafe {
            ptr::write_bytes(start.cast::<u8>(), 7, BYTES);
            let results = [(); 2].map(|()| msync(start, BYTES, MsyncFlags::SYNC));
            munmap(start, BYTES).unwrap();
            results
        }
    });
    // Once for each open file.
    assert_eq!(results, [[Err(Errno::NOSPC), Ok(())], [Ok(()); 2]]);
    drop((holes, ahead));
    fixture.cut_power();
    fixture.mount(&words);
    assert!(fs::read(app.join("ahead")).unwrap() == [7; BYTES]);
    let holes = fs::read(app.join("holes")).unwrap();
    assert!(
        holes
            .chunks(4096)
            .all(|page| page == [0; 4096] || page == [7; 4096])
    );
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
        let lower = fixture.store.join("app").join(name);
        assert_eq!(halves(&lower), expected, "{name}, in the store");
    }
    fixture.umount();
}
