//! The filesystem that a sparse image lies on: it may be full long before the one in the image. What the image's
//! filesystem has written then is lost to it, so a session begins only where there is room for what it writes.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::error::{AgeError, OnPath as _};

/// Beside what a session writes: logs of the filesystem and of MobiFS, and metadata.
const BESIDE_BYTES: u64 = 128 << 20;
/// With less free room an error of the image is taken for one of its host.
const FULL_BYTES: u64 = 4 << 20;
/// `st_blocks` counts these.
const SECTOR_BYTES: u64 = 512;

/// Makes sure that the filesystem below an image, which is mounted there, has room for so many bytes more.
///
/// # Errors
/// [`AgeError::HostFull`]: nothing was begun, and all that was written is whole.
pub(crate) fn check_host(image: &Path, mounted: &Path, bytes: u64) -> Result<(), AgeError> {
    let (free, growth) = host_of(image)?;
    let needed = growth.min(bytes.saturating_mul(2).saturating_add(BESIDE_BYTES));
    if free >= growth {
        return Ok(());
    }
    // What waits in memory would take room as well.
    let disk = File::open(mounted).at("open", mounted)?;
    rustix::fs::syncfs(&disk).at("write out the filesystem of", mounted)?;
    let (free_bytes, growth) = host_of(image)?;
    let needed_bytes = needed.min(growth);
    if free_bytes >= needed_bytes {
        return Ok(());
    }
    Err(AgeError::HostFull {
        path: image.to_owned(),
        free_bytes,
        needed_bytes,
    })
}

/// Says of an error whether it came about because the filesystem below an image is full. The image is in `file`
/// meanwhile.
pub(crate) fn explained(image: &Path, file: &Path, error: AgeError) -> AgeError {
    let is_outside = matches!(
        error,
        AgeError::Io { .. }
            | AgeError::Sqlite { .. }
            | AgeError::Tool { .. }
            | AgeError::Full { .. }
            | AgeError::Measure(_)
    );
    match host_of(file) {
        Ok((free_bytes, growth)) if is_outside && free_bytes < FULL_BYTES.min(growth) => {
            AgeError::HostFull {
                path: image.to_owned(),
                free_bytes,
                needed_bytes: growth.min(BESIDE_BYTES),
            }
        }
        _ => error,
    }
}

/// What is free below an image, and how much it can still grow.
fn host_of(image: &Path) -> Result<(u64, u64), AgeError> {
    let about = fs::metadata(image).at("look at", image)?;
    let room = rustix::fs::statvfs(image).at("ask how much room is below", image)?;
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    Ok((
        free,
        about.len().saturating_sub(about.blocks() * SECTOR_BYTES),
    ))
}
