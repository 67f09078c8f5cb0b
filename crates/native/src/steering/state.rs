//! The state of a steered filesystem.

use std::collections::BTreeSet;

use mobifs_base::MonotonicNs;
use mobifs_engine::{Class, Moment, Observed, ObservedTransaction, Pacing};
use mobifs_steered::{Device, PublishError, Registration, Scope, VALID_S};
use mobifs_volume::{BatterySource, HistoryRules, HistoryStatus, Rules};

use crate::counters::Dirtied;
use crate::filesystem::Filesystem;
use crate::only::Only;
use crate::takeover::{Difference, Takeover};

/// Everything that changes while a filesystem is steered.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) takeover: Takeover,
    /// None: all of the filesystem is steered.
    pub(crate) only: Option<Only>,
    pub(crate) promise: Promise,
    pub(crate) observed: ObservedTransaction,
    pub(crate) pacing: Pacing,
    pub(crate) rules: Rules,
    pub(crate) allow_durable: bool,
    pub(crate) low_batteries: BTreeSet<BatterySource>,
    pub(crate) counts: Counts,
    pub(crate) started: Moment,
    /// For the status.
    pub(crate) history: Option<HistoryStatus>,
    pub(crate) history_rules: HistoryRules,
    /// What the kernel does not show, in sentences, as it was last found.
    pub(crate) not_counted: Vec<String>,
    /// The daemon's.
    pub(crate) last_commit: Option<Moment>,
    /// When one was seen that the daemon has not asked for.
    pub(crate) last_other_commit: Option<Moment>,
    /// After a commit that failed: when the next one is tried.
    pub(crate) retry_at: Option<MonotonicNs>,
    /// The options are restored, or the mount is gone.
    pub(crate) has_ended: bool,
    /// The mount is gone, and the options are not restored.
    pub(crate) is_detached: bool,
}

/// What was counted since the filesystem is steered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    /// When it was last read.
    dirtied: Dirtied,
    /// Commits of the filesystem, when they were last read.
    commits: Option<u64>,
    pub(crate) written_pages: u64,
    pub(crate) committed_pages: u64,
    pub(crate) own_commits: u64,
    pub(crate) other_commits: u64,
    device_written_bytes: Option<u64>,
}

impl Counts {
    pub(crate) fn begin(filesystem: &Filesystem, dirtied: Dirtied) -> Self {
        Self {
            dirtied,
            commits: filesystem.commits(),
            written_pages: 0,
            committed_pages: 0,
            own_commits: 0,
            other_commits: 0,
            device_written_bytes: filesystem.device_written_bytes(),
        }
    }

    /// Pages that became dirty since the last look.
    pub(crate) const fn take_dirtied(&mut self, now: Dirtied) -> u64 {
        let before = self.dirtied.pages;
        self.dirtied = now;
        match (now.pages, before) {
            (Some(now), Some(before)) => now.saturating_sub(before),
            // `Steering::not_counted` says so.
            _ => 0,
        }
    }

    /// Commits since the last look; none where they are not counted.
    pub(crate) fn take_commits(&mut self, now: Option<u64>) -> Option<u64> {
        let commits = now?.saturating_sub(self.commits?);
        self.commits = now;
        Some(commits)
    }

    /// What is counted as uncommitted was committed.
    pub(crate) fn committed(&mut self, observed: Option<Observed>) {
        let pages = observed.map_or(0, |observed| observed.efficiency.written_pages());
        self.committed_pages += pages;
    }

    /// Bytes written to the device since the filesystem is steered.
    pub(crate) fn device_written_bytes(&self, filesystem: &Filesystem) -> u64 {
        let both = filesystem
            .device_written_bytes()
            .zip(self.device_written_bytes);
        both.map_or(0, |(now, before)| now.saturating_sub(before))
    }
}

/// What programs may rely on, and where they see that they may.
#[derive(Debug)]
pub(crate) struct Promise {
    /// None when the filesystem is not steered any more.
    registration: Option<Registration>,
    is_in_force: bool,
    /// The options are not those that keep the promise.
    pub(crate) changed: Option<Difference>,
    /// The last commit failed.
    pub(crate) failed: Option<String>,
    /// Programs cannot see the registration, which another program has removed.
    unseen: Option<String>,
    /// Calls for durability wait.
    is_durable: bool,
    battery_is_low: bool,
    is_ending: bool,
}

impl Promise {
    /// Keeps other daemons away, and promises nothing.
    pub(crate) fn claim(device: Device, scope: Scope) -> Result<Self, PublishError> {
        Ok(Self {
            registration: Some(Registration::claim(device, scope)?),
            is_in_force: false,
            changed: None,
            failed: None,
            unseen: None,
            is_durable: false,
            battery_is_low: false,
            is_ending: false,
        })
    }

    /// Why nothing is promised; none: the promise holds.
    pub(crate) fn why_withdrawn(&self) -> Option<String> {
        let changed = self.changed.as_ref().map(ToString::to_string);
        let failed = || self.failed.clone().or_else(|| self.unseen.clone());
        changed.or_else(failed)
    }

    /// Puts the registration back if another program has removed it.
    pub(crate) fn look_at_registration(&mut self) {
        let Some(registration) = &mut self.registration else {
            return;
        };
        match registration.put_back_if_removed() {
            Ok(false) => {}
            Ok(true) => {
                tracing::warn!(
                    "the registration of the filesystem was removed, and is there again"
                );
                self.unseen = None;
                // Nothing is promised by the new one yet.
                self.is_in_force = false;
                self.update();
            }
            Err(error) => {
                let why = format!(
                    "the registration of the filesystem was removed, and cannot be put back: {error}"
                );
                if self.unseen.as_ref() != Some(&why) {
                    tracing::error!("{why}");
                }
                self.unseen = Some(why);
                self.update();
            }
        }
    }

    /// Whether calls for durability return at once.
    pub(crate) const fn is_in_force(&self) -> bool {
        self.is_in_force
    }

    pub(crate) fn set_class(&mut self, class: Class) {
        self.is_durable = class == Class::Durable;
    }

    pub(crate) const fn set_battery_low(&mut self, is_low: bool) {
        self.battery_is_low = is_low;
    }

    /// Nothing is promised any more.
    pub(crate) fn end(&mut self) {
        self.is_ending = true;
        self.withdraw_calls();
        self.registration = None;
    }

    /// Tells programs what follows from the rest.
    pub(crate) fn update(&mut self) {
        let is_relaxed = !self.is_durable && !self.battery_is_low && !self.is_ending;
        let wanted = is_relaxed && self.why_withdrawn().is_none();
        if wanted && !self.is_in_force {
            self.is_in_force = true;
            self.renew();
        } else if !wanted {
            self.withdraw_calls();
        }
    }

    /// Programs rely on the promise for a while only, as a daemon that is killed cannot withdraw it:
    /// to be called within [`VALID_S`].
    pub(crate) fn renew(&mut self) {
        let Some(registration) = self.registration.as_ref().filter(|_| self.is_in_force) else {
            return;
        };
        if let Err(error) = registration.promise(VALID_S) {
            tracing::error!(
                %error,
                "the daemon cannot tell programs that the filesystem is steered: their calls wait"
            );
            self.withdraw_calls();
        }
    }

    fn withdraw_calls(&mut self) {
        if !self.is_in_force {
            return;
        }
        self.is_in_force = false;
        let Some(registration) = &self.registration else {
            return;
        };
        if let Err(error) = registration.withdraw() {
            tracing::error!(%error, "the daemon cannot withdraw its promise, and removes it");
            self.registration = None;
        }
    }
}
