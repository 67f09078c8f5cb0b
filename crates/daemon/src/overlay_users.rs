//! Overlay filesystems whose layers lie in a directory: they go on reading and writing there by descriptors of their
//! own, which no process shows.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use mobifs_host::overlay_mounts;
use rustix::fs::{CWD, Mode, OFlags, fstat, openat};

/// More levels than a path can have.
const LEVELS_MAX: usize = 4096;

/// An overlay filesystem with one of its layers in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OverlayUser {
    /// Where it is mounted.
    pub(crate) mountpoint: PathBuf,
    /// The layer.
    pub(crate) layer: PathBuf,
}

/// The overlay filesystems in the mount namespace of `view`, a process's or thread's directory in `/proc`, one of whose
/// layers fits: `is_it` gets the path of a layer for this process, and as it was named.
pub(crate) fn overlays(view: &Path, is_it: impl Fn(&Path, &Path) -> bool) -> Vec<OverlayUser> {
    let mounts = overlay_mounts(view.join("mountinfo")).unwrap_or_default();
    let user = |mount: mobifs_host::OverlayMount| {
        let mut layers = mount.layers.into_iter();
        let layer = layers.find(|layer| {
            let inside = layer.strip_prefix("/").unwrap_or(layer);
            is_it(&view.join("root").join(inside), layer)
        })?;
        Some(OverlayUser {
            mountpoint: mount.mountpoint,
            layer,
        })
    };
    mounts.into_iter().filter_map(user).collect()
}

/// Whether a directory lies in another one, by whatever path; false where it cannot be opened.
pub(crate) fn lies_in(path: &Path, directory: &Path) -> bool {
    let Ok(about) = fs::metadata(directory) else {
        return false;
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |at: Option<&OwnedFd>, path: &Path| match at {
        None => openat(CWD, path, flags, Mode::empty()),
        Some(at) => openat(at, path, flags, Mode::empty()),
    };
    let mut before = None;
    let mut here = open(None, path);
    for _ in 0..LEVELS_MAX {
        let Ok(opened) = here else {
            return false;
        };
        let Ok(found) = fstat(&opened) else {
            return false;
        };
        #[allow(
            clippy::useless_conversion,
            clippy::unnecessary_cast,
            reason = "the types differ between machines"
        )]
        let identity = (found.st_dev as u64, found.st_ino as u64);
        if identity == (about.dev(), about.ino()) {
            return true;
        }
        if before == Some(identity) {
            // The root is above itself.
            return false;
        }
        before = Some(identity);
        here = open(Some(&opened), Path::new(".."));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_lies_in_those_above_it_by_any_path() {
        let base = tempfile::tempdir().unwrap();
        let inner = base.path().join("d/inner");
        fs::create_dir_all(&inner).unwrap();
        fs::create_dir(base.path().join("beside")).unwrap();
        let link = base.path().join("link");
        std::os::unix::fs::symlink(&inner, &link).unwrap();
        let directory = base.path().join("d");
        assert!(lies_in(&directory, &directory) && lies_in(&inner, &directory));
        assert!(lies_in(&link, &directory));
        for path in [&base.path().join("beside"), base.path(), Path::new("/none")] {
            assert!(!lies_in(path, &directory), "{}", path.display());
        }
    }
}
