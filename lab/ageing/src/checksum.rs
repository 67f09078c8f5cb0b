//! What a tree holds, as one number: names, sizes, contents. Layout, times and rights are not in it.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::SeekFrom;

use crate::content::mix;
use crate::error::{AgeError, OnPath as _};

/// Content counts by blocks; a block of zeros is the same as a hole.
const BLOCK_BYTES: usize = 64 << 10;
/// In a database, what counts changes: a transaction that is tried again after a kill may count twice,
/// and with a write-ahead log SQLite counts as it likes.
const COUNTERS: [std::ops::Range<usize>; 2] = [24..28, 92..96];
const SQLITE_HEADER: &[u8] = b"SQLite format 3\0";

/// Clocks of filesystems are coarser than this.
const SETTLED_SECONDS: i64 = 2;

/// Which state of a file a sum is of.
type Version = (u64, u64, i64, i64);

/// Sums trees, and remembers the sums of files that did not change since.
#[derive(Debug, Default)]
pub struct Checksum {
    known: HashMap<PathBuf, (Version, u64)>,
}

impl Checksum {
    /// Nothing is known yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The sum of a directory. Journals and logs of SQLite do not count, since SQLite writes random
    /// numbers into them, nor does what the VFS of MobiFS keeps beside databases.
    ///
    /// # Errors
    /// Something cannot be read.
    pub fn of(&mut self, directory: &Path) -> Result<u64, AgeError> {
        let mut seen = HashMap::new();
        let sum = self.directory(directory, &mut seen);
        self.known = seen;
        sum
    }

    fn directory(
        &self,
        directory: &Path,
        seen: &mut HashMap<PathBuf, (Version, u64)>,
    ) -> Result<u64, AgeError> {
        let entries = fs::read_dir(directory).at("list", directory)?;
        let entries: Result<Vec<_>, _> = entries.collect();
        let mut entries = entries.at("list", directory)?;
        entries.sort_unstable_by_key(fs::DirEntry::file_name);
        let mut sum = mix(1, 0);
        for entry in entries {
            let (name, path) = (entry.file_name(), entry.path());
            let name = name.as_bytes();
            if is_beside_database(name) {
                continue;
            }
            let about = fs::symlink_metadata(&path).at("look at", &path)?;
            let of_entry = if about.is_dir() {
                self.directory(&path, seen)?
            } else if !about.is_file() {
                mix(2, 0)
            } else {
                self.file(&path, &about, seen)?
            };
            let of_name = mix(name.len() as u64, u64::from(crc32c::crc32c(name)));
            sum = mix(mix(sum, of_name), of_entry);
        }
        Ok(sum)
    }

    fn file(
        &self,
        path: &Path,
        about: &Metadata,
        seen: &mut HashMap<PathBuf, (Version, u64)>,
    ) -> Result<u64, AgeError> {
        let version = (about.ino(), about.len(), about.ctime(), about.ctime_nsec());
        let sum = match self.known.get(path) {
            Some(&(known, sum)) if known == version => sum,
            _ => content(path, about.len())?,
        };
        // A file that has just been changed can be changed again without another time.
        if about.ctime().saturating_add(SETTLED_SECONDS) < now_seconds() {
            seen.insert(path.to_owned(), (version, sum));
        }
        Ok(sum)
    }
}

/// Whether SQLite or the VFS of MobiFS keeps it beside a database.
fn is_beside_database(name: &[u8]) -> bool {
    let ends = [
        &b".db-journal"[..],
        b".db-wal",
        b".db-shm",
        b".db-mobifs",
        b".db-mobifs-journal",
        b".db-mobifs-wal",
    ];
    ends.iter().any(|end| name.ends_with(end))
}

fn now_seconds() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(0))
}

/// The sum of a file's content, of which holes are passed over.
fn content(path: &Path, bytes: u64) -> Result<u64, AgeError> {
    let file = File::open(path).at("read", path)?;
    let mut sum = mix(4, bytes);
    let mut buffer = vec![0; BLOCK_BYTES];
    let mut at = 0;
    while at < bytes {
        at = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data - data % BLOCK_BYTES as u64,
            // No data any more.
            Err(rustix::io::Errno::NXIO) => break,
            // The filesystem does not say where data is.
            Err(_) => at,
        };
        let length = (bytes - at).min(BLOCK_BYTES as u64) as usize;
        let block = &mut buffer[..length];
        file.read_exact_at(block, at).at("read", path)?;
        if at == 0 && block.starts_with(SQLITE_HEADER) && length >= COUNTERS[1].end {
            COUNTERS.into_iter().for_each(|range| block[range].fill(0));
        }
        if block.iter().any(|&byte| byte != 0) {
            sum = mix(mix(sum, at), u64::from(crc32c::crc32c(block)));
        }
        at += length as u64;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(path: &Path) -> u64 {
        Checksum::new().of(path).unwrap()
    }

    #[test]
    fn names_sizes_and_contents_count_and_layout_does_not() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        let mut sums = vec![sum(base.path())];
        let mut note = |what: &str| {
            let sum = sum(base.path());
            assert!(!sums.contains(&sum), "{what}");
            sums.push(sum);
        };
        fs::write(at("a"), vec![0; 200_000]).unwrap();
        note("a file");
        let zeros = sum(base.path());
        File::create(at("a")).unwrap().set_len(200_000).unwrap();
        assert_eq!(sum(base.path()), zeros, "holes are zeros");
        File::create(at("a")).unwrap().set_len(200_001).unwrap();
        note("a size");
        fs::write(at("a"), [&vec![0; 100_000][..], b"x"].concat()).unwrap();
        note("a byte");
        fs::rename(at("a"), at("b")).unwrap();
        note("a name");
        fs::create_dir(at("d")).unwrap();
        note("a directory");
        fs::rename(at("b"), at("d/b")).unwrap();
        note("a place");
        let before = sum(base.path());
        fs::write(at("x.db-journal"), "22").unwrap();
        fs::write(at("x.db-shm"), "22").unwrap();
        assert_eq!(sum(base.path()), before, "journals do not count");
    }

    #[test]
    fn counters_of_a_database_do_not_count() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("x.db");
        let mut page = [SQLITE_HEADER, &[0; 4080]].concat();
        fs::write(&path, &page).unwrap();
        let first = sum(base.path());
        page[27] = 9;
        page[95] = 9;
        fs::write(&path, &page).unwrap();
        assert_eq!(sum(base.path()), first);
        page[28] = 9;
        fs::write(&path, &page).unwrap();
        assert_ne!(sum(base.path()), first);
    }

    #[test]
    fn remembered_sums_are_those_of_the_files_as_they_are() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("a");
        let mut remembering = Checksum::new();
        for content in ["one", "two", "two", "three"] {
            fs::write(&path, content).unwrap();
            assert_eq!(remembering.of(base.path()).unwrap(), sum(base.path()));
        }
    }
}
