//! A device while it is served: what its control socket and its end need of it.

use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use mobifs_fuse::LoopDevice;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;

use crate::image::{About, Image};
use crate::port::{Port, PowerError};

/// Where a served device is to be found.
#[derive(Clone, Debug, Serialize)]
pub struct Ready {
    /// The image.
    pub image: PathBuf,
    /// What the device is called.
    pub device: String,
    /// Its size.
    pub size_bytes: u64,
    /// How time is spent.
    pub scale: f64,
    /// The file in the mount.
    pub file: Option<PathBuf>,
    /// The loop device of this power cycle.
    pub loop_device: Option<PathBuf>,
    /// The NBD socket.
    pub nbd: Option<PathBuf>,
    /// The control socket.
    pub control: PathBuf,
    /// The process.
    pub pid: u32,
}

impl fmt::Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "serving {} as {}", self.image.display(), self.device)?;
        let places = [
            ("loop device", &self.loop_device),
            ("file", &self.file),
            ("NBD socket", &self.nbd),
        ];
        for (what, place) in places {
            if let Some(place) = place {
                write!(f, ", {what} {}", place.display())?;
            }
        }
        Ok(())
    }
}

/// A served device, as its control socket and its end need it.
pub(crate) struct Device {
    pub(crate) port: Arc<Port>,
    pub(super) image: Image,
    pub(super) about: About,
    pub(super) ready: Mutex<Ready>,
    pub(super) loop_device: Mutex<Option<LoopDevice>>,
    pub(super) wants_loop: bool,
}

impl Device {
    pub(crate) fn ready(&self) -> Ready {
        self.ready.lock().clone()
    }

    /// Gives the power back, and with it a new loop device.
    pub(crate) fn power_on(&self) -> Result<(Value, Option<PathBuf>), PowerError> {
        let report = self.port.power_on()?;
        if self.wants_loop {
            self.attach_loop().map_err(PowerError::Loop)?;
        }
        Ok((report, self.ready.lock().loop_device.clone()))
    }

    /// Sets up a loop device over the current file. The previous one disappears when its last user
    /// closes it; its requests are refused.
    pub(super) fn attach_loop(&self) -> io::Result<()> {
        let Some(file) = self.ready.lock().file.clone() else {
            return Ok(());
        };
        let mut current = self.loop_device.lock();
        *current = None;
        let file = OpenOptions::new().read(true).write(true).open(file)?;
        let shown = self.image.path.as_os_str().as_encoded_bytes();
        let device = LoopDevice::over_file(&file, shown)?;
        self.ready.lock().loop_device = Some(device.path().to_owned());
        *current = Some(device);
        Ok(())
    }
}
