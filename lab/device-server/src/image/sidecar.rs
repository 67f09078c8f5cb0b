//! The file beside an image: which device it belongs to and the state of that device.
//!
//! `MAGIC`, version, lengths and a CRC32C over everything; then what the device is, as
//! JSON; then the saved state of the model as the model writes it. The file is replaced
//! as a whole, so it is the old or the new one after a crash of this machine.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::ImageError;

const MAGIC: [u8; 8] = *b"MOBIFLD\n";
const VERSION: u32 = 1;

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U32,
    crc: U32,
    about_bytes: U64,
    state_bytes: U64,
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct About {
    /// Size in bytes.
    pub(crate) size_bytes: u64,
    /// The whole configuration, as TOML.
    pub(crate) config: String,
    /// Digest of the configuration.
    pub(crate) config_digest: u32,
    /// Seed of the model.
    pub(crate) seed: u64,
    /// Power cycles so far.
    pub(crate) power_cycles: u64,
    /// The state is that of the image: the server ended properly.
    pub(crate) is_clean: bool,
}

/// A sidecar file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sidecar {
    pub(crate) about: About,
    pub(crate) state: Vec<u8>,
}

impl Sidecar {
    /// Reads the sidecar at `path`; none if there is none.
    ///
    /// # Errors
    /// [`ImageError::Damaged`], [`ImageError::NewerFormat`], [`ImageError::Io`].
    pub(crate) fn read(path: &Path) -> Result<Option<Self>, ImageError> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(ImageError::io(path)(error)),
        };
        Self::parse(&bytes, path).map(Some)
    }

    /// Reads the content of a sidecar; `path` is for messages. Total: any bytes give an
    /// answer.
    ///
    /// # Errors
    /// [`ImageError::Damaged`], [`ImageError::NewerFormat`].
    pub(crate) fn parse(bytes: &[u8], path: &Path) -> Result<Self, ImageError> {
        let damaged = |reason: &str| ImageError::Damaged {
            path: path.to_owned(),
            reason: reason.to_owned(),
        };
        let (header, rest) =
            Header::read_from_prefix(bytes).map_err(|_| damaged("it is too short"))?;
        if header.magic != MAGIC {
            return Err(damaged("it does not begin as such a file does"));
        }
        if header.version.get() > VERSION {
            return Err(ImageError::NewerFormat {
                path: path.to_owned(),
                found: header.version.get(),
                supported: VERSION,
            });
        }
        if header.crc.get() != checksum(&header, rest) {
            return Err(damaged("its checksum is wrong"));
        }
        let (about, state) = usize::try_from(header.about_bytes.get())
            .ok()
            .and_then(|length| rest.split_at_checked(length))
            .filter(|(_, state)| state.len() as u64 == header.state_bytes.get())
            .ok_or_else(|| damaged("its parts have other lengths than it says"))?;
        let about = serde_json::from_slice(about).map_err(|error| damaged(&error.to_string()))?;
        Ok(Self {
            about,
            state: state.to_vec(),
        })
    }

    /// The sidecar as bytes.
    ///
    /// # Errors
    /// Never in practice: what a device is can be written as JSON.
    pub(crate) fn encode(&self) -> io::Result<Vec<u8>> {
        Ok(sealed(&serde_json::to_vec(&self.about)?, &self.state))
    }

    /// Replaces the sidecar at `path`, durably.
    ///
    /// # Errors
    /// [`ImageError::Io`]; the old one is then still there.
    pub(crate) fn write(&self, path: &Path) -> Result<(), ImageError> {
        let failed = ImageError::io(path);
        let write = || -> io::Result<()> {
            let content = self.encode()?;
            let mut temporary = path.as_os_str().to_owned();
            temporary.push(".new");
            let temporary = PathBuf::from(temporary);
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .open(&temporary)?;
            file.write_all(&content)?;
            file.sync_all()?;
            std::fs::rename(&temporary, path)?;
            let directory = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
        };
        write().map_err(failed)
    }
}

/// A file of these two parts.
pub(crate) fn sealed(about: &[u8], state: &[u8]) -> Vec<u8> {
    let mut header = Header {
        magic: MAGIC,
        version: VERSION.into(),
        crc: 0.into(),
        about_bytes: (about.len() as u64).into(),
        state_bytes: (state.len() as u64).into(),
    };
    let body = [about, state].concat();
    header.crc = checksum(&header, &body).into();
    [header.as_bytes(), &body].concat()
}

fn checksum(header: &Header, body: &[u8]) -> u32 {
    let blank = Header {
        crc: 0.into(),
        ..*header
    };
    crc32c::crc32c_append(crc32c::crc32c(blank.as_bytes()), body)
}

#[cfg(test)]
mod tests {
    use super::super::layout::path_beside;
    use super::*;

    fn sidecar() -> Sidecar {
        Sidecar {
            about: About {
                size_bytes: 1 << 20,
                config: "name = \"x\"\n".to_owned(),
                config_digest: 7,
                seed: 5,
                power_cycles: 3,
                is_clean: true,
            },
            state: vec![1, 2, 3],
        }
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_beside(&directory.path().join("a.img"));
        assert!(path.ends_with("a.img.flash"));
        assert_eq!(Sidecar::read(&path).unwrap(), None);
        for state in [vec![], vec![9; 5000]] {
            let sidecar = Sidecar { state, ..sidecar() };
            sidecar.write(&path).unwrap();
            assert_eq!(Sidecar::read(&path).unwrap(), Some(sidecar));
        }
        assert_eq!(directory.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn every_damage_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        sidecar().write(&path).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(Sidecar::read(&path).is_err(), "cut at {length}");
        }
        for position in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[position] ^= 4;
            std::fs::write(&path, damaged).unwrap();
            assert!(Sidecar::read(&path).is_err(), "damaged at {position}");
        }
    }
}
