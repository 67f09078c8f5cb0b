//! What a path on the command line is, and whether it can be measured.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use mobifs_host::{MountEntry, absolute_without_touching, mount_around, mounts};
use rustix::fs::{FlockOperation, OFlags, flock, major, minor};
use rustix::io::Errno;

use crate::error::{MeasureError, path_text};
use crate::filesystem::{self, Content, HEAD_BYTES};

/// Device and inode.
pub(crate) type Identity = (u64, u64);

/// Endings of names that only images have.
const IMAGE_ENDINGS: [&str; 6] = ["img", "image", "ext4", "ext3", "ext2", "raw"];

/// What is to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    Directory,
    File,
    Image,
}

/// A path that can be measured.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) path: PathBuf,
    pub(crate) sort: Sort,
    pub(crate) identity: Identity,
    /// The mount that it lies on, where the table of mounts has it.
    pub(crate) mount: Option<MountEntry>,
}

/// Looks at all paths, without those that are there twice.
pub(crate) fn targets(paths: &[PathBuf], as_files: bool) -> Result<Vec<Target>, MeasureError> {
    let table = mounts().unwrap_or_default();
    let mut known = HashSet::new();
    let mut found = Vec::new();
    for path in paths {
        let target = target(path, as_files, &table)?;
        if known.insert(target.identity) {
            found.push(target);
        }
    }
    Ok(found)
}

fn target(path: &Path, as_files: bool, table: &[MountEntry]) -> Result<Target, MeasureError> {
    let absolute = absolute_without_touching(path).map_err(|e| MeasureError::at(path, e))?;
    if let Ok(target) = fs::read_link(path) {
        let path = path.to_owned();
        return Err(MeasureError::SymbolicLink { path, target });
    }
    let mount = mount_around(&absolute, table);
    let about = fs::symlink_metadata(path);
    let about = match (about, mount) {
        // A mount whose daemon is dead.
        (Err(error), Some(mount)) if mount.is_fuse() && error.kind() == ErrorKind::NotConnected => {
            return Err(unmapped(path, mount));
        }
        (about, _) => about.map_err(|error| MeasureError::at(path, error))?,
    };
    let kind = about.file_type();
    let sort = if kind.is_dir() {
        Sort::Directory
    } else if kind.is_block_device() {
        block_device(path)?
    } else if kind.is_file() {
        if as_files { Sort::File } else { file(path)? }
    } else {
        return Err(MeasureError::NoFile(path.to_owned()));
    };
    if let Some(mount) = mount.filter(|_| sort != Sort::Image)
        && (mount.is_fuse() || filesystem::is_network(&mount.kind))
    {
        return Err(unmapped(path, mount));
    }
    Ok(Target {
        path: path.to_owned(),
        sort,
        identity: (about.dev(), about.ino()),
        mount: mount.cloned(),
    })
}

/// Why files of this mount cannot be measured.
fn unmapped(path: &Path, mount: &MountEntry) -> MeasureError {
    let (path, filesystem) = (path.to_owned(), mount.kind.clone());
    if mount.has_subtype("mobifs") {
        let (mountpoint, store) = (mount.mountpoint.clone(), mount.source.clone());
        MeasureError::MobifsMount {
            path,
            mountpoint,
            store,
        }
    } else if filesystem::is_network(&mount.kind) {
        MeasureError::Network { path, filesystem }
    } else {
        MeasureError::NoMap { path, filesystem }
    }
}

fn file(path: &Path) -> Result<Sort, MeasureError> {
    match head(path)? {
        Content::Ext4 => Ok(Sort::Image),
        Content::Other(filesystem) => Err(MeasureError::OtherFilesystem {
            path: path.to_owned(),
            filesystem,
        }),
        Content::Unknown => {
            let ending = path.extension().and_then(|ending| ending.to_str());
            if ending.is_some_and(|ending| IMAGE_ENDINGS.contains(&ending)) {
                let filesystem = "no filesystem that is known (its superblock may be damaged)";
                let path = path.to_owned();
                return Err(MeasureError::OtherFilesystem { path, filesystem });
            }
            Ok(Sort::File)
        }
    }
}

fn block_device(path: &Path) -> Result<Sort, MeasureError> {
    match head(path)? {
        Content::Ext4 => Ok(Sort::Image),
        Content::Other(filesystem) => Err(MeasureError::OtherFilesystem {
            path: path.to_owned(),
            filesystem,
        }),
        Content::Unknown => Err(MeasureError::NoFilesystem(path.to_owned())),
    }
}

fn head(path: &Path) -> Result<Content, MeasureError> {
    let at = |error: io::Error| MeasureError::at(path, error);
    let mut head = Vec::with_capacity(HEAD_BYTES);
    let file = open(path, OFlags::empty()).map_err(at)?;
    file.take(HEAD_BYTES as u64)
        .read_to_end(&mut head)
        .map_err(at)?;
    Ok(filesystem::content(&head))
}

fn open(path: &Path, more: OFlags) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | more;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
}

/// Opens an image that nothing else uses, and keeps others that ask from using it.
///
/// # Errors
/// It is not there, or in use.
pub fn open_image(path: &Path) -> Result<File, MeasureError> {
    let at = |error: io::Error| MeasureError::at(path, error);
    let about = fs::metadata(path).map_err(at)?;
    let in_use = |by: String, advice: String| MeasureError::InUse {
        path: path.to_owned(),
        by,
        advice,
    };
    let mounted = |major: u32, minor: u32| {
        let table = mounts().unwrap_or_default();
        table
            .into_iter()
            .find(|mount| (mount.device_major, mount.device_minor) == (major, minor))
    };
    let measure = |mount: &MountEntry| {
        format!(
            "measure it where it is mounted: mobifs frag measure {}",
            path_text(&mount.mountpoint)
        )
    };
    if about.file_type().is_block_device() {
        // Of a device, exclusive opening fails while a filesystem or another driver has it.
        return open(path, OFlags::EXCL).map_err(|error| {
            if error.raw_os_error() != Some(Errno::BUSY.raw_os_error()) {
                return at(error);
            }
            match mounted(major(about.rdev()), minor(about.rdev())) {
                Some(mount) => in_use("mounted".to_owned(), measure(&mount)),
                None => in_use(
                    "by a driver of the kernel or another program".to_owned(),
                    "end that use first".to_owned(),
                ),
            }
        });
    }
    if let Some((device, number)) = loop_device_over((about.dev(), about.ino())) {
        const LOOP_MAJOR: u32 = 7;
        let by = format!("by {device}");
        return Err(match mounted(LOOP_MAJOR, number) {
            Some(mount) => in_use(by, measure(&mount)),
            None => in_use(by, format!("detach it first: losetup -d {device}")),
        });
    }
    let file = open(path, OFlags::empty()).map_err(at)?;
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => Err(in_use(
            "another program has locked it".to_owned(),
            "end that program first, or measure where it is mounted".to_owned(),
        )),
        // Some filesystems have no such locks, and then nothing else has one either.
        _ => Ok(file),
    }
}

/// The loop device over a file, with its number.
fn loop_device_over(image: Identity) -> Option<(String, u32)> {
    let devices = fs::read_dir("/sys/block").ok()?;
    devices.flatten().find_map(|device| {
        let name = device.file_name().into_string().ok()?;
        let number = name.strip_prefix("loop")?.parse().ok()?;
        let backing = fs::read(device.path().join("loop/backing_file")).ok()?;
        let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
        use std::os::unix::ffi::OsStrExt as _;
        let about = fs::metadata(std::ffi::OsStr::from_bytes(backing)).ok()?;
        ((about.dev(), about.ino()) == image).then(|| (format!("/dev/{name}"), number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(path: &Path) -> String {
        targets(&[path.to_owned()], false).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_measured_is_said_in_a_sentence() {
        let base = tempfile::tempdir().unwrap();
        let path = |name: &str| base.path().join(name);
        std::os::unix::fs::symlink("elsewhere", path("link")).unwrap();
        assert!(error(&path("link")).contains("symbolic link"));
        assert!(error(&path("missing")).contains("No such file"));
        assert!(error(Path::new("/dev/null")).contains("no extents"));
        fs::write(path("x"), b"XFSB").unwrap();
        assert!(error(&path("x")).contains("only ext4"));
        fs::write(path("broken.img"), [0; 4096]).unwrap();
        assert!(error(&path("broken.img")).contains("superblock may be damaged"));
        let as_file = targets(&[path("broken.img")], true).unwrap();
        assert_eq!(as_file[0].sort, Sort::File);
    }

    #[test]
    fn of_a_mount_of_mobifs_the_store_is_to_be_measured() {
        let mount = |kind: &str| MountEntry {
            id: 2,
            parent_id: 1,
            root: "/".into(),
            mountpoint: "/data".into(),
            kind: kind.to_owned(),
            source: "/var/store".into(),
            device_major: 0,
            device_minor: 50,
            user_id: None,
        };
        let said = |kind: &str| unmapped(Path::new("/data/app"), &mount(kind)).to_string();
        assert!(said("fuse.mobifs").ends_with("mobifs frag measure /var/store"));
        assert!(said("nfs4").contains("another machine"));
        assert!(said("fuse.sshfs").contains("no FIEMAP"));
    }

    #[test]
    fn a_path_that_is_given_twice_is_measured_once() {
        let base = tempfile::tempdir().unwrap();
        let again = base
            .path()
            .join("..")
            .join(base.path().file_name().unwrap());
        let found = targets(&[base.path().to_owned(), again], false).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].sort, Sort::Directory);
    }

    #[test]
    fn a_locked_image_is_in_use() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("image");
        fs::write(&path, b"").unwrap();
        let held = File::open(&path).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        let error = open_image(&path).unwrap_err();
        assert!(matches!(error, MeasureError::InUse { .. }), "{error}");
        drop(held);
        open_image(&path).unwrap();
    }
}
