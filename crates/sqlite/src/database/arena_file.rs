//! The file in which uncommitted changes outlive the process: in memory, found again by the
//! database's identity.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use mobifs_volume::Arena;
use serde::{Deserialize, Serialize};

use crate::database::lower_file::FileIdentity;
use crate::failure::Failure;

/// Memory that outlives processes, on every Linux but Android.
pub(crate) const DEFAULT_DIRECTORY: &str = "/dev/shm";

/// The user that the arena belongs to.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    /// An arena from before the last boot may be torn, and is not needed.
    boot: String,
    database: FileIdentity,
}

impl Owner {
    fn new(database: FileIdentity) -> io::Result<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Ok(Self {
            boot: boot.trim().to_owned(),
            database,
        })
    }
}

/// What is found of the arena of a killed process.
#[derive(Debug)]
pub(crate) enum Found {
    /// Nothing, or an arena of another database or user.
    Nothing,
    /// Its whole state.
    Arena(Arena),
    /// Something that cannot be used, and why.
    Unusable(String),
}

/// The place of one database's arena. The directory is shared by all users, and another one may
/// have taken the name: so it may have a number after it, and files of other users are skipped.
#[derive(Debug)]
pub(crate) struct ArenaFile {
    directory: PathBuf,
    name: String,
    owner: Owner,
}

impl ArenaFile {
    /// In this directory; none if there is no such directory, or it may not be used.
    ///
    /// # Errors
    /// [`Failure::System`] if the system cannot say when it was started.
    pub(crate) fn new(directory: &Path, database: FileIdentity) -> Result<Option<Self>, Failure> {
        use rustix::fs::Access;
        let wanted = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
        if rustix::fs::access(directory, wanted).is_err() {
            return Ok(None);
        }
        let owner = Owner::new(database).map_err(Failure::system("reading the boot id"))?;
        let user = rustix::process::geteuid().as_raw();
        let FileIdentity { device, inode, .. } = database;
        Ok(Some(Self {
            directory: directory.to_owned(),
            name: format!("mobifs-{user}-{device:x}-{inode:x}"),
            owner,
        }))
    }

    /// The arena of a killed process, if there is one.
    ///
    /// # Errors
    /// [`Failure`] if there is something that cannot be read now.
    pub(crate) fn find(&self) -> Result<Found, Failure> {
        let mut found = Found::Nothing;
        for path in self.taken()? {
            let Some(file) = open_ours(&path)? else {
                continue;
            };
            let about = file.metadata().map_err(failed("looking at", &path))?;
            if about.len() == 0 {
                continue;
            }
            let arena = match Arena::attach_file(&file, path) {
                Ok(arena) => arena,
                Err(error) => {
                    found = Found::Unusable(error.to_string());
                    continue;
                }
            };
            let owner = arena.session();
            let owner = owner.and_then(|text| serde_json::from_slice(&text).ok());
            // Otherwise it is from before the last boot, or of a file that is gone.
            if owner.as_ref() == Some(&self.owner) {
                return Ok(Found::Arena(arena));
            }
        }
        Ok(found)
    }

    /// A new arena, in place of whatever was there.
    ///
    /// # Errors
    /// [`Failure`].
    pub(crate) fn create(&self) -> Result<Arena, Failure> {
        self.remove();
        let (file, path) = self.create_file()?;
        let made = Arena::create_in(&file, path).and_then(|arena| {
            let owner = serde_json::to_vec(&self.owner).map_err(io::Error::other)?;
            arena.set_session(&owner)?;
            Ok(arena)
        });
        made.map_err(|error| {
            self.remove();
            error.into()
        })
    }

    /// Under the first name that is free.
    fn create_file(&self) -> Result<(File, PathBuf), Failure> {
        let taken: HashSet<PathBuf> = self.taken()?.into_iter().collect();
        let plain = self.directory.join(&self.name);
        let numbered =
            (1_u64..).map(|number| plain.with_file_name(format!("{}.{number}", self.name)));
        let free = std::iter::once(plain.clone())
            .chain(numbered)
            .find(|path| !taken.contains(path))
            .unwrap_or(plain);
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&free);
        let file = file.map_err(failed("creating", &free))?;
        Ok((file, free))
    }

    /// The arena is not to be found any more.
    pub(crate) fn remove(&self) {
        let user = rustix::process::geteuid().as_raw();
        for path in self.taken().unwrap_or_default() {
            let is_ours = path
                .symlink_metadata()
                .is_ok_and(|about| about.uid() == user);
            if let Err(error) = std::fs::remove_file(&path)
                && is_ours
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(
                    path = %path.display(),
                    %error,
                    "cannot remove the arena of a database"
                );
            }
        }
    }

    /// The files under the name, with a number or without, of any user.
    fn taken(&self) -> Result<Vec<PathBuf>, Failure> {
        let listing = || Failure::system(format!("listing {}", self.directory.display()));
        let mut taken = Vec::new();
        for entry in std::fs::read_dir(&self.directory).map_err(listing())? {
            let entry = entry.map_err(listing())?;
            let name = entry.file_name();
            let rest = name.as_bytes().strip_prefix(self.name.as_bytes());
            if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b".")) {
                taken.push(entry.path());
            }
        }
        Ok(taken)
    }
}

/// Opens a file, if it is this user's. No other user can have opened it then: it has one name
/// and was private from the beginning.
fn open_ours(path: &Path) -> Result<Option<File>, Failure> {
    let about = path.symlink_metadata();
    let user = rustix::process::geteuid().as_raw();
    if !about.is_ok_and(|about| about.is_file() && about.uid() == user) {
        return Ok(None);
    }
    let opened = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path);
    let file = opened.map_err(failed("opening", path))?;
    let about = file.metadata().map_err(failed("looking at", path))?;
    let is_private =
        about.is_file() && about.uid() == user && about.mode() & 0o077 == 0 && about.nlink() == 1;
    if is_private {
        return Ok(Some(file));
    }
    let shared = io::Error::other("other users can access it; remove it");
    Err(failed("opening", path)(shared))
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Failure {
    Failure::system(format!("{doing} {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DATABASE: FileIdentity = FileIdentity {
        device: 7,
        inode: 11,
        made: Some(Duration::from_nanos(1_700_000_000_123_456_789)),
    };

    #[test]
    fn an_arena_is_found_again_by_its_database_only() {
        let directory = tempfile::tempdir().unwrap();
        let place = |database| ArenaFile::new(directory.path(), database).unwrap().unwrap();
        let mine = place(DATABASE);
        assert!(matches!(mine.find().unwrap(), Found::Nothing));
        drop(mine.create().unwrap());
        assert!(matches!(place(DATABASE).find().unwrap(), Found::Arena(_)));
        let other = FileIdentity {
            inode: 12,
            ..DATABASE
        };
        assert!(matches!(place(other).find().unwrap(), Found::Nothing));
        // Another database got the number of one that is gone: a copy of one in use was
        // refused for that.
        let later = FileIdentity {
            made: DATABASE.made.map(|made| made + Duration::from_nanos(1)),
            ..DATABASE
        };
        assert!(matches!(place(later).find().unwrap(), Found::Nothing));
        let impostor = ArenaFile {
            directory: mine.directory.clone(),
            name: mine.name.clone(),
            owner: Owner::new(other).unwrap(),
        };
        assert!(matches!(impostor.find().unwrap(), Found::Nothing));
        mine.remove();
        assert!(matches!(mine.find().unwrap(), Found::Nothing));
    }

    #[test]
    fn a_foreign_file_with_the_name_is_skipped() {
        let directory = tempfile::tempdir().unwrap();
        let place = ArenaFile::new(directory.path(), DATABASE).unwrap().unwrap();
        let path = |suffix: &str| directory.path().join(format!("{}{suffix}", place.name));
        let precious = directory.path().join("precious");
        std::fs::write(&precious, "content").unwrap();
        // It may not be removed, like another user's file in a sticky directory.
        std::fs::create_dir(path("")).unwrap();
        std::fs::create_dir(path(".2")).unwrap();
        std::os::unix::fs::symlink(&precious, path(".7")).unwrap();
        assert!(matches!(place.find().unwrap(), Found::Nothing));
        drop(place.create().unwrap());
        assert!(path(".1").is_file());
        assert!(matches!(place.find().unwrap(), Found::Arena(_)));
        // Nor is the arena of a database whose inode has the same beginning.
        let mut longer = place.name.clone();
        longer.push('0');
        std::fs::write(directory.path().join(&longer), "another's").unwrap();
        place.remove();
        assert!(!path(".1").exists() && directory.path().join(longer).exists());
        assert_eq!(std::fs::read(&precious).unwrap(), b"content");
    }

    #[test]
    fn what_others_can_get_at_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let place = ArenaFile::new(directory.path(), DATABASE).unwrap().unwrap();
        // As readable for others as files usually are.
        std::fs::write(directory.path().join(&place.name), "forged").unwrap();
        let error = place.find().unwrap_err();
        assert!(
            error.to_string().contains("other users can access it"),
            "{error}"
        );
    }

    #[test]
    fn where_there_is_no_such_directory_there_is_no_arena() {
        let place = ArenaFile::new(Path::new("/nonexistent"), DATABASE).unwrap();
        assert!(place.is_none());
    }
}
