//! Threads on one volume under schedules that a test chooses: nothing blocks for ever, and
//! what a call promises holds when it returns, whichever thread ran in between.
//!
//! `cargo test -p mobifs-volume --features interleavings --test interleavings`; `INTERLEAVINGS` is the
//! number of schedules of each test.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mobifs_base::{
    ByteRange, DeviceNumber, DirectoryEntry, FileKind, MonotonicNs, ObjectId, ObjectInfo,
    PAGE_BYTES, Page, PageIndex, SpaceInfo, Timestamp, Xattr,
};
use mobifs_engine::{Caller, FsError, Moment, NodeSpec, SetIdBits, WriteAt};
use mobifs_store::{
    Calibration, Capabilities, Gate, JournalOptions, JournalStore, MemoryStore, PendingWork,
    PosixLower, Seek, Store, StoreError, Transaction,
};
use mobifs_volume::{Clock, Config, Volume, VolumeOptions};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::thread::{self, JoinHandle};
use shuttle::{Config as ShuttleConfig, Runner};

/// Schedules of each test, unless the environment says otherwise.
const SCHEDULES: usize = 300;
/// Stack of each thread: the engine's operations need more than shuttle gives.
const STACK_BYTES: usize = 1 << 20;
/// Order violations that need so many preemptions are looked for with priority.
const PREEMPTIONS: usize = 3;

/// Time advances by so many milliseconds whenever it is read.
#[derive(Debug)]
struct Ticking {
    step_ms: u64,
    at_ms: AtomicU64,
}

impl Clock for Ticking {
    fn moment(&self) -> Moment {
        let ms = self.at_ms.fetch_add(self.step_ms, Ordering::Relaxed) + self.step_ms;
        Moment {
            wall: Timestamp::new(1_700_000_000, 0),
            now: MonotonicNs(ms * 1_000_000),
        }
    }
}

/// A store that lets other threads run before and after each call.
struct Slow(Box<dyn Store>);

impl Slow {
    fn run<T>(&self, call: impl FnOnce(&dyn Store) -> T) -> T {
        thread::yield_now();
        let answer = call(&*self.0);
        thread::yield_now();
        answer
    }
}

impl Store for Slow {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn space(&self) -> Result<SpaceInfo, StoreError> {
        self.run(|store| store.space())
    }
    fn object(&self, id: ObjectId) -> Result<ObjectInfo, StoreError> {
        self.run(|store| store.object(id))
    }
    fn list_directory(&self, id: ObjectId) -> Result<Vec<DirectoryEntry>, StoreError> {
        self.run(|store| store.list_directory(id))
    }
    fn xattrs(&self, id: ObjectId) -> Result<Vec<Xattr>, StoreError> {
        self.run(|store| store.xattrs(id))
    }
    fn read_link(&self, id: ObjectId) -> Result<Vec<u8>, StoreError> {
        self.run(|store| store.read_link(id))
    }
    fn read(&self, id: ObjectId, offset: u64, out: &mut [u8]) -> Result<(), StoreError> {
        self.run(|store| store.read(id, offset, out))
    }
    fn seek(&self, id: ObjectId, offset: u64, what: Seek) -> Result<Option<u64>, StoreError> {
        self.run(|store| store.seek(id, offset, what))
    }
    fn is_in_place(&self, id: ObjectId, range: ByteRange) -> Result<bool, StoreError> {
        self.run(|store| store.is_in_place(id, range))
    }
    fn commit(&self, transaction: Transaction) -> Result<(), StoreError> {
        self.run(|store| store.commit(transaction))
    }
    fn apply(&self) -> Result<(), StoreError> {
        self.run(|store| store.apply())
    }
    fn calibration(&self) -> Option<Calibration> {
        self.0.calibration()
    }
    fn calibrate(&self) -> Result<Calibration, StoreError> {
        self.run(|store| store.calibrate())
    }
    fn pending(&self) -> PendingWork {
        self.run(|store| store.pending())
    }
    fn first_new_object(&self) -> ObjectId {
        self.run(|store| store.first_new_object())
    }
    fn pin(&self, id: ObjectId) {
        self.run(|store| store.pin(id));
    }
    fn unpin(&self, id: ObjectId) {
        self.run(|store| store.unpin(id));
    }
    fn spill(&self, id: ObjectId, pages: &[(PageIndex, Page)]) -> Result<(), StoreError> {
        self.run(|store| store.spill(id, pages))
    }
    fn forget(&self, ids: &[ObjectId], in_use: &BTreeSet<ObjectId>) {
        self.run(|store| store.forget(ids, in_use));
    }
    fn cut_power(&self) {
        self.run(|store| store.cut_power());
    }
}

const CALLER: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0o022,
};

/// A volume with a checkpointer, and its store.
struct Stage {
    volume: Arc<Volume>,
    store: Arc<Slow>,
}

impl Stage {
    /// Over a store in memory.
    fn new(memory_budget_bytes: u64) -> Arc<Self> {
        Self::over(Box::new(MemoryStore::new()), memory_budget_bytes, 1)
    }

    /// Over any store; the app `durable` is one.
    fn over(store: Box<dyn Store>, memory_budget_bytes: u64, step_ms: u64) -> Arc<Self> {
        let text = "[defaults]\nage_max_ms = 5\n[[app]]\nmatch = \"durable\"\nclass = \"durable\"";
        let config = Config::parse(text, Path::new("test")).unwrap();
        let store = Arc::new(Slow(store));
        let options = VolumeOptions {
            memory_budget_bytes,
            objects_max: 2,
            clock: Arc::new(Ticking {
                step_ms,
                at_ms: AtomicU64::new(0),
            }),
            hash_seed: Some(7),
            ..VolumeOptions::new(&config)
        };
        let volume = Volume::start(Arc::<Slow>::clone(&store), options).unwrap();
        Arc::new(Self { volume, store })
    }

    fn make(&self, parent: ObjectId, name: &str, kind: FileKind) -> Result<ObjectId, FsError> {
        let spec = NodeSpec {
            kind,
            mode: 0o755,
            rdev: DeviceNumber(0),
            symlink_target: None,
        };
        let made = self.volume.create(&CALLER, parent, name.as_bytes(), &spec);
        Ok(made?.id)
    }

    fn append(&self, file: ObjectId, bytes: usize) -> Result<(), FsError> {
        let content = vec![1; bytes];
        let written = self
            .volume
            .write(file, WriteAt::Append, &content, SetIdBits::Stay, false)?;
        assert_eq!(written, bytes);
        Ok(())
    }

    /// Looks a path up as the kernel does, and releases what it found.
    fn find(&self, path: &[&str]) {
        let mut found = vec![ObjectId::ROOT];
        for name in path {
            let at = *found.last().unwrap();
            found.push(self.volume.lookup(at, name.as_bytes()).unwrap().id);
        }
        for &id in &found[1..] {
            self.volume.forget(id, 1);
        }
    }

    /// Size of a file as committed; none if it is not.
    fn committed_bytes(&self, file: ObjectId) -> Option<u64> {
        let info = self.store.0.object(file).ok()?;
        Some(info.attributes.size)
    }

    fn end(&self, files: &[(ObjectId, u64)]) {
        self.volume.shutdown().unwrap();
        for &(file, bytes) in files {
            assert_eq!(self.committed_bytes(file), Some(bytes));
        }
    }
}

/// Explores schedules, at random and with priorities.
fn explore(test: impl Fn() + Send + Sync + 'static) {
    let schedules = std::env::var("INTERLEAVINGS").map_or(SCHEDULES, |text| text.parse().unwrap());
    let config = || {
        let mut config = ShuttleConfig::new();
        config.stack_size = STACK_BYTES;
        config
    };
    let test = Arc::new(test);
    let random = Arc::clone(&test);
    Runner::new(RandomScheduler::new(schedules), config()).run(move || random());
    Runner::new(PctScheduler::new(PREEMPTIONS, schedules), config()).run(move || test());
}

/// Writes to a new file of an app and has it committed, twice.
fn write_and_fsync(stage: &Arc<Stage>, app: ObjectId, name: &'static str) -> JoinHandle<ObjectId> {
    let stage = Arc::clone(stage);
    thread::spawn(move || {
        let file = stage.make(app, name, FileKind::Regular).unwrap();
        stage.volume.open(file).unwrap();
        for bytes in [100, 200] {
            stage.append(file, 100).unwrap();
            stage.volume.fsync(file).unwrap();
            let committed = stage.committed_bytes(file);
            assert_eq!(
                committed,
                Some(bytes),
                "fsync of a durable app has returned"
            );
        }
        stage.volume.release(file);
        stage.volume.forget(file, 1);
        file
    })
}

/// Writes to a new file and has everything committed.
fn write_and_sync(stage: &Arc<Stage>, app: ObjectId) -> JoinHandle<ObjectId> {
    let stage = Arc::clone(stage);
    thread::spawn(move || {
        let file = stage.make(app, "synced", FileKind::Regular).unwrap();
        stage.append(file, 300).unwrap();
        stage.volume.sync_all().unwrap();
        assert_eq!(stage.committed_bytes(file), Some(300), "sync has returned");
        stage.volume.forget(file, 1);
        file
    })
}

#[test]
fn fsync_and_sync_keep_their_promises_beside_each_other() {
    explore(|| {
        let stage = Stage::new(64 << 20);
        let durable = stage.make(ObjectId::ROOT, "durable", FileKind::Directory);
        let relaxed = stage.make(ObjectId::ROOT, "relaxed", FileKind::Directory);
        let (durable, relaxed) = (durable.unwrap(), relaxed.unwrap());
        let fsynced = [
            write_and_fsync(&stage, durable, "a"),
            write_and_fsync(&stage, durable, "b"),
        ];
        let synced = write_and_sync(&stage, relaxed);
        let mut files: Vec<_> = fsynced.map(|thread| (thread.join().unwrap(), 200)).into();
        files.push((synced.join().unwrap(), 300));
        stage.end(&files);
    });
}

#[test]
fn an_operation_across_apps_is_committed_beside_an_fsync() {
    explore(|| {
        let stage = Stage::new(64 << 20);
        let durable = stage.make(ObjectId::ROOT, "durable", FileKind::Directory);
        let relaxed = stage.make(ObjectId::ROOT, "relaxed", FileKind::Directory);
        let (durable, relaxed) = (durable.unwrap(), relaxed.unwrap());
        let moved = stage.make(relaxed, "file", FileKind::Regular).unwrap();
        stage.append(moved, 50).unwrap();
        let mover = Arc::clone(&stage);
        let mover = thread::spawn(move || {
            let (from, to) = ((relaxed, &b"file"[..]), (durable, &b"moved"[..]));
            let mode = mobifs_engine::RenameMode::Replace;
            let renamed = mover.volume.rename(from.0, from.1, to.0, to.1, mode);
            renamed.unwrap();
            mover.volume.fsync(moved).unwrap();
            assert_eq!(mover.committed_bytes(moved), Some(50));
        });
        let fsynced = write_and_fsync(&stage, durable, "a");
        mover.join().unwrap();
        let file = fsynced.join().unwrap();
        stage.end(&[(file, 200), (moved, 50)]);
    });
}

#[test]
fn writers_that_wait_for_memory_go_on() {
    explore(|| {
        // Each of the writers needs more than what the others leave.
        let stage = Stage::new(8 * PAGE_BYTES as u64);
        let app = stage.make(ObjectId::ROOT, "app", FileKind::Directory);
        let app = app.unwrap();
        let writers = ["a", "b"].map(|name| {
            let stage = Arc::clone(&stage);
            thread::spawn(move || {
                let file = stage.make(app, name, FileKind::Regular).unwrap();
                for _ in 0..4 {
                    stage.append(file, 2 * PAGE_BYTES).unwrap();
                }
                file
            })
        });
        let files = writers.map(|writer| (writer.join().unwrap(), 8 * PAGE_BYTES as u64));
        stage.end(&files);
    });
}

/// A journal store numbers what it lists, and forgets the numbers when it is asked to.
#[test]
fn what_is_forgotten_and_looked_up_at_the_same_time_is_found() {
    const DIRECTORIES: [&str; 3] = ["a", "b", "c"];
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("store");
    for directory in DIRECTORIES {
        let path = root.join("app").join(directory);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("file"), directory).unwrap();
    }
    let options = JournalOptions {
        journal_bytes: 64 << 10,
        direct_bytes_max: Some(0),
        ..JournalOptions::default()
    };
    explore(move || {
        let lower = PosixLower::open(&root).unwrap();
        let (store, _) = JournalStore::open(Gate::new(lower), &options).unwrap();
        // Unused objects are evicted once a second.
        let stage = Stage::over(Box::new(store), 64 << 20, 400);
        let seekers = [0, 1].map(|_| {
            let stage = Arc::clone(&stage);
            thread::spawn(move || {
                for directory in DIRECTORIES {
                    stage.find(&["app", directory, "file"]);
                    stage.volume.do_housekeeping();
                }
            })
        });
        for seeker in seekers {
            seeker.join().unwrap();
        }
        stage.end(&[]);
    });
}

#[test]
fn a_power_cut_ends_every_waiting_call() {
    explore(|| {
        let stage = Stage::new(64 << 20);
        let app = stage.make(ObjectId::ROOT, "durable", FileKind::Directory);
        let app = app.unwrap();
        let writer = Arc::clone(&stage);
        let writer = thread::spawn(move || -> Result<(), FsError> {
            let file = writer.make(app, "file", FileKind::Regular)?;
            for bytes in 1..=3 {
                writer.append(file, 1)?;
                writer.volume.fsync(file)?;
                assert!(writer.committed_bytes(file) >= Some(bytes));
            }
            Ok(())
        });
        stage.volume.cut_power();
        let written = writer.join().unwrap();
        assert!(matches!(written, Ok(()) | Err(FsError::Io)), "{written:?}");
        assert!(stage.volume.lookup(ObjectId::ROOT, b"durable").is_err());
        assert!(stage.volume.shutdown().is_err());
    });
}
