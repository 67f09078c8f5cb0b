//! What lies in a directory, as far as it matters for what to do with it.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Most names that are looked at: enough to tell what a directory is for, and at once.
const NAMES_MAX: usize = 50_000;
/// Files from this size on are media and images rather than the state of programs, if they are no
/// databases.
const LARGE_BYTES_MIN: u64 = 4 << 20;
/// What MobiFS keeps in a store.
const OWN_DIRECTORY: &str = ".mobifs";
/// How a database of SQLite begins.
const SQLITE_HEADER: &[u8; 16] = b"SQLite format 3\0";

/// Counts over a directory and what is below it on the same filesystem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Survey {
    /// Everything was looked at.
    pub(super) is_complete: bool,
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// Bytes of files that are large and no databases.
    pub(super) large_bytes: u64,
    pub(super) databases: u64,
    pub(super) database_bytes: u64,
    /// Directories and files that this user may not read.
    pub(super) unreadable: u64,
}

impl Survey {
    /// Looks without changing anything, not even times of access. What may not be read is counted
    /// alone.
    pub(super) fn of(root: &Path) -> Self {
        Self::of_first(root, NAMES_MAX)
    }

    fn of_first(root: &Path, names_max: usize) -> Self {
        let mut survey = Self::default();
        let Ok(about) = root.symlink_metadata() else {
            return survey;
        };
        let device = about.dev();
        let mut directories: Vec<PathBuf> = vec![root.to_owned()];
        let mut names = 0;
        while let Some(directory) = directories.pop() {
            let Ok(entries) = fs::read_dir(&directory) else {
                survey.unreadable += 1;
                continue;
            };
            for entry in entries.flatten() {
                if directory == root && entry.file_name() == OWN_DIRECTORY {
                    // A store's own part, which no program sees.
                    continue;
                }
                names += 1;
                if names > names_max {
                    return survey;
                }
                let Ok(about) = entry.metadata() else {
                    survey.unreadable += 1;
                    continue;
                };
                if about.dev() != device {
                    continue;
                }
                if about.is_dir() {
                    directories.push(entry.path());
                } else if about.is_file() {
                    survey.count(&entry.path(), about.len());
                }
            }
        }
        survey.is_complete = survey.unreadable == 0;
        survey
    }

    fn count(&mut self, path: &Path, bytes: u64) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        if is_database(path, bytes) {
            self.databases += 1;
            self.database_bytes = self.database_bytes.saturating_add(bytes);
        } else if bytes >= LARGE_BYTES_MIN {
            self.large_bytes = self.large_bytes.saturating_add(bytes);
        }
    }

    /// The share of `part` in all bytes, in percent.
    pub(super) const fn percent(&self, part: u64) -> u64 {
        if self.bytes == 0 {
            return 0;
        }
        // More than 2^57 bytes of files would be needed to saturate.
        part.saturating_mul(100) / self.bytes
    }
}

fn is_database(path: &Path, bytes: u64) -> bool {
    if bytes < 512 || !bytes.is_multiple_of(512) {
        return false;
    }
    let flags = (OFlags::NOATIME | OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let mut options = File::options();
    options
        .read(true)
        .custom_flags(i32::try_from(flags).unwrap_or(0));
    // Not of another user's file, whose time of access this would change.
    let Ok(mut file) = options.open(path) else {
        return false;
    };
    let mut header = [0; SQLITE_HEADER.len()];
    file.read_exact(&mut header).is_ok() && &header == SQLITE_HEADER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_large_files_and_others_are_told_apart() {
        let root = tempfile::tempdir().unwrap();
        let inside = root.path().join("a/b");
        fs::create_dir_all(&inside).unwrap();
        let mut database = SQLITE_HEADER.to_vec();
        database.resize(4096, 0);
        fs::write(inside.join("notes"), &database).unwrap();
        fs::write(inside.join("short.db"), SQLITE_HEADER).unwrap();
        fs::write(root.path().join("text"), "text").unwrap();
        let film = File::create(root.path().join("film")).unwrap();
        film.set_len(LARGE_BYTES_MIN).unwrap();
        std::os::unix::fs::symlink("/", root.path().join("link")).unwrap();
        let survey = Survey::of(root.path());
        assert_eq!(
            survey,
            Survey {
                is_complete: true,
                files: 4,
                bytes: 4096 + 16 + 4 + LARGE_BYTES_MIN,
                large_bytes: LARGE_BYTES_MIN,
                databases: 1,
                database_bytes: 4096,
                unreadable: 0,
            }
        );
        assert_eq!(survey.percent(survey.large_bytes), 99);
        // The journal of a store, of 8 MiB and more, was counted as a large file of programs.
        let own = root.path().join(OWN_DIRECTORY);
        fs::create_dir(&own).unwrap();
        let journal = File::create(own.join("journal")).unwrap();
        journal.set_len(LARGE_BYTES_MIN).unwrap();
        assert_eq!(Survey::of(root.path()), survey);
        // In any other place the name means nothing.
        fs::create_dir(inside.join(OWN_DIRECTORY)).unwrap();
        fs::write(inside.join(OWN_DIRECTORY).join("file"), "").unwrap();
        assert_eq!(Survey::of(root.path()).files, survey.files + 1);
        let part = Survey::of_first(root.path(), 2);
        assert!(!part.is_complete && part.files <= 2, "{part:?}");
        assert_eq!(Survey::of(&root.path().join("missing")), Survey::default());
    }
}
