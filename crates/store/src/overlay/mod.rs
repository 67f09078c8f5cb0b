//! Committed state that is not in its final place yet, served over the lower tree.
//!
//! [`Overlay`] has what a read needs: the lower filesystem, what is [pending](pending) over it, and
//! [where objects are](table). [`read`] answers with both; [`lookup`] and [`search`] find objects
//! in the lower tree. Commits and applies change it through [`Overlay::state_mut`].

pub(crate) mod lookup;
pub(crate) mod paths;
pub(crate) mod pending;
pub(crate) mod places;
pub(crate) mod read;
pub(crate) mod search;
pub(crate) mod state;
pub(crate) mod table;

use std::sync::Arc;

use mobifs_base::{FileKind, ObjectId};
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

use crate::locks::{Order, Rank, Ranked, RankedRwLock};
use crate::lower::directories::Directories;
use crate::lower::kept_handles::KeptHandles;
use crate::lower::{Lower, LowerStat, found};
use crate::overlay::state::{Change, ReportedState, State};
use crate::{RestartSink, StoreError};

/// A name in a directory of the lower filesystem.
pub(crate) struct Place<H> {
    pub(crate) directory: Arc<H>,
    pub(crate) name: Vec<u8>,
    /// What lies there.
    pub(crate) kind: FileKind,
    /// Not one of the tree's names, but one in `limbo/` or `stage/`.
    pub(crate) is_own: bool,
}

/// The lower filesystem, and what is committed over it.
pub(crate) struct Overlay<L: Lower> {
    lower: KeptHandles<L>,
    own: Directories<L::Handle>,
    /// The device that the store is on: what has another one is foreign.
    device: u64,
    is_read_only: bool,
    /// Write-held while names in the lower tree move.
    names: RankedRwLock<()>,
    state: ReportedState,
}

// Callers that look for an object hold the names, in either mode, so that nothing moves meanwhile.
impl<L: Lower> Overlay<L> {
    pub(crate) const fn new(
        order: Order,
        lower: KeptHandles<L>,
        own: Directories<L::Handle>,
        device: u64,
        is_read_only: bool,
        state: State,
    ) -> Self {
        Self {
            lower,
            own,
            device,
            is_read_only,
            names: RankedRwLock::new(order, Rank::Names, ()),
            state: ReportedState::new(order, state),
        }
    }

    pub(crate) const fn lower(&self) -> &KeptHandles<L> {
        &self.lower
    }

    pub(crate) const fn mobifs(&self) -> &Arc<L::Handle> {
        self.own.mobifs()
    }

    pub(crate) const fn stage(&self) -> &Arc<L::Handle> {
        self.own.stage()
    }

    pub(crate) const fn limbo(&self) -> &Arc<L::Handle> {
        self.own.limbo()
    }

    pub(crate) const fn lost(&self) -> &Arc<L::Handle> {
        self.own.lost()
    }

    pub(crate) const fn device(&self) -> u64 {
        self.device
    }

    pub(crate) const fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// The lock of the names, to let other threads in between two moves.
    pub(crate) const fn names(&self) -> &RankedRwLock<()> {
        &self.names
    }

    /// Names of the lower tree do not move while the guard lives.
    pub(crate) fn hold_names(&self) -> Ranked<RwLockReadGuard<'_, ()>> {
        self.names.read()
    }

    /// Only the holder of the guard moves names of the lower tree.
    pub(crate) fn lock_names(&self) -> Ranked<RwLockWriteGuard<'_, ()>> {
        self.names.write()
    }

    /// What is pending and known.
    pub(crate) fn state(&self) -> Ranked<RwLockReadGuard<'_, State>> {
        self.state.read()
    }

    /// The state, to be changed; the restart-state sink gets it before any other thread sees it.
    pub(crate) fn state_mut(&self) -> Change<'_> {
        self.state.write()
    }

    /// From now on `sink` gets every change.
    pub(crate) fn watch(&mut self, sink: Arc<dyn RestartSink>) {
        self.state.watch(sink);
    }

    pub(crate) fn sink(&self) -> Option<&dyn RestartSink> {
        self.state.sink()
    }

    /// A handle that is open already.
    pub(crate) fn cached_handle(&self, id: ObjectId) -> Option<Arc<L::Handle>> {
        self.lower().handles().get(id)
    }

    /// A handle that is open already, or the root's.
    pub(crate) fn open_handle(&self, id: ObjectId) -> Result<Option<Arc<L::Handle>>, StoreError> {
        let cached = self.cached_handle(id);
        if cached.is_some() || id != ObjectId::ROOT {
            return Ok(cached);
        }
        let root = self.lower().root();
        let root = root.map_err(StoreError::lower("opening the store"))?;
        Ok(Some(self.keep_handle(id, root)))
    }

    pub(crate) fn keep_handle(&self, id: ObjectId, handle: L::Handle) -> Arc<L::Handle> {
        let handle = Arc::new(handle);
        self.lower().handles().insert(id, Arc::clone(&handle));
        handle
    }

    /// The name of an object in `limbo/` or `stage/`.
    pub(crate) fn own_place(
        &self,
        id: ObjectId,
        inode: Option<u64>,
    ) -> Result<Option<Place<L::Handle>>, StoreError> {
        if let Some(inode) = inode {
            let name = inode.to_string().into_bytes();
            if let Some(stat) = self.stat_of(self.limbo(), &name, Some(inode))? {
                let directory = Arc::clone(self.limbo());
                return Ok(Some(Place {
                    directory,
                    name,
                    kind: stat.kind,
                    is_own: true,
                }));
            }
        }
        let name = id.0.to_string().into_bytes();
        if let Some(stat) = self.stat_of(self.stage(), &name, inode)? {
            let directory = Arc::clone(self.stage());
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
        let in_limbo = is_in(self.limbo(), inode)?;
        let in_stage = is_in(self.stage(), id.0)?;
        Ok(u32::from(in_limbo) + u32::from(in_stage))
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
        found(self.lower().stat_at(directory, name)).map_err(StoreError::lower(format!(
            "looking at \"{}\"",
            name.escape_ascii()
        )))
    }

    /// Kind of an object, from what is pending or known.
    pub(crate) fn kind_of(&self, id: ObjectId) -> Option<FileKind> {
        let state = self.state();
        let pending = state
            .pending
            .object(id)
            .and_then(|object| object.attributes);
        pending
            .map(|attributes| attributes.kind)
            .or_else(|| state.table.get(id).map(|location| location.kind))
    }

    /// Opens what lies at a place, and keeps the handle.
    pub(crate) fn open_at(
        &self,
        directory: &L::Handle,
        name: &[u8],
        id: ObjectId,
    ) -> Result<Option<Arc<L::Handle>>, StoreError> {
        let opened = found(self.lower().open(directory, name, !self.is_read_only()));
        let opened = opened.map_err(StoreError::lower(format!("opening {id}")))?;
        Ok(opened.map(|handle| self.keep_handle(id, handle)))
    }
}
