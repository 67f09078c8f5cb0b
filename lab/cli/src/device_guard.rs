//! The process that watches commands which serve a device and use it themselves.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use crate::failure::{Code, Failure};

/// The hidden command.
pub(crate) const NAME: &str = "guard-devices";

/// Until it is dropped, what this process serves is aborted if the process is killed.
pub(crate) struct DeviceGuard(Child);

impl DeviceGuard {
    /// # Errors
    /// The process cannot be started.
    pub(crate) fn start() -> Result<Self, Failure> {
        let start = || -> io::Result<Child> {
            // In a group of its own: a key that interrupts this process is not for it.
            Command::new(std::env::current_exe()?)
                .args([NAME, &std::process::id().to_string()])
                .current_dir("/")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .process_group(0)
                .spawn()
        };
        let failed = |error| format!("cannot start the process that watches this one: {error}");
        let started = start().map_err(|error| Failure::new(Code::Failed, failed(error)))?;
        Ok(Self(started))
    }
}

impl Drop for DeviceGuard {
    fn drop(&mut self) {
        // It has ended already if it could not look.
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// What that process does.
pub(crate) fn run(process: u32) -> Result<(), Failure> {
    let failed = |error| {
        let message = format!("process {process} cannot be watched: {error}");
        Failure::new(Code::Failed, message)
    };
    mobifs_device_server::guard(process).map_err(failed)
}
