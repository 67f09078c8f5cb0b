//! Power cuts of the whole machine on a real ext4: while programs write to the mount, the image
//! under ext4 is cloned, again and again. Each clone is what the disk held at that moment, as a
//! power cut would leave it; it is mounted, recovered, and every app compared with its own history.
//!
//! The loop device uses direct I/O, so its file holds exactly what ext4 and our journal have
//! sent to the device, and nothing that was only in ext4's cache. The file lies on a btrfs,
//! where cloning it is one atomic step: blocks written later do not show up in the clone.

use mobifs_workloads::workload::sqlite::{JournalMode, check_prefix, insert, open};

use crate::harness::{Image, Mount, can_mount, scratch, succeed, wait_until};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Files that a round of [`rounds`] overwrites in turn.
const PARTS: usize = 8;
/// Bytes of one part: more than a page, so that a part can tear.
const PART_BYTES: usize = 6000;
/// Clones taken of one running disk.
const SNAPSHOTS: u64 = 12;

/// Writes eight files in turn and then renames a mark over the old one, for ever.
fn rounds(app: &Path, stop: &AtomicBool, done: &AtomicU64) {
    fs::create_dir_all(app).expect("the app's directory");
    let files: Vec<File> = (0..PARTS)
        .map(|part| File::create(app.join(format!("part-{part}"))).expect("a part"))
        .collect();
    for round in 1.. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        for file in &files {
            file.write_all_at(&part_content(round), 0)
                .expect("a part is written");
        }
        let mut mark = File::create(app.join("mark.new")).expect("the new mark");
        mark.write_all(&round.to_le_bytes())
            .expect("the new mark is written");
        drop(mark);
        fs::rename(app.join("mark.new"), app.join("mark")).expect("the mark is renamed");
        done.store(round, Ordering::SeqCst);
    }
}

fn part_content(round: u64) -> Vec<u8> {
    round
        .to_le_bytes()
        .into_iter()
        .cycle()
        .take(PART_BYTES)
        .collect()
}

fn read_round(path: &Path) -> u64 {
    match fs::read(path) {
        Ok(bytes) if bytes.is_empty() => 0,
        Ok(bytes) => {
            let round = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
            let torn = bytes.len() == PART_BYTES && bytes != part_content(round);
            assert!(!torn, "{} is torn", path.display());
            round
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// Checks that the app is at one moment of [`rounds`] and returns the last whole round.
fn check_rounds(app: &Path) -> u64 {
    let mark = read_round(&app.join("mark"));
    let parts: Vec<u64> = (0..PARTS)
        .map(|part| read_round(&app.join(format!("part-{part}"))))
        .collect();
    let (first, last) = (parts[0], parts[PARTS - 1]);
    let existed = parts.windows(2).all(|pair| pair[0] >= pair[1])
        && first - last <= 1
        && (mark == last || (mark + 1 == last && first == last));
    assert!(
        existed,
        "{}: mark {mark} with parts {parts:?} never existed",
        app.display()
    );
    mark
}

/// Appends rows to a database until `stop` is set.
fn transactions(app: &Path, mode: JournalMode, stop: &AtomicBool, done: &AtomicU64) {
    fs::create_dir_all(app).expect("the app's directory");
    let connection = open(&app.join("test.db"), mode).expect("the database opens");
    for row in 1.. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        insert(&connection, row).expect("a row is inserted");
        done.store(row, Ordering::SeqCst);
    }
}

fn check_rows(app: &Path) -> u64 {
    let database = app.join("test.db");
    if database.exists() {
        check_prefix(&database).expect("an intact prefix")
    } else {
        0
    }
}

/// An app of this test: its name, what it does, how to check what is left of it.
type App = (
    &'static str,
    fn(&Path, &AtomicBool, &AtomicU64),
    fn(&Path) -> u64,
);

const APPS: [App; 4] = [
    ("rounds-one", rounds, check_rounds),
    ("rounds-two", rounds, check_rounds),
    (
        "rows-wal",
        |app, stop, done| transactions(app, JournalMode::Wal, stop, done),
        check_rows,
    ),
    (
        "rows-delete",
        |app, stop, done| transactions(app, JournalMode::Delete, stop, done),
        check_rows,
    ),
];

fn counts(done: &[Arc<AtomicU64>]) -> Vec<u64> {
    done.iter()
        .map(|count| count.load(Ordering::SeqCst))
        .collect()
}

/// Mounts a clone of the disk, recovers the store, checks every app against what is known
/// of its history: not older than the last sync, not newer than what it had done.
fn check_clone(base: &Path, file: &Path, oldest: &[u64], newest: &[u64]) {
    let clone = Image::open(file.to_owned(), base.join("clone"));
    let below = base.join("cloned");
    fs::create_dir_all(&below).expect("a directory for the mount");
    let mut mount = Mount::over(&below, clone.path().join("store"), "");
    for (index, (name, _, check)) in APPS.iter().enumerate() {
        let found = check(&mount.path().join(name));
        let (low, high) = (oldest[index], newest[index] + 1);
        assert!(found >= low, "{name} is at {found}, but {low} was synced");
        assert!(
            found <= high,
            "{name} is at {found}, but had only done {high}"
        );
    }
    mount.umount();
    // And the same without MobiFS, in the store directory itself.
    for (name, _, check) in APPS {
        check(&clone.path().join("store").join(name));
    }
    succeed(
        Command::new(crate::harness::binary())
            .arg("check")
            .arg(clone.path().join("store")),
    );
}

#[test]
fn every_moment_of_a_running_ext4_recovers() {
    if !can_mount() {
        return;
    }
    let filesystems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !filesystems.contains("btrfs") {
        mobifs_skip::skip("the kernel has no btrfs to clone images on");
        return;
    }
    let base = scratch();
    let outer = Image::format(base.path(), "outer", "btrfs", 2048);
    let lower = Image::format(outer.path(), "lower", "ext4", 256);
    // Short ages, so that commits and applies go on all the time under the clones.
    let mut mount = Mount::over(base.path(), lower.path().join("store"), CONFIG);

    let stop = Arc::new(AtomicBool::new(false));
    let done: Vec<_> = APPS.iter().map(|_| Arc::new(AtomicU64::new(0))).collect();
    let threads: Vec<_> = APPS
        .iter()
        .zip(&done)
        .map(|((name, work, _), done)| {
            let (app, work) = (mount.path().join(name), *work);
            let (stop, done) = (Arc::clone(&stop), Arc::clone(done));
            std::thread::spawn(move || work(&app, &stop, &done))
        })
        .collect();

    let mut synced = vec![0; APPS.len()];
    for number in 0..SNAPSHOTS {
        let before = counts(&done);
        // Not at the same distance from the last sync each time.
        let steps = 5 + 37 * (number % 4);
        wait_until("every app goes on", || {
            counts(&done)
                .iter()
                .zip(&before)
                .all(|(now, then)| *now >= then + steps)
        });
        if number % 3 == 1 {
            let reached = counts(&done);
            mount.sync();
            synced = reached;
        }
        let file = outer.path().join(format!("clone-{number}.img"));
        let (from, to) = (lower.file(), &file);
        succeed(Command::new("cp").arg("--reflink=always").arg(from).arg(to));
        check_clone(base.path(), &file, &synced, &counts(&done));
        fs::remove_file(&file).expect("the clone goes");
    }
    stop.store(true, Ordering::SeqCst);
    for thread in threads {
        thread.join().expect("a writer ends");
    }
    mount.umount();
}

const CONFIG: &str = "\
journal_bytes = \"8MiB\"
apply_idle_ms = 40
[defaults]
age_max_ms = 30
";
