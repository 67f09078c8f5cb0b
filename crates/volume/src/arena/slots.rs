//! Which parts of the arena are in use: chunks of equal slots.
//!
//! Nothing of this is kept in the arena but each chunk's class: which slots are in use
//! follows from the records.

use std::collections::BTreeSet;

use super::layout::Layout;
use super::region::Region;

/// In front of a chunk's slots lies a word: its class and one.
pub(super) const CHUNK_HEADER_BYTES: usize = 64;
/// Sizes of slots for records.
const RECORD_BYTES: [usize; 13] = [
    64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
];
/// Slots for content grow in steps of this size, as pages do.
const CONTENT_STEP_BYTES: usize = 512;
const CLASSES: usize = RECORD_BYTES.len() + 8;
/// Largest slot for a record.
pub(super) const RECORD_BYTES_MAX: usize = 4096;
/// Empty chunks of a class that are kept as spare ones: memory that is returned and taken again
/// costs more than everything else that is done with a page. For content that is as much as
/// SQLite's log allocates and frees: 1000 pages.
const SPARE_RECORD_BYTES: usize = 1 << 20;
const SPARE_CONTENT_BYTES: usize = 4 << 20;
/// Added to the number of chunks of a run, in the word in front of the first of them.
pub(super) const RUN: u64 = 1 << 32;

/// What a chunk's slots are for, and their size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(u8);

impl Class {
    /// For a record of so many bytes, header included; at most [`RECORD_BYTES_MAX`].
    pub(super) fn of_record(bytes: usize) -> Self {
        let class = RECORD_BYTES.partition_point(|&slot| slot < bytes);
        debug_assert!(class < RECORD_BYTES.len(), "a record is split before");
        Self(class.min(RECORD_BYTES.len() - 1) as u8)
    }

    /// For 1 to 4096 bytes of content.
    pub(super) fn of_content(bytes: usize) -> Self {
        let steps = bytes.div_ceil(CONTENT_STEP_BYTES).clamp(1, 8);
        Self((RECORD_BYTES.len() + steps - 1) as u8)
    }

    pub(super) fn of_word(word: u64) -> Option<Self> {
        let class = u8::try_from(word.checked_sub(1)?).ok()?;
        (usize::from(class) < CLASSES).then_some(Self(class))
    }

    pub(super) const fn is_content(self) -> bool {
        self.0 as usize >= RECORD_BYTES.len()
    }

    pub(super) const fn slot_bytes(self) -> usize {
        let class = self.0 as usize;
        if class < RECORD_BYTES.len() {
            RECORD_BYTES[class]
        } else {
            (class - RECORD_BYTES.len() + 1) * CONTENT_STEP_BYTES
        }
    }

    /// Where the slots of a chunk are.
    pub(super) fn slots_in(self, chunk: usize, chunk_bytes: usize) -> impl Iterator<Item = usize> {
        let first = chunk + CHUNK_HEADER_BYTES;
        (0..self.slots(chunk_bytes)).map(move |slot| first + slot * self.slot_bytes())
    }

    const fn spare_bytes(self) -> usize {
        if self.is_content() {
            SPARE_CONTENT_BYTES
        } else {
            SPARE_RECORD_BYTES
        }
    }

    /// In one chunk.
    const fn slots(self, chunk_bytes: usize) -> usize {
        (chunk_bytes - CHUNK_HEADER_BYTES) / self.slot_bytes()
    }
}

#[derive(Debug, Default)]
struct Chunk {
    class: Option<Class>,
    /// Released slots.
    free: Vec<u16>,
    /// Slots from here on were never used.
    fresh_from: u16,
    used: u16,
}

/// Gives out slots and takes them back. Only the owner of a slot uses its bytes.
#[derive(Debug)]
pub(super) struct Slots {
    /// Where the chunks begin.
    base: usize,
    chunk_bytes: usize,
    chunks_max: usize,
    chunks: Vec<Chunk>,
    /// Chunks with a free slot, by class.
    partial: Vec<BTreeSet<u32>>,
    /// Chunks of no class.
    unused: BTreeSet<u32>,
    /// Empty chunks of each class.
    empty: Vec<usize>,
    /// Chunks without slots that belong together: the first, and how many.
    run: Option<(u32, u32)>,
}

impl Slots {
    pub(super) fn new(layout: &Layout, end: usize) -> Self {
        Self {
            base: layout.chunks_at,
            chunk_bytes: layout.chunk_bytes,
            chunks_max: end.saturating_sub(layout.chunks_at) / layout.chunk_bytes,
            chunks: Vec::new(),
            partial: vec![BTreeSet::new(); CLASSES],
            unused: BTreeSet::new(),
            empty: vec![0; CLASSES],
            run: None,
        }
    }

    fn chunk_offset(&self, chunk: u32) -> usize {
        self.base + chunk as usize * self.chunk_bytes
    }

    fn place(&self, offset: usize) -> (u32, Class, u16) {
        let chunk = (offset - self.base) / self.chunk_bytes;
        let class = self.chunks[chunk].class;
        let within = (offset - self.base) % self.chunk_bytes - CHUNK_HEADER_BYTES;
        let class = class.unwrap_or(Class(0));
        (chunk as u32, class, (within / class.slot_bytes()) as u16)
    }

    /// A slot of this class; none if the arena is full. `count` gets how many chunks
    /// there are when there is one more.
    pub(super) fn take(
        &mut self,
        region: &Region,
        class: Class,
        count: impl FnOnce(u64),
    ) -> Option<usize> {
        let number = match self.partial[usize::from(class.0)].first() {
            Some(&number) => number,
            None => self.open_chunk(region, class, count)?,
        };
        let offset = self.chunk_offset(number);
        let chunk = &mut self.chunks[number as usize];
        let slot = chunk.free.pop().unwrap_or_else(|| {
            chunk.fresh_from += 1;
            chunk.fresh_from - 1
        });
        if chunk.used == 0 {
            self.empty[usize::from(class.0)] -= 1;
        }
        chunk.used += 1;
        if usize::from(chunk.used) == class.slots(self.chunk_bytes) {
            self.partial[usize::from(class.0)].remove(&number);
        }
        Some(offset + CHUNK_HEADER_BYTES + usize::from(slot) * class.slot_bytes())
    }

    fn open_chunk(
        &mut self,
        region: &Region,
        class: Class,
        count: impl FnOnce(u64),
    ) -> Option<u32> {
        let number = match self.unused.first() {
            Some(&number) => number,
            None if self.chunks.len() >= self.chunks_max => return None,
            None => self.chunks.len() as u32,
        };
        let is_new = !self.unused.remove(&number);
        let offset = self.chunk_offset(number);
        let reserved = match is_new {
            true => region.reserve_next(offset, self.chunk_bytes),
            false => region.reserve(offset, self.chunk_bytes),
        };
        if let Err(error) = reserved {
            tracing::debug!(%error, "no room for the arena to grow");
            if !is_new {
                self.unused.insert(number);
            }
            return None;
        }
        if is_new {
            self.chunks.push(Chunk::default());
            count(self.chunks.len() as u64);
        }
        // It is all zeros, so as a chunk of records it holds none that lives.
        region.store(self.chunk_offset(number), u64::from(class.0) + 1);
        self.chunks[number as usize].class = Some(class);
        self.partial[usize::from(class.0)].insert(number);
        self.empty[usize::from(class.0)] += 1;
        Some(number)
    }

    /// Gives a slot back.
    pub(super) fn give_back(&mut self, region: &Region, offset: usize) {
        let (number, class, slot) = self.place(offset);
        let index = usize::from(class.0);
        let chunk = &mut self.chunks[number as usize];
        chunk.free.push(slot);
        chunk.used -= 1;
        self.partial[index].insert(number);
        if chunk.used > 0 {
            return;
        }
        self.empty[index] += 1;
        if self.empty[index] * self.chunk_bytes > class.spare_bytes() {
            self.close_chunk(region, number, class);
        }
    }

    /// Gives the memory of so many empty chunks back, also of the spare ones; true if there may be
    /// more.
    pub(super) fn close_empty(&mut self, region: &Region, chunks_max: usize) -> bool {
        let empty = self.chunks.iter().enumerate();
        let empty: Vec<(u32, Class)> = empty
            .filter(|(_, chunk)| chunk.used == 0)
            .filter_map(|(number, chunk)| Some((number as u32, chunk.class?)))
            .take(chunks_max)
            .collect();
        let before = self.unused.len();
        for &(number, class) in &empty {
            self.close_chunk(region, number, class);
        }
        // Where none could be returned, the others cannot either.
        empty.len() == chunks_max && self.unused.len() > before
    }

    /// An empty chunk's memory goes back to the system. First it has no class any more,
    /// so no process looks for records in the rest of it.
    fn close_chunk(&mut self, region: &Region, number: u32, class: Class) {
        let offset = self.chunk_offset(number);
        region.store(offset, 0);
        if let Err(error) = region.discard(offset, self.chunk_bytes) {
            tracing::debug!(%error, "cannot return memory of the arena to the system");
            region.store(offset, u64::from(class.0) + 1);
            return;
        }
        self.empty[usize::from(class.0)] -= 1;
        self.partial[usize::from(class.0)].remove(&number);
        self.chunks[number as usize] = Chunk::default();
        self.unused.insert(number);
    }

    /// New chunks for `bytes` that belong together, with no slots in them: where the bytes are,
    /// and how many there are, which may be more. None if the arena is full. There is one run at
    /// a time: the one before is to be [closed](Slots::close_run).
    pub(super) fn open_run(
        &mut self,
        region: &Region,
        bytes: usize,
        count: impl FnOnce(u64),
    ) -> Option<(usize, usize)> {
        let chunks = (bytes + CHUNK_HEADER_BYTES).div_ceil(self.chunk_bytes);
        let first = self.chunks.len();
        if first + chunks > self.chunks_max {
            return None;
        }
        let offset = self.chunk_offset(first as u32);
        let length = chunks * self.chunk_bytes;
        if let Err(error) = region.reserve_next(offset, length) {
            tracing::debug!(%error, "no room for a large batch");
            return None;
        }
        self.chunks.resize_with(first + chunks, Chunk::default);
        count(self.chunks.len() as u64);
        // All are zeros until now, so they are chunks of no class.
        region.store(offset, RUN | chunks as u64);
        self.run = Some((first as u32, chunks as u32));
        Some((offset + CHUNK_HEADER_BYTES, length - CHUNK_HEADER_BYTES))
    }

    /// The run is not needed any more.
    pub(super) fn close_run(&mut self, region: &Region) {
        let Some((first, chunks)) = self.run.take() else {
            return;
        };
        // The first chunk last: as long as its word is there, the others do not count as chunks.
        for number in (first..first + chunks).rev() {
            if let Err(error) = region.discard(self.chunk_offset(number), self.chunk_bytes) {
                tracing::debug!(%error, "cannot return memory of the arena to the system");
                self.run = Some((first, chunks));
                return;
            }
        }
        self.unused.extend(first..first + chunks);
    }

    /// Learns from the arena which chunks there are. All slots count as free until
    /// [`Slots::claim`]; returns the offsets of all slots for records.
    pub(super) fn scan(&mut self, region: &Region, chunks: u64) -> Option<Vec<usize>> {
        let chunks = usize::try_from(chunks)
            .ok()
            .filter(|&n| n <= self.chunks_max)?;
        if self.base + chunks * self.chunk_bytes > region.mapped_bytes() {
            return None;
        }
        let mut records = Vec::new();
        for number in 0..chunks {
            self.chunks.push(Chunk::default());
            if self.is_in_run(number) {
                continue;
            }
            let offset = self.chunk_offset(number as u32);
            let word = region.load(offset);
            if word & RUN != 0 {
                let in_run = u32::try_from(word - RUN).ok();
                let in_run = in_run.filter(|&n| n > 0 && number + n as usize <= chunks)?;
                if self.run.replace((number as u32, in_run)).is_some() {
                    return None;
                }
                continue;
            }
            if word == 0 {
                // A kill may have come between its last use and its being zeroed.
                region.discard(offset, self.chunk_bytes).ok()?;
                self.unused.insert(number as u32);
                continue;
            }
            let class = Class::of_word(word)?;
            let chunk = &mut self.chunks[number];
            chunk.class = Some(class);
            chunk.fresh_from = class.slots(self.chunk_bytes) as u16;
            chunk.free = (0..class.slots(self.chunk_bytes) as u16).rev().collect();
            self.partial[usize::from(class.0)].insert(number as u32);
            self.empty[usize::from(class.0)] += 1;
            if !class.is_content() {
                records.extend(class.slots_in(offset, self.chunk_bytes));
            }
        }
        Some(records)
    }

    /// Marks slots that [`Slots::scan`] found as used. False if one is not a slot of
    /// the right kind.
    pub(super) fn claim(&mut self, mut offsets: Vec<usize>, content: bool) -> bool {
        offsets.sort_unstable();
        offsets.dedup();
        let mut claimed: std::collections::HashMap<u32, std::collections::HashSet<u16>> =
            std::collections::HashMap::new();
        for offset in offsets {
            let is_inside = offset
                .checked_sub(self.base)
                .is_some_and(|from| from / self.chunk_bytes < self.chunks.len());
            if !is_inside || (offset - self.base) % self.chunk_bytes < CHUNK_HEADER_BYTES {
                return false;
            }
            let (number, class, slot) = self.place(offset);
            let first = self.chunk_offset(number) + CHUNK_HEADER_BYTES;
            let is_slot = first + usize::from(slot) * class.slot_bytes() == offset;
            if !is_slot
                || class.is_content() != content
                || self.chunks[number as usize].class.is_none()
            {
                return false;
            }
            claimed.entry(number).or_default().insert(slot);
        }
        for (number, slots) in claimed {
            let chunk = &mut self.chunks[number as usize];
            let Some(class) = chunk.class else {
                return false;
            };
            chunk.free.retain(|slot| !slots.contains(slot));
            if chunk.used == 0 {
                self.empty[usize::from(class.0)] -= 1;
            }
            chunk.used = (class.slots(self.chunk_bytes) - chunk.free.len()) as u16;
            if chunk.free.is_empty() {
                self.partial[usize::from(class.0)].remove(&number);
            }
        }
        true
    }

    fn is_in_run(&self, number: usize) -> bool {
        let in_run = |(first, chunks): (u32, u32)| first as usize + chunks as usize > number;
        self.run.is_some_and(in_run)
    }

    /// Bytes of chunks in use.
    pub(super) fn used_bytes(&self) -> u64 {
        ((self.chunks.len() - self.unused.len()) * self.chunk_bytes) as u64
    }
}
