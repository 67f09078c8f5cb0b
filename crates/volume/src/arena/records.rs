//! Records in the arena, changed in batches that happen whole or not at all.
//!
//! A record is never overwritten: a new one is written to a free slot, where no process
//! looks for it, and the batch lists the slots that begin and the ones that cease to
//! count. Storing the length of that list publishes the batch. Only then is it carried
//! out, slot by slot; a kill before the store leaves everything as it was, one after it
//! leaves a list that [`Records::attach`] carries out (again: doing it twice does not
//! matter). A slot is reused only when the batch that released it is done.

use std::collections::HashMap;
use std::sync::Arc;

use super::errors::ArenaError;
use super::layout::{
    BATCH_AREA_AT, BATCH_AT, CHUNKS_AT, FIRST_AT, INCOMPLETE_AT, LENGTH_AT, LIVE_AT, Layout,
    RECORD_HEADER_BYTES, SECOND_AT, SHAPE_AT,
};
use super::region::Region;
use super::slots::{Class, RECORD_BYTES_MAX, Slots};

/// Names a record; its kind defines what the numbers mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RawKey {
    pub(super) kind: u8,
    pub(super) first: u64,
    pub(super) second: u64,
}

/// Content of one part of a record.
const PART_BYTES: usize = RECORD_BYTES_MAX - RECORD_HEADER_BYTES;
const LIVES: u64 = 1;
const FULL: &str = "memory for the arena is used up";

/// Where the parts of a record are.
#[derive(Clone, Debug)]
enum Parts {
    One(usize),
    Many(Box<[usize]>),
}

impl Parts {
    fn offsets(&self) -> &[usize] {
        match self {
            Self::One(offset) => std::slice::from_ref(offset),
            Self::Many(offsets) => offsets,
        }
    }
}

/// The records of an arena.
#[derive(Debug)]
pub(super) struct Records {
    region: Arc<Region>,
    layout: Layout,
    slots: Slots,
    index: HashMap<RawKey, Parts, foldhash::fast::FixedState>,
    /// The batch under way: slots that begin to count (with [`LIVES`] added; slots are
    /// aligned), and slots that cease to.
    batch: Vec<u64>,
    /// Slots of records that the batch releases.
    ceasing: Vec<usize>,
    /// Where the entries of batches are, and how many there is room for.
    batch_at: usize,
    batch_entries: usize,
    /// Something did not fit: from here on nothing is kept.
    is_incomplete: bool,
}

/// Where things are in this memory.
pub(super) fn layout_of(region: &Region) -> Layout {
    match region.is_file() {
        true => Layout::FILE,
        false => Layout::MOUNT,
    }
}

impl Records {
    pub(super) fn new(region: Arc<Region>) -> Self {
        let layout = layout_of(&region);
        let slots = Slots::new(&layout, region.capacity_bytes());
        Self {
            region,
            layout,
            slots,
            index: HashMap::default(),
            batch: Vec::new(),
            ceasing: Vec::new(),
            batch_at: layout.batch_at,
            batch_entries: layout.batch_entries,
            is_incomplete: false,
        }
    }

    /// The records of a predecessor. Content slots that they name have to be
    /// claimed before anything else.
    pub(super) fn attach(region: Arc<Region>) -> Result<Self, ArenaError> {
        if region.load(INCOMPLETE_AT) != 0 {
            return Err(ArenaError::Incomplete);
        }
        let mut records = Self::new(region);
        let published = records.region.load(BATCH_AT);
        let published = records.find_batch(published);
        let published = published.ok_or(ArenaError::Damaged("a batch is too long"))?;
        if !(0..published).all(|number| records.is_entry(number)) {
            return Err(ArenaError::Damaged("a batch names no slot"));
        }
        records.carry_out(published);
        let chunks = records.region.load(CHUNKS_AT);
        let scanned = records.slots.scan(&records.region, chunks);
        let slots = scanned.ok_or(ArenaError::Damaged("a chunk is of no class"))?;
        // No batch is under way any more, and the next ones are small until one is not.
        records.close_batch_area();
        records.index_live(slots)?;
        Ok(records)
    }

    fn index_live(&mut self, slots: Vec<usize>) -> Result<(), ArenaError> {
        let mut parts: HashMap<RawKey, Vec<(usize, usize, usize)>> = HashMap::new();
        for offset in slots {
            if self.region.load(offset + LIVE_AT) != LIVES {
                continue;
            }
            let shape = self.region.load(offset + SHAPE_AT);
            let key = RawKey {
                kind: shape as u8,
                first: self.region.load(offset + FIRST_AT),
                second: self.region.load(offset + SECOND_AT),
            };
            let part = (shape >> 8 & 0xfff_ffff) as usize;
            let of = (shape >> 36) as usize;
            parts.entry(key).or_default().push((part, of, offset));
        }
        let mut used = Vec::new();
        for (key, mut parts) in parts {
            parts.sort_unstable();
            let of = parts.len();
            let is_whole = parts
                .iter()
                .enumerate()
                .all(|(number, part)| part.0 == number && part.1 == of);
            if !is_whole {
                return Err(ArenaError::Damaged("a record is not whole"));
            }
            let offsets: Vec<usize> = parts.iter().map(|part| part.2).collect();
            used.extend_from_slice(&offsets);
            let parts = match offsets[..] {
                [one] => Parts::One(one),
                _ => Parts::Many(offsets.into()),
            };
            self.index.insert(key, parts);
        }
        if self.slots.claim(used, false) {
            Ok(())
        } else {
            Err(ArenaError::Damaged("a record is in no slot"))
        }
    }

    /// Content slots that records name are in use. The rest of them is free.
    pub(super) fn claim_content(&mut self, places: Vec<usize>) -> Result<(), ArenaError> {
        if self.slots.claim(places, true) {
            Ok(())
        } else {
            Err(ArenaError::Damaged("a page is in no slot"))
        }
    }

    /// All records, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = (RawKey, Vec<u8>)> + '_ {
        self.index.keys().map(|key| (*key, self.content_of(*key)))
    }

    /// A record's content; empty if there is none.
    pub(super) fn content_of(&self, key: RawKey) -> Vec<u8> {
        let parts = self.index.get(&key).map_or(&[][..], Parts::offsets);
        let mut content = Vec::new();
        for &offset in parts {
            content.extend_from_slice(self.part(offset));
        }
        content
    }

    fn part(&self, offset: usize) -> &[u8] {
        let room = RECORD_BYTES_MAX - RECORD_HEADER_BYTES;
        let length = (self.region.load(offset + LENGTH_AT) as usize).min(room);
        // SAFETY: a part in the index is written only before it is put there, and its slot is
        // reused only when the index has dropped it; both need `&mut self`.
        unsafe { self.region.bytes(offset + RECORD_HEADER_BYTES, length) }
    }

    fn is_same(&self, parts: &Parts, value: &[u8]) -> bool {
        let mut rest = value;
        for &offset in parts.offsets() {
            let part = self.part(offset);
            match rest.split_at_checked(part.len()) {
                Some((head, tail)) if head == part => rest = tail,
                _ => return false,
            }
        }
        rest.is_empty()
    }

    /// From the batch's end on this is the record of `key`.
    pub(super) fn put(&mut self, key: RawKey, value: &[u8]) {
        let known = self.index.get(&key);
        if self.is_incomplete || known.is_some_and(|parts| self.is_same(parts, value)) {
            return;
        }
        if value.len() <= PART_BYTES {
            match self.write_part(key, (0, 1), value) {
                Some(offset) => self.replace(key, Parts::One(offset)),
                None => self.give_up(FULL),
            }
            return;
        }
        let of = value.len().div_ceil(PART_BYTES);
        let mut offsets = Vec::with_capacity(of);
        for part in 0..of {
            let start = part * PART_BYTES;
            let content = &value[start..value.len().min(start + PART_BYTES)];
            let Some(offset) = self.write_part(key, (part, of), content) else {
                self.give_up(FULL);
                return;
            };
            offsets.push(offset);
        }
        self.replace(key, Parts::Many(offsets.into()));
    }

    fn replace(&mut self, key: RawKey, parts: Parts) {
        let begins = parts.offsets().iter().map(|&offset| offset as u64 | LIVES);
        self.batch.extend(begins);
        if let Some(before) = self.index.insert(key, parts) {
            self.cease(&before);
        }
    }

    fn write_part(
        &mut self,
        key: RawKey,
        (part, of): (usize, usize),
        content: &[u8],
    ) -> Option<usize> {
        let class = Class::of_record(RECORD_HEADER_BYTES + content.len());
        let offset = self.take(class)?;
        let region = &self.region;
        let shape = u64::from(key.kind) | (part as u64) << 8 | (of as u64) << 36;
        region.store(offset + SHAPE_AT, shape);
        region.store(offset + LENGTH_AT, content.len() as u64);
        region.store(offset + FIRST_AT, key.first);
        region.store(offset + SECOND_AT, key.second);
        // SAFETY: the slot was free, so it has no other owner.
        unsafe { region.write(offset + RECORD_HEADER_BYTES, content) };
        Some(offset)
    }

    fn take(&mut self, class: Class) -> Option<usize> {
        let region = &self.region;
        self.slots
            .take(region, class, |chunks| region.store(CHUNKS_AT, chunks))
    }

    fn cease(&mut self, parts: &Parts) {
        for &offset in parts.offsets() {
            self.batch.push(offset as u64);
            self.ceasing.push(offset);
        }
    }

    /// From the batch's end on there is no record of `key`.
    pub(super) fn remove(&mut self, key: RawKey) {
        if let Some(before) = self.index.remove(&key) {
            self.cease(&before);
        }
    }

    /// Stores content of a page until [`Records::release`]; its offset.
    pub(super) fn keep(&mut self, content: &[u8]) -> Option<usize> {
        if self.is_incomplete {
            return None;
        }
        let Some(offset) = self.take(Class::of_content(content.len())) else {
            self.give_up(FULL);
            return None;
        };
        // SAFETY: the slot was free, so it has no other owner.
        unsafe { self.region.write(offset, content) };
        Some(offset)
    }

    /// Makes the batch happen. `released` are content slots that are not used any more,
    /// and that no record names when the batch has happened.
    pub(super) fn commit(&mut self, released: Vec<usize>) {
        if self.batch.len() > self.batch_entries && !self.open_batch_area() {
            self.give_up(FULL);
        }
        if !self.is_incomplete && !self.batch.is_empty() {
            for (number, entry) in self.batch.iter().enumerate() {
                self.region.store(self.batch_at + number * 8, *entry);
            }
            self.region.store(BATCH_AT, self.batch.len() as u64);
            self.carry_out(self.batch.len());
        }
        self.batch.clear();
        for offset in self.ceasing.drain(..) {
            self.slots.give_back(&self.region, offset);
        }
        for offset in released {
            self.slots.give_back(&self.region, offset);
        }
    }

    /// Where the entries of a batch of so many are that a killed process has published; none if
    /// they are nowhere.
    fn find_batch(&mut self, published: u64) -> Option<usize> {
        let published = usize::try_from(published).ok()?;
        let area = usize::try_from(self.region.load(BATCH_AREA_AT)).ok()?;
        if area != 0 {
            let room = self.region.mapped_bytes().checked_sub(area)?;
            if area < self.layout.chunks_at || !area.is_multiple_of(8) {
                return None;
            }
            (self.batch_at, self.batch_entries) = (area, room / 8);
        }
        (published <= self.batch_entries).then_some(published)
    }

    /// A place for the entries of a batch that is larger than all before. No batch is published
    /// now, so nothing is where they were.
    fn open_batch_area(&mut self) -> bool {
        self.close_batch_area();
        let bytes = self.batch.len().next_power_of_two() * 8;
        let region = &self.region;
        let count = |chunks| region.store(CHUNKS_AT, chunks);
        let Some((offset, bytes)) = self.slots.open_run(region, bytes, count) else {
            return false;
        };
        self.region.store(BATCH_AREA_AT, offset as u64);
        (self.batch_at, self.batch_entries) = (offset, bytes / 8);
        true
    }

    fn close_batch_area(&mut self) {
        self.region.store(BATCH_AREA_AT, 0);
        (self.batch_at, self.batch_entries) = (self.layout.batch_at, self.layout.batch_entries);
        self.slots.close_run(&self.region);
    }

    /// Whether an entry of the batch names a place that a slot can be at.
    fn is_entry(&self, number: usize) -> bool {
        let entry = self.region.load(self.batch_at + number * 8);
        let offset = (entry & !LIVES) as usize;
        let last = self.region.mapped_bytes() - RECORD_HEADER_BYTES;
        offset.is_multiple_of(8) && (self.layout.chunks_at..=last).contains(&offset)
    }

    /// Carries out the published batch.
    fn carry_out(&self, entries: usize) {
        for number in 0..entries {
            let entry = self.region.load(self.batch_at + number * 8);
            let (offset, lives) = ((entry & !LIVES) as usize, entry & LIVES);
            self.region.store(offset + LIVE_AT, lives);
        }
        if entries > 0 {
            self.region.store(BATCH_AT, 0);
        }
    }

    fn give_up(&mut self, why: &str) {
        tracing::error!("{why}: from now on a kill of the daemon loses what is not committed");
        self.region.store(INCOMPLETE_AT, 1);
        self.is_incomplete = true;
    }

    /// Returns spare memory to the system, so many chunks of it; true if there may be more.
    pub(super) fn give_back(&mut self, chunks_max: usize) -> bool {
        self.close_batch_area();
        self.slots.close_empty(&self.region, chunks_max)
    }

    /// Whether everything could be kept so far.
    pub(super) const fn is_complete(&self) -> bool {
        !self.is_incomplete
    }

    /// Memory of the arena in use, in bytes.
    pub(super) fn used_bytes(&self) -> u64 {
        self.slots.used_bytes()
    }
}
