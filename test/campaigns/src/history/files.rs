//! Files of a writer, on a filesystem that may be full.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// How long to wait for room on a full filesystem.
pub(crate) const FULL_PAUSE: Duration = Duration::from_millis(2);

/// Does something that changes nothing if there is no room, as soon as there is.
///
/// # Errors
/// Why else it was not done.
pub fn with_room<T>(mut attempt: impl FnMut() -> io::Result<T>) -> Result<T, String> {
    loop {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                std::thread::sleep(FULL_PAUSE);
            }
            other => return other.map_err(|error| error.to_string()),
        }
    }
}

/// A file's content; empty if it is not there.
///
/// # Errors
/// It cannot be read.
pub fn content(path: &Path) -> Result<Vec<u8>, String> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other.map_err(|error| format!("{}: {error}", path.display())),
    }
}
