//! Operations and events that a test executes, and how they are generated.

mod generator;
mod patterns;
mod payload;
mod script;
mod sqlite_pages;

pub use generator::{Profile, generate, generate_on};
pub use payload::Payload;
pub use script::{Script, ScriptTree, Scripts};

use mobifs_base::Timestamp;

/// Number of an open file of the test.
pub type Slot = u8;

/// The file that an operation works on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileRef {
    /// By path below the root; a symlink at its end is not followed.
    Path(String),
    /// An open file, perhaps unlinked since.
    Handle(Slot),
}

/// Bytes of the header of a rollback journal of SQLite: a shorter file is none.
const ROLLBACK_HEADER_BYTES: u64 = 28;

/// What kind of special file [`Operation::MakeNode`] makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// Named pipe.
    Fifo,
    /// Unix-domain socket.
    Socket,
    /// Character device of this major and minor number.
    CharDevice(u32, u32),
    /// Block device of this major and minor number.
    BlockDevice(u32, u32),
}

/// How a rename treats its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// The target is replaced.
    Replace,
    /// The target must not exist.
    NoReplace,
    /// Source and target change places.
    Exchange,
    /// The target is replaced, and a whiteout takes the source's place.
    Whiteout,
}

/// What `fallocate` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Make room.
    Allocate {
        /// Even after the end, without moving it.
        keep_size: bool,
    },
    /// Make a hole; the size stays.
    PunchHole,
    /// Zero a range.
    ZeroRange {
        /// Even after the end, without moving it.
        keep_size: bool,
    },
}

/// How setting an extended attribute treats an existing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Any,
    /// Must not exist.
    Create,
    /// Must exist.
    Replace,
}

/// One call of a program. Paths are below the root, without a leading slash.
#[expect(
    missing_docs,
    reason = "the fields are the arguments of the system call"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `open(O_CREAT | O_EXCL)` and `close`.
    CreateFile { path: String, mode: u16 },
    /// `mkdir`.
    MakeDirectory { path: String, mode: u16 },
    /// `symlink`.
    MakeSymlink { path: String, target: String },
    /// `mknod`.
    MakeNode {
        path: String,
        mode: u16,
        kind: NodeKind,
    },
    /// `link`.
    Link { from: String, to: String },
    /// `unlink`.
    Unlink { path: String },
    /// `rmdir`.
    RemoveDirectory { path: String },
    /// `renameat2`.
    Rename {
        from: String,
        to: String,
        mode: RenameMode,
    },
    /// `pwrite`.
    Write {
        file: FileRef,
        offset: u64,
        data: Payload,
    },
    /// `write` on a file opened with `O_APPEND`.
    Append { file: FileRef, data: Payload },
    /// `pread`.
    Read {
        file: FileRef,
        offset: u64,
        length: u32,
    },
    /// Writes of one page each with `O_DIRECT`, submitted together (`io_submit`) while others
    /// read the range through the cache. Offset and length are multiples of a page.
    WriteDirect {
        file: FileRef,
        offset: u64,
        data: Payload,
    },
    /// `pread` with `O_DIRECT`. Offset and length are multiples of a page.
    ReadDirect {
        file: FileRef,
        offset: u64,
        length: u32,
    },
    /// `ftruncate`.
    Truncate { file: FileRef, size: u64 },
    /// `fallocate`.
    Allocate {
        file: FileRef,
        mode: AllocateMode,
        offset: u64,
        length: u64,
    },
    /// `copy_file_range`.
    CopyRange {
        from: FileRef,
        from_offset: u64,
        to: FileRef,
        to_offset: u64,
        length: u32,
    },
    /// `fsync`.
    Fsync { file: FileRef },
    /// `open(O_DIRECTORY)`, `fsync` and `close`.
    FsyncDirectory { path: String },
    /// `chmod`.
    SetMode { path: String, mode: u16 },
    /// `lchown`.
    SetOwner {
        path: String,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    /// `utimensat` of the modification time; none: to now.
    SetMtime {
        path: String,
        mtime: Option<Timestamp>,
    },
    /// `lsetxattr`.
    SetXattr {
        path: String,
        name: String,
        value: Payload,
        mode: XattrMode,
    },
    /// `lremovexattr`.
    RemoveXattr { path: String, name: String },
    /// `open(O_RDWR)` of a regular file; the slot's earlier file is closed.
    Open { slot: Slot, path: String },
    /// `open(O_TMPFILE)` in a directory; the slot's earlier file is closed.
    OpenUnnamed {
        slot: Slot,
        directory: String,
        mode: u16,
    },
    /// `linkat` of an open file.
    LinkHandle { slot: Slot, to: String },
    /// `close`.
    Close { slot: Slot },
    /// `open(O_DIRECTORY)` of a directory, `open(O_PATH)` of anything else but a regular
    /// file; what the slot held before is closed. These slots are others than those of files.
    Hold { slot: Slot, path: String },
    /// `fsync` of a held directory.
    FsyncHeld { slot: Slot },
    /// `close` of what is held.
    CloseHeld { slot: Slot },
}

impl Operation {
    /// Whether it asks for what was done before to be durable.
    pub const fn is_fsync(&self) -> bool {
        matches!(
            self,
            Self::Fsync { .. } | Self::FsyncDirectory { .. } | Self::FsyncHeld { .. }
        )
    }

    /// Whether it may take a rollback journal's name or content away, which a successor makes durable.
    pub fn may_end_rollback(&self) -> bool {
        match self {
            Self::Truncate { file, size } => {
                let may_be_journal = match file {
                    FileRef::Path(path) => path.ends_with("-journal"),
                    FileRef::Handle(_) => true,
                };
                *size < ROLLBACK_HEADER_BYTES && may_be_journal
            }
            Self::Unlink { path } => path.ends_with("-journal"),
            Self::Rename { from, to, .. } => from.ends_with("-journal") || to.ends_with("-journal"),
            _ => false,
        }
    }
}

/// What an operation answers when it succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing but success.
    Done,
    /// The number of bytes that were written or copied.
    Count(u64),
    /// These bytes were read.
    Data(Vec<u8>),
}

/// One step of a test: a program's call, or something that happens to the mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A program's call.
    Do(Operation),
    /// `mobifs sync --app`: returns when the app is committed.
    SyncApp(String),
    /// `syncfs`: returns when everything is committed.
    SyncAll,
    /// An app's transaction is closed, as its policy may do at any moment; without any promise.
    Close(String),
    /// The next closed transaction is committed, if there is one; without any promise.
    CommitNext,
    /// Unused objects are evicted from memory.
    TidyUp,
    /// Everything committed is brought to its final place.
    Apply,
    /// The power is cut and the store mounted again.
    Cut,
    /// The daemon is killed in the next event, after so many of the writes to its arena and of the
    /// calls to the lower filesystem (or after the event, if there are not so many), and another
    /// one goes on.
    Kill(u64),
}
