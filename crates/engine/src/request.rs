//! Arguments and answers of the engine's operations.

use mobifs_base::{Attributes, DeviceNumber, FileKind, MonotonicNs, Name, ObjectId, Timestamp};

/// The caller of an operation. The kernel checks permissions; this determines the attributes of a
/// new object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Owner of new objects.
    pub uid: u32,
    /// Group of new objects, unless the directory's set-group-id bit says otherwise.
    pub gid: u32,
    /// Permission bits that new objects do not get, where no default ACL decides.
    pub umask: u16,
}

/// When an operation happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// For file times.
    pub wall: Timestamp,
    /// For ages and deadlines.
    pub now: MonotonicNs,
}

/// What the mounted view shows of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// The object.
    pub id: ObjectId,
    /// Its attributes.
    pub attributes: Attributes,
    /// Bytes that its content occupies, or will once applied (an estimate).
    pub allocated_bytes: u64,
}

/// A new value of a file time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeChange {
    /// The moment of the operation.
    Now,
    /// This time.
    At(Timestamp),
}

/// What becomes of the set-id bits of an object other than a directory when its content or its
/// owner changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetIdBits {
    /// They stay: the caller has the right to keep them.
    #[default]
    Stay,
    /// Set-user-id is removed, and set-group-id where the group may execute the file.
    Go,
    /// Both are removed, whatever the group's permissions: the caller is not in it.
    BothGo,
}

/// Attributes to change; the others stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChange {
    /// Permission bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size of a regular file.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<TimeChange>,
    /// Last change of content.
    pub mtime: Option<TimeChange>,
    /// Last change, when the caller dictates it.
    pub ctime: Option<Timestamp>,
    /// What becomes of the set-id bits.
    pub set_id: SetIdBits,
}

/// What to do if the target of a rename exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// Fail.
    NoReplace,
    /// Swap the two; both must exist.
    Exchange,
    /// Replace it, and leave a whiteout of this caller under the old name: a character device
    /// 0:0 without permissions, by which an overlay filesystem hides what lies under it.
    Whiteout(Caller),
}

/// What `fallocate` does to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Make room.
    Allocate {
        /// Do not extend the file.
        keep_size: bool,
    },
    /// Make a hole; the size stays.
    PunchHole,
    /// Make it read as zero.
    ZeroRange {
        /// Do not extend the file.
        keep_size: bool,
    },
}

/// A new object.
#[derive(Clone, Copy, Debug)]
pub struct NodeSpec<'a> {
    /// Kind.
    pub kind: FileKind,
    /// Permission bits, before umask or ACL.
    pub mode: u16,
    /// Device number of a device node.
    pub rdev: DeviceNumber,
    /// Target of a symlink.
    pub symlink_target: Option<&'a [u8]>,
}

/// Where to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// At this offset.
    Offset(u64),
    /// At the end of the file, whatever it is at that moment.
    Append,
}

/// Whether an extended attribute may or must exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Any,
    /// Must be new.
    Create,
    /// Must exist.
    Replace,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadDirEntry {
    /// Position, from 1 to 2^31 - 3: continue a listing after it. Follows from the name, and
    /// stays as long as the entry does and the directory is in use.
    pub cookie: u64,
    /// Name.
    pub name: Name,
    /// Object.
    pub id: ObjectId,
    /// Kind.
    pub kind: FileKind,
}
