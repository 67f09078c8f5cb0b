//! What a power cut left of a writer.

use std::fs;
use std::io;
use std::path::Path;

/// After which step of a writer a filesystem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The last step that is there as a whole.
    pub step: u64,
    /// Something of the next one is there.
    pub next_began: bool,
    /// When the last step was written, as its data says.
    pub stamp_ns: Option<u64>,
}

impl Found {
    pub(super) const fn after(step: u64) -> Self {
        Self {
            step,
            next_began: false,
            stamp_ns: None,
        }
    }
}

/// The names in a directory, in order.
pub(super) fn names_in(directory: &Path) -> Result<Vec<String>, String> {
    let failed = |error: io::Error| format!("{}: {error}", directory.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        names.push(name.to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}
