//! Random commands, quiet times and power cuts on small devices, against a reference of
//! what content may be there; the invariants of the FTL after every command.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use crate::support::{Oracle, cases, read_all, small_config};
use mobifs_device_model::{
    Completion, Config, Device, FlashCounters, Keep, Lpn, MemoryMedium, Model, PackedPart, Sector,
    VirtualNs, WriteKind,
};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Write {
        place: u16,
        sectors: u8,
        reliable: bool,
    },
    Fill {
        place: u16,
        pages: u8,
    },
    Packed {
        parts: Vec<(u16, u8, bool)>,
    },
    Read,
    Flush,
    Barrier,
    Discard {
        place: u16,
        sectors: u8,
    },
    Remap {
        from: u16,
        to: u16,
        pages: u8,
    },
    Share {
        from: u16,
        to: u16,
        pages: u8,
    },
    Quiet {
        ms: u8,
    },
    /// A cut when the last command has run for this share of its time, or later.
    Cut {
        share_percent: u8,
        keep: Keep,
    },
}

fn keep() -> impl Strategy<Value = Keep> {
    prop_oneof![
        1 => Just(Keep::None),
        1 => Just(Keep::All),
        4 => any::<u64>().prop_map(|seed| Keep::Random { seed }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (any::<u16>(), 1..=24_u8, prop::bool::weighted(0.25))
            .prop_map(|(place, sectors, reliable)| Step::Write { place, sectors, reliable }),
        5 => (any::<u16>(), 4..=32_u8).prop_map(|(place, pages)| Step::Fill { place, pages }),
        2 => prop::collection::vec((any::<u16>(), 1..=12_u8, any::<bool>()), 1..4)
            .prop_map(|parts| Step::Packed { parts }),
        1 => Just(Step::Read),
        2 => Just(Step::Flush),
        3 => Just(Step::Barrier),
        2 => (any::<u16>(), 1..=80_u8).prop_map(|(place, sectors)| Step::Discard { place, sectors }),
        3 => (any::<u16>(), any::<u16>(), 1..=12_u8)
            .prop_map(|(from, to, pages)| Step::Remap { from, to, pages }),
        4 => (any::<u16>(), any::<u16>(), 1..=12_u8)
            .prop_map(|(from, to, pages)| Step::Share { from, to, pages }),
        1 => (0..=60_u8).prop_map(|ms| Step::Quiet { ms }),
        2 => (0..=120_u8, keep())
            .prop_map(|(share_percent, keep)| Step::Cut { share_percent, keep }),
    ]
}

struct Run {
    device: Device<MemoryMedium>,
    oracle: Oracle,
    /// Sectors that the steps use; the rest is only there.
    places: Vec<u64>,
    at: VirtualNs,
    last: Completion,
    queued: bool,
    /// Pages.
    shared: u64,
}

impl Run {
    fn new(config: &Config, capacity_bytes: u64, places: Vec<u64>, seed: u64) -> Self {
        let model = Model::new(config, capacity_bytes, seed).unwrap();
        let unit = config.interface.reliable_write_unit_sectors.value;
        let zero = VirtualNs::ZERO;
        Self {
            oracle: Oracle::new(model.sectors(), u64::from(unit)),
            device: Device::new(model, MemoryMedium::new()),
            places,
            at: zero,
            last: Completion {
                accepted_at: zero,
                done_at: zero,
            },
            queued: false,
            shared: 0,
        }
    }

    /// Writes the whole device once, so that there is nothing but over-provisioning.
    fn fill(&mut self) {
        let sectors = self.device.model().sectors();
        for start in (0..sectors).step_by(1024) {
            let count = (sectors - start).min(1024) as u32;
            self.write(start, count, WriteKind::Plain);
        }
    }

    fn sectors(&self) -> u64 {
        self.device.model().sectors()
    }

    /// A range of about the length asked for, in the device.
    fn range(&self, place: u16, sectors: u32) -> (u64, u32) {
        let place = usize::from(place);
        let start = self.places[place % self.places.len()] + (place / self.places.len() % 8) as u64;
        let start = start.min(self.sectors() - 1);
        (start, sectors.min((self.sectors() - start) as u32))
    }

    fn ended(&mut self, completion: Completion) {
        assert!(completion.accepted_at >= self.at && completion.done_at >= completion.accepted_at);
        self.last = completion;
        // Every second command is issued before the last has ended.
        self.queued = !self.queued;
        if !self.queued {
            self.at = self.at.max(completion.done_at);
        }
    }

    fn write(&mut self, start: u64, sectors: u32, kind: WriteKind) {
        let content = self.oracle.content(sectors);
        let completion = self
            .device
            .write(self.at, Sector(start), &content, kind)
            .unwrap();
        self.oracle.wrote(start, sectors, kind, completion);
        self.ended(completion);
    }

    fn packed(&mut self, parts: &[(u16, u8, bool)]) {
        let parts: Vec<PackedPart> = parts
            .iter()
            .map(|&(place, sectors, reliable)| {
                let (start, sectors) = self.range(place, sectors.into());
                let start = Sector(start);
                PackedPart {
                    start,
                    sectors,
                    kind: kind(reliable),
                }
            })
            .collect();
        let content = self.oracle.packed_content(&parts);
        let completion = self.device.packed_write(self.at, &parts, &content).unwrap();
        self.oracle.wrote_packed(&parts, completion);
        self.ended(completion);
    }

    fn remap(&mut self, from: u16, to: u16, pages: u8) {
        let (from, _) = self.range(from, 8);
        let (to, _) = self.range(to, 8);
        let (from, to) = (from / 8 * 8, to / 8 * 8);
        let most = (self.sectors() - from.max(to)).min(from.abs_diff(to)) / 8;
        let sectors = most.min(pages.into()) as u32 * 8;
        if sectors > 0 {
            let (at, device) = (self.at, &mut self.device);
            let completion = device.remap(at, Sector(from), Sector(to), sectors).unwrap();
            self.oracle.remapped(from, to, sectors, completion);
            self.ended(completion);
        }
    }

    /// What is shared counts as a plain write of the same content.
    fn share(&mut self, from: u16, to: u16, pages: u8) {
        let (from, _) = self.range(from, 8);
        let (to, _) = self.range(to, 8);
        let (from, to) = (from / 8 * 8, to / 8 * 8);
        let most = (self.sectors() - from.max(to)).min(from.abs_diff(to)) / 8;
        let sectors = most.min(pages.into()) as usize * 8;
        if sectors == 0 {
            return;
        }
        let tags = &self.oracle.expected()[from as usize..from as usize + sectors];
        let tags = tags.to_vec();
        // What was there before must not look like what is shared.
        let mut places = (to..).zip(&tags);
        if places.any(|(sector, &tag)| self.oracle.could_have(sector, tag)) {
            return;
        }
        let content: Vec<u8> = tags
            .iter()
            .flat_map(|tag| tag.to_le_bytes().repeat(128))
            .collect();
        let mut other = content.clone();
        other[sectors * 512 - 1] ^= 1;
        let (at, device) = (self.at, &mut self.device);
        let refused = device.share(at, Sector(from), Sector(to), &other).unwrap();
        assert_eq!(refused, None, "one byte differs");
        let shared = device
            .share(at, Sector(from), Sector(to), &content)
            .unwrap();
        if let Some(completion) = shared {
            self.shared += sectors as u64 / 8;
            self.oracle.shared(to, &tags, completion);
            self.ended(completion);
        }
    }

    fn cut(&mut self, share_percent: u8, keep: Keep) {
        let running_ns = self.last.done_at.ns_since(self.last.accepted_at);
        let at = self
            .last
            .accepted_at
            .plus_ns(running_ns * u64::from(share_percent) / 100);
        let report = self.device.cut(at, keep).unwrap();
        assert!(
            self.device
                .read(report.at, Sector(0), &mut [0; 512])
                .is_err()
        );
        let ready = self.device.power_on(report.at.plus_us(1_000));
        let (found, done_at) = read_all(&mut self.device, ready);
        self.oracle.cut(report.at, &found).unwrap();
        for (page, tags) in found.chunks_exact(8).enumerate() {
            let has_content = tags.iter().any(|&tag| tag != 0);
            let mapped = self.device.model().is_mapped(Lpn(page as u32));
            assert!(
                mapped || !has_content,
                "page {page} has content and no place"
            );
        }
        self.at = done_at;
        self.last = Completion {
            accepted_at: done_at,
            done_at,
        };
        self.queued = false;
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Write {
                place,
                sectors,
                reliable,
            } => {
                let (start, sectors) = self.range(*place, (*sectors).into());
                self.write(start, sectors, kind(*reliable));
            }
            Step::Fill { place, pages } => {
                let (start, sectors) = self.range(*place, u32::from(*pages) * 8);
                self.write(start, sectors, WriteKind::Plain);
            }
            Step::Packed { parts } => self.packed(parts),
            Step::Read => {
                let expected = self.oracle.expected();
                let (found, done_at) = read_all(&mut self.device, self.at);
                self.oracle.read();
                self.at = self.at.max(done_at);
                assert!(expected == found, "a read returns something else");
            }
            Step::Flush => {
                let completion = self.device.flush(self.at).unwrap();
                self.oracle.flushed(completion);
                assert_eq!(self.device.model().dirty_pages(), 0);
                self.ended(completion);
            }
            Step::Barrier => {
                let completion = self.device.barrier(self.at).unwrap();
                self.oracle.barrier();
                self.ended(completion);
            }
            Step::Discard { place, sectors } => {
                let (start, sectors) = self.range(*place, (*sectors).into());
                let (at, device) = (self.at, &mut self.device);
                let completion = device.discard(at, Sector(start), sectors).unwrap();
                self.oracle.discarded(start, sectors, completion);
                self.ended(completion);
            }
            Step::Remap { from, to, pages } => self.remap(*from, *to, *pages),
            Step::Share { from, to, pages } => self.share(*from, *to, *pages),
            Step::Quiet { ms } => {
                self.at = self
                    .at
                    .max(self.last.done_at)
                    .plus_us(u64::from(*ms) * 1_000);
                self.device.advance(self.at).unwrap();
            }
            Step::Cut {
                share_percent,
                keep,
            } => self.cut(*share_percent, *keep),
        }
        self.device.model().check().unwrap();
    }
}

const fn kind(reliable: bool) -> WriteKind {
    if reliable {
        WriteKind::Reliable
    } else {
        WriteKind::Plain
    }
}

fn run(config: &Config, capacity_bytes: u64, places: Vec<u64>, seed: u64, steps: &[Step]) -> Run {
    let mut run = Run::new(config, capacity_bytes, places, seed);
    run.fill();
    for step in steps {
        run.step(step);
    }
    let keep = Keep::Random { seed };
    run.step(&Step::Cut {
        share_percent: 50,
        keep,
    });
    run
}

/// One megabyte: garbage collection never rests.
fn crowded(changes: &str, seed: u64, steps: &[Step]) -> Run {
    let config = small_config(changes);
    let places = (0..256).map(|page| page * 8).collect();
    run(&config, 1 << 20, places, seed, steps)
}

/// The small devices reach every part of the model; otherwise these tests prove little.
#[test]
fn the_small_devices_are_busy_everywhere() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut sum = FlashCounters::default();
    let (mut overridden, mut shared) = (0, 0);
    for seed in 0..12 {
        let steps = prop::collection::vec(step(), 400..420);
        let steps: Vec<Step> = steps.new_tree(&mut runner).unwrap().current();
        let steps: Vec<Step> = steps
            .into_iter()
            .filter(|step| !matches!(step, Step::Cut { .. }))
            .collect();
        let config = small_config("");
        let places = (0..256).map(|page| page * 8).collect();
        let mut crowded = Run::new(&config, 1 << 20, places, seed);
        let places = (0..192).map(|spot| spot % 8 * 7680 + spot * 8).collect();
        let mut wide = Run::new(&config, 30 << 20, places, seed);
        for run in [&mut crowded, &mut wide] {
            run.fill();
            steps.iter().for_each(|step| run.step(step));
            let flash = run.device.model().stats().flash;
            sum.collection.erases += flash.collection.erases;
            sum.collection.slots_programmed += flash.collection.slots_programmed;
            sum.folding.slots_programmed += flash.folding.slots_programmed;
            sum.levelling.slots_programmed += flash.levelling.slots_programmed;
            sum.mapping_dirty_evictions += flash.mapping_dirty_evictions;
            sum.mapping.pages_programmed += flash.mapping.pages_programmed;
            sum.log.slots_programmed += flash.log.slots_programmed;
            sum.log_compactions += flash.log_compactions;
            overridden += run.device.model().remapped_pages();
            shared += run.shared;
        }
    }
    assert!(sum.collection.erases > 1_000 && sum.collection.slots_programmed > 500);
    assert!(sum.folding.slots_programmed > 100 && sum.levelling.slots_programmed > 100);
    assert!(sum.mapping_dirty_evictions > 100 && sum.mapping.pages_programmed > 100);
    assert!(sum.log.slots_programmed > 100 && overridden > 40);
    assert!(sum.log_compactions > 40);
    assert!(shared > 400, "{shared}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(500), max_shrink_iters: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_crowded_device_keeps_its_promises(seed: u64, steps in prop::collection::vec(step(), 1..250)) {
        crowded("", seed, &steps);
    }

    #[test]
    fn so_it_does_with_cost_benefit_and_folding(seed: u64, steps in prop::collection::vec(step(), 1..250)) {
        let changes = r#"
            [garbage_collection]
            policy = { value = "cost-benefit", assumed = "test" }
            [slc]
            batch_bytes_max = { value = 65536, assumed = "test" }
            when_full = { value = "fold", assumed = "test" }
        "#;
        crowded(changes, seed, &steps);
    }

    #[test]
    fn so_it_does_without_a_cache(seed: u64, steps in prop::collection::vec(step(), 1..80)) {
        let changes = r#"
            [write_cache]
            cache_bytes = { value = 0, assumed = "test" }
        "#;
        crowded(changes, seed, &steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(80), max_shrink_iters: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// More mapping pages than the cache has room for.
    #[test]
    fn a_wide_device_keeps_its_promises(seed: u64, steps in prop::collection::vec(step(), 1..60)) {
        let places = (0..192).map(|spot| spot % 8 * 7680 + spot * 8).collect();
        run(&small_config(""), 30 << 20, places, seed, &steps);
    }
}
