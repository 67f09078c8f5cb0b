//! Finding objects in the lower tree, and open handles on them.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use mobifs_types::{FileKind, ObjectId};

use super::{Directories, JournalStore};
use crate::StoreError;
use crate::lower::{Lower, LowerStat};

/// Open handles kept.
const HANDLES_MAX: usize = 512;
/// No directory tree is deeper.
const DEPTH_MAX: usize = 100_000;
/// With more directories than this between an object and one that is open, they are
/// opened one by one from above: looking for each from below takes stack.
const UNOPENED_MAX: usize = 64;
/// Objects sought at the same time, each below the next. What is deeper was opened from
/// above; so only a forged journal gets here, and must not get to the end of the stack.
const SEEKING_MAX: usize = 256;

/// A cache of open handles; the least recently used go first.
#[derive(Debug)]
pub(crate) struct Handles<H> {
    open: HashMap<ObjectId, (u64, Arc<H>)>,
    clock: u64,
}

impl<H> Default for Handles<H> {
    fn default() -> Self {
        Self {
            open: HashMap::new(),
            clock: 0,
        }
    }
}

impl<H> Handles<H> {
    fn get(&mut self, id: ObjectId) -> Option<Arc<H>> {
        self.clock += 1;
        let (used, handle) = self.open.get_mut(&id)?;
        *used = self.clock;
        Some(Arc::clone(handle))
    }

    fn insert(&mut self, id: ObjectId, handle: Arc<H>) {
        if self.open.len() >= HANDLES_MAX {
            let mut ages: Vec<u64> = self.open.values().map(|(used, _)| *used).collect();
            let (_, &mut middle, _) = ages.select_nth_unstable(HANDLES_MAX / 2);
            self.open.retain(|_, (used, _)| *used > middle);
        }
        self.clock += 1;
        self.open.insert(id, (self.clock, handle));
    }

    pub(crate) fn remove(&mut self, id: ObjectId) {
        self.open.remove(&id);
    }
}

/// A name in a directory of the lower filesystem.
pub(crate) struct Place<H> {
    pub(crate) directory: Arc<H>,
    pub(crate) name: Vec<u8>,
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
        self.open_ancestors(id)?;
        self.handle_within(id, &mut Vec::new())
    }

    /// A handle that is open already.
    pub(crate) fn cached_handle(&self, id: ObjectId) -> Option<Arc<L::Handle>> {
        self.handles.lock().get(id)
    }

    /// A handle on an object that must exist.
    pub(crate) fn require_handle(&self, id: ObjectId) -> Result<Arc<L::Handle>, StoreError> {
        self.handle(id)?.ok_or_else(|| missing(id))
    }

    /// Opens the directories above an object, the highest first, if there are many.
    fn open_ancestors(&self, id: ObjectId) -> Result<(), StoreError> {
        let mut ancestors = Vec::new();
        let mut at = id;
        // Names of an interrupted apply may lead in a circle; the end is enough then.
        while ancestors.len() < DEPTH_MAX && self.cached_handle(at).is_none() {
            let Some(parent) = self.parent_of(at) else {
                break;
            };
            ancestors.push(parent);
            at = parent;
        }
        if ancestors.len() > UNOPENED_MAX {
            for &ancestor in ancestors.iter().rev() {
                self.handle_within(ancestor, &mut Vec::new())?;
            }
        }
        Ok(())
    }

    /// A directory that an object may be in.
    fn parent_of(&self, id: ObjectId) -> Option<ObjectId> {
        let state = self.state.read();
        let location = state.table.get(id);
        if let Some((parent, _)) = location.and_then(|location| location.names.first()) {
            return Some(*parent);
        }
        // An interrupted apply may have attached it; only what is bound could be.
        state.pending.object(id)?.bound?;
        let names = state.pending.names_of(id);
        names.first().map(|(parent, _)| *parent)
    }

    /// Finds an object while the ones in `seeking` are being sought. A place below one
    /// of these is passed over: an interrupted apply may have moved a directory into
    /// one that was below it, so that their old and new places lead in a circle; each
    /// is then found at another of its places.
    fn handle_within(
        &self,
        id: ObjectId,
        seeking: &mut Vec<ObjectId>,
    ) -> Result<Option<Arc<L::Handle>>, StoreError> {
        if let Some(handle) = self.cached_handle(id) {
            return Ok(Some(handle));
        }
        if id == ObjectId::ROOT {
            let root = self
                .lower
                .root()
                .map_err(StoreError::lower("opening the store"))?;
            let root = Arc::new(root);
            self.handles.lock().insert(id, Arc::clone(&root));
            return Ok(Some(root));
        }
        let Some(place) = self.place_within(id, seeking)? else {
            return Ok(None);
        };
        let opened = self
            .lower
            .open(&place.directory, &place.name, !self.read_only);
        let opened = found(opened).map_err(StoreError::lower(format!("opening {id}")))?;
        let Some(handle) = opened.map(Arc::new) else {
            return Ok(None);
        };
        self.handles.lock().insert(id, Arc::clone(&handle));
        Ok(Some(handle))
    }

    /// A name of the object in the lower filesystem, and what is there.
    pub(crate) fn place(&self, id: ObjectId) -> Result<Option<Place<L::Handle>>, StoreError> {
        self.open_ancestors(id)?;
        self.place_within(id, &mut Vec::new())
    }

    fn place_within(
        &self,
        id: ObjectId,
        seeking: &mut Vec<ObjectId>,
    ) -> Result<Option<Place<L::Handle>>, StoreError> {
        if seeking.contains(&id) {
            return Ok(None);
        }
        if seeking.len() >= SEEKING_MAX {
            return Err(StoreError::Corrupt {
                what: format!("the store's tree ({id})"),
                detail: "its names lead through too many directories".to_owned(),
            });
        }
        seeking.push(id);
        let place = self.seek_place(id, seeking);
        seeking.pop();
        place
    }

    fn seek_place(
        &self,
        id: ObjectId,
        seeking: &mut Vec<ObjectId>,
    ) -> Result<Option<Place<L::Handle>>, StoreError> {
        let (location, bound) = {
            let state = self.state.read();
            let bound = state.pending.object(id).and_then(|object| object.bound);
            (state.table.get(id).cloned(), bound)
        };
        let inode = location.as_ref().map(|location| location.inode).or(bound);
        if let Some(location) = &location {
            for (parent, name) in &location.names {
                let Some(directory) = self.handle_within(*parent, seeking)? else {
                    continue;
                };
                if self.is_there(&directory, name.as_bytes(), inode)? {
                    let name = name.as_bytes().to_vec();
                    return Ok(Some(Place {
                        directory,
                        name,
                        is_own: false,
                    }));
                }
            }
        }
        if let Some(place) = self.own_place(id, inode)? {
            return Ok(Some(place));
        }
        let Some(inode) = inode else { return Ok(None) };
        self.attached_place(id, inode, seeking)
    }

    /// The name of an object in `limbo/` or `stage/`.
    fn own_place(
        &self,
        id: ObjectId,
        inode: Option<u64>,
    ) -> Result<Option<Place<L::Handle>>, StoreError> {
        if let Some(inode) = inode {
            let name = inode.to_string().into_bytes();
            if self.is_there(&self.own.limbo, &name, Some(inode))? {
                let directory = Arc::clone(&self.own.limbo);
                return Ok(Some(Place {
                    directory,
                    name,
                    is_own: true,
                }));
            }
        }
        let name = id.0.to_string().into_bytes();
        if self.is_there(&self.own.stage, &name, inode)? {
            let directory = Arc::clone(&self.own.stage);
            return Ok(Some(Place {
                directory,
                name,
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
        let inode = {
            let state = self.state.read();
            let known = state.table.get(id).map(|location| location.inode);
            known.or_else(|| state.pending.object(id).and_then(|object| object.bound))
        };
        match self.own_place(id, inode)? {
            Some(place) => Ok(Some(place)),
            None => self.place(id),
        }
    }

    /// One of the names that pending entries give an object: an earlier, interrupted
    /// apply may have attached it there.
    fn attached_place(
        &self,
        id: ObjectId,
        inode: u64,
        seeking: &mut Vec<ObjectId>,
    ) -> Result<Option<Place<L::Handle>>, StoreError> {
        let names = self.state.read().pending.names_of(id);
        for (parent, name) in names {
            let Some(directory) = self.handle_within(parent, seeking)? else {
                continue;
            };
            if self.is_there(&directory, name.as_bytes(), Some(inode))? {
                let name = name.as_bytes().to_vec();
                return Ok(Some(Place {
                    directory,
                    name,
                    is_own: false,
                }));
            }
        }
        Ok(None)
    }

    /// Whether `name` exists and, if the inode is known, is that object.
    fn is_there(
        &self,
        directory: &L::Handle,
        name: &[u8],
        inode: Option<u64>,
    ) -> Result<bool, StoreError> {
        let stat = self.stat_at(directory, name)?;
        Ok(stat.is_some_and(|stat| inode.is_none_or(|inode| stat.inode == inode)))
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
    /// another user than `owner` are refused, if one is given.
    pub(crate) fn open(
        lower: &L,
        read_only: bool,
        owner: Option<u32>,
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
                if owner.is_some_and(|owner| owner != stat.uid) {
                    return Err(StoreError::Unsuitable(format!(
                        "{shown} in the store belongs to the user with id {}, who could have \
                         forged what would be done in root's name; mount it as that user, or, if \
                         you trust what it holds, make root the owner of the store's .mobifs and \
                         of all that is in it",
                        stat.uid
                    )));
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
        let Some(mobifs) = open(&root, super::OWN_DIRECTORY)? else {
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
