//! The command line's side of the control socket.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mobifs_host::exchange_line;
use thiserror::Error;

use super::place::{image_of, socket_path};
use super::protocol::{Reply, Request};

/// Why a served device could not be asked.
#[derive(Debug, Error)]
pub enum ControlError {
    /// The path leads nowhere.
    #[error("{} cannot be looked at: {source}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// No server has it.
    #[error(
        "{} neither is nor lies on a flash device that is being served; name the image, the mount \
         or the loop device of one, or serve one with `mobifs flash serve`",
        .0.display()
    )]
    NotServed(PathBuf),
    /// Another user serves it.
    #[error("only root and the user who serves {} may do this", .0.display())]
    NotPermitted(PathBuf),
    /// The conversation failed.
    #[error("the server of {} did not answer: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Asks the server of the device that `path` leads to: its image, its mount, the file in
/// that, a loop device over it, or what is mounted from that.
///
/// # Errors
/// [`ControlError`].
pub fn ask(path: &Path, request: &Request) -> Result<Reply, ControlError> {
    let image = image_of(path).map_err(|source| ControlError::Path {
        path: path.to_owned(),
        source,
    })?;
    let image = image.ok_or_else(|| ControlError::NotServed(path.to_owned()))?;
    let failed = |source| ControlError::Io {
        path: image.clone(),
        source,
    };
    let socket = socket_path(&image).map_err(failed)?;
    let stream = UnixStream::connect(socket).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            ControlError::NotServed(path.to_owned())
        }
        io::ErrorKind::PermissionDenied => ControlError::NotPermitted(path.to_owned()),
        _ => failed(error),
    })?;
    let line = serde_json::to_vec(request).map_err(|error| failed(error.into()))?;
    let answer = exchange_line(&stream, &line).map_err(failed)?;
    serde_json::from_slice(&answer).map_err(|error| failed(error.into()))
}

/// Waits until the device has ended its work in the background, which programs again what was written before
/// (folding, garbage collection), at most so long: what is counted afterwards is of what is done afterwards.
///
/// # Errors
/// [`ControlError`].
pub fn rest(path: &Path, patience: Duration) -> Result<(), ControlError> {
    const PAUSE: Duration = Duration::from_millis(200);
    let active = || match ask(path, &Request::Stats)? {
        Reply::Stats { stats } => Ok(stats["device"]["active_ns"].as_u64()),
        _ => Ok(None),
    };
    let begun = Instant::now();
    let mut before = active()?;
    while begun.elapsed() < patience {
        std::thread::sleep(PAUSE);
        let now = active()?;
        if now == before {
            break;
        }
        before = now;
    }
    Ok(())
}
