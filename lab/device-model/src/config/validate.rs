//! Ranges of every value, checked once before a model is built.

use super::Config;
use super::error::ConfigError;
use crate::address::PAGE_BYTES;

type Check = Result<(), ConfigError>;

fn check<T: ToString>(ok: bool, key: &'static str, value: &T, range: &'static str) -> Check {
    if ok {
        Ok(())
    } else {
        Err(ConfigError::OutOfRange {
            key,
            value: value.to_string(),
            range,
        })
    }
}

/// A duration in µs: anything from nothing to ten seconds.
fn time(key: &'static str, value: f64) -> Check {
    let ok = (0.0..=1e7).contains(&value);
    check(ok, key, &value, "0 to 10,000,000 µs")
}

/// A rate in MB/s.
fn rate(key: &'static str, value: f64) -> Check {
    let ok = (0.1..=100_000.0).contains(&value);
    check(ok, key, &value, "0.1 to 100,000 MB/s")
}

/// An energy or power.
fn amount(key: &'static str, value: f64) -> Check {
    check((0.0..=1e9).contains(&value), key, &value, "0 to 10⁹")
}

impl Config {
    /// Checks every range.
    ///
    /// # Errors
    /// The first value out of its range, with its key and what is allowed.
    pub fn validate(&self) -> Check {
        self.validate_interface()?;
        self.validate_geometry()?;
        self.validate_timing()?;
        self.validate_caches()?;
        self.validate_policies()?;
        self.validate_energy()
    }

    fn validate_interface(&self) -> Check {
        let interface = &self.interface;
        rate("interface.bus_mb_per_s", interface.bus_mb_per_s.value)?;
        for (key, parameter) in [
            ("interface.read_overhead_us", &interface.read_overhead_us),
            ("interface.write_overhead_us", &interface.write_overhead_us),
            (
                "interface.durable_overhead_us",
                &interface.durable_overhead_us,
            ),
            ("interface.flush_overhead_us", &interface.flush_overhead_us),
        ] {
            time(key, parameter.value)?;
        }
        let depth = interface.queue_depth.value;
        let ok = (1..=1024).contains(&depth);
        check(ok, "interface.queue_depth", &depth, "1 to 1,024")?;
        let unit = interface.reliable_write_unit_sectors.value;
        check(
            matches!(unit, 1 | 2 | 4 | 8),
            "interface.reliable_write_unit_sectors",
            &unit,
            "1, 2, 4 or 8",
        )
    }

    fn validate_geometry(&self) -> Check {
        let geometry = &self.geometry;
        for (key, value, max, range) in [
            ("geometry.channels", geometry.channels.value, 64, "1 to 64"),
            (
                "geometry.dies_per_channel",
                geometry.dies_per_channel.value,
                64,
                "1 to 64",
            ),
            (
                "geometry.planes_per_die",
                geometry.planes_per_die.value,
                16,
                "1 to 16",
            ),
            (
                "geometry.bits_per_cell",
                geometry.bits_per_cell.value,
                4,
                "1 to 4",
            ),
        ] {
            check((1..=max).contains(&value), key, &value, range)?;
        }
        let page = geometry.page_bytes.value;
        let ok = page.is_multiple_of(PAGE_BYTES as u32) && (1..=64 << 10).contains(&page);
        let range = "a multiple of 4,096, at most 65,536";
        check(ok, "geometry.page_bytes", &page, range)?;
        let pages = geometry.pages_per_block.value;
        let ok = (4..=4096).contains(&pages) && pages >= geometry.bits_per_cell.value;
        check(ok, "geometry.pages_per_block", &pages, "4 to 4,096")?;
        let spare = geometry.over_provisioning_percent.value;
        let ok = (1.0..=400.0).contains(&spare);
        let key = "geometry.over_provisioning_percent";
        check(ok, key, &spare, "1 to 400 percent")
    }

    fn validate_timing(&self) -> Check {
        let timing = &self.timing;
        time("timing.read_us", timing.read_us.value)?;
        time("timing.program_us", timing.program_us.value)?;
        time("timing.erase_us", timing.erase_us.value)?;
        rate("timing.channel_mb_per_s", timing.channel_mb_per_s.value)?;
        let spread = timing.spread_percent.value;
        check(spread <= 90, "timing.spread_percent", &spread, "0 to 90")
    }

    fn validate_caches(&self) -> Check {
        let bytes = self.write_cache.cache_bytes.value;
        let ok = bytes == 0 || (64 << 10..=1 << 30).contains(&bytes);
        let range = "0, or 64 KiB to 1 GiB";
        check(ok, "write_cache.cache_bytes", &bytes, range)?;
        let percent = self.write_cache.destage_above_percent.value;
        let ok = (1..=100).contains(&percent);
        check(
            ok,
            "write_cache.destage_above_percent",
            &percent,
            "1 to 100",
        )?;
        let bytes = self.mapping.cache_bytes.value;
        let ok = (16 << 10..=1 << 32).contains(&bytes);
        check(ok, "mapping.cache_bytes", &bytes, "16 KiB to 4 GiB")?;
        let pages = self.mapping.checkpoint_pages.value;
        let ok = (64..=1 << 26).contains(&pages);
        check(ok, "mapping.checkpoint_pages", &pages, "64 to 2²⁶")?;
        let in_slc = self.mapping.in_slc_mode.value;
        let range = "true only with a section [slc], whose times it uses";
        check(
            !in_slc || self.slc.is_some(),
            "mapping.in_slc_mode",
            &in_slc,
            range,
        )?;
        let Some(slc) = &self.slc else {
            return Ok(());
        };
        let bytes = slc.cache_bytes.value;
        let ok = (4096..=1 << 40).contains(&bytes);
        check(ok, "slc.cache_bytes", &bytes, "4 KiB to 1 TiB")?;
        time("slc.read_us", slc.read_us.value)?;
        time("slc.program_us", slc.program_us.value)
    }

    fn validate_policies(&self) -> Check {
        let percent = self.garbage_collection.idle_free_percent.value;
        let key = "garbage_collection.idle_free_percent";
        check(percent <= 100, key, &percent, "0 to 100")?;
        let delay = self.background.idle_delay_us.value;
        let range = "at most one hour";
        check(
            delay <= 3_600_000_000,
            "background.idle_delay_us",
            &delay,
            range,
        )?;
        let remap = &self.remap;
        let entries = remap.table_entries.value;
        let ok = entries <= 1 << 24;
        check(ok, "remap.table_entries", &entries, "0 to 2²⁴")?;
        let pages = remap.log_pages.value;
        let ok = (4..=1 << 16).contains(&pages);
        check(ok, "remap.log_pages", &pages, "4 to 65,536")?;
        // A snapshot of the table must leave room for new records.
        let per_page = remap.log_entries_per_page.value;
        let ok = (1..=4096).contains(&per_page);
        check(ok, "remap.log_entries_per_page", &per_page, "1 to 4,096")?;
        let ok = entries.div_ceil(per_page) * 2 <= pages;
        let range = "at least twice the pages that remap.table_entries fill";
        check(ok, "remap.log_pages", &pages, range)?;
        let most = remap.command_pages_max.value;
        let ok = (1..=1 << 20).contains(&most);
        check(ok, "remap.command_pages_max", &most, "1 to 2²⁰")?;
        let regions = self.accounting.regions.value;
        let ok = (1..=4096).contains(&regions);
        check(ok, "accounting.regions", &regions, "1 to 4,096")
    }

    fn validate_energy(&self) -> Check {
        let energy = &self.energy;
        amount("energy.page_read_uj", energy.page_read_uj.value)?;
        amount("energy.page_program_uj", energy.page_program_uj.value)?;
        amount("energy.block_erase_uj", energy.block_erase_uj.value)?;
        amount(
            "energy.transfer_uj_per_kib",
            energy.transfer_uj_per_kib.value,
        )?;
        amount("energy.active_mw", energy.active_mw.value)?;
        amount("energy.idle_mw", energy.idle_mw.value)
    }
}
