//! What a filesystem refuses permanently, which a store cannot know in advance.

use std::io;

use mobifs_base::FileKind;
use mobifs_store::lower::Create;
use rustix::io::Errno;

use super::effect::InodeKey;
use super::state::ROOT;
use super::{CrashLower, Filesystem};

/// Limits that no store can know before it meets them. They hold for the tree around the store's
/// own directory; symlinks are refused where they are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Entries of one directory.
    pub names_max: Option<usize>,
    /// Bytes of a file.
    pub file_bytes_max: Option<u64>,
    /// Bytes of a symlink's target.
    pub symlink_bytes_max: Option<usize>,
    /// Nothing can be written beside the journal: overflow files are refused.
    pub takes_no_overflow: bool,
    /// Inodes of the whole filesystem: objects that are made beside the journal release theirs.
    pub inodes_max: Option<usize>,
    /// There is no room to rename an object to the store's own directory (btrfs without room for
    /// metadata refuses renames, but deletes and creates files).
    pub takes_no_detached: bool,
    /// Calls that always fail for some objects.
    pub calls: Option<RefusedCalls>,
}

/// Objects to which some kinds of calls always fail, with any error that is not the device's: a
/// directory that cannot be moved (overlayfs), a device number that does not fit (XFS), an
/// immutable file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedCalls {
    /// How many of a thousand pairs of an object and a kind of call are refused.
    pub permille: u64,
    /// Which these are, and with which error.
    pub seed: u64,
}

/// What a call does to an object of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Create = 1,
    Detach,
    Attach,
    Link,
    Unlink,
    Attributes,
    Xattr,
    Size,
    Write,
    Zero,
}

/// Errors by which filesystems refuse single objects.
pub(super) const ERRNOS: [Errno; 10] = [
    Errno::XDEV,
    Errno::INVAL,
    Errno::PERM,
    Errno::ACCESS,
    Errno::MLINK,
    Errno::OPNOTSUPP,
    Errno::BUSY,
    Errno::TXTBSY,
    Errno::RANGE,
    Errno::NOKEY,
];

impl Refusals {
    /// Whether a call may be refused with this.
    pub(super) fn answer_with(&self, errno: i32) -> bool {
        const LIMITS: [Errno; 3] = [Errno::NOSPC, Errno::FBIG, Errno::NAMETOOLONG];
        let is_one_of = |all: &[Errno]| all.iter().any(|one| one.raw_os_error() == errno);
        (*self != Self::default() && is_one_of(&LIMITS))
            || (self.calls.is_some() && is_one_of(&ERRNOS))
    }
}

impl RefusedCalls {
    /// Always the same for a kind of call and an object.
    fn check(self, action: Action, object: u64) -> io::Result<()> {
        let mut mixed = self.seed ^ (action as u64) << 56 ^ object;
        for _ in 0..2 {
            mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        if (mixed >> 40) % 1000 >= self.permille {
            return Ok(());
        }
        let errno = ERRNOS.get((mixed >> 8) as usize % ERRNOS.len());
        errno.map_or(Ok(()), |errno| Err((*errno).into()))
    }
}

impl Filesystem {
    /// Checks that the store may have an overflow file of this name.
    pub(super) fn check_overflow(&self, directory: InodeKey, name: &[u8]) -> io::Result<()> {
        if self.refusals.takes_no_overflow && name.starts_with(b"t") && self.is_own(directory) {
            return Err(Errno::NOSPC.into());
        }
        Ok(())
    }

    /// Whether this kind of call is refused to an object, which is not one of the store's own files.
    pub(super) fn check_call(&self, action: Action, object: InodeKey) -> io::Result<()> {
        let Some(calls) = self.refusals.calls else {
            return Ok(());
        };
        let Some(inode) = self.live.inodes.get(&object) else {
            return Ok(());
        };
        if object == ROOT || self.is_own(object) || self.is_overflow(object) {
            return Ok(());
        }
        calls.check(action, inode.number)
    }

    /// Checks a rename; within its own directory the store can move everything.
    pub(super) fn check_rename(
        &self,
        object: InodeKey,
        from: InodeKey,
        to: InodeKey,
    ) -> io::Result<()> {
        match (self.is_own(from), self.is_own(to)) {
            (true, true) => Ok(()),
            (_, true) if self.refusals.takes_no_detached => Err(Errno::NOSPC.into()),
            (_, true) => self.check_call(Action::Detach, object),
            (_, false) => self.check_call(Action::Attach, object),
        }
    }

    /// Checks making an object in `stage/`. Regular files can always be made.
    pub(super) fn check_create(&self, name: &[u8], what: &Create<'_>) -> io::Result<()> {
        let object = std::str::from_utf8(name)
            .ok()
            .and_then(|name| name.parse().ok());
        match (self.refusals.calls, object) {
            (Some(calls), Some(object)) if !matches!(what, Create::Regular) => {
                calls.check(Action::Create, object)
            }
            _ => Ok(()),
        }
    }

    fn is_overflow(&self, key: InodeKey) -> bool {
        let entries = |key| {
            let inode = self.live.inodes.get(&key);
            inode.filter(|inode| inode.kind == FileKind::Directory)
        };
        let below = |at: InodeKey, name: &[u8]| entries(at)?.entries.get(name).copied();
        let stage = below(ROOT, b".mobifs").and_then(|own| below(own, b"stage"));
        let mut staged = stage
            .and_then(entries)
            .into_iter()
            .flat_map(|stage| stage.entries.iter());
        staged.any(|(name, &at)| at == key && name.starts_with(b"t"))
    }
}

impl CrashLower {
    /// What is refused from now on, although `capabilities` and `space` do not report it.
    pub fn set_refusals(&self, refusals: Refusals) {
        self.0.filesystem.lock().refusals = refusals;
    }

    /// Inodes that have a name, and that a limit counts.
    pub fn inodes(&self) -> usize {
        let filesystem = self.0.filesystem.lock();
        let inodes = filesystem.live.inodes.values();
        inodes.filter(|inode| inode.links > 0).count()
    }

    /// Whether there is something that is refused.
    pub fn has_refusals(&self) -> bool {
        self.0.filesystem.lock().refusals != Refusals::default()
    }
}
