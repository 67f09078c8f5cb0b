//! The engine's image in the arena.

use std::collections::BTreeMap;
use std::sync::Arc;

use mobifs_base::{Page, PageContent};
use mobifs_engine::Engine;
use mobifs_engine::persist::{Key, Kind, RestartImage};
use parking_lot::MutexGuard;

use super::records::{RawKey, Records};
use super::{Arena, Shared, current};

/// Content slots that become free with one batch. A commit releases all pages of its
/// transaction at once, and whichever operation comes next, of whatever app, would have to free
/// their memory. More than an operation takes, so that those that wait do not become more.
const RELEASED_SLOTS_MAX: usize = 512;
/// Chunks whose memory is returned to the system at once.
const GIVEN_BACK_CHUNKS_MAX: usize = 16;

/// Content of a page in the arena. It stays in its slot until the last page that refers to it is
/// dropped.
struct Kept {
    arena: Arc<Shared>,
    offset: usize,
    length: usize,
}

impl PageContent for Kept {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the slot was written before this was made, and is reused only after it is
        // dropped.
        unsafe { self.arena.region.bytes(self.offset, self.length) }
    }

    fn place(&self) -> u64 {
        self.offset as u64
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.arena.released.0.lock().push(self.offset);
    }
}

/// A batch under way.
struct Batch<'a> {
    records: MutexGuard<'a, Records>,
    arena: &'a Arena,
}

impl RestartImage for Batch<'_> {
    fn put(&mut self, key: Key, value: &[u8]) {
        self.records.put(raw(key), value);
    }

    fn remove(&mut self, key: Key) {
        self.records.remove(raw(key));
    }

    fn keep(&mut self, page: &mut Page) {
        if page.place().is_some() || page.stored_bytes() == 0 {
            return;
        }
        if let Some(offset) = self.records.keep(page.stored()) {
            *page = self.arena.page_at(offset, page.stored_bytes());
        }
    }
}

/// Makes new content for pages of the engine.
pub(crate) struct Replacement<'a>(Batch<'a>);

impl Replacement<'_> {
    /// Gives a page other content. If there is room it lies in the arena from the beginning;
    /// but no record names it before the engine is saved.
    pub(crate) fn replace(&mut self, page: &mut Page, content: &[u8]) {
        match self.0.records.keep(content) {
            Some(offset) => *page = self.0.arena.page_at(offset, content.len()),
            None => page.write(0, content),
        }
    }
}

/// All records of an engine.
#[derive(Default)]
struct Whole(BTreeMap<RawKey, Vec<u8>>);

impl RestartImage for Whole {
    fn put(&mut self, key: Key, value: &[u8]) {
        self.0.insert(raw(key), value.to_vec());
    }

    fn remove(&mut self, key: Key) {
        self.0.remove(&raw(key));
    }

    /// All that can be kept is.
    fn keep(&mut self, _page: &mut Page) {}
}

const fn raw(key: Key) -> RawKey {
    RawKey {
        kind: key.kind as u8,
        first: key.first,
        second: key.second,
    }
}

impl Arena {
    /// A page whose content is kept at a place.
    pub(super) fn page_at(&self, offset: usize, length: usize) -> Page {
        Page::kept(Arc::new(Kept {
            arena: Arc::clone(&self.shared),
            offset,
            length,
        }))
    }

    /// For an operation that replaces pages. The engine must be locked.
    pub(crate) fn replacement(&self) -> Replacement<'_> {
        Replacement(self.batch())
    }

    /// Keeps what an operation has changed of the engine, and that the request of this
    /// thread has done so: both or neither. The engine must be locked.
    pub(crate) fn save(&self, engine: &mut Engine) {
        if !engine.is_unsaved() && !current::is_recorded() {
            return;
        }
        let mut batch = self.batch();
        engine.save(&mut batch);
        current::save(&mut batch.records);
        batch.commit();
    }

    /// At rest: gives memory that is not used any more, or kept for what comes next, back to the
    /// system, one portion at a time; true if there may be more. The engine must be locked; the
    /// caller lets waiting threads lock it before the next portion.
    pub(crate) fn give_back(&self, engine: &mut Engine) -> bool {
        let has_released = !self.shared.released.0.lock().is_empty();
        let mut batch = self.batch();
        engine.save(&mut batch);
        batch.commit();
        if has_released {
            return true;
        }
        self.shared.records.lock().give_back(GIVEN_BACK_CHUNKS_MAX)
    }

    /// What the arena has of an engine and what it should have, if they are not the same.
    /// For tests: it walks over everything.
    pub(crate) fn difference(&self, engine: &mut Engine) -> Option<String> {
        self.save(engine);
        let mut whole = Whole::default();
        engine.save_all(&mut whole);
        let records = self.shared.records.lock();
        let kept = records
            .all()
            .filter(|(key, _)| Kind::of(key.kind).is_some());
        let kept: BTreeMap<RawKey, Vec<u8>> = kept.collect();
        let missing = whole
            .0
            .iter()
            .find(|(key, value)| kept.get(key) != Some(value));
        let extra = kept.keys().find(|key| !whole.0.contains_key(key));
        missing
            .map(|(key, value)| format!("{key:?} should be {value:?}, is {:?}", kept.get(key)))
            .or_else(|| extra.map(|key| format!("{key:?} should not be there")))
    }

    fn batch(&self) -> Batch<'_> {
        Batch {
            records: self.shared.records.lock(),
            arena: self,
        }
    }
}

impl Batch<'_> {
    fn commit(mut self) {
        // Taken before the batch is committed: slots that are released until now are named, if at
        // all, by records that this batch removes, because the releasing operation changed the
        // engine before it was saved.
        let released = {
            let mut waiting = self.arena.shared.released.0.lock();
            let stay = waiting.len().saturating_sub(RELEASED_SLOTS_MAX);
            waiting.split_off(stay)
        };
        self.records.commit(released);
    }
}
