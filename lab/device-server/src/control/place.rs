//! Where the control socket of an image lies, and which image a path leads to.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use mobifs_host::{MountEntry, absolute_without_touching, mount_at, runtime_directory};
use rustix::fs::{major, minor};

use crate::SUBTYPE;

/// How many devices may lie over each other.
const DEPTH_MAX: usize = 4;

/// A name that no other image of the machine has at the same time.
fn name_of(image: &Path) -> io::Result<String> {
    let found = image.metadata()?;
    Ok(format!("flash-{:x}-{}", found.dev(), found.ino()))
}

/// The control socket of an image.
pub(crate) fn socket_path(image: &Path) -> io::Result<PathBuf> {
    Ok(runtime_directory()?.join(name_of(image)? + ".sock"))
}

/// Where an image is mounted by default.
pub(crate) fn private_mountpoint(image: &Path) -> io::Result<PathBuf> {
    Ok(runtime_directory()?.join(name_of(image)?))
}

/// The image that `path` leads to: an image, a mount of one, the file in such a mount, a
/// loop device over that, or a filesystem mounted from the loop device.
pub(super) fn image_of(path: &Path) -> io::Result<PathBuf> {
    let mut path = absolute_without_touching(path)?;
    for _ in 0..DEPTH_MAX {
        if let Some(mount) = mount_at(&path)? {
            if mount.has_subtype(SUBTYPE) {
                return Ok(mount.source);
            }
            path = mount.source;
        }
        if let Some(mount) = mount_of_file(&path)? {
            return Ok(mount.source);
        }
        let found = path.metadata()?;
        if !found.file_type().is_block_device() {
            return path.canonicalize();
        }
        path = backing_file(found.rdev())?;
    }
    Err(io::Error::other("it lies too deep below other devices"))
}

/// The mount whose file `path` is. The file is not touched: after a cut it answers with
/// errors.
fn mount_of_file(path: &Path) -> io::Result<Option<MountEntry>> {
    let Some(parent) = path.parent() else {
        return Ok(None);
    };
    Ok(mount_at(parent)?.filter(|mount| mount.has_subtype(SUBTYPE)))
}

/// The file that a loop device stands on.
fn backing_file(device: u64) -> io::Result<PathBuf> {
    let (major, minor) = (major(device), minor(device));
    let path = format!("/sys/dev/block/{major}:{minor}/loop/backing_file");
    let text = std::fs::read_to_string(path)?;
    let text = text.trim_end_matches('\n');
    Ok(text.strip_suffix(" (deleted)").unwrap_or(text).into())
}
