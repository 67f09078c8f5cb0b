//! The kernel's table of mounts, which describes a mount without touching it: a
//! mount whose daemon is dead or busy answers nothing.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

const NO_PROC: &str =
    "/proc, which has the table of mounts, is not mounted (mount -t proc proc /proc)";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The kernel's number of this mount.
    pub id: u64,
    /// The number of the mount on which this one lies.
    pub parent_id: u64,
    /// Which directory of the filesystem is mounted: `/`, or in a bind mount another one.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// Type and, after a dot, subtype.
    pub kind: String,
    /// What is mounted.
    pub source: PathBuf,
    /// Device number of everything in it: major.
    pub device_major: u32,
    /// Device number of everything in it: minor.
    pub device_minor: u32,
    /// The user that mounted it, for FUSE mounts.
    pub user_id: Option<u32>,
}

impl MountEntry {
    /// Whether this mount is still in the table, and not another one in its place. Where the table
    /// cannot be read, it counts as being there.
    pub fn is_in_table(&self) -> bool {
        mounts().map_or(true, |table| table.contains(self))
    }

    /// Whether it was mounted to be read only; a filesystem that has failed is read-only without that.
    pub fn is_asked_to_be_read_only(&self) -> bool {
        let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        table.split(|&byte| byte == b'\n').any(|line| {
            let options = line.split(|&byte| byte == b' ').nth(5).unwrap_or_default();
            Self::parse(line).is_some_and(|entry| entry.id == self.id)
                && options.split(|&byte| byte == b',').any(|one| one == b"ro")
        })
    }

    /// Whether it is a FUSE mount of the given subtype.
    pub fn has_subtype(&self, subtype: &str) -> bool {
        let given = self.kind.split_once('.');
        given.is_some_and(|(kind, given)| matches!(kind, "fuse" | "fuseblk") && given == subtype)
    }

    /// Whether both show the same filesystem.
    pub fn has_device_of(&self, other: &Self) -> bool {
        (self.device_major, self.device_minor) == (other.device_major, other.device_minor)
    }

    /// Whether it shows only a part of its filesystem, as bind mounts can.
    pub fn shows_a_part(&self) -> bool {
        self.root != Path::new("/")
    }

    /// Whether it is a FUSE mount.
    pub fn is_fuse(&self) -> bool {
        matches!(self.kind.split('.').next(), Some("fuse" | "fuseblk"))
    }

    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        // id parent major:minor root mountpoint options [optional…] - type source superoptions
        let mut fields = line.split(|&byte| byte == b' ');
        let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
        let (id, parent_id) = (number()?, number()?);
        let device = std::str::from_utf8(fields.next()?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let root = unescaped_path(fields.next()?);
        let mountpoint = unescaped_path(fields.next()?);
        let mut fields = fields.skip_while(|&field| field != b"-").skip(1);
        let kind = String::from_utf8_lossy(&unescape_bytes(fields.next()?)).into_owned();
        let source = unescaped_path(fields.next()?);
        let options = fields.next().unwrap_or_default();
        let user_id = options.split(|&byte| byte == b',').find_map(|option| {
            let value = option.strip_prefix(b"user_id=")?;
            std::str::from_utf8(value).ok()?.parse().ok()
        });
        Some(Self {
            id,
            parent_id,
            root,
            mountpoint,
            kind,
            source,
            device_major: major.parse().ok()?,
            device_minor: minor.parse().ok()?,
            user_id,
        })
    }
}

/// The table writes space, tab, newline and backslash as three octal digits.
pub(crate) fn unescape_bytes(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut at = 0;
    while let Some(&byte) = field.get(at) {
        let code = field
            .get(at + 1..at + 4)
            .filter(|_| byte == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(code.unwrap_or(byte));
        at += if code.is_some() { 4 } else { 1 };
    }
    bytes
}

/// A path as tables of the kernel write it: space, tab, newline and backslash are three octal digits.
pub fn unescaped_path(field: &[u8]) -> PathBuf {
    OsString::from_vec(unescape_bytes(field)).into()
}

/// All mounts that this process sees, in the order of mounting.
///
/// # Errors
/// If `/proc` is not mounted.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    read_mount_table("/proc/self/mountinfo").map_err(|error| match error.kind() {
        // Otherwise it sounds as if what the caller looks for were missing.
        io::ErrorKind::NotFound => io::Error::other(NO_PROC),
        _ => error,
    })
}

/// All mounts that another process sees.
///
/// # Errors
/// If there is no such process, or it is another user's.
pub fn mounts_of(pid: u32) -> io::Result<Vec<MountEntry>> {
    read_mount_table(format!("/proc/{pid}/mountinfo"))
}

/// The other mounts of the same filesystem that this process sees: bind mounts, and what they were
/// made of.
///
/// # Errors
/// As [`mounts`].
pub fn other_mounts_of(mount: &MountEntry) -> io::Result<Vec<MountEntry>> {
    let table = mounts()?.into_iter();
    Ok(table
        .filter(|other| other.has_device_of(mount) && other.id != mount.id)
        .collect())
}

/// The mounts in a table of `/proc`: the file `mountinfo` of a process.
///
/// # Errors
/// If it cannot be read.
pub fn read_mount_table(path: impl AsRef<Path>) -> io::Result<Vec<MountEntry>> {
    let table = std::fs::read(path)?;
    Ok(table
        .split(|&byte| byte == b'\n')
        .filter_map(MountEntry::parse)
        .collect())
}

/// The mount of a table that has this path, which is absolute and without symbolic links: of those
/// above it the nearest, and of several at one place the last, which covers the others.
pub fn mount_around<'t>(path: &Path, table: &'t [MountEntry]) -> Option<&'t MountEntry> {
    let above = table
        .iter()
        .filter(|mount| path.starts_with(&mount.mountpoint));
    above.max_by_key(|mount| mount.mountpoint.components().count())
}

/// The topmost mount at exactly this absolute path.
///
/// # Errors
/// As [`mounts`].
pub fn mount_at(mountpoint: &Path) -> io::Result<Option<MountEntry>> {
    Ok(mounts()?
        .into_iter()
        .rfind(|mount| mount.mountpoint == mountpoint))
}

/// An absolute path for `path` without asking the object that it names (which may be a mount
/// without a daemon): only its parent directories are resolved, and a symlink at the end.
///
/// # Errors
/// If a parent directory does not exist.
pub fn absolute_without_touching(path: &Path) -> io::Result<PathBuf> {
    const SYMLINKS_MAX: usize = 40;
    let mut path = std::env::current_dir()?.join(path);
    for _ in 0..SYMLINKS_MAX {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            // The root, or a path that ends in "..".
            return path.canonicalize();
        };
        let resolved = parent.canonicalize()?.join(name);
        match std::fs::read_link(&resolved) {
            Ok(target) => path = resolved.parent().unwrap_or(parent).join(target),
            Err(_) => return Ok(resolved),
        }
    }
    Err(io::Error::from_raw_os_error(
        rustix::io::Errno::LOOP.raw_os_error(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        let line = b"36 35 98:3 /mnt1 /mnt\\0402 rw,noatime master:1 propagate_from:2 - \
                     fuse.mobifs /a\\134b rw,user_id=1000,group_id=0";
        let entry = MountEntry::parse(line).unwrap();
        assert_eq!(entry.mountpoint, Path::new("/mnt 2"));
        assert_eq!(entry.root, Path::new("/mnt1"));
        assert!(entry.shows_a_part());
        assert_eq!(entry.source, Path::new("/a\\b"));
        assert_eq!((entry.device_major, entry.device_minor), (98, 3));
        assert_eq!((entry.id, entry.parent_id), (36, 35));
        assert_eq!(entry.user_id, Some(1000));
        assert!(entry.has_subtype("mobifs") && entry.is_fuse());
        assert_eq!(MountEntry::parse(b"rubbish"), None);
    }

    fn mount(id: u64, mountpoint: &str) -> MountEntry {
        MountEntry {
            id,
            parent_id: 1,
            root: "/".into(),
            mountpoint: mountpoint.into(),
            kind: "ext4".to_owned(),
            source: "/dev/x".into(),
            device_major: 8,
            device_minor: 1,
            user_id: None,
        }
    }

    #[test]
    fn the_nearest_mount_and_of_several_the_last_has_a_path() {
        let table = [
            mount(1, "/"),
            mount(2, "/a"),
            mount(3, "/a/b"),
            mount(4, "/a"),
        ];
        let found = |path: &str| mount_around(Path::new(path), &table).unwrap().id;
        assert_eq!(
            [found("/"), found("/ab"), found("/a/c"), found("/a/b/x")],
            [1, 1, 4, 3]
        );
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(mount_at(Path::new("/")).unwrap().is_some());
        assert_eq!(mount_at(Path::new("/nonexistent")).unwrap(), None);
    }

    #[test]
    fn paths_are_resolved_up_to_the_last_part() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        std::fs::create_dir(base.join("real")).unwrap();
        std::os::unix::fs::symlink("real", base.join("link")).unwrap();
        std::os::unix::fs::symlink("loop", base.join("loop")).unwrap();
        let resolve = |name: &str| absolute_without_touching(&base.join(name));
        assert_eq!(resolve("real/").unwrap(), base.join("real"));
        assert_eq!(resolve("link").unwrap(), base.join("real"));
        assert_eq!(resolve("absent").unwrap(), base.join("absent"));
        assert_eq!(resolve("real/..").unwrap(), base);
        assert!(resolve("loop").is_err() && resolve("absent/x").is_err());
    }
}
