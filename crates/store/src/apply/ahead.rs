//! Writing content ahead of an apply, so that commits wait only for the rest of it.
//!
//! An apply keeps all commits waiting from its beginning to its end, and most of its
//! time goes to pages of existing files. These can be written before, while others commit, for
//! the journal has every byte until the epoch ends: what is here is an apply that has not come
//! far, and that transactions may follow upon ("Why a store is served before its journal is
//! applied" in `docs/DESIGN.md`). Only whole pages inside the lower file are written. Sizes,
//! ranges of zeros, new objects and names are left to the apply; it passes over the pages that
//! were written here, are durable, and did not change since.
//!
//! What is written from here must not come to lie over something newer that no journal has any
//! more. So each step holds the lock of all that change content in place: an apply, after which
//! the pass ends, and a commit that writes new data to its place.

use std::sync::Arc;

use mobifs_base::{FileKind, ObjectId, PAGE_BYTES_U64, Page, PageIndex};

use crate::apply::work::Applier;
use crate::locks::RankedMutex;
use crate::log::epoch::{Epoch, RenameMark};
use crate::lower::Lower;
use crate::lower::gate::Gate;
use crate::overlay::Overlay;
use crate::overlay::lookup;
use crate::overlay::pending::{PageAhead, Pending, PendingObject, PendingPage};
use crate::overlay::state::State;

/// Pages that are written while the lock is held once.
const STEP_PAGES: usize = 256;
/// Pages of a file that are made durable together. Those of a commit wait for the device that
/// long.
const SYNC_PAGES: usize = 1024;
/// Largest single write.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// Pages of an object to be written in one step.
struct Step<H> {
    handle: Arc<H>,
    pages: Vec<(PageIndex, Page)>,
}

/// Why nothing more is written ahead: an apply has begun, or something failed, which the apply
/// will meet as well and report.
struct Ended;

/// Writes content of what is pending to its place, as far as that can be done while others
/// commit; [`crate::Store::apply`] does so first. What is not done, or fails, is left to the
/// apply.
pub(crate) fn write_ahead<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &RankedMutex<Epoch<Gate<L>>>,
) {
    if overlay.is_read_only() {
        return;
    }
    let Some((objects, applies)) = begin_ahead(overlay, applier, epoch) else {
        return;
    };
    let _ended = objects
        .into_iter()
        .try_for_each(|id| write_object_ahead(overlay, applier, id, applies));
    applier.content().is_ahead = false;
}

/// The objects with pages that can be written, if these are worth it, and the number of the
/// apply that comes.
fn begin_ahead<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &RankedMutex<Epoch<Gate<L>>>,
) -> Option<(Vec<ObjectId>, u64)> {
    let epoch = epoch.lock();
    // No journal, or none that redoes content, would make good what a crash leaves torn.
    if epoch.log().is_epoch_unknown() || epoch.rename_mark() != RenameMark::NotBegun {
        return None;
    }
    let mut content = applier.content();
    let (objects, pages) = overlay.state().pending.to_write_ahead();
    if content.is_ahead || pages == 0 || pages < applier.ahead_pages_min() {
        return None;
    }
    content.is_ahead = true;
    Some((objects, content.applies))
}

fn write_object_ahead<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    id: ObjectId,
    applies: u64,
) -> Result<(), Ended> {
    let mut from = PageIndex(0);
    let mut unsynced = Vec::new();
    while let Some(step) = step_ahead(overlay, applier, id, from, applies)? {
        unsynced.extend(step.pages.iter().map(|(index, _)| *index));
        let Some(last) = unsynced.last() else { break };
        from = PageIndex(last.0 + 1);
        let is_last = step.pages.len() < STEP_PAGES;
        if is_last || unsynced.len() >= SYNC_PAGES {
            let synced = overlay.lower().sync_content(&step.handle);
            synced.map_err(|_| Ended)?;
            let mut state = overlay.state_mut();
            state.pending.end_ahead(id, &unsynced);
            unsynced.clear();
        }
        if is_last {
            break;
        }
    }
    Ok(())
}

/// Writes the next pages of an object; none if there are none.
fn step_ahead<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    id: ObjectId,
    from: PageIndex,
    applies: u64,
) -> Result<Option<Step<L::Handle>>, Ended> {
    let content = applier.content();
    if content.applies != applies {
        return Err(Ended);
    }
    let _tree = overlay.hold_names();
    let Some(handle) = lookup::handle(overlay, id).map_err(|_| Ended)? else {
        return Ok(None);
    };
    let lower_bytes = overlay.lower().stat(&handle).map_err(|_| Ended)?.size;
    let pages = begin_step(&mut overlay.state_mut(), id, from, lower_bytes);
    if pages.is_empty() {
        return Ok(None);
    }
    for run in pages.chunk_by(|(one, _), (next, _)| one.0 + 1 == next.0) {
        for part in run.chunks(WRITE_BYTES_MAX / PAGE_BYTES_U64 as usize) {
            let bytes: Vec<u8> = part.iter().flat_map(|(_, page)| page.to_array()).collect();
            let written = overlay
                .lower()
                .write_at(&handle, &bytes, part[0].0.offset());
            written.map_err(|_| Ended)?;
            applier.counters().add_written(bytes.len() as u64);
        }
    }
    drop(content);
    Ok(Some(Step { handle, pages }))
}

fn begin_step(
    state: &mut State,
    id: ObjectId,
    from: PageIndex,
    lower_bytes: u64,
) -> Vec<(PageIndex, Page)> {
    state.pending.begin_ahead(id, from, lower_bytes, STEP_PAGES)
}

impl Pending {
    /// The objects with pages that can be written ahead, and how many pages these are, at most.
    fn to_write_ahead(&self) -> (Vec<ObjectId>, usize) {
        let objects = self.objects.iter();
        let objects = objects.filter(|(_, object)| object.can_be_written_ahead());
        let mut pages = 0;
        let mut ids: Vec<ObjectId> = objects
            .map(|(&id, object)| {
                pages += object.pages.len() - object.ahead.len();
                id
            })
            .collect();
        // In a fixed order, so that a simulated crash can be repeated.
        ids.sort_unstable();
        (ids, pages)
    }

    /// The next pages of an object, from this one on, that are to be written ahead to a file of
    /// so many bytes; they count as being written from now on.
    fn begin_ahead(
        &mut self,
        id: ObjectId,
        from: PageIndex,
        lower_bytes: u64,
        pages_max: usize,
    ) -> Vec<(PageIndex, Page)> {
        let Some(object) = self.objects.get_mut(&id) else {
            return Vec::new();
        };
        let size = object.attributes.map_or(0, |attributes| attributes.size);
        if !object.can_be_written_ahead() {
            return Vec::new();
        }
        let end = size.min(lower_bytes);
        let pages = object.pages.range(from..);
        let pages =
            pages.take_while(|(index, _)| index.offset().saturating_add(PAGE_BYTES_U64) <= end);
        let pages = pages.filter_map(|(&index, page)| match page {
            PendingPage::Whole(page) => Some((index, page.clone())),
            PendingPage::Runs { .. } => None,
        });
        let is_to_write = |(index, _): &(PageIndex, Page)| {
            !object.is_written_ahead(*index) && !object.hides_lower(*index)
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

    /// These pages, as far as they have not changed since, are durably in their place.
    fn end_ahead(&mut self, id: ObjectId, pages: &[PageIndex]) {
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
    /// Whether it is a file of the lower tree, and stays there.
    fn can_be_written_ahead(&self) -> bool {
        let is_file = self
            .attributes
            .is_some_and(|of| of.kind == FileKind::Regular && of.nlink > 0);
        is_file && !self.created && !self.pages.is_empty()
    }

    /// Whether an apply need not write a page.
    pub(super) fn is_written_ahead(&self, index: PageIndex) -> bool {
        self.ahead.get(&index) == Some(&PageAhead::Durable)
    }
}
