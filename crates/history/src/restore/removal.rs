//! Removing a tree, however deep it is.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;

use mobifs_host::Descent;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

/// Removes a directory of this name with all that is in it; what cannot be removed stays.
///
/// # Errors
/// Why something stays.
pub(super) fn remove_tree(parent: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut tree = Descent::new(openat(parent, name, flags, Mode::empty())?);
    let mut names: Vec<CString> = Vec::new();
    loop {
        // One directory at a time: those beside it are found when it is gone.
        if let Some(inner) = remove_files(tree.directory())? {
            tree.enter(&inner)?;
            names.push(inner);
            continue;
        }
        if !tree.leave()? {
            return unlinkat(parent, name, AtFlags::REMOVEDIR);
        }
        let done = names.pop().ok_or(Errno::STALE)?;
        unlinkat(tree.directory(), &done, AtFlags::REMOVEDIR)?;
    }
}

/// Removes what is no directory, up to the first directory, which is returned.
fn remove_files(directory: &OwnedFd) -> Result<Option<CString>, Errno> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR | Errno::PERM) => return Ok(Some(name.to_owned())),
            Err(errno) => return Err(errno),
        }
    }
    Ok(None)
}

/// As the kernel takes it; no name has a zero.
pub(super) fn c_name(name: &OsStr) -> Result<CString, Errno> {
    CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{mkdirat, open};

    use super::*;

    #[test]
    fn a_tree_of_any_depth_and_shape_is_removed() {
        let base = tempfile::tempdir().unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let parent = open(base.path(), flags, Mode::empty()).unwrap();
        fs::create_dir_all(base.path().join("tree/a/b")).unwrap();
        for name in ["file", "a/file", "a/b/file", "z"] {
            fs::write(base.path().join("tree").join(name), name).unwrap();
        }
        fs::create_dir(base.path().join("stays")).unwrap();
        std::os::unix::fs::symlink("../stays", base.path().join("tree/link")).unwrap();
        let top = open(base.path().join("tree/a"), flags, Mode::empty()).unwrap();
        let mut tree = Descent::new(top);
        for _ in 0..3_000 {
            mkdirat(tree.directory(), c"directory", Mode::RWXU).unwrap();
            mkdirat(tree.directory(), c"other", Mode::RWXU).unwrap();
            tree.enter(c"directory").unwrap();
        }
        remove_tree(&parent, OsStr::new("tree")).unwrap();
        let left: Vec<_> = fs::read_dir(base.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].file_name(), "stays");
        assert_eq!(remove_tree(&parent, OsStr::new("tree")), Err(Errno::NOENT));
    }
}
