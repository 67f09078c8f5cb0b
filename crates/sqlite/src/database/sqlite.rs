//! What a database asks of the SQLite that uses it.

use std::path::Path;

use crate::failure::Failure;

/// What a database asks of the SQLite that uses it.
pub(crate) trait Sqlite: Send + Sync + std::fmt::Debug {
    /// Recovers a database, which a program without MobiFS has not closed, by SQLite's own VFS.
    ///
    /// # Errors
    /// [`Unrecovered`].
    fn recover(&self, path: &Path) -> Result<(), Unrecovered>;

    /// Opens a database through this VFS, reads it, which rolls a journal back, and brings its
    /// log into it.
    ///
    /// # Errors
    /// [`Unrecovered`].
    fn finish(&self, path: &Path) -> Result<(), Unrecovered>;

    /// The journal of a transaction over several databases that a rollback journal names; none
    /// if there is no such journal, or it names none.
    ///
    /// # Errors
    /// [`Failure`].
    fn super_journal_of(&'static self, journal: &Path) -> Result<Option<Vec<u8>>, Failure>;

    /// Writes to SQLite's error log.
    fn warn(&self, message: &str);
}

/// Why SQLite could not recover a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unrecovered {
    /// Another connection uses it.
    #[error("it is in use")]
    Busy,
    /// SQLite reports success, but the journal or log is still there.
    #[error("SQLite has left its journal or log where it was; open and close the database again")]
    Left,
    /// There is no room where it lies.
    #[error("the disk is full; make room, then open and close the database again")]
    Full,
    /// SQLite's code.
    #[error("SQLite ends with error {0}")]
    Code(i32),
}
