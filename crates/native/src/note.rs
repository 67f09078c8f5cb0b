//! What a daemon notes of a mount, for the next daemon or `mobifs steer --stop` if it is killed.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use mobifs_host::{MountEntry, runtime_directory};
use mobifs_steered::Device;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, open, statx};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::filesystem::Filesystem;

/// What is to be restored cannot be noted.
#[derive(Debug, thiserror::Error)]
#[error("cannot note what is to be restored in {file}: {source}", file = file.display())]
pub struct NoteError {
    file: PathBuf,
    source: io::Error,
}

/// The place of a note: a file of the runtime directory, named after the device as the control socket
/// is.
#[derive(Debug)]
pub(crate) struct NoteFile {
    path: PathBuf,
    identity: Identity,
    mountpoint: PathBuf,
}

/// What a note is of. The options and flags that are noted are the filesystem's, whichever of its mounts
/// they were changed through, so that is what counts where the kernel shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    #[serde(flatten)]
    mount: MountIdentity,
    /// [`Filesystem::instance`].
    #[serde(default)]
    filesystem: Option<u64>,
}

impl Identity {
    fn of(mount: &MountEntry) -> Self {
        let filesystem = Filesystem::of(mount).ok().flatten();
        Self {
            mount: MountIdentity::of(mount),
            filesystem: filesystem.and_then(|filesystem| filesystem.instance()),
        }
    }

    fn is_of_same(self, other: Self) -> bool {
        match (self.filesystem, other.filesystem) {
            (Some(own), Some(other)) => own == other,
            _ => self.mount == other.mount,
        }
    }
}

/// Numbers of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MountIdentity {
    /// Which another mount may have later.
    mount_id: u64,
    /// Which no other mount gets before the machine is restarted; Linux 6.8 has it.
    unique_mount_id: Option<u64>,
}

impl MountIdentity {
    fn of(mount: &MountEntry) -> Self {
        Self {
            mount_id: mount.id,
            unique_mount_id: unique_id(mount),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Note<T> {
    #[serde(flatten)]
    identity: Identity,
    /// Where it was mounted; none: the path is no text.
    #[serde(default)]
    mountpoint: Option<String>,
    #[serde(flatten)]
    content: T,
}

impl NoteFile {
    /// The note of a mount; `kind` says which of several notes.
    ///
    /// # Errors
    /// There is no runtime directory.
    pub(crate) fn of(mount: &MountEntry, kind: &str) -> Result<Self, NoteError> {
        let device = Device {
            major: mount.device_major,
            minor: mount.device_minor,
        };
        Ok(Self {
            path: path_of(device, kind)?,
            identity: Identity::of(mount),
            mountpoint: mount.mountpoint.clone(),
        })
    }

    /// What was noted of this filesystem since it was mounted; none: nothing was, or of another one.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Option<T> {
        let note: Note<T> = serde_json::from_slice(&read_regular(&self.path).ok()?).ok()?;
        note.identity
            .is_of_same(self.identity)
            .then_some(note.content)
    }

    /// Notes it, in place of what was noted before.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write<T: Serialize>(&self, content: &T) -> Result<(), NoteError> {
        let failed = |source| NoteError {
            file: self.path.clone(),
            source,
        };
        let note = Note {
            identity: self.identity,
            mountpoint: self.mountpoint.to_str().map(str::to_owned),
            content,
        };
        let text = serde_json::to_vec(&note).map_err(|error| failed(error.into()))?;
        let new = self.path.with_extension("new");
        fs::write(&new, text).map_err(failed)?;
        fs::rename(&new, &self.path).map_err(failed)
    }

    /// Notes it again if it is gone, as with the runtime directory.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn keep<T: Serialize>(&self, content: &T) -> Result<(), NoteError> {
        if self.path.exists() {
            return Ok(());
        }
        // Makes it again, if it is this one.
        let _directory = runtime_directory();
        self.write(content)
    }

    /// Nothing is to be restored any more. What another daemon has noted meanwhile stays: when a
    /// filesystem has ended, the next one may have its device number before this is called.
    pub(crate) fn remove(&self) {
        if self.read::<serde_json::Value>().is_some() {
            let _removed = fs::remove_file(&self.path);
        }
    }
}

/// The beginning of the names of notes.
const PREFIX: &str = "steer-";

/// Where the note of a filesystem is.
fn path_of(device: Device, kind: &str) -> Result<PathBuf, NoteError> {
    let name = format!("{PREFIX}{}-{}{kind}.json", device.major, device.minor);
    match runtime_directory() {
        Ok(directory) => Ok(directory.join(name)),
        Err(source) => Err(NoteError {
            file: PathBuf::from(&name),
            source,
        }),
    }
}

/// The filesystem of which a file of the runtime directory is the note, by its name.
fn device_of(name: &str, kind: &str) -> Option<Device> {
    let name = name.strip_prefix(PREFIX)?.strip_suffix(".json")?;
    let (major, minor) = name.strip_suffix(kind)?.split_once('-')?;
    Some(Device {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
    })
}

/// The filesystems of which a mount at this place was noted.
///
/// # Errors
/// The runtime directory cannot be read.
pub(crate) fn devices_noted_at(mountpoint: &Path, kind: &str) -> Result<Vec<Device>, NoteError> {
    let failed = |source| NoteError {
        file: PathBuf::from(PREFIX),
        source,
    };
    let entries = runtime_directory().and_then(fs::read_dir).map_err(failed)?;
    let is_of_it = |path: &Path| {
        let text = read_regular(path).unwrap_or_default();
        let note = serde_json::from_slice::<Note<serde_json::Value>>(&text).ok();
        let noted = note.and_then(|note| note.mountpoint);
        noted.is_some_and(|noted| Path::new(&noted) == mountpoint)
    };
    let named = entries.flatten().filter_map(|entry| {
        let device = device_of(entry.file_name().to_str()?, kind)?;
        Some((device, entry.path()))
    });
    let meant = named.filter(|(_, path)| is_of_it(path));
    Ok(meant.map(|(device, _)| device).collect())
}

/// The mounts of a filesystem.
fn mounts_of(device: Device, table: &[MountEntry]) -> impl Iterator<Item = &MountEntry> {
    let is_of = move |mount: &&MountEntry| {
        (mount.device_major, mount.device_minor) == (device.major, device.minor)
    };
    table.iter().filter(is_of)
}

/// A mount of the filesystem of which something was noted when it was mounted at `mountpoint`, and which
/// is mounted elsewhere still.
///
/// # Errors
/// The runtime directory cannot be read.
pub(crate) fn noted_elsewhere(
    mountpoint: &Path,
    kind: &str,
    table: &[MountEntry],
) -> Result<Option<MountEntry>, NoteError> {
    for device in devices_noted_at(mountpoint, kind)? {
        for mount in mounts_of(device, table) {
            let file = NoteFile::of(mount, kind)?;
            if file.read::<serde_json::Value>().is_some() {
                return Ok(Some(mount.clone()));
            }
        }
    }
    Ok(None)
}

/// What was noted of a filesystem of which this process sees no mount.
#[derive(Debug)]
pub(crate) enum Ended {
    /// Nothing, or it has a mount.
    Nothing,
    /// The filesystem is in use where this process does not see it, and can be restored when it is mounted here.
    InUseElsewhere,
    /// With its last mount ended what was to be restored: this was noted and is removed.
    Removed(serde_json::Value),
}

/// Removes what was noted of a filesystem that is mounted no longer.
///
/// # Errors
/// There is no runtime directory.
pub(crate) fn remove_of_ended_mount(
    device: Device,
    kind: &str,
    table: &[MountEntry],
) -> Result<Ended, NoteError> {
    let path = path_of(device, kind)?;
    let text = read_regular(&path).unwrap_or_default();
    let noted = serde_json::from_slice::<Note<serde_json::Value>>(&text).ok();
    let Some(noted) = noted else {
        return Ok(Ended::Nothing);
    };
    if mounts_of(device, table).any(|mount| noted.identity.is_of_same(Identity::of(mount))) {
        return Ok(Ended::Nothing);
    }
    if noted.identity.filesystem.is_some_and(Filesystem::is_in_use) {
        return Ok(Ended::InUseElsewhere);
    }
    let removed = fs::remove_file(&path);
    removed.map_err(|source| NoteError { file: path, source })?;
    Ok(Ended::Removed(noted.content))
}

/// The content of a note. What another program has put there may be a pipe, or have no end.
fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    const NOTE_BYTES_MAX: u64 = 1 << 20;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = fs::File::from(open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = Vec::new();
    file.take(NOTE_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}

/// The number of the mount that is not given again, where the kernel has one.
fn unique_id(mount: &MountEntry) -> Option<u64> {
    let flag = StatxFlags::from_bits_retain(libc::STATX_MNT_ID_UNIQUE);
    let found = statx(CWD, &mount.mountpoint, AtFlags::NO_AUTOMOUNT, flag).ok()?;
    let is_known = found.stx_mask & libc::STATX_MNT_ID_UNIQUE != 0;
    is_known.then_some(found.stx_mnt_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Content {
        words: Vec<String>,
    }

    fn note_at(
        base: &Path,
        mount_id: u64,
        unique: Option<u64>,
        filesystem: Option<u64>,
    ) -> NoteFile {
        NoteFile {
            path: base.join("note.json"),
            identity: Identity {
                mount: MountIdentity {
                    mount_id,
                    unique_mount_id: unique,
                },
                filesystem,
            },
            mountpoint: "/data".into(),
        }
    }

    /// Bind mounts show it, too, and outlive the mount through which the options were changed.
    #[test]
    fn a_note_is_of_a_filesystem_through_all_its_mounts() {
        let base = tempfile::tempdir().unwrap();
        let file =
            |mount_id, filesystem| note_at(base.path(), mount_id, Some(mount_id), filesystem);
        let content = Content { words: Vec::new() };
        file(7, Some(70)).write(&content).unwrap();
        let found = |file: NoteFile| file.read::<Content>().is_some();
        assert!(found(file(7, Some(70))) && found(file(8, Some(70))));
        // Mounted anew, with the same number of the mount or another one.
        assert!(!found(file(7, Some(71))) && !found(file(8, Some(71))));
        // Where the kernel does not show it.
        assert!(found(file(7, None)) && !found(file(8, None)));
    }

    /// A daemon whose filesystem had ended took the note of the next daemon away.
    #[test]
    fn a_note_of_another_filesystem_is_not_removed() {
        let base = tempfile::tempdir().unwrap();
        let [ended, next] = [70, 71].map(|id| note_at(base.path(), id, Some(id), Some(id)));
        let content = Content { words: Vec::new() };
        ended.write(&content).unwrap();
        next.write(&content).unwrap();
        ended.remove();
        assert_eq!(next.read(), Some(content));
        next.remove();
        assert_eq!(next.read::<Content>(), None);
    }

    /// A mount that came later got the number, and what had been noted of the earlier one.
    #[test]
    fn a_note_is_of_one_mount() {
        let base = tempfile::tempdir().unwrap();
        let file = |mount_id, unique| note_at(base.path(), mount_id, unique, None);
        let content = Content {
            words: vec!["a".to_owned()],
        };
        let own = file(7, Some(70));
        assert_eq!(own.read::<Content>(), None);
        own.write(&content).unwrap();
        assert_eq!(own.read(), Some(content));
        for other in [file(7, Some(71)), file(8, Some(70)), file(7, None)] {
            assert_eq!(other.read::<Content>(), None, "{other:?}");
        }
        own.remove();
        assert_eq!(own.read::<Content>(), None);
    }

    #[test]
    fn a_note_is_known_by_its_name() {
        let device = Device {
            major: 7,
            minor: 12,
        };
        assert_eq!(device_of("steer-7-12.json", ""), Some(device));
        assert_eq!(device_of("steer-7-12-only.json", "-only"), Some(device));
        for name in [
            "steer-7-12-only.json",
            "steer-7.json",
            "7-12.json",
            "steer-7-12.new",
        ] {
            assert_eq!(device_of(name, ""), None, "{name}");
        }
    }
}
