//! A pause: what an app writes in one go stays together.
//!
//! Programs write in bursts. A transaction that ends inside a burst costs twice: its pages are
//! written again a moment later, by the rest of the burst, and an unfinished update of the app is
//! cut in half. So a transaction ends when nothing was written for a while, and not before it is
//! old enough for later bursts to have had their chance to overwrite what the earlier ones wrote.

use super::{Efficiency, Transactioning};

/// Parameters of [`Quiet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuietParameters {
    /// How long nothing must have been written, in milliseconds.
    pub quiet_ms: u64,
    /// The transaction is at least so old, in milliseconds since its first change.
    pub quiet_age_min_ms: u64,
}

impl Default for QuietParameters {
    fn default() -> Self {
        Self {
            quiet_ms: 1_000,
            quiet_age_min_ms: 5_000,
        }
    }
}

/// Closes in the first pause after an age.
#[derive(Clone, Debug)]
pub struct Quiet {
    parameters: QuietParameters,
    /// Age at the last change, in milliseconds.
    changed_age_ms: u64,
}

impl Quiet {
    /// With these parameters.
    pub const fn new(parameters: &QuietParameters) -> Self {
        Self {
            parameters: *parameters,
            changed_age_ms: 0,
        }
    }

    fn closing_age_ms(&self) -> u64 {
        let pause_ends_ms = self.changed_age_ms.saturating_add(self.parameters.quiet_ms);
        pause_ends_ms.max(self.parameters.quiet_age_min_ms)
    }
}

impl Transactioning for Quiet {
    fn page_written(&mut self, _efficiency: &Efficiency) {}

    fn operation_ended(&mut self, age_ms: u64) {
        self.changed_age_ms = age_ms;
    }

    fn is_due(&self, _efficiency: &Efficiency, age_ms: u64) -> bool {
        age_ms >= self.closing_age_ms()
    }

    fn due_age_ms(&self) -> Option<u64> {
        Some(self.closing_age_ms())
    }
}
