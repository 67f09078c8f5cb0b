//! A reference for the content of a device: what each sector may hold after a power cut,
//! kept without any knowledge of how the device works.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use mobifs_device_model::{
    Completion, Config, Device, MemoryMedium, PackedPart, Preset, Sector, VirtualNs, WriteKind,
};

/// Content of a sector: a number that names the write it came from; 0 for zeros.
pub(crate) type Tag = u32;

/// The number of cases of a property: `MOBIFS_CASES` times as many as usual.
pub(crate) fn cases(usual: u32) -> u32 {
    std::env::var("MOBIFS_CASES").map_or(usual, |times| {
        usual * times.parse::<u32>().expect("MOBIFS_CASES is a number")
    })
}

/// A small device whose garbage collection, mapping cache and log are busy at once.
pub(crate) fn small_config(changes: &str) -> Config {
    let base = r#"
        [interface]
        queue_depth = { value = 4, assumed = "test" }
        [geometry]
        channels = { value = 2, assumed = "test" }
        dies_per_channel = { value = 1, assumed = "test" }
        planes_per_die = { value = 2, assumed = "test" }
        page_bytes = { value = 8192, assumed = "test" }
        pages_per_block = { value = 4, assumed = "test" }
        bits_per_cell = { value = 2, assumed = "test" }
        [write_cache]
        cache_bytes = { value = 65536, assumed = "test" }
        [mapping]
        cache_bytes = { value = 16384, assumed = "test" }
        checkpoint_pages = { value = 128, assumed = "test" }
        [slc]
        cache_bytes = { value = 131072, assumed = "test" }
        batch_bytes_max = { value = 16384, assumed = "test" }
        [wear]
        spread_max_erases = { value = 1, assumed = "test" }
        [remap]
        table_entries = { value = 24, assumed = "test" }
        log_entries_per_page = { value = 16, assumed = "test" }
        log_pages = { value = 6, assumed = "test" }
        [interface.reliable_write_unit_sectors]
        value = 4
        assumed = "test"
    "#;
    let mut merged: toml::Table = base.parse().expect("the base parses");
    let changes: toml::Table = changes.parse().expect("the changes parse");
    for (section, values) in changes {
        let target = merged
            .entry(section)
            .or_insert_with(|| toml::Table::new().into());
        for (key, value) in values.as_table().expect("a section") {
            target
                .as_table_mut()
                .expect("a section")
                .insert(key.clone(), value.clone());
        }
    }
    Config::from_preset_with(Preset::Emmc51, &merged.to_string()).expect("a valid configuration")
}

/// A write that nothing has made durable.
#[derive(Clone, Debug)]
struct Write {
    tag: Tag,
    start: u64,
    end: u64,
    kind: WriteKind,
    epoch: u64,
    /// When the command that wrote it ended.
    done_at: VirtualNs,
}

impl Write {
    fn covers(&self, sector: u64) -> bool {
        (self.start..self.end).contains(&sector)
    }
}

/// A command that changes durable content as a whole, and that may be in flight.
#[derive(Clone, Debug)]
enum Change {
    Flush,
    Discard { pages: std::ops::Range<u64> },
    Remap { from: u64, to: u64, sectors: u64 },
}

#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    durable: Vec<Tag>,
    writes: Vec<Write>,
    epoch: u64,
    next_tag: Tag,
    tail: Option<(Change, VirtualNs)>,
    unit_sectors: u64,
}

impl Oracle {
    pub(crate) fn new(sectors: u64, unit_sectors: u64) -> Self {
        Self {
            durable: vec![0; sectors as usize],
            writes: Vec::new(),
            epoch: 0,
            next_tag: 1,
            tail: None,
            unit_sectors,
        }
    }

    /// The content for the next write.
    pub(crate) fn content(&self, sectors: u32) -> Vec<u8> {
        self.next_tag.to_le_bytes().repeat(sectors as usize * 128)
    }

    fn newest(&self, sector: u64) -> Tag {
        let written = self.writes.iter().rev().find(|w| w.covers(sector));
        written.map_or(self.durable[sector as usize], |w| w.tag)
    }

    /// What reads must return now, the change in flight included.
    pub(crate) fn expected(&self) -> Vec<Tag> {
        let mut after = self.clone();
        after.apply_tail();
        (0..self.durable.len() as u64)
            .map(|sector| after.newest(sector))
            .collect()
    }

    /// A command was accepted: those that run alone have ended.
    fn before(&mut self) {
        self.apply_tail();
    }

    pub(crate) fn wrote(
        &mut self,
        start: u64,
        sectors: u32,
        kind: WriteKind,
        completion: Completion,
    ) {
        self.before();
        self.writes.push(Write {
            tag: self.next_tag,
            start,
            end: start + u64::from(sectors),
            kind,
            epoch: self.epoch,
            done_at: completion.done_at,
        });
        self.next_tag += 1;
    }

    /// Whether a cut could leave this content in a sector already.
    pub(crate) fn could_have(&self, sector: u64, tag: Tag) -> bool {
        let mut after = self.clone();
        after.apply_tail();
        let written = after
            .writes
            .iter()
            .any(|w| w.covers(sector) && w.tag == tag);
        written || after.durable[sector as usize] == tag || self.durable[sector as usize] == tag
    }

    /// Sectors from `start` on got these contents, each as by a plain write.
    pub(crate) fn shared(&mut self, start: u64, tags: &[Tag], completion: Completion) {
        self.before();
        for (sector, &tag) in (start..).zip(tags) {
            self.writes.push(Write {
                tag,
                start: sector,
                end: sector + 1,
                kind: WriteKind::Plain,
                epoch: self.epoch,
                done_at: completion.done_at,
            });
        }
    }

    pub(crate) fn wrote_packed(&mut self, parts: &[PackedPart], completion: Completion) {
        for part in parts {
            self.wrote(part.start.0, part.sectors, part.kind, completion);
        }
    }

    pub(crate) fn packed_content(&self, parts: &[PackedPart]) -> Vec<u8> {
        let tags = self.next_tag..;
        parts
            .iter()
            .zip(tags)
            .flat_map(|(part, tag)| tag.to_le_bytes().repeat(part.sectors as usize * 128))
            .collect()
    }

    pub(crate) fn read(&mut self) {
        self.before();
    }

    pub(crate) fn barrier(&mut self) {
        self.before();
        self.epoch += 1;
    }

    pub(crate) fn flushed(&mut self, completion: Completion) {
        self.before();
        self.tail = Some((Change::Flush, completion.done_at));
    }

    pub(crate) fn discarded(&mut self, start: u64, sectors: u32, completion: Completion) {
        self.before();
        let pages = start.div_ceil(8) * 8..(start + u64::from(sectors)) / 8 * 8;
        self.tail = Some((Change::Discard { pages }, completion.done_at));
    }

    pub(crate) fn remapped(&mut self, from: u64, to: u64, sectors: u32, completion: Completion) {
        self.before();
        let sectors = u64::from(sectors);
        self.tail = Some((Change::Remap { from, to, sectors }, completion.done_at));
    }

    fn apply_tail(&mut self) {
        let Some((change, _)) = self.tail.take() else {
            return;
        };
        match change {
            Change::Flush => self.all_durable(),
            Change::Discard { pages } => {
                // As the last write to each sector, at once durable.
                for sector in pages.clone() {
                    self.durable[sector as usize] = 0;
                }
                let mut kept = Vec::new();
                for write in self.writes.drain(..) {
                    for (start, end) in [
                        (write.start, write.end.min(pages.start)),
                        (write.start.max(pages.end), write.end),
                    ] {
                        if start < end && !pages.is_empty() {
                            kept.push(Write {
                                start,
                                end,
                                ..write.clone()
                            });
                        }
                    }
                    if pages.is_empty() {
                        kept.push(write);
                    }
                }
                self.writes = kept;
            }
            Change::Remap { from, to, sectors } => {
                self.all_durable();
                for offset in 0..sectors {
                    let moved = std::mem::take(&mut self.durable[(from + offset) as usize]);
                    self.durable[(to + offset) as usize] = moved;
                }
            }
        }
    }

    fn all_durable(&mut self) {
        for sector in 0..self.durable.len() as u64 {
            self.durable[sector as usize] = self.newest(sector);
        }
        self.writes.clear();
    }

    /// Checks what a device has after a cut at `at`, and takes it as the new content.
    pub(crate) fn cut(&mut self, at: VirtualNs, found: &[Tag]) -> Result<(), String> {
        let mut without = self.clone();
        let tail = without.tail.take();
        let mut with = self.clone();
        with.apply_tail();
        let result = match tail {
            // Its end was announced, or it was never begun.
            Some((_, done_at)) if done_at <= at => with.allows(at, found),
            Some(_) => with
                .allows(at, found)
                .or_else(|a| without.allows(at, found).map_err(|b| format!("{a}; {b}"))),
            None => without.allows(at, found),
        };
        self.tail = None;
        self.writes.clear();
        self.epoch += 1;
        self.durable = found.to_vec();
        result
    }

    /// Whether `found` may be there after a cut at `at`.
    fn allows(&self, at: VirtualNs, found: &[Tag]) -> Result<(), String> {
        // The last epoch of which something survives.
        let survives = |write: &Write| {
            (write.start..write.end).any(|sector| found[sector as usize] == write.tag)
        };
        let promised = |write: &Write| write.kind == WriteKind::Reliable && write.done_at <= at;
        let last_epoch = self
            .writes
            .iter()
            .filter(|write| survives(write) || promised(write))
            .map(|write| write.epoch)
            .max();
        for sector in 0..found.len() as u64 {
            let mut allowed = vec![self.durable[sector as usize]];
            for write in self.writes.iter().filter(|write| write.covers(sector)) {
                let must = promised(write) || last_epoch.is_some_and(|last| write.epoch < last);
                if must {
                    allowed.clear();
                }
                allowed.push(write.tag);
            }
            if !allowed.contains(&found[sector as usize]) {
                return Err(format!(
                    "sector {sector} has {}, allowed are {allowed:?} (last epoch {last_epoch:?})",
                    found[sector as usize]
                ));
            }
        }
        self.reliable_are_whole(found)
    }

    /// A reliable write is whole in each unit that nothing wrote to afterwards.
    fn reliable_are_whole(&self, found: &[Tag]) -> Result<(), String> {
        for (index, write) in self.writes.iter().enumerate() {
            if write.kind != WriteKind::Reliable {
                continue;
            }
            let later = &self.writes[index + 1..];
            let unit = self.unit_sectors;
            for first in (write.start / unit * unit..write.end).step_by(unit as usize) {
                let sectors = first.max(write.start)..(first + unit).min(write.end);
                if sectors.clone().any(|s| later.iter().any(|w| w.covers(s))) {
                    continue;
                }
                let new = sectors.clone().filter(|&s| found[s as usize] == write.tag);
                let new = new.count() as u64;
                if new != 0 && new != sectors.end - sectors.start {
                    return Err(format!("reliable write {} is torn at {first}", write.tag));
                }
            }
        }
        Ok(())
    }
}

/// All content of a device, by sector; every sector is uniform.
pub(crate) fn read_all(device: &mut Device<MemoryMedium>, at: VirtualNs) -> (Vec<Tag>, VirtualNs) {
    let bytes = device.model().capacity_bytes() as usize;
    let mut content = vec![0; bytes];
    let completion = device.read(at, Sector(0), &mut content).expect("it reads");
    let tags = content
        .chunks_exact(512)
        .map(|sector| {
            let tag = &sector[..4];
            assert!(
                sector.chunks_exact(4).all(|part| part == tag),
                "torn inside"
            );
            Tag::from_le_bytes(tag.try_into().expect("four bytes"))
        })
        .collect();
    (tags, completion.done_at)
}
