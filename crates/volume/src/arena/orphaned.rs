//! An arena as its last process reads it: nothing in it is changed, and what cannot be read
//! is named and passed over.
//!
//! [`Arena::attach`](super::Arena::attach) makes an arena that can be used again, and refuses one
//! that is damaged anywhere. This code shares only the layout with it.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use mobifs_base::codec::Reader;
use mobifs_base::{ObjectId, Page, PageContent};
use mobifs_engine::persist::{Key, Kind, SavedRecords};
use mobifs_store::RestartState;

use super::errors::ArenaError;
use super::layout::{
    BATCH_AREA_AT, BATCH_AT, CHUNKS_AT, ENTRIES_AT, FIRST_AT, INCOMPLETE_AT, LENGTH_AT, LIVE_AT,
    Layout, MAGIC, MAGIC_AT, PROGRESS_BYTES_AT, RECORD_HEADER_BYTES, SECOND_AT, SHAPE_AT, VERSION,
    VERSION_AT,
};
use super::progress_log::ProgressLog;
use super::records::RawKey;
use super::region::Region;
use super::saved;
use super::slots::{Class, RECORD_BYTES_MAX, RUN};

const LAYOUT: Layout = Layout::MOUNT;

/// The arena of a daemon that has no successor.
#[derive(Debug)]
pub(crate) struct OrphanedArena {
    region: Arc<Region>,
    /// Where the parts of each whole record are.
    records: BTreeMap<RawKey, Vec<usize>>,
    /// What could not be read so far.
    unreadable: Vec<String>,
}

/// Content of a page where the daemon left it.
struct OrphanedPage {
    region: Arc<Region>,
    offset: usize,
    length: usize,
}

impl PageContent for OrphanedPage {
    fn bytes(&self) -> &[u8] {
        // SAFETY: nothing writes to the arena any more: its daemon has ended, and there is no
        // successor.
        unsafe { self.region.bytes(self.offset, self.length) }
    }

    fn place(&self) -> u64 {
        self.offset as u64
    }
}

impl OrphanedArena {
    /// What lies in this memory. A batch that was published counts, although it is not carried
    /// out.
    ///
    /// # Errors
    /// [`ArenaError`] if it is no arena of this version, or what is in it cannot be relied on.
    pub(crate) fn read(memory: OwnedFd) -> Result<Self, ArenaError> {
        let region = Region::attach(memory)?;
        let is_arena = region.mapped_bytes() >= LAYOUT.chunks_at
            && region.load(MAGIC_AT) == MAGIC
            && region.load(VERSION_AT) == VERSION;
        if !is_arena {
            return Err(ArenaError::Foreign);
        }
        if region.load(INCOMPLETE_AT) != 0 {
            return Err(ArenaError::Incomplete);
        }
        let mut arena = Self {
            region: Arc::new(region),
            records: BTreeMap::new(),
            unreadable: Vec::new(),
        };
        arena.find_records();
        Ok(arena)
    }

    /// What could not be read since the last call.
    pub(crate) fn take_unreadable(&mut self) -> Vec<String> {
        std::mem::take(&mut self.unreadable)
    }

    fn find_records(&mut self) {
        let published = self.published();
        let mut parts: BTreeMap<RawKey, Vec<(usize, usize, usize)>> = BTreeMap::new();
        for offset in self.record_slots() {
            let lives = published.get(&offset).copied();
            if lives.unwrap_or_else(|| self.region.load(offset + LIVE_AT)) == 0 {
                continue;
            }
            let shape = self.region.load(offset + SHAPE_AT);
            let key = RawKey {
                kind: shape as u8,
                first: self.region.load(offset + FIRST_AT),
                second: self.region.load(offset + SECOND_AT),
            };
            let part = (shape >> 8 & 0xfff_ffff) as usize;
            parts
                .entry(key)
                .or_default()
                .push((part, (shape >> 36) as usize, offset));
        }
        for (key, mut parts) in parts {
            parts.sort_unstable();
            let of = parts.len();
            let mut numbered = parts.iter().enumerate();
            if numbered.all(|(number, part)| (part.0, part.1) == (number, of)) {
                let offsets = parts.into_iter().map(|part| part.2);
                self.records.insert(key, offsets.collect());
            } else {
                self.unreadable.push(format!("record {key:?} is not whole"));
            }
        }
    }

    /// The entries of the published batch: whether the slot counts.
    fn published(&mut self) -> HashMap<usize, u64> {
        let count = usize::try_from(self.region.load(BATCH_AT)).unwrap_or(usize::MAX);
        let area = usize::try_from(self.region.load(BATCH_AREA_AT)).unwrap_or(usize::MAX);
        let (at, entries_max) = match area {
            0 => (LAYOUT.batch_at, LAYOUT.batch_entries),
            _ => (area, self.region.mapped_bytes().saturating_sub(area) / 8),
        };
        if count > entries_max || !at.is_multiple_of(8) {
            self.unreadable.push("the last batch has no end".to_owned());
            return HashMap::new();
        }
        let entry = |number| self.region.load(at + number * 8);
        let entries = (0..count).map(entry);
        entries
            .map(|entry| ((entry & !1) as usize, entry & 1))
            .collect()
    }

    /// All slots that records can be in.
    fn record_slots(&mut self) -> Vec<usize> {
        let room = (self.region.mapped_bytes() - LAYOUT.chunks_at) / LAYOUT.chunk_bytes;
        let chunks = usize::try_from(self.region.load(CHUNKS_AT)).unwrap_or(usize::MAX);
        let mut slots = Vec::new();
        let mut number = 0;
        while number < chunks.min(room) {
            let chunk = LAYOUT.chunks_at + number * LAYOUT.chunk_bytes;
            let word = self.region.load(chunk);
            match Class::of_word(word) {
                // Entries of batches, in several chunks.
                _ if word & RUN != 0 => {
                    number = number.saturating_add(usize::try_from(word - RUN).unwrap_or(1).max(1));
                    continue;
                }
                Some(class) if !class.is_content() => {
                    slots.extend(class.slots_in(chunk, LAYOUT.chunk_bytes));
                }
                None if word != 0 => self
                    .unreadable
                    .push(format!("chunk {number} is of no class")),
                _ => {}
            }
            number += 1;
        }
        slots
    }

    fn raw_value(&self, key: RawKey) -> Vec<u8> {
        let mut value = Vec::new();
        for &offset in self.records.get(&key).into_iter().flatten() {
            let room = RECORD_BYTES_MAX - RECORD_HEADER_BYTES;
            let length = (self.region.load(offset + LENGTH_AT) as usize).min(room);
            let start = offset + RECORD_HEADER_BYTES;
            let length = length.min(self.region.mapped_bytes() - start);
            // SAFETY: as for the content of pages.
            value.extend_from_slice(unsafe { self.region.bytes(start, length) });
        }
        value
    }

    fn keys_between(&self, from: RawKey, to: RawKey) -> impl Iterator<Item = RawKey> + '_ {
        self.records.range(from..=to).map(|(key, _)| *key)
    }

    /// The state of the store. An object whose state cannot be read is skipped: what is committed
    /// to it then finds it only where the journal says where it is.
    pub(crate) fn store(&mut self) -> RestartState {
        let mut known = RestartState::default();
        let mut unreadable = Vec::new();
        let of_kind = |kind| (key_of(kind, 0, 0), key_of(kind, u64::MAX, u64::MAX));
        let (from, to) = of_kind(saved::STORE_OBJECT);
        for key in self.keys_between(from, to) {
            let value = self.raw_value(key);
            match saved::read_object(&mut Reader::new(&value)) {
                Some(object) => known.objects.push((ObjectId(key.first), object)),
                None => unreadable.push(format!("where {} is", ObjectId(key.first))),
            }
        }
        let (from, to) = of_kind(saved::STORE_INTENT);
        for key in self.keys_between(from, to) {
            let value = self.raw_value(key);
            known.intent = saved::read_intent(&mut Reader::new(&value));
            if known.intent.is_none() {
                unreadable.push("which transaction was committed last".to_owned());
            }
        }
        for kind in [Kind::Object, Kind::Dentry] {
            for key in self.keys(kind, None) {
                let named = mobifs_engine::persist::named_in(key, &self.value(key));
                known.ids_above = named.map_or(known.ids_above, |id| id.0.max(known.ids_above));
            }
        }
        self.unreadable.append(&mut unreadable);
        known
    }

    /// Where the last process records its progress.
    pub(crate) fn progress_log(&self) -> ProgressLog {
        ProgressLog::in_region(Arc::clone(&self.region))
    }
}

const fn key_of(kind: u8, first: u64, second: u64) -> RawKey {
    RawKey {
        kind,
        first,
        second,
    }
}

impl SavedRecords for OrphanedArena {
    fn keys(&self, kind: Kind, first: Option<u64>) -> Vec<Key> {
        let number = kind as u8;
        let from = key_of(number, first.unwrap_or(0), 0);
        let to = key_of(number, first.unwrap_or(u64::MAX), u64::MAX);
        let keys = self.keys_between(from, to);
        keys.map(|key| Key {
            kind,
            first: key.first,
            second: key.second,
        })
        .collect()
    }

    fn value(&self, key: Key) -> Vec<u8> {
        self.raw_value(key_of(key.kind as u8, key.first, key.second))
    }

    fn page(&self, place: u64, length: usize) -> Option<Page> {
        let offset = usize::try_from(place).ok()?;
        let end = offset.checked_add(length)?;
        let is_inside = offset >= LAYOUT.chunks_at && end <= self.region.mapped_bytes();
        (is_inside && length <= mobifs_base::PAGE_BYTES).then(|| {
            Page::kept(Arc::new(OrphanedPage {
                region: Arc::clone(&self.region),
                offset,
                length,
            }))
        })
    }
}

/// What [`enter`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Processes that have begun to take over since one succeeded in reading the arena, this one
    /// included.
    pub in_a_row: u64,
    /// A last process has begun to commit what the arena holds, so that there can be no daemon any
    /// more.
    pub has_last: bool,
}

/// Counts that a process begins to take over the arena in this memory, before anything of it is
/// looked at that could end the process.
///
/// # Errors
/// [`ArenaError::Foreign`] if it is no arena of this version, [`ArenaError::Memory`].
pub fn enter(memory: &OwnedFd) -> Result<Entered, ArenaError> {
    let word = |at: usize| -> Result<u64, ArenaError> {
        let mut bytes = [0; 8];
        let read = rustix::io::pread(memory, &mut bytes, at as u64).map_err(io::Error::from)?;
        if read < bytes.len() {
            return Err(ArenaError::Foreign);
        }
        Ok(u64::from_ne_bytes(bytes))
    };
    if (word(MAGIC_AT)?, word(VERSION_AT)?) != (MAGIC, VERSION) {
        return Err(ArenaError::Foreign);
    }
    let in_a_row = word(ENTRIES_AT)?.saturating_add(1);
    let bytes = in_a_row.to_ne_bytes();
    rustix::io::pwrite(memory, &bytes, ENTRIES_AT as u64).map_err(io::Error::from)?;
    Ok(Entered {
        in_a_row,
        has_last: word(PROGRESS_BYTES_AT)? > 0,
    })
}
