//! What fuzz targets need: the parsers without files and sockets around them.

use std::path::Path;

use crate::image::{ImageError, Sidecar, sealed};

pub use crate::journal::fuzzing::{ForgedRecord, forge_journal};
pub use crate::nbd::fuzzing::{DEVICE_BYTES, handshake, transmission};

/// Reads the content of the file beside an image and says what writing it again gives.
///
/// # Errors
/// As reading that file.
pub fn rewrite_sidecar(bytes: &[u8]) -> Result<Vec<u8>, ImageError> {
    let path = Path::new("sidecar");
    let sidecar = Sidecar::parse(bytes, path)?;
    sidecar.encode().map_err(ImageError::io(path))
}

/// A file with a right checksum and any content.
pub fn forge_sidecar(about: &[u8], state: &[u8]) -> Vec<u8> {
    sealed(about, state)
}
