//! One file that is written within pages, shortened, and allocated again: room that was allocated is filled with
//! zeros by ext4, and blocks come back to the file that had other content of it before.
//!
//! A step is one call on the file, and then one that notes the step in another file, so a cut between the two
//! leaves a step that has begun.

use std::convert::Infallible;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};

use super::{Found, content, with_room};
use crate::history::{began_ns, returned};

const FILE: &str = "resized";
const NOTE: &str = "step";
const PAGE_BYTES: u64 = 4096;
const FILE_BYTES: u64 = 15 * PAGE_BYTES;

/// To which sizes the file is shortened.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sizes {
    /// Multiples of a page.
    OfPages,
    /// Any.
    Any,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Write { at: u64, bytes: u64, value: u8 },
    Shorten { to: u64 },
    Allocate { at: u64, bytes: u64 },
}

/// Numbers without a pattern, the same ones for each step.
const fn mixed(step: u64, number: u64) -> u64 {
    let mut word = (step << 2 | number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

impl Call {
    const fn of(step: u64, sizes: Sizes) -> Self {
        let at = mixed(step, 1) % FILE_BYTES;
        let in_page = PAGE_BYTES - at % PAGE_BYTES;
        let bytes = 1 + mixed(step, 2) % (PAGE_BYTES - 1);
        match mixed(step, 0) % 10 {
            0..=6 => Self::Write {
                at,
                bytes: if bytes < in_page { bytes } else { in_page },
                value: (1 + step % 255) as u8,
            },
            7 => Self::Shorten {
                to: match sizes {
                    Sizes::OfPages => at - at % PAGE_BYTES,
                    Sizes::Any => at,
                },
            },
            _ => Self::Allocate { at, bytes },
        }
    }

    /// What it makes of the file's content.
    fn change(self, file: &mut Vec<u8>) {
        let end = match self {
            Self::Shorten { to } => return file.resize(to as usize, 0),
            Self::Write { at, bytes, .. } | Self::Allocate { at, bytes } => (at + bytes) as usize,
        };
        if file.len() < end {
            file.resize(end, 0);
        }
        if let Self::Write { at, value, .. } = self {
            file[at as usize..end].fill(value);
        }
    }
}

fn note(step: u64, stamp_ns: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&step.to_le_bytes());
    bytes[8..].copy_from_slice(&stamp_ns.to_le_bytes());
    bytes
}

fn parse(note: &[u8]) -> Option<(u64, u64)> {
    let (step, rest) = note.split_first_chunk()?;
    let stamp_ns = rest.first_chunk()?;
    Some((u64::from_le_bytes(*step), u64::from_le_bytes(*stamp_ns)))
}

pub(super) fn work(app: &Path, sizes: Sizes) -> Result<Infallible, String> {
    let open = |name: &str| {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        with_room(|| options.open(app.join(name))).map_err(|error| format!("{name}: {error}"))
    };
    let (file, notes) = (open(FILE)?, open(NOTE)?);
    let mut step = 0;
    loop {
        step += 1;
        let done = with_room(|| match Call::of(step, sizes) {
            Call::Write { at, bytes, value } => file.write_all_at(&vec![value; bytes as usize], at),
            Call::Shorten { to } => file.set_len(to),
            Call::Allocate { at, bytes } => {
                fallocate(&file, FallocateFlags::empty(), at, bytes).map_err(io::Error::from)
            }
        });
        done.and_then(|()| with_room(|| notes.write_all_at(&note(step, began_ns()), 0)))
            .map_err(|error| format!("step {step}: {error}"))?;
        returned(step)?;
    }
}

/// Whether the file is as the call has begun to make it: what is allocated over several pages may be divided
/// between two transactions.
fn has_begun(call: Call, before: &[u8], after: &[u8], found: &[u8]) -> bool {
    let is_between = (before.len()..=after.len()).contains(&found.len());
    let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
    matches!(call, Call::Allocate { .. })
        && is_between
        && found.starts_with(before)
        && is_zero(&found[before.len()..])
}

pub(super) fn check(app: &Path, sizes: Sizes) -> Result<Found, String> {
    let (found, noted) = (content(&app.join(FILE))?, content(&app.join(NOTE))?);
    let (step, stamp_ns) = parse(&noted).unwrap_or((0, 0));
    let mut file = Vec::new();
    (1..=step).for_each(|step| Call::of(step, sizes).change(&mut file));
    let next = Call::of(step + 1, sizes);
    let before = file.clone();
    next.change(&mut file);
    let next_began = if found == before {
        false
    } else if found == file || has_begun(next, &before, &file, &found) {
        true
    } else {
        return Err(format!(
            "step {step} is noted, and the file is as it never was: {}",
            difference(&before, &found)
        ));
    };
    Ok(Found {
        step,
        next_began,
        stamp_ns: (step > 0).then_some(stamp_ns),
    })
}

fn difference(expected: &[u8], found: &[u8]) -> String {
    let both = expected.iter().zip(found);
    let differ = || both.clone().enumerate().filter(|(_, (a, b))| a != b);
    let first = differ().next();
    let at = first.map_or_else(String::new, |(at, (expected, found))| {
        format!(
            ", the first of {} bytes at {at}: {found} for {expected}",
            differ().count()
        )
    });
    format!("{} bytes for {}{at}", found.len(), expected.len())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn written(last: u64, sizes: Sizes) -> tempfile::TempDir {
        let app = tempfile::tempdir().unwrap();
        let mut file = Vec::new();
        (1..=last).for_each(|step| Call::of(step, sizes).change(&mut file));
        fs::write(app.path().join(FILE), file).unwrap();
        fs::write(app.path().join(NOTE), note(last, last * 10)).unwrap();
        app
    }

    #[test]
    fn a_step_is_found_and_older_content_too() {
        for sizes in [Sizes::OfPages, Sizes::Any] {
            for last in [1, 2, 50, 500] {
                let app = written(last, sizes);
                let found = check(app.path(), sizes).unwrap();
                assert_eq!((found.step, found.next_began), (last, false));
                let path = app.path().join(FILE);
                let mut bytes = fs::read(&path).unwrap();
                let Some(byte) = bytes.last_mut() else {
                    continue;
                };
                *byte ^= 0x80;
                fs::write(&path, bytes).unwrap();
                assert!(check(app.path(), sizes).unwrap_err().contains("never was"));
            }
        }
    }

    #[test]
    fn a_call_whose_note_is_missing_has_begun() {
        let app = written(60, Sizes::Any);
        // What it notes is the step before.
        fs::write(app.path().join(NOTE), note(59, 590)).unwrap();
        let found = check(app.path(), Sizes::Any).unwrap();
        assert_eq!(found.step, 59);
    }

    #[test]
    fn sizes_are_of_pages_where_that_is_asked_for() {
        let shortened = |sizes| {
            let calls = (1..1000).map(move |step| Call::of(step, sizes));
            calls.filter_map(|call| match call {
                Call::Shorten { to } => Some(to),
                _ => None,
            })
        };
        assert!(shortened(Sizes::OfPages).all(|to| to.is_multiple_of(PAGE_BYTES)));
        assert!(shortened(Sizes::Any).any(|to| !to.is_multiple_of(PAGE_BYTES)));
    }
}
