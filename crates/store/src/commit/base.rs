//! What is committed of a page, so that only the bytes go to the journal that a transaction changes.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mobifs_base::{
    ByteRange, ObjectId, ObjectState, PAGE_BYTES, PAGE_BYTES_U64, Page, PageIndex, RangeSet,
};

use crate::StoreError;
use crate::error::missing;
use crate::lower::Lower;
use crate::overlay::Overlay;
use crate::overlay::lookup;
use crate::overlay::pending::{PendingObject, PendingPage, Runs, write_runs};

/// A read from the device pays if fewer bytes than this have changed.
const PAYS_BYTES_MAX: usize = PAGE_BYTES / 2;
/// After so many reads in a row that did not pay, gaps between them begin.
const IN_VAIN_MAX: u32 = 8;
/// The longest gap is two to this power.
const GAP_POWER_MAX: u32 = 7;

/// What is committed of a page, to see what changed.
#[derive(Debug)]
pub(super) enum BasePage {
    Zero,
    Known(Page),
    /// The page was not in memory, and was read for this.
    FromDevice(Page),
    /// The page would have to be read from the device: the whole page goes to the journal.
    Unknown,
}

impl BasePage {
    pub(super) const fn is_from_device(&self) -> bool {
        matches!(self, Self::FromDevice(_))
    }
}

/// Whether to read from the device what is committed of a page that is not in memory.
///
/// A program that has changed a page has mostly read it before, so this is rare: a database whose
/// log is brought to its place, or one that another program has pushed out of memory. There a page
/// differs in a few bytes, and one read saves writing the rest twice. Where new content has nothing
/// in common with the old one reads only cost time: after a few the gaps between them double.
#[derive(Debug, Default)]
pub(crate) struct BaseReads {
    /// Reads in a row that did not pay.
    in_vain: AtomicU32,
    /// Pages passed over since the last one.
    passed_over: AtomicU32,
}

impl BaseReads {
    /// Whether this page is to be read. Callers are alone: they hold the epoch.
    fn is_due(&self) -> bool {
        let in_vain = self.in_vain.load(Ordering::Relaxed);
        let gap = match in_vain.checked_sub(IN_VAIN_MAX) {
            None => 0,
            Some(more) => 1 << more.min(GAP_POWER_MAX),
        };
        let passed_over = self.passed_over.load(Ordering::Relaxed);
        let is_due = passed_over >= gap;
        let passed_over = if is_due { 0 } else { passed_over + 1 };
        self.passed_over.store(passed_over, Ordering::Relaxed);
        is_due
    }

    /// What has changed of a page that was read.
    pub(super) fn found(&self, runs: &Runs) {
        let bytes: usize = runs.iter().map(|(_, bytes)| bytes.len()).sum();
        let in_vain = if bytes < PAYS_BYTES_MAX {
            0
        } else {
            self.in_vain.load(Ordering::Relaxed).saturating_add(1)
        };
        self.in_vain.store(in_vain, Ordering::Relaxed);
    }
}

/// Where the committed pages of one object come from.
pub(super) struct Base<'a, L: Lower> {
    id: ObjectId,
    created: bool,
    /// Ranges that the transaction makes zeros.
    zeroed: &'a [ByteRange],
    pending: Option<Arc<PendingObject>>,
    /// Ranges that the stage file of a new object holds already; none for other objects.
    spilled: Option<RangeSet>,
    /// The object in the lower filesystem, as soon as a page of it is needed.
    lower: OnceCell<LowerBase<L>>,
}

/// An open object of the lower filesystem and its size; none if it has none.
type LowerBase<L> = Option<(Arc<<L as Lower>::Handle>, u64)>;

impl<'a, L: Lower> Base<'a, L> {
    pub(super) fn new(overlay: &Overlay<L>, state: &'a ObjectState) -> Result<Self, StoreError> {
        Self::of_object(overlay, state.id, state.created, &state.zeroed)
    }

    /// What is committed of an object, without regard to the transaction; none if it has nothing, or
    /// something that only the store's own directory has: recovery does not find there what the transaction has written
    /// to its place already (`stage/`), nor in a copy of the store what was deleted and is in use (`limbo/`).
    pub(super) fn before(overlay: &Overlay<L>, id: ObjectId) -> Option<Self> {
        {
            let state = overlay.state();
            let is_found = match state.table.get(id) {
                Some(location) => !location.names().is_empty(),
                None => state.pending.object(id).is_some(),
            };
            if !is_found {
                return None;
            }
        }
        let base = Self::of_object(overlay, id, false, &[]).ok()?;
        let is_in_stage = base
            .pending
            .as_ref()
            .is_some_and(|object| object.created && !object.direct.is_empty());
        (!is_in_stage && base.spilled.is_none()).then_some(base)
    }

    fn of_object(
        overlay: &Overlay<L>,
        id: ObjectId,
        created: bool,
        zeroed: &'a [ByteRange],
    ) -> Result<Self, StoreError> {
        let (pending, spilled) = {
            let known = overlay.state();
            let pending = known.pending.objects().get(&id).cloned();
            (pending, known.spilled(id).cloned())
        };
        let base = Self {
            id,
            created,
            zeroed,
            pending,
            spilled,
            lower: OnceCell::new(),
        };
        if base.pending.is_none() {
            // It must exist, whether a page of it is needed or not.
            base.lower(overlay)?;
        }
        Ok(base)
    }

    fn lower(&self, overlay: &Overlay<L>) -> Result<&LowerBase<L>, StoreError> {
        if let Some(known) = self.lower.get() {
            return Ok(known);
        }
        let id = self.id;
        let found = if self.created {
            None
        } else {
            match lookup::handle(overlay, id)? {
                Some(handle) => {
                    let stat = overlay.lower().stat(&handle);
                    let size = stat
                        .map_err(StoreError::lower(format!("stat of {id}")))?
                        .size;
                    Some((handle, size))
                }
                // Created in this epoch, and not staged.
                None if self.pending.is_some() => None,
                None => return Err(missing(id)),
            }
        };
        Ok(self.lower.get_or_init(|| found))
    }

    /// What is committed of this page.
    pub(super) fn of(
        &self,
        overlay: &Overlay<L>,
        reads: &BaseReads,
        index: PageIndex,
    ) -> Result<BasePage, StoreError> {
        let offset = index.offset();
        let mut zeroed = self.zeroed.iter();
        if zeroed.any(|range| range.start <= offset && offset < range.end) {
            return Ok(BasePage::Zero);
        }
        let is_spilled = |ranges: &RangeSet| ranges.contains(offset);
        let Some(pending) = &self.pending else {
            if self.spilled.as_ref().is_some_and(is_spilled) {
                return Ok(BasePage::Unknown);
            }
            return self.of_lower(overlay, reads, index);
        };
        let is_hidden = pending.hides_lower(index);
        match pending.pages.get(&index) {
            Some(PendingPage::Whole(page)) => Ok(BasePage::Known(page.clone())),
            Some(PendingPage::Runs { fresh, runs }) => {
                let base = if *fresh || is_hidden {
                    BasePage::Zero
                } else {
                    self.of_lower(overlay, reads, index)?
                };
                Ok(changed(base, runs))
            }
            None if is_hidden => Ok(BasePage::Zero),
            None if self.spilled.as_ref().is_some_and(is_spilled) => Ok(BasePage::Unknown),
            None => self.of_lower(overlay, reads, index),
        }
    }

    /// Committed bytes from `offset` on; false if some would have to be read from the device, and it
    /// is not worth that.
    pub(super) fn read(
        &self,
        overlay: &Overlay<L>,
        reads: &BaseReads,
        offset: u64,
        out: &mut [u8],
    ) -> Result<bool, StoreError> {
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let within = (at % PAGE_BYTES_U64) as usize;
            let length = (out.len() - done).min(PAGE_BYTES - within);
            let part = &mut out[done..done + length];
            match self.of(overlay, reads, PageIndex::of_offset(at))? {
                BasePage::Zero => part.fill(0),
                BasePage::Known(page) | BasePage::FromDevice(page) => page.read(within, part),
                BasePage::Unknown => return Ok(false),
            }
            done += length;
        }
        Ok(true)
    }

    /// What the lower filesystem has of it.
    fn of_lower(
        &self,
        overlay: &Overlay<L>,
        reads: &BaseReads,
        index: PageIndex,
    ) -> Result<BasePage, StoreError> {
        let offset = index.offset();
        let Some((handle, size)) = self.lower(overlay)? else {
            return Ok(BasePage::Zero);
        };
        if offset >= *size {
            return Ok(BasePage::Zero);
        }
        let mut content = [0; PAGE_BYTES];
        // Less than a page at the end of the file only; the rest counts as zeros.
        let is_all = |length: usize| length == PAGE_BYTES || offset + length as u64 >= *size;
        let lower = overlay.lower();
        if let Ok(length) = lower.read_cached(handle, &mut content, offset)
            && is_all(length)
        {
            return Ok(BasePage::Known(Page::new(&content)));
        }
        // Not in memory, or only in part; or the filesystem does not know. An error is no reason to
        // fail: the whole page goes to the journal then.
        if !reads.is_due() {
            return Ok(BasePage::Unknown);
        }
        content.fill(0);
        match lower.read_at(handle, &mut content, offset) {
            Ok(length) if is_all(length) => Ok(BasePage::FromDevice(Page::new(&content))),
            _ => Ok(BasePage::Unknown),
        }
    }
}

/// The base page with committed changes applied over it.
fn changed(base: BasePage, runs: &Runs) -> BasePage {
    let apply = |mut page: Page| {
        write_runs(&mut page, runs);
        page
    };
    match base {
        BasePage::Zero => BasePage::Known(apply(Page::zero())),
        BasePage::Known(page) => BasePage::Known(apply(page)),
        BasePage::FromDevice(page) => BasePage::FromDevice(apply(page)),
        BasePage::Unknown => BasePage::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_of(reads: &BaseReads, pages: usize, changed_bytes: usize) -> usize {
        let runs = vec![(0, vec![1; changed_bytes])];
        (0..pages)
            .filter(|_| {
                let is_due = reads.is_due();
                if is_due {
                    reads.found(&runs);
                }
                is_due
            })
            .count()
    }

    #[test]
    fn pages_that_differ_in_little_are_always_read() {
        let reads = BaseReads::default();
        assert_eq!(read_of(&reads, 1000, 100), 1000);
    }

    #[test]
    fn new_content_is_rarely_compared_and_small_changes_are_found_again() {
        let reads = BaseReads::default();
        assert_eq!(read_of(&reads, 8, PAGE_BYTES), 8);
        let later = read_of(&reads, 10_000, PAGE_BYTES);
        assert!((70..100).contains(&later), "{later} of 10,000");
        let pages = 1 << (GAP_POWER_MAX + 1);
        assert!(
            read_of(&reads, pages, 100) > pages / 3,
            "from the first that pays on, all"
        );
    }

    #[test]
    fn changes_are_applied_over_the_base_page() {
        let runs = vec![(1, vec![7, 8])];
        let mut base = [1; PAGE_BYTES];
        let page = |base| match base {
            BasePage::Known(page) | BasePage::FromDevice(page) => page,
            other => panic!("{other:?}"),
        };
        let known = changed(BasePage::Known(Page::new(&base)), &runs);
        base[1..3].copy_from_slice(&[7, 8]);
        assert_eq!(page(known), Page::new(&base));
        let mut zeros = [0; PAGE_BYTES];
        zeros[1..3].copy_from_slice(&[7, 8]);
        assert_eq!(page(changed(BasePage::Zero, &runs)), Page::new(&zeros));
        assert!(matches!(
            changed(BasePage::Unknown, &runs),
            BasePage::Unknown
        ));
    }
}
