//! The device without content: commands in, completion times out.

mod command;
mod execute;
mod persist;
mod shares;
mod sharing;
mod stats;
mod write_cache;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use mobifs_base::VirtualNs;

pub use command::{Command, CommandError, CommandKind, Completion, PackedPart, WriteKind};
pub use persist::SaveError;
pub use stats::{CommandStats, EnergyStats, LatencyStats, RegionStats, Stats, WearStats};

use crate::address::{Lpn, PAGE_BYTES, SECTORS_PER_PAGE};
use crate::config::{Config, ConfigError, WhenFull};
use crate::ftl::{Bus, Ftl, InvariantError, Ns, ns_of_us};
use shares::ShareQueue;
use stats::Counters;
use write_cache::{Dirty, WriteCache};

/// What happened to content on its way into the cells; [`crate::Device`] follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// What a page had by this version is in the cells from `at` on, not yet promised.
    Destaged { lpn: u32, version: u64, at: Ns },
    /// What a page had by this version survives any cut from `at` on.
    Durable { lpn: u32, version: u64, at: Ns },
    /// Everything up to this version survives any cut from `at` on.
    AllDurable { version: u64, at: Ns },
    /// The discard or remap that was just submitted has happened at `at`.
    Logged { at: Ns },
}

/// Times and sizes of the configuration that every command asks for.
struct FrontEnd {
    read_overhead_ns: Ns,
    write_overhead_ns: Ns,
    durable_overhead_ns: Ns,
    flush_overhead_ns: Ns,
    queue_depth: usize,
    cache_pages: u64,
    destage_above_pages: u64,
    /// Pages that one program of every die takes.
    stripe_pages: usize,
    /// Largest portion for the SLC cache, in pages; 0 without one.
    slc_pages_max: u64,
    slc_when_full: WhenFull,
    idle_delay_ns: Ns,
    remap_pages_max: u32,
}

/// A device without content: timing, FTL, wear and energy.
///
/// Time is virtual. [`Model::submit`] takes the time at which the host issues a command
/// and says when it ends; the quiet time between commands is used for background work.
/// Times must not go backwards; an earlier one counts as the latest so far. The same
/// configuration, seed and commands give the same times, statistics and saved state.
pub struct Model {
    config: Config,
    capacity_bytes: u64,
    front_end: FrontEnd,
    ftl: Ftl,
    bus: Bus,
    cache: WriteCache,
    shares: ShareQueue,
    /// When the log has the last that was shared.
    shares_logged_at: Ns,
    /// Barriers so far.
    epoch: u64,
    /// Number of the next write to a page.
    next_version: u64,
    /// Versions before this one were written before the last barrier.
    epoch_first_version: u64,
    /// The epoch of what was destaged last, when its programs end, and when those of all
    /// epochs before end.
    destaging: (u64, Ns),
    destaged_before_at: Ns,
    powered: bool,
    now: Ns,
    last_accepted_at: Ns,
    controller_free_at: Ns,
    /// A flush, discard or remap is executed alone until then.
    alone_until: Ns,
    outstanding: BinaryHeap<Reverse<Ns>>,
    active_until: Ns,
    counters: Counters,
    record_events: bool,
    events: Vec<Event>,
    batch: Vec<Dirty>,
}

impl FrontEnd {
    fn new(config: &Config, ftl: &Ftl) -> Self {
        let interface = &config.interface;
        let cache_pages = config.write_cache.cache_bytes.value / PAGE_BYTES as u64;
        let percent = u64::from(config.write_cache.destage_above_percent.value);
        let slc = config.slc.as_ref();
        Self {
            read_overhead_ns: ns_of_us(interface.read_overhead_us.value),
            write_overhead_ns: ns_of_us(interface.write_overhead_us.value),
            durable_overhead_ns: ns_of_us(interface.durable_overhead_us.value),
            flush_overhead_ns: ns_of_us(interface.flush_overhead_us.value),
            queue_depth: interface.queue_depth.value as usize,
            cache_pages,
            destage_above_pages: cache_pages * percent / 100,
            stripe_pages: (ftl.geometry.slots_per_row * ftl.geometry.dies) as usize,
            slc_pages_max: slc.map_or(0, |slc| slc.batch_bytes_max.value / PAGE_BYTES as u64),
            slc_when_full: slc.map_or(WhenFull::Direct, |slc| slc.when_full.value),
            idle_delay_ns: config.background.idle_delay_us.value * 1_000,
            remap_pages_max: config.remap.command_pages_max.value,
        }
    }
}

impl Model {
    /// A new device of `capacity_bytes`, all of it erased. `seed` drives the spread of
    /// operation times.
    ///
    /// # Errors
    /// A value out of range, or a capacity that is not possible.
    pub fn new(config: &Config, capacity_bytes: u64, seed: u64) -> Result<Self, ConfigError> {
        config.validate()?;
        let ftl = Ftl::new(config, capacity_bytes, seed)?;
        Ok(Self {
            front_end: FrontEnd::new(config, &ftl),
            bus: Bus::new(config.interface.bus_mb_per_s.value),
            counters: Counters::new(config.accounting.regions.value as usize, 0),
            config: config.clone(),
            capacity_bytes,
            ftl,
            cache: WriteCache::default(),
            shares: ShareQueue::default(),
            shares_logged_at: 0,
            epoch: 0,
            next_version: 0,
            epoch_first_version: 0,
            destaging: (0, 0),
            destaged_before_at: 0,
            powered: true,
            now: 0,
            last_accepted_at: 0,
            controller_free_at: 0,
            alone_until: 0,
            outstanding: BinaryHeap::new(),
            active_until: 0,
            record_events: false,
            events: Vec::new(),
            batch: Vec::new(),
        })
    }

    /// The configuration that it was made from.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Capacity in bytes.
    pub const fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Capacity in sectors.
    pub const fn sectors(&self) -> u64 {
        self.capacity_bytes / (PAGE_BYTES as u64 / SECTORS_PER_PAGE as u64)
    }

    /// The latest time of any command.
    pub const fn now(&self) -> VirtualNs {
        VirtualNs(self.now)
    }

    /// Whether it has power.
    pub const fn is_powered(&self) -> bool {
        self.powered
    }

    /// When everything that was asked for will have ended, background work included.
    pub fn idle_at(&self) -> VirtualNs {
        VirtualNs(self.active_until.max(self.ftl.resources.busy_until))
    }

    /// Whether a logical page has content in the cells.
    pub fn is_mapped(&self, page: Lpn) -> bool {
        self.ftl.is_mapped(page.0)
    }

    /// Pages whose content is where a remap left it, with the old address beside it in the
    /// cells.
    pub fn remapped_pages(&self) -> usize {
        self.ftl.remapped_pages()
    }

    /// Pages in the volatile write cache that wait for their way into the cells.
    pub const fn dirty_pages(&self) -> u64 {
        self.cache.waiting()
    }

    /// Bytes of memory that the tables take: they grow with the capacity.
    pub fn memory_bytes(&self) -> usize {
        self.ftl.memory_bytes()
    }

    /// Checks the invariants of the FTL, in time proportional to the device.
    ///
    /// # Errors
    /// What does not hold: a fault of the model.
    pub fn check(&self) -> Result<(), InvariantError> {
        self.ftl.check()
    }

    /// Lets time pass until `to`: the device uses quiet time to write back its cache, to
    /// fold its SLC cache and to collect garbage.
    pub fn advance(&mut self, to: VirtualNs) {
        self.now = self.now.max(to.0);
        if !self.powered {
            return;
        }
        let mut at = self
            .idle_at()
            .0
            .saturating_add(self.front_end.idle_delay_ns);
        while at < self.now {
            let began = at;
            if self.cache.waiting() > 0 {
                self.destage(self.front_end.stripe_pages, at);
            } else if !self.ftl.background_step(at) {
                break;
            }
            self.ftl.upkeep(at);
            self.ftl.forget_completed(at);
            at = at.max(self.ftl.resources.busy_until);
            self.be_active(began, at);
        }
        let now = self.now;
        self.cache.free_written(now);
        self.ftl.forget_completed(now);
    }

    /// Counts time as active.
    fn be_active(&mut self, from: Ns, until: Ns) {
        let from = from.max(self.active_until);
        if until > from {
            self.counters.active_ns += until - from;
            self.active_until = until;
        }
    }

    /// What was counted since the last [`Model::reset_stats`].
    pub fn stats(&self) -> Stats {
        let flash = self.ftl.counters;
        let counters = &self.counters;
        let elapsed_ns = self.now.max(self.active_until) - counters.since_ns;
        let commands = CommandKind::ALL.iter().zip(&counters.of_kind);
        let page_bytes = u64::from(self.config.geometry.page_bytes.value);
        let host_sectors_written: u64 = counters.region_sectors_written.iter().sum();
        let programmed_bytes = flash.total().pages_programmed * page_bytes;
        let lookups = flash.mapping_hits + flash.mapping_misses;
        let ratio = |part: f64, whole: u64| (whole > 0).then(|| part / whole as f64);
        Stats {
            elapsed_ns,
            active_ns: counters.active_ns,
            commands: commands
                .filter(|(_, of_kind)| of_kind.commands > 0)
                .map(|(kind, of_kind)| CommandStats {
                    kind: kind.name(),
                    commands: of_kind.commands,
                    sectors: of_kind.sectors,
                    flash_slots_programmed: of_kind.flash_slots_programmed,
                    mapping_hits: of_kind.mapping_hits,
                    mapping_misses: of_kind.mapping_misses,
                    latency: LatencyStats::of(&of_kind.latency_ns),
                })
                .collect(),
            regions: (0..counters.region_sectors_read.len())
                .map(|region| RegionStats {
                    sectors_read: counters.region_sectors_read[region],
                    sectors_written: counters.region_sectors_written[region],
                    slots_programmed: self.ftl.region_slots_programmed[region],
                    mapping_hits: counters.region_mapping_hits[region],
                    mapping_misses: counters.region_mapping_misses[region],
                })
                .collect(),
            flash,
            host_sectors_read: counters.region_sectors_read.iter().sum(),
            host_sectors_written,
            write_amplification: ratio(programmed_bytes as f64, host_sectors_written * 512),
            mapping_hit_rate: ratio(flash.mapping_hits as f64, lookups),
            energy: EnergyStats::new(
                &self.config.energy,
                &flash,
                counters,
                self.config.geometry.planes_per_die.value,
                elapsed_ns,
            ),
            wear: self.wear(),
        }
    }

    fn wear(&self) -> WearStats {
        let (mut min, mut max, mut sum, mut blocks) = (u32::MAX, 0, 0_u64, 0_u64);
        for erases in self.ftl.erase_counts() {
            min = min.min(erases);
            max = max.max(erases);
            sum += u64::from(erases);
            blocks += 1;
        }
        WearStats {
            min_erases: min,
            mean_erases: sum as f64 / blocks as f64,
            max_erases: max,
        }
    }

    /// Starts counting anew; wear stays.
    pub fn reset_stats(&mut self) {
        let since_ns = self.now.max(self.active_until);
        self.counters = Counters::new(self.config.accounting.regions.value as usize, since_ns);
        self.ftl.reset_counters();
    }

    /// From now on content events are recorded.
    pub(crate) const fn record_events(&mut self) {
        self.record_events = true;
    }

    /// Hands over what happened to content since the last time.
    pub(crate) fn take_events(&mut self, into: &mut Vec<Event>) {
        into.append(&mut self.events);
    }

    /// Number that the next write to a page gets, and barriers so far.
    pub(crate) const fn next_version(&self) -> (u64, u64) {
        (self.next_version, self.epoch)
    }
}
