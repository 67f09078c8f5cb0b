//! A directory that is held open.
//!
//! Root adopts directories of users, who can put symbolic links in the place of what is on a path. So a
//! path is followed once, without symbolic links, and what is done with the names in the directory is done
//! by its descriptor.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, IFlags, Mode, OFlags, RenameFlags, ResolveFlags, Timespec, Timestamps,
    XattrFlags, fgetxattr, flistxattr, fsetxattr, futimens, ioctl_getflags, ioctl_setflags,
    mkdirat, openat, openat2, renameat_with, unlinkat,
};
use rustix::io::Errno;

/// As long as the kernel lets values be.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// A directory of a filesystem.
#[derive(Debug)]
pub(super) struct Directory(File);

impl Directory {
    /// Opens it; there is no symbolic link on the path.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            // Before Linux 5.6, or a filter of system calls that is older.
            Err(Errno::NOSYS | Errno::PERM) => openat(CWD, path, flags, Mode::empty()),
            other => other,
        };
        Ok(Self(File::from(opened?)))
    }

    /// Its names are on the disk when this returns.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    /// What lies in it.
    pub(super) fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if !matches!(name.as_slice(), b"." | b"..") {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    /// Makes a directory in it, which only this user may enter.
    pub(super) fn make(&self, name: &OsStr) -> io::Result<()> {
        Ok(mkdirat(&self.0, name, Mode::RWXU)?)
    }

    /// Whether it has a directory of this name.
    pub(super) fn has_directory(&self, name: &str) -> bool {
        let about = rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW);
        about.is_ok_and(|about| rustix::fs::FileType::from_raw_mode(about.st_mode).is_dir())
    }

    /// When what has this name in it was changed last, in any way: seconds and nanoseconds.
    pub(super) fn changed(&self, name: &str) -> Option<(i64, i64)> {
        let path = format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd());
        let about = fs::symlink_metadata(path).ok()?;
        Some((about.ctime(), about.ctime_nsec()))
    }

    /// Renames what is in it, to a name in `target` that nothing has.
    pub(super) fn move_out(&self, name: &OsStr, target: &Self, new: &OsStr) -> io::Result<()> {
        renameat_with(&self.0, name, &target.0, new, RenameFlags::NOREPLACE)?;
        Ok(())
    }

    /// Gives each of two names in it what the other has, in one step: both are there at any time, and
    /// after a crash.
    pub(super) fn exchange(&self, one: &OsStr, other: &OsStr) -> io::Result<()> {
        renameat_with(&self.0, one, &self.0, other, RenameFlags::EXCHANGE)?;
        self.sync()
    }

    /// Removes an empty directory in it.
    pub(super) fn remove_empty(&self, name: &OsStr) -> io::Result<()> {
        unlinkat(&self.0, name, AtFlags::REMOVEDIR)?;
        self.sync()
    }

    /// Removes a directory in it with all that is in that.
    pub(super) fn remove_tree(&self, name: &str) -> io::Result<()> {
        fs::remove_dir_all(format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd()))
    }

    /// Opens a directory in it.
    pub(super) fn inner(&self, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(Self(File::from(openat(
            &self.0,
            name,
            flags,
            Mode::empty(),
        )?)))
    }

    /// Its owner, mode, and so on.
    pub(super) fn about(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    /// Gives it owner, mode, and extended attributes of another, which have ACLs and labels.
    pub(super) fn copy_access(&self, from: &Self) -> io::Result<()> {
        let (about, own) = (from.about()?, self.about()?);
        if (own.uid(), own.gid()) != (about.uid(), about.gid()) {
            fchown(&self.0, Some(about.uid()), Some(about.gid()))?;
        }
        let mut names = vec![0; XATTR_BYTES_MAX];
        let length = match flistxattr(&from.0, &mut names[..]) {
            Err(Errno::NOTSUP) => 0,
            other => other?,
        };
        let names = names[..length].split(|&byte| byte == 0);
        for name in names.filter(|name| !name.is_empty()) {
            let mut value = vec![0; XATTR_BYTES_MAX];
            let length = match fgetxattr(&from.0, name, &mut value[..]) {
                Err(Errno::NODATA) => continue,
                other => other?,
            };
            match fsetxattr(&self.0, name, &value[..length], XattrFlags::empty()) {
                // Of the kernel's own, or for root alone: that of the files keeps them.
                Ok(()) | Err(Errno::PERM | Errno::NOTSUP | Errno::ACCESS | Errno::INVAL) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        self.0
            .set_permissions(fs::Permissions::from_mode(about.mode() & 0o7777))
    }

    /// Its times of access and modification.
    pub(super) fn times(&self) -> io::Result<Timestamps> {
        let about = self.about()?;
        let time = |seconds, nanoseconds: i64| Timespec {
            tv_sec: seconds,
            tv_nsec: nanoseconds as _,
        };
        Ok(Timestamps {
            last_access: time(about.atime(), about.atime_nsec()),
            last_modification: time(about.mtime(), about.mtime_nsec()),
        })
    }

    pub(super) fn set_times(&self, times: &Timestamps) -> io::Result<()> {
        Ok(futimens(&self.0, times)?)
    }

    /// Whether it is immutable, or only names can be added to it; false where the filesystem has no flags.
    pub(super) fn is_fixed(&self) -> bool {
        let flags = ioctl_getflags(&self.0);
        flags.is_ok_and(|flags| flags.intersects(IFlags::IMMUTABLE | IFlags::APPEND))
    }

    /// Makes it immutable, or not, where the filesystem has that flag.
    pub(super) fn set_immutable(&self, is_immutable: bool) -> io::Result<()> {
        let Ok(flags) = ioctl_getflags(&self.0) else {
            return Ok(());
        };
        let mut wanted = flags;
        wanted.set(IFlags::IMMUTABLE, is_immutable);
        if wanted != flags {
            ioctl_setflags(&self.0, wanted)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(base: &tempfile::TempDir) -> std::path::PathBuf {
        base.path().canonicalize().unwrap()
    }

    #[test]
    fn symbolic_links_lead_nowhere() {
        let base = tempfile::tempdir().unwrap();
        let root = root(&base);
        fs::create_dir_all(root.join("a/b")).unwrap();
        std::os::unix::fs::symlink("a", root.join("link")).unwrap();
        Directory::open(&root.join("a/b")).unwrap();
        assert!(Directory::open(&root.join("link/b")).is_err());
        assert!(Directory::open(&root.join("link")).is_err());
        let held = Directory::open(&root).unwrap();
        assert!(held.inner(OsStr::new("link")).is_err() && !held.has_directory("link"));
    }

    #[test]
    fn names_are_exchanged_and_nothing_is_replaced() {
        let base = tempfile::tempdir().unwrap();
        let root = root(&base);
        for name in ["one", "other"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        fs::write(root.join("one/file"), "").unwrap();
        let held = Directory::open(&root).unwrap();
        held.exchange(OsStr::new("one"), OsStr::new("other"))
            .unwrap();
        assert!(root.join("other/file").exists() && root.join("one").is_dir());
        assert!(
            held.move_out(OsStr::new("other"), &held, OsStr::new("one"))
                .is_err()
        );
        assert!(held.remove_empty(OsStr::new("other")).is_err());
        held.remove_tree("other").unwrap();
        assert_eq!(held.names().unwrap(), ["one"]);
    }
}
