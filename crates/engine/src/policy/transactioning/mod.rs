//! When to close an open transaction (S0 §5.2): the point at which staleness stops
//! paying for itself.
//!
//! [`Transactioning`] is the interface. Each policy is a file of its own here; a new one is
//! registered in `rule.rs` (its name and parameters) and in [`TransactioningState`].

mod closing;
mod efficiency;
mod fsync;
mod ideal;
mod interval;
mod quiet;
mod rule;
mod staleness;
mod state;
mod tpl;
mod window;

pub(crate) use closing::Closing;
pub use efficiency::Efficiency;
pub use fsync::{FsyncDriven, FsyncParameters};
pub use ideal::Ideal;
pub use interval::{FixedInterval, IntervalParameters};
pub use quiet::{Quiet, QuietParameters};
pub use rule::{TransactioningName, TransactioningRule};
pub use staleness::{FixedStaleness, StalenessParameters};
pub use state::TransactioningState;
pub use tpl::{Tpl, TplParameters};
pub use window::{FitWindow, WINDOW_POINTS_MAX, WINDOW_POINTS_MIN};

/// One policy's state for one open transaction, and its decision.
///
/// The limits of an app hold besides whatever the policy says, unless it is not
/// [bounded](Transactioning::is_bounded).
pub trait Transactioning {
    /// A page or directory entry was written; `efficiency` counts it already.
    fn page_written(&mut self, efficiency: &Efficiency);

    /// An operation that changed something ended at the age of `age_ms` milliseconds.
    fn operation_ended(&mut self, _age_ms: u64) {}

    /// Whether the transaction should close now, at the age of `age_ms` milliseconds.
    fn is_due(&self, efficiency: &Efficiency, age_ms: u64) -> bool;

    /// Age in milliseconds at which it is due although nothing more is written; none
    /// if age does not matter to the policy.
    fn due_age_ms(&self) -> Option<u64> {
        None
    }

    /// Whether it closes when the app calls `fsync`.
    fn closes_at_fsync(&self) -> bool {
        false
    }

    /// Whether the app's limits of age and staleness hold.
    fn is_bounded(&self) -> bool {
        true
    }
}
