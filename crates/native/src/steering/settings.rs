//! Settings that change while a filesystem is steered.

use std::path::Path;

use mobifs_base::PAGE_BYTES_U64;
use mobifs_daemon::ConfigText;
use mobifs_engine::{AppRules as _, Class};
use mobifs_volume::{
    ConfigError, LastingSettings, PolicyChange, Rules, SettingError, check_policy,
};

use super::Steering;
use crate::check::{Obstacle, commit_interval_s};
use crate::takeover::TakeoverError;

/// Why settings stay as they are.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A setting is wrong.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The promise cannot be made.
    #[error(transparent)]
    Obstacle(#[from] Obstacle),
    /// There is no such app.
    #[error(
        "a steered filesystem is committed as a whole, so its settings are those of `.` and there is \
         no app {app}: use `--app .`"
    )]
    NoApps {
        /// What was named.
        app: String,
    },
    /// Other tables of the configuration limit it.
    #[error(
        "age_max_ms = {wanted_ms} would have no effect: a steered filesystem is committed as a whole, and \
         [defaults] or an [[app]] table of the configuration limits the age to {limit_ms} ms; change it \
         there and `mobifs reload`"
    )]
    Limited {
        /// What was asked for, in milliseconds.
        wanted_ms: u64,
        /// What holds.
        limit_ms: u64,
    },
    /// Other tables of the configuration limit it.
    #[error(
        "staleness_max_bytes = {wanted_bytes} would have no effect: a steered filesystem is committed as a whole, and \
         [defaults] or an [[app]] table of the configuration limits it to {limit_bytes} bytes; change it \
         there and `mobifs reload`"
    )]
    LimitedBytes {
        /// What was asked for.
        wanted_bytes: u64,
        /// What holds.
        limit_bytes: u64,
    },
    /// Other tables of the configuration have durable apps.
    #[error(
        "class = \"relaxed\" would have no effect: a steered filesystem is committed as a whole, and [defaults] or an \
         [[app]] table of the configuration says \"durable\"; change it there and `mobifs reload`"
    )]
    StillDurable,
    /// Durable apps are excluded.
    #[error("the configuration says allow_durable = false, so nothing can become \"durable\"")]
    NotDurable,
    /// The mount options.
    #[error(transparent)]
    Takeover(#[from] TakeoverError),
}

impl SettingsError {
    /// Whether what was asked for is wrong.
    pub(crate) const fn is_usage(&self) -> bool {
        !matches!(self, Self::Takeover(_))
    }
}

impl Steering {
    /// Changes the settings of all that lies in the filesystem, until the configuration is loaded
    /// again.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn set(&self, app: &[u8], change: PolicyChange) -> Result<(), SettingsError> {
        if app != b"." {
            return Err(SettingsError::NoApps {
                app: String::from_utf8_lossy(app).into_owned(),
            });
        }
        let mut rules = self.state().rules.clone();
        let before = rules.policy(b".");
        rules.set_app(b".", change.clone());
        let (own, all) = (rules.policy(b"."), rules.policy_of_all());
        if own.age_max_ms != before.age_max_ms && own.age_max_ms > all.age_max_ms {
            return Err(SettingsError::Limited {
                wanted_ms: own.age_max_ms,
                limit_ms: all.age_max_ms,
            });
        }
        let (own_pages, all_pages) = (own.staleness_max_pages, all.staleness_max_pages);
        if own_pages != before.staleness_max_pages && own_pages > all_pages {
            return Err(SettingsError::LimitedBytes {
                wanted_bytes: own_pages * PAGE_BYTES_U64,
                limit_bytes: all_pages * PAGE_BYTES_U64,
            });
        }
        if change.class() == Some(Class::Relaxed) && all.class == Class::Durable {
            return Err(SettingsError::StillDurable);
        }
        check_policy(&own, &change)?;
        self.put_in_force(rules)
    }

    /// Loads the configuration again, and sets the mount options anew if another program has changed
    /// them; whether that changes anything, and the keys that wait until the filesystem is steered anew.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn reload(&self, other: Option<&Path>) -> Result<(bool, Vec<&'static str>), SettingsError> {
        let text = ConfigText::load(other.or(self.config_file.as_deref()))?;
        let config = text.config;
        let wanted = LastingSettings::of_steered(&config);
        self.look_at_options();
        let before = self.reloadable();
        let replaces = !self.state().rules.changes().is_empty();
        let allowed = std::mem::replace(&mut self.state().allow_durable, config.allow_durable);
        if let Err(error) = self.put_in_force(config.rules) {
            self.state().allow_durable = allowed;
            return Err(error);
        }
        self.state().pacing.set_rules(config.pacing);
        if replaces {
            tracing::warn!("the configuration has replaced what was set at run time");
        }
        self.set_history(config.history);
        let has_changed = self.reloadable() != before;
        let waiting = self.lasting.different_in(&wanted);
        tracing::info!(
            has_changed,
            waits_for_next_start = waiting.join(", "),
            "configuration reloaded"
        );
        self.wake();
        Ok((has_changed, waiting))
    }

    /// What a reload can change.
    fn reloadable(&self) -> impl PartialEq + use<> {
        let state = self.state();
        (
            state.rules.clone(),
            state.allow_durable,
            state.pacing.rules(),
            state.history_rules,
            state.promise.changed.clone(),
        )
    }

    fn put_in_force(&self, rules: Rules) -> Result<(), SettingsError> {
        let policy = rules.policy_of_all();
        let interval_s = commit_interval_s(policy.age_max_ms)?;
        let becomes_durable = {
            let mut state = self.state();
            if policy.class == Class::Durable && !state.allow_durable {
                return Err(SettingsError::NotDurable);
            }
            state.takeover.set_commit_interval(interval_s)?;
            let before = state.rules.policy_of_all().class;
            state.observed.set_policy(policy);
            state.promise.set_class(policy.class);
            state.promise.update();
            state.rules = rules;
            policy.class == Class::Durable && before != Class::Durable
        };
        self.look_at_options();
        if becomes_durable {
            // What has returned at once is durable, as what returns from now on. An error is in the log and
            // the status, and the promise is withdrawn.
            let _logged = self.commit(false);
        }
        self.wake();
        Ok(())
    }
}
