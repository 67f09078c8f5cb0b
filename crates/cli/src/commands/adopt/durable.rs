//! Files that are on the disk when the call returns.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use mobifs_daemon::{Code, Failure};

/// The end of the name that a file has until it is whole.
const UNFINISHED: &str = ".new";

/// A failure in one sentence: what could not be done to which path, and why.
pub(super) fn cannot<E: Display>(what: &str, path: &Path) -> impl FnOnce(E) -> Failure + use<E> {
    let said = format!("cannot {what} {}", path.display());
    move |error| Failure::new(Code::Failed, format!("{said}: {error}"))
}

/// The names in a directory are on the disk when this returns.
pub(super) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Makes a directory with those above it, each of them durable.
pub(super) fn make_directories(directory: &Path, mode: u32) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let parent = directory.parent().unwrap_or(Path::new("/"));
    make_directories(parent, mode)?;
    match fs::DirBuilder::new().mode(mode).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    sync_directory(parent)
}

/// Puts a file with this content in the place of what has its name: after a crash one of the two is
/// there, and whole.
pub(super) fn replace_file(path: &Path, content: &str) -> io::Result<()> {
    let (Some(directory), Some(new)) = (path.parent(), unfinished(path)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let _old = fs::remove_file(&new);
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&new)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    sync_directory(directory)
}

/// Where the content of a file is until it has its name.
fn unfinished(path: &Path) -> Option<PathBuf> {
    let mut hidden = OsString::from(".");
    hidden.push(path.file_name()?);
    hidden.push(UNFINISHED);
    Some(path.with_file_name(hidden))
}

/// Removes what replacements that were cut short have left in a directory, in which nothing is replaced meanwhile.
pub(super) fn remove_unfinished(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        if name.starts_with(b".") && name.ends_with(UNFINISHED.as_bytes()) {
            remove_one(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes a file, or a symbolic link, that may be missing, and what a replacement of it that was cut short has left.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    if let Some(new) = unfinished(path) {
        remove_one(&new)?;
    }
    remove_one(path)
}

fn remove_one(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => match sync_directory(path.parent().unwrap_or(Path::new("/"))) {
            // Another command has removed the directory since, and it was empty then.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_leaves_nothing_else() {
        let base = tempfile::tempdir().unwrap();
        let directory = base.path().join("a/b");
        make_directories(&directory, 0o755).unwrap();
        make_directories(&directory, 0o755).unwrap();
        let path = directory.join("file");
        fs::write(
            directory.join(".file.new"),
            "of an attempt that was cut short",
        )
        .unwrap();
        for content in ["one", "two"] {
            replace_file(&path, content).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        fs::write(directory.join(".file.new"), "of another one").unwrap();
        remove_file(&path).unwrap();
        remove_file(&path).unwrap();
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        fs::write(directory.join(".other.new"), "").unwrap();
        fs::write(directory.join("file.new"), "of the user").unwrap();
        remove_unfinished(&directory).unwrap();
        let mut left = fs::read_dir(&directory).unwrap();
        assert_eq!(left.next().unwrap().unwrap().file_name(), "file.new");
        assert!(left.next().is_none());
    }
}
