//! Sockets in the runtime directory whose processes have ended without removing them: killed ones.

use std::fs::{DirEntry, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use mobifs_host::{DirectoryLock, mounts, runtime_directory};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::socket_path::{STEERED, steered_socket_name};

/// What a socket in the runtime directory is for, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The commands of the mount with this device number.
    Control { major: u32, minor: u32 },
    /// The commands of the steered filesystem with this device number.
    Steered { major: u32, minor: u32 },
    /// The commands of a mount that has left the tree, and whose device number another mount has.
    Displaced,
    /// The messages of a daemon to its supervisor.
    Supervisor,
}

impl Purpose {
    pub(super) fn of(name: &str) -> Option<Self> {
        let number = |text: &str| text.parse::<u32>().ok();
        let name = name.strip_suffix(".sock")?;
        if let Some(pid) = name.strip_prefix("supervisor-") {
            return number(pid).map(|_| Self::Supervisor);
        }
        let (name, pid) = match name.split_once('.') {
            Some((name, pid)) => (name, Some(number(pid)?)),
            None => (name, None),
        };
        let (numbers, is_steered) = match name.strip_prefix(STEERED) {
            Some(numbers) => (numbers, true),
            None => (name, false),
        };
        let (major, minor) = numbers.split_once('-')?;
        let (major, minor) = (number(major)?, number(minor)?);
        Some(match pid {
            Some(_) => Self::Displaced,
            None if is_steered => Self::Steered { major, minor },
            None => Self::Control { major, minor },
        })
    }

    const fn socket_type(self) -> SocketType {
        match self {
            Self::Control { .. } | Self::Steered { .. } | Self::Displaced => SocketType::STREAM,
            Self::Supervisor => SocketType::DGRAM,
        }
    }
}

/// Removes the sockets of mounts and supervisors in the runtime directory that no process listens
/// to any more; how many. The socket of a mount that is in the tree stays also without its daemon:
/// the mount is known by it.
///
/// # Errors
/// If the directory cannot be read.
pub fn remove_stale_sockets(directory: &Path) -> io::Result<usize> {
    // No process puts a new socket in the place of one that was found to be stale.
    let _alone = DirectoryLock::acquire(directory)?;
    let table = mounts()?;
    let is_mounted = |purpose| {
        table.iter().any(|mount| {
            let (major, minor) = (mount.device_major, mount.device_minor);
            purpose
                == if mount.is_fuse() {
                    Purpose::Control { major, minor }
                } else {
                    Purpose::Steered { major, minor }
                }
        })
    };
    let mut removed = 0;
    for entry in directory.read_dir()?.flatten() {
        let name = entry.file_name();
        let Some(purpose) = name.to_str().and_then(Purpose::of) else {
            continue;
        };
        if is_own_socket(&entry) && !is_mounted(purpose) && is_stale(&entry.path(), purpose) {
            std::fs::remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Removes the socket of the filesystem with a device number that is no longer steered, also if it stays
/// mounted, if no process listens to it.
/// Whether there was one.
///
/// # Errors
/// If the runtime directory cannot be used, or the socket not be removed.
pub fn remove_stale_socket(major: u32, minor: u32) -> io::Result<bool> {
    let directory = runtime_directory()?;
    let path = directory.join(steered_socket_name(major, minor));
    let purpose = Purpose::Steered { major, minor };
    let _alone = DirectoryLock::acquire(&directory)?;
    let is_left = is_own(path.symlink_metadata()) && is_stale(&path, purpose);
    if is_left {
        std::fs::remove_file(&path)?;
    }
    Ok(is_left)
}

fn is_own_socket(entry: &DirEntry) -> bool {
    is_own(entry.metadata())
}

fn is_own(about: io::Result<Metadata>) -> bool {
    let own = rustix::process::geteuid().as_raw();
    about.is_ok_and(|about| about.file_type().is_socket() && about.uid() == own)
}

/// Whether the kernel says that no process has it. One that does not answer has it.
fn is_stale(path: &Path, purpose: Purpose) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let refused = SocketAddrUnix::new(path).and_then(|address| {
        let socket = socket_with(AddressFamily::UNIX, purpose.socket_type(), flags, None)?;
        connect(&socket, &address)
    });
    refused == Err(Errno::CONNREFUSED)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixListener};

    use super::*;
    use crate::control::socket_path::socket_name;

    /// Found by hand: each supervisor and daemon that was killed left its socket for ever.
    #[test]
    fn sockets_of_ended_processes_are_removed_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        // A device number that no mount has.
        drop(UnixListener::bind(at("4095-1048575.sock")).unwrap());
        drop(UnixDatagram::bind(at("supervisor-4194305.sock")).unwrap());
        drop(UnixListener::bind(at("7-1.4194305.sock")).unwrap());
        let kept = [
            "4095-1048574.sock",
            "supervisor-1.sock",
            "flash-1-2.sock",
            "notes.log",
        ];
        let _control = UnixListener::bind(at(kept[0])).unwrap();
        let _supervisor = UnixDatagram::bind(at(kept[1])).unwrap();
        drop(UnixListener::bind(at(kept[2])).unwrap());
        std::fs::write(at(kept[3]), "").unwrap();
        // A mount that is in the tree.
        let mount = mounts().unwrap().pop().unwrap();
        let mounted = socket_name(&mount);
        drop(UnixListener::bind(at(&mounted)).unwrap());
        assert_eq!(remove_stale_sockets(directory.path()).unwrap(), 3);
        for name in kept.into_iter().chain([mounted.as_str()]) {
            assert!(at(name).exists(), "{name}");
        }
        assert_eq!(remove_stale_sockets(directory.path()).unwrap(), 0);
    }

    #[test]
    fn only_names_of_ours_are_looked_at() {
        let control = Purpose::Control {
            major: 7,
            minor: 12,
        };
        assert_eq!(Purpose::of("7-12.sock"), Some(control));
        let steered = Purpose::Steered {
            major: 7,
            minor: 12,
        };
        assert_eq!(Purpose::of("steered-7-12.sock"), Some(steered));
        assert_eq!(Purpose::of("7-12.99.sock"), Some(Purpose::Displaced));
        assert_eq!(Purpose::of("supervisor-9.sock"), Some(Purpose::Supervisor));
        for other in [
            "7.sock",
            "7-12",
            "flash-7-12.sock",
            "supervisor-x.sock",
            "7-12.x.sock",
            "steered-7.sock",
            ".sock",
        ] {
            assert_eq!(Purpose::of(other), None, "{other}");
        }
    }
}
