//! How much of a directory is the store.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use crate::lower::OWN_DIRECTORY;

/// What a store's own directory adds to the name of a file that alone is the store.
const OWN_SUFFIX: &[u8] = b"-mobifs";

/// How much of a directory is the store, and where the store's own directory lies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreScope {
    /// The whole tree of the directory; the store's own directory is `.mobifs`.
    #[default]
    Tree,
    /// One file of the directory, `NAME`, with what the store's user keeps beside it under
    /// names that begin with `NAME-mobifs-`; the store's own directory is `NAME-mobifs`.
    /// Whatever else is in the directory does not exist for the store.
    File(OsString),
}

impl StoreScope {
    /// Name of the store's own directory.
    pub fn own_directory(&self) -> Cow<'_, OsStr> {
        match self {
            Self::Tree => Cow::Borrowed(OsStr::from_bytes(OWN_DIRECTORY)),
            Self::File(name) => {
                let own = [name.as_bytes(), OWN_SUFFIX].concat();
                Cow::Owned(OsString::from_vec(own))
            }
        }
    }

    /// Path of the store's own directory, for a store in `directory`.
    pub fn own_path(&self, directory: &Path) -> PathBuf {
        directory.join(&*self.own_directory())
    }

    /// The name in the root of an entry that the store calls `name`: its own directory may have
    /// another name there; none if the entry is outside its scope.
    pub(super) fn name_in_root<'a>(&'a self, name: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        match self {
            Self::File(file) if name == OWN_DIRECTORY => {
                Some(Cow::Owned([file.as_bytes(), OWN_SUFFIX].concat()))
            }
            _ => (self.name_for_store(name) == Some(name)).then_some(Cow::Borrowed(name)),
        }
    }

    /// What the store calls an entry of the root; none if it is outside its scope.
    pub(super) fn name_for_store<'a>(&self, name: &'a [u8]) -> Option<&'a [u8]> {
        let Self::File(file) = self else {
            return Some(name);
        };
        let rest = name.strip_prefix(file.as_bytes())?;
        match rest.strip_prefix(OWN_SUFFIX) {
            Some([]) => Some(OWN_DIRECTORY),
            Some([b'-', ..]) => Some(name),
            _ => rest.is_empty().then_some(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_and_what_is_kept_beside_it() {
        let scope = StoreScope::File("a.db".into());
        assert_eq!(&*scope.own_directory(), "a.db-mobifs");
        let in_root = |name| scope.name_in_root(name).map(Cow::into_owned);
        assert_eq!(in_root(b".mobifs").unwrap(), b"a.db-mobifs");
        for own in [&b"a.db"[..], b"a.db-mobifs-wal"] {
            assert_eq!(in_root(own).unwrap(), own);
            assert_eq!(scope.name_for_store(own), Some(own));
        }
        // Its own directory has one name for the store.
        assert_eq!(in_root(b"a.db-mobifs"), None);
        assert_eq!(scope.name_for_store(b"a.db-mobifs"), Some(&b".mobifs"[..]));
        for other in [&b"a.db-wal"[..], b"a.dbx", b"b", b"a.db-mobifsx"] {
            assert_eq!(scope.name_for_store(other), None, "{other:?}");
            assert_eq!(in_root(other), None, "{other:?}");
        }
        assert_eq!(scope.name_for_store(b".mobifs"), None);
    }

    #[test]
    fn a_tree_scope_keeps_names_as_they_are() {
        let scope = StoreScope::Tree;
        assert_eq!(scope.name_in_root(b"a").as_deref(), Some(&b"a"[..]));
        assert_eq!(scope.name_for_store(b".mobifs"), Some(&b".mobifs"[..]));
        assert_eq!(scope.own_path(Path::new("/s")), Path::new("/s/.mobifs"));
    }
}
