//! The layers of overlay filesystems, as the table of mounts has them.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use crate::mount_table::{MountEntry, unescape_bytes};

/// Options that name one directory.
const ONE: [&[u8]; 4] = [b"upperdir=", b"workdir=", b"lowerdir+=", b"datadir+="];
/// The option that names several, with colons between them.
const SEVERAL: &[u8] = b"lowerdir=";

/// An overlay filesystem that is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlayMount {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// The directories that it shows and writes to, as they were named when it was mounted: where a name has a
    /// backslash, with and without it, as the table may have it either way.
    pub layers: Vec<PathBuf>,
}

/// The overlay filesystems in a table of `/proc`: the file `mountinfo` of a process.
///
/// # Errors
/// If it cannot be read.
pub fn overlay_mounts(path: impl AsRef<Path>) -> io::Result<Vec<OverlayMount>> {
    let table = std::fs::read(path)?;
    Ok(table
        .split(|&byte| byte == b'\n')
        .filter_map(parse)
        .collect())
}

fn parse(line: &[u8]) -> Option<OverlayMount> {
    let entry = MountEntry::parse(line).filter(|entry| entry.kind == "overlay")?;
    let options = line.rsplit(|&byte| byte == b' ').next()?;
    let mut layers = Vec::new();
    for option in options.split(|&byte| byte == b',') {
        let option = unescape_bytes(option);
        if let Some(one) = ONE.into_iter().find_map(|name| option.strip_prefix(name)) {
            add(&mut layers, one);
        } else if let Some(several) = option.strip_prefix(SEVERAL) {
            for one in pieces(several) {
                add(&mut layers, one);
            }
        }
    }
    Some(OverlayMount {
        mountpoint: entry.mountpoint,
        layers,
    })
}

/// What is between colons that have no backslash before them.
fn pieces(value: &[u8]) -> Vec<&[u8]> {
    let (mut found, mut begin, mut at) = (Vec::new(), 0, 0);
    while let Some(&byte) = value.get(at) {
        if byte == b':' {
            found.push(&value[begin..at]);
            begin = at + 1;
        }
        at += if byte == b'\\' { 2 } else { 1 };
    }
    found.push(&value[begin..]);
    found
}

fn add(layers: &mut Vec<PathBuf>, written: &[u8]) {
    let mut bytes = written.iter();
    let mut meant = Vec::new();
    while let Some(&byte) = bytes.next() {
        let next = if byte == b'\\' { bytes.next() } else { None };
        meant.push(*next.unwrap_or(&byte));
    }
    let paths = [meant, written.to_vec()].map(|bytes| PathBuf::from(OsString::from_vec(bytes)));
    for path in paths {
        if !path.as_os_str().is_empty() && !layers.contains(&path) {
            layers.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_read_with_any_name() {
        let line = b"36 35 0:44 / /m rw - overlay none rw,lowerdir=/a\\134:b:/c\\040d::/e,upperdir=/u\\054v,workdir=/w";
        let found = parse(line).unwrap();
        assert_eq!(found.mountpoint, Path::new("/m"));
        let expected = ["/a:b", "/a\\:b", "/c d", "/e", "/u,v", "/w"].map(PathBuf::from);
        assert_eq!(found.layers, expected);
        let line = b"36 35 0:44 / /m rw - overlay none rw,lowerdir+=/a:b,datadir+=/c";
        assert_eq!(
            parse(line).unwrap().layers,
            ["/a:b", "/c"].map(PathBuf::from)
        );
        assert_eq!(parse(b"36 35 8:1 / /m rw - ext4 /dev/x rw"), None);
    }
}
