//! What the process that holds a store's lock says of itself, and what follows for another
//! process that wants the store.
//!
//! The lock's file begins with the holder's process id. A line below it says what the holder is
//! doing: serving a mount, or bringing the last changes to the store. `umount(8)` returns when
//! the mount has left the tree, which is before the daemon has ended; a process that mounts the
//! store again at once finds it locked by a daemon that needs a moment longer.
//!
//! A holder that is killed cannot change its line any more. So a line "serving" counts only as
//! long as the mount that it names is in the tree.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use crate::mount_table::{MountEntry, mounts_of};

/// Lines of the lock file are shorter than this.
const NOTE_BYTES_MAX: usize = 128;
const SERVING: &str = "serving";
const FINISHING: &str = "finishing";

/// What the holder of a lock is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderState {
    /// It serves the mount with this device number.
    Serving {
        /// Major number.
        device_major: u32,
        /// Minor number.
        device_minor: u32,
        /// Which processes its process id is about.
        pid_namespace: u64,
    },
    /// Its mount has ended; it brings what was changed to the store, and ends.
    Finishing,
}

impl HolderState {
    /// Of a process that serves this mount.
    pub fn serving(mount: &MountEntry) -> Self {
        Self::Serving {
            device_major: mount.device_major,
            device_minor: mount.device_minor,
            pid_namespace: own_pid_namespace(),
        }
    }

    fn to_line(self) -> String {
        match self {
            Self::Finishing => format!("{FINISHING}\n"),
            Self::Serving {
                device_major,
                device_minor,
                pid_namespace,
            } => format!("{SERVING} {device_major} {device_minor} {pid_namespace}\n"),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        match words.next()? {
            FINISHING => Some(Self::Finishing),
            SERVING => Some(Self::Serving {
                device_major: words.next()?.parse().ok()?,
                device_minor: words.next()?.parse().ok()?,
                pid_namespace: words.next()?.parse().ok()?,
            }),
            _ => None,
        }
    }
}

/// What a lock file says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// Process id; 0 if it is not known.
    pub pid: u32,
    /// None: the holder has not said, for instance because it is just starting.
    pub state: Option<HolderState>,
}

impl Holder {
    /// Reads a lock file.
    pub(crate) fn read(file: &File) -> Self {
        let mut bytes = [0; NOTE_BYTES_MAX];
        let length = file.read_at(&mut bytes, 0).unwrap_or(0);
        let text = std::str::from_utf8(&bytes[..length]).unwrap_or_default();
        let mut lines = text.lines();
        Self {
            pid: lines
                .next()
                .and_then(|line| line.trim().parse().ok())
                .unwrap_or(0),
            state: lines.next().and_then(HolderState::parse),
        }
    }

    /// Whether the holder of the store at `store` frees it by itself: its mount has ended.
    ///
    /// The kernel gives the device number of a mount that has ended to the next one, so a mount
    /// with that number counts only if it may be one of this store.
    pub fn is_finishing(&self, store: &Path) -> bool {
        let may_be_of_store = |mount: &MountEntry| {
            let (Ok(source), Ok(store)) = (mount.source.metadata(), store.metadata()) else {
                return true;
            };
            (source.dev(), source.ino()) == (store.dev(), store.ino())
        };
        match self.state {
            None => false,
            Some(HolderState::Finishing) => true,
            Some(HolderState::Serving {
                device_major,
                device_minor,
                pid_namespace,
            }) => {
                if pid_namespace != own_pid_namespace() {
                    // Nothing can be found out about that process.
                    return false;
                }
                // A process that was killed has no table; who goes on with its mount has ours.
                let mounts = mounts_of(self.pid).or_else(|error| match error.kind() {
                    io::ErrorKind::NotFound => crate::mount_table::mounts(),
                    _ => Err(error),
                });
                let device = (device_major, device_minor);
                mounts.is_ok_and(|mounts| {
                    !mounts.iter().any(|mount| {
                        (mount.device_major, mount.device_minor) == device && may_be_of_store(mount)
                    })
                })
            }
        }
    }
}

/// Writes the holder's state below its process id, which is there already.
pub(crate) fn note(file: &File, state: HolderState) -> io::Result<()> {
    let mut bytes = [0; NOTE_BYTES_MAX];
    let length = file.read_at(&mut bytes, 0)?;
    let first_line = bytes[..length]
        .iter()
        .position(|&byte| byte == b'\n')
        .ok_or(io::ErrorKind::InvalidData)?;
    let line = state.to_line();
    let start = first_line as u64 + 1;
    file.write_all_at(line.as_bytes(), start)?;
    file.set_len(start + line.len() as u64)
}

/// Takes the state out again: the process id alone remains.
pub(crate) fn forget(file: &File) -> io::Result<()> {
    let mut bytes = [0; NOTE_BYTES_MAX];
    let length = file.read_at(&mut bytes, 0)?;
    let first_line = bytes[..length].iter().position(|&byte| byte == b'\n');
    first_line.map_or(Ok(()), |end| file.set_len(end as u64 + 1))
}

/// Tells processes apart that may have the same id; 0 where the kernel does not tell.
fn own_pid_namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |about| about.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(state: Option<HolderState>) -> Holder {
        let file = tempfile::tempfile().unwrap();
        let pid = format!("{}\n", std::process::id());
        file.write_all_at(pid.as_bytes(), 0).unwrap();
        if let Some(state) = state {
            note(&file, state).unwrap();
        }
        Holder::read(&file)
    }

    fn of_device(device_major: u32, device_minor: u32) -> HolderState {
        HolderState::Serving {
            device_major,
            device_minor,
            pid_namespace: own_pid_namespace(),
        }
    }

    #[test]
    fn what_is_noted_is_found() {
        for state in [None, Some(HolderState::Finishing), Some(of_device(7, 12))] {
            let pid = std::process::id();
            assert_eq!(noted(state), Holder { pid, state });
        }
    }

    #[test]
    fn a_later_note_takes_the_place_of_an_earlier_one() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"17\n", 0).unwrap();
        note(&file, of_device(259, 1_048_575)).unwrap();
        note(&file, HolderState::Finishing).unwrap();
        let found = Holder::read(&file);
        assert_eq!((found.pid, found.state), (17, Some(HolderState::Finishing)));
        forget(&file).unwrap();
        assert_eq!(
            Holder::read(&file),
            Holder {
                pid: 17,
                state: None
            }
        );
    }

    #[test]
    fn what_others_wrote_is_no_note() {
        for text in [
            "",
            "rubbish",
            "12",
            "12\n",
            "12\nserving\n",
            "12\nserving 1 x 2\n",
        ] {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(text.as_bytes(), 0).unwrap();
            let found = Holder::read(&file);
            assert_eq!(found.state, None, "{text:?}");
            assert!(!found.is_finishing(Path::new("/a store that is not there")));
        }
        assert!(note(&tempfile::tempfile().unwrap(), HolderState::Finishing).is_err());
    }

    #[test]
    fn a_holder_is_finishing_when_its_mount_has_left_the_tree() {
        assert!(
            noted(Some(HolderState::Finishing))
                .is_finishing(Path::new("/a store that is not there"))
        );
        assert!(
            !noted(None).is_finishing(Path::new("/a store that is not there")),
            "it is just starting"
        );
        let mounts = crate::mount_table::mounts().unwrap();
        let root = mounts.first().unwrap();
        assert!(
            !noted(Some(HolderState::serving(root)))
                .is_finishing(Path::new("/a store that is not there"))
        );
        // No mount has this number.
        assert!(
            noted(Some(of_device(4095, 77))).is_finishing(Path::new("/a store that is not there"))
        );
        // Of a process that was killed, whose successor goes on with the mount.
        for (mount, expected) in [
            (HolderState::serving(root), false),
            (of_device(4095, 77), true),
        ] {
            let killed = Holder {
                pid: u32::MAX,
                state: Some(mount),
            };
            assert_eq!(
                killed.is_finishing(Path::new("/a store that is not there")),
                expected
            );
        }
    }

    #[test]
    fn a_holder_in_another_container_is_not_known_to_be_finishing() {
        let state = HolderState::Serving {
            device_major: 4095,
            device_minor: 77,
            pid_namespace: own_pid_namespace() + 1,
        };
        assert!(!noted(Some(state)).is_finishing(Path::new("/a store that is not there")));
    }
}
