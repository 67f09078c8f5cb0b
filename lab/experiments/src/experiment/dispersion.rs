//! S4 §5.3.2 and §5.3.3, Fig. 13: 10,000 accesses of 4 KiB at random places of the first
//! part of a large file. The larger the part, the more mapping pages they need; what the
//! mapping cache does not hold is read from flash, and changed mapping pages are written.

use mobifs_device_model::{Command, Config, Host, Model, Parameter, WriteKind};
use mobifs_numerics::Random;
use serde::Serialize;

use super::{ExperimentError, GIB, KIB, MIB, PAGE_BYTES, REST_NS};
use crate::criterion::Criterion;

/// A slowdown up to here is none: the cache still covers the region.
const COVERED_SLOWDOWN: f64 = 1.10;
/// Largest region that S4 finds covered by 128 KiB.
const COVERED_BYTES: u64 = 100 * MIB;
/// Where S4 has what it measured on phones, and what it simulated.
const MEASURED: &str = "S4 §5.3.2, Fig. 13a";
const SIMULATED: &str = "S4 §5.3.3, Fig. 13c";
/// S4's sizes of the mapping cache.
const SMALL_CACHE_BYTES: u64 = 16 * KIB;
const LARGE_CACHE_BYTES: u64 = 128 * KIB;

/// What is varied and what is fixed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parameters {
    /// Capacity of the device.
    pub capacity_bytes: u64,
    /// Size of the file, which is written once in sequence.
    pub file_bytes: u64,
    /// Regions, ascending; none larger than the file.
    pub regions_bytes: Vec<u64>,
    /// Sizes of the mapping cache.
    pub caches_bytes: Vec<u64>,
    /// Accesses in each run.
    pub operations: u32,
    /// Whether the device is measured full and collecting garbage as well.
    pub with_collection: bool,
}

impl Default for Parameters {
    /// S4's, with a cache of 1 MiB added.
    fn default() -> Self {
        Self {
            capacity_bytes: 4 * GIB,
            file_bytes: 2 * GIB,
            regions_bytes: vec![MIB, 10 * MIB, 100 * MIB, GIB, 2 * GIB],
            caches_bytes: vec![SMALL_CACHE_BYTES, LARGE_CACHE_BYTES, MIB],
            operations: 10_000,
            with_collection: true,
        }
    }
}

/// What the accesses do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Read.
    Read,
    /// Write, each durable before the next is issued.
    Write,
    /// As [`Access::Write`], on a device that is full and collects garbage.
    WriteCollecting,
}

/// One region.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Its size.
    pub region_bytes: u64,
    /// Time of all accesses.
    pub time_ms: f64,
    /// Against the smallest region.
    pub slowdown: f64,
    /// Share of mapping lookups that the cache answered.
    pub mapping_hit_rate: Option<f64>,
    /// Bytes programmed for each byte written.
    pub write_amplification: Option<f64>,
}

/// One kind of access with one size of the mapping cache.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// S4's name for it, such as W-16.
    pub name: String,
    /// What the accesses do.
    pub access: Access,
    /// Size of the mapping cache.
    pub cache_bytes: u64,
    /// For each region, ascending.
    pub points: Vec<Point>,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Dispersion {
    /// With what.
    pub parameters: Parameters,
    /// Reads and writes for each size of the cache.
    pub series: Vec<Series>,
}

/// Runs the experiment.
///
/// # Errors
/// A configuration that is refused, a region larger than the file.
pub fn run(
    config: &Config,
    seed: u64,
    parameters: &Parameters,
) -> Result<Dispersion, ExperimentError> {
    let largest = parameters.regions_bytes.iter().max();
    if largest.is_none_or(|&bytes| bytes > parameters.file_bytes)
        || parameters
            .regions_bytes
            .iter()
            .any(|&bytes| bytes < PAGE_BYTES)
    {
        return Err(ExperimentError::Parameters(
            "regions must have at least a page and lie in the file",
        ));
    }
    let mut series = Vec::new();
    for &cache_bytes in &parameters.caches_bytes {
        let device = Prepared::filled(config, seed, parameters, cache_bytes)?;
        for access in [Access::Read, Access::Write] {
            series.push(device.measure(seed, parameters, access)?);
        }
    }
    if parameters.with_collection {
        let device = Prepared::collecting(config, seed, parameters, LARGE_CACHE_BYTES)?;
        series.push(device.measure(seed, parameters, Access::WriteCollecting)?);
    }
    Ok(Dispersion {
        parameters: parameters.clone(),
        series,
    })
}

/// A device that is prepared once and measured many times.
struct Prepared {
    config: Config,
    capacity_bytes: u64,
    cache_bytes: u64,
    saved: Vec<u8>,
}

impl Prepared {
    /// Half empty, with the file in sequence, after all background work.
    fn filled(
        config: &Config,
        seed: u64,
        parameters: &Parameters,
        cache_bytes: u64,
    ) -> Result<Self, ExperimentError> {
        let config = with_cache(config, cache_bytes);
        let mut host = Host::new(&config, parameters.capacity_bytes, seed)?;
        host.fill(0, parameters.file_bytes / PAGE_BYTES)?;
        host.rest(REST_NS);
        Self::save(config, parameters.capacity_bytes, cache_bytes, &mut host)
    }

    /// Nothing but the file, overwritten at random as often as it has pages, then by as many
    /// durable writes as two runs have, without idle time since: every further write needs space
    /// that must be collected, and an SLC cache is full.
    fn collecting(
        config: &Config,
        seed: u64,
        parameters: &Parameters,
        cache_bytes: u64,
    ) -> Result<Self, ExperimentError> {
        const OVERWRITES_UNDER_WAY: usize = 32;
        let config = with_cache(config, cache_bytes);
        let capacity_bytes = parameters.file_bytes;
        let pages = capacity_bytes / PAGE_BYTES;
        let mut host = Host::new(&config, capacity_bytes, seed)?;
        host.fill(0, pages)?;
        host.set_depth(OVERWRITES_UNDER_WAY);
        let mut random = Random::new(seed ^ 1);
        for _ in 0..pages {
            host.issue(&Command::write_pages(
                random.below(pages),
                1,
                WriteKind::Plain,
            ))?;
        }
        host.wait_all();
        host.set_depth(1);
        for _ in 0..2 * parameters.operations {
            host.issue(&Command::write_pages(
                random.below(pages),
                1,
                WriteKind::Reliable,
            ))?;
        }
        host.issue(&Command::Flush)?;
        host.wait_all();
        Self::save(config, capacity_bytes, cache_bytes, &mut host)
    }

    fn save(
        config: Config,
        capacity_bytes: u64,
        cache_bytes: u64,
        host: &mut Host,
    ) -> Result<Self, ExperimentError> {
        let saved = host.model().save()?;
        Ok(Self {
            config,
            capacity_bytes,
            cache_bytes,
            saved,
        })
    }

    fn measure(
        &self,
        seed: u64,
        parameters: &Parameters,
        access: Access,
    ) -> Result<Series, ExperimentError> {
        let mut points: Vec<Point> = Vec::new();
        for &region_bytes in &parameters.regions_bytes {
            let mut point =
                self.access_region(seed, parameters.operations, region_bytes, access)?;
            let smallest_ms = points.first().map_or(point.time_ms, |first| first.time_ms);
            point.slowdown = point.time_ms / smallest_ms;
            points.push(point);
        }
        let letter = if access == Access::Read { 'R' } else { 'W' };
        let suffix = match access {
            Access::WriteCollecting => "-GC",
            _ => "",
        };
        Ok(Series {
            name: format!("{letter}-{}{suffix}", self.cache_bytes / KIB),
            access,
            cache_bytes: self.cache_bytes,
            points,
        })
    }

    fn access_region(
        &self,
        seed: u64,
        operations: u32,
        region_bytes: u64,
        access: Access,
    ) -> Result<Point, ExperimentError> {
        let model = Model::load(&self.config, self.capacity_bytes, &self.saved)?;
        let mut host = Host::of(model);
        // The first command waits until the device has recovered; then the clock starts.
        host.issue(&Command::read_pages(0, 1))?;
        host.wait_all();
        host.model_mut().reset_stats();
        let begun = host.now();
        let pages = region_bytes / PAGE_BYTES;
        let mut random = Random::new(seed);
        for _ in 0..operations {
            let page = random.below(pages);
            host.issue(&match access {
                Access::Read => Command::read_pages(page, 1),
                _ => Command::write_pages(page, 1, WriteKind::Reliable),
            })?;
        }
        host.wait_all();
        let stats = host.model().stats();
        Ok(Point {
            region_bytes,
            time_ms: host.now().ns_since(begun) as f64 / 1e6,
            slowdown: 1.0,
            mapping_hit_rate: stats.mapping_hit_rate,
            write_amplification: stats.write_amplification,
        })
    }
}

fn with_cache(config: &Config, cache_bytes: u64) -> Config {
    let mut config = config.clone();
    config.mapping.cache_bytes = Parameter::assumed(cache_bytes, "varied by the experiment");
    config
}

impl Series {
    /// Slowdown of the largest region.
    fn largest(&self) -> f64 {
        self.points.last().map_or(f64::NAN, |point| point.slowdown)
    }

    /// Greatest slowdown among regions up to `bytes`.
    fn worst_up_to(&self, bytes: u64) -> f64 {
        let points = self.points.iter();
        let covered = points.filter(|point| point.region_bytes <= bytes);
        covered.map(|point| point.slowdown).fold(f64::NAN, f64::max)
    }

    /// Least time of a region against the next smaller one.
    fn least_step(&self) -> f64 {
        let steps = self.points.windows(2);
        let ratios = steps.map(|pair| pair[1].time_ms / pair[0].time_ms);
        ratios.fold(f64::NAN, f64::min)
    }

    /// The largest region that is not slower than the smallest.
    fn reach_bytes(&self) -> u64 {
        let points = self.points.iter();
        let covered = points.take_while(|point| point.slowdown <= COVERED_SLOWDOWN);
        covered.last().map_or(0, |point| point.region_bytes)
    }

    /// Greatest time against the same region of `other`.
    fn worst_against(&self, other: &Self) -> f64 {
        let pairs = self.points.iter().zip(&other.points);
        let ratios = pairs.map(|(own, other)| own.time_ms / other.time_ms);
        ratios.fold(f64::NAN, f64::max)
    }
}

impl Dispersion {
    /// The series of one kind of access and one size of the cache.
    pub fn of(&self, access: Access, cache_bytes: u64) -> Option<&Series> {
        self.series
            .iter()
            .find(|series| series.access == access && series.cache_bytes == cache_bytes)
    }

    /// What S4 found. The size of the effect is judged only for the kind of device that S4
    /// measured; its direction for all.
    pub fn criteria(&self, is_emmc: bool) -> Vec<Criterion> {
        let mut criteria = Vec::new();
        for series in &self.series {
            if series.access == Access::Write {
                let name = format!("{}: no region faster than a smaller one", series.name);
                let published = "time grows with the region";
                let step = series.least_step();
                criteria.push(Criterion::new(name, MEASURED, published, step).at_least(0.97));
            }
        }
        let caches = [SMALL_CACHE_BYTES, LARGE_CACHE_BYTES];
        if let [Some(small), Some(large)] = caches.map(|bytes| self.of(Access::Write, bytes)) {
            criteria.extend(cache_criteria(small, large, is_emmc));
            criteria.extend(self.further_criteria(large, is_emmc));
        }
        criteria
    }

    /// Reads, and writes beside garbage collection.
    fn further_criteria(&self, large: &Series, is_emmc: bool) -> Vec<Criterion> {
        let mut criteria = Vec::new();
        if let Some(reads) = self.of(Access::Read, SMALL_CACHE_BYTES) {
            let published = "reads slow down too (figure only)";
            let slowdown = reads.largest();
            let name = "R-16: largest region ÷ smallest";
            criteria.push(
                Criterion::new(name, SIMULATED, published, slowdown)
                    .at_least(COVERED_SLOWDOWN)
                    .judged_if(is_emmc),
            );
        }
        if let Some(collecting) = self.of(Access::WriteCollecting, LARGE_CACHE_BYTES) {
            let published = "“even more significant” with collection";
            let more = collecting.largest() / large.largest();
            let name = "W-128-GC ÷ W-128: slowdown, largest";
            criteria.push(
                Criterion::new(name, SIMULATED, published, more)
                    .at_least(1.0)
                    .judged_if(is_emmc),
            );
        }
        criteria
    }
}

/// Writes with S4's two sizes of the mapping cache.
fn cache_criteria(small: &Series, large: &Series, is_emmc: bool) -> [Criterion; 4] {
    let reach = large.reach_bytes() as f64 / small.reach_bytes() as f64;
    [
        Criterion::new(
            "W-16: largest region ÷ smallest",
            MEASURED,
            "1.69 (P7), 2.13 (S3)",
            small.largest(),
        )
        // A fifth below the one phone to a quarter above the other.
        .at_least(1.69 * 0.8)
        .at_most(2.13 * 1.25)
        .judged_if(is_emmc),
        Criterion::new(
            "W-128: slowdown up to 100 MB",
            SIMULATED,
            "128 KiB mitigates it up to 100 MB",
            large.worst_up_to(COVERED_BYTES),
        )
        .at_most(COVERED_SLOWDOWN)
        .judged_if(is_emmc),
        Criterion::new(
            "region that is covered, 128 KiB ÷ 16 KiB",
            SIMULATED,
            "a larger cache postpones the slowdown",
            reach,
        )
        .at_least(2.0)
        .judged_if(is_emmc),
        Criterion::new(
            "W-128 ÷ W-16 at the same region, worst",
            SIMULATED,
            "a larger cache is never slower",
            large.worst_against(small),
        )
        .at_most(1.02),
    ]
}

#[cfg(test)]
mod tests {
    use mobifs_device_model::Preset;

    use super::*;

    fn small() -> Parameters {
        Parameters {
            capacity_bytes: 256 * MIB,
            file_bytes: 128 * MIB,
            regions_bytes: vec![MIB, 128 * MIB],
            caches_bytes: vec![16 * KIB, 128 * KIB],
            operations: 300,
            with_collection: false,
        }
    }

    #[test]
    fn a_region_that_outgrows_the_cache_misses() {
        let config = Preset::Emmc51.config().unwrap();
        let result = run(&config, 1, &small()).unwrap();
        let rate = |access, cache_bytes| {
            let series = result.of(access, cache_bytes).unwrap();
            series.points[1].mapping_hit_rate.unwrap()
        };
        // 128 MiB have 32 mapping pages; the small cache holds 4, the large one all.
        assert!(rate(Access::Read, 16 * KIB) < 0.3);
        assert!(rate(Access::Read, 128 * KIB) > 0.85);
        assert!(rate(Access::Write, 16 * KIB) < rate(Access::Write, 128 * KIB));
        assert_eq!(result, run(&config, 1, &small()).unwrap());
    }

    #[test]
    fn a_full_device_collects() {
        let parameters = Parameters {
            file_bytes: 64 * MIB,
            regions_bytes: vec![64 * MIB],
            caches_bytes: vec![],
            with_collection: true,
            ..small()
        };
        let config = Preset::Emmc51.config().unwrap();
        let result = run(&config, 1, &parameters).unwrap();
        let collecting = result.of(Access::WriteCollecting, 128 * KIB).unwrap();
        let amplification = collecting.points[0].write_amplification.unwrap();
        assert!(amplification > 1.5, "{amplification}");
    }

    #[test]
    fn a_region_beyond_the_file_is_an_error() {
        let config = Preset::Emmc51.config().unwrap();
        for region_bytes in [0, 129 * MIB] {
            let parameters = Parameters {
                regions_bytes: vec![region_bytes],
                ..small()
            };
            let result = run(&config, 1, &parameters);
            assert!(matches!(result, Err(ExperimentError::Parameters(_))));
        }
    }

    #[test]
    fn series_are_summed_up() {
        let point = |region_bytes, time_ms, slowdown| Point {
            region_bytes,
            time_ms,
            slowdown,
            mapping_hit_rate: None,
            write_amplification: None,
        };
        let series = Series {
            name: "W-16".into(),
            access: Access::Write,
            cache_bytes: 16 * KIB,
            points: vec![
                point(1, 10.0, 1.0),
                point(2, 10.5, 1.05),
                point(3, 20.0, 2.0),
            ],
        };
        assert_eq!(series.largest(), 2.0);
        assert_eq!(series.reach_bytes(), 2);
        assert_eq!(series.worst_up_to(2), 1.05);
        assert_eq!(series.least_step(), 1.05);
        assert_eq!(series.worst_against(&series), 1.0);
    }
}
