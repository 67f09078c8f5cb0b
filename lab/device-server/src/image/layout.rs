//! The parts of an image: its pages, and the file beside it.

use std::path::{Path, PathBuf};

/// Suffix to the name of the image.
const SUFFIX: &str = ".flash";
/// A device consists of whole pages of this many bytes.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Where the sidecar of an image lies.
pub(crate) fn path_beside(image: &Path) -> PathBuf {
    let mut path = image.as_os_str().to_owned();
    path.push(SUFFIX);
    path.into()
}
