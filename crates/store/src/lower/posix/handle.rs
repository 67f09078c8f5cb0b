//! Open objects.

use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use mobifs_types::FileKind;
use rustix::fs::{self, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::PosixLower;

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

/// An open object of a [`PosixLower`].
#[derive(Debug)]
pub struct PosixHandle {
    fd: OwnedFd,
    /// Kind of the object.
    pub(super) kind: FileKind,
    /// What `fd` allows.
    access: Access,
    /// `fd` is open for direct I/O: reads through it must be aligned.
    pub(super) direct: bool,
    /// It is the store's root.
    pub(super) is_root: bool,
    /// A descriptor with full access, made when `fd` first proved too weak.
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
pub(super) fn reopen_file(fd: &OwnedFd, access: OFlags) -> Result<OwnedFd, Errno> {
    let path = proc_path(fd);
    let flags = access | OFlags::NOCTTY | OFlags::CLOEXEC;
    without_atime(flags, |flags| fs::open(path.as_str(), flags, Mode::empty()))
}

impl PosixHandle {
    pub(super) fn new(fd: OwnedFd, kind: FileKind, access: Access) -> Self {
        Self {
            fd,
            kind,
            access,
            direct: false,
            is_root: false,
            full: OnceLock::new(),
        }
    }

    /// A handle on the root, independent of `root`'s position.
    pub(super) fn root(root: &OwnedFd) -> io::Result<Self> {
        let directory = reopen_directory(root.as_fd())?;
        Ok(Self {
            is_root: true,
            ..Self::new(directory, FileKind::Directory, Access::Read)
        })
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
                // Mode, immutable flag, read-only filesystem, running program: the
                // caller may still look, and is told when it really writes.
                Err(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY) => {}
                Err(other) => return Err(other.into()),
            }
        }
        Ok(Self::new(reference, kind, Access::Reference))
    }

    /// The descriptor, for calls that a reference is enough for.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether [`PosixHandle::fd`] is only a reference.
    pub(super) fn is_reference(&self) -> bool {
        self.access == Access::Reference
    }

    /// `/proc` path of the object.
    pub(super) fn path(&self) -> String {
        proc_path(&self.fd)
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
            FileKind::Regular => {
                self.with_access(&[object], || match reopen_file(&object.fd, OFlags::RDWR) {
                    Err(Errno::PERM | Errno::ROFS | Errno::TXTBSY) if needed == Access::Read => {
                        reopen_file(&object.fd, OFlags::RDONLY)
                    }
                    other => other,
                })?
            }
            FileKind::Directory => self.with_access(&[object], || reopen_directory(object.fd()))?,
            _ => return Err(Errno::BADF.into()),
        };
        Ok(object.full.get_or_init(|| opened).as_fd())
    }
}
