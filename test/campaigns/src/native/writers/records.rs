//! A writer of ordered files: step `s` writes one record into file `s` modulo 8, at first behind the
//! last one, later in the place of an old one. No record crosses a page, so each is one transaction of
//! ext4, and the eight files together are after exactly one step.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::{Found, content, with_room};
use crate::history::{began_ns, returned};

const FILES: u64 = 8;
/// Records of a file: three pages of 4096 bytes.
const SLOTS: u64 = 192;
const RECORD_BYTES: usize = 64;

fn name(file: u64) -> String {
    format!("file-{file}")
}

const fn offset(step: u64) -> u64 {
    step / FILES % SLOTS * RECORD_BYTES as u64
}

/// Number and time of the step, four times.
fn record(step: u64, stamp_ns: u64) -> Vec<u8> {
    [step.to_le_bytes(), stamp_ns.to_le_bytes()]
        .concat()
        .repeat(RECORD_BYTES / 16)
}

/// Number and time; zeros where nothing was written yet.
fn parse(bytes: &[u8]) -> Option<(u64, u64)> {
    let (step, rest) = bytes.split_first_chunk()?;
    let stamp_ns = u64::from_le_bytes(*rest.first_chunk()?);
    let step = u64::from_le_bytes(*step);
    (bytes == record(step, stamp_ns)).then_some((step, stamp_ns))
}

/// The last step up to `last` that wrote this slot of this file; 0 if none did.
fn writer_of(file: u64, slot: u64, last: u64) -> u64 {
    let Some(turns) = last.checked_sub(file).map(|rest| rest / FILES) else {
        return 0;
    };
    let Some(turn) = turns.checked_sub((turns + SLOTS - slot) % SLOTS) else {
        return 0;
    };
    turn * FILES + file
}

pub(super) fn work(app: &Path) -> Result<Infallible, String> {
    let open = |file| {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false);
        with_room(|| options.open(app.join(name(file))))
            .map_err(|error| format!("opening {}: {error}", name(file)))
    };
    let files = (0..FILES).map(open).collect::<Result<Vec<File>, _>>()?;
    let mut step = 0;
    loop {
        step += 1;
        let file = &files[(step % FILES) as usize];
        with_room(|| file.write_all_at(&record(step, began_ns()), offset(step)))
            .map_err(|error| format!("step {step}: {error}"))?;
        returned(step)?;
    }
}

/// Number and time of the step in each slot of each file.
type Records = BTreeMap<(u64, u64), (u64, u64)>;

fn read(app: &Path) -> Result<Records, String> {
    let mut records = Records::new();
    for file in 0..FILES {
        let bytes = content(&app.join(name(file)))?;
        for (slot, bytes) in (0..SLOTS).zip(bytes.chunks(RECORD_BYTES)) {
            let record = parse(bytes)
                .ok_or_else(|| format!("record {slot} of file {file} is torn: {bytes:?}"))?;
            records.insert((file, slot), record);
        }
    }
    Ok(records)
}

/// Up to which step everything is there, whatever there is of later ones.
pub(super) fn check_each_file(app: &Path) -> Result<Found, String> {
    let found = read(app)?;
    let mut missing = u64::MAX;
    for file in 0..FILES {
        for slot in 0..SLOTS {
            let (step, _) = found.get(&(file, slot)).copied().unwrap_or((0, 0));
            if step > 0 && (step % FILES, step / FILES % SLOTS) != (file, slot) {
                return Err(format!("step {step} is in record {slot} of file {file}"));
            }
            // There is no step 0.
            let first = slot * FILES + file;
            let next = match step {
                0 if first == 0 => FILES * SLOTS,
                0 => first,
                step => step + FILES * SLOTS,
            };
            missing = missing.min(next);
        }
    }
    Ok(Found::after(missing - 1))
}

pub(super) fn check(app: &Path) -> Result<Found, String> {
    let mut found = read(app)?;
    let newest = found.values().copied().max();
    let (last, stamp_ns) = newest.unwrap_or((0, 0));
    for file in 0..FILES {
        for slot in 0..SLOTS {
            let expected = writer_of(file, slot, last);
            let (step, _) = found.remove(&(file, slot)).unwrap_or((0, 0));
            if step != expected {
                return Err(format!(
                    "step {last} is there, but record {slot} of file {file} is of step {step} and \
                     not of step {expected}"
                ));
            }
        }
    }
    Ok(Found {
        stamp_ns: (last > 0).then_some(stamp_ns),
        ..Found::after(last)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(steps: impl Iterator<Item = u64>) -> tempfile::TempDir {
        let app = tempfile::tempdir().unwrap();
        for step in steps {
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).truncate(false);
            let file = options.open(app.path().join(name(step % FILES))).unwrap();
            let bytes = record(step, step * 10);
            file.write_all_at(&bytes, offset(step)).unwrap();
        }
        app
    }

    #[test]
    fn the_first_step_that_is_missing_is_found() {
        let all = FILES * SLOTS;
        for last in [0, 1, 7, 8, 9, 500, all - 1, all, 4000] {
            let found = check_each_file(written(1..=last).path()).unwrap();
            assert_eq!(found, Found::after(last), "{last}");
            if last > 2 {
                let gap = written((1..last - 1).chain([last]));
                assert_eq!(check_each_file(gap.path()), Ok(Found::after(last - 2)));
            }
        }
    }

    #[test]
    fn a_prefix_is_found_and_a_gap_too() {
        for last in [0, 1, 7, 8, 9, 500, FILES * SLOTS - 1, FILES * SLOTS, 4000] {
            let found = check(written(1..=last).path()).unwrap();
            let stamp_ns = (last > 0).then_some(last * 10);
            assert_eq!(
                found,
                Found {
                    stamp_ns,
                    ..Found::after(last)
                }
            );
            if last > 1 {
                let gap = check(written((1..last - 1).chain([last])).path());
                assert!(gap.unwrap_err().contains("is there"), "{last}");
            }
        }
        let app = written(1..=9);
        let path = app.path().join(name(1));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[20] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert!(check(app.path()).unwrap_err().contains("torn"));
    }
}
