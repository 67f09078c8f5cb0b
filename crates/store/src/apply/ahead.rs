//! Writing content ahead of an apply, so that the apply, for which commits wait, is shorter.
//!
//! An apply blocks all commits from its beginning to its end, and spends most of its time on pages
//! of existing files. These can be written before, during commits, because the journal has every
//! byte until the epoch ends: the result is that of an apply that was interrupted early, which
//! further transactions may follow
//! (`docs/DESIGN.md#a-store-is-served-before-its-journal-is-applied`). Only whole pages are
//! written: of existing files those inside the lower file, of large new files all, to their stage
//! file. Sizes, ranges of zeros, small new files and names are left to the apply; it skips the
//! pages that were written here, are durable, and did not change since.
//!
//! A stage file that no record binds counts as empty after a crash: the apply that follows zeroes
//! everything in it that is not recorded as direct data, and writes all pages.
//!
//! A write must not overwrite newer content that is no longer in the journal. So each step holds
//! the lock of all operations that change content in place: an apply, after which the pass ends,
//! and a commit with direct data.

use std::sync::Arc;

use mobifs_base::{ObjectId, PAGE_BYTES_U64, Page, PageIndex};

use crate::apply::materialize;
use crate::apply::stage;
use crate::apply::work::Applier;
use crate::commit::counters::CommitCounters;
use crate::locks::RankedMutex;
use crate::log::epoch::{Epoch, RenameMark};
use crate::lower::{Lower, WrittenBack};
use crate::overlay::Overlay;
use crate::overlay::lookup;

/// Pages that are written while the lock is held once.
const STEP_PAGES: usize = 256;
/// The least number of pages of a file that are sent to the device together, used during commits: a
/// commit waits for the device that long.
const PORTION_PAGES_MIN: usize = 32;
/// The greatest number, used while nothing is committed.
const PORTION_PAGES_MAX: usize = 1024;
/// Pages of a file that are made durable together: each time costs a flush of the device, for which
/// commits wait.
const DURABLE_PAGES: usize = 4096;
/// Largest single write.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// Pages of an object to be written in one step.
struct Step<H> {
    handle: Arc<H>,
    pages: Vec<(PageIndex, Page)>,
}

/// Pages of an object that are on the device, but for its cache.
struct Portion<H> {
    /// None if no pages were left.
    file: Option<Arc<H>>,
    written: Vec<PageIndex>,
    /// Where the next ones may be.
    next: Option<PageIndex>,
}

/// The file to which the pages of an object are written.
struct Destination<H> {
    handle: Arc<H>,
    /// Where writing has to end.
    end: u64,
}

/// Writing ahead has ended: an apply has begun, or a call failed; the apply repeats and reports it.
struct Ended;

/// How many pages are sent to the device together.
struct Portions {
    /// Commits that were seen.
    commits: u64,
    /// Pages of the last portion.
    pages: usize,
}

impl Portions {
    const fn new(commits: u64) -> Self {
        Self {
            commits,
            pages: PORTION_PAGES_MIN / 2,
        }
    }

    /// Pages of the next portion: the least number after a commit since the last one began,
    /// otherwise twice as many as in the last one.
    fn next_pages(&mut self, commits: u64) -> usize {
        let was_alone = commits == self.commits;
        self.commits = commits;
        self.pages = if was_alone {
            (self.pages * 2).min(PORTION_PAGES_MAX)
        } else {
            PORTION_PAGES_MIN
        };
        self.pages
    }
}

/// One pass over what is pending.
struct Pass<'a, L: Lower> {
    overlay: &'a Overlay<L>,
    applier: &'a Applier,
    epoch: &'a RankedMutex<Epoch<L::Handle>>,
    commits: &'a CommitCounters,
    /// Applies that had begun when it began.
    applies: u64,
    portions: Portions,
}

/// Writes pending content in place, as far as that can be done during commits;
/// [`crate::Store::apply`] begins with this. The rest, and everything that fails, is left to the
/// apply.
pub(crate) fn write_ahead<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &RankedMutex<Epoch<L::Handle>>,
    commits: &CommitCounters,
) {
    if overlay.is_read_only() {
        return;
    }
    let Some((objects, applies)) = begin_ahead(overlay, applier, epoch) else {
        return;
    };
    let mut pass = Pass {
        overlay,
        applier,
        epoch,
        commits,
        applies,
        portions: Portions::new(commits.commits()),
    };
    let _ended = objects.into_iter().try_for_each(|id| pass.write_object(id));
    applier.content().is_ahead = false;
}

/// The objects with pages that can be written, if there are enough, and the number of the next
/// apply.
fn begin_ahead<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &RankedMutex<Epoch<L::Handle>>,
) -> Option<(Vec<ObjectId>, u64)> {
    let mut epoch = epoch.lock();
    // Without a journal that redoes content, torn pages of a crash could not be repaired.
    if epoch.log().is_epoch_unknown() || epoch.rename_mark() != RenameMark::NotBegun {
        return None;
    }
    // A transaction that failed may be found after a crash, with copies of what is overwritten.
    if epoch.log().is_tail_unknown() {
        return None;
    }
    let mut content = applier.content();
    let pages_min = applier.ahead_pages_min().max(1);
    let (objects, pages) = overlay.state().pending.to_write_ahead(pages_min);
    if content.is_ahead || pages < pages_min {
        return None;
    }
    // If this fails, the apply repeats and reports it.
    materialize::materialize(overlay, applier, &mut epoch).ok()?;
    content.is_ahead = true;
    Some((objects, content.applies))
}

impl<L: Lower> Pass<'_, L> {
    /// Writes the pages of an object and makes them durable.
    fn write_object(&mut self, id: ObjectId) -> Result<(), Ended> {
        let mut next = Some(PageIndex(0));
        let mut written = Vec::new();
        let mut file = None;
        while let Some(from) = next {
            let portion = self.write_portion(id, from)?;
            next = portion.next;
            written.extend(portion.written);
            file = portion.file.or(file);
            if let Some(file) = &file
                && (next.is_none() || written.len() >= DURABLE_PAGES)
            {
                self.make_durable(id, file, &written)?;
                written.clear();
            }
        }
        Ok(())
    }

    /// Writes the next pages of an object and sends them to the device.
    fn write_portion(
        &mut self,
        id: ObjectId,
        from: PageIndex,
    ) -> Result<Portion<L::Handle>, Ended> {
        // Waits for a commit that is under way.
        drop(self.epoch.lock());
        let portion_pages = self.portions.next_pages(self.commits.commits());
        let mut portion = Portion {
            file: None,
            written: Vec::new(),
            next: Some(from),
        };
        while let Some(from) = portion.next
            && portion.written.len() < portion_pages
        {
            let pages_max = STEP_PAGES.min(portion_pages - portion.written.len());
            portion.next = None;
            if let Some(step) = self.step(id, from, pages_max)? {
                let indices = step.pages.iter().map(|(index, _)| *index);
                portion.written.extend(indices);
                if step.pages.len() == pages_max {
                    let last = portion.written.last();
                    portion.next = last.map(|last| PageIndex(last.0 + 1));
                }
                portion.file = Some(step.handle);
            }
        }
        if let Some(file) = &portion.file {
            let sent = self.overlay.lower().write_back(file, WrittenBack::Ended);
            sent.map_err(|_| Ended)?;
        }
        Ok(portion)
    }

    fn make_durable(
        &self,
        id: ObjectId,
        file: &L::Handle,
        written: &[PageIndex],
    ) -> Result<(), Ended> {
        let synced = self.overlay.lower().sync_content(file);
        synced.map_err(|_| Ended)?;
        self.overlay.state_mut().pending.end_ahead(id, written);
        Ok(())
    }

    /// Writes the next pages of an object; none if there are none.
    fn step(
        &self,
        id: ObjectId,
        from: PageIndex,
        pages_max: usize,
    ) -> Result<Option<Step<L::Handle>>, Ended> {
        let (overlay, applier) = (self.overlay, self.applier);
        let content = applier.content();
        if content.applies != self.applies {
            return Err(Ended);
        }
        let _tree = overlay.hold_names();
        let Some(Destination { handle, end }) = self.destination(id)? else {
            return Ok(None);
        };
        let pages = {
            let pending = &mut overlay.state_mut().pending;
            pending.begin_ahead(id, from, end, pages_max)
        };
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

    /// The lower file of an existing object, which is written up to its end only, because a commit
    /// may have direct data after it; the stage file of a new one.
    fn destination(&self, id: ObjectId) -> Result<Option<Destination<L::Handle>>, Ended> {
        let overlay = self.overlay;
        let is_new = {
            let state = overlay.state();
            let object = state.pending.object(id);
            object.is_some_and(|object| object.created)
        };
        if is_new {
            let handle = stage::stage_file(overlay, id).map_err(|_| Ended)?;
            let end = u64::MAX;
            return Ok(Some(Destination { handle, end }));
        }
        let Some(handle) = lookup::handle(overlay, id).map_err(|_| Ended)? else {
            return Ok(None);
        };
        let end = overlay.lower().stat(&handle).map_err(|_| Ended)?.size;
        Ok(Some(Destination { handle, end }))
    }
}
