//! The daemon's side of the control socket.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::place::{runtime_directory, socket_name};
use super::protocol::{ErrorKind, Reply, Request};
use crate::MountEntry;

/// Longest request.
const REQUEST_BYTES_MAX: u64 = 64 << 10;
/// How long the end of the daemon waits for replies under way.
const LAST_REPLIES_SECONDS: u64 = 5;

/// What answers requests; called from several threads.
pub trait ControlHandler: Send + Sync + 'static {
    /// Carries a request out.
    fn handle(&self, request: Request) -> Reply;
}

/// Connections that wait for a reply.
#[derive(Default)]
struct Active {
    count: Mutex<usize>,
    changed: Condvar,
}

/// The control socket of one mount. Dropping removes it.
pub struct ControlServer {
    path: PathBuf,
    /// Tells our socket from that of another mount which got the same device number.
    inode: u64,
    active: Arc<Active>,
}

impl std::fmt::Debug for ControlServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlServer")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl ControlServer {
    /// Listens for requests about `mount`.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub fn start(mount: &MountEntry, handler: Arc<dyn ControlHandler>) -> io::Result<Self> {
        let path = runtime_directory()?.join(socket_name(mount));
        let (listener, inode) = bind(&path)?;
        let server = Self {
            path,
            inode,
            active: Arc::default(),
        };
        let active = Arc::clone(&server.active);
        std::thread::Builder::new()
            .name("control".into())
            .spawn(move || accept(&listener, &handler, &active))?;
        Ok(server)
    }

    /// Where the socket lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until the requests under way are answered, but not for ever.
    pub fn wait_for_replies(&self) {
        let mut count = self.active.count.lock();
        while *count > 0 {
            let timeout = Duration::from_secs(LAST_REPLIES_SECONDS);
            if self
                .active
                .changed
                .wait_for(&mut count, timeout)
                .timed_out()
            {
                return;
            }
        }
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // The device number was free as soon as the mount had gone, so another daemon
        // may have put its socket there since.
        let Ok(_alone) = lock_directory(&self.path) else {
            return;
        };
        if self
            .path
            .symlink_metadata()
            .is_ok_and(|about| about.ino() == self.inode)
        {
            // Nothing depends on its being gone.
            let _gone = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes the socket; what is at its place is left over from a daemon that has ended,
/// because device numbers are unique among living mounts.
fn bind(path: &Path) -> io::Result<(UnixListener, u64)> {
    let _alone = lock_directory(path)?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok((listener, path.symlink_metadata()?.ino()))
}

/// Keeps other daemons from changing the sockets beside `path` until it is dropped.
fn lock_directory(path: &Path) -> io::Result<File> {
    let directory = path.parent().ok_or(io::ErrorKind::NotFound)?;
    let directory = File::open(directory)?;
    rustix::fs::flock(&directory, rustix::fs::FlockOperation::LockExclusive)?;
    Ok(directory)
}

/// Ends only with the process.
fn accept(listener: &UnixListener, handler: &Arc<dyn ControlHandler>, active: &Arc<Active>) {
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "the control socket failed");
                // Out of descriptors, most likely: do not spin.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let (handler, active) = (Arc::clone(handler), Arc::clone(active));
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                if let Err(error) = serve(&stream, handler.as_ref(), &active) {
                    tracing::debug!(%error, "a control connection failed");
                }
            });
        if let Err(error) = thread {
            tracing::warn!(%error, "cannot start a thread for a control connection");
        }
    }
}

fn serve(stream: &UnixStream, handler: &dyn ControlHandler, active: &Active) -> io::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    let allowed = [0, rustix::process::geteuid().as_raw()].contains(&peer.uid.as_raw());
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        (&mut reader)
            .take(REQUEST_BYTES_MAX)
            .read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        *active.count.lock() += 1;
        let reply = if allowed {
            match serde_json::from_slice(&line) {
                Ok(request) => handler.handle(request),
                Err(error) => Reply::error(ErrorKind::Usage, format!("bad request: {error}")),
            }
        } else {
            Reply::error(
                ErrorKind::NotPermitted,
                "only root and the mount's owner may do this",
            )
        };
        let sent = send(stream, &reply);
        *active.count.lock() -= 1;
        active.changed.notify_all();
        sent?;
    }
}

fn send(mut stream: &UnixStream, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    stream.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_another_daemon_put_there_stays() {
        // Regression: a daemon that ended took away the socket of a mount made since,
        // which had got its device number.
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("7-2.sock");
        let (_first, inode) = bind(&path).unwrap();
        let ending = ControlServer {
            path: path.clone(),
            inode,
            active: Arc::default(),
        };
        let (_second, inode) = bind(&path).unwrap();
        let living = ControlServer {
            path: path.clone(),
            inode,
            active: Arc::default(),
        };
        drop(ending);
        UnixStream::connect(&path).unwrap();
        drop(living);
        assert!(!path.exists());
    }
}
