//! The configuration as the daemon has read it.
//!
//! A successor must go on with the configuration in force, not with what lies in the file
//! by then: an app that was durable stays durable, and a file that a user is editing
//! does not keep the mount from being served.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use mobifs_volume::{Config, ConfigError};
use rustix::fs::{MemfdFlags, memfd_create};

/// Text and meaning of a configuration.
#[derive(Debug)]
pub struct ConfigText {
    text: String,
    /// What the text says.
    pub config: Config,
}

impl ConfigText {
    /// Reads a file; without one, what holds without one.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = path else {
            return Self::parse(String::new(), Path::new("the built-in configuration"));
        };
        Self::parse(Config::read_text(path)?, path)
    }

    /// The text that a predecessor handed over.
    pub fn inherit(memory: OwnedFd) -> Result<Self, ConfigError> {
        let path = Path::new("the configuration of the daemon that died");
        let mut file = File::from(memory);
        let mut text = String::new();
        file.rewind()
            .and_then(|()| file.read_to_string(&mut text))
            .map_err(|source| ConfigError::Read {
                path: path.to_owned(),
                source,
            })?;
        Self::parse(text, path)
    }

    fn parse(text: String, path: &Path) -> Result<Self, ConfigError> {
        let config = Config::parse(&text, path)?;
        Ok(Self { text, config })
    }

    /// Memory with the text, for a successor.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        let mut file = File::from(memfd_create("mobifs-config", MemfdFlags::CLOEXEC)?);
        file.write_all(self.text.as_bytes())?;
        Ok(file.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_reads_what_was_in_force() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.toml");
        std::fs::write(&path, "objects_max = 777").unwrap();
        let text = ConfigText::load(Some(&path)).unwrap();
        std::fs::write(&path, "nonsense").unwrap();
        let inherited = ConfigText::inherit(text.copy().unwrap()).unwrap();
        assert_eq!(inherited.config.objects_max, 777);
        // It was read before, by a process that died as well.
        let again = ConfigText::inherit(inherited.copy().unwrap()).unwrap();
        assert_eq!(again.config.objects_max, 777);
        ConfigText::load(None).unwrap();
    }
}
