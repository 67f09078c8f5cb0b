//! Where the control socket of an image lies, and which image a path leads to.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use mobifs_host::{MountEntry, absolute_without_touching, mount_at, mounts, runtime_directory};
use rustix::fs::{major, minor};
use rustix::io::Errno;

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

/// Detaches the private mounts of servers that were killed. Such a mount answers every look with
/// an error, and a loop device over its file passes that on: `mkfs.btrfs`, for one, looks at the files of
/// all loop devices and then refuses to work anywhere on the machine.
///
/// # Errors
/// The mount table or the directory of the mounts cannot be read.
pub(crate) fn detach_dead_mounts() -> io::Result<()> {
    for mount in private_mounts()? {
        if is_served(&mount.mountpoint) {
            continue;
        }
        let shown = mount.mountpoint.display();
        match mobifs_fuse::unmount(&mount.mountpoint, true) {
            Ok(()) => {
                tracing::info!("detached {shown}, whose server ended without unmounting it");
                // Another server may use them again at any moment.
                let _used = std::fs::remove_dir(&mount.mountpoint);
            }
            Err(error) => tracing::warn!("the server of {shown} has ended, and {error}"),
        }
    }
    Ok(())
}

/// The mounts that servers have made for loop devices.
///
/// # Errors
/// As those of [`detach_dead_mounts`].
pub(crate) fn private_mounts() -> io::Result<Vec<MountEntry>> {
    let directory = runtime_directory()?;
    let mut found = mounts()?;
    found.retain(|mount| {
        mount.has_subtype(SUBTYPE) && mount.mountpoint.parent() == Some(directory.as_path())
    });
    Ok(found)
}

/// Whether a private mount has a server. One without a socket has just begun, and answers; one with
/// a socket is not asked, as it may be stopped. The kernel keeps attributes of files, but no statistics.
pub(crate) fn is_served(mountpoint: &Path) -> bool {
    UnixStream::connect(mountpoint.with_extension("sock")).is_ok()
        || rustix::fs::statfs(mountpoint).err() != Some(Errno::NOTCONN)
}

/// The image that `path` leads to: an image, a mount of one, the file in such a mount, a
/// loop device over that, or a filesystem mounted from the loop device; none if it is on something
/// else.
///
/// # Errors
/// `path` itself cannot be looked at.
pub(super) fn image_of(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut path = absolute_without_touching(path)?;
    let mut is_given = true;
    for _ in 0..DEPTH_MAX {
        if let Some(mount) = mount_at(&path)? {
            if mount.has_subtype(SUBTYPE) {
                return Ok(Some(mount.source));
            }
            // What a mount calls its source may be no path.
            if !mount.source.is_absolute() {
                return Ok(None);
            }
            (path, is_given) = (mount.source, false);
        }
        if let Some(mount) = mount_of_file(&path)? {
            return Ok(Some(mount.source));
        }
        let found = match path.metadata() {
            Err(error) if is_given => return Err(error),
            found => there(found)?,
        };
        let Some(found) = found else {
            return Ok(None);
        };
        if !found.file_type().is_block_device() {
            return there(path.canonicalize());
        }
        let Some(below) = there(backing_file(found.rdev()))? else {
            return Ok(None);
        };
        (path, is_given) = (below, false);
    }
    Err(io::Error::other("it lies too deep below other devices"))
}

/// None where that is not there.
fn there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
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
