//! The basic figures of a device, beside those that the preset was made for (`docs/FLASH.md`, presets).
//! None of them is a parameter: they follow from the times of the cells, the bus and the
//! firmware.

use mobifs_device_model::{Command, Config, Host, Preset, Stats, WriteKind};
use mobifs_numerics::Random;
use serde::Serialize;

use super::{ExperimentError, GIB, MIB, PAGE_BYTES, REST_NS};
use crate::criterion::Criterion;

const SOURCE: &str = "FLASH.md";
/// How far a figure may be from the published one.
const TOLERANCE_PERCENT: f64 = 10.0;
/// Large sequential commands under way: the next is there when one ends.
const STREAM_DEPTH: usize = 2;
/// Sequential accesses: enough to make start and end negligible.
const STREAM_BYTES: u64 = 128 * MIB;
/// Single accesses go to a region that every mapping cache covers.
const REGION_BYTES: u64 = 8 * MIB;
const SINGLE_OPERATIONS: u32 = 512;
/// Writes that a cache takes before it is flushed again: less than any preset writes back
/// on its own.
const CACHED_WRITES: u32 = 16;

/// The basic figures. Single accesses are of 4 KiB, one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Calibration {
    /// 512 KiB reads in sequence, in 10⁶ bytes a second.
    pub sequential_read_mb_per_s: f64,
    /// 512 KiB writes in sequence to a device at rest, flushed at the end.
    pub sequential_write_mb_per_s: f64,
    /// 512 KiB writes in sequence when an SLC cache is full.
    pub sustained_write_mb_per_s: f64,
    /// Read at a random place.
    pub random_read_us: f64,
    /// Plain write into an empty cache.
    pub cached_write_us: f64,
    /// Reliable write.
    pub reliable_write_us: f64,
    /// Plain write and flush together.
    pub write_and_flush_us: f64,
    /// Flush of one dirty page.
    pub flush_of_page_us: f64,
    /// Flush of as much as the cache holds before it writes back on its own.
    pub flush_of_full_us: f64,
    /// Energy of sequential reads, without idle power, for each 10⁶ bytes.
    pub read_mj_per_mb: f64,
    /// Energy of sequential writes.
    pub write_mj_per_mb: f64,
}

/// Measures the basic figures.
///
/// # Errors
/// A configuration that is refused.
pub fn run(config: &Config, seed: u64) -> Result<Calibration, ExperimentError> {
    let slc_bytes = config.slc.as_ref().map_or(0, |slc| slc.cache_bytes.value);
    // The SLC cache and as much again, or the streams would meet at the end of the device.
    let capacity_bytes = (2 * slc_bytes + 4 * STREAM_BYTES).next_multiple_of(GIB);
    let mut host = Host::new(config, capacity_bytes, seed)?;
    let (sequential_write_mb_per_s, write_mj_per_mb) = stream(&mut host, 0, true)?;
    let mut written_bytes = STREAM_BYTES;
    while written_bytes < slc_bytes + STREAM_BYTES {
        host.fill(written_bytes / PAGE_BYTES, STREAM_BYTES / PAGE_BYTES)?;
        written_bytes += STREAM_BYTES;
    }
    let (sustained_write_mb_per_s, _) = stream(&mut host, written_bytes / PAGE_BYTES, true)?;
    host.rest(REST_NS);
    let (sequential_read_mb_per_s, read_mj_per_mb) = stream(&mut host, 0, false)?;
    host.rest(REST_NS);

    let mut random = Random::new(seed);
    let mut page = || random.below(REGION_BYTES / PAGE_BYTES);
    let random_read_us = mean_us(&mut host, || Command::read_pages(page(), 1))?;
    host.rest(REST_NS);
    let reliable_write_us = mean_us(&mut host, || {
        Command::write_pages(page(), 1, WriteKind::Reliable)
    })?;
    host.rest(REST_NS);
    let (cached_write_us, _) = writes_and_flush(&mut host, CACHED_WRITES, &mut page)?;
    let (write_us, flush_of_page_us) = writes_and_flush(&mut host, 1, &mut page)?;
    let cache = &config.write_cache;
    let full_bytes = cache.cache_bytes.value * u64::from(cache.destage_above_percent.value) / 100;
    let full_pages = u32::try_from(full_bytes / PAGE_BYTES).unwrap_or(u32::MAX);
    let (_, flush_of_full_us) = writes_and_flush(&mut host, full_pages.max(1), &mut page)?;
    Ok(Calibration {
        sequential_read_mb_per_s,
        sequential_write_mb_per_s,
        sustained_write_mb_per_s,
        random_read_us,
        cached_write_us,
        reliable_write_us,
        write_and_flush_us: write_us + flush_of_page_us,
        flush_of_page_us,
        flush_of_full_us,
        read_mj_per_mb,
        write_mj_per_mb,
    })
}

/// Rate in MB/s and energy in mJ a MB of a sequential stream from `page` on.
fn stream(host: &mut Host, page: u64, writes: bool) -> Result<(f64, f64), ExperimentError> {
    host.model_mut().reset_stats();
    host.set_depth(STREAM_DEPTH);
    let begun = host.now();
    let end = page + STREAM_BYTES / PAGE_BYTES;
    for page in (page..end).step_by(Host::LARGE_COMMAND_PAGES as usize) {
        host.issue(&if writes {
            Command::write_pages(page, Host::LARGE_COMMAND_PAGES, WriteKind::Plain)
        } else {
            Command::read_pages(page, Host::LARGE_COMMAND_PAGES)
        })?;
    }
    host.wait_all();
    if writes {
        host.issue(&Command::Flush)?;
        host.wait_all();
    }
    host.set_depth(1);
    let seconds = host.now().ns_since(begun) as f64 / 1e9;
    let megabytes = STREAM_BYTES as f64 / 1e6;
    let energy_mj = spent_mj(&host.model().stats());
    Ok((megabytes / seconds, energy_mj / megabytes))
}

/// Energy of operations and activity, without idle power.
fn spent_mj(stats: &Stats) -> f64 {
    stats.energy.total_mj() - stats.energy.idle_mj
}

/// Mean time of single commands, one after the other, in µs.
fn mean_us(
    host: &mut Host,
    mut command: impl FnMut() -> Command<'static>,
) -> Result<f64, ExperimentError> {
    let begun = host.now();
    for _ in 0..SINGLE_OPERATIONS {
        host.issue(&command())?;
    }
    host.wait_all();
    Ok(host.now().ns_since(begun) as f64 / f64::from(SINGLE_OPERATIONS) / 1e3)
}

/// Mean time of a plain write, and of the flush after `writes` of them, in µs.
fn writes_and_flush(
    host: &mut Host,
    writes: u32,
    page: &mut impl FnMut() -> u64,
) -> Result<(f64, f64), ExperimentError> {
    const ROUNDS: u32 = 32;
    let (mut write_ns, mut flush_ns) = (0, 0);
    for _ in 0..ROUNDS {
        let begun = host.now();
        for _ in 0..writes {
            host.issue(&Command::write_pages(page(), 1, WriteKind::Plain))?;
        }
        host.wait_all();
        write_ns += host.now().ns_since(begun);
        let begun = host.now();
        host.issue(&Command::Flush)?;
        host.wait_all();
        flush_ns += host.now().ns_since(begun);
        host.rest(REST_NS);
    }
    let mean_us = |ns: u64, count: u32| ns as f64 / f64::from(count) / 1e3;
    Ok((
        mean_us(write_ns, ROUNDS * writes),
        mean_us(flush_ns, ROUNDS),
    ))
}

impl Calibration {
    /// The figures beside those of `docs/FLASH.md`.
    pub fn criteria(&self, preset: Preset) -> Vec<Criterion> {
        match preset {
            Preset::MicroSd => self.microsd(),
            Preset::Emmc51 => self.emmc(),
            Preset::Ufs31 => self.ufs(),
        }
    }

    fn microsd(&self) -> Vec<Criterion> {
        let mut criteria = self.streams(20.0, 10.0, (8.0, 1.3));
        criteria.push(time("4 KiB random read", 1080.0, self.random_read_us));
        criteria.push(time("4 KiB durable", 10_000.0, self.reliable_write_us));
        criteria.push(time(
            "4 KiB write + flush",
            10_000.0,
            self.write_and_flush_us,
        ));
        criteria
    }

    fn emmc(&self) -> Vec<Criterion> {
        let mut criteria = self.streams(250.0, 125.0, (6.0, 1.0));
        criteria.push(time("4 KiB random read", 90.0, self.random_read_us));
        criteria.push(time("4 KiB write into cache", 65.0, self.cached_write_us));
        criteria.push(time("4 KiB FUA", 310.0, self.reliable_write_us));
        // Published as 0.5 to 3 ms by what is dirty.
        criteria.push(time(
            "flush of one dirty page",
            500.0,
            self.flush_of_page_us,
        ));
        criteria.push(time("flush of a full cache", 3000.0, self.flush_of_full_us));
        criteria
    }

    fn ufs(&self) -> Vec<Criterion> {
        let mut criteria = self.streams(2000.0, 1200.0, (1.5, 0.25));
        let sustained = self.sustained_write_mb_per_s;
        criteria.push(rate("sequential write, SLC full", 500.0, sustained));
        criteria.push(time("4 KiB random read", 80.0, self.random_read_us));
        criteria.push(time("4 KiB write into cache", 40.0, self.cached_write_us));
        criteria.push(time("4 KiB FUA", 870.0, self.reliable_write_us));
        criteria.push(time("4 KiB write + flush", 830.0, self.write_and_flush_us));
        criteria
    }

    fn streams(&self, read: f64, write: f64, energy: (f64, f64)) -> Vec<Criterion> {
        let (write_mj, read_mj) = energy;
        vec![
            rate("sequential read", read, self.sequential_read_mb_per_s),
            rate("sequential write", write, self.sequential_write_mb_per_s),
            joules("energy of reads", read_mj, self.read_mj_per_mb),
            joules("energy of writes", write_mj, self.write_mj_per_mb),
        ]
    }
}

fn rate(name: &str, published: f64, measured: f64) -> Criterion {
    Criterion::new(name, SOURCE, published.to_string(), measured)
        .in_unit("MB/s")
        .within_percent(published, TOLERANCE_PERCENT)
}

fn time(name: &str, published: f64, measured: f64) -> Criterion {
    Criterion::new(name, SOURCE, published.to_string(), measured)
        .in_unit("µs")
        .within_percent(published, TOLERANCE_PERCENT)
}

fn joules(name: &str, published: f64, measured: f64) -> Criterion {
    Criterion::new(name, SOURCE, published.to_string(), measured)
        .in_unit("mJ/MB")
        .within_percent(published, TOLERANCE_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::criterion::Verdict;

    /// The presets' fitted values are fitted to this.
    #[test]
    fn each_preset_comes_to_the_published_figures() {
        for preset in Preset::ALL {
            let figures = run(&preset.config().unwrap(), 1).unwrap();
            for criterion in figures.criteria(preset) {
                let preset = preset.name();
                assert_eq!(criterion.verdict, Verdict::Pass, "{preset}: {criterion:?}");
            }
        }
    }

    #[test]
    fn the_figures_are_repeatable() {
        let config = Preset::Emmc51.config().unwrap();
        assert_eq!(run(&config, 1).unwrap(), run(&config, 1).unwrap());
    }
}
