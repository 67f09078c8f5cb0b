//! S4 §5.3.2 and §5.3.3, Fig. 13, on a real ext4: accesses of 4 KiB at random places of the first part of a
//! large file, by size of the device's mapping cache. `mobifs flash validate` has the same without a
//! filesystem, and with garbage collection.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use mobifs_charts::{Curve, Frame, Legend, Table, draw, picture};
use mobifs_device_server::DeviceCounts;
use mobifs_experiments::{Criterion, figure, size};
use mobifs_numerics::Random;
use rustix::fs::OFlags;
use serde::Serialize;
use serde_json::json;

use super::{GIB, KIB, MIB, PAGE_BYTES};
use crate::degrees::Degrees;
use crate::disk::{Disk, Wanted};
use crate::error::FragError;
use crate::outcome::{Figure, Outcome};
use crate::pieces::Aligned;
use crate::settings::{Extent, Settings};

/// S4's two sizes of the mapping cache.
const CACHES_KIB: [u64; 2] = [16, 128];
const WRITE_BYTES: usize = 1 << 20;
const RUNS: u32 = 2;
const MEASURED: &str = "S4 §5.3.2, Fig. 13a";
const READ: &str = "S4 §5.3.2, Fig. 13b";
const SIMULATED: &str = "S4 §5.3.3, Fig. 13c";

/// One run.
#[derive(Clone, Debug, Serialize)]
struct Point {
    cache_kib: u64,
    is_write: bool,
    region_bytes: u64,
    counts: DeviceCounts,
    /// Against the smallest region.
    slowdown: f64,
}

struct Sizes {
    disk_bytes: u64,
    regions_bytes: &'static [u64],
    operations: u32,
}

const fn sizes(extent: Extent) -> Sizes {
    match extent {
        Extent::Tiny => Sizes {
            disk_bytes: 128 * MIB,
            regions_bytes: &[MIB, 32 * MIB],
            operations: 50,
        },
        Extent::Reduced => Sizes {
            disk_bytes: 2 * GIB,
            regions_bytes: &[MIB, 10 * MIB, 100 * MIB, GIB],
            operations: 2_500,
        },
        Extent::Full => Sizes {
            disk_bytes: 4 * GIB,
            regions_bytes: &[MIB, 10 * MIB, 100 * MIB, GIB, 2 * GIB],
            operations: 10_000,
        },
    }
}

/// The experiment.
pub(crate) fn run(settings: &Settings) -> Result<Outcome, FragError> {
    let sizes = sizes(settings.extent);
    let mut points: Vec<Point> = Vec::new();
    let mut dof = 1.0;
    for cache_kib in CACHES_KIB {
        let wanted = Wanted {
            mapping_cache_bytes: Some(cache_kib * KIB),
            ..Wanted::ext4(sizes.disk_bytes, settings.seed)
        };
        let disk = Disk::new(&settings.scratch, wanted)?;
        let largest = sizes.regions_bytes.iter().max().copied().unwrap_or(MIB);
        let path = large_file(&disk, largest, settings)?;
        dof = Degrees::of(std::slice::from_ref(&path))?.mean_dof;
        for is_write in [false, true] {
            let mut smallest_ms = None;
            for &region_bytes in sizes.regions_bytes {
                let counts = best_of(RUNS, || {
                    access(&disk, &path, region_bytes, is_write, &sizes, settings)
                })?;
                let base_ms = *smallest_ms.get_or_insert(counts.busy_ms);
                points.push(Point {
                    cache_kib,
                    is_write,
                    region_bytes,
                    slowdown: counts.busy_ms / base_ms,
                    counts,
                });
            }
        }
    }
    Ok(Outcome {
        name: "dispersed",
        title: "Random accesses over a region, and the mapping cache (S4 Fig. 13)",
        method: format!(
            "{} accesses of 4 KiB, direct, writes durable one by one (O_DSYNC), at random places in \
             the first part of a file of {} on ext4 (DoF {}). Times are the device's (virtual time, eMMC 5.1): \
             the sum of the latencies of all its commands, the least of {RUNS} runs, each begun when the \
             device had nothing left to do.",
            sizes.operations,
            size(sizes.regions_bytes.iter().max().copied().unwrap_or(0)),
            figure(dof)
        ),
        tables: vec![table(&points, sizes.regions_bytes)],
        figures: vec![Figure {
            caption: "Slowdown against the smallest region, as in S4 Fig. 13".to_owned(),
            svg: picture_of(&points)?,
        }],
        criteria: criteria(&points, sizes.operations),
        notes: Vec::new(),
        data: json!({ "operations": sizes.operations, "dof": dof, "points": points }),
        seconds: 0.0,
    })
}

/// The quickest of several runs. The device's clock goes on while the host is busy elsewhere, and work in the
/// background that begins in such a pause is in the way of what follows: that only adds.
fn best_of(
    runs: u32,
    mut run: impl FnMut() -> Result<DeviceCounts, FragError>,
) -> Result<DeviceCounts, FragError> {
    let mut best = run()?;
    for _ in 1..runs {
        let next = run()?;
        if next.busy_ms < best.busy_ms {
            best = next;
        }
    }
    Ok(best)
}

fn open(path: &Path, flags: OFlags) -> Result<File, FragError> {
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true);
    let file = options.custom_flags(flags).open(path);
    file.map_err(|error| FragError::io(path, error))
}

fn large_file(disk: &Disk, bytes: u64, settings: &Settings) -> Result<PathBuf, FragError> {
    let path = disk.root().join("large");
    let at = |error| FragError::io(&path, error);
    let file = open(&path, OFlags::DIRECT)?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)
        .map_err(|errno| at(errno.into()))?;
    let content = Aligned::new(WRITE_BYTES);
    let mut offset = 0;
    while offset < bytes {
        settings.check()?;
        let count = (bytes - offset).min(WRITE_BYTES as u64);
        file.write_all_at(&content.get()[..count as usize], offset)
            .map_err(at)?;
        offset += count;
    }
    disk.sync()?;
    Ok(path)
}

fn access(
    disk: &Disk,
    path: &Path,
    region_bytes: u64,
    is_write: bool,
    sizes: &Sizes,
    settings: &Settings,
) -> Result<DeviceCounts, FragError> {
    let at = |error| FragError::io(path, error);
    let flags = if is_write {
        OFlags::DIRECT | OFlags::DSYNC
    } else {
        OFlags::DIRECT
    };
    let file = open(path, flags)?;
    let mut page = Aligned::new(PAGE_BYTES as usize);
    let mut random = Random::new(settings.seed);
    // What an earlier run has left to do would be part of this one.
    disk.rest(settings)?;
    let before = disk.counts()?;
    for _ in 0..sizes.operations {
        settings.check()?;
        let offset = random.below(region_bytes / PAGE_BYTES) * PAGE_BYTES;
        if is_write {
            file.write_all_at(page.get(), offset).map_err(at)?;
        } else {
            file.read_exact_at(page.get_mut(), offset).map_err(at)?;
        }
    }
    Ok(disk.counts()?.since(&before))
}

fn series(points: &[Point], cache_kib: u64, is_write: bool) -> Vec<&Point> {
    let points = points.iter();
    points
        .filter(|point| point.cache_kib == cache_kib && point.is_write == is_write)
        .collect()
}

fn name_of(cache_kib: u64, is_write: bool) -> String {
    format!("{}-{cache_kib}", if is_write { 'W' } else { 'R' })
}

fn all_series() -> impl Iterator<Item = (u64, bool)> {
    let caches = CACHES_KIB.into_iter();
    caches.flat_map(|cache| [(cache, false), (cache, true)])
}

fn table(points: &[Point], regions_bytes: &[u64]) -> Table {
    let mut table = Table::new("ms of the device, and slowdown", &["region"]);
    table
        .head
        .extend(all_series().map(|(cache, is_write)| name_of(cache, is_write)));
    for &region in regions_bytes {
        let mut row = vec![size(region)];
        for (cache, is_write) in all_series() {
            let series = series(points, cache, is_write);
            let found = series.iter().find(|point| point.region_bytes == region);
            row.push(found.map_or_else(String::new, |point| {
                format!(
                    "{} · {}×",
                    figure(point.counts.busy_ms),
                    figure(point.slowdown)
                )
            }));
        }
        table.rows.push(row);
    }
    table
}

fn picture_of(points: &[Point]) -> Result<String, FragError> {
    let frame = Frame {
        caption: "random 4 KiB in a region, on ext4 (S4 Fig. 13)".to_owned(),
        x_label: "region, MiB",
        y_label: "slowdown",
        x_is_logarithmic: true,
        legend: Legend::LowerRight,
    };
    let curves: Vec<_> = all_series()
        .map(|(cache, is_write)| {
            let series = series(points, cache, is_write).into_iter();
            let places =
                series.map(|point| (point.region_bytes as f64 / MIB as f64, point.slowdown));
            let curve = Curve::new(name_of(cache, is_write), places);
            if is_write { curve } else { curve.thin() }
        })
        .collect();
    Ok(picture(640, 360, |canvas| draw(canvas, &frame, &curves))?)
}

/// What a durable write is through a loop device, and how much slower reads are, which are the same everywhere.
fn evidence(points: &[Point], operations: u32, slowdown_of_reads: f64) -> [Criterion; 2] {
    let writes = points.iter().filter(|point| point.is_write);
    let accesses = u64::from(operations) * writes.clone().count() as u64;
    let flushes: u64 = writes.map(|point| point.counts.flushes).sum();
    [
        Criterion::new(
            "flushes for each durable access",
            MEASURED,
            "none: the phones' eMMC has reliable writes",
            flushes as f64 / accesses as f64,
        )
        .at_least(1.0),
        Criterion::new(
            "R-16: the same for reads, which need no flush",
            MEASURED,
            "1.69 (P7), 2.13 (S3) for writes",
            slowdown_of_reads,
        )
        .at_least(1.69 * 0.8)
        .at_most(2.13 * 1.25),
    ]
}

fn criteria(points: &[Point], operations: u32) -> Vec<Criterion> {
    let slowdown = |cache, is_write| {
        let last = series(points, cache, is_write).last().copied();
        last.map_or(f64::NAN, |point| point.slowdown)
    };
    let worst_up_to_100_mib = |cache, is_write| {
        let series = series(points, cache, is_write).into_iter();
        let covered = series.filter(|point| point.region_bytes <= 100 * MIB);
        covered.map(|point| point.slowdown).fold(f64::NAN, f64::max)
    };
    let writes = |cache| series(points, cache, true);
    let ratios = writes(128).into_iter().zip(writes(16));
    let ratios = ratios.map(|(large, small)| large.counts.busy_ms / small.counts.busy_ms);
    let evidence = evidence(points, operations, slowdown(16, false));
    let mut criteria = vec![
        Criterion::new(
            "W-16: largest region ÷ smallest",
            MEASURED,
            "1.69 (P7), 2.13 (S3)",
            slowdown(16, true),
        )
        // As for the model alone: a fifth below the one phone to a quarter above the other.
        .at_least(1.69 * 0.8)
        .at_most(2.13 * 1.25)
        .explained_by(
            "through a loop device a durable write is a write and a flush (there is no FUA), which takes \
             more than the mapping pages that are missed; without the flush the slowdown is that of the \
             phones",
            &evidence,
        ),
        Criterion::new(
            "R-16: largest region ÷ smallest",
            READ,
            "reads slow down too (figure only)",
            slowdown(16, false),
        )
        .at_least(1.10),
        Criterion::new(
            "W-128: slowdown up to 100 MB",
            SIMULATED,
            "128 KiB mitigates it up to 100 MB",
            worst_up_to_100_mib(128, true),
        )
        .at_most(1.10),
        Criterion::new(
            "W-128 ÷ W-16 at the same region, worst",
            SIMULATED,
            "a larger cache is never slower",
            ratios.fold(f64::NAN, f64::max),
        )
        // The host's own pauses are within the device's time.
        .at_most(1.10),
    ];
    criteria.extend(evidence);
    criteria
}
