//! What the model's filesystem holds: inodes, shared between snapshots.

use std::collections::BTreeMap;
use std::sync::Arc;

use mobifs_base::{DeviceNumber, FileKind, S_ISGID};
use rustix::io::Errno;

use super::Content;
use crate::operations::NodeKind;
use crate::tree::{Mtime, Tree, TreeNode};

/// Longest name of a directory entry, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Parent path and last name of a path below the root.
///
/// # Errors
/// `EINVAL` for the root itself.
pub fn split(path: &str) -> Result<(&str, &str), Errno> {
    match path.rsplit_once('/') {
        Some(parts) => Ok(parts),
        None if path.is_empty() => Err(Errno::INVAL),
        None => Ok(("", path)),
    }
}

/// Number of an inode of the model; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeNumber(pub u64);

impl InodeNumber {
    /// The root directory.
    pub const ROOT: Self = Self(1);
}

/// What an inode is and holds.
#[derive(Clone, Debug)]
pub enum Body {
    /// Regular file.
    Regular(Content),
    /// Directory: name to inode.
    Directory(BTreeMap<String, InodeNumber>),
    /// Symlink and its target.
    Symlink(String),
    /// Anything else.
    Special(NodeKind),
}

/// One inode.
#[derive(Clone, Debug)]
pub struct Inode {
    /// What it is and holds.
    pub body: Body,
    /// Permission, set-id and sticky bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of content.
    pub mtime: Mtime,
    /// Extended attributes.
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// Made without a name and never given one: may be linked though it has none.
    pub never_named: bool,
}

impl Inode {
    /// Kind of the object.
    pub const fn kind(&self) -> FileKind {
        match &self.body {
            Body::Regular(_) => FileKind::Regular,
            Body::Directory(_) => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
            Body::Special(NodeKind::Fifo) => FileKind::Fifo,
            Body::Special(NodeKind::Socket) => FileKind::Socket,
            Body::Special(NodeKind::CharDevice(..)) => FileKind::CharDevice,
            Body::Special(NodeKind::BlockDevice(..)) => FileKind::BlockDevice,
        }
    }

    const fn rdev(&self) -> DeviceNumber {
        match self.body {
            Body::Special(
                NodeKind::CharDevice(major, minor) | NodeKind::BlockDevice(major, minor),
            ) => DeviceNumber::new(major, minor),
            _ => DeviceNumber(0),
        }
    }
}

/// Everything that a filesystem holds at one moment. Cloning shares the inodes.
#[derive(Clone, Debug)]
pub struct State {
    inodes: BTreeMap<InodeNumber, Arc<Inode>>,
    next: u64,
}

impl Default for State {
    /// An empty root directory, owned by root, mode 0755.
    fn default() -> Self {
        let root = Inode {
            body: Body::Directory(BTreeMap::new()),
            mode: 0o755,
            uid: 0,
            gid: 0,
            mtime: Mtime::Any,
            xattrs: BTreeMap::new(),
            never_named: false,
        };
        Self {
            inodes: BTreeMap::from([(InodeNumber::ROOT, Arc::new(root))]),
            next: 2,
        }
    }
}

impl State {
    /// The state whose tree is `tree`, for instance one that was read back after a
    /// power cut.
    pub fn from_tree(tree: &Tree) -> Self {
        let mut state = Self::default();
        let mut numbers: BTreeMap<u64, InodeNumber> = BTreeMap::new();
        // A directory sorts before what is below it.
        for (path, node) in &tree.0 {
            let number = if path.is_empty() {
                InodeNumber::ROOT
            } else {
                *numbers
                    .entry(node.identity)
                    .or_insert_with(|| state.take_number())
            };
            if let Ok((parent, name)) = split(path)
                && let Ok(parent) = state.walk(parent)
            {
                let mtime = state.inode(parent).mtime;
                state.entries_mut(parent).insert(name.to_owned(), number);
                state.inode_mut(parent).mtime = mtime;
            }
            let inode = Inode {
                body: match node.kind {
                    FileKind::Regular => Body::Regular(node.content.clone()),
                    FileKind::Directory => Body::Directory(BTreeMap::new()),
                    FileKind::Symlink => Body::Symlink(node.target.clone()),
                    FileKind::Fifo => Body::Special(NodeKind::Fifo),
                    FileKind::Socket => Body::Special(NodeKind::Socket),
                    FileKind::CharDevice => {
                        Body::Special(NodeKind::CharDevice(node.rdev.major(), node.rdev.minor()))
                    }
                    FileKind::BlockDevice => {
                        Body::Special(NodeKind::BlockDevice(node.rdev.major(), node.rdev.minor()))
                    }
                },
                mode: node.mode,
                uid: node.uid,
                gid: node.gid,
                mtime: node.mtime,
                xattrs: node.xattrs.clone(),
                never_named: false,
            };
            state.inodes.insert(number, Arc::new(inode));
        }
        state
    }

    /// One inode.
    ///
    /// # Panics
    /// If there is none of that number; numbers come from this state.
    pub fn inode(&self, number: InodeNumber) -> &Inode {
        &self.inodes[&number]
    }

    /// Every path and its inode, the root (`""`) first.
    pub fn paths(&self) -> BTreeMap<String, (InodeNumber, Arc<Inode>)> {
        let mut found = BTreeMap::new();
        let mut waiting = vec![(String::new(), InodeNumber::ROOT)];
        while let Some((path, number)) = waiting.pop() {
            let inode = &self.inodes[&number];
            if let Body::Directory(entries) = &inode.body {
                let prefix = if path.is_empty() {
                    String::new()
                } else {
                    format!("{path}/")
                };
                waiting.extend(
                    entries
                        .iter()
                        .map(|(name, &to)| (format!("{prefix}{name}"), to)),
                );
            }
            found.insert(path, (number, Arc::clone(inode)));
        }
        found
    }

    /// The tree as a walk finds it.
    pub fn tree(&self) -> Tree {
        let paths = self.paths();
        let mut names: BTreeMap<InodeNumber, u32> = BTreeMap::new();
        for (number, _) in paths.values() {
            *names.entry(*number).or_default() += 1;
        }
        let node = |(number, inode): (InodeNumber, Arc<Inode>)| TreeNode {
            identity: number.0,
            kind: inode.kind(),
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            nlink: match &inode.body {
                Body::Directory(entries) => 2 + self.count_directories(entries),
                _ => names[&number],
            },
            mtime: inode.mtime,
            rdev: inode.rdev(),
            content: match &inode.body {
                Body::Regular(content) => content.clone(),
                _ => Content::default(),
            },
            target: match &inode.body {
                Body::Symlink(target) => target.clone(),
                _ => String::new(),
            },
            xattrs: inode.xattrs.clone(),
        };
        Tree(
            paths
                .into_iter()
                .map(|(path, found)| (path, node(found)))
                .collect(),
        )
    }

    fn count_directories(&self, entries: &BTreeMap<String, InodeNumber>) -> u32 {
        let directories = entries
            .values()
            .filter(|number| self.inode(**number).kind() == FileKind::Directory);
        directories.count() as u32
    }

    /// The object at `path`; symlinks are not followed, not even in the middle.
    pub(super) fn walk(&self, path: &str) -> Result<InodeNumber, Errno> {
        path.split('/')
            .filter(|name| !name.is_empty())
            .try_fold(InodeNumber::ROOT, |at, name| {
                self.entry(at, name)?.ok_or(Errno::NOENT)
            })
    }

    /// The directory that `path` lies in and the last name.
    pub(super) fn walk_parent<'p>(&self, path: &'p str) -> Result<(InodeNumber, &'p str), Errno> {
        let (parent, name) = split(path)?;
        let parent = self.walk(parent)?;
        self.entries(parent)?;
        Ok((parent, name))
    }

    /// What `name` names in a directory.
    pub(super) fn entry(
        &self,
        directory: InodeNumber,
        name: &str,
    ) -> Result<Option<InodeNumber>, Errno> {
        let entries = self.entries(directory)?;
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        Ok(entries.get(name).copied())
    }

    pub(super) fn entries(
        &self,
        directory: InodeNumber,
    ) -> Result<&BTreeMap<String, InodeNumber>, Errno> {
        match &self.inode(directory).body {
            Body::Directory(entries) => Ok(entries),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// The entries of a directory, to change them; its time of change is now.
    pub(super) fn entries_mut(
        &mut self,
        directory: InodeNumber,
    ) -> &mut BTreeMap<String, InodeNumber> {
        let inode = self.inode_mut(directory);
        inode.mtime = Mtime::Recent;
        match &mut inode.body {
            Body::Directory(entries) => entries,
            _ => unreachable!("callers checked that it is a directory"),
        }
    }

    /// An inode, to change it.
    pub(super) fn inode_mut(&mut self, number: InodeNumber) -> &mut Inode {
        #[expect(clippy::expect_used, reason = "numbers come from this state")]
        let inode = self.inodes.get_mut(&number).expect("the inode exists");
        Arc::make_mut(inode)
    }

    /// Adds an inode as it is made in a directory: a set-group-id directory passes
    /// on its group, and the bit to directories.
    pub(super) fn add(&mut self, directory: InodeNumber, mode: u16, body: Body) -> InodeNumber {
        let parent = self.inode(directory);
        let inherits = parent.mode & S_ISGID != 0;
        let gid = if inherits { parent.gid } else { 0 };
        let bit = if inherits && matches!(body, Body::Directory(_)) {
            S_ISGID
        } else {
            0
        };
        let number = self.take_number();
        let inode = Inode {
            body,
            mode: mode | bit,
            uid: 0,
            gid,
            mtime: Mtime::Recent,
            xattrs: BTreeMap::new(),
            never_named: false,
        };
        self.inodes.insert(number, Arc::new(inode));
        number
    }

    /// An inode gets or loses a name: it becomes another one in memory, so that snapshots that
    /// share it can detect the change.
    pub(super) fn relink(&mut self, number: InodeNumber) -> &mut Inode {
        self.inode_mut(number)
    }

    /// Forgets an inode that no directory names.
    pub(super) fn drop_without_links(&mut self, number: InodeNumber) {
        if self.link_count(number) == 0 {
            self.inodes.remove(&number);
        }
    }

    /// Number of directory entries that name an inode.
    pub(super) fn link_count(&self, number: InodeNumber) -> usize {
        self.inodes
            .values()
            .filter_map(|inode| match &inode.body {
                Body::Directory(entries) => Some(entries),
                _ => None,
            })
            .flat_map(BTreeMap::values)
            .filter(|&&named| named == number)
            .count()
    }

    fn take_number(&mut self) -> InodeNumber {
        self.next += 1;
        InodeNumber(self.next)
    }
}
