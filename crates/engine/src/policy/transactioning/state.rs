//! The policies as one type.

use super::{
    Efficiency, FixedInterval, FixedStaleness, FsyncDriven, Ideal, Quiet, Tpl, Transactioning,
};

/// The state of any of the policies.
#[derive(Clone, Debug)]
pub enum TransactioningState {
    /// Trade-off point location.
    Tpl(Tpl),
    /// A fixed interval.
    Interval(FixedInterval),
    /// The first pause.
    Quiet(Quiet),
    /// A fixed staleness.
    Staleness(FixedStaleness),
    /// Every `fsync`.
    Fsync(FsyncDriven),
    /// Never.
    Ideal(Ideal),
}

/// Calls the same method of whatever policy it is.
macro_rules! each {
    ($state:expr, $policy:ident => $call:expr) => {
        match $state {
            TransactioningState::Tpl($policy) => $call,
            TransactioningState::Interval($policy) => $call,
            TransactioningState::Quiet($policy) => $call,
            TransactioningState::Staleness($policy) => $call,
            TransactioningState::Fsync($policy) => $call,
            TransactioningState::Ideal($policy) => $call,
        }
    };
}

impl Transactioning for TransactioningState {
    fn page_written(&mut self, efficiency: &Efficiency) {
        each!(self, policy => policy.page_written(efficiency));
    }

    fn operation_ended(&mut self, age_ms: u64) {
        each!(self, policy => policy.operation_ended(age_ms));
    }

    fn is_due(&self, efficiency: &Efficiency, age_ms: u64) -> bool {
        each!(self, policy => policy.is_due(efficiency, age_ms))
    }

    fn due_age_ms(&self) -> Option<u64> {
        each!(self, policy => policy.due_age_ms())
    }

    fn closes_at_fsync(&self) -> bool {
        each!(self, policy => policy.closes_at_fsync())
    }

    fn is_bounded(&self) -> bool {
        each!(self, policy => policy.is_bounded())
    }
}
