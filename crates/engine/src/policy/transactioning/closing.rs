//! When one open transaction closes.

use alloc::vec::Vec;

use super::{Efficiency, Transactioning, TransactioningState};
use crate::app::AppPolicy;

/// What an open transaction has written, and the decisions of its apps' policies. It is due when
/// any of them says so.
#[derive(Debug, Default)]
pub(crate) struct Closing {
    efficiency: Efficiency,
    /// Each policy once, however many of the apps have it. One app's, nearly always.
    policies: Vec<(AppPolicy, TransactioningState)>,
}

impl Closing {
    /// The state of a transaction that one app opens.
    pub(crate) fn new(policy: &AppPolicy) -> Self {
        let mut closing = Self::default();
        closing.add_policy(policy);
        closing
    }

    /// Counts that were kept, without policies: those are set when the apps are known,
    /// and begin anew.
    pub(crate) const fn counted(efficiency: Efficiency) -> Self {
        Self {
            efficiency,
            policies: Vec::new(),
        }
    }

    /// An app takes part.
    pub(crate) fn add_policy(&mut self, policy: &AppPolicy) {
        if !self.policies.iter().any(|(known, _)| known == policy) {
            self.policies.push((*policy, policy.transactioning.begin()));
        }
    }

    /// These are the apps' policies from now on: those that were here go on, others
    /// begin.
    pub(crate) fn set_policies<'a>(&mut self, policies: impl Iterator<Item = &'a AppPolicy>) {
        let mut before = core::mem::take(&mut self.policies);
        for policy in policies {
            match before.iter().position(|(known, _)| known == policy) {
                Some(index) => self.policies.push(before.swap_remove(index)),
                None => self.add_policy(policy),
            }
        }
    }

    /// Takes over what another transaction wrote, and its apps' policies. A policy of
    /// both goes on as it is here.
    pub(crate) fn absorb(&mut self, other: Self) {
        self.efficiency.absorb(&other.efficiency);
        for (policy, state) in other.policies {
            if !self.policies.iter().any(|(known, _)| *known == policy) {
                self.policies.push((policy, state));
            }
        }
    }

    /// One page or entry was written; `overwritten` if the transaction had it.
    pub(crate) fn page_written(&mut self, overwritten: bool) {
        self.efficiency.page_written(overwritten);
        for (_, state) in &mut self.policies {
            state.page_written(&self.efficiency);
        }
    }

    /// An operation that changed something ended.
    pub(crate) fn operation_ended(&mut self, age_ms: u64) {
        for (_, state) in &mut self.policies {
            state.operation_ended(age_ms);
        }
    }

    /// Pages of the transaction were dropped by delete or truncate.
    pub(crate) fn pages_dropped(&mut self, count: u64) {
        self.efficiency.pages_dropped(count);
    }

    pub(crate) const fn efficiency(&self) -> &Efficiency {
        &self.efficiency
    }

    /// Whether it should close now: a policy says so, or a limit is reached.
    pub(crate) fn is_due(&self, age_ms: u64) -> bool {
        self.policies.iter().any(|(policy, state)| {
            let at_limit = age_ms >= policy.age_max_ms
                || self.efficiency.written_pages() >= policy.staleness_max_pages;
            (at_limit && state.is_bounded()) || state.is_due(&self.efficiency, age_ms)
        })
    }

    /// Age in milliseconds at which it is due although nothing more is written; none:
    /// never.
    pub(crate) fn due_age_ms(&self) -> Option<u64> {
        let ages = self.policies.iter().filter_map(|(policy, state)| {
            let limit = state.is_bounded().then_some(policy.age_max_ms);
            [limit, state.due_age_ms()].into_iter().flatten().min()
        });
        ages.min()
    }

    /// Whether it closes when an app with this policy calls `fsync`.
    pub(crate) fn closes_at_fsync(&self, policy: &AppPolicy) -> bool {
        self.policies
            .iter()
            .any(|(known, state)| known == policy && state.closes_at_fsync())
    }
}
