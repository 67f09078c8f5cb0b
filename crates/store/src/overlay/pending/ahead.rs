//! Which pages are written before an apply ([`crate::apply::ahead`]).

use std::sync::Arc;

use mobifs_base::{ByteRange, FileKind, ObjectId, PAGE_BYTES_U64, Page, PageIndex};

use super::{PageAhead, Pending, PendingObject, PendingPage};

impl Pending {
    /// The objects with pages that can be written ahead, and how many pages these are, at most. A
    /// new file has to have `new_pages_min` of them: most small ones are replaced or deleted before
    /// they ever need to exist in the lower filesystem.
    pub(crate) fn to_write_ahead(&self, new_pages_min: usize) -> (Vec<ObjectId>, usize) {
        let objects = self.objects.iter();
        let objects = objects.filter(|(_, object)| object.can_be_written_ahead());
        let mut pages = 0;
        let mut ids: Vec<ObjectId> = objects
            .filter_map(|(&id, object)| {
                let missing = object.pages.len() - object.ahead.len();
                let is_worth_it = !object.created || missing >= new_pages_min;
                is_worth_it.then(|| {
                    pages += missing;
                    id
                })
            })
            .collect();
        // In a fixed order, so that a simulated crash can be repeated.
        ids.sort_unstable();
        (ids, pages)
    }

    /// The next pages of an object, from this one on, that are to be written ahead and end before
    /// `file_end`; they count as being written from now on.
    pub(crate) fn begin_ahead(
        &mut self,
        id: ObjectId,
        from: PageIndex,
        file_end: u64,
        pages_max: usize,
    ) -> Vec<(PageIndex, Page)> {
        let Some(object) = self.objects.get_mut(&id) else {
            return Vec::new();
        };
        let size = object.attributes.map_or(0, |attributes| attributes.size);
        if !object.can_be_written_ahead() {
            return Vec::new();
        }
        let end = size.min(file_end);
        let pages = object.pages.range(from..);
        let pages =
            pages.take_while(|(index, _)| index.offset().saturating_add(PAGE_BYTES_U64) <= end);
        let pages = pages.filter_map(|(&index, page)| match page {
            PendingPage::Whole(page) => Some((index, page.clone())),
            PendingPage::Runs { .. } => None,
        });
        let is_to_write = |(index, _): &(PageIndex, Page)| {
            // Other ranges of a new file are zeroed by the apply anyway.
            let is_hidden = !object.created && object.hides_lower(*index);
            !object.is_written_ahead(*index) && !is_hidden
        };
        let pages: Vec<_> = pages.filter(is_to_write).take(pages_max).collect();
        if pages.is_empty() {
            return pages;
        }
        let object = Arc::make_mut(object);
        for (index, _) in &pages {
            object.ahead.insert(*index, PageAhead::Begun);
        }
        pages
    }

    /// Its stage file has been deleted: none of its pages are written.
    pub(crate) fn forget_ahead(&mut self, id: ObjectId) {
        if self.object(id).is_some_and(|object| object.created) {
            self.object_mut(id).ahead.clear();
        }
    }

    /// These pages are written durably, except those that have changed since.
    pub(crate) fn end_ahead(&mut self, id: ObjectId, pages: &[PageIndex]) {
        let Some(object) = self.objects.get_mut(&id) else {
            return;
        };
        let object = Arc::make_mut(object);
        for index in pages {
            if let Some(ahead) = object.ahead.get_mut(index) {
                *ahead = PageAhead::Durable;
            }
        }
    }
}

impl PendingObject {
    /// Whether it is a file that is not deleted, in the lower tree or in a stage file that no
    /// record binds.
    fn can_be_written_ahead(&self) -> bool {
        let is_file = self
            .attributes
            .is_some_and(|of| of.kind == FileKind::Regular && of.nlink > 0);
        is_file && !(self.created && self.bound.is_some()) && !self.pages.is_empty()
    }

    /// The ranges that an apply need not write.
    pub(crate) fn ranges_ahead(&self) -> impl Iterator<Item = ByteRange> {
        let durable = self.ahead.iter();
        let durable = durable.filter(|(_, ahead)| **ahead == PageAhead::Durable);
        durable.map(|(index, _)| ByteRange::new(index.offset(), index.offset() + PAGE_BYTES_U64))
    }

    /// Whether an apply need not write a page.
    pub(crate) fn is_written_ahead(&self, index: PageIndex) -> bool {
        self.ahead.get(&index) == Some(&PageAhead::Durable)
    }
}
