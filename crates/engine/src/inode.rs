//! One filesystem object in memory.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use mobifs_base::{
    AppId, Attributes, ByteRange, ContentLayer, FileKind, Name, ObjectId, ObjectInfo,
    PAGE_BYTES_U64, PageIndex, Room, TransactionId,
};

use crate::directory::{Directory, Displaced, Listing};
use crate::persist::dirty_tracking::Tracked;
use crate::request::{Node, SetIdBits};
use crate::versions::{Change, ORPHAN, Pages};

/// Extended attributes, name to value.
pub(crate) type Xattrs = BTreeMap<Arc<[u8]>, Arc<[u8]>>;

/// What an inode holds besides attributes.
#[derive(Debug)]
pub(crate) enum Body {
    /// Regular file.
    File,
    /// Directory.
    Directory(Listing),
    /// Symlink; none while its target is not loaded.
    Symlink(Option<Arc<[u8]>>),
    /// Fifo, socket, device.
    Special,
}

/// One filesystem object in memory.
///
/// Invariants: a directory is in memory as long as an inode that has it as `home`
/// is; an inode with `holds > 0` (mentioned by an uncommitted transaction), looked-up
/// or open is never evicted.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) attributes: Attributes,
    pub(crate) allocated_bytes: u64,
    pub(crate) foreign: bool,
    pub(crate) immutable: bool,
    /// Created as `O_TMPFILE`: may get a first link although it has none.
    pub(crate) unnamed: bool,
    /// A transaction with the object was closed (or it came from the store): later
    /// ones do not create it.
    pub(crate) announced: bool,
    /// The store has a committed (or spilled) state of the object, so content that is
    /// not in `pages` and not zeroed comes from there.
    pub(crate) known_to_store: bool,
    /// Size in the store: after it the store has nothing but zeros.
    pub(crate) store_bytes: u64,
    /// Parent of a directory; of other objects a directory that had a link to it.
    pub(crate) home: ObjectId,
    /// Name in `home`; kept current for directories, to build paths.
    pub(crate) name: Option<Name>,
    /// Objects in memory whose `home` this is.
    pub(crate) residents: u64,
    /// The app, valid while `app_epoch` is the engine's.
    pub(crate) app: AppId,
    pub(crate) app_epoch: u64,
    /// Other apps with a link to this object.
    pub(crate) linked_apps: Vec<AppId>,
    /// It has further names, which may be in any app: the lower filesystem says so, or
    /// several apps moved with a directory.
    pub(crate) has_unknown_names: bool,
    /// It has, or had, more names than one: not all of them need to be in `home`, and
    /// `home` need not have one any more.
    pub(crate) had_several_names: bool,
    pub(crate) lookups: u64,
    pub(crate) opens: u64,
    pub(crate) holds: u64,
    /// The object lost its last link in a transaction whose commit made the store keep its
    /// content.
    pub(crate) pinned: bool,
    /// Counts commits of this object: a page read from the store is stale after one.
    pub(crate) version: u64,
    pub(crate) pages: Pages,
    /// Distinguishes this stay in memory from earlier ones.
    pub(crate) stamp: u64,
    pub(crate) change: Option<Box<Change>>,
    /// Zeroed ranges of closed, uncommitted transactions, in the order of their closing.
    pub(crate) closed_zeroed: Vec<(TransactionId, Vec<ByteRange>)>,
    /// All extended attributes; none while not loaded. They are a record of their own in the
    /// restart image, with [`Change::xattrs`]: they may be many, and seldom change.
    pub(crate) xattrs: Tracked<Option<Xattrs>>,
    pub(crate) body: Body,
}

impl Inode {
    /// An object as the store has it.
    pub(crate) fn from_store(info: &ObjectInfo, home: ObjectId, name: Option<Name>) -> Self {
        let body = match info.attributes.kind {
            FileKind::Regular => Body::File,
            FileKind::Directory => Body::Directory(Listing::NotLoaded(Displaced::new())),
            FileKind::Symlink => Body::Symlink(None),
            _ => Body::Special,
        };
        let has_several_names =
            info.attributes.kind != FileKind::Directory && info.attributes.nlink > 1;
        Self {
            attributes: info.attributes,
            allocated_bytes: info.allocated_bytes,
            foreign: info.foreign,
            immutable: info.immutable,
            unnamed: false,
            announced: true,
            known_to_store: true,
            store_bytes: info.attributes.size,
            home,
            name,
            residents: 0,
            app: AppId(0),
            app_epoch: 0,
            linked_apps: Vec::new(),
            has_unknown_names: has_several_names,
            had_several_names: has_several_names,
            lookups: 0,
            opens: 0,
            holds: 0,
            pinned: false,
            version: 0,
            pages: Pages::default(),
            stamp: 0,
            change: None,
            closed_zeroed: Vec::new(),
            xattrs: Tracked::saved(None),
            body,
        }
    }

    /// A new object.
    pub(crate) fn created(
        attributes: Attributes,
        body: Body,
        home: ObjectId,
        name: Option<Name>,
    ) -> Self {
        let info = ObjectInfo {
            attributes,
            allocated_bytes: 0,
            foreign: false,
            immutable: false,
        };
        Self {
            announced: false,
            known_to_store: false,
            store_bytes: 0,
            xattrs: Tracked::saved(Some(BTreeMap::new())),
            body,
            ..Self::from_store(&info, home, name)
        }
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.attributes.kind == FileKind::Directory
    }

    pub(crate) fn is_orphan(&self) -> bool {
        self.attributes.nlink == 0
    }

    pub(crate) fn node(&self, id: ObjectId) -> Node {
        Node {
            id,
            attributes: self.attributes,
            allocated_bytes: self.allocated_bytes,
        }
    }

    pub(crate) fn directory(&self) -> Option<&Directory> {
        match &self.body {
            Body::Directory(listing) => listing.loaded(),
            _ => None,
        }
    }

    pub(crate) fn directory_mut(&mut self) -> Option<&mut Directory> {
        match &mut self.body {
            Body::Directory(listing) => listing.loaded_mut(),
            _ => None,
        }
    }

    /// Takes out the listing of a directory. Only [`crate::namespace::Namespace`] may call it,
    /// which marks what goes as unsaved.
    pub(crate) fn take_directory(&mut self) -> Option<Box<Directory>> {
        match &mut self.body {
            Body::Directory(listing) => listing.take(),
            _ => None,
        }
    }

    /// After this nothing is allocated, as far as is known here.
    fn allocated_end(&self) -> u64 {
        // A forged store may have sizes that no file can have.
        let size = self.attributes.size;
        let size = size
            .checked_next_multiple_of(PAGE_BYTES_U64)
            .unwrap_or(size);
        let allocated = self.change.as_ref().map(|change| &change.allocated);
        let last = allocated.and_then(|ranges| ranges.iter().next_back());
        size.max(last.map_or(0, |range| range.end))
    }

    /// Content comes, or is allocated, somewhere before `end`. Whether the range had content
    /// already is not known, but a file without holes does not grow by it.
    pub(crate) fn grow_allocated(&mut self, bytes: u64, end: u64) {
        let most = self.allocated_end().max(end).max(self.allocated_bytes);
        self.allocated_bytes = self.allocated_bytes.saturating_add(bytes).min(most);
    }

    /// `range` becomes a hole, in which `bytes` at least were allocated.
    pub(crate) fn shrink_allocated(&mut self, bytes: u64, range: ByteRange) {
        let end = self.allocated_end();
        let hole = range.end.min(end) - range.start.min(end);
        // What was allocated after the end of the file in an earlier transaction: all that does not
        // fit before the end. A hole takes of it what it covers.
        let after_end = self.allocated_bytes.saturating_sub(end);
        let after_end = after_end.saturating_sub(range.end.saturating_sub(end));
        let most = (end - hole).saturating_add(after_end);
        self.allocated_bytes = self.allocated_bytes.saturating_sub(bytes).min(most);
    }

    /// Whether content at `offset` that is in no slot reads as zero without asking
    /// the store.
    pub(crate) fn is_zero_below(&self, offset: u64) -> bool {
        !self.known_to_store
            || offset >= self.store_bytes
            || self
                .change
                .as_ref()
                .is_some_and(|change| change.zeroed.contains(offset))
            || self
                .closed_zeroed
                .iter()
                .any(|(_, ranges)| range_at(ranges, offset).is_some())
    }

    /// Whether an uncommitted change gives back room that a part of `range` has in the lower
    /// filesystem.
    pub(crate) fn gives_back(&self, range: ByteRange) -> bool {
        let overlaps = |ranges: &[ByteRange]| {
            let next = ranges.partition_point(|zeroed| zeroed.end <= range.start);
            ranges.get(next).is_some_and(|next| next.start < range.end)
        };
        let change = self.change.as_ref();
        !range.is_empty()
            && (change.is_some_and(|change| change.zeroed.intersects(range))
                || self
                    .closed_zeroed
                    .iter()
                    .any(|(_, ranges)| overlaps(ranges)))
    }

    /// Room that changes take which no transaction carries yet: pages, allocated ranges and
    /// extended attributes of an object without a link.
    pub(crate) fn orphan_room(&self) -> Room {
        let change = self.change.as_deref();
        let Some(change) = change.filter(|change| change.transaction == ORPHAN) else {
            return Room::NONE;
        };
        let pages = self.pages.iter();
        let pages = pages.filter(|(_, slot)| slot.transaction == ORPHAN);
        let pages = Room::of_pages(pages.map(|(&index, _)| index));
        let allocated = change.allocated.iter().map(Room::of_range);
        let known = self.xattrs.as_ref();
        let values = change.xattrs.iter();
        let values = values.filter_map(|name| known?.get(name));
        let values = values.map(|value| Room::of_xattr(value.len()));
        allocated.chain(values).fold(pages, Room::saturating_add)
    }

    /// Takes the file capability away, which every change of content does.
    pub(crate) fn kill_capability(&mut self) {
        const CAPABILITY: &[u8] = b"security.capability";
        self.remove_xattr(CAPABILITY);
    }

    /// Sets an extended attribute, which the open change will carry; the attributes are loaded.
    /// Room for the value, unless that change has set the attribute before.
    pub(crate) fn set_xattr(&mut self, name: Arc<[u8]>, value: Arc<[u8]>) -> Room {
        if self.xattrs.is_none() {
            return Room::NONE;
        }
        let change = self.change.as_mut();
        let is_new = change.is_none_or(|change| change.xattrs.insert(Arc::clone(&name)));
        let room = if is_new {
            Room::of_xattr(value.len())
        } else {
            Room::NONE
        };
        if let Some(xattrs) = &mut *self.xattrs {
            xattrs.insert(name, value);
        }
        room
    }

    /// Takes an extended attribute away, if there is one.
    pub(crate) fn remove_xattr(&mut self, name: &[u8]) {
        let has_it = self
            .xattrs
            .as_ref()
            .is_some_and(|xattrs| xattrs.contains_key(name));
        if has_it
            && let Some(xattrs) = &mut *self.xattrs
            && let Some((name, _)) = xattrs.remove_entry(name)
            && let Some(change) = &mut self.change
        {
            change.xattrs.insert(name);
        }
    }

    /// Whether the record of the extended attributes is not empty.
    pub(crate) fn has_xattr_record(&self) -> bool {
        let change = self.change.as_ref();
        self.xattrs
            .as_ref()
            .is_some_and(|xattrs| !xattrs.is_empty())
            || change.is_some_and(|change| !change.xattrs.is_empty())
    }

    /// Removes the mode bits that a change of content by an unprivileged user must remove, and a
    /// change of owner from everything but directories.
    pub(crate) fn change_set_id(&mut self, bits: SetIdBits) {
        use mobifs_base::{S_ISGID, S_ISUID};
        const GROUP_EXECUTE: u16 = 0o010;
        if bits != SetIdBits::Stay && self.attributes.kind != FileKind::Directory {
            self.attributes.mode &= !S_ISUID;
            if bits == SetIdBits::BothGo || self.attributes.mode & GROUP_EXECUTE != 0 {
                self.attributes.mode &= !S_ISGID;
            }
        }
    }
}

/// Content in memory over the store's.
impl ContentLayer for Inode {
    fn size(&self) -> u64 {
        self.attributes.size
    }

    fn has_data(&self, offset: u64) -> bool {
        self.pages.contains_key(&PageIndex::of_offset(offset))
    }

    fn data_until(&self, offset: u64) -> Option<u64> {
        let first = PageIndex::of_offset(offset);
        let run = self.pages.range(first..).zip(first.0..);
        let run = run.take_while(|((index, _), expected)| index.0 == *expected);
        run.last()
            .map(|((index, _), _)| index.offset() + PAGE_BYTES_U64)
    }

    fn next_data(&self, offset: u64) -> Option<u64> {
        let after = PageIndex(PageIndex::of_offset(offset).0 + 1);
        let (index, _) = self.pages.range(after..).next()?;
        Some(index.offset())
    }

    fn hidden_until(&self, offset: u64) -> Option<u64> {
        if !self.known_to_store {
            return Some(u64::MAX);
        }
        let change = self.change.as_ref();
        let open = change.and_then(|change| change.zeroed.range_at(offset));
        let closed = self.closed_zeroed.iter();
        let closed = closed.filter_map(|(_, ranges)| range_at(ranges, offset));
        closed.chain(open).map(|range| range.end).max()
    }

    fn next_hidden(&self, offset: u64) -> Option<u64> {
        let change = self.change.as_ref();
        let open = change.and_then(|change| change.zeroed.next_after(offset));
        let closed = self.closed_zeroed.iter().filter_map(|(_, ranges)| {
            let next = ranges.partition_point(|range| range.start <= offset);
            ranges.get(next).copied()
        });
        closed.chain(open).map(|range| range.start).min()
    }
}

/// The range that holds the byte at `offset`, of ranges in order.
fn range_at(ranges: &[ByteRange], offset: u64) -> Option<ByteRange> {
    let next = ranges.partition_point(|range| range.end <= offset);
    ranges
        .get(next)
        .copied()
        .filter(|range| range.start <= offset)
}
