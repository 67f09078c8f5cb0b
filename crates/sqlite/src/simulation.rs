//! For tests: databases over volumes that a test has made, on a simulated disk for one.

use std::path::Path;
use std::sync::Arc;

use mobifs_volume::Volume;

use crate::database::Database;
pub use crate::database::database_file::DatabaseFile;
pub use crate::database::header::{Beginning, HEADER_BYTES, MARK_PLACE, mark, stand_in, unmark};
use crate::failure::Failure;
use crate::options::Options;
use crate::registry::{self, Lease};

/// A database that is open also without connections.
#[derive(Debug)]
pub struct Adopted(Lease);

impl Adopted {
    /// Makes `path` name the database in the root of `volume` that has the same name. The
    /// file need not exist but for `volume` and `file`.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn new(
        path: &Path,
        volume: Arc<Volume>,
        file: Box<dyn DatabaseFile>,
    ) -> Result<Self, Failure> {
        let options = Options::read(&|_| None)?;
        let database = Database::over(path, options, volume, file)?;
        Ok(Self(registry::adopt(database)))
    }

    /// Closes the database, as when its last connection closes.
    ///
    /// # Errors
    /// What could not be applied.
    pub fn close(self) -> Result<(), Failure> {
        self.0.end()
    }

    /// Forgets the database, as at a power cut.
    pub fn abandon(self) {
        self.0.abandon();
    }
}
