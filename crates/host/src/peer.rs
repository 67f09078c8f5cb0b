//! Who is at the other end of a local socket.
#![allow(
    unsafe_code,
    reason = "no safe call reads all that the kernel may answer"
)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd as _};

/// The process at the other end of a local socket: of a client's connection, and of the socket that
/// it connected to, the one that listens, as it was when it began to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its id; none where it lies in a PID namespace that this process does not see into, as for a
    /// command in a container whose daemon is outside.
    pub pid: Option<u32>,
    /// Its user, as this process's user namespace calls it.
    pub user: u32,
}

impl Peer {
    /// Asks the kernel (`SO_PEERCRED`). rustix's call has no process 0, which the kernel answers for
    /// one that cannot be seen.
    ///
    /// # Errors
    /// That of the call.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let mut found = libc::ucred {
            pid: 0,
            uid: u32::MAX,
            gid: u32::MAX,
        };
        let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes to `found`, a local variable of that size
        // for which any bytes are a value.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut bytes,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            pid: u32::try_from(found.pid).ok().filter(|&pid| pid != 0),
            user: found.uid,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn this_process_is_its_own_peer() {
        let (here, _there) = UnixStream::pair().unwrap();
        let own = Peer {
            pid: Some(std::process::id()),
            user: rustix::process::geteuid().as_raw(),
        };
        assert_eq!(Peer::of(&here).unwrap(), own);
    }
}
