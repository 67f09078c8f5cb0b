//! Content and attributes, in place.

use std::io;

use mobifs_base::{Attributes, ByteRange, FileKind, ObjectId, PAGE_BYTES_U64, PageIndex, RangeSet};

use crate::StoreError;
use crate::apply::deleted::Deleted;
use crate::apply::externally_modified;
use crate::apply::preallocation::has_requested_room;
use crate::apply::refused::Refused;
use crate::apply::rename_steps::RenameSteps;
use crate::apply::work::{Applier, Work};
use crate::error::missing;
use crate::lower::{Lower, SetAttributes};
use crate::overlay::Overlay;
use crate::overlay::lookup;
use crate::overlay::paths;
use crate::overlay::pending::{PendingObject, PendingPage};
use crate::overlay::read;
use crate::overlay::search::Search;

/// Largest single write.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// Shorter runs are allocated by the write.
const PREALLOCATED_BYTES_MIN: u64 = 64 << 10;
/// Applies content and attributes of existing objects (attributes of directories are applied last).
pub(super) fn apply_contents<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    work: &Work,
    deleted: &Deleted,
    refused: &mut Refused,
) -> Result<(), StoreError> {
    let mut existing: Vec<_> = work
        .objects
        .iter()
        .filter(|(id, object)| !object.created && !deleted.contains(id))
        .collect();
    existing.sort_unstable_by_key(|(id, _)| **id);
    let mut search = Search::default();
    for (&id, object) in existing {
        let Some(attributes) = object.attributes else {
            continue;
        };
        let handle = match lookup::handle_in(overlay, id, &mut search) {
            Ok(Some(handle)) => handle,
            // Its last name was removed in this epoch, and an interrupted apply (or another
            // program) has deleted it: there is nothing to apply.
            Ok(None) if !overlay.state().pending.is_linked(id) => {
                if attributes.nlink > 0 {
                    externally_modified::report_lost(overlay, applier, id);
                }
                continue;
            }
            Ok(None) => return Err(missing(id)),
            Err(error) => {
                refused.record_incomplete(id, paths::failed_for(overlay, id)(error))?;
                continue;
            }
        };
        externally_modified::report_if_modified(overlay, applier, id, &mut search)?;
        let applied = apply_existing(overlay, applier, id, object, &attributes, &handle);
        if let Err(error) = applied.map_err(paths::failed_for(overlay, id)) {
            refused.record_incomplete(id, error)?;
        }
    }
    Ok(())
}

fn apply_existing<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    id: ObjectId,
    object: &PendingObject,
    attributes: &Attributes,
    handle: &L::Handle,
) -> Result<(), StoreError> {
    if attributes.kind == FileKind::Regular {
        let kept = (object, attributes.size);
        zero_ranges(overlay, applier, id, &object.zeroed, kept, handle)?;
        write_pages(overlay, applier, id, object, attributes.size, handle)?;
    }
    apply_xattrs(overlay, id, object, handle)?;
    if attributes.kind != FileKind::Directory {
        apply_attributes(overlay, id, attributes, handle)?;
    }
    Ok(())
}

/// Final attributes of directories: after their entries, because changing those
/// changes the times.
pub(super) fn apply_directory_attributes<L: Lower>(
    overlay: &Overlay<L>,
    work: &Work,
    refused: &mut Refused,
    renames: &mut RenameSteps<'_>,
) -> Result<(), StoreError> {
    // In a fixed order, so that a simulated crash can be repeated.
    let mut objects: Vec<_> = work.objects.iter().collect();
    objects.sort_unstable_by_key(|(id, _)| **id);
    let mut search = Search::default();
    for (&id, object) in objects {
        let Some(attributes) = object.attributes else {
            continue;
        };
        if attributes.kind != FileKind::Directory {
            continue;
        }
        let found = lookup::handle_in(overlay, id, &mut search);
        let applied = found.and_then(|handle| match handle {
            Some(handle) => apply_attributes(overlay, id, &attributes, &handle),
            None => Ok(()),
        });
        if let Err(error) = applied.map_err(paths::failed_for(overlay, id)) {
            refused.record_incomplete(id, error)?;
        }
        renames.end_step();
    }
    Ok(())
}

/// Removes content. Pages that [`write_pages`] then writes as a whole keep their blocks, which lie where the file goes
/// on: a commit has given them theirs together with what follows them.
pub(super) fn zero_ranges<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    id: ObjectId,
    ranges: &RangeSet,
    (object, size): (&PendingObject, u64),
    handle: &L::Handle,
) -> Result<(), StoreError> {
    let failed = || StoreError::lower(format!("zeroing in {id}"));
    // Ranges without end are truncated, which changes the size, so it is read each time.
    for range in ranges.iter() {
        let stat = overlay.lower().stat(handle).map_err(failed())?;
        let lower_bytes = stat.size;
        // The program that allocated room after the end has released it.
        let has_requested_room =
            || has_requested_room(overlay.lower(), applier.preallocations(), handle, &stat);
        let cuts_off = range.end == u64::MAX && (range.start < lower_bytes || has_requested_room());
        if range.start >= lower_bytes && !cuts_off {
            continue;
        }
        if cuts_off {
            let end = range.start.min(lower_bytes);
            overlay.lower().truncate(handle, end).map_err(failed())?;
            continue;
        }
        let range = ByteRange::new(range.start, range.end.min(lower_bytes));
        for part in parts_without_pages(object, range, size) {
            let zeroed = overlay.lower().zero_range(handle, part);
            zeroed.map_err(failed())?;
        }
    }
    Ok(())
}

/// The parts of a range that no pending page of a file of this size covers.
fn parts_without_pages(
    object: &PendingObject,
    range: ByteRange,
    size: u64,
) -> impl Iterator<Item = ByteRange> {
    let is_written = move |offset: &u64| *offset >= range.start && *offset < range.end.min(size);
    let first = PageIndex::of_offset(range.start);
    let pages = object.pages.range(first..);
    let mut pages = pages
        .map(|(index, _)| index.offset())
        .skip_while(move |offset| *offset < range.start)
        .take_while(is_written);
    let mut at = range.start;
    std::iter::from_fn(move || {
        while at < range.end {
            let page = pages.next().unwrap_or(range.end);
            let part = ByteRange::new(at, page);
            at = page.saturating_add(PAGE_BYTES_U64);
            if !part.is_empty() {
                return Some(part);
            }
        }
        None
    })
}

/// Sets the size and writes pending pages in runs as long as possible.
pub(super) fn write_pages<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    id: ObjectId,
    object: &PendingObject,
    size: u64,
    handle: &L::Handle,
) -> Result<(), StoreError> {
    let failed = || StoreError::lower(format!("writing {id}"));
    let before = overlay.lower().stat(handle).map_err(failed())?.size;
    // A shorter size frees all blocks beyond it, so requested room comes after it.
    if before > size {
        overlay.lower().truncate(handle, size).map_err(failed())?;
    }
    allocate(overlay, applier, object, before, size, handle).map_err(failed())?;
    if before < size {
        overlay.lower().truncate(handle, size).map_err(failed())?;
    }
    let mut written = 0;
    let mut buffer: Vec<u8> = Vec::new();
    let mut start = 0;
    for (&index, page) in &object.pages {
        let offset = index.offset();
        if offset >= size || object.is_written_ahead(index) {
            continue;
        }
        let length = (size - offset).min(PAGE_BYTES_U64) as usize;
        if let PendingPage::Runs { fresh: false, runs } = page
            && !object.hides_lower(index)
        {
            for (within, bytes) in runs {
                let at = usize::from(*within);
                let bytes = &bytes[..bytes.len().min(length.saturating_sub(at))];
                overlay
                    .lower()
                    .write_at(handle, bytes, offset + at as u64)
                    .map_err(failed())?;
                written += bytes.len() as u64;
            }
            continue;
        }
        if start + buffer.len() as u64 != offset || buffer.len() >= WRITE_BYTES_MAX {
            if !buffer.is_empty() {
                overlay
                    .lower()
                    .write_at(handle, &buffer, start)
                    .map_err(failed())?;
            }
            written += buffer.len() as u64;
            buffer.clear();
            start = offset;
        }
        let lower = Some(handle).filter(|_| !object.hides_lower(index));
        let page = read::resolve_page(overlay, PageIndex::of_offset(offset), page, lower)?;
        let end = buffer.len() + length;
        buffer.extend_from_slice(&page.stored()[..page.stored_bytes().min(length)]);
        buffer.resize(end, 0);
    }
    if !buffer.is_empty() {
        overlay
            .lower()
            .write_at(handle, &buffer, start)
            .map_err(failed())?;
    }
    applier
        .counters()
        .add_written(written + buffer.len() as u64);
    Ok(())
}

/// Allocates requested room, and room for long runs of pages that make the file grow. Where the
/// filesystem cannot allocate ahead, the writes allocate, in more extents. Holes get none: no room
/// was reserved for them when the writes were acknowledged, and a sparse file stays sparse.
///
/// # Errors
/// If there is no room for a request, and there would be without what is preallocated.
fn allocate<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    object: &PendingObject,
    before: u64,
    size: u64,
    handle: &L::Handle,
) -> io::Result<()> {
    for range in object.allocated.iter() {
        match overlay.lower().preallocate(handle, range) {
            Err(error)
                if error.kind() == io::ErrorKind::StorageFull
                    && applier.preallocations().unused_bytes() > 0 =>
            {
                return Err(error);
            }
            _ => {}
        }
    }
    if size <= before {
        return Ok(());
    }
    // What follows the file is taken by the writes, where that is free; allocated ahead it would lie anywhere. A new
    // file is: on a disk that is almost full that finds pieces which the writes do not.
    if before > 0 && overlay.lower().moves_content() {
        return Ok(());
    }
    for run in growing_runs(object, before) {
        // A forged journal may have pages and sizes that no file can have.
        let range = ByteRange::new(run.start, run.end.min(size).max(run.start));
        if range.len() >= PREALLOCATED_BYTES_MIN {
            let _ = overlay.lower().preallocate(handle, range);
        }
    }
    Ok(())
}

pub(super) fn apply_xattrs<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
    object: &PendingObject,
    handle: &L::Handle,
) -> Result<(), StoreError> {
    let set = |name: &[u8], value: Option<&[u8]>| {
        overlay
            .lower()
            .set_xattr(handle, name, value)
            .map_err(|error| {
                let name = name.escape_ascii();
                StoreError::lower(format!("setting extended attribute \"{name}\" of {id}"))(error)
            })
    };
    let changes = &object.xattrs;
    // There is room for all together, but attributes are removed before others are added.
    for (name, _) in changes.iter().filter(|(_, value)| value.is_none()) {
        set(name, None)?;
    }
    let new = || {
        let values = changes.iter();
        values.filter_map(|(name, value)| Some((name, value.as_deref()?)))
    };
    let set_all = || new().try_for_each(|(name, value)| set(name, Some(value)));
    match set_all() {
        // The room of other old values is needed, too.
        Err(error) if error.has_no_room() => {
            new().try_for_each(|(name, _)| set(name, None))?;
            set_all()
        }
        other => other,
    }
}

pub(crate) fn apply_attributes<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
    attributes: &Attributes,
    handle: &L::Handle,
) -> Result<(), StoreError> {
    let set = SetAttributes {
        mode: attributes.mode,
        uid: attributes.uid,
        gid: attributes.gid,
        atime: attributes.atime,
        mtime: attributes.mtime,
    };
    overlay
        .lower()
        .set_attributes(handle, &set)
        .map_err(StoreError::lower(format!("setting attributes of {id}")))
}

/// The runs of pages, each as long as possible, that reach past the end of a file of `before`
/// bytes.
pub(super) fn growing_runs(object: &PendingObject, before: u64) -> impl Iterator<Item = ByteRange> {
    let mut pages = object
        .pages
        .range(PageIndex::of_offset(before)..)
        .map(|(index, _)| index.offset())
        .peekable();
    std::iter::from_fn(move || {
        let start = pages.next()?;
        let mut end = start.saturating_add(PAGE_BYTES_U64);
        while pages.next_if_eq(&end).is_some() {
            end = end.saturating_add(PAGE_BYTES_U64);
        }
        Some(ByteRange::new(start, end))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use mobifs_base::{Entry, Name, Page};

    use super::*;
    use crate::fixtures::file_state;
    use crate::lower::{Gate, PosixLower};
    use crate::{JournalOptions, JournalStore, Store, Transaction};

    #[test]
    fn only_what_no_page_is_written_to_is_zeroed() {
        let mut object = PendingObject::default();
        for index in [1, 2, 5, 9, 12] {
            let page = PendingPage::Whole(Page::new(&[7; 4096]));
            object.pages.insert(PageIndex(index), page);
        }
        let bytes = |first: u64, end: u64| ByteRange::new(first << 12, end << 12);
        let parts = |range, size_pages: u64| {
            let parts = parts_without_pages(&object, range, size_pages << 12);
            parts.collect::<Vec<_>>()
        };
        let expected = [bytes(0, 1), bytes(3, 5), bytes(6, 9), bytes(10, 12)];
        assert_eq!(parts(bytes(0, 13), 20), expected);
        assert_eq!(parts(bytes(1, 3), 20), []);
        assert_eq!(parts(bytes(3, 5), 20), [bytes(3, 5)]);
        let expected = [bytes(6, 11)];
        assert_eq!(parts(bytes(5, 11), 9), expected, "page 9 is beyond the end");
        let (start, end) = ((1 << 12) + 1, (5 << 12) + 1);
        let expected = [ByteRange::new(start, 2 << 12), bytes(3, 5)];
        assert_eq!(parts(ByteRange::new(start, end), 20), expected);
    }

    /// Every other page, up to a full disk: an apply allocated blocks for the holes, too, for which
    /// there was no room, and the store could not be mounted any more.
    #[test]
    fn the_holes_of_a_half_dense_file_get_no_blocks() {
        const PAGES: u64 = 1024;
        let directory = tempfile::tempdir().unwrap();
        let lower = PosixLower::open(directory.path()).unwrap();
        let options = JournalOptions {
            journal_bytes: 16 << 20,
            uuid_if_new: [7; 16],
            ..JournalOptions::default()
        };
        let (store, _) = JournalStore::open(Gate::new(lower), &options).unwrap();
        let id = store.first_new_object();
        // One transaction after the other: a new file, and one that grows.
        for (created, pages) in [(true, 0..PAGES / 2), (false, PAGES / 2..PAGES)] {
            let mut transaction = Transaction::default();
            let size = (pages.end * 2 - 1) * PAGE_BYTES_U64;
            let state = Entry::Object(file_state(id, created, size));
            transaction.push(state);
            if created {
                let (parent, child) = (ObjectId::ROOT, Some(id));
                let name = Name::new(b"sparse").unwrap();
                let entry = Entry::Dentry {
                    parent,
                    name,
                    child,
                };
                transaction.push(entry);
            }
            for page in pages {
                let index = PageIndex(page * 2);
                let page = Page::new(&[7; 4096]);
                let object = id;
                let entry = Entry::Page {
                    object,
                    index,
                    page,
                };
                transaction.push(entry);
            }
            store.commit(transaction).unwrap();
            store.apply().unwrap();
        }
        let file = std::fs::metadata(directory.path().join("sparse")).unwrap();
        let most = PAGES * PAGE_BYTES_U64 + PAGES * PAGE_BYTES_U64 / 8;
        let allocated = file.blocks() * 512;
        assert!(allocated <= most, "{allocated} for {most}");
    }
}
