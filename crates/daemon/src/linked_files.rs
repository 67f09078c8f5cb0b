//! Files of a directory that programs write to by names outside of it: hard links.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use mobifs_host::find_below;
use rustix::fs::{AtFlags, CWD, StatxFlags};

use crate::process_views::ProcessViews;

/// The kernel's flag, which rustix does not name on Android.
const AT_STATX_DONT_SYNC: u32 = 0x4000;
/// The bits of an open file's flags that say whether it can be written to.
const ACCESS_MODE: u32 = 0o3;
/// The end of a path that leads to nothing any more.
const DELETED: &[u8] = b" (deleted)";

/// A file that is open for writing, or mapped so, and may have a name elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkedFile {
    inode: u64,
    path: PathBuf,
}

/// The files of a process that lie on the filesystem of a directory, and have more names than one, or another one than
/// that by which they were opened.
pub(crate) fn linked_files(process: &ProcessViews, directory: &Path) -> Vec<LinkedFile> {
    let Ok(device) = fs::metadata(directory).map(|about| about.dev()) else {
        return Vec::new();
    };
    let mut found: Vec<LinkedFile> = process
        .descriptors()
        .filter_map(|descriptor| {
            let path = fs::read_link(&descriptor).ok()?;
            let file = linked(&descriptor, path, device)?;
            is_writable(&descriptor).then_some(file)
        })
        .collect();
    // addresses permissions offset device inode path
    found.extend(process.maps().lines().filter_map(|line| {
        let mut fields = line.splitn(6, ' ');
        let is_written = fields.nth(1)?.starts_with("rw-s");
        let path = PathBuf::from(fields.nth(3)?.trim_start());
        let outside = path.strip_prefix("/").ok().filter(|_| is_written)?;
        linked(&process.process().join("root").join(outside), path, device)
    }));
    found
}

fn linked(link: &Path, path: PathBuf, device: u64) -> Option<LinkedFile> {
    let flags = AtFlags::from_bits_retain(AT_STATX_DONT_SYNC) | AtFlags::NO_AUTOMOUNT;
    let wanted = StatxFlags::TYPE | StatxFlags::NLINK | StatxFlags::INO;
    let about = rustix::fs::statx(CWD, link, flags, wanted).ok()?;
    let is_file = rustix::fs::FileType::from_raw_mode(about.stx_mode.into())
        == rustix::fs::FileType::RegularFile;
    let is_there = rustix::fs::makedev(about.stx_dev_major, about.stx_dev_minor) == device;
    let is_deleted = path.as_os_str().as_encoded_bytes().ends_with(DELETED);
    let has_other_name = about.stx_nlink > 1 || about.stx_nlink == 1 && is_deleted;
    (is_file && is_there && has_other_name).then_some(LinkedFile {
        inode: about.stx_ino,
        path,
    })
}

/// Whether a descriptor can be written to; it can, where that cannot be found out.
fn is_writable(descriptor: &Path) -> bool {
    let about = || {
        let view = descriptor.parent()?.parent()?;
        let about = fs::read_to_string(view.join("fdinfo").join(descriptor.file_name()?)).ok()?;
        let flags = about.lines().find_map(|line| line.strip_prefix("flags:"))?;
        u32::from_str_radix(flags.trim(), 8).ok()
    };
    about().is_none_or(|flags| flags & ACCESS_MODE != 0)
}

/// Which of these files has a name in the directory, with this name.
pub(crate) fn named_below(files: &[LinkedFile], directory: &Path) -> Option<(LinkedFile, PathBuf)> {
    if files.is_empty() {
        return None;
    }
    let mut found = None;
    let path = find_below(directory, |_, entry| {
        found = files.iter().find(|file| file.inode == entry.ino());
        found.is_some()
    });
    Some((found?.clone(), path.ok()??))
}

impl LinkedFile {
    /// In words.
    pub(crate) fn described(&self, inside: &Path) -> String {
        let (path, inside) = (self.path.display(), inside.display());
        format!("{path} is open for writing, which is {inside}, too")
    }
}
