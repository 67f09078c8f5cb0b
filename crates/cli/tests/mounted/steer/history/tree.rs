//! A tree of everything that files can be, and what one has in full.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, symlink};
use std::path::Path;
use std::process::Command;

use rustix::fs::{SeekFrom, XattrFlags, lgetxattr, llistxattr, lsetxattr, seek};

use crate::fixture::succeeds;

/// Makes it.
pub(super) fn make(at: &Path) {
    let inner = at.join("inner");
    fs::create_dir_all(inner.join("empty")).unwrap();
    fs::write(at.join("plain"), vec![7; 300_000]).unwrap();
    fs::write(at.join("nothing"), "").unwrap();
    let holes = File::create(at.join("holes")).unwrap();
    holes.write_all_at(&[1; 8192], 1 << 20).unwrap();
    holes.set_len(5 << 20).unwrap();
    fs::hard_link(at.join("plain"), inner.join("other name")).unwrap();
    symlink("../plain", inner.join("link")).unwrap();
    fs::write(at.join(OsStr::from_bytes(b"no text \xff")), "bytes").unwrap();
    lsetxattr(at.join("plain"), "user.note", b"kept", XattrFlags::empty()).unwrap();
    lsetxattr(
        &inner,
        "trusted.note",
        b"of a directory",
        XattrFlags::empty(),
    )
    .unwrap();
    let script = "mkfifo pipe; mknod device c 1 3; \
         chown 1234:4321 plain inner/empty; chown -h 1234:4321 inner/link; \
         chmod 4751 plain; chmod 1770 inner; chmod 0 nothing; \
         touch -h -d '2001-02-03 04:05:06.789 UTC' plain inner/link inner";
    let mut shell = Command::new("sh");
    succeeds(
        &shell
            .args(["-ec", script])
            .current_dir(at)
            .output()
            .unwrap(),
    );
}

/// Everything below and at this path, one line each. Where a file shares blocks is not part of it,
/// nor the time of the last change of the inode, which nothing can set.
pub(super) fn describe(at: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut open = vec![at.to_owned()];
    while let Some(path) = open.pop() {
        let about = path.symlink_metadata().unwrap();
        let name = path.strip_prefix(at).unwrap();
        let kind = about.file_type();
        let what = if kind.is_dir() {
            let entries = fs::read_dir(&path).unwrap();
            open.extend(entries.map(|entry| entry.unwrap().path()));
            String::new()
        } else if kind.is_symlink() {
            format!("to {:?}", fs::read_link(&path).unwrap())
        } else if kind.is_file() {
            content(&path, about.len())
        } else {
            format!("{} {}", kind.is_fifo(), about.rdev())
        };
        let links = if kind.is_dir() { 0 } else { about.nlink() };
        lines.push(format!(
            "{name:?}: {:o} {}:{} {}.{:09} links {links} {what} {}",
            about.mode(),
            about.uid(),
            about.gid(),
            about.mtime(),
            about.mtime_nsec(),
            attributes(&path)
        ));
    }
    lines.sort();
    lines
}

fn content(path: &Path, length: u64) -> String {
    let mut hasher = DefaultHasher::new();
    fs::read(path).unwrap().hash(&mut hasher);
    let file = File::open(path).unwrap();
    let (mut extents, mut at) = (Vec::new(), 0);
    while let Ok(start) = seek(&file, SeekFrom::Data(at)) {
        at = seek(&file, SeekFrom::Hole(start)).unwrap();
        extents.push(start..at);
    }
    format!("{length} bytes, {:x}, data {extents:?}", hasher.finish())
}

fn attributes(path: &Path) -> String {
    let mut names = vec![0; 4096];
    let length = llistxattr(path, &mut names[..]).unwrap();
    let names = names[..length]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 4096];
        let length = lgetxattr(path, name, &mut value[..]).unwrap();
        value.truncate(length);
        (String::from_utf8_lossy(name).into_owned(), value)
    };
    let mut all: Vec<_> = names.map(value).collect();
    all.sort();
    format!("{all:?}")
}
