//! How experiments are made.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::FragError;

/// How large experiments are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// As small as can be, to see that an experiment works: its criteria mean nothing.
    Tiny,
    /// Less of everything that takes time.
    Reduced,
    /// The paper's sizes.
    Full,
}

impl Extent {
    /// One of three values.
    pub(crate) const fn of<T: Copy>(self, tiny: T, reduced: T, full: T) -> T {
        match self {
            Self::Tiny => tiny,
            Self::Reduced => reduced,
            Self::Full => full,
        }
    }
}

/// How experiments are made.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where images lie while they are used.
    pub scratch: PathBuf,
    /// How large they are.
    pub extent: Extent,
    /// Seed of everything that is random.
    pub seed: u64,
    /// Set to end early.
    pub stop: Arc<AtomicBool>,
}

impl Settings {
    /// Ends the experiment if that was asked for.
    pub(crate) fn check(&self) -> Result<(), FragError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(FragError::Interrupted);
        }
        Ok(())
    }
}
