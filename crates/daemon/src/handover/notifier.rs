//! Messages to the supervisor of this process.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
#[cfg(target_os = "android")]
use std::os::android::net::SocketAddrExt as _;
use std::os::fd::{AsFd as _, BorrowedFd};
#[cfg(not(target_os = "android"))]
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::pipe::{PipeFlags, pipe_with};

use super::NOTIFY_VARIABLE;

/// Sends messages to systemd or to our own supervisor.
#[derive(Debug)]
pub(crate) struct Notifier {
    socket: UnixDatagram,
}

impl Notifier {
    /// The socket that the environment names; none if this process is unsupervised.
    ///
    /// # Errors
    /// If the socket cannot be used.
    pub(crate) fn from_environment() -> io::Result<Option<Self>> {
        let Some(place) = std::env::var_os(NOTIFY_VARIABLE).filter(|place| !place.is_empty())
        else {
            return Ok(None);
        };
        let address = match place.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(&place)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        Ok(Some(Self { socket }))
    }

    /// Gives the supervisor a descriptor to hold.
    ///
    /// # Errors
    /// If the message cannot be sent.
    pub(crate) fn keep(&self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        // Without FDPOLL=0 systemd would drop a descriptor when poll(2) reports an
        // error on it, as for a connection that is not served.
        let state = format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0");
        self.send(&state, &[descriptor])
    }

    /// Asks the supervisor to drop a descriptor.
    ///
    /// # Errors
    /// If the message cannot be sent.
    pub(crate) fn drop_kept(&self, name: &str) -> io::Result<()> {
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), &[])
    }

    /// Reports that the mount is usable.
    ///
    /// # Errors
    /// If the message cannot be sent.
    pub(crate) fn ready(&self, status: &str) -> io::Result<()> {
        self.send(&format!("READY=1\nSTATUS={status}"), &[])
    }

    /// Reports that this process runs, and will be ready, or report again, within `patience`.
    ///
    /// # Errors
    /// If the message cannot be sent.
    pub(crate) fn alive(&self, patience: Duration) -> io::Result<()> {
        self.send(
            &format!("EXTEND_TIMEOUT_USEC={}", patience.as_micros()),
            &[],
        )
    }

    /// Reports that this process is about to end.
    ///
    /// # Errors
    /// If the message cannot be sent.
    pub(crate) fn stopping(&self, status: &str) -> io::Result<()> {
        self.send(&format!("STOPPING=1\nSTATUS={status}"), &[])
    }

    /// Waits until the supervisor has acted upon all earlier messages, at most for
    /// `patience`; returns whether it has.
    ///
    /// # Errors
    /// If the message cannot be sent.
    pub(crate) fn wait(&self, patience: Duration) -> io::Result<bool> {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        self.send("BARRIER=1", &[theirs.as_fd()])?;
        drop(theirs);
        // The other side closes its end; nothing is ever written.
        let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
        let mut descriptors = [PollFd::new(&ours, PollFlags::empty())];
        Ok(poll(&mut descriptors, Some(&timeout))? > 0)
    }

    fn send(&self, state: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let parts = [IoSlice::new(state.as_bytes())];
        loop {
            match sendmsg(&self.socket, &parts, &mut ancillary, SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => {}
                other => return Ok(other.map(drop)?),
            }
        }
    }
}
