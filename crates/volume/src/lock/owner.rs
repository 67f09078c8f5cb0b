//! What the process that holds a store's lock writes into the lock's file.
//!
//! The file begins with the owner's process id. The next line says what the owner is doing: serving
//! a mount, or bringing the last changes to the store. `umount(8)` returns when the mount has left
//! the tree, which is before the daemon has ended; a process that mounts the store again at once
//! finds it locked by a daemon that needs a moment longer. The process that wants the store decides
//! what follows from the state.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// Lines of the lock file are shorter than this.
const NOTE_BYTES_MAX: usize = 128;
const SERVING: &str = "serving";
const FINISHING: &str = "finishing";

/// What the owner of a lock is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// The process serves this mount.
    Serving(ServedMount),
    /// Its mount has ended; it brings what was changed to the store, and ends.
    Finishing,
}

/// What distinguishes a mount in a table of mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedMount {
    /// Major number of its device.
    pub device_major: u32,
    /// Minor number.
    pub device_minor: u32,
    /// Inode number of the process namespace to which the owner's process id belongs.
    pub pid_namespace: u64,
    /// Hash of the mount's source. The kernel gives the device number of a mount that has ended
    /// to the next one. None: an older version wrote the state.
    pub source_hash: Option<u64>,
}

impl ServedMount {
    fn parse(mut words: std::str::Split<'_, char>) -> Option<Self> {
        Some(Self {
            device_major: words.next()?.parse().ok()?,
            device_minor: words.next()?.parse().ok()?,
            pid_namespace: words.next()?.parse().ok()?,
            source_hash: match words.next() {
                None => None,
                Some(word) => Some(u64::from_str_radix(word, 16).ok()?),
            },
        })
    }

    fn to_line(self) -> String {
        let Self {
            device_major,
            device_minor,
            pid_namespace,
            source_hash,
        } = self;
        let mut line = format!("{SERVING} {device_major} {device_minor} {pid_namespace}");
        if let Some(hash) = source_hash {
            line += &format!(" {hash:016x}");
        }
        line + "\n"
    }
}

impl OwnerState {
    fn to_line(self) -> String {
        match self {
            Self::Finishing => format!("{FINISHING}\n"),
            Self::Serving(mount) => mount.to_line(),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        match words.next()? {
            FINISHING => Some(Self::Finishing),
            SERVING => Some(Self::Serving(ServedMount::parse(words)?)),
            _ => None,
        }
    }
}

/// What a lock file says of the process that holds the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockOwner {
    /// Process id; 0 if it is not known.
    pub pid: u32,
    /// None: the owner has not written it, for instance because it is just starting.
    pub state: Option<OwnerState>,
    /// The lock is shared by processes that only read the store, which write nothing.
    pub is_reader: bool,
}

impl LockOwner {
    /// Reads a lock file.
    pub fn read(file: &File) -> Self {
        let mut bytes = [0; NOTE_BYTES_MAX];
        let length = file.read_at(&mut bytes, 0).unwrap_or(0);
        let text = std::str::from_utf8(&bytes[..length]).unwrap_or_default();
        let mut lines = text.lines();
        Self {
            pid: lines
                .next()
                .and_then(|line| line.trim().parse().ok())
                .unwrap_or(0),
            state: lines.next().and_then(OwnerState::parse),
            is_reader: false,
        }
    }
}

/// Writes the id of the lock's holder and what it is doing, in place of what is there. One write:
/// readers do not hold the lock.
pub(crate) fn write(file: &File, pid: u32, state: Option<OwnerState>) -> io::Result<()> {
    let line = state.map_or_else(String::new, OwnerState::to_line);
    let text = format!("{pid}\n{line}");
    file.write_all_at(text.as_bytes(), 0)?;
    file.set_len(text.len() as u64)
}

/// Writes the owner's state after its process id, which is there already.
pub(crate) fn write_state(file: &File, state: OwnerState) -> io::Result<()> {
    match LockOwner::read(file).pid {
        0 => Err(io::ErrorKind::InvalidData.into()),
        pid => write(file, pid, Some(state)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(state: Option<OwnerState>) -> LockOwner {
        let file = tempfile::tempfile().unwrap();
        let pid = format!("{}\n", std::process::id());
        file.write_all_at(pid.as_bytes(), 0).unwrap();
        if let Some(state) = state {
            write_state(&file, state).unwrap();
        }
        LockOwner::read(&file)
    }

    const fn serving(device_major: u32, device_minor: u32) -> OwnerState {
        OwnerState::Serving(ServedMount {
            device_major,
            device_minor,
            pid_namespace: 4_026_531_836,
            source_hash: Some(0xfeed),
        })
    }

    #[test]
    fn a_recorded_owner_is_found() {
        let mut old = serving(7, 12);
        if let OwnerState::Serving(mount) = &mut old {
            mount.source_hash = None;
        }
        for state in [
            None,
            Some(OwnerState::Finishing),
            Some(serving(7, 12)),
            Some(old),
        ] {
            let expected = LockOwner {
                pid: std::process::id(),
                state,
                is_reader: false,
            };
            assert_eq!(noted(state), expected);
        }
    }

    #[test]
    fn a_later_record_replaces_an_earlier_one() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"17\n", 0).unwrap();
        write_state(&file, serving(259, 1_048_575)).unwrap();
        write_state(&file, OwnerState::Finishing).unwrap();
        let found = LockOwner::read(&file);
        assert_eq!((found.pid, found.state), (17, Some(OwnerState::Finishing)));
        write(&file, 18, None).unwrap();
        let found = LockOwner::read(&file);
        assert_eq!((found.pid, found.state), (18, None));
    }

    #[test]
    fn foreign_content_is_no_state() {
        for text in [
            "",
            "rubbish",
            "12",
            "12\n",
            "12\nserving\n",
            "12\nserving 1 x 2\n",
            "12\nserving 1 2 3 hash\n",
        ] {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(text.as_bytes(), 0).unwrap();
            let found = LockOwner::read(&file);
            assert_eq!(found.state, None, "{text:?}");
        }
        assert!(write_state(&tempfile::tempfile().unwrap(), OwnerState::Finishing).is_err());
    }
}
