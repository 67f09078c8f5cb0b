//! How images fail.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::layout::{PAGE_BYTES, path_beside};

/// What can be wrong with an image.
#[derive(Debug, Error)]
pub enum ImageError {
    /// There is no image and no size to make one of.
    #[error("{} does not exist; give --size to make it", .0.display())]
    Missing(PathBuf),
    /// The image is no file.
    #[error("{} is not a file; an image must be one", .0.display())]
    NotAFile(PathBuf),
    /// Another process serves it.
    #[error("the image {} is in use by another process; end that one first", .0.display())]
    InUse(PathBuf),
    /// The size asked for is not of whole pages.
    #[error("a device cannot have {0} bytes; --size must be a multiple of {PAGE_BYTES}")]
    OddSizeAsked(u64),
    /// The image is not of whole pages.
    #[error(
        "the image {} has {bytes} bytes, which is not a number of pages of {PAGE_BYTES} bytes; lengthen it, \
         for example with `truncate -s %4096`",
        path.display()
    )]
    OddSize {
        /// The image.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// The image has another size than was asked for.
    #[error(
        "the image {} has {found} bytes and not {asked}; leave --size out, or make the image \
         that long",
        path.display()
    )]
    OtherSize {
        /// The image.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// What was asked for.
        asked: u64,
    },
    /// Its length changed since it was served.
    #[error(
        "the image {} has {found} bytes, but its device has {expected}; make it that long again, \
         or remove {} to take the content over into a new device",
        path.display(),
        path_beside(path).display()
    )]
    Resized {
        /// The image.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// The device's.
        expected: u64,
    },
    /// The image belongs to a device of another configuration.
    #[error(
        "the image {} belongs to another device ({device}); leave --preset and --config out to \
         go on with that one, or remove {} to take the content over into a new device",
        path.display(),
        path_beside(path).display()
    )]
    OtherDevice {
        /// The image.
        path: PathBuf,
        /// Name of the device it belongs to.
        device: String,
    },
    /// Its device has another seed.
    #[error(
        "the device of the image {} has the seed {found}; leave --seed out, or remove {} to take \
         the content over into a new device",
        path.display(),
        path_beside(path).display()
    )]
    OtherSeed {
        /// The image.
        path: PathBuf,
        /// The seed.
        found: u64,
    },
    /// The file beside it is damaged.
    #[error(
        "{} is damaged ({reason}); remove it to take the content of the image over into a new \
         device",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A newer version wrote the file beside it.
    #[error("{} has format {found}, this version reads up to {supported}", path.display())]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest known.
        supported: u32,
    },
    /// A file failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl ImageError {
    pub(crate) fn io(path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io {
            path: path.clone(),
            source,
        }
    }
}
