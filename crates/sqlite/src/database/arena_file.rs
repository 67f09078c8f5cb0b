//! The file in which uncommitted changes outlive the process: in memory, found again by the
//! database's identity.
//!
//! *Which arena is a database's?* It holds changes over one state of one store, so over any other
//! it would be damage. Its owner record says whose it is: the boot, the file's inode number and birth
//! time, and a *token*, a random number that each session writes beside its journal before it changes
//! anything. The number of the device is in the record and in the arena's name, and is no more than a
//! hint: it changes when a filesystem is mounted again, and two filesystems have the same one, one
//! after the other.
//!
//! The token tells apart what nothing else does: copies of a whole filesystem, which have the inodes,
//! birth times and identities of the original. A copy from before the session has another token, and
//! so has any store that a later session has changed. It need not be durable: without the machine's
//! memory there is no arena, and a medium that was pulled out has lost power.
//!
//! What has the token is the store itself, or a copy of its filesystem made during the session or
//! after the kill and not changed since:
//! * *The session is alive.* It keeps its arena locked, and no other process touches that.
//! * *The session is dead, and its filesystem is mounted*: what lies at the path that the record has
//!   is the original, and without that what is in a filesystem of the same identity under the device
//!   number that the record has. Any other one is the copy, and gets nothing.
//! * *The original is not mounted.* A copy that lacks transactions of the journal which the session
//!   knew to be committed is refused ([`Resumption::committed_last`](mobifs_volume::Resumption)). Any
//!   other one has the same committed content as the original, bit by bit the same journal; nothing
//!   distinguishes the two, and the first to be opened goes on as the original.
//!
//! *Which arenas may be removed?* Its own by a session that ends or has committed what is in it; and
//! those that are certainly of no use, see [`ArenaFile::is_dead`]; and, after a week, those of databases that are not
//! where they were ([`gone`]). All others stay until the machine is started again.

pub(super) mod gone;
mod token;
mod view;

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mobifs_volume::{Arena, ArenaError};
use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::database::lower_file::FileIdentity;
use crate::failure::Failure;
use view::View;

/// Memory that outlives processes, on every Linux but Android.
pub(crate) const DEFAULT_DIRECTORY: &str = "/dev/shm";
/// How often the lock of an arena is tried, and the pause between two tries.
const LOCK_TRIES: u32 = 200;
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// A longer path is not recorded: the record has a limit.
const PATH_BYTES_MAX: usize = 1000;

/// A database as its arena knows it.
#[derive(Clone, Debug)]
pub(crate) struct ArenaUser {
    pub(crate) file: FileIdentity,
    /// Identity of its filesystem, if that has one: see [`filesystem_of`].
    pub(crate) filesystem: Option<u64>,
    pub(crate) path: PathBuf,
    /// Where its journal is.
    pub(crate) store: PathBuf,
}

/// The identity that a filesystem reports, if it belongs to what is on the medium, as with ext4 and
/// btrfs: XFS and F2FS report the device's number.
pub(crate) fn filesystem_of(reported: u64, device: u64) -> Option<u64> {
    (reported != 0 && reported != device).then_some(reported)
}

/// The user that the arena belongs to.
#[derive(Debug, Serialize, Deserialize)]
struct Owner {
    /// An arena from before the last boot may be torn, and is not needed.
    boot: String,
    database: FileIdentity,
    filesystem: Option<u64>,
    /// Its path, each byte as the character of that number; none if that is long.
    path: Option<String>,
    /// Where that path leads to.
    #[serde(default)]
    view: Option<View>,
    /// None until the session may change something.
    token: Option<String>,
}

impl Owner {
    fn new(user: &ArenaUser) -> io::Result<Self> {
        let bytes = user.path.as_os_str().as_bytes();
        let path =
            (bytes.len() <= PATH_BYTES_MAX).then(|| bytes.iter().map(|&byte| char::from(byte)));
        Ok(Self {
            boot: from_kernel("boot_id")?,
            database: user.file,
            filesystem: user.filesystem,
            path: path.map(Iterator::collect),
            view: View::own(),
            token: None,
        })
    }

    fn path(&self) -> Option<PathBuf> {
        let bytes: Result<Vec<u8>, _> = self.path.as_ref()?.chars().map(u8::try_from).collect();
        Some(PathBuf::from(std::ffi::OsString::from_vec(bytes.ok()?)))
    }

    /// The owner of the arena in a file; nothing of it is changed, and it need not be locked. None if it
    /// has none.
    fn of(file: &File) -> Result<Option<Self>, ArenaError> {
        let text = Arena::session_in(file)?;
        Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    /// Whether another file than `user`, which the number of the session does not tell from it, is
    /// rather the owner: the one at the owner's path, or in a filesystem that is mounted under the
    /// number that the owner's had.
    fn is_rather_another(&self, user: FileIdentity) -> bool {
        let at_path = self.path().and_then(|path| FileIdentity::of(&path).ok());
        let at_path = at_path
            .filter(|found| found.inode == self.database.inode && found.made == self.database.made);
        // The path decides before the number, which a copy may have by now.
        if let Some(found) = at_path {
            return found.device != user.device;
        }
        let is_mounted = |filesystem: u64| {
            mount_points_of(self.database.device).iter().any(|point| {
                // The kernel lists btrfs under a number that no file has.
                let device = FileIdentity::of(point).map(|found| found.device);
                device.ok() == Some(self.database.device)
                    && rustix::fs::statvfs(point).is_ok_and(|about| about.f_fsid == filesystem)
            })
        };
        self.database.device != user.device && self.filesystem.is_some_and(is_mounted)
    }
}

/// A random number, or the boot's.
fn from_kernel(name: &str) -> io::Result<String> {
    let text = std::fs::read_to_string(Path::new("/proc/sys/kernel/random").join(name))?;
    Ok(text.trim().to_owned())
}

/// Where filesystems on a device are mounted, as far as this process sees them.
fn mount_points_of(device: u64) -> Vec<PathBuf> {
    let device = format!("{}:{}", libc::major(device), libc::minor(device));
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let lines = mounts.split(|&byte| byte == b'\n');
    let mut points = Vec::new();
    for line in lines {
        let mut words = line.split(|&byte| byte == b' ').skip(2);
        if words.next() == Some(device.as_bytes())
            && let Some(point) = words.nth(1)
        {
            points.push(PathBuf::from(std::ffi::OsString::from_vec(unescaped(
                point,
            ))));
        }
    }
    points
}

/// Blanks and the like are three octal digits there.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'\\'
            && let Some((digits, after)) = rest.split_first_chunk::<3>()
            && let Ok(digits) = str::from_utf8(digits)
            && let Ok(number) = u8::from_str_radix(digits, 8)
        {
            out.push(number);
            rest = after;
        } else {
            out.push(byte);
        }
    }
    out
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

/// A file that this process has, locked so that no other one takes it for that of a dead process.
#[derive(Debug)]
struct Held {
    path: PathBuf,
    _locked: File,
    /// Its record has the number of the database's device.
    is_on_device: bool,
}

/// The place of one database's arena. The directory is shared by all users, and another one may
/// have taken the name: so it may have a number after it, and files of other users are skipped.
#[derive(Debug)]
pub(crate) struct ArenaFile {
    directory: PathBuf,
    user: ArenaUser,
    held: Mutex<Option<Held>>,
}

impl ArenaFile {
    /// In this directory; none if there is no such directory, or it may not be used.
    pub(crate) fn new(directory: &Path, user: ArenaUser) -> Option<Self> {
        use rustix::fs::Access;
        let wanted = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
        rustix::fs::access(directory, wanted).ok()?;
        Some(Self {
            directory: directory.to_owned(),
            user,
            held: Mutex::new(None),
        })
    }

    /// Where the arena of the session before may be: in this directory, or in the one that this session noted, which
    /// had another `arena` parameter.
    pub(crate) fn places(directory: &Path, user: &ArenaUser) -> impl Iterator<Item = Self> {
        let noted = token::directory(&user.store).filter(|noted| noted != directory);
        let directories = [Some(directory.to_owned()), noted];
        let places = directories.into_iter().flatten();
        places.filter_map(|directory| Self::new(&directory, user.clone()))
    }

    fn name(&self) -> String {
        let user = rustix::process::geteuid().as_raw();
        let FileIdentity { device, inode, .. } = self.user.file;
        format!("mobifs-{user}-{device:x}-{inode:x}")
    }

    /// The arena of a killed process, if there is one. It is this process's from now on.
    ///
    /// # Errors
    /// [`Failure`] if there is something that cannot be read now.
    pub(crate) fn find(&self) -> Result<Found, Failure> {
        let mut found = Found::Nothing;
        let boot = from_kernel("boot_id").map_err(Failure::system("reading the boot id"))?;
        let token = token::token(&self.user.store);
        for Taken { path, is_on_device } in self.taken()? {
            let file = match open_ours(&path) {
                Ok(Some(file)) => file,
                Err(error) if is_on_device => return Err(error),
                Ok(None) | Err(_) => continue,
            };
            if file.metadata().map_or(0, |about| about.len()) == 0 {
                continue;
            }
            let owner = match Owner::of(&file) {
                Ok(Some(owner)) => owner,
                Err(error) if is_on_device => {
                    found = Found::Unusable(error.to_string());
                    continue;
                }
                Ok(None) | Err(_) => continue,
            };
            // Otherwise it is from before the last boot, or of another file.
            let is_ours = owner.boot == boot
                && token.is_some()
                && owner.token == token
                && self.is_ours(&owner);
            if !is_ours {
                continue;
            }
            match lock_soon(&file) {
                Some(true) => {}
                Some(false) => continue,
                // This file is a copy, and the original is open.
                None if owner.database.device != self.user.file.device => continue,
                // Without it the database would be opened without what the arena holds.
                None => return Err(Failure::InUseElsewhere(owner.path().unwrap_or(path))),
            }
            let arena = match Arena::attach_file(&file, path.clone()) {
                Ok(arena) => arena,
                Err(error) => {
                    found = Found::Unusable(error.to_string());
                    continue;
                }
            };
            *self.held.lock() = Some(Held {
                path,
                _locked: file,
                is_on_device: owner.database.device == self.user.file.device,
            });
            return Ok(Found::Arena(arena));
        }
        Ok(found)
    }

    /// Whether an arena whose token is that of the store is this database's.
    fn is_ours(&self, owner: &Owner) -> bool {
        let FileIdentity { inode, made, .. } = self.user.file;
        let is_same_file = owner.database.inode == inode && owner.database.made == made;
        let is_elsewhere = owner
            .filesystem
            .zip(self.user.filesystem)
            .is_some_and(|(one, other)| one != other);
        is_same_file && !is_elsewhere && !owner.is_rather_another(self.user.file)
    }

    /// Whether an arena whose process is dead is certainly of no use: it is from before the last
    /// boot, its session changed nothing, or its database is gone, because another file of the same
    /// filesystem has the inode number now.
    fn is_dead(&self, owner: &Owner, boot: &str) -> bool {
        let (theirs, ours) = (owner.database, self.user.file);
        let is_gone = theirs.device == ours.device
            && theirs.inode == ours.inode
            && self.user.filesystem.is_some()
            && owner.filesystem == self.user.filesystem
            && (theirs.made.zip(ours.made)).is_some_and(|(theirs, ours)| theirs != ours);
        owner.boot != boot || owner.token.is_none() || is_gone
    }

    /// Removes what certainly no database needs any more, as far as it has this one's inode number.
    fn remove_dead(&self, boot: &str) {
        for Taken { path, .. } in self.taken().unwrap_or_default() {
            let Ok(Some(file)) = open_ours(&path) else {
                continue;
            };
            // One that has just been made has no record yet.
            let owner = Owner::of(&file).ok().flatten();
            let is_dead = owner.is_some_and(|owner| self.is_dead(&owner, boot));
            if is_dead && lock_dead(&file) {
                unlink(&path);
            }
        }
    }

    /// Where it is.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// A new arena.
    ///
    /// # Errors
    /// [`Failure`].
    pub(crate) fn create(&self) -> Result<Arena, Failure> {
        self.remove();
        let owner = Owner::new(&self.user).map_err(Failure::system("reading the boot id"))?;
        self.remove_dead(&owner.boot);
        let (file, path) = self.create_file()?;
        let made = Arena::create_in(&file, path.clone()).and_then(|arena| {
            arena.set_session(&serde_json::to_vec(&owner).map_err(io::Error::other)?)?;
            Ok(arena)
        });
        *self.held.lock() = Some(Held {
            path,
            _locked: file,
            is_on_device: true,
        });
        made.map_err(|error| {
            self.remove();
            error.into()
        })
    }

    /// The store is this session's, and so is the arena: from now on something may be changed.
    ///
    /// # Errors
    /// [`Failure::System`]; what is in the arena will not be found.
    pub(crate) fn bind(&self, arena: &Arena) -> Result<(), Failure> {
        let binding = || Failure::system("writing the name of the arena beside the journal");
        let token = from_kernel("uuid").map_err(binding())?;
        token::write(&self.user.store, &token, &self.directory).map_err(binding())?;
        self.record(arena, Some(token))
    }

    /// The database has been found under another device's number, or at another path.
    ///
    /// # Errors
    /// As [`ArenaFile::bind`].
    pub(crate) fn take_over(&self, arena: &Arena) -> Result<(), Failure> {
        self.record(arena, token::token(&self.user.store))
    }

    fn record(&self, arena: &Arena, token: Option<String>) -> Result<(), Failure> {
        let recording = || Failure::system("recording whose an arena is");
        let owner = Owner {
            token,
            ..Owner::new(&self.user).map_err(recording())?
        };
        let text =
            serde_json::to_vec(&owner).map_err(|error| recording()(io::Error::other(error)))?;
        Ok(arena.set_session(&text)?)
    }

    /// Under the first name that is free.
    fn create_file(&self) -> Result<(File, PathBuf), Failure> {
        let taken: HashSet<PathBuf> = self.taken()?.into_iter().map(|it| it.path).collect();
        let plain = self.directory.join(self.name());
        let numbered =
            (1_u64..).map(|number| plain.with_file_name(format!("{}.{number}", self.name())));
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
        // It has no record yet, so no other process of this user locks it.
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|errno| failed("locking", &free)(errno.into()))?;
        Ok((file, free))
    }

    /// This session's arena is not needed any more.
    pub(crate) fn remove(&self) {
        if let Some(held) = self.held.lock().take() {
            unlink(&held.path);
        }
    }

    /// What was found was another file's, whose inode number the database has now: it is of no use,
    /// unless that file is on another device.
    pub(crate) fn give_up(&self) {
        let is_on_device = |held: &Held| held.is_on_device;
        if self.held.lock().as_ref().is_some_and(is_on_device) {
            self.remove();
        }
        self.leave();
    }

    /// Leaves what was found as it was.
    pub(crate) fn leave(&self) {
        self.held.lock().take();
    }

    /// The files under the name, with any device's number, and with a number after it or without, of
    /// any user; those with this device's number come first.
    fn taken(&self) -> Result<Vec<Taken>, Failure> {
        let listing = || Failure::system(format!("listing {}", self.directory.display()));
        let mut taken = Vec::new();
        for entry in std::fs::read_dir(&self.directory).map_err(listing())? {
            let entry = entry.map_err(listing())?;
            if let Some(device) = self.device_in(entry.file_name().as_bytes()) {
                taken.push(Taken {
                    path: entry.path(),
                    is_on_device: device == self.user.file.device,
                });
            }
        }
        taken.sort_by_key(|taken| !taken.is_on_device);
        Ok(taken)
    }

    /// The device's number in the name of an arena of a file with this inode number.
    fn device_in(&self, name: &[u8]) -> Option<u64> {
        let user = rustix::process::geteuid().as_raw();
        let rest = str::from_utf8(name).ok()?;
        let rest = rest.strip_prefix(&format!("mobifs-{user}-"))?;
        let (device, inode) = rest.split_once('-')?;
        let inode = inode.split_once('.').map_or(inode, |(inode, _)| inode);
        let inode = u64::from_str_radix(inode, 16).ok()?;
        let device = u64::from_str_radix(device, 16).ok()?;
        (inode == self.user.file.inode).then_some(device)
    }
}

/// A file that has a name for this database's arena.
struct Taken {
    path: PathBuf,
    /// The name has the number of the database's device.
    is_on_device: bool,
}

fn unlink(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove the arena of a database");
    }
}

/// Locks it, unless a living process has it, or it has been removed by now.
fn lock_dead(file: &File) -> bool {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
        && file.metadata().is_ok_and(|about| about.nlink() == 1)
}

/// As [`lock_dead`], for an arena that must not be passed over: this process has the database locked, so whoever
/// holds the lock now is a copy of a descriptor in a process that another thread forks, and which goes when that
/// calls `exec`. None if it stays.
fn lock_soon(file: &File) -> Option<bool> {
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            Err(_) => return Some(false),
            Ok(()) => return Some(file.metadata().is_ok_and(|about| about.nlink() == 1)),
        }
    }
    None
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
mod tests;
