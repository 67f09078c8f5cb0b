//! What ends a campaign.

use std::io;
use std::path::Path;

use thiserror::Error;

/// Why a campaign cannot go on.
#[derive(Debug, Error)]
pub enum Trouble {
    /// Something that must work did not: a mount after a power cut, a check, a program.
    #[error("{0}")]
    Failed(String),
    /// What a power cut left breaks a promise.
    #[error("VIOLATION: {0}")]
    Violation(String),
    /// The lower filesystem did not survive the cut by itself, for a known reason that does not
    /// depend on MobiFS. Nothing can be concluded from that.
    #[error("the lower filesystem is lost: {0}")]
    LowerLost(String),
    /// A system call of the campaign itself.
    #[error("{what}: {source}")]
    System {
        /// What.
        what: String,
        /// Why not.
        source: io::Error,
    },
}

impl Trouble {
    /// This trouble, with where it happened.
    #[must_use]
    pub fn at(self, place: &str) -> Self {
        match self {
            Self::Failed(problem) => Self::Failed(format!("{place}: {problem}")),
            Self::Violation(problem) => Self::Violation(format!("{place}: {problem}")),
            Self::LowerLost(problem) => Self::LowerLost(format!("{place}: {problem}")),
            Self::System { what, source } => Self::System {
                what: format!("{place}: {what}"),
                source,
            },
        }
    }
}

impl From<String> for Trouble {
    fn from(problem: String) -> Self {
        Self::Failed(problem)
    }
}

/// Names the file in an I/O error.
pub(crate) trait OnPath<T> {
    fn on(self, path: &Path) -> Result<T, Trouble>;
}

impl<T> OnPath<T> for io::Result<T> {
    fn on(self, path: &Path) -> Result<T, Trouble> {
        self.map_err(|source| Trouble::System {
            what: path.display().to_string(),
            source,
        })
    }
}
