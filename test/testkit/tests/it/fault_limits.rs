//! Several writers, a checkpointer thread, no memory, no working commit, no sane clock.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::path::Path;
use std::sync::Arc;

use mobifs_base::{DeviceNumber, FileKind, ObjectId};
use mobifs_store::{Gate, JournalOptions, JournalStore, MemoryStore, Store};
use mobifs_testkit::crash::{Calls, CrashLower, Fault, Harm};
use mobifs_testkit::faults::ClockKind;
use mobifs_volume::{Caller, Config, FsError, NodeSpec, SetIdBits, Volume, VolumeOptions, WriteAt};

const CALLER: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0o022,
};
const APPS: [&str; 4] = ["alpha", "beta", "gamma", "delta"];

fn start(store: Arc<dyn Store>, config: &str, clock: ClockKind) -> Arc<Volume> {
    let config = Config::parse(config, Path::new("test")).unwrap();
    let options = VolumeOptions {
        clock: clock.clock(7),
        ..VolumeOptions::new(&config)
    };
    Volume::start(store, options).unwrap()
}

/// A file in a new app.
fn file(volume: &Volume, app: &str) -> ObjectId {
    let make = |parent, name: &str, kind| {
        let spec = NodeSpec {
            kind,
            mode: 0o755,
            rdev: DeviceNumber(0),
            symlink_target: None,
        };
        volume.create(&CALLER, parent, name.as_bytes(), &spec)
    };
    let app = make(ObjectId::ROOT, app, FileKind::Directory).unwrap().id;
    make(app, "file", FileKind::Regular).unwrap().id
}

fn write(volume: &Volume, id: ObjectId, n: u64, byte: u8) -> Result<usize, FsError> {
    let chunk = vec![byte; 128 << 10];
    let at = WriteAt::Offset(n * chunk.len() as u64);
    volume.write(id, at, &chunk, SetIdBits::Stay, false)
}

/// What is acknowledged stays; a writer that finds memory full of changes that cannot be committed
/// gets an error and does not wait for ever; everything works again once commits do.
#[test]
fn writers_get_an_error_when_memory_is_full_and_commits_fail() {
    let lower = CrashLower::new();
    let options = JournalOptions {
        journal_bytes: 1 << 20,
        direct_bytes_max: Some(8 << 10),
        ..JournalOptions::default()
    };
    let (store, _) = JournalStore::open(Gate::new(lower.clone()), &options).unwrap();
    let config = "memory_budget_bytes = \"4MiB\"\n";
    let volume = start(Arc::new(store), config, ClockKind::Steady);
    let files = APPS.map(|app| file(&volume, app));
    volume.sync_all().unwrap();
    lower.set_fault(Some(Fault {
        first: 1,
        count: u64::MAX,
        calls: Calls::Changes,
        errno: 5,
        harm: Harm::Nothing,
    }));
    let written: Vec<u64> = std::thread::scope(|scope| {
        let writers = files.map(|id| {
            let volume = &volume;
            scope.spawn(move || {
                for n in 0.. {
                    match write(volume, id, n, 5) {
                        Ok(_) => {}
                        Err(FsError::NoSpace | FsError::ReadOnly) => return n,
                        Err(other) => panic!("{other}"),
                    }
                }
                0
            })
        });
        writers.map(|writer| writer.join().unwrap()).to_vec()
    });
    assert!(volume.sync_all().is_err());
    let read_only = |volume: &Volume| {
        let apps = volume.status().apps.into_iter();
        apps.filter(|app| app.read_only.is_some()).count()
    };
    assert!(read_only(&volume) > 0);
    let check = |volume: &Volume| {
        for (id, &chunks) in files.iter().zip(&written) {
            let mut content = vec![0; chunks as usize * (128 << 10) + 1];
            let count = volume.read(*id, 0, &mut content).unwrap();
            assert_eq!(count, content.len() - 1);
            assert!(content[..count].iter().all(|&byte| byte == 5));
        }
    };
    check(&volume);
    lower.set_fault(None);
    volume.sync_all().unwrap();
    assert_eq!(read_only(&volume), 0);
    check(&volume);
    for id in files {
        write(&volume, id, 0, 5).unwrap();
    }
    volume.shutdown().unwrap();
    assert_eq!(volume.status().memory.used_bytes, 0);
}

/// The checkpointer uses a clock that stands still and leaps by years.
#[test]
fn changes_are_committed_whatever_the_clock_does() {
    let store = Arc::new(MemoryStore::new());
    let config = "[defaults]\nage_max_ms = 1000\n";
    let volume = start(Arc::clone(&store) as Arc<_>, config, ClockKind::Wild);
    for app in APPS {
        let id = file(&volume, app);
        for n in 0..4 {
            write(&volume, id, n, 7).unwrap();
        }
    }
    // Ends when the checkpointer has done its work; if it does not, the test hangs and the
    // runner's limit ends it.
    while volume.status().apps.iter().any(|app| app.bytes_at_risk > 0) {
        std::thread::yield_now();
    }
    for app in volume.status().apps {
        assert!(
            app.seconds_at_risk == 0.0 && app.last_checkpoint.is_some(),
            "{app:?}"
        );
    }
    volume.shutdown().unwrap();
}
