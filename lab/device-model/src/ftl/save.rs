//! The cells as bytes. What RAM had is not saved: loading is a power-on.

use mobifs_base::codec::{CodecError, Reader, Writer};
use thiserror::Error;

use super::cells::Block;
use super::geometry::{ENTRIES_PER_MAP_PAGE, Pool};
use super::remap::{LogPage, Record};
use super::resources::{CellMode, Ns};
use super::{BlockState, Ftl, Stream};

/// Why saved bytes are refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The bytes are not a saved device, or were cut short or damaged.
    #[error("the saved state of the device is damaged: {0}")]
    Damaged(&'static str),
    /// Saved by a version that this one does not read.
    #[error("the saved state has version {found}; this program reads version {expected}")]
    Version {
        /// What the bytes say.
        found: u32,
        /// What this program writes.
        expected: u32,
    },
    /// Saved with another configuration.
    #[error(
        "the saved state belongs to a device with another configuration; start with that one, \
         or remove the state to start with a new device"
    )]
    OtherConfig,
    /// Saved with another capacity.
    #[error("the saved state is of a device of {found} bytes, not {expected}")]
    OtherCapacity {
        /// What the bytes say, in bytes.
        found: u64,
        /// What was asked for, in bytes.
        expected: u64,
    },
}

impl From<CodecError> for LoadError {
    fn from(_: CodecError) -> Self {
        Self::Damaged("it is cut short")
    }
}

/// A count of items that take at least `item_bytes` each, so that damage cannot ask for more memory
/// than there are bytes.
fn count(saved: &mut Reader<'_>, item_bytes: usize) -> Result<usize, LoadError> {
    let count = saved.u32()? as usize;
    if count.saturating_mul(item_bytes) > saved.rest().len() {
        return Err(LoadError::Damaged("a count is too large"));
    }
    Ok(count)
}

impl Ftl {
    /// Writes the cells as they are when all operations have ended.
    pub(crate) fn save(&self, out: &mut Writer) {
        out.u64(self.resources.random_state());
        out.u64(self.cells.next_seq());
        out.long_bytes(self.cells.owners_bytes());
        for block in &self.cells.blocks {
            out.u8(block.stream as u8);
            out.u8(u8::from(block.mode == CellMode::Multi));
            out.u32(block.next_slot);
            out.u32(block.erases);
            out.u64(block.opened_seq);
            out.u64(block.last_seq);
        }
        let mut numbers: Vec<u32> = self.cells.sequences.keys().copied().collect();
        numbers.sort_unstable();
        out.u32(numbers.len() as u32);
        for number in numbers {
            let sequences = &self.cells.sequences[&number];
            out.u32(number);
            out.u32(sequences.len() as u32);
            sequences.iter().for_each(|&seq| out.u64(seq));
        }
        out.long_bytes(self.map.entries_bytes());
        self.map.written_seq.iter().for_each(|&seq| out.u64(seq));
        let changed: Vec<u32> = (0..self.geometry.map_pages)
            .filter(|&page| self.map.is_changed(page))
            .collect();
        out.u32(changed.len() as u32);
        for page in changed {
            let Some(changes) = self.map.changes_of(page) else {
                continue;
            };
            out.u32(page);
            out.u32(changes.before.len() as u32);
            for &(entry, before) in &changes.before {
                out.u32(u32::from(entry));
                out.u32(before);
            }
        }
        out.u32(self.log.pages.len() as u32);
        for (&number, page) in &self.log.pages {
            save_log_page(out, number, page);
        }
    }

    /// Takes back what [`Self::save`] wrote into a new FTL of the same geometry, and recovers from
    /// it at `now`; says when the device is ready. Total: bytes that no device was saved as are
    /// refused, even with a valid checksum.
    pub(crate) fn load(&mut self, saved: &mut Reader<'_>, now: Ns) -> Result<Ns, LoadError> {
        let random_state = saved.u64()?;
        let next_seq = saved.u64()?;
        possible(next_seq < SEQ_END, "a sequence number is too large")?;
        self.cells.set_next_seq(next_seq);
        let limits = Limits {
            next_seq,
            slots: self.geometry.slots(),
            logical_pages: self.geometry.logical_pages,
        };
        self.load_cells(saved, limits)?;
        self.load_mapping(saved, limits)?;
        for _ in 0..count(saved, 8)? {
            let (number, page) = load_log_page(saved, limits)?;
            let is_possible = number < self.geometry.log_numbers
                && page.entries <= self.policy.log_entries_per_page;
            possible(is_possible, "a page of the log has impossible numbers")?;
            self.log.pages.insert(number, page);
        }
        self.resources.reset(now, random_state);
        let rebuilt = self.rebuild(now);
        possible(
            self.check_places().is_ok() && self.free_blocks(Pool::Main) > 0,
            "its mapping contradicts itself",
        )?;
        Ok(self.resume(&rebuilt))
    }

    fn load_cells(&mut self, saved: &mut Reader<'_>, limits: Limits) -> Result<(), LoadError> {
        let restored = self.cells.restore_owners(saved.long_bytes()?);
        possible(restored, "its flash has another size")?;
        let known = self.cells.owners_are_below(self.geometry.owners());
        possible(known, "a page has no owner")?;
        for number in 0..self.cells.blocks.len() {
            let block = load_block(saved)?;
            let is_possible = block.next_slot <= self.slots_in(block.mode)
                && block.opened_seq <= limits.next_seq
                && block.last_seq <= limits.next_seq
                && block.erases < ERASES_END;
            possible(is_possible, "a block has impossible numbers")?;
            self.cells.blocks[number] = block;
        }
        for _ in 0..count(saved, 8)? {
            let number = saved.u32()?;
            let count = count(saved, 8)?;
            let block = self.cells.blocks.get(number as usize);
            let exists = block.is_some_and(|block| count <= block.next_slot as usize);
            possible(exists, "there are sequence numbers of no pages")?;
            let sequences = (0..count).map(|_| limits.seq(saved));
            let sequences = sequences.collect::<Result<_, _>>()?;
            self.cells.sequences.insert(number, sequences);
        }
        Ok(())
    }

    fn load_mapping(&mut self, saved: &mut Reader<'_>, limits: Limits) -> Result<(), LoadError> {
        let restored = self.map.restore_entries(saved.long_bytes()?);
        possible(restored, "its mapping has another size")?;
        for page in 0..self.map.written_seq.len() {
            self.map.written_seq[page] = saved.u64()?;
        }
        for _ in 0..count(saved, 8)? {
            let page = saved.u32()?;
            possible(
                page < self.geometry.map_pages,
                "a mapping page does not exist",
            )?;
            let mut changes = super::Changes::default();
            for _ in 0..count(saved, 8)? {
                let entry = saved.u32()?;
                let lpn = u64::from(page) * u64::from(ENTRIES_PER_MAP_PAGE) + u64::from(entry);
                let exists = entry < ENTRIES_PER_MAP_PAGE && lpn < limits.logical_pages.into();
                possible(exists, "an entry of the mapping does not exist")?;
                changes.before.push((entry as u16, limits.place(saved)?));
            }
            self.map.undo(page, &changes);
        }
        let known = self.map.slots_are_below(limits.slots);
        possible(known, "the mapping leads out of the flash")
    }
}

/// Numbers from here on are not reached by counting; they would overflow.
const SEQ_END: u64 = 1 << 62;
/// As [`SEQ_END`], for erases of a block.
const ERASES_END: u32 = 1 << 31;

/// What the numbers in saved bytes must be below.
#[derive(Clone, Copy)]
struct Limits {
    next_seq: u64,
    slots: u32,
    logical_pages: u32,
}

impl Limits {
    /// A sequence number that was given out.
    fn seq(self, saved: &mut Reader<'_>) -> Result<u64, LoadError> {
        let seq = saved.u64()?;
        possible(seq < self.next_seq, "a sequence number is from the future")?;
        Ok(seq)
    }

    /// A slot + 1, or 0 for none.
    fn place(self, saved: &mut Reader<'_>) -> Result<u32, LoadError> {
        let place = saved.u32()?;
        possible(place <= self.slots, "the mapping leads out of the flash")?;
        Ok(place)
    }

    /// The first of `count` logical pages.
    fn pages(self, first: u32, count: u32) -> Result<u32, LoadError> {
        let end = u64::from(first) + u64::from(count);
        possible(
            end <= self.logical_pages.into(),
            "a logical page does not exist",
        )?;
        Ok(first)
    }
}

fn possible(is_possible: bool, otherwise: &'static str) -> Result<(), LoadError> {
    if is_possible {
        Ok(())
    } else {
        Err(LoadError::Damaged(otherwise))
    }
}

fn save_log_page(out: &mut Writer, number: u32, page: &LogPage) {
    out.u32(number);
    out.u32(page.entries);
    out.u32(page.records.len() as u32);
    for record in &page.records {
        match record {
            Record::Moved {
                seq,
                from,
                to,
                slots,
            } => {
                out.u8(0);
                out.u64(*seq);
                out.u32(*from);
                out.u32(*to);
                out.u32(slots.len() as u32);
                slots.iter().for_each(|&slot| out.u32(slot));
            }
            Record::Discarded { seq, start, count } => {
                out.u8(1);
                out.u64(*seq);
                out.u32(*start);
                out.u32(*count);
            }
            Record::Shared { seq, to, slots } => {
                out.u8(3);
                out.u64(*seq);
                out.u32(*to);
                out.u32(slots.len() as u32);
                slots.iter().for_each(|&slot| out.u32(slot));
            }
            Record::Override { slot, lpn } => {
                out.u8(2);
                out.u32(*slot);
                out.u32(*lpn);
            }
        }
    }
}

fn load_block(saved: &mut Reader<'_>) -> Result<Block, LoadError> {
    let stream = Stream::from_index(saved.u8()?);
    let multi = saved.u8()? == 1;
    Ok(Block {
        state: BlockState::Full,
        stream: stream.ok_or(LoadError::Damaged("a block has an unknown use"))?,
        mode: if multi {
            CellMode::Multi
        } else {
            CellMode::Slc
        },
        next_slot: saved.u32()?,
        erases: saved.u32()?,
        opened_seq: saved.u64()?,
        last_seq: saved.u64()?,
        ..Block::new()
    })
}

fn load_log_page(saved: &mut Reader<'_>, limits: Limits) -> Result<(u32, LogPage), LoadError> {
    let number = saved.u32()?;
    let mut page = LogPage {
        entries: saved.u32()?,
        ..LogPage::default()
    };
    for _ in 0..count(saved, 9)? {
        page.records.push(match saved.u8()? {
            0 => {
                let seq = limits.seq(saved)?;
                let (from, to) = (saved.u32()?, saved.u32()?);
                let count = count(saved, 4)?;
                let slots = (0..count).map(|_| limits.place(saved));
                let slots: Vec<u32> = slots.collect::<Result<_, _>>()?;
                Record::Moved {
                    seq,
                    from: limits.pages(from, slots.len() as u32)?,
                    to: limits.pages(to, slots.len() as u32)?,
                    slots,
                }
            }
            1 => {
                let seq = limits.seq(saved)?;
                let (start, count) = (saved.u32()?, saved.u32()?);
                let start = limits.pages(start, count)?;
                Record::Discarded { seq, start, count }
            }
            2 => {
                let (slot, lpn) = (saved.u32()?, saved.u32()?);
                possible(slot < limits.slots, "the mapping leads out of the flash")?;
                let lpn = limits.pages(lpn, 1)?;
                Record::Override { slot, lpn }
            }
            3 => {
                let seq = limits.seq(saved)?;
                let to = saved.u32()?;
                let count = count(saved, 4)?;
                let slots = (0..count).map(|_| limits.place(saved));
                let slots: Vec<u32> = slots.collect::<Result<_, _>>()?;
                let to = limits.pages(to, slots.len() as u32)?;
                Record::Shared { seq, to, slots }
            }
            _ => return Err(LoadError::Damaged("a log record is of an unknown kind")),
        });
    }
    Ok((number, page))
}
