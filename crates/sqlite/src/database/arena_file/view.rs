//! Whether the path of a database means the same to another process.

use std::os::unix::fs::MetadataExt as _;

use serde::{Deserialize, Serialize};

/// How a process sees paths: another one with the same sees the same files at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct View {
    mounts: u64,
    root: (u64, u64),
}

impl View {
    pub(super) fn own() -> Option<Self> {
        let mounts = std::fs::metadata("/proc/self/ns/mnt").ok()?.ino();
        let root = std::fs::metadata("/").ok()?;
        Some(Self {
            mounts,
            root: (root.dev(), root.ino()),
        })
    }
}
