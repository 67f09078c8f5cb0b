//! What an observer of a mount receives: the requests that programs make of it, and what the
//! user and the device do meanwhile.

use crate::{MonotonicNs, ObjectId};

/// A request that was executed and answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedOperation<'a> {
    /// When it was taken up.
    pub begun_at: MonotonicNs,
    /// From there to its answer, in nanoseconds.
    pub duration_ns: u64,
    /// The thread that asked; 0: the kernel itself.
    pub thread: u32,
    /// What it is about; for names, the directory that has them.
    pub object: ObjectId,
    /// What was asked for.
    pub operation: Operation<'a>,
    /// The errno of its answer; 0: it succeeded.
    pub error: u32,
}

/// An object that a name was found to mean, or was given to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundObject {
    /// The object.
    pub id: ObjectId,
    /// The object is a directory, so names may lie inside it.
    pub is_directory: bool,
}

/// What a SETATTR sets, other than the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeGroup {
    /// Permission bits.
    Mode,
    /// User, group.
    Owner,
    /// Times.
    Times,
}

/// What was asked for. Names borrow from the request; offsets and lengths are in bytes. What an
/// operation found, made or moved is as its answer says, and nothing where it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// A name was looked up. That it means nothing is no failure.
    Lookup {
        /// The name.
        name: &'a [u8],
        /// What it means.
        found: Option<FoundObject>,
    },
    /// A listing returned what a name means, as a lookup does. Not an operation of its own.
    Listed {
        /// The name.
        name: &'a [u8],
        /// What it means.
        found: FoundObject,
    },
    /// Attributes, content of a symbolic link, extended attributes or holes were asked for.
    Look,
    /// A regular file was made.
    MakeFile {
        /// Its name.
        name: &'a [u8],
        /// Its permission bits.
        mode: u32,
        /// The file.
        made: Option<FoundObject>,
    },
    /// A device node, pipe or socket was made.
    MakeSpecial {
        /// Its name.
        name: &'a [u8],
        /// The object.
        made: Option<FoundObject>,
    },
    /// A directory was made.
    MakeDirectory {
        /// Its name.
        name: &'a [u8],
        /// Its permission bits.
        mode: u32,
        /// The directory.
        made: Option<FoundObject>,
    },
    /// A symbolic link was made.
    MakeSymlink {
        /// Its name.
        name: &'a [u8],
        /// What it holds.
        target: &'a [u8],
        /// The link.
        made: Option<FoundObject>,
    },
    /// A file without a name was made, and opened.
    MakeUnnamed {
        /// Its permission bits.
        mode: u32,
        /// Flags of `open(2)`.
        flags: u32,
        /// The file.
        made: Option<FoundObject>,
    },
    /// An object got a further name.
    Link {
        /// The object.
        of: ObjectId,
        /// The new name.
        name: &'a [u8],
    },
    /// A name was removed.
    Unlink {
        /// The name.
        name: &'a [u8],
    },
    /// A directory was removed.
    RemoveDirectory {
        /// Its name.
        name: &'a [u8],
    },
    /// A name was changed.
    Rename {
        /// The old name.
        name: &'a [u8],
        /// The directory of the new one.
        new_directory: ObjectId,
        /// The new name.
        new_name: &'a [u8],
        /// Both names stay, and each has what the other had.
        is_exchange: bool,
    },
    /// Content was read.
    Read {
        /// Where.
        offset: u64,
        /// How much was asked for.
        length: u64,
        /// How much there was.
        moved: u64,
    },
    /// Content was written.
    Write {
        /// Where.
        offset: u64,
        /// How much was asked for.
        length: u64,
        /// How much was taken.
        moved: u64,
    },
    /// Content was copied from this file to another, or within it.
    Copy {
        /// From where.
        offset: u64,
        /// To which file.
        target: ObjectId,
        /// To where.
        target_offset: u64,
        /// How much was asked for.
        length: u64,
        /// How much was copied.
        moved: u64,
    },
    /// The size was set.
    Truncate {
        /// The new size.
        size_bytes: u64,
    },
    /// Space was given or taken.
    Allocate {
        /// Flags of `fallocate(2)`.
        mode: u32,
        /// Where.
        offset: u64,
        /// How much.
        length: u64,
    },
    /// Attributes were set.
    SetAttributes {
        /// Which.
        group: AttributeGroup,
    },
    /// An extended attribute was set.
    SetXattr {
        /// Size of the value.
        length: u64,
    },
    /// An extended attribute was removed.
    RemoveXattr,
    /// Entries of a directory were listed.
    ReadDirectory,
    /// The object was asked to be durable.
    Sync {
        /// Attributes may wait that are not needed to read the data.
        is_data_only: bool,
    },
    /// Everything was asked to be durable.
    SyncAll,
    /// A file that was made without a name was closed.
    Release,
    /// The kernel has given references back. Not an operation of a program.
    Forget {
        /// How many.
        lookups: u64,
    },
}

crate::worded! {
    /// What the user did.
    UserOperation {
        /// A touch, or the click of a mouse.
        Touch = "touch",
        /// A key.
        Key = "key",
        /// Something else, or it is not known what.
        Other = "other",
    }
}

crate::worded! {
    /// What the device's state became.
    DeviceState {
        /// The screen was switched on.
        ScreenOn = "screen_on",
        /// The screen was switched off.
        ScreenOff = "screen_off",
        /// The device was about to sleep.
        Suspend = "suspend",
        /// The device woke up.
        Resume = "resume",
        /// The battery is nearly empty.
        BatteryLow = "battery_low",
        /// The battery is no longer nearly empty, or is being charged.
        BatteryOk = "battery_ok",
        /// The device was about to be switched off.
        Shutdown = "shutdown",
    }
}
