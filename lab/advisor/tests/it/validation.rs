//! Advice is followed on a real ext4 over the served device: what was predicted, and what was reached.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use mobifs_advisor::{Advice, AdviceReport, ModelSource, Options, What};
use mobifs_defragmenter::{Mode, defragment};
use mobifs_device_server::DeviceCounts;
use mobifs_fragmentation::measure;
use rusqlite::Connection;
use rustix::fs::{FallocateFlags, fallocate};

use crate::disk::Disk;

const DATABASES: usize = 5;

/// Rows of each; `MOBIFS_ADVISE_ROWS` says how many.
fn rows() -> usize {
    std::env::var("MOBIFS_ADVISE_ROWS").map_or(120, |text| text.parse().unwrap())
}

/// How databases are written.
#[derive(Clone, Copy)]
enum Way {
    AsBefore,
    Log,
    Steps(u64),
}

/// Threads insert rows, a transaction each, into databases of their own.
fn insert(directory: &Path, way: Way) {
    fs::create_dir(directory).unwrap();
    let barrier = Barrier::new(DATABASES);
    std::thread::scope(|scope| {
        for number in 0..DATABASES {
            let (barrier, path) = (&barrier, directory.join(format!("app-{number}.db")));
            scope.spawn(move || {
                let database = Connection::open(path).unwrap();
                let mode = if matches!(way, Way::Log) {
                    "wal"
                } else {
                    "delete"
                };
                let pragma = format!("PRAGMA journal_mode={mode}");
                database.query_row(&pragma, [], |_| Ok(())).unwrap();
                database.execute_batch("PRAGMA synchronous=FULL").unwrap();
                if let Way::Steps(step) = way {
                    set_chunk(&database, step);
                }
                database.execute_batch("CREATE TABLE t(x BLOB)").unwrap();
                barrier.wait();
                for row in 0..rows() {
                    let blob = vec![(row % 251) as u8; 1500];
                    database
                        .execute("INSERT INTO t VALUES (?1)", [blob])
                        .unwrap();
                }
            });
        }
    });
    // Not all filesystems: another test counts what is programmed while it announces remaps.
    rustix::fs::syncfs(fs::File::open(directory).unwrap()).unwrap();
}

/// As the advice says it: `sqlite3_file_control(SQLITE_FCNTL_CHUNK_SIZE)`.
fn set_chunk(database: &Connection, step: u64) {
    let mut step = i32::try_from(step).unwrap();
    // SAFETY: the connection is open, and the operation reads a number.
    let answer = unsafe {
        rusqlite::ffi::sqlite3_file_control(
            database.handle(),
            c"main".as_ptr(),
            rusqlite::ffi::SQLITE_FCNTL_CHUNK_SIZE,
            (&raw mut step).cast(),
        )
    };
    assert_eq!(answer, rusqlite::ffi::SQLITE_OK);
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.retain(|path| !path.to_str().unwrap().ends_with("-shm"));
    paths
}

fn pieces(paths: &[PathBuf]) -> u64 {
    let options = mobifs_fragmentation::Options::default();
    let measured = measure(paths, &options, None, &|_| {}).unwrap();
    measured.report.all.extents
}

fn one(report: &AdviceReport, what: What) -> &Advice {
    let found = report.advice.iter().find(|advice| advice.what == what);
    found.unwrap_or_else(|| panic!("no {what:?} in {report:?}"))
}

#[test]
fn databases_that_are_written_as_advised_have_the_pieces_that_were_predicted() {
    let Some(disk) = Disk::served(256) else {
        return;
    };
    insert(&disk.path().join("before"), Way::AsBefore);
    let report = disk.advise(&Options::default());
    let (mode, steps) = (
        one(&report, What::JournalMode),
        one(&report, What::PreallocateDatabases),
    );
    assert_eq!(mode.files as usize, DATABASES, "{report:?}");
    assert!(mode.pieces > 12, "{report:?}");
    insert(&disk.path().join("log"), Way::Log);
    insert(
        &disk.path().join("steps"),
        Way::Steps(steps.step_bytes.unwrap()),
    );
    let log = pieces(&files(&disk.path().join("log")));
    let stepped = pieces(&files(&disk.path().join("steps")));
    println!(
        "pieces of {DATABASES} databases: {}; in a log predicted {} and reached {log}; in steps predicted {} and \
         reached {stepped}",
        mode.pieces, mode.pieces_predicted_max, steps.pieces_predicted_max
    );
    assert!(log <= mode.pieces_predicted_max, "{log}: {report:?}");
    assert!(
        stepped <= steps.pieces_predicted_max,
        "{stepped}: {report:?}"
    );
    // What is well is not advised on: these alone have nothing to gain by either.
    let well = mobifs_advisor::advise(&disk.path().join("steps"), &Options::default(), &|_| {});
    let well = well.unwrap();
    assert!(well.advice.is_empty(), "{well:?}");
}

/// Files grow by turns, durably.
fn append(directory: &Path, step: Option<u64>) {
    fs::create_dir(directory).unwrap();
    let open = |number: usize| {
        let path = directory.join(format!("log-{number}"));
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .unwrap()
    };
    let mut files: Vec<_> = (0..4).map(open).collect();
    for round in 0..80_u64 {
        for file in &mut files {
            if let Some(step) = step.filter(|step| round * 4096 % step == 0) {
                fallocate(&*file, FallocateFlags::KEEP_SIZE, round * 4096, step).unwrap();
            }
            file.write_all(&[round as u8; 4096]).unwrap();
            file.sync_data().unwrap();
        }
    }
}

#[test]
fn files_that_grow_as_advised_have_the_pieces_that_were_predicted() {
    let Some(disk) = Disk::served(128) else {
        return;
    };
    append(&disk.path().join("before"), None);
    let report = disk.advise(&Options::default());
    let steps = one(&report, What::PreallocateFiles);
    append(&disk.path().join("steps"), steps.step_bytes);
    let reached = pieces(&files(&disk.path().join("steps")));
    println!(
        "pieces of 4 files: {}; in steps predicted {} and reached {reached}",
        steps.pieces, steps.pieces_predicted_max
    );
    assert!(
        reached <= steps.pieces_predicted_max,
        "{reached}: {report:?}"
    );
}

/// Reads all files as programs do: what the device did, and how long its commands took.
fn read(disk: &mut Disk, paths: &[PathBuf]) -> DeviceCounts {
    disk.remount();
    let before = disk.counts();
    for path in paths {
        fs::read(path).unwrap();
    }
    disk.counts().since(&before)
}

#[test]
fn defragmenting_as_advised_brings_the_time_that_was_predicted_for_the_wear_that_was() {
    let Some(mut disk) = Disk::served(256) else {
        return;
    };
    append(&disk.path().join("torn"), None);
    fs::create_dir(disk.path().join("whole")).unwrap();
    for number in 0..6_usize {
        let path = disk.path().join(format!("whole/{number}"));
        fs::write(path, vec![number as u8; (number + 1) << 18]).unwrap();
    }
    disk.remount();
    let measuring = Options {
        measures_cost: true,
        ..Options::default()
    };
    let report = disk.advise(&measuring);
    assert!(
        matches!(report.model.source, ModelSource::MeasuredOnDevice { .. }),
        "{report:?}"
    );
    let advice = one(&report, What::Defragment).clone();
    assert!(advice.action.contains("frag defrag --remap"), "{advice:?}");
    let torn = files(&disk.path().join("torn"));
    assert!(advice.pieces <= pieces(&torn), "{advice:?}");
    let paths = [torn.clone(), files(&disk.path().join("whole"))].concat();
    let before = read(&mut disk, &paths);
    disk.remount();
    disk.rest();
    let model = mobifs_fragmentation::Model {
        piece_ms: report.model.piece_ms,
        megabyte_ms: report.model.megabyte_ms,
    };
    let following = mobifs_defragmenter::Options {
        mode: Mode::Remap,
        model,
        ..mobifs_defragmenter::Options::default()
    };
    // What the device folds after it is what was written before.
    let done = defragment(&[disk.path()], &following, &|| false).unwrap();
    let programmed = done.device.unwrap().programmed_bytes;
    let after = read(&mut disk, &paths);
    let wear = advice.wear.unwrap();
    println!(
        "reading: predicted {:.0} and {:.0} ms, found {:.0} and {:.0} ms (a = {:.3} ms, b = {:.2} ms/MB); \
         pieces {}, predicted {}, reached {}; programmed by remapping: predicted {:?}, reached {programmed}; by \
         copying predicted {}",
        report.read_ms,
        report.read_ms - advice.saved_ms,
        before.busy_ms,
        after.busy_ms,
        model.piece_ms,
        model.megabyte_ms,
        advice.pieces,
        advice.pieces_predicted_max,
        pieces(&torn),
        wear.remapped_bytes,
        wear.copied_bytes
    );
    assert!(pieces(&torn) <= advice.pieces_predicted_max);
    assert!(after.reads < before.reads, "{after:?}, {before:?}");
    // There is nothing left that is worth it.
    let report = disk.advise(&Options {
        model: Some(model),
        ..Options::default()
    });
    let again = report
        .advice
        .iter()
        .any(|advice| advice.what == What::Defragment);
    assert!(!again, "{report:?}");
    assert!(programmed <= 2 * wear.remapped_bytes.unwrap());
}
