//! A filesystem on a served flash device: made, mounted, looked at, and gone with the value.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use mobifs_device_model::{Config, Parameter, Preset};
use mobifs_device_server::{
    DeviceCounts, EndHandle, Reply, Request, Scale, ServeOptions, Served, ask,
};
use rustix::fs::syncfs;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde::Serialize;
use tempfile::TempDir;

use crate::error::FragError;
use crate::settings::Settings;

/// How long a process that is just being started may keep a filesystem busy.
const BUSY_MAX: Duration = Duration::from_secs(10);

/// A filesystem of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Filesystem {
    /// ext4, as S4's phones have it.
    Ext4,
    /// XFS.
    Xfs,
    /// btrfs.
    Btrfs,
}

impl Filesystem {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }
}

/// What phones read ahead, and Linux by default; a loop device over a file of a mount has more.
const READ_AHEAD_KIB: u32 = 128;

/// Where the kernel has a device's window of read-ahead.
fn read_ahead_setting(device: &Path) -> PathBuf {
    let name = device.file_name().unwrap_or_default();
    Path::new("/sys/block")
        .join(name)
        .join("queue/read_ahead_kb")
}

/// The tables of inodes are left as they are: zeros.
const MKFS_EXT4: &str = "lazy_itable_init=1,lazy_journal_init=1,nodiscard";
/// Else the kernel writes them in the background while others are timed.
const MOUNT_EXT4: &str = "noinit_itable";

/// The image within the directory of a disk.
const IMAGE: &str = "image";

/// What disk is wanted.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) filesystem: Filesystem,
    pub(crate) size_bytes: u64,
    /// Size of the device's mapping cache, where it is not that of the preset.
    pub(crate) mapping_cache_bytes: Option<u64>,
    pub(crate) seed: u64,
}

impl Wanted {
    pub(crate) const fn ext4(size_bytes: u64, seed: u64) -> Self {
        Self {
            filesystem: Filesystem::Ext4,
            size_bytes,
            mapping_cache_bytes: None,
            seed,
        }
    }
}

/// A mounted filesystem on a device in virtual time. Whatever happens, it is unmounted, the device ended
/// and the image removed when the value goes.
pub(crate) struct Disk {
    base: TempDir,
    is_mounted: bool,
    served: Option<Served>,
    end: EndHandle,
    wanted: Wanted,
    /// The setting of the loop device as it was, for the next user of the device.
    read_ahead_before: Option<String>,
}

impl Disk {
    pub(crate) fn new(scratch: &Path, wanted: Wanted) -> Result<Self, FragError> {
        let disk = Self::serve(directory_in(scratch)?, wanted)?;
        disk.format()?;
        disk.mounted()
    }

    /// Over a copy of an image, which stays as it is.
    pub(crate) fn of_copy(
        scratch: &Path,
        image: &Path,
        filesystem: Filesystem,
        seed: u64,
    ) -> Result<Self, FragError> {
        let base = directory_in(scratch)?;
        let about = fs::metadata(image).map_err(|error| FragError::io(image, error))?;
        let mut copy = Command::new("cp");
        copy.args(["--sparse=always", "--reflink=auto", "--"]);
        run(copy.arg(image).arg(base.path().join(IMAGE)))?;
        let wanted = Wanted {
            filesystem,
            ..Wanted::ext4(about.len(), seed)
        };
        Self::serve(base, wanted)?.mounted()
    }

    fn serve(base: TempDir, wanted: Wanted) -> Result<Self, FragError> {
        const REASON: &str = "the experiment has a mapping cache of its own";
        let mut config: Config = Preset::Emmc51.config()?;
        if let Some(bytes) = wanted.mapping_cache_bytes {
            config.mapping.cache_bytes = Parameter::assumed(bytes, REASON);
        }
        let options = ServeOptions {
            image: base.path().join(IMAGE),
            size_bytes: Some(wanted.size_bytes),
            config: Some(config),
            seed: Some(wanted.seed),
            scale: Scale::COUNT_ONLY,
            journal: None,
            nbd: None,
            loop_device: true,
            mountpoint: None,
        };
        let served = Served::start(&options)?;
        let mut disk = Self {
            base,
            is_mounted: false,
            end: served.end_handle(),
            served: Some(served),
            wanted,
            read_ahead_before: None,
        };
        disk.read_ahead_as_phones()?;
        Ok(disk)
    }

    fn mounted(mut self) -> Result<Self, FragError> {
        let place = self.root();
        fs::create_dir(&place).map_err(|error| FragError::io(&place, error))?;
        self.mount()?;
        Ok(self)
    }

    fn device(&self) -> Result<PathBuf, FragError> {
        let ready = self.served.as_ref().map(Served::ready);
        ready
            .and_then(|ready| ready.loop_device)
            .ok_or(FragError::NoLoopDevice)
    }

    fn read_ahead_as_phones(&mut self) -> Result<(), FragError> {
        let setting = read_ahead_setting(&self.device()?);
        let at = |error| FragError::io(&setting, error);
        self.read_ahead_before = Some(fs::read_to_string(&setting).map_err(at)?);
        fs::write(&setting, READ_AHEAD_KIB.to_string()).map_err(at)
    }

    fn format(&self) -> Result<(), FragError> {
        let name = self.wanted.filesystem.name();
        let mut command = Command::new(format!("mkfs.{name}"));
        match self.wanted.filesystem {
            // No reserve for root, who does all this: how full it is would mean something else. Blocks of
            // a page also on small disks, as phones have them; only such blocks can be moved.
            Filesystem::Ext4 => {
                command.args(["-q", "-F", "-m", "0", "-b", "4096", "-E", MKFS_EXT4])
            }
            Filesystem::Xfs => command.args(["-q", "-f", "-K"]),
            Filesystem::Btrfs => command.args(["-q", "-f", "-K"]),
        };
        run(command.arg(self.device()?))?;
        Ok(())
    }

    fn mount(&mut self) -> Result<(), FragError> {
        let (device, root) = (self.device()?, self.root());
        let options = match self.wanted.filesystem {
            Filesystem::Ext4 => MOUNT_EXT4,
            Filesystem::Xfs | Filesystem::Btrfs => "",
        };
        let options = std::ffi::CString::new(options).unwrap_or_default();
        let kind = self.wanted.filesystem.name();
        let flags = MountFlags::NOATIME;
        let mounted = mount(&device, &root, kind, flags, Some(options.as_c_str()));
        mounted.map_err(|errno| FragError::Mount {
            what: format!("{kind} on {}", device.display()),
            error: errno.into(),
        })?;
        self.is_mounted = true;
        self.without_reserve()
    }

    /// ext4 keeps back up to 16 MiB for itself, which on a small disk is much of what is left at Full.
    fn without_reserve(&self) -> Result<(), FragError> {
        if self.wanted.filesystem != Filesystem::Ext4 {
            return Ok(());
        }
        let device = self.device()?;
        let name = device.file_name().unwrap_or_default();
        let setting = Path::new("/sys/fs/ext4")
            .join(name)
            .join("reserved_clusters");
        fs::write(&setting, "0").map_err(|error| FragError::io(&setting, error))
    }

    /// Where the filesystem is mounted.
    pub(crate) fn root(&self) -> PathBuf {
        self.base.path().join("mnt")
    }

    /// A place of this name that goes with the disk and does not lie on it.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    /// Size of the device.
    pub(crate) const fn size_bytes(&self) -> u64 {
        self.wanted.size_bytes
    }

    /// Unmounts and mounts again: nothing of any file is in memory.
    pub(crate) fn remount(&mut self) -> Result<(), FragError> {
        self.unmount()?;
        self.mount()
    }

    fn unmount(&mut self) -> Result<(), FragError> {
        let root = self.root();
        let begun = Instant::now();
        loop {
            match unmount(&root, UnmountFlags::empty()) {
                Ok(()) => break,
                Err(rustix::io::Errno::BUSY) if begun.elapsed() < BUSY_MAX => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(errno) => return Err(FragError::io(&root, errno.into())),
            }
        }
        self.is_mounted = false;
        Ok(())
    }

    /// Writes out all that is in memory, and what is then in the device's cache.
    pub(crate) fn sync(&self) -> Result<(), FragError> {
        let root = self.root();
        let opened = File::open(&root).map_err(|error| FragError::io(&root, error))?;
        syncfs(&opened).map_err(|errno| FragError::io(&root, errno.into()))
    }

    /// Waits until the device has ended its work in the background. Its clock goes on as real time does.
    pub(crate) fn rest(&self, settings: &Settings) -> Result<(), FragError> {
        const GLANCE: Duration = Duration::from_millis(100);
        const REST_MAX: Duration = Duration::from_secs(60);
        let begun = Instant::now();
        let mut before = self.counts()?;
        while begun.elapsed() < REST_MAX {
            settings.check()?;
            std::thread::sleep(GLANCE);
            let now = self.counts()?;
            if now.active_ns == before.active_ns {
                break;
            }
            before = now;
        }
        Ok(())
    }

    pub(crate) fn counts(&self) -> Result<DeviceCounts, FragError> {
        let image = self.base.path().join(IMAGE);
        let stats = match ask(&image, &Request::Stats)? {
            Reply::Stats { stats } => stats,
            other => return Err(FragError::Unexpected(format!("{other:?}"))),
        };
        DeviceCounts::of(&stats).ok_or_else(|| FragError::Unexpected(stats.to_string()))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted && self.unmount().is_err() {
            // Better without the name than mounted for ever.
            let _detached = unmount(self.root(), UnmountFlags::DETACH);
        }
        if let (Ok(device), Some(before)) = (self.device(), &self.read_ahead_before) {
            // The device is about to go; nothing else depends on it.
            let _restored = fs::write(read_ahead_setting(&device), before.trim());
        }
        let Some(served) = self.served.take() else {
            return;
        };
        let ended = self.end.end().is_ok() && self.end.wait_for_users(BUSY_MAX);
        if !ended {
            let _aborted = self.end.end_now();
        }
        // The image goes with the directory, so its state need not be right.
        let _saved = served.wait();
    }
}

fn directory_in(scratch: &Path) -> Result<TempDir, FragError> {
    let mut directory = tempfile::Builder::new();
    let made = directory.prefix("mobifs-frag-").tempdir_in(scratch);
    made.map_err(|error| FragError::io(scratch, error))
}

/// Runs a program that must succeed.
pub(crate) fn run(command: &mut Command) -> Result<String, FragError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| match error.kind() {
        ErrorKind::NotFound => FragError::NoProgram(program.clone()),
        _ => FragError::io(Path::new(&program), error),
    })?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let said = text(&output.stderr);
    let last = said.lines().next_back().unwrap_or_default().to_owned();
    Err(FragError::Program {
        program,
        status: output.status,
        said: last,
    })
}
