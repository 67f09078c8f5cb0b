//! A mount with one file, through its public interface: on a real kernel.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use mobifs_fuse::{
    Answer, Clear, FileServer, Incarnation, LoopDevice, MountOptions, Session, SessionError,
    SessionHandle, SyncFsMode,
};
use mobifs_skip::can_mount;
use parking_lot::{Condvar, Mutex};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use tempfile::TempDir;

const FILE_BYTES: usize = 1 << 20;

/// A file in memory. Reads can be held back until enough of them wait.
struct Memory {
    content: Mutex<Vec<u8>>,
    incarnation: AtomicU64,
    syncs: AtomicUsize,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    /// Answer reads when so many wait, the last first; 0: at once.
    together: usize,
    reads: Vec<(Answer, Vec<u8>)>,
    /// How many reads waited at the same time.
    most: usize,
}

impl Memory {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            content: Mutex::new(vec![0; FILE_BYTES]),
            incarnation: AtomicU64::new(0),
            syncs: AtomicUsize::new(0),
            waiting: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Returns the answer if it is about the current file; otherwise fails it.
    fn admit(&self, file: Incarnation, answer: Answer) -> Option<Answer> {
        if file == self.incarnation() {
            return Some(answer);
        }
        answer.fail(Errno::IO);
        None
    }

    fn answer_together(&self) {
        let mut waiting = self.waiting.lock();
        while waiting.reads.len() < waiting.together {
            self.changed.wait(&mut waiting);
        }
        waiting.most = waiting.reads.len();
        waiting.together = 0;
        while let Some((answer, data)) = waiting.reads.pop() {
            answer.data(&data);
        }
    }
}

impl FileServer for Memory {
    fn size_bytes(&self) -> u64 {
        FILE_BYTES as u64
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation.load(Ordering::SeqCst))
    }

    fn read(&self, file: Incarnation, offset: u64, bytes: usize, answer: Answer) {
        let Some(answer) = self.admit(file, answer) else {
            return;
        };
        let offset = offset as usize;
        let data = self.content.lock()[offset..offset + bytes].to_vec();
        let mut waiting = self.waiting.lock();
        if waiting.together == 0 {
            return answer.data(&data);
        }
        waiting.reads.push((answer, data));
        self.changed.notify_all();
    }

    fn write(&self, file: Incarnation, offset: u64, data: &[u8], answer: Answer) {
        let Some(answer) = self.admit(file, answer) else {
            return;
        };
        let offset = offset as usize;
        self.content.lock()[offset..offset + data.len()].copy_from_slice(data);
        answer.done();
    }

    fn sync(&self, _: Incarnation, answer: Answer) {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        answer.done();
    }

    fn clear(&self, _: Incarnation, _: Clear, offset: u64, bytes: u64, answer: Answer) {
        let offset = offset as usize;
        self.content.lock()[offset..offset + bytes as usize].fill(0);
        answer.done();
    }
}

/// A mount of the memory; ended on drop.
struct Mounted {
    memory: Arc<Memory>,
    directory: TempDir,
    handle: SessionHandle,
    thread: Option<std::thread::JoinHandle<Result<(), SessionError>>>,
}

impl Mounted {
    fn new() -> Self {
        let memory = Memory::new();
        let directory = tempfile::tempdir().unwrap();
        let options = MountOptions {
            sync_fs: SyncFsMode::Off,
            subtype: "mobifs-test".to_owned(),
            ..MountOptions::default()
        };
        let server = Arc::clone(&memory) as Arc<dyn FileServer>;
        let session = Session::mount_file(server, "device", directory.path(), &options).unwrap();
        let handle = session.handle();
        let thread = Some(std::thread::spawn(move || session.run()));
        Self {
            memory,
            directory,
            handle,
            thread,
        }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("device")
    }

    fn open(&self) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).open(self.file()).unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.handle.abort().unwrap();
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

#[test]
fn the_file_is_there_and_keeps_what_is_written() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new();
    let names: Vec<_> = fs::read_dir(mounted.directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["device"]);
    let file = mounted.open();
    assert_eq!(file.metadata().unwrap().size(), FILE_BYTES as u64);
    file.write_all_at(b"hello", 4094).unwrap();
    file.sync_all().unwrap();
    assert!(mounted.memory.syncs.load(Ordering::SeqCst) > 0);
    let mut found = [0; 5];
    file.read_exact_at(&mut found, 4094).unwrap();
    assert_eq!(&found, b"hello");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 4095, 2).unwrap();
    file.read_exact_at(&mut found, 4094).unwrap();
    assert_eq!(&found, b"h\0\0lo");
}

#[test]
fn nothing_else_can_be_done_to_it() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new();
    assert!(mounted.open().set_len(5).is_err());
    assert!(
        mounted
            .open()
            .write_all_at(b"x", FILE_BYTES as u64)
            .is_err()
    );
    assert!(fs::remove_file(mounted.file()).is_err());
    assert!(File::create(mounted.directory.path().join("other")).is_err());
    assert!(File::open(mounted.directory.path().join("absent")).is_err());
}

#[test]
fn descriptors_of_an_older_file_return_errors_and_the_name_leads_to_the_new_one() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new();
    let old = mounted.open();
    old.write_all_at(b"old", 0).unwrap();
    mounted.memory.incarnation.store(1, Ordering::SeqCst);
    assert!(old.write_all_at(b"new", 8192).is_err());
    let new = mounted.open();
    new.write_all_at(b"new", 8192).unwrap();
    assert_ne!(old.metadata().unwrap().ino(), new.metadata().unwrap().ino());
}

#[test]
fn requests_through_a_loop_device_wait_side_by_side_and_are_answered_in_any_order() {
    let has_loops = Path::new("/dev/loop-control").exists();
    if !can_mount() || !mobifs_skip::can((!has_loops).then_some("no loop devices")) {
        return;
    }
    const TOGETHER: usize = 8;
    let mounted = Mounted::new();
    for number in 0..TOGETHER {
        let offset = number << 16;
        mounted.memory.content.lock()[offset..offset + 4096].fill(number as u8 + 1);
    }
    let device = LoopDevice::over_file(&mounted.open(), b"mobifs test").unwrap();
    mounted.memory.waiting.lock().together = TOGETHER;
    let memory = Arc::clone(&mounted.memory);
    let answering = std::thread::spawn(move || memory.answer_together());
    let readers: Vec<_> = (0..TOGETHER)
        .map(|number| {
            let device = File::open(device.path()).unwrap();
            std::thread::spawn(move || {
                let mut found = [0; 4096];
                device
                    .read_exact_at(&mut found, (number as u64) << 16)
                    .unwrap();
                assert!(found.iter().all(|&byte| byte == number as u8 + 1));
            })
        })
        .collect();
    readers
        .into_iter()
        .for_each(|reader| reader.join().unwrap());
    answering.join().unwrap();
    assert!(mounted.memory.waiting.lock().most >= TOGETHER);
}
