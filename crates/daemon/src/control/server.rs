//! The daemon's side of the control socket.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mobifs_host::{
    Client, GroupError, LineHandler, LineServer, MountEntry, displaced, group_id, runtime_directory,
};

use super::protocol::{ErrorKind, Reply, Request};
use super::socket_path::socket_name;

/// What answers requests; called from several threads.
pub trait ControlHandler: Send + Sync + 'static {
    /// Carries a request out. Where it has to wait before it can begin, it begins only if the client has not
    /// [gone](Client::has_gone) by then.
    fn handle(&self, request: Request, client: &Client<'_>) -> Reply;
}

/// How often a daemon looks whether its socket is still there.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// The control socket of one mount. Dropping removes it.
#[derive(Debug)]
pub struct ControlServer {
    server: Arc<LineServer>,
    readers: Option<String>,
}

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
        Ok(Self::admitting(server, readers))
    }

    /// Goes on with the socket of a daemon that has died. `mount`: where it is in the tree; it may
    /// be out of the tree and served for a bind mount of it. A socket that was removed is made anew.
    ///
    /// # Errors
    /// If the socket cannot be used, or not be made.
    pub fn resume(
        mount: Option<&MountEntry>,
        listener: UnixListener,
        handler: Arc<dyn ControlHandler>,
        readers: Option<&str>,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let place = || {
            let directory = runtime_directory()?;
            if let Some(mount) = mount {
                return Ok(directory.join(socket_name(mount)));
            }
            // Another mount may have the device number by now.
            let name = address.as_pathname().and_then(Path::file_name);
            let name = name.ok_or(io::ErrorKind::NotFound)?;
            Ok(displaced(&directory.join(name), std::process::id()))
        };
        let server = LineServer::resume(listener, place, lines(handler, readers))?;
        Ok(Self::admitting(server, readers))
    }

    fn admitting(server: LineServer, readers: Option<&str>) -> Self {
        admit(&server, readers);
        Self {
            server: Arc::new(server),
            readers: readers.map(str::to_owned),
        }
    }

    /// Looks every few seconds whether the socket is still there, and makes it and its directory anew if
    /// they are not: the end of a login session removes its runtime directory. `made` is called with the new
    /// socket each time, and `look` at each look.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn keep(
        &self,
        made: impl Fn(BorrowedFd<'_>) + Send + 'static,
        look: impl Fn() + Send + 'static,
    ) -> io::Result<()> {
        let (server, readers) = (Arc::downgrade(&self.server), self.readers.clone());
        let watch = move || {
            let mut has_failed = false;
            loop {
                std::thread::sleep(LOOK_INTERVAL);
                let Some(server) = server.upgrade() else {
                    return;
                };
                look();
                match make_again(&server, readers.as_deref()) {
                    Ok(None) => has_failed = false,
                    Ok(Some(listener)) => made(listener.as_fd()),
                    // It tries again; once is enough in the log.
                    Err(error) if !has_failed => {
                        has_failed = true;
                        tracing::warn!(
                            %error,
                            "the control socket has been removed and cannot be made again: commands do not \
                             reach this daemon"
                        );
                    }
                    Err(_) => {}
                }
            }
        };
        let thread = std::thread::Builder::new().name("socket".into());
        thread.spawn(watch).map(drop)
    }

    /// The socket itself, for a successor; none if that cannot be had.
    pub fn listener(&self) -> Option<UnixListener> {
        self.server.listener()
    }

    /// Whether this process has made the socket, instead of having it from a predecessor.
    pub fn is_made(&self) -> bool {
        self.server.is_made()
    }

    /// Where the socket lies.
    pub fn path(&self) -> PathBuf {
        self.server.path()
    }

    /// Waits until the requests under way are answered, at most for a limited time.
    pub fn wait_for_replies(&self) {
        self.server.wait_for_replies();
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // The thread that looks for it may have a share in the server now.
        self.server.remove();
    }
}

/// Makes the socket again if it is gone; it if it was.
fn make_again(server: &LineServer, readers: Option<&str>) -> io::Result<Option<UnixListener>> {
    if !server.make_again_if_gone(runtime_directory)? {
        return Ok(None);
    }
    admit(server, readers);
    tracing::warn!(
        path = %server.path().display(),
        "the control socket had been removed, as with the runtime directory at the end of a login session; it was \
         made again"
    );
    Ok(server.listener())
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
