//! One event.

use std::ops::{BitOr, BitOrAssign};

use mobifs_base::{DeviceState, UserOperation};

use super::{AppIndex, PathIndex};

/// Nanoseconds since a trace's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceNs(pub u64);

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it began.
    pub time: TraceNs,
    /// The app it belongs to.
    pub app: AppIndex,
    /// The process that did it; 0 if unknown.
    pub process: u32,
    /// The thread that did it; 0 if unknown. Each thread did its events one after another.
    pub thread: u32,
    /// What it was.
    pub kind: EventKind,
    /// Bytes moved for reads and writes, 0 for others; −errno if it failed.
    pub result: i64,
    /// How long it took in nanoseconds; 0 if unknown.
    pub duration_ns: u64,
}

impl Event {
    /// Whether it had an effect: it did not fail.
    pub const fn has_succeeded(&self) -> bool {
        self.result >= 0
    }
}

/// What happened. A file is named by its path at that moment; a rename changes what a path
/// means. Offsets and lengths are in bytes; lengths are as asked for, [`Event::result`] has what
/// became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A file came into being. An [`EventKind::Open`] follows if it was opened, too.
    Create {
        /// The new file.
        path: PathIndex,
        /// Its permission bits.
        mode: u32,
    },
    /// A file was opened. With [`OpenFlags::CREATE`] it came into being if it was not there and
    /// whether it was is unknown.
    Open {
        /// The file, or directory.
        path: PathIndex,
        /// How.
        flags: OpenFlags,
    },
    /// An open file was closed: the last descriptor of one open.
    Close {
        /// The file.
        path: PathIndex,
    },
    /// Data was read.
    Read {
        /// The file.
        path: PathIndex,
        /// Where.
        offset: u64,
        /// How much was asked for.
        length: u64,
    },
    /// Data was written. Writes through a mapping arrive as this, where they are seen at all.
    Write {
        /// The file.
        path: PathIndex,
        /// Where.
        offset: u64,
        /// How much was asked for.
        length: u64,
    },
    /// The file's size was set.
    Truncate {
        /// The file.
        path: PathIndex,
        /// The new size.
        length: u64,
    },
    /// Space was given to a range, or taken from it.
    Allocate {
        /// The file.
        path: PathIndex,
        /// Which of it.
        mode: AllocateMode,
        /// Where the range begins.
        offset: u64,
        /// How long it is.
        length: u64,
    },
    /// What was written to the file was asked to be durable.
    Sync {
        /// The file, or directory.
        path: PathIndex,
        /// Attributes may wait that are not needed to read the data (fdatasync).
        data_only: bool,
    },
    /// Everything was asked to be durable (sync, syncfs).
    SyncAll,
    /// A directory was made.
    MakeDirectory {
        /// The new directory.
        path: PathIndex,
        /// Its permission bits.
        mode: u32,
    },
    /// A symbolic link was made.
    Symlink {
        /// The new link.
        path: PathIndex,
        /// What it holds.
        target: PathIndex,
    },
    /// A file got a further name.
    Link {
        /// A name it had.
        from: PathIndex,
        /// The new one.
        to: PathIndex,
    },
    /// A name was changed.
    Rename {
        /// The name that is gone.
        from: PathIndex,
        /// The new one; what had it before lost it.
        to: PathIndex,
        /// Both names are still there, and each has what the other had.
        exchange: bool,
    },
    /// A name of a file was removed.
    Unlink {
        /// The name.
        path: PathIndex,
    },
    /// An empty directory was removed.
    RemoveDirectory {
        /// The directory.
        path: PathIndex,
    },
    /// Mode, owner or times were set.
    SetAttributes {
        /// The file, or directory.
        path: PathIndex,
        /// Which.
        attribute: Attribute,
    },
    /// An extended attribute was set.
    SetXattr {
        /// The file, or directory.
        path: PathIndex,
        /// Size of the value.
        length: u64,
    },
    /// An extended attribute was removed.
    RemoveXattr {
        /// The file, or directory.
        path: PathIndex,
    },
    /// A name was looked up, or attributes were asked for: stat, access, readlink, getxattr.
    Stat {
        /// The file, or directory.
        path: PathIndex,
    },
    /// Entries of a directory were read.
    ReadDirectory {
        /// The directory.
        path: PathIndex,
    },
    /// A command to a block device.
    Block {
        /// The recorder's number of the device.
        device: u64,
        /// What was asked for.
        command: BlockCommand,
        /// Where.
        offset: u64,
        /// How much; 0 for a flush alone.
        length: u64,
        /// The data was to be durable at the end of the command (FUA).
        is_forced_unit_access: bool,
    },
    /// The user did something.
    User(UserOperation),
    /// The device's state changed.
    Device(DeviceState),
}

impl EventKind {
    /// The path it is about: the old name for a rename or link.
    pub const fn path(&self) -> Option<PathIndex> {
        match *self {
            Self::Create { path, .. }
            | Self::Open { path, .. }
            | Self::Close { path }
            | Self::Read { path, .. }
            | Self::Write { path, .. }
            | Self::Truncate { path, .. }
            | Self::Allocate { path, .. }
            | Self::Sync { path, .. }
            | Self::MakeDirectory { path, .. }
            | Self::Symlink { path, .. }
            | Self::Link { from: path, .. }
            | Self::Rename { from: path, .. }
            | Self::Unlink { path }
            | Self::RemoveDirectory { path }
            | Self::SetAttributes { path, .. }
            | Self::SetXattr { path, .. }
            | Self::RemoveXattr { path }
            | Self::Stat { path }
            | Self::ReadDirectory { path } => Some(path),
            Self::SyncAll | Self::Block { .. } | Self::User(_) | Self::Device(_) => None,
        }
    }

    /// The second name: the new one of a rename or link, the content of a symbolic link.
    pub const fn target(&self) -> Option<PathIndex> {
        match *self {
            Self::Symlink { target, .. } => Some(target),
            Self::Link { to, .. } | Self::Rename { to, .. } => Some(to),
            _ => None,
        }
    }

    /// This event with other indices for its names.
    #[must_use]
    pub fn with_paths(mut self, mut change: impl FnMut(PathIndex) -> PathIndex) -> Self {
        match &mut self {
            Self::Create { path, .. }
            | Self::Open { path, .. }
            | Self::Close { path }
            | Self::Read { path, .. }
            | Self::Write { path, .. }
            | Self::Truncate { path, .. }
            | Self::Allocate { path, .. }
            | Self::Sync { path, .. }
            | Self::MakeDirectory { path, .. }
            | Self::Unlink { path }
            | Self::RemoveDirectory { path }
            | Self::SetAttributes { path, .. }
            | Self::SetXattr { path, .. }
            | Self::RemoveXattr { path }
            | Self::Stat { path }
            | Self::ReadDirectory { path } => *path = change(*path),
            Self::Symlink { path: a, target: b }
            | Self::Link { from: a, to: b }
            | Self::Rename { from: a, to: b, .. } => {
                *a = change(*a);
                *b = change(*b);
            }
            Self::SyncAll | Self::Block { .. } | Self::User(_) | Self::Device(_) => {}
        }
        self
    }

    /// What the storage and the text output call it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::Open { .. } => "open",
            Self::Close { .. } => "close",
            Self::Read { .. } => "read",
            Self::Write { .. } => "write",
            Self::Truncate { .. } => "truncate",
            Self::Allocate { .. } => "allocate",
            Self::Sync { .. } => "sync",
            Self::SyncAll => "sync_all",
            Self::MakeDirectory { .. } => "make_directory",
            Self::Symlink { .. } => "symlink",
            Self::Link { .. } => "link",
            Self::Rename { .. } => "rename",
            Self::Unlink { .. } => "unlink",
            Self::RemoveDirectory { .. } => "remove_directory",
            Self::SetAttributes { .. } => "set_attributes",
            Self::SetXattr { .. } => "set_xattr",
            Self::RemoveXattr { .. } => "remove_xattr",
            Self::Stat { .. } => "stat",
            Self::ReadDirectory { .. } => "read_directory",
            Self::Block { command, .. } => match command {
                BlockCommand::Read => "block_read",
                BlockCommand::Write => "block_write",
                BlockCommand::Discard => "block_discard",
                BlockCommand::Flush => "block_flush",
            },
            Self::User(_) => "user",
            Self::Device(_) => "device",
        }
    }
}

/// How a file was opened; a set of the constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OpenFlags(u16);

impl OpenFlags {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// For reading.
    pub const READ: Self = Self(1);
    /// For writing.
    pub const WRITE: Self = Self(1 << 1);
    /// Each write goes to the end of the file.
    pub const APPEND: Self = Self(1 << 2);
    /// Its size was set to zero.
    pub const TRUNCATE: Self = Self(1 << 3);
    /// The file was to be made if it was not there.
    pub const CREATE: Self = Self(1 << 4);
    /// The call was to be refused if the file was there.
    pub const EXCLUSIVE: Self = Self(1 << 5);
    /// Each write is durable when it returns (`O_SYNC`, `O_DSYNC`).
    pub const SYNCHRONOUS: Self = Self(1 << 6);
    /// Past the kernel's page cache (`O_DIRECT`).
    pub const DIRECT: Self = Self(1 << 7);
    /// The object had to be a directory.
    pub const DIRECTORY: Self = Self(1 << 8);

    /// Every flag with the word that stands for it in the storage.
    pub const WORDS: [(Self, &'static str); 9] = [
        (Self::READ, "read"),
        (Self::WRITE, "write"),
        (Self::APPEND, "append"),
        (Self::TRUNCATE, "truncate"),
        (Self::CREATE, "create"),
        (Self::EXCLUSIVE, "exclusive"),
        (Self::SYNCHRONOUS, "synchronous"),
        (Self::DIRECT, "direct"),
        (Self::DIRECTORY, "directory"),
    ];

    /// Whether all of `flags` are in it.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// The set without `flags`.
    #[must_use]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }
}

impl BitOr for OpenFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for OpenFlags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

mobifs_base::worded! {
    /// What fallocate(2) did.
    AllocateMode {
        /// Space was reserved; the file grows if the range lies beyond its end.
        Extend = "extend",
        /// Space was reserved, the size kept.
        KeepSize = "keep_size",
        /// The range has no data any more.
        PunchHole = "punch_hole",
        /// The range reads as zeros; the file grows if it lies beyond its end.
        ZeroRange = "zero_range",
        /// The range was cut out, what comes after it moved forward.
        CollapseRange = "collapse_range",
        /// Zeros were inserted, what was there moved back.
        InsertRange = "insert_range",
    }
}

mobifs_base::worded! {
    /// Which attribute was set.
    Attribute {
        /// Permission bits.
        Mode = "mode",
        /// Owner or group.
        Owner = "owner",
        /// Times of access or change.
        Times = "times",
    }
}

mobifs_base::worded! {
    /// A command to a block device.
    BlockCommand {
        /// Data from the device.
        Read = "read",
        /// Data to the device.
        Write = "write",
        /// The content of a range is no longer needed.
        Discard = "discard",
        /// The device's cache is to be flushed. A flush before a write is an event before it.
        Flush = "flush",
    }
}
