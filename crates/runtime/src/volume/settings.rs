//! What can be changed while mounted.

use std::sync::atomic::Ordering;

use super::{Volume, VolumeError};
use crate::config::check_policy;
use crate::{Config, PolicyChange, Rules};

/// Giving back less than this helps nobody whose memory is short.
const RELIEF_BYTES_MIN: u64 = 1 << 20;

impl Volume {
    /// Whether `fsync` requests matter: some app is durable or commits at `fsync`, or may
    /// come to while mounted. The kernel adapter may keep them from coming only if not.
    pub fn has_durable_apps(&self) -> bool {
        self.shared.options.allow_durable
    }

    /// The kernel adapter says whether `sync(2)` reaches this mount.
    pub fn set_sync_reaches(&self, reaches: bool) {
        self.shared.sync_reaches.store(reaches, Ordering::Relaxed);
    }

    /// Takes over what a configuration says about apps, memory and the user. Journal size and
    /// write threshold hold from the next mount on.
    ///
    /// # Errors
    /// [`VolumeError::Setting`] if it makes apps durable in a mount that was told
    /// there would be none.
    pub fn reload(&self, config: &Config) -> Result<(), VolumeError> {
        let mut rules = config.rules.clone();
        rules.set_all_durable(self.shared.rules.lock().all_durable());
        self.set_rules(rules)?;
        self.shared.pacing.lock().set_rules(config.pacing);
        let mut live = self.shared.live();
        live.engine.set_memory_budget(config.memory_budget_bytes);
        self.shared
            .memory_budget_bytes
            .store(config.memory_budget_bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Changes settings of one app (by its path relative to the mount) until the
    /// configuration is loaded again.
    ///
    /// # Errors
    /// As [`Volume::reload`], or if the limits contradict each other.
    pub fn set_app(&self, path: &str, change: PolicyChange) -> Result<(), VolumeError> {
        use mobifs_core::AppRules as _;
        let mut rules = self.shared.rules.lock().clone();
        if path != "." && !rules.is_app(path.as_bytes()) {
            return Err(VolumeError::UnknownApp {
                name: path.to_owned(),
            });
        }
        rules.set_app(path.as_bytes(), change);
        check_policy(&rules.policy(path.as_bytes()))
            .map_err(|fault| VolumeError::Setting(fault.to_string()))?;
        self.set_rules(rules)
    }

    /// The machine's battery is low, or no longer. While it is, every app is durable (as
    /// far as the mount was made to allow that), and what there is, is committed at once:
    /// the power may go at any moment.
    pub fn set_battery_low(&self, is_low: bool) {
        let shared = &self.shared;
        shared.battery_low.store(is_low, Ordering::Relaxed);
        tracing::info!(is_low, "the battery");
        if shared.options.allow_durable {
            let mut rules = shared.rules.lock().clone();
            rules.set_all_durable(is_low);
            if let Err(error) = self.set_rules(rules) {
                tracing::error!(%error, "the classes stay as they are");
            }
        }
        if is_low {
            shared.request_relief();
        }
    }

    /// Memory is short: commits everything, and lets go of what is kept only until it is
    /// in its place, if that is worth it. Returns before that is done.
    pub fn relieve_memory(&self) {
        let committed = self.shared.store.pending().held_bytes;
        let held_bytes = self.shared.live().engine.dirty_bytes() + committed;
        if held_bytes >= RELIEF_BYTES_MIN {
            self.shared.request_relief();
        }
    }

    fn set_rules(&self, rules: Rules) -> Result<(), VolumeError> {
        if rules.needs_fsync() && !self.shared.options.allow_durable {
            let wanted = if rules.has_durable() {
                "become \"durable\""
            } else {
                "have the policy \"fsync\""
            };
            return Err(VolumeError::Setting(format!(
                "this mount was made with allow_durable = false, so no app can {wanted}: mount \
                 it again without that"
            )));
        }
        self.shared
            .age_min_ms
            .store(rules.due_age_ms_min(), Ordering::Relaxed);
        let mut current = self.shared.rules.lock();
        let mut live = self.shared.live();
        live.engine.set_rules(Box::new(rules.clone()));
        if let Some(arena) = self.arena() {
            arena.keep_settings(rules.changes());
        }
        *current = rules;
        // Limits may have become tighter than what is open.
        live.wake = true;
        self.shared.wake.notify_one();
        Ok(())
    }
}
