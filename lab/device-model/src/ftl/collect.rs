//! Garbage collection, folding of the SLC cache, static wear levelling: all move what is
//! current out of a block and erase it.

use super::collection::Collection;
use super::geometry::{Owner, Pool};
use super::resources::Ns;
use super::{BlockState, Cause, Ftl, InFlight, Stream, Undo};
use crate::config::VictimPolicy;

/// Static levelling moves at most one block for this many erases, so that a device with
/// much cold data does not stop to move it all. Those that the levelling itself causes do
/// not count: moving a block changes as many mapping pages as it has slots at worst, and
/// writing these erases more blocks than the one.
const ERASES_FOR_A_LEVELLING: u32 = 16;

impl Ftl {
    pub(super) fn collecting_map(&self) -> bool {
        self.collection.is_some_and(|collection| {
            self.cells.blocks[collection.block as usize].stream == Stream::Map
        })
    }

    pub(super) fn levelling(&self) -> bool {
        self.collection
            .is_some_and(|collection| collection.cause == Cause::Levelling)
    }

    /// The block of the pool that is best to collect and has at most `valid_max` of its
    /// slots in use. It frees a flash page at least.
    fn victim(&self, pool: Pool, only_map: bool, valid_percent_max: u32) -> Option<u32> {
        let now = self.cells.next_seq();
        let mut best: Option<(f64, u32)> = None;
        for (number, block) in self.cells.blocks.iter().enumerate() {
            let number = number as u32;
            if block.state != BlockState::Full
                || self.geometry.pool_of(number) != pool
                || (only_map && block.stream != Stream::Map)
            {
                continue;
            }
            let slots = self.slots_in(block.mode);
            let frees = slots.saturating_sub(block.valid) >= self.geometry.slots_per_page;
            // Folding gains room by the denser mode of cells.
            if (!frees && pool == Pool::Main)
                || block.valid.min(slots) * 100 > slots * valid_percent_max
            {
                continue;
            }
            let cost = match self.policy.victim {
                VictimPolicy::Greedy => f64::from(block.valid),
                VictimPolicy::CostBenefit => {
                    let used = f64::from(block.valid) / f64::from(slots);
                    let age = (now - block.last_seq) as f64 + 1.0;
                    2.0 * used / ((1.0 - used).max(1e-9) * age)
                }
            };
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, number));
            }
        }
        best.map(|(_, number)| number)
    }

    /// Moves a portion of the block that is being collected, and erases it if that was
    /// the last. Says when the operations end.
    fn collect_portion(&mut self, mut collection: Collection, now: Ns) -> Ns {
        let first = collection.block * self.geometry.slots_per_block;
        let end = self.cells.blocks[collection.block as usize].next_slot;
        let portion = self.geometry.slots_per_row * self.geometry.dies;
        let mut owners = Vec::with_capacity(portion as usize);
        let mut read_at = now;
        let mut run: Option<(u32, u32)> = None;
        while collection.next < end && owners.len() < portion as usize {
            let slot = first + collection.next;
            collection.next += 1;
            // Each owner of a shared slot gets a copy with its own number beside it.
            let before = owners.len();
            owners.extend(self.current_owners(slot));
            if owners.len() == before {
                continue;
            }
            run = Some(match run {
                Some((start, count)) if self.same_row(start, slot) => {
                    (start, count.max(slot - start + 1))
                }
                Some((start, count)) => {
                    read_at = read_at.max(self.read_slots(start, count, collection.cause, now));
                    (slot, 1)
                }
                None => (slot, 1),
            });
        }
        if let Some((start, count)) = run {
            read_at = read_at.max(self.read_slots(start, count, collection.cause, now));
        }
        self.collection = Some(collection);
        let moved_at = self.program_collected(&owners, collection.cause, read_at);
        collection.moved_at = collection.moved_at.max(moved_at);
        self.collection = Some(collection);
        if collection.next < end {
            return moved_at;
        }
        self.collection = None;
        self.erase(collection.block, collection.cause, collection.moved_at)
    }

    fn same_row(&self, a: u32, b: u32) -> bool {
        a / self.geometry.slots_per_row == b / self.geometry.slots_per_row
    }

    /// Programs what was collected, each into the stream of its kind.
    fn program_collected(&mut self, owners: &[u32], cause: Cause, not_before: Ns) -> Ns {
        let is_data = |&owner: &u32| matches!(self.geometry.owner(owner), Owner::Data(_));
        let (data, map): (Vec<u32>, Vec<u32>) = owners.iter().copied().partition(is_data);
        let moved_at = self.program(&data, Stream::Collected, cause, not_before);
        moved_at.max(self.program(&map, Stream::Map, cause, not_before))
    }

    /// Erases a block without current content. It begins when no slot in it can be the only copy
    /// any more.
    fn erase(&mut self, number: u32, cause: Cause, moved_at: Ns) -> Ns {
        let block = &self.cells.blocks[number as usize];
        debug_assert_eq!(block.valid, 0, "a block with current content is not erased");
        let not_before = moved_at.max(block.superseded_at);
        let span = self
            .resources
            .erase(self.geometry.die_of(number), not_before);
        self.map_blocks_used -= u32::from(block.stream == Stream::Map);
        let generation = Box::new(self.cells.erase(number));
        self.in_flight.push_back(InFlight {
            done: span.done,
            undo: Undo::Erase {
                block: number,
                start: span.start,
                generation,
            },
        });
        self.counters.of_mut(cause).erases += 1;
        self.erases_since_levelling += 1;
        let die = self.geometry.die_of(number) as usize;
        let erases = self.cells.blocks[number as usize].erases;
        self.free[self.geometry.pool_of(number) as usize][die].insert((erases, number));
        span.done
    }

    /// Collects until host writes do not need the reserve.
    pub(super) fn make_room(&mut self, now: Ns) {
        while self.free_blocks(Pool::Main) <= self.reserved_blocks() {
            if !self.collect_some(100, now) {
                return;
            }
        }
    }

    /// Goes on with the block that is being collected, or begins another. False if no
    /// block is worth it.
    fn collect_some(&mut self, valid_percent_max: u32, now: Ns) -> bool {
        let collection = self.collection.or_else(|| {
            let block = self.victim(Pool::Main, false, valid_percent_max)?;
            Some(Collection::new(block, Cause::Collection))
        });
        let Some(collection) = collection else {
            return false;
        };
        self.collect_portion(collection, now);
        true
    }

    /// Collects a block of mapping pages, whatever else is being collected: writing
    /// mapping pages must never wait for data to move, which itself changes mapping.
    pub(super) fn collect_map(&mut self, now: Ns) -> bool {
        let Some(block) = self.victim(Pool::Main, true, 100) else {
            return false;
        };
        let other = self.collection.take();
        let mut collection = Some(Collection::new(block, Cause::Collection));
        while let Some(part) = collection {
            self.collect_portion(part, now);
            collection = self.collection;
        }
        self.collection = other;
        true
    }

    /// Goes on with folding the SLC cache. False if there is nothing to fold.
    pub(crate) fn fold_some(&mut self, now: Ns) -> bool {
        self.make_room(now);
        let collection = self.collection.or_else(|| {
            let block = self.victim(Pool::Slc, false, 100)?;
            Some(Collection::new(block, Cause::Folding))
        });
        let Some(collection) = collection else {
            return false;
        };
        self.collect_portion(collection, now);
        true
    }

    /// Whether a host write of the SLC stream finds room there.
    pub(crate) fn slc_has_room(&self) -> bool {
        self.frontiers[Stream::Slc as usize]
            .iter()
            .any(Option::is_some)
            || self.free_blocks(Pool::Slc) > 0
    }

    /// A step of the work for quiet times: the collection under way, folding, then collecting
    /// blocks that are half empty. False if there is none.
    pub(crate) fn background_step(&mut self, now: Ns) -> bool {
        if self.collection.is_none() && self.geometry.slc_blocks > 0 && self.fold_some(now) {
            return true;
        }
        if self.collection.is_none()
            && self.free_blocks(Pool::Main)
                >= self.reserved_blocks() + self.policy.idle_spare_blocks
        {
            return false;
        }
        self.collect_some(50, now)
    }

    /// Static levelling: what lies in the least worn block moves to the most worn erased one,
    /// because it rarely changes.
    pub(super) fn level_wear(&mut self, now: Ns) {
        if self.policy.wear_spread_max == 0
            || self.collection.is_some()
            || self.erases_since_levelling < ERASES_FOR_A_LEVELLING
        {
            return;
        }
        self.erases_since_levelling = 0;
        let main = || {
            let from = self.geometry.slc_blocks as usize;
            self.cells.blocks.iter().enumerate().skip(from)
        };
        let most = main().map(|(_, block)| block.erases).max();
        let least = main()
            .filter(|(_, block)| block.state == BlockState::Full && block.stream != Stream::Map)
            // Shared slots become several.
            .filter(|(_, block)| block.valid <= self.slots_in(block.mode))
            .min_by_key(|(_, block)| block.erases);
        let (Some(most), Some((number, block))) = (most, least) else {
            return;
        };
        if most - block.erases > self.policy.wear_spread_max {
            let mut collection = Some(Collection::new(number as u32, Cause::Levelling));
            while let Some(part) = collection {
                self.collect_portion(part, now);
                collection = self.collection;
            }
            self.erases_since_levelling = 0;
        }
    }
}
