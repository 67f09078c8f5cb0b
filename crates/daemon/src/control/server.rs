//! The daemon's side of the control socket.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use mobifs_host::{
    Client, GroupError, LineHandler, LineServer, MountEntry, group_id, runtime_directory,
};

use super::protocol::{ErrorKind, Reply, Request};
use super::socket_path::socket_name;

/// What answers requests; called from several threads.
pub trait ControlHandler: Send + Sync + 'static {
    /// Carries a request out. Where it has to wait before it can begin, it begins only if the client has not
    /// [gone](Client::has_gone) by then.
    fn handle(&self, request: Request, client: &Client<'_>) -> Reply;
}

/// The control socket of one mount. Dropping removes it.
#[derive(Debug)]
pub struct ControlServer(LineServer);

impl ControlServer {
    /// Listens for requests about `mount`. `readers`: the group whose members may read the status,
    /// by its name or number.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub fn start(
        mount: &MountEntry,
        handler: Arc<dyn ControlHandler>,
        readers: Option<&str>,
    ) -> io::Result<Self> {
        // No other mount in the tree has the device number. The socket of one that had it, and has left
        // the tree, gets another name.
        let path = runtime_directory()?.join(socket_name(mount));
        let server = LineServer::start(path, lines(handler, readers))?;
        admit(&server, readers);
        Ok(Self(server))
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
        readers: Option<&str>,
    ) -> io::Result<Self> {
        let place = || {
            let mount = mount.ok_or(io::ErrorKind::NotFound)?;
            Ok(runtime_directory()?.join(socket_name(mount)))
        };
        let server = LineServer::resume(listener, place, lines(handler, readers))?;
        admit(&server, readers);
        Ok(Self(server))
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

/// Finds the group that `status_group` names, before anything is mounted.
///
/// # Errors
/// There is no such group.
pub fn check_readers(readers: Option<&str>) -> Result<(), GroupError> {
    readers.map_or(Ok(()), |name| group_id(name).map(drop))
}

/// Lets the readers connect. A mount is served also without them.
fn admit(server: &LineServer, readers: Option<&str>) {
    let Some(name) = readers else {
        return;
    };
    let admitted = match group_id(name) {
        Ok(group) => server.admit(group),
        Err(error) => Err(io::Error::other(error)),
    };
    if let Err(error) = admitted {
        tracing::warn!(
            group = name,
            %error,
            "`status_group` cannot read the status of this mount: the control socket cannot be given \
             to that group"
        );
    }
}

fn lines(handler: Arc<dyn ControlHandler>, readers: Option<&str>) -> Arc<Lines> {
    Arc::new(Lines {
        handler,
        has_readers: readers.is_some(),
    })
}

/// Requests and replies as lines.
struct Lines {
    handler: Arc<dyn ControlHandler>,
    /// Who connects and is not permitted is of the group that may read the status: the socket's mode
    /// keeps others out.
    has_readers: bool,
}

impl Lines {
    fn may_be_answered(&self, request: &Request) -> bool {
        self.has_readers && matches!(request, Request::Status { .. } | Request::Totals)
    }
}

impl LineHandler for Lines {
    fn answer(&self, line: &[u8], client: &Client<'_>) -> Vec<u8> {
        let permitted = client.is_permitted();
        let reply = match serde_json::from_slice(line) {
            Ok(request) if permitted || self.may_be_answered(&request) => {
                self.handler.handle(request, client)
            }
            Err(error) if permitted => {
                Reply::error(ErrorKind::Usage, format!("bad request: {error}"))
            }
            _ => Reply::error(
                ErrorKind::NotPermitted,
                "only root and the mount's owner may do this",
            ),
        };
        serde_json::to_vec(&reply).unwrap_or_default()
    }
}
