//! A served device with a filesystem on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use mobifs_base::VirtualNs;
use mobifs_device_model::Preset;
use mobifs_device_server::{EndHandle, Keep, Reply, Request, Scale, ServeOptions, Served, ask};
use mobifs_testkit::mount::{is_mounted, succeed};
use mobifs_testkit::random::Random;

use crate::filesystem::{Filesystem, unmount};
use crate::trouble::{OnPath as _, Trouble};

/// How long something that must happen may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait between two checks.
const PAUSE: Duration = Duration::from_millis(1);

/// A device of the model, and where its filesystem is mounted. Ended on drop, whatever is
/// mounted from it.
pub struct Disk {
    filesystem: Filesystem,
    image: PathBuf,
    mountpoint: PathBuf,
    served: Option<Served>,
    end: EndHandle,
}

impl Disk {
    /// Serves a new device from an image in `directory`.
    ///
    /// # Errors
    /// The device cannot be served.
    pub fn serve(
        directory: &Path,
        filesystem: Filesystem,
        mebibytes: u64,
        scale: Scale,
    ) -> Result<Self, Trouble> {
        Self::start(directory, filesystem, Some(mebibytes << 20), scale, None)
    }

    /// Serves the image that is in `directory` already, and records everything in `journal`.
    ///
    /// # Errors
    /// The device cannot be served.
    pub fn serve_again(
        directory: &Path,
        filesystem: Filesystem,
        scale: Scale,
        journal: &Path,
    ) -> Result<Self, Trouble> {
        let journal = Some(journal.to_owned());
        Self::start(directory, filesystem, None, scale, journal)
    }

    fn start(
        directory: &Path,
        filesystem: Filesystem,
        size_bytes: Option<u64>,
        scale: Scale,
        journal: Option<PathBuf>,
    ) -> Result<Self, Trouble> {
        let mountpoint = directory.join("lower");
        fs::create_dir(&mountpoint).on(&mountpoint)?;
        let image = directory.join("image");
        let options = ServeOptions {
            image: image.clone(),
            size_bytes,
            config: Some(Preset::Emmc51.config().map_err(|error| error.to_string())?),
            seed: Some(1),
            scale,
            journal,
            nbd: None,
            loop_device: true,
            mountpoint: None,
        };
        let served = Served::start(&options).map_err(|error| error.to_string())?;
        Ok(Self {
            filesystem,
            image,
            mountpoint,
            end: served.end_handle(),
            served: Some(served),
        })
    }

    /// What is on it.
    pub const fn filesystem(&self) -> Filesystem {
        self.filesystem
    }

    /// Where the filesystem is mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// What the device's own clock shows.
    ///
    /// # Errors
    /// It has ended.
    pub fn device_now(&self) -> Result<VirtualNs, Trouble> {
        let now = self.served.as_ref().map(Served::now);
        Ok(now.ok_or_else(|| "the device has ended".to_owned())?)
    }

    fn device(&self) -> Result<PathBuf, Trouble> {
        let ready = self.served.as_ref().map(Served::ready);
        let device = ready.and_then(|ready| ready.loop_device);
        Ok(device.ok_or_else(|| "the device has no loop device".to_owned())?)
    }

    /// Bytes read from the device since it was set up, by all processes.
    ///
    /// # Errors
    /// The kernel's counters (Linux `Documentation/block/stat.rst`) cannot be read.
    pub fn read_bytes(&self) -> Result<u64, Trouble> {
        const SECTORS_READ: usize = 2;
        const SECTOR_BYTES: u64 = 512;
        let device = self.device()?;
        let name = device.file_name().unwrap_or_default();
        let path = Path::new("/sys/block").join(name).join("stat");
        let counters = fs::read_to_string(&path).on(&path)?;
        let sectors = counters.split_whitespace().nth(SECTORS_READ);
        let sectors: Option<u64> = sectors.and_then(|sectors| sectors.parse().ok());
        let bytes = sectors.map(|sectors| sectors * SECTOR_BYTES);
        Ok(bytes.ok_or_else(|| format!("no sectors in {}", path.display()))?)
    }

    /// Makes the filesystem anew.
    ///
    /// # Errors
    /// What mkfs says.
    pub fn format(&self, options: &[&str]) -> Result<(), Trouble> {
        self.filesystem.make(&self.device()?, options)
    }

    /// Sets an option with which the unmounted ext4 is mounted from now on.
    ///
    /// # Errors
    /// What tune2fs says.
    pub fn set_default_mount_option(&self, option: &str) -> Result<(), Trouble> {
        let mut command = Command::new("tune2fs");
        succeed(command.args(["-o", option]).arg(self.device()?))?;
        Ok(())
    }

    /// Mounts the filesystem.
    ///
    /// # Errors
    /// What mount says.
    pub fn mount(&self) -> Result<(), Trouble> {
        self.filesystem.mount(&self.device()?, &self.mountpoint)
    }

    /// Unmounts the filesystem as soon as it is not in use.
    ///
    /// # Errors
    /// What umount says after a long time.
    pub fn umount(&self) -> Result<(), Trouble> {
        let start = Instant::now();
        loop {
            match unmount(&self.mountpoint) {
                Ok(()) => return Ok(()),
                Err(problem) if start.elapsed() > PATIENCE => return Err(problem.into()),
                // A killed daemon's files are closed a little later.
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Cuts the power: of what was not durable a random part survives.
    ///
    /// # Errors
    /// The device refuses.
    pub fn cut(&self, random: &mut Random) -> Result<(), Trouble> {
        let seed = random.below(u64::MAX);
        let keep = Keep::Random { seed };
        match ask(&self.image, &Request::Cut { keep }) {
            Ok(Reply::Cut { .. }) => Ok(()),
            other => Err(format!("cut: {other:?}").into()),
        }
    }

    /// Unmounts what the cut left mounted, and switches the power on.
    ///
    /// # Errors
    /// The device refuses, or the filesystem cannot be unmounted.
    pub fn power_on(&self) -> Result<(), Trouble> {
        if is_mounted(&self.mountpoint) {
            self.umount()?;
        }
        match ask(&self.image, &Request::PowerOn) {
            Ok(Reply::PoweredOn { .. }) => Ok(()),
            other => Err(format!("power on: {other:?}").into()),
        }
    }

    /// Recovers the filesystem after a power cut; see [`Filesystem::recover`].
    ///
    /// # Errors
    /// What its check says.
    pub fn recover(&self, random: &mut Random) -> Result<(), Trouble> {
        self.filesystem
            .recover(&self.device()?, &self.mountpoint, random)
    }

    /// Checks the unmounted filesystem.
    ///
    /// # Errors
    /// What its check says.
    pub fn check(&self) -> Result<(), Trouble> {
        self.filesystem.check(&self.device()?)
    }

    /// Ends the device, which is not in use.
    ///
    /// # Errors
    /// It cannot be ended.
    pub fn end(mut self) -> Result<(), Trouble> {
        self.end.end().map_err(|error| error.to_string())?;
        if let Some(served) = self.served.take() {
            served.wait().map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.served.is_some() {
            // A test has failed: remaining users get errors.
            let _lazily = Command::new("umount")
                .arg("-l")
                .arg(&self.mountpoint)
                .output();
            let _ended = self.end.end_now();
        }
    }
}
