//! The NBD front: an export over a unix socket, for `qemu`, `nbd-client`, `nbdcopy`, …
//!
//! Our own code, because no crate fits: of the crates that serve NBD, one (`nbd`) handles one
//! request after the other and passes neither FLUSH nor FUA on, the other (`tokio-nbd`)
//! has a licence that this project cannot take. The protocol that is needed is small, and
//! its parsers are total and tested with hostile input.

pub(crate) mod fuzzing;
mod handshake;
mod transmission;
mod wire;

use std::collections::BTreeMap;
use std::io::{self, BufReader, BufWriter};
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use handshake::{Export, negotiate};
use parking_lot::Mutex;
use transmission::Connection;

use crate::block::Block;

/// Buffer in front of the socket: a few requests of 4 KiB.
const READ_BUFFER_BYTES: usize = 64 << 10;
/// Name of the export; the empty name works as well.
const EXPORT_NAME: &str = "flash";
/// Pause after a failure to accept, most likely for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves a device on a socket until it is dropped.
pub(crate) struct NbdServer {
    path: PathBuf,
    listener: Arc<UnixListener>,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

struct State {
    device: Arc<dyn Block>,
    description: String,
    ends: AtomicBool,
    /// Connections, to be able to end them.
    connections: Mutex<BTreeMap<u64, UnixStream>>,
}

impl NbdServer {
    /// Listens at `path`; only the user of this process may connect.
    ///
    /// # Errors
    /// If something other than a stale socket is there already, or the socket cannot be made.
    pub(crate) fn start(
        path: &Path,
        device: Arc<dyn Block>,
        description: String,
    ) -> io::Result<Self> {
        remove_stale_socket(path)?;
        let listener = Arc::new(UnixListener::bind(path)?);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let state = Arc::new(State {
            device,
            description,
            ends: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let (accepting, accepted) = (Arc::clone(&listener), Arc::clone(&state));
        let thread = std::thread::Builder::new()
            .name("nbd-accept".into())
            .spawn(move || accept(&accepting, &accepted))?;
        Ok(Self {
            path: path.to_owned(),
            listener,
            state,
            thread: Some(thread),
        })
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _woken = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that accepts NBD connections panicked");
        }
        for stream in self.state.connections.lock().values() {
            let _ended = stream.shutdown(Shutdown::Both);
        }
        let _gone = std::fs::remove_file(&self.path);
    }
}

/// A socket without a listener is left over from a server that was killed.
fn remove_stale_socket(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => return Err(io::Error::other("there is something else already")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::other("another server listens there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        Err(error) => Err(error),
    }
}

fn accept(listener: &UnixListener, state: &Arc<State>) {
    for (number, stream) in (0..).zip(listener.incoming()) {
        if state.ends.load(Ordering::SeqCst) {
            return;
        }
        let started = stream.and_then(|stream| start_connection(number, stream, state));
        if let Err(error) = started {
            tracing::warn!(%error, "an NBD connection could not be served");
            std::thread::sleep(ACCEPT_PAUSE);
        }
    }
}

fn start_connection(number: u64, stream: UnixStream, state: &Arc<State>) -> io::Result<()> {
    state.connections.lock().insert(number, stream.try_clone()?);
    let serving = Arc::clone(state);
    let spawned = std::thread::Builder::new()
        .name("nbd".into())
        .spawn(move || {
            if let Err(error) = serve(&stream, &serving) {
                tracing::debug!(%error, "an NBD connection ended");
            }
            serving.connections.lock().remove(&number);
        });
    if let Err(error) = spawned {
        state.connections.lock().remove(&number);
        return Err(error);
    }
    Ok(())
}

fn serve(stream: &UnixStream, state: &State) -> io::Result<()> {
    let device = Arc::clone(&state.device);
    let export = Export {
        name: EXPORT_NAME.to_owned(),
        description: state.description.clone(),
        size_bytes: device.size_bytes(),
    };
    let cycle = device.power_cycle();
    let Some(agreement) = negotiate(&mut &*stream, &export)? else {
        return Ok(());
    };
    let connection = Connection {
        device,
        cycle,
        agreement,
    };
    let mut reader = BufReader::with_capacity(READ_BUFFER_BYTES, stream);
    connection.serve(&mut reader, &mut BufWriter::new(stream))
}
