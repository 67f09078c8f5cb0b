//! Remaps and discards: changes of the mapping that no program records, so they would not be in the
//! cells. Each is a record in a log in flash before the command ends (S4 §6.2.2, copyless
//! defragmentation: the firmware changes mapping instead of copying).
//!
//! A remapped page keeps the old number beside its content. `overrides` has its present owner:
//! garbage collection uses it, a power-on rebuilds it from the log, and a compaction of the log
//! writes it out before it drops the records. A shared page is one more owner of a slot; whatever
//! moves the slot gives each owner a copy of its own, so that sharing ends there.

use std::collections::BTreeMap;
use std::ops::Range;

use super::geometry::{ENTRIES_PER_MAP_PAGE, Geometry, Owner};
use super::remap::Record;
use super::resources::Ns;
use super::{Cause, Ftl, InFlight, Stream, Undo};

impl Ftl {
    /// Puts content of `from..` under the addresses `to..` without moving it. The ranges
    /// do not overlap. Nothing that follows starts before the log is in the cells, so
    /// that a power cut finds all of it or none.
    pub(crate) fn remap(&mut self, from: u32, to: u32, count: u32, now: Ns) -> Ns {
        self.make_table_room(count, now);
        let mut done = self.log_what_is_programmed(count, now);
        let mut next = 0;
        while next < count {
            let in_page = |lpn: u32| ENTRIES_PER_MAP_PAGE - lpn % ENTRIES_PER_MAP_PAGE;
            let part = (count - next)
                .min(in_page(from + next))
                .min(in_page(to + next));
            done = done.max(self.remap_part(from + next, to + next, part, done));
            next += part;
        }
        done
    }

    /// Remaps pages whose entries lie in one mapping page each.
    fn remap_part(&mut self, from: u32, to: u32, count: u32, now: Ns) -> Ns {
        let known = self.touch(Geometry::map_page_of(from), now);
        let known = self.touch(Geometry::map_page_of(to), known);
        // From here to the end of the loop no mapping page is written, so that one
        // sequence number stands for the whole part.
        let seq = self.cells.take_seq();
        let mut slots = Vec::with_capacity(count as usize);
        for offset in 0..count {
            let slot = self.map.slot(from + offset);
            slots.push(slot.map_or(0, |slot| slot + 1));
            if let Some(replaced) = self.map.slot(to + offset) {
                self.invalidate(replaced, Owner::Data(to + offset), now);
            }
            if slot.is_some() || self.map.slot(to + offset).is_some() {
                self.map.set(to + offset, slot, seq);
            }
            if let Some(slot) = slot {
                self.map.set(from + offset, None, seq);
                self.log.overrides.remove(&(slot, from + offset));
                if self.cells.owner(slot) != Some(to + offset) {
                    self.log.overrides.insert((slot, to + offset));
                }
            }
        }
        for lpn in [from, to] {
            let programmable_at =
                &mut self.map.programmable_at[Geometry::map_page_of(lpn) as usize];
            *programmable_at = (*programmable_at).max(now);
        }
        self.record(Record::Moved {
            seq,
            from,
            to,
            slots,
        });
        known
    }

    /// Gives the content of pages to others as well, without moving it: (from, to) pairs, all of
    /// whose `from` have content in the cells. Nothing that follows starts before the log is in
    /// the cells, so that a power cut finds all of it or none. Says when it is.
    pub(crate) fn share(&mut self, pairs: &[(u32, u32)], now: Ns) -> Ns {
        self.make_table_room(pairs.len() as u32, now);
        let mut done = self.log_what_is_programmed(pairs.len() as u32, now);
        let mut rest = pairs;
        while let Some(&(_, first)) = rest.first() {
            let page = Geometry::map_page_of(first);
            let follows = |(offset, &(_, to)): (usize, &(u32, u32))| {
                to == first + offset as u32 && Geometry::map_page_of(to) == page
            };
            let count = rest.iter().enumerate().take_while(|&pair| follows(pair));
            let (part, later) = rest.split_at(count.count());
            rest = later;
            done = done.max(self.share_part(part, done));
        }
        done
    }

    /// Shares with pages whose entries follow one another in one mapping page.
    fn share_part(&mut self, pairs: &[(u32, u32)], now: Ns) -> Ns {
        let Some(&(_, first)) = pairs.first() else {
            return now;
        };
        let mut known = now;
        for &(from, _) in pairs {
            known = known.max(self.touch(Geometry::map_page_of(from), now));
        }
        let page = Geometry::map_page_of(first);
        let known = self.touch(page, known);
        // From here on no mapping page is written, as in `remap_part`.
        let seq = self.cells.take_seq();
        let mut slots = Vec::with_capacity(pairs.len());
        for &(from, to) in pairs {
            let slot = self.map.slot(from);
            slots.push(slot.map_or(0, |slot| slot + 1));
            let replaced = self.map.slot(to);
            if replaced == slot {
                continue;
            }
            if let Some(replaced) = replaced {
                self.invalidate(replaced, Owner::Data(to), now);
            }
            self.map.set(to, slot, seq);
            if let Some(slot) = slot {
                self.cells.blocks[self.geometry.block_of(slot) as usize].valid += 1;
                if self.cells.owner(slot) != Some(to) {
                    self.log.overrides.insert((slot, to));
                }
            }
        }
        let programmable_at = &mut self.map.programmable_at[page as usize];
        *programmable_at = (*programmable_at).max(now);
        let to = first;
        self.record(Record::Shared { seq, to, slots });
        known
    }

    /// Forgets the content of logical pages, durably.
    pub(crate) fn discard(&mut self, pages: Range<u32>, now: Ns) -> Ns {
        let mapped = |ftl: &Self, range: Range<u32>| range.into_iter().any(|p| ftl.is_mapped(p));
        let mut parts = Vec::new();
        let mut start = pages.start;
        while start < pages.end {
            let page_end = (start / ENTRIES_PER_MAP_PAGE + 1) * ENTRIES_PER_MAP_PAGE;
            let end = page_end.min(pages.end);
            if mapped(self, start..end) {
                parts.push(start..end);
            }
            start = end;
        }
        if parts.is_empty() {
            return now;
        }
        let mut done = self.append_to_log(parts.len() as u32, now);
        for part in parts {
            let known = self.touch(Geometry::map_page_of(part.start), done);
            let seq = self.cells.take_seq();
            for lpn in part.clone() {
                if let Some(slot) = self.map.slot(lpn) {
                    self.map.set(lpn, None, seq);
                    self.invalidate(slot, Owner::Data(lpn), done);
                }
            }
            let programmable_at =
                &mut self.map.programmable_at[Geometry::map_page_of(part.start) as usize];
            *programmable_at = (*programmable_at).max(done);
            self.record(Record::Discarded {
                seq,
                start: part.start,
                count: part.end - part.start,
            });
            done = done.max(known);
        }
        done
    }

    /// Puts a record on the page that [`Self::append_to_log`] wrote last.
    fn record(&mut self, record: Record) {
        if let Some(page) = self.log.tail.and_then(|tail| self.log.pages.get_mut(&tail)) {
            page.records.push(record);
        }
    }

    /// As [`Self::append_to_log`] for entries that name slots, which are in the cells before:
    /// making room in the table or among the blocks may have given content a new slot whose program
    /// has not ended, and the log must not name one that is not in the cells.
    fn log_what_is_programmed(&mut self, entries: u32, now: Ns) -> Ns {
        self.make_room(now);
        let programmed_at = self.in_flight.iter().map(|op| op.done).fold(now, Ns::max);
        self.append_to_log(entries, programmed_at)
    }

    /// Writes pages of the log for `entries` more entries. All records of a command
    /// count from the moment the last of them is in the cells; nothing starts before.
    fn append_to_log(&mut self, entries: u32, now: Ns) -> Ns {
        self.make_room(now);
        let mut not_before = now;
        let fresh = entries.div_ceil(self.policy.log_entries_per_page) as usize;
        if self.log.pages.len() + fresh > self.policy.log_pages {
            not_before = self.compact_log(now);
        }
        let tail = self.log.tail.filter(|tail| {
            self.log.pages[tail].entries + entries <= self.policy.log_entries_per_page
        });
        let done = match tail {
            Some(tail) => self.write_log_page(tail, entries, not_before),
            None => self.write_log_pages(entries, not_before),
        };
        self.resources.floor = self.resources.floor.max(done);
        done
    }

    /// Fresh pages for `entries` entries, in as few programs as they fit in.
    fn write_log_pages(&mut self, entries: u32, not_before: Ns) -> Ns {
        let mut numbers = Vec::new();
        let mut rest = entries;
        while rest > 0 || numbers.is_empty() {
            let part = rest.min(self.policy.log_entries_per_page);
            let number = self.free_log_number();
            self.log.pages.entry(number).or_default().entries = part;
            self.log.tail = Some(number);
            numbers.push(number);
            rest -= part;
        }
        let owners = numbers.iter().map(|&n| self.geometry.owner_of_log_page(n));
        let owners: Vec<u32> = owners.collect();
        let done = self.program(&owners, Stream::Map, Cause::Log, not_before);
        for number in numbers {
            self.in_flight.push_back(InFlight {
                done,
                undo: Undo::LogPage { number, records: 0 },
            });
        }
        done
    }

    fn free_log_number(&self) -> u32 {
        let first = self.log.tail.map_or(0, |tail| tail + 1);
        let numbers = self.geometry.log_numbers;
        (first..first + numbers)
            .map(|number| number % numbers)
            .find(|number| !self.log.pages.contains_key(number))
            .unwrap_or(first % numbers)
    }

    /// Programs a page of the log with `entries` more entries than it had.
    fn write_log_page(&mut self, number: u32, entries: u32, not_before: Ns) -> Ns {
        let page = self.log.pages.entry(number).or_default();
        let records = page.records.len();
        page.entries += entries;
        self.log.tail = Some(number);
        let owner = self.geometry.owner_of_log_page(number);
        let done = self.program(&[owner], Stream::Map, Cause::Log, not_before);
        self.in_flight.push_back(InFlight {
            done,
            undo: Undo::LogPage { number, records },
        });
        done
    }

    /// Writes the log's changes to where they can be found without it: mapping pages, and a fresh
    /// list of overrides.
    fn compact_log(&mut self, now: Ns) -> Ns {
        self.counters.log_compactions += 1;
        let done = self.checkpoint(self.cells.next_seq(), now);
        let done = done.max(self.mapping_written_at(now));
        self.resources.floor = self.resources.floor.max(done);
        let old: Vec<u32> = self.log.pages.keys().copied().collect();
        let overrides: Vec<(u32, u32)> = self.log.overrides.iter().copied().collect();
        let mut done = done;
        for part in overrides.chunks(self.policy.log_entries_per_page as usize) {
            let number = self.free_log_number();
            done = self.write_log_page(number, part.len() as u32, done);
            for &(slot, lpn) in part {
                self.record(Record::Override { slot, lpn });
            }
        }
        let mut dropped = BTreeMap::new();
        for number in old {
            if let Some(page) = self.log.pages.remove(&number) {
                if let Some(slot) = page.slot {
                    self.invalidate(slot, Owner::Log(number), done);
                }
                dropped.insert(number, page);
            }
        }
        self.log.tail = self
            .log
            .tail
            .filter(|tail| self.log.pages.contains_key(tail));
        self.in_flight.push_back(InFlight {
            done,
            undo: Undo::LogDropped(dropped),
        });
        self.resources.floor = self.resources.floor.max(done);
        done
    }

    /// Moves remapped pages, the ones in the lowest blocks first, until `count` more fit
    /// into the table: their new copies have the right number beside them.
    fn make_table_room(&mut self, count: u32, now: Ns) {
        let keep = self.policy.table_entries.saturating_sub(count as usize);
        while self.log.overrides.len() > keep {
            // Which may itself move remapped pages.
            self.make_room(now);
            let excess = self.log.overrides.len().saturating_sub(keep);
            let portion = (self.geometry.slots_per_row * self.geometry.dies) as usize;
            let moved: Vec<(u32, u32)> = self
                .log
                .overrides
                .iter()
                .take(excess.min(portion))
                .copied()
                .collect();
            let mut read_at = now;
            for &(slot, _) in &moved {
                read_at = read_at.max(self.read_slots(slot, 1, Cause::Log, now));
            }
            let owners: Vec<u32> = moved.iter().map(|&(_, lpn)| lpn).collect();
            self.program(&owners, Stream::Collected, Cause::Log, read_at);
        }
    }
}
