//! What a device is made of. Every value carries its origin, unknown keys are refused by
//! name, and ranges are checked before a model is built.

mod error;
mod parameter;
mod preset;
mod validate;

pub use error::ConfigError;
pub use parameter::{Origin, Parameter};
pub use preset::Preset;

use serde::{Deserialize, Serialize};

/// A device, without its capacity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What reports call the device.
    pub name: String,
    /// The bus to the host and the firmware's front end.
    pub interface: InterfaceConfig,
    /// How the flash is built.
    pub geometry: GeometryConfig,
    /// What the flash's operations take.
    pub timing: TimingConfig,
    /// The volatile write cache.
    pub write_cache: WriteCacheConfig,
    /// The demand-loaded mapping cache (S4 §5.3.3).
    pub mapping: MappingConfig,
    /// Garbage collection.
    pub garbage_collection: GarbageCollectionConfig,
    /// Wear levelling.
    pub wear: WearConfig,
    /// Blocks used at one bit a cell to take writes quickly; none if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slc: Option<SlcConfig>,
    /// What is done while the host is quiet.
    pub background: BackgroundConfig,
    /// The log of remaps and discards.
    pub remap: RemapConfig,
    /// What operations consume.
    pub energy: EnergyConfig,
    /// How statistics are divided.
    pub accounting: AccountingConfig,
}

/// The bus to the host and the firmware's front end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterfaceConfig {
    /// Payload rate of the bus, in 10⁶ bytes a second.
    pub bus_mb_per_s: Parameter<f64>,
    /// Firmware and protocol time of a read command, in µs; commands pass it one by one.
    pub read_overhead_us: Parameter<f64>,
    /// Firmware and protocol time of a write command, in µs; commands pass it one by one.
    pub write_overhead_us: Parameter<f64>,
    /// Time that a write adds before it may say that its data is durable, in µs: the
    /// status polls and internal bookkeeping that the page operations do not explain.
    pub durable_overhead_us: Parameter<f64>,
    /// Firmware time of a cache flush, in µs, beside the programs it waits for.
    pub flush_overhead_us: Parameter<f64>,
    /// Commands that the device takes before the first has ended.
    pub queue_depth: Parameter<u32>,
    /// A reliable write that a power cut interrupts is old or new in units of this many
    /// sectors.
    pub reliable_write_unit_sectors: Parameter<u32>,
}

/// How the flash is built.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GeometryConfig {
    /// Channels between controller and flash.
    pub channels: Parameter<u32>,
    /// Dies on each channel.
    pub dies_per_channel: Parameter<u32>,
    /// Planes of a die, which read, program and erase together.
    pub planes_per_die: Parameter<u32>,
    /// Bytes of a flash page; a multiple of the 4 KiB mapping unit.
    pub page_bytes: Parameter<u32>,
    /// Pages of a block in one plane.
    pub pages_per_block: Parameter<u32>,
    /// Bits of a cell (2 MLC, 3 TLC): what a block loses in SLC mode.
    pub bits_per_cell: Parameter<u32>,
    /// Flash beyond the logical capacity that garbage collection can count on, in
    /// percent of the capacity.
    pub over_provisioning_percent: Parameter<f64>,
}

/// What the flash's operations take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimingConfig {
    /// A page from the cells to the die's register, in µs.
    pub read_us: Parameter<f64>,
    /// A page from the register into the cells, in µs.
    pub program_us: Parameter<f64>,
    /// A block, in µs.
    pub erase_us: Parameter<f64>,
    /// Rate of a channel, in 10⁶ bytes a second.
    pub channel_mb_per_s: Parameter<f64>,
    /// Reads, programs and erases vary by up to this much around their time, drawn from
    /// the model's seed.
    pub spread_percent: Parameter<u32>,
}

/// The volatile write cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteCacheConfig {
    /// Size in bytes; 0 for a device that answers a write when it is in the cells.
    pub cache_bytes: Parameter<u64>,
    /// Above this share of the cache the device writes back on its own.
    pub destage_above_percent: Parameter<u32>,
}

/// The demand-loaded mapping cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MappingConfig {
    /// Size in bytes; a mapping page of 1,024 entries of 4 bytes takes 4 KiB of it.
    pub cache_bytes: Parameter<u64>,
    /// A changed mapping page is written back at the latest when this many pages were
    /// programmed after the change: bounds what a power-on has to scan.
    pub checkpoint_pages: Parameter<u32>,
    /// Whether mapping pages and the log are programmed in SLC mode (with the times of
    /// `slc`).
    pub in_slc_mode: Parameter<bool>,
}

/// How a victim is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VictimPolicy {
    /// The block with the fewest valid pages.
    Greedy,
    /// The block with the most of age × free share ÷ cost of moving the rest.
    CostBenefit,
}

/// Garbage collection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GarbageCollectionConfig {
    /// How a victim is chosen.
    pub policy: Parameter<VictimPolicy>,
    /// While the host is quiet, collect until this share of the over-provisioned blocks
    /// is free, in percent.
    pub idle_free_percent: Parameter<u32>,
}

/// Wear levelling. Dynamic levelling (the least worn free block is opened first) is
/// always on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WearConfig {
    /// Static levelling: cold data moves to worn blocks when erase counts differ by
    /// more than this; 0 switches it off.
    pub spread_max_erases: Parameter<u32>,
}

/// What happens to a write for which the SLC cache has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenFull {
    /// It goes to the multi-bit cells.
    Direct,
    /// It waits until a block was folded.
    Fold,
}

/// Blocks used at one bit a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlcConfig {
    /// What the SLC blocks hold, in bytes; rounded up to whole blocks on every die.
    pub cache_bytes: Parameter<u64>,
    /// A page from the cells to the register, in µs.
    pub read_us: Parameter<f64>,
    /// A page from the register into the cells, in µs.
    pub program_us: Parameter<f64>,
    /// Data that is written back in larger portions goes to the multi-bit cells at once.
    pub batch_bytes_max: Parameter<u64>,
    /// What happens when there is no room.
    pub when_full: Parameter<WhenFull>,
}

/// What is done while the host is quiet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackgroundConfig {
    /// Quiet time after which the device starts on its own work, in µs.
    pub idle_delay_us: Parameter<u64>,
}

/// The log of remaps and discards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemapConfig {
    /// Pages whose logical address may differ from the one beside their content in the
    /// cells; a remap beyond that copies.
    pub table_entries: Parameter<u32>,
    /// Entries that a 4 KiB page of the log holds.
    pub log_entries_per_page: Parameter<u32>,
    /// Pages of the log before it is compacted.
    pub log_pages: Parameter<u32>,
    /// Pages that one remap command may move.
    pub command_pages_max: Parameter<u32>,
}

/// What operations consume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnergyConfig {
    /// Reading a flash page, in µJ.
    pub page_read_uj: Parameter<f64>,
    /// Programming a flash page, in µJ.
    pub page_program_uj: Parameter<f64>,
    /// Erasing a block of one plane, in µJ.
    pub block_erase_uj: Parameter<f64>,
    /// Moving 1 KiB over the bus, in µJ.
    pub transfer_uj_per_kib: Parameter<f64>,
    /// Power while a command or background work is under way, in mW.
    pub active_mw: Parameter<f64>,
    /// Power otherwise, in mW.
    pub idle_mw: Parameter<f64>,
}

/// How statistics are divided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccountingConfig {
    /// Equal parts of the logical space that are accounted separately.
    pub regions: Parameter<u32>,
}

impl Config {
    /// Reads a complete configuration.
    ///
    /// # Errors
    /// TOML that does not parse, an unknown or missing key (named), a value out of range.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|error| ConfigError::toml(&error))?;
        config.validate()?;
        Ok(config)
    }

    /// The configuration as TOML, complete.
    pub fn to_toml(&self) -> String {
        // Only maps with other keys than strings cannot be written as TOML; there are none.
        toml::to_string_pretty(self).unwrap_or_default()
    }

    /// A number that differs between configurations whose saved states are not
    /// interchangeable: it covers all values, not their origins.
    pub fn digest(&self) -> u32 {
        let mut table = toml::Table::try_from(self).unwrap_or_default();
        strip_origins(&mut table);
        crc32c::crc32c(table.to_string().as_bytes())
    }
}

fn strip_origins(table: &mut toml::Table) {
    if table.contains_key("value") {
        table.remove("source");
        table.remove("assumed");
    }
    for (_, value) in table.iter_mut() {
        if let toml::Value::Table(inner) = value {
            strip_origins(inner);
        }
    }
}
