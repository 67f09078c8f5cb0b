//! Files and their names, as far as the output shows them.

use std::collections::{HashMap, HashSet};

/// A file of a [`Namespace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileId(usize);

#[derive(Clone, Debug, Default)]
struct File {
    /// The names it has; none if all were removed.
    names: Vec<Vec<u8>>,
    last_name: Vec<u8>,
    /// Its size, if a call returned it.
    size: Option<u64>,
}

/// Which file each path means. Paths are absolute, and without `.` and `..`.
#[derive(Debug, Default)]
pub(super) struct Namespace {
    files: Vec<File>,
    by_path: HashMap<Vec<u8>, FileId>,
    /// Paths of which a call said that nothing is there.
    missing: HashSet<Vec<u8>>,
}

impl Namespace {
    /// The file at a path, which is there.
    pub(super) fn at(&mut self, path: &[u8]) -> FileId {
        self.missing.remove(path);
        if let Some(&file) = self.by_path.get(path) {
            let names = &mut self.files[file.0].names;
            if let Some(at) = names.iter().position(|name| name == path) {
                // The name that was used last is what the file is called.
                names[at..].rotate_left(1);
            }
            return file;
        }
        let file = FileId(self.files.len());
        self.files.push(File {
            names: vec![path.to_vec()],
            last_name: path.to_vec(),
            size: None,
        });
        self.by_path.insert(path.to_vec(), file);
        file
    }

    /// The file at a path, if one is known.
    pub(super) fn find(&self, path: &[u8]) -> Option<FileId> {
        self.by_path.get(path).copied()
    }

    /// A file that came into being at a path; what had the path before has lost it.
    pub(super) fn make(&mut self, path: &[u8]) -> FileId {
        self.remove(path);
        let file = self.at(path);
        self.files[file.0].size = Some(0);
        file
    }

    /// The path of a file. One that has none goes on under its last one and a NUL.
    pub(super) fn path(&self, file: FileId) -> Vec<u8> {
        let file = &self.files[file.0];
        match file.names.last() {
            Some(name) => name.clone(),
            None => [&file.last_name, &b"\0"[..]].concat(),
        }
    }

    pub(super) fn size(&self, file: FileId) -> Option<u64> {
        self.files[file.0].size
    }

    pub(super) fn set_size(&mut self, file: FileId, size: u64) {
        self.files[file.0].size = Some(size);
    }

    /// Data was written up to `end`.
    pub(super) fn grow(&mut self, file: FileId, end: u64) {
        let size = &mut self.files[file.0].size;
        *size = Some(size.unwrap_or(0).max(end));
    }

    /// Nothing is at a path.
    pub(super) fn note_missing(&mut self, path: &[u8]) {
        self.missing.insert(path.to_vec());
    }

    pub(super) fn is_missing(&self, path: &[u8]) -> bool {
        self.missing.contains(path)
    }

    /// A name was removed.
    pub(super) fn remove(&mut self, path: &[u8]) {
        if let Some(file) = self.by_path.remove(path) {
            let file = &mut self.files[file.0];
            file.names.retain(|name| name != path);
            file.last_name = path.to_vec();
        }
        self.missing.insert(path.to_vec());
    }

    /// A file got a further name.
    pub(super) fn link(&mut self, from: &[u8], to: &[u8]) {
        let file = self.at(from);
        self.give(file, to.to_vec());
    }

    fn give(&mut self, file: FileId, path: Vec<u8>) {
        self.missing.remove(&path);
        self.files[file.0].names.push(path.clone());
        self.by_path.insert(path, file);
    }

    /// A name was changed, of a file or of a directory with all below it.
    pub(super) fn rename(&mut self, from: &[u8], to: &[u8]) {
        self.at(from);
        let moved = self.take_tree(from);
        for (path, _) in self.take_tree(to) {
            self.remove(&path);
        }
        for (path, file) in moved {
            self.give(file, [to, &path[from.len()..]].concat());
        }
        self.missing.insert(from.to_vec());
    }

    /// Two names were exchanged.
    pub(super) fn exchange(&mut self, first: &[u8], second: &[u8]) {
        self.at(first);
        self.at(second);
        let (firsts, seconds) = (self.take_tree(first), self.take_tree(second));
        for (path, file) in firsts {
            self.give(file, [second, &path[first.len()..]].concat());
        }
        for (path, file) in seconds {
            self.give(file, [first, &path[second.len()..]].concat());
        }
    }

    /// Takes the names at and below a path out.
    fn take_tree(&mut self, path: &[u8]) -> Vec<(Vec<u8>, FileId)> {
        let is_below = |name: &[u8]| {
            let rest = name.strip_prefix(path);
            rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        let below = self.by_path.iter().filter(|(name, _)| is_below(name));
        let below: Vec<_> = below.map(|(name, &file)| (name.clone(), file)).collect();
        for (name, file) in &below {
            self.by_path.remove(name);
            let file = &mut self.files[file.0];
            file.names.retain(|known| known != name);
            file.last_name.clone_from(name);
        }
        below
    }
}

/// `path` in `directory` without `.`, `..` and doubled `/`. Where `..` follows a symbolic link
/// this is wrong, which only `-y` shows.
pub(super) fn joined(directory: &[u8], path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    let whole = if path.starts_with(b"/") {
        &b""[..]
    } else {
        directory
    };
    for part in whole
        .split(|&byte| byte == b'/')
        .chain(path.split(|&byte| byte == b'/'))
    {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    [b"/", parts.join(&b'/').as_slice()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_joined() {
        for (directory, path, expected) in [
            ("/a", "b", "/a/b"),
            ("/a/b", "../c/./d//e", "/a/c/d/e"),
            ("/a", "/x/", "/x"),
            ("/", "../..", "/"),
        ] {
            assert_eq!(
                joined(directory.as_bytes(), path.as_bytes()),
                expected.as_bytes()
            );
        }
    }

    #[test]
    fn a_file_keeps_its_identity_when_its_names_change() {
        let mut names = Namespace::default();
        let file = names.make(b"/d/a");
        names.link(b"/d/a", b"/d/b");
        names.remove(b"/d/b");
        names.rename(b"/d", b"/e");
        assert_eq!(names.path(file), b"/e/a");
        let other = names.make(b"/x");
        names.exchange(b"/x", b"/e/a");
        assert_eq!(
            (names.path(file), names.path(other)),
            (b"/x".to_vec(), b"/e/a".to_vec())
        );
        names.rename(b"/e/a", b"/x");
        assert_eq!(names.path(file), b"/x\0");
        assert_eq!(names.at(b"/x"), other);
        assert!(names.is_missing(b"/e/a"));
    }
}
