//! Many small files: making and removing them, and walking a tree of them.

use super::{Measured, OnPath, WorkloadError};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// Files in one directory of a tree.
const FILES_PER_DIRECTORY: u64 = 1000;

/// Creates `files` files of `bytes` each in one directory, then unlinks them all.
pub fn create_unlink(
    directory: &Path,
    files: u64,
    bytes: usize,
) -> Result<Measured, WorkloadError> {
    let directory = directory.join("create-unlink");
    fs::create_dir_all(&directory).on(&directory)?;
    let content = vec![b'm'; bytes];
    let start = Instant::now();
    for number in 0..files {
        let path = directory.join(format!("file-{number}"));
        fs::File::create(&path)
            .and_then(|mut file| file.write_all(&content))
            .on(&path)?;
    }
    for number in 0..files {
        let path = directory.join(format!("file-{number}"));
        fs::remove_file(&path).on(&path)?;
    }
    let elapsed = start.elapsed();
    fs::remove_dir(&directory).on(&directory)?;
    Ok(Measured::new(2 * files, files * bytes as u64, elapsed))
}

/// Makes a tree of `files` empty files, a thousand to a directory.
pub fn make_tree(root: &Path, files: u64) -> Result<Measured, WorkloadError> {
    let start = Instant::now();
    for first in (0..files).step_by(FILES_PER_DIRECTORY as usize) {
        let directory = root.join(format!("directory-{}", first / FILES_PER_DIRECTORY));
        fs::create_dir_all(&directory).on(&directory)?;
        for number in first..files.min(first + FILES_PER_DIRECTORY) {
            let path = directory.join(format!("file-{number}"));
            fs::File::create(&path).on(&path)?;
        }
    }
    Ok(Measured::new(files, 0, start.elapsed()))
}

/// Lists every directory below `root` and asks for the attributes of every entry.
pub fn walk(root: &Path) -> Result<Measured, WorkloadError> {
    let start = Instant::now();
    let mut entries = 0;
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).on(&directory)? {
            let entry = entry.on(&directory)?;
            let path = entry.path();
            if fs::symlink_metadata(&path).on(&path)?.is_dir() {
                waiting.push(path);
            }
            entries += 1;
        }
    }
    Ok(Measured::new(entries, 0, start.elapsed()))
}
