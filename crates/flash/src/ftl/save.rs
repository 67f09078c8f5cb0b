//! The cells as bytes. What RAM had is not saved: loading is a power-on.

use thiserror::Error;

use super::cells::Block;
use super::log::{LogPage, Record};
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

/// Appends numbers, little-endian.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}

/// Takes numbers off, little-endian.
pub(crate) struct Reader<'b>(pub(crate) &'b [u8]);

impl<'b> Reader<'b> {
    pub(crate) fn take(&mut self, count: usize) -> Result<&'b [u8], LoadError> {
        let short = LoadError::Damaged("it is cut short");
        let (taken, rest) = self.0.split_at_checked(count).ok_or(short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], LoadError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, LoadError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, LoadError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, LoadError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'b [u8], LoadError> {
        let count = usize::try_from(self.u64()?);
        self.take(count.map_err(|_| LoadError::Damaged("a length is too large"))?)
    }

    /// A count of items that take at least `item_bytes` each, so that damage cannot ask
    /// for more memory than there are bytes.
    fn count(&mut self, item_bytes: usize) -> Result<usize, LoadError> {
        let count = self.u32()? as usize;
        if count.saturating_mul(item_bytes) > self.0.len() {
            return Err(LoadError::Damaged("a count is too large"));
        }
        Ok(count)
    }
}

impl Ftl {
    /// Writes the cells as they are when all operations have ended.
    pub(crate) fn save(&self, out: &mut Writer) {
        out.u64(self.resources.random_state());
        out.u64(self.cells.next_seq());
        out.bytes(self.cells.owners_bytes());
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
        out.bytes(self.map.entries_bytes());
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

    /// Takes back what [`Self::save`] wrote into a new FTL of the same geometry, and
    /// recovers from it at `now`; says when the device is ready.
    pub(crate) fn load(&mut self, saved: &mut Reader<'_>, now: Ns) -> Result<Ns, LoadError> {
        let random_state = saved.u64()?;
        let next_seq = saved.u64()?;
        self.cells.set_next_seq(next_seq);
        if !self.cells.restore_owners(saved.bytes()?) {
            return Err(LoadError::Damaged("its flash has another size"));
        }
        for number in 0..self.cells.blocks.len() {
            self.cells.blocks[number] = load_block(saved)?;
        }
        for _ in 0..saved.count(8)? {
            let number = saved.u32()?;
            let count = saved.count(8)?;
            let sequences = (0..count).map(|_| saved.u64()).collect::<Result<_, _>>()?;
            self.cells.sequences.insert(number, sequences);
        }
        if !self.map.restore_entries(saved.bytes()?) {
            return Err(LoadError::Damaged("its mapping has another size"));
        }
        for page in 0..self.map.written_seq.len() {
            self.map.written_seq[page] = saved.u64()?;
        }
        for _ in 0..saved.count(8)? {
            let page = saved.u32()?;
            let mut changes = super::Changes::default();
            for _ in 0..saved.count(8)? {
                let entry = saved.u32()? as u16;
                changes.before.push((entry, saved.u32()?));
            }
            if page >= self.geometry.map_pages {
                return Err(LoadError::Damaged("a mapping page does not exist"));
            }
            self.map.undo(page, &changes);
        }
        for _ in 0..saved.count(8)? {
            let (number, page) = load_log_page(saved)?;
            self.log.pages.insert(number, page);
        }
        self.resources.reset(now, random_state);
        Ok(self.recover(now))
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

fn load_log_page(saved: &mut Reader<'_>) -> Result<(u32, LogPage), LoadError> {
    let number = saved.u32()?;
    let mut page = LogPage {
        entries: saved.u32()?,
        ..LogPage::default()
    };
    for _ in 0..saved.count(9)? {
        page.records.push(match saved.u8()? {
            0 => Record::Moved {
                seq: saved.u64()?,
                from: saved.u32()?,
                to: saved.u32()?,
                slots: {
                    let count = saved.count(4)?;
                    (0..count).map(|_| saved.u32()).collect::<Result<_, _>>()?
                },
            },
            1 => Record::Discarded {
                seq: saved.u64()?,
                start: saved.u32()?,
                count: saved.u32()?,
            },
            2 => Record::Override {
                slot: saved.u32()?,
                lpn: saved.u32()?,
            },
            _ => return Err(LoadError::Damaged("a log record is of an unknown kind")),
        });
    }
    Ok((number, page))
}
