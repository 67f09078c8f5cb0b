//! What can be changed while mounted.

use std::sync::atomic::Ordering;

use super::{Volume, VolumeError};
use crate::config::check_policy;
use crate::{Config, PolicyChange, Rules};

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

    /// Takes over what a configuration says about apps and memory. Journal size and
    /// write threshold hold from the next mount on.
    ///
    /// # Errors
    /// [`VolumeError::Setting`] if it makes apps durable in a mount that was told
    /// there would be none.
    pub fn reload(&self, config: &Config) -> Result<(), VolumeError> {
        self.set_rules(config.rules.clone())?;
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
