//! The socket that the daemon sends its messages to.

use std::ffi::OsString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
#[cfg(target_os = "android")]
use std::os::android::net::SocketAddrExt as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
#[cfg(not(target_os = "android"))]
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};

use crate::handover::NAMES;
use mobifs_host::DirectoryLock;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// Longest message; longer ones are truncated and ignored.
const MESSAGE_BYTES_MAX: usize = 4096;

/// What the daemon says.
#[derive(Debug)]
pub(super) enum Message {
    /// To be kept for the next daemon.
    Keep { name: String, descriptor: OwnedFd },
    /// No longer to be kept.
    Drop { name: String },
    /// The mount is usable.
    Ready,
    /// The process runs, and is not ready yet.
    Alive,
    /// It waits until everything before is done.
    Barrier,
    /// Nothing to act upon, or from another process.
    Other,
}

/// A socket in a directory that only this user may enter. Dropping removes it.
pub(super) struct NotifySocket {
    socket: UnixDatagram,
    place: Place,
}

/// Where the socket is found.
enum Place {
    /// In the runtime directory, with this device and inode.
    File { path: PathBuf, identity: (u64, u64) },
    /// No directory could be used any more: a name without one. Others may send there, too, but only what
    /// the watched process says counts.
    Abstract(String),
}

impl NotifySocket {
    pub(super) fn open() -> io::Result<Self> {
        let name = format!("supervisor-{}.sock", std::process::id());
        let directory = mobifs_host::runtime_directory()?;
        let path = directory.join(name);
        let _alone = DirectoryLock::acquire(&directory)?;
        // Left by a killed supervisor that had the same process id.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = UnixDatagram::bind(&path)?;
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, private)?;
        let identity = identity_of(&path)?;
        let place = Place::File { path, identity };
        set_socket_passcred(&socket, true)?;
        Ok(Self { socket, place })
    }

    fn open_abstract() -> io::Result<Self> {
        let name = format!("mobifs-supervisor-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        set_socket_passcred(&socket, true)?;
        let place = Place::Abstract(name);
        Ok(Self { socket, place })
    }

    /// Makes the socket anew if it has been removed, as with the runtime directory at the end of a login session:
    /// without it no process could take over. The process that used it has ended.
    pub(super) fn make_again_if_gone(&mut self) {
        let Place::File { path, identity } = &self.place else {
            return;
        };
        if identity_of(path).is_ok_and(|found| found == *identity) {
            return;
        }
        let made = Self::open().or_else(|error| {
            tracing::warn!(%error, "the supervisor has no runtime directory any more, and goes on without one");
            Self::open_abstract()
        });
        match made {
            Ok(made) => *self = made,
            Err(error) => tracing::error!(
                %error,
                "the supervisor's socket has been removed and cannot be made again: no daemon can take over"
            ),
        }
    }

    /// What `NOTIFY_SOCKET` says.
    pub(super) fn address(&self) -> OsString {
        match &self.place {
            Place::File { path, .. } => path.into(),
            Place::Abstract(name) => format!("@{name}").into(),
        }
    }

    /// The next message; none if there is none yet. Only what process `sender` says
    /// counts.
    pub(super) fn next(&self, sender: u32) -> io::Result<Option<Message>> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4), ScmCredentials(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = loop {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.socket, &mut parts, &mut ancillary, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                other => break other?.bytes,
            }
        };
        let mut descriptor = None;
        let mut is_sender = false;
        for message in ancillary.drain() {
            match message {
                RecvAncillaryMessage::ScmRights(mut rights) => descriptor = rights.next(),
                RecvAncillaryMessage::ScmCredentials(credentials) => {
                    let pid = u32::try_from(credentials.pid.as_raw_nonzero().get());
                    is_sender = pid == Ok(sender);
                }
                _ => {}
            }
        }
        if !is_sender {
            return Ok(Some(Message::Other));
        }
        Ok(Some(meaning(&bytes[..received], descriptor)))
    }
}

impl AsFd for NotifySocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for NotifySocket {
    fn drop(&mut self) {
        let Place::File { path, identity } = &self.place else {
            return;
        };
        // It may be gone, and its successor have the name.
        if identity_of(path).is_ok_and(|found| found == *identity) {
            // Nothing depends on its being gone.
            let _gone = std::fs::remove_file(path);
        }
    }
}

fn identity_of(path: &Path) -> io::Result<(u64, u64)> {
    let about = path.symlink_metadata()?;
    Ok((about.dev(), about.ino()))
}

/// The meaning of a message's lines.
fn meaning(bytes: &[u8], descriptor: Option<OwnedFd>) -> Message {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    let has = |wanted: &str| text.lines().any(|line| line == wanted);
    let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
    let name = name.filter(|name| NAMES.contains(name)).map(str::to_owned);
    match (name, descriptor) {
        (Some(name), Some(descriptor)) if has("FDSTORE=1") => Message::Keep { name, descriptor },
        (Some(name), _) if has("FDSTOREREMOVE=1") => Message::Drop { name },
        _ if has("READY=1") => Message::Ready,
        _ if text
            .lines()
            .any(|line| line.starts_with("EXTEND_TIMEOUT_USEC=")) =>
        {
            Message::Alive
        }
        _ if has("BARRIER=1") => Message::Barrier,
        _ => Message::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    /// Where no runtime directory can be had any more, the next daemon reaches the supervisor all the same.
    #[test]
    fn a_socket_without_a_directory_takes_messages() {
        let socket = NotifySocket::open_abstract().unwrap();
        let address = socket.address().into_string().unwrap();
        let name = address.strip_prefix('@').unwrap();
        let sender = UnixDatagram::unbound().unwrap();
        let address = SocketAddr::from_abstract_name(name).unwrap();
        sender.connect_addr(&address).unwrap();
        sender.send(b"READY=1").unwrap();
        let own = std::process::id();
        assert!(matches!(socket.next(own).unwrap(), Some(Message::Ready)));
        sender.send(b"READY=1").unwrap();
        let other = socket.next(own + 1).unwrap();
        assert!(matches!(other, Some(Message::Other)));
    }

    #[test]
    fn messages_are_understood_and_others_passed_over() {
        let store = b"FDSTORE=1\nFDNAME=mobifs-arena\nFDPOLL=0";
        assert!(matches!(
            meaning(store, Some(descriptor())),
            Message::Keep { name, .. } if name == "mobifs-arena"
        ));
        let remove = b"FDSTOREREMOVE=1\nFDNAME=mobifs-lock";
        assert!(matches!(
            meaning(remove, None),
            Message::Drop { name } if name == "mobifs-lock"
        ));
        assert!(matches!(
            meaning(b"READY=1\nSTATUS=x", None),
            Message::Ready
        ));
        let alive = meaning(b"EXTEND_TIMEOUT_USEC=300000000", None);
        assert!(matches!(alive, Message::Alive));
        let barrier = meaning(b"BARRIER=1", Some(descriptor()));
        assert!(matches!(barrier, Message::Barrier));
        for other in [
            &b"FDSTORE=1\nFDNAME=mobifs-arena"[..],
            b"FDNAME=mobifs-arena",
            b"STATUS=READY=1",
            b"\xff\xfe",
        ] {
            assert!(matches!(meaning(other, None), Message::Other));
        }
        let foreign = meaning(b"FDSTORE=1\nFDNAME=stored", Some(descriptor()));
        assert!(matches!(foreign, Message::Other));
    }
}
