//! Finding objects in the lower tree, and open handles on them.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use mobifs_base::{FileKind, Name, ObjectId};

use crate::journal_store::{Directories, JournalStore};
use crate::lower::{Lower, LowerStat};
use crate::overlay::search::Search;
use crate::{StoreError, check_owner};

/// A cache of open handles; the least recently used go first.
#[derive(Debug)]
pub(crate) struct Handles<H> {
    open: HashMap<ObjectId, (u64, Arc<H>)>,
    clock: u64,
    /// So many at most, but one in any case.
    count_max: usize,
}

impl<H> Handles<H> {
    pub(crate) fn new(count_max: usize) -> Self {
        Self {
            open: HashMap::new(),
            clock: 0,
            count_max,
        }
    }

    fn get(&mut self, id: ObjectId) -> Option<Arc<H>> {
        self.clock += 1;
        let (used, handle) = self.open.get_mut(&id)?;
        *used = self.clock;
        Some(Arc::clone(handle))
    }

    fn insert(&mut self, id: ObjectId, handle: Arc<H>) {
        if self.open.len() >= self.count_max {
            let ages = self.open.values().map(|(used, _)| *used).collect();
            if let Some(middle) = middle_of(ages) {
                self.open.retain(|_, (used, _)| *used > middle);
            }
        }
        self.clock += 1;
        self.open.insert(id, (self.clock, handle));
    }

    pub(crate) fn remove(&mut self, id: ObjectId) {
        self.open.remove(&id);
    }

    pub(crate) fn clear(&mut self) {
        self.open.clear();
    }

    /// Takes out the older half of those that nothing else refers to, at least one if there is one:
    /// to be dropped, which closes them.
    pub(crate) fn close_unused(&mut self) -> Vec<Arc<H>> {
        let is_unused = |handle: &Arc<H>| Arc::strong_count(handle) == 1;
        let unused = self.open.values().filter(|(_, handle)| is_unused(handle));
        let Some(middle) = middle_of(unused.map(|(used, _)| *used).collect()) else {
            return Vec::new();
        };
        let is_closed = |(used, handle): &mut (u64, Arc<H>)| *used <= middle && is_unused(handle);
        let closed = self.open.extract_if(|_, entry| is_closed(entry));
        closed.map(|(_, (_, handle))| handle).collect()
    }
}

/// The age up to which one half of them is; none if there are none.
fn middle_of(mut ages: Vec<u64>) -> Option<u64> {
    let at = ages.len() / 2;
    (!ages.is_empty()).then(|| *ages.select_nth_unstable(at).1)
}

/// A name in a directory of the lower filesystem.
pub(crate) struct Place<H> {
    pub(crate) directory: Arc<H>,
    pub(crate) name: Vec<u8>,
    /// What lies there.
    pub(crate) kind: FileKind,
    /// Not one of the tree's names, but one in `limbo/` or `stage/`.
    pub(crate) is_own: bool,
}

/// An error if `what` could not be found where everything says it should be.
pub(crate) fn missing(id: ObjectId) -> StoreError {
    StoreError::Corrupt {
        what: format!("the store's tree ({id})"),
        detail: "an object that committed changes belong to is not there; it was removed behind \
                 the back of the store"
            .to_owned(),
    }
}

/// None for "not there", the error for everything else.
pub(crate) fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

// Callers hold the `tree` lock in either mode, so that nothing moves meanwhile.
impl<L: Lower> JournalStore<L> {
    /// A handle on an object, if the lower filesystem has it.
    pub(crate) fn handle(&self, id: ObjectId) -> Result<Option<Arc<L::Handle>>, StoreError> {
        self.handle_in(id, &mut Search::default())
    }

    /// As [`Self::handle`], for one of many.
    pub(crate) fn handle_in(
        &self,
        id: ObjectId,
        search: &mut Search,
    ) -> Result<Option<Arc<L::Handle>>, StoreError> {
        if let Some(handle) = self.open_handle(id)? {
            return Ok(Some(handle));
        }
        match self.place_in(id, search)? {
            Some(place) => self.open_at(&place.directory, &place.name, id),
            None => Ok(None),
        }
    }

    /// A handle that is open already.
    pub(crate) fn cached_handle(&self, id: ObjectId) -> Option<Arc<L::Handle>> {
        self.lower.handles().get(id)
    }

    /// A handle on an object that must exist.
    pub(crate) fn require_handle(&self, id: ObjectId) -> Result<Arc<L::Handle>, StoreError> {
        self.handle(id)?.ok_or_else(|| missing(id))
    }

    /// A handle that is open already, or the root's.
    pub(crate) fn open_handle(&self, id: ObjectId) -> Result<Option<Arc<L::Handle>>, StoreError> {
        let cached = self.cached_handle(id);
        if cached.is_some() || id != ObjectId::ROOT {
            return Ok(cached);
        }
        let root = self.lower.root();
        let root = root.map_err(StoreError::lower("opening the store"))?;
        Ok(Some(self.keep_handle(id, root)))
    }

    pub(crate) fn keep_handle(&self, id: ObjectId, handle: L::Handle) -> Arc<L::Handle> {
        let handle = Arc::new(handle);
        self.lower.handles().insert(id, Arc::clone(&handle));
        handle
    }

    /// A name of the object in the lower filesystem, and what is there.
    pub(crate) fn place(&self, id: ObjectId) -> Result<Option<Place<L::Handle>>, StoreError> {
        self.place_in(id, &mut Search::default())
    }

    /// As [`Self::place`], for one of many.
    pub(crate) fn place_in(
        &self,
        id: ObjectId,
        search: &mut Search,
    ) -> Result<Option<Place<L::Handle>>, StoreError> {
        let inode = self.state.read().inode_of(id);
        // One after the other: the first is almost always right, and there may be many.
        let known = |number: usize| {
            let state = self.state.read();
            state.table.get(id)?.names.get(number).cloned()
        };
        if let Some(place) = self.named_place((0..).map_while(known), inode, search)? {
            return Ok(Some(place));
        }
        if let Some(place) = self.own_place(id, inode)? {
            return Ok(Some(place));
        }
        if inode.is_none() {
            return Ok(None);
        }
        // An earlier, interrupted apply may have attached it at a name that is pending.
        let names = self.state.read().pending.names_of(id).to_vec();
        self.named_place(names.into_iter(), inode, search)
    }

    /// The first of these names that is the object's.
    fn named_place(
        &self,
        names: impl Iterator<Item = (ObjectId, Name)>,
        inode: Option<u64>,
        search: &mut Search,
    ) -> Result<Option<Place<L::Handle>>, StoreError> {
        for (parent, name) in names {
            let Some(directory) = self.directory(parent, search)? else {
                continue;
            };
            if let Some(stat) = self.stat_of(&directory, name.as_bytes(), inode)? {
                let name = name.as_bytes().to_vec();
                return Ok(Some(Place {
                    directory,
                    name,
                    kind: stat.kind,
                    is_own: false,
                }));
            }
        }
        Ok(None)
    }

    /// The name of an object in `limbo/` or `stage/`.
    pub(crate) fn own_place(
        &self,
        id: ObjectId,
        inode: Option<u64>,
    ) -> Result<Option<Place<L::Handle>>, StoreError> {
        if let Some(inode) = inode {
            let name = inode.to_string().into_bytes();
            if let Some(stat) = self.stat_of(&self.own.limbo, &name, Some(inode))? {
                let directory = Arc::clone(&self.own.limbo);
                return Ok(Some(Place {
                    directory,
                    name,
                    kind: stat.kind,
                    is_own: true,
                }));
            }
        }
        let name = id.0.to_string().into_bytes();
        if let Some(stat) = self.stat_of(&self.own.stage, &name, inode)? {
            let directory = Arc::clone(&self.own.stage);
            return Ok(Some(Place {
                directory,
                name,
                kind: stat.kind,
                is_own: true,
            }));
        }
        Ok(None)
    }

    /// How many names of our own, in `limbo/` and `stage/`, an object has.
    pub(crate) fn count_own_names(&self, id: ObjectId, inode: u64) -> Result<u32, StoreError> {
        let is_in = |directory: &L::Handle, name: u64| {
            self.is_there(directory, name.to_string().as_bytes(), Some(inode))
        };
        let in_limbo = is_in(&self.own.limbo, inode)?;
        let in_stage = is_in(&self.own.stage, id.0)?;
        Ok(u32::from(in_limbo) + u32::from(in_stage))
    }

    /// Where the last name that an object lacks is to come from: a name of our own, if
    /// there is one, so that none of these is left over; any other name else.
    pub(crate) fn last_place(&self, id: ObjectId) -> Result<Option<Place<L::Handle>>, StoreError> {
        let inode = self.state.read().inode_of(id);
        match self.own_place(id, inode)? {
            Some(place) => Ok(Some(place)),
            None => self.place(id),
        }
    }

    /// Whether `name` exists and, if the inode is known, is that object.
    pub(crate) fn is_there(
        &self,
        directory: &L::Handle,
        name: &[u8],
        inode: Option<u64>,
    ) -> Result<bool, StoreError> {
        Ok(self.stat_of(directory, name, inode)?.is_some())
    }

    /// What `name` is, if it exists and, if the inode is known, is that object.
    fn stat_of(
        &self,
        directory: &L::Handle,
        name: &[u8],
        inode: Option<u64>,
    ) -> Result<Option<LowerStat>, StoreError> {
        let stat = self.stat_at(directory, name)?;
        Ok(stat.filter(|stat| inode.is_none_or(|inode| stat.inode == inode)))
    }

    pub(crate) fn stat_at(
        &self,
        directory: &L::Handle,
        name: &[u8],
    ) -> Result<Option<LowerStat>, StoreError> {
        found(self.lower.stat_at(directory, name)).map_err(StoreError::lower(format!(
            "looking at \"{}\"",
            name.escape_ascii()
        )))
    }

    /// Kind of an object, from what is pending or known.
    pub(crate) fn kind_of(&self, id: ObjectId) -> Option<FileKind> {
        let state = self.state.read();
        let pending = state
            .pending
            .object(id)
            .and_then(|object| object.attributes);
        pending
            .map(|attributes| attributes.kind)
            .or_else(|| state.table.get(id).map(|location| location.kind))
    }
}

impl<L: Lower> Directories<L> {
    /// Opens (and makes, unless `read_only`) the store's own directories. Those of
    /// users who are not to be trusted are refused, if `believes` says that what they hold
    /// is believed.
    pub(crate) fn open(
        lower: &L,
        read_only: bool,
        believes: bool,
    ) -> Result<Option<Self>, StoreError> {
        use crate::lower::Create;
        let open = |parent: &L::Handle, name: &[u8]| -> Result<Option<L::Handle>, StoreError> {
            let shown = name.escape_ascii();
            if let Some(handle) = found(lower.open(parent, name, true))
                .map_err(StoreError::lower(format!("opening {shown}")))?
            {
                let stat = lower
                    .stat(&handle)
                    .map_err(StoreError::lower("looking at .mobifs"))?;
                if stat.kind != FileKind::Directory {
                    return Err(StoreError::Unsuitable(format!(
                        "{shown} in the store is not a directory; it does not belong to MobiFS"
                    )));
                }
                if believes {
                    let around = lower.stat(parent);
                    let around = around.map_err(StoreError::lower("looking at the store"))?;
                    check_owner(&shown.to_string(), stat.uid, around.uid)?;
                }
                return Ok(Some(handle));
            }
            if read_only {
                return Ok(None);
            }
            lower
                .create(parent, name, Create::Directory)
                .and_then(|()| lower.open(parent, name, true))
                .map(Some)
                .map_err(StoreError::lower(format!("making the directory {shown}")))
        };
        let root = lower
            .root()
            .map_err(StoreError::lower("opening the store"))?;
        let Some(mobifs) = open(&root, crate::journal_store::OWN_DIRECTORY)? else {
            return Ok(None);
        };
        let (Some(stage), Some(limbo), Some(lost)) = (
            open(&mobifs, b"stage")?,
            open(&mobifs, b"limbo")?,
            open(&mobifs, b"lost")?,
        ) else {
            return Ok(None);
        };
        if !read_only {
            // Also what was found may not be durable yet: these directories, or the
            // journal's name, if the mount that made them failed or was killed. What is
            // committed from now on must not go with them.
            lower
                .sync(&root)
                .and_then(|()| lower.sync(&mobifs))
                .map_err(StoreError::lower("making the store's directories durable"))?;
        }
        let [mobifs, stage, limbo, lost] = [mobifs, stage, limbo, lost].map(Arc::new);
        Ok(Some(Self {
            mobifs,
            stage,
            limbo,
            lost,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(count_max: usize, count: u64) -> Handles<u64> {
        let mut handles = Handles::new(count_max);
        for number in 0..count {
            handles.insert(ObjectId(number), Arc::new(number));
        }
        handles
    }

    fn kept(handles: &Handles<u64>) -> Vec<u64> {
        let mut kept: Vec<u64> = handles.open.keys().map(|id| id.0).collect();
        kept.sort_unstable();
        kept
    }

    #[test]
    fn no_more_handles_are_kept_than_allowed_and_the_newest_in_any_case() {
        assert_eq!(kept(&filled(4, 4)), [0, 1, 2, 3]);
        assert_eq!(kept(&filled(4, 5)), [3, 4]);
        assert_eq!(kept(&filled(1, 9)), [8]);
        assert_eq!(kept(&filled(0, 9)), [8]);
    }

    #[test]
    fn handles_in_use_stay_and_of_the_others_the_older_half_is_closed() {
        let mut handles = filled(8, 6);
        let used = [0, 3].map(|id| handles.get(ObjectId(id)).unwrap());
        assert_eq!(handles.close_unused().len(), 3);
        assert_eq!(kept(&handles), [0, 3, 5]);
        assert_eq!(handles.close_unused().len(), 1);
        assert!(handles.close_unused().is_empty());
        drop(used);
        assert_eq!(handles.close_unused().len(), 2);
        assert!(kept(&handles).is_empty());
    }
}
