//! A fixed staleness: the policy of the works that S0 compares itself with.

use super::{Efficiency, Transactioning};

/// Parameters of [`FixedStaleness`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StalenessParameters {
    /// A transaction closes at this staleness, in pages written.
    pub staleness_pages: u64,
}

impl Default for StalenessParameters {
    /// 4 MiB; nothing is published.
    fn default() -> Self {
        Self {
            staleness_pages: 1_024,
        }
    }
}

/// Closes at an amount of writes, whatever they hit.
#[derive(Clone, Debug)]
pub struct FixedStaleness(StalenessParameters);

impl FixedStaleness {
    /// With these parameters.
    pub const fn new(parameters: &StalenessParameters) -> Self {
        Self(*parameters)
    }
}

impl Transactioning for FixedStaleness {
    fn page_written(&mut self, _efficiency: &Efficiency) {}

    fn is_due(&self, efficiency: &Efficiency, _age_ms: u64) -> bool {
        efficiency.written_pages() >= self.0.staleness_pages
    }
}
