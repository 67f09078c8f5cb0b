//! Which policy closes an app's transactions, and with which parameters.

use super::{
    FixedInterval, FixedStaleness, FsyncDriven, FsyncParameters, Ideal, IntervalParameters, Quiet,
    QuietParameters, StalenessParameters, Tpl, TplParameters, TransactioningState,
};

/// The policies by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransactioningName {
    /// Trade-off point location: [`Tpl`].
    Tpl,
    /// [`FixedInterval`]: the default, because nothing else flushes clearly less at the
    /// same age at risk (docs/DESIGN.md).
    #[default]
    Interval,
    /// [`Quiet`].
    Quiet,
    /// [`FixedStaleness`].
    Staleness,
    /// [`FsyncDriven`].
    Fsync,
    /// [`Ideal`].
    Ideal,
}

impl TransactioningName {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Tpl,
        Self::Interval,
        Self::Quiet,
        Self::Staleness,
        Self::Fsync,
        Self::Ideal,
    ];

    /// The name, as configurations write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tpl => "tpl",
            Self::Interval => "interval",
            Self::Quiet => "quiet",
            Self::Staleness => "staleness",
            Self::Fsync => "fsync",
            Self::Ideal => "ideal",
        }
    }

    /// The policy of this name; none if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }

    /// Whether an app may have it on a mount, where what is promised about age and
    /// staleness must hold.
    pub const fn is_bounded(self) -> bool {
        !matches!(self, Self::Ideal)
    }
}

/// The policy of one app. The parameters of those that are not chosen are kept, so that
/// choosing one is a change of one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactioningRule {
    /// Which one.
    pub name: TransactioningName,
    /// Parameters of [`TransactioningName::Tpl`].
    pub tpl: TplParameters,
    /// Parameters of [`TransactioningName::Interval`].
    pub interval: IntervalParameters,
    /// Parameters of [`TransactioningName::Quiet`].
    pub quiet: QuietParameters,
    /// Parameters of [`TransactioningName::Staleness`].
    pub staleness: StalenessParameters,
    /// Parameters of [`TransactioningName::Fsync`].
    pub fsync: FsyncParameters,
}

impl TransactioningRule {
    /// The chosen policy, for a transaction that opens.
    pub fn begin(&self) -> TransactioningState {
        match self.name {
            TransactioningName::Tpl => TransactioningState::Tpl(Tpl::new(&self.tpl)),
            TransactioningName::Interval => {
                TransactioningState::Interval(FixedInterval::new(&self.interval))
            }
            TransactioningName::Quiet => TransactioningState::Quiet(Quiet::new(&self.quiet)),
            TransactioningName::Staleness => {
                TransactioningState::Staleness(FixedStaleness::new(&self.staleness))
            }
            TransactioningName::Fsync => TransactioningState::Fsync(FsyncDriven::new(&self.fsync)),
            TransactioningName::Ideal => TransactioningState::Ideal(Ideal),
        }
    }
}
