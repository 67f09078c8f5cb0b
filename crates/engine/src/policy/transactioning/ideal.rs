//! Never: the most that overwriting in memory can save.

use super::{Efficiency, Transactioning};

/// Closes nothing, not even at the app's limits, so it is for simulations only.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ideal;

impl Transactioning for Ideal {
    fn page_written(&mut self, _efficiency: &Efficiency) {}

    fn is_due(&self, _efficiency: &Efficiency, _age_ms: u64) -> bool {
        false
    }

    fn is_bounded(&self) -> bool {
        false
    }
}
