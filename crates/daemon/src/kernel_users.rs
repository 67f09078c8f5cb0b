//! Files of a directory that the kernel itself uses, as `/proc` and `/sys` show them: files of loop devices, swap
//! files, and the names of bound Unix sockets.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use mobifs_host::unescaped_path;

/// Fields of a line of `/proc/net/unix` before the path.
const FIELDS_BEFORE_PATH: usize = 7;
/// Which of them is the socket's number.
const NUMBER_FIELD: usize = 6;

/// A Unix socket that has a name in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BoundSocket {
    /// Its number, which links in `/proc/PID/fd` have.
    pub(crate) number: u64,
    /// The name that it was bound to.
    pub(crate) path: PathBuf,
}

impl BoundSocket {
    /// Whether this is what a link of `/proc/PID/fd` leads to.
    pub(crate) fn is_target(&self, target: &Path) -> bool {
        target.as_os_str() == OsStr::new(&format!("socket:[{}]", self.number))
    }
}

/// The loop devices whose files lie in the directory, with these files.
pub(crate) fn loop_devices_in(directory: &Path) -> Vec<(String, PathBuf)> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    devices
        .filter_map(|device| {
            let backing = fs::read(device.path().join("loop/backing_file")).ok()?;
            let file = backing_file(&backing);
            let device = device.file_name().to_string_lossy().into_owned();
            file.starts_with(directory).then_some((device, file))
        })
        .collect()
}

/// The path in the content of `backing_file`, which ends with a newline. That of a deleted file ends with ` (deleted)`,
/// as a name may: the device has it open all the same.
fn backing_file(content: &[u8]) -> PathBuf {
    let path = content.strip_suffix(b"\n").unwrap_or(content);
    OsStr::from_bytes(path).into()
}

/// The active swap files in the directory.
pub(crate) fn swap_files_in(directory: &Path) -> Vec<PathBuf> {
    let mut files = swap_files(&fs::read("/proc/swaps").unwrap_or_default());
    files.retain(|file| file.starts_with(directory));
    files
}

/// The files in the content of `/proc/swaps`, where blanks in a path are three octal digits. Its first line is a title.
fn swap_files(content: &[u8]) -> Vec<PathBuf> {
    let lines = content.split(|&byte| byte == b'\n').skip(1);
    lines
        .filter_map(|line| {
            let mut fields = line
                .split(|byte| matches!(byte, b' ' | b'\t'))
                .filter(|field| !field.is_empty());
            let path = fields.next()?;
            (fields.next()? == b"file").then(|| unescaped_path(path))
        })
        .collect()
}

/// The Unix sockets of this process's network namespace that were bound to names in the directory. One that was bound
/// to a relative path, or whose directory got another name since, is not among them.
pub(crate) fn sockets_in(directory: &Path) -> Vec<BoundSocket> {
    let mut sockets = bound_sockets(&fs::read("/proc/net/unix").unwrap_or_default());
    sockets.retain(|socket| socket.path.starts_with(directory));
    sockets
}

/// The sockets with absolute paths in the content of `/proc/net/unix`, which has paths as they are, newlines included.
fn bound_sockets(content: &[u8]) -> Vec<BoundSocket> {
    let mut entries: Vec<Vec<u8>> = Vec::new();
    for line in content.split(|&byte| byte == b'\n').skip(1) {
        match entries.last_mut() {
            Some(entry) if !begins_entry(line) => {
                entry.push(b'\n');
                entry.extend(line);
            }
            _ => entries.push(line.to_vec()),
        }
    }
    entries.iter().filter_map(|entry| bound(entry)).collect()
}

/// Whether a line begins with an address and a colon, as each socket's does.
fn begins_entry(line: &[u8]) -> bool {
    let mut parts = line.splitn(2, |&byte| byte == b':');
    let address = parts.next().unwrap_or_default();
    let is_address = !address.is_empty() && address.iter().all(u8::is_ascii_hexdigit);
    // The last one ends with a newline, after which there is nothing.
    line.is_empty() || is_address && parts.next().is_some_and(|rest| rest.starts_with(b" "))
}

fn bound(entry: &[u8]) -> Option<BoundSocket> {
    let mut rest = entry;
    let mut number = None;
    for field in 0..FIELDS_BEFORE_PATH {
        rest = rest.trim_ascii_start();
        let end = rest.iter().position(|&byte| byte == b' ')?;
        if field == NUMBER_FIELD {
            number = std::str::from_utf8(&rest[..end]).ok()?.parse().ok();
        }
        rest = &rest[end..];
    }
    let path = PathBuf::from(OsStr::from_bytes(rest.strip_prefix(b" ")?));
    let number = number?;
    path.is_absolute().then_some(BoundSocket { number, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_files_are_read_with_blanks_in_their_names() {
        let content = b"Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
            /dev/sda2                               partition\t8388604\t\t0\t\t-2\n\
            /srv/a\\040b/swap\\134\\012file           file\t\t1048572\t\t0\t\t-3\n\
            /srv/old\\040(deleted)                   file\t\t1048572\t0\t-4\n";
        let expected = ["/srv/a b/swap\\\nfile", "/srv/old (deleted)"].map(PathBuf::from);
        assert_eq!(swap_files(content), expected);
        assert_eq!(swap_files(b""), Vec::<PathBuf>::new());
    }

    #[test]
    fn files_of_loop_devices_are_read_as_they_are() {
        assert_eq!(backing_file(b"/srv/a b \n"), Path::new("/srv/a b "));
        let deleted = backing_file(b"/srv/image (deleted)\n");
        assert_eq!(deleted, Path::new("/srv/image (deleted)"));
        assert!(deleted.starts_with("/srv"));
    }

    #[test]
    fn bound_sockets_are_read_with_any_name() {
        let content = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            000000005b155d2a: 00000003 00000000 00000000 0001 03   118\n\
            000000004be34d30: 00000002 00000000 00010000 0001 01  1957 /srv/a b/s\n\
            ffff8880: 00000002 00000000 00010000 0001 01 12345678 /srv/x: \ny\n\
            000000005229e0e0: 00000002 00000000 00010000 0001 01 77 @/srv/abstract\n\
            00000000abeb16cd: 00000002 00000000 00010000 0001 01 78 relative\n";
        let found = bound_sockets(content);
        let expected = [(1957, "/srv/a b/s"), (12_345_678, "/srv/x: \ny")];
        let expected = expected.map(|(number, path)| BoundSocket {
            number,
            path: path.into(),
        });
        assert_eq!(found, expected);
        assert!(expected[0].is_target(Path::new("socket:[1957]")));
        assert!(!expected[0].is_target(Path::new("socket:[195]")));
    }
}
