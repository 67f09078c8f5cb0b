//! What tests of the journal commit.

use mobifs_base::{Attributes, DeviceNumber, FileKind, ObjectId, ObjectState, Timestamp};

/// A regular file of this process's user.
pub(crate) fn file_state(id: ObjectId, created: bool, size: u64) -> ObjectState {
    let time = Timestamp::new(1_700_000_000, 5);
    ObjectState {
        id,
        created,
        attributes: Attributes {
            kind: FileKind::Regular,
            mode: 0o640,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: DeviceNumber::default(),
            size,
            nlink: 1,
            atime: time,
            mtime: time,
            ctime: time,
        },
        symlink_target: None,
        zeroed: Vec::new(),
        allocated: Vec::new(),
        xattrs: Vec::new(),
    }
}
