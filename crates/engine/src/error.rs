//! What an operation can end with besides success.

use mobifs_base::{ByteRange, InvalidName, ObjectId, PageIndex};

/// An operation stopped before changing anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Something must be fetched or done first; then call again.
    Need(Need),
    /// The operation fails.
    Fail(FsError),
}

/// What the engine cannot do by itself.
/// `epoch` and `version` go back unchanged with the answer: the engine ignores an answer that has
/// become stale, and asks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The object's attributes ([`crate::Engine::provide_object`]).
    Object {
        /// Which object.
        id: ObjectId,
        /// To be handed back.
        epoch: u64,
    },
    /// All entries of a directory ([`crate::Engine::provide_directory`]).
    Directory {
        /// Which directory.
        id: ObjectId,
        /// To be handed back.
        epoch: u64,
    },
    /// All extended attributes of an object ([`crate::Engine::provide_xattrs`]).
    Xattrs {
        /// Which object.
        id: ObjectId,
        /// To be handed back.
        epoch: u64,
    },
    /// A symlink's target ([`crate::Engine::provide_symlink_target`]).
    SymlinkTarget {
        /// Which symlink.
        id: ObjectId,
        /// To be handed back.
        epoch: u64,
    },
    /// The committed content of one page ([`crate::Engine::provide_page`]).
    Page {
        /// Which file.
        object: ObjectId,
        /// Which page.
        index: PageIndex,
        /// To be handed back.
        version: u64,
    },
    /// The room of the lower filesystem is used up, and whether these bytes have blocks there
    /// already, in which they are overwritten in place ([`crate::Engine::provide_place`]).
    Place {
        /// Which file.
        object: ObjectId,
        /// Which of its bytes.
        range: ByteRange,
        /// To be handed back.
        version: u64,
    },
    /// The memory budget is used up: commit something and try again.
    Memory,
    /// The lower filesystem's room, less what is already reserved, does not suffice: commit and
    /// apply everything, refresh the room, try once more.
    Space,
}

/// Why an operation fails; the kernel adapter turns it into an errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum FsError {
    /// `ENOENT`
    #[error("no such file or directory")]
    NotFound,
    /// `EEXIST`
    #[error("file exists")]
    Exists,
    /// `ENOTDIR`
    #[error("not a directory")]
    NotDirectory,
    /// `EISDIR`
    #[error("is a directory")]
    IsDirectory,
    /// `ENOTEMPTY`
    #[error("directory not empty")]
    NotEmpty,
    /// `ENAMETOOLONG`
    #[error("name too long")]
    NameTooLong,
    /// `EINVAL`
    #[error("invalid argument")]
    InvalidArgument,
    /// `EPERM`
    #[error("operation not permitted")]
    NotPermitted,
    /// `EACCES`
    #[error("permission denied")]
    AccessDenied,
    /// `ENOSPC`
    #[error("no space left")]
    NoSpace,
    /// `EFBIG`
    #[error("file too large")]
    FileTooBig,
    /// `EMLINK`
    #[error("too many links")]
    TooManyLinks,
    /// `ENODATA`
    #[error("no such extended attribute")]
    NoXattr,
    /// `E2BIG`
    #[error("extended attribute too large")]
    XattrTooBig,
    /// `ERANGE`
    #[error("buffer too small")]
    BufferTooSmall,
    /// `EROFS`
    #[error("read-only filesystem")]
    ReadOnly,
    /// `EBUSY`
    #[error("busy")]
    Busy,
    /// `EXDEV`
    #[error("lies on another filesystem")]
    CrossDevice,
    /// `ENXIO`
    #[error("no data or hole after this offset")]
    NoSuchOffset,
    /// `ESTALE`
    #[error("the object is gone")]
    Stale,
    /// `EOPNOTSUPP`
    #[error("not supported")]
    NotSupported,
    /// `EIO`
    #[error("input/output error")]
    Io,
    /// `EINTR`
    #[error("interrupted")]
    Interrupted,
    /// `ELOOP`
    #[error("too many symbolic links")]
    TooManySymlinks,
    /// `EBADF`
    #[error("bad file descriptor")]
    BadDescriptor,
}

impl From<FsError> for Stop {
    fn from(error: FsError) -> Self {
        Self::Fail(error)
    }
}

impl From<InvalidName> for Stop {
    fn from(error: InvalidName) -> Self {
        Self::Fail(match error {
            InvalidName::TooLong => FsError::NameTooLong,
            InvalidName::Malformed => FsError::InvalidArgument,
        })
    }
}
