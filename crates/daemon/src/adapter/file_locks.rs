//! Which process has a file of this mount locked.
//!
//! The kernel keeps POSIX locks of a mount itself, and shows all of the machine in `/proc/locks`
//! (`proc_locks(5)`), by process, device and inode.

use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use mobifs_base::ObjectId;
use mobifs_host::mount_at;

const TABLE: &str = "/proc/locks";
/// Most bytes that are read of the table: reading more would take longer than a commit.
const TABLE_BYTES_MAX: u64 = 256 << 10;

/// The locks of one mount.
#[derive(Debug, Default)]
pub(super) struct FileLocks {
    /// None: nothing is known of locks.
    mountpoint: Option<PathBuf>,
    /// Device number, major and minor; none if the mount is not in the table of mounts.
    device: OnceLock<Option<(u32, u32)>>,
}

impl FileLocks {
    pub(super) fn of(mountpoint: &Path) -> Self {
        Self {
            mountpoint: Some(mountpoint.to_owned()),
            device: OnceLock::new(),
        }
    }

    /// Whether the process of this thread has this byte of a file locked for writing. Where it
    /// cannot be found out, it has not.
    pub(super) fn has_writer(&self, file: ObjectId, at: u64, thread: u32) -> bool {
        let Some(device) = self.device() else {
            return false;
        };
        let Ok(table) = File::open(TABLE) else {
            return false;
        };
        let table = BufReader::new(table.take(TABLE_BYTES_MAX));
        let mut holders = table.split(b'\n').map_while(Result::ok).filter_map(|line| {
            let lock = Lock::parse(&line)?;
            let is_it = lock.is_write
                && (lock.device, lock.inode) == (device, file.0)
                && (lock.first..=lock.last).contains(&at);
            is_it.then_some(lock.process)
        });
        holders.any(|process| {
            process == thread || Path::new(&format!("/proc/{process}/task/{thread}")).exists()
        })
    }

    fn device(&self) -> Option<(u32, u32)> {
        let mountpoint = self.mountpoint.as_ref()?;
        *self.device.get_or_init(|| {
            let mount = mount_at(mountpoint).ok().flatten()?;
            Some((mount.device_major, mount.device_minor))
        })
    }
}

/// A lock that is held.
#[derive(Debug, PartialEq, Eq)]
struct Lock {
    process: u32,
    device: (u32, u32),
    inode: u64,
    is_write: bool,
    first: u64,
    last: u64,
}

impl Lock {
    /// `1: POSIX  ADVISORY  WRITE 1234 00:35:57 1073741825 1073741825`; none of those that are
    /// waited for (`1: -> POSIX …`) or of another kind.
    fn parse(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?;
        let mut fields = line.split_ascii_whitespace().skip(1);
        if fields.next()? != "POSIX" {
            return None;
        }
        let is_write = fields.nth(1)? == "WRITE";
        let process = fields.next()?.parse().ok()?;
        let mut place = fields.next()?.split(':');
        let mut number = || u32::from_str_radix(place.next()?, 16).ok();
        let device = (number()?, number()?);
        let inode = place.next()?.parse().ok()?;
        let first = fields.next()?.parse().ok()?;
        let last = match fields.next()? {
            "EOF" => u64::MAX,
            last => last.parse().ok()?,
        };
        Some(Self {
            process,
            device,
            inode,
            is_write,
            first,
            last,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_that_are_held_are_understood() {
        let line = b"12: POSIX  ADVISORY  WRITE 1234 00:3f:57 1073741825 1073741826";
        let lock = Lock {
            process: 1234,
            device: (0, 0x3f),
            inode: 57,
            is_write: true,
            first: 1_073_741_825,
            last: 1_073_741_826,
        };
        assert_eq!(Lock::parse(line), Some(lock));
        let whole = b"1: POSIX  ADVISORY  READ  1 fe:00:9978443 0 EOF";
        let lock = Lock::parse(whole).unwrap();
        assert_eq!((lock.is_write, lock.last), (false, u64::MAX));
        for line in [
            &b""[..],
            b"1: -> POSIX  ADVISORY  WRITE 1234 00:3f:57 1 1",
            b"1: FLOCK  ADVISORY  WRITE 1234 00:3f:57 0 EOF",
            b"1: OFDLCK ADVISORY  WRITE -1 00:3f:57 0 EOF",
            b"1: POSIX  ADVISORY  WRITE 1234 00:3f:57 1",
            b"1: POSIX  ADVISORY  WRITE -1 00:3f:57 1 1",
            b"1: POSIX  ADVISORY  WRITE 1234 <none>:0 1 1",
            b"1: POSIX \xff",
        ] {
            assert_eq!(Lock::parse(line), None);
        }
    }

    #[test]
    fn without_a_mount_nothing_is_locked() {
        assert!(!FileLocks::default().has_writer(ObjectId(1), 0, std::process::id()));
        let gone = FileLocks::of(Path::new("/proc/none"));
        assert!(!gone.has_writer(ObjectId(1), 0, std::process::id()));
    }
}
