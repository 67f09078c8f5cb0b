//! One filesystem object in memory.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use mobifs_base::{
    AppId, Attributes, ByteRange, ContentSearch, FileKind, Name, ObjectId, ObjectInfo,
    PAGE_BYTES_U64, Page, PageIndex, Room, TransactionId, Whence,
};

use crate::directory::{Directory, DisplacedCookies, Listing};
use crate::persist::dirty_tracking::Tracked;
use crate::request::{Node, SetIdBits};
use crate::usage::Usage;
use crate::versions::{Change, Edited, PageVersions, ReadPlan, Zeroed};

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
/// is; an inode that an uncommitted transaction mentions, looked-up or open is never
/// evicted.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) attributes: Attributes,
    pub(crate) allocated_bytes: u64,
    pub(crate) foreign: bool,
    pub(crate) immutable: bool,
    /// Created as `O_TMPFILE`: may get a first link although it has none.
    pub(crate) unnamed: bool,
    /// Whether a closed transaction (or the store) creates it already: later ones do not.
    pub(crate) creation_closed: bool,
    /// Parent of a directory; of other objects a directory that had a link to it.
    pub(crate) home: ObjectId,
    /// Name in `home`; kept current for directories, to build paths.
    pub(crate) name: Option<Name>,
    /// The app, valid while `app_epoch` is the engine's.
    pub(crate) app: AppId,
    pub(crate) app_epoch: u64,
    /// Other apps with a link to this object.
    pub(crate) linked_apps: Vec<AppId>,
    /// The object has further names, which may be in any app: the lower filesystem says so, or
    /// several apps moved with a directory.
    pub(crate) has_unknown_names: bool,
    /// The object has, or had, more names than one: not all of them need to be in `home`, and
    /// `home` need not have one any more.
    pub(crate) had_several_names: bool,
    /// What keeps it in memory.
    pub(crate) usage: Usage,
    /// The object lost its last link in a transaction whose commit made the store keep its
    /// content.
    pub(crate) pinned: bool,
    /// Distinguishes this stay in memory from earlier ones.
    pub(crate) stamp: u64,
    /// Its content in memory over the store's, and what its open transaction changes of it.
    pub(crate) versions: PageVersions,
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
            FileKind::Directory => Body::Directory(Listing::NotLoaded(DisplacedCookies::new())),
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
            creation_closed: true,
            home,
            name,
            app: AppId(0),
            app_epoch: 0,
            linked_apps: Vec::new(),
            has_unknown_names: has_several_names,
            had_several_names: has_several_names,
            usage: Usage::default(),
            pinned: false,
            stamp: 0,
            versions: PageVersions::of_store(info.attributes.size),
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
            creation_closed: false,
            versions: PageVersions::created(),
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
        size.max(self.versions.allocated_end())
    }

    /// Content comes, or is allocated, somewhere before `end`. Whether the range had content
    /// already is not known, but a file without holes does not grow by it.
    fn grow_allocated(&mut self, bytes: u64, end: u64) {
        let most = self.allocated_end().max(end).max(self.allocated_bytes);
        self.allocated_bytes = self.allocated_bytes.saturating_add(bytes).min(most);
    }

    /// `range` became a hole, in which `bytes` at least were allocated. `end`: that of what was
    /// allocated.
    fn shrink_allocated(&mut self, end: u64, bytes: u64, range: ByteRange) {
        let hole = range.end.min(end) - range.start.min(end);
        // What was allocated after the end of the file in an earlier transaction: all that does not
        // fit before the end. A hole takes of it what it covers.
        let after_end = self.allocated_bytes.saturating_sub(end);
        let after_end = after_end.saturating_sub(range.end.saturating_sub(end));
        let most = (end - hole).saturating_add(after_end);
        self.allocated_bytes = self.allocated_bytes.saturating_sub(bytes).min(most);
    }

    /// Changes a page in the transaction of the object's change; see [`PageVersions::edit`].
    pub(crate) fn edit_page(
        &mut self,
        transaction: TransactionId,
        index: PageIndex,
        committed: impl FnOnce(u64) -> Option<Page>,
        edit: impl FnOnce(&mut Page),
    ) -> Edited {
        let edited = self.versions.edit(transaction, index, committed, edit);
        if edited.fills_hole {
            let end = index.offset().saturating_add(PAGE_BYTES_U64);
            self.grow_allocated(PAGE_BYTES_U64, end);
        }
        edited
    }

    /// Drops whole pages in the transaction of the object's change; see [`PageVersions::zero`].
    pub(crate) fn zero_pages(&mut self, transaction: TransactionId, range: ByteRange) -> Zeroed {
        let end = self.allocated_end();
        let zeroed = self.versions.zero(transaction, range, self.creation_closed);
        self.shrink_allocated(end, zeroed.pages * PAGE_BYTES_U64, range);
        zeroed
    }

    /// The object's change allocates a range; `bytes` of it were not allocated before.
    pub(crate) fn allocate(&mut self, range: ByteRange, bytes: u64) {
        self.grow_allocated(bytes, range.end);
        self.versions.allocate(range);
    }

    /// Nothing is allocated any more from the page after `size` on.
    pub(crate) fn release_allocated_from(&mut self, size: u64) {
        let most = size.next_multiple_of(PAGE_BYTES_U64);
        self.allocated_bytes = self.allocated_bytes.min(most);
        self.versions.release_allocated(ByteRange::from(size));
    }

    /// Plans a read of up to so many bytes.
    pub(crate) fn read_plan(&self, offset: u64, length: usize) -> ReadPlan {
        let available = self.attributes.size.saturating_sub(offset);
        let length = usize::try_from(available).map_or(length, |available| available.min(length));
        self.versions.read_plan(offset, length)
    }

    /// Looks for the first data or hole from `offset` on.
    pub(crate) fn search_content(&self, offset: u64, whence: Whence) -> ContentSearch {
        self.versions.search(self.attributes.size, offset, whence)
    }

    /// Room that changes take which no transaction carries yet: pages, allocated ranges and
    /// extended attributes of an object without a link.
    pub(crate) fn orphan_room(&self) -> Room {
        let change = self.versions.orphan_change();
        let names = change.into_iter().flat_map(Change::xattrs);
        let known = self.xattrs.as_ref();
        let values = names.filter_map(|name| known?.get(name));
        let values = values.map(|value| Room::of_xattr(value.len()));
        values.fold(self.versions.orphan_room(), Room::saturating_add)
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
        let change = self.versions.change_mut();
        let is_new = change.is_none_or(|change| change.add_xattr(Arc::clone(&name)));
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
            && let Some(change) = self.versions.change_mut()
        {
            change.add_xattr(name);
        }
    }

    /// Whether the record of the extended attributes is not empty.
    pub(crate) fn has_xattr_record(&self) -> bool {
        let change = self.versions.change();
        self.xattrs
            .as_ref()
            .is_some_and(|xattrs| !xattrs.is_empty())
            || change.is_some_and(|change| !change.xattrs().is_empty())
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
