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
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use mobifs_host::{MountEntry, mounts, mounts_of};
use mobifs_store::StoreScope;

use crate::control::maker_of_socket;
use crate::lock::LOCK;
use crate::lock_table::holders_of;
use crate::mount_users::{MountUser, users_of_device};

/// Lines of the lock file are shorter than this.
const NOTE_BYTES_MAX: usize = 128;
const SERVING: &str = "serving";
const FINISHING: &str = "finishing";

/// What the holder of a lock is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderState {
    /// It serves this mount.
    Serving(ServedMount),
    /// Its mount has ended; it brings what was changed to the store, and ends.
    Finishing,
}

/// What tells a mount from others in a table of mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedMount {
    /// Major number of its device.
    pub device_major: u32,
    /// Minor number.
    pub device_minor: u32,
    /// Which processes the holder's process id is about.
    pub pid_namespace: u64,
    /// [`source_hash`]. The kernel gives the device number of a mount that has ended to the
    /// next one. None: an older version wrote the note.
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

    fn is(&self, mount: &MountEntry) -> bool {
        (mount.device_major, mount.device_minor) == (self.device_major, self.device_minor)
            && self
                .source_hash
                .is_none_or(|hash| hash == source_hash(mount))
    }

    /// Whether the process `pid`, or who goes on with its mount, has it in its tree. Where that
    /// cannot be found out, it has.
    fn is_in_tree(&self, pid: u32) -> bool {
        if self.pid_namespace != own_pid_namespace() {
            return true;
        }
        // A process that was killed has no table, and one that is ending an invalid one; a
        // successor has ours.
        let table = mounts_of(pid).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::InvalidInput => mounts(),
            _ => Err(error),
        });
        table.map_or(true, |table| table.iter().any(|mount| self.is(mount)))
    }
}

/// Of the source as the table of mounts shows it (FNV-1a).
fn source_hash(mount: &MountEntry) -> u64 {
    let bytes = mount.source.as_os_str().as_bytes().iter();
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl HolderState {
    /// Of a process that serves this mount.
    pub fn serving(mount: &MountEntry) -> Self {
        Self::Serving(ServedMount {
            device_major: mount.device_major,
            device_minor: mount.device_minor,
            pid_namespace: own_pid_namespace(),
            source_hash: Some(source_hash(mount)),
        })
    }

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

/// What a lock file says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// Process id; 0 if it is not known.
    pub pid: u32,
    /// None: the holder has not said, for instance because it is just starting.
    pub state: Option<HolderState>,
    /// The lock is shared by processes that only read the store, which note nothing.
    pub is_reader: bool,
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
            is_reader: false,
        }
    }

    /// Whether the holder of the store at `store` frees it by itself: its mount has ended. Of
    /// readers, whether no mount of the store is in the tree: then they are about to end, or to
    /// begin, or they are no mount but a check.
    pub fn is_finishing(&self, store: &Path) -> bool {
        match self.state {
            None => self.is_reader && !has_mount(store),
            Some(HolderState::Finishing) => true,
            Some(HolderState::Serving(mount)) => !mount.is_in_tree(self.pid),
        }
    }

    /// Who uses the mount of this holder although it has left the tree, as far as this process
    /// may see it: the holder serves it until they have ended.
    pub fn mount_users(&self) -> Vec<MountUser> {
        match self.state {
            Some(HolderState::Serving(mount)) => {
                users_of_device(mount.device_major, mount.device_minor)
            }
            _ => Vec::new(),
        }
    }
}

/// Whether a mount of the store is in the tree.
fn has_mount(store: &Path) -> bool {
    let Ok(about) = store.metadata() else {
        return false;
    };
    let is_named_after_it = |mount: &MountEntry| {
        let is_path = mount.source.is_absolute();
        let source = is_path.then(|| mount.source.metadata().ok()).flatten();
        source.is_some_and(|source| (source.dev(), source.ino()) == (about.dev(), about.ino()))
    };
    let table = mounts().unwrap_or_default();
    let mut others = Vec::new();
    for mount in table.iter().filter(|mount| mount.is_fuse()) {
        if is_named_after_it(mount) {
            return true;
        }
        others.push(mount);
    }
    // With `fsname=` a mount has any name. Who has made its control socket has locked its store.
    let holders = lock_holders(store);
    let is_holder =
        |mount: &&MountEntry| maker_of_socket(mount).is_some_and(|maker| holders.contains(&maker));
    !holders.is_empty() && others.iter().any(is_holder)
}

/// The processes that hold the lock of the store at `store`, as far as the kernel tells.
fn lock_holders(store: &Path) -> Vec<u32> {
    let lock = store.join(&*StoreScope::Tree.own_directory()).join(LOCK);
    let holders = lock.metadata().and_then(|about| holders_of(about.ino()));
    holders.unwrap_or_default()
}

/// Writes who holds the lock and what it is doing, in place of what is there. One write: readers
/// do not hold the lock.
pub(crate) fn write(file: &File, pid: u32, state: Option<HolderState>) -> io::Result<()> {
    let line = state.map_or_else(String::new, HolderState::to_line);
    let text = format!("{pid}\n{line}");
    file.write_all_at(text.as_bytes(), 0)?;
    file.set_len(text.len() as u64)
}

/// Writes the holder's state below its process id, which is there already.
pub(crate) fn note(file: &File, state: HolderState) -> io::Result<()> {
    match Holder::read(file).pid {
        0 => Err(io::ErrorKind::InvalidData.into()),
        pid => write(file, pid, Some(state)),
    }
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

    /// Of this process, as noted by this version, with the source that is given.
    fn of_device(device_major: u32, device_minor: u32, source: &str) -> HolderState {
        let root = mounts().unwrap().remove(0);
        HolderState::serving(&MountEntry {
            root: "/".into(),
            source: source.into(),
            device_major,
            device_minor,
            ..root
        })
    }

    fn nowhere() -> &'static Path {
        Path::new("/a store that is not there")
    }

    #[test]
    fn what_is_noted_is_found() {
        for state in [
            None,
            Some(HolderState::Finishing),
            Some(of_device(7, 12, "/a")),
        ] {
            let pid = std::process::id();
            let is_reader = false;
            let expected = Holder {
                pid,
                state,
                is_reader,
            };
            assert_eq!(noted(state), expected);
        }
    }

    #[test]
    fn a_later_note_takes_the_place_of_an_earlier_one() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"17\n", 0).unwrap();
        note(&file, of_device(259, 1_048_575, "/a")).unwrap();
        note(&file, HolderState::Finishing).unwrap();
        let found = Holder::read(&file);
        assert_eq!((found.pid, found.state), (17, Some(HolderState::Finishing)));
        write(&file, 18, None).unwrap();
        let found = Holder::read(&file);
        assert_eq!((found.pid, found.state), (18, None));
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
            "12\nserving 1 2 3 hash\n",
        ] {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(text.as_bytes(), 0).unwrap();
            let found = Holder::read(&file);
            assert_eq!(found.state, None, "{text:?}");
            assert!(!found.is_finishing(nowhere()));
        }
        assert!(note(&tempfile::tempfile().unwrap(), HolderState::Finishing).is_err());
    }

    #[test]
    fn a_holder_is_finishing_when_its_mount_has_left_the_tree() {
        let is_finishing = |state| noted(state).is_finishing(nowhere());
        assert!(is_finishing(Some(HolderState::Finishing)));
        assert!(!is_finishing(None), "it is just starting");
        let root = mounts().unwrap().remove(0);
        assert!(!is_finishing(Some(HolderState::serving(&root))));
        // No mount has this number.
        assert!(is_finishing(Some(of_device(4095, 77, "/a"))));
        // Of a process that was killed, whose successor goes on with the mount.
        for (mount, expected) in [
            (HolderState::serving(&root), false),
            (of_device(4095, 77, "/a"), true),
        ] {
            let killed = Holder {
                pid: u32::MAX,
                state: Some(mount),
                is_reader: false,
            };
            assert_eq!(killed.is_finishing(nowhere()), expected);
        }
    }

    /// The kernel gave the number of a mount that had ended to the next mount of the machine, and
    /// a daemon that was finishing looked as if it served.
    #[test]
    fn a_mount_is_not_taken_for_a_later_one_with_its_number() {
        let root = mounts().unwrap().remove(0);
        let (major, minor) = (root.device_major, root.device_minor);
        let noted_as = |source| noted(Some(of_device(major, minor, source)));
        assert!(noted_as("/another store").is_finishing(nowhere()));
        assert!(!noted_as(root.source.to_str().unwrap()).is_finishing(nowhere()));
        // What an older version noted has the number alone.
        let Some(HolderState::Serving(mut mount)) = noted_as("/another store").state else {
            panic!("it was noted");
        };
        mount.source_hash = None;
        assert!(!noted(Some(HolderState::Serving(mount))).is_finishing(nowhere()));
    }

    #[test]
    fn a_holder_in_another_container_is_not_known_to_be_finishing() {
        let HolderState::Serving(mut mount) = of_device(4095, 77, "/a") else {
            panic!("it serves");
        };
        mount.pid_namespace += 1;
        assert!(!noted(Some(HolderState::Serving(mount))).is_finishing(nowhere()));
    }

    /// Found while its exit was under way: the table of a process that has no namespaces any more
    /// cannot be read, and it was taken for one that serves.
    #[test]
    fn a_holder_that_is_being_reaped_does_not_serve() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let path = format!("/proc/{}/stat", child.id());
        while !std::fs::read_to_string(&path).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        let zombie = Holder {
            pid: child.id(),
            state: Some(of_device(4095, 77, "/a")),
            is_reader: false,
        };
        assert!(zombie.is_finishing(nowhere()));
        child.wait().unwrap();
    }
}
