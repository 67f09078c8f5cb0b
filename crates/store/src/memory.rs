//! A store in memory: for tests, and for measuring the engine without a disk.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use mobifs_base::{
    Attributes, ByteRange, DeviceNumber, DirectoryEntry, Entry, FileKind, NAME_BYTES_MAX, Name,
    ObjectId, ObjectInfo, ObjectState, PAGE_BYTES, PAGE_BYTES_U64, Page, PageIndex, RangeSet,
    SYMLINK_BYTES_MAX, SpaceInfo, Timestamp, Xattr,
};
use parking_lot::RwLock;

use crate::{Calibration, Capabilities, PendingWork, Seek, Store, StoreError, Transaction};

/// One object of a [`MemoryStore`]'s committed state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryObject {
    /// Attributes as the last transaction that named the object gave them.
    pub attributes: Attributes,
    /// Target, for a symlink.
    pub symlink_target: Option<Arc<[u8]>>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Arc<[u8]>, Arc<[u8]>>,
    /// Entries, for a directory.
    pub entries: BTreeMap<Name, ObjectId>,
    /// Content, for a regular file; pages that are not here are zero.
    pub pages: BTreeMap<PageIndex, Page>,
    /// Ranges that `fallocate` asked for.
    allocated: RangeSet,
    /// Directory entries that name the object.
    links: u32,
    /// Known only through [`Store::spill`] so far; a transaction may still create it.
    spilled: bool,
}

impl MemoryObject {
    fn new(attributes: Attributes) -> Self {
        Self {
            attributes,
            symlink_target: None,
            xattrs: BTreeMap::new(),
            entries: BTreeMap::new(),
            pages: BTreeMap::new(),
            allocated: RangeSet::new(),
            links: 0,
            spilled: false,
        }
    }

    fn zero(&mut self, range: ByteRange) {
        self.allocated.remove(range);
        let first = PageIndex::of_offset(range.start.next_multiple_of(PAGE_BYTES_U64));
        let end = PageIndex::of_offset(range.end);
        let dropped: Vec<PageIndex> = if range.end == u64::MAX {
            self.pages.range(first..).map(|(&index, _)| index).collect()
        } else {
            self.pages
                .range(first..end.max(first))
                .map(|(&index, _)| index)
                .collect()
        };
        for index in dropped {
            self.pages.remove(&index);
        }
    }

    fn allocated_bytes(&self) -> u64 {
        let pages = self.pages.keys().map(|index| {
            let start = index.offset();
            ByteRange::new(start, start + PAGE_BYTES_U64)
        });
        let all: RangeSet = self.allocated.iter().chain(pages).collect();
        all.iter().map(|range| range.len()).sum()
    }
}

#[derive(Debug, Default)]
struct State {
    objects: HashMap<ObjectId, MemoryObject>,
    pins: HashMap<ObjectId, u32>,
    commits: u64,
    used_pages: u64,
    power_cut: bool,
}

/// Committed state in memory; nothing outlives the process.
#[derive(Debug)]
pub struct MemoryStore {
    state: RwLock<State>,
    capabilities: Capabilities,
    total_bytes: u64,
}

/// What a [`MemoryStore`] pretends its medium allows.
pub const MEMORY_CAPABILITIES: Capabilities = Capabilities {
    xattr_bytes_max: 64 * 1024,
    file_bytes_max: i64::MAX as u64,
    name_bytes_max: NAME_BYTES_MAX,
    symlink_bytes_max: SYMLINK_BYTES_MAX,
    directory_bytes_max: u64::MAX,
    links_max: 65_000,
    device_max: DeviceNumber::MAX,
    privileged: true,
    owner_uid: 0,
    read_only: false,
};

/// Room of a [`MemoryStore`] made by [`MemoryStore::new`], in bytes.
const DEFAULT_TOTAL_BYTES: u64 = 1 << 40;

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// A store with an empty root directory and ample room.
    pub fn new() -> Self {
        Self::with_limits(MEMORY_CAPABILITIES, DEFAULT_TOTAL_BYTES)
    }

    /// A store with an empty root directory, chosen limits and room.
    pub fn with_limits(capabilities: Capabilities, total_bytes: u64) -> Self {
        let root = MemoryObject {
            links: 1,
            ..MemoryObject::new(Attributes {
                kind: FileKind::Directory,
                mode: 0o755,
                uid: 0,
                gid: 0,
                rdev: DeviceNumber::default(),
                size: 0,
                nlink: 2,
                atime: Timestamp::default(),
                mtime: Timestamp::default(),
                ctime: Timestamp::default(),
            })
        };
        let objects = HashMap::from([(ObjectId::ROOT, root)]);
        let state = State {
            objects,
            ..State::default()
        };
        Self {
            state: RwLock::new(state),
            capabilities,
            total_bytes,
        }
    }

    /// All objects that can be reached from the root: the committed tree.
    pub fn snapshot(&self) -> BTreeMap<ObjectId, MemoryObject> {
        let state = self.state.read();
        let mut found = BTreeMap::new();
        let mut next = vec![ObjectId::ROOT];
        while let Some(id) = next.pop() {
            if let Some(object) = state.objects.get(&id)
                && !found.contains_key(&id)
            {
                next.extend(object.entries.values());
                found.insert(id, object.clone());
            }
        }
        found
    }

    /// The store as it would be found after a power cut now: the committed tree without objects
    /// that existed only because they were open. Objects get new numbers, as numbers hold for one
    /// mount only and the next engine counts from the start.
    pub fn reopen(&self) -> Self {
        let snapshot = self.snapshot();
        let numbers: HashMap<ObjectId, ObjectId> = snapshot
            .keys()
            .copied()
            .zip((ObjectId::ROOT.0..).map(ObjectId))
            .collect();
        let objects: HashMap<_, _> = snapshot
            .into_iter()
            .map(|(id, mut object)| {
                object
                    .entries
                    .values_mut()
                    .for_each(|child| *child = numbers[&*child]);
                (numbers[&id], object)
            })
            .collect();
        let used_pages = objects
            .values()
            .map(|object| object.pages.len() as u64)
            .sum();
        Self {
            state: RwLock::new(State {
                objects,
                used_pages,
                ..State::default()
            }),
            capabilities: self.capabilities,
            total_bytes: self.total_bytes,
        }
    }

    fn with_object<T>(
        &self,
        id: ObjectId,
        look: impl FnOnce(&State, &MemoryObject) -> T,
    ) -> Result<T, StoreError> {
        let state = self.state.read();
        state
            .objects
            .get(&id)
            .map(|object| look(&state, object))
            .ok_or(StoreError::Unknown(id))
    }
}

fn wrong(detail: String) -> StoreError {
    StoreError::lower("committing a transaction")(io::Error::new(
        io::ErrorKind::InvalidInput,
        detail,
    ))
}

fn power_is_off(action: &str) -> StoreError {
    StoreError::lower(action)(io::Error::other("the power is off"))
}

impl State {
    /// Refuses what no engine may hand over, before anything is changed.
    fn check(&self, entries: &[Entry]) -> Result<(), StoreError> {
        let mut created = HashMap::new();
        for entry in entries {
            let Entry::Object(state) = entry else {
                continue;
            };
            match self.objects.get(&state.id) {
                Some(known) if state.created && !known.spilled => {
                    return Err(wrong(format!("{} is created twice", state.id)));
                }
                None if !state.created => return Err(StoreError::Unknown(state.id)),
                _ => {}
            }
            created.insert(state.id, state.attributes.kind);
        }
        let kind_of = |id: &ObjectId| {
            let known = || self.objects.get(id).map(|object| object.attributes.kind);
            created
                .get(id)
                .copied()
                .or_else(known)
                .ok_or(StoreError::Unknown(*id))
        };
        for entry in entries {
            match entry {
                Entry::Object(_) => {}
                Entry::Dentry { parent, child, .. } => {
                    if kind_of(parent)? != FileKind::Directory {
                        return Err(wrong(format!("{parent} has entries but is no directory")));
                    }
                    child.as_ref().map(kind_of).transpose()?;
                }
                Entry::Page { object, .. } => {
                    if kind_of(object)? != FileKind::Regular {
                        return Err(wrong(format!("{object} has pages but is no file")));
                    }
                }
            }
        }
        Ok(())
    }

    fn accept_object(&mut self, new: &ObjectState) {
        let object = self
            .objects
            .entry(new.id)
            .or_insert_with(|| MemoryObject::new(new.attributes));
        let pages_before = object.pages.len();
        object.spilled = false;
        object.attributes = new.attributes;
        if new.symlink_target.is_some() {
            object.symlink_target.clone_from(&new.symlink_target);
        }
        for &range in &new.zeroed {
            object.zero(range);
        }
        for &range in &new.allocated {
            object.allocated.insert(range);
        }
        for (name, value) in &new.xattrs {
            match value {
                Some(value) => object.xattrs.insert(name.clone(), value.clone()),
                None => object.xattrs.remove(name),
            };
        }
        self.used_pages -= (pages_before - object.pages.len()) as u64;
    }

    fn accept_page(&mut self, id: ObjectId, index: PageIndex, page: &Page) {
        if let Some(object) = self.objects.get_mut(&id)
            // This store outlives a simulated process that is killed; the arena that holds the page
            // does not.
            && object.pages.insert(index, page.on_heap()).is_none()
        {
            self.used_pages += 1;
        }
    }

    /// Changes one entry; returns the object that it named before.
    fn accept_dentry(
        &mut self,
        parent: ObjectId,
        name: &Name,
        child: Option<ObjectId>,
    ) -> Option<ObjectId> {
        let directory = self.objects.get_mut(&parent)?;
        let before = match child {
            Some(id) => directory.entries.insert(name.clone(), id),
            None => directory.entries.remove(name),
        };
        if let Some(object) = before.and_then(|id| self.objects.get_mut(&id)) {
            object.links -= 1;
        }
        if let Some(object) = child.and_then(|id| self.objects.get_mut(&id)) {
            object.links += 1;
        }
        before
    }

    fn drop_if_unreachable(&mut self, id: ObjectId) {
        let mut unnamed = vec![id];
        while let Some(id) = unnamed.pop() {
            let object = self.objects.get(&id);
            let is_unlinked = object.is_some_and(|object| object.links == 0);
            if !is_unlinked || self.pins.contains_key(&id) {
                continue;
            }
            let Some(object) = self.objects.remove(&id) else {
                continue;
            };
            self.used_pages -= object.pages.len() as u64;
            for child in object.entries.into_values() {
                if let Some(object) = self.objects.get_mut(&child) {
                    object.links -= 1;
                }
                unnamed.push(child);
            }
        }
    }
}

impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn space(&self) -> Result<SpaceInfo, StoreError> {
        let state = self.state.read();
        let free = self
            .total_bytes
            .saturating_sub(state.used_pages * PAGE_BYTES_U64);
        Ok(SpaceInfo {
            block_bytes: PAGE_BYTES_U64,
            total_bytes: self.total_bytes,
            free_bytes: free,
            available_bytes: free,
            metadata_bytes: None,
            total_inodes: 0,
            free_inodes: 0,
        })
    }

    fn object(&self, id: ObjectId) -> Result<ObjectInfo, StoreError> {
        self.with_object(id, |_, object| ObjectInfo {
            attributes: object.attributes,
            allocated_bytes: object.allocated_bytes(),
            foreign: false,
            immutable: false,
        })
    }

    fn list_directory(&self, id: ObjectId) -> Result<Vec<DirectoryEntry>, StoreError> {
        self.with_object(id, |state, object| {
            let entry = |(name, id): (&Name, &ObjectId)| {
                let kind = state.objects.get(id)?.attributes.kind;
                Some(DirectoryEntry {
                    name: name.clone(),
                    id: *id,
                    kind,
                })
            };
            object.entries.iter().filter_map(entry).collect()
        })
    }

    fn xattrs(&self, id: ObjectId) -> Result<Vec<Xattr>, StoreError> {
        self.with_object(id, |_, object| {
            object
                .xattrs
                .iter()
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect()
        })
    }

    fn read_link(&self, id: ObjectId) -> Result<Vec<u8>, StoreError> {
        self.with_object(id, |_, object| {
            object.symlink_target.as_deref().map(<[u8]>::to_vec)
        })?
        .ok_or_else(|| {
            StoreError::lower(format!("reading the link {id}"))(io::ErrorKind::InvalidInput.into())
        })
    }

    fn read(&self, id: ObjectId, offset: u64, out: &mut [u8]) -> Result<(), StoreError> {
        self.with_object(id, |_, object| {
            let mut done = 0;
            while done < out.len() {
                let at = offset.saturating_add(done as u64);
                let within = usize::try_from(at % PAGE_BYTES_U64).unwrap_or(0);
                let count = (PAGE_BYTES - within).min(out.len() - done);
                let part = &mut out[done..done + count];
                match object.pages.get(&PageIndex::of_offset(at)) {
                    Some(page) => page.read(within, part),
                    None => part.fill(0),
                }
                done += count;
            }
            // What lies after the end is zero whatever a page holds there.
            let inside = object
                .attributes
                .size
                .saturating_sub(offset)
                .min(out.len() as u64);
            out[usize::try_from(inside).unwrap_or(0)..].fill(0);
        })
    }

    fn seek(&self, id: ObjectId, offset: u64, what: Seek) -> Result<Option<u64>, StoreError> {
        self.with_object(id, |_, object| {
            let size = object.attributes.size;
            if offset >= size {
                return None;
            }
            let start = PageIndex::of_offset(offset);
            let mut pages = object.pages.range(start..).map(|(&index, _)| index);
            match what {
                Seek::Data => pages
                    .next()
                    .map(|index| index.offset().max(offset))
                    .filter(|&at| at < size),
                Seek::Hole => {
                    let mut expected = start;
                    while pages.next() == Some(expected) {
                        expected = PageIndex(expected.0 + 1);
                    }
                    Some(expected.offset().max(offset).min(size))
                }
            }
        })
    }

    fn commit(&self, transaction: Transaction) -> Result<(), StoreError> {
        let mut state = self.state.write();
        if state.power_cut {
            return Err(power_is_off("committing a transaction"));
        }
        let entries: Vec<Entry> = transaction.entries().collect();
        state.check(&entries)?;
        let mut perhaps_unlinked = Vec::new();
        for entry in &entries {
            if let Entry::Object(new) = entry {
                state.accept_object(new);
                perhaps_unlinked.push(new.id);
            }
        }
        for entry in &entries {
            match entry {
                Entry::Object(_) => {}
                Entry::Page {
                    object,
                    index,
                    page,
                } => state.accept_page(*object, *index, page),
                Entry::Dentry {
                    parent,
                    name,
                    child,
                } => {
                    perhaps_unlinked.extend(state.accept_dentry(*parent, name, *child));
                }
            }
        }
        // Only now: an entry may have moved from one directory to another.
        for id in perhaps_unlinked {
            state.drop_if_unreachable(id);
        }
        state.commits += 1;
        Ok(())
    }

    fn apply(&self) -> Result<(), StoreError> {
        if self.state.read().power_cut {
            return Err(power_is_off("applying"));
        }
        Ok(())
    }

    fn is_in_place(&self, _id: ObjectId, _range: ByteRange) -> Result<bool, StoreError> {
        // There is room for everything.
        Ok(false)
    }

    fn pending(&self) -> PendingWork {
        PendingWork {
            commits: self.state.read().commits,
            ..PendingWork::default()
        }
    }

    fn first_new_object(&self) -> ObjectId {
        ObjectId::FIRST_NEW
    }

    fn pin(&self, id: ObjectId) {
        *self.state.write().pins.entry(id).or_insert(0) += 1;
    }

    fn unpin(&self, id: ObjectId) {
        let mut state = self.state.write();
        if let Some(count) = state.pins.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                state.pins.remove(&id);
                state.drop_if_unreachable(id);
            }
        }
    }

    fn spill(&self, id: ObjectId, pages: &[(PageIndex, Page)]) -> Result<(), StoreError> {
        let mut state = self.state.write();
        if state.power_cut {
            return Err(power_is_off("parking pages"));
        }
        let object = state.objects.entry(id).or_insert_with(|| MemoryObject {
            spilled: true,
            ..MemoryObject::new(Attributes {
                kind: FileKind::Regular,
                mode: 0,
                uid: 0,
                gid: 0,
                rdev: DeviceNumber::default(),
                size: 0,
                nlink: 0,
                atime: Timestamp::default(),
                mtime: Timestamp::default(),
                ctime: Timestamp::default(),
            })
        });
        // The engine knows the size and never reads it; here it only has to cover the spilled
        // pages.
        for (index, page) in pages {
            let end = index.offset() + page.stored_bytes() as u64;
            object.attributes.size = object.attributes.size.max(end);
        }
        for (index, page) in pages {
            state.accept_page(id, *index, page);
        }
        Ok(())
    }

    fn calibration(&self) -> Option<Calibration> {
        None
    }

    fn calibrate(&self) -> Result<Calibration, StoreError> {
        Err(StoreError::Unsuitable(
            "a store in memory has no journal and no device to measure".to_owned(),
        ))
    }

    fn forget(&self, _ids: &[ObjectId], _in_use: &BTreeSet<ObjectId>) {}

    fn cut_power(&self) {
        self.state.write().power_cut = true;
    }
}

#[cfg(test)]
mod tests;
