//! How full a filesystem is.

use std::fs::File;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{AgeError, OnPath as _};

/// Room of a filesystem, as `df` counts it: what only root may use is in no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Used bytes.
    pub used_bytes: u64,
    /// Bytes that are left.
    pub free_bytes: u64,
    /// Files that can still be made; none where the filesystem has no such limit.
    pub free_files: Option<u64>,
    /// A file takes whole blocks of so many bytes.
    pub block_bytes: u64,
}

impl Space {
    /// Asks the filesystem of a path, after it has written everything that it holds in memory.
    pub fn of(path: &Path) -> Result<Self, AgeError> {
        let directory = File::open(path).at("open", path)?;
        rustix::fs::syncfs(&directory).at("write out the filesystem of", path)?;
        let about = rustix::fs::fstatvfs(&directory).at("ask how full is", path)?;
        Ok(Self {
            used_bytes: (about.f_blocks - about.f_bfree) * about.f_frsize,
            free_bytes: about.f_bavail * about.f_frsize,
            free_files: (about.f_files > 0).then_some(about.f_favail),
            block_bytes: about.f_frsize.max(1),
        })
    }

    /// Used and free bytes.
    #[must_use]
    pub const fn total_bytes(&self) -> u64 {
        self.used_bytes + self.free_bytes
    }

    /// How many of 1000 bytes are used.
    #[must_use]
    pub fn used_permille(&self) -> u32 {
        let permille = u128::from(self.used_bytes) * 1000 / u128::from(self.total_bytes().max(1));
        permille as u32
    }

    /// What `permille` of the filesystem is.
    #[must_use]
    pub fn share(&self, permille: u32) -> u64 {
        (u128::from(self.total_bytes()) * u128::from(permille) / 1000) as u64
    }

    /// What a file of `bytes` takes.
    #[must_use]
    pub const fn taken(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.block_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_what_users_can_have() {
        let space = Space {
            used_bytes: 900,
            free_bytes: 100,
            free_files: None,
            block_bytes: 64,
        };
        assert_eq!((space.used_permille(), space.share(995)), (900, 995));
        assert_eq!(
            (space.taken(0), space.taken(1), space.taken(64)),
            (0, 64, 64)
        );
    }
}
