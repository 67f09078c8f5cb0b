//! S3 §III.B, Fig. 8: what a journal commit costs. *Flush at end*: write the blocks, flush
//! the cache, write the commit block with FUA. *Direct persistence*: write the blocks with
//! FUA, then the commit block with FUA.

use mobifs_device_model::{Command, Config, Host, WriteKind};
use mobifs_numerics::mean;
use serde::Serialize;

use super::{ExperimentError, KIB, MIB, PAGE_BYTES, REST_NS};
use crate::criterion::Criterion;

/// S3 finds direct persistence faster below this.
const PUBLISHED_CROSSOVER_BYTES: u64 = 128 * KIB;

/// Ratios this close to 1 are equal.
const SAME_WITHIN: f64 = 0.01;

/// What is varied and what is fixed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parameters {
    /// Capacity of the device.
    pub capacity_bytes: u64,
    /// Journal, written in a circle.
    pub journal_bytes: u64,
    /// Bytes that a commit persists, ascending.
    pub volumes_bytes: Vec<u64>,
    /// Commits of each size.
    pub commits: u32,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            capacity_bytes: 512 * MIB,
            journal_bytes: 64 * MIB,
            volumes_bytes: (0..7).map(|power| (4 * KIB) << power).collect(),
            commits: 200,
        }
    }
}

/// Mean times of a commit's steps, in µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Steps {
    /// The blocks.
    pub write_us: f64,
    /// The flush; 0 for direct persistence.
    pub flush_us: f64,
    /// The commit block.
    pub commit_us: f64,
}

/// Commits of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Bytes before the commit block.
    pub bytes: u64,
    /// Flush at end.
    pub flush_at_end: Steps,
    /// Direct persistence.
    pub direct: Steps,
    /// Persisting the blocks (write and flush) with flush at end, against direct
    /// persistence: above 1 direct persistence is faster.
    pub ratio: f64,
    /// Share of the flush in a commit with flush at end.
    pub flush_share: f64,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Persistence {
    /// With what.
    pub parameters: Parameters,
    /// For each size, ascending.
    pub points: Vec<Point>,
    /// Which of the two schemes is faster where.
    pub crossover: Crossover,
}

/// Which scheme is faster where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Crossover {
    /// The two take the same time, to one percent.
    Same,
    /// Direct persistence at every size.
    DirectAlways,
    /// Flush at end at every size.
    FlushAtEndAlways,
    /// Direct persistence below, flush at end from there on.
    At {
        /// The first size at which flush at end is no slower.
        bytes: u64,
    },
    /// Now the one, now the other.
    Mixed,
}

/// Runs the experiment.
///
/// # Errors
/// A configuration that is refused, a size that is not of whole pages or does not fit.
pub fn run(
    config: &Config,
    seed: u64,
    parameters: &Parameters,
) -> Result<Persistence, ExperimentError> {
    let points = parameters
        .volumes_bytes
        .iter()
        .map(|&bytes| measure(config, seed, parameters, bytes))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Persistence {
        parameters: parameters.clone(),
        crossover: crossover(&points),
        points,
    })
}

fn measure(
    config: &Config,
    seed: u64,
    parameters: &Parameters,
    bytes: u64,
) -> Result<Point, ExperimentError> {
    let fits = bytes + PAGE_BYTES <= parameters.journal_bytes;
    if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) || !fits || parameters.commits == 0 {
        return Err(ExperimentError::Parameters(
            "a commit must be of whole pages and fit into the journal",
        ));
    }
    let pages = bytes / PAGE_BYTES;
    let flush_at_end = commits(config, seed, parameters, pages, WriteKind::Plain)?;
    let direct = commits(config, seed, parameters, pages, WriteKind::Reliable)?;
    let persisted = flush_at_end.write_us + flush_at_end.flush_us;
    Ok(Point {
        bytes,
        flush_at_end,
        direct,
        ratio: persisted / direct.write_us,
        flush_share: flush_at_end.flush_us / (persisted + flush_at_end.commit_us),
    })
}

/// Commits one after the other, on a device that has the journal already; plain writes are
/// flushed.
fn commits(
    config: &Config,
    seed: u64,
    parameters: &Parameters,
    pages: u64,
    kind: WriteKind,
) -> Result<Steps, ExperimentError> {
    let mut host = Host::new(config, parameters.capacity_bytes, seed)?;
    let journal_pages = parameters.journal_bytes / PAGE_BYTES;
    host.fill(0, journal_pages)?;
    host.rest(REST_NS);
    let mut total_ns = [0_u64; 3];
    let mut head = 0;
    for _ in 0..parameters.commits {
        if head + pages + 1 > journal_pages {
            head = 0;
        }
        total_ns[0] += timed(&mut host, &Command::write_pages(head, pages, kind))?;
        if kind == WriteKind::Plain {
            total_ns[1] += timed(&mut host, &Command::Flush)?;
        }
        let commit_block = Command::write_pages(head + pages, 1, WriteKind::Reliable);
        total_ns[2] += timed(&mut host, &commit_block)?;
        head += pages + 1;
    }
    let mean_us = |ns: u64| ns as f64 / f64::from(parameters.commits) / 1e3;
    Ok(Steps {
        write_us: mean_us(total_ns[0]),
        flush_us: mean_us(total_ns[1]),
        commit_us: mean_us(total_ns[2]),
    })
}

fn timed(host: &mut Host, command: &Command<'_>) -> Result<u64, ExperimentError> {
    let begun = host.now();
    host.issue(command)?;
    host.wait_all();
    Ok(host.now().ns_since(begun))
}

fn crossover(points: &[Point]) -> Crossover {
    if points
        .iter()
        .all(|point| (point.ratio - 1.0).abs() <= SAME_WITHIN)
    {
        return Crossover::Same;
    }
    let first = points.iter().position(|point| point.ratio <= 1.0);
    match first {
        None => Crossover::DirectAlways,
        Some(first) if points[first..].iter().any(|point| point.ratio > 1.0) => Crossover::Mixed,
        Some(0) => Crossover::FlushAtEndAlways,
        Some(first) => Crossover::At {
            bytes: points[first].bytes,
        },
    }
}

impl Crossover {
    /// In words.
    pub fn text(self) -> String {
        match self {
            Self::Same => "none: the two take the same time".to_owned(),
            Self::DirectAlways => "none: direct persistence is faster at every size".to_owned(),
            Self::FlushAtEndAlways => "none: flush at end is no slower at any size".to_owned(),
            Self::At { bytes } => format!("flush at end is no slower from {} KiB on", bytes / KIB),
            Self::Mixed => "none: which one is faster changes more than once".to_owned(),
        }
    }
}

impl Persistence {
    /// What S3 found on eMMC, and `docs/FLASH.md` expects of UFS.
    pub fn criteria(&self, is_emmc: bool, is_ufs: bool) -> Vec<Criterion> {
        let small = || {
            self.points
                .iter()
                .filter(|point| point.bytes < PUBLISHED_CROSSOVER_BYTES)
        };
        let least = small().map(|point| point.ratio).fold(f64::NAN, f64::min);
        // Of no points there is no mean, and no criterion that it meets.
        let ratio_mean = mean(small().map(|point| point.ratio)).unwrap_or(f64::NAN);
        let shares = self.points.iter().map(|point| point.flush_share);
        let share = mean(shares).unwrap_or(f64::NAN);
        let smallest = self.points.first().map_or(f64::NAN, |point| point.ratio);
        vec![
            Criterion::new(
                "flush at end ÷ direct, least below 128 KiB",
                "S3 §III.B, Fig. 8",
                "direct is faster below 128 KiB",
                least,
            )
            .at_least(1.0)
            .judged_if(is_emmc),
            Criterion::new(
                "flush at end ÷ direct, mean below 128 KiB",
                "S3 §III.B, Fig. 8",
                "1.30",
                ratio_mean,
            )
            .at_least(1.15)
            .at_most(1.6)
            .judged_if(is_emmc),
            Criterion::new(
                "share of the flush in flush at end, mean",
                "S3 §III.B, Fig. 8",
                "over 0.40",
                share,
            )
            .at_least(0.4)
            .judged_if(is_emmc),
            Criterion::new(
                "flush at end ÷ direct at 4 KiB",
                "FLASH.md, UFS 3.1",
                "0.95 (0.83 ms ÷ 0.87 ms)",
                smallest,
            )
            .at_most(1.0)
            .judged_if(is_ufs),
        ]
    }
}

#[cfg(test)]
mod tests {
    use mobifs_device_model::Preset;

    use super::*;

    fn point(ratio: f64) -> Point {
        Point {
            bytes: 4096,
            flush_at_end: Steps::default(),
            direct: Steps::default(),
            ratio,
            flush_share: 0.5,
        }
    }

    #[test]
    fn a_crossover_is_where_the_order_changes_once() {
        let of = |ratios: &[f64]| {
            let points: Vec<_> = ratios.iter().map(|&ratio| point(ratio)).collect();
            crossover(&points)
        };
        assert_eq!(of(&[1.005, 0.995]), Crossover::Same);
        assert_eq!(of(&[1.3, 1.1]), Crossover::DirectAlways);
        assert_eq!(of(&[0.9, 0.8]), Crossover::FlushAtEndAlways);
        assert_eq!(of(&[1.3, 1.0, 0.9]), Crossover::At { bytes: 4096 });
        assert_eq!(of(&[1.3, 0.9, 1.1]), Crossover::Mixed);
    }

    #[test]
    fn only_flush_at_end_flushes() {
        let parameters = Parameters {
            volumes_bytes: vec![4 * KIB, 64 * KIB],
            commits: 5,
            ..Parameters::default()
        };
        let config = Preset::Emmc51.config().unwrap();
        let result = run(&config, 1, &parameters).unwrap();
        for point in &result.points {
            assert!(point.flush_at_end.flush_us > 0.0, "{point:?}");
            assert_eq!(point.direct.flush_us, 0.0);
            assert!(point.direct.write_us > point.flush_at_end.write_us);
        }
        assert_eq!(result, run(&config, 1, &parameters).unwrap());
    }

    #[test]
    fn a_commit_that_does_not_fit_is_an_error() {
        let config = Preset::Emmc51.config().unwrap();
        for bytes in [0, 1000, 64 * MIB] {
            let parameters = Parameters {
                volumes_bytes: vec![bytes],
                ..Parameters::default()
            };
            let result = run(&config, 1, &parameters);
            assert!(matches!(result, Err(ExperimentError::Parameters(_))));
        }
    }
}
