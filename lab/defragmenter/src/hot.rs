//! Which parts of which files are read, as a trace says it.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Ranges of files that are read, by the path that a trace has: absolute, or relative to the directory
/// that was traced, which is the one that is looked at or one above it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hot {
    ranges: HashMap<PathBuf, Vec<(u64, u64)>>,
    /// The same of files with several names, by device and inode: they may be looked at by another
    /// name than the one that was read.
    linked: HashMap<(u64, u64), Vec<(u64, u64)>>,
}

impl Hot {
    /// A read from `start` to `end` of a file.
    pub fn add(&mut self, path: &Path, (start, end): (u64, u64)) {
        if start >= end {
            return;
        }
        let Some(known) = self.ranges.get_mut(path) else {
            self.ranges.insert(path.to_owned(), vec![(start, end)]);
            return;
        };
        // Reading on is the rule.
        match known.last_mut() {
            Some(last) if (last.0..=last.1).contains(&start) => last.1 = last.1.max(end),
            _ => known.push((start, end)),
        }
    }

    /// All reads are there: each file's ranges in order, without overlaps.
    pub fn finish(&mut self) {
        self.ranges.values_mut().for_each(in_order);
    }

    /// Looks for files with several names that the trace has, in the directory `top`, which is absolute,
    /// or by the directories above it.
    pub fn find_links(&mut self, top: &Path) {
        let Self { ranges, linked } = self;
        for (path, read) in ranges.iter() {
            let mut places = top.ancestors().map(|above| above.join(path));
            let Some(about) = places.find_map(|place| fs::symlink_metadata(place).ok()) else {
                continue;
            };
            if about.is_file() && about.nlink() > 1 {
                let known = linked.entry((about.dev(), about.ino())).or_default();
                known.extend(read);
                in_order(known);
            }
        }
    }

    /// The ranges of a file below a directory, or of that file itself; none if it is not read. Both paths
    /// are absolute.
    #[must_use]
    pub fn of(&self, file: &Path, top: &Path) -> Option<&[(u64, u64)]> {
        if let Some(linked) = self.of_any_name(file) {
            return Some(linked);
        }
        let absolute = self.ranges.get(file);
        let relative = || {
            let mut above = top.ancestors();
            above.find_map(|above| self.ranges.get(file.strip_prefix(above).ok()?))
        };
        absolute.or_else(relative).map(Vec::as_slice)
    }

    fn of_any_name(&self, file: &Path) -> Option<&[(u64, u64)]> {
        if self.linked.is_empty() {
            return None;
        }
        let about = fs::symlink_metadata(file).ok()?;
        let linked = self.linked.get(&(about.dev(), about.ino()))?;
        Some(linked.as_slice())
    }

    /// Files that are read.
    #[must_use]
    pub fn files(&self) -> usize {
        self.ranges.len()
    }
}

/// Without overlaps.
fn in_order(ranges: &mut Vec<(u64, u64)>) {
    ranges.sort_unstable();
    ranges.dedup_by(|next, before| {
        let joins = next.0 <= before.1;
        before.1 = if joins {
            before.1.max(next.1)
        } else {
            before.1
        };
        joins
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a file that was read by another of its names was none that is read.
    #[test]
    fn a_file_that_was_read_by_another_of_its_names_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        let at = |name: &str| top.join(name);
        for name in ["one", "other"] {
            fs::write(at(name), name).unwrap();
        }
        fs::hard_link(at("one"), at("link")).unwrap();
        fs::hard_link(at("one"), at("third")).unwrap();
        let mut hot = Hot::default();
        hot.add(Path::new("link"), (0, 4096));
        hot.add(&at("third"), (4096, 8192));
        hot.finish();
        hot.find_links(&top);
        for name in ["one", "link", "third"] {
            assert_eq!(hot.of(&at(name), &top), Some(&[(0, 8192)][..]), "{name}");
        }
        assert_eq!(hot.of(&at("other"), &top), None);
    }

    #[test]
    fn reads_join_and_files_are_found_by_either_path() {
        let mut hot = Hot::default();
        for range in [(0, 10), (10, 30), (100, 110), (20, 40), (5, 5)] {
            hot.add(Path::new("app/a.db"), range);
        }
        hot.add(Path::new("/data/app/b"), (0, 1));
        hot.finish();
        let of = |file: &str, top: &str| hot.of(Path::new(file), Path::new(top));
        let a: &[(u64, u64)] = &[(0, 40), (100, 110)];
        assert_eq!(of("/data/app/a.db", "/data"), Some(a));
        assert_eq!(of("/data/app/a.db", "/data/app"), Some(a), "traced above");
        assert_eq!(of("/data/app/a.db", "/data/app/a.db"), Some(a));
        assert_eq!(of("/data/other/app/a.db", "/data"), None);
        assert_eq!(of("/data/app/b", "/data"), Some(&[(0, 1)][..]));
        assert_eq!(hot.files(), 2);
    }
}
