//! An ext4 on a device of its own: the served model, or a file on a real disk. Made, mounted, and gone with
//! the value.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use mobifs_base::VirtualNs;
use mobifs_device_model::{Config, Preset};
use mobifs_device_server::{
    EndHandle, Journal as CommandLog, Reply, Request, Scale, ServeOptions, Served, ask,
};
use rustix::fs::syncfs;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde::Serialize;
use tempfile::TempDir;

use crate::bytes::open;
use crate::error::PersistError;
use crate::tool::run;

/// How long a process that is being started, or ends, may keep a filesystem busy.
const BUSY_MAX: Duration = Duration::from_secs(20);
/// The tables of inodes are left as they are: zeros.
const MKFS: &str = "lazy_itable_init=1,lazy_journal_init=1,nodiscard";
/// Else the kernel writes them in the background.
const NO_BACKGROUND: &str = "noinit_itable";
const E2FSPROGS: &str = "install e2fsprogs";
const UTIL_LINUX: &str = "install util-linux";

/// What the filesystem lies on.
#[derive(Clone, Debug)]
pub enum Under {
    /// The served flash device model.
    Model {
        /// Which device.
        preset: Preset,
        /// How it spends time.
        scale: Scale,
    },
    /// A file in a directory of a real disk.
    Real(PathBuf),
}

/// What disk is wanted.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// What it lies on.
    pub under: Under,
    /// An image that is there, with an ext4, of which a copy is used; none: a filesystem is made.
    pub image: Option<PathBuf>,
    /// Size of a new one.
    pub size_bytes: u64,
    /// More options of `mkfs.ext4`.
    pub mkfs: Vec<String>,
    /// More mount options.
    pub mount: String,
    /// Where images and logs are meanwhile.
    pub scratch: PathBuf,
}

/// What a device has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DeviceCounts {
    /// Writes that it got.
    pub writes: u64,
    /// Flushes that it got.
    pub flushes: u64,
    /// Bytes that it was given.
    pub written_bytes: u64,
    /// Bytes that it programmed into cells, whatever for; of the model only.
    pub programmed_bytes: Option<u64>,
    /// Energy in mJ without that of being idle; of the model only.
    pub energy_mj: Option<f64>,
}

impl DeviceCounts {
    pub(crate) fn since(&self, before: &Self) -> Self {
        let both = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        Self {
            writes: self.writes - before.writes,
            flushes: self.flushes - before.flushes,
            written_bytes: self.written_bytes - before.written_bytes,
            programmed_bytes: both(self.programmed_bytes, before.programmed_bytes),
            energy_mj: self
                .energy_mj
                .zip(before.energy_mj)
                .map(|(now, before)| now - before),
        }
    }
}

enum Device {
    Served {
        served: Option<Box<Served>>,
        end: EndHandle,
    },
    Loop(PathBuf),
}

/// A mounted ext4.
pub(crate) struct Disk {
    directory: TempDir,
    device: Device,
    is_mounted: bool,
    options: DiskOptions,
}

impl Disk {
    pub(crate) fn new(options: &DiskOptions) -> Result<Self, PersistError> {
        if !rustix::process::geteuid().is_root() {
            return Err(PersistError::NotRoot);
        }
        let parent = match &options.under {
            Under::Model { .. } => &options.scratch,
            Under::Real(directory) => directory,
        };
        let directory = tempfile::Builder::new()
            .prefix("mobifs-persist-")
            .tempdir_in(parent)
            .map_err(PersistError::io(parent))?;
        let image = directory.path().join("image");
        if let Some(given) = &options.image {
            // What is no file would be read for ever.
            open(given).map_err(|error| match error {
                PersistError::NotAFile => PersistError::io(given)(io::Error::other(error)),
                other => other,
            })?;
            // Sparse, and by reference where the filesystem can.
            let mut copy = Command::new("cp");
            copy.args(["--reflink=auto", "--sparse=always"]).arg(given);
            run(copy.arg(&image), "install coreutils")?;
        }
        let device = Self::start(options, &image, directory.path())?;
        let mut disk = Self {
            directory,
            device,
            is_mounted: false,
            options: options.clone(),
        };
        if options.image.is_none() {
            disk.format()?;
        }
        let root = disk.root();
        fs::create_dir(&root).map_err(PersistError::io(&root))?;
        disk.mount()?;
        Ok(disk)
    }

    fn start(
        options: &DiskOptions,
        image: &Path,
        directory: &Path,
    ) -> Result<Device, PersistError> {
        let (preset, scale) = match &options.under {
            Under::Model { preset, scale } => (preset, scale),
            Under::Real(_) => {
                let file = File::options().create(true).append(true).open(image);
                let file = file.map_err(PersistError::io(image))?;
                if options.image.is_none() {
                    file.set_len(options.size_bytes)
                        .map_err(PersistError::io(image))?;
                }
                let mut setup = Command::new("losetup");
                setup
                    .args(["--find", "--show", "--direct-io=on"])
                    .arg(image);
                return Ok(Device::Loop(run(&mut setup, UTIL_LINUX)?.into()));
            }
        };
        let config: Config = preset.config()?;
        let served = Served::start(&ServeOptions {
            image: image.to_owned(),
            size_bytes: options.image.is_none().then_some(options.size_bytes),
            config: Some(config),
            seed: Some(1),
            scale: *scale,
            journal: Some(directory.join("commands")),
            nbd: None,
            loop_device: true,
            mountpoint: None,
        })?;
        Ok(Device::Served {
            end: served.end_handle(),
            served: Some(Box::new(served)),
        })
    }

    pub(crate) fn device(&self) -> Result<PathBuf, PersistError> {
        let found = match &self.device {
            Device::Served { served, .. } => served
                .as_ref()
                .and_then(|served| served.ready().loop_device),
            Device::Loop(path) => Some(path.clone()),
        };
        found.ok_or_else(|| PersistError::Unexpected("no loop device".to_owned()))
    }

    fn format(&self) -> Result<(), PersistError> {
        let mut command = Command::new("mkfs.ext4");
        command
            .args(["-q", "-F", "-E", MKFS])
            .args(&self.options.mkfs);
        run(command.arg(self.device()?), E2FSPROGS)?;
        Ok(())
    }

    fn mount(&mut self) -> Result<(), PersistError> {
        let (device, root) = (self.device()?, self.root());
        let mut options = NO_BACKGROUND.to_owned();
        if !self.options.mount.is_empty() {
            options = format!("{options},{}", self.options.mount);
        }
        let text = CString::new(options.clone()).unwrap_or_default();
        let mounted = mount(
            &device,
            &root,
            "ext4",
            MountFlags::NOATIME,
            Some(text.as_c_str()),
        );
        let what = match &self.options.image {
            Some(given) => format!("{}, as ext4 ({options}),", given.display()),
            None => format!("ext4 ({options}) on {}", device.display()),
        };
        mounted.map_err(|errno| PersistError::Mount {
            what,
            error: errno.into(),
        })?;
        self.is_mounted = true;
        Ok(())
    }

    /// Unmounts it and mounts it again: the kernel has nothing of it in memory then.
    pub(crate) fn remount(&mut self) -> Result<(), PersistError> {
        self.unmount()?;
        self.mount()
    }

    /// Where the filesystem is mounted.
    pub(crate) fn root(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    /// A directory beside it.
    pub(crate) fn beside(&self, name: &str) -> Result<PathBuf, PersistError> {
        let path = self.directory.path().join(name);
        fs::create_dir_all(&path).map_err(PersistError::io(&path))?;
        Ok(path)
    }

    /// What the clock of the device shows; of a real disk always the same.
    pub(crate) fn now(&self) -> VirtualNs {
        match &self.device {
            Device::Served { served, .. } => {
                served.as_ref().map_or(VirtualNs(0), |served| served.now())
            }
            Device::Loop(_) => VirtualNs(0),
        }
    }

    /// Everything in memory goes to the device, and becomes durable.
    pub(crate) fn sync(&self) -> Result<(), PersistError> {
        let root = self.root();
        let opened = File::open(&root).map_err(PersistError::io(&root))?;
        syncfs(&opened).map_err(|errno| PersistError::io(&root)(errno.into()))
    }

    pub(crate) fn counts(&self) -> Result<DeviceCounts, PersistError> {
        match &self.device {
            Device::Served { .. } => {
                let image = self.directory.path().join("image");
                match ask(&image, &Request::Stats)? {
                    Reply::Stats { stats } => counts_of_model(&stats)
                        .ok_or_else(|| PersistError::Unexpected(stats.to_string())),
                    other => Err(PersistError::Unexpected(format!("{other:?}"))),
                }
            }
            Device::Loop(device) => {
                let name = device.file_name().unwrap_or_default();
                let path = Path::new("/sys/class/block").join(name).join("stat");
                let text = fs::read_to_string(&path).map_err(PersistError::io(&path))?;
                counts_of_kernel(&text).ok_or(PersistError::Unexpected(text))
            }
        }
    }

    /// Unmounts, ends the device, and reads the log of its commands; none of a real disk.
    pub(crate) fn finish(mut self) -> Result<Option<FinishedDisk>, PersistError> {
        self.unmount()?;
        let Device::Served { served, end } = &mut self.device else {
            return Ok(None);
        };
        end.end()?;
        end.wait_for_users(BUSY_MAX);
        if let Some(served) = served.take() {
            served.wait()?;
        }
        let commands = CommandLog::open(&self.directory.path().join("commands"))?;
        let base = self.options.image.as_deref();
        let base = base
            .map(|path| File::open(path).map_err(PersistError::io(path)))
            .transpose()?;
        Ok(Some(FinishedDisk {
            commands,
            base,
            _disk: self,
        }))
    }

    fn unmount(&mut self) -> Result<(), PersistError> {
        let (root, begun) = (self.root(), Instant::now());
        while self.is_mounted {
            match unmount(&root, UnmountFlags::empty()) {
                Ok(()) => self.is_mounted = false,
                Err(rustix::io::Errno::BUSY) if begun.elapsed() < BUSY_MAX => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(errno) => return Err(PersistError::io(&root)(errno.into())),
            }
        }
        Ok(())
    }
}

/// A disk that is no longer mounted, and what its device got.
pub(crate) struct FinishedDisk {
    pub(crate) commands: CommandLog,
    /// The content before.
    pub(crate) base: Option<File>,
    _disk: Disk,
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted && self.unmount().is_err() {
            // Better without the name than mounted for ever.
            let _detached = unmount(self.root(), UnmountFlags::DETACH);
        }
        match &mut self.device {
            Device::Served { served, end } => {
                let Some(served) = served.take() else {
                    return;
                };
                if !(end.end().is_ok() && end.wait_for_users(BUSY_MAX)) {
                    let _aborted = end.end_now();
                }
                // The image goes with the directory, so its state need not be right.
                let _saved = served.wait();
            }
            Device::Loop(device) => {
                let _detached = Command::new("losetup").arg("--detach").arg(device).output();
            }
        }
    }
}

const SECTOR_BYTES: u64 = 512;

fn counts_of_model(stats: &serde_json::Value) -> Option<DeviceCounts> {
    let device = stats.get("device")?;
    let mut counts = DeviceCounts {
        written_bytes: device.get("host_sectors_written")?.as_u64()? * SECTOR_BYTES,
        programmed_bytes: Some(device.get("programmed_bytes")?.as_u64()?),
        ..DeviceCounts::default()
    };
    for entry in device.get("commands")?.as_array()? {
        let commands = entry.get("commands")?.as_u64()?;
        match entry.get("kind")?.as_str()? {
            "write" | "reliable_write" => counts.writes += commands,
            "flush" => counts.flushes += commands,
            _ => {}
        }
    }
    let energy = device.get("energy")?;
    let parts = [
        "read_mj",
        "program_mj",
        "erase_mj",
        "transfer_mj",
        "active_mj",
    ];
    let parts: Option<Vec<f64>> = parts
        .iter()
        .map(|part| energy.get(part)?.as_f64())
        .collect();
    counts.energy_mj = Some(parts?.iter().sum());
    Some(counts)
}

/// From a device's `stat`: `Documentation/block/stat.rst` of the kernel.
fn counts_of_kernel(text: &str) -> Option<DeviceCounts> {
    let numbers: Vec<u64> = text
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    Some(DeviceCounts {
        writes: *numbers.get(4)?,
        written_bytes: numbers.get(6)? * SECTOR_BYTES,
        flushes: *numbers.get(15)?,
        programmed_bytes: None,
        energy_mj: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_did_is_read_from_its_documents() {
        let kernel = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17";
        let counts = counts_of_kernel(kernel).unwrap();
        assert_eq!(
            (counts.writes, counts.written_bytes, counts.flushes),
            (5, 7 * 512, 16)
        );
        assert_eq!(counts_of_kernel("1 2"), None);
        let stats = serde_json::json!({ "device": { "programmed_bytes": 9,
            "host_sectors_written": 16,
            "commands": [{ "kind": "write", "commands": 2 }, { "kind": "flush", "commands": 3 }],
            "energy": { "read_mj": 1.0, "program_mj": 2.0, "erase_mj": 0.0, "transfer_mj": 0.5,
                        "active_mj": 1.5, "idle_mj": 100.0 },
        } });
        let counts = counts_of_model(&stats).unwrap();
        assert_eq!(
            (counts.writes, counts.flushes, counts.written_bytes),
            (2, 3, 8192)
        );
        assert_eq!(
            (counts.programmed_bytes, counts.energy_mj),
            (Some(9), Some(5.0))
        );
    }
}
