//! Programming: which block takes the next pages, and how the mapping follows.

use super::geometry::{Geometry, Owner, Pool};
use super::resources::{CellMode, Ns};
use super::{BlockState, Cause, Ftl, InFlight, Stream, Undo};
use crate::address::PAGE_BYTES;

impl Ftl {
    const fn pool_of(stream: Stream) -> Pool {
        match stream {
            Stream::Slc => Pool::Slc,
            Stream::Host | Stream::Collected | Stream::Map => Pool::Main,
        }
    }

    const fn mode_of(&self, stream: Stream) -> CellMode {
        match stream {
            Stream::Slc => CellMode::Slc,
            Stream::Map if self.geometry.map_in_slc_mode => CellMode::Slc,
            Stream::Host | Stream::Collected | Stream::Map => CellMode::Multi,
        }
    }

    const fn frontiers_max(&self, stream: Stream) -> u32 {
        match stream {
            Stream::Host | Stream::Slc => self.geometry.dies,
            Stream::Collected => self.geometry.gc_frontiers,
            Stream::Map => self.geometry.map_frontiers,
        }
    }

    /// The die that can take pages of the stream earliest: one with an open block, or
    /// with an erased one if the stream may open another.
    fn choose_die(&self, stream: Stream) -> Option<usize> {
        let frontiers = &self.frontiers[stream as usize];
        let open = frontiers.iter().flatten().count() as u32;
        let within_budget =
            stream != Stream::Map || self.map_blocks_used < self.geometry.map_blocks || open == 0;
        let may_open = open < self.frontiers_max(stream) && within_budget;
        let free = &self.free[Self::pool_of(stream) as usize];
        (0..frontiers.len())
            .filter(|&die| frontiers[die].is_some() || (may_open && !free[die].is_empty()))
            .min_by_key(|&die| {
                (
                    self.resources.die_free_at(die as u32),
                    frontiers[die].is_none(),
                )
            })
    }

    /// The block that takes the next pages of the stream; none if its pool is full.
    fn frontier(&mut self, stream: Stream, now: Ns) -> Option<u32> {
        if stream == Stream::Map && !self.collecting_map() {
            while self.map_blocks_used >= self.geometry.map_blocks
                && self.frontiers[stream as usize].iter().all(Option::is_none)
                && self.collect_map(now)
            {}
        }
        let die = self.choose_die(stream)?;
        if let Some(block) = self.frontiers[stream as usize][die] {
            return Some(block);
        }
        let most_worn = stream == Stream::Collected && self.levelling();
        let of_die = &mut self.free[Self::pool_of(stream) as usize][die];
        let (_, number) = if most_worn {
            of_die.pop_last()
        } else {
            of_die.pop_first()
        }?;
        let mode = self.mode_of(stream);
        let opened_seq = self.cells.next_seq();
        let block = &mut self.cells.blocks[number as usize];
        block.state = BlockState::Open;
        block.stream = stream;
        block.mode = mode;
        block.opened_seq = opened_seq;
        block.last_seq = opened_seq;
        let slots = self.slots_in(mode) as usize;
        self.cells
            .sequences
            .insert(number, Vec::with_capacity(slots));
        self.frontiers[stream as usize][die] = Some(number);
        self.blocks_opened += 1;
        self.map_blocks_used += u32::from(stream == Stream::Map);
        Some(number)
    }

    /// Programs the current content of `owners`; says when all are in the cells. Pages
    /// that share a flash page with nothing are padded.
    pub(crate) fn program(
        &mut self,
        owners: &[u32],
        stream: Stream,
        cause: Cause,
        not_before: Ns,
    ) -> Ns {
        let mut rest = owners;
        let mut done = not_before;
        while !rest.is_empty() {
            let mut stream = stream;
            if matches!(stream, Stream::Host | Stream::Slc) {
                self.make_room(not_before);
            }
            if stream == Stream::Slc && self.choose_die(Stream::Slc).is_none() {
                stream = Stream::Host;
            }
            let Some(block) = self.frontier(stream, not_before) else {
                unreachable!("over-provisioning leaves an erased block for every stream");
            };
            let per_row = self.geometry.slots_per_row;
            let room = per_row - self.cells.blocks[block as usize].next_slot % per_row;
            let (chunk, later) = rest.split_at(rest.len().min(room as usize));
            rest = later;
            done = done.max(self.program_row(block, chunk, stream, cause, not_before));
        }
        done
    }

    /// Programs part of one row: one operation of the die.
    fn program_row(
        &mut self,
        block: u32,
        owners: &[u32],
        stream: Stream,
        cause: Cause,
        not_before: Ns,
    ) -> Ns {
        let mut ready = not_before;
        for &owner in owners {
            if let Owner::Data(lpn) = self.geometry.owner(owner) {
                ready = ready.max(self.touch(Geometry::map_page_of(lpn), not_before));
            }
        }
        let mode = self.cells.blocks[block as usize].mode;
        let first_slot =
            block * self.geometry.slots_per_block + self.cells.blocks[block as usize].next_slot;
        let content = owners.len() as u32;
        let count = content.next_multiple_of(self.geometry.slots_per_page);
        let bytes = u64::from(content) * PAGE_BYTES as u64;
        let span = self
            .resources
            .program(self.die_and_channel(block), mode, bytes, ready);
        self.in_flight.push_back(InFlight {
            done: span.done,
            undo: Undo::Program { first_slot, count },
        });
        let counters = self.counters.of_mut(cause);
        counters.programs += 1;
        counters.pages_programmed += u64::from(count / self.geometry.slots_per_page);
        counters.slots_programmed += u64::from(content);
        let mut done = span.done;
        for (slot, &owner) in (first_slot..).zip(owners) {
            done = done.max(self.point_to(owner, slot, span.done));
        }
        for slot in first_slot + content..first_slot + count {
            self.cells.record(slot, None);
        }
        self.fill(block, count, stream);
        done
    }

    /// Advances a block's fill, and closes it if that was its last page.
    fn fill(&mut self, number: u32, count: u32, stream: Stream) {
        let slots = self.slots_in(self.cells.blocks[number as usize].mode);
        let block = &mut self.cells.blocks[number as usize];
        block.next_slot += count;
        if block.next_slot >= slots {
            block.state = BlockState::Full;
            let die = self.geometry.die_of(number) as usize;
            self.frontiers[stream as usize][die] = None;
        }
    }

    /// The content of `owner` is in `slot` from `done` on. Says when the mapping knows.
    fn point_to(&mut self, owner: u32, slot: u32, done: Ns) -> Ns {
        let mut known = done;
        let kind = self.geometry.owner(owner);
        if let Owner::Data(lpn) = kind {
            // A small cache may have lost the page to others of the same row.
            let page = Geometry::map_page_of(lpn);
            if !self.map.is_cached(page) {
                known = self.touch(page, done);
            }
        }
        // Between taking the sequence number and changing the entry no mapping page may be written:
        // its header would cover this program, but its entry would not.
        let seq = self.cells.next_seq();
        self.cells.record(slot, Some(owner));
        let before = self.place_of(kind);
        #[cfg(test)]
        self.carry_content(kind, slot);
        match kind {
            Owner::Data(lpn) => {
                self.map.set(lpn, Some(slot), seq);
                let regions = self.region_slots_programmed.len() as u64;
                let region = u64::from(lpn) * regions / u64::from(self.geometry.logical_pages);
                self.region_slots_programmed[region as usize] += 1;
                let programmable_at =
                    &mut self.map.programmable_at[Geometry::map_page_of(lpn) as usize];
                *programmable_at = (*programmable_at).max(done);
            }
            Owner::Map(page) => {
                self.map.places[page as usize] = slot + 1;
                let programmable_at = &mut self.map.programmable_at[page as usize];
                *programmable_at = (*programmable_at).max(done);
            }
            Owner::Log(number) => self.log.move_page(number, slot),
        }
        self.cells.blocks[self.geometry.block_of(slot) as usize].valid += 1;
        if let Some(before) = before {
            self.invalidate(before, kind, done);
        }
        known
    }

    /// Periodic work between commands: bounds what a power-on scans, and starts static wear
    /// levelling.
    pub(crate) fn upkeep(&mut self, now: Ns) {
        if core::mem::take(&mut self.blocks_opened) == 0 {
            return;
        }
        let window = self.policy.checkpoint_pages;
        self.checkpoint(self.cells.next_seq().saturating_sub(window), now);
        self.retire_sequences();
        self.level_wear(now);
    }

    /// Drops sequence numbers that no recovery needs.
    fn retire_sequences(&mut self) {
        let in_flight = self.in_flight.iter().filter_map(|op| match &op.undo {
            Undo::MapPage { changes, .. } => Some(changes.first_seq),
            _ => None,
        });
        let horizon = in_flight
            .chain(self.map.first_unwritten_seq())
            .min()
            .unwrap_or_else(|| self.cells.next_seq());
        let blocks = &self.cells.blocks;
        self.cells.sequences.retain(|&number, _| {
            let block = &blocks[number as usize];
            block.state == BlockState::Open
                || block.stream == Stream::Map
                || block.last_seq >= horizon
        });
    }
}
