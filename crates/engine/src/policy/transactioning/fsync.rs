//! What ordinary filesystems do: commit when the app calls `fsync`, and every few
//! seconds.

use super::{Efficiency, Transactioning};

/// Parameters of [`FsyncDriven`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsyncParameters {
    /// Without an `fsync`, a transaction closes at this age, in milliseconds since its
    /// first change.
    pub flush_interval_ms: u64,
}

impl Default for FsyncParameters {
    /// The flush interval of ext4.
    fn default() -> Self {
        Self {
            flush_interval_ms: 5_000,
        }
    }
}

/// Closes at every `fsync`. The app's class decides whether the caller waits for the commit.
#[derive(Clone, Debug)]
pub struct FsyncDriven(FsyncParameters);

impl FsyncDriven {
    /// With these parameters.
    pub const fn new(parameters: &FsyncParameters) -> Self {
        Self(*parameters)
    }
}

impl Transactioning for FsyncDriven {
    fn page_written(&mut self, _efficiency: &Efficiency) {}

    fn is_due(&self, _efficiency: &Efficiency, age_ms: u64) -> bool {
        age_ms >= self.0.flush_interval_ms
    }

    fn due_age_ms(&self) -> Option<u64> {
        Some(self.0.flush_interval_ms)
    }

    fn closes_at_fsync(&self) -> bool {
        true
    }
}
