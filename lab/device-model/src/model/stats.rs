//! What is counted, and in which form it is reported.

use mobifs_numerics::LatencyHistogram;
use serde::Serialize;

use super::command::CommandKind;
use crate::config::EnergyConfig;
use crate::ftl::FlashCounters;

/// Longest latency that the histogram resolves: ten minutes.
const LATENCY_MAX_NS: u64 = 600_000_000_000;
/// Two digits: 32 KiB a histogram.
const LATENCY_DIGITS: u8 = 2;

/// Commands of one kind.
#[derive(Clone, Debug)]
pub(super) struct CommandCounters {
    pub(super) commands: u64,
    pub(super) sectors: u64,
    pub(super) flash_slots_programmed: u64,
    pub(super) mapping_hits: u64,
    pub(super) mapping_misses: u64,
    pub(super) latency_ns: LatencyHistogram,
}

impl CommandCounters {
    fn new() -> Self {
        Self {
            commands: 0,
            sectors: 0,
            flash_slots_programmed: 0,
            mapping_hits: 0,
            mapping_misses: 0,
            latency_ns: LatencyHistogram::new(LATENCY_MAX_NS, LATENCY_DIGITS),
        }
    }
}

/// Everything that is counted outside the FTL.
#[derive(Clone, Debug)]
pub(super) struct Counters {
    pub(super) of_kind: Vec<CommandCounters>,
    pub(super) region_sectors_read: Vec<u64>,
    pub(super) region_sectors_written: Vec<u64>,
    pub(super) region_mapping_hits: Vec<u64>,
    pub(super) region_mapping_misses: Vec<u64>,
    pub(super) bus_bytes: u64,
    pub(super) active_ns: u64,
    pub(super) since_ns: u64,
}

impl Counters {
    pub(super) fn new(regions: usize, since_ns: u64) -> Self {
        Self {
            of_kind: vec![CommandCounters::new(); CommandKind::ALL.len()],
            region_sectors_read: vec![0; regions],
            region_sectors_written: vec![0; regions],
            region_mapping_hits: vec![0; regions],
            region_mapping_misses: vec![0; regions],
            bus_bytes: 0,
            active_ns: 0,
            since_ns,
        }
    }
}

/// What the device did since its statistics were reset.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stats {
    /// Virtual time that they cover, in ns.
    pub elapsed_ns: u64,
    /// Part of it in which commands or background work were under way, in ns.
    pub active_ns: u64,
    /// By kind of command; kinds that did not occur are left out.
    pub commands: Vec<CommandStats>,
    /// By equal parts of the logical space.
    pub regions: Vec<RegionStats>,
    /// What the flash did, by cause.
    pub flash: FlashCounters,
    /// Sectors that the host read.
    pub host_sectors_read: u64,
    /// Sectors that the host wrote.
    pub host_sectors_written: u64,
    /// Bytes programmed, padding included, for each byte that the host wrote; none if it
    /// wrote nothing.
    pub write_amplification: Option<f64>,
    /// Share of mapping lookups that found their page in the cache; none without lookups.
    pub mapping_hit_rate: Option<f64>,
    /// What was consumed.
    pub energy: EnergyStats,
    /// Erase counts of the blocks, over the device's life.
    pub wear: WearStats,
}

/// Commands of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CommandStats {
    /// [`CommandKind::name`].
    pub kind: &'static str,
    /// How many.
    pub commands: u64,
    /// Sectors that they read, wrote, discarded or moved.
    pub sectors: u64,
    /// 4 KiB units programmed while they were executed, background work left out.
    pub flash_slots_programmed: u64,
    /// Mapping lookups that found their page in the cache.
    pub mapping_hits: u64,
    /// Mapping lookups that did not.
    pub mapping_misses: u64,
    /// From submission to the end.
    pub latency: LatencyStats,
}

/// A distribution of latencies, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyStats {
    /// Mean.
    pub mean_ns: f64,
    /// Least.
    pub min_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90 %.
    pub p90_ns: u64,
    /// 99 %.
    pub p99_ns: u64,
    /// 99.9 %.
    pub p999_ns: u64,
    /// Greatest.
    pub max_ns: u64,
}

impl LatencyStats {
    pub(super) fn of(histogram: &LatencyHistogram) -> Self {
        Self {
            mean_ns: histogram.mean_ns(),
            min_ns: histogram.min_ns(),
            p50_ns: histogram.quantile_ns(0.5),
            p90_ns: histogram.quantile_ns(0.9),
            p99_ns: histogram.quantile_ns(0.99),
            p999_ns: histogram.quantile_ns(0.999),
            max_ns: histogram.max_ns(),
        }
    }
}

/// One of the equal parts of the logical space.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RegionStats {
    /// Sectors that the host read, by the command's first sector.
    pub sectors_read: u64,
    /// Sectors that the host wrote, by the command's first sector.
    pub sectors_written: u64,
    /// 4 KiB units of the region's content programmed, whatever the cause.
    pub slots_programmed: u64,
    /// Mapping lookups of commands into the region that found their page in the cache.
    pub mapping_hits: u64,
    /// Mapping lookups of commands into the region that did not.
    pub mapping_misses: u64,
}

/// What was consumed, in mJ.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EnergyStats {
    /// Reads from the cells.
    pub read_mj: f64,
    /// Programs.
    pub program_mj: f64,
    /// Erases.
    pub erase_mj: f64,
    /// Transfers over the bus.
    pub transfer_mj: f64,
    /// Active power over the active time.
    pub active_mj: f64,
    /// Idle power over the rest.
    pub idle_mj: f64,
}

impl EnergyStats {
    pub(super) fn new(
        config: &EnergyConfig,
        flash: &FlashCounters,
        counters: &Counters,
        planes: u32,
        elapsed_ns: u64,
    ) -> Self {
        let total = flash.total();
        let idle_ns = elapsed_ns.saturating_sub(counters.active_ns);
        let erases = total.erases as f64 * f64::from(planes);
        Self {
            read_mj: total.pages_read as f64 * config.page_read_uj.value / 1e3,
            program_mj: total.pages_programmed as f64 * config.page_program_uj.value / 1e3,
            erase_mj: erases * config.block_erase_uj.value / 1e3,
            transfer_mj: counters.bus_bytes as f64 / 1024.0 * config.transfer_uj_per_kib.value
                / 1e3,
            active_mj: counters.active_ns as f64 * config.active_mw.value / 1e9,
            idle_mj: idle_ns as f64 * config.idle_mw.value / 1e9,
        }
    }

    /// All of it, in mJ.
    pub fn total_mj(&self) -> f64 {
        self.read_mj
            + self.program_mj
            + self.erase_mj
            + self.transfer_mj
            + self.active_mj
            + self.idle_mj
    }
}

/// Erase counts of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WearStats {
    /// Least.
    pub min_erases: u32,
    /// Mean.
    pub mean_erases: f64,
    /// Greatest.
    pub max_erases: u32,
}
