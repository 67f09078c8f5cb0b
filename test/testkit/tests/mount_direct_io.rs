//! Reading and writing past the kernel's cache on a real mount, beside programs that use it.

#![expect(
    clippy::unwrap_used,
    reason = "a test stops where its surroundings fail"
)]

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::atomic::{AtomicBool, Ordering};

use mobifs_skip::can_mount;
use mobifs_testkit::direct_io::{self, ALIGNMENT, AlignedBuffer};
use mobifs_testkit::mount::{Mount, Places, Program, scratch};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use tempfile::TempDir;

const PAGES: usize = 128;
const FILE_BYTES: usize = PAGES * ALIGNMENT;

/// A mount with a file of zeros in an app.
struct Mounted {
    mount: Mount,
    file: Option<File>,
    _base: TempDir,
}

impl Mounted {
    fn new() -> Self {
        let base = scratch().unwrap();
        let places = Places::below(base.path());
        places.make("").unwrap();
        let mut mount = Mount::new(Program::of_workspace(), places);
        mount.mount().unwrap();
        let app = mount.places().mountpoint.join("app");
        fs::create_dir(&app).unwrap();
        fs::write(app.join("file"), vec![0; FILE_BYTES]).unwrap();
        let mut options = File::options();
        let file = options.read(true).write(true).open(app.join("file"));
        Self {
            mount,
            file: Some(file.unwrap()),
            _base: base,
        }
    }

    fn file(&self) -> &File {
        self.file.as_ref().unwrap()
    }

    /// Unmounts; what the store's file holds then.
    fn end(mut self) -> Vec<u8> {
        self.file = None;
        self.mount.umount().unwrap();
        fs::read(self.mount.places().store.join("app/file")).unwrap()
    }
}

/// Content of the file that is no other round's.
fn content(round: usize) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(FILE_BYTES);
    for (number, page) in buffer.bytes_mut().chunks_mut(ALIGNMENT).enumerate() {
        page.fill((round * 31 + number) as u8 | 1);
    }
    buffer
}

fn read_through_cache(file: &File) -> Vec<u8> {
    let mut found = vec![0; FILE_BYTES];
    file.read_exact_at(&mut found, 0).unwrap();
    found
}

/// Runs `work` while two threads read the file through the cache.
fn beside_readers(file: &File, work: impl FnOnce()) {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut page = vec![0; ALIGNMENT];
                while !is_done.load(Ordering::SeqCst) {
                    for number in 0..PAGES {
                        // At the end of a file that is just being truncated there is nothing.
                        let _read = file.read_at(&mut page, (number * ALIGNMENT) as u64);
                    }
                }
            });
        }
        work();
        is_done.store(true, Ordering::SeqCst);
    });
}

/// A loader (fio with libaio and `direct=1`) wrote while two readers read: what they had
/// brought into the cache during a write stayed there, in 7 of 60 runs.
#[test]
fn asynchronous_direct_writes_are_seen_by_concurrent_reads() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new();
    let file = mounted.file();
    let direct = direct_io::reopen(file).unwrap();
    for round in 0..20 {
        let data = content(round);
        beside_readers(file, || {
            let written = direct_io::write_together(&direct, 0, &data);
            assert_eq!(written, Ok(FILE_BYTES as u64));
        });
        let past_the_cache = direct_io::read(&direct, 0, FILE_BYTES).unwrap();
        assert!(past_the_cache == data.bytes(), "round {round}: not written");
        let cached = read_through_cache(file);
        assert!(cached == data.bytes(), "round {round}: stale pages stay");
    }
    drop(direct);
    assert!(mounted.end() == content(19).bytes());
}

#[test]
fn a_truncation_beside_asynchronous_direct_writes_leaves_one_size() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new();
    let file = mounted.file();
    let direct = direct_io::reopen(file).unwrap();
    for round in 0..10 {
        beside_readers(file, || {
            std::thread::scope(|scope| {
                scope.spawn(|| direct_io::write_together(&direct, 0, &content(round)).unwrap());
                for _ in 0..8 {
                    file.set_len(ALIGNMENT as u64 * 3 + 5).unwrap();
                }
            });
        });
        let known = file.metadata().unwrap().size();
        let asked = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        let attributes = rustix::fs::statx(file, "", asked, StatxFlags::BASIC_STATS).unwrap();
        assert_eq!(
            known, attributes.stx_size,
            "kernel and daemon know other sizes"
        );
        let mut cached = vec![0; FILE_BYTES + 1];
        let count = file.read_at(&mut cached, 0).unwrap();
        let past_the_cache = direct_io::read(&direct, 0, FILE_BYTES).unwrap();
        assert!(cached[..count] == past_the_cache, "round {round}: stale");
        file.set_len(FILE_BYTES as u64).unwrap();
    }
    drop(direct);
    mounted.end();
}

#[test]
fn mappings_and_direct_io_see_each_other() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new();
    let file = mounted.file();
    let direct = direct_io::reopen(file).unwrap();
    let (none, access) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let mapping = unsafe { mmap(none, FILE_BYTES, access, MapFlags::SHARED, file, 0) }.unwrap();
    let page = |number: usize| {
        assert!(number < PAGES);
        // SAFETY: the mapping has that many pages, and so has its file.
        unsafe { mapping.cast::<u8>().add(number * ALIGNMENT) }
    };
    for round in 1..=5_u8 {
        // SAFETY: see above. No other code uses this memory; the kernel may, at any time, which
        // volatile accesses allow.
        unsafe { page(0).write_volatile(round) };
        // A page that was changed through a mapping, and not written back yet.
        let found = direct_io::read(&direct, 0, ALIGNMENT).unwrap();
        assert_eq!(
            found[0], round,
            "a mapping's change is not seen past the cache"
        );
        // Over a page that a mapping has changed just before.
        // SAFETY: see above.
        unsafe { page(1).write_volatile(round) };
        let data = AlignedBuffer::holding(&[round + 100; ALIGNMENT * 2]);
        direct_io::write_together(&direct, ALIGNMENT as u64, &data).unwrap();
        // SAFETY: see above.
        let (first, second) = unsafe { (page(1).read_volatile(), page(2).read_volatile()) };
        assert_eq!((first, second), (round + 100, round + 100));
    }
    // SAFETY: the whole mapping, which nothing uses afterwards.
    unsafe {
        msync(mapping, FILE_BYTES, MsyncFlags::SYNC).unwrap();
        munmap(mapping, FILE_BYTES).unwrap();
    }
    drop(direct);
    let kept = mounted.end();
    assert_eq!(
        (kept[0], kept[ALIGNMENT], kept[2 * ALIGNMENT]),
        (5, 105, 105)
    );
}
