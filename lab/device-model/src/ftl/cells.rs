//! What is in the flash itself and outlives a power cut: the numbers beside each page
//! (out of band), and what the FTL knows of each block.

use hashbrown::HashMap;

use super::geometry::Geometry;
use super::resources::{CellMode, Ns};
use crate::packed::PackedArray;

/// What a block is opened for. Pages of different lifetimes do not mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Host data in multi-bit cells.
    Host = 0,
    /// Host data in the SLC cache.
    Slc = 1,
    /// What garbage collection, folding and wear levelling move.
    Collected = 2,
    /// Mapping pages and the log.
    Map = 3,
}

impl Stream {
    pub(crate) const COUNT: usize = 4;

    pub(crate) const fn from_index(index: u8) -> Option<Self> {
        Some(match index {
            0 => Self::Host,
            1 => Self::Slc,
            2 => Self::Collected,
            3 => Self::Map,
            _ => return None,
        })
    }
}

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockState {
    /// Erased.
    Free,
    /// Being filled.
    Open,
    /// Not written to any more until it is erased.
    Full,
}

/// One block of all planes of a die.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) state: BlockState,
    pub(crate) stream: Stream,
    pub(crate) mode: CellMode,
    /// Slots after this one are not programmed.
    pub(crate) next_slot: u32,
    /// Slots whose content is current.
    pub(crate) valid: u32,
    pub(crate) erases: u32,
    /// Sequence number when the block was opened.
    pub(crate) opened_seq: u64,
    /// Sequence number of its last program.
    pub(crate) last_seq: u64,
    /// When the last program or log record ends that made a slot of this block obsolete.
    /// Before that, the block may hold the only copy that survives a power cut.
    pub(crate) superseded_at: Ns,
}

impl Block {
    pub(crate) const fn new() -> Self {
        Self {
            state: BlockState::Free,
            stream: Stream::Host,
            mode: CellMode::Multi,
            next_slot: 0,
            valid: 0,
            erases: 0,
            opened_seq: 0,
            last_seq: 0,
            superseded_at: 0,
        }
    }
}

/// The content that an erase destroys, to be restored if power fails before the erase begins.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    block: Block,
    owners: Vec<u32>,
    sequences: Option<Vec<u64>>,
}

pub(crate) struct Cells {
    /// For each slot the owner's number + 1; 0 for padding and what cannot be read.
    owners: PackedArray,
    pub(crate) blocks: Vec<Block>,
    /// For each slot of a block its sequence number. Blocks all of whose programs the
    /// mapping pages in flash know have none: a recovery need not look at them.
    pub(crate) sequences: HashMap<u32, Vec<u64>, foldhash::fast::FixedState>,
    next_seq: u64,
    slots_per_block: u32,
    /// Which content a slot has, by slot and opening of its block.
    #[cfg(test)]
    pub(crate) contents: std::collections::HashMap<(u32, u64), u64>,
}

impl Cells {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        Self {
            owners: PackedArray::new(geometry.slots() as usize, u64::from(geometry.owners())),
            blocks: vec![Block::new(); geometry.blocks as usize],
            sequences: HashMap::default(),
            next_seq: 1,
            slots_per_block: geometry.slots_per_block,
            #[cfg(test)]
            contents: std::collections::HashMap::default(),
        }
    }

    /// A sequence number later than all before.
    pub(crate) const fn take_seq(&mut self) -> u64 {
        self.next_seq += 1;
        self.next_seq - 1
    }

    /// The number that comes next.
    pub(crate) const fn next_seq(&self) -> u64 {
        self.next_seq
    }

    pub(crate) const fn set_next_seq(&mut self, next_seq: u64) {
        self.next_seq = next_seq;
    }

    /// The number beside a slot's content; none for padding and unreadable slots.
    pub(crate) fn owner(&self, slot: u32) -> Option<u32> {
        self.owners.get(slot as usize).checked_sub(1)
    }

    /// Writes the owner beside the next slots' content, in the order of the slots.
    pub(crate) fn record(&mut self, slot: u32, owner: Option<u32>) {
        let block = slot / self.slots_per_block;
        let seq = self.take_seq();
        self.owners
            .set(slot as usize, owner.map_or(0, |owner| owner + 1));
        self.blocks[block as usize].last_seq = seq;
        if let Some(sequences) = self.sequences.get_mut(&block) {
            debug_assert_eq!(sequences.len() as u32, slot % self.slots_per_block);
            sequences.push(seq);
        }
    }

    /// The sequence number of a slot, if its block still has them.
    pub(crate) fn sequence(&self, slot: u32) -> Option<u64> {
        self.sequences
            .get(&(slot / self.slots_per_block))
            .and_then(|of_block| of_block.get((slot % self.slots_per_block) as usize))
            .copied()
    }

    /// Makes slots unreadable.
    pub(crate) fn tear(&mut self, first_slot: u32, count: u32) {
        for slot in first_slot..first_slot + count {
            self.owners.set(slot as usize, 0);
        }
    }

    /// Erases a block and returns what was in it.
    pub(crate) fn erase(&mut self, number: u32) -> Generation {
        let first = number * self.slots_per_block;
        let block = &mut self.blocks[number as usize];
        let before = block.clone();
        *block = Block {
            erases: before.erases + 1,
            ..Block::new()
        };
        Generation {
            owners: (first..first + before.next_slot)
                .map(|slot| self.owners.get(slot as usize))
                .collect(),
            sequences: self.sequences.remove(&number),
            block: before,
        }
    }

    /// Undoes an erase that did not begin.
    pub(crate) fn restore(&mut self, number: u32, generation: Generation) {
        let first = (number * self.slots_per_block) as usize;
        for (offset, &owner) in generation.owners.iter().enumerate() {
            self.owners.set(first + offset, owner);
        }
        self.sequences.remove(&number);
        if let Some(sequences) = generation.sequences {
            self.sequences.insert(number, sequences);
        }
        self.blocks[number as usize] = generation.block;
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let sequences: usize = self.sequences.values().map(Vec::capacity).sum();
        self.owners.memory_bytes() + self.blocks.len() * size_of::<Block>() + sequences * 8
    }

    pub(crate) fn owners_bytes(&self) -> &[u8] {
        self.owners.as_bytes()
    }

    /// Whether all slots have owners below `end`, or none.
    pub(crate) fn owners_are_below(&self, end: u32) -> bool {
        (0..self.owners.len()).all(|slot| self.owners.get(slot) <= end)
    }

    pub(crate) fn restore_owners(&mut self, bytes: &[u8]) -> bool {
        self.owners.restore(bytes)
    }
}
