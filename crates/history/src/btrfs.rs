//! Subvolumes of btrfs: what the kernel does with them by ioctls.
#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fstat, fstatfs, open, openat, syncfs};
use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl::{self, Opcode, opcode};

/// What `statfs` calls btrfs.
const MAGIC: u64 = 0x9123_683e;
/// The inode number of the directory that a subvolume begins with.
const ROOT_INODE: u64 = 256;
/// The inode number of the directory that a snapshot has in the place of a nested subvolume.
pub(crate) const EMPTY_SUBVOLUME_INODE: u64 = 2;
const GROUP: u8 = 0x94;
/// The largest name of a subvolume, in bytes.
const NAME_BYTES_MAX: usize = 255;
const READ_ONLY: u64 = 1 << 1;
/// The flag of a read-only subvolume, as the kernel reports it.
const IS_READ_ONLY: u64 = 1;

/// The tree that has an item for each subvolume.
const ROOT_TREE: u64 = 1;
/// Objects of a tree that are no files have larger numbers, as negative ones.
const LAST_INODE: u64 = u64::MAX - 256;
const INODE_ITEM: u32 = 1;
const ROOT_ITEM: u32 = 132;
/// The transaction that has last changed an inode, in its item.
const INODE_TRANSACTION_AT: usize = 8;

/// `struct btrfs_ioctl_vol_args`
#[repr(C)]
struct Name {
    fd: i64,
    name: [u8; 4088],
}

/// `struct btrfs_ioctl_vol_args_v2`
#[repr(C)]
struct Source {
    fd: i64,
    transaction: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; 4040],
}

/// `struct btrfs_ioctl_get_subvol_info_args`
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    id: u64,
    name: [u8; 256],
    parent_id: u64,
    directory: u64,
    generation: u64,
    flags: u64,
    uuids: [[u8; 16]; 3],
    changed: u64,
    originated: u64,
    rest: [u64; 18],
}

/// `struct btrfs_ioctl_search_args`
#[repr(C)]
struct Search {
    tree: u64,
    object_min: u64,
    object_max: u64,
    offset_min: u64,
    offset_max: u64,
    transaction_min: u64,
    transaction_max: u64,
    kind_min: u32,
    kind_max: u32,
    count: u32,
    unused: u32,
    unused_more: [u64; 4],
    found: [u8; 4096 - 104],
}

/// `struct btrfs_ioctl_get_subvol_rootref_args`
#[repr(C)]
struct Nested {
    id_min: u64,
    found: [[u64; 2]; 255],
    count: u8,
    align: [u8; 7],
}

/// `struct btrfs_ioctl_ino_lookup_user_args`
#[repr(C)]
struct Lookup {
    directory: u64,
    id: u64,
    name: [u8; 256],
    path: [u8; 3824],
}

const CREATE: Opcode = opcode::write::<Name>(GROUP, 14);
const DESTROY: Opcode = opcode::write::<Name>(GROUP, 15);
const SNAPSHOT: Opcode = opcode::write::<Source>(GROUP, 23);
const SEARCH: Opcode = opcode::read_write::<Search>(GROUP, 17);
const START_SYNC: Opcode = opcode::read::<u64>(GROUP, 24);
const WAIT_SYNC: Opcode = opcode::write::<u64>(GROUP, 22);
const SYNC: Opcode = opcode::none(GROUP, 8);
const INFO: Opcode = opcode::read::<Info>(GROUP, 60);
const NESTED: Opcode = opcode::read_write::<Nested>(GROUP, 61);
const LOOKUP: Opcode = opcode::read_write::<Lookup>(GROUP, 62);

const _: () = assert!(
    size_of::<Name>() == 4096
        && size_of::<Source>() == 4096
        && size_of::<Search>() == 4096
        && size_of::<Nested>() == 4096
        && size_of::<Lookup>() == 4096
        && size_of::<Info>() == 504
);

/// The first directory of a subvolume.
#[derive(Debug)]
pub struct Subvolume {
    root: OwnedFd,
}

/// What the kernel knows of a subvolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) id: u64,
    /// The transaction that has last changed it.
    pub(crate) generation: u64,
    /// The transaction in which it was made.
    pub(crate) made_in: u64,
    pub(crate) is_read_only: bool,
    pub(crate) uuid: [u8; 16],
    /// The one that it is a snapshot of; zeros: it is none.
    pub(crate) snapshot_of: [u8; 16],
}

impl Subvolume {
    /// The one that begins with this directory.
    ///
    /// # Errors
    /// It cannot be opened, or is no such directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::of(open(path, flags, Mode::empty())?)
    }

    /// The one that begins with this directory in another one; a symbolic link is none.
    pub(crate) fn open_at(directory: impl AsFd, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Self::of(openat(directory, name, flags, Mode::empty())?)
    }

    fn of(root: OwnedFd) -> io::Result<Self> {
        let refused = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        if fstatfs(&root)?.f_type as u64 != MAGIC {
            return refused("it is not on btrfs, and only btrfs has snapshots");
        }
        if fstat(&root)?.st_ino != ROOT_INODE {
            return refused("it is not the first directory of a subvolume of btrfs");
        }
        Ok(Self { root })
    }

    /// Makes an empty subvolume in this directory.
    pub(crate) fn create(directory: impl AsFd, name: &OsStr) -> io::Result<()> {
        change(directory.as_fd(), name, |fd, name| {
            // SAFETY: the kernel reads a structure of this size.
            unsafe { ioctl::ioctl(fd, ioctl::Setter::<CREATE, Name>::new(name)) }
        })
    }

    /// Takes it out of this directory; what it has is given back later.
    pub(crate) fn destroy(directory: impl AsFd, name: &OsStr) -> io::Result<()> {
        change(directory.as_fd(), name, |fd, name| {
            // SAFETY: the kernel reads a structure of this size.
            unsafe { ioctl::ioctl(fd, ioctl::Setter::<DESTROY, Name>::new(name)) }
        })
    }

    /// Makes a read-only snapshot of this one in another directory. The transaction that has it is
    /// committed when this returns.
    pub(crate) fn snapshot(&self, directory: impl AsFd, name: &OsStr) -> io::Result<()> {
        let source = Source {
            fd: self.root.as_raw_fd().into(),
            transaction: 0,
            flags: READ_ONLY,
            unused: [0; 4],
            name: terminated(name)?,
        };
        // SAFETY: the kernel reads a structure of this size, and the descriptor in it is open.
        unsafe { ioctl::ioctl(directory, ioctl::Setter::<SNAPSHOT, Source>::new(source)) }?;
        Ok(())
    }

    /// Writes all content that is in memory, commits, and returns the last transaction that is
    /// committed then.
    pub(crate) fn commit(&self) -> io::Result<u64> {
        syncfs(&self.root)?;
        // SAFETY: the kernel writes a number.
        let last = unsafe { ioctl::ioctl(&self.root, ioctl::Getter::<START_SYNC, u64>::new()) }?;
        retry_on_intr(|| {
            // SAFETY: the kernel reads a number.
            unsafe { ioctl::ioctl(&self.root, ioctl::Setter::<WAIT_SYNC, u64>::new(last)) }
        })?;
        Ok(last)
    }

    /// Commits, and has the kernel begin to free what removed subvolumes had.
    pub(crate) fn free_removed(&self) -> io::Result<()> {
        // SAFETY: there is no argument.
        unsafe { ioctl::ioctl(&self.root, ioctl::NoArg::<SYNC>::new()) }?;
        Ok(())
    }

    pub(crate) fn about(&self) -> io::Result<About> {
        // SAFETY: the kernel writes a structure of this size, and any bytes are one.
        let info = unsafe { ioctl::ioctl(&self.root, ioctl::Getter::<INFO, Info>::new()) }?;
        let [uuid, snapshot_of, _received] = info.uuids;
        Ok(About {
            id: info.id,
            generation: info.generation,
            made_in: info.originated,
            is_read_only: info.flags & IS_READ_ONLY != 0,
            uuid,
            snapshot_of,
        })
    }

    /// Whether anything in it was changed by a later transaction than this one.
    ///
    /// A change of a file or directory, of whatever kind and by whatever means, writes the number of
    /// its transaction into the item of the inode. Blocks of the tree that are not younger are
    /// passed over, so this reads little.
    pub(crate) fn has_changed_since(&self, transaction: u64) -> io::Result<bool> {
        let mut search = Search::new(0, (0, LAST_INODE), INODE_ITEM);
        search.transaction_min = transaction.saturating_add(1);
        loop {
            let items = search.next(&self.root)?;
            let Some(last) = items.last() else {
                return Ok(false);
            };
            let is_later = |item: &Item| {
                let number = item
                    .content
                    .get(INODE_TRANSACTION_AT..INODE_TRANSACTION_AT + 8);
                let number = number.and_then(|bytes| bytes.try_into().ok());
                // An item that cannot be understood may have changed.
                number.is_none_or(|bytes| u64::from_le_bytes(bytes) > transaction)
            };
            if items
                .iter()
                .any(|item| item.kind == INODE_ITEM && is_later(item))
            {
                return Ok(true);
            }
            search.object_min = last.object.saturating_add(1);
            if search.object_min > search.object_max {
                return Ok(false);
            }
        }
    }

    /// Whether the subvolume of this number is gone with all that it had.
    pub(crate) fn is_freed(&self, id: u64) -> io::Result<bool> {
        let mut search = Search::new(ROOT_TREE, (id, id), ROOT_ITEM);
        let items = search.next(&self.root)?;
        Ok(!items
            .iter()
            .any(|item| item.kind == ROOT_ITEM && item.object == id))
    }

    /// The subvolumes within this one, by their paths.
    ///
    /// # Errors
    /// The kernel does not tell (before Linux 4.18).
    pub fn nested(&self) -> io::Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        let mut nested = Nested {
            id_min: 0,
            found: [[0; 2]; 255],
            count: 0,
            align: [0; 7],
        };
        loop {
            // SAFETY: the kernel reads and writes a structure of this size, which any bytes are.
            let done = unsafe {
                let updater = ioctl::Updater::<NESTED, Nested>::new(&mut nested);
                ioctl::ioctl(&self.root, updater)
            };
            // More than fit: the next call goes on after the last one.
            let is_whole = match done {
                Ok(()) => true,
                Err(Errno::OVERFLOW) => false,
                Err(errno) => return Err(errno.into()),
            };
            let count = usize::from(nested.count);
            for &[id, directory] in nested.found.iter().take(count) {
                paths.push(self.path_of(id, directory)?);
                nested.id_min = id.saturating_add(1);
            }
            if is_whole || count == 0 {
                return Ok(paths);
            }
        }
    }

    /// The path of a subvolume in a directory of this one.
    fn path_of(&self, id: u64, directory: u64) -> io::Result<PathBuf> {
        let mut lookup = Lookup {
            directory,
            id,
            name: [0; 256],
            path: [0; 3824],
        };
        // SAFETY: the kernel reads and writes a structure of this size, which any bytes are.
        unsafe {
            let updater = ioctl::Updater::<LOOKUP, Lookup>::new(&mut lookup);
            ioctl::ioctl(&self.root, updater)
        }?;
        let text = |bytes: &[u8]| {
            let end = bytes.iter().position(|&byte| byte == 0);
            OsString::from_vec(
                bytes
                    .get(..end.unwrap_or(bytes.len()))
                    .unwrap_or_default()
                    .to_vec(),
            )
        };
        Ok(Path::new(&text(&lookup.path)).join(text(&lookup.name)))
    }
}

impl AsFd for Subvolume {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

fn change(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    call: impl FnOnce(BorrowedFd<'_>, Name) -> rustix::io::Result<()>,
) -> io::Result<()> {
    let name = Name {
        fd: 0,
        name: terminated(name)?,
    };
    Ok(call(directory, name)?)
}

fn terminated<const N: usize>(name: &OsStr) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let name = name.as_bytes();
    let place = bytes.get_mut(..name.len());
    match place {
        Some(place) if name.len() <= NAME_BYTES_MAX && !name.contains(&0) => {
            place.copy_from_slice(name);
            Ok(bytes)
        }
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// What a search has found.
#[derive(Debug)]
struct Item {
    object: u64,
    kind: u32,
    content: Vec<u8>,
}

impl Search {
    const ITEMS: usize = 104;
    const HEADER_BYTES: usize = 32;

    fn new(tree: u64, (object_min, object_max): (u64, u64), kind: u32) -> Self {
        Self {
            tree,
            object_min,
            object_max,
            offset_min: 0,
            offset_max: u64::MAX,
            transaction_min: 0,
            transaction_max: u64::MAX,
            kind_min: kind,
            kind_max: kind,
            count: 0,
            unused: 0,
            unused_more: [0; 4],
            found: [0; 4096 - Self::ITEMS],
        }
    }

    /// Some of what is searched for; nothing is left after an empty answer.
    fn next(&mut self, tree: impl AsFd) -> io::Result<Vec<Item>> {
        self.count = u32::MAX;
        // SAFETY: the kernel reads and writes a structure of this size, which any bytes are.
        unsafe {
            let updater = ioctl::Updater::<SEARCH, Self>::new(self);
            ioctl::ioctl(tree, updater)
        }?;
        Ok(items(&self.found, self.count as usize))
    }
}

/// The items that a search has written. In each the transaction of its block, then object, offset,
/// kind and length.
fn items(mut bytes: &[u8], count: usize) -> Vec<Item> {
    let mut items = Vec::new();
    for _ in 0..count {
        let number = |at: usize| {
            let bytes = bytes.get(at..at + 8)?;
            Some(u64::from_ne_bytes(bytes.try_into().ok()?))
        };
        let small = |at: usize| {
            let bytes = bytes.get(at..at + 4)?;
            Some(u32::from_ne_bytes(bytes.try_into().ok()?))
        };
        let (Some(object), Some(kind), Some(length)) = (number(8), small(24), small(28)) else {
            break;
        };
        let end = Search::HEADER_BYTES.saturating_add(length as usize);
        let Some(content) = bytes.get(Search::HEADER_BYTES..end) else {
            break;
        };
        items.push(Item {
            object,
            kind,
            content: content.to_vec(),
        });
        bytes = bytes.get(end..).unwrap_or_default();
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_read_as_the_kernel_writes_them() {
        let mut bytes = Vec::new();
        for (object, content) in [(256u64, &b"abc"[..]), (257, b"")] {
            bytes.extend(7u64.to_ne_bytes());
            bytes.extend(object.to_ne_bytes());
            bytes.extend(0u64.to_ne_bytes());
            bytes.extend(INODE_ITEM.to_ne_bytes());
            bytes.extend((content.len() as u32).to_ne_bytes());
            bytes.extend(content);
        }
        let found = items(&bytes, 2);
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].object, found[0].content.as_slice()),
            (256, &b"abc"[..])
        );
        assert_eq!((found[1].object, found[1].content.len()), (257, 0));
        assert_eq!(items(&bytes[..bytes.len() - 1], 2).len(), 1, "a torn item");
        assert!(items(&[], 3).is_empty());
    }

    #[test]
    fn a_name_that_does_not_fit_is_refused() {
        assert!(terminated::<4088>(OsStr::new("a")).is_ok());
        assert!(terminated::<4088>(OsStr::new("a\0b")).is_err());
        assert!(terminated::<4088>(OsStr::new(&"a".repeat(256))).is_err());
    }

    #[test]
    fn what_is_no_subvolume_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Subvolume::open(directory.path()).is_err());
        assert!(Subvolume::open(&directory.path().join("none")).is_err());
    }
}
