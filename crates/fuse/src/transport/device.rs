//! The classic transport: one `/dev/fuse` descriptor that all threads share.
//!
//! One shared descriptor, not a clone for each thread: requests read on a clone are
//! lost when a daemon dies, those on a shared one can be sent again to its successor.

use std::fs::{File, OpenOptions};
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::Transport;

/// Path of the device.
pub(crate) const DEVICE: &str = "/dev/fuse";

/// A `/dev/fuse` descriptor, in non-blocking mode.
#[derive(Debug)]
pub(crate) struct DeviceTransport {
    device: OwnedFd,
    /// Watches `device`. All workers sleep here, because the kernel wakes the one that
    /// fell asleep last, whose CPU is warm; sleepers on the device itself are woken in
    /// turn.
    ///
    /// Made at the first sleep: before the descriptor is mounted it cannot be watched.
    watch: OnceLock<OwnedFd>,
    /// Watches it for reserve workers, for one request, while this is armed.
    reserve_watch: OnceLock<OwnedFd>,
}

impl DeviceTransport {
    /// Opens the device, not yet connected with any mount.
    ///
    /// # Errors
    /// As `open(2)`.
    pub(crate) fn open() -> std::io::Result<Self> {
        let file: File = OpenOptions::new().read(true).write(true).open(DEVICE)?;
        Self::from_descriptor(file.into())
    }

    /// Takes a descriptor that another process or function opened, and perhaps mounted.
    ///
    /// # Errors
    /// As `fcntl(2)`.
    pub(crate) fn from_descriptor(device: OwnedFd) -> std::io::Result<Self> {
        let flags = fcntl_getfl(&device)?;
        fcntl_setfl(&device, flags | OFlags::NONBLOCK)?;
        Ok(Self {
            device,
            watch: OnceLock::new(),
            reserve_watch: OnceLock::new(),
        })
    }

    /// The number by which `/sys/fs/fuse/connections` and the mount table know the mount, from
    /// kernels that show it.
    pub(crate) fn connection_number(&self) -> Option<u64> {
        let about = format!("/proc/self/fdinfo/{}", self.device.as_raw_fd());
        let about = std::fs::read_to_string(about).ok()?;
        let mut lines = about.lines();
        let number = lines.find_map(|line| line.strip_prefix("fuse_connection:"))?;
        number.trim().parse().ok()
    }

    fn watch(&self) -> Result<&OwnedFd, Errno> {
        made(&self.watch, |watch| {
            let data = epoll::EventData::new_u64(0);
            epoll::add(watch, &self.device, data, epoll::EventFlags::IN)
        })
    }

    fn reserve_watch(&self) -> Result<&OwnedFd, Errno> {
        made(&self.reserve_watch, |_| Ok(()))
    }

    /// The next request, also one that is there already, wakes one thread in
    /// [`DeviceTransport::sleep_reserve`].
    ///
    /// # Errors
    /// A fault of the system.
    pub(crate) fn arm_reserve(&self) -> Result<(), Errno> {
        let watch = self.reserve_watch()?;
        let data = epoll::EventData::new_u64(0);
        let events = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        match epoll::add(watch, &self.device, data, events) {
            // It has fired.
            Err(Errno::EXIST) => epoll::modify(watch, &self.device, data, events),
            added => added,
        }
    }

    /// No request wakes one of them any more.
    ///
    /// It is not watched without events instead: each request would wake the sleeper inside the
    /// kernel, because `/dev/fuse` does not say of what it wakes.
    ///
    /// # Errors
    /// A fault of the system.
    pub(crate) fn disarm_reserve(&self) -> Result<(), Errno> {
        match epoll::delete(self.reserve_watch()?, &self.device) {
            Err(Errno::NOENT) => Ok(()),
            deleted => deleted,
        }
    }

    /// Sleeps until a request comes, or the connection ends, while this is armed; false if neither
    /// does for so long.
    ///
    /// # Errors
    /// A fault of the system.
    pub(crate) fn sleep_reserve(&self, timeout: Duration) -> Result<bool, Errno> {
        let mut events = Vec::with_capacity(1);
        let timeout = Timespec::try_from(timeout).map_err(|_| Errno::INVAL)?;
        let watch = self.reserve_watch()?;
        match epoll::wait(watch, spare_capacity(&mut events), Some(&timeout)) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(true),
            Err(errno) => Err(errno),
        }
    }
}

/// The watch, made when it is first needed.
fn made(
    watch: &OnceLock<OwnedFd>,
    prepare: impl FnOnce(&OwnedFd) -> Result<(), Errno>,
) -> Result<&OwnedFd, Errno> {
    if let Some(watch) = watch.get() {
        return Ok(watch);
    }
    let made = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    prepare(&made)?;
    // Another worker may have been faster; then ours is closed again.
    Ok(watch.get_or_init(|| made))
}

impl AsFd for DeviceTransport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl Transport for DeviceTransport {
    fn try_receive(&self, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
        loop {
            match rustix::io::read(&self.device, &mut *buffer) {
                Err(Errno::AGAIN) => return Ok(None),
                // A signal came; or the request was withdrawn because its sender was
                // interrupted.
                Err(Errno::INTR | Errno::NOENT) => {}
                // An aborted connection, if the kernel was asked to distinguish them.
                Err(Errno::CONNABORTED) => return Err(Errno::NODEV),
                Ok(0) => return Err(Errno::NODEV),
                Ok(length) => return Ok(Some(length)),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn sleep(&self) -> Result<(), Errno> {
        let mut events = Vec::with_capacity(1);
        match epoll::wait(self.watch()?, spare_capacity(&mut events), None) {
            // A signal is a wake-up as well.
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
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
