//! Large writes: step `s` overwrites region `s` modulo 3 of a file. A write may be divided between two
//! pages, and then the pages before are new and those after it old.

use std::convert::Infallible;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

use super::files::{content, with_room};
use super::steps::returned;

const FILE: &str = "file";
const PAGE_BYTES: usize = 4096;

/// After which step a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divided {
    /// The last step that is there as a whole.
    pub step: u64,
    /// A part of the next one is there.
    pub next_began: bool,
}

impl Divided {
    const fn after(step: u64) -> Self {
        Self {
            step,
            next_began: false,
        }
    }
}

/// The regions of a file, and how it is opened.
pub struct Regions {
    /// Offsets and lengths.
    all: [(usize, usize); 3],
    is_direct: bool,
}

/// Begins and ends within pages.
pub const LARGE: Regions = Regions {
    all: [(1_235, 300_001), (500_003, 20_000), (600_007, 50_000)],
    is_direct: false,
};

/// Whole pages, past the cache where the filesystem can do that.
pub const DIRECT: Regions = Regions {
    all: [(4_096, 262_144), (524_288, 4_096), (614_400, 65_536)],
    is_direct: true,
};

/// What a step writes; step 0 is zeros.
fn pattern(step: u64, length: usize) -> Vec<u8> {
    if step == 0 {
        return vec![0; length];
    }
    let words = (0..length.div_ceil(8) as u64).map(|index| (step << 24 | index).to_le_bytes());
    let mut bytes: Vec<u8> = words.flatten().collect();
    bytes.truncate(length);
    bytes
}

impl Regions {
    fn bytes(&self) -> usize {
        let ends = self.all.iter().map(|(offset, length)| offset + length);
        ends.max().unwrap_or(0)
    }

    /// Works after step `from`, until something fails. `is_durable`: each step is made durable.
    ///
    /// # Errors
    /// What has failed.
    pub fn work(&self, app: &Path, from: u64, is_durable: bool) -> Result<Infallible, String> {
        let path = app.join(FILE);
        if from == 0 {
            with_room(|| fs::write(&path, vec![0; self.bytes()]))?;
        }
        let flags = if self.is_direct {
            OFlags::DIRECT
        } else {
            OFlags::empty()
        };
        let mut options = OpenOptions::new();
        let options = options.write(true).custom_flags(flags.bits().cast_signed());
        let file = options.open(&path).map_err(|error| error.to_string())?;
        let mut step = from;
        loop {
            step += 1;
            let (offset, length) = self.all[(step % 3) as usize];
            // Direct input and output wants aligned memory.
            let mut memory = vec![0; length + PAGE_BYTES];
            let start = memory.as_ptr().align_offset(PAGE_BYTES);
            let aligned = &mut memory[start..start + length];
            aligned.copy_from_slice(&pattern(step, length));
            with_room(|| file.write_all_at(aligned, offset as u64))?;
            if is_durable {
                file.sync_all().map_err(|error| error.to_string())?;
            }
            returned(step)?;
        }
    }

    /// What a power cut left of it.
    ///
    /// # Errors
    /// It is as it never was after any of its steps.
    pub fn check(&self, app: &Path) -> Result<Divided, String> {
        let content = content(&app.join(FILE))?;
        if content.len() < self.bytes() {
            let is_blank = content.iter().all(|&byte| byte == 0);
            return is_blank
                .then_some(Divided::after(0))
                .ok_or_else(|| format!("has {} bytes, and not only zeros", content.len()));
        }
        let examined: Vec<(u64, bool)> = (0..)
            .zip(&self.all)
            .map(|(number, &(offset, length))| {
                examine(&content[offset..offset + length], offset, number)
            })
            .collect::<Result<_, _>>()?;
        let last = examined.iter().map(|(step, _)| *step).max().unwrap_or(0);
        for (number, &(step, is_whole)) in (0..).zip(&examined) {
            let expected = (1..=last).rev().find(|step| step % 3 == number);
            let expected = expected.unwrap_or(0);
            if step != expected || (!is_whole && step < last) {
                return Err(format!(
                    "step {last} is there, but region {number} is of step {step} (whole: \
                     {is_whole}) and not of step {expected}"
                ));
            }
        }
        let is_whole = examined.iter().all(|(_, is_whole)| *is_whole);
        Ok(Divided {
            next_began: !is_whole,
            step: if is_whole { last } else { last - 1 },
        })
    }
}

/// The last step that wrote into a region, and whether it is there as a whole.
fn examine(region: &[u8], offset: usize, number: u64) -> Result<(u64, bool), String> {
    let first = region.first_chunk().copied().unwrap_or_default();
    let step = u64::from_le_bytes(first) >> 24;
    if step % 3 != number && step != 0 {
        return Err(format!("region {number} is of step {step}"));
    }
    let new = pattern(step, region.len());
    let pairs = region.iter().zip(&new);
    let same = pairs.take_while(|(found, new)| found == new).count();
    if same == region.len() {
        return Ok((step, true));
    }
    let boundary = ((offset + same) / PAGE_BYTES * PAGE_BYTES).saturating_sub(offset);
    let old = pattern(step.saturating_sub(3), region.len());
    if step > 0 && boundary > 0 && region[boundary..] == old[boundary..] {
        return Ok((step, false));
    }
    Err(format!(
        "region {number}, of step {step}, is another one from byte {} of the file on",
        offset + same
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file after whole steps, and so many bytes of the next.
    fn after(regions: &Regions, last: u64, more: usize) -> tempfile::TempDir {
        let mut content = vec![0; regions.bytes()];
        for step in 1..=last + 1 {
            let (offset, length) = regions.all[(step % 3) as usize];
            let part = if step <= last { length } else { more };
            let bytes = pattern(step, length);
            content[offset..offset + part].copy_from_slice(&bytes[..part]);
        }
        let app = tempfile::tempdir().unwrap();
        fs::write(app.path().join(FILE), content).unwrap();
        app
    }

    #[test]
    fn whole_and_divided_writes_are_recognised() {
        for regions in [LARGE, DIRECT] {
            for last in 0..8 {
                let found = regions.check(after(&regions, last, 0).path());
                assert_eq!(found, Ok(Divided::after(last)));
                let (offset, length) = regions.all[((last + 1) % 3) as usize];
                let to_page = PAGE_BYTES - offset % PAGE_BYTES;
                if length > to_page {
                    let divided = Divided {
                        next_began: true,
                        step: last,
                    };
                    let found = regions.check(after(&regions, last, to_page).path());
                    assert_eq!(found, Ok(divided), "{last}");
                }
                let torn = regions.check(after(&regions, last, to_page.min(length) - 700).path());
                assert!(torn.is_err(), "{last}: {torn:?}");
            }
            // An old region beside newer ones.
            let app = after(&regions, 7, 0);
            let mut content = fs::read(app.path().join(FILE)).unwrap();
            let (offset, length) = regions.all[0];
            content[offset..offset + length].copy_from_slice(&pattern(3, length));
            fs::write(app.path().join(FILE), content).unwrap();
            assert!(regions.check(app.path()).unwrap_err().contains("region 0"));
        }
    }
}
