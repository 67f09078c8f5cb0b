//! The database's own file in the lower filesystem: its mark, and the lock that keeps
//! programs without MobiFS away.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::database::database_file::DatabaseFile;
use crate::database::header::{self, Beginning, HEADER_BYTES, MARK_PLACE};
use crate::failure::Failure;

/// Where SQLite's own locks are in a file, and how many bytes they take.
const LOCKS_AT: libc::off_t = 0x4000_0000;
const LOCKS_BYTES: libc::off_t = 512;
const MARKING: &str = "marking the database's file as in use";

/// A file, distinguished from all others as long as it exists, and, where the filesystem keeps the
/// time when it was made, from those that get its inode's number after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct FileIdentity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Since 1970.
    pub(crate) made: Option<Duration>,
}

impl FileIdentity {
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let about = path.symlink_metadata()?;
        Ok(Self::of_metadata(&about))
    }

    fn of_metadata(about: &std::fs::Metadata) -> Self {
        let made = about.created().ok();
        Self {
            device: about.dev(),
            inode: about.ino(),
            made: made.and_then(|at| at.duration_since(UNIX_EPOCH).ok()),
        }
    }
}

/// Files that were opened and not locked, kept open until the process ends: closing one would take
/// away all POSIX locks that this process has on it, also those of a connection through SQLite's
/// own VFS.
static UNLOCKED: Mutex<Option<HashMap<FileIdentity, Arc<File>>>> = Mutex::new(None);

/// The file of a database, which other programs may be using.
#[derive(Debug)]
pub(crate) struct Candidate {
    path: PathBuf,
    file: Arc<File>,
    identity: FileIdentity,
}

impl Candidate {
    /// Opens the file. One that is made is empty.
    ///
    /// # Errors
    /// [`Failure::System`].
    pub(crate) fn open(path: &Path, may_create: bool) -> Result<Self, Failure> {
        let opening = || Failure::system(format!("opening {}", path.display()));
        if let Some(known) = known(path) {
            return Ok(known);
        }
        let file = File::options()
            .read(true)
            .write(true)
            .create(may_create)
            .truncate(false)
            .mode(0o644)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)
            .map_err(opening())?;
        let about = file.metadata().map_err(opening())?;
        if !about.is_file() {
            return Err(opening()(io::Error::other("it is not a regular file")));
        }
        let identity = FileIdentity::of_metadata(&about);
        let file = Arc::new(file);
        let mut unlocked = UNLOCKED.lock();
        unlocked
            .get_or_insert_default()
            .insert(identity, Arc::clone(&file));
        Ok(Self {
            path: path.to_owned(),
            file,
            identity,
        })
    }

    /// What the file begins with.
    ///
    /// # Errors
    /// [`Failure::System`].
    pub(crate) fn beginning(&self) -> Result<Beginning, Failure> {
        beginning_of(&self.file).map_err(Failure::system("reading the database's header"))
    }

    /// Keeps programs without MobiFS away from it.
    ///
    /// # Errors
    /// [`Failure::InUse`], [`Failure::System`].
    pub(crate) fn lock(self) -> Result<LowerFile, Failure> {
        let locking = || Failure::system(format!("locking {}", self.path.display()));
        match lock(&self.file).map_err(locking())? {
            Locked::Here => {}
            Locked::Process => return Err(Failure::InUse(self.path)),
            Locked::OpenFile => return Err(Failure::InUseElsewhere(self.path)),
        }
        // Another program may have put another file in its place before it was locked.
        if FileIdentity::of(&self.path).ok() != Some(self.identity) {
            return Err(Failure::InUse(self.path));
        }
        if let Some(unlocked) = UNLOCKED.lock().as_mut() {
            unlocked.remove(&self.identity);
        }
        Ok(LowerFile {
            path: self.path,
            file: self.file,
            identity: self.identity,
        })
    }
}

/// The file at `path`, if it was opened before and not locked.
fn known(path: &Path) -> Option<Candidate> {
    let identity = FileIdentity::of(path).ok()?;
    let unlocked = UNLOCKED.lock();
    let file = unlocked.as_ref()?.get(&identity)?;
    Some(Candidate {
        path: path.to_owned(),
        file: Arc::clone(file),
        identity,
    })
}

/// The file of a database, which no other process uses as long as this exists.
#[derive(Debug)]
pub(crate) struct LowerFile {
    path: PathBuf,
    file: Arc<File>,
    identity: FileIdentity,
}

impl LowerFile {
    pub(crate) const fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// The file, open for reading and writing.
    pub(crate) const fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// What the file begins with.
    ///
    /// # Errors
    /// [`Failure::System`].
    pub(crate) fn beginning(&self) -> Result<Beginning, Failure> {
        beginning_of(&self.file).map_err(Failure::system("reading the database's header"))
    }

    /// Cuts off what remains of a stand-in after a power cut: its size without its text.
    ///
    /// # Errors
    /// [`Failure::System`].
    pub(crate) fn clear(&self) -> Result<(), Failure> {
        let clear = || match self.file.metadata()?.len() {
            0 => Ok(()),
            _ => self.file.set_len(0),
        };
        clear().map_err(Failure::system("clearing the database's file"))
    }

    /// Changes the part of the header that bears the mark, in one write.
    fn change_mark(&self, change: fn(&mut [u8], u64)) -> io::Result<()> {
        let at = MARK_PLACE.start as u64;
        let mut bytes = [0; MARK_PLACE.end - MARK_PLACE.start];
        self.file.read_exact_at(&mut bytes, at)?;
        change(&mut bytes, at);
        self.file.write_all_at(&bytes, at)
    }
}

impl DatabaseFile for LowerFile {
    fn mark(&self) -> Result<(), Failure> {
        let write = || match beginning_of(&self.file)? {
            Beginning::Empty => self.file.write_all_at(&header::stand_in(), 0),
            Beginning::Database { is_marked: false } => self.change_mark(header::mark),
            _ => Ok(()),
        };
        write().map_err(Failure::system(MARKING))
    }

    fn make_mark_durable(&self) -> Result<(), Failure> {
        self.file.sync_all().map_err(Failure::system(MARKING))
    }

    fn unmark(&self) -> Result<(), Failure> {
        let write = || {
            match beginning_of(&self.file)? {
                Beginning::StandIn => self.file.set_len(0)?,
                Beginning::Database { is_marked: true } => {
                    self.change_mark(header::unmark)?;
                }
                _ => return Ok(()),
            }
            self.file.sync_all()
        };
        let action = "making the database's file an ordinary one again";
        write().map_err(Failure::system(action))
    }

    fn has_moved(&self) -> bool {
        FileIdentity::of(&self.path).ok() != Some(self.identity)
    }

    fn is_deleted(&self) -> bool {
        self.file.metadata().is_ok_and(|about| about.nlink() == 0)
    }
}

impl Drop for LowerFile {
    /// Closing would unlock it, too, unless a child that was just forked has it open.
    fn drop(&mut self) {
        if let Err(error) = change_lock(&self.file, libc::F_OFD_SETLK, libc::F_UNLCK) {
            tracing::warn!(
                %error,
                "cannot unlock a database: it stays locked until its file is closed everywhere"
            );
        }
    }
}

fn beginning_of(file: &File) -> io::Result<Beginning> {
    let mut bytes = [0; HEADER_BYTES + 1];
    let mut length = 0;
    while length < bytes.len() {
        match file.read_at(&mut bytes[length..], length as u64)? {
            0 => break,
            more => length += more,
        }
    }
    Ok(Beginning::of(&bytes[..length]))
}

/// The holder of the lock on a database's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Locked {
    /// This open file.
    Here,
    /// A process that locks as SQLite does.
    Process,
    /// An open file, as the engine does it.
    OpenFile,
}

/// Locks what SQLite locks, for this open file alone.
fn lock(file: &File) -> io::Result<Locked> {
    match change_lock(file, libc::F_OFD_SETLK, libc::F_WRLCK) {
        Ok(_) => return Ok(Locked::Here),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {}
        Err(error) => return Err(error),
    }
    // Locks of open files belong to no process.
    let found = change_lock(file, libc::F_OFD_GETLK, libc::F_WRLCK)?;
    let is_open_files = found.l_type != libc::F_UNLCK as libc::c_short && found.l_pid == -1;
    Ok(if is_open_files {
        Locked::OpenFile
    } else {
        Locked::Process
    })
}

#[expect(unsafe_code, reason = "rustix has no locks of open files")]
fn change_lock(file: &File, command: libc::c_int, kind: libc::c_int) -> io::Result<libc::flock> {
    // SAFETY: `flock` is plain data.
    let mut wanted: libc::flock = unsafe { std::mem::zeroed() };
    wanted.l_type = kind as libc::c_short;
    wanted.l_whence = libc::SEEK_SET as libc::c_short;
    wanted.l_start = LOCKS_AT;
    wanted.l_len = LOCKS_BYTES;
    // SAFETY: an open descriptor, and a `flock` that outlives the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut wanted) } {
        0 => Ok(wanted),
        _ => Err(io::Error::last_os_error()),
    }
}
