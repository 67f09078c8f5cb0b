//! Which device a store was measured on, and when it is measured again.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::path::Path;
use std::sync::Arc;

use mobifs_base::{DeviceNumber, Entry, FileKind, ObjectId, ObjectState, PAGE_BYTES};
use mobifs_store::lower::{Create, Lower as _};
use mobifs_store::{
    CALIBRATION_FILE, Calibration, Gate, JournalOptions, JournalStore, MeasuredDevices, Measuring,
    Store as _, StoreError, Transaction,
};
use mobifs_testkit::crash::{Calls, CrashLower, Fate, Fault, Harm};
use mobifs_testkit::entries::{plain_file, root_entry};
use mobifs_volume::{Caller, Config, NodeSpec, SetIdBits, Volume, VolumeOptions, WriteAt};

/// How many writes of each kind and size, of sizes from 4 KiB to 32 KiB, which this journal has room
/// for: every second one is followed by a flush.
const FLUSHES: u64 = 4 * 7;
const MEASURED: JournalOptions = JournalOptions {
    journal_bytes: 64 << 10,
    direct_bytes_max: None,
    measuring: Measuring::AtOpening,
    uuid_if_new: *b"a calibrated one",
    read_only: false,
    reserve_bytes: 0,
    ahead_pages_min: 1,
    preallocation: mobifs_store::Preallocation::OFF,
    held_bytes_max: 64 << 20,
};
const CONFIGURED: JournalOptions = JournalOptions {
    direct_bytes_max: Some(12_288),
    ..MEASURED
};
const FLASH: Option<&str> = Some("flash, serial 1");
const DISK: Option<&str> = Some("disk, serial 2");

type Opened = JournalStore<Gate<CrashLower>>;

fn open_with(lower: &CrashLower, options: &JournalOptions) -> Opened {
    JournalStore::open(Gate::new(lower.clone()), options)
        .unwrap()
        .0
}

/// The store on this device; `measures`: whether that is measured now.
fn open_on(lower: &CrashLower, device: Option<&str>, measures: bool) -> Opened {
    lower.set_device(device);
    let before = lower.journal_flushes();
    let store = open_with(lower, &MEASURED);
    let flushes = lower.journal_flushes() - before;
    assert_eq!(flushes >= FLUSHES, measures, "{flushes} flushes");
    store
}

fn calibration(store: &Opened) -> Calibration {
    let found = store.calibration().unwrap();
    let sizes: Vec<_> = found.sizes.iter().map(|times| times.bytes).collect();
    assert_eq!(sizes, [4096, 8192, 16_384, 32_768]);
    assert!(found.direct_bytes_max == 0 || sizes.contains(&found.direct_bytes_max));
    found
}

/// The device of the last measurement, whose threshold is in force.
fn device(store: &Opened) -> Option<String> {
    let found = calibration(store);
    let used_bytes = store.pending().durable_write_max_bytes;
    assert_eq!(used_bytes, found.direct_bytes_max);
    found.device
}

/// A new file of this name.
fn make(store: &Opened, name: &str, number: u64) {
    let id = ObjectId(store.first_new_object().0 + 2 * number);
    let mut transaction = Transaction::default();
    transaction.push(Entry::Object(ObjectState {
        created: true,
        ..plain_file(id, 0, 1)
    }));
    transaction.push(root_entry(name, Some(id)));
    store.commit(transaction).unwrap();
}

fn names(store: &Opened) -> Vec<String> {
    let entries = store.list_directory(ObjectId::ROOT).unwrap();
    let mut names: Vec<_> = entries.iter().map(|entry| entry.name.to_string()).collect();
    names.sort();
    names
}

#[test]
fn another_device_is_measured_and_the_same_one_is_not() {
    let lower = CrashLower::new();
    let store = open_on(&lower, FLASH, true);
    assert_eq!(device(&store).as_deref(), FLASH);
    store.close().unwrap();
    let before = calibration(&store);
    drop(store);
    assert_eq!(calibration(&open_on(&lower, FLASH, false)), before);
    let store = open_on(&lower, DISK, true);
    assert_eq!(device(&store).as_deref(), DISK);
    // Which device it is cannot be known any more.
    drop(store);
    let store = open_on(&lower, None, false);
    assert_eq!(device(&store).as_deref(), DISK);
    // Not while something is committed and not applied.
    make(&store, "file", 0);
    drop(store);
    let store = open_on(&lower, FLASH, false);
    assert_eq!(device(&store).as_deref(), DISK);
    store.apply().unwrap();
    drop(store);
    let store = open_on(&lower, FLASH, true);
    assert_eq!(device(&store).as_deref(), FLASH);
    assert_eq!(names(&store), ["file"]);
}

/// Stores of versions that kept only the threshold have no file.
#[test]
fn a_file_that_is_damaged_missing_or_something_else_means_another_measurement() {
    let lower = CrashLower::new();
    drop(open_on(&lower, FLASH, true));
    let own = lower
        .open(&lower.root().unwrap(), b".mobifs", true)
        .unwrap();
    let name = CALIBRATION_FILE.as_bytes();
    let remove = || lower.unlink(&own, name).unwrap();
    remove();
    drop(open_on(&lower, None, false));
    drop(open_on(&lower, FLASH, true));
    let file = lower.open(&own, name, true).unwrap();
    lower.write_at(&file, b"x", 50).unwrap();
    drop(open_on(&lower, FLASH, true));
    drop(open_on(&lower, FLASH, false));
    lower.truncate(&file, 40).unwrap();
    drop(open_on(&lower, FLASH, true));
    lower.truncate(&file, 1 << 20).unwrap();
    drop(open_on(&lower, FLASH, true));
    assert!(lower.stat(&file).unwrap().size < 1024);
    // Files of users are not written to through another name, nor read.
    let root = lower.root().unwrap();
    lower.link(&own, name, &root, b"victim").unwrap();
    let before = lower.stat(&file).unwrap();
    drop(open_on(&lower, FLASH, true));
    assert_eq!(lower.stat_at(&root, b"victim").unwrap().mtime, before.mtime);
    drop(open_on(&lower, FLASH, false));
    remove();
    lower.create(&own, name, Create::Directory).unwrap();
    for _ in 0..2 {
        let store = open_on(&lower, FLASH, true);
        assert_eq!(device(&store).as_deref(), FLASH, "it is in memory");
    }
    // Without room for the file, too.
    lower.remove_directory(&own, name).unwrap();
    lower.set_fault(Some(fault(&lower, Calls::Growing, u64::MAX)));
    drop(open_on(&lower, FLASH, true));
    assert!(lower.failed_calls() > 0);
    lower.set_fault(None);
    drop(open_on(&lower, FLASH, true));
    drop(open_on(&lower, FLASH, false));
}

/// The next so many of these calls fail.
fn fault(lower: &CrashLower, calls: Calls, count: u64) -> Fault {
    Fault {
        first: lower.calls() + 1,
        count,
        calls,
        errno: match calls {
            Calls::Growing => rustix::io::Errno::NOSPC.raw_os_error(),
            _ => rustix::io::Errno::IO.raw_os_error(),
        },
        harm: Harm::Nothing,
    }
}

#[test]
fn a_configured_size_holds_and_nothing_is_measured() {
    let lower = CrashLower::new();
    let store = open_on(&lower, FLASH, true);
    let measured = calibration(&store);
    drop(store);
    lower.set_device(DISK);
    let before = lower.journal_flushes();
    let store = open_with(&lower, &CONFIGURED);
    assert_eq!(store.pending().durable_write_max_bytes, 12_288);
    assert_eq!(calibration(&store), measured, "it is shown all the same");
    let refused = store.calibrate().unwrap_err();
    assert!(matches!(refused, StoreError::Unsuitable(_)), "{refused}");
    assert!(
        refused.to_string().contains("direct_write_max_bytes"),
        "{refused}"
    );
    assert_eq!(store.pending().durable_write_max_bytes, 12_288);
    store.close().unwrap();
    drop(store);
    assert_eq!(lower.journal_flushes(), before);
    // Without the configuration what was measured holds again.
    let store = open_on(&lower, FLASH, false);
    assert_eq!(device(&store).as_deref(), FLASH);
    drop(store);
    // A store that was always configured.
    let lower = CrashLower::new();
    lower.set_device(FLASH);
    let store = open_with(&lower, &CONFIGURED);
    assert_eq!(store.calibration(), None);
    drop(store);
    let store = open_with(
        &lower,
        &JournalOptions {
            read_only: true,
            ..MEASURED
        },
    );
    let refused = store.calibrate().unwrap_err().to_string();
    assert!(refused.contains("read-only"), "{refused}");
    drop(store);
    drop(open_on(&lower, FLASH, true));
}

#[test]
fn a_request_measures_whatever_is_committed() {
    let lower = CrashLower::new();
    let store = open_on(&lower, FLASH, true);
    make(&store, "one", 0);
    lower.set_device(DISK);
    let before = lower.journal_flushes();
    let found = store.calibrate().unwrap();
    assert!(lower.journal_flushes() >= before + FLUSHES);
    assert_eq!(found, calibration(&store));
    assert_eq!(device(&store).as_deref(), DISK);
    assert_eq!(store.pending().journal_used_bytes, 0, "it is applied");
    make(&store, "two", 1);
    drop(store);
    let store = open_on(&lower, DISK, false);
    assert_eq!(names(&store), ["one", "two"]);
    store.close().unwrap();
}

/// Only speed depends on it.
#[test]
fn a_measurement_that_fails_leaves_everything_as_it_was() {
    let lower = CrashLower::new();
    let store = open_on(&lower, FLASH, true);
    let before = calibration(&store);
    make(&store, "one", 0);
    store.apply().unwrap();
    let failing = Fault {
        first: lower.calls() + 20,
        ..fault(&lower, Calls::Journal, 1)
    };
    lower.set_fault(Some(failing));
    let failed = store.calibrate().unwrap_err().to_string();
    assert!(failed.contains("measuring"), "{failed}");
    lower.set_fault(None);
    assert_eq!(calibration(&store), before);
    make(&store, "two", 1);
    store.close().unwrap();
    drop(store);
    // At every place of an open on another device.
    lower.set_device(DISK);
    for after in (0..120).step_by(3) {
        let image = lower.crash_image(&mut |_| Fate::Land);
        image.set_device(DISK);
        image.set_fault(Some(Fault {
            first: image.calls() + 30 + after,
            ..fault(&image, Calls::Journal, 1)
        }));
        let opened = JournalStore::open(Gate::new(image.clone()), &MEASURED);
        image.set_fault(None);
        // Other journal writes of an open are needed.
        let Ok((store, _)) = opened else { continue };
        assert_eq!(names(&store), ["one", "two"]);
        make(&store, "three", 0);
        store.close().unwrap();
        drop(store);
        assert_eq!(
            device(&open_with(&image, &MEASURED)).as_deref(),
            DISK,
            "it is measured by then"
        );
    }
}

/// At every change during a measurement the power fails, with some of what is not durable on the
/// medium: a store is found there that has everything, and is measured when it is opened next.
fn no_power_cut_loses_anything(lower: &CrashLower, store: &Opened, measure: impl FnOnce(&Opened)) {
    // The start of the log has had transactions.
    for number in 0..4 {
        make(store, &format!("file {number}"), number);
    }
    let mut seed = 7_u64;
    let (cuts, checked) = std::sync::mpsc::channel();
    lower.set_hook(Box::new(move |_, lower| {
        let image = lower.crash_image(&mut |_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if seed >> 63 == 0 {
                Fate::Land
            } else {
                Fate::Vanish
            }
        });
        cuts.send(image).unwrap();
    }));
    measure(store);
    make(store, "last", 4);
    lower.clear_hook();
    let all = ["file 0", "file 1", "file 2", "file 3"];
    let images: Vec<_> = checked.iter().collect();
    assert!(images.len() as u64 > 4 * FLUSHES, "{}", images.len());
    for (cut, image) in images.iter().enumerate() {
        image.set_device(DISK);
        let store = open_with(image, &MEASURED);
        let found = names(&store);
        assert!(
            found.starts_with(&all.map(String::from)),
            "cut {cut}: {found:?}"
        );
        store.close().unwrap();
        drop(store);
        let store = open_with(image, &MEASURED);
        assert_eq!(device(&store).as_deref(), DISK, "cut {cut}");
    }
}

#[test]
fn a_power_cut_during_a_measurement_loses_nothing() {
    let lower = CrashLower::new();
    let store = open_on(&lower, FLASH, true);
    lower.set_device(DISK);
    no_power_cut_loses_anything(&lower, &store, |store| {
        store.calibrate().unwrap();
    });
    // A measurement that was deferred.
    let lower = CrashLower::new();
    drop(open_on(&lower, FLASH, true));
    lower.set_device(DISK);
    let options = JournalOptions {
        journal_bytes: MEASURED.journal_bytes,
        ..deferred(new_devices())
    };
    let store = open_with(&lower, &options);
    no_power_cut_loses_anything(&lower, &store, |store| store.apply().unwrap());
    assert_eq!(device(&store).as_deref(), DISK);
}

/// What stores that defer their measurement share.
fn new_devices() -> &'static MeasuredDevices {
    Box::leak(Box::default())
}

/// As `FLUSHES`, with room for all sizes. Commits flush, too, where that was quicker.
const DEFERRED_FLUSHES: u64 = 7 * 7;

/// A store that measures when it has committed three blocks.
fn deferred(devices: &'static MeasuredDevices) -> JournalOptions {
    JournalOptions {
        journal_bytes: 1 << 20,
        measuring: Measuring::Deferred {
            committed_bytes_min: 3 * 4096,
            devices,
        },
        ..MEASURED
    }
}

/// The store of another file on the same device, and its flushes until now.
fn another_on(
    device: Option<&str>,
    options: &JournalOptions,
) -> (CrashLower, Opened, impl Fn() -> u64 + use<>) {
    let lower = CrashLower::new();
    lower.set_device(device);
    let store = open_with(&lower, options);
    let counted = lower.clone();
    (lower, store, move || counted.journal_flushes())
}

/// Commits three blocks and more, one file after the other, and applies after each.
fn commit_enough(store: &Opened) {
    for number in 0..3 {
        make(store, &format!("file {number}"), number);
        store.apply().unwrap();
    }
}

/// Each new database was measured: 7 MiB for one of a few rows.
#[test]
fn stores_that_defer_it_measure_a_device_once_and_only_if_they_commit_enough() {
    for flash in [FLASH, None] {
        let options = deferred(new_devices());
        let (_, small, small_flushes) = another_on(flash, &options);
        let (lower, large, large_flushes) = another_on(flash, &options);
        let (before, before_small) = (large_flushes(), small_flushes());
        assert_eq!(large.calibration(), None);
        let unmeasured_bytes_max = large.pending().durable_write_max_bytes;
        assert_eq!(unmeasured_bytes_max, Calibration::UNMEASURED_BYTES_MAX);
        for store in [&small, &large] {
            make(store, "file", 7);
            store.apply().unwrap();
            assert_eq!(store.calibration(), None, "too early");
        }
        commit_enough(&large);
        let measured = large.calibration().unwrap();
        let flushes = large_flushes() - before;
        assert_eq!(flushes / DEFERRED_FLUSHES, 1, "{flushes}");
        assert_eq!(measured.device.as_deref(), flash);
        assert_eq!(
            large.pending().durable_write_max_bytes,
            measured.direct_bytes_max
        );
        // The other one has not committed enough, and takes it when it next applies.
        small.apply().unwrap();
        assert_eq!(small.calibration(), Some(measured.clone()));
        assert_eq!(
            small.pending().durable_write_max_bytes,
            measured.direct_bytes_max
        );
        commit_enough(&small);
        // A new one takes it at once.
        let (third_lower, third, third_flushes) = another_on(flash, &options);
        assert_eq!(third.calibration(), Some(measured.clone()));
        let at_open = third_flushes();
        commit_enough(&third);
        assert!(third_flushes() < at_open + DEFERRED_FLUSHES);
        assert!(small_flushes() < before_small + DEFERRED_FLUSHES);
        // So does one of another process, from any store that has it.
        let options = deferred(new_devices());
        for (lower, store) in [(lower, large), (third_lower, third)] {
            store.close().unwrap();
            drop(store);
            let before = lower.journal_flushes();
            let store = open_with(&lower, &options);
            assert_eq!(store.calibration(), Some(measured.clone()));
            assert_eq!(lower.journal_flushes(), before);
        }
        let (_, fourth, _) = another_on(flash, &options);
        assert_eq!(fourth.calibration(), Some(measured));
    }
}

#[test]
fn a_store_on_another_device_keeps_what_it_used_until_it_has_committed_enough() {
    let lower = CrashLower::new();
    lower.set_device(FLASH);
    let store = open_with(&lower, &deferred(new_devices()));
    commit_enough(&store);
    let before = store.calibration().unwrap();
    store.close().unwrap();
    drop(store);
    lower.set_device(DISK);
    let devices = new_devices();
    // A card that was exchanged has left its measurement under the same number.
    let (_, exchanged, _) = another_on(FLASH, &deferred(devices));
    commit_enough(&exchanged);
    let store = open_with(&lower, &deferred(devices));
    assert_eq!(store.calibration(), Some(before.clone()));
    assert_eq!(
        store.pending().durable_write_max_bytes,
        before.direct_bytes_max
    );
    commit_enough(&store);
    assert_eq!(store.calibration().unwrap().device.as_deref(), DISK);
}

#[test]
fn a_configured_size_is_not_measured_later_either() {
    let (_, store, flushes) = another_on(
        FLASH,
        &JournalOptions {
            direct_bytes_max: Some(12_288),
            ..deferred(new_devices())
        },
    );
    let before = flushes();
    commit_enough(&store);
    assert_eq!(store.calibration(), None);
    assert_eq!(store.pending().durable_write_max_bytes, 12_288);
    assert_eq!(flushes(), before);
}

/// Only speed depends on it: the apply has succeeded.
#[test]
fn a_deferred_measurement_that_fails_is_not_tried_again_by_that_store() {
    let devices = new_devices();
    let (lower, store, flushes) = another_on(FLASH, &deferred(devices));
    commit_enough_but_one(&store);
    let before = flushes();
    lower.set_hook(Box::new(move |_, lower| {
        // In the middle of the measurement.
        if lower.journal_flushes() == before + 10 {
            lower.set_fault(Some(fault(lower, Calls::Journal, 1)));
        }
    }));
    make(&store, "last", 5);
    store.apply().unwrap();
    lower.clear_hook();
    assert!(lower.failed_calls() > 0);
    lower.set_fault(None);
    assert_eq!(store.calibration(), None);
    commit_enough(&store);
    assert_eq!(store.calibration(), None);
    assert!(flushes() < before + DEFERRED_FLUSHES);
    let (_, other, _) = another_on(FLASH, &deferred(devices));
    commit_enough(&other);
    assert!(other.calibration().is_some(), "it is another one's turn");
    store.close().unwrap();
}

/// The next block is the one with which a measurement is due.
fn commit_enough_but_one(store: &Opened) {
    while store.pending().commit_written_bytes < 2 * 4096 {
        let number = store.pending().commits;
        make(store, &format!("early {number}"), 10 + number);
    }
    store.apply().unwrap();
}

const CALLER: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0o022,
};

fn new_file(volume: &Volume, name: &str) -> ObjectId {
    let spec = NodeSpec {
        kind: FileKind::Regular,
        mode: 0o644,
        rdev: DeviceNumber(0),
        symlink_target: None,
    };
    let node = volume.create(&CALLER, ObjectId::ROOT, name.as_bytes(), &spec);
    node.unwrap().id
}

fn write(volume: &Volume, id: ObjectId, content: &[u8]) {
    let written = volume.write(id, WriteAt::Offset(0), content, SetIdBits::Stay, false);
    assert_eq!(written.unwrap(), content.len());
}

/// S3's direct persistence: what is small is one durable write, and the device's cache is never
/// emptied for it, whatever other programs write at the same time.
#[test]
fn no_commit_up_to_the_threshold_flushes_while_others_write() {
    let lower = CrashLower::new();
    let options = JournalOptions {
        journal_bytes: 8 << 20,
        direct_bytes_max: Some(128 << 10),
        ..MEASURED
    };
    let store = Arc::new(open_with(&lower, &options));
    let text = "[defaults]\nclass = \"durable\"\n";
    let config = Config::parse(text, Path::new("test")).unwrap();
    let volume = Volume::start(
        Arc::clone(&store) as Arc<dyn mobifs_store::Store>,
        VolumeOptions::new(&config),
    )
    .unwrap();
    let before = (lower.journal_flushes(), store.pending().commits);
    std::thread::scope(|threads| {
        for name in ["one", "two", "three"] {
            let volume = &volume;
            threads.spawn(move || {
                let id = new_file(volume, name);
                for number in 0..60_u8 {
                    write(volume, id, &vec![number; PAGE_BYTES * 4]);
                    volume.fsync(id).unwrap();
                }
            });
        }
        threads.spawn(|| {
            for _ in 0..20 {
                volume.sync_app(None, true).unwrap();
            }
        });
    });
    let commits = store.pending().commits - before.1;
    assert!(commits >= 60, "{commits} commits");
    assert_eq!(lower.journal_flushes(), before.0, "in {commits} commits");
    assert_eq!(store.pending().journal.flushes, 0);
    // A larger one does: new content goes to its place at once, what overwrites it to the journal.
    let id = new_file(&volume, "large");
    let content = |first: usize| -> Vec<u8> {
        let bytes = 0..PAGE_BYTES * 64;
        bytes.map(|at| ((first + at) % 251) as u8).collect()
    };
    write(&volume, id, &content(0));
    volume.fsync(id).unwrap();
    assert_eq!(lower.journal_flushes(), before.0);
    write(&volume, id, &content(1));
    volume.fsync(id).unwrap();
    assert_eq!(lower.journal_flushes(), before.0 + 1);
    assert_eq!(store.pending().journal.flushes, 1);
}
