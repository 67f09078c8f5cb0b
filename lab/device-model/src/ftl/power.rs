//! Power loss and recovery: operations that had not ended are undone, the RAM's content is lost,
//! and the mapping is rebuilt from the cells.
//!
//! The cells have: mapping pages, each with the sequence number up to which it knows all
//! programs; beside each programmed page its owner and sequence number; the records of
//! the log with theirs. For each logical page the latest of these events counts, from
//! the sequence number of its mapping page on.
//!
//! A mapping page in flash may point into a block that was erased since. Such an entry
//! never counts: the erase waited until what made the slot obsolete was in the cells
//! (`superseded_at`), and that event is later than the mapping page.

use super::geometry::{Geometry, Owner};
use super::remap::Record;
use super::resources::Ns;
use super::{BlockState, Cause, Ftl, Stream, Undo};

/// A change of the mapping that a recovery finds in the cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    seq: u64,
    lpn: u32,
    slot: Option<u32>,
}

/// The result of reading the cells.
pub(super) struct Rebuilt {
    /// Mapping pages in flash that are out of date.
    stale: Vec<u32>,
    /// When reading ends.
    scanned: Ns,
}

impl Ftl {
    /// Power fails at `now`: undoes what had not ended and drops the RAM's content.
    pub(crate) fn power_cut(&mut self, now: Ns) {
        self.map.lose_cache();
        while let Some(op) = self.in_flight.pop_back() {
            if op.done > now {
                self.undo(op.undo, now);
            }
        }
        for programmable_at in &mut self.map.programmable_at {
            // The operations that it waited for were undone.
            *programmable_at = (*programmable_at).min(now);
        }
        self.collection = None;
        self.log.overrides.clear();
        self.frontiers
            .iter_mut()
            .for_each(|of_stream| of_stream.fill(None));
        let random_state = self.resources.random_state();
        self.resources.reset(now, random_state);
    }

    fn undo(&mut self, undo: Undo, now: Ns) {
        match undo {
            Undo::Program { first_slot, count } => self.cells.tear(first_slot, count),
            Undo::MapPage {
                page,
                changes,
                written_seq,
            } => {
                self.map.undo(page, &changes);
                self.map.written_seq[page as usize] = written_seq;
            }
            Undo::LogPage { number, records } => {
                if let Some(page) = self.log.pages.get_mut(&number) {
                    page.records.truncate(records);
                }
            }
            Undo::LogDropped(pages) => self.log.pages.extend(pages),
            Undo::Erase {
                block,
                start,
                generation,
            } => {
                if start > now {
                    self.cells.restore(block, *generation);
                }
            }
        }
    }

    /// Power is back: rebuilds everything from the cells, and writes the mapping pages that are out
    /// of date. Says when the device is ready.
    pub(crate) fn recover(&mut self, now: Ns) -> Ns {
        let rebuilt = self.rebuild(now);
        self.resume(&rebuilt)
    }

    /// The first half of a recovery: rebuilds everything from the cells, and changes
    /// nothing in them.
    pub(super) fn rebuild(&mut self, now: Ns) -> Rebuilt {
        for block in &mut self.cells.blocks {
            block.superseded_at = now;
            block.state = if block.next_slot == 0 {
                BlockState::Free
            } else {
                // No stream continues a block whose last page may be half programmed.
                BlockState::Full
            };
        }
        let scanned = self.charge_scan(now);
        self.find_map_and_log();
        let stale = self.apply_events();
        self.rebuild_overrides();
        self.count_valid();
        self.list_free_blocks();
        Rebuilt { stale, scanned }
    }

    /// The second half: writes what is out of date, and makes room.
    pub(super) fn resume(&mut self, rebuilt: &Rebuilt) -> Ns {
        let done = self.write_back_recovered(&rebuilt.stale, rebuilt.scanned);
        self.make_room(done);
        self.upkeep(done);
        done.max(self.resources.busy_until)
    }

    /// Reads the mapping pages that are out of date, and writes as many of them as the cache
    /// cannot hold.
    fn write_back_recovered(&mut self, stale: &[u32], now: Ns) -> Ns {
        let mut done = now;
        for &page in stale {
            if let Some(slot) = self.map.places[page as usize].checked_sub(1) {
                done = done.max(self.read_slots(slot, 1, Cause::Recovery, now));
            }
        }
        while self.map.is_over_full() {
            let Some(page) = self.map.oldest() else {
                break;
            };
            done = done.max(self.write_map_page(page, done));
            self.map.evict(page);
        }
        done
    }

    /// Where the mapping pages and the pages of the log are: the latest copy of each.
    fn find_map_and_log(&mut self) {
        self.map.places.fill(0);
        for page in self.log.pages.values_mut() {
            page.slot = None;
        }
        let mut latest_map = vec![0_u64; self.map.places.len()];
        let mut latest_log = vec![0_u64; self.geometry.log_numbers as usize];
        for (number, block) in self.cells.blocks.iter().enumerate() {
            if block.stream != Stream::Map {
                continue;
            }
            let first = number as u32 * self.geometry.slots_per_block;
            for slot in first..first + block.next_slot {
                let (Some(owner), Some(seq)) = (self.cells.owner(slot), self.cells.sequence(slot))
                else {
                    continue;
                };
                match self.geometry.owner(owner) {
                    Owner::Map(page) if seq > latest_map[page as usize] => {
                        latest_map[page as usize] = seq;
                        self.map.places[page as usize] = slot + 1;
                    }
                    Owner::Log(number) if seq > latest_log[number as usize] => {
                        latest_log[number as usize] = seq;
                        self.log.move_page(number, slot);
                    }
                    _ => {}
                }
            }
        }
        self.log.pages.retain(|_, page| page.slot.is_some());
        let latest = |number: &&u32| latest_log[**number as usize];
        self.log.tail = self.log.pages.keys().max_by_key(latest).copied();
    }

    /// Applies what changed after the mapping pages were written: for each logical page
    /// the last event. Returns the mapping pages that this concerns; all are put into
    /// the cache, which may be more than it holds.
    fn apply_events(&mut self) -> Vec<u32> {
        let mut stale = Vec::new();
        let events = self.events();
        for (index, event) in events.iter().enumerate() {
            let next = events.get(index + 1);
            if next.is_some_and(|next| next.lpn == event.lpn) {
                continue;
            }
            let page = Geometry::map_page_of(event.lpn);
            if !self.map.is_cached(page) {
                self.map.insert(page);
                stale.push(page);
            }
            self.map.set(event.lpn, event.slot, event.seq);
        }
        stale
    }

    /// Events that the mapping pages in flash do not know, by logical page and age.
    fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        let knows =
            |lpn: u32, seq: u64| seq < self.map.written_seq[Geometry::map_page_of(lpn) as usize];
        for (&number, sequences) in &self.cells.sequences {
            let first = number * self.geometry.slots_per_block;
            for (slot, &seq) in (first..).zip(sequences) {
                if let Some(owner) = self.cells.owner(slot)
                    && let Owner::Data(lpn) = self.geometry.owner(owner)
                    && !knows(lpn, seq)
                {
                    let slot = Some(slot);
                    events.push(Event { seq, lpn, slot });
                }
            }
        }
        for record in self.log.pages.values().flat_map(|page| &page.records) {
            events_of(record, &mut |event| {
                if !knows(event.lpn, event.seq) {
                    events.push(event);
                }
            });
        }
        events.sort_unstable_by_key(|event| (event.lpn, event.seq));
        events
    }

    /// A slot whose page is another than the number beside it says was remapped.
    fn rebuild_overrides(&mut self) {
        self.log.overrides.clear();
        let mut found = Vec::new();
        for record in self.log.pages.values().flat_map(|page| &page.records) {
            match record {
                Record::Moved { to, slots, .. } => {
                    let moved = (*to..).zip(slots);
                    found
                        .extend(moved.filter_map(|(lpn, &slot)| Some((slot.checked_sub(1)?, lpn))));
                }
                Record::Shared { to, slots, .. } => {
                    let shared = (*to..).zip(slots);
                    found.extend(
                        shared.filter_map(|(lpn, &slot)| Some((slot.checked_sub(1)?, lpn))),
                    );
                }
                Record::Override { slot, lpn } => found.push((*slot, *lpn)),
                Record::Discarded { .. } => {}
            }
        }
        for (slot, lpn) in found {
            if self.map.slot(lpn) == Some(slot) && self.cells.owner(slot) != Some(lpn) {
                self.log.overrides.insert((slot, lpn));
            }
        }
    }

    fn count_valid(&mut self) {
        for block in &mut self.cells.blocks {
            block.valid = 0;
        }
        let data = (0..self.map.len()).filter_map(|lpn| self.map.slot(lpn));
        let map = self
            .map
            .places
            .iter()
            .filter_map(|&place| place.checked_sub(1));
        let log = self.log.pages.values().filter_map(|page| page.slot);
        for slot in data.chain(map).chain(log) {
            self.cells.blocks[self.geometry.block_of(slot) as usize].valid += 1;
        }
    }

    /// The time for reading the first page of every block, and every page of those that may be
    /// newer than the mapping pages.
    fn charge_scan(&mut self, now: Ns) -> Ns {
        let mut done = now;
        for number in 0..self.geometry.blocks {
            let block = &self.cells.blocks[number as usize];
            let rows = if self.cells.sequences.contains_key(&number) {
                block.next_slot.div_ceil(self.geometry.slots_per_row)
            } else {
                1
            };
            let first = number * self.geometry.slots_per_block;
            for row in 0..rows {
                let slot = first + row * self.geometry.slots_per_row;
                done = done.max(self.read_slots(slot, 1, Cause::Recovery, now));
            }
        }
        done
    }
}

fn events_of(record: &Record, found: &mut impl FnMut(Event)) {
    match record {
        Record::Moved {
            seq,
            from,
            to,
            slots,
        } => {
            for (offset, &slot) in (0..).zip(slots) {
                let slot = slot.checked_sub(1);
                let event = |lpn, slot| Event {
                    seq: *seq,
                    lpn,
                    slot,
                };
                found(event(to + offset, slot));
                found(event(from + offset, None));
            }
        }
        Record::Shared { seq, to, slots } => {
            for (lpn, &slot) in (*to..).zip(slots) {
                let (seq, slot) = (*seq, slot.checked_sub(1));
                found(Event { seq, lpn, slot });
            }
        }
        Record::Discarded { seq, start, count } => {
            for lpn in *start..start + count {
                found(Event {
                    seq: *seq,
                    lpn,
                    slot: None,
                });
            }
        }
        Record::Override { .. } => {}
    }
}
