//! Stores on overlayfs.
//!
//! A store knows its objects by inode number, keeps them open, and moves directories. Of an object that
//! comes from a lower layer overlayfs makes a copy when it is first changed: what was opened before stays
//! the old one, one of several names gets a file of its own, and a directory cannot be moved
//! (`EXDEV`). An object that was made through the overlay is in the upper layer only, and none of that
//! concerns it. So a store there begins in an empty directory, with a mark in its own directory: a file
//! that says which inode it is, and when that was made. Where the upper layer has become a lower one (an
//! image was made of it), opening the mark for writing copies it, which gives it another time.
//!
//! Three more conditions: inode numbers are stable and are those of one filesystem (all layers are
//! on one), a program cannot move a directory of a lower layer into the store as it is
//! (`redirect_dir`), and what is synced is durable (no `volatile`).

use std::fs::{File, read_to_string};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;

use rustix::fd::AsFd;
use rustix::fs::{self, AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::StoreError;
use crate::lower::OWN_DIRECTORY;
use crate::lower::posix::magic::{OVERLAYFS_MAGIC, magic};

const MARK: &str = "overlay";
const MARK_BYTES_MAX: u64 = 200;
const REMEDY: &str = "put the store on the filesystem that has the upper layer (a volume of the \
                      container)";
const SEVERAL_FILESYSTEMS: &str = "it has its layers on several filesystems, where directories have no lasting \
                                   numbers";

/// Whether `directory` is on overlayfs.
pub(super) fn is_overlay(directory: impl AsFd) -> rustix::io::Result<bool> {
    Ok(magic(fs::fstatfs(directory)?.f_type) == OVERLAYFS_MAGIC)
}

/// Refuses what may have an object of a lower layer in it; nothing is changed.
pub(super) fn check(root: impl AsFd, path: &Path) -> Result<(), StoreError> {
    let failed =
        |errno: Errno| StoreError::lower(format!("looking at {}", path.display()))(errno.into());
    let refuse = |why: &str| {
        let shown = path.display();
        Err(StoreError::Unsuitable(format!(
            "{shown} is on overlayfs, and {why}; {REMEDY}"
        )))
    };
    if let Some(why) = unsuitable_mount(&root).map_err(failed)? {
        return refuse(why);
    }
    let is_ours = match own_mark(&root) {
        Err(Errno::NOENT) => None,
        found => Some(found.map_err(failed)?),
    };
    if is_ours == Some(true) {
        return Ok(());
    }
    if is_empty(&root).map_err(failed)? {
        return if has_several_filesystems(&root).map_err(failed)? {
            refuse(SEVERAL_FILESYSTEMS)
        } else {
            Ok(())
        };
    }
    if is_ours == Some(false) {
        return refuse("the store in it comes from a lower layer");
    }
    refuse(
        "what is in it may come from a lower layer, where files change their identity when they \
         are written to and directories cannot be moved; only an empty directory can become a store",
    )
}

/// Marks a store that is still empty. `own` is its own directory.
pub(super) fn mark(own: impl AsFd) -> io::Result<()> {
    let mut file = open_mark(&own, OFlags::CREATE)?;
    if !is_one_filesystem(&file, &own)? {
        let why = format!("the store is on overlayfs, and {SEVERAL_FILESYSTEMS}");
        let message = format!("{why}; {REMEDY}");
        return Err(io::Error::new(io::ErrorKind::Unsupported, message));
    }
    let identity = identity(&file)?;
    let mut said = String::new();
    let read = (&mut file).take(MARK_BYTES_MAX).read_to_string(&mut said);
    if read.is_ok() && said == identity {
        return Ok(());
    }
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(identity.as_bytes())?;
    file.sync_all()
}

/// Opens the mark for writing: of one of a lower layer that makes a copy, which is another file.
fn open_mark(own: impl AsFd, flags: OFlags) -> rustix::io::Result<File> {
    let flags = flags | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mark = fs::openat(own, MARK, flags, Mode::RUSR | Mode::WUSR)?;
    Ok(File::from(mark))
}

/// Whether the store's mark is the file that was made here.
fn own_mark(root: impl AsFd) -> rustix::io::Result<bool> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let own = fs::openat(&root, OWN_DIRECTORY, flags, Mode::empty())?;
    let mut file = open_mark(&own, OFlags::empty())?;
    let mut said = String::new();
    let read = (&mut file).take(MARK_BYTES_MAX).read_to_string(&mut said);
    Ok(read.is_ok() && said == identity(&file)? && is_one_filesystem(&file, &root)?)
}

/// All layers are on one filesystem if a file's device is a directory's.
fn is_one_filesystem(file: &File, directory: impl AsFd) -> rustix::io::Result<bool> {
    Ok(fs::fstat(file)?.st_dev == fs::fstat(directory)?.st_dev)
}

/// Whether a new file's device is not the directory's. The file has no name and is gone when this returns; where none
/// can be made (before Linux 6.3, or without the right), the mark finds out later.
fn has_several_filesystems(directory: impl AsFd) -> rustix::io::Result<bool> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match fs::openat(&directory, ".", flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(!is_one_filesystem(&File::from(file), directory)?),
        Err(_) => Ok(false),
    }
}

fn identity(file: &File) -> rustix::io::Result<String> {
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let stat = fs::statx(file, "", AtFlags::EMPTY_PATH, wanted)?;
    let has_all = StatxFlags::from_bits_retain(stat.stx_mask).contains(wanted);
    if !has_all {
        return Err(Errno::NOTSUP);
    }
    let born = stat.stx_btime;
    Ok(format!(
        "{} {}.{:09}\n",
        stat.stx_ino, born.tv_sec, born.tv_nsec
    ))
}

/// Whether the directory has only what an interrupted mount has made.
fn is_empty(root: impl AsFd) -> rustix::io::Result<bool> {
    let listed = names(&root)?;
    if listed.is_empty() {
        return Ok(true);
    }
    if listed != [OWN_DIRECTORY] {
        return Ok(false);
    }
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let own = fs::openat(&root, OWN_DIRECTORY, flags, Mode::empty())?;
    let made: [&[u8]; 5] = [b"stage", b"limbo", b"lost", b"lock", MARK.as_bytes()];
    let names = names(own)?;
    Ok(names.iter().all(|name| made.contains(&&**name)))
}

fn names(directory: impl AsFd) -> rustix::io::Result<Vec<Vec<u8>>> {
    let entries = fs::Dir::read_from(directory)?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_bytes().to_vec()));
    let is_real = |name: &rustix::io::Result<Vec<u8>>| !matches!(name.as_deref(), Ok(b"." | b".."));
    names.filter(is_real).collect()
}

/// What the options of the mount make impossible.
fn unsuitable_mount(root: impl AsFd) -> rustix::io::Result<Option<&'static str>> {
    let stat = fs::fstat(&root)?;
    let device = format!("{}:{}", fs::major(stat.st_dev), fs::minor(stat.st_dev));
    let mounts = read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let Some(options) = mounts.lines().find_map(|line| options_of(line, &device)) else {
        return Ok(Some("/proc/self/mountinfo does not say with which options"));
    };
    let has = |wanted: &str| options.split(',').any(|option| option == wanted);
    let is_volatile =
        has("volatile") || options.split(',').any(|o| o.starts_with("fsync=volatile"));
    let parameter = read_to_string("/sys/module/overlay/parameters/redirect_dir");
    let redirects_usually = parameter.is_ok_and(|value| value.trim() == "Y");
    let says = options
        .split(',')
        .any(|option| option.starts_with("redirect_dir="));
    Ok(if is_volatile {
        Some("it makes nothing durable (volatile)")
    } else if has("redirect_dir=on") || (redirects_usually && !says) {
        Some("directories of lower layers can be moved into it (redirect_dir)")
    } else {
        None
    })
}

/// The filesystem's own options in a line of `mountinfo`, if it is that of the device.
fn options_of<'a>(line: &'a str, device: &str) -> Option<&'a str> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let is_it = mount.split(' ').nth(2) == Some(device) && filesystem.starts_with("overlay ");
    filesystem.split(' ').nth(2).filter(|_| is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_an_overlay_are_found_by_its_device() {
        let line = "61 28 0:52 / /merged rw,relatime shared:30 - overlay none \
                    rw,lowerdir=/l,upperdir=/u,workdir=/w,volatile";
        let options = options_of(line, "0:52").unwrap();
        assert!(options.ends_with(",volatile"));
        assert_eq!(options_of(line, "0:5"), None);
        assert_eq!(options_of(&line.replace("overlay", "ext4"), "0:52"), None);
    }
}
