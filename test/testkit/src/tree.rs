//! A filesystem tree as a walk finds it, and how two are compared.

use std::collections::{BTreeMap, BTreeSet};

use mobifs_base::{DeviceNumber, FileKind, Timestamp};

use crate::model::Content;

/// What the model says about the time of the last change of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mtime {
    /// Exactly this (it was set, or it was read from a real tree).
    Exact(Timestamp),
    /// The time of an operation of this test: later than [`Mtime::LATEST_SET`].
    Recent,
    /// POSIX leaves open whether the operation changed it.
    Any,
}

impl Mtime {
    /// Every time that the generator sets is older than this and every clock is
    /// ahead of it (2020-09-13).
    pub const LATEST_SET: Timestamp = Timestamp::new(1_600_000_000, 0);

    fn allows(self, actual: Self) -> bool {
        match (self, actual) {
            (Self::Exact(expected), Self::Exact(actual)) => expected == actual,
            (Self::Recent, Self::Exact(actual)) => actual > Self::LATEST_SET,
            (Self::Any, _) | (_, Self::Any) | (Self::Recent, Self::Recent) => true,
            (Self::Exact(_), Self::Recent) => false,
        }
    }
}

/// One object of a [`Tree`].
#[derive(Clone, Debug)]
pub struct TreeNode {
    /// Equal for all names of one object; means nothing outside its tree.
    pub identity: u64,
    /// Kind.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of links.
    pub nlink: u32,
    /// Last change of content.
    pub mtime: Mtime,
    /// Device number of a device node; 0 for others.
    pub rdev: DeviceNumber,
    /// Content of a regular file; empty for others.
    pub content: Content,
    /// Target of a symlink; empty for others.
    pub target: String,
    /// Extended attributes of the `user.` namespace.
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

/// A tree: path below the root (`""` is the root itself) to object.
#[derive(Clone, Debug, Default)]
pub struct Tree(pub BTreeMap<String, TreeNode>);

/// What of two trees is compared.
#[derive(Clone, Copy, Debug)]
pub struct Compare {
    /// Link counts of directories (btrfs answers 1 for all).
    pub directory_nlink: bool,
    /// Mode, owner, times, link count and attributes of the root directory.
    pub root: bool,
    /// Times of the last change of content.
    pub mtime: bool,
}

impl Compare {
    /// Everything.
    pub const ALL: Self = Self {
        directory_nlink: true,
        root: true,
        mtime: true,
    };
}

impl Tree {
    /// The part of the tree whose paths `keep` accepts.
    #[must_use]
    pub fn part(&self, keep: impl Fn(&str, FileKind) -> bool) -> Self {
        let kept = self.0.iter().filter(|(path, node)| keep(path, node.kind));
        Self(
            kept.map(|(path, node)| (path.clone(), node.clone()))
                .collect(),
        )
    }

    /// First difference between what is expected (`self`) and what was found, in
    /// words; none if the trees are the same.
    pub fn difference(&self, actual: &Self, compare: Compare) -> Option<String> {
        let paths: BTreeSet<&String> = self.0.keys().chain(actual.0.keys()).collect();
        let (mut expected_first, mut actual_first) = (BTreeMap::new(), BTreeMap::new());
        for path in paths {
            let (expected, found) = match (self.0.get(path), actual.0.get(path)) {
                (Some(expected), Some(found)) => (expected, found),
                (Some(expected), None) => {
                    return Some(format!(
                        "/{path}: {:?} expected, nothing found",
                        expected.kind
                    ));
                }
                (None, Some(found)) => {
                    return Some(format!("/{path}: nothing expected, {:?} found", found.kind));
                }
                (None, None) => continue,
            };
            if path.is_empty() && !compare.root {
                continue;
            }
            if let Some(difference) = expected.difference(found, compare) {
                return Some(format!("/{path}: {difference}"));
            }
            // The same names share an object on both sides.
            let first = *expected_first.entry(expected.identity).or_insert(path);
            let found_first = *actual_first.entry(found.identity).or_insert(path);
            if first != found_first {
                return Some(format!(
                    "/{path}: expected to be the same object as /{first}, \
                     found to be the same as /{found_first}"
                ));
            }
        }
        None
    }
}

impl TreeNode {
    fn difference(&self, found: &Self, compare: Compare) -> Option<String> {
        fn differ<T: PartialEq + std::fmt::Debug>(what: &str, a: &T, b: &T) -> Option<String> {
            (a != b).then(|| format!("{what} {a:?} expected, {b:?} found"))
        }
        let is_directory = self.kind == FileKind::Directory;
        differ("kind", &self.kind, &found.kind)
            .or_else(|| {
                let octal = |mode: u16| format!("{mode:04o}");
                differ("mode", &octal(self.mode), &octal(found.mode))
            })
            .or_else(|| differ("uid", &self.uid, &found.uid))
            .or_else(|| differ("gid", &self.gid, &found.gid))
            .or_else(|| {
                let compared = !is_directory || compare.directory_nlink;
                differ("nlink", &self.nlink, &found.nlink).filter(|_| compared)
            })
            .or_else(|| differ("rdev", &self.rdev, &found.rdev))
            .or_else(|| differ("target", &self.target, &found.target))
            .or_else(|| differ("xattrs", &self.xattrs, &found.xattrs))
            .or_else(|| self.content.difference(&found.content))
            .or_else(|| {
                let allowed = !compare.mtime || self.mtime.allows(found.mtime);
                differ("mtime", &self.mtime, &found.mtime).filter(|_| !allowed)
            })
    }
}
