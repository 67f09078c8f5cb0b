//! The file of a database, as other programs see it.

use crate::failure::Failure;

/// The file of a database, as programs without MobiFS find it.
pub trait DatabaseFile: Send + Sync + std::fmt::Debug {
    /// Marks the file: the database is in use. An empty file gets a stand-in.
    ///
    /// # Errors
    /// [`Failure::System`].
    fn mark(&self) -> Result<(), Failure>;

    /// Makes that durable: from now on the database may hold more than the file does.
    ///
    /// # Errors
    /// [`Failure::System`].
    fn make_mark_durable(&self) -> Result<(), Failure>;

    /// Removes the mark: the file is the database again; the stand-in of an empty one is removed.
    ///
    /// # Errors
    /// [`Failure::System`].
    fn unmark(&self) -> Result<(), Failure>;

    /// Whether the file at the database's path is another one by now, or gone.
    fn has_moved(&self) -> bool;

    /// Whether the database's file has no name any more, so that no program can open it again.
    fn is_deleted(&self) -> bool;
}
