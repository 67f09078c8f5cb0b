//! Images: a file with the durable content of a device, as it is, and beside it a file
//! with the state of the device.

mod error;
mod layout;
mod sidecar;

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

pub use error::ImageError;
pub(crate) use layout::{PAGE_BYTES, path_beside};
pub(crate) use sidecar::{About, Sidecar, sealed};

/// An image that is open and locked; unlocked when dropped.
#[derive(Debug)]
pub(crate) struct Image {
    /// Absolute.
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    pub(crate) size_bytes: u64,
    /// The device it belongs to; none if it is new, or was not served before.
    pub(crate) sidecar: Option<Sidecar>,
}

impl Image {
    /// Opens and locks the image at `path`; makes one of `size_bytes` if there is none.
    ///
    /// # Errors
    /// [`ImageError`]; nothing is left behind.
    pub(crate) fn open(path: &Path, size_bytes: Option<u64>) -> Result<Self, ImageError> {
        let failed = ImageError::io(path);
        let exists = match path.metadata() {
            Ok(found) => {
                if !found.is_file() {
                    return Err(ImageError::NotAFile(path.to_owned()));
                }
                true
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(failed(error)),
        };
        if !exists {
            let asked = size_bytes.ok_or_else(|| ImageError::Missing(path.to_owned()))?;
            check_asked(asked)?;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(&failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(ImageError::InUse(path.to_owned())),
            Err(errno) => return Err(failed(errno.into())),
        }
        let path = path.canonicalize().map_err(&failed)?;
        let mut found = file.metadata().map_err(&failed)?.len();
        let sidecar = Sidecar::read(&path_beside(&path))?;
        if found == 0
            && sidecar.is_none()
            && let Some(size_bytes) = size_bytes
        {
            check_asked(size_bytes)?;
            file.set_len(size_bytes).map_err(&failed)?;
            found = size_bytes;
        }
        let image = Self {
            path,
            file,
            size_bytes: found,
            sidecar,
        };
        image.check(size_bytes)?;
        Ok(image)
    }

    fn check(&self, asked: Option<u64>) -> Result<(), ImageError> {
        let (path, found) = (self.path.clone(), self.size_bytes);
        if let Some(sidecar) = &self.sidecar
            && sidecar.about.size_bytes != found
        {
            let expected = sidecar.about.size_bytes;
            return Err(ImageError::Resized {
                path,
                found,
                expected,
            });
        }
        if let Some(asked) = asked
            && asked != found
        {
            return Err(ImageError::OtherSize { path, found, asked });
        }
        if !is_size(found) {
            return Err(ImageError::OddSize { path, bytes: found });
        }
        Ok(())
    }

    /// Replaces the file beside the image.
    ///
    /// # Errors
    /// [`ImageError::Io`].
    pub(crate) fn save(&self, sidecar: &Sidecar) -> Result<(), ImageError> {
        sidecar.write(&path_beside(&self.path))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // A process that still has the file open, as the handle of an ended mount may, must not
        // keep the image locked for the next server.
        let _unlocked = flock(&self.file, FlockOperation::Unlock);
    }
}

fn is_size(bytes: u64) -> bool {
    bytes > 0 && bytes.is_multiple_of(PAGE_BYTES)
}

fn check_asked(bytes: u64) -> Result<(), ImageError> {
    if is_size(bytes) {
        Ok(())
    } else {
        Err(ImageError::OddSizeAsked(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(path: &Path, size_bytes: Option<u64>) -> String {
        Image::open(path, size_bytes).unwrap_err().to_string()
    }

    #[test]
    fn an_image_is_made_once_and_locked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.img");
        assert!(message(&path, None).contains("give --size"));
        assert!(message(&path, Some(5000)).contains("multiple of 4096"));
        assert!(!path.exists());
        let image = Image::open(&path, Some(8192)).unwrap();
        assert_eq!(path.metadata().unwrap().len(), 8192);
        assert!(message(&path, None).contains("in use"));
        let held = image.file.try_clone().unwrap();
        drop(image);
        Image::open(&path, None).unwrap();
        drop(held);
        assert!(message(&path, Some(4096)).contains("has 8192 bytes and not 4096"));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        assert!(message(directory.path(), None).contains("not a file"));
        let path = directory.path().join("a.img");
        std::fs::write(&path, "odd").unwrap();
        assert!(message(&path, None).contains("truncate"));
        std::fs::write(&path, "").unwrap();
        assert!(message(&path, None).contains("has 0 bytes"));
        std::fs::write(&path, vec![0; 8192]).unwrap();
        std::fs::write(path_beside(&path), "nonsense").unwrap();
        assert!(message(&path, None).contains("is damaged"));
        let about = About {
            size_bytes: 4096,
            config: String::new(),
            config_digest: 0,
            seed: 0,
            power_cycles: 0,
            is_clean: true,
        };
        let sidecar = Sidecar {
            about,
            state: Vec::new(),
        };
        sidecar.write(&path_beside(&path)).unwrap();
        assert!(message(&path, None).contains("its device has 4096"));
    }
}
