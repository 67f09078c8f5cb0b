//! Which app a path belongs to.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use globset::{GlobBuilder, GlobMatcher};

/// The app of what belongs to none.
pub(super) const NO_APP: &[u8] = b".";
/// Directories whose app is remembered.
const KNOWN_MAX: usize = 1 << 16;

/// Directories that are apps.
#[derive(Debug, Default)]
pub(super) struct Apps {
    globs: Vec<GlobMatcher>,
    /// The app of each directory that was asked for.
    known: HashMap<Vec<u8>, Vec<u8>>,
}

impl Apps {
    /// Globs as a configuration of the mount has them; what is none matches nothing, which the
    /// mount would have refused.
    pub(super) fn new(globs: &[String]) -> Self {
        let globs = globs.iter().filter_map(|glob| {
            let glob = GlobBuilder::new(glob)
                .literal_separator(true)
                .backslash_escape(true)
                .build();
            glob.ok().map(|glob| glob.compile_matcher())
        });
        Self {
            globs: globs.collect(),
            known: HashMap::new(),
        }
    }

    /// The nearest directory above (or, of a directory, itself) that is an app.
    pub(super) fn of(&mut self, path: &[u8], is_directory: bool) -> &[u8] {
        let directory = if is_directory { path } else { above(path) };
        if directory.is_empty() || directory == NO_APP {
            return NO_APP;
        }
        if !self.known.contains_key(directory) {
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
            let app = self.find(directory).to_vec();
            self.known.insert(directory.to_vec(), app);
        }
        self.known.get(directory).map_or(NO_APP, Vec::as_slice)
    }

    fn find<'a>(&self, directory: &'a [u8]) -> &'a [u8] {
        let mut at = directory;
        while !at.is_empty() {
            if self
                .globs
                .iter()
                .any(|glob| glob.is_match(OsStr::from_bytes(at)))
            {
                return at;
            }
            at = above(at);
        }
        NO_APP
    }
}

fn above(path: &[u8]) -> &[u8] {
    let slash = path.iter().rposition(|&byte| byte == b'/');
    &path[..slash.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_app_counts() {
        let mut apps = Apps::new(&["*".to_owned(), "home/*".to_owned()]);
        for (path, is_directory, app) in [
            ("file", false, "."),
            (".", true, "."),
            ("mail", true, "mail"),
            ("mail/box/1", false, "mail"),
            ("home/ann", false, "home"),
            ("home/ann", true, "home/ann"),
            ("home/ann/x/y", false, "home/ann"),
        ] {
            let found = apps.of(path.as_bytes(), is_directory);
            assert_eq!(found, app.as_bytes(), "{path} {is_directory}");
        }
    }
}
