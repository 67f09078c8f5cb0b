//! Files whose set-user-id or set-group-id bit the kernel has seen.
//!
//! With HANDLE_KILLPRIV_V2 the kernel leaves it to the daemon to take these bits away when an
//! unprivileged caller writes, and the reply to WRITE has no field for it. The kernel would go on
//! to use the cached bits, and execute the changed file with its owner's rights. So the daemon
//! invalidates the cached attributes. With this set the usual case (no such bits) costs one load.
//!
//! A process that takes over a mount does not know what the kernel has seen. But a file that has
//! such a bit now will be shown with it, and one that has none can be shown with it only if the
//! predecessor took the bit away and died before it had notified the kernel. It notifies before it
//! answers, so then the request is still in flight, and the successor that finishes it notifies
//! (see [`super::in_flight`]). So it is enough to look at the file itself before each change that
//! would take the bits away.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use mobifs_base::{FileKind, ObjectId, S_ISGID, S_ISUID};
use mobifs_fuse::protocol::RequestHeader;
use mobifs_volume::Node;
use parking_lot::Mutex;

/// A set that is nearly always empty. It may name files that have lost their bits or
/// are gone, never the other way round: every attribute that goes to the kernel
/// passes [`SetIdFiles::shown`].
#[derive(Default)]
pub(super) struct SetIdFiles {
    /// A predecessor has shown files that are not in the set.
    inherited: bool,
    count: AtomicUsize,
    files: Mutex<HashSet<ObjectId>>,
}

/// Whether a file has one of these bits.
pub(super) fn has_set_id(node: &Node) -> bool {
    let attributes = &node.attributes;
    attributes.kind == FileKind::Regular && attributes.mode & (S_ISUID | S_ISGID) != 0
}

/// Whether a caller is in a group. A request names one group only, so the others are read from
/// `/proc`: the caller waits for the answer. A hidden caller is taken to be in none.
pub(super) fn is_in_group(caller: &RequestHeader, group: u32) -> bool {
    let has_group = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
        line.is_some_and(|groups| groups.split_whitespace().any(|id| id.parse() == Ok(group)))
    };
    caller.gid == group
        || std::fs::read_to_string(format!("/proc/{}/status", caller.pid)).is_ok_and(has_group)
}

impl SetIdFiles {
    /// For a mount that another process has served before.
    pub(super) fn inherited() -> Self {
        Self {
            inherited: true,
            ..Self::default()
        }
    }

    /// Whether the kernel may have seen bits of files that are not in the set.
    pub(super) const fn is_inherited(&self) -> bool {
        self.inherited
    }

    /// The kernel is about to see these attributes.
    pub(super) fn shown(&self, node: &Node) {
        if has_set_id(node) {
            let mut files = self.files.lock();
            files.insert(node.id);
            self.count.store(files.len(), Ordering::Release);
        }
    }

    /// Whether the kernel may have cached such a bit of the file.
    pub(super) fn contains(&self, id: ObjectId) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.files.lock().contains(&id)
    }

    /// Forgets a file; returns whether it was known.
    pub(super) fn remove(&self, id: ObjectId) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut files = self.files.lock();
        let known = files.remove(&id);
        self.count.store(files.len(), Ordering::Release);
        known
    }
}

#[cfg(test)]
mod tests {
    use mobifs_base::Attributes;

    use super::*;

    fn node(id: u64, kind: FileKind, mode: u16) -> Node {
        let attributes = Attributes {
            kind,
            mode,
            uid: 0,
            gid: 0,
            rdev: Default::default(),
            size: 0,
            nlink: 1,
            atime: Default::default(),
            mtime: Default::default(),
            ctime: Default::default(),
        };
        Node {
            id: ObjectId(id),
            attributes,
            allocated_bytes: 0,
        }
    }

    #[test]
    fn only_regular_files_with_such_bits_are_remembered_and_only_once() {
        let files = SetIdFiles::default();
        files.shown(&node(2, FileKind::Regular, 0o755));
        files.shown(&node(3, FileKind::Directory, 0o2755));
        assert!(!files.remove(ObjectId(2)) && !files.remove(ObjectId(3)));
        files.shown(&node(4, FileKind::Regular, 0o4755));
        files.shown(&node(4, FileKind::Regular, 0o4755));
        assert!(files.contains(ObjectId(4)) && !files.contains(ObjectId(5)));
        assert!(files.remove(ObjectId(4)));
        assert!(!files.remove(ObjectId(4)));
    }
}
