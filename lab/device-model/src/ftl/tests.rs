//! The FTL against a reference of which content each page has: what a recovery finds must
//! be the last that was in the cells, through garbage collection, remaps and cuts.

use std::collections::HashMap;

use mobifs_numerics::Random;

use super::geometry::Owner;
use super::{Cause, Ftl, Ns, Stream};
use crate::config::{Config, Preset};

const CAPACITY_BYTES: u64 = 6 << 20;

const SMALL: &str = r#"
    [geometry]
    channels = { value = 1, assumed = "test" }
    planes_per_die = { value = 1, assumed = "test" }
    page_bytes = { value = 8192, assumed = "test" }
    pages_per_block = { value = 8, assumed = "test" }
    [mapping]
    cache_bytes = { value = 16384, assumed = "test" }
    checkpoint_pages = { value = 256, assumed = "test" }
    [slc]
    cache_bytes = { value = 65536, assumed = "test" }
    [wear]
    spread_max_erases = { value = 2, assumed = "test" }
    [remap]
    table_entries = { value = 40, assumed = "test" }
    log_entries_per_page = { value = 16, assumed = "test" }
    log_pages = { value = 8, assumed = "test" }
"#;

impl Ftl {
    fn content_key(&self, slot: u32) -> (u32, u64) {
        let block = &self.cells.blocks[self.geometry.block_of(slot) as usize];
        (slot, block.opened_seq)
    }

    /// Which content a logical page has.
    fn content(&self, lpn: u32) -> u64 {
        let slot = self.map.slot(lpn);
        slot.map_or(0, |slot| self.cells.contents[&self.content_key(slot)])
    }

    /// A program brings what the page had; the host's then gets a number of its own.
    pub(super) fn carry_content(&mut self, owner: Owner, slot: u32) {
        if let Owner::Data(lpn) = owner {
            let content = self.content(lpn);
            let key = self.content_key(slot);
            self.cells.contents.insert(key, content);
        }
    }
}

/// What a page may have after a cut: when each content was in the cells, oldest first.
type History = HashMap<u32, Vec<(Ns, u64)>>;

struct Fixture {
    ftl: Ftl,
    history: History,
    random: Random,
    now: Ns,
    next_content: u64,
}

impl Fixture {
    fn new(seed: u64) -> Self {
        Self::with_config(SMALL, seed)
    }

    fn with_config(config: &str, seed: u64) -> Self {
        let config = Config::from_preset_with(Preset::Emmc51, config).unwrap();
        Self {
            ftl: Ftl::new(&config, CAPACITY_BYTES, seed).unwrap(),
            history: History::new(),
            random: Random::new(seed),
            now: 0,
            next_content: 1,
        }
    }

    fn pages(&self) -> u32 {
        self.ftl.geometry.logical_pages
    }

    fn note(&mut self, lpn: u32, done: Ns, content: u64) {
        self.history.entry(lpn).or_default().push((done, content));
    }

    fn write(&mut self, first: u32, count: u32) {
        let lpns: Vec<u32> = (first..(first + count).min(self.pages())).collect();
        let streams = [Stream::Host, Stream::Slc];
        let stream = streams[self.random.below(2) as usize];
        let done = self.ftl.program(&lpns, stream, Cause::Host, self.now);
        for lpn in lpns {
            let slot = self.ftl.map.slot(lpn).unwrap();
            let key = self.ftl.content_key(slot);
            self.ftl.cells.contents.insert(key, self.next_content);
            self.note(lpn, done, self.next_content);
            self.next_content += 1;
        }
    }

    fn discard(&mut self, first: u32, count: u32) {
        self.discard_at(self.idle_at(), first, count);
    }

    /// Logged changes run alone, as in the model: time goes on to their end.
    fn discard_at(&mut self, at: Ns, first: u32, count: u32) {
        let range = first..(first + count).min(self.pages());
        let done = self.ftl.discard(range.clone(), at);
        for lpn in range {
            self.note(lpn, self.ftl.resources.floor, 0);
        }
        self.now = self.now.max(done);
    }

    fn idle_at(&self) -> Ns {
        self.now.max(self.ftl.resources.busy_until)
    }

    fn remap(&mut self, from: u32, to: u32, count: u32) -> Ns {
        let most = (self.pages() - from.max(to)).min(from.abs_diff(to));
        let count = count.min(most);
        if count == 0 {
            return self.now;
        }
        let begun = self.idle_at();
        let contents: Vec<u64> = (0..count).map(|i| self.ftl.content(from + i)).collect();
        let done = self.ftl.remap(from, to, count, begun);
        let logged = self.ftl.resources.floor;
        for (offset, content) in (0..).zip(contents) {
            assert_eq!(self.ftl.content(to + offset), content, "remap equals copy");
            assert_eq!(self.ftl.content(from + offset), 0);
            self.note(to + offset, logged, content);
            self.note(from + offset, logged, 0);
        }
        self.now = begun;
        done
    }

    fn share(&mut self, count: u64) -> Ns {
        let pages = u64::from(self.pages());
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        for _ in 0..count {
            let (from, to) = (
                self.random.below(pages) as u32,
                self.random.below(pages) as u32,
            );
            let is_free = |lpn| pairs.iter().all(|&(f, t)| t != lpn && f != lpn);
            if self.ftl.is_mapped(from) && from != to && is_free(to) && is_free(from) {
                pairs.push((from, to));
            }
        }
        pairs.sort_unstable_by_key(|&(_, to)| to);
        if pairs.is_empty() {
            return self.now;
        }
        let contents: Vec<u64> = pairs
            .iter()
            .map(|&(from, _)| self.ftl.content(from))
            .collect();
        let begun = self.now;
        let done = self.ftl.share(&pairs, begun);
        let logged = self.ftl.resources.floor;
        for (&(from, to), content) in pairs.iter().zip(contents) {
            assert_eq!(self.ftl.content(to), content, "shared equals copied");
            assert_eq!(self.ftl.content(from), content, "the source keeps it");
            self.note(to, logged, content);
        }
        done
    }

    /// A cut at a time: each page has what was last in the cells, or something later
    /// that was on its way and got there.
    fn cut(&mut self, at: Ns) {
        let at = at.max(self.now);
        let before: Vec<u64> = (0..self.pages()).map(|lpn| self.ftl.content(lpn)).collect();
        let all_ended = at >= self.ftl.resources.busy_until;
        self.ftl.power_cut(at);
        self.now = self.ftl.recover(at);
        self.ftl.check().unwrap();
        for lpn in 0..self.pages() {
            let found = self.ftl.content(lpn);
            let slot = self.ftl.map.slot(lpn);
            assert!(
                slot.is_none_or(|slot| self.ftl.cells.owner(slot).is_some()),
                "page {lpn} is in a slot whose program had not ended"
            );
            let history = self.history.remove(&lpn).unwrap_or_default();
            let ended = history.iter().rposition(|&(done, _)| done <= at);
            let allowed = &history[ended.unwrap_or(0)..];
            let ok = allowed.iter().any(|&(_, content)| content == found)
                || (ended.is_none() && found == 0);
            assert!(
                ok,
                "page {lpn} has {found}, allowed at {at} are {allowed:?}"
            );
            if all_ended {
                assert_eq!(found, before[lpn as usize], "page {lpn}");
            }
            self.note(lpn, at, found);
        }
    }

    fn step(&mut self) {
        let pages = u64::from(self.pages());
        let place = self.random.below(pages) as u32;
        match self.random.below(44) {
            0..26 => {
                let count = 1 + self.random.below(8) as u32;
                self.write(place, count);
            }
            26..30 => self.write(place / 8, 1),
            30..32 => {
                let count = 1 + self.random.below(40) as u32;
                self.discard(place, count);
            }
            32..36 => {
                let to = self.random.below(pages) as u32;
                let count = 1 + self.random.below(20) as u32;
                let done = self.remap(place, to, count);
                if self.random.below(4) == 0 {
                    let running = self.random.below(done - self.now + 1);
                    self.cut(self.now + running);
                } else {
                    self.now = self.now.max(done);
                }
            }
            36 => {
                self.now = self.idle_at();
                let now = self.now;
                self.ftl.background_step(now);
            }
            37 => {
                let running = self.random.below(8_000_000);
                self.cut(self.now + running);
            }
            38 => self.cut(self.idle_at()),
            39..42 => {
                let count = 1 + self.random.below(20);
                let done = self.share(count);
                if self.random.below(4) == 0 {
                    let running = self.random.below(done - self.now + 1);
                    self.cut(self.now + running);
                } else {
                    self.now = self.now.max(done);
                }
            }
            _ => self.now += self.random.below(3_000_000),
        }
        self.ftl.upkeep(self.now);
        self.ftl.forget_completed(self.now);
    }
}

#[test]
fn a_recovery_finds_what_was_in_the_cells() {
    for seed in 0..60 {
        let mut fixture = Fixture::new(seed);
        let pages = fixture.pages();
        fixture.write(0, pages);
        fixture.now = fixture.idle_at();
        for _ in 0..400 {
            fixture.step();
            fixture.ftl.check().unwrap();
        }
    }
}

/// Found by the property tests: making room had moved more remapped pages than the table
/// had too many, and the difference went below zero.
#[test]
fn collecting_garbage_may_itself_make_room_in_the_remap_table() {
    let mut fixture = Fixture::new(3);
    let pages = fixture.pages();
    fixture.write(0, pages);
    for round in 0..600 {
        let from = round * 97 % (pages - 20);
        let done = fixture.remap(from, (from + pages / 2) % (pages - 20), 20);
        fixture.now = done;
        fixture.write(round * 31 % pages, 8);
        fixture.ftl.forget_completed(fixture.now);
    }
    fixture.ftl.check().unwrap();
}

/// Found by the property tests: a mapping page on its way into the cells counted as written when
/// the log was compacted, and entries that were only in the log were lost after a cut.
#[test]
fn a_log_is_kept_until_the_mapping_pages_under_way_have_arrived() {
    // Two dies on channels of their own: the log may be there before the mapping page.
    let config = SMALL.replace("channels = { value = 1", "channels = { value = 2");
    let mut fixture = Fixture::with_config(&config, 5);
    fixture.write(0, 512);
    fixture.now = fixture.idle_at();
    let mut compacted_meanwhile = 0;
    while compacted_meanwhile < 10 {
        let logged = fixture.remap(0, 256, 16);
        // The mapping page has to wait for these, the log has not.
        fixture.write(0, 64);
        let next_seq = fixture.ftl.cells.next_seq();
        fixture.ftl.checkpoint(next_seq, logged);
        let before = fixture.ftl.counters.log_compactions;
        fixture.discard_at(logged, 400, 1);
        if fixture.ftl.counters.log_compactions > before {
            compacted_meanwhile += 1;
            fixture.cut(fixture.now);
        }
        fixture.write(400, 1);
        fixture.now = fixture.idle_at();
        fixture.ftl.forget_completed(fixture.now);
    }
}

/// Pages that a remap itself moves out of the full table have new slots, which its record in the log
/// names. With this order of dies their programs end first also without the wait that the log has
/// for them: no order is known in which that wait decides.
#[test]
fn the_log_of_a_remap_waits_for_the_programs_of_the_slots_that_it_names() {
    // Two dies on channels of their own: the log may be there before the content.
    let config = SMALL.replace("channels = { value = 1", "channels = { value = 2");
    let mut fixture = Fixture::with_config(&config, 7);
    fixture.write(0, 512);
    // The table is full: 40 pages lie in slots with the number of another.
    for (from, to) in [(0, 256), (100, 300)] {
        let done = fixture.remap(from, to, 20);
        fixture.now = fixture.idle_at().max(done);
    }
    assert_eq!(fixture.ftl.remapped_pages(), 40);
    fixture.ftl.forget_completed(fixture.now);
    let moved = fixture.ftl.counters.log.slots_programmed;
    fixture.remap(256, 400, 20);
    assert!(
        fixture.ftl.counters.log.slots_programmed > moved + 2,
        "pages have moved out of the table"
    );
    fixture.cut(fixture.ftl.resources.floor);
}
