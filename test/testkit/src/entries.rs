//! Entries of transactions that are handed to a store without an engine.

use mobifs_base::{
    Attributes, DeviceNumber, Entry, FileKind, Name, ObjectId, ObjectState, Timestamp,
};

/// A regular file that the store has, with so many names, with default attributes.
pub fn plain_file(id: ObjectId, size: u64, nlink: u32) -> ObjectState {
    let time = Timestamp::new(1_000_000_000, 5);
    ObjectState {
        id,
        created: false,
        attributes: Attributes {
            kind: FileKind::Regular,
            mode: 0o640,
            uid: 0,
            gid: 0,
            rdev: DeviceNumber(0),
            size,
            nlink,
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

/// What a name in the root refers to from now on; none: it is removed.
///
/// # Panics
/// If no file can have that name.
pub fn root_entry(name: &str, child: Option<ObjectId>) -> Entry {
    #[expect(clippy::expect_used, reason = "a test says which names it uses")]
    let name = Name::new(name.as_bytes()).expect("a valid name");
    Entry::Dentry {
        parent: ObjectId::ROOT,
        name,
        child,
    }
}
