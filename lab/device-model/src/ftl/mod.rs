//! The flash translation layer: where each logical page is, what moves when, and what it
//! costs. It knows times but no content and no host commands.
//!
//! Every operation is scheduled when it is asked for, with a start and an end that may lie in the
//! future. A power cut at an earlier time has to undo what had not ended; `in_flight` keeps the
//! data for that.

mod cells;
mod check;
mod collect;
mod collection;
mod counters;
mod geometry;
mod log;
mod mapping;
mod power;
mod program;
mod remap;
mod resources;
mod save;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(crate) use cells::Stream;
pub use check::InvariantError;
pub(crate) use counters::Cause;
pub use counters::{CauseCounters, FlashCounters};
pub(crate) use geometry::{Geometry, Owner, Pool};
pub(crate) use resources::{Bus, Ns, ns_of_us};
pub use save::LoadError;

use crate::config::{Config, ConfigError, VictimPolicy};
use cells::{BlockState, Cells, Generation};
use collection::Collection;
use mapping::{Changes, MappingTable};
use remap::{LogPage, RemapLog};
use resources::{CellMode, Resources};

/// What a power cut before `done` undoes.
struct InFlight {
    done: Ns,
    undo: Undo,
}

enum Undo {
    /// The slots cannot be read.
    Program { first_slot: u32, count: u32 },
    /// The mapping page in flash is the one before.
    MapPage {
        page: u32,
        changes: Changes,
        written_seq: u64,
    },
    /// The log has only as many records on that page; none: there is no such page.
    LogPage { number: u32, records: usize },
    /// The log pages that a compaction dropped are still there.
    LogDropped(BTreeMap<u32, LogPage>),
    /// The block has what it had, if the erase had not begun.
    Erase {
        block: u32,
        start: Ns,
        generation: Box<Generation>,
    },
}

/// Values of the configuration that the FTL asks for all the time.
struct Policy {
    victim: VictimPolicy,
    idle_spare_blocks: u32,
    wear_spread_max: u32,
    checkpoint_pages: u64,
    table_entries: usize,
    log_entries_per_page: u32,
    log_pages: usize,
}

pub(crate) struct Ftl {
    pub(crate) geometry: Geometry,
    policy: Policy,
    pub(crate) resources: Resources,
    cells: Cells,
    map: MappingTable,
    log: RemapLog,
    /// For each stream and die the block that is being filled.
    frontiers: [Vec<Option<u32>>; Stream::COUNT],
    /// For each pool and die the erased blocks, the least worn first.
    free: [Vec<BTreeSet<(u32, u32)>>; 2],
    collection: Option<Collection>,
    in_flight: VecDeque<InFlight>,
    blocks_opened: u32,
    /// Blocks of the map stream that are not erased.
    map_blocks_used: u32,
    erases_since_levelling: u32,
    pub(crate) counters: FlashCounters,
    /// 4 KiB units of each region's content that were programmed.
    pub(crate) region_slots_programmed: Vec<u64>,
}

impl Ftl {
    pub(crate) fn new(
        config: &Config,
        capacity_bytes: u64,
        seed: u64,
    ) -> Result<Self, ConfigError> {
        let geometry = Geometry::new(config, capacity_bytes)?;
        let gc = &config.garbage_collection;
        let idle_free_percent = gc.idle_free_percent.value;
        let policy = Policy {
            victim: gc.policy.value,
            idle_spare_blocks: geometry.spare_blocks * idle_free_percent / 100,
            wear_spread_max: config.wear.spread_max_erases.value,
            checkpoint_pages: u64::from(config.mapping.checkpoint_pages.value),
            table_entries: config.remap.table_entries.value as usize,
            log_entries_per_page: config.remap.log_entries_per_page.value,
            log_pages: config.remap.log_pages.value as usize,
        };
        let dies = geometry.dies as usize;
        let mut ftl = Self {
            policy,
            resources: Resources::new(config, &geometry, seed),
            cells: Cells::new(&geometry),
            map: MappingTable::new(&geometry, config.mapping.cache_bytes.value),
            log: RemapLog::default(),
            frontiers: core::array::from_fn(|_| vec![None; dies]),
            free: core::array::from_fn(|_| vec![BTreeSet::new(); dies]),
            collection: None,
            in_flight: VecDeque::new(),
            blocks_opened: 0,
            map_blocks_used: 0,
            erases_since_levelling: 0,
            counters: FlashCounters::default(),
            region_slots_programmed: vec![0; config.accounting.regions.value as usize],
            geometry,
        };
        ftl.list_free_blocks();
        Ok(ftl)
    }

    fn list_free_blocks(&mut self) {
        for pool in &mut self.free {
            pool.iter_mut().for_each(BTreeSet::clear);
        }
        let used =
            |block: &&cells::Block| block.state != BlockState::Free && block.stream == Stream::Map;
        self.map_blocks_used = self.cells.blocks.iter().filter(used).count() as u32;
        for (number, block) in self.cells.blocks.iter().enumerate() {
            let number = number as u32;
            if block.state == BlockState::Free {
                let die = self.geometry.die_of(number) as usize;
                let pool = self.geometry.pool_of(number) as usize;
                self.free[pool][die].insert((block.erases, number));
            }
        }
    }

    fn free_blocks(&self, pool: Pool) -> u32 {
        self.free[pool as usize]
            .iter()
            .map(|of_die| of_die.len() as u32)
            .sum()
    }

    /// Erased blocks that host data must not use: what collecting needs to go on, and
    /// what mapping pages have not used yet of theirs.
    fn reserved_blocks(&self) -> u32 {
        let for_map = self
            .geometry
            .map_blocks
            .saturating_sub(self.map_blocks_used);
        self.geometry.reserve_blocks() + for_map
    }

    fn die_and_channel(&self, block: u32) -> (u32, u32) {
        let die = self.geometry.die_of(block);
        (die, self.geometry.channel_of(die))
    }

    /// Slots that a block has in the mode it was opened in.
    fn slots_in(&self, mode: CellMode) -> u32 {
        match mode {
            CellMode::Slc => self.geometry.slots_per_slc_block,
            CellMode::Multi => self.geometry.slots_per_block,
        }
    }

    /// Where the current content of an owner is.
    fn place_of(&self, owner: Owner) -> Option<u32> {
        match owner {
            Owner::Data(lpn) => self.map.slot(lpn),
            Owner::Map(page) => self.map.places[page as usize].checked_sub(1),
            Owner::Log(number) => self.log.pages.get(&number)?.slot,
        }
    }

    /// The owner of a slot's current content; none if it is obsolete, padding or unreadable.
    /// The number beside the content is not enough: a remap gives it to another page, and a
    /// shared slot has several owners.
    fn current_owners(&self, slot: u32) -> impl Iterator<Item = u32> + '_ {
        let others = self.log.overrides.range((slot, 0)..=(slot, u32::MAX));
        let named = self.cells.owner(slot);
        named
            .into_iter()
            .chain(others.map(|&(_, lpn)| lpn))
            .filter(move |&owner| self.place_of(self.geometry.owner(owner)) == Some(slot))
    }

    /// The content of a slot is no longer `owner`'s. Until `at` it may be the only copy
    /// that survives a power cut.
    fn invalidate(&mut self, slot: u32, owner: Owner, at: Ns) {
        let block = &mut self.cells.blocks[self.geometry.block_of(slot) as usize];
        debug_assert!(block.valid > 0, "an obsolete slot was counted as current");
        block.valid -= 1;
        block.superseded_at = block.superseded_at.max(at);
        if let Owner::Data(lpn) = owner
            && !self.log.overrides.is_empty()
        {
            self.log.overrides.remove(&(slot, lpn));
        }
    }

    /// Removes the operations that a power cut at `now` or later need not undo.
    pub(crate) fn forget_completed(&mut self, now: Ns) {
        while self.in_flight.front().is_some_and(|op| op.done <= now) {
            self.in_flight.pop_front();
        }
        // One late operation at the front must not keep all that follow.
        if self.in_flight.len() > 4096 {
            self.in_flight.retain(|op| op.done > now);
        }
    }

    /// Makes an entry's mapping page present in the cache; says when it is.
    fn touch(&mut self, page: u32, now: Ns) -> Ns {
        if self.map.is_cached(page) {
            self.map.promote(page);
            self.counters.mapping_hits += 1;
            return now;
        }
        self.counters.mapping_misses += 1;
        let mut ready = now;
        while self.map.is_full() {
            let Some(oldest) = self.map.oldest() else {
                break;
            };
            if self.map.is_changed(oldest) {
                self.counters.mapping_dirty_evictions += 1;
                ready = self.write_map_page(oldest, ready);
            }
            self.map.evict(oldest);
        }
        if let Some(slot) = self.map.places[page as usize].checked_sub(1) {
            ready = self.read_slots(slot, 1, Cause::Mapping, ready);
        }
        self.map.insert(page);
        ready
    }

    /// Writes a mapping page to flash; says when it is there.
    fn write_map_page(&mut self, page: u32, not_before: Ns) -> Ns {
        // In flash it must not point to what is not there yet.
        let not_before = not_before.max(self.map.programmable_at[page as usize]);
        let owner = self.geometry.owner_of_map_page(page);
        let seq = self.cells.next_seq();
        let done = self.program(&[owner], Stream::Map, Cause::Mapping, not_before);
        let changes = self.map.take_changes(page);
        let written_seq = core::mem::replace(&mut self.map.written_seq[page as usize], seq);
        self.map.programmable_at[page as usize] = done;
        self.in_flight.push_back(InFlight {
            done,
            undo: Undo::MapPage {
                page,
                changes,
                written_seq,
            },
        });
        done
    }

    /// Writes all changed mapping pages whose first change is before `seq`.
    fn checkpoint(&mut self, seq: u64, now: Ns) -> Ns {
        let mut done = now;
        for page in self.map.changed_before(seq) {
            done = done.max(self.write_map_page(page, now));
        }
        done
    }

    /// When all mapping pages that are on their way into the cells have arrived.
    fn mapping_written_at(&self, now: Ns) -> Ns {
        let written = self.in_flight.iter().filter_map(|op| match op.undo {
            Undo::MapPage { .. } => Some(op.done),
            _ => None,
        });
        written.fold(now, Ns::max)
    }

    /// Reads `count` slots of one row; says when they are in the controller.
    fn read_slots(&mut self, slot: u32, count: u32, cause: Cause, not_before: Ns) -> Ns {
        let block = self.geometry.block_of(slot);
        let mode = self.cells.blocks[block as usize].mode;
        let per_page = self.geometry.slots_per_page;
        let pages = (slot + count - 1) / per_page - slot / per_page + 1;
        let span = self.resources.read(
            self.die_and_channel(block),
            mode,
            u64::from(count) * crate::address::PAGE_BYTES as u64,
            not_before,
        );
        let counters = self.counters.of_mut(cause);
        counters.reads += 1;
        counters.pages_read += u64::from(pages);
        span.done
    }

    /// Where a logical page is, and when the FTL knows.
    pub(crate) fn locate(&mut self, lpn: u32, now: Ns) -> (Option<u32>, Ns) {
        let ready = self.touch(Geometry::map_page_of(lpn), now);
        (self.map.slot(lpn), ready)
    }

    /// Reads slots for the host; slots of one row that follow one another take one read.
    pub(crate) fn read_run(&mut self, slot: u32, count: u32, not_before: Ns) -> Ns {
        self.read_slots(slot, count, Cause::Host, not_before)
    }

    /// Whether `slot` can be read together with the `count` slots from `first`.
    pub(crate) const fn continues_run(&self, first: u32, count: u32, slot: u32) -> bool {
        slot == first + count
            && slot / self.geometry.slots_per_row == first / self.geometry.slots_per_row
    }

    /// Whether a logical page has content.
    pub(crate) fn is_mapped(&self, lpn: u32) -> bool {
        self.map.slot(lpn).is_some()
    }

    /// Pages whose content is in a slot with another number beside it.
    pub(crate) fn remapped_pages(&self) -> usize {
        self.log.overrides.len()
    }

    /// Bytes of memory that the model's tables take.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.cells.memory_bytes() + self.map.memory_bytes() + self.log.memory_bytes()
    }

    /// Counts anew; wear stays.
    pub(crate) fn reset_counters(&mut self) {
        self.counters = FlashCounters::default();
        self.region_slots_programmed.fill(0);
    }

    /// How often each block was erased.
    pub(crate) fn erase_counts(&self) -> impl Iterator<Item = u32> + '_ {
        self.cells.blocks.iter().map(|block| block.erases)
    }
}
