//! Open objects.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use mobifs_base::FileKind;
use rustix::fs::{self, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Resource, getrlimit};

use super::root::PosixLower;

/// Handles kept at most, however many the process may have.
const KEPT_MAX: u64 = 512;
/// Descriptors that are left for everything else that the process does.
const OTHERS: u64 = 128;
/// A handle may have two: one by which it was found, and one with full access.
const OF_HANDLE: u64 = 2;

/// How many handles the limit of open files allows to keep for later.
pub(super) fn kept_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let kept = limit.saturating_sub(OTHERS) / OF_HANDLE;
    // At most 512.
    usize::try_from(kept.min(KEPT_MAX)).unwrap_or(0)
}

/// What a descriptor allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Access {
    /// `O_PATH`: only a reference.
    Reference,
    /// Content (or entries) can be read.
    Read,
    /// Content can be read and written.
    ReadWrite,
}

/// How a handle refers to its object.
#[derive(Debug)]
enum Held {
    Descriptor(OwnedFd),
    /// A descriptor that others use, too.
    Shared(Arc<File>),
    /// No descriptor.
    Dormant(Dormant),
}

/// A directory that is opened whenever it is used: a program may have many stores of one file.
#[derive(Debug)]
struct Dormant {
    root: Arc<File>,
    /// Each a name in the one before, from the root on.
    names: Vec<Vec<u8>>,
    /// Device and inode: it is still the same directory.
    identity: (u64, u64),
}

impl Dormant {
    fn open(&self) -> io::Result<OwnedFd> {
        let mut directory = None;
        for name in &self.names {
            let parent = directory.as_ref().map_or(self.root.as_fd(), AsFd::as_fd);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let open = |flags| fs::openat(parent, &**name, flags, Mode::empty());
            directory = Some(without_atime(flags, open)?);
        }
        let directory = directory.ok_or(Errno::BADF)?;
        if identity(directory.as_fd())? != self.identity {
            return Err(io::Error::other(
                "a directory of the store was replaced by another one",
            ));
        }
        Ok(directory)
    }
}

fn identity(fd: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    let stat = fs::fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// A handle with a descriptor: for as long as this lives if the handle has none itself.
pub(super) enum Opened<'a> {
    Before(&'a PosixHandle),
    Now(Box<PosixHandle>),
}

impl Deref for Opened<'_> {
    type Target = PosixHandle;

    fn deref(&self) -> &PosixHandle {
        match self {
            Self::Before(handle) => handle,
            Self::Now(handle) => handle,
        }
    }
}

/// An open object of a [`PosixLower`].
#[derive(Debug)]
pub struct PosixHandle {
    held: Held,
    /// Kind of the object.
    pub(super) kind: FileKind,
    /// What the descriptor allows.
    access: Access,
    /// The file is open for direct I/O: reads through it must be aligned.
    pub(super) direct: bool,
    /// The directory is the store's root.
    pub(super) is_root: bool,
    /// A descriptor with full access, made when the first one proved too weak.
    full: OnceLock<OwnedFd>,
}

/// The path through which the kernel reaches the object behind `fd` itself, also
/// where that is a symlink or was opened with `O_PATH`.
pub(super) fn proc_path(fd: &impl AsRawFd) -> String {
    let mut path = String::with_capacity(24);
    // Writing to a String cannot fail.
    let _ = write!(path, "/proc/self/fd/{}", fd.as_raw_fd());
    path
}

/// Runs `call` with `O_NOATIME` and, where only the owner may use that, without: what
/// the daemon reads on its own account is not an access of the file.
fn without_atime<T>(flags: OFlags, call: impl Fn(OFlags) -> Result<T, Errno>) -> Result<T, Errno> {
    match retry_on_intr(|| call(flags | OFlags::NOATIME)) {
        Err(Errno::PERM) => retry_on_intr(|| call(flags)),
        other => other,
    }
}

/// Opens the directory behind `fd` anew, with an own position.
pub(super) fn reopen_directory(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    without_atime(flags, |flags| fs::openat(fd, ".", flags, Mode::empty()))
}

/// Opens the regular file behind `fd` (which may be `O_PATH`) with other access.
pub(super) fn reopen_file(fd: &impl AsRawFd, access: OFlags) -> Result<OwnedFd, Errno> {
    let path = proc_path(fd);
    let flags = access | OFlags::NOCTTY | OFlags::CLOEXEC;
    without_atime(flags, |flags| fs::open(path.as_str(), flags, Mode::empty()))
}

impl PosixHandle {
    pub(super) fn new(fd: OwnedFd, kind: FileKind, access: Access) -> Self {
        Self::over(Held::Descriptor(fd), kind, access)
    }

    fn over(held: Held, kind: FileKind, access: Access) -> Self {
        Self {
            held,
            kind,
            access,
            direct: false,
            is_root: false,
            full: OnceLock::new(),
        }
    }

    /// A handle on the root. Listing a directory opens it anew, so the position of
    /// `root` does not matter.
    pub(super) fn root(root: &Arc<File>) -> Self {
        let held = Held::Shared(Arc::clone(root));
        Self {
            is_root: true,
            ..Self::over(held, FileKind::Directory, Access::Read)
        }
    }

    /// A handle on a regular file that others have open for reading and writing.
    pub(super) fn shared(file: &Arc<File>) -> Self {
        let held = Held::Shared(Arc::clone(file));
        Self::over(held, FileKind::Regular, Access::ReadWrite)
    }

    /// A handle of the directory without a descriptor, where it can be found again in `root`: by
    /// `name` in `directory`, which is the root or dormant, too.
    pub(super) fn dormant(
        self,
        root: &Arc<File>,
        directory: &Self,
        name: &[u8],
    ) -> io::Result<Self> {
        let mut names = match &directory.held {
            Held::Dormant(above) => above.names.clone(),
            _ if directory.is_root => Vec::new(),
            _ => return Ok(self),
        };
        if (self.kind, self.access) != (FileKind::Directory, Access::Read) {
            return Ok(self);
        }
        names.push(name.to_vec());
        let dormant = Dormant {
            root: Arc::clone(root),
            names,
            identity: identity(self.fd())?,
        };
        Ok(Self::over(Held::Dormant(dormant), self.kind, self.access))
    }

    /// With a descriptor.
    pub(super) fn opened(&self) -> io::Result<Opened<'_>> {
        let Held::Dormant(dormant) = &self.held else {
            return Ok(Opened::Before(self));
        };
        let handle = Self::new(dormant.open()?, self.kind, self.access);
        Ok(Opened::Now(Box::new(handle)))
    }

    /// Whether it is the same object as that of `fd`.
    pub(super) fn is_same(&self, fd: impl AsFd) -> io::Result<bool> {
        Ok(identity(self.fd())? == identity(fd.as_fd())?)
    }

    /// Opens for use what `reference` (an `O_PATH` descriptor) refers to. Having the
    /// reference first means that the kind is known before anything is opened, so a
    /// named pipe cannot block and a device is never touched.
    pub(super) fn from_reference(
        reference: OwnedFd,
        kind: FileKind,
        write: bool,
    ) -> io::Result<Self> {
        let attempts: &[(OFlags, Access)] = match kind {
            FileKind::Directory => {
                return match reopen_directory(reference.as_fd()) {
                    Ok(fd) => Ok(Self::new(fd, kind, Access::Read)),
                    Err(Errno::ACCESS) => Ok(Self::new(reference, kind, Access::Reference)),
                    Err(other) => Err(other.into()),
                };
            }
            FileKind::Regular if write => &[
                (OFlags::RDWR, Access::ReadWrite),
                (OFlags::RDONLY, Access::Read),
            ],
            FileKind::Regular => &[(OFlags::RDONLY, Access::Read)],
            _ => &[],
        };
        for &(flags, access) in attempts {
            match reopen_file(&reference, flags) {
                Ok(fd) => return Ok(Self::new(fd, kind, access)),
                // Mode, immutable flag, read-only filesystem, running program: the caller may still
                // read, and gets the error when it writes.
                Err(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY) => {}
                Err(other) => return Err(other.into()),
            }
        }
        Ok(Self::new(reference, kind, Access::Reference))
    }

    /// The descriptor, for calls that a reference is enough for.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match &self.held {
            Held::Descriptor(fd) => fd.as_fd(),
            Held::Shared(file) => file.as_fd(),
            Held::Dormant(_) => unreachable!("a dormant handle is opened before it is used"),
        }
    }

    /// Whether [`PosixHandle::fd`] is only a reference.
    pub(super) fn is_reference(&self) -> bool {
        self.access == Access::Reference
    }

    /// `/proc` path of the object.
    pub(super) fn path(&self) -> String {
        proc_path(&self.fd())
    }
}

impl PosixLower {
    /// A descriptor of a regular file or directory that allows at least `needed`.
    pub(super) fn usable<'a>(
        &self,
        object: &'a PosixHandle,
        needed: Access,
    ) -> io::Result<BorrowedFd<'a>> {
        if object.access >= needed {
            return Ok(object.fd());
        }
        if let Some(full) = object.full.get() {
            return Ok(full.as_fd());
        }
        let opened = match object.kind {
            FileKind::Regular => self.with_access(&[object], || {
                match reopen_file(&object.fd(), OFlags::RDWR) {
                    Err(Errno::PERM | Errno::ROFS | Errno::TXTBSY) if needed == Access::Read => {
                        reopen_file(&object.fd(), OFlags::RDONLY)
                    }
                    other => other,
                }
            })?,
            FileKind::Directory => self.with_access(&[object], || reopen_directory(object.fd()))?,
            _ => return Err(Errno::BADF.into()),
        };
        Ok(object.full.get_or_init(|| opened).as_fd())
    }
}
