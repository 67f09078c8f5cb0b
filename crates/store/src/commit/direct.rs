//! New data that goes to its place at once, before the transaction that refers to it is committed.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;

use mobifs_base::{
    Attributes, ByteRange, ObjectId, ObjectState, PAGE_BYTES, PAGE_BYTES_U64, Page, PageIndex,
};

use crate::apply::content;
use crate::apply::preallocation::{block_end, has_requested_room};
use crate::apply::stage;
use crate::apply::work::Applier;
use crate::commit::counters::CommitCounters;
use crate::log::epoch::{BIND_RESERVE_BYTES, Epoch, RenameMark};
use crate::log::record::Record;
use crate::lower::{Lower, LowerStat, WrittenBack};
use crate::overlay::Overlay;
use crate::overlay::lookup;
use crate::overlay::paths;
use crate::overlay::pending::PendingObject;
use crate::overlay::places;
use crate::overlay::read;
use crate::placement::{self, FileEnd, Known, RUN_PAGES_MIN};
use crate::{StoreError, Transaction};

/// With more files than this, one sync of the filesystem is cheaper than one each.
const SYNCED_FILES_MAX: usize = 16;
/// Largest single write of direct data.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// Longer parts that have no blocks yet get none before they are written.
const GAP_BYTES_MAX: u64 = 1 << 20;
/// Longer first runs of a file are allocated, which finds larger pieces than a write does where the disk is almost
/// full; then what follows may be a piece of its own.
const GROWING_RUN_BYTES_MAX: u64 = 1 << 20;
/// Larger files are not journalled as a whole when they are replaced.
const REPLACED_BYTES_MAX: u64 = 512 << 10;

/// Pages that are written to their place in the lower file at once.
pub(crate) struct DirectRun {
    pub(crate) object: ObjectId,
    pub(crate) range: ByteRange,
    /// Attributes of the object, with this transaction.
    attributes: Attributes,
    created: bool,
    /// This transaction makes the file, and with its attributes this run is all of it.
    is_everything: bool,
}

/// A file that runs were written to.
struct WrittenFile<H> {
    object: ObjectId,
    created: bool,
    handle: Arc<H>,
}

/// Files with direct data that is not durable yet.
enum Unsynced<H> {
    /// So few that each is synced.
    Files(Vec<WrittenFile<H>>),
    /// There are so many that the whole filesystem is synced. None is kept open: there may be more than a
    /// process may have open.
    All,
}

impl<H> Unsynced<H> {
    /// Runs of one file come in a row.
    fn add(&mut self, run: &DirectRun, handle: Arc<H>) {
        let Self::Files(files) = self else {
            return;
        };
        let (object, created) = (run.object, run.created);
        if files.last().is_some_and(|last| last.object == object) {
            return;
        }
        if files.len() == SYNCED_FILES_MAX {
            *self = Self::All;
        } else {
            files.push(WrittenFile {
                object,
                created,
                handle,
            });
        }
    }

    fn sync<L: Lower<Handle = H>>(&self, lower: &L, stage: &H) -> io::Result<()> {
        let Self::Files(files) = self else {
            return lower.sync_all();
        };
        for file in files {
            if file.created {
                lower.sync(&file.handle)?;
            } else {
                // Its attributes are in the journal.
                lower.sync_content(&file.handle)?;
            }
        }
        if files.iter().any(|file| file.created) {
            lower.sync(stage)?;
        }
        Ok(())
    }
}

/// What was written directly, and is durable.
#[derive(Default)]
pub(crate) struct Direct {
    pub(crate) bytes: u64,
    /// New files that need nothing more but their names.
    pub(crate) whole: Vec<ObjectId>,
}

impl DirectRun {
    /// Where what is written ends, in a file of so many bytes. Written as far as the page's end it
    /// would have to be cut off when the size is set, which writes the last page to the device once
    /// more. But where the file still has truncated content in this page, all of the page is
    /// written: the journal lists the whole page as in place.
    fn end(&self, lower_bytes: u64) -> u64 {
        let end = self.attributes.size.max(self.range.start);
        if lower_bytes > end {
            self.range.end
        } else {
            self.range.end.min(end)
        }
    }
}

/// Finds the runs of pages that may be written to their place before the transaction is: where the
/// journal says, durably, that the range is empty, so that a crash in between leaves no trace. For
/// files that grow, writes such a record first.
pub(crate) fn choose_direct<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    counters: &CommitCounters,
    epoch: &mut Epoch<L::Handle>,
    transaction: &Transaction,
) -> Result<Vec<DirectRun>, StoreError> {
    if epoch.rename_mark() == RenameMark::ContentDone {
        // A crash before the transaction is in the journal must leave no trace in
        // places that recovery does not look at.
        return Ok(Vec::new());
    }
    let new_bytes = placement::created_bytes(transaction);
    let mut runs = Vec::new();
    let mut empty_tails = Vec::new();
    for state in &transaction.objects {
        let Some(pages) = transaction.pages.get(&state.id) else {
            continue;
        };
        let pending = overlay.state().pending.objects().get(&state.id).cloned();
        let created = state.created || pending.as_ref().is_some_and(|object| object.created);
        let is_new = state.created && pending.is_none();
        let first = pages.get(&PageIndex(0));
        let preallocations = applier.preallocations();
        let in_one_piece = created && preallocations.keeps_in_one_piece(first, pending.as_deref());
        if in_one_piece && preallocations.is_within_step(state.attributes.size)
            || is_small_and_replaced(state)
        {
            continue;
        }
        // Single pages would be scattered among those that the apply allocates.
        let new_bytes = if in_one_piece { 0 } else { new_bytes };
        let known = known(pending.as_deref(), created);
        let mut empty_tail = None;
        let placement = placement::place(known, new_bytes, pages.keys().copied(), || {
            let (end, committed) = file_end(overlay, applier, state.id, pending.as_deref())?;
            empty_tail = Some(empty_after(state.id, end.offset, committed));
            Ok(end)
        });
        let placement = placement.map_err(paths::failed_to_commit(
            overlay,
            state.id,
            &transaction.dentries,
        ))?;
        empty_tails.extend(empty_tail.filter(|_| placement.empty_from.is_some()));
        let parts = placement.in_place.iter();
        runs.extend(parts.map(|&part| DirectRun {
            object: state.id,
            range: part,
            attributes: state.attributes,
            created,
            is_everything: is_new
                && part.start == 0
                && part.end >= state.attributes.size
                && is_plain(state),
        }));
    }
    write_empty_tails(overlay, counters, epoch, empty_tails)?;
    debug_assert!(
        runs.iter().all(|run| is_empty_in_journal(overlay, run)),
        "a crash before the transaction is in the journal leaves no trace of direct data"
    );
    Ok(runs)
}

/// Whether the journal says that there is nothing where a run goes: in a new file that no record
/// binds, or in a range that counts as zeros.
fn is_empty_in_journal<L: Lower>(overlay: &Overlay<L>, run: &DirectRun) -> bool {
    let state = overlay.state();
    let object = state.pending.object(run.object);
    if run.created {
        object.is_none_or(|it| it.bound.is_none() && !it.direct.intersects(run.range))
    } else {
        object.is_some_and(|it| it.zeroed.covers(run.range))
    }
}

/// The journal's knowledge of a file's content.
fn known(pending: Option<&PendingObject>, created: bool) -> Known<'_> {
    match pending {
        Some(object) if created && object.bound.is_some() => Known::Bound,
        Some(object) if created => Known::Created {
            in_place: Some(&object.direct),
        },
        None if created => Known::Created { in_place: None },
        _ => Known::Lower {
            zeroed: pending.map(|object| &object.zeroed),
        },
    }
}

/// Where a file of the lower tree ends, and its committed attributes.
fn file_end<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    id: ObjectId,
    pending: Option<&PendingObject>,
) -> Result<(FileEnd, Attributes), StoreError> {
    let handle = lookup::require_handle(overlay, id)?;
    let stat = overlay
        .lower()
        .stat(&handle)
        .map_err(StoreError::lower(format!("stat of {id}")))?;
    let committed = match pending.and_then(|object| object.attributes) {
        Some(attributes) => attributes,
        None => read::shown_attributes(overlay, id, &stat)?,
    };
    let size = committed.size.max(stat.size);
    let offset = size.next_multiple_of(PAGE_BYTES_U64);
    let end = FileEnd {
        offset,
        has_pages_after: pending.is_some_and(|object| {
            let last = object.pages.keys().next_back();
            last.is_some_and(|last| last.offset() >= offset)
        }),
        is_allocated: has_requested_room(overlay.lower(), applier.preallocations(), &handle, &stat),
    };
    Ok((end, committed))
}

/// A state that says "from here on this file is empty".
fn empty_after(id: ObjectId, offset: u64, committed: Attributes) -> ObjectState {
    ObjectState {
        id,
        created: false,
        attributes: committed,
        symlink_target: None,
        zeroed: vec![ByteRange::from(offset)],
        allocated: Vec::new(),
        xattrs: Vec::new(),
    }
}

fn write_empty_tails<L: Lower>(
    overlay: &Overlay<L>,
    counters: &CommitCounters,
    epoch: &mut Epoch<L::Handle>,
    mut empty_tails: Vec<ObjectState>,
) -> Result<(), StoreError> {
    empty_tails.dedup_by_key(|tail| tail.id);
    if empty_tails.is_empty() {
        return Ok(());
    }
    let mut recorded = HashSet::new();
    let mut records = Vec::new();
    let ids = empty_tails.iter().map(|tail| tail.id);
    places::record_places(overlay, epoch.recorded(), ids, &mut recorded, &mut records);
    records.extend(empty_tails.iter().cloned().map(Record::Object));
    let written = epoch.append(
        overlay.lower(),
        overlay.stage(),
        &records,
        BIND_RESERVE_BYTES,
    )?;
    counters.add_written(written);
    epoch.add_recorded(recorded);
    let mut state = overlay.state_mut();
    empty_tails
        .iter()
        .for_each(|tail| state.pending.merge_state(tail));
    Ok(())
}

/// Writes direct runs to their place and makes them durable.
pub(crate) fn write_direct<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    runs: &[DirectRun],
    transaction: &Transaction,
) -> Result<Direct, StoreError> {
    let mut direct = Direct::default();
    let mut unsynced = Unsynced::Files(Vec::new());
    for run in runs {
        let Some(pages) = transaction.pages.get(&run.object) else {
            continue;
        };
        let failed = paths::failed_to_commit(overlay, run.object, &transaction.dentries);
        let handle = write_one(overlay, applier, run, pages, &mut direct).map_err(failed)?;
        unsynced.add(run, handle);
    }
    unsynced
        .sync(overlay.lower(), overlay.stage())
        .map_err(StoreError::lower("making new data durable"))?;
    Ok(direct)
}

/// Writes one run; returns the file, which is not durable yet.
fn write_one<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    run: &DirectRun,
    pages: &BTreeMap<PageIndex, Page>,
    direct: &mut Direct,
) -> Result<Arc<L::Handle>, StoreError> {
    let handle = if run.created {
        stage::stage_file(overlay, run.object)?
    } else {
        lookup::require_handle(overlay, run.object)?
    };
    direct.bytes += write_run(overlay, applier, run, pages, &handle)?;
    if run.is_everything && finish_new_file(overlay, run, &handle)? {
        direct.whole.push(run.object);
    }
    Ok(handle)
}

/// Attributes of a file that has all its content. Not if the stage file is larger: an earlier
/// attempt to commit it, which failed, may have left content.
fn finish_new_file<L: Lower>(
    overlay: &Overlay<L>,
    run: &DirectRun,
    handle: &L::Handle,
) -> Result<bool, StoreError> {
    let stat = overlay
        .lower()
        .stat(handle)
        .map_err(StoreError::lower(format!("stat of {}", run.object)))?;
    if stat.size != run.attributes.size {
        return Ok(false);
    }
    content::apply_attributes(overlay, run.object, &run.attributes, handle)?;
    Ok(true)
}

/// Writes one run to its place; returns the bytes.
fn write_run<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    run: &DirectRun,
    pages: &BTreeMap<PageIndex, Page>,
    handle: &L::Handle,
) -> Result<u64, StoreError> {
    let failed = || StoreError::lower(format!("writing new data of {}", run.object));
    let mut start = run.range.start;
    let mut stat = overlay.lower().stat(handle).map_err(failed())?;
    if begins_anew(overlay, applier, run, &stat) {
        overlay.lower().truncate(handle, 0).map_err(failed())?;
        stat.size = 0;
    }
    let lower_bytes = stat.size;
    let content = ByteRange::new(start, run.end(lower_bytes));
    let is_long = run.range.len() >= RUN_PAGES_MIN * PAGE_BYTES_U64;
    let is_new_place = is_long && content.end > lower_bytes;
    let gap = gap_before(overlay, run, pages, &stat);
    let is_to_grow = !run.is_everything && run.range.len() < GROWING_RUN_BYTES_MAX;
    let goes_on = (lower_bytes > 0 || is_to_grow) && overlay.lower().moves_content();
    if is_new_place && !goes_on {
        // Only against fragmentation: without it the write itself allocates. Inside the file the
        // blocks mostly exist, and preallocating them makes ext4 commit its own journal with the
        // next sync. What follows a file that has content is taken by the write, where that is free;
        // and the write of a file that is to grow reserves what follows.
        let from = if gap.is_empty() { start } else { gap.start };
        let _ = overlay
            .lower()
            .preallocate(handle, ByteRange::new(from, content.end));
    }
    if !gap.is_empty() {
        let zeros = vec![0; gap.len() as usize];
        let written = overlay.lower().write_at(handle, &zeros, gap.start);
        written.map_err(failed())?;
    }
    let mut buffer = Vec::with_capacity(WRITE_BYTES_MAX.min(content.len() as usize));
    for (index, page) in pages.range(PageIndex::of_offset(start)..) {
        if index.offset() >= content.end {
            break;
        }
        let end = content.end.min(index.offset() + PAGE_BYTES_U64);
        let length = (end - index.offset()) as usize;
        let stored = page.stored();
        buffer.extend_from_slice(&stored[..stored.len().min(length)]);
        buffer.resize((end - start) as usize, 0);
        if buffer.len() >= WRITE_BYTES_MAX {
            overlay
                .lower()
                .write_at(handle, &buffer, start)
                .map_err(failed())?;
            start += buffer.len() as u64;
            buffer.clear();
        }
    }
    if !buffer.is_empty() {
        overlay
            .lower()
            .write_at(handle, &buffer, start)
            .map_err(failed())?;
    }
    if is_new_place && goes_on {
        // Takes its blocks now, behind what the file has: the next new file of this commit is
        // allocated before any of them is synced, and would take them.
        let begun = overlay.lower().write_back(handle, WrittenBack::Begun);
        begun.map_err(failed())?;
    }
    applier.preallocations().record_written(&stat, content.end);
    Ok(content.len())
}

/// Whether a run is the beginning of a file that the journal says is empty, and is longer than what it had: written
/// over that, the rest would be a piece of its own.
fn begins_anew<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    run: &DirectRun,
    stat: &LowerStat,
) -> bool {
    let is_longer = run.range.start == 0 && (1..run.range.end).contains(&stat.size);
    if run.created || !is_longer || applier.preallocations().own_end(stat).is_some() {
        return false;
    }
    let state = overlay.state();
    let object = state.pending.object(run.object);
    object.is_some_and(|it| it.zeroed.covers(ByteRange::from(0)))
}

/// Pages between the end of a file and a run that all lie in the journal: zeros there, which is what a file has that
/// was never written, give them their blocks where the apply is to write. Otherwise others take the place.
fn gap_before<L: Lower>(
    overlay: &Overlay<L>,
    run: &DirectRun,
    pages: &BTreeMap<PageIndex, Page>,
    stat: &LowerStat,
) -> ByteRange {
    let start = block_end(stat.size);
    let nothing = ByteRange::new(start, start);
    let is_short = (start..start.saturating_add(GAP_BYTES_MAX)).contains(&run.range.start);
    if !is_short || !overlay.lower().moves_content() {
        return nothing;
    }
    let state = overlay.state();
    let pending = state.pending.object(run.object);
    let has = |index: PageIndex| {
        pages.contains_key(&index) || pending.is_some_and(|it| it.pages.contains_key(&index))
    };
    let gap = ByteRange::new(start, run.range.start);
    let mut offsets = (gap.start..gap.end).step_by(PAGE_BYTES);
    if offsets.all(|offset| has(PageIndex::of_offset(offset))) {
        gap
    } else {
        nothing
    }
}

/// Whether a transaction replaces all content of a file, which is so small that it goes to the journal as a whole: the
/// apply cuts off the old content, and what it writes then lies in one piece.
fn is_small_and_replaced(state: &ObjectState) -> bool {
    let is_emptied = state
        .zeroed
        .iter()
        .any(|it| it.start == 0 && it.end == u64::MAX);
    !state.created && is_emptied && state.attributes.size <= REPLACED_BYTES_MAX
}

/// Records which new files only need their names from an apply.
pub(crate) fn mark_whole<L: Lower>(overlay: &Overlay<L>, files: &[ObjectId]) {
    if files.is_empty() {
        return;
    }
    let mut state = overlay.state_mut();
    files.iter().for_each(|&id| state.pending.mark_whole(id));
}

/// Whether the object has nothing but content and attributes.
fn is_plain(state: &ObjectState) -> bool {
    state.xattrs.is_empty() && state.allocated.is_empty()
}
