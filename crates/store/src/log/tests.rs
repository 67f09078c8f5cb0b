//! A journal in a real directory: faults and damage, and what opening then finds.

mod crash;
mod damage;
mod faulty;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use mobifs_base::{Name, ObjectId, PageIndex};

use super::*;
use crate::log::superblock;
use crate::log::tests::faulty::{Faulty, Outcome};
use crate::lower::{PosixHandle, PosixLower};

const UUID: [u8; 16] = *b"identity of test";
const BLOCK: u64 = JOURNAL_BLOCK_BYTES as u64;
const OPTIONS: LogOptions = LogOptions {
    journal_bytes: 64 * 1024,
    direct_bytes_max: Some(8192),
    direct_bytes_max_if_new: None,
    uuid_if_new: UUID,
    read_only: false,
    keeps_size: false,
};
const READ_ONLY: LogOptions = LogOptions {
    read_only: true,
    ..OPTIONS
};

/// A `.mobifs` directory.
struct Place {
    directory: tempfile::TempDir,
}

type Opened = Result<(Log<PosixHandle>, Scanned), StoreError>;

impl Place {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn lower(&self) -> (PosixLower, PosixHandle) {
        let lower = PosixLower::open(self.directory.path()).unwrap();
        let root = lower.root().unwrap();
        (lower, root)
    }

    fn faulty(&self) -> (Faulty, PosixHandle) {
        let (lower, root) = self.lower();
        (Faulty::new(lower), root)
    }

    fn open(&self, options: &LogOptions) -> Opened {
        let (lower, root) = self.lower();
        open::open(&lower, &root, options)
    }

    /// The result of opening it at the next mount.
    fn found(&self) -> Scanned {
        self.open(&READ_ONLY).unwrap().1
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory.path()).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn image(&self) -> Vec<u8> {
        fs::read(self.path("journal")).unwrap()
    }

    fn overwrite(&self, offset: u64, bytes: &[u8]) {
        let file = fs::File::options()
            .write(true)
            .open(self.path("journal"))
            .unwrap();
        file.write_all_at(bytes, offset).unwrap();
        file.sync_all().unwrap();
    }
}

/// A transaction of `blocks` blocks that differs from those of other numbers.
fn transaction(number: u8, blocks: usize) -> Vec<Record> {
    let name = Name::new(format!("file {number}").as_bytes()).unwrap();
    let object = ObjectId(u64::from(number) + 100);
    let mut records = vec![Record::Dentry {
        parent: ObjectId::ROOT,
        name,
        child: Some(object),
    }];
    for index in 1..blocks as u64 {
        let runs = vec![(0, vec![number | 0x80; 4096])];
        records.push(Record::Bytes {
            object,
            index: PageIndex(index),
            fresh: true,
            runs,
        });
    }
    assert_eq!(
        Log::<PosixHandle>::transaction_bytes(&records),
        blocks as u64 * BLOCK
    );
    records
}

/// Offset in the journal after `blocks` blocks of log.
fn log_offset(blocks: u64) -> u64 {
    LOG_START + blocks * BLOCK
}

fn corrupt(result: Opened) -> String {
    match result {
        Err(error @ StoreError::Corrupt { .. }) => error.to_string(),
        Err(other) => panic!("not found to be corrupt but: {other}"),
        Ok((_, scanned)) => panic!(
            "not found to be corrupt but to have {}",
            scanned.transactions.len()
        ),
    }
}

fn errno<T>(result: Result<T, StoreError>) -> Errno {
    match result {
        Err(error @ StoreError::Lower { .. }) => Errno::from_raw_os_error(error.errno()),
        Err(other) => panic!("unexpected: {other}"),
        Ok(_) => panic!("an error was expected"),
    }
}

#[test]
fn a_new_journal_is_whole_and_empty() {
    let place = Place::new();
    let (log, scanned) = place.open(&OPTIONS).unwrap();
    assert!(log.is_empty() && scanned.clean && scanned.transactions.is_empty());
    assert_eq!((log.uuid(), log.direct_bytes_max()), (UUID, 8192));
    assert_eq!((log.used_bytes(), log.free_bytes()), (0, 64 * 1024 - 8192));
    assert_eq!(log.total_bytes(), 64 * 1024 - 8192);
    assert_eq!(place.names(), ["id", "journal"]);
    assert_eq!(fs::read_to_string(place.path("id")).unwrap().len(), 33);
    let image = place.image();
    assert_eq!(image.len(), 64 * 1024);
    assert!(image[LOG_START as usize..].iter().all(|&byte| byte == 0));
    assert!(image[..4096] == image[4096..8192]);
}

#[test]
fn transactions_come_back_in_order() {
    let place = Place::new();
    let (lower, root) = place.lower();
    let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
    let sizes = [1, 3, 1, 2, 1];
    let mut expected = Vec::new();
    for (number, blocks) in (1..).zip(sizes) {
        let records = transaction(number, blocks);
        assert_eq!(log.append(&lower, &records).unwrap(), blocks as u64 * BLOCK);
        expected.push((u64::from(number), records));
        assert_eq!(place.found().transactions, expected);
    }
    assert_eq!(log.used_bytes(), 8 * BLOCK);
    // Opened again, it goes on where it was.
    let (mut log, scanned) = open::open(&lower, &root, &OPTIONS).unwrap();
    assert_eq!(
        (scanned.bytes, scanned.discarded_tail_bytes, scanned.clean),
        (8 * BLOCK, 0, false)
    );
    assert_eq!((log.used_bytes(), log.is_empty()), (8 * BLOCK, false));
    log.append(&lower, &[]).unwrap();
    expected.push((6, Vec::new()));
    assert_eq!(place.found().transactions, expected);
}

#[test]
fn a_full_journal_refuses_and_stays_whole() {
    let place = Place::new();
    let (lower, root) = place.lower();
    let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
    assert_eq!(log.total_bytes(), 14 * BLOCK);
    assert_eq!(errno(log.append(&lower, &transaction(1, 15))), Errno::NOSPC);
    log.append(&lower, &transaction(1, 10)).unwrap();
    assert_eq!(errno(log.append(&lower, &transaction(2, 5))), Errno::NOSPC);
    log.append(&lower, &transaction(2, 4)).unwrap();
    assert_eq!(log.free_bytes(), 0);
    assert_eq!(errno(log.append(&lower, &[])), Errno::NOSPC);
    let sequences: Vec<_> = place
        .found()
        .transactions
        .into_iter()
        .map(|(one, _)| one)
        .collect();
    assert_eq!(sequences, [1, 2]);
}

#[test]
fn a_transaction_of_several_reads_comes_back() {
    let place = Place::new();
    let (lower, root) = place.lower();
    let options = LogOptions {
        journal_bytes: 4 << 20,
        ..OPTIONS
    };
    let (mut log, _) = open::open(&lower, &root, &options).unwrap();
    // Across the first read, as large as the largest, and larger.
    let sizes = [15, 3, 256, 257, 300, 1];
    let mut expected = Vec::new();
    for (number, blocks) in (1..).zip(sizes) {
        let records = transaction(number, blocks);
        log.append(&lower, &records).unwrap();
        expected.push((u64::from(number), records));
    }
    assert_eq!(place.found().transactions, expected);
}

#[test]
fn a_reset_voids_what_was_and_leftovers_stay_void() {
    let place = Place::new();
    let (lower, root) = place.lower();
    let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
    for number in 1..=6 {
        log.append(&lower, &transaction(number, 2)).unwrap();
    }
    log.reset(&lower, false).unwrap();
    assert!(log.is_empty());
    let scanned = place.found();
    assert!(scanned.transactions.is_empty() && !scanned.clean);
    assert_eq!(scanned.discarded_tail_bytes, 0);
    // The remains of the earlier epoch start right after these, once with the next sequence.
    for number in 11..=13 {
        log.append(&lower, &transaction(number, 2)).unwrap();
        let found = place.found();
        let last = (u64::from(number) - 10, transaction(number, 2));
        assert_eq!(found.transactions.last(), Some(&last));
        assert_eq!(found.transactions.len() as u64, last.0);
        assert_eq!(found.discarded_tail_bytes, 0);
    }
    log.reset(&lower, true).unwrap();
    assert!(place.found().clean);
    let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
    log.append(&lower, &transaction(20, 1)).unwrap();
    let found = place.found();
    assert_eq!(
        (found.transactions, found.clean),
        (vec![(1, transaction(20, 1))], false)
    );
}

#[test]
fn writes_are_durable_by_one_write_or_by_a_flush() {
    let place = Place::new();
    let (lower, root) = place.faulty();
    let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
    lower.take_log();
    log.append(&lower, &transaction(1, 1)).unwrap();
    // The clean mark is removed first.
    let marks = [Some((0, 4096, true)), Some((BLOCK, 4096, true))];
    let write = Some((log_offset(0), 4096, true));
    assert_eq!(lower.take_log(), [&marks[..], &[write]].concat());
    log.append(&lower, &transaction(2, 2)).unwrap();
    assert_eq!(lower.take_log(), [Some((log_offset(1), 8192, true))]);
    log.append(&lower, &transaction(3, 3)).unwrap();
    assert_eq!(
        lower.take_log(),
        [Some((log_offset(3), 12_288, false)), None]
    );
    log.reset(&lower, true).unwrap();
    assert_eq!(lower.take_log(), marks);
    log.reset(&lower, true).unwrap();
    assert_eq!(lower.take_log(), [], "nothing to do");
}

#[test]
fn the_threshold_is_measured_once_and_may_be_overridden() {
    let place = Place::new();
    let unset = LogOptions {
        direct_bytes_max: None,
        ..OPTIONS
    };
    let measured = place.open(&unset).unwrap().0.direct_bytes_max();
    assert!(measured == 0 || (measured.is_power_of_two() && measured <= 32 * 1024));
    assert!(
        place.image()[LOG_START as usize..]
            .iter()
            .all(|&byte| byte == 0)
    );
    assert_eq!(place.open(&unset).unwrap().0.direct_bytes_max(), measured);
    let set = LogOptions {
        direct_bytes_max: Some(12_288),
        ..OPTIONS
    };
    assert_eq!(place.open(&set).unwrap().0.direct_bytes_max(), 12_288);
    assert_eq!(place.open(&unset).unwrap().0.direct_bytes_max(), 12_288);
    assert!(place.found().clean);
}

#[test]
fn an_empty_clean_journal_takes_another_size() {
    let place = Place::new();
    let (lower, root) = place.lower();
    let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
    log.append(&lower, &transaction(1, 1)).unwrap();
    let larger = LogOptions {
        journal_bytes: 128 * 1024 + 5,
        ..OPTIONS
    };
    // Not while it has transactions, and not while it is empty but not clean.
    let (log, scanned) = place.open(&larger).unwrap();
    assert_eq!(
        (log.total_bytes(), scanned.transactions.len()),
        (56 * 1024, 1)
    );
    let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
    log.reset(&lower, false).unwrap();
    assert_eq!(place.open(&larger).unwrap().0.total_bytes(), 56 * 1024);
    log.reset(&lower, true).unwrap();
    let (mut log, scanned) = open::open(&lower, &root, &larger).unwrap();
    assert_eq!((log.total_bytes(), scanned.clean), (120 * 1024, true));
    assert_eq!((log.uuid(), log.direct_bytes_max()), (UUID, 8192));
    assert_eq!(place.names(), ["id", "journal"]);
    assert_eq!(place.image().len(), 128 * 1024);
    log.append(&lower, &transaction(2, 20)).unwrap();
    assert_eq!(place.found().transactions, [(1, transaction(2, 20))]);
}

#[test]
fn a_size_that_cannot_work_is_refused_with_a_sentence() {
    let place = Place::new();
    for journal_bytes in [0, 65_535, u64::MAX] {
        let options = LogOptions {
            journal_bytes,
            ..OPTIONS
        };
        let Err(error) = place.open(&options) else {
            panic!("{journal_bytes} was accepted")
        };
        assert!(matches!(error, StoreError::Unsuitable(_)), "{error}");
    }
    assert!(place.names().is_empty());
}

#[test]
fn read_only_changes_nothing() {
    let place = Place::new();
    let (lower, root) = place.faulty();
    lower.cut_power_after(0);
    let (mut log, scanned) = open::open(&lower, &root, &READ_ONLY).unwrap();
    assert!(scanned.clean && scanned.transactions.is_empty() && log.is_empty());
    assert_eq!((log.total_bytes(), log.free_bytes()), (0, 0));
    assert_eq!(errno(log.append(&lower, &[])), Errno::ROFS);
    assert_eq!(errno(log.reset(&lower, true)), Errno::ROFS);
    assert!(place.names().is_empty());

    lower.cut_power_after(u64::MAX);
    let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
    log.append(&lower, &transaction(1, 2)).unwrap();
    // One superblock to be repaired and an unfinished journal to be removed.
    place.overwrite(0, &[0; 4096]);
    fs::write(place.path("journal.new"), b"").unwrap();
    let image = place.image();
    lower.cut_power_after(0);
    let (mut log, scanned) = open::open(&lower, &root, &READ_ONLY).unwrap();
    assert_eq!(scanned.transactions, [(1, transaction(1, 2))]);
    assert_eq!(errno(log.append(&lower, &[])), Errno::ROFS);
    assert_eq!(errno(log.reset(&lower, true)), Errno::ROFS);
    assert!(place.image() == image);
    lower.cut_power_after(u64::MAX);
    open::open(&lower, &root, &OPTIONS).unwrap();
    let mended = place.image();
    assert!(mended[..4096] == mended[4096..8192]);
    assert!(matches!(
        superblock::parse(&mended[..4096]),
        superblock::Slot::Valid(_)
    ));
    assert_eq!(place.names(), ["id", "journal"]);
}

#[test]
fn records_that_could_not_be_read_again_are_not_written() {
    let place = Place::new();
    let (lower, root) = place.lower();
    let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
    let runs = vec![(4000, vec![1; 97])];
    let (object, index) = (ObjectId(9), PageIndex(0));
    let bad = Record::Bytes {
        object,
        index,
        fresh: true,
        runs,
    };
    assert!(matches!(
        log.append(&lower, &[bad]),
        Err(StoreError::Corrupt { .. })
    ));
    assert!(log.is_empty() && place.found().clean);
}
