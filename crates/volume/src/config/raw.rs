//! The configuration as it is written in the file.

use mobifs_engine::AppPolicy;
use serde::Deserialize;

use super::Fault;
use super::rules::{AppGlob, PolicyChange, Rules};
use super::settings::{PolicySettings, check_policy};
use super::size::Size;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    pub(super) memory_budget_bytes: Option<Size>,
    pub(super) journal_bytes: Option<Size>,
    pub(super) direct_write_max_bytes: Option<Size>,
    pub(super) apply_idle_ms: Option<u64>,
    pub(super) objects_max: Option<u64>,
    pub(super) allow_durable: Option<bool>,
    pub(super) predictor: Option<String>,
    pub(super) predictor_short_intervals: Option<u64>,
    pub(super) predictor_long_intervals: Option<u64>,
    pub(super) predictor_short_ms: Option<u64>,
    pub(super) predictor_long_ms: Option<u64>,
    pub(super) predictor_timeout_factor: Option<u64>,
    pub(super) touch_gap_us: Option<u64>,
    pub(super) scheduler: Option<String>,
    pub(super) user_events: Option<String>,
    pub(super) memory_pressure: Option<bool>,
    pub(super) screens: Option<bool>,
    pub(super) system_bus: Option<bool>,
    pub(super) battery_low_percent: Option<u64>,
    pub(super) standby_age_max_ms: Option<u64>,
    apps: Option<Vec<String>>,
    #[serde(default)]
    defaults: PolicySettings,
    #[serde(default)]
    app: Vec<RawApp>,
}

/// As [`PolicySettings`]; flattening would let unknown keys pass.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawApp {
    #[serde(rename = "match")]
    glob: String,
    class: Option<String>,
    age_max_ms: Option<u64>,
    staleness_max_bytes: Option<Size>,
    policy: Option<String>,
    staleness_min_bytes: Option<Size>,
    slope_min_micropercent: Option<i64>,
    window_points: Option<u64>,
    interval_ms: Option<u64>,
    quiet_ms: Option<u64>,
    quiet_age_min_ms: Option<u64>,
    staleness_bytes: Option<Size>,
    flush_interval_ms: Option<u64>,
}

impl RawApp {
    fn split(&self) -> (&str, PolicySettings) {
        let settings = PolicySettings {
            class: self.class.clone(),
            age_max_ms: self.age_max_ms,
            staleness_max_bytes: self.staleness_max_bytes,
            policy: self.policy.clone(),
            staleness_min_bytes: self.staleness_min_bytes,
            slope_min_micropercent: self.slope_min_micropercent,
            window_points: self.window_points,
            interval_ms: self.interval_ms,
            quiet_ms: self.quiet_ms,
            quiet_age_min_ms: self.quiet_age_min_ms,
            staleness_bytes: self.staleness_bytes,
            flush_interval_ms: self.flush_interval_ms,
        };
        (&self.glob, settings)
    }
}

/// The change that `settings` are, applied to `below` and checked; faults are said with
/// the place of the key.
fn checked(
    place: &str,
    settings: &PolicySettings,
    below: AppPolicy,
) -> Result<(PolicyChange, AppPolicy), Fault> {
    let change = settings.change().and_then(|change| {
        let policy = change.apply(below);
        check_policy(&policy, &change).map(|()| (change, policy))
    });
    change.map_err(|fault| Fault::new(format!("{place}.{}", fault.key), fault.message))
}

impl RawConfig {
    pub(super) fn rules(&self) -> Result<Rules, Fault> {
        let everything = [String::from("*")];
        let globs = self.apps.as_deref().unwrap_or(&everything);
        if globs.is_empty() {
            let message = "needs at least one glob, such as \"*\"";
            return Err(Fault::new("apps", message));
        }
        let apps = globs
            .iter()
            .map(|glob| AppGlob::of_apps(glob))
            .collect::<Result<Vec<_>, _>>();
        let apps = apps.map_err(|message| Fault::new("apps", message))?;
        let (_, defaults) = checked("defaults", &self.defaults, AppPolicy::default())?;
        let mut matched = Vec::with_capacity(self.app.len());
        for app in &self.app {
            let (glob, settings) = app.split();
            let key = format!("app \"{glob}\"");
            let (change, _) = checked(&key, &settings, defaults)?;
            let compiled = match glob {
                // What lies in no app.
                "." => AppGlob::new(glob),
                glob => AppGlob::of_apps(glob),
            };
            let glob = compiled.map_err(|message| Fault::new(format!("{key}.match"), message))?;
            matched.push((glob, change));
        }
        Ok(Rules::new(apps, defaults, matched))
    }
}
