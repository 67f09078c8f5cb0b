//! The process's limit of descriptors (`ulimit -n`): a database is opened only where there are those
//! that it needs later.

use crate::failure::Failure;

/// What an open database has open, and what it opens besides for the moments in which it applies, grows
/// or closes.
pub(crate) const DESCRIPTORS: usize = 5 + 7;

/// Fails unless the process may have as many more descriptors as a database needs. Without this
/// check a database could be opened, and a commit or the last close would fail.
///
/// # Errors
/// [`Failure::System`].
pub(crate) fn require_descriptors() -> Result<(), Failure> {
    use rustix::fs::{Mode, OFlags, open};
    // A file that is always there, and of no database: closing one of a database would release its
    // locks.
    let open = || open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let opened: Result<Vec<_>, _> = (0..DESCRIPTORS).map(|_| open()).collect();
    let wanting = Failure::system(format!(
        "opening as many files as a database needs ({DESCRIPTORS})"
    ));
    opened.map(drop).map_err(wanting)
}
