//! Where registrations lie.

use std::ffi::{CStr, OsStr};
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{Access, Dir, FileType, Mode, OFlags, access, fstat, open, openat};
use rustix::io::Errno;

use crate::mapped_record::MappedRecord;
use crate::ofd_lock::is_locked;
use crate::record::{RECORD_BYTES, Record};
use crate::superblock::Device;

/// Where registrations lie. Not below `/run/mobifs`, which only root can enter.
pub const STANDARD_DIRECTORY: &str = "/run/mobifs-steered";

/// Environment variable that names another directory, for tests.
pub const ENVIRONMENT: &str = "MOBIFS_STEERED_DIRECTORY";

const PATH_BYTES_MAX: usize = 256;
/// A slash, two numbers with a colon, a NUL.
const NAME_BYTES_MAX: usize = 24;
const ROOT: u32 = 0;

/// A directory of registrations, and whose they may be.
#[derive(Clone, Debug)]
pub struct Directory {
    /// Ends with a NUL.
    path: [u8; PATH_BYTES_MAX],
    /// Beside root.
    trusted_user: u32,
}

impl Directory {
    /// Where daemons of root publish.
    pub const fn standard() -> Self {
        let mut path = [0; PATH_BYTES_MAX];
        let standard = STANDARD_DIRECTORY.as_bytes();
        let mut at = 0;
        while at < standard.len() {
            path[at] = standard[at];
            at += 1;
        }
        Self {
            path,
            trusted_user: ROOT,
        }
    }

    /// Another directory, of root or the effective user; `None` if its path is too long.
    pub fn at(other: &Path) -> Option<Self> {
        let mut path = [0; PATH_BYTES_MAX];
        let other = other.as_os_str().as_bytes();
        if other.len() >= PATH_BYTES_MAX || other.contains(&0) {
            return None;
        }
        path[..other.len()].copy_from_slice(other);
        Some(Self {
            path,
            trusted_user: rustix::process::geteuid().as_raw(),
        })
    }

    /// The directory that the environment names, else the standard one. The environment of a program
    /// that runs with more rights than its user has is not trusted.
    pub fn from_environment() -> Self {
        let named = std::env::var_os(ENVIRONMENT).filter(|_| !has_more_rights_than_its_user());
        named
            .and_then(|path| Self::at(Path::new(&path)))
            .unwrap_or(Self::standard())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.name().to_bytes()))
    }

    fn name(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.path).unwrap_or_default()
    }

    /// The registration of the filesystem that a descriptor is on, if its daemon lives.
    pub fn lookup(&self, file: impl AsFd) -> Option<Steered> {
        self.find(Device::of(file).ok()?)
    }

    /// The registration of a filesystem, if its daemon lives.
    pub fn find(&self, device: Device) -> Option<Steered> {
        self.look_for(device).ok().flatten()
    }

    /// `Ok(None)` where there is none that this process may trust.
    fn look_for(&self, device: Device) -> Result<Option<Steered>, Errno> {
        let mut path = [0; PATH_BYTES_MAX + NAME_BYTES_MAX];
        // Ends with a NUL, as there is room for one more byte.
        let room = path.len() - 1;
        let directory = self.path().to_str().ok_or(Errno::ILSEQ)?;
        let named = write!(&mut path[..room], "{directory}/{device}");
        named.map_err(|_| Errno::NAMETOOLONG)?;
        let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::NAMETOOLONG)?;
        // Most filesystems are not steered: this answers for them.
        match access(path, Access::EXISTS) {
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        }
        let directory = self.open()?;
        let name = path.to_bytes().rsplit(|&byte| byte == b'/').next();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let name = name.ok_or(Errno::NOENT)?;
        let file = openat(&directory, name, flags, Mode::empty())?;
        let about = fstat(&file)?;
        let is_record = FileType::from_raw_mode(about.st_mode) == FileType::RegularFile
            && about.st_size >= RECORD_BYTES as i64;
        if !is_record || !self.is_trusted(&about) || !is_locked(&file) {
            return Ok(None);
        }
        let mapped = MappedRecord::new(file.as_fd())?;
        let steered = Steered { device, mapped };
        Ok(steered.record().is_understood().then_some(steered))
    }

    /// All filesystems that are steered now.
    ///
    /// # Errors
    /// This process cannot look, as with too few descriptors. Where it finds nothing, or nothing that it
    /// may trust, the list is empty.
    pub fn list(&self) -> Result<Vec<Steered>, Errno> {
        let entries = match self.open() {
            Err(Errno::NOENT | Errno::ACCESS) => return Ok(Vec::new()),
            opened => Dir::new(opened?)?,
        };
        let mut steered = Vec::new();
        for entry in entries {
            let name = entry?.file_name().to_str().ok().and_then(Device::parse);
            if let Some(device) = name {
                match self.look_for(device) {
                    // It has gone meanwhile, or is not for this process.
                    Err(Errno::NOENT | Errno::ACCESS) => {}
                    found => steered.extend(found?),
                }
            }
        }
        Ok(steered)
    }

    fn open(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = open(self.name(), flags, Mode::empty())?;
        if self.is_trusted(&fstat(&directory)?) {
            Ok(directory)
        } else {
            Err(Errno::ACCESS)
        }
    }

    /// Whether this process, and others, take what is in it for a promise.
    pub(crate) fn is_trusted_itself(&self) -> bool {
        self.open().is_ok()
    }

    /// Whether only those can have made it who may promise something to this process.
    fn is_trusted(&self, about: &rustix::fs::Stat) -> bool {
        self.is_of_trusted(about.st_uid, about.st_mode)
    }

    pub(crate) fn is_of_trusted(&self, user: u32, mode: u32) -> bool {
        let has_owner = user == ROOT || user == self.trusted_user;
        has_owner && mode & 0o022 == 0
    }
}

#[expect(unsafe_code, reason = "no safe call asks for AT_SECURE")]
fn has_more_rights_than_its_user() -> bool {
    // SAFETY: the call only reads what the kernel has told the process when it began.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// A filesystem whose daemon lived when it was looked up.
#[derive(Debug)]
pub struct Steered {
    device: Device,
    mapped: MappedRecord,
}

impl Steered {
    /// Whether the promise holds now.
    pub fn is_in_force(&self) -> bool {
        self.mapped.get().is_in_force()
    }

    /// The filesystem.
    pub fn device(&self) -> Device {
        self.device
    }

    /// What the daemon has written.
    pub fn record(&self) -> &Record {
        self.mapped.get()
    }

    /// Keeps the record in sight for as long as the process lives.
    pub(crate) fn leak(self) -> &'static Record {
        self.mapped.leak()
    }
}
