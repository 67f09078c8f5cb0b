//! Where the objects of the lower tree are, whatever the journal says.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use mobifs_base::{FileKind, ObjectId};

use crate::StoreError;
use crate::lower::{Lower, LowerStat, OWN_DIRECTORY, found};
use crate::recovery::inspect::Parts;

/// The directory that an object is in, by its inode, and its name there.
pub(super) type Place = (u64, Vec<u8>);

/// The lower tree, as far as it is asked for.
#[derive(Debug, Default)]
pub(super) struct Tree {
    root: u64,
    /// All places of the wanted objects and of all directories. What lies in `limbo/` has none.
    places: HashMap<u64, Vec<Place>>,
    kinds: HashMap<u64, FileKind>,
    /// Inodes by their names in `limbo/` and `stage/`.
    limbo: HashMap<u64, Vec<u8>>,
    stage: HashMap<Vec<u8>, u64>,
    /// Directories in `stage/` that an apply has put something into.
    filled: Vec<(Vec<u8>, u64)>,
}

impl Tree {
    /// Walks through the whole tree; of files it keeps the places of those with a `wanted` inode.
    pub(super) fn walk<L: Lower>(
        lower: &L,
        own: &Parts<L::Handle>,
        wanted: &HashSet<u64>,
    ) -> Result<Self, StoreError> {
        let failed = || StoreError::lower("looking through the store");
        let root = lower.root().map_err(failed())?;
        let device = lower.stat(&root).map_err(failed())?;
        let mut walk = Walk {
            lower,
            device: device.device,
            wanted,
            tree: Self {
                root: device.inode,
                ..Self::default()
            },
        };
        walk.below(Arc::new(root), device.inode)?;
        if let Some(limbo) = &own.limbo {
            for entry in lower.list(limbo).map_err(failed())? {
                walk.in_limbo(limbo, entry.name)?;
            }
        }
        if let Some(stage) = &own.stage {
            for entry in lower.list(stage).map_err(failed())? {
                walk.in_stage(stage, entry.name)?;
            }
        }
        Ok(walk.tree)
    }

    pub(super) const fn root(&self) -> u64 {
        self.root
    }

    /// Names in the tree; also those in directories that lie in `limbo/`.
    pub(super) fn places(&self, inode: u64) -> &[Place] {
        self.places.get(&inode).map_or(&[], Vec::as_slice)
    }

    /// Whether the object has this name.
    pub(super) fn is_at(&self, inode: u64, parent: u64, name: &[u8]) -> bool {
        let mut places = self.places(inode).iter();
        places.any(|(at, there)| (*at, there.as_slice()) == (parent, name))
    }

    /// The kind of an object that the walk has kept.
    pub(super) fn kind(&self, inode: u64) -> Option<FileKind> {
        self.kinds.get(&inode).copied()
    }

    /// Whether nothing waits in `limbo/` or `stage/`.
    pub(super) fn is_at_rest(&self) -> bool {
        self.limbo.is_empty() && self.stage.is_empty()
    }

    /// Directories in `stage/` that are not empty: names and inodes.
    pub(super) fn filled(&self) -> &[(Vec<u8>, u64)] {
        &self.filled
    }

    /// A directory in `stage/` will be moved to `limbo/`.
    pub(super) fn mark_in_limbo(&mut self, inode: u64) {
        self.limbo.insert(inode, inode.to_string().into_bytes());
    }

    pub(super) fn is_in_limbo(&self, inode: u64) -> bool {
        self.limbo.contains_key(&inode)
    }

    /// What lies in `limbo/`: inodes and names.
    pub(super) fn limbo(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.limbo
            .iter()
            .map(|(inode, name)| (*inode, name.as_slice()))
    }

    /// The inode of an object that waits in `stage/`.
    pub(super) fn staged(&self, id: ObjectId) -> Option<u64> {
        self.stage.get(id.0.to_string().as_bytes()).copied()
    }

    /// What lies in `stage/`.
    pub(super) fn stage(&self) -> impl Iterator<Item = &[u8]> {
        self.stage.keys().map(Vec::as_slice)
    }

    /// The names from the root down to an object; none if it is not in the tree.
    pub(super) fn path(&self, inode: u64) -> Option<Vec<&[u8]>> {
        let mut path = Vec::new();
        let mut at = inode;
        while at != self.root {
            let (parent, name) = self.places(at).first()?;
            path.push(name.as_slice());
            at = *parent;
            // Hard links of directories do not exist, so the way up has no loop.
            if path.len() > self.places.len() {
                return None;
            }
        }
        path.reverse();
        Some(path)
    }

    /// Opens a directory of the tree.
    pub(super) fn open<L: Lower>(
        &self,
        lower: &L,
        inode: u64,
    ) -> Result<Option<L::Handle>, StoreError> {
        let failed = || StoreError::lower("opening a directory of the store");
        let mut handle = lower.root().map_err(failed())?;
        let Some(path) = self.path(inode) else {
            return Ok(None);
        };
        for name in path {
            match found(lower.open(&handle, name, true)).map_err(failed())? {
                Some(below) => handle = below,
                None => return Ok(None),
            }
        }
        Ok(Some(handle))
    }

    /// Opens an object that has a name in the tree.
    pub(super) fn open_object<L: Lower>(
        &self,
        lower: &L,
        inode: u64,
    ) -> Result<Option<L::Handle>, StoreError> {
        self.open_below(lower, None, inode)
    }

    /// Opens an object that has a name in the tree, or is in `limbo/` or in a directory there.
    pub(super) fn open_below<L: Lower>(
        &self,
        lower: &L,
        limbo: Option<&L::Handle>,
        inode: u64,
    ) -> Result<Option<L::Handle>, StoreError> {
        let failed = || StoreError::lower("opening a file of the store");
        let (mut at, mut way) = (inode, Vec::new());
        while at != self.root
            && let Some((parent, name)) = self.places(at).first()
        {
            way.push(name);
            at = *parent;
            // As in `path`.
            if way.len() > self.places.len() {
                return Ok(None);
            }
        }
        let mut handle = if at == self.root {
            lower.root().map_err(failed())?
        } else if let (Some(limbo), Some(name)) = (limbo, self.limbo.get(&at))
            && let Some(handle) = found(lower.open(limbo, name, false)).map_err(failed())?
        {
            handle
        } else {
            return Ok(None);
        };
        for name in way.into_iter().rev() {
            match found(lower.open(&handle, name, false)).map_err(failed())? {
                Some(below) => handle = below,
                None => return Ok(None),
            }
        }
        Ok(Some(handle))
    }

    /// What is at a place of the tree.
    pub(super) fn stat_at<L: Lower>(
        &self,
        lower: &L,
        parent: u64,
        name: &[u8],
    ) -> Result<Option<LowerStat>, StoreError> {
        let Some(directory) = self.open(lower, parent)? else {
            return Ok(None);
        };
        found(lower.stat_at(&directory, name))
            .map_err(StoreError::lower("looking at a file of the store"))
    }

    /// From now on the object is known.
    pub(super) fn record(&mut self, stat: &LowerStat, parent: u64, name: &[u8]) {
        self.kinds.insert(stat.inode, stat.kind);
        if !self.is_at(stat.inode, parent, name) {
            let places = self.places.entry(stat.inode).or_default();
            places.push((parent, name.to_vec()));
        }
    }
}

struct Walk<'a, L: Lower> {
    lower: &'a L,
    device: u64,
    wanted: &'a HashSet<u64>,
    tree: Tree,
}

impl<L: Lower> Walk<'_, L> {
    /// Everything below a directory. A directory stays open until the last one in it is opened.
    fn below(&mut self, handle: Arc<L::Handle>, inode: u64) -> Result<(), StoreError> {
        let failed = || StoreError::lower("looking through the store");
        let mut waiting = self.entries(&handle, inode)?;
        while let Some((parent, name, inode)) = waiting.pop() {
            let opened = found(self.lower.open(&parent, &name, false)).map_err(failed())?;
            let Some(handle) = opened else { continue };
            let stat = self.lower.stat(&handle).map_err(failed())?;
            if stat.device == self.device && stat.inode == inode {
                waiting.extend(self.entries(&Arc::new(handle), inode)?);
            }
        }
        Ok(())
    }

    /// Keeps what is wanted in a directory; returns the directories in it.
    #[expect(
        clippy::type_complexity,
        reason = "a directory's handle, and a name and inode in it"
    )]
    fn entries(
        &mut self,
        handle: &Arc<L::Handle>,
        parent: u64,
    ) -> Result<Vec<(Arc<L::Handle>, Vec<u8>, u64)>, StoreError> {
        let failed = || StoreError::lower("looking through the store");
        let mut directories = Vec::new();
        for entry in self.lower.list(handle).map_err(failed())? {
            let is_root = parent == self.tree.root;
            if is_root && (entry.name == OWN_DIRECTORY || !self.lower.is_in_scope(&entry.name)) {
                continue;
            }
            let kind = match entry.kind {
                Some(kind) => kind,
                None => {
                    let stat = found(self.lower.stat_at(handle, &entry.name)).map_err(failed())?;
                    let Some(stat) = stat else { continue };
                    stat.kind
                }
            };
            let is_directory = kind == FileKind::Directory;
            if is_directory || self.wanted.contains(&entry.inode) {
                self.tree.kinds.insert(entry.inode, kind);
                let places = self.tree.places.entry(entry.inode).or_default();
                places.push((parent, entry.name.clone()));
            }
            if is_directory {
                directories.push((Arc::clone(handle), entry.name, entry.inode));
            }
        }
        Ok(directories)
    }

    fn in_stage(&mut self, stage: &L::Handle, name: Vec<u8>) -> Result<(), StoreError> {
        let failed = || StoreError::lower("looking through stage");
        let stat = found(self.lower.stat_at(stage, &name)).map_err(failed())?;
        let Some(stat) = stat else { return Ok(()) };
        self.tree.kinds.insert(stat.inode, stat.kind);
        if stat.kind == FileKind::Directory
            && let Some(handle) = found(self.lower.open(stage, &name, false)).map_err(failed())?
            && !self.lower.list(&handle).map_err(failed())?.is_empty()
        {
            self.below(Arc::new(handle), stat.inode)?;
            self.tree.filled.push((name.clone(), stat.inode));
        }
        self.tree.stage.insert(name, stat.inode);
        Ok(())
    }

    fn in_limbo(&mut self, limbo: &L::Handle, name: Vec<u8>) -> Result<(), StoreError> {
        let failed = || StoreError::lower("looking through .mobifs/limbo");
        let stat = found(self.lower.stat_at(limbo, &name)).map_err(failed())?;
        let Some(stat) = stat else { return Ok(()) };
        self.tree.kinds.insert(stat.inode, stat.kind);
        if stat.kind == FileKind::Directory
            && let Some(handle) = found(self.lower.open(limbo, &name, false)).map_err(failed())?
        {
            self.below(Arc::new(handle), stat.inode)?;
        }
        self.tree.limbo.insert(stat.inode, name);
        Ok(())
    }
}
