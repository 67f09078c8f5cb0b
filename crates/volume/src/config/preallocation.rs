//! In which steps files grow on the disk.

use mobifs_store::Preallocation;

use super::errors::Fault;
use super::raw::RawConfig;
use super::size::Size;

/// Smaller steps keep no file in one piece.
const PREALLOCATE_BYTES_MIN: u64 = 16 << 10;
const PREALLOCATE_BYTES_MAX: u64 = 16 << 20;

/// In which steps files grow. A step is a whole number of blocks, and no larger than what a full
/// disk should have lying unused for one file.
pub(super) fn preallocation(raw: &RawConfig) -> Result<Preallocation, Fault> {
    let step = |key: &'static str, given: Option<Size>, default: u64| match given {
        None | Some(Size(0)) => Ok(given.map_or(default, |size| size.0)),
        Some(Size(bytes)) if !(PREALLOCATE_BYTES_MIN..=PREALLOCATE_BYTES_MAX).contains(&bytes) => {
            let message = "must be 0, which switches it off, or from 16KiB to 16MiB";
            Err(Fault::new(key, message))
        }
        Some(Size(bytes)) if !bytes.is_power_of_two() => {
            Err(Fault::new(key, "must be a power of two, such as 128KiB"))
        }
        Some(Size(bytes)) => Ok(bytes),
    };
    let defaults = Preallocation::default();
    Ok(Preallocation {
        database_bytes: step(
            "preallocate_database_bytes",
            raw.preallocate_database_bytes,
            defaults.database_bytes,
        )?,
        large_bytes: step(
            "preallocate_large_bytes",
            raw.preallocate_large_bytes,
            defaults.large_bytes,
        )?,
    })
}
