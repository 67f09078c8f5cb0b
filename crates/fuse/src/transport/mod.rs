//! How requests reach the process and replies leave it.

mod device;
mod recorded;

use std::io::IoSlice;

use rustix::io::Errno;

pub(crate) use device::{DEVICE, DeviceTransport};
pub(crate) use recorded::RecordedTransport;

/// A way to talk with the kernel. The classic one reads and writes `/dev/fuse`; another
/// one (io_uring) can take its place without the rest noticing.
///
/// Any number of threads may call any method at the same time.
pub trait Transport: Send + Sync {
    /// Reads a request that waits, whole, into `buffer`; none if there is none.
    ///
    /// # Errors
    /// [`Errno::NODEV`] when the filesystem is unmounted or its connection aborted;
    /// anything else is a fault of the system.
    fn try_receive(&self, buffer: &mut [u8]) -> Result<Option<usize>, Errno>;

    /// Sleeps until there may be a request or the connection has ended; may also
    /// return for nothing.
    ///
    /// # Errors
    /// A fault of the system.
    fn sleep(&self) -> Result<(), Errno>;

    /// Answers one request; `parts` are a [`ReplyHeader`](crate::protocol::ReplyHeader) and what belongs to it.
    ///
    /// # Errors
    /// What the kernel says; [`Errno::NOENT`] means that the request has been answered.
    fn reply(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno>;

    /// Sends the kernel a notification, without a request; `parts` are a
    /// [`ReplyHeader`](crate::protocol::ReplyHeader) with the notification code in place of the
    /// error, and the notification.
    ///
    /// # Errors
    /// What the kernel says; [`Errno::NOENT`] means that it does not know the object.
    fn notify(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno>;
}
