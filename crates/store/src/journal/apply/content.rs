//! Content and attributes, in place.

use mobifs_types::{
    Attributes, ByteRange, FileKind, ObjectId, PAGE_BYTES_U64, PageIndex, RangeSet,
};

use super::super::JournalStore;
use super::super::lookup::missing;
use super::super::pending::{PendingObject, PendingPage};
use super::super::search::Search;
use super::Work;
use crate::StoreError;
use crate::lower::{Lower, SetAttributes};

/// Largest single write.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// Databases, and files that are larger than this and grow, get room in steps of this
/// size, so that they stay in one piece (S4 §6.1.1).
const PREALLOCATE_BYTES: u64 = 128 << 10;

impl<L: Lower> JournalStore<L> {
    /// Brings existing objects (except directories' attributes, which come last) up
    /// to date.
    pub(super) fn apply_contents(&self, work: &Work) -> Result<(), StoreError> {
        let mut existing: Vec<_> = work
            .objects
            .iter()
            .filter(|(_, object)| !object.created)
            .collect();
        existing.sort_unstable_by_key(|(id, _)| **id);
        let mut search = Search::default();
        for (&id, object) in existing {
            let Some(attributes) = object.attributes else {
                continue;
            };
            let handle = match self.handle_in(id, &mut search)? {
                Some(handle) => handle,
                // Its last name went in this epoch, and an interrupted apply (or
                // somebody else) has removed it: there is nothing to bring up to date.
                None if !self.state.read().pending.is_linked(id) => {
                    if attributes.nlink > 0 {
                        self.note_lost(id);
                    }
                    continue;
                }
                None => return Err(missing(id)),
            };
            self.note_if_strayed(id, &mut search)?;
            if attributes.kind == FileKind::Regular {
                self.zero_ranges(id, &object.zeroed, &handle)?;
                self.write_pages(id, object, attributes.size, &handle)?;
            }
            self.apply_xattrs(id, object, &handle)?;
            if attributes.kind != FileKind::Directory {
                self.apply_attributes(id, &attributes, &handle)?;
            }
        }
        Ok(())
    }

    /// Final attributes of directories: after their entries, because changing those
    /// changes the times.
    pub(super) fn apply_directory_attributes(&self, work: &Work) -> Result<(), StoreError> {
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
            if let Some(handle) = self.handle_in(id, &mut search)? {
                self.apply_attributes(id, &attributes, &handle)?;
            }
        }
        Ok(())
    }

    pub(super) fn zero_ranges(
        &self,
        id: ObjectId,
        ranges: &RangeSet,
        handle: &L::Handle,
    ) -> Result<(), StoreError> {
        let failed = || StoreError::lower(format!("zeroing in {id}"));
        // The size shrinks as ranges without end are cut off, so ask each time.
        for range in ranges.iter() {
            let stat = self.lower.stat(handle).map_err(failed())?;
            let size = stat.size;
            // More room behind the end than we leave there ourselves was asked for by a
            // program, which has given it back.
            let has_room_behind = stat.allocated_bytes > size.saturating_add(2 * PREALLOCATE_BYTES);
            let cuts_off = range.end == u64::MAX && (range.start < size || has_room_behind);
            if range.start >= size && !cuts_off {
                continue;
            }
            if cuts_off {
                let size = range.start.min(size);
                self.lower.truncate(handle, size).map_err(failed())?;
            } else {
                let range = ByteRange::new(range.start, range.end.min(size));
                self.lower.zero_range(handle, range).map_err(failed())?;
            }
        }
        Ok(())
    }

    /// Sets the size and writes pending pages in runs as long as possible.
    pub(super) fn write_pages(
        &self,
        id: ObjectId,
        object: &PendingObject,
        size: u64,
        handle: &L::Handle,
    ) -> Result<(), StoreError> {
        let failed = || StoreError::lower(format!("writing {id}"));
        let before = self.lower.stat(handle).map_err(failed())?.size;
        self.allocate(object, before, size, handle);
        if before != size {
            self.lower.truncate(handle, size).map_err(failed())?;
        }
        let mut written = 0;
        let mut buffer: Vec<u8> = Vec::new();
        let mut start = 0;
        for (&index, page) in &object.pages {
            let offset = index.offset();
            if offset >= size {
                continue;
            }
            let length = (size - offset).min(PAGE_BYTES_U64) as usize;
            if let PendingPage::Runs { fresh: false, runs } = page
                && !object.hides_lower(index)
            {
                for (within, bytes) in runs {
                    let at = usize::from(*within);
                    let bytes = &bytes[..bytes.len().min(length.saturating_sub(at))];
                    self.lower
                        .write_at(handle, bytes, offset + at as u64)
                        .map_err(failed())?;
                    written += bytes.len() as u64;
                }
                continue;
            }
            if start + buffer.len() as u64 != offset || buffer.len() >= WRITE_BYTES_MAX {
                if !buffer.is_empty() {
                    self.lower
                        .write_at(handle, &buffer, start)
                        .map_err(failed())?;
                }
                written += buffer.len() as u64;
                buffer.clear();
                start = offset;
            }
            let lower = Some(handle).filter(|_| !object.hides_lower(index));
            let page = self.resolve_page(PageIndex::of_offset(offset), page, lower)?;
            let end = buffer.len() + length;
            buffer.extend_from_slice(&page.stored()[..page.stored_bytes().min(length)]);
            buffer.resize(end, 0);
        }
        if !buffer.is_empty() {
            self.lower
                .write_at(handle, &buffer, start)
                .map_err(failed())?;
        }
        self.count_applied(written + buffer.len() as u64);
        Ok(())
    }

    /// Room that was asked for, and room ahead of what will be written. Where the
    /// filesystem cannot allocate ahead, writing allocates, in more pieces.
    fn allocate(&self, object: &PendingObject, before: u64, size: u64, handle: &L::Handle) {
        for range in object.allocated.iter() {
            let _ = self.lower.preallocate(handle, range);
        }
        let grows = object
            .pages
            .keys()
            .next_back()
            .is_some_and(|last| last.offset() >= before);
        if grows && size > before {
            let contiguous_from = object
                .pages
                .keys()
                .map(|index| index.offset())
                .find(|&offset| offset.saturating_add(PAGE_BYTES_U64) > before)
                .unwrap_or(before);
            let ahead = before >= PREALLOCATE_BYTES || object.is_database();
            // A forged journal has sizes that no file can have; its pages may lie anywhere.
            let end = if ahead {
                size.checked_next_multiple_of(PREALLOCATE_BYTES)
                    .unwrap_or(size)
            } else {
                size
            };
            let pages = object
                .pages
                .range(PageIndex::of_offset(contiguous_from)..)
                .count() as u64;
            // A sparse file shall stay sparse.
            if contiguous_from < size && pages * PAGE_BYTES_U64 * 2 >= size - contiguous_from {
                let _ = self
                    .lower
                    .preallocate(handle, ByteRange::new(contiguous_from, end));
            }
        }
    }

    pub(super) fn apply_xattrs(
        &self,
        id: ObjectId,
        object: &PendingObject,
        handle: &L::Handle,
    ) -> Result<(), StoreError> {
        let set = |name: &[u8], value: Option<&[u8]>| {
            self.lower.set_xattr(handle, name, value).map_err(|error| {
                let name = name.escape_ascii();
                StoreError::lower(format!("setting extended attribute \"{name}\" of {id}"))(error)
            })
        };
        let changes = &object.xattrs;
        // There is room for all together, but what goes must have gone before more comes.
        for (name, _) in changes.iter().filter(|(_, value)| value.is_none()) {
            set(name, None)?;
        }
        let new = || {
            let values = changes.iter();
            values.filter_map(|(name, value)| Some((name, value.as_deref()?)))
        };
        let set_all = || new().try_for_each(|(name, value)| set(name, Some(value)));
        match set_all() {
            // The room that other old values still take is needed, too.
            Err(error) if error.has_no_room() => {
                new().try_for_each(|(name, _)| set(name, None))?;
                set_all()
            }
            other => other,
        }
    }

    pub(in crate::journal) fn apply_attributes(
        &self,
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
        self.lower
            .set_attributes(handle, &set)
            .map_err(StoreError::lower(format!("setting attributes of {id}")))
    }
}
