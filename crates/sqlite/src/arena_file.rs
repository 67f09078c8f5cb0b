//! Where what is not committed outlives the process: a file in memory, found again by the
//! database's identity.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use mobifs_runtime::Arena;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::lower_file::FileIdentity;

/// Memory that outlives processes, on every Linux but Android.
pub(crate) const DEFAULT_DIRECTORY: &str = "/dev/shm";

/// Whose arena it is.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    /// An arena of before the machine was started is torn, and not needed.
    boot: String,
    device: u64,
    inode: u64,
}

impl Owner {
    fn new(database: FileIdentity) -> io::Result<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Ok(Self {
            boot: boot.trim().to_owned(),
            device: database.device,
            inode: database.inode,
        })
    }
}

/// What a killed process has left.
#[derive(Debug)]
pub(crate) enum Left {
    /// Nothing, or what was another's.
    Nothing,
    /// All that it knew.
    Arena(Arena),
    /// Something that cannot be used, and why.
    Unusable(String),
}

/// The place of one database's arena.
#[derive(Debug)]
pub(crate) struct ArenaFile {
    path: PathBuf,
    owner: Owner,
}

impl ArenaFile {
    /// In this directory; none if there is no such directory, or it may not be used.
    ///
    /// # Errors
    /// [`Failure::System`] if the system cannot say when it was started.
    pub(crate) fn new(directory: &Path, database: FileIdentity) -> Result<Option<Self>, Failure> {
        use rustix::fs::Access;
        if rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK).is_err() {
            return Ok(None);
        }
        let owner = Owner::new(database).map_err(Failure::system("reading the boot id"))?;
        let user = rustix::process::geteuid().as_raw();
        let (device, inode) = (owner.device, owner.inode);
        let name = format!("mobifs-{user}-{device:x}-{inode:x}");
        let path = directory.join(name);
        Ok(Some(Self { path, owner }))
    }

    /// What a killed process has left.
    ///
    /// # Errors
    /// [`Failure`] if there is something that cannot be read now.
    pub(crate) fn left(&self) -> Result<Left, Failure> {
        let file = match self.open(libc::O_RDWR) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Left::Nothing),
            Err(error) => return Err(self.failed("opening", error)),
        };
        let about = file
            .metadata()
            .map_err(|error| self.failed("looking at", error))?;
        if about.len() == 0 {
            return Ok(Left::Nothing);
        }
        let arena = match Arena::attach_file(file.into()) {
            Ok(arena) => arena,
            Err(error) => return Ok(Left::Unusable(error.to_string())),
        };
        let owner = arena.session();
        let owner = owner.and_then(|text| serde_json::from_slice(&text).ok());
        Ok(match owner.as_ref() == Some(&self.owner) {
            true => Left::Arena(arena),
            // Of before the machine was started, or of a file that is gone.
            false => Left::Nothing,
        })
    }

    /// A new arena, in place of whatever was there.
    ///
    /// # Errors
    /// [`Failure`].
    pub(crate) fn create(&self) -> Result<Arena, Failure> {
        self.remove();
        let file = self.open(libc::O_RDWR | libc::O_CREAT | libc::O_EXCL);
        let file = OwnedFd::from(file.map_err(|error| self.failed("creating", error))?);
        let made = Arena::create_in(file).and_then(|arena| {
            let owner = serde_json::to_vec(&self.owner).map_err(io::Error::other)?;
            arena.set_session(&owner)?;
            Ok(arena)
        });
        made.map_err(|error| {
            self.remove();
            error.into()
        })
    }

    /// Nothing has to be found here any more.
    pub(crate) fn remove(&self) {
        match std::fs::remove_file(&self.path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "cannot be removed");
            }
        }
    }

    /// Opens the file, if it is ours: the directory is everybody's.
    fn open(&self, flags: libc::c_int) -> io::Result<File> {
        let flags = flags & !libc::O_ACCMODE | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = File::options()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(flags)
            .open(&self.path)?;
        let about = file.metadata()?;
        let is_ours = about.is_file()
            && about.uid() == rustix::process::geteuid().as_raw()
            && about.mode() & 0o077 == 0
            && about.nlink() == 1;
        if !is_ours {
            return Err(io::Error::other("it belongs to somebody else; remove it"));
        }
        Ok(file)
    }

    fn failed(&self, doing: &str, source: io::Error) -> Failure {
        Failure::system(format!("{doing} {}", self.path.display()))(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATABASE: FileIdentity = FileIdentity {
        device: 7,
        inode: 11,
    };

    #[test]
    fn an_arena_is_found_again_by_its_database_only() {
        let directory = tempfile::tempdir().unwrap();
        let place = |database| ArenaFile::new(directory.path(), database).unwrap().unwrap();
        let mine = place(DATABASE);
        assert!(matches!(mine.left().unwrap(), Left::Nothing));
        drop(mine.create().unwrap());
        assert!(matches!(place(DATABASE).left().unwrap(), Left::Arena(_)));
        let other = FileIdentity {
            inode: 12,
            ..DATABASE
        };
        assert!(matches!(place(other).left().unwrap(), Left::Nothing));
        // Another database got the number of one that is gone.
        let impostor = ArenaFile {
            path: mine.path.clone(),
            owner: Owner::new(other).unwrap(),
        };
        assert!(matches!(impostor.left().unwrap(), Left::Nothing));
        mine.remove();
        assert!(matches!(mine.left().unwrap(), Left::Nothing));
    }

    #[test]
    fn what_another_user_could_read_or_has_put_there_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let place = ArenaFile::new(directory.path(), DATABASE).unwrap().unwrap();
        let elsewhere = directory.path().join("precious");
        std::fs::write(&elsewhere, "content").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &place.path).unwrap();
        place.left().unwrap_err();
        std::fs::remove_file(&place.path).unwrap();
        // As readable for others as files usually are.
        std::fs::write(&place.path, "forged").unwrap();
        let error = place.left().unwrap_err();
        assert!(error.to_string().contains("somebody else"), "{error}");
        assert_eq!(std::fs::read(&elsewhere).unwrap(), b"content");
    }

    #[test]
    fn where_there_is_no_such_directory_there_is_no_arena() {
        let place = ArenaFile::new(Path::new("/nonexistent"), DATABASE).unwrap();
        assert!(place.is_none());
    }
}
