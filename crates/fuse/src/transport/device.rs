//! The classic transport: one `/dev/fuse` descriptor that all threads share.
//!
//! One shared descriptor, not a clone for each thread: requests read on a clone are
//! lost when a daemon dies, those on a shared one can be sent again to its successor.

use std::fs::{File, OpenOptions};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::Transport;

/// Path of the device.
pub(crate) const DEVICE: &str = "/dev/fuse";

/// A `/dev/fuse` descriptor.
#[derive(Debug)]
pub(crate) struct DeviceTransport {
    device: OwnedFd,
}

impl DeviceTransport {
    /// Opens the device, not yet connected with any mount.
    ///
    /// # Errors
    /// As `open(2)`.
    pub(crate) fn open() -> std::io::Result<Self> {
        let file: File = OpenOptions::new().read(true).write(true).open(DEVICE)?;
        Ok(Self {
            device: file.into(),
        })
    }

    /// Takes a descriptor that somebody else opened and mounted.
    pub(crate) fn from_descriptor(device: OwnedFd) -> Self {
        Self { device }
    }
}

impl AsFd for DeviceTransport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl Transport for DeviceTransport {
    fn receive(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        loop {
            match rustix::io::read(&self.device, &mut *buffer) {
                // A signal came; or the request was withdrawn between the wake-up and
                // the read, because its sender was interrupted.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                // An aborted connection, if the kernel was asked to tell them apart.
                Err(Errno::CONNABORTED) => return Err(Errno::NODEV),
                Ok(0) => return Err(Errno::NODEV),
                other => return other,
            }
        }
    }

    fn reply(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        // The kernel takes a message whole or not at all: there are no short writes.
        rustix::io::writev(&self.device, parts).map(|_| ())
    }

    fn notify(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        rustix::io::writev(&self.device, parts).map(|_| ())
    }
}
