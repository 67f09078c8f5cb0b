//! What can be changed while mounted.

use std::sync::atomic::Ordering;

use mobifs_engine::MachineEvent;

use super::Volume;
use super::locked_engine::LockedEngine;
use super::types::{BatterySource, VolumeError};
use crate::config::check_policy;
use crate::{AppName, Config, PolicyChange, Rules};

/// Returning less than this does not help against memory pressure.
const PRESSURE_FLUSH_BYTES_MIN: u64 = 1 << 20;

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

    /// Takes over what a configuration says about apps, memory and the user. Journal size and write
    /// threshold apply from the next mount on.
    ///
    /// # Errors
    /// [`VolumeError::Setting`] if it makes apps durable in a mount that was made without durable
    /// apps.
    pub fn reload(&self, config: &Config) -> Result<bool, VolumeError> {
        let mut has_changed = false;
        self.change_rules(|rules| {
            let all_durable = rules.all_durable();
            for (app, change) in rules.changes() {
                let app = AppName::from(app.as_slice());
                tracing::warn!(
                    %app,
                    settings = %change.settings(),
                    "the configuration replaces what was set at run time"
                );
            }
            let mut wanted = config.rules.clone();
            wanted.set_all_durable(all_durable);
            has_changed = *rules != wanted;
            *rules = wanted;
            Ok(())
        })?;
        {
            let mut pacing = self.shared.pacing.lock();
            has_changed |= pacing.rules() != config.pacing;
            pacing.set_rules(config.pacing);
        }
        let mut locked = self.shared.lock_engine();
        locked.engine.set_memory_budget(config.memory_budget_bytes);
        let budget_bytes = &self.shared.memory_budget_bytes;
        let before = budget_bytes.swap(config.memory_budget_bytes, Ordering::Relaxed);
        Ok(has_changed || before != config.memory_budget_bytes)
    }

    /// Changes settings of one app (by its path relative to the mount) until the
    /// configuration is loaded again.
    ///
    /// # Errors
    /// As [`Volume::reload`]; [`VolumeError::UnknownApp`] if there is no such directory, or it is
    /// no app; or if the limits contradict each other.
    pub fn set_app(&self, path: impl AsRef<[u8]>, change: PolicyChange) -> Result<(), VolumeError> {
        use mobifs_engine::AppRules as _;
        let path = path.as_ref();
        if path != b"." && !self.is_app_directory(path)? {
            return Err(VolumeError::UnknownApp {
                name: AppName::from(path).to_string(),
            });
        }
        self.change_rules(|rules| {
            rules.set_app(path, change.clone());
            check_policy(&rules.policy(path), &change)
                .map_err(|fault| VolumeError::Setting(fault.to_string()))
        })
    }

    /// The machine's battery is low, or no longer, says one source. While it is, every
    /// app is durable (as far as the mount was made to allow that), standby puts nothing off,
    /// and what there is, is committed at once: the power may go at any moment.
    pub fn set_battery_low(&self, source: BatterySource, is_low: bool) {
        let shared = &self.shared;
        // Held to the end: the sources are handled one after the other.
        let mut low = shared.low_batteries.lock();
        if is_low {
            low.insert(source);
        } else {
            low.remove(&source);
        }
        let is_low = !low.is_empty();
        let event = if is_low {
            MachineEvent::BatteryLow
        } else {
            MachineEvent::BatteryOk
        };
        let must_commit = {
            let mut rules = shared.rules.lock();
            let mut locked = shared.lock_engine();
            if shared.options.allow_durable && rules.all_durable() != is_low {
                let mut changed = rules.clone();
                changed.set_all_durable(is_low);
                self.put_in_force(&mut rules, &mut locked, changed);
            }
            // Under the same lock, so that both change at once for every thread.
            shared.pacing.lock().machine_event(event)
        };
        if must_commit {
            shared.request_pressure_flush();
        }
        tracing::info!(?source, is_low, "the state of the battery changed");
    }

    /// Memory is short: commits everything, and drops what is kept only until it is
    /// in its place, if that is worth it. Returns before that is done.
    pub fn flush_under_pressure(&self) {
        let committed = self.shared.store.pending().held_bytes;
        let held_bytes = self.shared.lock_engine().engine.dirty_bytes() + committed;
        if held_bytes >= PRESSURE_FLUSH_BYTES_MIN {
            self.shared.request_pressure_flush();
        }
    }

    /// Changes the rules in force, unless the change is refused or the result is.
    fn change_rules(
        &self,
        change: impl FnOnce(&mut Rules) -> Result<(), VolumeError>,
    ) -> Result<(), VolumeError> {
        let mut current = self.shared.rules.lock();
        let mut rules = current.clone();
        change(&mut rules)?;
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
        self.put_in_force(&mut current, &mut self.shared.lock_engine(), rules);
        Ok(())
    }

    fn put_in_force(&self, current: &mut Rules, locked: &mut LockedEngine<'_>, rules: Rules) {
        self.shared
            .age_min_ms
            .store(rules.due_age_ms_min(), Ordering::Relaxed);
        locked.engine.set_rules(Box::new(rules.clone()));
        if let Some(arena) = self.arena() {
            arena.keep_settings(rules.changes());
        }
        *current = rules;
        // Limits may have become tighter than what is open.
        locked.wake = true;
        self.shared.wake.notify_one();
    }
}
