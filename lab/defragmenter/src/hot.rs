//! Which parts of which files are read, as a trace says it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Ranges of files that are read, by the path that a trace has: absolute, or relative to the directory
/// that was traced, which is the one that is looked at or one above it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hot {
    ranges: HashMap<PathBuf, Vec<(u64, u64)>>,
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
        for known in self.ranges.values_mut() {
            known.sort_unstable();
            known.dedup_by(|next, before| {
                let joins = next.0 <= before.1;
                before.1 = if joins {
                    before.1.max(next.1)
                } else {
                    before.1
                };
                joins
            });
        }
    }

    /// The ranges of a file below a directory, or of that file itself; none if it is not read. Both paths
    /// are absolute.
    #[must_use]
    pub fn of(&self, file: &Path, top: &Path) -> Option<&[(u64, u64)]> {
        let absolute = self.ranges.get(file);
        let relative = || {
            let mut above = top.ancestors();
            above.find_map(|above| self.ranges.get(file.strip_prefix(above).ok()?))
        };
        absolute.or_else(relative).map(Vec::as_slice)
    }

    /// Files that are read.
    #[must_use]
    pub fn files(&self) -> usize {
        self.ranges.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
