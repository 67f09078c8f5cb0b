//! What a piece and a megabyte cost: a and b of t = a · pieces + b · size, measured by reading files past
//! the page cache.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use mobifs_device_server::{DeviceCounts, Reply, Request, ask};
use mobifs_fragmentation::Model;
use rustix::fs::{Advice, OFlags, fadvise};
use serde::Serialize;

use crate::error::AdviseError;

/// Read at a time: what Linux reads ahead.
const READ_BYTES: usize = 128 << 10;
/// Direct reads go to addresses that are multiples of this.
const ALIGNMENT: usize = 4096;
/// Files of either kind that are read, and bytes of them.
const FILES_MAX: usize = 24;
const BYTES_MAX: u64 = 64 << 20;
/// Pieces more than least, of all files that are read: fewer are lost in the noise.
const EXCESS_LEAST: u64 = 16;

/// Where a and b come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelSource {
    /// S4, Fig. 9: a phone.
    Paper,
    /// The user.
    Given,
    /// Files were read here, by the clock.
    Measured {
        /// How many.
        files: u64,
    },
    /// Files were read here, in the time of the served device that they lie on.
    MeasuredOnDevice {
        /// How many.
        files: u64,
    },
}

/// A file that may be read to measure.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) pieces: u64,
    pub(crate) least: u64,
}

/// Files to read: those with most pieces, and the largest whole ones.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    fragmented: Vec<Sample>,
    whole: Vec<Sample>,
}

impl Samples {
    pub(crate) fn offer(&mut self, sample: Sample) {
        if sample.bytes == 0 || sample.bytes > BYTES_MAX {
            return;
        }
        let is_fragmented = sample.pieces > sample.least;
        let list = if is_fragmented {
            &mut self.fragmented
        } else {
            &mut self.whole
        };
        list.push(sample);
        // Now and then, so that a large tree needs no more memory than a small one.
        if list.len() >= 16 * FILES_MAX {
            cut(list);
        }
    }

    fn take(mut self) -> Vec<Sample> {
        let mut taken = Vec::new();
        for list in [&mut self.fragmented, &mut self.whole] {
            cut(list);
            let mut bytes = 0;
            taken.extend(list.drain(..).take_while(|sample| {
                bytes += sample.bytes;
                bytes <= BYTES_MAX
            }));
        }
        taken
    }
}

/// Keeps those with most pieces, the largest of whole ones.
fn cut(list: &mut Vec<Sample>) {
    list.sort_by(|a, b| {
        let key = |sample: &Sample| (sample.pieces, sample.bytes);
        key(b).cmp(&key(a)).then_with(|| a.path.cmp(&b.path))
    });
    list.truncate(FILES_MAX);
}

/// Reads the samples and fits the line. On a served device its own time counts.
pub(crate) fn measure(
    place: &Path,
    mountpoint: &Path,
    samples: Samples,
) -> Result<(Model, ModelSource), AdviseError> {
    let lacking = |lacking| AdviseError::NoCost {
        path: place.to_owned(),
        lacking,
    };
    let samples = samples.take();
    let excess: u64 = samples
        .iter()
        .map(|sample| sample.pieces - sample.least)
        .sum();
    if excess < EXCESS_LEAST {
        return Err(lacking("there are not enough pieces"));
    }
    let is_served = device_ms(mountpoint).is_some();
    let mut buffer = vec![0; READ_BYTES + ALIGNMENT];
    let mut points = Vec::with_capacity(samples.len());
    for sample in &samples {
        let at = |error| AdviseError::Io {
            path: sample.path.clone(),
            error,
        };
        let begun = (device_ms(mountpoint), Instant::now());
        let bytes = read_past_the_cache(&sample.path, &mut buffer).map_err(at)?;
        let ms = match (begun.0, device_ms(mountpoint)) {
            (Some(before), Some(after)) => after - before,
            _ => begun.1.elapsed().as_secs_f64() * 1e3,
        };
        points.push((sample.pieces as f64, bytes as f64 / 1e6, ms));
    }
    let (piece_ms, megabyte_ms) =
        fit(&points).ok_or_else(|| lacking("they are too much alike in size and pieces"))?;
    let files = points.len() as u64;
    let source = if is_served {
        ModelSource::MeasuredOnDevice { files }
    } else {
        ModelSource::Measured { files }
    };
    let model = Model {
        piece_ms,
        megabyte_ms,
    };
    Ok((model, source))
}

/// What the commands of a served device took until now; none if there is none.
fn device_ms(mountpoint: &Path) -> Option<f64> {
    let Ok(Reply::Stats { stats }) = ask(mountpoint, &Request::Stats) else {
        return None;
    };
    DeviceCounts::of(&stats).map(|counts| counts.busy_ms)
}

/// Reads all of a file from its device, and says how much that was.
fn read_past_the_cache(path: &Path, buffer: &mut [u8]) -> io::Result<u64> {
    let open = |more: OFlags| {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | more;
        OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(path)
    };
    let direct = open(OFlags::DIRECT);
    let mut file: File = match direct {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
            let file = open(OFlags::empty())?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
            file
        }
        other => other?,
    };
    let start = buffer.as_ptr().align_offset(ALIGNMENT);
    let aligned = buffer
        .get_mut(start..start + READ_BYTES)
        .ok_or(io::ErrorKind::OutOfMemory)?;
    let mut bytes = 0;
    loop {
        match file.read(aligned) {
            Ok(0) => return Ok(bytes),
            Ok(read) => {
                bytes += read as u64;
                // Only at the end is a read short, and another one would not be aligned.
                if read < READ_BYTES {
                    return Ok(bytes);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// a and b that fit best: (pieces, megabytes, ms). None if they cannot be told apart, or one is not
/// above 0.
fn fit(points: &[(f64, f64, f64)]) -> Option<(f64, f64)> {
    let sum = |term: fn(&(f64, f64, f64)) -> f64| points.iter().map(term).sum::<f64>();
    let (nn, nm, mm) = (sum(|p| p.0 * p.0), sum(|p| p.0 * p.1), sum(|p| p.1 * p.1));
    let (nt, mt) = (sum(|p| p.0 * p.2), sum(|p| p.1 * p.2));
    let determinant = nn * mm - nm * nm;
    // The angle between both columns: below this they are one.
    if determinant <= nn * mm * 1e-3 {
        return None;
    }
    let a = (nt * mm - mt * nm) / determinant;
    let b = (mt * nn - nt * nm) / determinant;
    (a > 0.0 && b > 0.0).then_some((a, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_again_and_likeness_is_noticed() {
        let ms = |pieces: f64, megabytes: f64| (pieces, megabytes, 0.2 * pieces + 8.0 * megabytes);
        let (a, b) = fit(&[ms(100.0, 1.0), ms(1.0, 10.0), ms(30.0, 5.0)]).unwrap();
        assert!((a - 0.2).abs() < 1e-9 && (b - 8.0).abs() < 1e-9, "{a} {b}");
        assert_eq!(fit(&[]), None);
        assert_eq!(
            fit(&[ms(10.0, 1.0), ms(20.0, 2.0)]),
            None,
            "pieces of one size"
        );
        assert_eq!(
            fit(&[(10.0, 1.0, 1.0), (1.0, 10.0, 0.0)]),
            None,
            "b below 0"
        );
    }

    #[test]
    fn all_of_a_file_is_read() {
        let base = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut buffer = vec![0; READ_BYTES + ALIGNMENT];
        for bytes in [0, 1, 4096, READ_BYTES, READ_BYTES + 1, 3 * READ_BYTES] {
            let path = base.path().join(bytes.to_string());
            std::fs::write(&path, vec![1; bytes]).unwrap();
            let read = read_past_the_cache(&path, &mut buffer).unwrap();
            assert_eq!(read, bytes as u64);
        }
    }

    #[test]
    fn samples_are_those_that_tell_most() {
        let mut samples = Samples::default();
        for number in 0..1000 {
            samples.offer(Sample {
                path: format!("{number:04}").into(),
                bytes: 4096,
                pieces: number % 2 * number + 1,
                least: 1,
            });
        }
        let taken = samples.take();
        assert_eq!(taken.len(), 2 * FILES_MAX);
        assert_eq!(taken[0].pieces, 1000);
        assert!(taken[FILES_MAX..].iter().all(|sample| sample.pieces == 1));
    }
}
