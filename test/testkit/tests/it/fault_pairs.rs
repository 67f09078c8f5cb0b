//! One fault in an apply and another in the recovery that has to finish it.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::path::Path;
use std::sync::Arc;

use mobifs_store::{Gate, JournalOptions, JournalStore, Store as _};
use mobifs_testkit::crash::{Calls, CrashLower, Fate, Fault, Harm};
use mobifs_testkit::faults::ClockKind;
use mobifs_testkit::harness::{compare_trees, execute_on_both};
use mobifs_testkit::model::Model;
use mobifs_testkit::operations::FileRef;
use mobifs_testkit::operations::{Operation as Op, Payload};
use mobifs_testkit::target::VolumeTarget;
use mobifs_testkit::tree::Compare;
use mobifs_volume::{Config, Volume, VolumeOptions};

/// Large enough to be written to its place when it is committed.
const FILE_BYTES: u32 = 100_000;
const COMPARED: Compare = Compare {
    root: false,
    ..Compare::ALL
};

type CrashStore = Arc<JournalStore<Gate<CrashLower>>>;

fn mount(lower: &CrashLower) -> Result<(CrashStore, VolumeTarget), String> {
    let options = JournalOptions {
        journal_bytes: 256 << 10,
        direct_bytes_max: Some(8 << 10),
        ..JournalOptions::default()
    };
    let (store, _) = JournalStore::open(Gate::new(lower.clone()), &options)
        .map_err(|error| error.to_string())?;
    let store = Arc::new(store);
    let config = Config::parse("", Path::new("test")).unwrap();
    let options = VolumeOptions {
        // Reads come from the store.
        objects_max: 0,
        background: false,
        clock: ClockKind::Steady.clock(7),
        ..VolumeOptions::new(&config)
    };
    let volume = Volume::start(
        Arc::<JournalStore<Gate<CrashLower>>>::clone(&store),
        options,
    )
    .map_err(|error| error.to_string())?;
    Ok((store, VolumeTarget::new(volume)))
}

fn write_file(path: &str, tag: u32) -> [Op; 2] {
    let file = Op::CreateFile {
        path: path.into(),
        mode: 0o644,
    };
    let content = Op::Write {
        file: FileRef::Path(path.into()),
        offset: 0,
        data: Payload {
            tag,
            length: FILE_BYTES,
        },
    };
    [file, content]
}

/// From the `number`th call on, the next `count` that change something fail.
fn changes_from(lower: &CrashLower, number: u64, count: u64) -> Fault {
    Fault {
        first: lower.calls() + number,
        count,
        calls: Calls::Changes,
        errno: 5,
        harm: Harm::Nothing,
    }
}

fn execute(model: &mut Model, target: &mut VolumeTarget, operations: &[Op]) {
    for operation in operations {
        execute_on_both(model, target, operation).unwrap();
    }
    target.volume().sync_all().unwrap();
}

/// A new file of two names of which an apply made one before it failed; the other was removed, and
/// the power cut. None if that fault did not make the apply fail.
fn image_of_an_apply_that_failed(number: u64) -> Option<(Model, CrashLower)> {
    let lower = CrashLower::new();
    let (store, mut target) = mount(&lower).unwrap();
    let mut model = Model::default();
    let mut operations = vec![Op::MakeDirectory {
        path: "alpha".into(),
        mode: 0o755,
    }];
    operations.extend(write_file("alpha/a", 1));
    operations.push(Op::Link {
        from: "alpha/a".into(),
        to: "alpha/b".into(),
    });
    execute(&mut model, &mut target, &operations);
    lower.set_fault(Some(changes_from(&lower, number, 1)));
    let applied = store.apply();
    lower.set_fault(None);
    applied.err()?;
    let path = "alpha/b".into();
    execute(&mut model, &mut target, &[Op::Unlink { path }]);
    Some((model, lower.crash_image(&mut |_| Fate::Land)))
}

/// A name in `stage` that recovery could not delete was counted as a link of the file that
/// has another name in the tree, and its number was given to a new file.
#[test]
fn what_recovery_cannot_delete_is_no_link_and_no_new_file() {
    const CALLS_OF_AN_APPLY: u64 = 60;
    const CALLS_OF_A_RECOVERY: u64 = 120;
    let mut tried = 0;
    for (model, image) in (1..=CALLS_OF_AN_APPLY).filter_map(image_of_an_apply_that_failed) {
        for number in 1..=CALLS_OF_A_RECOVERY {
            let lower = image.crash_image(&mut |_| Fate::Land);
            // An apply and the mount around it sweep once each.
            lower.set_fault(Some(changes_from(&lower, number, u64::MAX)));
            let mounted = mount(&lower);
            let fired = lower.failed_calls() > 0;
            lower.set_fault(None);
            let Ok((_store, mut target)) = mounted else {
                continue;
            };
            let mut model = model.clone();
            compare_trees(&model, &mut target, COMPARED).unwrap();
            for name in ["alpha/c", "alpha/d", "alpha/e"] {
                execute(&mut model, &mut target, &write_file(name, 2));
                compare_trees(&model, &mut target, COMPARED).unwrap();
            }
            tried += u64::from(fired);
        }
    }
    assert!(tried > 0);
}
