//! Filesystems that a test executes operations on.

mod directory;
mod known_names;
mod volume;

pub use directory::DirectoryTarget;
pub use known_names::KnownNames;
pub use volume::{VolumeTarget, errno};

use rustix::io::Errno;

use crate::model::{Model, Outcome};
use crate::operations::{Answer, Operation};
use crate::tree::Tree;

/// A filesystem that executes operations and shows its tree.
pub trait Target {
    /// Executes one call of a program, as a privileged caller whose file creation
    /// mask is [`crate::model::UMASK`].
    ///
    /// # Errors
    /// The error of the system call.
    fn execute(&mut self, operation: &Operation) -> Outcome;

    /// Reads the whole tree back.
    ///
    /// # Errors
    /// The error of the call that failed.
    fn tree(&mut self) -> Result<Tree, Errno>;

    /// Whether the error of an operation is as good as the one expected.
    fn is_equivalent(&self, _operation: &Operation, expected: Errno, found: Errno) -> bool {
        expected == found
    }
}

impl Target for Model {
    fn execute(&mut self, operation: &Operation) -> Outcome {
        Self::execute(self, operation)
    }

    fn tree(&mut self) -> Result<Tree, Errno> {
        Ok(Self::tree(self))
    }
}

/// An outcome in few words.
pub fn describe(outcome: &Outcome) -> String {
    match outcome {
        Ok(Answer::Data(data)) => {
            let start = &data[..data.len().min(16)];
            format!("{} bytes: {start:02x?}…", data.len())
        }
        other => format!("{other:?}"),
    }
}
