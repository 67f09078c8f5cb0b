//! What figures show: an app with its users.

use crate::sim::{AppOutcome, Intervals};

/// One app of one trace under the contenders of the figures.
pub(super) struct UserRun<'r> {
    pub(super) trace: String,
    pub(super) duration_seconds: f64,
    pub(super) ext4: &'r AppOutcome,
    pub(super) published: &'r AppOutcome,
    pub(super) tpl: &'r AppOutcome,
    pub(super) default: &'r AppOutcome,
    pub(super) ideal: &'r AppOutcome,
}

/// Selects a contender.
pub(super) type Of = for<'u, 'r> fn(&'u UserRun<'r>) -> &'r AppOutcome;

/// One app of one program, with all its users. Only apps that count in means
/// ([`crate::sim::PAGES_MIN`]) become one.
pub(super) struct Unit<'r> {
    pub(super) name: String,
    pub(super) program: String,
    /// At least one.
    pub(super) users: Vec<UserRun<'r>>,
}

impl<'r> Unit<'r> {
    /// The user whom curves show: the one watched longest.
    pub(super) fn shown(&self) -> Option<&UserRun<'r>> {
        let seconds = |user: &&UserRun<'_>| user.duration_seconds;
        let users = self.users.iter();
        users.max_by(|one, other| seconds(one).total_cmp(&seconds(other)))
    }

    /// Pages that all users' flushes took.
    pub(super) fn flushed_pages(&self, of: Of) -> u64 {
        self.users.iter().map(|user| of(user).flushed_pages).sum()
    }

    /// Times between flushes, of all users.
    pub(super) fn intervals(&self, of: Of) -> Intervals {
        let intervals = self.users.iter().map(|user| of(user).intervals());
        intervals.fold(Intervals::default(), Intervals::plus)
    }

    pub(super) fn duration_seconds(&self) -> f64 {
        self.users.iter().map(|user| user.duration_seconds).sum()
    }
}
