//! What a daemon notes of a mount, for whoever restores it if the daemon is killed.

use std::fs;
use std::io;
use std::path::PathBuf;

use mobifs_host::{MountEntry, runtime_directory};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

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
    mount: MountIdentity,
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
    mount: MountIdentity,
    #[serde(flatten)]
    content: T,
}

impl NoteFile {
    /// That of a mount; `kind`: of several notes, which.
    ///
    /// # Errors
    /// There is no runtime directory.
    pub(crate) fn of(mount: &MountEntry, kind: &str) -> Result<Self, NoteError> {
        let name = format!(
            "steer-{}-{}{kind}.json",
            mount.device_major, mount.device_minor
        );
        let directory = runtime_directory().map_err(|source| NoteError {
            file: PathBuf::from(&name),
            source,
        })?;
        Ok(Self {
            path: directory.join(name),
            mount: MountIdentity::of(mount),
        })
    }

    /// What was noted of this mount; none: nothing was, or of another mount.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Option<T> {
        let note: Note<T> = serde_json::from_slice(&fs::read(&self.path).ok()?).ok()?;
        (note.mount == self.mount).then_some(note.content)
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
            mount: self.mount,
            content,
        };
        let text = serde_json::to_vec(&note).map_err(|error| failed(error.into()))?;
        let new = self.path.with_extension("new");
        fs::write(&new, text).map_err(failed)?;
        fs::rename(&new, &self.path).map_err(failed)
    }

    /// Removes what was noted of a mount that has ended: with it ended what was to be restored.
    pub(crate) fn remove_if_its_mount_has_ended(&self, table: &[MountEntry]) {
        let noted = fs::read(&self.path).ok();
        let noted = noted.and_then(|text| serde_json::from_slice::<MountIdentity>(&text).ok());
        let is_it = |mount: &MountEntry| noted == Some(MountIdentity::of(mount));
        if noted.is_some() && !table.iter().any(is_it) {
            self.remove();
        }
    }

    /// Nothing is to be restored any more.
    pub(crate) fn remove(&self) {
        let _removed = fs::remove_file(&self.path);
    }
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

    /// A mount that came later got the number, and what had been noted of the earlier one.
    #[test]
    fn a_note_is_of_one_mount() {
        let base = tempfile::tempdir().unwrap();
        let file = |mount_id, unique_mount_id| NoteFile {
            path: base.path().join("note.json"),
            mount: MountIdentity {
                mount_id,
                unique_mount_id,
            },
        };
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
}
