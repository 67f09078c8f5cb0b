//! Committed content fetched from the store for operations that are retried.

use alloc::vec::Vec;

use mobifs_base::{ByteRange, ObjectId, Page, PageIndex};

/// Bytes of an object, and the object's version.
type PlaceAsked = (ObjectId, ByteRange, u64);

/// Answers that wait for the retried write; more than there are waiting writers at a time.
const FETCHED_MAX: usize = 64;

/// Answers of the store about committed content, which the retried operation will use.
#[derive(Debug, Default)]
pub(crate) struct FetchedContent {
    /// Committed pages fetched for partial writes, with the inode's version.
    pages: Vec<(ObjectId, PageIndex, u64, Page)>,
    /// Whether bytes have their blocks in the lower filesystem, of an object's version.
    places: Vec<(PlaceAsked, bool)>,
}

impl FetchedContent {
    /// Adds a committed page.
    pub(crate) fn add_page(&mut self, id: ObjectId, index: PageIndex, version: u64, page: Page) {
        if self.pages.len() >= FETCHED_MAX {
            self.pages.remove(0);
        }
        self.pages.push((id, index, version, page));
    }

    /// Records whether bytes have their blocks in the lower filesystem.
    pub(crate) fn add_place(&mut self, asked: PlaceAsked, is_in_place: bool) {
        if self.places.len() >= FETCHED_MAX {
            self.places.remove(0);
        }
        self.places.push((asked, is_in_place));
    }

    /// The committed page, if it was fetched and is not stale.
    pub(crate) fn page(&self, id: ObjectId, index: PageIndex, version: u64) -> Option<Page> {
        let mut pages = self.pages.iter();
        let found = pages.find(|(of, at, seen, _)| (*of, *at, *seen) == (id, index, version));
        found.map(|(.., page)| page.clone())
    }

    /// Whether bytes have their blocks in the lower filesystem; none if that is not known.
    pub(crate) fn is_in_place(&self, asked: PlaceAsked) -> Option<bool> {
        let mut places = self.places.iter();
        let found = places.find(|(of, _)| *of == asked);
        found.map(|(_, is_in_place)| *is_in_place)
    }

    /// Committed pages of an object are not needed any more.
    pub(crate) fn drop_pages_of(&mut self, id: ObjectId) {
        self.pages.retain(|page| page.0 != id);
    }

    /// What is known of places of an object is not needed any more.
    pub(crate) fn drop_places_of(&mut self, id: ObjectId) {
        self.places.retain(|((of, ..), _)| *of != id);
    }

    /// Something was applied: what had no blocks may have some.
    pub(crate) fn drop_places(&mut self) {
        self.places.clear();
    }
}
