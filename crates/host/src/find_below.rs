//! The first object of a tree that fits, in trees of any depth.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, DirEntry, FileType, Mode, OFlags, openat};
use rustix::io::Errno;

use crate::descent::Descent;

/// Looks at everything below a directory, until `is_it` says of an object, in the directory that is given, that it is
/// what is looked for; its path. What this user may not read, or what is removed meanwhile, is passed over, and
/// symbolic links lead nowhere.
///
/// # Errors
/// The directory itself cannot be opened.
pub fn find_below(
    top: &Path,
    mut is_it: impl FnMut(BorrowedFd<'_>, &DirEntry) -> bool,
) -> Result<Option<PathBuf>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut descent = Descent::new(openat(CWD, top, flags, Mode::empty())?);
    let mut path = top.to_owned();
    let mut levels = Vec::new();
    let mut is_new = true;
    loop {
        if is_new {
            match list(descent.directory().as_fd(), &mut is_it) {
                Level::Found(name) => {
                    return Ok(Some(path.join(OsStr::from_bytes(name.as_bytes()))));
                }
                Level::Directories(names) => levels.push(names),
            }
        }
        let Some(names) = levels.last_mut() else {
            return Ok(None);
        };
        is_new = false;
        if let Some(name) = names.pop() {
            if descent.enter(&name).is_ok() {
                path.push(OsStr::from_bytes(name.as_bytes()));
                is_new = true;
            }
            continue;
        }
        levels.pop();
        path.pop();
        // At the top, or what it was in is elsewhere by now.
        if !descent.leave().unwrap_or(false) {
            return Ok(None);
        }
    }
}

enum Level {
    Found(CString),
    Directories(Vec<CString>),
}

fn list(
    directory: BorrowedFd<'_>,
    is_it: &mut impl FnMut(BorrowedFd<'_>, &DirEntry) -> bool,
) -> Level {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if is_it(directory, &entry) {
            return Level::Found(name.to_owned());
        }
        if matches!(entry.file_type(), FileType::Directory | FileType::Unknown) {
            names.push(name.to_owned());
        }
    }
    Level::Directories(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_fits_is_found_at_any_depth() {
        let base = tempfile::tempdir().unwrap();
        let deep = base.path().join("a/b/c");
        fs::create_dir_all(&deep).unwrap();
        fs::create_dir_all(base.path().join("z/y")).unwrap();
        fs::write(deep.join("wanted"), "").unwrap();
        std::os::unix::fs::symlink("..", base.path().join("a/up")).unwrap();
        let find = |name: &[u8]| {
            find_below(base.path(), |_, entry| entry.file_name().to_bytes() == name).unwrap()
        };
        assert_eq!(find(b"wanted"), Some(deep.join("wanted")));
        assert_eq!(find(b"y"), Some(base.path().join("z/y")));
        assert_eq!(find(b"none"), None);
        assert!(find_below(&deep.join("none"), |_, _| true).is_err());
    }
}
