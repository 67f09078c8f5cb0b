//! The library that answers within the program.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// Environment variable that names another library, for tests.
pub(crate) const ENVIRONMENT: &str = "MOBIFS_RUN_PRELOAD";

const NAME: &str = "libmobifs_run.so";

/// Where the library is, if it is installed: beside this program's directory, in `lib/mobifs`.
pub(crate) fn library() -> Option<PathBuf> {
    let named = std::env::var_os(ENVIRONMENT).map(PathBuf::from);
    let program = || std::env::current_exe().ok();
    let installed = || Some(program()?.parent()?.parent()?.join("lib/mobifs").join(NAME));
    let library = named.or_else(installed)?;
    (is_usable(&library) && library.is_file()).then_some(library)
}

/// `LD_PRELOAD` separates paths by colons and spaces.
fn is_usable(library: &Path) -> bool {
    let separates = |byte: &u8| matches!(byte, b':' | b' ');
    library.is_absolute() && !library.as_os_str().as_bytes().iter().any(separates)
}

/// `LD_PRELOAD` with the library before what was there.
pub(crate) fn with_library(library: &Path, before: Option<&OsStr>) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        list.push(":");
        list.push(before);
    }
    list
}

/// `LD_PRELOAD` without the library, wherever it lies.
pub(crate) fn without_library(list: &OsStr) -> OsString {
    let named = std::env::var_os(ENVIRONMENT);
    let is_library = |path: &[u8]| {
        let path = Path::new(OsStr::from_bytes(path));
        path.file_name() == Some(OsStr::new(NAME)) || Some(path.as_os_str()) == named.as_deref()
    };
    let paths = list.as_bytes().split(|byte| matches!(byte, b':' | b' '));
    let kept: Vec<&[u8]> = paths.filter(|path| !is_library(path)).collect();
    OsString::from_vec(kept.join(&b':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_libraries_stay() {
        let library = Path::new("/lib/a.so");
        assert_eq!(with_library(library, None), "/lib/a.so");
        assert_eq!(with_library(library, Some(OsStr::new(""))), "/lib/a.so");
        let both = with_library(library, Some(OsStr::new("b.so")));
        assert_eq!(both, "/lib/a.so:b.so");
        let list = OsStr::new("/x/libmobifs_run.so:/lib/a.so b.so");
        assert_eq!(without_library(list), "/lib/a.so:b.so");
        assert_eq!(without_library(OsStr::new("/libmobifs_run.so")), "");
        assert!(!is_usable(Path::new("/a b/c.so")) && !is_usable(Path::new("c.so")));
    }
}
