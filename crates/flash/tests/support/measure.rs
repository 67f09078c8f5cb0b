//! The figures of the design document's table of presets, as the model gives them.

#![allow(dead_code, clippy::expect_used, reason = "shared with an example")]

use mobifs_flash::{Command, Config, Model, PAGE_BYTES, Sector, VirtualNs, WriteKind};

const CAPACITY_BYTES: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// What the kernel sends in one command at most.
const LARGE_SECTORS: u32 = 1024;
/// Random accesses stay in a region whose mapping the smallest cache holds.
const REGION_PAGES: u64 = 4096;

/// What a preset comes to. MB are 10⁶ bytes.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) sequential_read_mb_per_s: f64,
    pub(crate) sequential_write_mb_per_s: f64,
    /// Behind the SLC cache, if there is one.
    pub(crate) sustained_write_mb_per_s: f64,
    pub(crate) random_read_us: f64,
    pub(crate) cached_write_us: f64,
    pub(crate) reliable_write_us: f64,
    pub(crate) write_and_flush_us: f64,
    pub(crate) flush_of_little_us: f64,
    pub(crate) flush_of_full_cache_us: f64,
    pub(crate) write_mj_per_mb: f64,
    pub(crate) read_mj_per_mb: f64,
}

struct Bench {
    model: Model,
    at: VirtualNs,
}

impl Bench {
    fn new(config: &Config) -> Self {
        let model = Model::new(config, CAPACITY_BYTES, 1).expect("a valid configuration");
        let at = VirtualNs::ZERO;
        Self { model, at }
    }

    fn run(&mut self, command: &Command<'_>) -> f64 {
        let completion = self
            .model
            .submit(self.at, command)
            .expect("a valid command");
        let latency_us = completion.latency_ns(self.at) as f64 / 1e3;
        self.at = completion.done_at;
        latency_us
    }

    fn write(&mut self, start: u64, sectors: u32, kind: WriteKind) -> f64 {
        let start = Sector(start);
        self.run(&Command::Write {
            start,
            sectors,
            kind,
        })
    }

    /// Flushes and lets the device finish what it does in quiet times.
    fn rest(&mut self) {
        self.run(&Command::Flush);
        self.at = self.at.plus_us(60_000_000);
        self.model.advance(self.at);
        self.at = self.at.max(self.model.idle_at()).plus_us(1_000_000);
    }

    /// 10⁶ bytes a second over `bytes`, large commands queued two deep.
    fn sequential(&mut self, bytes: u64, write: bool) -> f64 {
        let sectors = LARGE_SECTORS;
        let begun = self.at;
        let mut ended = [begun; 2];
        for number in 0..bytes / 512 / u64::from(sectors) {
            let start = Sector(number * u64::from(sectors));
            let command = if write {
                Command::Write {
                    start,
                    sectors,
                    kind: WriteKind::Plain,
                }
            } else {
                Command::Read { start, sectors }
            };
            let at = ended[number as usize % 2];
            let completion = self.model.submit(at, &command).expect("a valid command");
            ended[number as usize % 2] = completion.done_at;
        }
        self.at = ended[0].max(ended[1]);
        bytes as f64 / 1e6 / (self.at.ns_since(begun) as f64 / 1e9)
    }

    fn energy_mj(&mut self, action: impl FnOnce(&mut Self)) -> f64 {
        self.model.reset_stats();
        action(self);
        let energy = self.model.stats().energy;
        energy.total_mj() - energy.idle_mj
    }
}

/// The sector of one of the pages of the region, spread without repetition.
fn spread(number: u64) -> u64 {
    (number * 2_654_435_761 % REGION_PAGES) * 8
}

fn mean(count: u64, mut sample: impl FnMut(u64) -> f64) -> f64 {
    (0..count).map(&mut sample).sum::<f64>() / count as f64
}

/// Measures a configuration in virtual time.
pub(crate) fn figures(config: &Config) -> Figures {
    let mut bench = Bench::new(config);
    let sequential_write_mb_per_s = bench.sequential(256 * MIB, true);
    bench.rest();
    let sequential_read_mb_per_s = bench.sequential(256 * MIB, false);
    let mj = bench.energy_mj(|bench| {
        bench.sequential(64 * MIB, false);
    });
    let read_mj_per_mb = mj / (64.0 * MIB as f64 / 1e6);
    let mj = bench.energy_mj(|bench| {
        bench.sequential(64 * MIB, true);
        bench.run(&Command::Flush);
    });
    let write_mj_per_mb = mj / (64.0 * MIB as f64 / 1e6);
    bench.rest();

    let random_read_us = mean(1000, |number| {
        let start = Sector(spread(number));
        bench.run(&Command::Read { start, sectors: 8 })
    });
    let cache_pages = config.write_cache.cache_bytes.value / PAGE_BYTES as u64;
    let few = (cache_pages / 2).max(1);
    let cached_write_us = mean(few, |number| {
        bench.write(spread(number), 8, WriteKind::Plain)
    });
    bench.rest();
    let reliable_write_us = mean(200, |number| {
        bench.write(spread(number), 8, WriteKind::Reliable)
    });
    bench.rest();
    let mut flush_of_little_us = 0.0;
    let write_and_flush_us = mean(200, |number| {
        let write = bench.write(spread(number), 8, WriteKind::Plain);
        let flush = bench.run(&Command::Flush);
        flush_of_little_us += flush / 200.0;
        write + flush
    });
    bench.rest();
    // The most that can wait; one page more, and the device begins to program.
    let most = cache_pages * u64::from(config.write_cache.destage_above_percent.value) / 100;
    let flush_of_full_cache_us = mean(8, |round| {
        for number in 0..most {
            bench.write(spread(round * most + number), 8, WriteKind::Plain);
        }
        let flush = bench.run(&Command::Flush);
        bench.rest();
        flush
    });
    let mut sustained = Bench::new(config);
    sustained.sequential(512 * MIB, true);
    let sustained_write_mb_per_s = sustained.sequential(256 * MIB, true);
    Figures {
        sequential_read_mb_per_s,
        sequential_write_mb_per_s,
        sustained_write_mb_per_s,
        random_read_us,
        cached_write_us,
        reliable_write_us,
        write_and_flush_us,
        flush_of_little_us,
        flush_of_full_cache_us,
        write_mj_per_mb,
        read_mj_per_mb,
    }
}
