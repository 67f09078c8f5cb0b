//! Where a tree ages: a directory that is there, or an image with a filesystem of its own, plain or through
//! MobiFS.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use mobifs_fragmentation::{MeasureError, Options, Report, measure};
use mobifs_host::{mount_around, mount_at, mounts};
use rustix::fs::{CWD, FlockOperation, RenameFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::database::Vfs;
use crate::error::{AgeError, OnPath as _};
use crate::fill::refuse_content;
use crate::host::{check_host, explained};

/// The directory of the tree, below the place.
pub const TREE: &str = "aged";
/// A file that is there for a moment.
const PROBE: &str = ".mobifs-age-probe";
/// The state of a run in a directory.
pub(crate) const STATE_IN_DIRECTORY: &str = "mobifs-age.json";
const NEW_STATE_IN_DIRECTORY: &str = "mobifs-age.json.new";
/// What belongs to a run on an image lies beside it, in a directory with this after its name.
const BESIDE: &str = ".age";
const STATE_BESIDE: &str = "state.json";
const NEW_STATE_BESIDE: &str = "state.json.new";
/// The image, until there is a state.
const NEW_IMAGE: &str = "image";
const DISK: &str = "disk";
const MOUNT: &str = "mount";
/// How long another program may keep a filesystem busy that is to be unmounted.
const BUSY_MAX: Duration = Duration::from_secs(10);
/// How long what a killed run has started may go on: mkfs or mount.
const LOCKED_MAX: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);
const CAPACITY_MIN: u64 = 128 << 20;
const CAPACITY_MAX: u64 = 8 << 40;

/// The filesystem of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Filesystem {
    /// Without room that only root may use.
    Ext4,
    /// As mkfs makes it.
    Btrfs,
    /// As mkfs makes it.
    Xfs,
}

impl Filesystem {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Btrfs => "btrfs",
            Self::Xfs => "xfs",
        }
    }
}

/// What stands between the apps and the filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Through {
    /// Nothing.
    Plain,
    /// A mount of MobiFS, whose store lies on it.
    Mount,
    /// MobiFS's native mode: `mobifs steer`, and the apps under `mobifs run`.
    Native,
    /// MobiFS's VFS, for the databases.
    Vfs,
}

impl Through {
    pub(crate) const fn vfs(self) -> Vfs {
        match self {
            Self::Vfs => Vfs::Mobifs,
            _ => Vfs::Own,
        }
    }
}

/// Which place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Where {
    /// A directory.
    Directory(PathBuf),
    /// An image file.
    Image {
        /// The file.
        path: PathBuf,
        /// What is in it.
        filesystem: Filesystem,
        /// Its size.
        capacity_bytes: u64,
    },
}

/// A directory or an image, and through what its files are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// The directory or image.
    pub place: Where,
    /// Through what its files are written.
    pub through: Through,
}

impl Location {
    /// Where the state of a run is kept.
    #[must_use]
    pub fn state_path(&self) -> PathBuf {
        match &self.place {
            Where::Directory(directory) => directory.join(STATE_IN_DIRECTORY),
            Where::Image { path, .. } => beside(path).join(STATE_BESIDE),
        }
    }

    /// The state of a run on this directory or image.
    #[must_use]
    pub fn state_of(path: &Path) -> PathBuf {
        if path.is_dir() {
            path.join(STATE_IN_DIRECTORY)
        } else {
            beside(path).join(STATE_BESIDE)
        }
    }

    /// The name of the filesystem.
    ///
    /// # Errors
    /// There is no such directory.
    pub fn filesystem(&self) -> Result<String, AgeError> {
        match &self.place {
            Where::Image { filesystem, .. } => Ok(filesystem.name().to_owned()),
            Where::Directory(directory) => {
                let path = directory.canonicalize().at("look at", directory)?;
                let table = mounts().at("read the table of mounts for", directory)?;
                let entry = mount_around(&path, &table);
                Ok(entry.map_or_else(|| "unknown".to_owned(), |entry| entry.kind.clone()))
            }
        }
    }

    fn check(&self) -> Result<(), AgeError> {
        match &self.place {
            Where::Directory(_) if matches!(self.through, Through::Mount | Through::Native) => {
                Err(AgeError::OutOfRange {
                    name: "--through",
                    value: "mount or native with a directory".to_owned(),
                    range: "with --image, on which MobiFS is mounted or steers; or give a directory of a mount that \
                            is there",
                })
            }
            Where::Image { capacity_bytes, .. }
                if !(CAPACITY_MIN..=CAPACITY_MAX).contains(capacity_bytes) =>
            {
                Err(AgeError::OutOfRange {
                    name: "--capacity",
                    value: format!("{capacity_bytes} bytes"),
                    range: "128 MiB to 8 TiB",
                })
            }
            Where::Image {
                filesystem: Filesystem::Xfs,
                ..
            } if self.through == Through::Native => Err(AgeError::OutOfRange {
                name: "--through",
                value: "native on xfs".to_owned(),
                range: "with ext4 or btrfs, as native mode knows these",
            }),
            _ => Ok(()),
        }
    }
}

pub(crate) fn beside(image: &Path) -> PathBuf {
    let mut name = image.as_os_str().to_owned();
    name.push(BESIDE);
    PathBuf::from(name)
}

/// A location that is ready for a tree. What was mounted for it goes with it.
#[derive(Debug)]
pub struct OpenedLocation {
    location: Location,
    /// Where an image is mounted.
    disk: Option<PathBuf>,
    /// The mount of MobiFS.
    mount: Option<PathBuf>,
    steers: bool,
    /// This process mounted it.
    is_owner: bool,
    /// Held as long as the run lasts.
    lock: Option<File>,
}

impl OpenedLocation {
    /// Makes a new one.
    ///
    /// # Errors
    /// Something is there, or cannot be made.
    pub fn create(location: &Location) -> Result<Self, AgeError> {
        location.check()?;
        match &location.place {
            Where::Directory(directory) => {
                // The last two are left by a run that was killed before it had a state, and are written over.
                refuse_content(directory, &["lost+found", PROBE, NEW_STATE_IN_DIRECTORY])?;
                Self::open(location)
            }
            Where::Image { path, .. } => {
                let beside = beside(path);
                if fs::symlink_metadata(path).is_ok() {
                    return Err(there_already(path));
                }
                needs_root(path)?;
                let lock = start_beside(&beside)?;
                Self::make_image(location, &beside, lock).map_err(|error| {
                    let error = explained(path, &beside.join(NEW_IMAGE), error);
                    forget(location);
                    error
                })
            }
        }
    }

    /// Makes the image in the directory beside its later place: what a killed run leaves lies there, and not
    /// under a name that could be another file's.
    fn make_image(location: &Location, beside: &Path, lock: File) -> Result<Self, AgeError> {
        let mut place = Self::unmounted(location);
        let beside = beside.canonicalize().at("look at", beside)?;
        let Where::Image {
            filesystem,
            capacity_bytes,
            ..
        } = &location.place
        else {
            return Ok(place);
        };
        let path = beside.join(NEW_IMAGE);
        let image = File::create_new(&path).at("make", &path)?;
        make_filesystem(&image, &path, &lock, *filesystem, *capacity_bytes)?;
        place.lock = Some(lock);
        place.mount_image(&path, &beside)?;
        Ok(place)
    }

    /// Gives a new image its name, once its run has a state.
    pub(crate) fn keep_image(&self) -> Result<(), AgeError> {
        match &self.location.place {
            Where::Directory(_) => Ok(()),
            Where::Image { path, .. } => keep_image(path, &beside(path)),
        }
    }

    fn unmounted(location: &Location) -> Self {
        Self {
            location: location.clone(),
            disk: None,
            mount: None,
            steers: false,
            is_owner: true,
            lock: None,
        }
    }

    /// Opens one that was made before. What a killed run left mounted is unmounted first.
    ///
    /// # Errors
    /// It is not there, in use, or cannot be mounted.
    pub fn open(location: &Location) -> Result<Self, AgeError> {
        location.check()?;
        let mut place = Self::unmounted(location);
        match &location.place {
            Where::Directory(directory) => place.lock = Some(lock(directory)?),
            Where::Image { path, .. } => {
                let beside = beside(path);
                place.lock = Some(lock(&beside)?);
                let beside = beside.canonicalize().at("look at", &beside)?;
                needs_root(path)?;
                clean(&beside, location.through == Through::Native)?;
                keep_image(path, &beside)?;
                let mounted = place.mount_image(path, &beside);
                mounted.map_err(|error| explained(path, path, error))?;
            }
        }
        Ok(place)
    }

    /// The place as the process sees it that another one has opened.
    ///
    /// # Errors
    /// It is not there.
    pub fn inside(location: &Location) -> Result<Self, AgeError> {
        let disk = match &location.place {
            Where::Directory(_) => None,
            Where::Image { path, .. } => {
                let beside = beside(path);
                Some(beside.canonicalize().at("look at", &beside)?.join(DISK))
            }
        };
        Ok(Self {
            location: location.clone(),
            disk,
            mount: None,
            steers: location.through == Through::Native,
            is_owner: false,
            lock: None,
        })
    }

    fn mount_image(&mut self, image: &Path, beside: &Path) -> Result<(), AgeError> {
        let disk = beside.join(DISK);
        fs::create_dir_all(&disk).at("make", &disk)?;
        let is_ext4 = matches!(
            self.location.place,
            Where::Image {
                filesystem: Filesystem::Ext4,
                ..
            }
        );
        let native = self.location.through == Through::Native;
        let options = if native && is_ext4 {
            "loop,data=journal"
        } else {
            "loop"
        };
        let mut mount = Command::new("mount");
        mount.args(["-o", options]).arg(image).arg(&disk);
        tool_under(self.lock.as_ref(), &mut mount)?;
        self.disk = Some(disk.clone());
        match self.location.through {
            Through::Plain | Through::Vfs => {}
            Through::Mount => {
                let (store, mount) = (disk.join("store"), beside.join(MOUNT));
                fs::create_dir_all(&store).at("make", &store)?;
                fs::create_dir_all(&mount).at("make", &mount)?;
                let mut command = Command::new(mobifs()?);
                tool_under(
                    self.lock.as_ref(),
                    command.arg("mount").arg(&store).arg(&mount),
                )?;
                self.mount = Some(mount);
            }
            Through::Native => {
                let mut command = Command::new(mobifs()?);
                tool_under(self.lock.as_ref(), command.arg("steer").arg(&disk))?;
                self.steers = true;
            }
        }
        Ok(())
    }

    /// What it is.
    #[must_use]
    pub const fn location(&self) -> &Location {
        &self.location
    }

    /// The directory below which everything ages, on the filesystem and not through MobiFS.
    #[must_use]
    pub fn lower(&self) -> &Path {
        match (&self.disk, &self.location.place) {
            (Some(disk), _) => disk,
            (None, Where::Directory(path) | Where::Image { path, .. }) => path,
        }
    }

    /// The directory below which programs work: that of the mount of MobiFS, if there is one.
    #[must_use]
    pub fn upper(&self) -> &Path {
        self.mount.as_deref().unwrap_or_else(|| self.lower())
    }

    /// The tree.
    #[must_use]
    pub fn tree(&self) -> PathBuf {
        self.upper().join(TREE)
    }

    /// Has MobiFS bring everything to its place.
    ///
    /// # Errors
    /// It cannot.
    pub fn apply(&self) -> Result<(), AgeError> {
        if let Some(mount) = &self.mount {
            tool(Command::new(mobifs()?).arg("sync").arg(mount))?;
        } else if self.steers {
            tool(Command::new(mobifs()?).arg("sync").arg(self.lower()))?;
        }
        Ok(())
    }

    /// Makes sure, before anything is done, that the result can be measured.
    ///
    /// # Errors
    /// The filesystem does not report where files lie.
    pub(crate) fn check_map(&self) -> Result<(), AgeError> {
        let Where::Directory(directory) = &self.location.place else {
            return Ok(());
        };
        let probe = directory.join(PROBE);
        // Not all in zeros, which need no place.
        fs::write(&probe, [1; 4096]).at("write", &probe)?;
        let result = measured(&probe);
        fs::remove_file(&probe).at("delete", &probe)?;
        match result {
            Err(error @ (MeasureError::NoMap { .. } | MeasureError::Network { .. })) => {
                Err(error.into())
            }
            // What lies on a mount of MobiFS is measured in its store.
            _ => Ok(()),
        }
    }

    /// Makes sure that an image may grow by so many bytes.
    ///
    /// # Errors
    /// As [`check_host`].
    pub(crate) fn check_host(&self, bytes: u64) -> Result<(), AgeError> {
        match &self.location.place {
            Where::Image { path, .. } => check_host(path, self.lower(), bytes),
            Where::Directory(_) => Ok(()),
        }
    }

    /// Says of an error whether it came about because the filesystem below an image is full.
    pub(crate) fn explained(&self, error: AgeError) -> AgeError {
        match &self.location.place {
            Where::Image { path, .. } => explained(path, path, error),
            Where::Directory(_) => error,
        }
    }

    /// Measures the tree after everything has come to its place.
    ///
    /// # Errors
    /// It cannot be synced or measured.
    pub fn measure(&self) -> Result<Report, AgeError> {
        self.apply()?;
        let mut path = self.tree();
        if self.mount.is_some() {
            path = self.lower().join("store").join(TREE);
        }
        match measured(&path) {
            // A directory on a mount of MobiFS: what lies in its store is measured.
            Err(MeasureError::MobifsMount {
                mountpoint, store, ..
            }) => {
                tool(Command::new(mobifs()?).arg("sync").arg(&mountpoint))?;
                let path = path.canonicalize().at("look at", &path)?;
                let below = path.strip_prefix(&mountpoint).unwrap_or(Path::new(TREE));
                Ok(measured(&store.join(below))?)
            }
            other => Ok(other?),
        }
    }

    /// Bytes written since the machine or this process was started: by the block device of an image, or by
    /// this process; and which of the two.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn written_bytes(&self) -> Result<(u64, &'static str), AgeError> {
        let Some(disk) = &self.disk else {
            let path = Path::new("/proc/self/io");
            let text = fs::read_to_string(path).at("read", path)?;
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("write_bytes: "));
            let bytes = line.and_then(|number| number.parse().ok());
            return Ok((bytes.unwrap_or(0), "process"));
        };
        const SECTOR_BYTES: u64 = 512;
        const SECTORS_WRITTEN: usize = 6;
        let entry = mount_at(disk).at("find the mount of", disk)?;
        let device = entry.map(|entry| entry.source);
        let name = device.as_deref().and_then(Path::file_name);
        let path = Path::new("/sys/class/block")
            .join(name.unwrap_or_default())
            .join("stat");
        let text = fs::read_to_string(&path).at("read", &path)?;
        let sectors = text.split_whitespace().nth(SECTORS_WRITTEN);
        let sectors: u64 = sectors.and_then(|number| number.parse().ok()).unwrap_or(0);
        Ok((sectors * SECTOR_BYTES, "block device"))
    }

    /// Unmounts what was mounted.
    ///
    /// # Errors
    /// It is in use.
    pub fn close(mut self) -> Result<(), AgeError> {
        self.take_down()
    }

    fn take_down(&mut self) -> Result<(), AgeError> {
        if !self.is_owner {
            return Ok(());
        }
        let disk = self.disk.take();
        let mut ended = self.mount.take().map_or(Ok(()), |mount| end_mount(&mount));
        if let Some(disk) = disk.as_deref().filter(|_| self.steers) {
            self.steers = false;
            let mobifs = mobifs()?;
            ended = tool(Command::new(mobifs).args(["steer", "--stop"]).arg(disk));
        }
        let unmounted = disk.map_or(Ok(()), |disk| unmount(&disk));
        ended.and(unmounted)
    }
}

impl Drop for OpenedLocation {
    fn drop(&mut self) {
        if let Err(error) = self.take_down() {
            eprintln!("cannot end what was mounted for ageing: {error}");
        }
    }
}

fn measured(path: &Path) -> Result<Report, MeasureError> {
    let options = Options {
        worth_max: 0,
        reads_headers: false,
        ..Options::default()
    };
    let paths = [path.to_owned()];
    Ok(measure(&paths, &options, None, &|_| {})?.report)
}

fn make_filesystem(
    image: &File,
    path: &Path,
    lock: &File,
    filesystem: Filesystem,
    capacity_bytes: u64,
) -> Result<(), AgeError> {
    image.set_len(capacity_bytes).at("make the size of", path)?;
    let mut mkfs = Command::new(format!("mkfs.{}", filesystem.name()));
    match filesystem {
        Filesystem::Ext4 => mkfs.args(["-q", "-F", "-m", "0", "-b", "4096"]),
        Filesystem::Btrfs | Filesystem::Xfs => mkfs.args(["-q", "-f"]),
    };
    tool_under(Some(lock), mkfs.arg(path))
}

fn there_already(path: &Path) -> AgeError {
    AgeError::State {
        path: path.to_owned(),
        message: "it is there already, and is not overwritten; continue with --resume, or give another name".to_owned(),
    }
}

/// Makes and locks the directory beside a new image. What a run left there that was killed before it had a state
/// is unmounted and deleted: nothing of worth is in it.
fn start_beside(beside: &Path) -> Result<File, AgeError> {
    match fs::create_dir(beside) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let about = fs::symlink_metadata(beside).at("look at", beside)?;
            if !about.is_dir() {
                return Err(there_already(beside));
            }
        }
        other => other.at("make", beside)?,
    }
    let lock = lock(beside)?;
    for entry in fs::read_dir(beside).at("list", beside)? {
        let name = entry.at("list", beside)?.file_name();
        if ![NEW_IMAGE, NEW_STATE_BESIDE, DISK, MOUNT]
            .iter()
            .any(|known| name == *known)
        {
            return Err(there_already(beside));
        }
    }
    // Through what that run went is not known.
    clean(&beside.canonicalize().at("look at", beside)?, true)?;
    delete_unfinished(beside)?;
    Ok(lock)
}

fn delete_unfinished(beside: &Path) -> Result<(), AgeError> {
    let there = |result: io::Result<()>, path: &Path| match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.at("delete", path),
    };
    for name in [NEW_IMAGE, NEW_STATE_BESIDE] {
        let path = beside.join(name);
        there(fs::remove_file(&path), &path)?;
    }
    for name in [DISK, MOUNT] {
        let path = beside.join(name);
        there(fs::remove_dir(&path), &path)?;
    }
    Ok(())
}

/// A new image in which nothing is goes again.
pub(crate) fn forget(location: &Location) {
    if let Where::Image { path, .. } = &location.place {
        let beside = beside(path);
        let _gone = delete_unfinished(&beside);
        let _gone = fs::remove_dir(&beside);
    }
}

/// Gives a new image its name if it has none yet. Another file that has it stays.
fn keep_image(path: &Path, beside: &Path) -> Result<(), AgeError> {
    let new = beside.join(NEW_IMAGE);
    if fs::symlink_metadata(&new).is_err() {
        return Ok(());
    }
    match rustix::fs::renameat_with(CWD, &new, CWD, path, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => return Err(there_already(path)),
        // Some filesystems cannot make sure of that by themselves.
        Err(Errno::INVAL | Errno::NOSYS) if fs::symlink_metadata(path).is_err() => {
            fs::rename(&new, path).at("rename", &new)?;
        }
        Err(Errno::INVAL | Errno::NOSYS) => return Err(there_already(path)),
        other => other.at("rename", &new)?,
    }
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let directory = File::open(parent).at("open", parent)?;
    directory.sync_all().at("sync", parent)
}

fn needs_root(image: &Path) -> Result<(), AgeError> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(AgeError::NotRoot(image.to_owned()))
}

/// One run at a time. What a killed run has started ends soon, and has its lock until then.
pub(crate) fn lock(directory: &Path) -> Result<File, AgeError> {
    let file = match File::open(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(AgeError::State {
                path: directory.to_owned(),
                message: "there is no such run; start one without --resume".to_owned(),
            });
        }
        other => other.at("open", directory)?,
    };
    let begun = Instant::now();
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            // A filesystem without locks has no second run either that would notice one.
            Err(Errno::NOSYS | Errno::OPNOTSUPP) => return Ok(file),
            Err(Errno::WOULDBLOCK) if begun.elapsed() < LOCKED_MAX => std::thread::sleep(PAUSE),
            Err(Errno::WOULDBLOCK) => return Err(AgeError::InUse(directory.to_owned())),
            Err(error) => return Err(error).at("lock", directory),
        }
    }
}

/// Unmounts what a killed run left, which is known by its place.
fn clean(beside: &Path, may_be_steered: bool) -> Result<(), AgeError> {
    let (mount, disk) = (beside.join(MOUNT), beside.join(DISK));
    let is_mounted = |path: &Path| {
        let entry = mount_at(path).at("look for a mount at", path);
        entry.map(|entry| entry.is_some())
    };
    if is_mounted(&mount)?
        && let Err(error) = end_mount(&mount)
        && is_mounted(&mount)?
    {
        return Err(error);
    }
    if is_mounted(&disk)? {
        if let Some(mobifs) = mobifs().ok().filter(|_| may_be_steered) {
            let mut stop = Command::new(mobifs);
            // It is not steered if the run was killed before or after that.
            let _stopped = stop.args(["steer", "--stop"]).arg(&disk).output();
        }
        unmount(&disk)?;
    }
    Ok(())
}

/// Unmounts a mount of MobiFS. Where it cannot commit, because the filesystem of its store has failed, it would stay
/// for ever: it is ended as by a power cut then, from which a run goes on. The error says so all the same.
fn end_mount(mount: &Path) -> Result<(), AgeError> {
    const FAILED: i32 = 1;
    let mobifs = mobifs()?;
    let mut umount = Command::new(&mobifs);
    let output = umount
        .arg("umount")
        .arg(mount)
        .stdin(Stdio::null())
        .output();
    let cannot_commit = matches!(&output, Ok(output) if output.status.code() == Some(FAILED));
    if cannot_commit {
        let mut cut = Command::new(&mobifs);
        let _ended = tool(cut.args(["drill", "power-cut", "--yes"]).arg(mount));
    }
    result_of(&umount, output)
}

/// Other programs look into filesystems, and keep them busy for a moment.
fn unmount(disk: &Path) -> Result<(), AgeError> {
    let begun = Instant::now();
    loop {
        let result = tool(Command::new("umount").arg(disk));
        if result.is_ok() || begun.elapsed() > BUSY_MAX {
            return result;
        }
        std::thread::sleep(PAUSE);
    }
}

/// The program `mobifs`: beside this one, or on the `PATH`.
///
/// # Errors
/// It is not there.
pub fn mobifs() -> Result<PathBuf, AgeError> {
    let beside = std::env::current_exe()
        .ok()
        .map(|own| own.with_file_name("mobifs"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|directory| directory.join("mobifs"));
    beside
        .into_iter()
        .chain(on_path)
        .find(|path| path.is_file())
        .ok_or_else(|| AgeError::Tool {
            program: "mobifs".to_owned(),
            said: "it is neither beside this program nor on the PATH; install it, or use --through plain".to_owned(),
        })
}

/// Runs a program to its end.
fn tool(command: &mut Command) -> Result<(), AgeError> {
    tool_under(None, command)
}

/// The same, with the lock of the run until its end: should this process be killed meanwhile, the next run waits
/// for it. Standard input takes the lock there, which these programs do not read.
fn tool_under(lock: Option<&File>, command: &mut Command) -> Result<(), AgeError> {
    let held = lock.and_then(|lock| lock.try_clone().ok());
    let output = command
        .stdin(held.map_or_else(Stdio::null, Stdio::from))
        .output();
    result_of(command, output)
}

fn result_of(command: &Command, output: io::Result<Output>) -> Result<(), AgeError> {
    let said = match output {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.trim().lines().next_back().unwrap_or_default();
            format!("{} ({last})", output.status)
        }
        Err(error) => error.to_string(),
    };
    let words = [command.get_program()]
        .into_iter()
        .chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    let program = words.join(" ");
    Err(AgeError::Tool { program, said })
}
