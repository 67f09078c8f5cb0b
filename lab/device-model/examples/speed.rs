//! The model's own speed in count-only mode and its memory: page operations a second on
//! one core, and bytes a logical page.
//!
//! `cargo run --release -p mobifs-device-model --example speed [-- GiB]`

use std::time::Instant;

use mobifs_device_model::{Command, Model, PAGE_BYTES, Preset, Sector, VirtualNs, WriteKind};

struct Bench {
    model: Model,
    at: VirtualNs,
    state: u64,
}

impl Bench {
    fn run(&mut self, command: &Command<'_>) {
        match self.model.submit(self.at, command) {
            Ok(completion) => self.at = completion.done_at,
            Err(error) => eprintln!("{error}"),
        }
    }

    fn random_page(&mut self, pages: u64) -> Sector {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        Sector((self.state >> 33) % pages * 8)
    }

    /// Runs commands of `sectors` sectors until `operations` pages are done.
    fn measure(
        &mut self,
        name: &str,
        operations: u64,
        sectors: u32,
        mut each: impl FnMut(&mut Self, u64),
    ) {
        let pages = u64::from(sectors) / 8;
        let begun = Instant::now();
        for number in 0..operations / pages {
            each(self, number * u64::from(sectors));
        }
        let seconds = begun.elapsed().as_secs_f64();
        let rate = operations as f64 / seconds / 1e6;
        println!("  {name:<44} {rate:6.2} M page operations/s");
    }

    fn measure_all(&mut self, pages: u64) {
        let kind = WriteKind::Plain;
        self.measure(
            "sequential write, 512 KiB, whole device",
            pages,
            1024,
            |bench, sector| {
                bench.run(&Command::Write {
                    start: Sector(sector),
                    sectors: 1024,
                    kind,
                });
            },
        );
        self.measure(
            "sequential read, 512 KiB",
            4_000_000.min(pages),
            1024,
            |bench, sector| {
                bench.run(&Command::Read {
                    start: Sector(sector),
                    sectors: 1024,
                });
            },
        );
        self.measure(
            "random read, 4 KiB, whole device",
            2_000_000,
            8,
            |bench, _| {
                let start = bench.random_page(pages);
                bench.run(&Command::Read { start, sectors: 8 });
            },
        );
        self.measure(
            "random write, 4 KiB, 64 MiB region",
            2_000_000,
            8,
            |bench, _| {
                let start = bench.random_page(pages.min(16_384));
                bench.run(&Command::Write {
                    start,
                    sectors: 8,
                    kind,
                });
            },
        );
        self.measure(
            "random write, 4 KiB, whole device, full",
            2_000_000,
            8,
            |bench, _| {
                let start = bench.random_page(pages);
                bench.run(&Command::Write {
                    start,
                    sectors: 8,
                    kind,
                });
            },
        );
    }
}

fn main() {
    let gib: u64 = std::env::args()
        .nth(1)
        .and_then(|gib| gib.parse().ok())
        .unwrap_or(32);
    let capacity_bytes = gib << 30;
    let pages = capacity_bytes / PAGE_BYTES as u64;
    for preset in Preset::ALL {
        let config = preset.config();
        let model = config.and_then(|config| Model::new(&config, capacity_bytes, 1));
        let model = match model {
            Ok(model) => model,
            Err(error) => {
                eprintln!("{}: {error}", preset.name());
                continue;
            }
        };
        println!("{} of {gib} GiB", preset.name());
        let mut bench = Bench {
            model,
            at: VirtualNs::ZERO,
            state: 1,
        };
        bench.measure_all(pages);
        let stats = bench.model.stats();
        let flash = stats.flash.total().pages_programmed;
        let bytes = bench.model.memory_bytes();
        println!(
            "  flash pages programmed in all: {flash}; write amplification {:.2}",
            stats.write_amplification.unwrap_or(0.0)
        );
        println!(
            "  memory: {bytes} bytes, {:.2} a logical page",
            bytes as f64 / pages as f64
        );
    }
}
