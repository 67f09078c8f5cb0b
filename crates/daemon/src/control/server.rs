//! The daemon's side of the control socket.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use mobifs_host::{LineHandler, LineServer, MountEntry, runtime_directory};

use super::protocol::{ErrorKind, Reply, Request};
use super::socket_path::socket_name;

/// What answers requests; called from several threads.
pub trait ControlHandler: Send + Sync + 'static {
    /// Carries a request out.
    fn handle(&self, request: Request) -> Reply;
}

/// The control socket of one mount. Dropping removes it.
#[derive(Debug)]
pub struct ControlServer(LineServer);

impl ControlServer {
    /// Listens for requests about `mount`.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub fn start(mount: &MountEntry, handler: Arc<dyn ControlHandler>) -> io::Result<Self> {
        // Device numbers are unique among living mounts, so the path is this mount's.
        let path = runtime_directory()?.join(socket_name(mount));
        LineServer::start(path, Arc::new(Lines(handler))).map(Self)
    }

    /// Goes on with the socket of a daemon that has died. `mount`: where it is in the tree; it may
    /// be out of the tree and served for a bind mount of it.
    ///
    /// # Errors
    /// If the socket cannot be used; [`io::ErrorKind::NotFound`] if there is none, and no mount.
    pub fn resume(
        mount: Option<&MountEntry>,
        listener: UnixListener,
        handler: Arc<dyn ControlHandler>,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let own = address.as_pathname().filter(|path| path.exists());
        let path = match (own, mount) {
            (Some(path), _) => path.to_owned(),
            (None, Some(mount)) => runtime_directory()?.join(socket_name(mount)),
            (None, None) => return Err(io::ErrorKind::NotFound.into()),
        };
        LineServer::resume(path, listener, Arc::new(Lines(handler))).map(Self)
    }

    /// The socket itself, for a successor.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.0.listener()
    }

    /// Where the socket lies.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Waits until the requests under way are answered, at most for a limited time.
    pub fn wait_for_replies(&self) {
        self.0.wait_for_replies();
    }
}

/// Requests and replies as lines.
struct Lines(Arc<dyn ControlHandler>);

impl LineHandler for Lines {
    fn answer(&self, line: &[u8], permitted: bool) -> Vec<u8> {
        let reply = if permitted {
            match serde_json::from_slice(line) {
                Ok(request) => self.0.handle(request),
                Err(error) => Reply::error(ErrorKind::Usage, format!("bad request: {error}")),
            }
        } else {
            Reply::error(
                ErrorKind::NotPermitted,
                "only root and the mount's owner may do this",
            )
        };
        serde_json::to_vec(&reply).unwrap_or_default()
    }
}
