//! SQLite in every journal mode, cut by a power failure, on several lower filesystems.

use mobifs_workloads::workload::sqlite::{JournalMode, check_prefix, insert, open};

use crate::harness::{Image, Mount, can_mount, scratch, succeed, wait_until};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const MODES: [JournalMode; 4] = [
    JournalMode::Delete,
    JournalMode::Truncate,
    JournalMode::Persist,
    JournalMode::Wal,
];

/// One writer per journal mode, each an app of its own, until `stop` is set.
struct Writers {
    stop: Arc<AtomicBool>,
    committed: Vec<Arc<AtomicU64>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Writers {
    /// Continues each database after the rows in `counts`.
    fn start(root: &Path, counts: &[u64; 4]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let committed: Vec<_> = counts
            .iter()
            .map(|&count| Arc::new(AtomicU64::new(count)))
            .collect();
        let threads = MODES
            .into_iter()
            .zip(&committed)
            .map(|(mode, committed)| {
                let database = database(root, mode);
                let (stop, committed) = (Arc::clone(&stop), Arc::clone(committed));
                std::thread::spawn(move || write(&database, mode, &stop, &committed))
            })
            .collect();
        Self {
            stop,
            committed,
            threads,
        }
    }

    fn counts(&self) -> [u64; 4] {
        std::array::from_fn(|index| self.committed[index].load(Ordering::SeqCst))
    }

    fn join(self) -> [u64; 4] {
        self.stop.store(true, Ordering::SeqCst);
        let committed = self.committed;
        for thread in self.threads {
            thread.join().expect("a writer ends");
        }
        std::array::from_fn(|index| committed[index].load(Ordering::SeqCst))
    }
}

/// Inserts rows until stopped or until the mount is gone under it.
fn write(database: &Path, mode: JournalMode, stop: &AtomicBool, committed: &AtomicU64) {
    let Ok(connection) = open(database, mode) else {
        // Only the cut may take the mount away while the database is being opened.
        wait_until("the test stops its writers", || stop.load(Ordering::SeqCst));
        return;
    };
    // With FULL, a transaction in mode DELETE may roll back after a power failure: SQLite
    // syncs the directory of the journal it removed from EXTRA on.
    if connection
        .execute_batch("PRAGMA synchronous=EXTRA")
        .is_err()
    {
        return;
    }
    while !stop.load(Ordering::SeqCst) {
        let next = committed.load(Ordering::SeqCst) + 1;
        if insert(&connection, next).is_err() {
            return;
        }
        committed.store(next, Ordering::SeqCst);
    }
}

fn database(root: &Path, mode: JournalMode) -> std::path::PathBuf {
    let app = root.join(mode.name());
    fs::create_dir_all(&app).expect("the app's directory");
    app.join("test.db")
}

/// Rows in each database; every one consistent and a prefix of what was written.
fn check(root: &Path) -> [u64; 4] {
    MODES.map(|mode| {
        let database = database(root, mode);
        // A power cut may have taken all of it.
        if !database.exists() {
            return 0;
        }
        check_prefix(&database).expect("an intact prefix")
    })
}

fn cut_under_load(base: &Path, store: &Path, config: &str, durable: bool) {
    let mut mount = Mount::over(base, store.to_owned(), config);
    let mut kept = check(mount.path());
    for round in 0..4 {
        let writers = Writers::start(mount.path(), &kept);
        let goal = kept.map(|count| count + 150);
        let reached = |goal: [u64; 4], writers: &Writers| {
            writers
                .counts()
                .iter()
                .zip(goal)
                .all(|(count, goal)| *count >= goal)
        };
        wait_until("each writer commits 150 rows", || reached(goal, &writers));
        let synced = writers.counts();
        mount.sync();
        let goal = synced.map(|count| count + 50);
        wait_until("each writer commits 50 rows more", || {
            reached(goal, &writers)
        });
        let acknowledged = writers.counts();
        mount.cut_power();
        let written = writers.join();
        mount.mount();
        kept = check(mount.path());
        for index in 0..4 {
            let mode = MODES[index].name();
            let oldest = if durable {
                acknowledged[index]
            } else {
                synced[index]
            };
            assert!(
                kept[index] >= oldest,
                "round {round}, {mode}: {} rows, but {oldest} were promised",
                kept[index]
            );
            // The row under way at the cut may be there without having been acknowledged.
            assert!(
                kept[index] <= written[index] + 1,
                "round {round}, {mode}: {} rows, only {} were written",
                kept[index],
                written[index]
            );
        }
    }
    mount.umount();
    // On the lower filesystem itself, without MobiFS, the databases are the same.
    assert_eq!(check(store), kept);
    succeed(
        Command::new(crate::harness::binary())
            .arg("check")
            .arg(store),
    );
}

#[test]
fn sqlite_survives_power_cuts_on_ext4() {
    if !can_mount() {
        return;
    }
    let base = scratch();
    let image = Image::format(base.path(), "lower", "ext4", 512);
    cut_under_load(base.path(), &image.path().join("store"), "", false);
}

#[test]
fn sqlite_survives_power_cuts_on_btrfs() {
    if !can_mount() {
        return;
    }
    let filesystems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !filesystems.contains("btrfs") {
        mobifs_skip::skip("the kernel has no btrfs");
        return;
    }
    let base = scratch();
    let image = Image::format(base.path(), "lower", "btrfs", 512);
    cut_under_load(base.path(), &image.path().join("store"), "", false);
}

#[test]
fn durable_apps_keep_every_acknowledged_transaction() {
    if !can_mount() {
        return;
    }
    let base = scratch();
    let image = Image::format(base.path(), "lower", "ext4", 512);
    let config = "[[app]]\nmatch = \"*\"\nclass = \"durable\"\n";
    cut_under_load(base.path(), &image.path().join("store"), config, true);
}
