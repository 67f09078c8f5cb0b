//! Pages of content that were written, and those of them that never had to be flushed.
//!
//! The engine counts a changed directory entry as a page, because it is one in its log, and its
//! policies see that. Figures compare it with filesystems whose models count content alone, so
//! content is counted here, for the engine as for them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use super::outcome::AppOutcome;
use super::stream::{Action, ObjectNumber};

/// What is dirty, by what was written and flushed.
#[derive(Debug, Default)]
pub(super) struct WrittenPages {
    files: HashMap<ObjectNumber, File>,
}

#[derive(Debug, Default)]
struct File {
    dirty: BTreeSet<u64>,
    /// How often a page was written while it was dirty. A version that was closed before it was
    /// written again is flushed all the same.
    rewritten: BTreeMap<u64, u64>,
}

impl WrittenPages {
    /// Counts what an operation writes and drops; `counts` is of the object's app.
    pub(super) fn perform(&mut self, action: &Action, counts: &mut AppOutcome) {
        let Some(change) = action.page_change() else {
            return;
        };
        if change.is_written {
            self.write(counts, change.object, change.pages);
        } else {
            self.drop(counts, change.object, change.pages);
        }
    }

    fn write(&mut self, counts: &mut AppOutcome, object: ObjectNumber, pages: Range<u64>) {
        let file = self.files.entry(object).or_default();
        for page in pages {
            counts.written_pages += 1;
            if !file.dirty.insert(page) {
                counts.overwritten_pages += 1;
                *file.rewritten.entry(page).or_default() += 1;
            }
        }
    }

    fn drop(&mut self, counts: &mut AppOutcome, object: ObjectNumber, pages: Range<u64>) {
        if let Some(file) = self.files.get_mut(&object) {
            let dropped: Vec<u64> = file.dirty.range(pages).copied().collect();
            counts.overwritten_pages += dropped.len() as u64;
            for page in dropped {
                file.dirty.remove(&page);
                file.rewritten.remove(&page);
            }
        }
    }

    /// A page is flushed.
    pub(super) fn flushed(&mut self, counts: &mut AppOutcome, object: ObjectNumber, page: u64) {
        counts.flushed_pages += 1;
        let file = self.files.entry(object).or_default();
        if file.dirty.remove(&page) {
            return;
        }
        match file.rewritten.get_mut(&page) {
            // The version before it was closed, and so not overwritten after all.
            Some(times) if *times > 0 => {
                *times -= 1;
                counts.overwritten_pages -= 1;
            }
            // No write of the trace made it: the page in which a file that was cut now ends.
            _ => counts.written_pages += 1,
        }
    }
}
