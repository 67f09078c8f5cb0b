//! Reads of the committed state: pending changes over the lower tree.

use std::collections::BTreeMap;
use std::sync::Arc;

use mobifs_base::{
    Attributes, ByteRange, ContentLayer, DirectoryEntry, FileKind, Name, ObjectId, ObjectInfo,
    PAGE_BYTES, PAGE_BYTES_U64, Page, PageIndex, Whence, Xattr, search_layer, seek_content,
};

use crate::apply::work::Applier;
use crate::error::missing;
use crate::lower::{Blocks, Lower, LowerStat, OWN_DIRECTORY};
use crate::overlay::Overlay;
use crate::overlay::lookup;
use crate::overlay::pending::{PendingObject, PendingPage, write_runs};
use crate::{Seek, StoreError};

/// One piece of a read.
enum Piece {
    Zero,
    Lower,
    Page(
        PendingPage,
        /* the lower content counts as zeros */ bool,
    ),
}

impl Piece {
    fn needs_lower(&self) -> bool {
        match self {
            Self::Zero | Self::Page(PendingPage::Whole(_), _) => false,
            Self::Page(PendingPage::Runs { fresh, .. }, hidden) => !fresh && !hidden,
            Self::Lower => true,
        }
    }
}

pub(crate) fn object<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
) -> Result<ObjectInfo, StoreError> {
    let info = object_info(overlay, id)?;
    if info.attributes.kind != FileKind::Directory && info.attributes.nlink > 1 {
        let is_noted = overlay.state().table.has_had_several_names(id);
        if !is_noted {
            overlay.state_mut().table.mark_several_names(id);
        }
    }
    Ok(info)
}

fn object_info<L: Lower>(overlay: &Overlay<L>, id: ObjectId) -> Result<ObjectInfo, StoreError> {
    let _tree = overlay.hold_names();
    let object = overlay.state().pending.objects().get(&id).cloned();
    let stat = stat(overlay, id)?;
    if object.is_none() && stat.is_none() {
        return Err(StoreError::Unknown(id));
    }
    let lower_bytes = stat.map_or(0, |stat| stat.allocated_bytes);
    if let Some(object) = object
        && let Some(attributes) = object.attributes
    {
        let pages = object.pages.len() as u64 * PAGE_BYTES_U64;
        let most = attributes.size.next_multiple_of(PAGE_BYTES_U64) + pages;
        let allocated_bytes = (lower_bytes + pages).min(most.max(lower_bytes));
        return Ok(ObjectInfo {
            attributes,
            allocated_bytes,
            foreign: false,
            immutable: false,
        });
    }
    let stat = stat.ok_or(StoreError::Unknown(id))?;
    Ok(ObjectInfo {
        attributes: shown_attributes(overlay, id, &stat)?,
        allocated_bytes: lower_bytes,
        foreign: stat.device != overlay.device(),
        immutable: stat.immutable,
    })
}

/// What the mounted view shows of an object for which nothing is pending. Its names in `limbo/` and
/// `stage/` are no links: they wait to be deleted. They are counted each time, because deleting
/// them may have failed.
pub(crate) fn shown_attributes<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
    stat: &LowerStat,
) -> Result<Attributes, StoreError> {
    let mut attributes = attributes_of(stat);
    let is_linked = {
        let state = overlay.state();
        let location = state.table.get(id);
        location.is_some_and(|location| !location.names().is_empty())
    };
    if is_linked && stat.kind != FileKind::Directory && stat.nlink > 1 {
        let own_names = overlay.count_own_names(id, stat.inode)?;
        attributes.nlink = attributes.nlink.saturating_sub(own_names);
    }
    Ok(attributes)
}

/// What the lower filesystem says of an object, at one of its places.
fn stat<L: Lower>(overlay: &Overlay<L>, id: ObjectId) -> Result<Option<LowerStat>, StoreError> {
    if id == ObjectId::ROOT {
        let root = lookup::require_handle(overlay, id)?;
        let stat = overlay.lower().stat(&root);
        let mut stat = stat.map_err(StoreError::lower("stat of the root"))?;
        // Our own directory is one that the mount does not show. Where subdirectories are not
        // counted, there is one link.
        if stat.nlink > 2 {
            stat.nlink -= 1;
        }
        return Ok(Some(stat));
    }
    let location = overlay.state().table.get(id).cloned();
    let (inode, names) = location.map_or((0, Vec::new()), |at| (at.inode, at.names().to_vec()));
    for (parent, name) in names {
        let Some(directory) = lookup::handle(overlay, parent)? else {
            continue;
        };
        // What lies on another filesystem is shown, to be recognised as foreign.
        if let Some(stat) = overlay.stat_at(&directory, name.as_bytes())?
            && (stat.device != overlay.device() || stat.inode == inode)
        {
            return Ok(Some(stat));
        }
    }
    match lookup::place(overlay, id)? {
        None => Ok(None),
        Some(place) => overlay.stat_at(&place.directory, &place.name),
    }
}

pub(crate) fn entries<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
) -> Result<Vec<DirectoryEntry>, StoreError> {
    let _tree = overlay.hold_names();
    let mut entries: BTreeMap<Name, (u64, Option<FileKind>)> = BTreeMap::new();
    let handle = lookup::handle(overlay, id)?;
    if handle.is_none() && overlay.state().pending.object(id).is_none() {
        return Err(StoreError::Unknown(id));
    }
    if let Some(handle) = &handle {
        let listed = overlay.lower().list(handle);
        for entry in listed.map_err(StoreError::lower(format!("listing {id}")))? {
            let is_own = id == ObjectId::ROOT && entry.name == OWN_DIRECTORY;
            // A name that no path can hold cannot be used by anyone either.
            if let Ok(name) = Name::new(&entry.name)
                && !is_own
            {
                entries.insert(name, (entry.inode, entry.kind));
            }
        }
        for (name, (_, kind)) in entries.iter_mut().filter(|(_, (_, kind))| kind.is_none()) {
            *kind = overlay
                .stat_at(handle, name.as_bytes())?
                .map(|stat| stat.kind);
        }
    }
    let mut state = overlay.state_mut();
    let changed: Vec<(Name, Option<ObjectId>)> = state
        .pending
        .dentries_of(id)
        .map(|(name, child)| (name.clone(), child))
        .collect();
    let mut result = Vec::with_capacity(entries.len());
    for (name, _) in &changed {
        entries.remove(name);
    }
    for (name, (inode, kind)) in entries {
        // Removed between listing and looking: not reported.
        let Some(kind) = kind else { continue };
        let child = state.table.adopt(inode, kind, id, &name);
        result.push(DirectoryEntry {
            name,
            id: child,
            kind,
        });
    }
    for (name, child) in changed {
        let Some(child) = child else { continue };
        let pending = state
            .pending
            .object(child)
            .and_then(|object| object.attributes);
        let kind = pending
            .map(|attributes| attributes.kind)
            .or_else(|| state.table.get(child).map(|location| location.kind));
        let kind = kind.ok_or_else(|| missing(child))?;
        result.push(DirectoryEntry {
            name,
            id: child,
            kind,
        });
    }
    Ok(result)
}

pub(crate) fn xattrs<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
) -> Result<Vec<Xattr>, StoreError> {
    let _tree = overlay.hold_names();
    let object = overlay.state().pending.objects().get(&id).cloned();
    let mut xattrs: BTreeMap<Arc<[u8]>, Arc<[u8]>> = BTreeMap::new();
    let lower = match &object {
        Some(object) if object.created => None,
        _ => lookup::handle(overlay, id)?,
    };
    if let Some(handle) = lower {
        let found = overlay.lower().xattrs(&handle);
        xattrs.extend(found.map_err(StoreError::lower(format!("attributes of {id}")))?);
    } else if object.is_none() {
        return Err(StoreError::Unknown(id));
    }
    for (name, value) in object.iter().flat_map(|object| &object.xattrs) {
        match value {
            Some(value) => xattrs.insert(Arc::clone(name), Arc::clone(value)),
            None => xattrs.remove(name),
        };
    }
    Ok(xattrs.into_iter().collect())
}

pub(crate) fn link_target<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
) -> Result<Vec<u8>, StoreError> {
    let _tree = overlay.hold_names();
    let pending = overlay.state().pending.objects().get(&id).cloned();
    if let Some(target) = pending.and_then(|object| object.symlink_target.clone()) {
        return Ok(target.to_vec());
    }
    let place = lookup::place(overlay, id)?.ok_or(StoreError::Unknown(id))?;
    overlay
        .lower()
        .read_link(&place.directory, &place.name)
        .map_err(StoreError::lower(format!("target of {id}")))
}

pub(crate) fn content<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
    offset: u64,
    out: &mut [u8],
) -> Result<(), StoreError> {
    let object = overlay.state().pending.objects().get(&id).cloned();
    let Some(object) = object else {
        let handle = handle_for_content(overlay, id)?.ok_or(StoreError::Unknown(id))?;
        return read_lower(overlay, &handle, offset, out);
    };
    // Pending pages need nothing from the lower filesystem, which may not have the file at all:
    // looking for a missing file takes a system call each time.
    let mut opened = None;
    let mut position = offset;
    let mut rest = out;
    while !rest.is_empty() {
        let index = PageIndex::of_offset(position);
        let within = (position - index.offset()) as usize;
        let (mut length, piece) = (PAGE_BYTES - within, piece_of(&object, index));
        if matches!(piece, Piece::Lower) {
            // Clean stretches go in one read.
            let end = position + rest.len() as u64;
            let mut next = PageIndex(index.0 + 1);
            while next.offset() < end && matches!(piece_of(&object, next), Piece::Lower) {
                next.0 += 1;
            }
            length = (next.offset() - position) as usize;
        }
        let (now, later) = rest.split_at_mut(length.min(rest.len()));
        if piece.needs_lower() && opened.is_none() {
            opened = Some(handle_for_content(overlay, id)?);
        }
        let handle = opened.as_ref().and_then(Option::as_deref);
        match piece {
            Piece::Zero => now.fill(0),
            Piece::Lower => match handle {
                Some(handle) => read_lower(overlay, handle, position, now)?,
                None => now.fill(0),
            },
            Piece::Page(page, hidden) => {
                let lower = handle.filter(|_| !hidden);
                resolve_page(overlay, index, &page, lower)?.read(within, now);
            }
        }
        position += now.len() as u64;
        rest = later;
    }
    Ok(())
}

/// The content of a pending page, whatever form it has.
pub(crate) fn resolve_page<L: Lower>(
    overlay: &Overlay<L>,
    index: PageIndex,
    page: &PendingPage,
    lower: Option<&L::Handle>,
) -> Result<Page, StoreError> {
    let mut content = [0; PAGE_BYTES];
    match page {
        PendingPage::Whole(page) => Ok(page.clone()),
        PendingPage::Runs { fresh, runs } => {
            if let Some(lower) = lower.filter(|_| !fresh) {
                read_lower(overlay, lower, index.offset(), &mut content)?;
            }
            let mut page = Page::new(&content);
            write_runs(&mut page, runs);
            Ok(page)
        }
    }
}

/// A handle on a file, without waiting for a rearrangement if it is open already.
fn handle_for_content<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
) -> Result<Option<Arc<L::Handle>>, StoreError> {
    if let Some(handle) = overlay.cached_handle(id) {
        return Ok(Some(handle));
    }
    let _tree = overlay.hold_names();
    lookup::handle(overlay, id)
}

/// Reads from a lower file; what lies after its end is zeros.
pub(crate) fn read_lower<L: Lower>(
    overlay: &Overlay<L>,
    handle: &L::Handle,
    offset: u64,
    out: &mut [u8],
) -> Result<(), StoreError> {
    let read = overlay.lower().read_at(handle, out, offset);
    let length = read.map_err(StoreError::lower(format!("reading at offset {offset}")))?;
    out[length..].fill(0);
    Ok(())
}

/// Pending changes free room only where they zero ranges; and a new object may have nothing in the
/// lower filesystem yet. The few blocks that a filesystem needs for noting that others are written
/// now are there as long as the reserve is.
pub(crate) fn is_in_place<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    id: ObjectId,
    range: ByteRange,
) -> Result<bool, StoreError> {
    let object = overlay.state().pending.objects().get(&id).cloned();
    if object.is_some_and(|object| object.created || object.zeroed.intersects(range)) {
        return Ok(false);
    }
    let counted = if applier.reserve().is_held() {
        Blocks::Allocated
    } else {
        Blocks::Written
    };
    let handle = handle_for_content(overlay, id)?;
    let looked = handle.map_or(Ok(false), |handle| {
        // What is preallocated may have been given back when this is written.
        let preallocated = applier.preallocations();
        if !preallocated.is_empty() {
            let stat = overlay.lower().stat(&handle)?;
            if range.end > stat.size && preallocated.own_end(&stat).is_some() {
                return Ok(false);
            }
        }
        overlay.lower().is_in_place(&handle, range, counted)
    });
    looked.map_err(StoreError::lower(format!("asking for the blocks of {id}")))
}

pub(crate) fn seek<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
    offset: u64,
    what: Seek,
) -> Result<Option<u64>, StoreError> {
    let whence = match what {
        Seek::Data => Whence::Data,
        Seek::Hole => Whence::Hole,
    };
    let object = overlay.state().pending.objects().get(&id).cloned();
    let handle = handle_for_content(overlay, id)?;
    let lower = |offset: u64| {
        let Some(handle) = &handle else {
            return Ok(None);
        };
        match whence {
            Whence::Data => overlay.lower().seek_data(handle, offset),
            Whence::Hole => overlay.lower().seek_hole(handle, offset),
        }
        .map_err(StoreError::lower(format!("seeking in {id}")))
    };
    let attributes = object.as_ref().and_then(|object| object.attributes);
    match (&object, attributes) {
        (Some(object), Some(attributes)) => {
            let size = attributes.size;
            let layer = PendingContent { object, size };
            let search = |offset| Ok(search_layer(&layer, offset, whence));
            seek_content(offset, whence, search, lower)
        }
        _ if handle.is_none() => Err(StoreError::Unknown(id)),
        _ => lower(offset),
    }
}

fn piece_of(object: &PendingObject, index: PageIndex) -> Piece {
    let hidden = object.hides_lower(index);
    match object.pages.get(&index) {
        Some(page) => Piece::Page(page.clone(), hidden),
        None if hidden => Piece::Zero,
        None => Piece::Lower,
    }
}

/// What is pending of a file of a size, over what the lower file has.
struct PendingContent<'a> {
    object: &'a PendingObject,
    size: u64,
}

impl ContentLayer for PendingContent<'_> {
    fn size(&self) -> u64 {
        self.size
    }

    fn has_data(&self, offset: u64) -> bool {
        let index = PageIndex::of_offset(offset);
        self.object.pages.contains_key(&index)
    }

    fn data_until(&self, offset: u64) -> Option<u64> {
        let first = PageIndex::of_offset(offset);
        let run = self.object.pages.range(first..).zip(first.0..);
        let run = run.take_while(|((index, _), expected)| index.0 == *expected);
        run.last()
            .map(|((index, _), _)| index.offset() + PAGE_BYTES_U64)
    }

    fn next_data(&self, offset: u64) -> Option<u64> {
        let after = PageIndex(PageIndex::of_offset(offset).0 + 1);
        let (index, _) = self.object.pages.range(after..).next()?;
        Some(index.offset())
    }

    fn hidden_until(&self, offset: u64) -> Option<u64> {
        let object = self.object;
        if !object.created {
            return object.zeroed.range_at(offset).map(|range| range.end);
        }
        if object.direct.contains(offset) {
            return None;
        }
        let next = object.direct.next_after(offset);
        Some(next.map_or(u64::MAX, |range| range.start))
    }

    fn next_hidden(&self, offset: u64) -> Option<u64> {
        let object = self.object;
        let next = if object.created {
            object.direct.range_at(offset).map(|range| range.end)
        } else {
            object.zeroed.next_after(offset).map(|range| range.start)
        };
        next.filter(|&next| next != u64::MAX)
    }
}

/// What the mounted view shows of a lower object.
pub(crate) fn attributes_of(stat: &LowerStat) -> Attributes {
    Attributes {
        kind: stat.kind,
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.rdev,
        size: stat.size,
        nlink: stat.nlink,
        atime: stat.atime,
        mtime: stat.mtime,
        ctime: stat.ctime,
    }
}
