//! The kernel's table of mounts.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of `/proc/self/mountinfo`, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableEntry {
    mountpoint: PathBuf,
    kind: String,
    device_major: u64,
    device_minor: u64,
}

impl TableEntry {
    /// Whether this is a FUSE mount of this subtype.
    pub(crate) fn has_subtype(&self, subtype: &str) -> bool {
        self.kind
            .split_once('.')
            .is_some_and(|(kind, given)| matches!(kind, "fuse" | "fuseblk") && given == subtype)
    }

    fn is_fuse(&self) -> bool {
        matches!(self.kind.split('.').next(), Some("fuse" | "fuseblk"))
    }

    /// The number by which `/sys/fs/fuse/connections` knows the mount.
    pub(crate) fn connection_number(&self) -> u64 {
        (self.device_major << 20) | self.device_minor
    }

    fn parse(line: &str) -> Option<Self> {
        // id parent major:minor root mountpoint options optional… - type source …
        let mut fields = line.split(' ').skip(2);
        let (major, minor) = fields.next()?.split_once(':')?;
        let mountpoint = unescape(fields.nth(1)?);
        let kind = fields.skip_while(|&field| field != "-").nth(1)?.to_owned();
        let (device_major, device_minor) = (major.parse().ok()?, minor.parse().ok()?);
        Some(Self {
            mountpoint,
            kind,
            device_major,
            device_minor,
        })
    }
}

/// The table writes space, tab, newline and backslash as three octal digits.
fn unescape(field: &str) -> PathBuf {
    let bytes = field.as_bytes();
    let mut path = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = bytes
            .get(at + 1..at + 4)
            .filter(|_| bytes[at] == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        path.push(code.unwrap_or(bytes[at]));
        at += if code.is_some() { 4 } else { 1 };
    }
    OsString::from_vec(path).into()
}

/// The topmost mount at exactly this absolute path.
pub(crate) fn find(mountpoint: &Path) -> Option<TableEntry> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    let table = String::from_utf8_lossy(&table);
    table
        .lines()
        .filter_map(TableEntry::parse)
        .rfind(|entry| entry.mountpoint == mountpoint)
}

/// The connection of the topmost mount at this absolute path, if it is a FUSE mount.
pub(crate) fn connection_at(mountpoint: &Path) -> Option<u64> {
    let entry = find(mountpoint)?;
    entry.is_fuse().then(|| entry.connection_number())
}

/// Whether a FUSE filesystem of this subtype is mounted at exactly this absolute path. Does not
/// access the mount itself, so it answers for a mount without a daemon, too.
pub fn is_mounted(mountpoint: &Path, subtype: &str) -> bool {
    find(mountpoint).is_some_and(|entry| entry.has_subtype(subtype))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_and_without_optional_fields_are_understood() {
        let line = "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 propagate_from:2 - \
                    fuse.mobifs /dev/root rw,errors=continue";
        let entry = TableEntry::parse(line).unwrap();
        assert_eq!(entry.mountpoint, Path::new("/mnt 2"));
        assert!(entry.has_subtype("mobifs") && !entry.has_subtype("other"));
        assert_eq!(entry.connection_number(), (98 << 20));

        let entry = TableEntry::parse("1 2 0:7 / /x rw - fuseblk.mobifs none rw").unwrap();
        assert!(entry.has_subtype("mobifs"));
        assert_eq!(entry.connection_number(), 7);
        assert!(
            !TableEntry::parse("1 2 0:7 / /x rw - ext4 none rw")
                .unwrap()
                .has_subtype("ext4")
        );
        assert_eq!(TableEntry::parse("garbage"), None);
    }

    #[test]
    fn the_root_is_a_mount_without_our_subtype() {
        assert!(find(Path::new("/")).is_some());
        assert!(!is_mounted(Path::new("/"), "mobifs"));
        assert_eq!(find(Path::new("/nowhere")), None);
    }
}
